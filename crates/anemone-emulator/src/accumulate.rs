//! Sums of products as a profile makes them.

use std::sync::Mutex;

use anemone_kernels::Context;
use anemone_tensor::DType;

use crate::ops;
use crate::profile::{Effects, Profile, Ties, fp16_of};
use crate::value::widen;

/// Running sums side by side, so that loops become vectors.
const LANES: usize = 8;
/// 2^−14.
const SMALLEST: f32 = 1.0 / 16384.0;
/// Multiplications a task should have.
const TASK: usize = 1 << 16;
/// Added to a number below 2^22 it leaves the nearest whole number in the low bits.
const WHOLE: f32 = 12_582_912.0;

/// The rules of a profile for sums of products, of which at least one is on.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Accumulator {
    effects: Effects,
}

/// One of the two sides of products: rows of factors, filled up with zeros to whole vectors, and with them the powers of two below
/// each where those decide.
struct Factors {
    values: Vec<f32>,
    powers: Vec<f32>,
    /// Factors of a row.
    k: usize,
    stride: usize,
}

/// The rules for sums of one length, as the loops take them.
#[derive(Debug, Clone, Copy)]
struct Rule {
    /// Steps of a fixed-point sum in 1.
    steps: Option<f32>,
    /// Least product of powers that is kept; 0 keeps all.
    kept: f32,
    /// Products below are zero; 0 for none.
    flushed: f32,
    /// Where a sum is infinite.
    limit: Option<f32>,
    ties: Option<Ties>,
    /// Whether the order of terms must not show.
    unordered: bool,
}

impl Accumulator {
    /// The rules of a profile; none when its sums are plain.
    pub(crate) fn new(profile: &Profile) -> Option<Self> {
        let e = profile.data();
        let any = e.fixed_point.is_some()
            || e.product_drop.is_some()
            || e.small_products.is_some()
            || e.wide_reduction.is_some()
            || e.overflow.is_some()
            || e.non_finite.is_some();
        any.then(|| Self { effects: e.clone() })
    }

    fn rule(&self, terms: usize, unordered: bool) -> Rule {
        let e = &self.effects;
        Rule {
            steps: e.fixed_point.as_ref().map(|f| f32::powi(2.0, f.fraction_bits as i32)),
            kept: e.product_drop.as_ref().map_or(0.0, |d| f32::powi(2.0, d.exponent_sum + 1)),
            flushed: e.flushed(terms),
            limit: e.overflow.as_ref().map(|o| o.limit),
            ties: e.ties(),
            unordered,
        }
    }

    /// Room for rows of `k` factors.
    fn factors(&self, rows: usize, k: usize) -> Factors {
        let stride = k.next_multiple_of(LANES);
        let powers = if self.effects.product_drop.is_some() { rows * stride } else { 0 };
        Factors { values: vec![0.0; rows * stride], powers: vec![SMALLEST; powers], k, stride }
    }

    /// Rows of `k` factors as they are in memory.
    fn rows(&self, from: &[f32], k: usize) -> Factors {
        let mut factors = self.factors(from.len() / k, k);
        for (i, row) in from.chunks_exact(k).enumerate() {
            factors.values_of(i).copy_from_slice(row);
            self.prepare(&mut factors, i);
        }
        factors
    }

    /// Takes the values of a row as they are decoded.
    fn prepare(&self, factors: &mut Factors, row: usize) {
        if self.effects.non_finite.is_some() {
            for v in factors.values_of(row).iter_mut().filter(|v| !v.is_finite()) {
                // The bits of an fp16 number whose exponent is 31, read as if that were any other.
                let fraction = f32::from_bits(v.to_bits() & 0x007f_e000 | 1.0f32.to_bits());
                *v = (fraction * 65536.0).copysign(*v);
            }
        }
        if !factors.powers.is_empty() {
            let at = row * factors.stride;
            let values = &factors.values[at..at + factors.k];
            factors.powers[at..].iter_mut().zip(values).for_each(|(p, v)| *p = power(*v));
        }
    }

    /// `out [n, m] = b [n, k] · aᵀ` with `a [m, k]`; where a term stands does not show in a result.
    pub(crate) fn product(&self, context: &Context, a: &[f32], b: &[f32], k: usize, out: &mut [f32]) {
        if k == 0 || a.is_empty() || b.is_empty() {
            out.fill(0.0);
            return;
        }
        let m = a.len() / k;
        let rule = self.rule(k, true);
        let (a, b) = (self.rows(a, k), self.rows(b, k));
        let rows = (TASK / a.values.len()).max(1);
        in_parts(context, out, rows * m, |first, out| {
            for (i, out) in out.chunks_exact_mut(m).enumerate() {
                let b = b.row(first / m + i);
                out.iter_mut().enumerate().for_each(|(j, o)| *o = rule.dot(a.row(j), b, 0.0));
            }
        });
    }

