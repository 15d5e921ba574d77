use super::*;
use crate::fake::{Call, FakeEngine, tokenizer};
use crate::{Constraint, TokenMask};

/// Ids of the fake tokenizer for letters, space and the two bytes of é.
fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, false).unwrap()
}

fn greedy() -> GenerateOptions {
    GenerateOptions { sampling: SamplingParams::greedy(), stop_ids: vec![0], ..GenerateOptions::default() }
}

/// Runs a script after the prompt "p" and checks what holds for every generation.
fn run_script(script: &[u32], options: &GenerateOptions) -> Generation {
    let mut engine = FakeEngine::scripted(32, 1, script);
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let generation = generate(&mut engine, &tokenizer(), &ids("p"), options, &mut |event| {
        match event {
            Event::Text(piece) => text.push_str(piece),
            Event::Token { id, logprob, .. } => {
                assert!(logprob <= 0.0);
                tokens.push(id);
            }
            Event::Prefill { .. } | Event::PromptToken { .. } => {}
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
        let g = run_script(&script, &GenerateOptions { skip_special, ..greedy() });
        assert_eq!((g.text.as_str(), g.token_ids.len()), ("hi there", 8));
        assert_eq!(g.finish_reason, FinishReason::Stop(StopCause::Token(0)));
        assert_eq!(g.finish_reason.as_str(), "stop");
    }
}

#[test]
fn ignore_eos_goes_on() {
    let script = [ids("a"), vec![0], ids("b")].concat();
    let base = GenerateOptions { ignore_eos: true, max_new_tokens: Some(3), ..greedy() };
    assert_eq!(run_script(&script, &base).text, "ab");
    let g = run_script(&script, &GenerateOptions { skip_special: false, ..base });
    assert_eq!(g.text, "a</s>b");
    assert_eq!(g.finish_reason, FinishReason::Length(LengthLimit::MaxNewTokens));
}

#[test]
fn stops_at_a_stop_string_across_tokens() {
    let options = GenerateOptions { stop_strings: vec!["xyz".into(), "end".into()], ..greedy() };
    let g = run_script(&ids("so xy endless"), &options);
    assert_eq!(g.text, "so xy ");
    assert_eq!(g.finish_reason, FinishReason::Stop(StopCause::Text("end".into())));
    assert_eq!(g.token_ids.len(), 9);
    // A beginning held back comes out when the stream ends otherwise.
    let g = run_script(&[ids("so xy"), vec![0]].concat(), &options);
    assert_eq!(g.text, "so xy");
}

#[test]
fn incomplete_characters_are_flushed() {
    let g = run_script(&[1, 29, 0], &greedy());
    assert_eq!(g.text, "a\u{fffd}");
    let options = GenerateOptions { max_new_tokens: Some(2), ..greedy() };
    assert_eq!(run_script(&[29, 30], &options).text, "é");
    let options = GenerateOptions { stop_strings: vec!["é".into()], ..greedy() };
    assert_eq!(run_script(&[1, 29, 30, 2], &options).text, "a");
    let options = GenerateOptions { stop_strings: vec!["\u{fffd}".into()], ..greedy() };
    let g = run_script(&[1, 29, 0], &options);
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
        run_script(&[], &GenerateOptions { sampling, stop_ids: vec![], ..GenerateOptions::default() })
    };
    assert_eq!(run(Some(3)).text, run(Some(3)).text);
    let free = run(None);
    assert_eq!(run(Some(free.seed)).text, free.text);
}

/// Runs a prompt with drafts; the text, the tokens and what the engine holds are those without.
fn drafted(
    options: &GenerateOptions,
    engine: &mut FakeEngine,
    proposer: Option<Box<dyn crate::Propose>>,
) -> Drafts {
    let tokenizer = tokenizer();
    let prompt = ids("abcabcabcabcabcabcabc");
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    let plain = GenerateOptions { speculation: Speculation::Off, ..options.clone() };
    let expected = generate(engine, &tokenizer, &prompt, &plain, quiet).unwrap();
    let held = engine.held.clone();
    let mut sequence = Sequence::new(engine, &tokenizer, &prompt, options.clone()).unwrap();
    if let Some(proposer) = proposer {
        sequence = sequence.with_proposer(proposer);
    }
    engine.reset();
    // Passes of several tokens are said to be nearly free, so that drafts are tried.
    let mut cost = PassCost::default();
    for n in [1, 2, 4, 8, 16, 32, 64] {
        cost.record(n, 1.0 + n as f64 / 1e4);
    }
    run(engine, &mut sequence, &mut cost, quiet).unwrap();
    assert_eq!(engine.held, held);
    assert_eq!(engine.held, sequence.tokens()[..sequence.held()]);
    let found = sequence.into_generation().unwrap();
    assert_eq!(
        (&found.token_ids, &found.text, &found.finish_reason),
        (&expected.token_ids, &expected.text, &expected.finish_reason)
    );
    assert_eq!(found.timings.decode_tokens, expected.timings.decode_tokens);
    found.drafts
}

#[test]
fn drafts_change_nothing() {
    // A text that repeats itself, and goes on with a hash of itself where the script ends.
    let script: Vec<u32> = ids(&"abc".repeat(12));
    for (temperature, seed) in [(0.0, None), (0.8, Some(3)), (1.3, Some(4))] {
        let sampling =
            SamplingParams { temperature, seed, repetition_penalty: 1.1, ..SamplingParams::default() };
        for speculation in [
            Speculation::Ngram { n: 3, m: 8 },
            Speculation::Ngram { n: 1, m: 1 },
            Speculation::Auto { most: 32 },
        ] {
            for (most, context, rewind_step) in [(60, 128, 1), (7, 128, 1), (60, 40, 1), (60, 128, 5)] {
                let options = GenerateOptions {
                    sampling: sampling.clone(),
                    max_new_tokens: Some(most),
                    speculation,
                    ..greedy()
                };
                let mut engine = FakeEngine::scripted(context, 21, &script);
                engine.rewind_step = rewind_step;
                let drafts = drafted(&options, &mut engine, None);
                assert!(
                    drafts.accepted > 0 && drafts.accepted <= drafts.drafted,
                    "{speculation:?} {drafts:?}"
                );
                assert!(drafts.passes < most, "{drafts:?}");
            }
        }
    }
}

#[test]
fn any_proposer_may_be_wrong() {
    let mut random = 1u64;
    for most in [1, 2, 5, 32] {
        let options = GenerateOptions { max_new_tokens: Some(40), stop_ids: vec![0, 5], ..greedy() };
        let propose = move |tokens: &[u32], room: usize| {
            (0..room.min(most))
                .map(|i| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    // Half of them right while the script lasts; now and then an id that has no row.
                    let right = 1 + (tokens.len() + i) as u32 % 3;
                    if random >> 33 & 1 == 0 { right } else { (random >> 40) as u32 % 50 }
                })
                .collect()
        };
        let mut engine = FakeEngine::scripted(128, 21, &ids(&"abc".repeat(10)));
        let drafts = drafted(&options, &mut engine, Some(Box::new(propose)));
        assert!(drafts.accepted > 0 && drafts.accepted < drafts.drafted, "{drafts:?}");
    }
}

