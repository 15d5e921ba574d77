//! Chats and completions of the built-in model, against the session's own generation.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use anemone_checkpoint::Checkpoint;
use anemone_cpu::{Arithmetic, Engine, Layout, Model, Options as CpuOptions};
use anemone_server::{App, Language, LanguageModel, Options};
use anemone_session::{
    BatchOptions, ChatTemplate, EngineError, Event, GenerateOptions, Generation, Message, ModelId, Part,
    PrefixCache, RenderOptions, SamplingParams, TemplateTokens, Together, Tokenizer, generate,
};
use axum::body::Body;
use serde_json::{Value, json};

use crate::support::{Answer, models, post, runtime, send};

pub(crate) fn assets() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../anemone/assets")
}

pub(crate) fn engine() -> Engine {
    let checkpoint = Checkpoint::open(&assets().join("stories-lfm2")).unwrap();
    let weights = checkpoint.weights();
    let stack = anemone_models::load(checkpoint.config(), &*weights).unwrap();
    let model = Arc::new(Model::load(stack, &*weights, Layout::Mapped).unwrap());
    // f32, so that no machine's products differ from another's in what is generated.
    let options = CpuOptions {
        threads: 2,
        arithmetic: Arithmetic::Exact,
        context_len: Some(512),
        ..CpuOptions::default()
    };
    Engine::new(model, options).unwrap()
}

pub(crate) fn tokenizer() -> Tokenizer {
    let checkpoint = Checkpoint::open(&assets().join("stories-lfm2")).unwrap();
    Tokenizer::from_bytes(&checkpoint.tokenizer_json().unwrap(), checkpoint.tokenizer_config()).unwrap()
}

pub(crate) fn template(tokenizer: &Tokenizer) -> ChatTemplate {
    let source = std::fs::read_to_string(assets().join("stories-lfm2/chat_template.jinja")).unwrap();
    ChatTemplate::new(&source, TemplateTokens::from(tokenizer)).unwrap()
}

pub(crate) fn defaults() -> GenerateOptions {
    GenerateOptions { sampling: SamplingParams::greedy(), stop_ids: vec![2, 7], ..GenerateOptions::default() }
}

pub(crate) fn app(batch: BatchOptions) -> App {
    app_with(defaults(), batch)
}

fn app_with(defaults: GenerateOptions, batch: BatchOptions) -> App {
    let tokenizer = tokenizer();
    let template = template(&tokenizer);
    let model = LanguageModel {
        name: "stories".into(),
        engine: engine(),
        tokenizer,
        template,
        defaults,
        batch,
        max_context: 2048,
    };
    let language = Language::start(model).unwrap();
    App::new(models(assets(), &[("demo", "laya-demo")]), vec![language.into()], Options::default()).unwrap()
}

/// What the session itself generates.
fn expected(prompt: &[u32], options: &GenerateOptions) -> Generation {
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    generate(&mut engine(), &tokenizer(), prompt, options, quiet).unwrap()
}

fn chat_prompt(text: &str) -> Vec<u32> {
    let tokenizer = tokenizer();
    let text = template(&tokenizer).render(&[Message::user(text)], &RenderOptions::default()).unwrap();
    tokenizer.encode(&text, false).unwrap()
}

fn body(answer: &Answer) -> Value {
    serde_json::from_str(&answer.text).unwrap()
}

