#!/usr/bin/env python3
"""Rate of the native engine on palettized bundles beside the same model in fp16, in one alternating run.

Arms run one after the other in every round, each as a process of its own (`anemone bench`), so that what the machine does at the
time falls on all of them. Ratios are of one round; their median and quartiles are shown.
"""

import argparse
import json
import shutil
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FORMATS = {"lut8": 1.8, "lut6": None, "lut4": 2.8}


def run(command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return done.stdout


def measure(binary, model, args, extra=()):
    flags = [*extra, "--pp", args.prefill, "--tg", args.decode, "--repeat", args.repeat, "--threads", args.threads]
    report = json.loads(run([binary, "bench", "-q", "--json", "--model", model, *flags]))
    rates = {test["name"]: test["median"] for test in report["tests"]}
    return {
        "decode": rates[f"tg{args.decode}"],
        "prefill": rates[f"pp{args.prefill}"],
        "bytes": report["bytes_per_token"],
        "rss": report["rss_bytes"],
        "probe": report["bandwidth_gbs"] / report["bandwidth_share"] if report.get("bandwidth_share") else None,
    }


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "anemone")
    parser.add_argument("--model", type=Path, help="fp16 checkpoint [default: a random one of LFM2-350M's shape, made now]")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "palettize")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3, help="measurements of an arm in a round")
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep the models for another run")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    made, model = [], args.model
    if model is None:
        model = args.work / "lfm2-350m-f16"
        if not model.exists():
            run(["cargo", "xtask", "checkpoint", "--preset", "lfm2-350m", "--dtype", "f16", "--out", model])
        made.append(model)
    # The engine keeps fp16 in 12 bits where products round to bf16; in f32 it reads all 16.
    arms = {"f16": model, "f16 --exact": model}
    for name in FORMATS:
        bundle = args.work / f"rate-{name}"
        if not bundle.exists():
            flags = ["--ctx", 256, "--prefill", 64, "--precision", name]
            run([args.binary, "convert", "-q", "--model", model, "--out", bundle, *flags])
        arms[name] = bundle
        made.append(bundle)
    seen = {arm: [] for arm in arms}
    for number in range(args.rounds):
        for arm, path in arms.items():
            seen[arm].append(measure(args.binary, path, args, arm.split()[1:]))
        print(f"round {number + 1} of {args.rounds}", flush=True)
    missed = []
    print("\n| | decode, tok/s | of f16 | bar | of f16 --exact | prefill, tok/s | of f16 | MB read a token | resident, MiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for arm in arms:
        middle = {key: statistics.median(r[key] for r in seen[arm]) for key in ("decode", "prefill", "bytes", "rss")}
        ratio = {
            key: [own[key] / base[key] for own, base in zip(seen[arm], seen["f16"])] for key in ("decode", "prefill")
        }
        stored = [own["decode"] / base["decode"] for own, base in zip(seen[arm], seen["f16 --exact"])]
        bar = FORMATS.get(arm)
        if bar and statistics.median(ratio["decode"]) < bar:
            missed.append(f"{arm} decodes at {statistics.median(ratio['decode']):.2f} of f16, {bar} is asked for")
        print(
            f"| {arm} | {middle['decode']:.1f} | {quartiles(ratio['decode'])} | {bar or ''} | {quartiles(stored)} | {middle['prefill']:.0f} | "
            f"{quartiles(ratio['prefill'])} | {middle['bytes'] / 1e6:.0f} | {middle['rss'] / 2**20:.0f} |"
        )
    probes = [r["probe"] for runs in seen.values() for r in runs if r["probe"]]
    if probes:
        print(f"\nbandwidth probe, GB/s: {quartiles(probes)}")
    (args.work / "rate.json").write_text(json.dumps(seen, indent=1))
    if not args.keep:
        for path in made:
            shutil.rmtree(path, ignore_errors=True)
    for line in missed:
        print("missed:", line)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
