#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiny random checkpoints of every family but qwen3 with what transformers computes from them in fp32.

Folders as those of make_qwen3_moe.py (see tests/golden/MANIFEST.md): files as published, expected.safetensors beside them. Each
family has at least two shapes, one of them with odd sizes; biases, norms and gates are far from 0 and 1, so that leaving one out
shows, and router biases change choices.
"""

import json
import math
import pathlib
import shutil
import tempfile

import common
import torch
from quantize import fp8_blocks, mxfp8_rows
from oracle import PACKAGES, Weights, expected_of, load, make_tokens, write_shards, write_single

COMMON = {
    "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02,
    "max_position_embeddings": 256, "num_attention_heads": 4, "num_hidden_layers": 3, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
    "transformers_version": "4.40.0", "use_cache": True, "vocab_size": 160, "hidden_size": 48,
}


# ----------------------------------------------------------------------------------------------------------------------
# config.json in the style of the published checkpoints

def family(model_type, architecture, **own):
    def config(**changes):
        made = {"architectures": [architecture], "model_type": model_type, **COMMON, **own}
        for key, value in changes.items():
            if value is DROP:
                made.pop(key, None)
            else:
                made[key] = value
        return dict(sorted(made.items()))
    return config


class _Drop:
    pass


DROP = _Drop()
mixtral = family("mixtral", "MixtralForCausalLM", intermediate_size=32, num_local_experts=8, num_experts_per_tok=2,
                 output_router_logits=False, router_aux_loss_coef=0.02, sliding_window=None, rope_theta=1000000.0)
olmoe = family("olmoe", "OlmoeForCausalLM", intermediate_size=32, num_experts=8, num_experts_per_tok=3, clip_qkv=None,
               norm_topk_prob=False, attention_bias=False, output_router_logits=False, rope_scaling=None,
               router_aux_loss_coef=0.01, num_key_value_heads=4)
qwen2_moe = family("qwen2_moe", "Qwen2MoeForCausalLM", intermediate_size=80, moe_intermediate_size=24,
                   shared_expert_intermediate_size=40, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False,
                   decoder_sparse_step=1, mlp_only_layers=[], max_window_layers=2, sliding_window=8, use_sliding_window=False,
                   output_router_logits=False, router_aux_loss_coef=0.001, rms_norm_eps=1e-06, rope_theta=1000000.0)
llama = family("llama", "LlamaForCausalLM", intermediate_size=80, attention_bias=False, mlp_bias=False, pretraining_tp=1,
               rope_scaling=None)
qwen2 = family("qwen2", "Qwen2ForCausalLM", intermediate_size=80, max_window_layers=2, sliding_window=8,
               use_sliding_window=False, rms_norm_eps=1e-06)

glm4_moe = family("glm4_moe", "Glm4MoeForCausalLM", intermediate_size=80, moe_intermediate_size=24, n_routed_experts=8,
                  n_shared_experts=1, num_experts_per_tok=3, norm_topk_prob=True, routed_scaling_factor=2.5, n_group=1,
                  topk_group=1, first_k_dense_replace=1, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5,
                  head_dim=16, num_nextn_predict_layers=1, rope_scaling=None)
minimax_m2 = family("minimax_m2", "MiniMaxM2ForCausalLM", intermediate_size=32, num_local_experts=8, num_experts_per_tok=3,
                    head_dim=16, rotary_dim=8, rope_theta=5000000.0, rms_norm_eps=1e-06, output_router_logits=False,
                    router_aux_loss_coef=0.001)

# Names of the expert matrices in the order gate, up, down.
EXPERT_NAMES = {"mixtral": ("w1", "w3", "w2"), "minimax_m2": ("w1", "w3", "w2")}
MOE_PREFIX = {"mixtral": "block_sparse_moe.", "minimax_m2": "block_sparse_moe."}


# ----------------------------------------------------------------------------------------------------------------------
# weights under the published names

def is_moe_layer(config, layer):
    if config["model_type"] in ("llama", "qwen2"):
        return False
    if "first_k_dense_replace" in config:
        return layer >= config["first_k_dense_replace"]
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
    return layer not in dense and (layer + 1) % step == 0


def attention_biases(config):
    """(q, k, v have one, o has one)"""
    kind = config["model_type"]
    if kind == "qwen2":
        return True, False
    if kind == "qwen2_moe":
        return config.get("qkv_bias", True), False
    if kind == "glm4_moe":
        return config["attention_bias"], False
    return config.get("attention_bias", False), config.get("attention_bias", False)


def make_weights(config, seed):
    kind = config["model_type"]
    w = Weights(kind, "weights", seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    heads, kv = config["num_attention_heads"], config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    qkv_bias, o_bias = attention_biases(config)
    w.normal("model.embed_tokens.weight", vocab, hidden, 0.5 * math.sqrt(hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        w.norm(prefix + "input_layernorm.weight", hidden)
        w.norm(prefix + "post_attention_layernorm.weight", hidden)
        for name, rows, columns, bias in (("q", heads * head_dim, hidden, qkv_bias), ("k", kv * head_dim, hidden, qkv_bias),
                                          ("v", kv * head_dim, hidden, qkv_bias), ("o", hidden, heads * head_dim, o_bias)):
            w.normal(f"{prefix}self_attn.{name}_proj.weight", rows, columns)
            if bias:
                w.bias(f"{prefix}self_attn.{name}_proj.bias", rows)
        if config.get("use_qk_norm"):
            w.norm(prefix + "self_attn.q_norm.weight", head_dim, 0.7, 1.9)
            w.norm(prefix + "self_attn.k_norm.weight", head_dim, 0.7, 1.9)
        if kind in ("olmoe", "minimax_m2"):
            w.norm(prefix + "self_attn.q_norm.weight", heads * head_dim, 0.4, 2.2)
            w.norm(prefix + "self_attn.k_norm.weight", kv * head_dim, 0.4, 2.2)
        if is_moe_layer(config, layer):
            make_moe(w, config, prefix + MOE_PREFIX.get(kind, "mlp."))
        else:
            w.mlp(prefix + "mlp.", hidden, config["intermediate_size"], bias=config.get("mlp_bias", False))
    w.norm("model.norm.weight", hidden)
    w.normal("lm_head.weight", vocab, hidden, 2.5)
    return w.tensors


def make_moe(w, config, prefix):
    kind, hidden = config["model_type"], config["hidden_size"]
    experts = config.get("num_experts") or config.get("num_local_experts") or config["n_routed_experts"]
    width = config.get("moe_intermediate_size", config["intermediate_size"])
    w.normal(prefix + "gate.weight", experts, hidden, 1.5)
    for expert in range(experts):
        w.mlp(f"{prefix}experts.{expert}.", hidden, width, EXPERT_NAMES.get(kind, ("gate_proj", "up_proj", "down_proj")))
    if kind == "glm4_moe":
        w.bias(prefix + "gate.e_score_correction_bias", experts)
        w.mlp(prefix + "shared_experts.", hidden, width * config["n_shared_experts"])
    if kind == "minimax_m2":
        w.bias(prefix + "e_score_correction_bias", experts)
    if kind == "qwen2_moe":
        w.mlp(prefix + "shared_expert.", hidden, config["shared_expert_intermediate_size"])
        w.normal(prefix + "shared_expert_gate.weight", 1, hidden, 1.5)


# ----------------------------------------------------------------------------------------------------------------------
# cases

def write_published(folder, config, weights):
    weights = dict(weights)
    if config.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    common.write_json(folder / "config.json", config, indent=2)
    write_single(folder, weights)


def write_two_shards(folder, config, weights):
    common.write_json(folder / "config.json", config, indent=2)
    write_shards(folder, weights, 2)


def write_saved(original):
    """save_pretrained of transformers 5: its config spelling; per-expert names (original) or its own fused ones."""
    def write(folder, config, weights):
        with tempfile.TemporaryDirectory() as temp:
            temp = pathlib.Path(temp)
            write_published(temp, config, weights)
            model = load(temp)
        model.save_pretrained(folder, save_original_format=original)
    return write


def write_with_mtp(folder, config, weights):
    """A block of multi-token prediction behind the last layer, as GLM stores it; transformers leaves it unread."""
    last = config["num_hidden_layers"]
    extra = {f"model.layers.{last}.{name[len('model.layers.1.'):]}": value.clone() for name, value in weights.items()
             if name.startswith("model.layers.1.")}
    hidden = config["hidden_size"]
    w = Weights("mtp", hidden)
    w.normal(f"model.layers.{last}.eh_proj.weight", hidden, 2 * hidden)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        w.norm(f"model.layers.{last}.{name}.weight", hidden)
    write_published(folder, config, {**weights, **extra, **w.tensors})


def is_coded(name):
    """What FP8 checkpoints quantise: projections and experts."""
    return name.endswith("_proj.weight") or ".experts." in name


def as_fp8(block):
    def quantise(weights):
        stored, meant = {}, {}
        for name, value in weights.items():
            if is_coded(name):
                stored[name], stored[name + "_scale_inv"], meant[name] = fp8_blocks(value, block)
            else:
                stored[name] = meant[name] = value
        return stored, meant
    return quantise


def as_mxfp8(weights):
    stored, meant = {}, {}
    for name, value in weights.items():
        if is_coded(name):
            stored[name], stored[name + "_scale"], meant[name] = mxfp8_rows(value)
        else:
            stored[name] = meant[name] = value
    return stored, meant


def as_fused_fp8(block):
    """Experts of a layer in one tensor each, gate rows first, with one grid of scales per expert: transformers' names for FP8 experts."""
    def quantise(weights):
        stored, meant = as_fp8(block)(weights)
        layers = sorted({name.split(".experts.")[0] for name in weights if ".experts." in name})
        for prefix in (layer + ".experts." for layer in layers):
            count = sum(name.startswith(prefix) and name.endswith(".gate_proj.weight") for name in weights)
            for suffix in ("weight", "weight_scale_inv"):
                part = lambda e, kind: stored.pop(f"{prefix}{e}.{kind}_proj.{suffix}")  # noqa: E731
                tail = suffix[len("weight"):]
                stored[f"{prefix}gate_up_proj{tail}"] = torch.stack([torch.cat([part(e, "gate"), part(e, "up")]) for e in range(count)])
                stored[f"{prefix}down_proj{tail}"] = torch.stack([part(e, "down") for e in range(count)])
        return stored, meant
    return quantise