/// The events of a stream, without the last word.
fn events(answer: &Answer) -> Vec<Value> {
    let lines: Vec<&str> = answer.text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!(*last, "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

pub(crate) const CHAT: &str = "/v1/chat/completions";
const COMPLETE: &str = "/v1/completions";

pub(crate) fn user(text: &str, more: impl Into<Value>) -> Body {
    let more: Value = more.into();
    let mut request = json!({"messages": [{"role": "user", "content": text}]});
    for (key, value) in more.as_object().unwrap() {
        request[key] = value.clone();
    }
    Body::from(request.to_string())
}

#[test]
fn a_chat_is_what_the_session_generates_streamed_or_not() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let prompt = chat_prompt("tell me a story about a fox.");
        for (more, options) in [
            (json!({"max_tokens": 30}), GenerateOptions { max_new_tokens: Some(30), ..defaults() }),
            (
                json!({"max_completion_tokens": 25, "temperature": 0.9, "top_p": 0.8, "seed": 5, "presence_penalty": 0.5}),
                GenerateOptions {
                    max_new_tokens: Some(25),
                    sampling: SamplingParams { temperature: 0.9, top_p: 0.8, seed: Some(5), presence_penalty: 0.5, ..SamplingParams::greedy() },
                    ..defaults()
                },
            ),
            (
                json!({"stop": [" little", "zzz"]}),
                GenerateOptions { stop_strings: vec![" little".into(), "zzz".into()], ..defaults() },
            ),
        ] {
            let expected = expected(&prompt, &options);
            let answer = post(&app, CHAT, user("tell me a story about a fox.", more.clone())).await;
            let whole = body(&answer);
            let choice = &whole["choices"][0];
            assert_eq!(choice["message"]["content"], expected.text, "{more}");
            assert_eq!(choice["finish_reason"], expected.finish_reason.as_str());
            assert_eq!(whole["usage"]["prompt_tokens"], prompt.len());
            assert_eq!(whole["usage"]["completion_tokens"], expected.token_ids.len());
            assert_eq!((&whole["object"], &whole["model"]), (&json!("chat.completion"), &json!("stories")));

            let mut streamed = more;
            streamed["stream"] = true.into();
            streamed["stream_options"] = json!({"include_usage": true});
            let answer = post(&app, CHAT, user("tell me a story about a fox.", streamed)).await;
            assert_eq!(answer.header("content-type"), Some("text/event-stream"));
            let events = events(&answer);
            let text: String = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
            assert_eq!(text, expected.text);
            assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
            let (usage, finish) = (&events[events.len() - 1], &events[events.len() - 2]);
            assert_eq!(usage["usage"], whole["usage"]);
            assert_eq!((&usage["choices"], &finish["choices"][0]["finish_reason"]), (&json!([]), &choice["finish_reason"]));
            assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
        }
    });
}

#[test]
fn several_choices_share_a_prompt_and_have_seeds_of_their_own() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let prompt = chat_prompt("hi");
        let more = json!({"n": 3, "temperature": 1, "seed": 7, "max_tokens": 12});
        let answer = body(&post(&app, CHAT, user("hi", more.clone())).await);
        let mut completion = 0;
        for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
            let sampling =
                SamplingParams { temperature: 1.0, seed: Some(7 + index as u64), ..SamplingParams::greedy() };
            let expected =
                expected(&prompt, &GenerateOptions { sampling, max_new_tokens: Some(12), ..defaults() });
            assert_eq!(
                (&choice["index"], &choice["message"]["content"]),
                (&json!(index), &json!(expected.text))
            );
            completion += expected.token_ids.len();
        }
        let usage = &answer["usage"];
        assert_eq!(
            (&usage["prompt_tokens"], &usage["completion_tokens"]),
            (&json!(prompt.len()), &json!(completion))
        );
        // Streamed, the choices come between each other, and each is whole.
        let mut streamed = more;
        streamed["stream"] = true.into();
        let events = events(&post(&app, CHAT, user("hi", streamed)).await);
        for choice in answer["choices"].as_array().unwrap() {
            let own = events.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == choice["index"]);
            let text: String = own.filter_map(|c| c["delta"]["content"].as_str()).collect();
            assert_eq!(text, choice["message"]["content"].as_str().unwrap());
        }
    });
}

