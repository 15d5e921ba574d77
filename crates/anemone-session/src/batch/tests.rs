use std::collections::BTreeMap;

use super::*;
use crate::fake::{Call, FakeEngine, tokenizer};
use crate::{FinishReason, SamplingParams, Speculation, generate};

fn options(seed: u64, most: usize) -> GenerateOptions {
    GenerateOptions {
        sampling: SamplingParams { seed: Some(seed), ..SamplingParams::default() },
        max_new_tokens: Some(most),
        stop_ids: vec![0],
        ..GenerateOptions::default()
    }
}

fn job(prompt: &[u32], continuations: impl IntoIterator<Item = GenerateOptions>) -> Job {
    let continuations = continuations.into_iter().map(|options| (options, None)).collect();
    Job { prompt: prompt.to_vec(), continuations }
}

fn alone(prompt: &[u32], options: &GenerateOptions) -> Generation {
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    generate(&mut FakeEngine::new(64), &tokenizer(), prompt, options, quiet).unwrap()
}

type Ended = BTreeMap<SequenceId, Result<Generation, String>>;

fn step(batch: &mut Batch<'_, FakeEngine>, ended: &mut Ended) -> bool {
    batch.step(&mut |id, progress| {
        match progress {
            Progress::Finished(generation) => assert!(ended.insert(id, Ok(generation)).is_none()),
            Progress::Failed(error) => assert!(ended.insert(id, Err(error.to_string())).is_none()),
            Progress::Event(_) => {}
        }
        ControlFlow::Continue(())
    })
}

/// Runs to the end; what came of each sequence.
fn finish(batch: &mut Batch<'_, FakeEngine>, mut ended: Ended) -> Ended {
    while step(batch, &mut ended) {}
    assert!(batch.is_idle() && batch.idle.is_some());
    ended
}

#[test]
fn company_changes_nothing() {
    let tokenizer = tokenizer();
    for single in [false, true] {
        for prefill_tokens in [1, 3, 256] {
            let mut engine = FakeEngine::new(64);
            engine.single = single;
            let limits = BatchOptions { max_sequences: 4, prefill_tokens, ..BatchOptions::default() };
            let mut batch = Batch::new(engine, &tokenizer, limits);
            let (mut expected, mut ended) = (BTreeMap::new(), Ended::new());
            for i in 0..12u64 {
                let prompt: Vec<u32> = (0..=i * 3 % 20).map(|t| 1 + (t * i) as u32 % 26).collect();
                let count = 1 + i % 3;
                let speculation = if i % 2 == 0 { Speculation::Auto { most: 8 } } else { Speculation::Off };
                let each: Vec<GenerateOptions> = (0..count)
                    .map(|n| GenerateOptions { speculation, ..options(i * 10 + n, 3 + i as usize * 2) })
                    .collect();
                let ids = batch.submit(job(&prompt, each.clone())).unwrap();
                for (id, options) in ids.into_iter().zip(&each) {
                    expected.insert(id, alone(&prompt, options));
                }
                // Some begin while others run.
                if i % 4 == 3 {
                    step(&mut batch, &mut ended);
                }
            }
            assert!(batch.running() <= 4);
            let found = finish(&mut batch, ended);
            assert_eq!(found.len(), expected.len());
            for (id, expected) in expected {
                let found = found[&id].as_ref().unwrap();
                assert_eq!((&found.token_ids, &found.text), (&expected.token_ids, &expected.text));
                assert_eq!(found.finish_reason, expected.finish_reason);
                assert_eq!(found.usage.completion_tokens, expected.usage.completion_tokens);
            }
        }
    }
}

#[test]
fn a_prompt_is_computed_once_for_all_its_continuations() {
    let tokenizer = tokenizer();
    let mut batch = Batch::new(FakeEngine::new(64), &tokenizer, BatchOptions::default());
    batch.submit(job(&[1, 2, 3, 4, 5], (0..3).map(|seed| options(seed, 4)))).unwrap();
    batch.step(&mut |_, _| ControlFlow::Continue(()));
    assert_eq!(batch.running.len(), 3);
    assert!(
        batch.running.iter().all(|slot| slot.reserved == 5 + 4),
        "each holds back what it may come to hold"
    );
    assert_eq!(batch.running[0].engine.calls, [Call::Reset, Call::Feed(vec![1, 2, 3, 4])]);
    assert!(
        batch.running[1..]
            .iter()
            .all(|slot| slot.engine.calls.is_empty() && slot.engine.held == [1, 2, 3, 4])
    );
    let found = finish(&mut batch, Ended::new());
    assert_eq!(
        found.values().map(|g| g.as_ref().unwrap().usage.cached_tokens).collect::<Vec<_>>(),
        [0, 4, 4]
    );
}

