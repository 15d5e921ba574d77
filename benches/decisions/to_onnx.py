"""A decision checkpoint as an ONNX graph for the peers: to_onnx.py CHECKPOINT OUTPUT.onnx.

Inputs ids, mask [B, L] and markers [B, K]; output logits [B, K] of questions of kind 0. The operators are those an export of an eager
implementation ends up with after the runtimes' own fusions (LayerNormalization and Gelu are single operators already); the embedding
stays in f16 and is widened after the gather, which saves the peers memory. The action head is left out.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEAD_EPS = 1e-5


class Graph:
    """Nodes and initializers under construction; an operator's result is its name."""

    def __init__(self):
        self.nodes, self.initializers, self.names = [], [], {}

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def integers(self, *values: int) -> str:
        if values not in self.names:
            self.names[values] = self.constant(np.array(values, np.int64))
        return self.names[values]

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes):
        names = [f"n{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names


class Model:
    def __init__(self, directory: Path):
        config = json.loads((directory / "encoder" / "config.json").read_text())
        self.hidden, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.dim, self.layers = self.hidden // self.heads, config["num_hidden_layers"]
        self.eps, self.every, self.window = config["norm_eps"], config["global_attn_every_n_layers"], config["local_attention"]
        self.theta = {True: config["global_rope_theta"], False: config["local_rope_theta"]}
        self.head_layers = json.loads((directory / "rl_agent_config.json").read_text())["head_layers"]
        self.positions = 1024
        raw = np.memmap(directory / "model.safetensors", np.uint8, "r")
        (size,) = struct.unpack("<Q", raw[:8].tobytes())
        header = json.loads(raw[8 : 8 + size].tobytes())
        types = {"F16": np.float16, "F32": np.float32}
        self.raw = {
            name: raw[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]].view(types[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()
        }
        self.g = Graph()

    def weight(self, name: str) -> np.ndarray:
        return self.raw[name].astype(np.float32)

    def linear(self, x: str, name: str, bias: str | None = None) -> str:
        y = self.g.op("MatMul", x, self.g.constant(self.weight(name).T))
        return self.g.op("Add", y, self.g.constant(self.weight(bias))) if bias else y

    def norm(self, x: str, name: str, eps: float, biased: bool) -> str:
        inputs = [x, self.g.constant(self.weight(name + ".weight"))]
        if biased:
            inputs.append(self.g.constant(self.weight(name + ".bias")))
        return self.g.op("LayerNormalization", *inputs, axis=-1, epsilon=eps)

    def attention(self, qkv: str, mask: str, rotation: tuple[str, str] | None) -> str:
        g = self.g
        split = g.op("Reshape", qkv, g.integers(0, 0, 3, self.heads, self.dim))
        parts = g.op("Split", g.op("Transpose", split, perm=[2, 0, 3, 1, 4]), outputs=3, axis=0, num_outputs=3)
        q, k, v = (g.op("Squeeze", part, g.integers(0)) for part in parts)
        if rotation:
            q, k = self.rotate(q, rotation), self.rotate(k, rotation)
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g.op("Mul", scores, g.constant(np.float32(self.dim**-0.5)))
        weights = g.op("Softmax", g.op("Add", scores, mask), axis=-1)
        mixed = g.op("Transpose", g.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        return g.op("Reshape", mixed, g.integers(0, 0, self.hidden))

    def rotate(self, x: str, rotation: tuple[str, str]) -> str:
        g = self.g
        a, b = g.op("Split", x, outputs=2, axis=-1, num_outputs=2)
        turned = g.op("Concat", g.op("Neg", b), a, axis=-1)
        return g.op("Add", g.op("Mul", x, rotation[0]), g.op("Mul", turned, rotation[1]))

    def tables(self, length: str) -> dict[bool, tuple[str, str]]:
        result = {}
        for is_global, theta in self.theta.items():
            angles = np.arange(self.positions)[:, None] * theta ** (-np.arange(0, self.dim, 2) / self.dim)[None]
            cut = []
            for f in (np.cos, np.sin):
                table = self.g.constant(np.concatenate([f(angles)] * 2, 1).astype(np.float32))
                cut.append(self.g.op("Slice", table, self.g.integers(0), length, self.g.integers(0)))
            result[is_global] = tuple(cut)
        return result

    def build(self) -> onnx.ModelProto:
        g = self.g
        length = g.op("Slice", g.op("Shape", "ids"), g.integers(1), g.integers(2))
        rotations = self.tables(length)
        unseen = g.op("Sub", g.constant(np.float32(1)), g.op("Cast", "mask", to=TensorProto.FLOAT))
        unseen = g.op("Mul", g.op("Unsqueeze", unseen, g.integers(1, 2)), g.constant(np.float32(-1e4)))
        place = g.op("Range", g.constant(np.int64(0)), g.op("Squeeze", length), g.constant(np.int64(1)))
        distance = g.op("Abs", g.op("Sub", g.op("Unsqueeze", place, g.integers(1)), g.op("Unsqueeze", place, g.integers(0))))
        far = g.op("Greater", distance, g.constant(np.int64(self.window // 2)))
        far = g.op("Mul", g.op("Cast", far, to=TensorProto.FLOAT), g.constant(np.float32(-1e4)))
        near = g.op("Add", unseen, far)

        table = g.constant(np.array(self.raw["encoder.embeddings.tok_embeddings.weight"]))
        x = g.op("Cast", g.op("Gather", table, "ids"), to=TensorProto.FLOAT)
        x = self.norm(x, "encoder.embeddings.norm", self.eps, False)
        for i in range(self.layers):
            layer, is_global = f"encoder.layers.{i}.", i % self.every == 0
            y = self.norm(x, layer + "attn_norm", self.eps, False) if i else x
            y = self.attention(self.linear(y, layer + "attn.Wqkv.weight"), unseen if is_global else near, rotations[is_global])
            x = g.op("Add", x, self.linear(y, layer + "attn.Wo.weight"))
            y = self.norm(x, layer + "mlp_norm", self.eps, False)
            a, b = g.op("Split", self.linear(y, layer + "mlp.Wi.weight"), outputs=2, axis=-1, num_outputs=2)
            x = g.op("Add", x, self.linear(g.op("Mul", g.op("Gelu", a), b), layer + "mlp.Wo.weight"))
        x = self.norm(x, "encoder.final_norm", self.eps, False)
        x = g.op("Add", x, g.constant(self.weight("type_emb.weight")[0]))
        for i in range(self.head_layers):
            layer = f"head.layers.{i}."
            y = self.norm(x, layer + "norm1", HEAD_EPS, True)
            y = self.attention(self.linear(y, layer + "self_attn.in_proj_weight", layer + "self_attn.in_proj_bias"), unseen, None)
            x = g.op("Add", x, self.linear(y, layer + "self_attn.out_proj.weight", layer + "self_attn.out_proj.bias"))
            y = self.norm(x, layer + "norm2", HEAD_EPS, True)
            y = g.op("Relu", self.linear(y, layer + "linear1.weight", layer + "linear1.bias"))
            x = g.op("Add", x, self.linear(y, layer + "linear2.weight", layer + "linear2.bias"))
        index = g.op("Expand", g.op("Unsqueeze", "markers", g.integers(2)), g.integers(1, 1, self.hidden))
        x = g.op("GatherElements", x, index, axis=1)
        x = self.norm(x, "scorer.0", HEAD_EPS, True)
        x = g.op("Gelu", self.linear(x, "scorer.1.weight", "scorer.1.bias"))
        x = self.linear(x, "scorer.3.weight", "scorer.3.bias")
        self.g.nodes.append(helper.make_node("Squeeze", [x, g.integers(2)], ["logits"]))
        ids = [helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "L"]) for name in ("ids", "mask")]
        markers = helper.make_tensor_value_info("markers", TensorProto.INT64, ["B", "K"])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["B", "K"])
        graph = helper.make_graph(g.nodes, "decision", [*ids, markers], [logits], g.initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def main() -> None:
    source, output = Path(sys.argv[1]), Path(sys.argv[2])
    unfinished = output.with_suffix(".unfinished")
    model = Model(source).build()
    data = output.with_suffix(".data").name
    onnx.save_model(model, unfinished, save_as_external_data=True, location=data, size_threshold=1024)
    unfinished.rename(output)


if __name__ == "__main__":
    main()
