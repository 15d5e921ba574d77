use serde_json::json;

use super::*;

fn tokens() -> TemplateTokens {
    TemplateTokens { bos: "<s>".into(), eos: "</s>".into(), pad: "<pad>".into() }
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, tokens()).unwrap()
}

/// Renders an expression or template over the variable `x`.
fn render(source: &str, x: Value) -> Result<String> {
    let kwargs = Map::from_iter([("x".to_owned(), x)]);
    template(source).render(&[], &RenderOptions { kwargs, ..RenderOptions::default() })
}

fn message(json: Value) -> Message {
    serde_json::from_value(json).unwrap()
}

fn fallback(messages: &[Value], options: &RenderOptions<'_>) -> String {
    let messages: Vec<Message> = messages.iter().cloned().map(message).collect();
    ChatTemplate::fallback(tokens()).unwrap().render(&messages, options).unwrap()
}

#[test]
fn values_print_like_python() {
    // Expected texts are those of jinja2 3.1 with the same settings.
    let x = json!({"t": true, "n": null, "i": 3, "f": 1.0, "big": 1e16, "l": [1, "it's", null, true, 2.5], "d": {"a": {"b": []}}, "s": "<&'\">"});
    for (source, expected) in [
        ("{{ true }} {{ none }} {{ x.t }} {{ x.n }}", "True None True None"),
        ("{{ x.i }} {{ x.f }} {{ x.big }}", "3 1.0 1e+16"),
        ("{{ x.l }}", "[1, \"it's\", None, True, 2.5]"),
        ("{{ x.d }}", "{'a': {'b': []}}"),
        ("{{ x.s }}", "<&'\">"),
        ("{{ 'a' ~ true ~ none ~ 1.0 ~ x.i }}", "aTrueNone1.03"),
        ("{{ x.l | string }}|{{ x.t | string }}", "[1, \"it's\", None, True, 2.5]|True"),
        ("{{ [1, x.n, 2.0] | join(',') }}", "1,None,2.0"),
        ("{{ x.missing }}|{{ x.missing is defined }}", "|False"),
        ("{{ (1, 2) }} {{ (1,) }}", "(1, 2) (1,)"),
        ("{{ x.l[1:] | length }} {{ x.l[-1] }} {{ 'abc'[::-1] }} {{ x.l[:2] }}", "4 2.5 cba [1, \"it's\"]"),
    ] {
        assert_eq!(render(source, x.clone()).unwrap(), expected, "{source}");
    }
}

#[test]
fn tojson_is_json_dumps() {
    let x = json!({"b": 1, "a": [1.0, true, null, "é<>&'\"\n\u{1}\u{7f}"], "e": {}, "f": []});
    for (source, expected) in [
        (
            "{{ x | tojson }}",
            "{\"b\": 1, \"a\": [1.0, true, null, \"é<>&'\\\"\\n\\u0001\u{7f}\"], \"e\": {}, \"f\": []}",
        ),
        ("{{ [x.b, x.e] | tojson(indent=2) }}", "[\n  1,\n  {}\n]"),
        ("{{ x.a[:1] | tojson(indent=4) }}", "[\n    1.0\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", "{\"a\": 2, \"b\": 1}"),
        ("{{ ['é🙂'] | tojson(ensure_ascii=true) }}", "[\"\\u00e9\\ud83d\\ude42\"]"),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ 'a' | tojson }}{{ 1e16 | tojson }}", "\"a\"1e+16"),
    ] {
        assert_eq!(render(source, x.clone()).unwrap(), expected, "{source}");
    }
    assert!(render("{{ nothing | tojson }}", Value::Null).is_err());
    assert!(render("{{ 1 | tojson(colour=1) }}", Value::Null).is_err());
}

