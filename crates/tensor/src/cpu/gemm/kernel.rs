//! The micro-kernel: one tile of a product, summed over `k` in registers.
//!
//! Every element of a tile is one chain of multiply-adds in the order of `k`, whatever the size of the tile, so a
//! row's bits do not depend on the rows or columns beside it.

use super::Path;
use crate::cpu::CpuKernels;

/// Most rows of a tile.
pub const MR: usize = 14;
/// Columns of a full tile.
pub const NR: usize = 32;
/// Row stride of `a` in tiles that read probabilities row by row (see [`Walk::Rows`]).
pub const ROW_PITCH: usize = 128;

/// How a tile walks over `a`, whose element of row `r` and lane `l` is `a[r * row_stride + l * lane_stride]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Walk {
    /// `row_stride = 1`, any `lane_stride`: packed panels and transposed matrices.
    Columns(usize),
    /// `row_stride = ROW_PITCH`, `lane_stride = 1`.
    Rows,
}

/// What 32 bits of a packed operand hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// One `f32`.
    Single,
    /// Two `bf16` that are neighbours in `k`, the first in the lower half.
    Pair,
    /// Four 8-bit integers that are neighbours in `k`, the first in the lowest byte: unsigned in `a`, signed in `b`. Sums are
    /// 32-bit integers.
    Quad,
}

impl Lane {
    /// Elements in a lane.
    pub fn width(self) -> usize {
        match self {
            Lane::Single => 1,
            Lane::Pair => 2,
            Lane::Quad => 4,
        }
    }

    /// Lanes that hold `k` elements.
    pub fn count(self, k: usize) -> usize {
        k.div_ceil(self.width())
    }
}

/// `c[r, j] = Σ_l a[r, l] b[l, j]`, or added to `c`.
#[derive(Clone, Copy)]
pub struct Tile {
    pub rows: usize,
    pub columns: usize,
    pub lanes: usize,
    pub a: *const f32,
    pub walk: Walk,
    /// Rows of `NR` lanes.
    pub b: *const f32,
    pub b_pitch: usize,
    pub c: *mut f32,
    pub c_pitch: usize,
    pub add: bool,
}

/// Computes one tile.
///
/// # Safety
/// `rows <= MR` and `columns <= NR`; `a` is readable at `rows x lanes` by its walk, `b` at `lanes` rows of `NR` lanes,
/// `c` is writable at `rows x columns`, and nothing else touches `c` meanwhile. `lane` is `Pair` only on a path that
/// has it; `Quad` walks over columns.
#[inline]
pub unsafe fn compute(kernels: &CpuKernels, lane: Lane, tile: &Tile) {
    match kernels.path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the path was chosen because the CPU has the instructions; the rest is the caller's promise.
        Path::Avx512 { quads, .. } if quads || lane != Lane::Quad => unsafe { super::avx512::compute(lane, tile) },
        // SAFETY: the caller's promise.
        _ if lane == Lane::Quad => unsafe { super::portable::compute_quads(kernels, tile) },
        // SAFETY: the caller's promise.
        _ => unsafe { super::portable::compute(kernels, tile) },
    }
}
