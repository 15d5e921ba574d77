use crate::support::anemone;

/// A prompt the built-in model goes on repeating.
fn repeats() -> String {
    "lily had a red ball and a blue car and a big doll. ".repeat(6)
}

fn run(more: &[&str]) -> serde_json::Value {
    let prompt = repeats();
    let args = [
        "run",
        "--json",
        "-q",
        "--ignore-eos",
        "-n",
        "150",
        "--repetition-penalty",
        "1",
        "--prompt",
        &prompt,
    ];
    anemone(&[&args[..], more].concat()).json()
}

#[test]
fn drafts_leave_the_tokens_as_they_are() {
    for sampling in [&["--greedy"][..], &["--temperature", "0.3", "--seed", "4"]] {
        let plain = run(sampling);
        assert_eq!(plain.get("speculation"), None);
        for how in [&["--spec", "auto"][..], &["--spec-ngram", "--spec-n", "3", "--spec-m", "8"]] {
            let drafted = run(&[sampling, how].concat());
            assert_eq!(drafted["token_ids"], plain["token_ids"], "{how:?}");
            assert_eq!(drafted["text"], plain["text"]);
            if sampling == ["--greedy"] {
                let told = &drafted["speculation"];
                let count = |key: &str| told[key].as_u64().unwrap();
                assert!(count("accepted") > 20 && count("accepted") <= count("drafted"), "{told}");
                assert!(count("passes") < 130 && told["tokens_per_pass"].as_f64().unwrap() > 1.1, "{told}");
            }
        }
    }
}

#[test]
fn statistics_tell_of_drafts() {
    let prompt = repeats();
    let args = [
        "run",
        "--ignore-eos",
        "-n",
        "150",
        "--greedy",
        "--repetition-penalty",
        "1",
        "--spec",
        "auto",
        "-p",
        &prompt,
    ];
    let ran = anemone(&args).ok();
    assert!(ran.stderr.contains(" accepted, ") && ran.stderr.contains(" tok a pass"), "{}", ran.stderr);
}

#[test]
fn lengths_and_biases_that_cannot_be_are_refused() {
    for (args, parts) in [
        (&["--spec-m", "4"][..], &["--spec-m", "--spec auto"][..]),
        (&["--spec", "auto", "--spec-m", "65"], &["--spec-m", "65", "64"]),
        (&["--spec-ngram", "--spec-n", "0"], &["--spec-n", "1 to 64"]),
        (&["--spec-ngram", "--spec-n", "100"], &["--spec-n", "100", "1 to 64"]),
        (&["--spec", "auto", "--spec-n", "3"], &["--spec-n", "--spec-ngram"]),
        (&["--spec-ngram", "--spec-n", "9", "--spec-m", "8"], &["--spec-m", "9 or more"]),
        (&["--logit-bias", "1:1000"], &["--logit-bias", "ID:X"]),
        (&["--logit-bias", "99999:1"], &["--logit-bias", "99999", "2048"]),
    ] {
        let ran = anemone(&[&["run", "-n", "2"][..], args].concat());
        assert_ne!(ran.code, Some(0), "{args:?}");
        assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn biases_and_least_lengths_do_what_they_say() {
    // Barred for good, the word that is likeliest never comes.
    let plain = run(&["--greedy"]);
    let first = plain["token_ids"][0].as_u64().unwrap();
    let barred = run(&["--greedy", "--logit-bias", &format!("{first}:-100")]);
    let ids = barred["token_ids"].as_array().unwrap();
    assert!(ids.iter().all(|id| id.as_u64() != Some(first)), "{ids:?}");
    let long =
        anemone(&["run", "--json", "-q", "--seed", "1", "-n", "400", "--min-new-tokens", "380"]).json();
    assert!(long["token_ids"].as_array().unwrap().len() >= 380);
}

#[test]
fn bench_measures_verification_and_company() {
    let report = anemone(&[
        "bench",
        "--pp",
        "0",
        "--tg",
        "4",
        "--vf",
        "5",
        "--batch",
        "3",
        "--repeat",
        "2",
        "--probe-mib",
        "0",
        "--json",
    ])
    .json();
    let names: Vec<&str> =
        report["tests"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tg4", "vf5", "bt3"]);
    assert!(report["tests"].as_array().unwrap().iter().all(|t| t["median"].as_f64().unwrap() > 0.0));
    anemone(&["bench", "--batch", "999"]).fails(1, &["--batch 999", "256"]);
}
