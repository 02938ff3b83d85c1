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
/// `bf16`.
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
            }
        },
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
