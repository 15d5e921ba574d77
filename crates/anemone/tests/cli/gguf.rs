//! `quantize`, and running the files it writes.

use std::path::Path;

use crate::support::anemone;

/// The built-in model as a GGUF file of matrices of one type.
fn quantized(dir: &Path, kind: &str) -> String {
    let out = dir.join(format!("stories.{kind}.gguf")).to_str().unwrap().to_owned();
    let said = anemone(&["quantize", "-q", "--json", "--type", kind, "--out", &out]).json();
    assert_eq!(said["not_of_whole_blocks"], serde_json::json!([]), "{kind}");
    out
}

fn perplexity(text: &str, more: &[&str]) -> f64 {
    let said = anemone(&[&["perplexity", "-q", "--json", "--file", text][..], more].concat()).json();
    said["perplexity"].as_f64().unwrap()
}

#[test]
fn a_file_in_f32_is_the_model_it_was_made_of() {
    let dir = tempfile::tempdir().unwrap();
    let file = quantized(dir.path(), "f32");
    let ask = [
        "--prompt",
        "tell me a story about a cat",
        "--greedy",
        "--max-new-tokens",
        "40",
        "--exact",
        "--json",
        "-q",
    ];
    let told = |more: &[&str]| {
        let said = anemone(&[&["run"][..], &ask, more].concat()).json();
        (said["token_ids"].clone(), said["text"].clone())
    };
    assert_eq!(told(&["--model", &file]), told(&[]));
    let logits = |more: &[&str], out: &str| {
        let out = dir.path().join(out);
        let tokens =
            ["forward", "-q", "--tokens", "1,416,440,272", "--exact", "--out", out.to_str().unwrap()];
        anemone(&[&tokens[..], more].concat()).ok();
        std::fs::read(out).unwrap()
    };
    assert_eq!(logits(&["--model", &file], "a"), logits(&[], "b"));
    // Tokenizer and template come from the file, too.
    let chat = |more: &[&str]| {
        let said = anemone(&[&["run", "--chat"][..], &ask, more].concat());
        said.json()["token_ids"].clone()
    };
    assert_eq!(chat(&["--model", &file]), chat(&[]));
}

/// Bounds on what formats may lose on this small model: 8 bits next to nothing, fewer more.
#[test]
fn fewer_bits_lose_little() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    let story = anemone(&["run", "-q", "--seed", "5", "--max-new-tokens", "300"]).ok().stdout;
    std::fs::write(&text, story).unwrap();
    let text = text.to_str().unwrap();
    let whole = perplexity(text, &[]);
    for (kind, bound) in [("q8_0", 1.01), ("q5_1", 1.06), ("q4_0", 1.3)] {
        let file = quantized(dir.path(), kind);
        let (fast, exact) =
            (perplexity(text, &["--model", &file]), perplexity(text, &["--model", &file, "--exact"]));
        assert!(exact < bound * whole, "{kind}: {exact} for {whole}");
        // Activations of 8 bits beside exact ones.
        assert!((fast / exact - 1.0).abs() < 0.01, "{kind}: {fast} for {exact}");
    }
}

#[test]
fn a_pass_of_many_tokens_has_the_bits_of_single_ones() {
    let dir = tempfile::tempdir().unwrap();
    let file = quantized(dir.path(), "q4_1");
    let logits = |chunk: &str| {
        let out = dir.path().join(chunk);
        let tokens = "1,416,440,272,391,25,385,294,272,384,1368,7,9,11,13,15,17";
        let path = out.to_str().unwrap();
        anemone(&["forward", "-q", "--model", &file, "--tokens", tokens, "--chunk", chunk, "--out", path])
            .ok();
        let bytes = std::fs::read(&out).unwrap();
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        bytes[8 + header..].to_vec()
    };
    let one = logits("1");
    assert!(!one.is_empty());
    for chunk in ["2", "5", "13", "17"] {
        assert_eq!(logits(chunk), one, "{chunk} at a time");
    }
}

#[test]
fn what_cannot_be_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let file = quantized(dir.path(), "q8_0");
    anemone(&["quantize", "--type", "q4_0", "--model", &file, "--out", &file])
        .fails(1, &["--out", "this is the file that is read"]);
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(at("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    anemone(&["run", "-p", "a", "--model", &at("cut.gguf")])
        .fails(1, &["cut.gguf", "reaches beyond", "download it again"]);
    std::fs::write(at("empty.gguf"), "").unwrap();
    anemone(&["run", "-p", "a", "--model", &at("empty.gguf")])
        .fails(1, &["empty.gguf", "does not begin with `GGUF`"]);
    // The name says nothing where the first bytes do.
    std::fs::write(at("model"), &whole).unwrap();
    anemone(&["run", "-q", "-p", "a", "--model", &at("model"), "--max-new-tokens", "2"]).ok();
    let at_name = whole.windows(4).position(|w| w == b"lfm2").unwrap();
    let mut foreign = whole.clone();
    foreign[at_name..at_name + 4].copy_from_slice(b"gpt9");
    std::fs::write(at("other.gguf"), foreign).unwrap();
    anemone(&["run", "-p", "a", "--model", &at("other.gguf")])
        .fails(1, &["general.architecture", "gpt9", "supported are lfm2"]);
}
