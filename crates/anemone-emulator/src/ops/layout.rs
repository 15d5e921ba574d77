//! Row-major layouts: strides, broadcasting, permutation.

/// Row-major strides.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut out = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        out[i - 1] = out[i] * shape[i];
    }
    out
}

/// Elements before, along and after a range of axes.
pub(super) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    let product = |s: &[usize]| s.iter().product();
    (product(&shape[..axis]), shape[axis], product(&shape[axis + 1..]))
}

/// A walk over a shape that visits several operands by their own strides.
#[derive(Debug, Clone)]
pub(super) struct Walk<const N: usize> {
    dims: Vec<usize>,
    strides: Vec<[usize; N]>,
}

impl<const N: usize> Walk<N> {
    /// Joins neighbouring axes that all operands step through alike; axes of one element go.
    pub(super) fn new(dims: &[usize], strides: [&[usize]; N]) -> Self {
        let mut walk = Self { dims: Vec::new(), strides: Vec::new() };
        for (i, &d) in dims.iter().enumerate() {
            let step: [usize; N] = std::array::from_fn(|n| strides[n][i]);
            if d == 1 {
                continue;
            }
            let joins = walk.strides.last().is_some_and(|last| (0..N).all(|n| last[n] == step[n] * d));
            if joins {
                let end = walk.dims.len() - 1;
                walk.dims[end] *= d;
                walk.strides[end] = step;
            } else {
                walk.dims.push(d);
                walk.strides.push(step);
            }
        }
        if walk.dims.is_empty() {
            walk.dims.push(dims.iter().product());
            walk.strides.push([0; N]);
        }
        walk
    }

    /// Operands stretched to the shape `out`.
    pub(super) fn broadcast(out: &[usize], shapes: [&[usize]; N]) -> Self {
        let all: [Vec<usize>; N] = shapes.map(|shape| {
            let own = strides(shape);
            let missing = out.len() - shape.len();
            (0..out.len())
                .map(|i| if i < missing || shape[i - missing] == 1 { 0 } else { own[i - missing] })
                .collect()
        });
        Self::new(out, std::array::from_fn(|n| &all[n][..]))
    }

    /// Calls `row(position, starts, length, steps)` for each run along the last axis, in order.
    pub(super) fn rows(&self, mut row: impl FnMut(usize, [usize; N], usize, [usize; N])) {
        let last = self.dims.len() - 1;
        let (len, steps) = (self.dims[last], self.strides[last]);
        let count: usize = self.dims[..last].iter().product();
        if len == 0 {
            return;
        }
        let mut index = vec![0usize; last];
        let mut at = [0usize; N];
        for r in 0..count {
            row(r * len, at, len, steps);
            for axis in (0..last).rev() {
                index[axis] += 1;
                let steps = self.strides[axis];
                at.iter_mut().zip(steps).for_each(|(at, step)| *at += step);
                if index[axis] < self.dims[axis] {
                    break;
                }
                at.iter_mut().zip(steps).for_each(|(at, step)| *at -= step * self.dims[axis]);
                index[axis] = 0;
            }
        }
    }
}

/// A permutation of axes, planned: `out[i] = in[perm[i]]` for dimensions.
#[derive(Debug, Clone)]
pub(super) struct Permute {
    walk: Walk<1>,
    trivial: bool,
}

impl Permute {
    pub(super) fn new(shape: &[usize], perm: &[usize]) -> Self {
        let own = strides(shape);
        let dims: Vec<usize> = perm.iter().map(|p| shape[*p]).collect();
        let steps: Vec<usize> = perm.iter().map(|p| own[*p]).collect();
        let walk = Walk::new(&dims, [&steps]);
        let trivial = walk.dims.len() == 1 && walk.strides[0][0] <= 1;
        Self { walk, trivial }
    }

    /// Whether nothing moves.
    pub(super) fn is_trivial(&self) -> bool {
        self.trivial
    }

    pub(super) fn run<T: Copy>(&self, x: &[T], out: &mut [T]) {
        // A plain transposition goes block by block, so that neither side misses the cache.
        if let (&[rows, cols], &[[1], [step]]) = (&self.walk.dims[..], &self.walk.strides[..]) {
            for r0 in (0..rows).step_by(16) {
                for c0 in (0..cols).step_by(16) {
                    for r in r0..(r0 + 16).min(rows) {
                        for c in c0..(c0 + 16).min(cols) {
                            out[r * cols + c] = x[r + c * step];
                        }
                    }
                }
            }
            return;
        }
        self.walk.rows(|to, [from], len, [step]| {
            let out = &mut out[to..to + len];
            if step == 1 {
                out.copy_from_slice(&x[from..from + len]);
            } else {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = x[from + i * step];
                }
            }
        });
    }
}