#[test]
fn a_long_prompt_delays_no_one_by_more_than_a_piece() {
    let tokenizer = tokenizer();
    let limits = BatchOptions { prefill_tokens: 4, ..BatchOptions::default() };
    let mut batch = Batch::new(FakeEngine::new(64), &tokenizer, limits);
    let first =
        batch.submit(job(&[1, 2], [GenerateOptions { stop_ids: vec![], ..options(1, 30) }])).unwrap()[0];
    let quiet = &mut |_: SequenceId, _: Progress<'_>| ControlFlow::Continue(());
    batch.step(quiet);
    for prompt in [[3; 40], [4; 40]] {
        batch.submit(job(&prompt, [options(2, 5)])).unwrap();
    }
    let held = |batch: &Batch<'_, FakeEngine>| -> Vec<usize> {
        batch.running.iter().skip(1).map(|slot| slot.engine.held.len()).collect()
    };
    for round in 0..20 {
        let mut tokens = 0;
        let before: usize = held(&batch).iter().sum();
        batch.step(&mut |id, progress| {
            tokens += usize::from(id == first && matches!(progress, Progress::Event(Event::Token { .. })));
            ControlFlow::Continue(())
        });
        assert_eq!(tokens, 1);
        let fed = batch.running.iter().map(|slot| match slot.engine.calls.last() {
            Some(Call::Feed(tokens)) => tokens.len(),
            _ => 0,
        });
        assert!(fed.clone().all(|n| n <= 4), "{:?}", fed.collect::<Vec<_>>());
        // Both prompts get on, in turns, and share what is allowed.
        let now = held(&batch);
        assert!(round >= 18 || now.iter().sum::<usize>() - before <= 4, "{now:?} after {before}");
        assert!(now[0].abs_diff(now[1]) <= 4, "{now:?}");
    }
    let held = held(&batch);
    assert!(held.iter().all(|&n| n >= 40), "{held:?}");
}

#[test]
fn limits_hold() {
    let tokenizer = tokenizer();
    let limits =
        BatchOptions { max_sequences: 2, max_waiting: 1, max_tokens: 100, ..BatchOptions::default() };
    let mut batch = Batch::new(FakeEngine::new(64), &tokenizer, limits);
    let text = |result: Result<Vec<SequenceId>>| result.unwrap_err().to_string();
    assert!(text(batch.submit(job(&[1], []))).contains("n: is 0"));
    assert!(text(batch.submit(job(&[1], (0..3).map(|s| options(s, 1))))).contains("n: is 3; give 1 to 2"));
    assert!(text(batch.submit(job(&[1; 30], (0..2).map(|s| options(s, 40))))).contains("128 tokens"));
    assert!(text(batch.submit(job(&[], [options(1, 1)]))).contains("prompt is empty"));
    let mut ids = Vec::new();
    for seed in 0..3 {
        ids.extend(
            batch.submit(job(&[1, 2], [GenerateOptions { stop_ids: vec![], ..options(seed, 60) }])).unwrap(),
        );
    }
    assert!(matches!(batch.submit(job(&[1], [options(9, 1)])), Err(Error::Busy { limit: 1, .. })));
    // Two fit by their number, and one by its tokens.
    batch.step(&mut |_, _| ControlFlow::Continue(()));
    assert_eq!((batch.running(), batch.waiting()), (1, 2));
    batch.cancel(ids[1]);
    let found = finish(&mut batch, Ended::new());
    assert_eq!(found[&ids[1]].as_ref().unwrap().finish_reason, FinishReason::Cancelled);
    assert_eq!(found[&ids[2]].as_ref().unwrap().token_ids.len(), 60);
}

