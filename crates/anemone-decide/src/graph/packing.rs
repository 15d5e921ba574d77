//! Which rows share a pass.

/// A row's tokens and options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) tokens: usize,
    pub(super) options: usize,
}

/// Rows of one pass, by their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) rows: Vec<usize>,
    tokens: usize,
    options: usize,
}

/// Passes over functions of the lengths `buckets` (shortest first) and `slots` options that hold every row once.
///
/// Longer rows first, each joins the pass that thereby computes the fewest more tokens, padding included; a pass of its own
/// is begun when that computes fewer. The last bucket must hold every row. Without `together` each has a pass of its own.
pub(super) fn passes(rows: &[Size], buckets: &[usize], slots: usize, together: bool) -> Vec<Pass> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    let mut passes: Vec<Pass> = Vec::new();
    if together {
        order.sort_by_key(|i| std::cmp::Reverse(rows[*i].tokens));
    }
    let computed = |tokens: usize| buckets.iter().copied().find(|b| *b >= tokens);
    for i in order {
        let Size { tokens, options } = rows[i];
        let alone = computed(tokens).unwrap_or(usize::MAX);
        let more = |pass: &Pass| {
            let fits = together && pass.options + options <= slots;
            let joined = computed(pass.tokens + tokens).filter(|_| fits)?;
            Some(joined - computed(pass.tokens)?)
        };
        let best = (passes.iter().enumerate()).filter_map(|(at, pass)| Some((more(pass)?, at))).min();
        match best {
            // Of two equal ways the one with fewer passes.
            Some((more, at)) if more <= alone => {
                let pass = &mut passes[at];
                pass.rows.push(i);
                pass.tokens += tokens;
                pass.options += options;
            }
            _ => passes.push(Pass { rows: vec![i], tokens, options }),
        }
    }
    passes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(tokens: &[usize]) -> Vec<Size> {
        tokens.iter().map(|tokens| Size { tokens: *tokens, options: 2 }).collect()
    }

    fn packed(tokens: &[usize], buckets: &[usize]) -> Vec<Vec<usize>> {
        passes(&sizes(tokens), buckets, 32, true).into_iter().map(|pass| pass.rows).collect()
    }

    #[test]
    fn rows_join_where_that_computes_least() {
        // 60 and 60 in one of 128, or in two of 64: as many tokens, fewer passes.
        assert_eq!(packed(&[60, 60], &[64, 128]), [[0, 1]]);
        // Two of 100 would need the function of 1024.
        assert_eq!(packed(&[100, 100], &[128, 1024]), [[0], [1]]);
        // Where there is no other, they share it.
        assert_eq!(packed(&[100, 100, 900], &[1024]), [vec![2, 0], vec![1]]);
        // The short ones fill up what the long one leaves.
        assert_eq!(packed(&[20, 100, 8, 90], &[64, 96, 128]), [vec![1, 0, 2], vec![3]]);
        // Seventeen questions of two options have more slots than there are.
        let many = passes(&sizes(&[4; 17]), &[128], 32, true);
        assert_eq!(many.iter().map(|pass| pass.rows.len()).collect::<Vec<_>>(), [16, 1]);
        let apart = passes(&sizes(&[4; 3]), &[128], 32, false);
        assert_eq!(apart.into_iter().map(|pass| pass.rows).collect::<Vec<_>>(), [[0], [1], [2]]);
    }

    proptest! {
        #[test]
        fn every_row_once_and_none_beyond_a_function(
            rows in proptest::collection::vec((1usize..=128, 1usize..=32), 0..40),
            buckets in proptest::sample::subsequence(vec![32usize, 64, 96], 0..=3),
        ) {
            let sizes: Vec<Size> = rows.iter().map(|(tokens, options)| Size { tokens: *tokens, options: *options }).collect();
            let buckets = [&buckets[..], &[128]].concat();
            let found = passes(&sizes, &buckets, 32, true);
            let mut seen: Vec<usize> = found.iter().flat_map(|pass| pass.rows.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rows.len()).collect::<Vec<_>>());
            let held = |tokens: usize| *buckets.iter().find(|b| **b >= tokens).unwrap();
            let mut computed = 0;
            for pass in &found {
                let sum = |f: &dyn Fn(&Size) -> usize| pass.rows.iter().map(|i| f(&sizes[*i])).sum::<usize>();
                prop_assert!(sum(&|s| s.tokens) <= 128 && sum(&|s| s.options) <= 32);
                computed += held(sum(&|s| s.tokens));
            }
            // Never more than apart.
            prop_assert!(computed <= sizes.iter().map(|s| held(s.tokens)).sum());
        }
    }
}
