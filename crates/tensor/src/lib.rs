//! Numbers for transformer training on CPUs: tensors, the memory pool they live in, the thread team that works on
//! them, and the kernels.
//!
//! [`Tensor`] is a contiguous, row-major array of one [`DType`]; its memory comes from a [`Pool`] and goes back there
//! when the last clone is dropped, so a training step that repeats asks the system for nothing. All arithmetic is
//! behind the object-safe trait [`Kernels`]: [`ReferenceKernels`] is the naive `f64` oracle that every other
//! implementation is tested against, [`CpuKernels`] the fast one. Code above this crate holds a `&dyn Kernels` and is
//! written once for all of them.
//!
//! ```
//! use tensor::{Activation, CpuKernels, DType, Kernels, Tensor};
//!
//! let kernels = CpuKernels::new(2);
//! let x = kernels.pool().from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2]);
//! let w = kernels.pool().from_slice(&[0.5f32, 0.0, 0.0, 0.5], &[2, 2]);
//! let mut y = kernels.pool().empty(DType::F32, &[2, 2]);
//! kernels.linear(&x, &w, None, Activation::Identity, None, &mut y);
//! assert_eq!(y.as_slice::<f32>(), &[0.5, 1.0, 1.5, 2.0]);
//! ```

mod cores;
mod cpu;
mod dtype;
mod kernels;
mod pool;
mod random;
mod reference;
mod team;
mod tensor;

pub use cores::{physical_cores, pin_to_cores, split_cores};
pub use cpu::CpuKernels;
pub use dtype::{DType, Element};
pub use kernels::{
    Activation, AdamwStep, AdamwTensor, AttentionShape, Dropout, Embedding, Kernels, LossSum, Norm, NormSaved,
};
pub use pool::{Pool, PoolStats};
pub use random::Stream;
pub use reference::ReferenceKernels;
pub use team::{Team, Worker};
pub use tensor::{Layout, Tensor};
