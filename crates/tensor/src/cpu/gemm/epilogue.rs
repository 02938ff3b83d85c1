//! The output pass, while a tile is in cache: bias, activation, rounding.

use std::ops::Range;

use crate::cpu::{CpuKernels, math};
use crate::dtype::Element;
use crate::kernels::Activation;
use crate::tensor::Tensor;

use super::int8::Channels;
use super::kernel::{MR, NR};
use super::operand::Target;

/// What happens to the sums of a product.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// Receives `activation(sum + bias)`, or has it added.
    pub y: Target,
    /// Receives `sum + bias`.
    pub pre: Option<Target>,
    pub bias: Option<&'a [f32]>,
    pub activation: Activation,
    /// Columns of `y` and `pre`.
    pub columns: usize,
    pub accumulate: bool,
    /// Where the sums are of integers.
    pub channels: Option<Channels<'a>>,
}

impl Output<'_> {
    /// The sums alone, written to `y` or added.
    pub fn sums(y: &mut Tensor, accumulate: bool) -> Self {
        let (columns, activation) = (y.columns(), Activation::Identity);
        Self { y: Target::of(y), pre: None, bias: None, activation, columns, accumulate, channels: None }
    }

    /// Where the sums themselves are the output, or are built in the memory of the output.
    pub fn in_place(&self) -> Option<*mut f32> {
        match self.y {
            Target::F32(y) => Some(y),
            _ => None,
        }
    }

    /// Whether the sums are the output.
    pub fn is_plain(&self) -> bool {
        self.in_place().is_some()
            && self.pre.is_none()
            && self.bias.is_none()
            && self.channels.is_none()
            && self.activation == Activation::Identity
    }

    /// Finishes a tile whose sums lie at `sums`, in rows of `pitch`; `scales` are those of the rows, where sums are of integers.
    ///
    /// # Safety
    /// The sums are readable and the tile is part of `y` and `pre`; nothing else touches either meanwhile. `sums` may
    /// be the tile of `y`; then `accumulate` is false.
    pub unsafe fn finish(
        &self,
        kernels: &CpuKernels,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: *const f32,
        pitch: usize,
        scales: Option<&[f32]>,
    ) {
        vectorized!(kernels, {
            let mut tile = [0.0f32; MR * NR];
            let (width, first) = (columns.len(), |r: usize| (rows.start + r) * self.columns + columns.start);
            let used = rows.len() * NR;
            for (r, row) in tile[..used].chunks_exact_mut(NR).enumerate() {
                // SAFETY: the caller's promise; a tile has at most `NR` columns.
                unsafe { std::ptr::copy_nonoverlapping(sums.add(r * pitch), row.as_mut_ptr(), width) };
                if let (Some(channels), Some(scales)) = (self.channels, scales) {
                    dequantize(row, scales[r], &channels.scales[columns.clone()], &channels.excess[columns.clone()]);
                }
                if let Some(bias) = self.bias {
                    row.iter_mut().zip(&bias[columns.clone()]).for_each(|(v, b)| *v += b);
                }
                if let Some(pre) = self.pre {
                    // SAFETY: the caller's promise.
                    unsafe { store(pre, first(r), &row[..width], false) };
                }
            }
            self.activate(&mut tile[..used]);
            for (r, row) in tile[..used].chunks_exact(NR).enumerate() {
                // SAFETY: the caller's promise.
                unsafe { store(self.y, first(r), &row[..width], self.accumulate) };
            }
        });
    }

    /// The whole tile at once: the chains of a polynomial are long, and only many of them keep a core busy.
    #[inline(always)]
    fn activate(&self, tile: &mut [f32]) {
        match self.activation {
            Activation::Identity => (),
            Activation::Gelu => tile.iter_mut().for_each(|v| *v = math::gelu(*v)),
            Activation::GeluTanh => tile.iter_mut().for_each(|v| *v = math::gelu_tanh(*v)),
            Activation::Relu => tile.iter_mut().for_each(|v| *v = if *v < 0.0 { 0.0 } else { *v }),
            Activation::Tanh => tile.iter_mut().for_each(|v| *v = math::tanh(*v)),
        }
    }
}

/// Turns the bits of integer sums into the numbers they stand for.
#[inline(always)]
fn dequantize(row: &mut [f32], row_scale: f32, scales: &[f32], excess: &[i32]) {
    for ((v, scale), excess) in row.iter_mut().zip(scales).zip(excess) {
        let sum = (v.to_bits() as i32).wrapping_sub(*excess);
        *v = sum as f32 * scale * row_scale;
    }
}

/// Writes a row, or adds to it, rounding once.
///
/// # Safety
/// `target` is writable at `first..first + row.len()` and nothing else touches it.
#[inline(always)]
pub unsafe fn store(target: Target, first: usize, row: &[f32], accumulate: bool) {
    #[inline(always)]
    fn write<T: Element>(target: &mut [T], row: &[f32], accumulate: bool) {
        if accumulate {
            target.iter_mut().zip(row).for_each(|(t, &v)| *t = T::from_f32(t.to_f32() + v));
        } else {
            target.iter_mut().zip(row).for_each(|(t, &v)| *t = T::from_f32(v));
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match target {
            Target::F32(t) => write(std::slice::from_raw_parts_mut(t.add(first), row.len()), row, accumulate),
            Target::Bf16(t) => write(std::slice::from_raw_parts_mut(t.add(first), row.len()), row, accumulate),
            Target::F16(t) => write(std::slice::from_raw_parts_mut(t.add(first), row.len()), row, accumulate),
        }
    }
}
