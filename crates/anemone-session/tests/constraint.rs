//! Constraints under a model of random logits: whatever it completes is what was asked for.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anemone_session::{
    Answer, CallMarks, CallSyntax, Constraint as _, ConstraintOptions, ConstraintVocabulary, Engine,
    EngineError, FinishReason, GenerateOptions, Generation, Grammar, Guide, OutputOptions, OutputParser,
    PassCost, Reasoning, SamplingParams, Sequence, Speculation, StopCause, Tokenizer, ToolChoice, ToolFormat,
    Tools, run as run_sequence,
};
use serde_json::{Map, Value, json};

/// Every byte, some longer tokens as real vocabularies have them, and special tokens.
fn tokenizer() -> Tokenizer {
    const LONGER: [&str; 34] = [
        "{\"",
        "\":",
        "\": ",
        "\", \"",
        "\"}",
        ", ",
        "[\"",
        "\"]",
        "]}",
        "true",
        "false",
        "null",
        "True",
        "None",
        "name",
        "\"name\": \"",
        "arg",
        "uments",
        "12",
        "345",
        "the ",
        " of",
        "</",
        "think",
        ">\n",
        ">x",
        "><",
        "\n\n",
        "  ",
        "get_",
        "weather",
        "='",
        "')",
        "é",
    ];
    const SPECIAL: [&str; 4] = ["<|im_end|>", "<|tool_call_start|>", "<|tool_call_end|>", "<|pad|>"];
    let mut vocab = Map::new();
    let spelled = |text: &[u8]| -> String { text.iter().map(|&b| byte_char(b)).collect() };
    for byte in 0..=255u8 {
        vocab.insert(spelled(&[byte]), vocab.len().into());
    }
    for text in LONGER {
        vocab.insert(spelled(text.as_bytes()), vocab.len().into());
    }
    let mut added = Vec::new();
    for text in SPECIAL {
        let id = vocab.len() + added.len();
        added.push(json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}));
    }
    let level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let file = json!({"version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": level,
        "post_processor": null, "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}});
    Tokenizer::from_bytes(file.to_string().as_bytes(), None).unwrap()
}

/// The printable character byte-level files write a byte as.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return byte as char;
    }
    let before = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + before).unwrap()
}

fn vocabulary(tokenizer: &Tokenizer) -> ConstraintVocabulary {
    ConstraintVocabulary::new(tokenizer, &tokenizer.stop_ids(&[])).unwrap()
}

/// The tokenizer of LFM2.5, with its 64,400 tokens.
fn lfm() -> Option<Tokenizer> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/tokenizers/lfm2.5/tokenizer.json");
    let Ok(bytes) = std::fs::read(path) else {
        let _ = writeln!(std::io::stderr(), "skipped: shared/ is not present");
        return None;
    };
    Some(Tokenizer::from_bytes(&bytes, None).unwrap())
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

const PARAMETER_END: &str = "\n</parameter>\n";

