"""Writes an LFM2 checkpoint as GGUF: the same weights, matrices bit for bit in the checkpoint's own dtype.

Usage: to_gguf.py CHECKPOINT_DIR OUT.gguf
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType

from safetensors_map import Tensor, read_checkpoint

QUANTS = {
    "F32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "F16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "BF16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}

# llama.cpp keeps LFM2's final norm under the name of an embedding norm.
FINAL_NORM = "token_embd_norm.weight"

ATTENTION = {
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.out_proj.weight": "attn_output.weight",
    "self_attn.q_layernorm.weight": "attn_q_norm.weight",
    "self_attn.k_layernorm.weight": "attn_k_norm.weight",
}
CONV = {
    "conv.in_proj.weight": "shortconv.in_proj.weight",
    "conv.conv.weight": "shortconv.conv.weight",
    "conv.out_proj.weight": "shortconv.out_proj.weight",
}
EVERY = {
    "operator_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "feed_forward.w1.weight": "ffn_gate.weight",
    "feed_forward.w3.weight": "ffn_up.weight",
    "feed_forward.w2.weight": "ffn_down.weight",
}


def names(layers: int, attention: set[int], tied: bool) -> dict[str, str]:
    """GGUF name of every checkpoint tensor, in file order."""
    table = {"model.embed_tokens.weight": "token_embd.weight", "model.embedding_norm.weight": FINAL_NORM}
    if not tied:
        table["lm_head.weight"] = "output.weight"
    for i in range(layers):
        for name, to in (EVERY | (ATTENTION if i in attention else CONV)).items():
            table[f"model.layers.{i}.{name}"] = f"blk.{i}.{to}"
    return table


def attention_layers(config: dict) -> set[int]:
    """Indices of the attention layers; the others are convolutions."""
    if config.get("layer_types"):
        return {i for i, kind in enumerate(config["layer_types"]) if kind == "full_attention"}
    if config.get("full_attn_idxs") is not None:
        return set(config["full_attn_idxs"])
    return set(range(config["num_hidden_layers"]))


def first(config: dict, *keys: str, default=None):
    """The value of the first key that is there and not null."""
    return next((config[k] for k in keys if config.get(k) is not None), default)


def check_supported(config: dict) -> None:
    if config.get("model_type") != "lfm2":
        raise ValueError(f"config.json: model_type is {config.get('model_type')!r}; this converts lfm2 only")
    if config.get("conv_bias"):
        raise ValueError("config.json: conv_bias is true, which GGUF's lfm2 has no name for; use a checkpoint without")
    scaling = first(config, "rope_parameters", "rope_scaling", default={})
    if scaling.get("rope_type", "default") != "default":
        raise ValueError(f"config.json: rope_type {scaling['rope_type']!r}; this converts the default rope only")


def add_config(writer: GGUFWriter, config: dict, tensors: dict[str, Tensor], attention: set[int]) -> None:
    embedding = tensors["model.embed_tokens.weight"].data
    layers, hidden = config["num_hidden_layers"], embedding.shape[1]
    heads = first(config, "num_attention_heads", "num_heads")
    # The width used, whatever rule the config derives it by.
    feed_forward = tensors["model.layers.0.feed_forward.w1.weight"].data.shape[0]
    head_dim = first(config, "head_dim", default=hidden // heads)
    kv_heads = config["num_key_value_heads"]
    writer.add_name("anemone peers bench")
    writer.add_block_count(layers)
    writer.add_context_length(first(config, "max_position_embeddings", default=128000))
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv([kv_heads if i in attention else 0 for i in range(layers)])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(embedding.shape[0])
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(first(config, "norm_eps", "block_norm_eps", default=1e-5))
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(first(rope, "rope_theta") or first(config, "rope_theta", "theta", default=1e6))
    writer.add_file_type(QUANTS[tensors["model.embed_tokens.weight"].dtype][1])


def add_tokenizer(writer: GGUFWriter, directory: Path, config: dict, rows: int) -> None:
    """The byte-level BPE of tokenizer.json; embedding rows without a token become unused ones."""
    path = directory / "tokenizer.json"
    if not path.exists():
        writer.add_tokenizer_model("none")
        return
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    model = tokenizer["model"]
    if model.get("type") != "BPE":
        raise ValueError(f"{path}: model type {model.get('type')!r}; this converts BPE only")
    tokens = [f"<|unused_{i}|>" for i in range(rows)]
    types = [TokenType.UNUSED] * rows
    added = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    for token, index in (model["vocab"] | added).items():
        if index >= rows:
            raise ValueError(f"{path}: token id {index} has no row in an embedding of {rows}; use the model's own file")
        tokens[index], types[index] = token, TokenType.NORMAL
    for entry in tokenizer["added_tokens"]:
        types[entry["id"]] = TokenType.CONTROL if entry["special"] else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("lfm2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    # GGUF has no empty arrays; without merges llama.cpp still asks for the key.
    writer.add_token_merges(merges or [f"{tokens[0]} {tokens[0]}"])
    writer.add_bos_token_id(first(config, "bos_token_id", default=1))
    eos = first(config, "eos_token_id", default=7)
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    writer.add_pad_token_id(first(config, "pad_token_id", default=0))
    writer.add_add_bos_token(True)
    template = directory / "chat_template.jinja"
    if template.exists():
        writer.add_chat_template(template.read_text(encoding="utf-8"))


def add_tensor(writer: GGUFWriter, name: str, tensor: Tensor) -> None:
    """Vectors and convolution kernels as f32, matrices as the words they are stored in."""
    if name.endswith("shortconv.conv.weight"):
        values = tensor.f32()
        # [H, 1, K] of transformers, [H, K, 1] of MLX.
        writer.add_tensor(name, np.ascontiguousarray(values.reshape(values.shape[0], -1)))
    elif tensor.data.ndim < 2:
        writer.add_tensor(name, tensor.f32())
    elif tensor.dtype == "BF16":
        writer.add_tensor(name, tensor.data.view(np.uint8), raw_dtype=GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, tensor.data)


def convert(directory: Path, out: Path) -> None:
    """Converts; `out` appears only when it is whole."""
    config = json.loads((directory / "config.json").read_text())
    check_supported(config)
    tensors = read_checkpoint(directory)
    tied = first(config, "tie_embedding", "tie_word_embeddings", default=True)
    attention = attention_layers(config)
    table = names(config["num_hidden_layers"], attention, tied)
    known = set(table) | ({"lm_head.weight"} if tied else set())
    if missing := set(table) - set(tensors):
        raise ValueError(f"{directory}: tensor {min(missing)} is missing; complete the checkpoint")
    if unknown := set(tensors) - known:
        raise ValueError(f"{directory}: tensor {min(unknown)} has no GGUF name; this converts plain lfm2 only")
    partial = out.with_name(out.name + ".partial")
    writer = GGUFWriter(str(partial), "lfm2")
    add_config(writer, config, tensors, attention)
    add_tokenizer(writer, directory, config, tensors["model.embed_tokens.weight"].data.shape[0])
    for name, to in table.items():
        add_tensor(writer, to, tensors[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()
    os.replace(partial, out)


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except (OSError, ValueError, KeyError) as error:
        print(f"to_gguf: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
