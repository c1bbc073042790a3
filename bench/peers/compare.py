#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode of Pointsman and of peers, interleaved in one run: round after round every contender once, medians and spread at the end.
A peer is llama-bench (of llama.cpp or a fork of it) and a GGUF of the same shape (make_gguf.py), with options of its own behind them. Standard library only.

  bench/peers/compare.py --pointsman build/release/pointsman --model int8=M-int8 --model bf16=M \\
      --peer llama.cpp-q8_0=path/to/llama-bench,M-q8_0.gguf --peer 'fork-q8_0=path/to/fork/llama-bench,M-q8_0.gguf,-rtr 1' --rounds 5

Fractions are of the read bandwidth and the bf16 rate that the first contender measured in the same rounds.
"""
import argparse
import json
import statistics
import subprocess
import sys


def run(command, seconds):
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def ours(a, folder):
    # As llama-bench has it: the prompt by itself, and decoding from an empty context.
    def bench(prompt, tokens):
        out = run([a.pointsman, "bench", "decode", folder, "--memory", a.memory, "-t", str(a.threads), "-c", str(a.prompt + a.tokens + 64),
                   "--prompt-tokens", str(prompt), "-n", str(tokens), "--repeat", "1", "--json", "--no-progress"], a.timeout)
        return json.loads(out)["runs"][0]

    p, d = bench(a.prompt, 1), bench(1, a.tokens)
    return {"prefill": p["prefill_tokens_per_s"]["median"], "of_peak": p["of_peak"], "arithmetic": p["arithmetic"],
            "decode": d["decode_tokens_per_s"]["median"], "stream_gbps": d["stream_gbps"], "of_stream": d["of_stream"], "of_read": d.get("of_read"),
            "disturbed": p["disturbed"] or d["disturbed"]}


def rows_of(out):
    # Forks print about loading and repacking between the brackets of the list, so its objects are looked for one by one.
    decoder, at = json.JSONDecoder(), out.find("{")
    while at >= 0:
        try:
            row, end = decoder.raw_decode(out, at)
            if "avg_ts" in row:
                yield row
        except json.JSONDecodeError:
            end = at + 1
        at = out.find("{", end)


def peer(a, binary, gguf, options):
    command = [binary, "-m", gguf, "-t", str(a.threads), "-p", str(a.prompt), "-n", str(a.tokens), "-r", "1", "-o", "json", *options]
    out = run(command, a.timeout)
    r = {"prefill" if row["n_prompt"] > 0 else "decode": row["avg_ts"] for row in rows_of(out)}
    if len(r) != 2:
        raise SystemExit(f"{' '.join(command)}: expected a row of prefill and one of decode, found {sorted(r)}\n{out[-2000:]}")
    return r


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--pointsman", required=True, help="the program")
    p.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER", required=True)
    p.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_BENCH,GGUF[,OPTION...]",
                   help="each OPTION is passed on, split at spaces: -rtr 1")
    p.add_argument("--memory", default="16GiB")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--timeout", type=float, default=300)
    p.add_argument("--json", metavar="FILE", help="every round, for plots")
    a = p.parse_args()

    contenders = []
    for spec in a.model:
        name, folder = spec.split("=", 1)
        contenders.append((name, lambda folder=folder: ours(a, folder)))
    for spec in a.peer:
        name, rest = spec.split("=", 1)
        binary, gguf, *options = rest.split(",")
        options = [word for option in options for word in option.split()]
        contenders.append((name, lambda binary=binary, gguf=gguf, options=options: peer(a, binary, gguf, options)))

    rounds = {name: [] for name, _ in contenders}
    for i in range(a.rounds):
        for name, measure in contenders:
            rounds[name].append(measure())
            last = rounds[name][-1]
            print(f"round {i + 1} of {a.rounds}: {name}: prefill {last['prefill']:.1f}, decode {last['decode']:.1f} tokens/s", file=sys.stderr)

    first = rounds[contenders[0][0]]
    print(f"{a.threads} threads; memory reads at best {min(r['stream_gbps'] for r in first):.1f} to {max(r['stream_gbps'] for r in first):.1f} GB/s")
    print("\n| | prefill of %d, tokens/s | | of peak | decode of %d, tokens/s | | of the read rate at best | between tokens |" % (a.prompt, a.tokens))
    print("|---|---|---|---|---|---|---|---|")
    for name, _ in contenders:
        cells = []
        for what in ("prefill", "decode"):
            values = [r[what] for r in rounds[name]]
            ratio = statistics.median(values) / statistics.median(r[what] for r in first)
            cells.append(f"{statistics.median(values):.1f} [{min(values):.1f}..{max(values):.1f}] | {ratio:.2f}x")
        shares = {"of_peak": "", "of_stream": "", "of_read": ""}
        for key in shares:
            values = [r[key] for r in rounds[name] if r.get(key) is not None]
            if values:
                shares[key] = f"{statistics.median(values):.0%} [{min(values):.0%}..{max(values):.0%}]"
        if shares["of_peak"]:
            shares["of_peak"] += " " + rounds[name][0]["arithmetic"]
        print(f"| {name} | {cells[0]} | {shares['of_peak']} | {cells[1]} | {shares['of_stream']} | {shares['of_read']} |")
    if any(r["disturbed"] for name in rounds for r in rounds[name] if "disturbed" in r):
        print("\nOther processes held the cores during some rounds: ratios of medians mean more than single figures.")
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(rounds, f, indent=1)


if __name__ == "__main__":
    main()