/// Draws any allowed token, with a liking for those that close something; the text if it comes to an end.
fn run(guide: &mut Guide, tokenizer: &Tokenizer, random: &mut Random, most: usize) -> Option<String> {
    let stops = tokenizer.stop_ids(&[]);
    let closing: Vec<u32> = ["\"", "]", "}", "'", ")", "\"}", "</", "\n"]
        .iter()
        .filter_map(|text| tokenizer.encode(text, false).unwrap().first().copied())
        .chain(tokenizer.token_to_id("<|tool_call_end|>"))
        .collect();
    let mut ids: Vec<u32> = Vec::new();
    while ids.len() < most && !guide.is_complete() {
        let forced = guide.forced().unwrap();
        let mask = guide.mask().unwrap();
        let allows = |id: u32| mask.is_none_or(|mask| mask.allows(id));
        if let (Some(&first), Some(mask)) = (forced.first(), mask) {
            assert_eq!(mask.iter().collect::<Vec<_>>(), [first], "what is forced is all that is allowed");
        }
        let likely: Vec<u32> = stops.iter().chain(&closing).copied().filter(|&id| allows(id)).collect();
        // Nobody would end a parameter by chance.
        let tail = tokenizer.decode(&ids[ids.len().saturating_sub(16)..], false).unwrap();
        let ending = (1..PARAMETER_END.len()).rev().find(|&len| tail.ends_with(&PARAMETER_END[..len]));
        let ending = ending.map(|len| tokenizer.encode(&PARAMETER_END[len..=len], false).unwrap()[0]);
        let id = if let Some(id) = ending.filter(|&id| allows(id) && random.below(10) > 0) {
            id
        } else if !likely.is_empty() && random.below(3) == 0 {
            likely[random.below(likely.len())]
        } else {
            match mask {
                Some(mask) => {
                    let count = mask.count();
                    assert!(count > 0, "nothing is allowed after {:?}", tokenizer.decode(&ids, false));
                    mask.iter().nth(random.below(count)).unwrap()
                }
                None => random.below(tokenizer.vocab_size()) as u32,
            }
        };
        assert_eq!(guide.valid_prefix(&[id]).unwrap(), 1, "{id}");
        if stops.contains(&id) {
            return Some(tokenizer.decode(&ids, false).unwrap());
        }
        guide.accept(id).unwrap();
        ids.push(id);
    }
    guide.is_complete().then(|| tokenizer.decode(&ids, false).unwrap())
}

fn guide(vocabulary: &ConstraintVocabulary, grammar: &Grammar) -> Guide {
    let options = ConstraintOptions { answer: Some(grammar), ..ConstraintOptions::default() };
    vocabulary.guide(&options).unwrap().unwrap()
}

/// The text as JSON; none for a number no double can hold, which JSON's grammar allows and readers do not.
fn value(text: &str) -> Option<Value> {
    match serde_json::from_str(text) {
        Ok(value) => Some(value),
        Err(e) => {
            assert!(e.to_string().starts_with("number out of range"), "{text}: {e}");
            None
        }
    }
}

/// How many of `rounds` texts were completed; each is valid.
fn completed(
    vocabulary: &ConstraintVocabulary,
    tokenizer: &Tokenizer,
    schema: &Value,
    rounds: usize,
) -> usize {
    let validator = jsonschema::draft202012::new(schema).unwrap();
    let first = guide(vocabulary, &Grammar::JsonSchema(schema.clone()));
    let mut random = Random(11);
    let mut count = 0;
    for _ in 0..rounds {
        let Some(text) = run(&mut first.clone(), tokenizer, &mut random, 300) else { continue };
        let Some(value) = value(&text) else { continue };
        assert!(validator.is_valid(&value), "{schema}\n{text}");
        count += 1;
    }
    count
}

#[test]
fn completed_texts_are_valid_under_our_schemas() {
    let schemas: Vec<Value> = serde_json::from_str(include_str!("data/schemas.json")).unwrap();
    let small = tokenizer();
    let small_vocabulary = vocabulary(&small);
    let mut count = 0;
    for schema in &schemas {
        let done = completed(&small_vocabulary, &small, schema, 12);
        assert!(done > 0, "nothing was completed under {schema}");
        count += done;
    }
    assert!(count > schemas.len() * 8, "{count}");
    let Some(large) = lfm() else { return };
    let large_vocabulary = vocabulary(&large);
    let done: usize = schemas.iter().map(|schema| completed(&large_vocabulary, &large, schema, 2)).sum();
    assert!(done > schemas.len(), "{done}");
}

