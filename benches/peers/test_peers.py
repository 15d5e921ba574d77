"""Tests of the parts that need no model: run.sh --test."""

import json
import struct
import tempfile
import unittest
from pathlib import Path

import numpy as np
from gguf import GGUFReader

import agreement
import peers
import report
import stats
from arms import Anemone, Llama, Setting
from safetensors_map import read_checkpoint, read_file
from to_gguf import FINAL_NORM, convert

ROOT = Path(__file__).resolve().parents[2]
HIDDEN, FEED, VOCAB, HEADS, KV = 8, 12, 20, 4, 2
CODES = {"BF16": "<u2", "F16": "<f2", "F32": "<f4"}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    header, at = {}, 0
    for name, (dtype, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d.tobytes() for _, d in tensors.values()))


def tiny(directory: Path, dtype: str, change: dict | None = None) -> None:
    """Two layers, a convolution and an attention, of random bits."""
    rng = np.random.default_rng(3)

    def values(*shape: int) -> tuple[str, np.ndarray]:
        floats = rng.standard_normal(shape).astype(np.float32)
        words = floats.view(np.uint32) >> 16 if dtype == "BF16" else floats
        return dtype, words.astype(CODES[dtype])

    tensors = {"model.embed_tokens.weight": values(VOCAB, HIDDEN), "model.embedding_norm.weight": values(HIDDEN)}
    for i in range(2):
        p = f"model.layers.{i}."
        tensors |= {p + "operator_norm.weight": values(HIDDEN), p + "ffn_norm.weight": values(HIDDEN)}
        tensors |= {p + f"feed_forward.{w}.weight": values(FEED, HIDDEN) for w in ("w1", "w3")}
        tensors[p + "feed_forward.w2.weight"] = values(HIDDEN, FEED)
    p = "model.layers.0.conv."
    tensors |= {p + "in_proj.weight": values(3 * HIDDEN, HIDDEN), p + "out_proj.weight": values(HIDDEN, HIDDEN)}
    tensors[p + "conv.weight"] = values(HIDDEN, 1, 3)
    p = "model.layers.1.self_attn."
    tensors |= {p + "q_proj.weight": values(HIDDEN, HIDDEN), p + "out_proj.weight": values(HIDDEN, HIDDEN)}
    tensors |= {p + f"{n}_proj.weight": values(KV * HIDDEN // HEADS, HIDDEN) for n in "kv"}
    tensors |= {p + f"{n}_layernorm.weight": values(HIDDEN // HEADS) for n in "qk"}
    config = {
        "model_type": "lfm2", "num_hidden_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "conv_L_cache": 3, "full_attn_idxs": [1], "block_ff_dim": 99, "rope_theta": 5e5,
    }
    tokenizer = {
        "model": {"type": "BPE", "vocab": {c: i + 2 for i, c in enumerate("abcd")}, "merges": [["a", "b"]]},
        "added_tokens": [{"id": 0, "content": "<|pad|>", "special": True}, {"id": 1, "content": "<x>", "special": False}],
    }
    write_safetensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(config | (change or {})))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


class ToGguf(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = Path(scratch.name)
        self.out = self.directory / "out.gguf"

    def test_matrices_keep_their_bits_and_vectors_their_values(self):
        for dtype in CODES:
            with self.subTest(dtype):
                tiny(self.directory, dtype)
                convert(self.directory, self.out)
                source = read_checkpoint(self.directory)
                found = {t.name: t for t in GGUFReader(str(self.out)).tensors}
                self.assertEqual(len(found), len(source))
                for name, to in {
                    "model.embed_tokens.weight": "token_embd.weight",
                    "model.layers.0.conv.in_proj.weight": "blk.0.shortconv.in_proj.weight",
                    "model.layers.1.self_attn.k_proj.weight": "blk.1.attn_k.weight",
                    "model.layers.1.feed_forward.w2.weight": "blk.1.ffn_down.weight",
                }.items():
                    self.assertEqual(found[to].tensor_type.name, dtype)
                    self.assertEqual(list(found[to].shape), list(source[name].data.shape)[::-1])
                    self.assertEqual(found[to].data.tobytes(), source[name].data.tobytes(), name)
                for name, to in {
                    "model.embedding_norm.weight": FINAL_NORM,
                    "model.layers.0.conv.conv.weight": "blk.0.shortconv.conv.weight",
                    "model.layers.1.self_attn.q_layernorm.weight": "blk.1.attn_q_norm.weight",
                }.items():
                    self.assertEqual(found[to].tensor_type.name, "F32")
                    np.testing.assert_array_equal(found[to].data.ravel(), source[name].f32().ravel())

    def test_metadata(self):
        tiny(self.directory, "F16")
        convert(self.directory, self.out)
        reader = GGUFReader(str(self.out))
        read = lambda key: reader.get_field(key).contents()
        self.assertEqual(read("lfm2.attention.head_count_kv"), [0, KV])
        self.assertEqual(read("lfm2.feed_forward_length"), FEED)
        self.assertEqual(read("lfm2.shortconv.l_cache"), 3)
        self.assertEqual(read("lfm2.rope.freq_base"), 5e5)
        self.assertEqual(read("tokenizer.ggml.tokens")[:4], ["<|pad|>", "<x>", "a", "b"])
        self.assertEqual(len(read("tokenizer.ggml.tokens")), VOCAB)
        self.assertEqual(read("tokenizer.ggml.token_type")[:3] + read("tokenizer.ggml.token_type")[-1:], [3, 4, 1, 5])

    def test_what_is_not_supported_is_named(self):
        for change, words in (
            ({"model_type": "lfm3"}, "lfm3"),
            ({"conv_bias": True}, "conv_bias"),
            ({"tie_embedding": False}, "lm_head.weight is missing"),
            ({"full_attn_idxs": [0, 1]}, "is missing"),
            ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ):
            with self.subTest(words):
                tiny(self.directory, "F32", change)
                with self.assertRaisesRegex(ValueError, words):
                    convert(self.directory, self.out)
                self.assertFalse(self.out.exists())

    def test_hostile_safetensors(self):
        path = self.directory / "bad.safetensors"
        for data in (b"abc", struct.pack("<Q", 1 << 60) + b"{}"):
            path.write_bytes(data)
            with self.assertRaisesRegex(ValueError, "header"):
                read_file(path)


class Agreement(unittest.TestCase):
    def test_rounding_passes_and_another_model_does_not(self):
        rng = np.random.default_rng(1)
        logits = rng.standard_normal((16, 4096)).astype(np.float32)
        near = logits + 0.01 * rng.standard_normal(logits.shape).astype(np.float32)
        row = agreement.compare(logits, near)
        self.assertAlmostEqual(row["rel_rms"], 0.01, delta=0.001)
        agreement.require("near", row)
        for other in (logits[::-1], -logits, np.full_like(logits, np.nan), logits + 0.2 * rng.standard_normal(logits.shape)):
            with self.assertRaises(agreement.Disagreement):
                agreement.require("other", agreement.compare(logits, other))
        with self.assertRaises(agreement.Disagreement):
            agreement.compare(logits, logits[:, 1:])


class Twin(unittest.TestCase):
    """Both arms on a small checkpoint, when peers.py has built them."""

    def test_the_tiny_fixture_gives_the_same_logits(self):
        fixture = ROOT.parent / "shared" / "fixtures" / "lfm-tiny" / "lfm2-tiny-tied"
        binary, work = ROOT / "target" / "release" / "anemone", ROOT / "target" / "peers"
        for path in (fixture, binary, work / "llama_arm"):
            if not path.exists():
                self.skipTest(f"{path.name} not present")
        with tempfile.TemporaryDirectory() as scratch:
            gguf = Path(scratch) / "tiny.gguf"
            convert(fixture, gguf)
            setting = Setting(threads=2, ctx=256, depth=0, repeat=1, seed=0)
            ours, theirs = Anemone(binary, fixture, setting, []), Llama(work / "llama_arm", gguf, setting)
            tokens = list(range(1, 17))
            rows = agreement.check(ours, theirs, tokens, Path(scratch))
            # f32 weights, which llama.cpp multiplies as f32.
            self.assertLess(rows["decode"]["llama.cpp against exact"]["rel_rms"], 1e-3)
            # The check can fail: one token less in front shifts every position.
            exact = ours.logits(tokens, 16, Path(scratch) / "a", exact=True)
            shifted = theirs.logits(tokens[1:] + [1], 16, Path(scratch) / "b")
            with self.assertRaises(agreement.Disagreement):
                agreement.require("shifted", agreement.compare(exact, shifted))


class Stats(unittest.TestCase):
    def test_spread_and_ratios(self):
        s = stats.spread([4.0, 1.0, 2.0, 3.0, 10.0])
        self.assertEqual((s["median"], s["q1"], s["q3"], s["min"], s["max"]), (3.0, 2.0, 4.0, 1.0, 10.0))
        self.assertEqual(stats.spread([7.0])["q3"], 7.0)
        r = stats.ratios([2.0, 9.0, 4.0], [1.0, 3.0, 8.0])
        self.assertEqual((r["rounds"], r["median"]), ([2.0, 3.0, 0.5], 2.0))
        with self.assertRaises(ValueError):
            stats.ratios([1.0], [1.0, 2.0])

    def test_disturbed_pairs_are_told_apart(self):
        def pair(others: float, probes: list[float], test: str = "tg64") -> bool:
            steps = [{"step": test, "others_cores": used} for used in (0.0, others)]
            rows = [{"private_gbs": rate} for rate in probes]
            return peers.undisturbed([rows[0], steps[0], rows[1], steps[1], rows[2]], steps)

        self.assertTrue(pair(0.1, [50, 55, 60]))
        self.assertFalse(pair(0.2, [50, 55, 60]))
        self.assertFalse(pair(0.1, [35, 36, 60]))
        self.assertTrue(pair(0.1, [35, 36, 60], "pp512"))

    def test_a_ratio_row_shows_median_quartiles_and_range(self):
        row = report.ratio_row("tg64", stats.spread([1.0, 1.5, 2.0]), ">= 1.2")
        self.assertEqual(row, "| tg64 | **1.50** | 1.25 – 1.75 | 1.00 – 2.00 | 3 | >= 1.2 |")


if __name__ == "__main__":
    unittest.main()
