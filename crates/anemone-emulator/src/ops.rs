//! The arithmetic of each operation. A `prepare` decides everything that does not depend on the inputs and gives what runs.

#![allow(clippy::single_match_else, reason = "two kinds of elements, side by side")]

mod attention;
mod compressed;
mod contract;
mod conv;
mod elementwise;
mod layout;
mod movement;
mod normal;
mod reduce;
mod select;
mod slice;
mod sum;
#[cfg(test)]
mod tests;

pub(crate) use compressed::expand;
pub(crate) use sum::{product as plain_product, sum as exact_sum};

use crate::site::Site;
use crate::value::Run;

/// Plans an operation.
pub(crate) fn prepare(site: &Site<'_>) -> Result<Run, String> {
    match site.op.kind.as_str() {
        "conv" => conv::conv(site),
        "linear" => conv::linear(site),
        "einsum" => contract::einsum(site),
        "matmul" => contract::matmul(site),
        "scaled_dot_product_attention" => attention::attention(site),
        "batch_norm" => normal::batch_norm(site),
        "l2_norm" => normal::l2_norm(site),
        "layer_norm" => normal::layer_norm(site),
        "softmax" => normal::softmax(site),
        "reduce_argmax" => reduce::argmax(site),
        kind if kind.starts_with("reduce_") => reduce::reduce(site),
        "concat" => movement::concat(site),
        "gather" => movement::gather(site),
        "expand_dims" | "identity" | "reshape" | "squeeze" => movement::same_elements(site),
        "split" => movement::split(site),
        "stack" => movement::stack(site),
        "tile" => movement::tile(site),
        "transpose" => movement::transpose(site),
        "slice_by_index" => slice::by_index(site),
        "slice_by_size" => slice::by_size(site),
        "slice_update" => slice::update(site),
        "cast" => select::cast(site),
        "select" => select::select(site),
        _ => elementwise::prepare(site),
    }
}

/// Whether an operation only moves elements, so that its result needs no rounding.
pub(crate) fn moves_only(kind: &str) -> bool {
    matches!(
        kind,
        "concat"
            | "gather"
            | "expand_dims"
            | "identity"
            | "reshape"
            | "squeeze"
            | "split"
            | "stack"
            | "tile"
            | "transpose"
            | "slice_by_index"
            | "slice_by_size"
            | "slice_update"
            | "select"
    )
}