/// The JSON-Schema-Test-Suite, where a build is told its path: what is accepted as a schema is also kept to.
#[test]
fn completed_texts_are_valid_under_the_test_suite() {
    let Some(suite) = option_env!("JSON_SCHEMA_TEST_SUITE") else {
        let _ =
            writeln!(std::io::stderr(), "skipped: JSON_SCHEMA_TEST_SUITE was not set when this was built");
        return;
    };
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let (mut all, mut supported, mut texts) = (0, 0, 0);
    let folder = PathBuf::from(suite).join("tests/draft2020-12");
    let mut files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "json"));
    files.sort();
    assert!(files.len() > 30, "{}", folder.display());
    let mut random = Random(5);
    for file in files {
        let groups: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        for group in groups {
            all += 1;
            let schema = &group["schema"];
            // The validator divides doubles, by which 293.212 is no multiple of 0.0001.
            if schema.to_string().contains("\"multipleOf\":0.") {
                continue;
            }
            let grammar = Grammar::JsonSchema(schema.clone());
            let options = ConstraintOptions { answer: Some(&grammar), ..ConstraintOptions::default() };
            let Ok(Some(first)) = vocabulary.guide(&options) else { continue };
            let Ok(validator) = jsonschema::draft202012::new(schema) else { continue };
            supported += 1;
            for _ in 0..8 {
                let Some(text) = run(&mut first.clone(), &tokenizer, &mut random, 150) else { continue };
                let Some(value) = value(&text) else { continue };
                assert!(validator.is_valid(&value), "{}: {schema}\n{text}", file.display());
                texts += 1;
            }
        }
    }
    let _ =
        writeln!(std::io::stderr(), "{supported} of {all} schemas are supported; {texts} texts are valid");
    assert!(supported > 100 && texts > 500);
}

#[test]
fn regexes_and_grammars_are_kept_to() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let mut random = Random(3);
    let first = guide(&vocabulary, &Grammar::Regex("(ab|cd){2,3}-[0-9]{2}é?".into()));
    for _ in 0..40 {
        let text = run(&mut first.clone(), &tokenizer, &mut random, 50).unwrap();
        let (letters, digits) = text.split_once('-').unwrap();
        assert!(
            matches!(letters.len(), 4 | 6) && letters.replace("ab", "").replace("cd", "").is_empty(),
            "{text}"
        );
        assert!(digits.trim_end_matches('é').parse::<u8>().is_ok(), "{text}");
    }
    let lark = "start: sum\nsum: term (\"+\" term)*\nterm: NUMBER | \"(\" sum \")\"\nNUMBER: /[0-9]{1,3}/\n";
    let first = guide(&vocabulary, &Grammar::Lark(lark.into()));
    let mut done = 0;
    for _ in 0..60 {
        let Some(text) = run(&mut first.clone(), &tokenizer, &mut random, 60) else { continue };
        let open = text.matches('(').count();
        assert!(open == text.matches(')').count() && !text.contains("++") && !text.contains("()"), "{text}");
        done += 1;
    }
    assert!(done > 20, "{done}");
    let object = guide(&vocabulary, &Grammar::JsonObject);
    let done = (0..20).filter_map(|_| run(&mut object.clone(), &tokenizer, &mut random, 300));
    assert!(
        done.map(|text| assert!(serde_json::from_str::<Map<String, Value>>(&text).is_ok(), "{text}")).count()
            > 5
    );
}

