//! Arithmetic rules and calibrated scales against the profiles of chips, on seeded checkpoints shaped like LFM3.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{anemone, assets, read_json};

/// Dimensions of a checkpoint with a convolution, a sliding and a full layer, and sizes of its norms' weights.
struct Shape {
    hidden: usize,
    ffn: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    operator_norm: f32,
    ffn_norm: f32,
}

/// LFM3's proportions above the widths that its rules are about: heads of 128, sums of more than 1024 and 4096 terms. Its norms
/// give products of the size at which the M1 lost what was measured: 4.8e-4 in `out_proj`, 2.5e-3 in the feed-forward part.
const WIDE: Shape = Shape {
    hidden: 1152,
    ffn: 4224,
    heads: 9,
    kv_heads: 3,
    head_dim: 128,
    operator_norm: 0.42,
    ffn_norm: 0.73,
};
/// Small, with products that an M4 would drop.
const SMALL: Shape =
    Shape { hidden: 96, ffn: 192, heads: 6, kv_heads: 2, head_dim: 16, operator_norm: 0.3, ffn_norm: 0.3 };

/// Numbers of about the normal distribution, the same on every machine.
struct Normal(u64);

impl Normal {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // Four uniform numbers of 16 bits.
        let sum: u64 = (0..4).map(|i| (z >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65536.0 - 2.0) * 3f32.sqrt()
    }
}

impl Shape {
    /// Writes the checkpoint with the built-in model's tokenizer. All weights are bf16 numbers that fp16 holds exactly.
    fn write(&self, dir: &Path) {
        let Shape { hidden, ffn, heads, kv_heads, head_dim, .. } = *self;
        let vocab = 2048;
        std::fs::create_dir_all(dir).unwrap();
        for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
            std::fs::copy(assets().join(file), dir.join(file)).unwrap();
        }
        let config = json!({
            "architectures": ["Lfm3ForCausalLM"], "model_type": "lfm3", "dtype": "bfloat16", "hidden_size": hidden,
            "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "num_hidden_layers": 3, "conv_L_cache": 7, "conv_bias": false, "attention_bias": false,
            "layer_types": ["conv", "sliding_attention", "full_attention"], "sliding_window": 16,
            "max_position_embeddings": 4096, "norm_eps": 1e-5, "vocab_size": vocab, "tie_word_embeddings": true,
            "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1e6, "rope_type": "default"},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
            "use_attention_gate": true, "use_sandwich_norm": true, "bos_token_id": 1, "eos_token_id": 7, "pad_token_id": 0,
        });
        std::fs::write(dir.join("config.json"), config.to_string()).unwrap();

        let mut tensors: Vec<(String, Vec<usize>, Option<f32>)> = vec![
            ("model.embed_tokens.weight".into(), vec![vocab, hidden], None),
            ("model.embedding_norm.weight".into(), vec![hidden], Some(1.0)),
        ];
        for layer in 0..3 {
            let path = format!("model.layers.{layer}");
            let mut matrix = |name: &str, shape: &[usize]| {
                tensors.push((format!("{path}.{name}.weight"), shape.to_vec(), None));
            };
            if layer == 0 {
                matrix("conv.in_proj", &[3 * hidden, hidden]);
                matrix("conv.conv", &[hidden, 1, 7]);
                matrix("conv.out_proj", &[hidden, hidden]);
            } else {
                matrix("self_attn.q_proj", &[heads * head_dim, hidden]);
                matrix("self_attn.k_proj", &[kv_heads * head_dim, hidden]);
                matrix("self_attn.v_proj", &[kv_heads * head_dim, hidden]);
                matrix("self_attn.o_proj", &[hidden, heads * head_dim]);
                matrix("self_attn.gate_proj", &[heads, hidden]);
            }
            matrix("feed_forward.w1", &[ffn, hidden]);
            matrix("feed_forward.w3", &[ffn, hidden]);
            matrix("feed_forward.w2", &[hidden, ffn]);
            let mut norm =
                |name: &str, n, size| tensors.push((format!("{path}.{name}.weight"), vec![n], Some(size)));
            norm("operator_norm", hidden, self.operator_norm);
            norm("ffn_norm", hidden, self.ffn_norm);
            norm("post_operator_norm", hidden, 1.0);
            norm("post_ffn_norm", hidden, 1.0);
            if layer > 0 {
                norm("self_attn.q_norm", head_dim, 1.0);
                norm("self_attn.k_norm", head_dim, 1.0);
            }
        }
        let (mut header, mut data, mut normal) = (serde_json::Map::new(), Vec::new(), Normal(7));
        for (name, shape, size) in tensors {
            let begin = data.len();
            // A filter keeps the size of what it filters.
            let deviation = if name.contains("conv.conv") { 1.0 / 7f32.sqrt() } else { 0.02 };
            for _ in 0..shape.iter().product() {
                let value = size.unwrap_or_else(|| deviation * normal.next());
                // Nothing that is subnormal in fp16.
                let value = if value.abs() < 1e-4 { 1e-4f32.copysign(value) } else { value };
                data.extend(((value.to_bits() >> 16) as u16).to_le_bytes());
            }
            header
                .insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, data.len()]}));
        }
        let header = Value::from(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        std::fs::write(dir.join("model.safetensors"), file).unwrap();
    }
}

