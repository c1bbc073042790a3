#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Intermediate tensors of a Hugging Face transformers model, in the file format of `pointsman trace`.

    python pointsman_trace.py MODEL --tokens 1,2,3 --out reference.safetensors
    python pointsman_trace.py MODEL -p "In the beginning" --what all --layers 0-3 --positions 0-63 --out reference.safetensors
    pointsman compare ours.safetensors reference.safetensors

The model is observed, not changed: module hooks, a wrapper around the attention function that records its arguments, and a torch
function mode that sees the matrix products of fused experts. Every tensor goes to disk when it appears; memory does not grow with
the number of layers. Names and shapes: docs/formats/trace.md. Points that a model does not have are absent from the file.
"""

import argparse
import json
import os
import re
import shutil
import struct
import sys
import tempfile

import torch
from torch.overrides import TorchFunctionMode

WHAT = ("logits", "router", "hidden", "embedding", "attention", "mlp", "experts", "norm")
DEFAULT_WHAT = "logits,router,hidden"


def parse_ranges(text):
    """'0,3,8-11' -> {0, 3, 8, 9, 10, 11}; None means everything."""
    if text is None:
        return None
    chosen = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if not match:
            raise ValueError(f"'{part}': expected numbers and ranges like 0,3,8-11")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"'{part}': the range ends before it begins")
        chosen.update(range(first, last + 1))
    return chosen


class StreamedSafetensors:
    """Appends tensors to a spool file; the header, which must come first, is written when all of them are known."""

    def __init__(self, path):
        self.path, self.entries, self.size = path, {}, 0
        folder = os.path.dirname(os.path.abspath(path))
        self.spool = tempfile.NamedTemporaryFile(dir=folder, prefix=".pointsman-trace-", delete=True)

    def add(self, name, tensor):
        if name in self.entries:
            raise RuntimeError(f"{name} came twice: one forward pass is one trace")
        dtype = {torch.float32: "F32", torch.int32: "I32"}[tensor.dtype]
        data = tensor.contiguous().cpu().numpy().tobytes()
        self.spool.write(data)
        self.entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [self.size, self.size + len(data)]}
        self.size += len(data)

    def commit(self, metadata):
        self.spool.flush()
        header = json.dumps({"__metadata__": metadata, **self.entries}).encode()
        header += b" " * (-len(header) % 8)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(self.path)), delete=False) as out:
            try:
                out.write(struct.pack("<Q", len(header)))
                out.write(header)
                self.spool.seek(0)
                shutil.copyfileobj(self.spool, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
                os.replace(out.name, self.path)
            except BaseException:
                os.unlink(out.name)
                raise
        self.spool.close()


class ExpertProducts(TorchFunctionMode):
    """Sees the matrix products inside a fused experts module, and tells which expert's slice a weight is."""

    def __init__(self, module, seen):
        super().__init__()
        self.seen = seen
        self.ranges = []
        for kind, parameter in (("gate_up", getattr(module, "gate_up_proj", None)), ("down", getattr(module, "down_proj", None))):
            if isinstance(parameter, torch.Tensor) and parameter.dim() == 3:
                step = parameter.stride(0) * parameter.element_size()
                self.ranges.append((kind, parameter.data_ptr(), step, parameter.shape[0]))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.nn.functional.linear and len(args) >= 2:
            at = args[1].data_ptr()
            for kind, base, step, count in self.ranges:
                if base <= at < base + step * count:
                    self.seen(kind, (at - base) // step, args[0], out)
        return out


class Tracer:
    """Records one forward pass:  with Tracer(model, path, what) as t: model(input_ids=ids); t.finish(ids)."""

    def __init__(self, model, path, what, layers=None, positions=None):
        self.model, self.what, self.layers, self.positions = model, what, layers, positions
        self.file = StreamedSafetensors(path)
        self.hooks, self.undo, self.modes = [], [], {}
        self.routes, self.slots = {}, {}

    # --- writing ---
    def put(self, name, tensor, integer=False):
        """`tensor`: [tokens, ...]."""
        if self.positions is not None:
            tensor = tensor[[p for p in sorted(self.positions) if p < tensor.shape[0]]]
        self.file.add(name, tensor.detach().to(torch.int32 if integer else torch.float32))

    def first(self, tensor):
        if tensor.shape[0] != 1:
            raise RuntimeError(f"a batch of {tensor.shape[0]}: one sequence is one trace")
        return tensor[0]

    # --- where things are ---
    def decoder(self):
        for name in ("model", "transformer"):
            inner = getattr(self.model, name, None)
            if inner is not None and hasattr(inner, "layers"):
                return inner
        raise RuntimeError(f"{type(self.model).__name__}: no decoder with layers was found")

    def __enter__(self):
        decoder = self.decoder()
        if "embedding" in self.what:
            self.on_output(decoder.embed_tokens, "embedding")
        for i, layer in enumerate(decoder.layers):
            if self.layers is None or i in self.layers:
                self.watch_layer(i, layer)
        if "norm" in self.what:
            self.on_output(decoder.norm, "final_norm")
        return self

    def on_output(self, module, name):
        def hook(_module, _inputs, output):
            self.put(name, self.first(output[0] if isinstance(output, tuple) else output))
        self.hooks.append(module.register_forward_hook(hook))

    def on_input(self, module, name):
        def hook(_module, inputs, kwargs):
            self.put(name, self.first(inputs[0] if inputs else kwargs["hidden_states"]))
        self.hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def watch_layer(self, i, layer):
        at = f"layers.{i}."
        attention = getattr(layer, "self_attn", None)
        if "attention" in self.what and attention is not None:
            if hasattr(layer, "input_layernorm"):
                self.on_output(layer.input_layernorm, at + "attention.input")
            for short in ("q", "k", "v"):
                if hasattr(attention, short + "_proj"):
                    self.on_output(getattr(attention, short + "_proj"), f"{at}attention.{short}")
            self.watch_attention_function(i, attention)
            if hasattr(attention, "o_proj"):
                self.on_input(attention.o_proj, at + "attention.context")
            if hasattr(layer, "post_attention_layernorm"):
                self.on_input(layer.post_attention_layernorm, at + "attention.residual")
        if "mlp" in self.what and hasattr(layer, "post_attention_layernorm"):
            self.on_output(layer.post_attention_layernorm, at + "mlp.input")
        gate, experts = getattr(layer.mlp, "gate", None), getattr(layer.mlp, "experts", None)
        if gate is not None and "router" in self.what:
            self.watch_router(at, gate)
        if experts is not None and "experts" in self.what:
            self.watch_experts(at, experts)
        if "hidden" in self.what:
            self.on_output(layer, at + "hidden")

    def watch_attention_function(self, i, attention):
        """Queries and keys after norm and rotation are arguments of the attention function, not outputs of a module."""
        module = sys.modules[type(attention).__module__]
        original = getattr(module, "eager_attention_forward", None)
        if original is None or getattr(attention.config, "_attn_implementation", "eager") != "eager":
            return
        if not hasattr(original, "pointsman_layers"):
            def recording(this, query, key, *args, **kwargs):
                at = recording.pointsman_layers.get(this)
                if at is not None:
                    for name, heads in (("q_rotated", query), ("k_rotated", key)):
                        rows = self.first(heads).transpose(0, 1)  # [tokens, heads, head_dim]
                        self.put(f"layers.{at}.attention.{name}", rows.reshape(rows.shape[0], -1))
                return original(this, query, key, *args, **kwargs)
            recording.pointsman_layers = {}
            module.eager_attention_forward = recording
            self.undo.append(lambda: setattr(module, "eager_attention_forward", original))
        module.eager_attention_forward.pointsman_layers[attention] = i

    def watch_router(self, at, gate):
        def hook(_module, _inputs, output):
            if not (isinstance(output, tuple) and len(output) == 3):
                raise RuntimeError(f"{type(gate).__name__}: expected logits, weights and ids; this kind of gate is not known")
            logits, weights, ids = output
            self.put(at + "router.logits", logits)
            self.put(at + "router.ids", ids, integer=True)
            self.put(at + "router.weights", weights)
        self.hooks.append(gate.register_forward_hook(hook))

    def watch_experts(self, at, experts):
        def before(module, inputs, kwargs):
            ids = inputs[1] if len(inputs) > 1 else kwargs["top_k_index"]
            x = inputs[0] if inputs else kwargs["hidden_states"]
            rows = {}

            def seen(kind, expert, product_in, product_out):
                # The module gathers an expert's tokens rank by rank; that the gathered rows are these is checked, not assumed.
                rank, token = torch.where((ids == expert).T)
                if kind == "gate_up" and not torch.allclose(x[token], product_in, rtol=0, atol=0, equal_nan=True):
                    raise RuntimeError(f"{at}experts: rows of expert {expert} are in an order that is not known")
                parts = {"gate": product_out.chunk(2, -1)[0], "up": product_out.chunk(2, -1)[1]} if kind == "gate_up" else \
                    {"act": product_in, "output": product_out}
                for name, value in parts.items():
                    if name not in rows:
                        rows[name] = torch.zeros(*ids.shape, value.shape[-1], dtype=value.dtype, device=value.device)
                    rows[name][token, rank] = value
            mode = ExpertProducts(module, seen)
            self.modes[at] = (mode, rows)
            mode.__enter__()

        def after(_module, _inputs, _output):
            mode, rows = self.modes.pop(at)
            mode.__exit__(None, None, None)
            for name, value in sorted(rows.items()):
                self.put(f"{at}experts.{name}", value)
        self.hooks.append(experts.register_forward_pre_hook(before, with_kwargs=True))
        self.hooks.append(experts.register_forward_hook(after))

    def __exit__(self, kind, value, traceback):
        for hook in self.hooks:
            hook.remove()
        for undo in self.undo:
            undo()
        for mode, _ in self.modes.values():
            mode.__exit__(kind, value, traceback)
        if kind is not None:
            self.file.spool.close()
        return False

    def finish(self, tokens, logits=None, metadata=None):
        """Writes the file; `logits`: [tokens, vocab]."""
        if logits is not None and "logits" in self.what:
            self.put("logits", logits)
        config = self.model.config
        parameter = next(self.model.parameters())
        facts = {
            "format": "pointsman-trace", "format_version": "1", "version": "transformers",
            "model_type": str(config.model_type), "model_digest": "",
            "numerics": {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}.get(parameter.dtype, str(parameter.dtype)),
            "device": str(parameter.device), "tokens": ",".join(str(t) for t in tokens),
        }
        if self.positions is not None:
            facts["positions"] = ",".join(str(p) for p in sorted(self.positions) if p < len(tokens))
        self.file.commit({**facts, **(metadata or {})})


@torch.no_grad()
def trace(model, tokens, path, what=WHAT, layers=None, positions=None, metadata=None):
    ids = torch.tensor([tokens], device=next(model.parameters()).device)
    with Tracer(model, path, what, layers, positions) as tracer:
        logits = model(input_ids=ids, use_cache=False).logits[0]
    tracer.finish(tokens, logits, metadata)
    return tracer.file.entries


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="Hugging Face model folder")
    parser.add_argument("-p", "--prompt", help="prompt text")
    parser.add_argument("--tokens", help="prompt as token ids: 1,2,3")
    parser.add_argument("-o", "--out", required=True, help="file to write (.safetensors)")
    parser.add_argument("--what", default=DEFAULT_WHAT, help=f"a list of {', '.join(WHAT)}; or all (default: {DEFAULT_WHAT})")
    parser.add_argument("--layers", help="layers to record: 0,3,8-11 (default: all)")
    parser.add_argument("--positions", help="positions to record, in the same form (default: all)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    what = set(WHAT) if args.what == "all" else set(args.what.split(","))
    if what - set(WHAT):
        parser.error(f"--what: {', '.join(sorted(what - set(WHAT)))} is not among {', '.join(WHAT)}, all")
    if (args.prompt is None) == (args.tokens is None):
        parser.error("give either -p TEXT or --tokens 1,2,3")
    try:
        layers, positions = parse_ranges(args.layers), parse_ranges(args.positions)
    except ValueError as e:
        parser.error(str(e))
    import transformers
    options = {"attn_implementation": "eager", "trust_remote_code": False}
    if "experts" in what:
        options["experts_implementation"] = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype), **options)
    model = model.to(args.device).eval()
    if args.tokens is not None:
        tokens = [int(t) for t in args.tokens.split(",")]
    else:
        tokens = transformers.AutoTokenizer.from_pretrained(args.model)(args.prompt)["input_ids"]
    entries = trace(model, tokens, args.out, what, layers, positions, {"transformers": transformers.__version__, "torch": torch.__version__})
    print(f"{args.out}: {len(entries)} tensors of {len(tokens)} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
