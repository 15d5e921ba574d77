"""What else the machine does while an arm runs, and what the machine is."""

import os
import platform
import resource
import time
from pathlib import Path

# Cores that others may use while the machine counts as quiet.
QUIET = 0.15


def cpu_seconds() -> float:
    """Seconds of work of all processes since boot, over all cores."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(field) for field in fields]
    idle, total = ticks[3] + ticks[4], sum(ticks[:8])
    return (total - idle) / os.sysconf("SC_CLK_TCK")


class Others:
    """Cores that processes other than our children used, on average, inside a `with` block."""

    cores = 0.0

    def __enter__(self) -> "Others":
        self.start, self.total, self.ours = time.monotonic(), cpu_seconds(), self._children()
        return self

    def __exit__(self, *_) -> None:
        seconds = max(time.monotonic() - self.start, 1e-9)
        used = (cpu_seconds() - self.total) - (self._children() - self.ours)
        self.cores = round(max(used, 0.0) / seconds, 2)

    @staticmethod
    def _children() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime


def wait_for_quiet(limit: float, allowed: float = QUIET) -> float:
    """Waits for two quiet seconds in a row, at most `limit` seconds; returns the cores that others use now."""
    end, calm = time.monotonic() + limit, 0
    while True:
        with Others() as others:
            time.sleep(1)
        calm = calm + 1 if others.cores <= allowed else 0
        if calm == 2 or time.monotonic() >= end:
            return others.cores


def describe() -> dict:
    """Processor, cores, features that matter here, memory and system."""
    info = Path("/proc/cpuinfo").read_text()
    value = lambda key: next((l.split(":", 1)[1].strip() for l in info.splitlines() if l.startswith(key)), "unknown")
    flags = set(value("flags").split())
    wanted = ["avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16"]
    memory = next(l for l in Path("/proc/meminfo").read_text().splitlines() if l.startswith("MemTotal"))
    return {
        "cpu": f"{value('model name')} (family {value('cpu family')}, model {value('model')})",
        "cores": os.cpu_count(),
        "features": [flag for flag in wanted if flag in flags],
        "memory_gib": round(int(memory.split()[1]) / 2**20, 1),
        "system": platform.platform(terse=True),
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
    }
