//! The gated short convolution: multiply-adds over slices of a window, no depthwise operation.

use anemone_mil::VarId;
use anemone_models::ShortConv;

use crate::Error;
use crate::graph::{Graph, Role};

/// Lowers the mixer; gives its output and the window output `[1, hidden, 1, reach + tokens]`.
///
/// After accepting n tokens of the pass the next window is columns `n..n + reach`, so every prefix can be kept.
pub(crate) fn short_conv(
    g: &mut Graph<'_, '_>,
    path: &str,
    layer: usize,
    x: VarId,
    conv: &ShortConv,
) -> Result<(VarId, VarId), Error> {
    let module = format!("{path}.conv");
    let hidden = g.channels(x);
    let (reach, tokens) = (conv.taps - 1, g.tokens);
    let bcx = g.linear(&format!("{module}.in_proj"), x, &conv.in_proj, Role::Other)?;
    let parts = g.split(&format!("{module}.bcx"), bcx, 3, 1)?;
    let z = g.mul(&format!("{module}.z"), parts[0], parts[2])?;
    let window = if reach == 0 {
        z
    } else {
        let past = g.input(&format!("conv_{layer}"), [1, hidden, 1, reach])?;
        g.concat(&format!("conv_{layer}_window"), vec![past, z], 3)?
    };
    let mut sum: Option<VarId> = None;
    for tap in 0..conv.taps {
        let slice = if reach == 0 {
            window
        } else {
            g.columns(&format!("{module}.slice_{tap}"), window, tap, tap + tokens)?
        };
        let weight = g.table().tap(&conv.kernel, hidden, tap)?;
        let weight = g.weight(&format!("{module}.tap_{tap}"), weight)?;
        let product = g.mul(&format!("{module}.product_{tap}"), slice, weight)?;
        sum = Some(match sum {
            None => product,
            Some(sum) => g.add(&format!("{module}.sum_{tap}"), sum, product)?,
        });
    }
    let mut y = sum.expect("a filter has at least one tap");
    if let Some(bias) = &conv.kernel_bias {
        let bias = g.table().vector(bias, true, 0)?;
        let bias = g.weight(&format!("{module}.conv.bias"), bias)?;
        y = g.add(&format!("{module}.biased"), y, bias)?;
    }
    let gated = g.mul(&format!("{module}.gated"), parts[1], y)?;
    let out = g.linear(&format!("{module}.out_proj"), gated, &conv.out_proj, Role::Other)?;
    Ok((out, window))
}
