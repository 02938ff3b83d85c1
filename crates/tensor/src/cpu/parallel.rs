//! How kernels meet element types and the thread team.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::dtype::{DType, Element};
use crate::team::Team;
use crate::tensor::Tensor;

/// Runs a block with the type alias `$T` standing for the element type of `$dtype`: `f32`, `bf16` or `f16`.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::dtype::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::dtype::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::dtype::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::dtype::DType::F64 => panic!("f64 tensors belong to the reference kernels"),
            $crate::dtype::DType::I8 => panic!("{}", $crate::tensor::INT8),
        }
    };
}

/// Evaluates an expression compiled for the best instruction set the CPU has, chosen at run time; what it calls must be
/// `#[inline(always)]`.
macro_rules! vectorized {
    ($kernels:expr, $body:expr) => {{
        let once = $crate::cpu::parallel::Once;
        $kernels.arch.dispatch(
            #[inline(always)]
            || {
                // A closure that consumes is called as it stands. One that could be called again is called through a
                // function of the compiler's that need not be inlined, and then is compiled for the least CPU.
                let _consumed = once;
                $body
            },
        )
    }};
}

/// See [`vectorized`].
pub(super) struct Once;

/// Elements per piece of work: 64 KiB of `f32`, so a piece and its neighbours fit a second-level cache.
pub(super) const PIECE: usize = 16 * 1024;

/// A slice that several threads write, each its own part.
pub(super) struct Parts<'a, T> {
    pointer: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `part`, whose caller promises that no two threads hold overlapping parts.
unsafe impl<T: Send> Sync for Parts<'_, T> {}
// SAFETY: as a `&mut [T]`.
unsafe impl<T: Send> Send for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { pointer: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No overlapping part is in use, on this thread or another.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        // SAFETY: inside the slice; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.end - range.start) }
    }
}

/// The writable elements of a tensor, to be shared among threads.
pub(super) fn parts<T: Element>(tensor: &mut Tensor) -> Parts<'_, T> {
    Parts::new(tensor.as_mut_slice::<T>())
}

/// Number of rows that make one piece of work.
pub(super) fn rows_per_piece(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

/// Calls `work(worker index, range)` for pieces of `grain` that cover `0..count`; threads take the next when free.
pub(super) fn for_pieces(team: &Team, count: usize, grain: usize, work: impl Fn(usize, Range<usize>) + Sync) {
    let pieces = count.div_ceil(grain);
    let range = |piece: usize| piece * grain..((piece + 1) * grain).min(count);
    if pieces <= 1 || team.threads() == 1 {
        return (0..pieces).for_each(|piece| work(0, range(piece)));
    }
    let next = AtomicUsize::new(0);
    team.run_open(|worker| {
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                break;
            }
            work(worker.index, range(piece));
        }
    });
}

/// Panics unless two tensors have one shape.
#[track_caller]
pub(super) fn assert_same_shape(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape(), "tensors of different shapes");
}

/// Panics unless a tensor is a vector of `columns` elements of type `f32`, as parameters of a norm and biases are.
#[track_caller]
pub(super) fn assert_vector(tensor: &Tensor, columns: usize) {
    assert_eq!((tensor.dtype(), tensor.len()), (DType::F32, columns), "a vector beside rows of {columns} columns");
}
