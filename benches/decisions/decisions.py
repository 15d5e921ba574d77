"""anemone, onnxruntime and openvino on the same decision model, alternately.

Start it through run.sh, which makes the Python environment. Everything made on the way goes to target/decisions.
"""

import argparse
import json
import statistics
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))

import machine  # noqa: E402
import stats  # noqa: E402

# Rows of a call, and calls a round.
CASES = {
    "96": ([96], 9),
    "1024": ([1024], 3),
    "mixed": ([24 + row * 104 // 31 for row in range(32)], 1),
}
# Numerators and denominator of a ratio (the faster of several peers counts), and what the project holds itself to.
RATIOS = [
    ("f32, 96 tokens", "96", ["onnxruntime-f32", "openvino-f32"], "anemone-f32", ">= 1.0"),
    ("f32, 1024 tokens", "1024", ["onnxruntime-f32", "openvino-f32"], "anemone-f32", ">= 1.3"),
    ("bf16, 96 tokens", "96", ["openvino-bf16"], "anemone-bf16", ">= 0.9"),
    ("bf16, 1024 tokens", "1024", ["openvino-bf16"], "anemone-bf16", ">= 1.2"),
    ("f32, 32 rows of 24 to 128 tokens, beside padded onnxruntime", "mixed", ["onnxruntime-f32"], "anemone-f32", ">= 1.5"),
]
# Both sides compute the same f32 sums in another order; bf16 keeps 8 bits of every activation.
AGREEMENT = {"f32": 1e-4, "bf16": 0.1}


class Arm:
    """A process that answers lines of row lengths with seconds and logits."""

    def __init__(self, name: str, command: list[str]):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"{name} did not start: {' '.join(command)}")

    def ask(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.name} ended at {line!r}")
        return answer

    def score(self, lengths: list[int]) -> tuple[float, list[float]]:
        seconds, logits = self.ask(",".join(map(str, lengths))).split()
        return float(seconds), [float(v) for v in logits.split(",")]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="times each arm runs each case")
    parser.add_argument("--cases", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quiet-wait", type=float, default=30, help="most seconds to wait for other processes before a round")
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "crates/anemone/assets/laya-demo/tokenizer", help="put beside the random weights; it plays no part in the measurement")
    parser.add_argument("--arm", type=Path, help="anemone's arm [default: built now]")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "decisions")
    parser.add_argument("--out", type=Path, help="JSON result [default: WORK/decisions.json]")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads: give at least 1")
    if unknown := set(options.cases.split(",")) - set(CASES):
        parser.error(f"--cases: {min(unknown)!r} is unknown; give some of {', '.join(CASES)}")
    return options


def prepare(options: argparse.Namespace) -> tuple[Path, Path, Path]:
    """The checkpoint, its ONNX twin and anemone's arm, made if absent."""
    options.work.mkdir(parents=True, exist_ok=True)
    checkpoint, graph = options.work / "mmbert-base", options.work / "mmbert-base.onnx"
    if not (checkpoint / "model.safetensors").exists():
        subprocess.run([sys.executable, HERE / "checkpoint.py", checkpoint, options.tokenizer], check=True)
    if not graph.exists():
        subprocess.run([sys.executable, HERE / "to_onnx.py", checkpoint, graph], check=True)
    arm = options.arm
    if arm is None:
        build = ["cargo", "build", "--release", "--locked", "-p", "anemone-cpu", "--example", "decision_rate"]
        subprocess.run(build, check=True, cwd=ROOT)
        arm = ROOT / "target/release/examples/decision_rate"
    return checkpoint, graph, arm


def agree(arms: dict[str, Arm], cases: list[str]) -> dict[str, float]:
    """Runs each case once on every arm, uncounted, and compares the logits with onnxruntime's."""
    worst = {}
    for case in cases:
        lengths = CASES[case][0]
        expected = arms["onnxruntime-f32"].score(lengths)[1]
        for name, arm in arms.items():
            found = arm.score(lengths)[1]
            off = max(abs(a - b) for a, b in zip(found, expected, strict=True))
            if not off <= AGREEMENT[name.split("-")[1]]:
                raise SystemExit(f"{name} is {off} away from onnxruntime on case {case}: not the same model")
            worst[name] = max(worst.get(name, 0.0), off)
    return worst


def main() -> None:
    options = parse()
    cases = options.cases.split(",")
    checkpoint, graph, arm = prepare(options)
    threads = str(options.threads)
    peer = [sys.executable, str(HERE / "arms.py")]
    arms = {
        "anemone-f32": Arm("anemone-f32", [str(arm), str(checkpoint), threads]),
        "onnxruntime-f32": Arm("onnxruntime-f32", [*peer, "onnxruntime", "f32", str(graph), threads]),
        "openvino-f32": Arm("openvino-f32", [*peer, "openvino", "f32", str(graph), threads]),
        "anemone-bf16": Arm("anemone-bf16", [str(arm), str(checkpoint), threads, "bf16"]),
        "openvino-bf16": Arm("openvino-bf16", [*peer, "openvino", "bf16", str(graph), threads]),
    }
    worst = agree(arms, cases)
    samples = {case: {name: [] for name in arms} for case in cases}
    others = []
    for round_ in range(options.rounds):
        for case in cases:
            lengths, calls = CASES[case]
            others.append(machine.wait_for_quiet(options.quiet_wait))
            for name, each in arms.items():
                if case == "mixed" and name != "anemone-f32" and name != "onnxruntime-f32":
                    continue
                samples[case][name].append([each.score(lengths)[0] for _ in range(calls)])
        print(f"round {round_ + 1} of {options.rounds}", file=sys.stderr, flush=True)
    memory = {name: int(each.ask("memory")) for name, each in arms.items()}
    for each in arms.values():
        each.close()
    report(options, samples, memory, worst, others)


def report(options, samples, memory, worst, others) -> None:
    p50 = {c: {n: [statistics.median(r) for r in rounds] for n, rounds in arms.items() if rounds} for c, arms in samples.items()}
    print("| | anemone ms | peer ms | ratio | quartiles | bar |\n|---|---|---|---|---|---|")
    ratios = {}
    for label, case, peers, ours, bar in RATIOS:
        if case not in p50:
            continue
        theirs = [min(values) for values in zip(*(p50[case][peer] for peer in peers))]
        ratio = ratios[label] = stats.ratios(theirs, p50[case][ours])
        ms = [1000 * statistics.median(v) for v in (p50[case][ours], theirs)]
        print(f"| {label} | {ms[0]:.1f} | {ms[1]:.1f} | {ratio['median']:.2f} | {ratio['q1']:.2f} to {ratio['q3']:.2f} | {bar} |")
    print("\n| resident after all cases | MiB |\n|---|---|")
    for name, kib in memory.items():
        print(f"| {name} | {kib // 1024} |")
    result = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": {name: metadata.version(name) for name in ("onnxruntime", "openvino", "onnx", "numpy")},
        "threads": options.threads,
        "cases": {case: CASES[case][0] for case in samples},
        "seconds": samples,
        "ratios": ratios,
        "resident_kib": memory,
        "logits_away_from_onnxruntime": worst,
        "cores_used_by_others": others,
    }
    (options.out or options.work / "decisions.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
