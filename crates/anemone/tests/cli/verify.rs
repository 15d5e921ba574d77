//! `verify`, on sound bundles and on bundles broken on purpose.

use std::collections::BTreeMap;
use std::path::Path;

use anemone_bundle::{Bundle, package_hash};
use anemone_mil::{Arg, DataType, Function, Op, Type, Value, Var, VarId, read_package, write_package};

use crate::emulator::bundle;
use crate::support::{Ran, anemone, assets, data, read_json, shared};

const PASSES: [&str; 8] = ["--prefill", "16", "--prefill", "32", "--spec-drafts", "3", "--chunk", "4"];

fn verify(path: &str, more: &[&str]) -> Ran {
    anemone(&[&["verify", "-q", "--bundle", path, "--engine", "emulator"][..], more].concat())
}

#[test]
fn a_sound_bundle_passes_in_every_pass() {
    let (dir, path) = bundle(&PASSES);
    let page = dir.path().join("report.html");
    let report = verify(&path, &["--min-cos", "0.9999", "--json", "--html", page.to_str().unwrap()]).json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["cosine"].as_f64().unwrap() >= 0.9999, "{report}");
    assert!(report["kl"].as_f64().unwrap() < 1e-3 && report["max_abs"].as_f64().unwrap() < 0.1);
    assert_eq!(
        (&report["argmax_equal"], &report["first_divergence"]),
        (&true.into(), &serde_json::Value::Null)
    );
    let passes: Vec<&str> =
        report["passes"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    assert_eq!(passes, ["decode", "verify_4", "prefill_16", "prefill_32", "generation"]);
    // Embedding, eight layers inside and at the ends of chunks, final norm.
    assert_eq!(report["layers"].as_object().unwrap().len(), 10);
    let tokens = report["tokens"].as_u64().unwrap();
    for pass in &report["passes"].as_array().unwrap()[..4] {
        assert_eq!(pass["positions"].as_u64().unwrap(), tokens, "{pass}");
        assert_eq!(pass["layers"].as_array().unwrap().len(), 10);
    }
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("passed") && page.contains("<polyline") && page.contains("prefill_32"));
    assert!(!page.contains("http") && !page.contains("<script"));
    // Nothing computes the same numbers in another arithmetic.
    let strict = verify(&path, &["--min-cos", "1"]);
    assert_eq!(strict.code, Some(1), "{strict:?}");
    assert!(strict.stdout.contains("failed: ") && strict.stdout.contains("below 1"), "{}", strict.stdout);
    // A model that has nothing in common is not told token by token.
    let wrong = verify(&path, &["--golden", &shifted(dir.path()), "-n", "64"]);
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    assert!(
        !wrong.stdout.contains("tie: ") && wrong.stdout.contains(" more, which --json"),
        "{}",
        wrong.stdout
    );
    assert_eq!(wrong.stdout.lines().filter(|l| l.starts_with("different: ")).count(), 20);
    // The bundle's weights on the native engine, and the native engine alone.
    let weights =
        anemone(&["verify", "-q", "--bundle", &path, "--exact", "--json", "-p", "once upon a time"]).json();
    assert!(weights["cosine"].as_f64().unwrap() > 0.999_999, "{weights}");
    let native = anemone(&["verify", "-q", "--json", "-n", "4"]).json();
    assert_eq!(native["passes"][0]["name"], "all");
}

