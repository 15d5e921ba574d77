"""Writes GGUF files with the `gguf` package: of a Hugging Face snapshot, and of random blocks with their elements as that package
reads them.

    make.py model SNAPSHOT OUT.gguf [TYPE]     TYPE: F32 F16 BF16 Q8_0 Q5_1 Q5_0 Q4_1 Q4_0 (as stored: F32)
    make.py blocks OUT.json                    random blocks of every type and their elements
    make.py compare FILE.gguf EXPANDED.safetensors   elements of every tensor, bit by bit
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np

BLOCK_TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the f16 scales of a block lie.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = (8 + size + offset for offset in entry["data_offsets"])
        raw = data[start:end]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[entry["dtype"]]).astype(np.float32)
        tensors[name] = values.reshape(entry["shape"])
    return tensors


def random_blocks(kind, rows, blocks, random):
    """Bytes of a matrix whose codes are random and whose scales are moderate."""
    quant = gguf.GGMLQuantizationType[kind]
    _, size = gguf.GGML_QUANT_SIZES[quant]
    data = random.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = random.normal(0, 0.01, (rows, blocks)).astype(np.float16)
        data[:, :, at : at + 2] = scale.view(np.uint8).reshape(rows, blocks, 2)
    return data.reshape(rows, blocks * size)


PARTS = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "post_operator_norm": "attn_post_norm",
    "post_ffn_norm": "ffn_post_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "feed_forward.gate": "ffn_gate_inp",
    "conv.in_proj": "shortconv.in_proj",
    "conv.conv": "shortconv.conv",
    "conv.out_proj": "shortconv.out_proj",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.gate_proj": "attn_gate",
    "self_attn.g_proj": "attn_gate",
}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.embedding_norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_tensors(tensors):
    """Tensors by their names in GGUF, experts of a layer in one."""
    experts, named = {}, {}
    for name, values in tensors.items():
        if name in TOP:
            named[TOP[name]] = values
            continue
        _, _, layer, rest = name.split(".", 3)
        if ".experts." in rest:
            if rest.endswith("gate_up_proj"):
                half = values.shape[1] // 2
                named[f"blk.{layer}.ffn_gate_exps.weight"] = values[:, :half]
                named[f"blk.{layer}.ffn_up_exps.weight"] = values[:, half:]
            elif rest.endswith("down_proj"):
                named[f"blk.{layer}.ffn_down_exps.weight"] = values
            else:
                _, _, expert, part, _ = rest.split(".")
                kind = {"w1": "gate", "w3": "up", "w2": "down"}[part]
                experts.setdefault(f"blk.{layer}.ffn_{kind}_exps.weight", {})[int(expert)] = values
            continue
        if rest.endswith("expert_bias"):
            named[f"blk.{layer}.exp_probs_b.bias"] = values
            continue
        part, suffix = rest.rsplit(".", 1)
        if part == "conv.conv" and suffix == "weight":
            values = values.reshape(values.shape[0], -1)
        named[f"blk.{layer}.{PARTS[part]}.{suffix}"] = values
    for name, parts in experts.items():
        named[name] = np.stack([parts[e] for e in sorted(parts)])
    return named


def layer_kinds(config, tensors):
    layers = config["num_hidden_layers"]
    return [f"model.layers.{i}.self_attn.q_proj.weight" in tensors for i in range(layers)]


def default_kinds(config):
    """Kinds of LFM3's layers where its configuration does not list them."""
    kind = lambda i: "full_attention" if i % 4 == 2 else "sliding_attention" if i % 4 == 0 and i > 0 else "conv"
    return [kind(i) for i in range(config["num_hidden_layers"])]


