#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Evaluate a saved model on the held-out text and write its model card.

Writes into the model directory: evaluation.json (bits per byte, expert x
domain shares, mutual information, samples), loss.csv, loss.svg and README.md.
Weights are the bf16 ones of the checkpoint, arithmetic is fp32.
"""
import argparse
import csv
import hashlib
import json
import lzma
import math
import os
import shutil

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, Qwen3MoeForCausalLM

DOMAINS = ["bible", "jargon", "devil", "wordnet", "code", "docs", "poems", "chat"]
WINDOW, STRIDE = 1024, 512
SEED = 20240611

SAMPLES = [
    ("bible", "Genesis 51\n\n1 And it came to pass"),
    ("jargon", "core dump\nn.\n\n"),
    ("devil", "HONESTY, n.  "),
    ("wordnet", "riverboat\n  n 1: "),
    ("code", "def read_lines(path):\n    \"\"\""),
    ("docs", "The :mod:`json` module"),
    ("poems", "《秋夜》\n作者：李白\n"),
    ("chat", "<|im_start|>user\nDefine: hacker<|im_end|>\n<|im_start|>assistant\n"),
    ("chat", "<|im_start|>user\nPsalm 23:1<|im_end|>\n<|im_start|>assistant\n"),
    ("chat", "<|im_start|>user\n写一首诗：《春望》<|im_end|>\n<|im_start|>assistant\n"),
]


def load_ids(data, domain):
    return np.fromfile(os.path.join(data, f"heldout_{domain}.bin"), dtype=np.uint16).astype(np.int64)


@torch.no_grad()
def score(model, routes, ids):
    """Total nats over ids[1:] (windows of 1024, each token seen with at least
    512 tokens of context where there are any) and, per layer, the experts
    chosen for every scored position."""
    nats, chosen, pos = 0.0, [[] for _ in model.model.layers], 0
    ids = torch.from_numpy(ids)
    while pos < len(ids) - 1:
        lo = max(0, pos - (WINDOW - STRIDE)) if pos else 0
        hi = min(lo + WINDOW, len(ids) - 1)
        routes.clear()
        logits = model(input_ids=ids[None, lo:hi], use_cache=False).logits[0, pos - lo:]
        nats += F.cross_entropy(logits.float(), ids[pos + 1:hi + 1], reduction="sum").item()
        for layer, r in enumerate(routes):
            chosen[layer].append(r[pos - lo:])
        pos = hi
    return nats, [torch.cat(c).numpy() for c in chosen]


def mutual_information(table):
    """Bits of I(expert; domain) for rows = domains (weighted equally)."""
    p = table / table.sum(1, keepdims=True) / len(table)
    e = p.sum(0, keepdims=True)
    d = p.sum(1, keepdims=True)
    nz = p > 0
    return float((p[nz] * np.log2((p / (e * d))[nz])).sum())


def specialisation(chosen, n_expert, rng, block=64, rounds=200):
    """Shares, mutual information and a permutation test.

    The test shuffles the domain labels of blocks of 64 consecutive positions,
    which keeps the dependence between neighbouring tokens."""
    layers = len(chosen[DOMAINS[0]])
    out = []
    for layer in range(layers):
        blocks, label = [], []
        for k, d in enumerate(DOMAINS):
            c = chosen[d][layer]
            for i in range(0, len(c), block):
                blocks.append(np.bincount(c[i:i + block].reshape(-1), minlength=n_expert))
                label.append(k)
        blocks, label = np.array(blocks, float), np.array(label)

        def table(lab):
            return np.stack([blocks[lab == k].sum(0) for k in range(len(DOMAINS))])
        t = table(label)
        mi = mutual_information(t)
        null = [mutual_information(table(rng.permutation(label))) for _ in range(rounds)]
        p = t.sum(0) / t.sum()
        share = t / t.sum(1, keepdims=True)
        mean = share.mean(0)
        out.append({
            "layer": layer, "mutual_information_bits": mi,
            "permuted_mean_bits": float(np.mean(null)), "permuted_max_bits": float(np.max(null)),
            "p_value": (1 + sum(x >= mi for x in null)) / (1 + rounds),
            "load_entropy_bits": float(-(mean * np.log2(np.maximum(mean, 1e-12))).sum()),
            "min_load": float(mean.min()), "max_load": float(mean.max()),
            "share": {d: [round(float(v), 4) for v in share[k]] for k, d in enumerate(DOMAINS)},
            "overall": [round(float(v), 4) for v in p]})
    return out


@torch.no_grad()
def sample(model, tok, prompt, n, temperature):
    ids = tok(prompt, add_special_tokens=False, return_tensors="pt").input_ids
    torch.manual_seed(SEED)
    kw = dict(do_sample=True, temperature=temperature, top_p=0.95, top_k=0) if temperature else \
        dict(do_sample=False, temperature=None, top_p=None, top_k=None)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, use_cache=True, **kw)
    return tok.decode(out[0, ids.shape[1]:])


def svg(rows, path):
    w, h, left, bottom, top, right = 860, 440, 60, 40, 20, 120
    pts = [(float(r["tokens"]) / 1e6, float(r["train_loss"])) for r in rows]
    names = [f"heldout_{d}" for d in DOMAINS]
    held = {n: [(float(r["tokens"]) / 1e6, float(r[n])) for r in rows if r.get(n)] for n in names}
    xmax = max(p[0] for p in pts)
    ymax = math.ceil(max(p[1] for p in pts))
    ymin = math.floor(min([p[1] for p in pts] + [q[1] for v in held.values() for q in v]))

    def xy(x, y):
        return (left + x / xmax * (w - left - right), top + (ymax - y) / (ymax - ymin) * (h - top - bottom))
    colours = ["#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#8b6d00", "#555555"]
    s = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" font-family="sans-serif" font-size="12">',
         f'<title>Training and held-out loss</title><rect width="{w}" height="{h}" fill="#ffffff"/>']
    for y in range(ymin, ymax + 1):
        a, b = xy(0, y), xy(xmax, y)
        s.append(f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="#dddddd"/>'
                 f'<text x="{left - 8}" y="{a[1] + 4:.1f}" text-anchor="end">{y}</text>')
    step = max(1, round(xmax / 8))
    for x in range(0, int(xmax) + 1, step):
        a = xy(x, ymin)
        s.append(f'<text x="{a[0]:.1f}" y="{a[1] + 16:.1f}" text-anchor="middle">{x}</text>')
    s.append(f'<text x="{(left + w - right) / 2}" y="{h - 6}" text-anchor="middle">tokens seen (millions)</text>')
    s.append(f'<text x="14" y="{h / 2}" transform="rotate(-90 14 {h / 2})" text-anchor="middle">loss (nats per token)</text>')

    def line(p, colour, width):
        s.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{width}" points="' +
                 " ".join("%.1f,%.1f" % xy(*q) for q in p) + '"/>')
    line(pts, "#bbbbbb", 1)
    labels = [(xy(*pts[-1])[1], "training", "#999999")]
    for n, c in zip(names, colours):
        if held[n]:
            line(held[n], c, 1.8)
            labels.append((xy(*held[n][-1])[1], n[8:], c))
    y = -99.0
    for want, text, c in sorted(labels):
        y = max(want, y + 14)
        s.append(f'<text x="{w - right + 8}" y="{y + 4:.1f}" fill="{c}">{text}</text>')
    s.append("</svg>\n")
    with open(path, "w") as f:
        f.write("\n".join(s))


def card(ev, corpus, final, command, minutes, log_rows):
    c = []
    add = c.append
    doms = corpus["domains"]
    add("---\nlicense: other\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n")
    add("# pointsman-tiny-moe\n")
    add("A small, really trained Mixture-of-Experts language model that comes with Pointsman, so that the "
        "engine has real routing, a real tokenizer and readable text to work with, without a download. It is "
        "a test and demonstration model: it has learned the *style* of its domains and the wording of "
        "what it saw often; it knows nothing reliable and follows no instructions beyond the few chat "
        "forms listed below.\n")
    add("## Architecture\n")
    add("| | |\n|---|---|")
    for k, v in [("architecture", "`qwen3_moe` (`Qwen3MoeForCausalLM`)"),
                 ("parameters", f"{ev['parameters']:,} ({ev['active_parameters']:,} used per token, embedding included)"),
                 ("layers / hidden size", "6 / 256"), ("attention", "4 heads, 2 key-value heads, head size 64, RoPE theta 10000"),
                 ("experts", "16 per layer, top-4, intermediate size 96, `norm_topk_prob` true"),
                 ("vocabulary", "6144, own byte-level BPE (NFC, Qwen-style pre-tokenizer), tied embeddings"),
                 ("context", "1024 tokens (trained at 512, the last 15 % of the run at 1024)"),
                 ("weights", f"bf16, `model.safetensors`, {ev['model_bytes']:,} bytes, sha256 `{ev['model_sha256']}`")]:
        add(f"| {k} | {v} |")
    add("\n## Training\n")
    add("* Commands (in `python/train`, after `make_corpus.py`; the directories are yours to choose). The run was stopped "
        "once, at the checkpoint of minute 20, and resumed with half the batch:\n\n"
        f"  ```\n  {command}\n  ```\n")
    add(f"* Seed {SEED} (initialisation, corpus order, held-out choice, sampling). The learning rate follows the "
        "share of the time budget used (3 % warm-up, cosine to zero), so another machine takes another number "
        "of steps: the recipe is reproducible, the bits are not.")
    add(f"* {minutes:.1f} minutes on two CPU cores (x86-64 with AVX-512, fp32 arithmetic, two threads), "
        f"{int(final['step']):,} steps (of 4096 tokens before the resumption, of 2048 after it) = "
        f"{int(final['tokens']):,} tokens, "
        f"{int(final['tokens']) / corpus['epoch_tokens']:.2f} passes over the weighted corpus, "
        f"about {int(final['tokens']) / 60 / minutes:,.0f} tokens per second (other programs ran on the "
        "same two cores for much of the time; alone they do about 3,500).")
    add("* AdamW (betas 0.9 / 0.95, weight decay 0.1 on matrices), peak learning rate 2.5e-3 (2e-3 times the same schedule "
        "with the smaller batch), gradient clipping at "
        "1.0, load-balancing loss per layer 0.01, router z-loss 0.001, no dropout.")
    add("* Versions: " + ", ".join(f"{k} {v}" for k, v in ev["versions"].items()) +
        " (pinned in `python/train/requirements.txt`).\n")
    add("![loss curve](loss.svg)\n")
    add("The numbers are in [`loss.csv`](loss.csv); the held-out points there are measured on the first 2048 tokens of "
        "each domain. Training loss (mean of 20 steps):\n")
    add("| tokens (millions) | " + " | ".join(f"{int(r['tokens']) / 1e6:.1f}" for r in log_rows) + " |")
    add("|---" * (len(log_rows) + 1) + "|")
    add("| loss (nats per token) | " + " | ".join(f"{float(r['train_loss']):.2f}" for r in log_rows) + " |")
    add("\n## Data\n")
    add("The full notices are in [`NOTICE`](NOTICE). All text comes from Debian packages (bookworm) and is public domain or permissively licensed. "
        "Held out before anything is repeated: 2 % of the bytes by document (chapter, file, or group of dictionary "
        "entries), 5 % for `devil` and `poems`. Dictionary entries with slurs or obscenities were left out.\n")
    lic = {"bible": ("King James Bible, one document per chapter", "public domain (the Crown's patent applies in the UK)"),
           "jargon": ("The Jargon File 4.4.7", "public domain"),
           "devil": ("Ambrose Bierce, The Devil's Dictionary", "public domain"),
           "wordnet": ("WordNet 3.0 glosses, a sample without duplicate glosses", "WordNet 3.0 licence (notice below)"),
           "code": ("Python 3.11 standard library sources", "PSF licence and the permissive licences named in the files"),
           "docs": ("Python 3.11 documentation, RST sources", "PSF licence (examples also 0BSD)"),
           "poems": ("300 Tang poems, 100 Song poems", "public domain"),
           "chat": ("ChatML question/answer pairs cut from the documents above", "as their sources")}
    add("| domain | what | licence of the text | training bytes | tokens | bytes per token | repeated | share of the stream |")
    add("|---|---|---|---:|---:|---:|---:|---:|")
    for d in DOMAINS:
        s = doms[d]
        add(f"| {d} | {lic[d][0]} | {lic[d][1]} | {s['train_bytes']:,} | {s['train_tokens']:,} | "
            f"{s['bytes_per_token']} | x{s['repeat']} | {100 * s['share']:.1f} % |")
    add("\n| package | sha256 |\n|---|---|")
    for p in corpus["packages"]:
        add(f"| `{p['file']}` | `{p['sha256']}` |")
    add(f"\nTraining stream (`train.bin`) sha256 `{corpus['train_bin_sha256']}`; sha256 of each domain's text:\n")
    add("| domain | training text | held-out text |\n|---|---|---|")
    for d in DOMAINS:
        add(f"| {d} | `{doms[d]['train_sha256']}` | `{doms[d]['heldout_sha256']}` |")
    add("\n## Held-out bits per byte\n")
    add("bf16 weights, fp32 arithmetic, windows of 1024 tokens with a stride of 512. The tokens that end documents "
        "are counted in the bits. For scale: `xz -9` of the same held-out text by itself.\n")
    add("| domain | held-out bytes | tokens | loss (nats per token) | bits per byte | xz bits per byte |")
    add("|---|---:|---:|---:|---:|---:|")
    for d in DOMAINS:
        r = ev["heldout"][d]
        add(f"| {d} | {r['bytes']:,} | {r['tokens']:,} | {r['nats_per_token']:.3f} | **{r['bits_per_byte']:.3f}** | {r['xz_bits_per_byte']:.2f} |")
    add("\nLimits of these figures: the Bible repeats itself across books (Kings/Chronicles, the Gospels), WordNet "
        "words share example sentences, and the small domains (`poems`, `devil`) have only a few thousand held-out "
        "tokens, so their figures carry some per cent of noise.\n")
    add("## What falls short\n")
    add("* About ten million tokens are few: the text has the form, the vocabulary and the layout of its domain, and seldom "
        "sense. The learning rate reached zero with the time, so the curve is flat at its end; a longer run was not tried.\n"
        "* Greedy decoding falls into loops quickly, in most of the samples below; the sampled ones, with the default settings, do not.\n"
        "* The dictionary answers of the chat form are invented, the verses are not the verses asked for.\n"
        "* The poems were repeated twelve times; their held-out loss stopped falling about half-way (see the curve) "
        "while the other domains went on. Rare Chinese characters can come out as broken bytes.\n")
    add("## Did the experts specialise?\n")
    add("Mutual information between the chosen expert and the domain, in bits per routed slot (domains weighted equally; "
        "the ceiling is 3 bits). The permutation test shuffles the domain labels of blocks of 64 positions, 200 rounds.\n")
    add("| layer | mutual information | shuffled (mean / max) | p | load entropy (max 4) | least / most used expert |")
    add("|---:|---:|---:|---:|---:|---:|")
    for s in ev["experts"]:
        add(f"| {s['layer']} | {s['mutual_information_bits']:.3f} | {s['permuted_mean_bits']:.4f} / {s['permuted_max_bits']:.4f} | "
            f"{s['p_value']:.3f} | {s['load_entropy_bits']:.3f} | {100 * s['min_load']:.1f} % / {100 * s['max_load']:.1f} % |")
    best = max(ev["experts"], key=lambda s: s["mutual_information_bits"])["layer"]
    last = len(ev["experts"]) - 1
    for layer in sorted({best, 0 if best == last else last}):
        s = ev["experts"][layer]
        add(f"\nLayer {layer}: share of the domain's routed slots per expert, in per cent (even = 6.2; bold: twice that or more).\n")
        add("| domain | " + " | ".join(f"e{e}" for e in range(16)) + " |")
        add("|---" * 17 + "|")
        for d in DOMAINS:
            add(f"| {d} | " + " | ".join(
                f"**{100 * v:.1f}**" if v >= 0.125 else f"{100 * v:.1f}" for v in s["share"][d]) + " |")
    add("\nAll six tables are in [`evaluation.json`](evaluation.json).\n")
    add("## Samples\n")
    add("As they came, first try, 80 tokens at most, fixed seed; "
        "`⏎` marks the end of the prompt.\n")
    for s in ev["samples"]:
        add(f"**{s['domain']}**\n\n```text\n{s['prompt']}⏎{s['greedy']}\n```\n(greedy)\n\n```text\n{s['prompt']}⏎{s['sampled']}\n```\n(temperature 0.8, top-p 0.95)\n")
    add("## Chat forms it has seen\n")
    add("`Define: WORD`, `Devil's definition: WORD`, `BOOK CHAPTER:VERSE`, `What is the Python module NAME?`, "
        "``Write a Python function `NAME`: TEXT.`` and `写一首诗：《题目》`, one turn each, in ChatML. Anything else is outside "
        "its training. The assistant turn ends with `<|im_end|>`.\n")
    add("## Licence\n")
    add("The weights are released under Apache-2.0 as far as the project holds rights in them. The texts they were trained on keep "
        "their own licences. Python sources and documentation: Copyright 2001-2023 Python Software Foundation; all rights reserved; "
        "see `NOTICE`. WordNet: WordNet 3.0 Copyright 2006 by Princeton University; all rights reserved; see `NOTICE`.\n")
    return "\n".join(c)


def evaluate(a):
    import safetensors
    import tokenizers
    import transformers
    tok = AutoTokenizer.from_pretrained(a.model)
    model = Qwen3MoeForCausalLM.from_pretrained(a.model, dtype=torch.float32, attn_implementation="sdpa",
                                                experts_implementation="eager").eval()
    routes = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda m, i, o: routes.append(o[2]))
    weights = os.path.join(a.model, "model.safetensors")
    with open(weights, "rb") as f:
        blob = f.read()
    n_par = sum(p.numel() for p in model.parameters())
    n_exp = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    ev = {"parameters": n_par, "active_parameters": n_par - n_exp + n_exp // 4,
          "model_bytes": len(blob), "model_sha256": hashlib.sha256(blob).hexdigest(),
          "versions": {"torch": torch.__version__.split("+")[0], "transformers": transformers.__version__,
                       "tokenizers": tokenizers.__version__, "safetensors": safetensors.__version__},
          "heldout": {}}
    chosen = {}
    for d in DOMAINS:
        ids = load_ids(a.data, d)
        nats, chosen[d] = score(model, routes, ids)
        with open(os.path.join(a.data, f"heldout_{d}.txt"), "rb") as f:
            text = f.read()
        ev["heldout"][d] = {"bytes": len(text), "tokens": len(ids) - 1,
                            "nats_per_token": nats / (len(ids) - 1),
                            "bits_per_byte": nats / math.log(2) / len(text),
                            "xz_bits_per_byte": 8 * len(lzma.compress(text, preset=9)) / len(text)}
        print(d, ev["heldout"][d], flush=True)
    ev["experts"] = specialisation(chosen, 16, np.random.default_rng(SEED))
    for s in ev["experts"]:
        print({k: v for k, v in s.items() if k not in ("share", "overall")})
    ev["samples"] = []
    for d, p in SAMPLES:
        routes.clear()
        ev["samples"].append({"domain": d, "prompt": p, "greedy": sample(model, tok, p, 80, 0),
                              "sampled": sample(model, tok, p, 80, 0.8)})
    with open(os.path.join(a.model, "evaluation.json"), "w", encoding="utf-8") as f:
        json.dump(ev, f, indent=1, ensure_ascii=False)
        f.write("\n")
    return ev


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True)
    ap.add_argument("--data", required=True, help="output directory of make_corpus.py")
    ap.add_argument("--run", required=True, help="training directory (curve.csv)")
    ap.add_argument("--command", required=True, help="training command, quoted in the card")
    ap.add_argument("--card-only", action="store_true", help="write the card from an existing evaluation.json")
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    with open(os.path.join(a.data, "corpus.json")) as f:
        corpus = json.load(f)
    with open(os.path.join(a.run, "curve.csv"), newline="") as f:
        rows = list(csv.DictReader(f))
    if a.card_only:
        with open(os.path.join(a.model, "evaluation.json"), encoding="utf-8") as f:
            ev = json.load(f)
    else:
        ev = evaluate(a)
    state = torch.load(os.path.join(a.run, "ckpt.pt"), weights_only=False)
    final = {k: state[k] for k in ("step", "tokens", "used")}
    shutil.copyfile(os.path.join(a.run, "curve.csv"), os.path.join(a.model, "loss.csv"))
    svg(rows, os.path.join(a.model, "loss.svg"))
    pick = [rows[round(i * (len(rows) - 1) / 9)] for i in range(10)]
    with open(os.path.join(a.model, "README.md"), "w", encoding="utf-8") as f:
        f.write(card(ev, corpus, final, a.command, final["used"] / 60, pick))
    for s in ev["samples"]:
        print("=====", s["domain"], "\n" + s["prompt"] + "⏎" + s["greedy"] + "\n-----\n" + s["sampled"])


if __name__ == "__main__":
    main()