#[test]
fn what_is_wrong_is_named_with_its_place() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let error = |grammar: Grammar| {
        let options = ConstraintOptions { answer: Some(&grammar), ..ConstraintOptions::default() };
        let e = vocabulary.guide(&options).unwrap_err().to_string();
        assert!(!e.contains('\n') && e.len() < 600, "{e}");
        e
    };
    let schema = json!({"type": "object", "properties": {"ok": {"type": "string"},
        "a/b": {"type": "array", "items": {"type": "string", "pattern": "("}}}});
    let e = error(Grammar::JsonSchema(schema));
    assert!(e.starts_with("schema: #/properties/a~1b/items: "), "{e}");
    let e = error(Grammar::JsonSchema(json!({"anyOf": [{}, {"not": {"type": "string"}}]})));
    assert!(e.starts_with("schema: #/anyOf/1: ") && e.contains("not"), "{e}");
    let e = error(Grammar::JsonSchema(json!({"type": "array", "items": {"$ref": "#/$defs/none"}})));
    assert!(e.starts_with("schema: #/items: ") && e.contains("none"), "{e}");
    for endless in [json!({"$ref": "#"}), json!({"anyOf": [{"$ref": "#"}]})] {
        let e = error(Grammar::JsonSchema(endless));
        assert!(e.starts_with("schema: ") && e.contains("no text can be written"), "{e}");
    }
    // Whether the library can negate it depends on how it was built; what it says when it cannot is one plain line.
    let beyond = Grammar::JsonSchema(json!({"type": "integer", "minimum": -1e300, "maximum": 1e300}));
    let options = ConstraintOptions { answer: Some(&beyond), ..ConstraintOptions::default() };
    if let Err(e) = vocabulary.guide(&options) {
        let e = e.to_string();
        assert!(e.starts_with("schema: ") && !e.contains("backtrace") && !e.contains("panic"), "{e}");
    }
    let e = error(Grammar::JsonSchema(json!({"$ref": "http://example.com/schema"})));
    assert!(e.starts_with("schema: "), "{e}");
    for (grammar, start) in [
        (Grammar::JsonSchema(json!(3)), "schema: is not an object"),
        (Grammar::JsonSchema(json!(false)), "schema: false allows nothing"),
        (Grammar::JsonSchema(json!({"type": "colour"})), "schema: "),
        (Grammar::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 1})), "schema: "),
        (Grammar::Regex("a(".into()), "regex: "),
        (Grammar::Regex("a".repeat(1 << 17)), "regex: is 131072 bytes"),
        (Grammar::Lark("start: nothing".into()), "grammar: "),
        (Grammar::Lark(String::new()), "grammar: is empty"),
        (Grammar::Lark("begin: \"a\"".into()), "grammar: "),
        (Grammar::Lark("start: start".into()), "grammar: no text can be written"),
        (Grammar::Lark("start: <|nope|>".into()), "grammar: "),
        (Grammar::Lark("start: \"a\n".into()), "grammar: "),
    ] {
        let e = error(grammar.clone());
        assert!(e.starts_with(start), "{grammar:?}: {e}");
    }
    let named = ConstraintOptions { choice: ToolChoice::Named("g".into()), ..ConstraintOptions::default() };
    assert!(vocabulary.guide(&named).unwrap_err().to_string().starts_with("tool_choice: names \"g\""));
    let required = ConstraintOptions { choice: ToolChoice::Required, ..ConstraintOptions::default() };
    assert!(vocabulary.guide(&required).unwrap_err().to_string().starts_with("tool_choice: is required"));
    assert!(vocabulary.guide(&ConstraintOptions::default()).unwrap().is_none());
    let tools =
        Tools::from_json(&[json!({"name": "f", "parameters": {"properties": {"a": {"not": {}}}}})]).unwrap();
    let broken = ConstraintOptions { tools: Some(&tools), ..ConstraintOptions::default() };
    let e = vocabulary.guide(&broken).unwrap_err().to_string();
    assert!(e.starts_with("tools: the parameters of \"f\": #/properties/a: ") && e.contains("not"), "{e}");
}

#[test]
fn hostile_grammars_cost_bounded_time() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let mut random = Random(9);
    let start = Instant::now();
    for grammar in [
        Grammar::Regex("(a{1,5000}){1,5000}".into()),
        Grammar::Regex("((((a*)*)*)*)*b".into()),
        Grammar::Regex(".*a.{40}".into()),
        Grammar::Regex("(.*a.{15}|.*b.{16})*c".into()),
        Grammar::Lark("start: a a\na: a b | b a | b\nb: \"x\" | \"\"\n".into()),
        Grammar::Lark("start: start start | \"a\"".into()),
        Grammar::JsonSchema(json!({"type": "string", "maxLength": 1_000_000_000})),
        Grammar::JsonSchema(json!({"type": "array", "minItems": 1_000_000_000})),
        Grammar::JsonSchema(json!({"type": "string", "pattern": "^(a{1,999}){1,999}$"})),
        Grammar::JsonSchema((0..100).fold(json!({}), |inner, _| json!({"items": inner}))),
        Grammar::JsonSchema(json!({"$ref": "#"})),
        Grammar::JsonSchema(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
    ] {
        let options = ConstraintOptions { answer: Some(&grammar), ..ConstraintOptions::default() };
        let Ok(Some(mut guide)) = vocabulary.guide(&options) else { continue };
        for _ in 0..40 {
            // A limit that is reached is an error, never a wrong answer.
            let Ok(Some(mask)) = guide.mask() else { break };
            let count = mask.count();
            let Some(id) = mask.iter().nth(random.below(count.max(1))) else { break };
            if tokenizer.is_special(id) || guide.accept(id).is_err() || guide.is_complete() {
                break;
            }
        }
    }
    assert!(start.elapsed() < Duration::from_mins(1), "{:?}", start.elapsed());
}