def add_tokenizer(writer, snapshot, config):
    tokenizer = json.loads((snapshot / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    by_id = {i: token for token, i in vocab.items()} | {i: token["content"] for i, token in added.items()}
    size = config["vocab_size"]
    kinds = gguf.TokenType
    tokens, types = [], []
    for i in range(size):
        tokens.append(by_id.get(i, f"[PAD{i}]"))
        if i in added:
            types.append(kinds.CONTROL if added[i]["special"] else kinds.USER_DEFINED)
        else:
            types.append(kinds.NORMAL if i in by_id else kinds.UNUSED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("lfm2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    settings = json.loads((snapshot / "tokenizer_config.json").read_text())
    for key, add in [("bos_token", writer.add_bos_token_id), ("pad_token", writer.add_pad_token_id)]:
        token = settings.get(key)
        token = token["content"] if isinstance(token, dict) else token
        ids = {content: i for i, content in by_id.items()}
        if token in ids:
            add(ids[token])
    eos = config.get("eos_token_id")
    writer.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    writer.add_add_bos_token(bool(tokenizer.get("post_processor")))
    template = snapshot / "chat_template.jinja"
    text = template.read_text() if template.exists() else settings.get("chat_template")
    if text:
        writer.add_chat_template(text)


def rope(config, kind):
    parameters = config.get("rope_parameters") or {}
    return parameters.get(kind, parameters)


def model(snapshot, out, kind="F32"):
    snapshot = pathlib.Path(snapshot)
    config = json.loads((snapshot / "config.json").read_text())
    tensors = {}
    for path in sorted(snapshot.glob("model*.safetensors")):
        tensors |= read_safetensors(path)
    arch = {"lfm2": "lfm2", "lfm2_moe": "lfm2moe", "lfm3": "lfm3"}[config["model_type"]]
    writer = gguf.GGUFWriter(out, arch)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    attends = layer_kinds(config, tensors)
    width = tensors.get("model.layers.0.feed_forward.w1.weight")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(width.shape[0] if width is not None else config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv([config["num_key_value_heads"] if a else 0 for a in attends])
    writer.add_layer_norm_rms_eps(config.get("norm_eps", 1e-5))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_key_length(config.get("head_dim") or hidden // heads)
    writer.add_uint32(f"{arch}.shortconv.l_cache", config.get("conv_L_cache", 3))
    if arch == "lfm3":
        full, sliding = rope(config, "full_attention"), rope(config, "sliding_attention")
        writer.add_rope_freq_base(full["rope_theta"])
        writer.add_float32("lfm3.rope.freq_base_swa", sliding["rope_theta"])
        writer.add_sliding_window(config.get("sliding_window", 256))
        writer.add_array("lfm3.attention.sliding_window_pattern", [t == "sliding_attention" for t in config.get("layer_types") or default_kinds(config)])
        angles = (config.get("head_dim") or hidden // heads) // 2
        turning = int(full.get("partial_rotary_factor", 1.0) * angles)
        factors = np.array([1.0] * turning + [1e30] * (angles - turning), np.float32)
        writer.add_tensor("rope_freqs.weight", factors)
    else:
        writer.add_rope_freq_base(rope(config, "full_attention").get("rope_theta", config.get("rope_theta", 1e6)))
    if arch == "lfm2moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_uint32("lfm2moe.expert_gating_func", 2)
        if "norm_topk_prob" in config:
            writer.add_expert_weights_norm(config["norm_topk_prob"])
        if "routed_scaling_factor" in config:
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
    add_tokenizer(writer, snapshot, config)
    if config.get("tie_word_embeddings", config.get("tie_embedding", True)):
        tensors.pop("lm_head.weight", None)
    for name, values in gguf_tensors(tensors).items():
        matrix = values.ndim > 1 and "shortconv.conv" not in name and "ffn_gate_inp" not in name
        wanted = gguf.GGMLQuantizationType[kind if matrix else "F32"]
        block = gguf.GGML_QUANT_SIZES[wanted][0]
        if values.shape[-1] % block:
            wanted = gguf.GGMLQuantizationType.F16
        data = gguf.quants.quantize(np.ascontiguousarray(values, np.float32), wanted)
        writer.add_tensor(name, data, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def blocks(out):
    random = np.random.default_rng(7)
    recorded = {}
    for kind in BLOCK_TYPES:
        data = random_blocks(kind, 2, 3, random)
        values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).astype(np.float32)
        recorded[kind] = entry = {"bytes": data.tobytes().hex(), "cols": values.shape[1], "elements": values.tobytes().hex()}
        try:
            values = random.normal(0, 1, (2, 96)).astype(np.float32)
            values[1, :32] = 0
            coded = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
            entry |= {"values": values.tobytes().hex(), "coded": coded.tobytes().hex()}
        except (NotImplementedError, gguf.quants.QuantError):
            pass
    pathlib.Path(out).write_text(json.dumps(recorded, indent=1) + "\n")


def compare(path, expanded):
    ours = read_safetensors(expanded)
    checked = 0
    for tensor in gguf.GGUFReader(path).tensors:
        theirs = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        mine = ours[tensor.name].reshape(theirs.shape)
        if mine.tobytes() != theirs.tobytes():
            sys.exit(f"{path}: {tensor.name} of {tensor.tensor_type.name} differs")
        checked += theirs.size
    print(f"{pathlib.Path(path).name}: {checked} elements equal to the bit")


if __name__ == "__main__":
    {"model": model, "blocks": blocks, "compare": compare}[sys.argv[1]](*sys.argv[2:])