#[test]
fn chips_are_profiles_and_their_effects_can_be_switched() {
    let (dir, path) = bundle(&["--prefill", "16"]);
    let cosine = |profile: &str| {
        let report =
            verify(&path, &["--profile", profile, "-p", "Once upon a time", "-n", "2", "--json"]).json();
        assert_eq!(
            (&report["passed"], report["arithmetic"].as_str()),
            (&true.into(), Some(profile)),
            "{report}"
        );
        report["cosine"].as_f64().unwrap()
    };
    let [fp16, m4, m1] = ["fp16", "m4", "m1"].map(cosine);
    assert!(
        m4 < fp16 && m1 < m4,
        "small products cost most where they are dropped earliest: {fp16} {m4} {m1}"
    );
    assert!(cosine("m1,-small-products") > m1);
    // A file that says what fp16 does is fp16, to the bit.
    let file = dir.path().join("mine.toml");
    let text = "name = \"mine\"\nabout = \"mine\"\n[fp16-rounding]\nties = \"even\"\nsource = \"a test\"\n";
    std::fs::write(&file, text).unwrap();
    let mine =
        verify(&path, &["--profile", file.to_str().unwrap(), "-p", "Once upon a time", "-n", "2", "--json"]);
    assert_eq!(mine.json()["cosine"].as_f64().unwrap(), fp16);
    std::fs::write(&file, text.replace("even", "odd")).unwrap();
    let wrong = verify(&path, &["--profile", file.to_str().unwrap()]);
    wrong.fails(2, &["--profile", "mine.toml", "line 4", "unknown variant `odd`"]);
}

#[test]
fn sums_and_products_are_measured_against_the_limits_of_the_profile() {
    let (_dir, path) = bundle(&["--prefill", "16", "--no-rule", "scaled-pv"]);
    let with = |profile: &str| {
        verify(&path, &["--profile", profile, "-p", "Once upon a time", "-n", "2", "--json"]).json()
    };
    let report = with("m4");
    let ranges = report["ranges"].as_array().unwrap();
    let of = |op: &str| {
        let found = ranges.iter().find(|r| r["op"] == op);
        found.unwrap_or_else(|| panic!("no range of `{op}`: {ranges:?}"))
    };
    // Every linear map, the scores and the products with values, of chunks and heads.
    let q = of("model_layers_2_self_attn_q_proj");
    let number =
        |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(number(q, "peak") <= number(q, "reach") && number(q, "rms") > 0.0);
    assert!((number(q, "headroom_bits") - (32768.0 / number(q, "reach")).log2()).abs() < 1e-3);
    assert!((number(q, "margin_bits") - (number(q, "rms") * 32768.0).log2()).abs() < 1e-3);
    let pv = of("model_layers_2_self_attn_attended_0");
    assert!(number(pv, "dropped") > 0.0 && number(pv, "lost") < number(pv, "dropped"), "{pv}");
    assert!(ranges.iter().any(|r| r["package"] == "head_0" && r["op"] == "logits"));
    // No limits, no distances.
    let fp16 = with("fp16");
    assert!(fp16["ranges"].as_array().unwrap().iter().all(|r| r["margin_bits"].is_null()));
    let shown = verify(&path, &["--profile", "m4", "-p", "Once upon a time", "-n", "2"]).ok().stdout;
    assert!(
        shown.contains("sums of products, nearest to a limit") && shown.contains(" more, which --json"),
        "{shown}"
    );
}

