//! Products of tiles, and the packed operands they are made of.

use std::ops::Range;

use crate::cpu::CpuKernels;
use crate::cpu::gemm::kernel::{self, Lane, MR, NR, Tile, Walk};
use crate::cpu::gemm::operand::{Data, Operand};
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
pub fn left_lanes(rows: usize, k: usize, lane: Lane) -> usize {
    rows.next_multiple_of(MR) * lane.count(k).max(KEYS)
}

/// Lanes of [`right`] for `outer` outer indices of `k` elements.
pub fn right_lanes(outer: usize, k: usize, lane: Lane) -> usize {
    outer.next_multiple_of(NR) * lane.count(k)
}

/// Arranges rows for the left of a product: as they are, at the pitch of a tile, or in panels of [`MR`] rows where they
/// are longer than that.
///
/// # Safety
/// `target` is this thread's and has [`left_lanes`]. Lanes are pairs only for `bf16`.
pub unsafe fn left(
    kernels: &CpuKernels,
    source: &Operand,
    rows: Range<usize>,
    k: Range<usize>,
    lane: Lane,
    target: *mut f32,
) -> Left {
    let lanes = lane.count(k.len());
    if lanes > KEYS {
        for (p, first) in rows.clone().step_by(MR).enumerate() {
            let panel = Panel { pointer: target.wrapping_add(p * MR * lanes), width: MR, lane };
            // SAFETY: the caller's promise.
            unsafe { pack::pack(kernels.path, source, first..(first + MR).min(rows.end), k.clone(), panel) };
        }
        return Left::Panels(target);
    }
    match (source.data, lane) {
        (Data::Bf16(data), Lane::Pair) => {
            for (r, row) in rows.enumerate() {
                let (row, target) = (&data[row * source.pitch..][k.clone()], target.wrapping_add(r * KEYS));
                // SAFETY: the caller's promise; the last lane is zero where its second element does not exist.
                unsafe {
                    target.wrapping_add(lanes - 1).write(0.0);
                    std::ptr::copy_nonoverlapping(row.as_ptr(), target.cast(), row.len());
                }
            }
        }
        _ => {
            let panel = Panel { pointer: target, width: KEYS, lane };
            let rows_summed = Operand { along_k: false, ..*source };
            // SAFETY: the caller's promise; a row is no longer than the panel is wide.
            unsafe { pack::pack(kernels.path, &rows_summed, k, rows, panel) };
        }
    }
    Left::Rows(target)
}

/// Packs the right of a product: panels of [`NR`] outer indices, the last filled up with zeros.
///
/// # Safety
/// `target` is this thread's and has [`right_lanes`]. Lanes are pairs only for `bf16`.
pub unsafe fn right(
    kernels: &CpuKernels,
    source: &Operand,
    outer: Range<usize>,
    k: Range<usize>,
    lane: Lane,
    target: *mut f32,
) {
    for (p, first) in outer.clone().step_by(NR).enumerate() {
        let pointer = target.wrapping_add(p * NR * lane.count(k.len()));
        let panel = Panel { pointer, width: NR, lane };
        // SAFETY: the caller's promise.
        unsafe { pack::pack(kernels.path, source, first..(first + NR).min(outer.end), k.clone(), panel) };
    }
}

/// The left side of a product.
#[derive(Clone, Copy)]
pub enum Left {
    /// Made by [`left`] of long rows.
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
    pub lane: Lane,
    /// Length of the sums, in lanes.
    pub lanes: usize,
    pub left: Left,
    /// Made by [`right`]; from its first panel, `panel_lanes` lanes to the next.
    pub right: *const f32,
    pub panel_lanes: usize,
    /// Lanes from one row of a panel to the next: [`NR`] in panels made by [`right`].
    pub right_pitch: usize,
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
                    Left::Panels(panels) => (panels.wrapping_add(row * self.lanes), Walk::Columns(MR)),
                    Left::Rows(tile) => (tile.wrapping_add(row * KEYS), Walk::Rows),
                    Left::Columns(tile) => (tile.wrapping_add(row), Walk::Columns(KEYS)),
                };
                let tile = Tile {
                    rows: (self.rows - row).min(MR),
                    columns: (self.columns - column).min(NR),
                    lanes: self.lanes,
                    a,
                    walk,
                    b: self.right.wrapping_add(column / NR * self.panel_lanes),
                    b_pitch: self.right_pitch,
                    c: self.c.wrapping_add(row * self.c_pitch + column),
                    c_pitch: self.c_pitch,
                    add: self.add,
                };
                // SAFETY: the caller's promise.
                unsafe { kernel::compute(kernels, self.lane, &tile) };
            }
        }
    }
}