class Case:
    def __init__(self, folder, config, what, write=write_published, count=40, expected_from=None, quantise=None):
        self.folder, self.config, self.what, self.write, self.count = folder, config, what, write, count
        self.quantise = quantise  # weights -> (as stored, what they stand for)
        self.expected_from = expected_from  # an earlier folder with the same weights, whose expected values hold here too


def fp8_config(block):
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [block, block]}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ODD = {"hidden_size": 45, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10, "vocab_size": 131}


def cases():
    return [
        Case("mixtral_base", mixtral(), "8 experts, top-2, w1/w3/w2 under block_sparse_moe"),
        Case("mixtral_odd", mixtral(**ODD, intermediate_size=21, num_local_experts=7, num_experts_per_tok=3),
             "odd sizes: hidden 45, expert width 21, 7 experts, top-3, explicit head_dim 10"),
        Case("mixtral_window", mixtral(sliding_window=8, num_local_experts=4, num_hidden_layers=2),
             "sliding_window 8: every layer slides, no switch asked", count=48),
        Case("mixtral_v5saved", mixtral(num_local_experts=4, num_hidden_layers=2), "save_pretrained of transformers 5",
             write=write_saved(True)),
        Case("mixtral_v5fused", mixtral(num_local_experts=4, num_hidden_layers=2),
             "save_pretrained(save_original_format=False): mlp.gate, mlp.experts.gate_up_proj", write=write_saved(False)),
        Case("olmoe_base", olmoe(), "norms over the whole q and k rows; raw softmax weights, top-3 of 8"),
        Case("olmoe_odd", olmoe(hidden_size=54, num_attention_heads=3, num_key_value_heads=3, intermediate_size=19,
                                num_experts=7, vocab_size=131, num_experts_per_tok=2, norm_topk_prob=True),
             "hidden 54 in 3 heads of 18, expert width 19, 7 experts, top-2, norm_topk_prob true"),
        Case("olmoe_clip_gqa", olmoe(clip_qkv=0.5, num_key_value_heads=2, attention_bias=True, num_hidden_layers=2),
             "clip_qkv 0.5 bites in q, k and v; 2 key heads; attention_bias true (q, k, v and o)"),
        Case("qwen2_moe_base", qwen2_moe(), "q, k, v biases, gated shared expert, raw softmax weights"),
        Case("qwen2_moe_odd", qwen2_moe(**ODD, moe_intermediate_size=21, shared_expert_intermediate_size=37, num_experts=7,
                                        num_experts_per_tok=2, norm_topk_prob=True),
             "hidden 45, expert width 21, shared width 37, 7 experts, norm_topk_prob true"),
        Case("qwen2_moe_dense_layers", qwen2_moe(num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[1], num_experts=4,
                                                 qkv_bias=False),
             "only layer 3 of 4 is MoE; qkv_bias false", count=32),
        Case("qwen2_moe_window", qwen2_moe(num_hidden_layers=4, num_experts=4, use_sliding_window=True, max_window_layers=3),
             "use_sliding_window: the even layers below max_window_layers slide (0 and 2)", count=48),
        Case("qwen2_moe_v5fused", qwen2_moe(num_experts=4, num_hidden_layers=2), "saved by transformers 5 with fused experts",
             write=write_saved(False)),
        Case("llama_base", llama(), "dense Llama"),
        Case("llama_odd", llama(**{**ODD, "num_key_value_heads": DROP}, intermediate_size=77, attention_bias=True, mlp_bias=True),
             "hidden 45, 3 heads and no num_key_value_heads key, MLP width 77, attention_bias and mlp_bias true"),
        Case("llama_rope3", llama(head_dim=32, num_hidden_layers=2, rope_scaling=LLAMA3, rope_theta=500000.0,
                                  max_position_embeddings=512, tie_word_embeddings=True),
             "rope type llama3 with channels below, inside and above the band; tied", count=80),
        Case("llama_linear", llama(num_hidden_layers=2, rope_scaling={"type": "linear", "factor": 4.0}),
             "rope type linear, old spelling, two shards", write=write_two_shards),
        Case("qwen2_base", qwen2(tie_word_embeddings=True), "dense Qwen2, tied; biases on q, k and v"),
        Case("qwen2_odd", qwen2(**ODD, intermediate_size=77), "hidden 45, 3 heads on 1, MLP width 77"),
        Case("qwen2_window", qwen2(num_hidden_layers=4, use_sliding_window=True),
             "use_sliding_window: layers from max_window_layers (2 and 3) slide", count=48),
        Case("qwen2_yarn", qwen2(num_hidden_layers=2, rope_scaling=YARN, max_position_embeddings=128, head_dim=16),
             "rope type yarn, as published for long contexts", count=64),
        Case("glm4_moe_base", glm4_moe(), "biases on q, k, v, per-head q/k norm, 8 of 16 channels turn, one dense layer, router bias, "
             "shared expert, scaling 2.5"),
        Case("glm4_moe_odd", glm4_moe(**ODD, moe_intermediate_size=21, n_routed_experts=7, n_shared_experts=2, use_qk_norm=False,
                                      norm_topk_prob=False, first_k_dense_replace=2, attention_bias=False,
                                      partial_rotary_factor=0.4, num_nextn_predict_layers=0),
             "hidden 45, expert width 21, two shared experts, 4 of 10 channels turn, two dense layers, raw sigmoid weights"),
        Case("glm4_moe_groups", glm4_moe(n_group=4, topk_group=2, num_experts_per_tok=2, num_hidden_layers=2),
             "the 2 best of 4 groups of 2 experts"),
        Case("glm4_moe_mtp", glm4_moe(), "glm4_moe_base with a block of multi-token prediction behind the last layer",
             write=write_with_mtp, expected_from="glm4_moe_base"),
        Case("minimax_m2_base", minimax_m2(), "norms over the whole q and k rows, rotary_dim 8 of 16, router bias"),
        Case("minimax_m2_odd", minimax_m2(**{**ODD, "num_key_value_heads": 3}, rotary_dim=6, intermediate_size=21, num_local_experts=7,
                                          num_experts_per_tok=2),
             "hidden 45, 3 heads of 10 of which 6 channels turn, expert width 21, 7 experts, top-2"),
        Case("minimax_m2_fp8", minimax_m2(hidden_size=200, intermediate_size=150, num_local_experts=4, num_hidden_layers=2,
                                          quantization_config=fp8_config(128)),
             "as published: FP8 with 128 x 128 blocks and fp32 scales, partial ones on both edges", quantise=as_fp8(128)),
        Case("mixtral_mxfp8", mixtral(hidden_size=72, num_local_experts=4, num_hidden_layers=2,
                                      quantization_config={"quant_method": "mxfp8"}),
             "MXFP8: E4M3 with an exponent byte (U8) per 32 columns, the last block of each row of 72 partial", quantise=as_mxfp8),
        Case("qwen2_moe_fp8fused", qwen2_moe(hidden_size=80, moe_intermediate_size=64, num_experts=4, num_hidden_layers=2,
                                             quantization_config=fp8_config(32)),
             "FP8 experts fused as transformers holds them: gate_up_proj and gate_up_proj_scale_inv, one grid per expert", quantise=as_fused_fp8(32)),
        Case("minimax_m2_v5fused", minimax_m2(num_local_experts=4, num_hidden_layers=2), "saved by transformers 5 with its own names",
             write=write_saved(False)),
    ]


