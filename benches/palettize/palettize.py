"""anemone's tables beside those of coremltools: error and CPU seconds on the same weights in one run; prints a Markdown report.

Exits 1 when a target is missed: the exact mode's error equal to the k-means optimum within 1e-6 and at least 5 times less CPU, the
fast mode's error at most 1.01 of the exact one's and, for 8 bits and groups of 32, at least 100 times less CPU.
"""
import argparse
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

os.environ["TQDM_DISABLE"] = "1"
warnings.filterwarnings("ignore")

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ASSETS = ROOT / "crates/anemone/assets"


def cpu() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def load(path: Path) -> dict:
    """Matrices of a safetensors file, as fp16."""
    import numpy as np

    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start, found = file.tell(), {}
        for name, entry in header.items():
            if name == "__metadata__" or len(entry["shape"]) != 2:
                continue
            file.seek(start + entry["data_offsets"][0])
            raw = file.read(entry["data_offsets"][1] - entry["data_offsets"][0])
            if entry["dtype"] == "BF16":
                values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                values = np.frombuffer(raw, {"F16": np.float16, "F32": np.float32}[entry["dtype"]])
            found[name] = values.reshape(entry["shape"]).astype(np.float16)
    return found


def matrices() -> list:
    """Name, weights, and a group size that is as near to 32 as coremltools' own optimal k-means takes (10,000 weights and more)."""
    import numpy as np

    normal = (np.random.default_rng(0).standard_normal((1024, 1024)) * 0.02).astype(np.float16)
    stories, laya = load(ASSETS / "stories-lfm2/model.safetensors"), load(ASSETS / "laya-demo/model.safetensors")

    def stack(tensors, columns, rows=2048):
        fits = [w for n, w in tensors.items() if w.shape[1] == columns and w.shape[0] % 64 == 0 and w.shape[0] < 1000]
        return np.concatenate(fits)[:rows]

    return [
        ("normal", normal, 32),
        ("stories-lfm2, 512 columns", stack(stories, 512, 1536), 32),
        ("stories-lfm2, 192 columns", stack(stories, 192), 64),
        ("laya-demo, 192 columns", stack(laya, 192), 64),
    ]