/// Small, with a feed-forward part whose sums come within two doublings of overflow.
const LARGE: Shape = Shape { ffn_norm: 500.0, operator_norm: 1.0, ..SMALL };

const TEXT: &str = "Once upon a time there was a little girl who liked to play in the garden with her dog.";

#[test]
fn the_rules_carry_a_model_of_the_width_of_lfm3_over_the_bar_on_an_m1() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    WIDE.write(&model);
    let model = model.to_str().unwrap();
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let convert = |name: &str, more: &[&str]| {
        let fixed =
            ["convert", "-q", "--model", model, "--out", &out(name), "--ctx", "64", "--prefill", "16"];
        anemone(&[&fixed[..], more].concat()).ok();
    };
    let verify = |name: &str, profile: &str| {
        let bundle = out(name);
        let fixed = [
            "verify",
            "-q",
            "--bundle",
            &bundle,
            "--model",
            model,
            "--engine",
            "emulator",
            "--no-verify-hash",
        ];
        let ran = anemone(&[&fixed[..], &["--profile", profile, "-p", TEXT, "-n", "0", "--json"]].concat());
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(ran.code, Some(i32::from(report["passed"] == false)), "{report}");
        report
    };
    let cosine = |report: &Value| report["cosine"].as_f64().unwrap();
    convert(
        "off",
        &["--no-rule", "split-wide", "--no-rule", "scale-wide", "--no-rule", "scaled-pv", "--silu", "fused"],
    );
    convert("on", &[]);
    let (off, on) = (verify("off", "m1"), verify("on", "m1"));
    assert!(off["passed"] == false && cosine(&off) < 0.999, "rules off: {off}");
    assert!(on["passed"] == true && cosine(&on) > 0.999, "rules on: {on}");
    // It is the chip's arithmetic that they are for.
    let plain = verify("off", "fp16");
    assert!(plain["passed"] == true && cosine(&plain) > 0.9999, "rules off, plain fp16: {plain}");
}

