#!/usr/bin/env python3
"""What speculation and company bring, in alternating runs of `anemone run` and `anemone bench`.

Ratios are of one round; their median and quartiles are shown. It exits 1 when a target is missed.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A sentence the built-in model goes on repeating.
COPY = "lily had a red ball and a blue car and a big doll. " * 4
WAYS = {"plain": [], "auto": ["--spec", "auto"], "ngram": ["--spec-ngram", "--spec-n", "6", "--spec-m", "16"]}


def run(command):
    return json.loads(subprocess.run([str(p) for p in command], stdout=subprocess.PIPE, check=True).stdout)


def generate(binary, args, way, more):
    flags = ["--json", "-q", "--ignore-eos", "--threads", args.threads, *more, *WAYS[way]]
    report = run([binary, "run", *flags])
    drafts = report.get("speculation") or {"drafted": 0, "accepted": 0, "tokens_per_pass": 1.0}
    return report["timings"]["decode_tokens_per_second"], report["token_ids"], drafts


def quartiles(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def workload(binary, args, name, more, targets):
    """A row for each way, and the targets that were missed."""
    seen = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way in WAYS:
            seen[way].append(generate(binary, args, way, more))
    tokens = seen["plain"][0][1]
    missed = []
    for way, runs in seen.items():
        if any(run[1] != tokens for run in runs):
            missed.append(f"{name}, {way}: other tokens than without drafts")
        drafts = runs[0][2]
        acceptance = drafts["accepted"] / drafts["drafted"] if drafts["drafted"] else 0.0
        ratios = [run[0] / plain[0] for run, plain in zip(runs, seen["plain"])]
        print(
            f"| {name} | {way} | {statistics.median(r[0] for r in runs):.0f} | {quartiles(ratios)} | "
            f"{drafts['accepted']} of {drafts['drafted']} | {drafts['tokens_per_pass']:.2f} |"
        )
        target = targets.get(way)
        if target and statistics.median(ratios) < target[0]:
            missed.append(f"{name}, {way}: {statistics.median(ratios):.2f} of plain, asked for {target[0]}")
        if target and acceptance < target[1]:
            missed.append(f"{name}, {way}: acceptance {acceptance:.2f}, asked for {target[1]}")
    return missed


def shape(binary, args):
    """Verification and company on a model of LFM2-350M's shape."""
    model = args.model or args.work / "lfm2-350m-f16"
    if not model.exists():
        args.work.mkdir(parents=True, exist_ok=True)
        made = ["cargo", "xtask", "checkpoint", "--preset", "lfm2-350m", "--dtype", "f16", "--out", model]
        subprocess.run([str(p) for p in made], check=True)
    verify, company = [], []
    for _ in range(args.rounds):
        tests = ["--pp", 0, "--tg", 32, "--vf", 17, "--batch", 16, "--repeat", 3, "--probe-mib", 0]
        report = run([binary, "bench", "-q", "--json", "--model", model, "--threads", args.threads, *tests])
        rate = {test["name"]: test["median"] for test in report["tests"]}
        verify.append(17 / rate["vf17"] * rate["tg32"])
        company.append(rate["bt16"] / rate["tg32"])
    print("\n| LFM2-350M's shape, f16 | of one decode | asked for |\n|---|---|---|")
    print(f"| 17 tokens verified in one pass | {quartiles(verify)} | 1.6 at most |")
    print(f"| 16 sequences together, tokens a second | {quartiles(company)} | 3 at least |")
    missed = []
    if statistics.median(verify) > 1.6:
        missed.append(f"verification of 17 tokens: {statistics.median(verify):.2f} of one decode, asked for 1.6")
    if statistics.median(company) < 3:
        missed.append(f"16 sequences: {statistics.median(company):.2f}, asked for 3")
    if args.model is None and not args.keep:
        shutil.rmtree(model)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=Path, default=ROOT / "target" / "release" / "anemone")
    parser.add_argument("--model", type=Path, help="checkpoint of the larger shape [default: a random one, made now]")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "sessions")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="keep the random checkpoint for another run")
    parser.add_argument("--only", choices=["copy", "novel", "shape"], help="one part of it")
    args = parser.parse_args()
    missed = []
    if args.only in (None, "copy", "novel"):
        print("| workload | drafts | decode, tok/s | of plain | accepted | tokens a pass |\n|---|---|---|---|---|---|")
    if args.only in (None, "copy"):
        more = ["--greedy", "--repetition-penalty", 1, "-n", 500, "--prompt", COPY]
        missed += workload(args.binary, args, "copy", more, {"auto": (2.5, 0.85)})
    if args.only in (None, "novel"):
        more = ["--temperature", 1, "--seed", 3, "-n", 1500, "--prompt", "once upon a time"]
        missed += workload(args.binary, args, "novel", more, {"auto": (0.97, 0.0)})
    if args.only in (None, "shape"):
        missed += shape(args.binary, args)
    for line in missed:
        print(f"missed: {line}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
