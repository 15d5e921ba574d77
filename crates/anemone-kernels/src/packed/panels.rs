use anemone_tensor::{Bytes, DType};
use half::bf16;

use crate::Context;
use crate::matmul::{MatrixView, round_stored};
use crate::simd::Shared;

/// Rows of a panel.
pub(crate) const PANEL: usize = 64;
/// Inner elements rearranged together: they and their targets stay in the nearest cache.
const STRIP: usize = 32;

/// Channels of either half of a gate that stand together.
pub(super) const GATE: usize = 16;

/// In what order panels hold a matrix's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// As they are.
    Plain,
    /// Sixteen of the first half, then the sixteen of the second half that belong to them, and so on; for [`super::Then::Gate`].
    Gated,
}

impl RowOrder {
    fn panels(self, rows: usize) -> usize {
        match self {
            Self::Plain => rows.div_ceil(PANEL),
            Self::Gated => (rows / 2).div_ceil(PANEL / 2),
        }
    }

    /// The row at a place of a panel.
    fn row(self, rows: usize, panel: usize, place: usize) -> Option<usize> {
        match self {
            Self::Plain => Some(panel * PANEL + place).filter(|row| *row < rows),
            Self::Gated => {
                let (group, half) = (place / (2 * GATE), place / GATE % 2);
                let channel = panel * PANEL / 2 + group * GATE + place % GATE;
                (channel < rows / 2).then_some(half * (rows / 2) + channel)
            }
        }
    }
}

/// How panels are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PanelPlan {
    /// The order of their rows.
    pub order: RowOrder,
    /// Whether they are rounded to bf16 and paired for products of [`crate::Input::Bf16`].
    pub paired: bool,
}

/// A weight matrix `[rows, cols]` in panels of 64 rows: `[panel, cols, 64]` in the stored type, or, made for bf16 products,
/// `[panel, cols / 2, 64, 2]` in bf16. What is missing of the last panel and pair is zero.
#[derive(Debug, Clone)]
pub struct Panels {
    bytes: Bytes,
    dtype: DType,
    plan: PanelPlan,
    rows: usize,
    cols: usize,
}

impl Panels {
    /// Bytes the panels of a matrix take.
    pub fn size(matrix: MatrixView<'_>, plan: PanelPlan) -> usize {
        plan.order.panels(matrix.rows()) * panel_bytes(matrix, plan.paired)
    }

    /// Lays a matrix out in the memory that `place` gives: it is called with the size, and fills zeroed memory that starts at a
    /// multiple of 64 bytes by the function it gets. `None` when it gives none.
    ///
    /// Paired panels need a context whose level has bf16 products, gated ones an even number of rows.
    pub fn new(
        context: &Context,
        matrix: MatrixView<'_>,
        plan: PanelPlan,
        place: impl FnOnce(usize, &mut dyn FnMut(&mut [u8])) -> Option<Bytes>,
    ) -> Option<Self> {
        assert!(plan.order == RowOrder::Plain || matrix.rows().is_multiple_of(2), "halves of a gate");
        let size = panel_bytes(matrix, plan.paired);
        let bytes = place(Self::size(matrix, plan), &mut |out| {
            let panels = out.len() / size.max(1);
            let out = Shared::new(out);
            context.pool().run(panels, &|_, panel| {
                // SAFETY: each panel is one task's.
                let out = unsafe { out.slice(panel * size, size) };
                let rows = |place| plan.order.row(matrix.rows(), panel, place);
                if plan.paired {
                    pairs(context, matrix, &rows, out);
                } else {
                    match matrix.dtype().size() {
                        2 => strips::<2>(matrix, &rows, out),
                        _ => strips::<4>(matrix, &rows, out),
                    }
                }
            });
        })?;
        assert!(bytes.as_ptr().addr().is_multiple_of(64), "panels start at multiples of 64 bytes");
        let dtype = if plan.paired { DType::BF16 } else { matrix.dtype() };
        Some(Self { bytes, dtype, plan, rows: matrix.rows(), cols: matrix.cols() })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether they were made for [`crate::Input::Bf16`].
    pub fn is_paired(&self) -> bool {
        self.plan.paired
    }

    /// The order of the rows.
    pub fn order(&self) -> RowOrder {
        self.plan.order
    }

    pub(super) fn panels(&self) -> usize {
        self.plan.order.panels(self.rows)
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(super) fn panel(&self, panel: usize) -> &[u8] {
        let size = self.bytes.len() / self.panels();
        &self.bytes[panel * size..(panel + 1) * size]
    }
}

fn panel_bytes(matrix: MatrixView<'_>, paired: bool) -> usize {
    if paired {
        matrix.cols().next_multiple_of(2) * PANEL * 2
    } else {
        matrix.cols() * PANEL * matrix.dtype().size()
    }
}

/// Rearranges rows as stored, in elements of `N` bytes.
fn strips<const N: usize>(matrix: MatrixView<'_>, rows: &dyn Fn(usize) -> Option<usize>, out: &mut [u8]) {
    let (cols, (out, _)) = (matrix.cols(), out.as_chunks_mut::<N>());
    for k in (0..cols).step_by(STRIP) {
        let n = (cols - k).min(STRIP);
        for (r, row) in (0..PANEL).filter_map(|r| Some((r, rows(r)?))) {
            let (strip, _) = matrix.bytes()[(row * cols + k) * N..][..n * N].as_chunks::<N>();
            for (step, element) in out[k * PANEL..].chunks_mut(PANEL).zip(strip) {
                step[r] = *element;
            }
        }
    }
}

/// Rearranges rows rounded to bf16, in pairs.
fn pairs(context: &Context, matrix: MatrixView<'_>, rows: &dyn Fn(usize) -> Option<usize>, out: &mut [u8]) {
    let (cols, size) = (matrix.cols(), matrix.dtype().size());
    let (out, _) = out.as_chunks_mut::<4>();
    for k in (0..cols).step_by(STRIP) {
        let n = (cols - k).min(STRIP);
        for (r, row) in (0..PANEL).filter_map(|r| Some((r, rows(r)?))) {
            let mut strip = [bf16::ZERO; STRIP];
            let stored = &matrix.bytes()[(row * cols + k) * size..][..n * size];
            round_stored(context.level(), matrix.dtype(), stored, &mut strip[..n]);
            let (strip, _) = strip[..n.next_multiple_of(2)].as_chunks::<2>();
            for (step, [a, b]) in out[k / 2 * PANEL..].chunks_mut(PANEL).zip(strip) {
                let ([a0, a1], [b0, b1]) = (a.to_le_bytes(), b.to_le_bytes());
                step[r] = [a0, a1, b0, b1];
            }
        }
    }
}