#[test]
fn completions_echo_and_tell_log_probabilities() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let request = |more: Value| {
            let mut request = json!({"prompt": "once upon a time", "max_tokens": 5, "temperature": 0});
            for (key, value) in more.as_object().unwrap() {
                request[key] = value.clone();
            }
            request.to_string()
        };
        let ids = tokenizer().encode("once upon a time", true).unwrap();
        let plain = body(&post(&app, COMPLETE, request(json!({}))).await);
        let generation = expected(&ids, &GenerateOptions { max_new_tokens: Some(5), ..defaults() });
        assert_eq!(plain["choices"][0]["text"], generation.text);
        assert_eq!(plain["choices"][0]["logprobs"], Value::Null);

        let echoed = body(&post(&app, COMPLETE, request(json!({"echo": true, "logprobs": 2}))).await);
        let choice = &echoed["choices"][0];
        assert_eq!(choice["text"], format!("once upon a time{}", generation.text));
        let logprobs = &choice["logprobs"];
        let list = |key: &str| logprobs[key].as_array().unwrap().clone();
        assert!(
            ["tokens", "token_logprobs", "top_logprobs", "text_offset"]
                .iter()
                .all(|key| list(key).len() == ids.len() + 5)
        );
        assert_eq!((&list("token_logprobs")[0], &list("top_logprobs")[0]), (&Value::Null, &Value::Null));
        assert!(list("token_logprobs")[1..].iter().all(|p| p.as_f64().unwrap() <= 0.0));
        // Generated greedily, each token is the likeliest of its place.
        for at in ids.len()..ids.len() + 5 {
            let best = list("top_logprobs")[at]
                .as_object()
                .unwrap()
                .values()
                .map(|p| p.as_f64().unwrap())
                .fold(f64::MIN, f64::max);
            assert_eq!(list("token_logprobs")[at].as_f64().unwrap(), best);
        }
        // Prompts of all kinds, several at once, in their order.
        let several = body(
            &post(&app, COMPLETE, request(json!({"prompt": ["once upon a time", "one day"], "n": 2}))).await,
        );
        let texts: Vec<&str> =
            several["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
        assert_eq!(
            (texts.len(), texts[0], texts[1]),
            (4, generation.text.as_str(), generation.text.as_str())
        );
        let tokens = body(&post(&app, COMPLETE, request(json!({"prompt": [ids, [1, 416]]}))).await);
        assert_eq!(tokens["choices"][0]["text"], generation.text);
        // The best of several is the likeliest one.
        let warm = json!({"temperature": 1, "seed": 3, "logprobs": 0, "best_of": 4, "n": 4});
        let all = body(&post(&app, COMPLETE, request(warm)).await);
        let best =
            body(&post(&app, COMPLETE, request(json!({"temperature": 1, "seed": 3, "best_of": 4}))).await);
        assert_eq!(best["choices"].as_array().unwrap().len(), 1);
        assert_eq!(best["choices"][0]["text"], all["choices"][0]["text"]);
        let mean = |choice: &Value| {
            let values: Vec<f64> = choice["logprobs"]["token_logprobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_f64().unwrap())
                .collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        let means: Vec<f64> = all["choices"].as_array().unwrap().iter().map(mean).collect();
        assert!(means.is_sorted_by(|a, b| a >= b), "{means:?}");
    });
}

#[test]
fn a_beginning_that_is_known_is_not_computed_again() {
    runtime().block_on(async {
        let cache = PrefixCache::new(ModelId::of([]), 64 << 20);
        let defaults = GenerateOptions { prefix_cache: Some(cache), ..defaults() };
        let app = app_with(defaults, BatchOptions::default());
        let long = "once upon a time there was a fox and a bear. ".repeat(14);
        let ask = || user(&long, json!({"max_tokens": 8}));
        let (first, second) = (body(&post(&app, CHAT, ask()).await), body(&post(&app, CHAT, ask()).await));
        let cached =
            |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        assert_eq!(first["choices"], second["choices"]);
        assert_eq!(cached(&first), 0);
        let prompt = chat_prompt(&long).len() as u64;
        // All but what lies behind the last block's end.
        assert!(
            cached(&second) > 0 && cached(&second) + 128 >= prompt - 1,
            "{} of {prompt}",
            cached(&second)
        );
    });
}

