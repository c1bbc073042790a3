#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the bundled qwen3_moe model on CPU within a wall-clock budget.

The learning rate follows the share of the time budget used (warm-up, cosine
to zero), so the run ends when the budget ends, however fast the machine is.
A checkpoint is written every ten minutes and resumed from when present.

  --mode bench      time a few steps of each precision / expert kernel
  --mode train      train (writes ckpt.pt, curve.csv, log lines on stdout)
  --mode export     write the current checkpoint (or random weights, when there
                    is none) as a bf16 save_pretrained directory
"""
import argparse
import contextlib
import csv
import json
import math
import os
import shutil
import time

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

SEED = 20240611
SEQ = 512
DOMAINS = ["bible", "jargon", "devil", "wordnet", "code", "docs", "poems", "chat"]


def make_config():
    return Qwen3MoeConfig(
        vocab_size=6144, hidden_size=256, intermediate_size=768, num_hidden_layers=6,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, num_experts=16,
        num_experts_per_tok=4, moe_intermediate_size=96, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=True,
        max_position_embeddings=1024, rms_norm_eps=1e-6, hidden_act="silu",
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        attention_bias=False, attention_dropout=0.0, use_sliding_window=False,
        router_aux_loss_coef=0.01, initializer_range=0.02,
        bos_token_id=None, eos_token_id=6138, pad_token_id=6136)


def sorted_experts(self, hidden, top_k_index, top_k_weights):
    """Expert MLPs over tokens sorted by expert: plain contiguous GEMMs."""
    k = top_k_index.size(-1)
    flat = top_k_index.reshape(-1)
    order = torch.argsort(flat)
    counts = torch.bincount(flat, minlength=self.num_experts).tolist()
    dt = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
    up_w, down_w = self.gate_up_proj.to(dt), self.down_proj.to(dt)
    x = hidden.to(dt).index_select(0, order // k)
    up_w, down_w = up_w.unbind(0), down_w.unbind(0)
    outs = []
    for e, xe in enumerate(x.split(counts)):
        gate, up = F.linear(xe, up_w[e]).chunk(2, dim=-1)
        outs.append(F.linear(F.silu(gate) * up, down_w[e]))
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel())
    y = torch.cat(outs).index_select(0, back).view(-1, k, hidden.size(-1))
    return torch.bmm(top_k_weights.to(dt).unsqueeze(1), y).squeeze(1).to(hidden.dtype)


ALL_EXPERTS_FUNCTIONS.register("sorted", sorted_experts)


class HeadLoss(torch.autograd.Function):
    """Mean cross entropy of hidden @ weight.T, in blocks that stay in cache.

    The gradients are formed in the forward pass, so the logits of the whole
    batch never exist at once.
    """

    @staticmethod
    def forward(ctx, hidden, weight, target, block=256):
        n, grad_h, grad_w, loss = hidden.size(0), None, None, 0.0
        need = ctx.needs_input_grad[0]
        if need:
            grad_h, grad_w = torch.empty_like(hidden), torch.zeros_like(weight)
        for i in range(0, n, block):
            h, t = hidden[i:i + block], target[i:i + block]
            p = torch.log_softmax(h @ weight.t(), -1)
            loss -= p.gather(1, t[:, None]).sum().item()
            if need:
                p.exp_()
                p[torch.arange(t.numel()), t] -= 1.0
                p.div_(n)
                torch.mm(p, weight, out=grad_h[i:i + block])
                grad_w.addmm_(p.t(), h)
        ctx.save_for_backward(grad_h, grad_w)
        return hidden.new_tensor(loss / n)

    @staticmethod
    def backward(ctx, g):
        grad_h, grad_w = ctx.saved_tensors
        return g * grad_h, g * grad_w, None, None


def make_model(experts):
    torch.manual_seed(SEED)
    model = Qwen3MoeForCausalLM._from_config(make_config(), dtype=torch.float32,
                                             attn_implementation="sdpa")
    model.config._experts_implementation = experts
    # Residual projections start smaller so that the depth does not add variance.
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.mul_(1 / math.sqrt(12))
            layer.mlp.experts.down_proj.mul_(1 / math.sqrt(12))
    routes = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda m, i, o: routes.append((o[0], o[2])))
    return model, routes


def router_losses(routes, experts):
    """Load-balancing loss per layer (1 when balanced) and router z-loss."""
    bal = z = 0.0
    for logits, index in routes:
        logits = logits.float()
        share = torch.bincount(index.reshape(-1), minlength=experts).float() / index.numel()
        bal = bal + experts * (share * logits.softmax(-1).mean(0)).sum()
        z = z + logits.logsumexp(-1).square().mean()
    return bal / len(routes), z / len(routes)


def step_loss(model, routes, x, y, bf16):
    routes.clear()
    ctx = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext()
    with ctx:
        h = model.model(input_ids=x, use_cache=False).last_hidden_state
    ce = HeadLoss.apply(h.float().reshape(-1, h.size(-1)), model.lm_head.weight, y.reshape(-1))
    bal, z = router_losses(routes, model.config.num_experts)
    routes.clear()
    return ce, bal, z


def heldout_loss(model, routes, data_dir, domain, bf16, limit):
    ids = np.fromfile(os.path.join(data_dir, f"heldout_{domain}.bin"), dtype=np.uint16).astype(np.int64)
    ids = ids[:limit + 1]
    total = n = 0
    with torch.no_grad():
        for i in range(0, len(ids) - 1, SEQ):
            c = torch.from_numpy(ids[i:i + SEQ + 1])
            ce, _, _ = step_loss(model, routes, c[None, :-1], c[None, 1:], bf16)
            total += ce.item() * (len(c) - 1)
            n += len(c) - 1
    return total / n


def optimizer(model, lr, wd):
    decay = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW([{"params": decay, "weight_decay": wd},
                              {"params": rest, "weight_decay": 0.0}],
                             lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def bench(a):
    data = np.fromfile(os.path.join(a.data, "train.bin"), dtype=np.uint16)
    for bf16 in a.bench_bf16:
        for experts in a.bench_experts:
            model, routes = make_model(experts)
            opt = optimizer(model, 1e-3, 0.1)
            try:
                times = []
                for s in range(4):
                    c = torch.from_numpy(data[s * 4097:s * 4097 + 4097].astype(np.int64))
                    t0 = time.time()
                    ce, bal, z = step_loss(model, routes, c[:-1].view(8, SEQ), c[1:].view(8, SEQ), bf16)
                    (ce + 0.01 * bal + 1e-3 * z).backward()
                    opt.step()
                    opt.zero_grad()
                    times.append(time.time() - t0)
                print(f"bf16={bf16} experts={experts} best {min(times):.3f} s/step "
                      f"({4096 / min(times):.0f} tok/s) loss {ce.item():.3f}", flush=True)
            except Exception as e:
                print(f"bf16={bf16} experts={experts}: {type(e).__name__}: {str(e)[:200]}", flush=True)


def train(a):
    os.makedirs(a.out, exist_ok=True)
    ckpt = os.path.join(a.out, "ckpt.pt")
    data = np.fromfile(os.path.join(a.data, "train.bin"), dtype=np.uint16)
    model, routes = make_model(a.experts)
    opt = optimizer(model, a.lr, a.wd)
    step, used, tokens = 0, 0.0, 0
    if os.path.exists(ckpt):
        s = torch.load(ckpt, weights_only=False)
        model.load_state_dict(s["model"])
        opt.load_state_dict(s["opt"])
        step, used, tokens = s["step"], s["used"], s["tokens"]
        print(f"resumed at step {step}, {used / 60:.1f} min used", flush=True)
    budget = a.minutes * 60
    start = time.time() - used
    last_ckpt, last_log, last_tok = time.time(), time.time(), tokens
    next_eval = used + 300
    curve = open(os.path.join(a.out, "curve.csv"), "a", newline="")
    log = csv.writer(curve, lineterminator="\n")
    if step == 0:
        log.writerow(["step", "tokens", "seconds", "lr", "train_loss", "balance", "grad_norm"] +
                     [f"heldout_{d}" for d in DOMAINS])
    mean = []
    gnorm = torch.tensor(0.0)

    def save():
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step,
                    "used": time.time() - start, "tokens": tokens}, ckpt + ".tmp")
        os.replace(ckpt + ".tmp", ckpt)

    while time.time() - start < budget:
        frac = (time.time() - start) / budget
        # Warm up over 3 % of the time, then cosine to zero.
        lr = a.lr * min(frac / 0.03 + 0.01, 1.0) if frac < 0.03 else \
            a.lr * 0.5 * (1 + math.cos(math.pi * (frac - 0.03) / 0.97))
        for g in opt.param_groups:
            g["lr"] = lr
        # The last part of the run uses sequences twice as long (same tokens per
        # step), so that all positions of the context are trained.
        seq = 2 * SEQ if frac > a.long_after else SEQ
        # Sequence windows in an order fixed per epoch by the seed; the window
        # grid shifts each epoch so that boundaries move.
        n_seq = (len(data) - 1) // seq - 1
        rows = []
        for i in range(tokens // seq, tokens // seq + a.batch * SEQ // seq):
            epoch, k = divmod(i, n_seq)
            if (epoch, seq) != train.key:
                train.key = (epoch, seq)
                train.order = np.random.default_rng([SEED, epoch]).permutation(n_seq)
            p = int(train.order[k]) * seq + (epoch * 173) % seq
            rows.append(data[p:p + seq + 1].astype(np.int64))
        c = torch.from_numpy(np.stack(rows))
        ce, bal, z = step_loss(model, routes, c[:, :-1], c[:, 1:], a.bf16)
        (ce + a.aux * bal + a.zloss * z).backward()
        gnorm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        tokens += a.batch * SEQ
        mean.append(ce.item())
        if step % 20 == 0:
            now = time.time()
            print(f"step {step} tokens {tokens} min {(now - start) / 60:.2f} loss {np.mean(mean):.4f} "
                  f"balance {bal.item():.4f} gnorm {gnorm.item():.3f} lr {lr:.2e} "
                  f"tok/s {(tokens - last_tok) / (now - last_log):.0f}", flush=True)
            row = [step, tokens, f"{now - start:.1f}", f"{lr:.3e}", f"{np.mean(mean):.4f}",
                   f"{bal.item():.4f}", f"{gnorm.item():.3f}"]
            if now - start > next_eval:
                next_eval = now - start + 420
                ev = [heldout_loss(model, routes, a.data, d, a.bf16, 2048) for d in DOMAINS]
                print("heldout " + " ".join(f"{d} {v:.3f}" for d, v in zip(DOMAINS, ev)), flush=True)
                row += [f"{v:.4f}" for v in ev]
            log.writerow(row)
            curve.flush()
            mean, last_log, last_tok = [], time.time(), tokens
        if time.time() - last_ckpt > 600:
            save()
            last_ckpt = time.time()
    save()
    print(f"done: {step} steps, {tokens} tokens, {(time.time() - start) / 60:.1f} min", flush=True)


train.key, train.order = None, None


def export(a):
    ckpt = os.path.join(a.out, "ckpt.pt")
    model, _ = make_model("eager")
    if os.path.exists(ckpt):
        s = torch.load(ckpt, weights_only=False)
        model.load_state_dict(s["model"])
        print(f"weights of step {s['step']}")
    model.config._experts_implementation = None
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    tok_dir = os.path.join(a.data, "tokenizer")
    with open(os.path.join(tok_dir, "tokenizer.json"), encoding="utf-8") as f:
        added = {t["content"]: t["id"] for t in json.load(f)["added_tokens"]}
    assert model.config.pad_token_id == added["<|endoftext|>"]
    assert model.config.eos_token_id == added["<|im_end|>"]
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=0.8, top_p=0.95, pad_token_id=added["<|endoftext|>"],
        eos_token_id=[added["<|im_end|>"], added["<|endoftext|>"]])
    model.save_pretrained(a.dest)
    for n in os.listdir(tok_dir):
        shutil.copyfile(os.path.join(tok_dir, n), os.path.join(a.dest, n))
    print(sorted((n, os.path.getsize(os.path.join(a.dest, n))) for n in os.listdir(a.dest)))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--mode", choices=["bench", "train", "export"], default="train")
    ap.add_argument("--data", required=True, help="output directory of make_corpus.py")
    ap.add_argument("--out", required=True, help="directory of checkpoint and curve")
    ap.add_argument("--dest", help="export: directory to write")
    ap.add_argument("--minutes", type=float, default=80)
    ap.add_argument("--batch", type=int, default=8, help="sequences of 512 tokens per step")
    ap.add_argument("--long-after", type=float, default=0.85,
                    help="share of the time after which sequences have 1024 tokens")
    ap.add_argument("--lr", type=float, default=2e-3)
    ap.add_argument("--wd", type=float, default=0.1)
    ap.add_argument("--aux", type=float, default=0.01)
    ap.add_argument("--zloss", type=float, default=1e-3)
    ap.add_argument("--bf16", action="store_true", help="bf16 autocast")
    ap.add_argument("--experts", default="sorted", choices=["eager", "grouped_mm", "sorted"])
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--bench-experts", nargs="+", default=["eager", "grouped_mm", "sorted"])
    a = ap.parse_args()
    a.bench_bf16 = [False, True]
    torch.set_num_threads(a.threads)
    {"bench": bench, "train": train, "export": export}[a.mode](a)


if __name__ == "__main__":
    main()
