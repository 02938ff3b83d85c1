//! Quantisation: rows as 8-bit integers with a scale each.
//!
//! `x ≈ scale · q` with `scale = max|x| / 127` of the row and `q` in `[-127, 127]`: weights have a scale for every output
//! channel, activations one for every row, found at run time. Quantised activations are stored as `q + 128`, because the
//! CPU's instruction multiplies unsigned by signed integers; what this makes of a sum too much is the *excess*, 128 times
//! the sum of the channel's weights, and is taken off in the output pass. Sums of integers are exact, so every path and
//! every order of summation gives the same bits.

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::driver::{self, Size};
use super::kernel::{Lane, MR, NR};
use super::operand::{Data, Operand};
use super::pack::{self, Panel};
use crate::cpu::CpuKernels;
use crate::dtype::{DType, Element};
use crate::tensor::Tensor;

/// Most products of a sum: 127² times as many stay below 2³¹. (A sum with its excess may wrap; without it, it is right.)
pub const MOST: usize = 1 << 17;

/// Rows whose largest magnitude is not above this count as zero: its inverse would not be finite.
const SMALLEST: f32 = 1e-36;

/// What turns the sums of a quantised product into numbers.
#[derive(Clone, Copy)]
pub struct Channels<'a> {
    /// One for every output channel; NaN for a channel whose weights are not all finite.
    pub scales: &'a [f32],
    /// 128 times the sum of each channel's weights.
    pub excess: &'a [i32],
}

/// Writes `q + 128` of every element, and of zero for what `quantized` has more; returns the scale. A row that is not finite
/// has the scale NaN, so that whatever is computed from it is NaN.
#[inline(always)]
pub fn quantize_row<T: Element>(row: &[T], quantized: &mut [u8]) -> f32 {
    /// 1.5·2²³, whose sum with a small number ends in the bits of the rounded number, and 128.
    const SHIFT: f32 = 12_582_912.0 + 128.0;
    let (filled, rest) = quantized.split_at_mut(row.len());
    rest.fill(128);
    let magnitude = |v: &T| v.to_f32().to_bits() & 0x7fff_ffff;
    let largest = f32::from_bits(row.iter().fold(0, |largest, v| magnitude(v).max(largest)));
    if !largest.is_finite() {
        filled.fill(128);
        return f32::NAN;
    }
    let inverse = if largest > SMALLEST { 127.0 / largest } else { 0.0 };
    filled.iter_mut().zip(row).for_each(|(q, v)| *q = (v.to_f32() * inverse + SHIFT).to_bits() as u8);
    largest / 127.0
}

/// See [`Kernels::quantize`](crate::Kernels::quantize).
pub fn quantize(kernels: &CpuKernels, w: &Tensor) -> Tensor {
    let &[n, k] = w.shape() else { panic!("quantize: weights {w:?} are not a matrix") };
    if k > MOST {
        return super::prepack(kernels, w);
    }
    let (lanes, panels) = (Lane::Quad.count(k), driver::packed_lanes(n, k, Lane::Quad));
    let packed = kernels.pool.packed((panels + 2 * n) * size_of::<f32>(), DType::I8, w.shape());
    let base = driver::Shared(packed.packed_pointer().cast_mut().cast::<f32>());
    let scales = driver::Shared(base.at(panels));
    let pitch = lanes * Lane::Quad.width();
    with_element!(w.dtype(), T => {
        let w = w.as_slice::<T>();
        kernels.team.for_each(n.div_ceil(NR), |panel| {
            let columns = driver::columns(panel, n);
            let mut rows = vec![0u8; columns.len() * pitch];
            for (i, channel) in columns.clone().enumerate() {
                let row = &mut rows[i * pitch..(i + 1) * pitch];
                let scale = vectorized!(kernels, quantize_row(&w[channel * k..(channel + 1) * k], row));
                // From `q + 128` to the bits of `q`.
                row.iter_mut().for_each(|q| *q ^= 128);
                let excess = row.iter().map(|&q| 128 * i32::from(q as i8)).sum::<i32>();
                // SAFETY: behind the panels lie a scale and an excess for every channel, and this one is this task's.
                unsafe {
                    scales.at(channel).write(scale);
                    scales.at(n + channel).cast::<i32>().write(excess);
                }
            }
            let source = Operand { data: Data::U8(&rows), pitch, along_k: true };
            let target = Panel { pointer: base.panel(panel, lanes), width: NR, lane: Lane::Quad };
            // SAFETY: every panel is its own part of the memory; the rows hold whole quads.
            unsafe { pack::pack(kernels.path, &source, 0..columns.len(), 0..pitch, target) };
        });
    });
    packed
}

/// The panels of quantised weights, and what their sums are turned into numbers with.
pub fn packed(w: &Tensor) -> (*const f32, Channels<'_>) {
    let &[n, k] = w.shape() else { unreachable!("`quantize` makes matrices") };
    let panels = w.packed_pointer().cast::<f32>();
    let scales = panels.wrapping_add(driver::packed_lanes(n, k, Lane::Quad));
    // SAFETY: `quantize` allocated and wrote both, and no one writes to a packed tensor.
    let channels = unsafe {
        Channels {
            scales: std::slice::from_raw_parts(scales, n),
            excess: std::slice::from_raw_parts(scales.wrapping_add(n).cast(), n),
        }
    };
    (panels, channels)
}

/// Rows of activations quantised for one product, in memory of its workspace.
pub struct Rows {
    /// Panels of `MR` rows, each of all lanes of `k`.
    pub panels: driver::Shared,
    /// One scale for every row.
    pub scales: driver::Shared,
}

impl Rows {
    /// Lanes of the panels and the scales.
    pub fn lanes(size: Size, row_panels: usize) -> [usize; 2] {
        [row_panels * MR * Lane::Quad.count(size.k), size.m.next_multiple_of(NR)]
    }
}

/// Quantises and packs `rows` of `a`, which fill `bytes`.
///
/// # Safety
/// The panel is writable for all lanes of `k` and nothing else touches it.
pub unsafe fn quantize_panel(
    kernels: &CpuKernels,
    a: &Operand,
    rows: Range<usize>,
    bytes: &mut [u8],
    scales: &mut [f32],
    panel: Panel,
) {
    #[inline(always)]
    fn quantize<T: Element>(data: &[T], k: usize, bytes: &mut [u8], scales: &mut [f32], pitch: usize) {
        for (r, scale) in scales.iter_mut().enumerate() {
            *scale = quantize_row(&data[r * k..(r + 1) * k], &mut bytes[r * pitch..(r + 1) * pitch]);
        }
    }
    let (k, count) = (a.pitch, rows.len());
    let pitch = Lane::Quad.count(k) * Lane::Quad.width();
    let elements = rows.start * k..rows.end * k;
    vectorized!(
        kernels,
        match a.data {
            Data::F32(data) => quantize(&data[elements], k, bytes, scales, pitch),
            Data::Bf16(data) => quantize(&data[elements], k, bytes, scales, pitch),
            Data::F16(data) => quantize(&data[elements], k, bytes, scales, pitch),
            Data::U8(_) => unreachable!("rows are quantised once"),
        }
    );
    let source = Operand { data: Data::U8(bytes), pitch, along_k: true };
    // SAFETY: the caller's promise; the rows hold whole quads.
    unsafe { pack::pack(kernels.path, &source, 0..count, 0..pitch, panel) };
}