#[test]
fn tokens_go_both_ways() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let ids = tokenizer().encode("once upon", true).unwrap();
        let found = body(&post(&app, "/tokenize", r#"{"model": "stories", "prompt": "once upon"}"#).await);
        assert_eq!((&found["tokens"], &found["count"]), (&json!(ids), &json!(ids.len())));
        let bare =
            body(&post(&app, "/tokenize", r#"{"prompt": "once upon", "add_special_tokens": false}"#).await);
        assert_eq!(bare["tokens"], json!(ids[1..]));
        let chat =
            body(&post(&app, "/tokenize", r#"{"messages": [{"role": "user", "content": "hi"}]}"#).await);
        assert_eq!(chat["tokens"], json!(chat_prompt("hi")));
        let text = body(&post(&app, "/detokenize", json!({"tokens": ids}).to_string()).await);
        assert_eq!(text["prompt"], "<|startoftext|>once upon");
    });
}

/// Route, request, and what it is refused with: status, field, words of the message.
const WRONG: [(&str, &str, u16, Option<&str>, &str); 45] = [
    (CHAT, r"[]", 400, None, "object"),
    (CHAT, r#"{"messages": "#, 400, None, "JSON"),
    (CHAT, r#"{"messages": []}"#, 400, Some("messages"), "not empty"),
    (CHAT, r#"{"messages": [{"role": "cook", "content": "x"}]}"#, 400, Some("messages[0].role"), "cook"),
    (CHAT, r#"{"messages": [{"content": "x"}]}"#, 400, Some("messages[0].role"), "must be given"),
    (CHAT, r#"{"messages": [{"role": "user"}]}"#, 400, Some("messages[0].content"), "string"),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
        400,
        Some("messages[0].content[0].type"),
        "image_url",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "temperature": 3}"#,
        400,
        Some("temperature"),
        "0 to 2",
    ),
    (CHAT, r#"{"messages": [{"role": "user", "content": "x"}], "n": 0}"#, 400, Some("n"), "1 to 128"),
    (CHAT, r#"{"messages": [{"role": "user", "content": "x"}], "n": 5}"#, 400, Some("n"), "1 to 4"),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "max_token": 5}"#,
        400,
        Some("max_token"),
        "no field",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "stop": ["", "b"]}"#,
        400,
        Some("stop[0]"),
        "empty",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"99999": 1}}"#,
        400,
        Some("logit_bias.99999"),
        "2047",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}"#,
        400,
        Some("top_logprobs"),
        "logprobs",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "stream_options": {}}"#,
        400,
        Some("stream_options"),
        "stream",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "functions": []}"#,
        400,
        Some("functions"),
        "tools",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "model": "gpt"}"#,
        404,
        Some("model"),
        "stories",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "tools": [], "tool_choice": "required"}"#,
        400,
        Some("tool_choice"),
        "at least one",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "a b"}}]}"#,
        400,
        Some("tools[0].function.name"),
        "letters, digits",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f",
            "parameters": {"properties": {"q": {"type": "colour"}}}}}]}"#,
        400,
        Some("tools"),
        "the parameters of \"f\": #/properties/q",
    ),
    (
        CHAT,
        r##"{"messages": [{"role": "user", "content": "x"}],
            "response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}"##,
        400,
        Some("response_format"),
        "no text can be written",
    ),
    (CHAT, r#"{"messages": ["x"]}"#, 400, Some("messages[0]"), "must be an object with 'role'"),
    (
        COMPLETE,
        r#"{"prompt": ["a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a"], "best_of": 4}"#,
        400,
        Some("prompt"),
        "72 continuations",
    ),
    (COMPLETE, r#"{"prompt": ["a", "b"], "n": 128}"#, 400, Some("n"), "1 to 4"),
    (COMPLETE, r#"{"prompt": "x", "suffix": "y"}"#, 400, Some("suffix"), "not supported"),
    (COMPLETE, r"{}", 400, Some("prompt"), "list"),
    (COMPLETE, r#"{"prompt": []}"#, 400, Some("prompt"), "empty"),
    (COMPLETE, r#"{"prompt": [99999]}"#, 400, Some("prompt"), "99999"),
    (COMPLETE, r#"{"prompt": "x", "best_of": 1, "n": 2}"#, 400, Some("best_of"), "'n' (2)"),
    (COMPLETE, r#"{"prompt": "x", "best_of": 5}"#, 400, Some("best_of"), "1 to 4"),
    (
        COMPLETE,
        r#"{"prompt": "x", "stop_token_ids": [1, 5000]}"#,
        400,
        Some("stop_token_ids[1]"),
        "0 to 2047",
    ),
    (COMPLETE, r#"{"prompt": "x", "max_tokens": "5"}"#, 400, Some("max_tokens"), "0 or more"),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": -1}"#,
        400,
        Some("max_completion_tokens"),
        "0 or more",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "reasoning_effort": 3}"#,
        400,
        Some("reasoning_effort"),
        "'xhigh' or 'max'",
    ),
    (CHAT, r#"{"messages": [{"role": "user", "content": "x"}], "user": 3}"#, 400, Some("user"), "a string"),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "metadata": {"a": 1}}"#,
        400,
        Some("metadata.a"),
        "a string",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "prediction": "x"}"#,
        400,
        Some("prediction"),
        "an object",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "verbosity": "loud"}"#,
        400,
        Some("verbosity"),
        "'low', 'medium'",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "service_tier": "first"}"#,
        400,
        Some("service_tier"),
        "'auto'",
    ),
    (
        CHAT,
        r#"{"messages": [{"role": "user", "content": "x"}], "store": 1}"#,
        400,
        Some("store"),
        "true or false",
    ),
    ("/v1/responses", r#"{"input": "x", "background": true}"#, 400, Some("background"), "false"),
    (
        "/v1/responses",
        r#"{"input": [{"type": "item_reference", "id": "x"}]}"#,
        400,
        Some("input[0].type"),
        "item_reference",
    ),
    (COMPLETE, MANY, 400, Some("prompt"), "1 to 42 prompts where each has 3 continuations"),
    ("/tokenize", r"{}", 400, Some("prompt"), "messages"),
    ("/detokenize", r#"{"tokens": [1, 5000]}"#, 400, Some("tokens[1]"), "2047"),
];

/// 43 prompts with three continuations each.
const MANY: &str = r#"{"n": 3, "prompt": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a",
    "a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]}"#;

#[test]
fn what_is_wrong_is_named() {
    runtime().block_on(async {
        let app = app(BatchOptions { max_sequences: 4, ..BatchOptions::default() });
        let long = "a b c d e f g h ".repeat(200);
        for (path, request, status, param, words) in WRONG {
            let answer = post(&app, path, request.to_owned()).await;
            let error = &body(&answer)["error"];
            assert_eq!(answer.status.as_u16(), status, "{request}: {error}");
            assert_eq!(error["param"].as_str(), param, "{request}: {error}");
            assert!(error["message"].as_str().unwrap().contains(words), "{request}: {error}");
            assert_eq!(error["type"], "invalid_request_error");
        }
        let answer = post(&app, CHAT, user(&long, json!({}))).await;
        let error = &body(&answer)["error"];
        assert_eq!(
            (answer.status.as_u16(), &error["code"]),
            (400, &json!("context_length_exceeded")),
            "{error}"
        );
    });
}

#[test]
fn a_form_that_proves_too_large_on_the_way_is_the_requests_fault() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let wide: serde_json::Map<String, Value> =
            (0..3000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
        let schema = json!({
            "type": "object", "required": ["a", "b"], "additionalProperties": false,
            "properties": {"a": {"const": 1}, "b": {"type": "object", "properties": wide, "additionalProperties": false}},
        });
        let format = json!({"type": "json_schema", "json_schema": {"name": "wide", "schema": schema}});
        let answer = post(&app, CHAT, user("hi", json!({"response_format": format}))).await;
        let error = body(&answer)["error"].clone();
        assert_eq!((answer.status.as_u16(), &error["type"]), (400, &json!("invalid_request_error")), "{error}");
        assert!(error["message"].as_str().unwrap().contains("max is"), "{error}");
        let streamed = post(&app, CHAT, user("hi", json!({"response_format": format, "stream": true}))).await;
        let last = streamed.text.trim_end().rsplit("data: ").next().unwrap();
        assert_eq!(serde_json::from_str::<Value>(last).unwrap()["error"], error);
    });
}

#[test]
fn language_models_do_not_decide() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let ask = |model: &str| {
            json!({"model": model, "state": "x", "questions": {"q": {"type": "noul", "instructions": "x"}}}).to_string()
        };
        let refused = post(&app, "/v1/systemone", ask("stories")).await;
        assert_eq!(refused.status.as_u16(), 422, "{}", refused.text);
        assert!(refused.detail().contains("is a language model, which cannot decide; use demo,"), "{}", refused.text);
        assert_eq!(post(&app, "/v1/systemone", ask("jev-1")).await.status.as_u16(), 200);
        let request = json!({"model": "stories", "input": "x", "questions": [{"type": "predicate", "instructions": "x"}]});
        let refused = post(&app, "/v1/decisions", request.to_string()).await;
        let error = &body(&refused)["error"];
        assert_eq!((refused.status.as_u16(), &error["param"]), (400, &json!("model")), "{error}");
    });
}