def coremltools(weights, bits: int, group: int) -> tuple:
    """CPU seconds and what the palettized weight decodes to."""
    import coremltools as ct
    import coremltools.optimize.coreml as cto
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.frontend.milproto.load import load as mil_load
    from coremltools.converters.mil.mil import types

    rows, columns = weights.shape
    kernel = weights.reshape(rows, columns, 1, 1)

    @mb.program(input_specs=[mb.TensorSpec((1, columns, 1, 8), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def prog(x):
        return mb.conv(x=x, weight=kernel)

    model = ct.convert(prog, minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT16,
                       skip_model_load=True, pass_pipeline=ct.PassPipeline.EMPTY)
    how = {"granularity": "per_grouped_channel", "group_size": group} if group else {}
    config = cto.OpPalettizerConfig(mode="kmeans", nbits=bits, weight_threshold=100, **how)
    start = cpu()
    small = cto.palettize_weights(model, cto.OptimizationConfig(global_config=config))
    seconds = cpu() - start
    spec = small.get_spec()
    program = mil_load(spec, spec.specificationVersion, small.weights_dir)
    ops = [op for op in program.functions["main"].operations if op.op_type == "constexpr_lut_to_dense"]
    return seconds, ops[0].materialized_val_inference().reshape(rows, columns)


def optimum(weights, bits: int, group: int) -> float:
    """Squared error of coremltools' k-means before its centroids are rounded."""
    import numpy as np
    from coremltools._deps import _kmeans1d

    total = 0.0
    for part in np.split(weights, weights.shape[0] // (group or weights.shape[0])):
        values, counts = np.unique(part, return_counts=True)
        found = _kmeans1d.cluster(values, min(len(values), 1 << bits), weights=counts)
        centroids = np.asarray(found.centroids, np.float64)[np.asarray(found.clusters)]
        total += float(np.sum(counts * (values.astype(np.float64) - centroids) ** 2))
    return total


def squared(weights, decoded) -> float:
    import numpy as np

    return float(np.sum((weights.astype(np.float64) - decoded.astype(np.float64)) ** 2))


def ours(raw: str, work: Path, weights, bits: int, group: int, method: str) -> dict:
    """CPU seconds, the reported error before rounding and what the tables decode to."""
    import numpy as np

    source, decoded = work / "weights.f16", work / "decoded.f16"
    weights.tofile(source)
    rows, columns = weights.shape
    command = [raw, source, str(rows), str(columns), str(bits), str(group), method, decoded]
    said = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    said["decoded"] = squared(weights, np.fromfile(decoded, np.float16).reshape(rows, columns))
    if abs(said["decoded"] - said["squared"]) > 1e-9 * said["squared"]:
        sys.exit(f"{command}: says an error of {said['squared']}, its tables have {said['decoded']}")
    return said


def beside_coremltools(args) -> list:
    print("| weights | bits | group | coremltools | exact | fast | CPU ratio exact | fast | optimum off by | error exact / coremltools | fast / exact |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    missed = []
    for name, weights, near in matrices():
        for group in (near, 0):
            for bits in args.bits:
                seconds, decoded = coremltools(weights, bits, group)
                best, theirs = optimum(weights, bits, group), squared(weights, decoded)
                exact, fast = (ours(args.raw, args.work, weights, bits, group, m) for m in ("exact", "fast"))
                millions = weights.size / 1e6
                ratios = [seconds / found["cpu_seconds"] for found in (exact, fast)]
                off = abs(exact["unrounded"] - best) / best if best > 0 else exact["unrounded"]
                lost = fast["decoded"] / exact["decoded"]
                print(f"| {name} | {bits} | {group or 'tensor'} | {seconds / millions:.2f} | {exact['cpu_seconds'] / millions:.3f} | "
                      f"{fast['cpu_seconds'] / millions:.3f} | {ratios[0]:.0f} | {ratios[1]:.0f} | {off:.1e} | "
                      f"{exact['decoded'] / theirs:.6f} | {lost:.5f} |", flush=True)
                case = f"{name}, {bits} bits, group {group or 'tensor'}"
                fine = [off <= 1e-6, exact["decoded"] <= theirs * (1 + 1e-6), lost <= 1.01, ratios[0] >= 5]
                if bits == 8 and group == 32:
                    fine.append(ratios[1] >= 100)
                if not all(fine):
                    missed.append(f"{case}: {fine}")
    return missed


def measured(command: list) -> dict:
    start = time.monotonic()
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=quiet)
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: failed; run it by hand to see why")
    return {"wall": time.monotonic() - start, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024}


def large(args) -> list:
    """A random checkpoint of 1.7 billion weights to a bundle, and that to 8-bit tables for 32 channels."""
    checkpoint, bundle, small, direct = (args.work / n for n in ("lfm3-1.7b", "fp16.bundle", "lut8.bundle", "direct.bundle"))
    for path in (bundle, small, direct):
        shutil.rmtree(path, ignore_errors=True)
    if not checkpoint.exists():
        command = ["cargo", "xtask", "checkpoint", "--preset", "lfm3-1.7b", "--dtype", "bf16", "--seed", "1", "--out", str(checkpoint)]
        tokenizer = ROOT.parent / "shared/tokenizers/lfm2.5"
        if tokenizer.is_dir():
            command += ["--tokenizer", str(tokenizer)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    convert = [args.anemone, "convert", "--model", str(checkpoint), "--prefill", "64", "--out"]
    subprocess.run([*convert, str(bundle)], check=True, stdout=subprocess.DEVNULL)
    tables = ["--precision", "lut8", "--group", "32"]
    print("\n| 1.7 B weights to lut8, group 32, fast | wall, s | CPU, s | peak RSS, MiB |\n|---|---|---|---|")
    missed = []
    for name, command in [
        ("palettize, bundle to bundle", [args.anemone, "palettize", "--bundle", str(bundle), "--out", str(small), *tables]),
        ("convert --precision", [*convert, str(direct), *tables]),
    ]:
        took = measured(command)
        print(f"| {name} | {took['wall']:.1f} | {took['cpu']:.1f} | {took['rss']:.0f} |", flush=True)
        if took["wall"] > 180 or took["rss"] > 600:
            missed.append(f"{name}: {took}")
    hashes = [[p["hash"] for p in json.loads((b / "manifest.json").read_text())["packages"]] for b in (small, direct)]
    print(f"\nThe packages of both are {'byte-identical' if hashes[0] == hashes[1] else 'DIFFERENT'}.")
    if hashes[0] != hashes[1]:
        missed.append("the two ways give different packages")
    for path in (checkpoint, bundle, small, direct):
        shutil.rmtree(path, ignore_errors=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--anemone", required=True)
    parser.add_argument("--raw", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 6, 4])
    parser.add_argument("--only", choices=["coremltools", "large"])
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    missed = []
    if args.only != "large":
        missed += beside_coremltools(args)
    if args.only != "coremltools":
        missed += large(args)
    for line in missed:
        print(f"missed: {line}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
