//! `inspect` of decision models.

use serde_json::json;

use crate::support::{anemone, shared};

#[test]
fn a_decision_bundle_is_shown_whole() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (plain, packing) = (at("plain"), at("packing"));
    let made = anemone(&["convert", "-q", "--decision", "--out", &plain, "--json"]).json();
    let pack =
        ["convert", "-q", "--decision", "--pack", "--length", "64", "--length", "96", "--out", &packing];
    anemone(&pack).ok();
    let report =
        anemone(&["inspect", "--bundle", &plain, "--verify-hash", "--check", "--tensors", "--json"]).json();
    assert_eq!((&report["model"], &report["model_type"]), (&json!("plain"), &json!("laya")));
    let bundle = &report["bundle"];
    assert_eq!(
        (&bundle["format"], &bundle["hashes_verified"]),
        (&json!("anemone-decision-bundle"), &json!(true))
    );
    // What the conversion said of itself.
    assert_eq!(
        (&bundle["packages"][0]["weight_bytes"], &bundle["source"]["name"]),
        (&made["weight_bytes"], &made["source"])
    );
    let file = dir.path().join("plain/body.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    assert_eq!(bundle["weight_file_bytes"].as_u64().unwrap(), file.metadata().unwrap().len());
    assert!(bundle["host_bytes"].as_u64().unwrap() >= made["host_bytes"].as_u64().unwrap());
    let lengths = bundle["lengths"].as_array().unwrap();
    for (shown, made) in lengths.iter().zip(made["functions"].as_array().unwrap()) {
        for key in ["length", "name", "operations"] {
            assert_eq!(shown[key], made[key], "{key}");
        }
    }
    // The package, function by function.
    let package = &bundle["packages"][0];
    assert_eq!(package["package"], "body.mlpackage");
    let functions = package["functions"].as_array().unwrap();
    assert_eq!((lengths.len(), functions.len()), (3, 3));
    for function in functions {
        let counts = function["op_counts"].as_object().unwrap();
        assert_eq!(
            counts.values().map(|n| n.as_u64().unwrap()).sum::<u64>(),
            function["ops"].as_u64().unwrap()
        );
        assert!(counts["softmax"].as_u64().unwrap() > 0);
    }
    // Three lengths share nearly all of it; rotary tables and the like are each one's own.
    let [shared, all] = ["shared_weight_bytes", "weight_bytes"].map(|key| package[key].as_u64().unwrap());
    assert!(shared < all && shared * 10 > all * 9, "{shared} of {all}");
    assert_eq!(
        report["check"]["tensors"].as_u64().unwrap() as usize,
        report["tensors"].as_array().unwrap().len()
    );
    // The model's own temperatures, inside their bounds.
    let config = dir.path().join("plain/rl_agent_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    let shown = &report["calibration"]["temperature"];
    for (i, kind) in ["choice", "score", "noul"].iter().enumerate() {
        assert_eq!(shown[kind].as_f64().unwrap(), config["temperature"][i].as_f64().unwrap().clamp(0.5, 5.0));
    }

    let text = anemone(&["inspect", "-m", &packing]).ok().stdout;
    for line in [
        "packing (laya)",
        "temperatures: choice ",
        "lengths",
        "several questions in a row",
        "sha256",
        "body.mlpackage (spec",
        "ops ",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let packed = anemone(&["inspect", "-m", &packing, "--json"]).json();
    assert_eq!(packed["bundle"]["lengths"][1]["packed"]["name"], "L96_packed");
    assert_eq!(packed["bundle"]["hashes_verified"], false);
    let mil = anemone(&["inspect", "-m", &packing, "--mil"]).ok().stdout;
    assert!(mil.starts_with("// body.mlpackage\n") && mil.contains("L96_packed"));

    anemone(&["inspect", "-m", &plain, "--ctx", "64"]).fails(1, &["--ctx", "no cache"]);
    // Every kind of damage is found by the hashes, and a file that is gone without them.
    let weights = dir.path().join("plain/body.mlpackage/Data/com.apple.CoreML/weights/weight.bin");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    anemone(&["inspect", "--bundle", &plain]).ok();
    anemone(&["inspect", "--bundle", &plain, "--verify-hash"]).fails(1, &["body.mlpackage", "hash"]);
    std::fs::remove_file(dir.path().join("packing/tokenizer.json")).unwrap();
    anemone(&["inspect", "--bundle", &packing]).fails(1, &["tokenizer.json"]);
}

#[test]
fn a_decision_checkpoint_is_shown() {
    let Some(dir) = shared("fixtures/laya-tiny/english") else { return };
    let path = dir.to_str().unwrap();
    let report = anemone(&["inspect", "-m", path, "--json"]).json();
    assert_eq!(report["model_type"], "laya");
    let layers = report["layers"].as_array().unwrap();
    assert!(
        layers.iter().any(|layer| layer["window"].is_null())
            && layers.iter().any(|layer| layer["window"].is_u64())
    );
    assert!(report.get("bundle").is_none());
    assert!(anemone(&["inspect", "-m", path]).ok().stdout.contains("decision head"));
    anemone(&["inspect", "-m", path, "--verify-hash"])
        .fails(1, &["--verify-hash", "not a bundle", "convert"]);
}