#[test]
fn tokens_end_an_answer() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let ids = tokenizer().encode("once upon a time", true).unwrap();
        let whole = expected(&ids, &GenerateOptions { max_new_tokens: Some(12), ..defaults() });
        // The first token that is none of those before it.
        let at = (3..12).find(|&i| !whole.token_ids[..i].contains(&whole.token_ids[i])).unwrap();
        let stop = whole.token_ids[at];
        for ignore in [false, true] {
            let request = json!({"prompt": "once upon a time", "max_tokens": 12, "temperature": 0,
                "stop_token_ids": [stop], "ignore_eos": ignore});
            let answer = body(&post(&app, COMPLETE, request.to_string()).await);
            let options = GenerateOptions { stop_ids: vec![stop], max_new_tokens: Some(12), ..defaults() };
            let expected = expected(&ids, &options);
            assert_eq!(answer["choices"][0]["text"], expected.text);
            assert_eq!(answer["choices"][0]["finish_reason"], "stop");
            assert_eq!(answer["usage"]["completion_tokens"], expected.token_ids.len());
            assert!(expected.token_ids.len() <= at + 1);
        }
    });
}

#[test]
fn without_a_decision_model_its_routes_say_so() {
    runtime().block_on(async {
        let app = App::new(models(assets(), &[]), Vec::new(), Options::default()).unwrap();
        for path in ["/v1/systemone", "/v1/systemone/batch", "/v1/decisions"] {
            let answer = post(&app, path, "{}").await;
            assert_eq!(answer.status.as_u16(), 404, "{path}: {}", answer.text);
            assert!(answer.text.contains("no decision model; start it with one"), "{path}: {}", answer.text);
        }
    });
}

