"""The peers' side of the bench: arms.py onnxruntime|openvino f32|bf16 MODEL.onnx THREADS.

It speaks the protocol of the anemone arm (`crates/anemone-cpu/examples/decision_rate.rs`): lines of row lengths in, seconds and logits
out. Rows of different lengths are padded to the longest, as these runtimes need it.
"""

import sys
import time

import numpy as np


def inputs(lengths: list[int]) -> dict[str, np.ndarray]:
    longest = max(lengths)
    ids, mask = np.zeros((len(lengths), longest), np.int64), np.zeros((len(lengths), longest), np.int64)
    for row, length in enumerate(lengths):
        ids[row, :length] = (np.arange(length) * 37 + row * 101 + 3) % 8000
        mask[row, :length] = 1
    return {"ids": ids, "mask": mask, "markers": np.tile(np.array([5, 9, 12], np.int64), (len(lengths), 1))}


def onnxruntime_arm(precision: str, path: str, threads: int):
    import onnxruntime

    if precision != "f32":
        raise SystemExit("the onnxruntime arm computes in f32")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(["logits"], feed)[0]


def openvino_arm(precision: str, path: str, threads: int):
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = {}

    def run(feed):
        # Static shapes are what openvino is fastest with.
        shapes = {name: list(value.shape) for name, value in feed.items()}
        key = str(shapes)
        if key not in compiled:
            model = core.read_model(path)
            model.reshape(shapes)
            compiled[key] = core.compile_model(model, "CPU", settings).create_infer_request()
        return next(iter(compiled[key].infer(feed).values()))

    return run


def main() -> None:
    runtime, precision, path, threads = sys.argv[1:]
    run = {"onnxruntime": onnxruntime_arm, "openvino": openvino_arm}[runtime](precision, path, int(threads))
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            status = open("/proc/self/status").read()
            print(next(l.split()[1] for l in status.splitlines() if l.startswith("VmRSS:")), flush=True)
            continue
        feed = inputs([int(length) for length in line.split(",")])
        start = time.perf_counter()
        logits = run(feed)
        seconds = time.perf_counter() - start
        print(f"{seconds:.6f}", ",".join(f"{v:.6f}" for v in logits.reshape(-1)), flush=True)


if __name__ == "__main__":
    main()
