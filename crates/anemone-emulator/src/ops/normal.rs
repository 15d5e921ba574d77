//! Softmax and normalisations.

use super::layout::{Permute, around};
use super::sum;
use crate::site::Site;
use crate::value::{Data, Run};

/// Softmax of `[outer, n, inner]` along the middle, in place.
pub(super) fn softmax_lines(x: &mut [f32], n: usize, inner: usize) {
    if n == 0 || inner == 0 {
        return;
    }
    let mut most = vec![0.0f32; inner];
    for block in x.chunks_exact_mut(n * inner) {
        most.fill(f32::NEG_INFINITY);
        for row in block.chunks_exact(inner) {
            most.iter_mut().zip(row).for_each(|(m, v)| *m = if *m > *v || m.is_nan() { *m } else { *v });
        }
        for row in block.chunks_exact_mut(inner) {
            row.iter_mut().zip(&most).for_each(|(v, m)| *v = (*v - m).exp());
        }
        let total = sum::column_sums(block, inner, f64::from);
        for row in block.chunks_exact_mut(inner) {
            row.iter_mut().zip(&total).for_each(|(v, t)| *v /= *t as f32);
        }
    }
}

pub(super) fn softmax(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let (_, n, inner) = around(&shape, site.axis("axis", shape.len(), -1)?);
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let x = call.floats(x)?;
        let mut out = call.take(x.len());
        out.copy_from_slice(x);
        softmax_lines(&mut out, n, inner);
        Ok(vec![Data::floats(out)])
    }))
}

pub(super) fn batch_norm(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let (_, channels, inner) = around(&shape, 1);
    let given = |name: &str| site.floats(name);
    let needed = |name: &str| given(name)?.ok_or_else(|| format!("input `{name}` must be a constant"));
    let (mean, variance) = (needed("mean")?, needed("variance")?);
    let gamma = given("gamma")?.unwrap_or_else(|| vec![1.0; channels]);
    let beta = given("beta")?.unwrap_or_else(|| vec![0.0; channels]);
    let epsilon = site.float("epsilon", 1e-5);
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let x = call.floats(x)?;
        let mut out = call.take(x.len());
        if inner == 0 || channels == 0 {
            return Ok(vec![Data::floats(out)]);
        }
        for (i, (out, x)) in out.chunks_exact_mut(inner).zip(x.chunks_exact(inner)).enumerate() {
            let c = i % channels;
            let deviation = (variance[c] + epsilon).sqrt();
            for (o, x) in out.iter_mut().zip(x) {
                *o = (x - mean[c]) / deviation * gamma[c] + beta[c];
            }
        }
        Ok(vec![Data::floats(out)])
    }))
}

/// Over the last three axes, or all of fewer.
pub(super) fn l2_norm(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let n: usize = shape[shape.len().saturating_sub(3)..].iter().product();
    let epsilon = site.float("epsilon", 1e-6);
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let x = call.floats(x)?;
        let mut out = call.take(x.len());
        for (out, x) in out.chunks_exact_mut(n.max(1)).zip(x.chunks_exact(n.max(1))) {
            let length = (sum::sum(x, |v| f64::from(v) * f64::from(v)) as f32 + epsilon).sqrt();
            out.iter_mut().zip(x).for_each(|(o, v)| *o = v / length);
        }
        Ok(vec![Data::floats(out)])
    }))
}

pub(super) fn layer_norm(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let axes = site.axes("axes", shape.len())?;
    let kept: Vec<usize> = (0..shape.len()).filter(|a| !axes.contains(a)).collect();
    let order: Vec<usize> = kept.iter().chain(&axes).copied().collect();
    let there = Permute::new(&shape, &order);
    let moved: Vec<usize> = order.iter().map(|a| shape[*a]).collect();
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, a)| inverse[*a] = i);
    let back = Permute::new(&moved, &inverse);
    let n: usize = axes.iter().map(|a| shape[*a]).product();
    let (gamma, beta) = (site.floats("gamma")?, site.floats("beta")?);
    let epsilon = site.float("epsilon", 1e-5);
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let x = call.floats(x)?;
        let mut out = call.take(x.len());
        there.run(x, &mut out);
        for line in out.chunks_exact_mut(n.max(1)) {
            let mean = (sum::sum(line, f64::from) / n as f64) as f32;
            let variance = (sum::sum(line, |v| f64::from(v - mean).powi(2)) / n as f64) as f32;
            let deviation = (variance + epsilon).sqrt();
            for (i, v) in line.iter_mut().enumerate() {
                let normal = (*v - mean) / deviation;
                *v = normal * gamma.as_ref().map_or(1.0, |g| g[i]) + beta.as_ref().map_or(0.0, |b| b[i]);
            }
        }
        if there.is_trivial() {
            return Ok(vec![Data::floats(out)]);
        }
        let mut result = call.take(x.len());
        back.run(&out, &mut result);
        call.give(out);
        Ok(vec![Data::floats(result)])
    }))
}