    /// `out [tokens, rows] = x [tokens, k] · wᵀ + bias`, with `w [rows, k]` as stored.
    pub(crate) fn weighted(
        &self,
        context: &Context,
        (dtype, weight): (DType, &[u8]),
        [rows, k]: [usize; 2],
        x: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let tokens = x.len() / k;
        let rule = self.rule(k, false);
        let x = self.rows(x, k);
        // Row by row, so that each is widened once; then turned.
        let mut turned = vec![0.0; rows * tokens];
        let each = (TASK / x.values.len()).max(1);
        in_parts(context, &mut turned, each * tokens, |first, part| {
            let mut row = self.factors(1, k);
            for (i, part) in part.chunks_exact_mut(tokens).enumerate() {
                let r = first / tokens + i;
                widen(dtype, weight, r * k, row.values_of(0));
                self.prepare(&mut row, 0);
                let start = bias.map_or(0.0, |b| b[r]);
                let row = row.row(0);
                part.iter_mut().enumerate().for_each(|(t, o)| *o = rule.dot(row, x.row(t), start));
            }
        });
        for (t, out) in out.chunks_exact_mut(rows).enumerate() {
            out.iter_mut().enumerate().for_each(|(r, o)| *o = turned[r * tokens + t]);
        }
    }

    /// Whether the product of two factors counts as nothing in sums of `terms`.
    pub(crate) fn drops(&self, a: f32, b: f32, terms: usize) -> bool {
        let rule = self.rule(terms, false);
        power(a) * power(b) < rule.kept || (a * b).abs() < rule.flushed
    }
}

/// The nearest whole number, ties away from zero, of what is below 2^52.
fn whole(v: f64) -> f64 {
    (v + 0.5f64.copysign(v)) as i64 as f64
}

/// The power of two below a factor; below fp16's smallest normal number all count as that.
#[inline]
fn power(v: f32) -> f32 {
    let power = f32::from_bits(v.to_bits() & 0x7f80_0000);
    if power > SMALLEST { power } else { SMALLEST }
}

impl Factors {
    fn row(&self, i: usize) -> Row<'_> {
        let row = i * self.stride..(i + 1) * self.stride;
        (&self.values[row.clone()], if self.powers.is_empty() { &[] } else { &self.powers[row] })
    }

    /// The values of a row, without what fills it up.
    fn values_of(&mut self, i: usize) -> &mut [f32] {
        &mut self.values[i * self.stride..i * self.stride + self.k]
    }
}

/// Calls `work(position, part)` for parts of `out` of `len` elements on all threads.
fn in_parts(context: &Context, out: &mut [f32], len: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let parts: Vec<_> = out.chunks_mut(len.max(1)).enumerate().collect();
    let tasks = parts.len();
    let parts = Mutex::new(parts);
    context.pool().run(tasks, &|_, _| {
        let part = parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let Some((i, part)) = part else { return };
        work(i * len, part);
    });
}

type Row<'a> = (&'a [f32], &'a [f32]);

impl Rule {
    fn dot(&self, a: Row<'_>, b: Row<'_>, bias: f32) -> f32 {
        match self.steps {
            Some(steps) => self.fixed(a, b, bias, steps),
            None => self.floating(a, b, bias),
        }
    }

    fn fixed(&self, a: Row<'_>, b: Row<'_>, bias: f32, steps: f32) -> f32 {
        let start = whole(f64::from(bias) * f64::from(steps));
        let limit = self.limit.map(|l| f64::from(l) * f64::from(steps));
        let fast = match (self.kept > 0.0, self.flushed > 0.0) {
            (false, false) => self.steps::<false, false>(a, b, steps),
            (true, false) => self.steps::<true, false>(a, b, steps),
            (false, true) => self.steps::<false, true>(a, b, steps),
            (true, true) => self.steps::<true, true>(a, b, steps),
        };
        let room = limit.unwrap_or(f64::INFINITY).min(f64::from(1u32 << 31));
        let total = match fast {
            // No order of the terms comes near the limit.
            Some((total, reach)) if f64::from(reach) * 1.001 + start.abs() < room => start + f64::from(total),
            _ => self.in_order(a, b, start, limit, |p| whole(p * f64::from(steps))),
        };
        let value = total / f64::from(steps);
        match self.ties {
            Some(ties) => fp16_of(value, ties),
            None => value as f32,
        }
    }

