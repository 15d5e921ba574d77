//! Laying a matrix out in panels.

use anemone_tensor::{BLOCK, BlockFormat, Blocks, six_bits};

use super::{Layout, ROWS, STEP, SUPER, SUPER_BYTES, Scales, code_bytes, scales};

/// Fills all panels, on all cores.
pub(super) fn fill(blocks: &Blocks, layout: &Layout, out: &mut [u8]) {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(16);
    let share = layout.panels().div_ceil(threads).max(4);
    std::thread::scope(|scope| {
        for (part, out) in out.chunks_mut(share * layout.panel).enumerate() {
            scope.spawn(move || {
                for (i, panel) in out.chunks_exact_mut(layout.panel).enumerate() {
                    fill_panel(blocks, layout, (part * share + i) * ROWS, panel);
                }
            });
        }
    });
}

/// Fills the panel that begins with row `first`; rows beyond the last are of zeros.
fn fill_panel(blocks: &Blocks, layout: &Layout, first: usize, panel: &mut [u8]) {
    panel.fill(0);
    let count = ROWS.min(layout.rows - first);
    let (scales, codes) = panel.split_at_mut(layout.codes);
    let size = code_bytes(layout.format.bits());
    for r in 0..count {
        let row = blocks.row(first + r);
        let stored = layout.format.bytes();
        for (i, block) in row.chunks_exact(stored).enumerate() {
            put_scales(layout.format, scales, i, r, block);
        }
        for (b, codes) in codes.chunks_exact_mut(size).enumerate() {
            match layout.format {
                BlockFormat::Q4_0 | BlockFormat::Q4_1 => {
                    // Halves of a stored block are the nibbles of ours.
                    let words = &row[(b + 1) * stored - BLOCK / 2..(b + 1) * stored];
                    for (c, word) in words.chunks_exact(STEP).enumerate() {
                        codes[c * ROWS * STEP + r * STEP..][..STEP].copy_from_slice(word);
                    }
                }
                BlockFormat::Q8_0 => {
                    let words = &row[(b + 1) * stored - BLOCK..(b + 1) * stored];
                    for (c, word) in words.chunks_exact(STEP).enumerate() {
                        let to = &mut codes[c * ROWS * STEP + r * STEP..][..STEP];
                        to.iter_mut().zip(word).for_each(|(to, from)| *to = from ^ 0x80);
                    }
                }
                format => put_codes(format, codes, r, &blocks.piece(first + r, b).codes),
            }
        }
    }
}

/// Scales of stored block `index` of a panel's row.
fn put_scales(format: BlockFormat, out: &mut [u8], index: usize, r: usize, block: &[u8]) {
    let at = |base: usize| base + 2 * r..base + 2 * r + 2;
    match scales(format) {
        Scales::Plain => out[at(index * 2 * ROWS)].copy_from_slice(&block[..2]),
        Scales::Min => {
            let base = index * 4 * ROWS;
            out[at(base)].copy_from_slice(&block[..2]);
            // What is stored is added, what we keep is taken away.
            out[at(base + 2 * ROWS)].copy_from_slice(&[block[2], block[3] ^ 0x80]);
        }
        Scales::SuperMin => {
            let base = index * SUPER_BYTES;
            out[at(base)].copy_from_slice(&block[..2]);
            out[at(base + 2 * ROWS)].copy_from_slice(&block[2..4]);
            for b in 0..SUPER {
                let (scale, min) = six_bits(&block[4..16], b);
                out[base + 4 * ROWS + b * 2 * ROWS + r] = scale;
                out[base + 4 * ROWS + b * 2 * ROWS + ROWS + r] = min;
            }
        }
        Scales::SuperHalf => {
            let base = index * SUPER_BYTES;
            out[at(base)].copy_from_slice(&block[208..210]);
            for half in 0..2 * SUPER {
                out[base + 4 * ROWS + half * ROWS + r] = block[192 + half];
            }
        }
    }
}

/// Codes of a block of a panel's row: four low bits in the nibbles of four vectors, further bits in vectors behind them.
fn put_codes(format: BlockFormat, out: &mut [u8], r: usize, codes: &[u8; BLOCK]) {
    for (k, code) in codes.iter().enumerate() {
        let (step, byte) = (k / STEP, r * STEP + k % STEP);
        out[step % 4 * 64 + byte] |= (code & 15) << (step / 4 * 4);
        match format.bits() {
            5 => out[256 + byte] |= (code >> 4) << step,
            6 => out[256 + step / 4 * 64 + byte] |= (code >> 4) << (step % 4 * 2),
            _ => {}
        }
    }
}