#[test]
fn a_failure_and_a_cancellation_disturb_no_one() {
    let tokenizer = tokenizer();
    let mut engine = FakeEngine::new(64);
    engine.fail_at = Some(30);
    let mut batch = Batch::new(engine, &tokenizer, BatchOptions::default());
    let long = GenerateOptions { stop_ids: vec![], ..options(1, 50) };
    let fails = batch.submit(job(&[1; 10], [long.clone()])).unwrap()[0];
    let short = GenerateOptions { stop_ids: vec![], ..options(2, 12) };
    let fine = batch.submit(job(&[2, 3], [short.clone()])).unwrap()[0];
    let group = batch.submit(job(&[4, 5, 6], [long.clone(), short.clone(), long])).unwrap();
    batch.cancel(group[0]);
    let mut ended = BTreeMap::new();
    let mut heard = 0;
    while batch.step(&mut |id, progress| {
        match progress {
            Progress::Finished(generation) => drop(ended.insert(id, Ok(generation))),
            Progress::Failed(error) => drop(ended.insert(id, Err(error.to_string()))),
            Progress::Event(Event::Token { .. }) if id == group[2] => {
                heard += 1;
                if heard == 3 {
                    return ControlFlow::Break(());
                }
            }
            Progress::Event(_) => {}
        }
        ControlFlow::Continue(())
    }) {}
    assert_eq!(ended[&fails].as_ref().unwrap_err(), "engine: the fake cache is full");
    assert_eq!(ended[&fine].as_ref().unwrap().token_ids, alone(&[2, 3], &short).token_ids);
    let reason = |id: &SequenceId| ended[id].as_ref().unwrap().finish_reason.clone();
    assert_eq!(reason(&group[0]), FinishReason::Cancelled);
    assert_eq!(ended[&group[1]].as_ref().unwrap().token_ids, alone(&[4, 5, 6], &short).token_ids);
    assert_eq!((reason(&group[2]), heard), (FinishReason::Cancelled, 3));
}

#[test]
fn a_prefix_cache_serves_all_sequences() {
    let tokenizer = tokenizer();
    let cache = crate::PrefixCache::new(crate::ModelId::of([]), 1 << 20);
    let prompt: Vec<u32> = (0..300).map(|i| i * i % 26 + 1).collect();
    let cached = GenerateOptions { prefix_cache: Some(cache.clone()), ..options(3, 4) };
    let quiet = &mut |_: Event<'_>| ControlFlow::Continue(());
    let plain = generate(&mut FakeEngine::new(512), &tokenizer, &prompt, &options(3, 4), quiet).unwrap();
    let mut batch = Batch::new(FakeEngine::new(512), &tokenizer, BatchOptions::default());
    for (round, expected) in [(0, 0), (1, 256)] {
        let ids = batch.submit(job(&prompt, [cached.clone(), cached.clone()])).unwrap();
        let mut ended = finish(&mut batch, Ended::new());
        let first = ended.remove(&ids[0]).unwrap().unwrap();
        assert_eq!((first.usage.cached_tokens, &first.token_ids), (expected, &plain.token_ids), "{round}");
        let second = ended.remove(&ids[1]).unwrap().unwrap();
        assert_eq!(second.token_ids, plain.token_ids);
        assert_eq!(cache.in_use().blocks, 2);
    }
}

#[test]
fn each_continuation_tells_of_the_whole_prompt() {
    let tokenizer = tokenizer();
    let prompt = [1, 2, 3, 4, 5, 6];
    let told = |seed| GenerateOptions { prompt_logprobs: Some(2), ..options(seed, 3) };
    for single in [false, true] {
        let mut engine = FakeEngine::new(64);
        engine.single = single;
        let mut batch = Batch::new(engine, &tokenizer, BatchOptions::default());
        let ids = batch.submit(job(&prompt, (0..3).map(told))).unwrap();
        let mut heard: BTreeMap<SequenceId, Vec<(usize, u32, f32)>> = BTreeMap::new();
        while batch.step(&mut |id, progress| {
            if let Progress::Event(Event::PromptToken { index, id: token, logprob, .. }) = progress {
                heard.entry(id).or_default().push((index, token, logprob));
            }
            ControlFlow::Continue(())
        }) {}
        let whole: Vec<(usize, u32)> = (1..prompt.len()).map(|i| (i, prompt[i])).collect();
        for id in &ids {
            assert!(heard[id].iter().map(|t| (t.0, t.1)).eq(whole.iter().copied()), "{single}: {heard:?}");
            assert_eq!(heard[id], heard[&ids[0]]);
        }
    }
}