fn weather() -> Tools {
    let tools = [
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["c", "f", "it's"]}, "exact": {"type": "boolean"},
            "near": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
            "at": {"$ref": "#/$defs/point"}, "none": {"type": "null"}},
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"],
                "additionalProperties": false}},
            "required": ["city", "unit"], "additionalProperties": false}}}),
        json!({"name": "now"}),
        json!({"name": "Calendar.add", "parameters": {"type": "object", "properties": {
            "title": {"type": "string", "maxLength": 10}, "when": {"type": "string", "pattern": "^[0-9]{2}:[0-9]{2}$"}},
            "additionalProperties": false}}),
    ];
    Tools::from_json(&tools).unwrap()
}

fn formats() -> Vec<ToolFormat> {
    let mut formats = Vec::new();
    for syntax in [CallSyntax::Pythonic, CallSyntax::Json, CallSyntax::Xml] {
        formats.extend([CallMarks::Special, CallMarks::Tags].map(|marks| ToolFormat { syntax, marks }));
    }
    formats
}

fn parse(format: ToolFormat, tools: &Tools, reasoning_open: bool, text: &str) -> Answer {
    let options = OutputOptions { format, tools: tools.clone(), reasoning_open, ..OutputOptions::default() };
    let mut parser = OutputParser::new(options);
    let mut answer = Answer::default();
    for delta in parser.push(text).iter().chain(&parser.finish()) {
        answer.push(delta);
    }
    answer
}

/// Calls are of declared tools and their arguments valid.
fn check_calls(tools: &Tools, answer: &Answer, text: &str) {
    for call in &answer.calls {
        let tool = tools.get(&call.name).unwrap_or_else(|| panic!("{}: {text}", call.name));
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
        assert!(
            jsonschema::draft202012::new(&tool.parameters).unwrap().is_valid(&arguments),
            "{text}\n{arguments}"
        );
    }
}

#[test]
fn required_calls_are_calls_in_every_format() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let tools = weather();
    let mut random = Random(2);
    for format in formats() {
        for choice in [ToolChoice::Required, ToolChoice::Named("get_weather".into())] {
            let named = choice != ToolChoice::Required;
            let options = ConstraintOptions {
                tools: Some(&tools),
                choice,
                parallel: true,
                format,
                ..ConstraintOptions::default()
            };
            let first = vocabulary.guide(&options).unwrap().unwrap();
            let mut done = 0;
            for _ in 0..25 {
                let Some(text) = run(&mut first.clone(), &tokenizer, &mut random, 600) else { continue };
                let answer = parse(format, &tools, false, &text);
                assert!(
                    !answer.calls.is_empty() && answer.content.is_empty(),
                    "{format:?}: {text}\n{answer:?}"
                );
                assert!(
                    !named || (answer.calls.len() == 1 && answer.calls[0].name == "get_weather"),
                    "{text}"
                );
                check_calls(&tools, &answer, &text);
                done += 1;
            }
            assert!(done >= 10, "{format:?}: {done}");
        }
    }
}

/// Feeds a text token by token, each of which must be allowed, and gives the rest that was not.
fn feed<'t>(guide: &mut Guide, tokenizer: &Tokenizer, text: &'t str) -> &'t str {
    let mut at = 0;
    for id in tokenizer.encode(text, false).unwrap() {
        if guide.mask().unwrap().is_some_and(|mask| !mask.allows(id)) {
            assert!(guide.accept(id).is_err(), "what the mask forbids is refused");
            return &text[at..];
        }
        guide.accept(id).unwrap();
        at += tokenizer.decode(&[id], false).unwrap().len();
    }
    ""
}

