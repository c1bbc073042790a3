#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the `tokenizers` library makes of many strings: three real tokenizers, and small ones for single features.

NAME.encode.bin.xz  repeated [u32 text_bytes][text, UTF-8][u32 n][n x u32 ids], add_special_tokens=False
NAME.decode.bin.xz  repeated [u32 n][n x u32 ids][u32 bytes][text][u32 bytes][text without special tokens]
All integers little-endian.
"""

import json
import lzma
import struct
import unicodedata

import common

common.quiet()

import sample_text  # noqa: E402
import small_bpe  # noqa: E402
from small_bpe import added, to_byte_level, tokenizer_json  # noqa: E402
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers  # noqa: E402

PACKAGES = ("tokenizers", "numpy")
DATA = common.REPO / "tests" / "data" / "tokenizers"
OUT = "tokenizer"


# ----------------------------------------------------------------------------------------------------------------------
# records

def pack_ids(ids):
    return struct.pack(f"<I{len(ids)}I", len(ids), *ids)


def pack_text(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def write_xz(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(data, format=lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME))


def write_encode(path, tokenizer, texts, special=False):
    encodings = tokenizer.encode_batch(texts, add_special_tokens=special)
    write_xz(path, b"".join(pack_text(t) + pack_ids(e.ids) for t, e in zip(texts, encodings)))


def write_decode(path, tokenizer, sequences):
    """Returns how many sequences were left out because the library itself panics on them."""
    out, panics = b"", 0
    for s in sequences:
        try:
            out += pack_ids(s) + pack_text(tokenizer.decode(s, skip_special_tokens=False)) + pack_text(
                tokenizer.decode(s, skip_special_tokens=True))
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            panics += 1
    write_xz(path, out)
    return panics


# ----------------------------------------------------------------------------------------------------------------------
# the three real tokenizers

def decode_sequences(tokenizer, name, texts, count=300):
    """Random ids, ids around added tokens, real encodings cut anywhere, single byte tokens, ids nobody has."""
    rng = common.rng_of("decode", name)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    special = sorted(tokenizer.get_added_tokens_decoder())
    alphabet = small_bpe.byte_alphabet()
    byte_ids = [tokenizer.token_to_id(alphabet[b]) for b in range(256)]
    byte_ids = [i for i in byte_ids if i is not None]
    high = [i for b in range(128, 256) if (i := tokenizer.token_to_id(alphabet[b])) is not None]
    out = [[], [0], [size - 1], special[:30], byte_ids, high]
    for text in ("é", "好", "😀", "a\u0301", "\u00a0", "👩‍👩‍👧‍👦"):
        ids = [tokenizer.token_to_id(alphabet[b]) for b in text.encode()]
        if None not in ids:
            out += [ids] + [ids[:n] for n in range(1, len(ids))] + [ids[n:] for n in range(1, len(ids))]
            out += [ids[:1] + ids, ids + ids[:1], [ids[0], special[0], *ids[1:]]]
    while len(out) < count:
        kind = int(rng.integers(0, 5))
        if kind == 0:
            ids = rng.integers(0, size, rng.integers(1, 30)).tolist()
        elif kind == 1:
            ids = [int(rng.choice(high)) for _ in range(rng.integers(1, 12))] if high else [0]
        elif kind == 2:
            ids = tokenizer.encode(texts[int(rng.integers(0, len(texts)))], add_special_tokens=False).ids
            a, b = sorted(rng.integers(0, len(ids) + 1, 2).tolist())
            ids = ids[a:b]
        elif kind == 3:
            ids = [int(rng.choice(special)) if rng.random() < 0.4 else int(rng.integers(0, size)) for _ in range(rng.integers(1, 15))]
        else:
            ids = rng.integers(0, size, 8).tolist()
            ids.insert(int(rng.integers(0, 9)), size + int(rng.integers(0, 50)))  # no such id: left out of the text
        out.append(ids)
    return out[:count]


NEWER_STRINGS = [  # Unicode 12 to 16
    "\u061d\u0870\u0871", "\u08b5\u08c8", "\u0c5d\u0cdd", "\u0d04x", "\u0e86\u0e89", "\u1b4c\u1b7d", "\u20c0 12", "\u2b97", "\u2c2f\u2c5f", "\u2e4f\u2e5d",
    "\u31bb\u32ff", "\u9ff0\u9fff", "\ua7ba\ua7bb\ua7d0", "\uab66\uab68", "\ufbc2", "\ufd40", "\U00010570\U00010597'\U00010597", "\U00010780\U00010781",
    "\U00010e80", "\U00011450\U0001145a", "\U00011900\U00011935\U00011930", "\U00011938", "\U00011fc0", "\U00012f90", "\U00016a70\U00016ac0\U00016ac9",
    "\U000187f7", "\U00018d00", "\U0001aff0", "\U0001b11f", "\U0001cf00", "\U0001d1e9", "\U0001df00", "\U0001e140\U0001e149", "\U0001e290\U0001e2f0",
    "\U0001f6d5 \U0001f90c", "\U0001f971\U0001fa70\U0001fae0", "\U0001fbf0\U0001fbf9", "\U0002a6d7\U0002a6dd", "\U0002b739", "\U00030000\U0003134a",
    "\u0cf3\u0ece", "\U00010efd\U00010eff", "\U00011240\U00011241", "\U00011f02\U00011f50", "\U0001d2c0", "\U0001e030\U0001e08f", "\U0001fa75\U0001faf7", "\U00031350\U000323af",
    "\u2ffc\u2fff\u31ef", "\U0002ebf0\U0002ee5d", "\u0897", "\u1c89\u1c8a", "\ua7cb\ua7da", "\U000105c0\U00010d40\U00010d41", "\U000116d0\U000116d1", "\U00016d40\U00016d70",
    "\U0001cc00\U0001ccf0", "\U0001fae9\U0001fadf", "\U00011380", "\U00013460",
]


def make_real(root, facts):
    texts = sample_text.general_strings(2600)
    parts = sample_text.long_text(1 << 20)
    for name in ("qwen3", "deepseek_v3", "gptoss"):
        raw = lzma.decompress((DATA / f"{name}.tokenizer.json.xz").read_bytes())
        tokenizer = Tokenizer.from_str(raw.decode())
        tokens = [t.content for _, t in sorted(tokenizer.get_added_tokens_decoder().items())]
        # placeholders are many and alike: the first two will do
        tokens = [t for i, t in enumerate(tokens) if "place" not in t or t.endswith(("no▁0｜>", "no▁799｜>"))]
        special = sample_text.special_strings(tokens, sample_text.Maker(f"special {name}"), 500)
        mine = list(dict.fromkeys(texts + special))
        base = root / OUT / name
        write_encode(base.with_suffix(".encode.bin.xz"), tokenizer, mine)
        write_encode(base.with_suffix(".long.bin.xz"), tokenizer, ["".join(parts), *parts])
        write_encode(base.with_suffix(".newer_unicode.bin.xz"), tokenizer, NEWER_STRINGS)
        write_decode(base.with_suffix(".decode.bin.xz"), tokenizer, decode_sequences(tokenizer, name, mine))
        facts[f"{OUT}/{name}"] = {"strings": len(mine), "long_bytes": len("".join(parts).encode()), "long_parts": len(parts),
                                  "newer_unicode_strings": len(NEWER_STRINGS), "decode_sequences": 300}
        print(name, facts[f"{OUT}/{name}"], flush=True)


# ----------------------------------------------------------------------------------------------------------------------
# Unicode tables as the library has them

def ranges(code_points):
    out = []
    for c in code_points:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def make_unicode(root, facts):
    every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    whole = "".join(map(chr, every))
    lines = ["# class first last: what the regular expressions of tokenizers match, all code points, inclusive ranges"]
    for name in ("L", "M", "N", "P", "S", "Z", "Lu", "Ll", "Lt", "Lm", "Lo", "s", "w", "d"):
        pattern = rf"\p{{{name}}}" if name[0].isupper() else rf"\{name}"
        found = set()
        for text, _ in pre_tokenizers.Split(Regex(pattern), "removed", invert=True).pre_tokenize_str(whole):
            found.update(map(ord, text))
        lines += [f"{name} {a:04X} {b:04X}" for a, b in ranges(sorted(found))]
    write_xz(root / OUT / "unicode_classes.txt.xz", ("\n".join(lines) + "\n").encode())

    forms = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD()}
    lines = ["# form code_point normalised...: single code points that change; Hangul syllables left out.",
             "# 'disputed' instead of the code points: the library's tables are older than Unicode 14 here"]
    disputed = 0
    for form, normalizer in forms.items():
        for c in every:
            if 0xAC00 <= c <= 0xD7A3:
                continue
            got, now = normalizer.normalize_str(chr(c)), unicodedata.normalize(form, chr(c))
            if got != now:
                lines.append(f"{form} {c:04X} disputed")
                disputed += 1
            elif got != chr(c):
                lines.append(f"{form} {c:04X} " + " ".join(f"{ord(x):04X}" for x in got))
    write_xz(root / OUT / "unicode_forms.txt.xz", ("\n".join(lines) + "\n").encode())
    facts[f"{OUT}/unicode"] = {"disputed_normalisations": disputed}


# ----------------------------------------------------------------------------------------------------------------------
# small tokenizers

def words_of(text):
    out, word = [], ""
    for c in text:
        if c == " ":
            if word:
                out.append(word)
            word = " "
        elif c == "\n":
            if word:
                out.append(word)
            word = ""
        else:
            word += c
    return out + [word]


CORPUS = sample_text.kjv()[:30000] + "\n".join(sample_text.SENTENCES) + "".join(sample_text.CODE)
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BYTE_LEVEL_REGEX = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTES = list(small_bpe.byte_alphabet().values())


def dense_words():
    """Short random strings, so that most pairs of these characters have a merge and a wrong split shows in the ids."""
    m = sample_text.Maker("dense")
    words = ["".join(m.pick("ab12,.-_' ") for _ in range(m.integer(2, 4))) for _ in range(6000)]
    return words + ["你好", "世界", "中文", "日本", "カタカナ", "の1", "1中", "中1", "文2"] * 60


def byte_bpe(merges=330):
    words = [to_byte_level(w) for w in words_of(CORPUS) + dense_words()]
    return small_bpe.train(words, BYTES, merges)


def char_bpe(merges=330, unk="<unk>", space="\u2581", bytes_too=False, alphabet_limit=90):
    """Characters instead of bytes; spaces written as `space`; rare characters stay outside the vocabulary."""
    words = [w.replace(" ", space) for w in words_of(CORPUS) + dense_words()]
    count = {}
    for w in words[: len(words_of(CORPUS))]:
        for c in w:
            count[c] = count.get(c, 0) + 1
    alphabet = sorted(count, key=lambda c: (-count[c], c))[:alphabet_limit]
    vocab, rules = small_bpe.train(words, sorted(alphabet), merges)
    head = [unk] if unk else []
    if bytes_too:
        head += [f"<0x{b:02X}>" for b in range(256)]
    return head + vocab, rules


def split(pattern, behavior, invert=False, regex=True):
    return {"type": "Split", "pattern": {"Regex" if regex else "String": pattern}, "behavior": behavior, "invert": invert}


def sequence(kind, *items):
    key = {"pre": "pretokenizers", "norm": "normalizers", "dec": "decoders", "post": "processors"}[kind]
    return {"type": "Sequence", key: list(items)}


def small_tokenizers():
    """(name, tokenizer.json, extra strings, number of strings)"""
    byte_vocab, byte_merges = byte_bpe()
    byte = lambda **kw: tokenizer_json(byte_vocab, byte_merges, **{"decoder": BYTE_LEVEL_REGEX, **kw})  # noqa: E731
    plain_vocab, plain_merges = char_bpe(space=" ")
    plain = lambda **kw: tokenizer_json(plain_vocab, plain_merges, **{"unk_token": "<unk>", **kw})  # noqa: E731
    n = len(byte_vocab)
    out = []

    # several Splits in one Sequence: every step must run
    cjk = "[一-龥\u3040-ゟ゠-ヿ]+"
    for name, last in (("sequence_split", BYTE_LEVEL), ("sequence_split_regex", BYTE_LEVEL_REGEX)):
        out.append((name, byte(pre_tokenizer=sequence("pre", split(r"\p{N}{1,3}", "Isolated"), split(cjk, "Isolated"), last)),
                    mixed_digits_cjk(), 250 if name == "sequence_split" else 60))

    # ignore_merges: whole words that no merge reaches
    vocab = byte_vocab + [to_byte_level(w) for w in (" firmament", "zzzz", "Zürich", " 好好", "qxq")]
    for flag in (True, False):
        out.append((f"ignore_merges_{str(flag).lower()}", tokenizer_json(vocab, byte_merges, decoder=BYTE_LEVEL_REGEX,
                    pre_tokenizer=BYTE_LEVEL_REGEX, ignore_merges=flag),
                    ["the firmament firmament", "zzzz zzzzz zzzz", "Zürich Zürichs", "好好 好好", "qxq qxqx"], 40))

    # merges spelled "a b", rank order against id order: later merges may have smaller ids
    shuffled = {t: i for i, t in enumerate(sorted(byte_vocab, reverse=True))}
    out.append(("merges_as_strings", tokenizer_json(shuffled, byte_merges, decoder=BYTE_LEVEL_REGEX, pre_tokenizer=BYTE_LEVEL_REGEX, merges_as_strings=True), [], 50))

    # added tokens
    flags = [added(n, "<s>"), added(n + 1, "<left>", lstrip=True), added(n + 2, "<right>", rstrip=True), added(n + 3, "<both>", lstrip=True, rstrip=True),
             added(n + 4, "word", single_word=True, special=False), added(n + 5, "Norm", normalized=True, special=False),
             added(n + 6, "Raw", normalized=False, special=False), added(n + 7, "<s><s>"), added(n + 8, "lo", normalized=True, special=False, single_word=True),
             added(n + 9, "É", normalized=True, special=False), added(n + 10, "<|a|>", normalized=True), added(n + 11, "<|a|><|b|>", normalized=True)]
    more = ["<s>", "<s><s>", "<s><s><s>", "a<s>b", " <left> x", "a  <left>  b", "a\n\t<left>b", "a <right>  b", "<right>\n\nb", "  <both>  ", "a <both> b <both>",
            "word", "a word b", "words", "sword", "word.", "_word", "word_", "wordé", "word1", "-word-", "Norm", "norm", "NORM", "xNormx", "Raw", "raw", "RAW", "rawRaw", "lo",
            "hello lo", "LO lo.", "é É e\u0301", "cafÉ É", "<|a|>", "<|A|>", "<|a|><|b|>", "<|a|><|b", "<S>", "<left><right>", " <left><right> ", "<right> <left>", "word word",
            "wordword", "<both><both>", "<s> word <s>", "NORMRaw", "İ<s>İ"]
    out.append(("added_tokens", byte(added_tokens=flags, pre_tokenizer=BYTE_LEVEL_REGEX), more, 70))
    out.append(("added_tokens_lowercase", byte(added_tokens=flags, normalizer={"type": "Lowercase"}, pre_tokenizer=BYTE_LEVEL_REGEX), more, 70))
    out.append(("added_tokens_nfc", byte(added_tokens=flags, normalizer={"type": "NFC"}, pre_tokenizer=BYTE_LEVEL_REGEX), more, 60))

    # normalizers
    norms = {
        "nfc": {"type": "NFC"}, "nfd": {"type": "NFD"}, "nfkc": {"type": "NFKC"}, "nfkd": {"type": "NFKD"}, "lowercase": {"type": "Lowercase"},
        "strip": {"type": "Strip", "strip_left": True, "strip_right": True}, "strip_left": {"type": "Strip", "strip_left": True, "strip_right": False},
        "strip_right": {"type": "Strip", "strip_left": False, "strip_right": True}, "strip_accents": sequence("norm", {"type": "NFD"}, {"type": "StripAccents"}),
        "strip_accents_only": {"type": "StripAccents"}, "prepend": {"type": "Prepend", "prepend": "\u2581x"},
        "replace_string": {"type": "Replace", "pattern": {"String": "the"}, "content": "<THE>"},
        "replace_regex": {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": "_"},
        "replace_empty": {"type": "Replace", "pattern": {"Regex": r"[aeiou]"}, "content": ""},
        "sequence": sequence("norm", {"type": "NFKC"}, {"type": "Lowercase"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "Strip", "strip_left": True, "strip_right": True}),
        "empty_sequence": sequence("norm"),
    }
    extra = {"replace_string": ["the", "thethe", "The the", "the theme other"], "replace_regex": ["a  b", " \n ", "\u00a0a\u3000"], "replace_empty": ["aeiou", "hello", "aaa"],
             "prepend": ["", "x", " x"], "lowercase": ["ÀÉÎ", "İI", "ΑΣ ΣΑΣ", "ẞ", "ǅ", "Ⅷ", "Ａ"]}
    for name, normalizer in norms.items():
        marks = sample_text.NFC_CASES if "nf" in name or "accent" in name else []
        out.append((f"norm_{name}", byte(normalizer=normalizer, pre_tokenizer=BYTE_LEVEL_REGEX), extra.get(name, []) + marks + ["  both  ", "\u00a0x\u2003", "\tx\n"], 60))

    # pre-tokenizers
    pres = {
        "none": None, "whitespace": {"type": "Whitespace"}, "whitespace_split": {"type": "WhitespaceSplit"},
        "digits": {"type": "Digits", "individual_digits": False}, "digits_individual": {"type": "Digits", "individual_digits": True},
        "metaspace_always": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        "metaspace_first": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
        "metaspace_never": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": True},
        "metaspace_nosplit": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False},
        "char_delimiter": {"type": "CharDelimiterSplit", "delimiter": "-"},
    }
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        pres[f"punctuation_{behavior.lower()}"] = {"type": "Punctuation", "behavior": behavior}
    meta_vocab, meta_merges = char_bpe()
    for name, pre in pres.items():
        strings = ["1 22 333", "a1b22c", "٣٤ ２３ ½²", "a-b--c-", "-", "--a", "...!?", "a.b,,c", "«x» 「y」", "$+<=>^`|~", "x\u00a0y\u3000z\u2003", "a_b'c"] + dense_words()[:15]
        if name.startswith("metaspace"):
            doc = tokenizer_json(["<s>", *meta_vocab], meta_merges, added_tokens=[added(0, "<s>")], unk_token="<unk>", fuse_unk=True, pre_tokenizer=pre,
                                 decoder={k: v for k, v in pre.items()})
            strings += ["<s>the", "<s> the", "the<s>the", "the <s> the", "\u2581the", " the", "  the", "the  ", "\u2581", "a\u2581b"]
        else:
            doc = plain(pre_tokenizer=pre)
        out.append((f"pre_{name}", doc, strings, 50))
    for space in (True, False):
        for regex in (True, False):
            pre = {"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": True, "use_regex": regex}
            out.append((f"pre_bytelevel_{'prefix' if space else 'plain'}_{'regex' if regex else 'noregex'}",
                        byte(pre_tokenizer=pre, added_tokens=[added(n, "<s>")]), ["<s>the", "<s> the", "the<s>the", " the", "  the", "", "I'll I'LL", "a1 2b", "x  \n y"], 50))

    # Split in every behaviour
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            strings = ["a,b", ",a,,b,", ",,", "a", "", ",", "ab,,,cd", "1a22b333", "12", "a1", "1a", "a 1 b 2", "x,1,y"]
            strings += dense_words()[:25]
            name = f"split_{behavior.lower()}{'_invert' if invert else ''}"
            out.append((name, byte(pre_tokenizer=sequence("pre", split(r"\d+|,", behavior, invert), BYTE_LEVEL)), strings, 50))
    out.append(("split_string", byte(pre_tokenizer=sequence("pre", split("th", "MergedWithPrevious", regex=False), split(".", "Isolated", regex=False), BYTE_LEVEL)),
                ["the.th.", "thth", "th", "a.b..c", "...", "xthy"], 50))
    out.append(("split_lookahead", byte(pre_tokenizer=sequence("pre", split(r"\s+(?!\S)|\s+|[^\s]+(?=\d)", "Isolated"), BYTE_LEVEL)), ["a1", "ab12 c", "x  y", "  ", "a \n b"], 50))
    out.append(("split_sequence_removed", byte(pre_tokenizer=sequence("pre", {"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True},
                {"type": "Punctuation", "behavior": "Isolated"}, BYTE_LEVEL)), ["a1b, c22.", "x  y", "12 34"], 50))

    # BPE without bytes
    out.append(("unk", plain(), ["日本", "a日b", "日", "a日本b语", "☃☃"], 50))
    out.append(("unk_fuse", plain(fuse_unk=True), ["日本", "a日b", "日", "a日本b语", "☃☃"], 50))
    drop_vocab = plain_vocab[1:]
    out.append(("no_unk", tokenizer_json(drop_vocab, plain_merges), ["日本", "a日b", "日", "a日本b语"], 50))
    for fuse in (False, True):
        v, m = char_bpe(bytes_too=True)
        out.append((f"byte_fallback{'_fuse' if fuse else ''}", tokenizer_json(v, m, unk_token="<unk>", fuse_unk=fuse, byte_fallback=True, decoder=sequence(
            "dec", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"})), ["日本", "a日b", "😀", "\n", "\u2581\u2581"], 50))
    v, m = char_bpe(bytes_too=True)
    partial = [t for t in v if t not in ("<0xE6>",)]
    out.append(("byte_fallback_partial", tokenizer_json(partial, m, unk_token="<unk>", fuse_unk=True, byte_fallback=True, decoder=sequence("dec", {"type": "ByteFallback"}, {"type": "Fuse"})),
                ["日本", "好日", "😀日é"], 50))
    v, m = suffix_bpe()
    out.append(("end_of_word_suffix", tokenizer_json(v, m, unk_token="<unk>", end_of_word_suffix="</w>", pre_tokenizer={"type": "WhitespaceSplit"}, decoder={"type": "BPEDecoder", "suffix": "</w>"}),
                ["the", "the heaven", "日", "thé"], 50))

    # the SentencePiece-like pipeline of Llama and Mixtral files
    v, m = char_bpe(bytes_too=True)
    v = [v[0], "<s>", "</s>", *v[1:]]
    llama_decoder = sequence("dec", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                             {"type": "Strip", "content": " ", "start": 1, "stop": 0})
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    out.append(("llama_like", tokenizer_json(v, m, added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")], unk_token="<unk>", fuse_unk=True, byte_fallback=True,
                normalizer=sequence("norm", {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}),
                post_processor=template, decoder=llama_decoder), ["the</s>heaven", "<s>", " the", "日本 x", "a  b", ""], 60))

    # post-processors
    end = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}],
           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
           "special_tokens": {"<bos>": {"id": "<bos>", "ids": [n], "tokens": ["<bos>"]}, "<eos>": {"id": "<eos>", "ids": [n + 1, n], "tokens": ["<eos>", "<bos>"]}}}
    two = [added(n, "<bos>"), added(n + 1, "<eos>")]
    byte_post = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    out.append(("template", byte(added_tokens=two, pre_tokenizer=BYTE_LEVEL_REGEX, post_processor=end), ["", "<bos>x", "x<eos>"], 40))
    out.append(("template_in_sequence", byte(added_tokens=two, pre_tokenizer=BYTE_LEVEL_REGEX, post_processor=sequence("post", byte_post, end)), ["", "<bos>x", "x<eos>"], 40))

    # decoders
    decs = {
        "bytelevel": BYTE_LEVEL_REGEX, "none": None, "fuse": {"type": "Fuse"},
        "strip": sequence("dec", {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 1}),
        "strip_each": {"type": "Strip", "content": "\u0120", "start": 1, "stop": 0},
        "replace_regex": sequence("dec", {"type": "Replace", "pattern": {"Regex": "\u0120+"}, "content": " "}, {"type": "Fuse"}),
        "replace_string": {"type": "Replace", "pattern": {"String": "e"}, "content": ""},
    }
    for name, decoder in decs.items():
        out.append((f"decoder_{name}", byte(pre_tokenizer=BYTE_LEVEL_REGEX, decoder=decoder, added_tokens=two), ["  the", "eee", "the  "], 40))
    return out


def suffix_bpe():
    words = [w.strip() for w in words_of(CORPUS) if w.strip()]
    marked = []
    for w in words:
        marked.append([*w[:-1], w[-1] + "</w>"])
    # the trainer splits strings into characters, so stand-ins are used for "x</w>"
    ends = sorted({m[-1] for m in marked})
    stand = {e: chr(0xE000 + i) for i, e in enumerate(ends)}
    back = {v: k for k, v in stand.items()}
    texts = ["".join(m[:-1]) + stand[m[-1]] for m in marked]
    count = {}
    for t in texts:
        for c in t:
            count[c] = count.get(c, 0) + 1
    alphabet = sorted(sorted(count, key=lambda c: (-count[c], c))[:120])
    vocab, rules = small_bpe.train(texts, alphabet, 150)
    real = lambda t: "".join(back.get(c, c) for c in t)  # noqa: E731
    return ["<unk>", *map(real, vocab)], [(real(a), real(b)) for a, b in rules]


def mixed_digits_cjk():
    m = sample_text.Maker("digits and CJK")
    out = ["12345", "123中456", "中123文", "1中2文3", "一二三123456", "カタカナ123ひらがな", "12 34中 文", "㐀123", "ー12ー", "\u303012", "２０２４年12月", "中 文", "1 中", "日本語とEnglish12345混在"]
    while len(out) < 250:
        out.append("".join(m.pick([m.digits, m.spaces, m.ascii_word, lambda: m.word("cjk_core", 1, 5), lambda: m.word("hiragana", 1, 4), lambda: m.word("katakana", 1, 4),
                                   lambda: m.word("cjk_a", 1, 2), lambda: m.pick(",.!?-、。")])() for _ in range(m.integer(1, 9))))
    return out


def make_small(root, facts):
    general = [t for t in sample_text.general_strings(2600) if len(t) < 120]
    for name, document, extra, count in small_tokenizers():
        folder = root / OUT / "small" / name
        common.write_text(folder / "tokenizer.json", json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")
        tokenizer = Tokenizer.from_str(json.dumps(document))
        m = sample_text.Maker(f"small {name}")
        texts = list(dict.fromkeys(extra + sample_text.fixed_strings()[:8]))
        while len(texts) < count:
            t = m.pick(general)
            if t not in texts:
                texts.append(t)
        write_encode(folder / "encode.bin.xz", tokenizer, texts)
        facts[f"{OUT}/small/{name}"] = {"strings": len(texts)}
        if document["post_processor"]:
            write_encode(folder / "encode_special.bin.xz", tokenizer, texts, special=True)
            facts[f"{OUT}/small/{name}"]["with_special"] = len(texts)
        rng = common.rng_of("small decode", name)
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        sequences = [[], [0], [size - 1]]
        for t in texts[:25]:
            sequences.append(tokenizer.encode(t, add_special_tokens=True).ids)
        while len(sequences) < 50:
            sequences.append(rng.integers(0, size, rng.integers(1, 20)).tolist())
        panics = write_decode(folder / "decode.bin.xz", tokenizer, sequences)
        if panics:
            facts[f"{OUT}/small/{name}"]["decode_panics_left_out"] = panics


def make(root, only):
    facts = {}
    if only is None or "real" in only:
        make_real(root, facts)
    if only is None or "unicode" in only:
        make_unicode(root, facts)
    if only is None or "small" in only:
        make_small(root, facts)
    return facts, [OUT]


if __name__ == "__main__":
    common.main("tokenizer", make, PACKAGES, __doc__)
