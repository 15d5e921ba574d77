use std::fmt::Write as _;

use anemone_session::Generation;

use crate::machine;

/// One line on what a generation took: rates, context in use, memory, seed.
pub(crate) fn line(generation: &Generation, held: usize, context: usize) -> String {
    let t = generation.timings;
    let mut line =
        format!("prefill {} tok {:.3} s {:.1} tok/s", t.prefill_tokens, t.prefill_seconds, t.prefill_rate());
    if generation.usage.cached_tokens > 0 {
        let _ = write!(line, " ({} held)", generation.usage.cached_tokens);
    }
    let _ = write!(
        line,
        " · decode {} tok {:.3} s {:.1} tok/s · ctx {held}/{context} ({:.0}%)",
        generation.usage.completion_tokens,
        t.decode_seconds,
        t.decode_rate(),
        100.0 * held as f64 / context as f64
    );
    let drafts = generation.drafts;
    if drafts.drafted > 0 {
        let _ = write!(
            line,
            " · drafts {}/{} accepted, {:.2} tok a pass",
            drafts.accepted,
            drafts.drafted,
            t.decode_tokens as f64 / drafts.passes.max(1) as f64
        );
    }
    if let Some(rss) = machine::rss().total {
        let _ = write!(line, " · mem {}", machine::bytes(rss));
    }
    let _ = write!(line, " · seed {}", generation.seed);
    line
}