#[test]
fn reasoning_is_free_and_what_follows_is_not() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let grammar = Grammar::JsonSchema(json!({"const": {"a": 1}}));
    let with = |reasoning| {
        let options = ConstraintOptions { answer: Some(&grammar), reasoning, ..ConstraintOptions::default() };
        vocabulary.guide(&options).unwrap().unwrap()
    };
    let ends = |mut guide: Guide, text: &str| {
        let rest = feed(&mut guide, &tokenizer, text).to_owned();
        (rest, guide.is_complete())
    };
    let good = (String::new(), true);
    assert_eq!(ends(with(Reasoning::None), "{\"a\": 1}"), good);
    assert_eq!(ends(with(Reasoning::None), "<think>").0, "<think>");
    assert_eq!(ends(with(Reasoning::Open), "{\"b\"} </thin </think>\n\n{\"a\": 1}"), good);
    assert_eq!(ends(with(Reasoning::Open), "hm</think>{\"a\": 1}"), good);
    assert_eq!(ends(with(Reasoning::Open), "hm</think>No").0, "No");
    assert_eq!(ends(with(Reasoning::Allowed), "<think>hm</think>\n{\"a\": 1}"), good);
    assert_eq!(ends(with(Reasoning::Allowed), "{\"a\": 1}"), good);
    assert_eq!(ends(with(Reasoning::Allowed), "<thin{").0, "{");
    assert_eq!(ends(with(Reasoning::Allowed), "No").0, "No");
    // A token that ends the mark and goes on with text would slip past the grammar.
    let mut open = with(Reasoning::Open);
    assert_eq!(feed(&mut open, &tokenizer, "</think"), "");
    let slips = [">x", "><"].map(|text| tokenizer.token_to_id(text).unwrap());
    let mask = open.mask().unwrap().unwrap();
    assert!(
        slips.iter().all(|&id| !mask.allows(id))
            && mask.count() == tokenizer.vocab_size() - 2 - tokenizer.stop_ids(&[]).len()
    );
    assert!(open.accept(slips[0]).is_err() && open.valid_prefix(&slips).unwrap() == 0);
    let ids = tokenizer.encode(">\n", false).unwrap();
    assert_eq!(open.valid_prefix(&ids).unwrap(), 1);
    open.accept(tokenizer.token_to_id(">Ċ").unwrap()).unwrap();
    assert!(open.forced().unwrap().is_empty());
    assert_eq!(feed(&mut open, &tokenizer, "{"), "");
    assert_eq!(tokenizer.decode(&open.forced().unwrap(), false).unwrap(), "\"a\": 1}");
    // Only so much white space comes between.
    let mut open = with(Reasoning::Open);
    assert_eq!(feed(&mut open, &tokenizer, "hm</think>    "), " ");
    assert_eq!(feed(&mut open, &tokenizer, "{"), "");
    // Reasoning that ended the output would leave it without what was asked for.
    let stop = tokenizer.stop_ids(&[])[0];
    let mut open = with(Reasoning::Open);
    assert_eq!(feed(&mut open, &tokenizer, "hm"), "");
    assert!(!open.mask().unwrap().unwrap().allows(stop) && open.accept(stop).is_err());
    assert_eq!(open.valid_prefix(&[65, stop]).unwrap(), 1);
    let mut opened = with(Reasoning::Allowed);
    assert_eq!(feed(&mut opened, &tokenizer, "<think>hm"), "");
    assert!(!opened.mask().unwrap().unwrap().allows(stop));
    // A grammar that itself may begin like the mark.
    let tags = Grammar::Regex("<(think|tag)y?>x".into());
    let options = ConstraintOptions {
        answer: Some(&tags),
        reasoning: Reasoning::Allowed,
        ..ConstraintOptions::default()
    };
    let guide = vocabulary.guide(&options).unwrap().unwrap();
    for text in ["<tag>x", "<thinky>x", "<think>x</think><tagy>x"] {
        assert_eq!(ends(guide.clone(), text), good, "{text}");
    }
}

