//! Matrix products: linear layers and their gradients.
//!
//! One blocked driver over the thread team, one packed format, and a micro-kernel per instruction set. An output
//! element is one sum in an order that depends on `k` alone: its bits depend neither on the number of threads nor on
//! how many rows or columns stand beside it.
//!
//! Operands may be `f32`, `bf16` or `f16` in any mixture; sums are `f32`. Where both operands are `bf16` and the CPU
//! multiplies `bf16` pairs at more than the rate of `f32`, it does (its instruction takes two products into a sum and
//! flushes subnormal numbers to zero); everything else is widened to `f32` while it is packed. Linear layers with quantised
//! weights multiply 8-bit integers: see [`int8`].

#[cfg(target_arch = "x86_64")]
mod avx512;
mod driver;
mod epilogue;
mod int8;
pub mod kernel;
pub mod operand;
pub mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_avx512;
mod portable;
#[cfg(test)]
pub mod tests;

use crate::dtype::DType;
use crate::kernels::Activation;
use crate::tensor::{Layout, Tensor};

use super::CpuKernels;
use driver::{Right, Size};
use epilogue::Output;
pub use epilogue::store;
pub use int8::quantize;
use kernel::Lane;
use operand::{Operand, Target};

/// Which micro-kernels are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// AVX-512; `pairs` where `bf16` pairs are faster than widening, `quads` where there is VNNI.
    Avx512 { pairs: bool, quads: bool },
    /// What the compiler makes of plain loops.
    Portable,
}

impl Path {
    /// The best path of this CPU.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
        {
            let quads = is_x86_feature_detected!("avx512vnni");
            return Path::Avx512 { pairs: avx512::pairs_are_faster(), quads };
        }
        Path::Portable
    }

    /// The lanes of a product of two `bf16` matrices.
    fn bf16_lane(self) -> Lane {
        if matches!(self, Path::Avx512 { pairs: true, .. }) { Lane::Pair } else { Lane::Single }
    }
}

/// The name with the instruction set, for logs.
pub fn name(kernels: &CpuKernels) -> String {
    match kernels.path {
        Path::Avx512 { pairs: true, .. } => "cpu/avx512-bf16".to_owned(),
        Path::Avx512 { pairs: false, .. } => "cpu/avx512".to_owned(),
        Path::Portable => format!("cpu/{}", portable::name(kernels)),
    }
}

/// See [`Kernels::linear`](crate::Kernels::linear).
pub fn linear(
    kernels: &CpuKernels,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    activation: Activation,
    pre: Option<&mut Tensor>,
    y: &mut Tensor,
) {
    let &[n, k] = w.shape() else { panic!("linear: weights {w:?} are not a matrix") };
    assert_eq!((x.columns(), y.columns(), y.rows()), (k, n, x.rows()), "linear: {x:?} by {w:?} into {y:?}");
    assert!(bias.is_none_or(|bias| bias.len() == n), "linear: bias {bias:?} for {y:?}");
    assert!(pre.as_ref().is_none_or(|pre| pre.shape() == y.shape()), "linear: {pre:?} beside {y:?}");
    let (right, channels) = match (w.layout(), w.dtype()) {
        (Layout::RowMajor, _) => (Right::Plain(Operand::rows_outer(w)), None),
        (Layout::Packed, DType::I8) => {
            let (panels, channels) = int8::packed(w);
            (Right::Packed(panels, Lane::Quad), Some(channels))
        }
        (Layout::Packed, dtype) => (Right::Packed(w.packed_pointer().cast(), packed_lane(kernels.path, dtype)), None),
    };
    let output = Output {
        y: Target::of(y),
        pre: pre.map(Target::of),
        bias: bias.map(|bias| bias.as_slice()),
        activation,
        columns: n,
        accumulate: false,
        channels,
    };
    driver::product(kernels, Size { m: x.rows(), n, k }, &Operand::rows_outer(x), &right, &output);
}

/// See [`Kernels::prepack`](crate::Kernels::prepack). `bf16` weights stay 16 bits wide where the CPU multiplies pairs.
pub fn prepack(kernels: &CpuKernels, w: &Tensor) -> Tensor {
    let &[n, k] = w.shape() else { panic!("prepack: weights {w:?} are not a matrix") };
    let lane = packed_lane(kernels.path, w.dtype());
    let packed = kernels.pool.packed(driver::packed_lanes(n, k, lane) * size_of::<f32>(), w.dtype(), w.shape());
    // SAFETY: the memory is new and has room for the panels.
    unsafe {
        let target = packed.packed_pointer().cast_mut().cast();
        driver::pack_right(kernels, &Operand::rows_outer(w), n, k, lane, target);
    }
    packed
}

/// The lanes of a product whose operands all are of a type.
pub fn packed_lane(path: Path, dtype: DType) -> Lane {
    if dtype == DType::BF16 { path.bf16_lane() } else { Lane::Single }
}

/// See [`Kernels::linear_input_gradient`](crate::Kernels::linear_input_gradient).
pub fn linear_input_gradient(kernels: &CpuKernels, dy: &Tensor, w: &Tensor, dx: &mut Tensor, accumulate: bool) {
    let &[k, n] = w.shape() else { panic!("linear_input_gradient: weights {w:?} are not a matrix") };
    let fits = (dy.columns(), dx.columns(), dx.rows()) == (k, n, dy.rows());
    assert!(fits, "linear_input_gradient: {dy:?} by {w:?} into {dx:?}");
    let right = Right::Plain(Operand::rows_summed(w));
    let size = Size { m: dy.rows(), n, k };
    driver::product(kernels, size, &Operand::rows_outer(dy), &right, &Output::sums(dx, accumulate));
}

/// See [`Kernels::linear_weight_gradient`](crate::Kernels::linear_weight_gradient), without the bias.
pub fn linear_weight_gradient(kernels: &CpuKernels, dy: &Tensor, x: &Tensor, dw: &mut Tensor, accumulate: bool) {
    let (m, n, k) = (dy.columns(), x.columns(), dy.rows());
    let fits = (dw.shape(), x.rows()) == ([m, n].as_slice(), k);
    assert!(fits, "linear_weight_gradient: {dy:?} and {x:?} into {dw:?}");
    let right = Right::Plain(Operand::rows_summed(x));
    driver::product(kernels, Size { m, n, k }, &Operand::rows_summed(dy), &right, &Output::sums(dw, accumulate));
}
