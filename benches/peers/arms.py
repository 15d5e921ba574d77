"""The two arms and the probe, each a process of its own for every sample."""

import json
import subprocess
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from safetensors_map import read_file

HERE = Path(__file__).resolve().parent


class ArmError(Exception):
    """A process that failed, with what it said."""


def call(command: list[str], cwd: Path | None = None) -> tuple[str, float]:
    """Standard output, and seconds from start to end."""
    start = time.monotonic()
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    seconds = time.monotonic() - start
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise ArmError(f"{' '.join(command)} exited with {done.returncode} and said: {said[0]}")
    return done.stdout, seconds


def last_object(text: str) -> dict:
    return json.loads(text.strip().splitlines()[-1])


def compile_tools(out: Path) -> None:
    """Builds the probe and the llama.cpp arm against the installed package."""
    packages = Path(sysconfig.get_paths()["purelib"])
    include, lib = packages / "include", packages / "llama_cpp" / "lib"
    if not (include / "llama.h").exists():
        raise ArmError(f"{include} has no llama.h; run benches/peers/run.sh --setup and start from run.sh")
    libraries = [f"-l:lib{name}.so" for name in ("llama", "ggml", "ggml-base")]
    arm = [str(HERE / "llama_arm.c"), f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}", *libraries]
    for name, arguments in {"probe": ["-O3", "-march=native", "-pthread", str(HERE / "probe.c")], "llama_arm": arm}.items():
        try:
            call(["cc", "-std=gnu11", "-O2", *arguments, "-o", str(out / name)])
        except FileNotFoundError:
            raise ArmError("no C compiler cc; install one (llama-cpp-python needs it too)") from None


@dataclass
class Setting:
    """What both arms are told."""

    threads: int
    ctx: int
    depth: int
    repeat: int
    seed: int


@dataclass
class Anemone:
    binary: Path
    model: Path
    setting: Setting
    extra: list[str]

    name = "anemone"

    def _command(self, command: str, *arguments: str, extra: bool = True) -> list[str]:
        s = self.setting
        common = ["--model", str(self.model), "--threads", str(s.threads), "--ctx", str(s.ctx), "--json"]
        return [str(self.binary), command, *common, *arguments, *(self.extra if extra else [])]

    def rate(self, test: str) -> dict:
        """`samples` of a test such as pp512, and memory."""
        s = self.setting
        counts = {"pp": "0", "tg": "0", test[:2]: test[2:]}
        arguments = ["--pp", counts["pp"], "--tg", counts["tg"], "--depth", str(s.depth), "--seed", str(s.seed)]
        out, _ = call(self._command("bench", *arguments, "--repeat", str(s.repeat), "--probe-mib", "0"))
        report = last_object(out)
        return report | {"samples": report["tests"][0]["samples"]}

    def first(self, prompt: str) -> dict:
        """One greedy token after a prompt: wall time of the process, and its own account."""
        out, wall = call(self._command("run", "--prompt", prompt, "-n", "1", "--greedy"))
        report = last_object(out)
        timings = report["timings"]
        own = timings["load_seconds"] + timings["time_to_first_token_seconds"]
        return {"wall_seconds": wall, "own_seconds": own, "token": report["token_ids"][0]}

    def logits(self, tokens: list[int], step: int, out: Path, exact: bool = False) -> np.ndarray:
        """[positions, vocab], fed `step` tokens at a time."""
        ids = ",".join(map(str, tokens))
        arguments = ["--tokens", ids, "--chunk", str(step), "--out", str(out), *(["--exact"] if exact else [])]
        call(self._command("forward", *arguments, extra=not exact))
        return np.array(read_file(out)["logits"].data)


@dataclass
class Llama:
    tool: Path
    model: Path
    setting: Setting
    # Whether weights may be laid out anew when they are loaded.
    repack: bool = True

    name = "llama.cpp"

    def _command(self, mode: str, *arguments: str) -> list[str]:
        tool = [str(self.tool)] if self.repack else ["env", "ARM_PLAIN=1", str(self.tool)]
        return [*tool, mode, str(self.model), str(self.setting.threads), str(self.setting.ctx), *arguments]

    def rate(self, test: str) -> dict:
        s = self.setting
        out, _ = call(self._command("rates", str(s.depth), str(s.repeat), test, str(s.seed)))
        report = last_object(out)
        return report | {"samples": report["tests"][0]["samples"]}

    def first(self, prompt: str) -> dict:
        out, wall = call(self._command("first", prompt))
        report = last_object(out)
        return {"wall_seconds": wall, "own_seconds": report["first_token_seconds"], "token": report["token"]}

    def logits(self, tokens: list[int], step: int, out: Path) -> np.ndarray:
        said, _ = call(self._command("logits", str(step), str(out), ",".join(map(str, tokens))))
        report = last_object(said)
        return np.fromfile(out, np.float32).reshape(report["positions"], report["vocab"])


def probe(tool: Path, threads: int, file: Path) -> dict:
    """GB/s read from a private buffer in large pages and from the mapped file."""
    return last_object(call([str(tool), str(threads), str(file)])[0])