#[test]
fn a_client_that_goes_frees_its_place_and_one_too_many_is_told_so() {
    runtime().block_on(async {
        let app = app(BatchOptions { max_sequences: 1, max_waiting: 1, ..BatchOptions::default() });
        let endless = json!({"max_tokens": 450, "ignore_eos": true});
        let mut going = Vec::new();
        for _ in 0..2 {
            let (app, request) = (app.clone(), user("hi", endless.clone()));
            going.push(tokio::spawn(async move { post(&app, CHAT, request).await }));
            tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        }
        let refused = post(&app, CHAT, user("hi", json!({"max_tokens": 1}))).await;
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (503, Some("1")));
        for task in going {
            task.abort();
        }
        // As soon as the model's thread has seen that nobody listens.
        for _ in 0..200 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            if post(&app, CHAT, user("hi", json!({"max_tokens": 1}))).await.status.is_success() {
                let metrics = send(&app, "GET", "/metrics", &[], Body::empty()).await.text;
                assert!(metrics.contains("anemone_sequences_finished_total{model=\"stories\"}"), "{metrics}");
                assert!(metrics.contains("anemone_time_to_first_token_seconds_bucket"), "{metrics}");
                return;
            }
        }
        panic!("the places were not given back");
    });
}

#[test]
fn offsets_are_places_in_the_text() {
    runtime().block_on(async {
        let app = app(BatchOptions::default());
        let request = json!({"prompt": "é é once upon a", "max_tokens": 8, "temperature": 1, "seed": 4, "echo": true,
            "logprobs": 1, "n": 2});
        let whole = body(&post(&app, COMPLETE, request.to_string()).await);
        let mut streamed = request;
        streamed["stream"] = true.into();
        let pieces = events(&post(&app, COMPLETE, streamed.to_string()).await);
        let prompt = tokenizer().encode("é é once upon a", true).unwrap().len();
        for choice in whole["choices"].as_array().unwrap() {
            let text = choice["text"].as_str().unwrap();
            let list = |key: &str| choice["logprobs"][key].as_array().unwrap().clone();
            let (tokens, offsets) = (list("tokens"), list("text_offset"));
            assert!(tokens.len() > prompt && offsets.len() == tokens.len(), "{choice}");
            assert_eq!((&tokens[0], &offsets[0]), (&json!("<|startoftext|>"), &json!(0)));
            for (token, offset) in tokens.iter().zip(&offsets).skip(1) {
                let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap());
                let rest: String = text.chars().skip(offset as usize).collect();
                assert!(token.contains('\u{fffd}') || rest.starts_with(token), "{token:?} at {offset}: {rest}");
            }
            // Streamed, the lists come in pieces.
            let own: Vec<&Value> =
                pieces.iter().map(|e| &e["choices"][0]).filter(|c| c["index"] == choice["index"]).collect();
            for key in ["tokens", "text_offset", "token_logprobs", "top_logprobs"] {
                let joined: Vec<Value> =
                    own.iter().flat_map(|c| c["logprobs"][key].as_array().unwrap().clone()).collect();
                assert_eq!(joined, list(key), "{key}");
            }
        }
    });
}

