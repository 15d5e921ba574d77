//! Limits of the Neural Engine that others have reported and a plan reaches. Nothing here was measured by this project.

use anemone_ane::{CachePlan, Options, Pass, Plan, is_placed};
use anemone_models::Stack;

use crate::machine;

/// Weights of a package beyond which systems were seen to run it on the CPU without a word.
const PACKAGE_BYTES: usize = 1 << 30;
/// Axis that the oldest engines (A15 and before, M1, M2) take.
const OLD_AXIS: usize = 16_384;
/// Axis that any engine takes.
const AXIS: usize = 65_536;
/// Packages × functions that one process could load.
const PROGRAMS: usize = 120;

/// One line for each limit reached, with the remedy.
pub(super) fn reached(stack: &Stack, plan: &Plan, options: &Options) -> Vec<String> {
    let mut lines = beyond(plan, options);
    let small = plan.chunks.iter().filter(|chunk| matches!(is_placed(stack, chunk), Ok(false))).count();
    if small > 0 && options.passes.contains(&Pass::Decode) {
        let (all, remedy) = (plan.chunks.len(), if small == 1 { "a larger --chunk" } else { "--chunk auto" });
        let remedy = if all == 1 { "the CPU engine may be as fast" } else { &format!("use {remedy}") };
        lines.push(format!(
            "{small} of {all} packages of layers are so small that Core ML's planner, as published for an M4, would keep decoding on the \
             CPU; {remedy}"
        ));
    }
    lines
}

fn beyond(plan: &Plan, options: &Options) -> Vec<String> {
    let mut lines = Vec::new();
    for (i, chunk) in plan.chunks.iter().enumerate() {
        if chunk.weight_bytes > PACKAGE_BYTES {
            let layers = chunk.layers.len().div_ceil(2);
            lines.push(format!(
                "chunk {i} holds {}, and packages beyond 1 GiB were seen to leave the Neural Engine; use --chunk {layers}",
                machine::bytes(chunk.weight_bytes as u64)
            ));
        }
    }
    let pass = options.passes.iter().map(|p| p.tokens()).max().unwrap_or(1);
    let rows = plan.chunks.iter().flat_map(|c| &c.caches).filter_map(|cache| match cache {
        CachePlan::Attention { rows, .. } => Some(rows + pass),
        CachePlan::ShortConv { .. } => None,
    });
    let keys = rows.max().unwrap_or(0);
    if keys > OLD_AXIS {
        let which = if keys > AXIS { "any engine takes" } else { "M1, M2 and phones up to A15 take" };
        let limit = if keys > AXIS { AXIS } else { OLD_AXIS };
        lines.push(format!("attention over {keys} keys is beyond the {limit} that {which}; lower --ctx"));
    }
    let programs = plan.chunks.len() * options.passes.len() + plan.head.len();
    if programs > PROGRAMS {
        lines.push(format!(
            "{programs} functions are more than the {PROGRAMS} one process could load; use fewer packages or passes"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use anemone_ane::ChunkPlan;

    #[test]
    fn each_limit_is_named_with_its_remedy() {
        let chunk = |weight_bytes, rows| ChunkPlan {
            layers: 0..6,
            caches: vec![CachePlan::Attention { layer: 0, rows, width: 64, window: None, ring: false }],
            states: Vec::new(),
            weight_bytes,
        };
        let plan = |chunk: ChunkPlan, head: usize| Plan {
            chunks: vec![chunk],
            head: std::iter::once(0..head).collect(),
        };
        let options = Options { passes: vec![Pass::Decode, Pass::Prefill(64)], ..Options::default() };
        assert!(beyond(&plan(chunk(1 << 30, 16_320), OLD_AXIS), &options).is_empty());
        let lines = beyond(&plan(chunk(3 << 29, 16_384), OLD_AXIS), &options);
        let parts = ["--chunk 3", "16448 keys is beyond the 16384"];
        assert_eq!(lines.len(), parts.len(), "{lines:?}");
        assert!(lines.iter().zip(parts).all(|(line, part)| line.contains(part)), "{lines:?}");
        assert!(beyond(&plan(chunk(0, 131_072), 1), &options)[0].contains("65536 that any engine"));
        let many = Options { passes: (2..130).map(Pass::Prefill).collect(), ..Options::default() };
        assert!(beyond(&plan(chunk(0, 64), 1), &many)[0].contains("129 functions"));
    }
}
