"""Reading safetensors files by memory map, bf16 included (as raw 16-bit words)."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"), "I64": np.dtype("<i8")}


@dataclass
class Tensor:
    """A mapped tensor; `data` of a BF16 one holds the words' bits."""

    dtype: str
    data: np.ndarray

    def f32(self) -> np.ndarray:
        """The values, exactly."""
        if self.dtype == "BF16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return self.data.astype(np.float32)


def read_file(path: Path) -> dict[str, Tensor]:
    """All tensors of one file, by name."""
    with open(path, "rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ValueError(f"{path}: no safetensors header; write the file again")
        (length,) = struct.unpack("<Q", prefix)
        if length > path.stat().st_size - 8:
            raise ValueError(f"{path}: the header at byte 0 claims {length} bytes, more than the file; write it again")
        header = json.loads(file.read(length))
    raw = np.memmap(path, np.uint8, mode="r")
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"{path}: tensor {name} is {entry['dtype']}; this reads {', '.join(DTYPES)}")
        begin, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        data = raw[8 + length + begin : 8 + length + end].view(dtype).reshape(entry["shape"])
        tensors[name] = Tensor(entry["dtype"], data)
    return tensors


def weight_files(directory: Path) -> list[Path]:
    """The checkpoint's weight files, sharded or not."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        shards = set(json.loads(index.read_text())["weight_map"].values())
        return [directory / name for name in sorted(shards)]
    return [directory / "model.safetensors"]


def read_checkpoint(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory, by name."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        tensors |= read_file(path)
    return tensors
