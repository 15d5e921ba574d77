"""Writes a checkpoint's matrices as one ML program with coremltools: the least a converter built on it does.

Each matrix is the weight of a 1x1 convolution; there is no attention and one function, so the time is that of carrying the
weights. With `empty` as third argument the passes `ct.convert` runs by default are left out.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))

import coremltools as ct
import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from safetensors_map import read_file


def main() -> None:
    source, out = Path(sys.argv[1]), sys.argv[2]
    tensors = read_file(source / "model.safetensors")
    widths = sorted({t.data.shape[1] for t in tensors.values() if t.data.ndim == 2})
    specs = [mb.TensorSpec((1, width, 1, 1), dtype=types.fp16) for width in widths]

    def program(inputs):
        total = None
        for name, tensor in tensors.items():
            if tensor.data.ndim != 2:
                continue
            weight = tensor.f32().astype(np.float16)[:, :, None, None]
            y = mb.conv(x=inputs[tensor.data.shape[1]], weight=weight, name=name.replace(".", "_"))
            y = mb.reduce_sum(x=y, axes=[1], keep_dims=True)
            total = y if total is None else mb.add(x=total, y=y)
        return total

    # The builder takes one argument for each input, so the function is made with as many.
    names = [f"x{width}" for width in widths]
    scope = {"program": program, "widths": widths}
    exec(f"def main({', '.join(names)}):\n    return program(dict(zip(widths, [{', '.join(names)}])))", scope)
    built = mb.program(input_specs=specs, opset_version=ct.target.iOS18)(scope["main"])
    passes = {"pass_pipeline": ct.PassPipeline.EMPTY} if sys.argv[3:] == ["empty"] else {}
    model = ct.convert(
        built,
        convert_to="mlprogram",
        compute_precision=ct.precision.FLOAT16,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
        **passes,
    )
    model.save(out)


if __name__ == "__main__":
    main()
