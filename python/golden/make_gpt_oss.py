#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiny random gpt_oss checkpoints, with BF16, fp32 and MXFP4 experts, and what transformers computes from them in fp32.

Sinks, biases and norms are far from 0 and 1; gate and up values reach the clamp. For MXFP4 the oracle reads a folder with the values
that blocks and scales stand for.
"""

import json
import pathlib
import shutil
import tempfile

import common
import torch
from oracle import PACKAGES, Weights, expected_of, make_tokens, write_shards, write_single
from quantize import mxfp4_rows

YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096}


def gpt_oss(**changes):
    """A config.json in the style of the published checkpoints."""
    config = {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 2,
        "experts_per_token": 2, "head_dim": 16, "hidden_act": "silu", "hidden_size": 64, "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": 32, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 4, "num_experts_per_tok": 2,
        "num_hidden_layers": 4, "num_key_value_heads": 2, "num_local_experts": 8, "output_router_logits": False, "pad_token_id": 0,
        "rms_norm_eps": 1e-05, "rope_scaling": dict(YARN), "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 8,
        "swiglu_limit": 7.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.55.0.dev0",
        "use_cache": True, "vocab_size": 160,
    }
    config.update(changes)
    return {k: v for k, v in config.items() if v is not None}


def make_weights(c, seed):
    w = Weights("gpt_oss", seed)
    hidden, width, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    heads, kv, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    w.normal("model.embed_tokens.weight", c["vocab_size"], hidden, 0.5 * hidden ** 0.5)
    for layer in range(c["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        w.norm(at + "input_layernorm.weight", hidden)
        w.norm(at + "post_attention_layernorm.weight", hidden)
        for name, rows, cols in (("q", heads * dim, hidden), ("k", kv * dim, hidden), ("v", kv * dim, hidden), ("o", hidden, heads * dim)):
            w.normal(f"{at}self_attn.{name}_proj.weight", rows, cols, 1.2)
            w.bias(f"{at}self_attn.{name}_proj.bias", rows)
        w.bias(at + "self_attn.sinks", heads, 1.5)
        w.normal(at + "mlp.router.weight", experts, hidden, 1.5)
        w.bias(at + "mlp.router.bias", experts, 0.7)
        mlp = at + "mlp.experts."
        for expert in range(experts):  # large enough that clamps bite
            w.normal(f"gate_up{expert}", 2 * width, hidden, 2.5)
            w.normal(f"down{expert}", hidden, width, 0.35)
        pick = lambda name: torch.stack([w.tensors.pop(f"{name}{e}") for e in range(experts)])  # noqa: E731
        w.tensors[mlp + "gate_up_proj"], w.tensors[mlp + "down_proj"] = pick("gate_up"), pick("down")  # [E, out, in]
        for name, size in (("gate_up_proj_bias", 2 * width), ("down_proj_bias", hidden)):
            w.bias(mlp + name, experts * size, 1.0 if name.startswith("gate") else 0.3)
            w.tensors[mlp + name] = w.tensors[mlp + name].reshape(experts, size)
    w.norm("model.norm.weight", hidden)
    w.normal("lm_head.weight", c["vocab_size"], hidden, 2.5)
    return w.tensors


def is_expert_matrix(name):
    return name.endswith(("experts.gate_up_proj", "experts.down_proj"))


def turned(weights):
    """Experts as transformers and converted checkpoints store them: [E, in, out]."""
    return {k: v.transpose(1, 2).contiguous() if is_expert_matrix(k) else v for k, v in weights.items()}


def as_dtype(dtype):
    def store(weights):
        stored = {k: v.to(dtype) for k, v in turned(weights).items()}
        return stored, {k: v.float() for k, v in stored.items()}
    return store


def as_mxfp4(weights):
    """What is published: BF16, but experts in blocks and scales."""
    stored, meant = {}, {}
    for name, value in weights.items():
        if is_expert_matrix(name):
            stored[name + "_blocks"], stored[name + "_scales"], values = mxfp4_rows(value)
            meant[name] = values.transpose(1, 2).contiguous()
        else:
            stored[name] = value.to(torch.bfloat16)
            meant[name] = stored[name].float()
    return stored, meant


QUANTIZED = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                 "model.embed_tokens", "lm_head"]}
ODD = dict(hidden_size=45, intermediate_size=19, head_dim=10, num_attention_heads=6, num_key_value_heads=3, num_local_experts=7,
           num_experts_per_tok=3, experts_per_token=3, num_hidden_layers=3, layer_types=None, sliding_window=5, vocab_size=101)


class Case:
    def __init__(self, folder, config, what, store, *, count=40, shards=1, seed_name=None):
        self.folder, self.config, self.what, self.store, self.count, self.shards = folder, config, what, store, count, shards
        self.seed_name = seed_name or folder


def cases():
    return [
        Case("gpt_oss_base", gpt_oss(), "fp32, experts [E, in, out]; windows of 8 in turn, YaRN of factor 32 without truncation, sinks",
             as_dtype(torch.float32)),
        Case("gpt_oss_odd", gpt_oss(**ODD, rope_scaling=dict(YARN, original_max_position_embeddings=16, factor=4.0)),
             "hidden 45, experts of width 19, 6 heads of 10 on 3, 7 experts, top-3, layer_types left out, YaRN over 16 positions",
             as_dtype(torch.float32)),
        Case("gpt_oss_bf16", gpt_oss(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]),
             "stored BF16, experts [E, in, out] as converted checkpoints", as_dtype(torch.bfloat16)),
        Case("gpt_oss_mxfp4", gpt_oss(quantization_config=QUANTIZED), "as published: MXFP4 blocks and scales, the rest BF16", as_mxfp4),
        Case("gpt_oss_mxfp4_odd", gpt_oss(**{**ODD, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 2}, swiglu_limit=1.5,
                                          quantization_config=QUANTIZED),
             "rows of 3 and 5 groups of 32, 7 experts, clamp at 1.5, three shards", as_mxfp4, shards=3),
    ]


def make(root, only):
    facts, folders = {}, []
    for case in cases():
        if only is not None and only not in case.folder:
            continue
        first = common.seed_of(case.seed_name)
        for seed in range(first, first + 400):
            folder = root / case.folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stored, meant = case.store(make_weights(case.config, seed))
            common.write_json(folder / "config.json", case.config, indent=2)
            write_single(folder, stored) if case.shards == 1 else write_shards(folder, stored, case.shards)
            tokens = make_tokens(case.config["vocab_size"], case.count, seed)
            with tempfile.TemporaryDirectory() as temp:
                oracle = pathlib.Path(temp)
                common.write_json(oracle / "config.json", {k: v for k, v in case.config.items() if k != "quantization_config"})
                write_single(oracle, meant)
                tensors, metadata, numbers, good = expected_of(oracle, tokens, seed)
            if good:
                break
        else:
            raise RuntimeError(f"{case.folder}: no seed gives the margins")
        common.write_expected(folder / "expected.safetensors", {k: v.numpy() for k, v in tensors.items()}, metadata)
        facts[case.folder] = {"what": case.what, "seed": seed, **numbers}
        folders.append(case.folder)
        print(case.folder, json.dumps(facts[case.folder]), flush=True)
    return facts, folders


if __name__ == "__main__":
    common.main("gpt_oss", make, PACKAGES, __doc__)
