//! Quantised linear layers: rows rounded to multiples of their scale, and nothing packed.

use crate::dtype::DType;
use crate::pool::Pool;
use crate::tensor::Tensor;

/// Every row rounded to 255 levels: `s·round(v / s)` with `s = max|v| / 127`, NaN where the row is not finite.
pub fn rounded(pool: &Pool, x: &Tensor) -> Tensor {
    let mut rounded = pool.from_slice(x.as_slice::<f64>(), x.shape());
    for row in rounded.as_mut_slice::<f64>().chunks_exact_mut(x.columns().max(1)) {
        let finite = row.iter().all(|v| v.is_finite());
        let scale = row.iter().fold(0.0, |largest: f64, v| largest.max(v.abs())) / 127.0;
        let level = |v: f64| if scale > 0.0 { (v / scale).round_ties_even() * scale } else { 0.0 };
        row.iter_mut().for_each(|v| *v = if finite { level(*v) } else { f64::NAN });
    }
    rounded
}

/// A matrix that [`unpacked`] gives back, rounded.
pub fn packed(pool: &Pool, w: &Tensor) -> Tensor {
    let packed = pool.packed(w.len() * size_of::<f64>(), DType::I8, w.shape());
    let rounded = rounded(pool, w);
    // SAFETY: the memory is new and has room for as many elements, which are copied from another tensor.
    unsafe {
        let target = packed.packed_pointer().cast_mut().cast::<f64>();
        std::ptr::copy_nonoverlapping(rounded.as_slice::<f64>().as_ptr(), target, w.len());
    }
    packed
}

/// The rounded values of a matrix.
pub fn unpacked(pool: &Pool, w: &Tensor) -> Tensor {
    // SAFETY: `packed` wrote as many elements, and no one writes to a packed tensor.
    let values = unsafe { std::slice::from_raw_parts(w.packed_pointer().cast::<f64>(), w.len()) };
    pool.from_slice(values, w.shape())
}
