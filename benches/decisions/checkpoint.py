"""A random decision checkpoint of the mmBERT-base shape: checkpoint.py DIRECTORY TOKENIZER_DIRECTORY."""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

HIDDEN, INNER, LAYERS, HEADS, VOCABULARY, HEAD_LAYERS = 768, 1152, 22, 12, 256_000, 2


def tensors():
    """Name, shape and scale of every tensor; a scale of None means ones."""
    yield "encoder.embeddings.tok_embeddings.weight", (VOCABULARY, HIDDEN), 0.02
    yield "encoder.embeddings.norm.weight", (HIDDEN,), None
    for i in range(LAYERS):
        layer = f"encoder.layers.{i}."
        if i > 0:
            yield layer + "attn_norm.weight", (HIDDEN,), None
        yield layer + "attn.Wqkv.weight", (3 * HIDDEN, HIDDEN), HIDDEN**-0.5
        yield layer + "attn.Wo.weight", (HIDDEN, HIDDEN), HIDDEN**-0.5
        yield layer + "mlp_norm.weight", (HIDDEN,), None
        yield layer + "mlp.Wi.weight", (2 * INNER, HIDDEN), HIDDEN**-0.5
        yield layer + "mlp.Wo.weight", (HIDDEN, INNER), INNER**-0.5
    yield "encoder.final_norm.weight", (HIDDEN,), None
    for i in range(HEAD_LAYERS):
        layer = f"head.layers.{i}."
        for name, shape in (
            ("self_attn.in_proj_", (3 * HIDDEN, HIDDEN)),
            ("self_attn.out_proj.", (HIDDEN, HIDDEN)),
            ("linear1.", (4 * HIDDEN, HIDDEN)),
            ("linear2.", (HIDDEN, 4 * HIDDEN)),
        ):
            yield layer + name + "weight", shape, shape[1] ** -0.5
            yield layer + name + "bias", shape[:1], 0.01
        for norm in ("norm1.", "norm2."):
            yield layer + norm + "weight", (HIDDEN,), None
            yield layer + norm + "bias", (HIDDEN,), 0.01
    yield "type_emb.weight", (3, HIDDEN), 0.1
    yield "scorer.0.weight", (HIDDEN,), None
    yield "scorer.0.bias", (HIDDEN,), 0.01
    yield "scorer.1.weight", (HIDDEN, HIDDEN), HIDDEN**-0.5
    yield "scorer.1.bias", (HIDDEN,), 0.01
    yield "scorer.3.weight", (1, HIDDEN), HIDDEN**-0.5
    yield "scorer.3.bias", (1,), 0.01
    yield "act_head.0.weight", (256, HIDDEN + 4), HIDDEN**-0.5
    yield "act_head.0.bias", (256,), 0.01
    yield "act_head.2.weight", (2, 256), 256**-0.5
    yield "act_head.2.bias", (2,), 0.01


def main() -> None:
    directory, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
    (directory / "encoder").mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    header, offset = {"temperature": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}, 12
    for name, shape, _ in tensors():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    unfinished = directory / "model.unfinished"
    with open(unfinished, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded + np.ones(3, np.float32).tobytes())
        for _, shape, scale in tensors():
            ones = scale is None
            values = np.ones(shape, np.float32) if ones else random.standard_normal(shape, np.float32) * scale
            file.write(values.astype(np.float16).tobytes())
    encoder = {
        "model_type": "modernbert", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "vocab_size": VOCABULARY, "norm_eps": 1e-5, "global_rope_theta": 160000.0,
        "local_rope_theta": 160000.0, "local_attention": 128, "global_attn_every_n_layers": 3,
        "max_position_embeddings": 8192,
    }
    (directory / "encoder" / "config.json").write_text(json.dumps(encoder))
    agent = {
        "encoder": "random", "head_layers": HEAD_LAYERS, "max_len": 1024, "head_max_len": 256,
        "act_costs": {"escalate": 0.5}, "temperature": [1, 1, 1],
    }
    (directory / "rl_agent_config.json").write_text(json.dumps(agent))
    shutil.copytree(tokenizer, directory / "tokenizer", dirs_exist_ok=True)
    unfinished.rename(directory / "model.safetensors")


if __name__ == "__main__":
    main()