/// An engine that panics when it is used.
pub(crate) struct Panics;

impl anemone_session::Engine for Panics {
    fn vocab_size(&self) -> usize {
        2048
    }

    fn context_len(&self) -> usize {
        64
    }

    fn position(&self) -> usize {
        0
    }

    fn feed(&mut self, _: &[u32]) -> Result<&[f32], EngineError> {
        panic!("on purpose")
    }

    fn feed_all(&mut self, _: &[u32]) -> Result<&[f32], EngineError> {
        panic!("on purpose")
    }

    fn rewind(&mut self, _: usize) -> Result<(), EngineError> {
        Ok(())
    }

    fn reset(&mut self) {}
}

impl Together for Panics {
    fn sibling(&self) -> Option<Self> {
        Some(Self)
    }

    fn copy_from(&mut self, _: &Self) -> Result<(), EngineError> {
        Ok(())
    }

    fn feed_together(
        _: &mut [Part<'_, Self>],
        _: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Vec<Result<(), EngineError>> {
        panic!("on purpose")
    }
}

#[test]
fn a_model_that_panics_is_told_of_and_nobody_waits_for_it() {
    runtime().block_on(async {
        let tokenizer = tokenizer();
        let template = template(&tokenizer);
        let (defaults, batch) = (defaults(), BatchOptions::default());
        let model = LanguageModel {
            name: "bad".into(),
            engine: Panics,
            tokenizer,
            template,
            defaults,
            batch,
            max_context: 2048,
        };
        let languages = vec![Language::start(model).unwrap().into()];
        let app =
            App::new(models(assets(), &[("demo", "laya-demo")]), languages, Options::default()).unwrap();
        let health = async || send(&app, "GET", "/health", &[], Body::empty()).await;
        assert!(!health().await.text.contains("failed"));
        let streamed = post(&app, CHAT, user("hi", json!({"stream": true}))).await;
        assert!(
            streamed.text.contains("the model failed") && !streamed.text.contains("[DONE]"),
            "{}",
            streamed.text
        );
        for _ in 0..2 {
            assert_eq!(post(&app, CHAT, user("hi", json!({}))).await.status.as_u16(), 500);
        }
        for _ in 0..200 {
            let told = health().await;
            if told.text.contains(r#""failed":{"bad":"its thread has ended"}"#) {
                assert_eq!(told.status.as_u16(), 200, "the other model is well");
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        panic!("health does not tell");
    });
}