    /// The sum in steps, and that of the magnitudes; none when a product is too large for it.
    fn steps<const DROP: bool, const FLUSH: bool>(
        &self,
        (a, ap): Row<'_>,
        (b, bp): Row<'_>,
        steps: f32,
    ) -> Option<(i32, f32)> {
        // A product of fp16 numbers has 22 bits. A step or two of its last f32 bit more moves exactly the ties away from zero.
        let scale = steps * f32::from_bits(1.0f32.to_bits() + 1);
        let (mut total, mut reach, mut most) = ([0u32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        let (ap, bp) = if DROP { (ap, bp) } else { (a, b) };
        let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
        let (ap, bp) = (ap.as_chunks::<LANES>().0, bp.as_chunks::<LANES>().0);
        for ((a, b), (ap, bp)) in a.iter().zip(b).zip(ap.iter().zip(bp)) {
            for l in 0..LANES {
                let p = a[l] * b[l];
                let mut q = p * scale;
                if DROP {
                    q = if ap[l] * bp[l] >= self.kept { q } else { 0.0 };
                }
                if FLUSH {
                    q = if p.abs() < self.flushed { 0.0 } else { q };
                }
                total[l] = total[l].wrapping_add((q + WHOLE).to_bits());
                let size = q.abs();
                reach[l] += size;
                most[l] = if size > most[l] { size } else { most[l] };
            }
        }
        let most = most.into_iter().fold(0.0, f32::max);
        let reach: f32 = reach.into_iter().sum();
        // A NaN is in the reach.
        if !(most < 4_194_304.0 && reach.is_finite()) {
            return None;
        }
        let total = total.into_iter().fold(0u32, u32::wrapping_add);
        let offset = WHOLE.to_bits().wrapping_mul((a.len() * LANES) as u32);
        Some((total.wrapping_sub(offset) as i32, reach))
    }

    fn floating(&self, (a, ap): Row<'_>, (b, bp): Row<'_>, bias: f32) -> f32 {
        let kept = |i: usize| -> f32 {
            let p = a[i] * b[i];
            let dropped = !ap.is_empty() && ap[i] * bp[i] < self.kept;
            if dropped || p.abs() < self.flushed { 0.0 } else { p }
        };
        if self.unordered {
            let terms: Vec<f32> = (0..a.len()).map(kept).collect();
            let reach: f32 = terms.iter().map(|p| p.abs()).sum();
            if self.limit.is_none_or(|l| reach * 1.001 + bias.abs() < l) {
                return (ops::exact_sum(&terms, f64::from) + f64::from(bias)) as f32;
            }
        } else {
            let (total, reach) = if ap.is_empty() {
                self.lanes::<false>((a, a), (b, b))
            } else {
                self.lanes::<true>((a, ap), (b, bp))
            };
            if self.limit.is_none_or(|l| reach * 1.001 + bias.abs() < l) {
                return total + bias;
            }
        }
        self.in_order((a, ap), (b, bp), f64::from(bias), self.limit.map(f64::from), |p| p) as f32
    }

    /// The sum in f32, and that of the magnitudes.
    fn lanes<const DROP: bool>(&self, (a, ap): Row<'_>, (b, bp): Row<'_>) -> (f32, f32) {
        let (mut total, mut reach) = ([0.0f32; LANES], [0.0f32; LANES]);
        let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
        let (ap, bp) = (ap.as_chunks::<LANES>().0, bp.as_chunks::<LANES>().0);
        for ((a, b), (ap, bp)) in a.iter().zip(b).zip(ap.iter().zip(bp)) {
            for l in 0..LANES {
                let p = a[l] * b[l];
                // A NaN stays.
                let mut p = if p.abs() < self.flushed { 0.0 } else { p };
                if DROP {
                    p = if ap[l] * bp[l] >= self.kept { p } else { 0.0 };
                }
                total[l] += p;
                reach[l] += p.abs();
            }
        }
        (total.into_iter().sum(), reach.into_iter().sum())
    }

    /// Term by term, as far as the limit; each product as `round` takes it.
    fn in_order(
        &self,
        (a, ap): Row<'_>,
        (b, bp): Row<'_>,
        start: f64,
        limit: Option<f64>,
        round: impl Fn(f64) -> f64,
    ) -> f64 {
        let mut total = start;
        let beyond = |total: f64| limit.is_some_and(|l| total.abs() >= l);
        if beyond(total) {
            return f64::INFINITY.copysign(total);
        }
        for i in 0..a.len() {
            let p = f64::from(a[i]) * f64::from(b[i]);
            let dropped = !ap.is_empty() && ap[i] * bp[i] < self.kept;
            if dropped || p.abs() < f64::from(self.flushed) {
                continue;
            }
            total += round(p);
            if beyond(total) {
                return f64::INFINITY.copysign(total);
            }
        }
        total
    }
}

#[cfg(test)]
mod tests;