#[test]
fn the_environment_has_what_templates_use() {
    let x = json!({"k": "v", "items": "own", "s": " a,b "});
    for (source, expected) in [
        (
            "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        (
            "{% for k, v in x.items() %}{{ k }}{% endfor %}|{{ x.get('q', 'd') }}|{{ x['items'] }}",
            "kitemss|d|own",
        ),
        (
            "{{ x.s.strip().split(',')[-1] }}{{ 'ab'.startswith('a') }}{{ 'ab'.upper() }}{{ 'a-b'.replace('-', '+') }}",
            "bTrueABa+b",
        ),
        (
            "{{ x is mapping }} {{ x.k is string }} {{ [] is iterable }} {{ true is boolean }} {{ none is none }} {{ 1 is number }} {{ [] is sequence }}",
            "True True True True True True True",
        ),
        ("{%- generation -%} in {%- endgeneration -%} !", "in!"),
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{% macro m(a, b='z') %}{{ a }}{{ b }}{% endmacro %}{{ m('y') }}", "yz"),
        ("{{ dict(a=1).a }}{{ bos_token }}{{ eos_token }}{{ pad_token }}", "1<s></s><pad>"),
        ("{{ '</think>' in 'a</think>b' }} {{ 'k' in x }}", "True True"),
        ("a\n", "a"),
    ] {
        assert_eq!(render(source, x.clone()).unwrap(), expected, "{source}");
    }
}

#[test]
fn the_clock_is_the_callers() {
    let t = template("{{ strftime_now('%d %b %Y') }}");
    let now = Some(Timestamp { unix_seconds: 951_782_400, offset_seconds: 0 });
    assert_eq!(t.render(&[], &RenderOptions { now, ..RenderOptions::default() }).unwrap(), "29 Feb 2000");
    assert!(t.render(&[], &RenderOptions::default()).unwrap().len() == 11);
}

#[test]
fn errors_say_what_and_where() {
    let e = ChatTemplate::new("a\n{% if %}", tokens()).unwrap_err().to_string();
    assert!(e.starts_with("chat template, line 2: ") && !e.contains('\n'), "{e}");
    let e = render("{{ raise_exception('roles must alternate') }}", Value::Null).unwrap_err();
    assert!(matches!(&e, Error::TemplateRefused { message } if message == "roles must alternate"), "{e}");
    let inside = "{% macro m() %}{{ raise_exception('deep') }}{% endmacro %}{{ m() }}";
    assert!(matches!(render(inside, Value::Null), Err(Error::TemplateRefused { .. })));
    let e = render("\n\n{{ x.a.b }}", json!({})).unwrap_err().to_string();
    assert!(e.contains("line 3"), "{e}");
    assert!(matches!(ChatTemplate::new(&" ".repeat(2 << 20), tokens()), Err(Error::TemplateSize { .. })));
}

#[test]
fn hostile_templates_end() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ range(10000000000) | list }}",
    ] {
        assert!(render(source, Value::Null).is_err(), "{source}");
    }
    for source in ["{{", "{%", "{#", "{{ '", "{% generation %}", "{% raw %}"] {
        assert!(ChatTemplate::new(source, tokens()).is_err(), "{source}");
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(5000), ")".repeat(5000));
    assert!(ChatTemplate::new(&deep, tokens()).is_err());
}

#[test]
fn messages_are_prepared() {
    let t = template("{% for m in messages %}{{ m | tojson }};{% endfor %}{% if tool_calls %}{% endif %}");
    let m = message(
        json!({"role": "assistant", "content": null, "thinking": "hm", "name": "n", "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": 1}"}}]}),
    );
    assert_eq!(
        t.render(&[m], &RenderOptions::default()).unwrap(),
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}], \"thinking\": \"hm\", \"name\": \"n\", \"reasoning_content\": \"hm\"};"
    );
    for (bad, place) in [
        (json!({"role": "", "content": "x"}), "messages[1].role: "),
        (json!({"role": "user", "content": 3}), "messages[1].content: "),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}),
            "messages[1].tool_calls[0].function.arguments: ",
        ),
        (
            json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}),
            "messages[1].tool_calls[0].function.arguments: ",
        ),
        (json!({"role": "assistant", "tool_calls": [7]}), "messages[1].tool_calls[0].function: "),
    ] {
        let e =
            t.render(&[Message::user("a"), message(bad)], &RenderOptions::default()).unwrap_err().to_string();
        assert!(e.starts_with(place), "{e}");
    }
}

