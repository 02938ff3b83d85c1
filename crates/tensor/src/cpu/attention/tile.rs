//! Products of tiles, and the packed operands they are made of.

use std::ops::Range;

use crate::cpu::CpuKernels;
use crate::cpu::gemm::kernel::{self, Lane, MR, NR, Tile, Walk};
use crate::cpu::gemm::operand::Operand;
use crate::cpu::gemm::pack::{self, Panel};

use super::KEYS;

/// A thread's workspace, handed out part by part.
pub struct Arena {
    next: *mut f32,
    left: usize,
}

impl Arena {
    /// # Safety
    /// The `lanes` at `start` belong to this thread alone while the parts are in use.
    pub unsafe fn new(start: *mut f32, lanes: usize) -> Self {
        Self { next: start, left: lanes }
    }

    /// Lanes that a part of `lanes` takes.
    pub const fn rounded(lanes: usize) -> usize {
        lanes.next_multiple_of(NR)
    }

    /// The next part.
    ///
    /// # Panics
    /// When the workspace was measured too small: a mistake in this crate.
    pub fn take(&mut self, lanes: usize) -> *mut f32 {
        let lanes = Self::rounded(lanes);
        assert!(lanes <= self.left, "attention workspace too small");
        let part = self.next;
        self.next = self.next.wrapping_add(lanes);
        self.left -= lanes;
        part
    }
}

/// Lanes of [`left`] for up to `rows` rows of `k` elements.
pub fn left_lanes(rows: usize, k: usize) -> usize {
    rows.next_multiple_of(MR) * k
}

/// Lanes of [`right`] for `outer` outer indices of `k` elements.
pub fn right_lanes(outer: usize, k: usize) -> usize {
    outer.next_multiple_of(NR) * k
}

/// Packs rows for the left of a product: panels of [`MR`] rows.
///
/// # Safety
/// `target` is this thread's and has [`left_lanes`].
pub unsafe fn left(kernels: &CpuKernels, source: &Operand, rows: Range<usize>, k: Range<usize>, target: *mut f32) {
    for (p, first) in rows.clone().step_by(MR).enumerate() {
        let pointer = target.wrapping_add(p * MR * k.len());
        let panel = Panel { pointer, width: MR, lane: Lane::Single };
        // SAFETY: the caller's promise.
        unsafe { pack::pack(kernels.path, source, first..(first + MR).min(rows.end), k.clone(), panel) };
    }
}

/// Packs the right of a product: panels of [`NR`] outer indices, the last filled up with zeros.
///
/// # Safety
/// `target` is this thread's and has [`right_lanes`].
pub unsafe fn right(kernels: &CpuKernels, source: &Operand, outer: Range<usize>, k: Range<usize>, target: *mut f32) {
    for (p, first) in outer.clone().step_by(NR).enumerate() {
        let pointer = target.wrapping_add(p * NR * k.len());
        let panel = Panel { pointer, width: NR, lane: Lane::Single };
        // SAFETY: the caller's promise.
        unsafe { pack::pack(kernels.path, source, first..(first + NR).min(outer.end), k.clone(), panel) };
    }
}

/// The left side of a product.
#[derive(Clone, Copy)]
pub enum Left {
    /// Made by [`left`].
    Panels(*const f32),
    /// A tile of `KEYS` columns, whose rows are the rows.
    Rows(*const f32),
    /// A tile of `KEYS` columns, whose columns are the rows: its transpose.
    Columns(*const f32),
}

/// `c (+)= left · right`.
#[derive(Clone, Copy)]
pub struct Product {
    pub rows: usize,
    pub columns: usize,
    /// Length of the sums.
    pub k: usize,
    pub left: Left,
    /// Made by [`right`]; from its first panel, `panel_lanes` lanes to the next.
    pub right: *const f32,
    pub panel_lanes: usize,
    pub c: *mut f32,
    pub c_pitch: usize,
    pub add: bool,
}

impl Product {
    /// # Safety
    /// Both sides are readable and `c` writable at the sizes given, and `c` is this thread's.
    pub unsafe fn run(&self, kernels: &CpuKernels) {
        for column in (0..self.columns).step_by(NR) {
            for row in (0..self.rows).step_by(MR) {
                let (a, walk) = match self.left {
                    Left::Panels(panels) => (panels.wrapping_add(row * self.k), Walk::Columns(MR)),
                    Left::Rows(tile) => (tile.wrapping_add(row * KEYS), Walk::Rows),
                    Left::Columns(tile) => (tile.wrapping_add(row), Walk::Columns(KEYS)),
                };
                let tile = Tile {
                    rows: (self.rows - row).min(MR),
                    columns: (self.columns - column).min(NR),
                    lanes: self.k,
                    a,
                    walk,
                    b: self.right.wrapping_add(column / NR * self.panel_lanes),
                    b_pitch: NR,
                    c: self.c.wrapping_add(row * self.c_pitch + column),
                    c_pitch: self.c_pitch,
                    add: self.add,
                };
                // SAFETY: the caller's promise.
                unsafe { kernel::compute(kernels, Lane::Single, &tile) };
            }
        }
    }
}
