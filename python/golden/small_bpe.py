# SPDX-License-Identifier: Apache-2.0
"""A deterministic byte-pair trainer and the GPT-2 byte alphabet, for tokenizers of a few hundred entries."""

import collections


def byte_alphabet():
    """byte -> printable character, as byte-level tokenizers write it"""
    keep = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in keep:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


def to_byte_level(text):
    table = byte_alphabet()
    return "".join(table[b] for b in text.encode())


def train(words, alphabet, merges):
    """words: list of strings (repeats count). Returns (vocabulary list, merge pairs); ties go to the smaller pair."""
    counts = collections.Counter(words)
    split = {w: list(w) for w in counts}
    vocab, rules = list(dict.fromkeys(alphabet)), []
    known = set(vocab)
    while len(rules) < merges:
        pairs = collections.Counter()
        for word, n in counts.items():
            parts = split[word]
            for a, b in zip(parts, parts[1:]):
                if a in known and b in known:
                    pairs[a, b] += n
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        rules.append(best)
        merged = best[0] + best[1]
        if merged not in known:
            known.add(merged)
            vocab.append(merged)
        for word, parts in split.items():
            i, out = 0, []
            while i < len(parts):
                if i + 1 < len(parts) and (parts[i], parts[i + 1]) == best:
                    out.append(merged)
                    i += 2
                else:
                    out.append(parts[i])
                    i += 1
            split[word] = out
    return vocab, rules


def added(token_id, content, *, special=True, normalized=False, lstrip=False, rstrip=False, single_word=False):
    return {"id": token_id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized, "special": special}


def tokenizer_json(vocab, merges, *, added_tokens=(), normalizer=None, pre_tokenizer=None, post_processor=None,
                   decoder=None, merges_as_strings=False, **model):
    """vocab: list in id order, or a dictionary."""
    ids = vocab if isinstance(vocab, dict) else {t: i for i, t in enumerate(vocab)}
    body = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    body.update(model)
    body["vocab"] = ids
    body["merges"] = [f"{a} {b}" for a, b in merges] if merges_as_strings else [list(m) for m in merges]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens),
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
            "decoder": decoder, "model": body}
