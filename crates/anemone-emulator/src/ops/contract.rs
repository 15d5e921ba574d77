//! Sums of products of two or more tensors, by letters.

use std::collections::BTreeMap;

use super::layout::{Permute, strides};
use super::sum;
use crate::site::Site;
use crate::value::{Call, Data, Run};

/// `out = Σ a · b` over the letters that are not in `out`, as batches of matrix products.
pub(super) struct Contraction {
    /// To `[batch, m, k]`.
    a: Permute,
    /// To `[batch, n, k]`.
    b: Permute,
    /// From `[batch, n, m]`.
    out: Permute,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
}

impl Contraction {
    /// `None` when a letter repeats within a term or is on one side alone; [`general`] covers that.
    fn new(a: &[char], b: &[char], out: &[char], sizes: &BTreeMap<char, usize>) -> Option<Self> {
        let distinct = |t: &[char]| (1..t.len()).all(|i| !t[..i].contains(&t[i]));
        let lonely = |t: &[char], other: &[char]| t.iter().any(|c| !other.contains(c) && !out.contains(c));
        if !distinct(a) || !distinct(b) || !distinct(out) || lonely(a, b) || lonely(b, a) {
            return None;
        }
        let pick = |t: &[char], keep: &dyn Fn(&char) -> bool| {
            t.iter().copied().filter(|c| keep(c)).collect::<Vec<_>>()
        };
        let batch = pick(a, &|c| b.contains(c) && out.contains(c));
        let m = pick(a, &|c| !b.contains(c));
        let n = pick(b, &|c| !a.contains(c));
        let k = pick(a, &|c| b.contains(c) && !out.contains(c));
        let size = |letters: &[char]| letters.iter().map(|c| sizes[c]).product::<usize>();
        let to = |term: &[char], order: &[char]| {
            let shape: Vec<usize> = term.iter().map(|c| sizes[c]).collect();
            let perm: Vec<usize> = order.iter().filter_map(|c| term.iter().position(|t| t == c)).collect();
            Permute::new(&shape, &perm)
        };
        let join = |parts: [&[char]; 3]| parts.concat();
        Some(Self {
            a: to(a, &join([&batch, &m, &k])),
            b: to(b, &join([&batch, &n, &k])),
            out: to(&join([&batch, &n, &m]), out),
            batch: size(&batch),
            m: size(&m),
            n: size(&n),
            k: size(&k),
        })
    }

    pub(super) fn run(&self, call: &Call<'_>, a: &[f32], b: &[f32]) -> Vec<f32> {
        let moved_a = arrange(call, &self.a, a);
        let moved_b = arrange(call, &self.b, b);
        let (a, b) = (moved_a.as_deref().unwrap_or(a), moved_b.as_deref().unwrap_or(b));
        let (m, n, k) = (self.m, self.n, self.k);
        let mut out = call.take(self.batch * m * n);
        for i in 0..self.batch {
            let (a, b) = (&a[i * m * k..(i + 1) * m * k], &b[i * n * k..(i + 1) * n * k]);
            let out = &mut out[i * m * n..(i + 1) * m * n];
            call.contract(a, b, k, out);
        }
        [moved_a, moved_b].into_iter().flatten().for_each(|buffer| call.give(buffer));
        if self.out.is_trivial() {
            return out;
        }
        let mut result = call.take(out.len());
        self.out.run(&out, &mut result);
        call.give(out);
        result
    }
}

fn arrange(call: &Call<'_>, permute: &Permute, x: &[f32]) -> Option<Vec<f32>> {
    if permute.is_trivial() {
        return None;
    }
    let mut out = call.take(x.len());
    permute.run(x, &mut out);
    Some(out)
}

pub(super) fn einsum(site: &Site<'_>) -> Result<Run, String> {
    site.needs_floats("values")?;
    let equation = site.text("equation").ok_or("`equation` must be a constant")?;
    let (left, right) =
        equation.split_once("->").ok_or_else(|| format!("equation `{equation}` has no `->`"))?;
    let terms: Vec<Vec<char>> = left.split(',').map(|t| t.trim().chars().collect()).collect();
    let out: Vec<char> = right.trim().chars().collect();
    let mut sizes = BTreeMap::new();
    for (term, shape) in terms.iter().zip(site.shapes("values")?) {
        sizes.extend(term.iter().copied().zip(shape));
    }
    let slots = site.list("values")?;
    if let [a, b] = &terms[..]
        && let Some(contraction) = Contraction::new(a, b, &out, &sizes)
    {
        return Ok(Box::new(move |call| {
            Ok(vec![Data::floats(contraction.run(call, call.floats(slots[0])?, call.floats(slots[1])?))])
        }));
    }
    Ok(Box::new(move |call| {
        let values = slots.iter().map(|s| call.floats(*s)).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![Data::floats(general(&terms, &out, &sizes, &values))])
    }))
}