#[test]
fn free_text_may_turn_to_calls() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let tools = weather();
    for format in formats() {
        let with = |reasoning, answer| {
            let options = ConstraintOptions {
                tools: Some(&tools),
                format,
                reasoning,
                answer,
                parallel: true,
                ..ConstraintOptions::default()
            };
            vocabulary.guide(&options).unwrap().unwrap()
        };
        let now = Map::new();
        let call = format.write(&[("now", &now)]);
        let mut guide = with(Reasoning::Open, None);
        let (start, end) = (format.start(), format.end());
        assert_eq!(
            feed(&mut guide, &tokenizer, &format!("a {start} b</think>Let me see. ")),
            "",
            "{format:?}"
        );
        assert!(guide.mask().unwrap().is_none() && !guide.is_complete());
        let stop = tokenizer.stop_ids(&[])[0];
        assert!(with(Reasoning::Open, None).mask().unwrap().is_none_or(|mask| mask.allows(stop)));
        assert_eq!(feed(&mut guide, &tokenizer, &call), "", "{format:?} {call}");
        assert_eq!(feed(&mut guide, &tokenizer, &format!(" And {call}.")), "", "{format:?}");
        let unknown = format.write(&[("other", &now)]);
        assert_ne!(feed(&mut guide, &tokenizer, &unknown), "", "{format:?}");
        // With a schema the answer is one or the other.
        let grammar = Grammar::JsonSchema(json!({"type": "integer", "maximum": 9, "minimum": 0}));
        for text in ["7", &call] {
            let mut guide = with(Reasoning::None, Some(&grammar));
            assert_eq!(feed(&mut guide, &tokenizer, text), "", "{format:?} {text}");
        }
        let mut guide = with(Reasoning::None, Some(&grammar));
        assert_ne!(feed(&mut guide, &tokenizer, "Hello"), "", "{end}");
    }
}

/// Logits that are a hash of all tokens held.
struct Hash {
    held: Vec<u32>,
    vocab: usize,
    logits: Vec<f32>,
    passes: usize,
}

impl Engine for Hash {
    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn context_len(&self) -> usize {
        4096
    }

    fn position(&self) -> usize {
        self.held.len()
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.feed_all(tokens)?;
        Ok(&self.logits[self.logits.len() - self.vocab..])
    }

    fn feed_all(&mut self, tokens: &[u32]) -> Result<&[f32], EngineError> {
        self.passes += 1;
        self.logits.clear();
        for &token in tokens {
            self.held.push(token);
            let seed = self
                .held
                .iter()
                .fold(7u64, |hash, &id| (hash ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3));
            let mut random = Random(seed);
            for _ in 0..self.vocab {
                self.logits.push(random.below(1 << 16) as f32 / 8192.0);
            }
        }
        Ok(&self.logits)
    }

    fn rewind(&mut self, position: usize) -> Result<(), EngineError> {
        self.held.truncate(position);
        Ok(())
    }

    fn reset(&mut self) {
        self.held.clear();
    }
}

