"""GGUF files of the tiny checkpoints against the checkpoints themselves, and every block type against the `gguf` package.

    check.py ANEMONE EXPAND_GGUF MODELS WORK      MODELS: the shared directory with fixtures/lfm-tiny and models/stories-lfm2
"""

import json
import pathlib
import subprocess
import sys

import gguf
import make
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"]


def call(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nexited with {done.returncode}: {done.stderr}")
    return done.stdout


def logits(anemone, model, tokens, out, *more):
    call(anemone, "forward", "--model", model, "--tokens", ",".join(map(str, tokens)), "--out", out, *more)
    return make.read_safetensors(out)["logits"]


def greedy(anemone, model, tokens, expected, out):
    """Whether each recorded token is the most likely one after those before it."""
    found = logits(anemone, model, tokens + expected[:-1], out, "--exact")[len(tokens) - 1 :].argmax(1)
    return found.tolist() == expected


def random_file(path):
    """Every block type with random codes, as a file of no model."""
    random = np.random.default_rng(11)
    writer = gguf.GGUFWriter(path, "lfm2")
    for kind in make.BLOCK_TYPES:
        data = make.random_blocks(kind, 48, 5, random)
        writer.add_tensor(kind, data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    anemone, expand, shared, work = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4])
    work.mkdir(parents=True, exist_ok=True)
    out = work / "out.safetensors"
    files = [work / "random.gguf"]
    random_file(files[0])
    for snapshot in sorted((shared / "fixtures/lfm-tiny").glob("*/config.json")):
        snapshot = snapshot.parent
        file = work / f"{snapshot.name}.gguf"
        make.model(snapshot, file)
        goldens = json.loads((snapshot / "goldens.json").read_text())
        for prompt in goldens["prompts"]:
            tokens = prompt["token_ids"]
            # The same numbers, so the same bits.
            same = np.array_equal(logits(anemone, file, tokens, out, "--exact"), logits(anemone, snapshot, tokens, out, "--exact"))
            text = greedy(anemone, file, tokens, prompt["greedy_ids"], out)
            if not same or not text:
                sys.exit(f"{file.name}, prompt {prompt['name']}: logits equal {same}, greedy ids equal {text}")
        print(f"{file.name}: logits of {len(goldens['prompts'])} prompts equal to the bit, greedy tokens as recorded")
    stories = shared / "models/stories-lfm2"
    recorded = json.loads((stories / "goldens.json").read_text())["cases"][0]
    for kind in TYPES:
        file = work / f"stories.{kind}.gguf"
        make.model(stories, file, kind)
        files.append(file)
        exact, fast = logits(anemone, file, recorded["token_ids"], out, "--exact"), logits(anemone, file, recorded["token_ids"], out)
        cosine = float((exact * fast).sum() / np.linalg.norm(exact) / np.linalg.norm(fast))
        # Activations of 8 bits keep four digits of the direction.
        if not cosine > 0.9995:
            sys.exit(f"{file.name}: cosine {cosine} between exact and fast logits")
        print(f"{file.name}: cosine of fast to exact logits {cosine:.6f}")
    for file in files:
        call(expand, file, out)
        make.compare(str(file), out)


main()
