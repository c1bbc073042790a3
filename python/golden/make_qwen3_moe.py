#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiny random qwen3_moe and qwen3 checkpoints with what transformers computes from them in fp32.

Every folder holds the files a Hugging Face model folder has, plus expected.safetensors (see tests/golden/MANIFEST.md).
The expected values always come from the files as written: they are loaded back with from_pretrained first.
"""

import json
import math
import pathlib
import re
import shutil
import tempfile

import common
from oracle import (PACKAGES, Weights, expected_of, load, make_tokens, trace, write_shards, write_single)

import torch  # noqa: E402

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# ----------------------------------------------------------------------------------------------------------------------
# config and weights

def moe_config(**changes):
    """A config.json in the style of published Qwen3-MoE checkpoints."""
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "decoder_sparse_step": 1,
        "eos_token_id": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "hidden_size": 48,
        "initializer_range": 0.02,
        "intermediate_size": 80,
        "max_position_embeddings": 256,
        "max_window_layers": 3,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "output_router_logits": False,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "router_aux_loss_coef": 0.001,
        "sliding_window": 8,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 320,
    }
    for key, value in changes.items():
        if value is DROP:
            del config[key]
        else:
            config[key] = value
    return config


class _Drop:
    pass


DROP = _Drop()
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "head_dim": 8, "moe_intermediate_size": 20, "vocab_size": 128}


def dense_config(**changes):
    config = moe_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3")
    for key in ("decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob", "num_experts",
                "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"):
        del config[key]
    config.update(changes)
    return config


def is_moe_layer(config, layer):
    return ("num_experts" in config and layer not in config["mlp_only_layers"]
            and (layer + 1) % config["decoder_sparse_step"] == 0)


def make_weights(config, seed):
    """Per-expert tensors under the published names, fp32, norms away from 1."""
    w = Weights("qwen3 weights", seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", hidden // heads)
    w.normal("model.embed_tokens.weight", vocab, hidden, 0.5 * math.sqrt(hidden))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        w.norm(prefix + "input_layernorm.weight", hidden)
        w.norm(prefix + "post_attention_layernorm.weight", hidden)
        w.norm(prefix + "self_attn.q_norm.weight", head_dim, 0.7, 1.9)
        w.norm(prefix + "self_attn.k_norm.weight", head_dim, 0.7, 1.9)
        for name, rows, columns in (("q", heads * head_dim, hidden), ("k", kv * head_dim, hidden),
                                    ("v", kv * head_dim, hidden), ("o", hidden, heads * head_dim)):
            w.normal(f"{prefix}self_attn.{name}_proj.weight", rows, columns)
            if config["attention_bias"]:
                w.bias(f"{prefix}self_attn.{name}_proj.bias", rows)
        if is_moe_layer(config, layer):
            w.normal(prefix + "mlp.gate.weight", config["num_experts"], hidden, 1.5)
            for expert in range(config["num_experts"]):
                w.mlp(f"{prefix}mlp.experts.{expert}.", hidden, config["moe_intermediate_size"])
        else:
            w.mlp(prefix + "mlp.", hidden, config["intermediate_size"])
    w.norm("model.norm.weight", hidden)
    w.normal("lm_head.weight", vocab, hidden, 2.5)
    return w.tensors


def all_to_one_expert(weights, config, expert):
    """Gives every token one strong common direction and every gate a preference for one expert along it."""
    weights["model.embed_tokens.weight"][:, 0] = 12.0
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights[prefix + "post_attention_layernorm.weight"][0] = 1.0
        gate = weights[prefix + "mlp.gate.weight"]
        gate[:, 0] = -1.0
        gate[expert, 0] = 3.0


# ----------------------------------------------------------------------------------------------------------------------
# writing

def renamed_experts(weights, mapping):
    out = {}
    for name, value in weights.items():
        if ".mlp.experts." in name:
            for old, new in mapping.items():
                name = name.replace(f".{old}.", f".{new}.")
        out[name] = value
    return out


def fused_experts(weights, config):
    out = {k: v for k, v in weights.items() if ".mlp.experts." not in k}
    for layer in range(config["num_hidden_layers"]):
        if not is_moe_layer(config, layer):
            continue
        at = f"model.layers.{layer}.mlp.experts."
        pick = lambda e, n: weights[f"{at}{e}.{n}.weight"]  # noqa: E731
        experts = range(config["num_experts"])
        out[at + "gate_up_proj"] = torch.stack([torch.cat([pick(e, "gate_proj"), pick(e, "up_proj")]) for e in experts])
        out[at + "down_proj"] = torch.stack([pick(e, "down_proj") for e in experts])
    return out


# ----------------------------------------------------------------------------------------------------------------------
# cases

class Case:
    """One folder. `write(folder, config, weights)` may change what lands on disk."""

    def __init__(self, folder, config, what, *, write=None, count=40, seed_name=None, refuse=None, adjust=None,
                 expected_from=None):
        self.folder, self.config, self.what, self.count = folder, config, what, count
        self.write = write or (lambda target, cfg, weights: write_default(target, cfg, weights))
        self.seed_name = seed_name or folder  # cases with one seed name share weights, tokens and values
        self.refuse = refuse                  # text: must be refused, no expected values
        self.adjust = adjust
        self.expected_from = expected_from    # a folder whose expected values hold here too


def write_default(folder, config, weights):
    weights = dict(weights)
    if config.get("tie_word_embeddings"):
        del weights["lm_head.weight"]
    common.write_json(folder / "config.json", config, indent=2)
    write_single(folder, weights)


def write_as(dtype):
    def write(folder, config, weights):
        write_default(folder, config, {k: v.to(DTYPES[dtype]) for k, v in weights.items()})
    return write


def write_three_shards(folder, config, weights):
    common.write_json(folder / "config.json", config, indent=2)
    write_shards(folder, weights, 3)


def write_saved_fused(folder, config, weights):
    """save_pretrained(save_original_format=False): fused names and a config.json in the spelling of transformers 5."""
    with tempfile.TemporaryDirectory() as temp:
        temp = pathlib.Path(temp)
        write_default(temp, config, weights)
        model = load(temp)
    model.save_pretrained(folder, save_original_format=False)


def write_saved_original(folder, config, weights):
    """save_pretrained() as it is: per-expert names, config.json with num_local_experts, rope_parameters, dtype."""
    with tempfile.TemporaryDirectory() as temp:
        temp = pathlib.Path(temp)
        write_default(temp, config, weights)
        model = load(temp)
    model.save_pretrained(folder)


def write_renamed(mapping):
    def write(folder, config, weights):
        common.write_json(folder / "config.json", config, indent=2)
        write_single(folder, renamed_experts(weights, mapping))
    return write


def write_fused(folder, config, weights):
    common.write_json(folder / "config.json", config, indent=2)
    write_single(folder, fused_experts(weights, config))


def write_misspelt(folder, config, weights):
    weights = dict(weights)
    old = "model.layers.1.mlp.experts.3.gate_proj.weight"
    weights[old.replace("gate_proj", "gate_porj")] = weights.pop(old)
    common.write_json(folder / "config.json", config, indent=2)
    write_single(folder, weights)


def write_head(kind):
    """kind: absent | equal | different | only (the embedding is left out)"""
    def write(folder, config, weights):
        weights = dict(weights)
        if kind == "absent":
            del weights["lm_head.weight"]
        elif kind == "equal":
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        elif kind == "only":
            weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
        common.write_json(folder / "config.json", config, indent=2)
        write_single(folder, weights)
    return write


def cases():
    small = lambda **kw: moe_config(**{**SMALL, **kw})  # noqa: E731
    out = [
        Case("qwen3_moe_base", moe_config(), "untied, 8 experts, top-2, renormalised"),
        Case("qwen3_moe_tied", moe_config(tie_word_embeddings=True), "tied embeddings, no lm_head.weight in the file"),
        Case("qwen3_moe_nonorm", moe_config(norm_topk_prob=False), "norm_topk_prob false: weights do not sum to 1"),
        Case("qwen3_moe_mlp_only", moe_config(num_hidden_layers=4, num_experts=4, mlp_only_layers=[0]),
             "mlp_only_layers [0]: layer 0 dense, 1-3 MoE"),
        Case("qwen3_moe_sparse_step2", moe_config(num_hidden_layers=4, num_experts=4, decoder_sparse_step=2),
             "decoder_sparse_step 2: layers 0 and 2 dense, 1 and 3 MoE"),
        Case("qwen3_moe_mlp_only_step2",
             small(num_hidden_layers=5, num_experts=4, decoder_sparse_step=2, mlp_only_layers=[1]),
             "both: only layer 3 of 5 is MoE"),
        Case("qwen3_moe_odd",
             moe_config(hidden_size=45, num_attention_heads=3, num_key_value_heads=1, head_dim=10, num_experts=7,
                        num_experts_per_tok=3, moe_intermediate_size=21, vocab_size=331),
             "odd sizes: hidden 45, expert width 21, 7 experts, top-3, head_dim 10, vocabulary 331"),
        Case("qwen3_moe_experts6", moe_config(num_experts=6, head_dim=DROP),
             "6 experts; config.json has no head_dim (then hidden / heads = 12)"),
        Case("qwen3_moe_experts6_one", small(num_experts=6, num_experts_per_tok=1),
             "6 experts, top-1, weights made so that every token of every layer goes to expert 5",
             adjust=lambda w, c: all_to_one_expert(w, c, 5)),
        Case("qwen3_moe_top1", small(num_experts_per_tok=1), "top-1, norm_topk_prob true: every weight is exactly 1"),
        Case("qwen3_moe_top1_nonorm", small(num_experts_per_tok=1, norm_topk_prob=False),
             "top-1, norm_topk_prob false: the weight is the softmax score"),
        Case("qwen3_moe_topall", small(num_experts=4, num_experts_per_tok=4), "top_k equals the number of experts"),
        Case("qwen3_moe_gqa8", moe_config(num_attention_heads=8, num_key_value_heads=2, head_dim=20, num_experts=4),
             "8 query heads, 2 key heads, head_dim 20 (hidden / heads would be 6)"),
        Case("qwen3_moe_fused", moe_config(), "save_pretrained(save_original_format=False): experts.gate_up_proj and "
             "experts.down_proj, config.json as transformers 5 writes it (num_local_experts, rope_parameters, dtype)",
             write=write_saved_fused),
        Case("qwen3_moe_v5saved", small(), "save_pretrained() of transformers 5: per-expert names, num_local_experts, "
             "rope_parameters, dtype", write=write_saved_original),
        Case("qwen3_moe_shards3", moe_config(), "three shards with an index", write=write_three_shards),
        Case("qwen3_moe_bf16", moe_config(torch_dtype="bfloat16"), "weights stored BF16; computed in fp32 from them",
             write=write_as("bfloat16")),
        Case("qwen3_moe_f16", moe_config(torch_dtype="float16"), "weights stored F16; computed in fp32 from them",
             write=write_as("float16")),
        Case("qwen3_moe_bias", moe_config(attention_bias=True, num_experts=4),
             "attention_bias true: q, k, v and o all have a bias"),
        Case("qwen3_moe_linear", small(rope_scaling=DROP, rope_theta=DROP, rope_parameters={
            "rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}), "rope_parameters linear, factor 2"),
        Case("qwen3_moe_yarn", small(head_dim=16, max_position_embeddings=128, rope_scaling=DROP, rope_theta=DROP,
                                     rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                                                      "original_max_position_embeddings": 32}), count=64,
             what="rope_parameters yarn, factor 4, original 32, default betas; cos and sin carry 0.1 ln 4 + 1"),
        Case("qwen3_moe_yarn_full", small(head_dim=32, num_experts=4, max_position_embeddings=128, rope_theta=10000.0,
                                          rope_scaling={"type": "yarn", "factor": 4.0, "beta_fast": 8.0,
                                                        "beta_slow": 2.0, "original_max_position_embeddings": 64,
                                                        "attention_factor": 1.25, "truncate": False}), count=64,
             what="rope_scaling spelled with `type`: yarn with betas 8 and 2, attention_factor 1.25, truncate false"),
        Case("qwen3_moe_sliding", small(num_hidden_layers=3, num_experts=4, use_sliding_window=True, sliding_window=8,
                                        max_window_layers=2), count=48,
             what="use_sliding_window true, window 8 (8 keys including the token itself) in EVERY layer: qwen3_moe "
                  "ignores max_window_layers"),
        Case("qwen3_dense", dense_config(tie_word_embeddings=True), "dense Qwen3, tied"),
        Case("qwen3_dense_sliding", dense_config(num_hidden_layers=4, use_sliding_window=True, sliding_window=8,
                                                 max_window_layers=2, vocab_size=128), count=48,
             what="dense Qwen3, untied, window 8 only in layers >= max_window_layers (2 and 3)"),
    ]
    tied = {"seed_name": "qwen3_moe_tied_small"}
    small_tied = lambda **kw: small(num_experts=4, tie_word_embeddings=True, **kw)  # noqa: E731
    out += [
        Case("qwen3_moe_tied_absent", small_tied(), "tied, lm_head.weight absent", write=write_head("absent"), **tied),
        Case("qwen3_moe_tied_equal", small_tied(), "tied, lm_head.weight present and equal to the embedding",
             write=write_head("equal"), **tied),
        Case("qwen3_moe_tied_different", small_tied(), "tied, lm_head.weight present and different: transformers 5 "
             "warns and uses the stored head, which is what is expected here (refusing is allowed too)",
             write=write_head("different"), **tied),
        Case("qwen3_moe_tied_head_only", small_tied(), "tied, only lm_head.weight is stored, no embedding: transformers 5 "
             "ties the other way round", write=write_head("only"), **tied),
        Case("qwen3_moe_tied_off_absent", small_tied() | {"tie_word_embeddings": False},
             "untied, lm_head.weight absent", write=write_head("absent"), refuse="lm_head.weight", **tied),
        Case("qwen3_moe_tied_nested", nested_flag(small_tied()), "the tie flag only in a nested text_config (transformers "
             "ignores it there and leaves the head random; expected as qwen3_moe_tied_absent)",
             write=write_head("absent"), expected_from="qwen3_moe_tied_absent", **tied),
    ]
    layout = {"seed_name": "qwen3_moe_layout"}
    same = {"expected_from": "qwen3_moe_layout_per_expert", **layout}
    out += [
        Case("qwen3_moe_layout_per_expert", small(), "experts.E.gate_proj / up_proj / down_proj", **layout),
        Case("qwen3_moe_layout_fused", small(), "experts.gate_up_proj [E, 2I, D] and experts.down_proj [E, D, I]",
             write=write_fused, **layout),
        Case("qwen3_moe_layout_w123", small(), "experts.E.w1 (gate) / w3 (up) / w2 (down), the Mixtral spelling",
             write=write_renamed({"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}), **same),
        Case("qwen3_moe_layout_misspelt", small(), "one key reads experts.3.gate_porj in layer 1", write=write_misspelt,
             refuse="model.layers.1.mlp.experts.3.gate_porj.weight", **layout),
    ]
    return out


def nested_flag(config):
    config = dict(config)
    del config["tie_word_embeddings"]
    config["text_config"] = {"tie_word_embeddings": True}
    return config


def rope_spellings(config):
    """config.json spellings for the weights of qwen3_moe_base: (file, expect, note, config)."""
    bare = {k: v for k, v in config.items() if k not in ("rope_theta", "rope_scaling")}
    theta = config["rope_theta"]
    with_theta = {**bare, "rope_theta": theta}
    five = {**{k: v for k, v in bare.items() if k not in ("torch_dtype", "num_experts")},
            "num_local_experts": config["num_experts"], "dtype": config["torch_dtype"], "transformers_version": "5.24.0"}
    return [
        ("top_level", "same", "rope_theta at the top, no rope_scaling", with_theta),
        ("integer_theta", "same", "rope_theta written as an integer", {**bare, "rope_theta": int(theta)}),
        ("scaling_null", "same", "rope_scaling null", {**with_theta, "rope_scaling": None}),
        ("scaling_empty", "same", "rope_scaling {}", {**with_theta, "rope_scaling": {}}),
        ("scaling_type", "same", "old key: type", {**with_theta, "rope_scaling": {"type": "default"}}),
        ("scaling_rope_type", "same", "rope_type", {**with_theta, "rope_scaling": {"rope_type": "default"}}),
        ("scaling_both_types", "same", "rope_type wins over type; factor is then unused (transformers warns)",
         {**with_theta, "rope_scaling": {"type": "linear", "rope_type": "default", "factor": 2.0}}),
        ("scaling_with_theta", "same", "rope_theta inside rope_scaling",
         {**bare, "rope_scaling": {"rope_type": "default", "rope_theta": theta}}),
        ("parameters", "same", "the spelling of transformers 5, with num_local_experts and dtype",
         {**five, "rope_parameters": {"rope_theta": theta, "rope_type": "default"}}),
        ("parameters_old_type", "same", "rope_parameters with type",
         {**bare, "rope_parameters": {"rope_theta": theta, "type": "default"}}),
        ("parameters_no_type", "same", "rope_parameters without a type",
         {**bare, "rope_parameters": {"rope_theta": theta}}),
        ("parameters_null", "same", "rope_parameters null beside a top-level rope_theta",
         {**with_theta, "rope_parameters": None}),
        ("parameters_over_top_level", "same_or_refuse", "two values: transformers takes the one in rope_parameters",
         {**bare, "rope_theta": 10000.0, "rope_parameters": {"rope_theta": theta, "rope_type": "default"}}),
        ("parameters_nested", "same_or_refuse", "nested by layer type; transformers does not read this for qwen3_moe, "
         "warns, and computes with its default theta 10000, which must not happen silently",
         {**bare, "rope_parameters": {"full_attention": {"rope_theta": theta, "rope_type": "default"}}}),
        ("unknown_type", "refuse", "an unknown type, to be named in the message",
         {**with_theta, "rope_scaling": {"rope_type": "frobnicate", "factor": 2.0}}),
        ("unknown_old_type", "refuse", "an unknown type under the old key, to be named in the message",
         {**with_theta, "rope_scaling": {"type": "frobnicate", "factor": 2.0}}),
        ("unknown_in_parameters", "refuse", "an unknown type in rope_parameters, to be named in the message",
         {**bare, "rope_parameters": {"rope_type": "frobnicate", "rope_theta": theta}}),
        ("linear_without_factor", "refuse", "linear needs a factor",
         {**with_theta, "rope_scaling": {"rope_type": "linear"}}),
    ]


def write_spellings(root, case):
    """tests/golden/qwen3_moe_base/configs: the spellings, each tried with transformers."""
    folder = root / case.folder
    index = []
    tokens = None
    from safetensors import safe_open
    with safe_open(folder / "expected.safetensors", "pt") as f:
        tokens, logits = f.get_tensor("tokens").tolist(), f.get_tensor("logits")
    for name, expect, note, config in rope_spellings(case.config):
        common.write_json(folder / "configs" / f"{name}.json", config, indent=2)
        with tempfile.TemporaryDirectory() as temp:
            temp = pathlib.Path(temp)
            common.write_json(temp / "config.json", config)
            shutil.copy(folder / "model.safetensors", temp / "model.safetensors")
            try:
                made = trace(load(temp), tokens)["logits"]
                says = "same" if torch.equal(made, logits) else "different values"
            except Exception as error:  # whatever transformers raises is the answer
                says = f"raises {type(error).__name__}"
        if expect == "same" and says != "same":
            raise RuntimeError(f"{name}: transformers says {says}")
        index.append({"file": f"{name}.json", "expect": expect, "transformers": says, "note": note})
    common.write_json(folder / "configs" / "index.json", index)


CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|start|>' + message.role + '\\n' + message.content + '<|end|>' + '\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant\\n' }}{%- endif %}")


def write_tokenizer(folder, config):
    """A byte-level tokenizer that fills the vocabulary of the base model exactly, so that text can be run through it."""
    import sample_text
    import small_bpe

    specials = ["<|pad|>", "<|start|>", "<|end|>", "<|unused|>"]
    words = [small_bpe.to_byte_level(w) for line in sample_text.kjv()[:20000].splitlines() for w in re.findall(" ?[^ ]+", line)]
    merges = config["vocab_size"] - len(specials) - 256
    vocab, rules = small_bpe.train(words, small_bpe.byte_alphabet().values(), merges)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    document = small_bpe.tokenizer_json(specials + vocab, rules, added_tokens=[small_bpe.added(i, t) for i, t in enumerate(specials)],
                                        pre_tokenizer=byte_level, post_processor=byte_level, decoder=byte_level)
    assert len(document["model"]["vocab"]) == config["vocab_size"]
    common.write_json(folder / "tokenizer.json", document)
    common.write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|start|>", "eos_token": "<|end|>", "pad_token": "<|pad|>",
        "add_bos_token": False, "clean_up_tokenization_spaces": False, "model_max_length": 256, "chat_template": CHAT_TEMPLATE})
    common.write_json(folder / "generation_config.json", {
        "bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 0, "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9,
        "transformers_version": "4.51.0"})


def write_case(root, case, seed):
    folder = root / case.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    weights = make_weights(case.config, seed)
    if case.adjust:
        case.adjust(weights, case.config)
    case.write(folder, case.config, weights)


def make(root, only):
    facts, folders, seeds = {}, [], {}
    wanted = [c for c in cases() if only is None or only in c.folder]
    needed = {c.expected_from for c in wanted}
    for case in cases():
        if case not in wanted and not any(c.folder == case.folder for c in wanted) and case.folder not in needed:
            continue
        seed_key = case.seed_name
        start = seeds.get(seed_key)
        first = common.seed_of(seed_key)
        for seed in [start] if start is not None else range(first, first + 400):
            write_case(root, case, seed)
            info = {"what": case.what, "seed": seed}
            tokens = make_tokens(case.config["vocab_size"], case.count, seed)
            if case.refuse:
                info["refuse"] = case.refuse
                good = True
            elif case.expected_from:
                shutil.copy(root / case.expected_from / "expected.safetensors",
                            root / case.folder / "expected.safetensors")
                info["expected_from"] = case.expected_from
                good = True
            else:
                tensors, metadata, numbers, good = expected_of(root / case.folder, tokens, seed)
                common.write_expected(root / case.folder / "expected.safetensors",
                                      {k: v.numpy() for k, v in tensors.items()}, metadata)
                info.update(numbers)
            if good:
                break
        else:
            raise RuntimeError(f"{case.folder}: no seed gives the margins")
        if start is not None and not good:
            raise RuntimeError(f"{case.folder}: shares seed {start} with a sibling, whose margins are too small here")
        seeds[seed_key] = seed
        if case.folder == "qwen3_moe_base":
            write_spellings(root, case)
            write_tokenizer(root / case.folder, case.config)
        facts[case.folder] = info
        folders.append(case.folder)
        print(case.folder, json.dumps(info), flush=True)
    for folder in folders:
        if folder.startswith("qwen3_moe_layout") and folder not in ("qwen3_moe_layout_per_expert",
                                                                    "qwen3_moe_layout_misspelt"):
            check_equal(root / "qwen3_moe_layout_per_expert", root / folder)
    return facts, folders


def check_equal(a, b):
    from safetensors import safe_open
    with safe_open(a / "expected.safetensors", "pt") as fa, safe_open(b / "expected.safetensors", "pt") as fb:
        for key in fa.keys():
            assert torch.equal(fa.get_tensor(key), fb.get_tensor(key)), (b.name, key)


if __name__ == "__main__":
    common.main("qwen3_moe", make, PACKAGES, __doc__)
