"""anemone and llama.cpp on the same weights, alternately, with a bandwidth probe between every two arms.

Start it through run.sh, which makes the Python environment. Everything made on the way goes to target/peers.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import sysconfig
import time
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import agreement
import machine
import report
import stats
from arms import Anemone, ArmError, Llama, Setting, call, compile_tools, probe
from safetensors_map import read_checkpoint, weight_files
from to_gguf import convert

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT.parent / "shared" / "tokenizers" / "lfm2.5"
# What the project holds itself to, by weight type and ratio.
BARS = {
    "f16": {"tg64": ">= 1.2, goal 1.5", "pp512": ">= 1.5", "first token, process": "<= 1.0"},
    "bf16": {"tg64": ">= 1.2, goal 1.5", "pp512": ">= 1.15", "first token, process": "<= 1.0"},
}

# Formats made of the f16 twin by llama.cpp's own quantizer, with the number it knows them by. With `-plain` llama.cpp keeps the
# weights as the file has them, which for some formats is its faster way to prefill.
CODED = {"q8_0": 7, "q6_k": 18, "q5_k_m": 17, "q4_k_m": 15, "q4_k_m-plain": 15, "q4_1": 3, "q4_0": 2}
BARS |= {
    "q8_0": {"tg64": ">= 1.6, goal 2.4", "pp512": ">= 2.0"},
    "q4_0": {"tg64": ">= 1.6, goal 2.0", "pp512": ">= 2.0"},
    "q6_k": {"pp512": ">= 1.4"},
    "q4_k_m-plain": {"pp512": ">= 1.4"},
}

# How far the fastest probe around a pair may be from the slowest.
STEADY = 1.25


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--dtypes", default="f16,bf16", help=f"weight types, separated by commas: f16, bf16, f32, {', '.join(CODED)}")
    parser.add_argument("--preset", default="lfm2-350m", help="shape of the random checkpoint (see cargo xtask checkpoint --help)")
    parser.add_argument("--tests", default="tg64,pp512", help="pp<N> feeds N tokens at once, tg<N> one by one")
    parser.add_argument("--rounds", type=int, default=7, help="times each arm runs")
    parser.add_argument("--repeat", type=int, default=2, help="measurements in an arm's process, after one that is not counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=0, help="tokens held before each measurement")
    parser.add_argument("--seed", type=int, default=0, help="of the token ids")
    parser.add_argument("--check-tokens", type=int, default=16, help="length of the agreement check")
    parser.add_argument("--quiet-wait", type=float, default=30, help="most seconds to wait, before a pair of arms, for other processes to calm down")
    parser.add_argument("--anemone", type=Path, help="binary [default: target/release/anemone, built now]")
    parser.add_argument("--anemone-args", default="", help="more options for anemone's bench and run, e.g. '--layout packed'")
    parser.add_argument("--work", type=Path, default=ROOT / "target" / "peers", help="where checkpoints and GGUF files are kept")
    parser.add_argument("--out", type=Path, help="JSON result [default: WORK/peers.json]")
    options = parser.parse_args()
    for name in ("rounds", "repeat", "threads", "check_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(options, name)}; give at least 1")
    for test in options.tests.split(","):
        if test[:2] not in ("pp", "tg") or not test[2:].isdigit() or int(test[2:]) < 1:
            parser.error(f"--tests: {test!r} is neither pp<N> nor tg<N>; write tg64,pp512")
        if options.depth + int(test[2:]) > options.ctx:
            parser.error(f"--tests: {test} after --depth {options.depth} does not fit --ctx {options.ctx}; raise --ctx")
    if options.check_tokens > min(options.ctx, 512):
        parser.error("--check-tokens is more than --ctx or 512; lower it")
    if unknown := set(options.dtypes.split(",")) - {"f16", "bf16", "f32", *CODED}:
        parser.error(f"--dtypes: {min(unknown)!r} is unknown; give f16, bf16, f32, {', '.join(CODED)}")
    return options


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def checkpoint(work: Path, preset: str, dtype: str) -> tuple[Path, Path]:
    """The random checkpoint and its GGUF twin, made if absent."""
    directory = work / f"{preset}-{dtype}"
    if not (directory / "config.json").exists():
        say(f"making {directory.name}")
        real = preset.startswith("lfm2") and TOKENIZER.exists()
        command = ["cargo", "xtask", "checkpoint", "--preset", preset, "--dtype", dtype, "--seed", "1"]
        command += ["--out", str(directory)] + (["--tokenizer", str(TOKENIZER)] if real else [])
        call(command, cwd=ROOT)
    gguf = work / f"{preset}-{dtype}.gguf"
    # Older than its source, it would be the twin of other weights.
    newest = max(path.stat().st_mtime for path in weight_files(directory))
    if not gguf.exists() or gguf.stat().st_mtime < newest:
        say(f"converting {directory.name}")
        convert(directory, gguf)
    return directory, gguf


def quantized(work: Path, preset: str, dtype: str, source: Path) -> Path:
    """The file in coded blocks that both arms read, made by llama.cpp if absent."""
    name = dtype.removesuffix("-plain")
    gguf = work / f"{preset}-{name}.gguf"
    if not gguf.exists() or gguf.stat().st_mtime < source.stat().st_mtime:
        say(f"quantizing to {name}")
        import llama_cpp

        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = CODED[dtype]
        temporary = gguf.with_suffix(".part")
        if llama_cpp.llama_model_quantize(str(source).encode(), str(temporary).encode(), ctypes.byref(parameters)):
            raise ArmError(f"llama.cpp could not quantize {source} to {name}")
        temporary.rename(gguf)
    return gguf


def stored_bytes(gguf: Path) -> int:
    """Bytes of the matrices of a GGUF file, the embedding once."""
    from gguf import GGUFReader

    return sum(int(t.n_bytes) for t in GGUFReader(gguf).tensors if len(t.shape) == 2 and t.shape[0] > 32)


def binary(options: argparse.Namespace) -> Path:
    if options.anemone:
        return options.anemone.resolve()
    say("building anemone")
    call(["cargo", "build", "--release", "--quiet", "--package", "anemone"], cwd=ROOT)
    return ROOT / "target" / "release" / "anemone"


def versions(anemone: Path) -> dict:
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    library = Path(sysconfig.get_paths()["purelib"]) / "llama_cpp" / "lib" / "libggml-base.so"
    base = ctypes.CDLL(str(library))
    base.ggml_version.restype = ctypes.c_char_p
    return {
        "anemone": call([str(anemone), "--version"])[0].strip().removeprefix("anemone "),
        "commit": commit.stdout.strip() or "unknown",
        "llama_cpp_python": metadata.version("llama-cpp-python"),
        "ggml": base.ggml_version().decode(),
        "gguf": metadata.version("gguf"),
        "python": sys.version.split()[0],
    }


class Run:
    """The alternating rounds over one checkpoint."""

    def __init__(self, ours: Anemone, theirs: Llama, options: argparse.Namespace, bytes_per_token: int):
        self.arms = (ours, theirs)
        self.options = options
        self.weights = weight_files(ours.model)[0] if ours.model.is_dir() else ours.model
        self.bytes_per_token = bytes_per_token
        self.log: list[dict] = []

    def _probe(self) -> None:
        rates = probe(self.options.work / "probe", self.options.threads, self.weights)
        self.log.append({"step": "probe", "private_gbs": rates["private"], "mapped_gbs": rates["mapped"]})

    def _pair(self, what: str, round_: int, measure) -> None:
        """Both arms, one straight after the other, each behind a probe."""
        machine.wait_for_quiet(self.options.quiet_wait)
        for arm in self.arms:
            self._probe()
            with machine.Others() as others:
                row = measure(arm)
            self.log.append({"step": what, "arm": arm.name, "round": round_, "others_cores": others.cores} | row)
            say(f"    {what} {arm.name}, others used {others.cores:.2f} cores")
        # The last arm's other neighbour.
        self._probe()

    def rounds(self) -> None:
        """Every round: each test, then the first token."""
        for round_ in range(self.options.rounds):
            say(f"  round {round_ + 1} of {self.options.rounds}")
            for test in self.options.tests.split(","):
                self._pair(test, round_, lambda arm, test=test: arm.rate(test))
            self._pair("first", round_, lambda arm: arm.first("x"))

    def steps(self, what: str, arm: str) -> list[dict]:
        return [row for row in self.log if row["step"] == what and row.get("arm") == arm]


def per_round(rows: list[dict], key: str) -> list[float]:
    """One value a round: the median of its samples."""
    return [statistics.median(row[key]) if isinstance(row[key], list) else row[key] for row in rows]


def near(log: list[dict], i: int, kind: str) -> tuple[float, float]:
    """What the probes before and after a step read."""
    return log[i - 1][f"{kind}_gbs"], log[i + 1][f"{kind}_gbs"]


def undisturbed(log: list[dict], steps: list[dict]) -> bool:
    """Whether others left both steps of a pair alone, and the memory, for decode, kept its speed from first to last."""
    if max(step["others_cores"] for step in steps) > machine.QUIET:
        return False
    rates = [rate for i, row in enumerate(log) if any(row is s for s in steps) for rate in near(log, i, "private")]
    return not steps[0]["step"].startswith("tg") or max(rates) <= STEADY * min(rates)


def pair(run: Run, step: str, key: str) -> dict:
    """Ratios of all rounds, and of the undisturbed ones."""
    a, b = (run.steps(step, arm.name) for arm in run.arms)
    both = stats.ratios(per_round(a, key), per_round(b, key))
    quiet = [r for r, x, y in zip(both["rounds"], a, b) if undisturbed(run.log, [x, y])]
    return both | {"undisturbed": stats.spread(quiet) if quiet else None}


def bandwidth(run: Run, step: str, arm: str) -> dict:
    """Weight bytes a second of a decode test, and their share of what the probes around it read."""
    rates, shares = [], {"private": [], "mapped": []}
    for i, row in enumerate(run.log):
        if row["step"] == step and row["arm"] == arm:
            rates.append(statistics.median(row["samples"]) * run.bytes_per_token / 1e9)
            for kind, values in shares.items():
                values.append(2 * rates[-1] / sum(near(run.log, i, kind)))
    return {"gbs": stats.spread(rates)} | {f"share_{kind}": stats.spread(v) for kind, v in shares.items()}


def memory(run: Run, arm: str, weights: int) -> dict:
    """The largest memory seen, in bytes."""
    rows = [row for row in run.log if row.get("arm") == arm and "rss_bytes" in row]
    most = {key: max(row[key] for row in rows) for key in ("rss_bytes", "rss_anon_bytes", "rss_file_bytes")}
    return most | {"beyond_bytes": most["rss_bytes"] - weights}


def summarise(run: Run, flops: float, weights: dict[str, int]) -> dict:
    """All tables; `flops` of the matrices for one prefilled token, `weights` file sizes by arm."""
    tests = run.options.tests.split(",")
    names = [arm.name for arm in run.arms]
    spreads, ratios = {}, {}
    for test in tests:
        for name in names:
            samples = [s for row in run.steps(test, name) for s in row["samples"]]
            spreads[f"{name} {test}"] = stats.spread(samples)
            if test.startswith("pp"):
                spreads[f"{name} {test}, GFLOP/s of the matrices"] = stats.spread([s * flops / 1e9 for s in samples])
        ratios[test] = pair(run, test, "samples")
    for key, label in (("wall_seconds", "first token, process"), ("own_seconds", "first token, inside")):
        for name in names:
            spreads[f"{name} {label}, s"] = stats.spread(per_round(run.steps("first", name), key))
        ratios[label] = pair(run, "first", key)
    probes = [row for row in run.log if row["step"] == "probe"]
    for kind in ("private", "mapped"):
        spreads[f"probe, {kind} pages, GB/s"] = stats.spread([row[f"{kind}_gbs"] for row in probes])
    return {
        "spreads": spreads,
        "ratios": ratios,
        "bandwidth": {f"{n} {t}": bandwidth(run, t, n) for t in tests if t.startswith("tg") for n in names},
        "memory": {name: memory(run, name, weights[name]) for name in names},
        "others_cores": stats.spread([row["others_cores"] for row in run.log if "others_cores" in row]),
        "log": run.log,
    }


def measure(options: argparse.Namespace, anemone: Path, dtype: str) -> dict:
    directory, gguf = checkpoint(options.work, options.preset, "f16" if dtype in CODED else dtype)
    if dtype in CODED:
        gguf = quantized(options.work, options.preset, dtype, gguf)
    setting = Setting(options.threads, options.ctx, options.depth, options.repeat, options.seed)
    ours = Anemone(anemone, gguf if dtype in CODED else directory, setting, options.anemone_args.split())
    theirs = Llama(options.work / "llama_arm", gguf, setting, repack=not dtype.endswith("-plain"))
    tensors = read_checkpoint(directory)
    vocab = tensors["model.embed_tokens.weight"].data.shape[0]
    tokens = [(i * 7919 + 13) % vocab for i in range(options.check_tokens)]
    say(f"{dtype}: comparing logits")
    agreed = agreement.check(ours, theirs, tokens, options.work, coded=dtype in CODED)
    matrices = {name: t.data for name, t in tensors.items() if t.data.ndim == 2}
    embedding = matrices.pop("model.embed_tokens.weight")
    matrices.pop("lm_head.weight", None)
    # Decode reads each matrix once, and the head, tied or not, is as large as the embedding.
    read = stored_bytes(gguf) if dtype in CODED else sum(m.nbytes for m in matrices.values()) + embedding.nbytes
    run = Run(ours, theirs, options, read)
    run.rounds()
    own = gguf.stat().st_size if dtype in CODED else sum(p.stat().st_size for p in weight_files(directory))
    sizes = {ours.name: own, theirs.name: gguf.stat().st_size}
    summary = summarise(run, 2.0 * sum(m.size for m in matrices.values()), sizes)
    return {"agreement": agreed, "bytes_per_token": run.bytes_per_token} | summary


def main() -> int:
    options = parse()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    out = options.out or options.work / "peers.json"
    start = time.monotonic()
    try:
        compile_tools(options.work)
        anemone = binary(options)
        result = {
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": machine.describe(),
            "versions": versions(anemone),
            "options": {k: v for k, v in vars(options).items() if not isinstance(v, Path) and v is not None},
            "models": {},
        }
        for dtype in options.dtypes.split(","):
            result["models"][dtype] = measure(options, anemone, dtype)
            out.write_text(json.dumps(result, indent=1) + "\n")
    except (ArmError, agreement.Disagreement, OSError, ValueError, KeyError) as error:
        say(f"peers: {error}")
        return 1
    print(report.markdown(result, BARS))
    say(f"{time.monotonic() - start:.0f} s; all samples in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