#[test]
fn log_probabilities_of_prompt_and_choices() {
    let prompt = ids("abcdefgh");
    let options = GenerateOptions {
        top_logprobs: 3,
        prompt_logprobs: Some(2),
        prefill_chunk: 3,
        max_new_tokens: Some(2),
        stop_ids: vec![],
        ..greedy()
    };
    let (mut of_prompt, mut drawn) = (Vec::new(), Vec::new());
    let mut engine = FakeEngine::new(32);
    generate(&mut engine, &tokenizer(), &prompt, &options, &mut |event| {
        match event {
            Event::PromptToken { index, id, logprob, top } => {
                of_prompt.push((index, id, logprob, top.to_vec()));
            }
            Event::Token { id, logprob, top } => drawn.push((id, logprob, top.to_vec())),
            _ => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(
        of_prompt.iter().map(|p| (p.0, p.1)).collect::<Vec<_>>(),
        (1..8).map(|i| (i, prompt[i])).collect::<Vec<_>>()
    );
    // The engine's own rows, from which the numbers follow.
    engine.reset();
    let rows: Vec<Vec<f32>> =
        engine.feed_all(&prompt).unwrap().chunks(crate::fake::VOCAB).map(|r| r[..32].to_vec()).collect();
    let logprob = |row: &[f32], id: u32| {
        let sum: f64 = row.iter().map(|&l| f64::from(l).exp()).sum();
        f64::from(row[id as usize]) - sum.ln()
    };
    for (index, id, found, top) in of_prompt {
        let row = &rows[index - 1];
        assert!((f64::from(found) - logprob(row, id)).abs() < 1e-5);
        assert_eq!(top.len(), 2);
        assert!(top.iter().all(|&(id, p)| (f64::from(p) - logprob(row, id)).abs() < 1e-5));
    }
    assert_eq!((drawn.len(), drawn[0].2.len()), (2, 3));
    // Greedy draws the likeliest.
    assert_eq!(drawn[0].2[0], (drawn[0].0, drawn[0].1));
}

#[test]
fn stop_tokens_wait_for_the_least_length() {
    let script = [ids("ab"), vec![0], ids("cd"), vec![0]].concat();
    let options = GenerateOptions { min_new_tokens: 4, ..greedy() };
    let g = run_script(&script, &options);
    assert_eq!(g.finish_reason, FinishReason::Stop(StopCause::Token(0)));
    assert!(g.token_ids.len() >= 4 && g.token_ids[..2] == [1, 2], "{:?}", g.token_ids);
    assert_eq!(run_script(&[0; 6], &options).token_ids.len(), 4, "and no longer");
}

/// Allows letters in order, and is complete after four.
struct Alphabet(TokenMask, u32);

impl Constraint for Alphabet {
    fn mask(&mut self) -> crate::Result<Option<&TokenMask>> {
        self.0.set_words(&[]);
        self.0.insert(self.1 + 1);
        Ok(Some(&self.0))
    }

    fn accept(&mut self, token: u32) -> crate::Result<()> {
        assert_eq!(token, self.1 + 1);
        self.1 += 1;
        Ok(())
    }

    fn valid_prefix(&mut self, tokens: &[u32]) -> crate::Result<usize> {
        Ok(tokens.iter().zip(self.1 + 1..5).take_while(|(a, b)| **a == *b).count())
    }

    fn forced(&mut self) -> crate::Result<Vec<u32>> {
        Ok((self.1 + 1..5).collect())
    }

    fn is_complete(&self) -> bool {
        self.1 == 4
    }
}

#[test]
fn constraints_choose_and_what_they_force_is_verified_at_once() {
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    for (speculation, passes) in [(Speculation::Off, 3), (Speculation::Auto { most: 8 }, 1)] {
        let (mut engine, tokenizer) = (FakeEngine::new(32), tokenizer());
        let options = GenerateOptions { speculation, ..greedy() };
        let mut cost = PassCost::default();
        for n in [1, 2, 4] {
            cost.record(n, 1.0);
        }
        let sequence = Sequence::new(&engine, &tokenizer, &ids("zz"), options).unwrap();
        let mut sequence = sequence.with_constraint(Some(Box::new(Alphabet(TokenMask::none(32), 0))));
        run(&mut engine, &mut sequence, &mut cost, quiet).unwrap();
        let g = sequence.into_generation().unwrap();
        assert_eq!((g.text.as_str(), g.finish_reason), ("abcd", FinishReason::Stop(StopCause::Constraint)));
        assert_eq!(g.drafts.passes, passes);
    }
}
