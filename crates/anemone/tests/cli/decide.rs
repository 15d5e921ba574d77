use crate::support::{anemone, anemone_with, shared};

const ANGRY: &str = r#"{"angry": {"type": "noul", "instructions": "Is the sender angry?"}}"#;

#[test]
fn the_built_in_model_answers_without_arguments() {
    let ran = anemone(&["decide"]).ok();
    assert!(ran.stdout.starts_with("intent  choice  travel notification (0.99"), "{}", ran.stdout);
    assert!(ran.stdout.contains("abroad  noul    yes (0.95"), "{}", ran.stdout);
    let result = anemone(&["decide", "--raw"]).json();
    assert_eq!(result["answers"]["intent"]["choice"], "travel notification");
    assert_eq!(result["rows"][1]["id"], "abroad");
    assert_eq!(result["rows"][0]["logits"].as_array().unwrap().len(), 4);
}

#[test]
fn held_out_questions_score_as_on_the_model_card() {
    let Some(dir) = shared("models/laya-demo") else { return };
    let file = dir.join("heldout.jsonl");
    let report = anemone(&["decide", "-q", "--batch", file.to_str().unwrap(), "--score", "--json"]).json();
    let right = |set: &str| (report["sets"][set]["right"].clone(), report["sets"][set]["questions"].clone());
    assert_eq!(right("choice/clinc"), (141.into(), 150.into()));
    assert_eq!(right("choice/banking"), (74.into(), 80.into()));
    assert_eq!(right("choice/sib"), (52.into(), 88.into()));
    assert_eq!(right("noul/clinc"), (91.into(), 100.into()));
    assert_eq!(right("score/sts"), (31.into(), 80.into()));
    // The reference is another f32 sum; five answers lie within 1e-6 of a tie of the fourth decimal.
    let (equal, close) = (report["equal"].as_u64().unwrap(), report["within_one_digit"].as_u64().unwrap());
    assert!(equal >= 492 && equal + close == 498, "{equal} {close}");
}

