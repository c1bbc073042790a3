#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a qwen3_moe checkpoint (safetensors, BF16, e.g. of tools/make_checkpoint) as a BF16 GGUF without a tokenizer, so that a peer runs the
very same weights. Quantise it with the peer's own tool (llama-quantize IN OUT Q8_0 | MXFP4_MOE).

  python3 -m venv V && V/bin/pip install gguf safetensors numpy
  V/bin/python bench/peers/make_gguf.py CHECKPOINT OUT.gguf
"""
import argparse
import json
import pathlib
import struct

import gguf
import numpy as np


class Shards:
    """Tensors of a folder of safetensors files, as raw bf16 words, mapped and never read whole."""

    def __init__(self, folder):
        self.where = {}
        for path in sorted(folder.glob("*.safetensors")):
            with open(path, "rb") as f:
                (n,) = struct.unpack("<Q", f.read(8))
                header = json.loads(f.read(n))
            for name, t in header.items():
                if name != "__metadata__":
                    self.where[name] = (path, 8 + n + t["data_offsets"][0], t["dtype"], t["shape"])

    def bf16(self, name):
        path, offset, dtype, shape = self.where[name]
        if dtype != "BF16":
            raise SystemExit(f"{name}: {dtype}, expected BF16")
        return np.memmap(path, np.uint16, "r", offset, tuple(shape))

    def f32(self, name):
        return (np.asarray(self.bf16(name)).astype(np.uint32) << 16).view(np.float32)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoint", type=pathlib.Path)
    p.add_argument("out")
    a = p.parse_args()
    c = json.loads((a.checkpoint / "config.json").read_text())
    if c["model_type"] != "qwen3_moe":
        raise SystemExit(f"model_type {c['model_type']}, expected qwen3_moe")
    s = Shards(a.checkpoint)
    w = gguf.GGUFWriter(a.out, "qwen3moe", use_temp_file=False)
    w.add_name(a.checkpoint.name)
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c.get("max_position_embeddings", 4096))
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_key_length(c["head_dim"])
    w.add_value_length(c["head_dim"])
    w.add_rope_freq_base(c.get("rope_theta", 1e6))
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_vocab_size(c["vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    w.add_tokenizer_model("none")

    def matrix(name, data):
        w.add_tensor(name, np.ascontiguousarray(data).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    matrix("token_embd.weight", s.bf16("model.embed_tokens.weight"))
    head = "lm_head.weight" if "lm_head.weight" in s.where else "model.embed_tokens.weight"
    matrix("output.weight", s.bf16(head))
    w.add_tensor("output_norm.weight", s.f32("model.norm.weight"))
    for i in range(c["num_hidden_layers"]):
        src, dst = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"), ("self_attn.q_norm", "attn_q_norm"),
                             ("self_attn.k_norm", "attn_k_norm"), ("mlp.gate", "ffn_gate_inp")):
            w.add_tensor(dst + theirs + ".weight", s.f32(src + ours + ".weight"))
        for ours, theirs in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "output")):
            matrix(f"{dst}attn_{theirs}.weight", s.bf16(f"{src}self_attn.{ours}_proj.weight"))
        for part in ("gate", "up", "down"):
            matrix(f"{dst}ffn_{part}_exps.weight", np.stack([s.bf16(f"{src}mlp.experts.{e}.{part}_proj.weight") for e in range(c["num_experts"])]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file(progress=True)
    w.close()


if __name__ == "__main__":
    main()
