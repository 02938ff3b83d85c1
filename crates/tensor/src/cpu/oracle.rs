//! For tests: one kernel call on the reference and on the fast kernels, with the same inputs.

use super::CpuKernels;
use crate::dtype::DType;
use crate::kernels::Kernels;
use crate::random::Stream;
use crate::reference::ReferenceKernels;
use crate::tensor::Tensor;

/// Rows and columns that meet every edge: none, one, primes, tails, several pieces and partial sums.
pub(super) const SHAPES: [[usize; 2]; 9] =
    [[0, 5], [1, 1], [3, 1], [2, 31], [5, 64], [7, 97], [67, 129], [70, 771], [2, 17_011]];

/// Kernels under test, and the type that activations are stored in.
pub(super) struct Case<'a> {
    /// The reference or the fast kernels.
    pub kernels: &'a dyn Kernels,
    storage: DType,
}

impl Case<'_> {
    /// Normal values, rounded to the storage type.
    pub fn activation(&self, seed: u64, shape: &[usize]) -> Tensor {
        let exact = normal_values(seed, shape.iter().product());
        let pool = self.kernels.pool();
        let mut stored = pool.empty(self.storage, shape);
        stored.copy_from_f32(&exact);
        if self.kernels.dtype() == DType::F64 { pool.from_slice(&stored.to_vec_f64(), shape) } else { stored }
    }

    /// Normal values of the type of parameters.
    pub fn parameter(&self, seed: u64, shape: &[usize]) -> Tensor {
        let mut tensor = self.kernels.pool().empty(self.kernels.dtype(), shape);
        tensor.copy_from_f32(&normal_values(seed, shape.iter().product()));
        tensor
    }

    /// An output of the storage type, full of NaN.
    pub fn output(&self, shape: &[usize]) -> Tensor {
        let dtype = if self.kernels.dtype() == DType::F64 { DType::F64 } else { self.storage };
        let mut tensor = self.kernels.pool().empty(dtype, shape);
        tensor.copy_from_f32(&vec![f32::NAN; shape.iter().product()]);
        tensor
    }

    /// An output of the type of parameters, full of NaN.
    pub fn parameter_output(&self, shape: &[usize]) -> Tensor {
        let mut tensor = self.kernels.pool().empty(self.kernels.dtype(), shape);
        tensor.copy_from_f32(&vec![f32::NAN; shape.iter().product()]);
        tensor
    }

    /// One number as an output of the type of parameters.
    pub fn number(&self, value: f64) -> Tensor {
        let mut tensor = self.kernels.pool().empty(self.kernels.dtype(), &[1]);
        tensor.copy_from_f32(&[value as f32]);
        tensor
    }
}

fn normal_values(seed: u64, count: usize) -> Vec<f32> {
    let stream = Stream::new(seed, 0, 0);
    (0..count as u64).map(|i| stream.normal(i, 0) as f32).collect()
}

/// Identities of rows, as a batch might have them.
pub(super) fn identities(rows: usize) -> Vec<u64> {
    (0..rows as u64).map(|row| row.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect()
}

/// Compares what `run` gives on the reference and on the fast kernels, for every storage type: within `tolerance`
/// (relative to the greater of 1 and the value) and the rounding of the storage type, with the same bits for 1, 2
/// and 3 threads.
#[track_caller]
pub(super) fn check(tolerance: f64, run: impl Fn(&Case) -> Vec<Tensor>) {
    let reference = ReferenceKernels::new();
    let teams = [1, 2, 3].map(CpuKernels::new);
    for storage in [DType::F32, DType::BF16, DType::F16] {
        let wanted = run(&Case { kernels: &reference, storage });
        let mut first: Option<Vec<Vec<u32>>> = None;
        for kernels in &teams {
            let got = run(&Case { kernels, storage });
            for (output, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                assert_eq!(got.shape(), wanted.shape());
                let rounding = match got.dtype() {
                    DType::BF16 => 4e-3,
                    DType::F16 => 5e-4,
                    _ => 0.0,
                };
                for (i, (g, w)) in got.to_vec_f64().into_iter().zip(wanted.to_vec_f64()).enumerate() {
                    let bound = tolerance * w.abs().max(1.0) + rounding * w.abs() + rounding * 1e-3;
                    assert!((g - w).abs() <= bound, "{storage}: output {output} {got:?} at {i}: {g}, not {w}");
                }
            }
            let bits: Vec<Vec<u32>> =
                got.iter().map(|t| t.to_vec_f32().into_iter().map(f32::to_bits).collect()).collect();
            assert_eq!(&bits, first.get_or_insert(bits.clone()), "{storage}: {} threads", kernels.threads());
        }
    }
}