#[test]
fn scales_are_chosen_from_a_text_and_change_no_bit_where_nothing_is_rounded() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    SMALL.write(&model);
    let model = model.to_str().unwrap();
    let text = dir.path().join("text.jsonl");
    std::fs::write(
        &text,
        format!("{}\n\n{}\n", json!({"text": TEXT}), json!({"text": "The dog ran.", "n": 1})),
    )
    .unwrap();
    let text = text.to_str().unwrap();
    let out = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let convert = |name: &str, more: &[&str]| {
        let fixed =
            ["convert", "-q", "--model", model, "--out", &out(name), "--ctx", "64", "--prefill", "16"];
        anemone(&[&fixed[..], more].concat())
    };
    let none = ["--no-rule", "scale-wide", "--no-rule", "scaled-pv"];
    convert("plain", &none).ok();
    let auto = ["--scales", "auto", "--calibrate", text];
    let report = convert("scaled", &[&auto[..], &["--json"]].concat()).json();
    convert("again", &auto).ok();
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with('.')), "{left:?}");

    // The manifest says what was chosen, from what; the same every time.
    let manifest = read_json(&dir.path().join("scaled/manifest.json"));
    let scales = &manifest["options"]["scales"];
    assert_eq!(*scales, report["scales"]);
    assert_eq!(manifest, read_json(&dir.path().join("again/manifest.json")));
    let hash = scales["calibration_sha256"].as_str().unwrap();
    assert!(hash.len() == 64 && scales["calibration_tokens"].as_u64().unwrap() > 20, "{scales}");
    assert_eq!(scales["profiles"], json!(["m1", "m4"]));
    let of =
        |name: &str| scales["log2"][name].as_i64().unwrap_or_else(|| panic!("no scale of {name}: {scales}"));
    // The filtered channels are cubes of what the norm lets through, so their products are the smallest.
    assert!(of("model_layers_0_conv_out_proj") > of("model_layers_0_conv_in_proj"), "{scales}");
    assert!(of("model_layers_2_self_attn_attended") > 0 && of("logits") >= 0);
    let stored = &manifest["weights"]["model.layers.0.conv.out_proj.weight"][0]["log2_scale"];
    assert_eq!(stored.as_i64(), Some(of("model_layers_0_conv_out_proj")));

    // In f32 no bit changes; the weights that are read back do not either.
    let logits = |name: &str, more: &[&str]| {
        let (bundle, file) = (out(name), dir.path().join("logits.safetensors"));
        let fixed = ["forward", "-q", "--bundle", &bundle, "--text", TEXT, "--out", file.to_str().unwrap()];
        anemone(&[&fixed[..], more].concat()).ok();
        std::fs::read(&file).unwrap()
    };
    let f32 = ["--engine", "emulator", "--profile", "f32"];
    assert!(logits("plain", &f32) == logits("scaled", &f32), "a power of two has an inverse");
    assert!(
        logits("plain", &["--exact"]) == logits("scaled", &["--exact"]),
        "weights are read back as they were"
    );

    // What is too large is made smaller, as far as the weights keep all bits.
    let large = dir.path().join("large");
    LARGE.write(&large);
    for (name, more) in [("large-plain", &none[..]), ("large-scaled", &auto[..])] {
        let fixed = ["convert", "-q", "--model", large.to_str().unwrap(), "--out", &out(name), "--ctx", "64"];
        anemone(&[&fixed[..], &["--prefill", "16"], more].concat()).ok();
    }
    let manifest = read_json(&dir.path().join("large-scaled/manifest.json"));
    let chosen = manifest["options"]["scales"]["log2"]["model_layers_0_feed_forward_w2"].as_i64().unwrap();
    assert!((-3..0).contains(&chosen), "{chosen}");
    assert!(logits("large-plain", &f32) == logits("large-scaled", &f32), "nor where it is below 1");

    // On the chips they bring back what was dropped.
    let cosine = |name: &str, profile: &str| {
        let bundle = out(name);
        let fixed =
            ["verify", "-q", "--bundle", &bundle, "--model", model, "--engine", "emulator", "-p", TEXT];
        let ran = anemone(&[&fixed[..], &["--profile", profile, "-n", "0", "--json"]].concat());
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        let lost = |r: &Value| r["lost"].as_f64().unwrap();
        let worst = report["ranges"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|r| !r["op"].as_str().unwrap().contains("scores"));
        (report["cosine"].as_f64().unwrap(), worst.map(lost).fold(0.0, f64::max))
    };
    for profile in ["m1", "m4"] {
        let ((plain, lost), (scaled, kept)) = (cosine("plain", profile), cosine("scaled", profile));
        assert!(plain < 0.999 && scaled > 0.9999, "{profile}: {plain} without scales, {scaled} with");
        assert!(lost > 1e-3 && kept < 1e-5, "{profile}: {lost} of a sum's products lost, {kept} with scales");
    }

    // What cannot be chosen from is said.
    let wrong = dir.path().join("wrong.jsonl");
    std::fs::write(&wrong, "{\"text\": \"a\"}\n{\"txt\": 1}\n").unwrap();
    let bad = |more: &[&str]| convert("bad", more);
    bad(&["--scales", "auto", "--calibrate", wrong.to_str().unwrap()])
        .fails(1, &["wrong.jsonl, line 2", "\"text\""]);
    std::fs::write(&wrong, "\n").unwrap();
    bad(&["--scales", "auto", "--calibrate", wrong.to_str().unwrap()]).fails(1, &["there is no text in it"]);
    bad(&["--scales", "auto", "--calibrate", "/no/such"]).fails(1, &["--calibrate /no/such"]);
    bad(&["--scales", "auto"]).fails(2, &["--calibrate"]);
    bad(&["--scales", "7", "--calibrate", text]).fails(2, &["--scales", "auto"]);
    assert!(!dir.path().join("bad").exists());
}
