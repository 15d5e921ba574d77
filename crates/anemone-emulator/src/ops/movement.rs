//! Rearrangements: no arithmetic.

use super::layout::{Permute, around};
use crate::site::Site;
use crate::value::{Call, Data, Run, Stored};

/// Fills a result of `len` elements of the operands' type, floats or integers alike.
macro_rules! fill {
    ($call:expr, $data:expr, $len:expr, |$x:ident, $out:ident| $body:expr) => {
        match $data {
            Data::Floats($x) => {
                let mut buffer = $call.take($len);
                let $out = &mut buffer[..];
                $body;
                Data::floats(buffer)
            }
            Data::Ints($x) => {
                let mut buffer = vec![0; $len];
                let $out = &mut buffer[..];
                $body;
                Data::ints(buffer)
            }
        }
    };
}
pub(super) use fill;

pub(super) fn same_elements(site: &Site<'_>) -> Result<Run, String> {
    let x = site.slot("x")?;
    Ok(Box::new(move |call| Ok(vec![call.data(x).clone()])))
}

pub(super) fn transpose(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let permute = Permute::new(&shape, &site.axes("perm", shape.len())?);
    let len = site.out(0).numel();
    let x = site.slot("x")?;
    if permute.is_trivial() {
        return Ok(Box::new(move |call| Ok(vec![call.data(x).clone()])));
    }
    Ok(Box::new(move |call| Ok(vec![fill!(call, call.data(x), len, |x, out| permute.run(x, out))])))
}

pub(super) fn concat(site: &Site<'_>) -> Result<Run, String> {
    let shapes = site.shapes("values")?;
    let axis = site.axis("axis", shapes[0].len(), -1)?;
    if site.flag("interleave") {
        // Elements alternate along the axis, as if stacked behind it.
        return join(site, &shapes, axis, true);
    }
    join(site, &shapes, axis, false)
}

pub(super) fn stack(site: &Site<'_>) -> Result<Run, String> {
    let mut shapes = site.shapes("values")?;
    let axis = site.axis("axis", shapes[0].len() + 1, 0)?;
    for shape in &mut shapes {
        shape.insert(axis, 1);
    }
    join(site, &shapes, axis, false)
}

fn join(site: &Site<'_>, shapes: &[Vec<usize>], axis: usize, interleave: bool) -> Result<Run, String> {
    let (outer, n, inner) = around(&shapes[0], axis);
    // Interleaved, each element along the axis is a part of its own.
    let outer = if interleave { outer * n } else { outer };
    let sizes: Vec<usize> = shapes.iter().map(|s| if interleave { inner } else { s[axis] * inner }).collect();
    let row: usize = sizes.iter().sum();
    let slots = site.list("values")?;
    Ok(Box::new(move |call| {
        let mut at = 0;
        if matches!(call.data(slots[0]), Data::Floats(_)) {
            let mut out = call.take(outer * row);
            for (slot, size) in slots.iter().zip(&sizes) {
                place(call.floats(*slot)?, &mut out, (row, at, *size));
                at += size;
            }
            return Ok(vec![Data::floats(out)]);
        }
        let mut out = vec![0; outer * row];
        for (slot, size) in slots.iter().zip(&sizes) {
            place(call.ints(*slot)?, &mut out, (row, at, *size));
            at += size;
        }
        Ok(vec![Data::ints(out)])
    }))
}

/// Writes parts of `size` into rows of `row` from column `at`.
fn place<T: Copy>(x: &[T], out: &mut [T], (row, at, size): (usize, usize, usize)) {
    if size == 1 {
        for (out, x) in out.chunks_exact_mut(row).zip(x) {
            out[at] = *x;
        }
    } else if size > 0 {
        for (out, x) in out.chunks_exact_mut(row).zip(x.chunks_exact(size)) {
            out[at..at + size].copy_from_slice(x);
        }
    }
}

pub(super) fn split(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let axis = site.axis("axis", shape.len(), 0)?;
    let (outer, n, inner) = around(&shape, axis);
    let sizes: Vec<usize> = (0..site.op.outputs.len()).map(|i| site.out(i).shape[axis] * inner).collect();
    let row = n * inner;
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        let mut at = 0;
        let mut parts = Vec::new();
        for &size in &sizes {
            parts.push(fill!(call, call.data(x), outer * size, |x, out| {
                if size > 0 {
                    for (out, x) in out.chunks_exact_mut(size).zip(x.chunks_exact(row)) {
                        out.copy_from_slice(&x[at..at + size]);
                    }
                }
            }));
            at += size;
        }
        Ok(parts)
    }))
}

pub(super) fn tile(site: &Site<'_>) -> Result<Run, String> {
    let (shape, out) = (site.shape("x")?, site.out(0));
    let reps: Vec<usize> =
        shape.iter().zip(&out.shape).map(|(d, o)| o.checked_div(*d).unwrap_or(1)).collect();
    let len = out.numel();
    let x = site.slot("x")?;
    Ok(Box::new(move |call| {
        Ok(vec![fill!(call, call.data(x), len, |x, out| tile_into(x, &shape, &reps, out))])
    }))
}

/// Repeats axis by axis, the innermost first: each time `rows` runs become `rows` runs of `reps` copies.
fn tile_into<T: Copy>(x: &[T], shape: &[usize], reps: &[usize], out: &mut [T]) {
    if x.is_empty() {
        return;
    }
    let mut now = x.to_vec();
    let mut run = 1;
    for axis in (0..shape.len()).rev() {
        run *= shape[axis];
        if reps[axis] > 1 {
            now = now
                .chunks_exact(run)
                .flat_map(|r| std::iter::repeat_n(r, reps[axis]).flatten().copied())
                .collect();
            run *= reps[axis];
        }
    }
    out.copy_from_slice(&now);
}

pub(super) fn gather(site: &Site<'_>) -> Result<Run, String> {
    let shape = site.shape("x")?;
    let axis = site.axis("axis", shape.len(), 0)?;
    let (outer, n, inner) = around(&shape, axis);
    let len = site.out(0).numel();
    // A table of the weight file is read where it is, row by row.
    let table: Option<Stored> = site.stored("x");
    let x = if table.is_none() { Some(site.slot("x")?) } else { None };
    let indices = site.slot("indices")?;
    Ok(Box::new(move |call: &Call<'_>| {
        let place = |&i: &i32| {
            let at = if i < 0 { i64::from(i) + n as i64 } else { i64::from(i) };
            usize::try_from(at)
                .ok()
                .filter(|at| *at < n)
                .ok_or_else(|| format!("index {i} is outside axis {axis} of {n} elements"))
        };
        let rows: Vec<usize> = call.ints(indices)?.iter().map(place).collect::<Result<_, _>>()?;
        let starts = (0..outer).flat_map(|o| rows.iter().map(move |r| (o * n + r) * inner));
        if inner == 0 {
            return Ok(vec![Data::floats(Vec::new())]);
        }
        Ok(vec![match (&table, x) {
            (Some(table), _) => {
                let mut out = call.take(len);
                out.chunks_exact_mut(inner).zip(starts).for_each(|(o, s)| table.widen(s, o));
                Data::floats(out)
            }
            (None, x) => fill!(call, call.data(x.unwrap_or(0)), len, |x, out| {
                out.chunks_exact_mut(inner)
                    .zip(starts)
                    .for_each(|(o, s)| o.copy_from_slice(&x[s..s + inner]));
            }),
        }])
    }))
}