/// Recordings whose best tokens are all others.
fn shifted(dir: &Path) -> String {
    let mut golden = read_json(&data("stories-lfm2/goldens.json"));
    for case in golden["cases"].as_array_mut().unwrap() {
        for id in case["greedy_ids"].as_array_mut().unwrap() {
            *id = ((id.as_u64().unwrap() + 1) % 2048).into();
        }
    }
    let file = dir.join("shifted.json");
    std::fs::write(&file, golden.to_string()).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn recordings_are_a_reference_too() {
    let (_dir, path) = bundle(&PASSES);
    let golden = data("stories-lfm2/goldens.json");
    let golden = golden.to_str().unwrap();
    let report = verify(&path, &["--golden", golden, "-n", "64", "--min-cos", "0.9999", "--json"]).json();
    assert_eq!((&report["passed"], &report["tokens"]), (&true.into(), &0.into()), "{report}");
    assert!(report["generated"].as_u64().unwrap() >= 64, "{report}");
    // With the checkpoint as well, its prompts come after the recordings.
    let both =
        ["--golden", golden, "--model", assets().to_str().unwrap(), "--json", "-p", "once upon", "-n", "3"]
            .map(str::to_owned);
    let both: Vec<&str> = both.iter().map(String::as_str).collect();
    let report = verify(&path, &both).json();
    assert_eq!((&report["passed"], &report["tokens"]), (&true.into(), &3.into()), "{report}");
    // Another continuation is noticed.
    let dir = tempfile::tempdir().unwrap();
    let mut changed = read_json(Path::new(golden));
    changed["cases"][0]["greedy_ids"][2] = 5.into();
    let file = dir.path().join("goldens.json");
    std::fs::write(&file, changed.to_string()).unwrap();
    let ran = verify(&path, &["--golden", dir.path().to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, Some(1));
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let first = &report["first_divergence"];
    assert_eq!(
        (&first["step"], &first["expected"], &first["tie"]),
        (&2.into(), &5.into(), &false.into()),
        "{first}"
    );
}

#[test]
fn tiny_checkpoints_pass_against_their_recordings() {
    let Some(fixtures) = shared("fixtures/lfm-tiny") else { return };
    let dir = tempfile::tempdir().unwrap();
    for name in ["lfm2-tiny-tied", "lfm2-tiny-untied-sharded", "lfm3-tiny", "lfm3-tiny-options-sharded"] {
        let fixture = fixtures.join(name);
        let fixture = fixture.to_str().unwrap();
        let path = dir.path().join(name);
        let path = path.to_str().unwrap();
        anemone(&[
            "convert",
            "-q",
            "-m",
            fixture,
            "--out",
            path,
            "--ctx",
            "256",
            "--prefill",
            "8",
            "--spec-drafts",
            "3",
        ])
        .ok();
        let ran = verify(path, &["--golden", fixture, "--model", fixture, "-n", "16", "--json"]);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stdout);
        let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(report["cosine"].as_f64().unwrap() >= 0.999, "{name}: {report}");
        assert_eq!(report["skipped"], serde_json::json!([]));
        // What is closer than the error may differ, and is named.
        assert!(report["divergences"].as_array().unwrap().iter().all(|d| d["tie"] == true), "{name}");
        if name != "lfm2-tiny-tied" {
            let other = fixtures.join("lfm2-tiny-tied");
            verify(path, &["--model", other.to_str().unwrap()])
                .fails(1, &["`lfm2-tiny-tied` is another model", "layers instead of", "--model"]);
        }
        verify(path, &[]).fails(1, &["no reference", name, "--model", "--golden"]);
    }
}

/// Changes every function of a chunk, and the manifest's hash of it.
fn change(bundle: &str, chunk: usize, change: impl Fn(&mut Function)) {
    let dir = Path::new(bundle);
    let name = format!("chunk_{chunk}.mlpackage");
    let (package, aside) = (dir.join(&name), dir.join("changed.mlpackage"));
    let mut program = read_package(&package).unwrap();
    program.functions.values_mut().for_each(change);
    write_package(&program, &aside).unwrap();
    drop(program);
    std::fs::remove_dir_all(&package).unwrap();
    std::fs::rename(&aside, &package).unwrap();
    let mut manifest = read_json(&dir.join("manifest.json"));
    let entry =
        manifest["packages"].as_array_mut().unwrap().iter_mut().find(|p| p["file"] == name.as_str()).unwrap();
    entry["hash"] = package_hash(&package).unwrap().into();
    std::fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    Bundle::open(dir).unwrap().verify_hashes().unwrap();
}

/// The operation that makes a value.
fn maker<'a>(f: &'a mut Function, name: &str) -> &'a mut Op {
    let id = f.find(name).unwrap();
    f.ops.iter_mut().find(|op| op.outputs.contains(&id)).unwrap()
}