#[test]
fn states_and_questions_come_from_where_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).to_str().unwrap().to_owned()
    };
    let (questions, text) = (file("q.json", ANGRY), file("s.txt", "where is my parcel"));
    let plain = anemone(&["decide", "--json", "-s", "where is my parcel", "-Q", ANGRY]).json();
    assert_eq!(anemone(&["decide", "--json", "-s", &format!("@{text}"), "-Q", &questions]).json(), plain);
    let piped =
        anemone_with(b"where is my parcel", &["decide", "--json", "-s", "-", "-Q", &questions]).json();
    assert_eq!(piped, plain);
    let keyed = file("k.json", &format!(r#"{{"questions": {ANGRY}, "state_key": "body"}}"#));
    let placed = anemone(&["decide", "--json", "-s", "where is my parcel", "-Q", &keyed]).json();
    let spelt = anemone(&["decide", "--json", "-s", r#"{"body": "where is my parcel"}"#, "-Q", ANGRY]).json();
    assert_eq!(placed, spelt);
    assert_ne!(placed, plain);
}

#[test]
fn gates_budgets_and_windows() {
    let with = |extra: &[&str]| {
        let long = "where is my parcel ".repeat(120);
        anemone(&[&["decide", "--json", "-s", &long, "-Q", ANGRY][..], extra].concat()).json()
    };
    let plain = with(&[]);
    assert!(
        plain["usage"]["truncated"].as_bool().unwrap()
            && plain["answers"]["angry"].get("abstention").is_none()
    );
    let gated = with(&["--min-confidence", r#"{"noul:2": 1.0}"#]);
    assert_eq!(gated["answers"]["angry"]["abstention"], "abstained");
    assert_eq!(with(&["--max-len", "64"])["usage"]["input_tokens"], 64);
    let long = with(&["--long", "--window", "100"]);
    assert!(long["usage"]["windows"].as_u64().unwrap() > 4, "{long}");
    assert_eq!(long["usage"]["truncated"], 0);
}

#[test]
fn a_batch_is_answered_line_by_line() {
    let lines = b"{\"state\": \"a\", \"id\": 7}\n\n{\"state\": {\"b\": 1}}\n";
    let ran = anemone_with(lines, &["decide", "-q", "--batch", "-", "-Q", ANGRY]).ok();
    let answers: Vec<serde_json::Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((answers.len(), &answers[0]["id"]), (2, &7.into()));
    let alone = anemone(&["decide", "--json", "-s", "a", "-Q", ANGRY]).json();
    assert_eq!(answers[0]["answers"], alone["answers"]);

    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.jsonl");
    let bad = b"{\"state\": \"a\"}\n{\"state\": null, \"id\": 2}\nnope\n";
    let args = ["decide", "-q", "--batch", "-", "-Q", ANGRY, "-o", out.to_str().unwrap()];
    anemone_with(bad, &args).fails(1, &["line 2", "the state is null"]);
    assert!(!out.exists(), "half a result is none");
    let ran = anemone_with(bad, &[&args[..], &["--keep-going"]].concat());
    assert_eq!(ran.code, Some(1));
    let text = std::fs::read_to_string(&out).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert!(text.lines().nth(1).unwrap().starts_with(r#"{"id":2,"error":"#), "{text}");
    assert!(text.contains("not a JSON value at byte 0"));
}

#[test]
fn mistakes_are_named() {
    let fails = |args: &[&str], fragments: &[&str]| {
        anemone(&[&["decide", "-q"], args].concat()).fails(1, fragments);
    };
    fails(&["-s", "x"], &["--questions", "say what is asked"]);
    fails(&["-Q", ANGRY], &["--state", "--batch"]);
    fails(&["-s", "x", "-Q", "{nope"], &["--questions", "at byte 1"]);
    fails(&["-s", "x", "-Q", "/no/such"], &["--questions /no/such", "check the path"]);
    fails(&["-s", "x", "-Q", r#"{"q": {"type": "bool"}}"#], &["question 'q'", "unknown type 'bool'"]);
    fails(&["-s", "x", "-Q", ANGRY, "--min-confidence", "2"], &["--min-confidence 2", "[0.0, 1.0]"]);
    fails(&["-s", "x", "-Q", ANGRY, "--max-len", "9000"], &["max_len is 9000", "1 to 512"]);
    fails(&["-s", "x", "-Q", ANGRY, "--max-len", "8"], &["0 of 2 options fit 8 tokens"]);
    fails(&["-s", "x", "-Q", ANGRY, "--calibration", "/dev/null"], &["--calibration", "not a JSON object"]);
    fails(&["-s", "x", "-Q", ANGRY, "-m", "/no/such/model"], &["--model /no/such/model", "no such file"]);
    if let Some(dir) = shared("fixtures/lfm-tiny/lfm2-tiny-tied") {
        fails(&["-s", "x", "-Q", ANGRY, "-m", dir.to_str().unwrap()], &["a language model", "`run`"]);
    }
    fails(&["--batch", "/no/such"], &["--batch /no/such", "check the path"]);
    fails(&["--preset", "email"], &["--preset without --state"]);
    anemone(&["decide", "-s", "x", "-Q", ANGRY, "--score"]).fails(2, &["--score", "--state"]);
    fails(
        &["-m", "a=x", "-m", "a=x", "-s", "x", "-Q", ANGRY],
        &["--model a=x", "another model of this name"],
    );
}

#[test]
fn what_is_left_out_of_a_question_is_said() {
    let long = format!(
        r#"{{"q": {{"type": "noul", "instructions": "Is the sender angry{}?"}}}}"#,
        " and loud".repeat(300)
    );
    let said = "question 'q': ";
    let note = |ran: crate::support::Ran| {
        let ran = ran.ok();
        assert_eq!(ran.stderr.lines().filter(|line| line.starts_with(said)).count(), 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("do not fit and are not read; shorten them"), "{}", ran.stderr);
        let count = ran.stderr.split(said).nth(1).unwrap().split(' ').next().unwrap();
        assert!(count.parse::<usize>().unwrap() > 300, "{}", ran.stderr);
    };
    note(anemone(&["decide", "-s", "x", "-Q", &long]));
    note(anemone_with(b"{\"state\": \"x\"}\n{\"state\": \"y\"}\n", &["decide", "-b", "-", "-Q", &long]));
    assert_eq!(anemone(&["decide", "-s", "x", "-Q", ANGRY]).ok().stderr, "");
    assert_eq!(anemone(&["decide", "-q", "-s", "x", "-Q", &long]).ok().stderr, "");
}

#[test]
fn a_line_that_is_no_text_stops_no_other() {
    let args = ["decide", "-b", "-", "-Q", ANGRY, "--keep-going"];
    let ran = anemone_with(b"{\"state\": \"\xff\"}\n{\"state\": \"x\"}\n", &args);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].contains("line 1: not UTF-8 at byte 11") && lines[1].contains("answers"), "{lines:?}");
}

#[test]
fn several_models_are_routed_between() {
    let Some(dir) = shared("fixtures/laya-tiny") else { return };
    let model = |name: &str| format!("{name}={}", dir.join(name).display());
    let (english, multilingual) = (model("english"), model("multilingual"));
    let with = |state: &str, extra: &[&str]| {
        anemone(&[&["decide", "-m", &english, "-m", &multilingual, "-s", state][..], extra].concat())
    };
    let german = "Die Rechnung wurde letzte Woche zweimal abgebucht und ich möchte mein Geld zurück.";
    let route = with(german, &["--explain", "--json"]).json();
    assert_eq!(route["model"], "multilingual");
    assert!(route["reason"].as_str().unwrap().contains("'de'"), "{route}");
    let text = "The invoice was billed twice last week.";
    assert!(with(text, &["--explain"]).ok().stdout.starts_with("model   english ("));
    let routed = with(text, &["--json", "-Q", ANGRY]).json();
    assert_eq!(routed["routing"]["model"], "english");
    let english_dir = dir.join("english");
    let alone =
        anemone(&["decide", "--json", "-m", english_dir.to_str().unwrap(), "-s", text, "-Q", ANGRY]).json();
    assert_eq!(routed["answers"], alone["answers"]);
    let lines = format!("{{\"state\": \"{text}\"}}\n{{\"state\": \"{german}\"}}\n");
    let args = ["decide", "-q", "-m", &english, "-m", &multilingual, "-b", "-", "-Q", ANGRY];
    let ran = anemone_with(lines.as_bytes(), &args).ok();
    assert!(ran.stdout.lines().next().unwrap().contains(r#""routing":{"model":"english""#), "{}", ran.stdout);
    assert!(ran.stdout.lines().nth(1).unwrap().contains(r#""routing":{"model":"multilingual""#));
    anemone(&["decide", "-m", "./a", "-m", "./b", "-s", "x", "-Q", ANGRY])
        .fails(1, &["--model ./a", "needs a name"]);
}

#[test]
fn presets_tournaments_and_shortlists() {
    let triage = anemone(&["decide", "--json", "-s", "the printer is broken", "--preset", "triage"]).json();
    let spelt =
        anemone(&["decide", "--json", "-s", r#"{"message": "the printer is broken"}"#, "--preset", "triage"]);
    assert_eq!(triage, spelt.json());
    assert!(triage["answers"].as_object().unwrap().len() >= 4);
    anemone(&["decide", "-s", "x", "--preset", "nope"]).fails(2, &["--preset", "triage"]);
    let labels: Vec<String> = (0..40).map(|i| format!("\"label {i}\"")).collect();
    let many = format!(
        r#"{{"q": {{"type": "choice", "instructions": "Which one?", "criteria": [{}]}}}}"#,
        labels.join(",")
    );
    let with = |extra: &[&str]| {
        anemone(&[&["decide", "--json", "-s", "label 7", "-Q", &many][..], extra].concat()).json()
    };
    let rounds = with(&["--tournament", "8"]);
    assert_eq!(rounds["tournament"]["q"]["rounds"], 1);
    assert_eq!(rounds["answers"]["q"]["probabilities"].as_object().unwrap().len(), 40);
    let short = with(&["--shortlist", "5"]);
    assert_eq!(short["answers"]["q"]["probabilities"].as_object().unwrap().len(), 5);
    assert_eq!(short["shortlist"]["q"]["n"], 40);
}
