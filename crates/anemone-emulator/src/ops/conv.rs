//! Products with weights, on the weights as they are stored.

use anemone_tensor::DType;

use crate::site::Site;
use crate::value::{Call, Data, Run, Stored};

/// Elements of gathered windows held at once.
const WINDOWS: usize = 1 << 22;

/// The weight of a product: stored, or a value of the program.
enum Weight {
    Stored(Stored),
    Slot(usize),
}

impl Weight {
    fn new(site: &Site<'_>) -> Result<Self, String> {
        if let Some(stored) = site.stored("weight") {
            return Ok(Self::Stored(stored));
        }
        site.needs_floats("weight")?;
        Ok(Self::Slot(site.slot("weight")?))
    }

    fn get<'a>(&'a self, call: &'a Call<'_>) -> Result<(DType, &'a [u8], bool), String> {
        Ok(match self {
            Self::Stored(stored) => (stored.dtype, &stored.bytes, true),
            Self::Slot(slot) => (DType::F32, bytemuck::cast_slice(call.floats(*slot)?), false),
        })
    }
}

pub(super) fn linear(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("weight")?;
    let (rows, cols) = (shape[0], shape[1]);
    let bias = site.floats("bias")?.map(|b| stretch(b, rows)).transpose()?;
    let len = site.out(0).numel();
    let weight = Weight::new(site)?;
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let mut out = call.take(len);
        call.product(weight.get(call)?, [rows, cols], call.floats(x)?, bias.as_deref(), &mut out)?;
        Ok(vec![Data::floats(out)])
    }))
}

/// A bias of one value serves all rows.
fn stretch(bias: Vec<f32>, rows: usize) -> Result<Vec<f32>, String> {
    match bias.len() {
        n if n == rows => Ok(bias),
        1 => Ok(vec![bias[0]; rows]),
        n => Err(format!("`bias` has {n} values for {rows} rows")),
    }
}

/// Geometry of a convolution, with three spatial axes.
struct Conv {
    batch: usize,
    groups: usize,
    /// Channels of a group, in and out.
    inner: usize,
    rows: usize,
    size: [usize; 3],
    out: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    pad: [usize; 3],
}

pub(super) fn conv(site: &Site<'_>) -> Result<Run, String> {
    site.needs_floats("x")?;
    let (x, w, out) = (site.shape("x")?, site.shape("weight")?, site.out(0).shape.clone());
    let spatial = x.len() - 2;
    let three = |v: &[usize], fill: usize| -> [usize; 3] {
        std::array::from_fn(|i| (i + spatial).checked_sub(3).map_or(fill, |j| v[j]))
    };
    let numbers = |name: &str, default: usize, count: usize| -> Vec<usize> {
        site.ints(name).map_or_else(|| vec![default; count], |v| v.iter().map(|v| *v as usize).collect())
    };
    let pads = match site.text("pad_type").unwrap_or("valid") {
        "custom" => numbers("pad", 0, 2 * spatial),
        _ => vec![0; 2 * spatial],
    };
    let before: Vec<usize> = pads.iter().step_by(2).copied().collect();
    let groups = site.int("groups").unwrap_or(1) as usize;
    let conv = Conv {
        batch: x[0],
        groups,
        inner: w[1],
        rows: w[0] / groups,
        size: three(&x[2..], 1),
        out: three(&out[2..], 1),
        kernel: three(&w[2..], 1),
        stride: three(&numbers("strides", 1, spatial), 1),
        dilation: three(&numbers("dilations", 1, spatial), 1),
        pad: three(&before, 0),
    };
    let bias = site.floats("bias")?;
    let weight = Weight::new(site)?;
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        Ok(vec![Data::floats(conv.run(call, weight.get(call)?, call.floats(x)?, bias.as_deref())?)])
    }))
}

impl Conv {
    fn run(
        &self,
        call: &Call<'_>,
        (dtype, weight, stored): (DType, &[u8], bool),
        x: &[f32],
        bias: Option<&[f32]>,
    ) -> Result<Vec<f32>, String> {
        let positions: usize = self.out.iter().product();
        let size: usize = self.size.iter().product();
        let taps: usize = self.kernel.iter().product();
        let (cols, rows) = (self.inner * taps, self.rows);
        let weight_len = rows * cols * dtype.size();
        let mut out = call.take(self.batch * self.groups * rows * positions);
        let block = (WINDOWS / cols.max(1)).clamp(1, positions.max(1));
        for n in 0..self.batch * self.groups {
            let group = n % self.groups;
            let weight = &weight[group * weight_len..(group + 1) * weight_len];
            let bias = bias.map(|b| &b[group * rows..(group + 1) * rows]);
            let x = &x[n * self.inner * size..(n + 1) * self.inner * size];
            let out = &mut out[n * rows * positions..(n + 1) * rows * positions];
            if positions == 1 && size == 1 && taps == 1 {
                call.product((dtype, weight, stored), [rows, cols], x, bias, out)?;
                continue;
            }
            for first in (0..positions).step_by(block) {
                let count = block.min(positions - first);
                let mut windows = call.take(count * cols);
                self.windows(x, first, &mut windows, cols);
                let mut product = call.take(count * rows);
                call.product((dtype, weight, stored), [rows, cols], &windows, bias, &mut product)?;
                for r0 in (0..rows).step_by(16) {
                    for p in 0..count {
                        for r in r0..(r0 + 16).min(rows) {
                            out[r * positions + first + p] = product[p * rows + r];
                        }
                    }
                }
                call.give(windows);
                call.give(product);
            }
        }
        Ok(out)
    }

    /// What the kernel covers at output positions from `first`, `[positions, channels · taps]`.
    fn windows(&self, x: &[f32], first: usize, windows: &mut [f32], cols: usize) {
        let [depth, height, width] = self.size;
        let size = depth * height * width;
        if cols == 0 {
            return;
        }
        for (i, window) in windows.chunks_exact_mut(cols).enumerate() {
            let p = first + i;
            let at = [p / (self.out[1] * self.out[2]), p / self.out[2] % self.out[1], p % self.out[2]];
            let mut tap = 0;
            for a in 0..self.kernel[0] {
                for b in 0..self.kernel[1] {
                    for c in 0..self.kernel[2] {
                        let k = [a, b, c];
                        // Where the tap falls; none when it is padding.
                        let place = |axis: usize| {
                            (at[axis] * self.stride[axis] + k[axis] * self.dilation[axis])
                                .checked_sub(self.pad[axis])
                                .filter(|v| *v < self.size[axis])
                        };
                        let from = match (place(0), place(1), place(2)) {
                            (Some(z), Some(y), Some(x)) => Some((z * height + y) * width + x),
                            _ => None,
                        };
                        let taps = cols / self.inner;
                        for channel in 0..self.inner {
                            window[channel * taps + tap] = from.map_or(0.0, |f| x[channel * size + f]);
                        }
                        tap += 1;
                    }
                }
            }
        }
    }
}
