"""Whether both arms run the same model, and how far each is from exact arithmetic."""

from pathlib import Path

import numpy as np

from arms import Anemone, Llama

# Cosine of every position, and the share of positions with the same most likely token: random weights put some
# pairs of leading logits closer together than 16-bit activations resolve, another model would share none.
COSINE, SAME = 0.999, 0.75
# Both round activations of coded weights to 8 bits, each in its own way, and random weights damp nothing of it.
CODED_COSINE, CODED_SAME = 0.99, 0.5


class Disagreement(Exception):
    """The arms do not run the same model."""


def compare(reference: np.ndarray, other: np.ndarray) -> dict:
    """Worst cosine, worst relative error (RMS) and share of equal most likely tokens over the positions."""
    if reference.shape != other.shape:
        raise Disagreement(f"logits of shape {other.shape}, expected {reference.shape}; convert the model again")
    a, b = reference.astype(np.float64), other.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return {
        "cosine": float(((a * b).sum(1) / norms).min()),
        "rel_rms": float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(a, axis=1)).max()),
        "max_abs": float(np.abs(a - b).max()),
        "argmax_equal": float((a.argmax(1) == b.argmax(1)).mean()),
    }


def require(name: str, row: dict, cosine: float = COSINE, same: float = SAME) -> None:
    # Written so that NaN fails too.
    if not (row["cosine"] > cosine and row["argmax_equal"] >= same):
        raise Disagreement(
            f"{name}: cosine {row['cosine']:.5f} (needs > {cosine}), equal argmax {row['argmax_equal']:.2f} "
            f"(needs >= {same}); the arms do not run the same model, nothing is measured"
        )


def check(ours: Anemone, theirs: Llama, tokens: list[int], scratch: Path, coded: bool = False) -> dict:
    """Both arms, prompt at once and token by token, against anemone's exact mode and each other."""
    file, raw = scratch / "logits.safetensors", scratch / "logits.f32"
    rows, bounds = {}, (CODED_COSINE, CODED_SAME) if coded else (COSINE, SAME)
    try:
        exact = ours.logits(tokens, len(tokens), file, exact=True)
        for mode, step in (("prefill", len(tokens)), ("decode", 1)):
            a, b = ours.logits(tokens, step, file), theirs.logits(tokens, step, raw)
            rows[mode] = {
                "anemone against exact": compare(exact, a),
                "llama.cpp against exact": compare(exact, b),
                "anemone against llama.cpp": compare(b, a),
            }
            for name, row in rows[mode].items():
                require(f"{mode}, {name}", row, *bounds)
    finally:
        file.unlink(missing_ok=True)
        raw.unlink(missing_ok=True)
    return rows
