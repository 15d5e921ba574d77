"""Compares the weights a bundle stands for, as anemone expands them, with what coremltools expands from its packages, bit for bit.

expanded_weights.py BUNDLE EXPANDED.safetensors; the second is what the example `expand_weights` of anemone-bundle wrote. Every
compressed piece of the manifest must be there, in each function. Exits 1 on a difference.
"""
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TQDM_DISABLE", "1")
import coremltools as ct
import numpy as np
from coremltools.converters.mil.frontend.milproto.load import load as mil_load
from safetensors.numpy import load_file

CODES = {
    "constexpr_lut_to_dense": "indices",
    "constexpr_blockwise_shift_scale": "data",
    "constexpr_affine_dequantize": "quantized_data",
}


def expansions(package):
    """For each function: offset of the codes to what coremltools makes of them."""
    model = ct.models.MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()
    program = mil_load(spec, spec.specificationVersion, model.weights_dir)
    for name, function in spec.mlProgram.functions.items():
        values = {op.outputs[0].name: op for op in program.functions[name].operations if op.op_type in CODES}
        found = {}
        for op in function.block_specializations[function.opset].operations:
            if op.type not in CODES:
                continue
            key = CODES[op.type]
            value = op.attributes[key] if key in op.attributes else op.inputs[key].arguments[0].value
            found[value.blobFileValue.offset] = values[op.outputs[0].name].materialized_val_inference()
        yield name, found


def main(bundle, expanded):
    manifest = json.loads((Path(bundle) / "manifest.json").read_text())
    ours = load_file(expanded)
    host = {entry["tensor"] for entry in manifest["host"].values()}
    compared = tables = 0
    for package in manifest["packages"]:
        for function, found in expansions(Path(bundle) / package["file"]):
            for tensor, pieces in manifest["weights"].items():
                for piece in pieces:
                    if piece["package"] != package["file"] or "encoding" not in piece:
                        continue
                    dense = found.get(piece["offset"])
                    if dense is None:
                        sys.exit(f"{package['file']} {function}: no operation expands {tensor} at {piece['offset']}")
                    rows, columns = piece["rows"], piece["columns"]
                    shape = (rows["end"] - rows["start"], columns["end"] - columns["start"])
                    theirs = dense.reshape(shape) / np.float16(2 ** piece["log2_scale"])
                    places = ["tables:" + tensor] if "tables:" + tensor in ours else []
                    if tensor not in host:
                        places.append(tensor)
                    if not places:
                        sys.exit(f"{tensor} is not among the weights of {expanded}")
                    for place in places:
                        whole = ours[place].reshape(manifest["tensors"][tensor][0], -1)
                        part = whole[rows["start"] : rows["end"], columns["start"] : columns["end"]]
                        if theirs.dtype != np.float16 or theirs.tobytes() != np.ascontiguousarray(part).tobytes():
                            sys.exit(f"{package['file']} {function}: {place} differs from what coremltools expands")
                        compared += part.size
                        tables += place.startswith("tables:")
    expected = len(manifest["compression"]["tensors"])
    if compared == 0 or expected == 0:
        sys.exit(f"{bundle}: nothing is compressed")
    print(f"{Path(bundle).name}: {expected} compressed weights, {compared} numbers equal bit for bit ({tables} looked up in tables)")


if __name__ == "__main__":
    main(*sys.argv[1:])