/// Insists that the bundle fails, in numbers and not for an error.
fn fails(path: &str) {
    let ran = verify(path, &["--json", "-n", "4"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(report["passed"], false);
    assert!(report["cosine"].as_f64().unwrap() < 0.999, "{report}");
    assert!(!report["failures"].as_array().unwrap().is_empty());
    // Every function is broken; the generation may be spared where its few positions see no difference.
    for pass in report["passes"].as_array().unwrap().iter().filter(|p| p["name"] != "generation") {
        assert!(pass["cosine"].as_f64().unwrap() < 0.999, "{pass}");
    }
}

#[test]
fn swapped_taps_of_a_filter_fail() {
    let (_dir, path) = bundle(&PASSES);
    change(&path, 0, |f| {
        let taps =
            ["model_layers_1_conv_tap_0", "model_layers_1_conv_tap_2"].map(|name| f.find(name).unwrap());
        let [first, last] = taps.map(|id| f.var(id).value.clone().unwrap());
        for (id, value) in taps.into_iter().zip([last, first]) {
            f.vars[id.0].value = Some(value.clone());
            let op = f.ops.iter_mut().find(|op| op.outputs == [id]).unwrap();
            op.attributes.insert("val".into(), value);
        }
    });
    fails(&path);
}

#[test]
fn a_skipped_norm_fails() {
    let (_dir, path) = bundle(&PASSES);
    change(&path, 1, |f| {
        let before = maker(f, "model_layers_5_ffn_norm_square").inputs["x"].clone();
        maker(f, "model_layers_5_ffn_norm").inputs.insert("x".into(), before);
    });
    fails(&path);
}

#[test]
fn a_mask_off_by_one_fails() {
    let (_dir, path) = bundle(&PASSES);
    // The key axis of the mask is rotated by one row.
    change(&path, 0, |f| {
        let mask = f.find("mask_full").unwrap();
        let shape = f.var(mask).ty.tensor().shape.clone();
        let [_, keys, _, tokens] = shape[..] else { panic!("{shape:?}") };
        let mut made = Vec::new();
        let mut op = |kind: &str, name: &str, rows: usize, inputs: Vec<(&str, Arg)>| {
            let mut bound = BTreeMap::new();
            for (param, arg) in inputs {
                let Arg::Value(value) = arg else {
                    bound.insert(param.to_owned(), arg);
                    continue;
                };
                let ty = Type::Tensor(value.ty().clone());
                let name = format!("{name}_{param}");
                f.vars.push(Var { name, ty, value: Some(value.clone()) });
                let id = VarId(f.vars.len() - 1);
                let attributes = BTreeMap::from([("val".to_owned(), value)]);
                made.push(Op {
                    kind: "const".into(),
                    inputs: BTreeMap::new(),
                    outputs: vec![id],
                    attributes,
                });
                bound.insert(param.to_owned(), Arg::Var(id));
            }
            let ty = anemone_mil::TensorType::new(DataType::Float16, [1, rows, 1, tokens]);
            f.vars.push(Var { name: name.into(), ty: Type::Tensor(ty), value: None });
            let id = VarId(f.vars.len() - 1);
            let attributes = BTreeMap::from([("name".to_owned(), Value::text(name))]);
            made.push(Op { kind: kind.into(), inputs: bound, outputs: vec![id], attributes });
            id
        };
        let mut slice = |name: &str, from: usize, to: usize| {
            let (begin, end) = ([0, from as i32, 0, 0], [1, to as i32, 1, tokens as i32]);
            let inputs = vec![
                ("x", Arg::Var(mask)),
                ("begin", Value::ints(&begin).into()),
                ("end", Value::ints(&end).into()),
            ];
            op("slice_by_index", name, to - from, inputs)
        };
        let parts = vec![slice("shifted_later", 1, keys), slice("shifted_first", 0, 1)];
        let inputs = vec![
            ("values", Arg::List(parts)),
            ("axis", Value::int(1).into()),
            ("interleave", Value::flag(false).into()),
        ];
        let shifted = op("concat", "shifted", keys, inputs);
        for op in &mut f.ops {
            for arg in op.inputs.values_mut() {
                match arg {
                    Arg::Var(id) if *id == mask => *id = shifted,
                    Arg::List(ids) => ids.iter_mut().filter(|id| **id == mask).for_each(|id| *id = shifted),
                    _ => {}
                }
            }
        }
        f.ops.splice(0..0, made);
    });
    fails(&path);
}

#[test]
fn damaged_weights_are_told_from_overflow() {
    let (_dir, path) = bundle(&PASSES);
    let file = Path::new(&path).join("chunk_0.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 4 * 2;
    bytes[middle..middle + 64].copy_from_slice(&[0, 0x7c].repeat(32));
    std::fs::write(&file, bytes).unwrap();
    verify(&path, &[]).fails(1, &["chunk_0.mlpackage differs from the manifest", "convert the model again"]);
    let damaged = ["weights are damaged", "anemone inspect --verify-hash --model"];
    verify(&path, &["--no-verify-hash"]).fails(1, &damaged);
    let run =
        |engine| anemone(&["run", "-q", "--bundle", &path, "--engine", engine, "-n", "2", "-p", "once"]);
    run("emulator").fails(1, &damaged);
    run("cpu").fails(1, &["`model.layers.", "not finite", "convert it again"]);
}

#[test]
fn what_cannot_be_verified_is_named_with_the_remedy() {
    let (dir, path) = bundle(&["--prefill-only", "--prefill", "16"]);
    // A bundle that cannot generate quickly can still be verified.
    assert_eq!(
        verify(&path, &["--json", "-n", "2", "-p", "once upon"]).json()["passes"][0]["name"],
        "prefill_16"
    );
    let say = |more: &[&str], fragments: &[&str]| verify(&path, more).fails(1, fragments);
    say(&["-n", "256"], &["--max-new-tokens 256", "context of 256", "lower it"]);
    say(&["--text", "/no/such/file"], &["--text /no/such/file", "check the path"]);
    say(&["--golden", "/no/such/file"], &["--golden", "/no/such/file", "check the path"]);
    #[cfg(unix)]
    say(&["--golden", "/dev/zero"], &["--golden", "/dev/zero", "larger than 256 MiB"]);
    say(&["--html", "/no/such/dir/x.html", "-n", "1", "-p", "a"], &["--html", "create it first"]);
    let golden = data("stories-lfm2/goldens.json");
    say(&["--golden", golden.to_str().unwrap(), "-p", "once"], &["--prompt", "add --model"]);
    verify(&path, &["--min-cos", "2"]).fails(2, &["--min-cos", "from -1 to 1"]);
    anemone(&["verify", "--bundle", assets().to_str().unwrap()])
        .fails(1, &["--bundle", "manifest.json", "name it with --model", "anemone convert"]);
    say(&["--model", &path, "-p", "once"], &["this is a bundle", "--bundle", "checkpoint it was made from"]);
    // What is left out of a prompt is not said before an error.
    let other = data("stories-lfm2/goldens.json");
    let plain = [
        "verify",
        "--bundle",
        &path,
        "--engine",
        "emulator",
        "--model",
        other.to_str().unwrap(),
        "-n",
        "220",
    ];
    anemone(&plain).fails(1, &["goldens.json"]);
    let none = verify(&path, &["--golden", "/no/such/file"]);
    assert!(none.stderr.starts_with("error: --golden /no/such/file: cannot"), "{}", none.stderr);
    let other = dir.path().join("goldens.json");
    std::fs::write(&other, r#"{"cases": [{"name": "far", "token_ids": [1, 99999]}]}"#).unwrap();
    say(&["--golden", other.to_str().unwrap()], &["`far`", "99999", "another model"]);
    std::fs::write(
        &other,
        format!(r#"{{"cases": [{{"token_ids": {:?}, "greedy_ids": [1]}}]}}"#, vec![1; 300]),
    )
    .unwrap();
    say(&["--golden", other.to_str().unwrap()], &["nothing was compared", "300 tokens", "larger --ctx"]);
    if let Some(decisions) = shared("goldens/laya") {
        let file = decisions.join("laya.json");
        say(&["--golden", file.to_str().unwrap()], &["laya.json", "token_ids", "language model"]);
    }
    if let Some(tiny) = shared("fixtures/lfm-tiny/lfm2-tiny-tied") {
        say(&["--model", tiny.to_str().unwrap(), "-p", "a"], &["another model"]);
    }
}