#[test]
fn generation_keeps_to_it_with_and_without_drafts() {
    let tokenizer = tokenizer();
    let vocabulary = vocabulary(&tokenizer);
    let schema = json!({"type": "object", "properties": {
        "a long name": {"type": "array", "items": {"enum": ["some text", "other text"]}, "minItems": 3, "maxItems": 4},
        "another name": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["a long name", "another name"], "additionalProperties": false});
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let first = guide(&vocabulary, &Grammar::JsonSchema(schema));
    let generate = |sampling: SamplingParams, speculation| {
        let options = GenerateOptions {
            sampling,
            speculation,
            max_new_tokens: Some(400),
            stop_ids: tokenizer.stop_ids(&[]),
            ..GenerateOptions::default()
        };
        let mut engine =
            Hash { held: Vec::new(), vocab: tokenizer.vocab_size() + 3, logits: Vec::new(), passes: 0 };
        let mut sequence = Sequence::new(&engine, &tokenizer, &[65, 66, 67], options)
            .unwrap()
            .with_constraint(Some(Box::new(first.clone())));
        run_sequence(&mut engine, &mut sequence, &mut PassCost::default(), &mut |_| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        (sequence.into_generation().unwrap(), engine.passes)
    };
    let check = |generation: &Generation| {
        assert_eq!(generation.finish_reason, FinishReason::Stop(StopCause::Constraint));
        let value: Value = serde_json::from_str(&generation.text).unwrap();
        assert!(validator.is_valid(&value), "{}", generation.text);
    };
    for seed in 0..20 {
        let params = || SamplingParams { seed: Some(seed), temperature: 0.9, ..SamplingParams::default() };
        check(&generate(params(), Speculation::Off).0);
        check(&generate(params(), Speculation::Auto { most: 16 }).0);
    }
    let (plain, passes) = generate(SamplingParams::greedy(), Speculation::Off);
    let (drafted, fewer) = generate(SamplingParams::greedy(), Speculation::Auto { most: 16 });
    check(&plain);
    assert_eq!(plain.token_ids, drafted.token_ids);
    assert!(fewer * 2 < passes, "what is forced goes through in few passes: {fewer} of {passes}");
}

#[test]
#[ignore = "prints what a token costs; run it in a release build"]
fn cost_per_token() {
    let Some(tokenizer) = lfm() else { return };
    let start = Instant::now();
    let vocabulary = vocabulary(&tokenizer);
    println!(
        "vocabulary of {} tokens: {:.1} ms",
        vocabulary.vocab_size(),
        start.elapsed().as_secs_f64() * 1e3
    );
    let schemas: Vec<Value> = serde_json::from_str(include_str!("data/schemas.json")).unwrap();
    let mut random = Random(1);
    let tools = weather();
    let mut guides: Vec<(String, Guide)> = schemas
        .iter()
        .map(|schema| (schema.to_string(), guide(&vocabulary, &Grammar::JsonSchema(schema.clone()))))
        .collect();
    let options = ConstraintOptions {
        tools: Some(&tools),
        choice: ToolChoice::Required,
        ..ConstraintOptions::default()
    };
    guides.push(("required call".into(), vocabulary.guide(&options).unwrap().unwrap()));
    guides.push(("regex".into(), guide(&vocabulary, &Grammar::Regex("[a-z ]{10,200}[0-9]+".into()))));
    let options =
        ConstraintOptions { tools: Some(&tools), reasoning: Reasoning::Open, ..ConstraintOptions::default() };
    guides.push(("reasoning".into(), vocabulary.guide(&options).unwrap().unwrap()));
    let mut all: Vec<f64> = Vec::new();
    for (name, first) in guides {
        let mut costs = Vec::new();
        for _ in 0..20 {
            let mut guide = first.clone();
            for _ in 0..60 {
                if guide.is_complete() {
                    break;
                }
                let start = Instant::now();
                let mask = guide.mask().unwrap();
                let mut spent = start.elapsed();
                let id = match mask {
                    Some(mask) => mask.iter().nth(random.below(mask.count())).unwrap(),
                    None => random.below(vocabulary.vocab_size()) as u32,
                };
                if tokenizer.stop_ids(&[]).contains(&id) {
                    break;
                }
                let start = Instant::now();
                guide.accept(id).unwrap();
                spent += start.elapsed();
                costs.push(spent.as_secs_f64() * 1e6);
            }
        }
        costs.sort_by(f64::total_cmp);
        let mean = costs.iter().sum::<f64>() / costs.len() as f64;
        let (half, most) = (costs[costs.len() / 2], costs[costs.len() - 1]);
        println!("{mean:8.1} us mean {half:8.1} median {most:8.1} most  {}", &name[..name.len().min(80)]);
        all.extend(costs);
    }
    println!("all: {:.1} us mean over {} tokens", all.iter().sum::<f64>() / all.len() as f64, all.len());
}
