#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Greedy continuations of the bundled model, as reference for the engine.

For each prompt: the token ids, 200 greedy tokens from transformers in fp32
(bf16 weights widened), the smallest gap between the two best logits met on
the way (how much numerical error the sequence tolerates), and 200 greedy
tokens computed in bf16.  End tokens do not end the generation.
Attention and experts use the eager implementations, with a KV cache.
"""
import argparse
import hashlib
import json
import os
import platform

import torch
import transformers
from transformers import AutoTokenizer, Qwen3MoeForCausalLM

SEED = 20240611
NEW = 200


def chat(text):
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = [
    "Genesis 1\n\n1 In the beginning God created",
    "Psalm 23\n\n1 The LORD is my shepherd;",
    "And Jesus answered and said unto them,",
    "1 Now it came to pass in those days, that the king of Israel",
    "hacker\nn.\n\n[originally, someone who makes furniture with an axe]",
    "foobar\n /foo'bar/, n.\n\n",
    "LAWYER, n.  One skilled in",
    "POLITICS, n.  A strife of interests masquerading as",
    "river\n  n 1: a large natural stream of water",
    "happily\n  adv 1: in a happy manner; \"",
    "import os\nimport sys\n\n\ndef main():\n    parser = argparse.ArgumentParser(",
    "class Queue:\n    \"\"\"Create a queue object with a given maximum size.\"\"\"\n\n    def __init__(self",
    "    for line in lines:\n        if not line.startswith(",
    ":mod:`socket` --- Low-level networking interface\n====",
    ".. function:: open(file, mode='r')\n\n   Open",
    "《静夜思》\n作者：李白\n",
    "《送友人》\n作者：王维\n山中",
    chat("Define: algorithm"),
    chat("Proverbs 3:5"),
    chat("写一首诗：《登高》"),
]


def run(model, ids):
    x = torch.tensor([ids])
    out = model.generate(x, attention_mask=torch.ones_like(x), do_sample=False, use_cache=True,
                         max_new_tokens=NEW, min_new_tokens=NEW, return_dict_in_generate=True,
                         output_logits=True)
    new = out.sequences[0, len(ids):].tolist()
    top = torch.stack([s[0].float().topk(2).values for s in out.logits])
    best = [int(s[0].argmax()) for s in out.logits]
    assert len(new) == NEW and new == best
    return new, float((top[:, 0] - top[:, 1]).min())


def load(path, dtype):
    m = Qwen3MoeForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager",
                                            experts_implementation="eager").eval()
    m.generation_config = transformers.GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=None)
    m.config.eos_token_id = None
    return m


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", required=True, help="model directory")
    ap.add_argument("--out", required=True, help="directory for greedy.json and manifest.json")
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(SEED)
    tok = AutoTokenizer.from_pretrained(a.model)
    f32, b16 = load(a.model, torch.float32), load(a.model, torch.bfloat16)
    out = []
    for text in PROMPTS:
        ids = tok(text, add_special_tokens=False).input_ids
        assert 5 <= len(ids) <= 40, (len(ids), text)
        g32, margin = run(f32, ids)
        g16, _ = run(b16, ids)
        same = next((i for i, (p, q) in enumerate(zip(g32, g16)) if p != q), NEW)
        print(f"{len(ids):3d} ids, margin {margin:.5f}, bf16 equal for {same} of {NEW}: {tok.decode(g32[:24])!r}",
              flush=True)
        out.append({"text": text, "ids": ids, "greedy_ids_fp32": g32, "min_top2_margin": margin,
                    "greedy_ids_bf16": g16})
    os.makedirs(a.out, exist_ok=True)
    path = os.path.join(a.out, "greedy.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write('{"prompts":[\n' + ",\n".join(json.dumps(p, ensure_ascii=False, separators=(",", ":"))
                                            for p in out) + "\n]}\n")

    def sha(p):
        with open(p, "rb") as f:
            return hashlib.sha256(f.read()).hexdigest()
    import safetensors
    import tokenizers
    with open(os.path.join(a.out, "manifest.json"), "w") as f:
        json.dump({"script": "python/golden/make_bundled_greedy.py", "model": "models/pointsman-tiny-moe",
                   "model_safetensors_sha256": sha(os.path.join(a.model, "model.safetensors")),
                   "tokenizer_json_sha256": sha(os.path.join(a.model, "tokenizer.json")),
                   "greedy_json_sha256": sha(path), "seed": SEED, "new_tokens": NEW,
                   "attention": "eager", "experts": "eager", "kv_cache": True, "eos_ends_generation": False,
                   "threads": a.threads, "machine": platform.machine(),
                   "versions": {"python": platform.python_version(), "torch": torch.__version__,
                                "transformers": transformers.__version__, "tokenizers": tokenizers.__version__,
                                "safetensors": safetensors.__version__}}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