#[test]
fn calls_become_content_where_a_template_ignores_them() {
    let t = template(
        "{% for m in messages %}{{ m.content if m.content is string else m.content | tojson }}{% endfor %}",
    );
    assert!(!t.renders_tool_calls());
    let calls = json!([{"function": {"name": "f", "arguments": {"s": "it's \\", "n": null, "b": true, "l": [1, "é"], "x": 1.5}}}, {"name": "g"}]);
    let m = message(json!({"role": "assistant", "content": "ok ", "tool_calls": calls}));
    assert_eq!(
        t.render(&[m], &RenderOptions::default()).unwrap(),
        r#"ok <|tool_call_start|>[f(s='it\'s \\', n=None, b=True, l=[1, "é"], x=1.5), g()]<|tool_call_end|>"#
    );
    let m = message(
        json!({"role": "assistant", "function_call": {"name": "f", "arguments": "{\"s\": \"a\\nb\"}"}}),
    );
    assert_eq!(
        t.render(&[m], &RenderOptions::default()).unwrap(),
        r"<|tool_call_start|>[f(s='a\nb')]<|tool_call_end|>"
    );
    let m = message(
        json!({"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [{"name": "g"}]}),
    );
    let text = t.render(&[m], &RenderOptions::default()).unwrap();
    assert_eq!(
        text,
        r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "<|tool_call_start|>[g()]<|tool_call_end|>"}]"#
    );
}

#[test]
fn calls_become_content_in_the_form_the_template_speaks_of() {
    let body = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let calls = json!([{"function": {"name": "f", "arguments": {"s": "a", "n": 1}}}, {"name": "g"}]);
    let m = message(json!({"role": "assistant", "content": null, "tool_calls": calls}));
    for (mention, expected) in [
        (
            "<tool_call>",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a\", \"n\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
        ),
        (
            "<tool_call><function=",
            "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
        ),
        ("List of tools: [", "<|tool_call_start|>[f(s='a', n=1), g()]<|tool_call_end|>"),
    ] {
        let t = template(&format!("{body}{{# {mention} #}}"));
        assert_eq!(
            t.render(std::slice::from_ref(&m), &RenderOptions::default()).unwrap(),
            expected,
            "{mention}"
        );
    }
}

#[test]
fn fallback_renders_reasoning_of_the_last_answer() {
    let messages = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "assistant", "content": "b", "reasoning_content": "old"}),
        json!({"role": "user", "content": "c"}),
        json!({"role": "assistant", "content": "d", "reasoning": "new"}),
    ];
    let options = RenderOptions { add_generation_prompt: false, ..RenderOptions::default() };
    let head = "<s><|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n";
    let tail =
        "b<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>new</think>d<|im_end|>\n";
    assert_eq!(fallback(&messages, &options), format!("{head}{tail}"));
    let kwargs = Map::from_iter([("keep_past_thinking".to_owned(), true.into())]);
    let options = RenderOptions { kwargs, ..options };
    assert_eq!(fallback(&messages, &options), format!("{head}<think>old</think>{tail}"));
}

#[test]
fn fallback_takes_anything() {
    assert_eq!(fallback(&[], &RenderOptions::default()), "<s><|im_start|>assistant\n");
    let tools = [json!("raw"), json!({"name": "f"})];
    let options =
        RenderOptions { tools: Some(&tools), add_generation_prompt: false, ..RenderOptions::default() };
    assert_eq!(
        fallback(&[], &options),
        "<s><|im_start|>system\nList of tools: [raw, {\"name\": \"f\"}]<|im_end|>\n"
    );
}
