//! Many elements to one along axes.

use super::layout::{Permute, around};
use super::sum;
use crate::site::Site;
use crate::value::{Call, Data, Run};

/// A tensor seen as `[outer, n, inner]`, to be reduced along the middle.
pub(super) struct Lines {
    permute: Option<Permute>,
    n: usize,
    inner: usize,
}

impl Lines {
    /// Lines along `axes`, in their order where it is not the tensor's own.
    pub(super) fn new(shape: &[usize], axes: &[usize]) -> Self {
        let size = |axes: &[usize]| axes.iter().map(|a| shape[*a]).product();
        if axes.windows(2).all(|w| w[1] == w[0] + 1) {
            let (first, count) = (axes.first().copied().unwrap_or(shape.len()), axes.len());
            let inner = shape[first + count..].iter().product();
            return Self { permute: None, n: size(axes), inner };
        }
        let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
        let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
        Self { permute: Some(Permute::new(shape, &order)), n: size(axes), inner: 1 }
    }

    /// The elements in the order of the lines, when that is not their own.
    fn arrange(&self, call: &Call<'_>, x: &[f32]) -> Option<Vec<f32>> {
        let permute = self.permute.as_ref()?;
        let mut out = call.take(x.len());
        permute.run(x, &mut out);
        Some(out)
    }

    /// The greatest of each line by `beats`, or `start` of an empty one: `[outer, inner]`.
    fn best(&self, x: &[f32], start: f32, beats: impl Fn(f32, f32) -> bool, out: &mut [f32]) {
        out.fill(start);
        for (o, out) in out.chunks_exact_mut(self.inner.max(1)).enumerate() {
            for i in 0..self.n {
                let row = &x[(o * self.n + i) * self.inner..][..self.inner];
                for (o, v) in out.iter_mut().zip(row) {
                    // NaN beats all and is beaten by none.
                    if !o.is_nan() && (v.is_nan() || beats(*v, *o)) {
                        *o = *v;
                    }
                }
            }
        }
    }

    /// The sum of `term` over each line, divided by `by`: `[outer, inner]`.
    fn sums(&self, x: &[f32], by: usize, term: impl Fn(f32) -> f64, out: &mut [f32]) {
        out.fill(0.0);
        let (inner, line) = (self.inner.max(1), self.n * self.inner);
        if line == 0 {
            out.fill((0.0 / by as f64) as f32);
            return;
        }
        for (out, block) in out.chunks_exact_mut(inner).zip(x.chunks_exact(line)) {
            let totals = sum::column_sums(block, inner, &term);
            out.iter_mut().zip(totals).for_each(|(o, t)| *o = (t / by as f64) as f32);
        }
    }
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
            "reduce_sum" => lines.sums(x, 1, f64::from, &mut out),
            "reduce_mean" => lines.sums(x, lines.n, f64::from, &mut out),
            "reduce_sum_square" => lines.sums(x, 1, |v| f64::from(v) * f64::from(v), &mut out),
            "reduce_max" => lines.best(x, f32::NEG_INFINITY, |a, b| a > b, &mut out),
            "reduce_min" => lines.best(x, f32::INFINITY, |a, b| a < b, &mut out),
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
