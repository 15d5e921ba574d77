"""anemone convert beside `cp` and beside coremltools, alternately in one run; prints a Markdown report."""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PASSES = ["--prefill", "64", "--prefill", "256", "--spec-drafts", "16"]


def checkpoint(work: Path, preset: str) -> Path:
    """A random bf16 checkpoint of the preset's shape, made once."""
    out = work / preset
    if not out.exists():
        command = ["cargo", "xtask", "checkpoint", "--preset", preset, "--dtype", "bf16", "--seed", "1", "--out", str(out)]
        tokenizer = ROOT.parent / "shared/tokenizers/lfm2.5"
        if tokenizer.is_dir():
            command += ["--tokenizer", str(tokenizer)]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return out.resolve()


def measured(command: list[str]) -> dict:
    """Wall and CPU seconds and the peak of resident memory (MiB) of a process."""
    start = time.monotonic()
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ])
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(command)}: failed; run it by hand to see why")
    return {"wall": time.monotonic() - start, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss / 1024}


def tree(path: Path) -> dict[str, bytes]:
    """Every file's hash."""
    listing = subprocess.run(["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"], cwd=path, check=True, capture_output=True)
    return dict(reversed(line.split(maxsplit=1)) for line in listing.stdout.decode().splitlines())


def size(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())


def median(samples: list[dict], key: str) -> float:
    return statistics.median(s[key] for s in samples)


def beside_cp(anemone: str, work: Path, preset: str, rounds: int) -> dict:
    """Conversions and copies in turn; the bundles must be byte-identical."""
    source, bundle, copy = checkpoint(work, preset), work / "bundle", work / "copy"
    convert = [anemone, "--quiet", "convert", "--model", str(source), "--out", str(bundle), *PASSES]
    ours, copies, first = [], [], None
    for _ in range(rounds + 1):
        for path in (bundle, copy):
            shutil.rmtree(path, ignore_errors=True)
        # Both write gigabytes: what the one left to be written must not slow the other.
        os.sync()
        ours.append(measured(convert))
        os.sync()
        copies.append(measured(["cp", "-r", str(source), str(copy)]))
        content = tree(bundle)
        if first not in (None, content):
            sys.exit("two conversions differ")
        first = content
    # The first round reads the checkpoint from disk.
    ours, copies = ours[1:], copies[1:]
    weights = (source / "model.safetensors").stat().st_size
    manifest = json.loads((bundle / "manifest.json").read_text())
    rows, width = manifest["tensors"]["model.embed_tokens.weight"]
    shutil.rmtree(copy)
    return {
        "preset": preset,
        "size": size(bundle) / (weights + 2 * rows * width),
        "rss": max(s["rss"] for s in ours),
        "wall": median(ours, "wall"),
        "cp": median(copies, "wall"),
        "ratio": statistics.median(a["wall"] / b["wall"] for a, b in zip(ours, copies)),
        "functions": sorted(manifest["packages"][0]["functions"]),
    }


def killed(anemone: str, work: Path, preset: str, times: int, seconds: float) -> int:
    """Kills conversions at random moments; counts those that left something that loads and is not whole."""
    source, bundle = checkpoint(work, preset), work / "killed"
    loads = 0
    for seed in range(times):
        shutil.rmtree(bundle, ignore_errors=True)
        process = subprocess.Popen([anemone, "--quiet", "convert", "--model", str(source), "--out", str(bundle), *PASSES])
        time.sleep(random.Random(seed).uniform(0.02, 0.9) * seconds)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            print(f"  kill {seed}: it had ended before", file=sys.stderr)
            continue
        unfinished = bundle.with_name(f".{bundle.name}.unfinished")
        for place in (bundle, unfinished):
            inspect = [anemone, "inspect", "--bundle", str(place)]
            opens = lambda *more: subprocess.run([*inspect, *more], capture_output=True).returncode == 0
            # Killed between the rename and its end, a conversion leaves a bundle that is whole.
            loads += place.exists() and opens() and not opens("--verify-hash")
    # The next run clears up what is left.
    measured([anemone, "--quiet", "convert", "--model", str(source), "--out", str(bundle), *PASSES])
    if unfinished.exists():
        sys.exit(f"{unfinished} is still there")
    shutil.rmtree(bundle)
    return loads


def beside_coremltools(anemone: str, work: Path, preset: str, rounds: int, passes: str) -> dict:
    """The same weights as packages by anemone and as one ML program by coremltools."""
    source, bundle, package = checkpoint(work, preset), work / "bundle", work / "peer.mlpackage"
    ours, peer = [], []
    for _ in range(rounds):
        for path in (bundle, package):
            shutil.rmtree(path, ignore_errors=True)
        os.sync()
        ours.append(measured([anemone, "--quiet", "convert", "--model", str(source), "--out", str(bundle), *PASSES]))
        os.sync()
        peer.append(measured([sys.executable, str(HERE / "coremltools_arm.py"), str(source), str(package), passes]))
    peer_bytes = size(package)
    shutil.rmtree(package)
    return {
        "cpu": (median(ours, "cpu"), median(peer, "cpu")),
        "rss": (median(ours, "rss"), median(peer, "rss")),
        "wall": (median(ours, "wall"), median(peer, "wall")),
        "bytes": (size(bundle), peer_bytes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--anemone", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--presets", default="lfm2-350m,lfm3-1.7b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-coremltools", action="store_true")
    parser.add_argument("--passes", choices=["default", "empty"], default="default", help="of coremltools")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    presets = args.presets.split(",")

    print(f"{args.rounds} rounds, medians; {os.cpu_count()} cores; functions: decode, prefill_64, prefill_256, verify_17\n")
    print("| checkpoint | bundle / (fp16 weights + head) | peak RSS, MiB | convert, s | cp, s | convert / cp |\n|---|---|---|---|---|---|")
    for preset in presets:
        row = beside_cp(args.anemone, args.work, preset, args.rounds)
        print(f"| {preset} | {row['size']:.4f} | {row['rss']:.0f} | {row['wall']:.2f} | {row['cp']:.2f} | {row['ratio']:.2f} |", flush=True)
        last = row["wall"]
    loads = killed(args.anemone, args.work, presets[0], 10, last if len(presets) == 1 else 1.0)
    print(f"\nTwo runs of each are byte-identical. Killed at ten random moments, {loads} left something that loads and is not whole.")
    if args.no_coremltools:
        return
    row = beside_coremltools(args.anemone, args.work, presets[0], min(args.rounds, 3), args.passes)
    print(f"\n| {presets[0]} | anemone | coremltools 9.0 | ratio |\n|---|---|---|---|")
    for key, unit, digits in (("cpu", "CPU, s", 2), ("rss", "peak RSS, MiB", 0), ("wall", "wall, s", 2)):
        a, b = row[key]
        print(f"| {unit} | {a:.{digits}f} | {b:.{digits}f} | {b / a:.1f} |")
    print(f"| bytes written | {row['bytes'][0]} | {row['bytes'][1]} | |")


if __name__ == "__main__":
    main()