def make(root, only):
    facts, folders = {}, []
    wanted = [c for c in cases() if only is None or only in c.folder]
    needed = {c.folder for c in wanted} | {c.expected_from for c in wanted}
    for case in cases():
        if case.folder not in needed:
            continue
        if case.expected_from is not None:
            seed = facts[case.expected_from]["seed"]
            folder = root / case.folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            case.write(folder, case.config, make_weights(case.config, seed))
            shutil.copy(root / case.expected_from / "expected.safetensors", folder / "expected.safetensors")
            facts[case.folder] = {"what": case.what, "seed": seed, "expected_from": case.expected_from}
            folders.append(case.folder)
            continue
        first = common.seed_of(case.folder)
        for seed in range(first, first + 400):
            folder = root / case.folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            weights = make_weights(case.config, seed)
            tokens = make_tokens(case.config["vocab_size"], case.count, seed)
            if case.quantise is None:
                case.write(folder, case.config, weights)
                tensors, metadata, numbers, good = expected_of(folder, tokens, seed)
            else:
                weights, meant = case.quantise(weights)
                case.write(folder, case.config, weights)
                with tempfile.TemporaryDirectory() as temp:
                    plain = {k: v for k, v in case.config.items() if k != "quantization_config"}
                    write_published(pathlib.Path(temp), plain, meant)
                    tensors, metadata, numbers, good = expected_of(pathlib.Path(temp), tokens, seed)
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
    common.main("families", make, PACKAGES, __doc__)
