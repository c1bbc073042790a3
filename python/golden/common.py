# SPDX-License-Identifier: Apache-2.0
"""What the generators of tests/golden share: paths, seeds, file writing, the manifest, --check."""

import argparse
import filecmp
import hashlib
import importlib.metadata
import json
import os
import pathlib
import shutil
import sys
import tempfile
import zlib

import numpy as np

REPO = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = REPO / "tests" / "golden"

# Absolute tolerance of --check for floats: another CPU may sum in another order.
CHECK_ATOL = 5e-5


def versions(*packages):
    return {p: importlib.metadata.version(p) for p in packages}


def seed_of(name):
    """A seed that depends only on the name of a case."""
    return zlib.crc32(name.encode()) & 0x7FFFFFFF


def rng_of(*key):
    """A generator keyed by integers and strings."""
    parts = [seed_of(k) if isinstance(k, str) else int(k) for k in key]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(parts)))


def write_text(path, text):
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8"))


def write_json(path, value, indent=1):
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, sort_keys=False) + "\n")


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def files_under(root):
    root = pathlib.Path(root)
    return sorted(p for p in root.rglob("*") if p.is_file())


def write_expected(path, tensors, metadata):
    """A safetensors file whose bytes depend on the contents only (the library writes metadata in random order)."""
    header, data = {"__metadata__": dict(sorted(metadata.items()))}, b""
    for name in sorted(tensors):
        value = np.ascontiguousarray(tensors[name])
        dtype = {"float32": "F32", "int32": "I32"}[value.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


# ----------------------------------------------------------------------------------------------------------------------
# manifest.json: {"format", "generators": {name: {"versions", "cases": {folder: facts}, "files": {path: sha256}}}}

def update_manifest(root, generator, package_versions, cases, folders):
    """Replaces what `generator` said about its folders in root/manifest.json."""
    path = root / "manifest.json"
    manifest = json.loads(path.read_text()) if path.exists() else {"format": 1, "generators": {}}
    files = {}
    for folder in sorted(folders):
        target = root / folder
        for p in [target] if target.is_file() else files_under(target):
            files[p.relative_to(root).as_posix()] = sha256(p)
    manifest["generators"][generator] = {"versions": package_versions, "cases": cases, "files": files}
    manifest["generators"] = dict(sorted(manifest["generators"].items()))
    write_json(path, manifest)


# ----------------------------------------------------------------------------------------------------------------------
# --check: make everything again in a temporary folder and compare

def _compare_safetensors(a, b):
    from safetensors import safe_open

    with safe_open(a, "np") as fa, safe_open(b, "np") as fb:
        if set(fa.keys()) != set(fb.keys()):
            return "tensor names differ"
        worst = 0.0
        for key in fa.keys():
            x, y = fa.get_tensor(key), fb.get_tensor(key)
            if x.shape != y.shape or x.dtype != y.dtype:
                return f"{key}: shape or dtype differs"
            if x.dtype.kind in "iu":
                if not np.array_equal(x, y):
                    return f"{key}: integers differ"
            elif x.size:
                worst = max(worst, float(np.abs(x - y).max()))
        return None if worst <= CHECK_ATOL else f"floats differ by {worst:.3g}"


def _compare_json(a, b, path=""):
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return f"{path}: keys differ"
        pairs = [(a[k], b[k], f"{path}.{k}") for k in a]
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"{path}: lengths differ"
        pairs = [(x, y, f"{path}[{i}]") for i, (x, y) in enumerate(zip(a, b))]
    elif isinstance(a, float) and isinstance(b, float):
        close = abs(a - b) <= CHECK_ATOL * max(1.0, abs(a)) or (a != a and b != b)
        return None if close else f"{path}: {a} against {b}"
    else:
        return None if type(a) is type(b) and a == b else f"{path}: values differ"
    for x, y, where in pairs:
        problem = _compare_json(x, y, where)
        if problem:
            return problem
    return None


def compare_folders(made, kept, folders):
    """Lists the differences between two roots, looking at `folders` only."""
    problems, identical, close = [], 0, 0
    for folder in sorted(folders):
        a, b = made / folder, kept / folder
        names = set()
        for root in (a, b):
            if root.is_file():
                names.add("")
            else:
                names |= {p.relative_to(root).as_posix() for p in files_under(root)}
        for name in sorted(names):
            x, y = (a / name, b / name) if name else (a, b)
            label = f"{folder}/{name}" if name else folder
            if not x.exists() or not y.exists():
                problems.append(f"{label}: only in {'the repository' if y.exists() else 'the new run'}")
            elif filecmp.cmp(x, y, shallow=False):
                identical += 1
            else:
                problem = "bytes differ"
                if x.name == "expected.safetensors":
                    problem = _compare_safetensors(x, y)
                elif x.suffix == ".json":
                    problem = _compare_json(json.loads(x.read_text()), json.loads(y.read_text()))
                if problem:
                    problems.append(f"{label}: {problem}")
                else:
                    close += 1
    return problems, identical, close


def main(generator, make, packages, description):
    """Command line of a generator. make(root, only) -> (cases, folders), writing below root."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="regenerate into a temporary folder and compare")
    parser.add_argument("--only", default=None, help="only cases whose folder contains this text (no manifest update)")
    parser.add_argument("--out", default=None, help="write below this folder instead of tests/golden")
    args = parser.parse_args()
    root = pathlib.Path(args.out).resolve() if args.out else GOLDEN
    if args.check:
        temp = pathlib.Path(tempfile.mkdtemp(prefix="golden-check-"))
        try:
            _, folders = make(temp, args.only)
            problems, identical, close = compare_folders(temp, root, folders)
        finally:
            shutil.rmtree(temp, ignore_errors=True)
        for problem in problems:
            print("differs:", problem)
        print(f"{identical} files identical, {close} equal within tolerance, {len(problems)} different")
        sys.exit(1 if problems else 0)
    root.mkdir(parents=True, exist_ok=True)
    cases, folders = make(root, args.only)
    if args.only is None:
        update_manifest(root, generator, versions(*packages), cases, folders)
    total = sum(p.stat().st_size for f in folders for p in ([root / f] if (root / f).is_file() else files_under(root / f)))
    print(f"{len(folders)} folders, {total / 1e6:.2f} MB")


def quiet():
    """No progress bars, no network, one thread: call before importing transformers."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ["RUST_BACKTRACE"] = "0"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
