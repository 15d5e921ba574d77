use std::collections::BTreeMap;
use std::ops::Range;

use anemone_mil::Program;
use anemone_models::{Linear, Stack};

use crate::chunk::program;
use crate::graph::{Graph, Role};
use crate::weights::Table;
use crate::{Error, Load, Options, Pass, WeightRecord};

/// Lowers a slice of the output head, final norm included: `hidden [1, H, 1, S]` to `logits [1, rows, 1, S]`.
///
/// Functions: one token, and each verification length. Prefill needs no function of its own: the host takes the last column.
pub fn lower_head(
    stack: &Stack,
    load: Load<'_>,
    rows: Range<usize>,
    options: &Options,
) -> Result<(Program, Vec<WeightRecord>), Error> {
    let mut table = Table::new(load).scaled(options.scales.as_ref());
    let mut functions = BTreeMap::new();
    let verify = options.passes.iter().copied().filter(|p| matches!(p, Pass::Verify(_)));
    for pass in [Pass::Decode].into_iter().chain(verify) {
        let tokens = pass.tokens();
        let mut g = Graph::new(&pass.name(), options.spec_version, tokens, options.rules, &mut table);
        let x = g.input("hidden", [1, stack.hidden_size, 1, tokens])?;
        let normed = g.rms_norm("model.embedding_norm", x, &stack.final_norm)?;
        let head = Linear { weight: stack.head.clone(), bias: None };
        let logits = g.linear_rows("logits", normed, &head, rows.clone(), Role::Head)?;
        functions.insert(pass.name(), g.finish(&[logits])?);
    }
    let options = Options {
        passes: std::iter::once(Pass::Decode).chain(options.passes.iter().copied()).collect(),
        ..options.clone()
    };
    let program = program(functions, &options, &mut table);
    Ok((program, table.records.into_iter().flatten().collect()))
}
