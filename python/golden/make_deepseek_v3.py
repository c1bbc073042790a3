#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiny random deepseek_v3 checkpoints (fp32, BF16, FP8 with block scales) and what transformers computes from them in fp32.

Router biases change choices, norms are far from 1, groups are limited. For FP8 the oracle reads a folder with the values that codes and
scales stand for. kimi_k2 is the same graph under another name: transformers is asked for deepseek_v3.
"""

import json
import pathlib
import shutil
import tempfile

import common
import torch
from oracle import PACKAGES, Weights, expected_of, make_tokens, write_shards, write_single
from quantize import fp8_blocks

MAX_NOISE = 4e-5  # of the fp32 logits: two forms of attention are held against one expectation

YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 32}


def deepseek_v3(**changes):
    """A config.json in the style of the published checkpoints."""
    config = {
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
        "ep_size": 1, "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02,
        "intermediate_size": 80, "kv_lora_rank": 32, "max_position_embeddings": 1280, "model_type": "deepseek_v3",
        "moe_intermediate_size": 24, "moe_layer_freq": 1, "n_group": 4, "n_routed_experts": 16, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 4,
        "num_nextn_predict_layers": 1, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": dict(YARN), "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
        "tie_word_embeddings": False, "topk_group": 2, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "transformers_version": "4.33.1", "use_cache": True, "v_head_dim": 16, "vocab_size": 160,
    }
    config.update(changes)
    return config


def make_weights(c, seed, mtp=False):
    w = Weights("deepseek_v3", seed)
    hidden, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    w.normal("model.embed_tokens.weight", c["vocab_size"], hidden, 0.5 * hidden ** 0.5)

    def block(at, layer):
        w.norm(at + "input_layernorm.weight", hidden)
        w.norm(at + "post_attention_layernorm.weight", hidden)
        attention = at + "self_attn."
        if c["q_lora_rank"] is None:
            w.normal(attention + "q_proj.weight", heads * (nope + rope), hidden, 1.5)
        else:
            w.normal(attention + "q_a_proj.weight", c["q_lora_rank"], hidden)
            w.norm(attention + "q_a_layernorm.weight", c["q_lora_rank"], 0.7, 1.9)
            w.normal(attention + "q_b_proj.weight", heads * (nope + rope), c["q_lora_rank"], 1.3)
        w.normal(attention + "kv_a_proj_with_mqa.weight", rank + rope, hidden, 1.3)
        w.norm(attention + "kv_a_layernorm.weight", rank, 0.7, 1.9)
        w.normal(attention + "kv_b_proj.weight", heads * (nope + value), rank)
        w.normal(attention + "o_proj.weight", hidden, heads * value)
        if c["attention_bias"]:
            for name, size in (("q_a_proj", c["q_lora_rank"]), ("kv_a_proj_with_mqa", rank + rope), ("o_proj", hidden)):
                if size is not None:
                    w.bias(f"{attention}{name}.bias", size)
        if layer < c["first_k_dense_replace"]:
            return w.mlp(at + "mlp.", hidden, c["intermediate_size"])
        w.normal(at + "mlp.gate.weight", c["n_routed_experts"], hidden, 1.5)
        w.bias(at + "mlp.gate.e_score_correction_bias", c["n_routed_experts"], 0.4)
        for expert in range(c["n_routed_experts"]):
            w.mlp(f"{at}mlp.experts.{expert}.", hidden, c["moe_intermediate_size"])
        w.mlp(at + "mlp.shared_experts.", hidden, c["n_shared_experts"] * c["moe_intermediate_size"])

    for layer in range(c["num_hidden_layers"]):
        block(f"model.layers.{layer}.", layer)
    w.norm("model.norm.weight", hidden)
    w.normal("lm_head.weight", c["vocab_size"], hidden, 2.5)
    if mtp:
        at = f"model.layers.{c['num_hidden_layers']}."
        block(at, c["num_hidden_layers"])
        for name in ("enorm", "hnorm", "shared_head.norm"):
            w.norm(f"{at}{name}.weight", hidden)
        w.normal(at + "eh_proj.weight", hidden, 2 * hidden)
        w.normal(at + "shared_head.head.weight", c["vocab_size"], hidden)
        w.normal(at + "embed_tokens.weight", c["vocab_size"], hidden)
    return w.tensors


def is_linear(name):
    """What the published checkpoints store in FP8: projections and MLPs, not embeddings, norms, router and head."""
    return name.endswith("_proj.weight") or name.endswith("kv_a_proj_with_mqa.weight")


def as_fp32(weights):
    return dict(weights), dict(weights)


def as_bf16(weights):
    stored = {k: v if k.endswith("correction_bias") else v.to(torch.bfloat16) for k, v in weights.items()}
    return stored, {k: v.float() for k, v in stored.items()}


def as_fp8(block, power_of_two=False):
    def store(weights):
        stored, meant = {}, {}
        for name, value in weights.items():
            if is_linear(name):
                stored[name], stored[name + "_scale_inv"], meant[name] = fp8_blocks(value, block, power_of_two)
            else:
                stored[name] = value if name.endswith("correction_bias") else value.to(torch.bfloat16)
                meant[name] = stored[name].float()
        return stored, meant
    return store


def fp8_config(block, **more):
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [block, block], **more}


ODD = dict(hidden_size=45, intermediate_size=33, kv_lora_rank=21, moe_intermediate_size=19, n_group=1, topk_group=1, n_routed_experts=7,
           n_shared_experts=2, num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=4, first_k_dense_replace=2,
           q_lora_rank=17, qk_nope_head_dim=11, qk_rope_head_dim=6, v_head_dim=13, vocab_size=101, rope_theta=50000, rms_norm_eps=1e-5,
           routed_scaling_factor=2.827)


class Case:
    def __init__(self, folder, config, what, store=as_fp32, *, count=40, shards=1, mtp=False):
        self.folder, self.config, self.what, self.store = folder, config, what, store
        self.count, self.shards, self.mtp = count, shards, mtp


def cases():
    return [
        Case("deepseek_v3_base", deepseek_v3(), "2 of 4 groups, shared expert, one dense layer, YaRN of factor 40 with mscale; layer 3 is MTP",
             mtp=True),
        Case("deepseek_v3_odd", deepseek_v3(**ODD, attention_bias=True, norm_topk_prob=False,
                                            rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=0.0, factor=4)),
             "sizes that divide nothing, biases, two dense layers, two shared experts, raw sigmoid weights, mscale_all_dim 0, eps 1e-5"),
        Case("deepseek_v3_lite", deepseek_v3(q_lora_rank=None, rope_scaling=None, n_group=2, topk_group=1, num_hidden_layers=2),
             "q_proj without a low rank, plain RoPE, the best of two groups"),
        Case("deepseek_v3_half_split", deepseek_v3(rope_interleave=False, num_hidden_layers=2), "rope_interleave false"),
        Case("deepseek_v3_bf16", deepseek_v3(num_hidden_layers=2), "stored BF16, router bias F32", as_bf16),
        Case("deepseek_v3_fp8", deepseek_v3(**{**ODD, "hidden_size": 200, "kv_lora_rank": 150, "qk_nope_head_dim": 60, "v_head_dim": 44,
                                               "qk_rope_head_dim": 20, "intermediate_size": 300, "num_hidden_layers": 2,
                                               "first_k_dense_replace": 1, "moe_intermediate_size": 130, "n_routed_experts": 4, "q_lora_rank": 136},
                                            num_experts_per_tok=2, quantization_config=fp8_config(128)),
             "FP8 with 128 x 128 blocks, partial ones on both edges (200 x 300), blocks across heads of kv_b_proj; two shards", as_fp8(128), shards=2),
        Case("deepseek_v3_fp8_ue8m0", deepseek_v3(num_hidden_layers=2, quantization_config=fp8_config(32, scale_fmt="ue8m0")),
             "FP8 with 32 x 32 blocks, scales powers of two stored as F32 (V3.1)", as_fp8(32, True)),
        Case("deepseek_v3_fp8_panels", deepseek_v3(hidden_size=160, intermediate_size=288, kv_lora_rank=96, q_lora_rank=160, qk_nope_head_dim=32,
                                                   qk_rope_head_dim=32, v_head_dim=32, num_attention_heads=2, num_key_value_heads=2,
                                                   moe_intermediate_size=160, n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2,
                                                   num_hidden_layers=2, quantization_config=fp8_config(128)),
             "FP8 with 128 x 128 blocks, every size a multiple of 32 and none of 128: what pack puts into panels, with partial blocks", as_fp8(128)),
        Case("kimi_k2_base", deepseek_v3(model_type="kimi_k2", n_group=1, topk_group=1, n_routed_experts=12, num_attention_heads=2,
                                         num_key_value_heads=2, rope_theta=50000.0, rms_norm_eps=1e-6, routed_scaling_factor=2.827,
                                         num_hidden_layers=2, num_nextn_predict_layers=0,
                                         rope_scaling=dict(YARN, factor=32.0)),
             "deepseek_v3 by another name: one group, theta 50000, YaRN of factor 32"),
    ]


def make(root, only):
    facts, folders = {}, []
    for case in cases():
        if only is not None and only not in case.folder:
            continue
        first = common.seed_of(case.folder)
        for seed in range(first, first + 400):
            folder = root / case.folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            stored, meant = case.store(make_weights(case.config, seed, case.mtp))
            common.write_json(folder / "config.json", case.config, indent=2)
            write_single(folder, stored) if case.shards == 1 else write_shards(folder, stored, case.shards)
            tokens = make_tokens(case.config["vocab_size"], case.count, seed)
            with tempfile.TemporaryDirectory() as temp:
                oracle = pathlib.Path(temp)
                config = {k: v for k, v in case.config.items() if k != "quantization_config"}
                common.write_json(oracle / "config.json", {**config, "model_type": "deepseek_v3"})
                last = f"model.layers.{case.config['num_hidden_layers']}."
                write_single(oracle, {k: v for k, v in meant.items() if not k.startswith(last)})
                tensors, metadata, numbers, good = expected_of(oracle, tokens, seed)
            if good and numbers["fp32_noise"] <= MAX_NOISE:
                break
        else:
            raise RuntimeError(f"{case.folder}: no seed gives the margins")
        common.write_expected(folder / "expected.safetensors", {k: v.numpy() for k, v in tensors.items()}, metadata)
        facts[case.folder] = {"what": case.what, "seed": seed, **numbers}
        folders.append(case.folder)
        print(case.folder, json.dumps(facts[case.folder]), flush=True)
    return facts, folders


if __name__ == "__main__":
    common.main("deepseek_v3", make, PACKAGES, __doc__)
