//! Packing: an operand's elements in panels, lane after lane, as a micro-kernel reads them.
//!
//! A panel of width `w` holds `w` outer indices: `panel[l * w + i]` is lane `l` of outer index `i`.

use std::ops::Range;

use half::bf16;

use super::Path;
use super::kernel::{Lane, NR};
use super::operand::{Data, Operand};
use crate::cpu::CpuKernels;
use crate::dtype::Element;

/// A panel to fill.
#[derive(Clone, Copy)]
pub struct Panel {
    pub pointer: *mut f32,
    /// Outer indices a panel has room for: `MR` or `NR`.
    pub width: usize,
    pub lane: Lane,
}

/// Fills a panel with the outer indices `outer` and the elements `k` of `source`; what the panel has more is zero.
/// `k` starts at an even index where lanes are pairs.
///
/// # Safety
/// The panel is writable at `lane.count(k.len()) * width` lanes and nothing else touches it. Lanes are pairs only for
/// `bf16`, quads only for quantised rows, of which `k` holds whole quads.
pub unsafe fn pack(path: Path, source: &Operand, outer: Range<usize>, k: Range<usize>, panel: Panel) {
    debug_assert!(outer.len() <= panel.width);
    if k.is_empty() {
        return;
    }
    match path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the path was chosen because the CPU has the instructions; the rest is the caller's promise.
        Path::Avx512 { .. } => unsafe { super::pack_avx512::pack(source, outer, k, panel) },
        // SAFETY: the caller's promise.
        _ => unsafe {
            match source.data {
                Data::F32(data) => singles(data, source, outer, k, panel),
                Data::Bf16(data) => singles(data, source, outer, k, panel),
                Data::F16(data) => singles(data, source, outer, k, panel),
                Data::U8(data) => quads(data, source, outer, k, panel),
            }
        },
    }
}

unsafe fn quads(data: &[u8], source: &Operand, outer: Range<usize>, k: Range<usize>, panel: Panel) {
    let count = panel.lane.count(k.len());
    // SAFETY: the caller's promise; every bit pattern is a `[u8; 4]`.
    let lanes = unsafe { std::slice::from_raw_parts_mut(panel.pointer.cast::<[u8; 4]>(), count * panel.width) };
    for (i, row) in (0..panel.width).zip(outer.clone()) {
        let (row, _) = data[row * source.pitch..][k.clone()].as_chunks();
        lanes[i..].iter_mut().step_by(panel.width).zip(row).for_each(|(lane, quad)| *lane = *quad);
    }
    for i in outer.len()..panel.width {
        lanes[i..].iter_mut().step_by(panel.width).for_each(|lane| *lane = [0; 4]);
    }
}

unsafe fn singles<T: Element>(data: &[T], source: &Operand, outer: Range<usize>, k: Range<usize>, panel: Panel) {
    // SAFETY: the caller's promise.
    let lanes = unsafe { std::slice::from_raw_parts_mut(panel.pointer, k.len() * panel.width) };
    if source.along_k {
        for (i, row) in (0..panel.width).zip(outer.clone()) {
            let row = &data[row * source.pitch..][k.clone()];
            lanes[i..].iter_mut().step_by(panel.width).zip(row).for_each(|(lane, value)| *lane = value.to_f32());
        }
        for i in outer.len()..panel.width {
            lanes[i..].iter_mut().step_by(panel.width).for_each(|lane| *lane = 0.0);
        }
    } else {
        for (lane, k) in lanes.chunks_exact_mut(panel.width).zip(k) {
            let row = &data[k * source.pitch..][outer.clone()];
            lane.iter_mut().zip(row).for_each(|(lane, value)| *lane = value.to_f32());
            lane[row.len()..].fill(0.0);
        }
    }
}

/// Asks for a part of a row-major matrix ahead of its use, for the second-level cache: parts of rows are what the
/// hardware does not foresee, and at the pitches of models they share few sets of a first-level cache.
pub fn prefetch(source: &Operand, rows: Range<usize>, columns: Range<usize>) {
    const LINE: usize = 64;
    let (start, width) = match source.data {
        Data::F32(data) => (data.as_ptr().cast::<u8>(), size_of::<f32>()),
        Data::Bf16(data) => (data.as_ptr().cast(), size_of::<u16>()),
        Data::F16(data) => (data.as_ptr().cast(), size_of::<u16>()),
        Data::U8(data) => (data.as_ptr(), size_of::<u8>()),
    };
    for row in rows {
        let row = start.wrapping_add(row * source.pitch * width);
        for byte in (columns.start * width..columns.end * width).step_by(LINE) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86-64 CPU has the instruction, and a prefetch of any address does no harm.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T1>(row.wrapping_add(byte).cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = row.wrapping_add(byte);
        }
    }
}

/// Rounds the rows of an `f32` tile to `bf16` in place: lane `l` of a row becomes the pair of its columns `2l`, `2l + 1`.
///
/// # Safety
/// The tile is this thread's, in rows of `pitch`, and `columns` is a multiple of `NR` that it has room for. The path
/// has pairs.
pub unsafe fn round_rows(path: Path, tile: *mut f32, pitch: usize, rows: usize, columns: usize) {
    match path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the path has pairs; the rest is the caller's promise.
        Path::Avx512 { pairs: true, .. } => unsafe { super::pack_avx512::round_rows(tile, pitch, rows, columns) },
        _ => unreachable!("pairs are of AVX-512"),
    }
}

/// Rounds an `f32` tile to `bf16` pairs of neighbouring rows: `target[l * pitch + c]` is the pair of the rows `2l` and
/// `2l + 1` in column `c`, with zero for a row that does not exist.
///
/// # Safety
/// As [`round_rows`]; the target is this thread's and has half the rows.
pub unsafe fn round_columns(path: Path, tile: *const f32, pitch: usize, rows: usize, columns: usize, target: *mut f32) {
    match path {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the path has pairs; the rest is the caller's promise.
        Path::Avx512 { pairs: true, .. } => unsafe {
            super::pack_avx512::round_columns(tile, pitch, rows, columns, target)
        },
        _ => unreachable!("pairs are of AVX-512"),
    }
}

/// Widens a panel of `NR` pairs into one of `NR` singles: weights packed for a micro-kernel that `x` does not fit.
///
/// # Safety
/// `pairs` is readable at `k.div_ceil(2) * NR` lanes, `singles` writable at `k * NR`, nothing else touches it.
pub unsafe fn widen_pairs(kernels: &CpuKernels, pairs: *const f32, k: usize, singles: *mut f32) {
    vectorized!(kernels, {
        for l in 0..k {
            // SAFETY: the caller's promise.
            let (pairs, singles) = unsafe {
                (
                    std::slice::from_raw_parts(pairs.add(l / 2 * NR).cast::<[bf16; 2]>(), NR),
                    std::slice::from_raw_parts_mut(singles.add(l * NR), NR),
                )
            };
            singles.iter_mut().zip(pairs).for_each(|(s, p)| *s = Element::to_f32(p[l % 2]));
        }
    });
}
