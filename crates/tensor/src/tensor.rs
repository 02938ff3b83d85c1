//! The tensor: a shape over pooled memory.

use std::sync::Arc;

use crate::dtype::{DType, Element};
use crate::pool::Buffer;

/// What kernels say of an int8 tensor where they need elements.
pub(crate) const INT8: &str = "int8 tensors are packed weights, which only `linear` reads";

/// How a tensor's elements lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Contiguous, last dimension fastest.
    RowMajor,
    /// Arranged by [`Kernels::prepack`](crate::Kernels::prepack) or [`Kernels::quantize`](crate::Kernels::quantize) for one
    /// kind of kernel; only `linear` reads it.
    Packed,
}

/// A contiguous array of one element type. Cloning shares the memory.
///
/// Shapes are checked by the kernels, which panic on a mismatch: a shape that a user or a file can influence is
/// validated before it becomes a tensor.
#[derive(Clone)]
pub struct Tensor {
    buffer: Arc<Buffer>,
    dtype: DType,
    layout: Layout,
    shape: Vec<usize>,
}

impl Tensor {
    pub(crate) fn new(buffer: Buffer, dtype: DType, layout: Layout, shape: &[usize]) -> Self {
        let bytes = checked_bytes(dtype, shape);
        assert!(layout == Layout::Packed || bytes <= buffer.capacity(), "buffer too small for {dtype}{shape:?}");
        Self { buffer: Arc::new(buffer), dtype, layout, shape: shape.to_vec() }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The memory order.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The size of every dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of rows: the product of all dimensions but the last.
    pub fn rows(&self) -> usize {
        self.shape[..self.shape.len() - 1].iter().product()
    }

    /// Size of the last dimension.
    pub fn columns(&self) -> usize {
        self.shape[self.shape.len() - 1]
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements (zero tokens, for instance).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the elements in bytes; the scales of int8 weights and what a packed tensor is filled up with come on top.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.bytes()
    }

    /// Identifies the memory, to tell whether two tensors share it.
    pub fn address(&self) -> usize {
        self.buffer.pointer() as usize
    }

    /// The elements in row-major order.
    ///
    /// # Panics
    /// When `T` is not the tensor's type or the tensor is packed.
    pub fn as_slice<T: Element>(&self) -> &[T] {
        self.check::<T>();
        // SAFETY: the buffer holds at least `len` elements (checked in `new`), is aligned to 64 bytes, was initialised
        // when it came from the system, and every bit pattern is a valid `Element`. Writers need `&mut Tensor` with a
        // unique buffer, so no one writes while this borrow lives.
        unsafe { std::slice::from_raw_parts(self.buffer.pointer().cast::<T>(), self.len()) }
    }

    /// The elements in row-major order, writable.
    ///
    /// # Panics
    /// As [`as_slice`](Self::as_slice), and when another tensor shares the memory.
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        self.check::<T>();
        let len = self.len();
        let buffer = Arc::get_mut(&mut self.buffer).expect("written tensor shares its memory");
        // SAFETY: as above, and `get_mut` proved that this is the only tensor over the buffer.
        unsafe { std::slice::from_raw_parts_mut(buffer.pointer().cast::<T>(), len) }
    }

    /// Whether no other tensor shares the memory, so that it may be written.
    pub fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.buffer).is_some()
    }

    /// The same elements under another shape of equal size.
    pub fn reshaped(mut self, shape: &[usize]) -> Self {
        assert_eq!(self.layout, Layout::RowMajor, "a packed tensor has one shape");
        assert_eq!(self.bytes(), checked_bytes(self.dtype, shape), "reshape {:?} to {shape:?}", self.shape);
        self.shape = shape.to_vec();
        self
    }

    /// A copy of the elements, converted.
    pub fn to_vec_f32(&self) -> Vec<f32> {
        self.to_vec_with(|v| v, |v| v as f32)
    }

    /// A copy of the elements, converted.
    pub fn to_vec_f64(&self) -> Vec<f64> {
        self.to_vec_with(|v| v as f64, |v| v)
    }

    fn to_vec_with<U>(&self, from_f32: impl Fn(f32) -> U, from_f64: impl Fn(f64) -> U) -> Vec<U> {
        match self.dtype {
            DType::F64 => self.as_slice::<f64>().iter().map(|&v| from_f64(v)).collect(),
            DType::F32 => self.as_slice::<f32>().iter().map(|&v| from_f32(v)).collect(),
            DType::BF16 => self.as_slice::<half::bf16>().iter().map(|v| from_f32(v.to_f32())).collect(),
            DType::F16 => self.as_slice::<half::f16>().iter().map(|v| from_f32(v.to_f32())).collect(),
            DType::I8 => panic!("{INT8}"),
        }
    }

    /// Overwrites the elements with rounded `values`.
    ///
    /// # Panics
    /// When the number of values differs or another tensor shares the memory.
    pub fn copy_from_f32(&mut self, values: &[f32]) {
        fn fill<T: Element>(target: &mut [T], values: &[f32]) {
            assert_eq!(target.len(), values.len(), "copy into a tensor of another size");
            target.iter_mut().zip(values).for_each(|(t, &v)| *t = T::from_f32(v));
        }
        match self.dtype {
            DType::F64 => fill(self.as_mut_slice::<f64>(), values),
            DType::F32 => self.as_mut_slice::<f32>().copy_from_slice(values),
            DType::BF16 => fill(self.as_mut_slice::<half::bf16>(), values),
            DType::F16 => fill(self.as_mut_slice::<half::f16>(), values),
            DType::I8 => panic!("{INT8}"),
        }
    }

    /// Raw packed memory, for the kernels that made it.
    pub(crate) fn packed_pointer(&self) -> *const u8 {
        assert_eq!(self.layout, Layout::Packed, "row-major tensor where a packed one is needed");
        self.buffer.pointer()
    }

    fn check<T: Element>(&self) {
        assert_eq!(self.dtype, T::DTYPE, "tensor of {} read as {}", self.dtype, T::DTYPE);
        assert_eq!(self.layout, Layout::RowMajor, "packed tensor read as row-major");
    }
}

/// Size of a tensor in bytes.
///
/// # Panics
/// When it does not fit the address space: a wrapped product would make slices longer than their memory.
pub(crate) fn checked_bytes(dtype: DType, shape: &[usize]) -> usize {
    let bytes = shape.iter().try_fold(dtype.bytes(), |bytes, &size| bytes.checked_mul(size));
    match bytes {
        Some(bytes) if bytes <= isize::MAX as usize => bytes,
        _ => panic!("a tensor of {dtype}{shape:?} is larger than the address space"),
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}