/// Any equation, element by element.
fn general(terms: &[Vec<char>], out: &[char], sizes: &BTreeMap<char, usize>, values: &[&[f32]]) -> Vec<f32> {
    let summed = sizes.keys().copied().filter(|c| !out.contains(c));
    // A letter the result repeats is one axis of the walk; the result's other elements are zero.
    let mut letters: Vec<char> = Vec::new();
    for c in out {
        if !letters.contains(c) {
            letters.push(*c);
        }
    }
    let kept = letters.len();
    letters.extend(summed);
    let dims: Vec<usize> = letters.iter().map(|c| sizes[c]).collect();
    let step = |term: &[char]| -> Vec<usize> {
        let own = strides(&term.iter().map(|c| sizes[c]).collect::<Vec<_>>());
        letters.iter().map(|l| term.iter().zip(&own).filter(|(c, _)| *c == l).map(|(_, s)| s).sum()).collect()
    };
    let steps: Vec<Vec<usize>> = terms.iter().map(|t| step(t)).collect();
    let out_steps = step(out);
    let mut result = vec![0.0f32; out.iter().map(|c| sizes[c]).product()];
    let count: usize = dims[..kept].iter().product();
    let inner: usize = dims[kept..].iter().product();
    let (mut index, mut terms) = (vec![0usize; letters.len()], vec![0.0f32; inner]);
    let place = |index: &[usize], steps: &[usize]| index.iter().zip(steps).map(|(i, s)| i * s).sum::<usize>();
    for _ in 0..count {
        for term in &mut terms {
            *term = values.iter().zip(&steps).map(|(v, s)| v[place(&index, s)]).product();
            advance(&mut index[kept..], &dims[kept..]);
        }
        result[place(&index[..kept], &out_steps[..kept])] = sum::sum(&terms, f64::from) as f32;
        advance(&mut index[..kept], &dims[..kept]);
    }
    result
}

fn advance(index: &mut [usize], dims: &[usize]) {
    for (i, d) in index.iter_mut().zip(dims).rev() {
        *i += 1;
        if *i < *d {
            return;
        }
        *i = 0;
    }
}

pub(super) fn matmul(site: &Site<'_>) -> Result<Run, String> {
    site.needs_floats("x")?;
    let product = Batched::new(
        &site.shape("x")?,
        &site.shape("y")?,
        &site.out(0).shape,
        site.flag("transpose_x"),
        site.flag("transpose_y"),
    );
    let (x, y) = (site.slot("x")?, site.slot("y")?);
    Ok(Box::new(move |call| Ok(vec![Data::floats(product.run(call, call.floats(x)?, call.floats(y)?))])))
}

/// Matrix products over stretched batch axes.
pub(super) struct Batched {
    one: Contraction,
    /// Number of the matrix of `x` and of `y` for each product.
    pairs: Vec<(usize, usize)>,
    x_len: usize,
    y_len: usize,
}

impl Batched {
    pub(super) fn new(x: &[usize], y: &[usize], out: &[usize], tx: bool, ty: bool) -> Self {
        let (rx, ry, ro) = (x.len() - 2, y.len() - 2, out.len() - 2);
        let k = if tx { x[rx] } else { x[rx + 1] };
        let sizes = BTreeMap::from([('m', out[ro]), ('n', out[ro + 1]), ('k', k)]);
        let (a, b) = (if tx { ['k', 'm'] } else { ['m', 'k'] }, if ty { ['n', 'k'] } else { ['k', 'n'] });
        let one = Contraction::new(&a, &b, &['m', 'n'], &sizes).expect("letters of a matrix product");
        let mut pairs = Vec::new();
        super::layout::Walk::broadcast(&out[..ro], [&x[..rx], &y[..ry]]).rows(|_, [i, j], len, [s, t]| {
            pairs.extend((0..len).map(|n| (i + n * s, j + n * t)));
        });
        Self { one, pairs, x_len: x[rx] * x[rx + 1], y_len: y[ry] * y[ry + 1] }
    }

    pub(super) fn run(&self, call: &Call<'_>, x: &[f32], y: &[f32]) -> Vec<f32> {
        let (a, b) = (self.x_len, self.y_len);
        if let &[(0, 0)] = &self.pairs[..] {
            return self.one.run(call, x, y);
        }
        let mut out = Vec::with_capacity(self.pairs.len() * self.one.m * self.one.n);
        for &(i, j) in &self.pairs {
            let part = self.one.run(call, &x[i * a..(i + 1) * a], &y[j * b..(j + 1) * b]);
            out.extend_from_slice(&part);
            call.give(part);
        }
        out
    }
}
