//! Matrix operands as they lie in memory, and where a product goes.

use half::{bf16, f16};

use crate::dtype::DType;
use crate::tensor::Tensor;

/// The elements of an operand.
#[derive(Clone, Copy)]
pub enum Data<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
    /// Quantised rows, filled up to whole lanes of four.
    U8(&'a [u8]),
}

impl<'a> Data<'a> {
    /// # Panics
    /// For `f64`, which only the reference kernels compute with.
    pub fn of(tensor: &'a Tensor) -> Self {
        match tensor.dtype() {
            DType::F32 => Data::F32(tensor.as_slice()),
            DType::BF16 => Data::Bf16(tensor.as_slice()),
            DType::F16 => Data::F16(tensor.as_slice()),
            DType::F64 => panic!("the CPU kernels compute in f32, not in f64"),
            DType::I8 => panic!("{}", crate::tensor::INT8),
        }
    }
}

/// One side of a product `Σ_k A[i, k] B[k, j]`. Its *outer* index is `i` or `j`.
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    pub data: Data<'a>,
    /// Elements from one row of the memory to the next.
    pub pitch: usize,
    /// Whether neighbours in memory are neighbours in `k`; else they are neighbours in the outer index.
    pub along_k: bool,
}

impl<'a> Operand<'a> {
    /// A row-major tensor whose rows are the outer index.
    pub fn rows_outer(tensor: &'a Tensor) -> Self {
        Self { data: Data::of(tensor), pitch: tensor.columns(), along_k: true }
    }

    /// Rows of the memory.
    pub fn rows(&self) -> usize {
        let len = match self.data {
            Data::F32(data) => data.len(),
            Data::Bf16(data) => data.len(),
            Data::F16(data) => data.len(),
            Data::U8(data) => data.len(),
        };
        len.checked_div(self.pitch).unwrap_or(0)
    }

    /// A row-major tensor whose rows are the summed index.
    pub fn rows_summed(tensor: &'a Tensor) -> Self {
        Self { data: Data::of(tensor), pitch: tensor.columns(), along_k: false }
    }
}

/// Memory that several threads write, each its own part.
#[derive(Clone, Copy)]
pub enum Target {
    F32(*mut f32),
    Bf16(*mut bf16),
    F16(*mut f16),
}

// SAFETY: the tasks of a product or an attention write disjoint elements, and the tensor outlives the region.
unsafe impl Sync for Target {}
// SAFETY: as above.
unsafe impl Send for Target {}

impl Target {
    /// # Panics
    /// For `f64`, and when another tensor shares the memory.
    pub fn of(tensor: &mut Tensor) -> Self {
        match tensor.dtype() {
            DType::F32 => Target::F32(tensor.as_mut_slice().as_mut_ptr()),
            DType::BF16 => Target::Bf16(tensor.as_mut_slice().as_mut_ptr()),
            DType::F16 => Target::F16(tensor.as_mut_slice().as_mut_ptr()),
            DType::F64 => panic!("the CPU kernels compute in f32, not in f64"),
            DType::I8 => panic!("{}", crate::tensor::INT8),
        }
    }
}
