use super::*;
use crate::fake::{Call, FakeEngine, tokenizer};

/// Ids of the fake tokenizer for letters, space and the two bytes of é.
fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, false).unwrap()
}

fn greedy() -> GenerateOptions {
    GenerateOptions { sampling: SamplingParams::greedy(), stop_ids: vec![0], ..GenerateOptions::default() }
}

/// Runs a script after the prompt "p" and checks what holds for every generation.
fn run(script: &[u32], options: &GenerateOptions) -> Generation {
    let mut engine = FakeEngine::scripted(32, 1, script);
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let generation = generate(&mut engine, &tokenizer(), &ids("p"), options, &mut |event| {
        match event {
            Event::Text(piece) => text.push_str(piece),
            Event::Token { id, logprob } => {
                assert!(logprob <= 0.0);
                tokens.push(id);
            }
            Event::Prefill { .. } => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(generation.text, text);
    assert_eq!(generation.token_ids, tokens);
    assert_eq!(generation.usage.completion_tokens, tokens.len());
    generation
}

#[test]
fn stops_at_a_stop_token_without_its_text() {
    let mut script = ids("hi there");
    script.push(0);
    for skip_special in [true, false] {
        let g = run(&script, &GenerateOptions { skip_special, ..greedy() });
        assert_eq!((g.text.as_str(), g.token_ids.len()), ("hi there", 8));
        assert_eq!(g.finish_reason, FinishReason::Stop(StopCause::Token(0)));
        assert_eq!(g.finish_reason.as_str(), "stop");
    }
}

#[test]
fn ignore_eos_goes_on() {
    let script = [ids("a"), vec![0], ids("b")].concat();
    let base = GenerateOptions { ignore_eos: true, max_new_tokens: Some(3), ..greedy() };
    assert_eq!(run(&script, &base).text, "ab");
    let g = run(&script, &GenerateOptions { skip_special: false, ..base });
    assert_eq!(g.text, "a</s>b");
    assert_eq!(g.finish_reason, FinishReason::Length(LengthLimit::MaxNewTokens));
}

#[test]
fn stops_at_a_stop_string_across_tokens() {
    let options = GenerateOptions { stop_strings: vec!["xyz".into(), "end".into()], ..greedy() };
    let g = run(&ids("so xy endless"), &options);
    assert_eq!(g.text, "so xy ");
    assert_eq!(g.finish_reason, FinishReason::Stop(StopCause::Text("end".into())));
    assert_eq!(g.token_ids.len(), 9);
    // A beginning held back comes out when the stream ends otherwise.
    let g = run(&[ids("so xy"), vec![0]].concat(), &options);
    assert_eq!(g.text, "so xy");
}

#[test]
fn incomplete_characters_are_flushed() {
    let g = run(&[1, 29, 0], &greedy());
    assert_eq!(g.text, "a\u{fffd}");
    let options = GenerateOptions { max_new_tokens: Some(2), ..greedy() };
    assert_eq!(run(&[29, 30], &options).text, "é");
    let options = GenerateOptions { stop_strings: vec!["é".into()], ..greedy() };
    assert_eq!(run(&[1, 29, 30, 2], &options).text, "a");
    let options = GenerateOptions { stop_strings: vec!["\u{fffd}".into()], ..greedy() };
    let g = run(&[1, 29, 0], &options);
    assert_eq!(
        (g.text.as_str(), g.finish_reason),
        ("a", FinishReason::Stop(StopCause::Text("\u{fffd}".into())))
    );
}

#[test]
fn the_context_is_the_last_limit() {
    let mut engine = FakeEngine::new(6);
    let options = GenerateOptions { stop_ids: vec![], ..greedy() };
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    let g = generate(&mut engine, &tokenizer(), &[1, 2, 3], &options, quiet).unwrap();
    assert_eq!(g.finish_reason, FinishReason::Length(LengthLimit::Context));
    // Six tokens are held; the seventh is drawn but cannot be fed.
    assert_eq!((g.token_ids.len(), engine.position(), g.timings.decode_tokens), (4, 6, 3));
    assert!(g.token_ids.iter().all(|&id| id < 32), "rows without a string were drawn");
    let g = generate(&mut engine, &tokenizer(), &[1; 6], &options, quiet).unwrap();
    assert_eq!(g.token_ids.len(), 1);
}

#[test]
fn prompts_are_checked() {
    let mut engine = FakeEngine::new(6);
    let mut error = |prompt: &[u32], options: &GenerateOptions| {
        let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
        generate(&mut engine, &tokenizer(), prompt, options, quiet).unwrap_err().to_string()
    };
    assert!(error(&[], &greedy()).contains("empty"));
    let e = error(&[1; 7], &greedy());
    assert!(e.contains("7 tokens") && e.contains("holds 6") && e.contains("--ctx"), "{e}");
    assert!(error(&[1, 34], &greedy()).contains("prompt token 1 is id 34"));
    assert!(error(&[1], &GenerateOptions { prefill_chunk: 0, ..greedy() }).contains("prefill_chunk"));
    let hot = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
    assert!(error(&[1], &GenerateOptions { sampling: hot, ..greedy() }).contains("temperature"));
    assert!(engine.calls.is_empty());
}

#[test]
fn prefill_goes_by_chunks() {
    let mut engine = FakeEngine::new(32);
    let options = GenerateOptions { prefill_chunk: 4, max_new_tokens: Some(0), ..greedy() };
    let prompt: Vec<u32> = (1..=10).collect();
    let mut seen = Vec::new();
    let g = generate(&mut engine, &tokenizer(), &prompt, &options, &mut |event| {
        if let Event::Prefill { done, total } = event {
            seen.push((done, total));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(seen, [(4, 10), (8, 10), (10, 10)]);
    let chunks = prompt.chunks(4).map(|c| Call::Feed(c.to_vec()));
    assert_eq!(engine.calls, [Call::Reset].into_iter().chain(chunks).collect::<Vec<_>>());
    assert_eq!((g.token_ids.len(), g.finish_reason.as_str()), (0, "length"));
    assert_eq!((g.timings.prefill_tokens, g.timings.decode_tokens), (10, 0));
    // The split of the prompt does not change the outcome.
    let texts = [1, 3, 512].map(|prefill_chunk| {
        let options = GenerateOptions { prefill_chunk, max_new_tokens: Some(8), ..greedy() };
        let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
        generate(&mut engine, &tokenizer(), &prompt, &options, quiet).unwrap().token_ids
    });
    assert!(texts[0] == texts[1] && texts[1] == texts[2]);
}

#[test]
fn callers_can_break_off_anywhere() {
    let script = ids("hello");
    for last in 0..7 {
        let mut engine = FakeEngine::scripted(32, 2, &script);
        let options = GenerateOptions { prefill_chunk: 1, ..greedy() };
        let (mut events, mut text) = (0, String::new());
        let g = generate(&mut engine, &tokenizer(), &[1, 2], &options, &mut |event| {
            if let Event::Text(piece) = event {
                text.push_str(piece);
            }
            events += 1;
            if events > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
        assert_eq!((g.finish_reason, events, g.text), (FinishReason::Cancelled, last + 1, text));
    }
}

#[test]
fn engine_failures_reset_the_engine() {
    let mut engine = FakeEngine::new(32);
    engine.fail_at = Some(5);
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    let e = generate(&mut engine, &tokenizer(), &[1, 2, 3], &greedy(), quiet).unwrap_err();
    assert_eq!(e.to_string(), "engine: the fake cache is full");
    assert_eq!(engine.position(), 0);
}

#[test]
fn seeds_repeat_texts() {
    let run = |seed| {
        let sampling = SamplingParams { seed, ..SamplingParams::default() };
        run(&[], &GenerateOptions { sampling, stop_ids: vec![], ..GenerateOptions::default() })
    };
    assert_eq!(run(Some(3)).text, run(Some(3)).text);
    let free = run(None);
    assert_eq!(run(Some(free.seed)).text, free.text);
}
