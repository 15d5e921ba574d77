//! Many elements to one along axes.

use super::layout::{Permute, around};
use crate::site::Site;
use crate::value::{Call, Data, Run};

/// A tensor seen as `[outer, n, inner]`, to be reduced along the middle.
pub(super) struct Lines {
    permute: Option<Permute>,
    outer: usize,
    n: usize,
    inner: usize,
}

impl Lines {
    /// Lines along `axes`, in their order where it is not the tensor's own.
    pub(super) fn new(shape: &[usize], axes: &[usize]) -> Self {
        let size = |axes: &[usize]| axes.iter().map(|a| shape[*a]).product();
        if axes.windows(2).all(|w| w[1] == w[0] + 1) {
            let (first, count) = (axes.first().copied().unwrap_or(shape.len()), axes.len());
            let product = |s: &[usize]| s.iter().product();
            let (outer, inner) = (product(&shape[..first]), product(&shape[first + count..]));
            return Self { permute: None, outer, n: size(axes), inner };
        }
        let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
        let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
        Self { permute: Some(Permute::new(shape, &order)), outer: size(&kept), n: size(axes), inner: 1 }
    }

    /// The elements in the order of the lines, when that is not their own.
    fn arrange(&self, call: &Call<'_>, x: &[f32]) -> Option<Vec<f32>> {
        let permute = self.permute.as_ref()?;
        let mut out = call.take(x.len());
        permute.run(x, &mut out);
        Some(out)
    }

    /// Folds each line with `f`, starting at `start`: `[outer, inner]`.
    fn fold(&self, x: &[f32], start: f32, f: impl Fn(f32, f32) -> f32, out: &mut [f32]) {
        out.fill(start);
        if self.inner == 1 {
            for (o, line) in out.iter_mut().zip(x.chunks_exact(self.n.max(1))) {
                // Several running values, so that the loop becomes vectors.
                let mut lanes = [start; 16];
                let chunks = line.chunks_exact(16);
                let rest = chunks.remainder();
                for chunk in chunks {
                    lanes.iter_mut().zip(chunk).for_each(|(l, v)| *l = f(*l, *v));
                }
                lanes.iter_mut().zip(rest).for_each(|(l, v)| *l = f(*l, *v));
                // The neutral start keeps unused lanes out.
                *o = line.first().map_or(start, |_| {
                    lanes.into_iter().reduce(|a, b| merge(a, b, &f, start)).unwrap_or(start)
                });
            }
            return;
        }
        for o in 0..self.outer {
            let out = &mut out[o * self.inner..(o + 1) * self.inner];
            for i in 0..self.n {
                let row = &x[(o * self.n + i) * self.inner..][..self.inner];
                out.iter_mut().zip(row).for_each(|(o, v)| *o = f(*o, *v));
            }
        }
    }
}

/// Joins two running values; for a sum of squares they are added, not squared again.
fn merge(a: f32, b: f32, f: &impl Fn(f32, f32) -> f32, start: f32) -> f32 {
    if start == 0.0 { a + b } else { f(a, b) }
}

pub(super) fn reduce(site: &Site<'_>) -> Result<Run, String> {
    site.needs_floats("x")?;
    let shape = site.shape("x")?;
    let lines = Lines::new(&shape, &site.axes("axes", shape.len())?);
    let len = site.out(0).numel();
    let kind = site.op.kind.clone();
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let x = call.floats(x)?;
        let arranged = lines.arrange(call, x);
        let x = arranged.as_deref().unwrap_or(x);
        let mut out = call.take(len);
        match kind.as_str() {
            "reduce_sum" => lines.fold(x, 0.0, |a, b| a + b, &mut out),
            "reduce_mean" => {
                lines.fold(x, 0.0, |a, b| a + b, &mut out);
                let n = lines.n as f32;
                for o in &mut out {
                    *o /= n;
                }
            }
            "reduce_sum_square" => lines.fold(x, 0.0, |a, b| a + b * b, &mut out),
            "reduce_max" => {
                lines.fold(x, f32::NEG_INFINITY, |a, b| if a > b || a.is_nan() { a } else { b }, &mut out);
            }
            "reduce_min" => {
                lines.fold(x, f32::INFINITY, |a, b| if a < b || a.is_nan() { a } else { b }, &mut out);
            }
            other => return Err(format!("the emulator has no arithmetic for `{other}`")),
        }
        if let Some(buffer) = arranged {
            call.give(buffer);
        }
        Ok(vec![Data::floats(out)])
    }))
}

/// The first of the greatest; NaN counts as greatest.
pub(super) fn argmax(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let (outer, n, inner) = around(&shape, site.axis("axis", shape.len(), -1)?);
    if n == 0 {
        return Err("the axis has no elements".into());
    }
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let x = call.data(x).to_f32();
        let mut out = Vec::with_capacity(outer * inner);
        for o in 0..outer {
            for i in 0..inner {
                let at = |k: usize| x[(o * n + k) * inner + i];
                let mut best = 0;
                for k in 1..n {
                    if at(k) > at(best) || (at(k).is_nan() && !at(best).is_nan()) {
                        best = k;
                    }
                }
                out.push(best as i32);
            }
        }
        Ok(vec![Data::ints(out)])
    }))
}
