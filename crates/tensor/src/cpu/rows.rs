//! Kernels that move, sum or scale whole rows.

use std::ops::Range;

use super::CpuKernels;
use super::elementwise::LANES;
use super::norm::sum_lanes;
use super::parallel::{assert_same_shape, assert_vector, for_pieces, parts, rows_per_piece};
use crate::dtype::Element;
use crate::tensor::Tensor;

/// The least norm that [`normalize_rows`] divides by.
const LEAST_NORM: f32 = 1e-12;
/// Rows added to each other before they join the sum.
const ROWS_AT_ONCE: usize = 4;

/// `sums = Σ_rows x`, or added. `x: [rows, columns]`, `sums: [columns]`.
pub(super) fn sum_rows(kernels: &CpuKernels, x: &Tensor, sums: &mut Tensor, accumulate: bool) {
    let columns = x.columns();
    assert_vector(sums, columns);
    with_element!(x.dtype(), T => {
        let (x, sums) = (x.as_slice::<T>(), parts::<f32>(sums));
        kernels.team.run(|worker| {
            let share = worker.share(columns, 16);
            // SAFETY: the columns of the threads are disjoint.
            let sums = unsafe { sums.part(share.clone()) };
            vectorized!(kernels, {
                if !accumulate {
                    sums.fill(0.0);
                }
                add_rows(x, columns, share, sums);
            });
        });
    });
}

/// `sums += Σ_rows x[.., share]`
#[inline(always)]
fn add_rows<T: Element>(x: &[T], columns: usize, share: Range<usize>, sums: &mut [f32]) {
    let mut blocks = x.chunks_exact(ROWS_AT_ONCE * columns);
    for block in &mut blocks {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| &block[i * columns + share.start..i * columns + share.end]);
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum += (a.to_f32() + b.to_f32()) + (c.to_f32() + d.to_f32());
        }
    }
    for row in blocks.remainder().chunks_exact(columns) {
        sums.iter_mut().zip(&row[share.clone()]).for_each(|(sum, v)| *sum += v.to_f32());
    }
}

/// See [`Kernels::gather_rows`](crate::Kernels::gather_rows).
pub(super) fn gather_rows(kernels: &CpuKernels, x: &Tensor, rows: &[u32], y: &mut Tensor) {
    let columns = x.columns();
    assert_eq!((y.rows(), y.columns()), (rows.len(), columns), "one row of the output for every index");
    with_element!(x.dtype(), T => {
        let (x, y) = (x.as_slice::<T>(), parts::<T>(y));
        for_pieces(&kernels.team, rows.len(), rows_per_piece(columns), |_, range| {
            for i in range {
                let source = rows[i] as usize * columns;
                // SAFETY: the rows of the pieces are disjoint.
                let target = unsafe { y.part(i * columns..(i + 1) * columns) };
                target.copy_from_slice(&x[source..source + columns]);
            }
        });
    });
}

/// See [`Kernels::scatter_rows`](crate::Kernels::scatter_rows).
pub(super) fn scatter_rows(kernels: &CpuKernels, dy: &Tensor, rows: &[u32], dx: &mut Tensor) {
    let columns = dx.columns();
    assert_eq!((dy.rows(), dy.columns()), (rows.len(), columns), "one row of the gradient for every index");
    super::elementwise::zero(kernels, dx);
    with_element!(dy.dtype(), T => {
        let (dy, dx) = (dy.as_slice::<T>(), dx.as_mut_slice::<T>());
        for (&row, dy) in rows.iter().zip(dy.chunks_exact(columns)) {
            dx[row as usize * columns..(row as usize + 1) * columns].copy_from_slice(dy);
        }
    });
}

/// See [`Kernels::mean_pool`](crate::Kernels::mean_pool).
pub(super) fn mean_pool(kernels: &CpuKernels, x: &Tensor, offsets: &[u32], y: &mut Tensor) {
    let columns = x.columns();
    let sequences = assert_sequences(x, offsets, y);
    let mut scratch = kernels.pool.empty(crate::DType::F32, &[kernels.team.threads(), columns]);
    let scratch = parts::<f32>(&mut scratch);
    with_element!(x.dtype(), T => {
        let (x, y) = (x.as_slice::<T>(), parts::<T>(y));
        for_pieces(&kernels.team, sequences, 1, |worker, piece| {
            let tokens = tokens(offsets, piece.start);
            // SAFETY: every worker has its own row of the scratch memory.
            let sums = unsafe { scratch.part(worker * columns..(worker + 1) * columns) };
            // SAFETY: every piece is another row.
            let y = unsafe { y.part(piece.start * columns..piece.end * columns) };
            vectorized!(kernels, {
                sums.fill(0.0);
                add_rows(&x[tokens.start * columns..tokens.end * columns], columns, 0..columns, sums);
                let share = 1.0 / tokens.len().max(1) as f32;
                y.iter_mut().zip(&*sums).for_each(|(y, sum)| *y = T::from_f32(sum * share));
            });
        });
    });
}

/// See [`Kernels::mean_pool_gradient`](crate::Kernels::mean_pool_gradient).
pub(super) fn mean_pool_gradient(kernels: &CpuKernels, dy: &Tensor, offsets: &[u32], dx: &mut Tensor) {
    let columns = dx.columns();
    let sequences = assert_sequences(dx, offsets, dy);
    with_element!(dy.dtype(), T => {
        let (dy, dx) = (dy.as_slice::<T>(), parts::<T>(dx));
        for_pieces(&kernels.team, sequences, 1, |_, piece| {
            let tokens = tokens(offsets, piece.start);
            let dy = &dy[piece.start * columns..piece.end * columns];
            // SAFETY: every piece is another sequence.
            let dx = unsafe { dx.part(tokens.start * columns..tokens.end * columns) };
            let share = 1.0 / tokens.len().max(1) as f32;
            vectorized!(kernels, {
                for dx in dx.chunks_exact_mut(columns) {
                    dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = T::from_f32(dy.to_f32() * share));
                }
            });
        });
    });
}

/// The number of sequences, of which `pooled` has one row each and `all` has every token.
#[track_caller]
fn assert_sequences(all: &Tensor, offsets: &[u32], pooled: &Tensor) -> usize {
    assert_eq!(all.columns(), pooled.columns(), "width of the pooled rows");
    assert_eq!(offsets.len(), pooled.rows() + 1, "one row for every sequence");
    assert!(offsets.is_sorted() && offsets[0] == 0, "offsets begin at 0 and rise");
    assert_eq!(offsets[offsets.len() - 1] as usize, all.rows(), "the last offset is the number of tokens");
    pooled.rows()
}

fn tokens(offsets: &[u32], sequence: usize) -> Range<usize> {
    offsets[sequence] as usize..offsets[sequence + 1] as usize
}

/// See [`Kernels::normalize_rows`](crate::Kernels::normalize_rows).
pub(super) fn normalize_rows(kernels: &CpuKernels, x: &Tensor, y: &mut Tensor) {
    assert_same_shape(x, y);
    let (rows, columns) = (x.rows(), x.columns());
    with_element!(x.dtype(), T => {
        let (x, y) = (x.as_slice::<T>(), parts::<T>(y));
        for_pieces(&kernels.team, rows, rows_per_piece(columns), |_, range| {
            let elements = range.start * columns..range.end * columns;
            // SAFETY: the rows of the pieces are disjoint.
            let y = unsafe { y.part(elements.clone()) };
            vectorized!(kernels, {
                for (x, y) in x[elements].chunks_exact(columns).zip(y.chunks_exact_mut(columns)) {
                    let inverse = 1.0 / at_least(dot(x, x).sqrt());
                    x.iter().zip(y).for_each(|(x, y)| *y = T::from_f32(x.to_f32() * inverse));
                }
            });
        });
    });
}

/// See [`Kernels::normalize_rows_gradient`](crate::Kernels::normalize_rows_gradient): with `u = x / ‖x‖`,
/// `dx = (dy - u (u·dy)) / ‖x‖`, and `dx = dy / 1e-12` below that norm.
pub(super) fn normalize_rows_gradient(kernels: &CpuKernels, x: &Tensor, dy: &Tensor, dx: &mut Tensor) {
    assert_same_shape(x, dy);
    assert_same_shape(x, dx);
    let (rows, columns) = (x.rows(), x.columns());
    with_element!(x.dtype(), T => {
        let (x, dy, dx) = (x.as_slice::<T>(), dy.as_slice::<T>(), parts::<T>(dx));
        for_pieces(&kernels.team, rows, rows_per_piece(columns), |_, range| {
            let elements = range.start * columns..range.end * columns;
            // SAFETY: the rows of the pieces are disjoint.
            let dx = unsafe { dx.part(elements.clone()) };
            let (x, dy) = (&x[elements.clone()], &dy[elements]);
            vectorized!(kernels, {
                for ((x, dy), dx) in x.chunks_exact(columns).zip(dy.chunks_exact(columns)).zip(dx.chunks_exact_mut(columns)) {
                    let norm = dot(x, x).sqrt();
                    let inverse = 1.0 / at_least(norm);
                    let along = if norm <= LEAST_NORM { 0.0 } else { dot(x, dy) * inverse * inverse };
                    for ((x, dy), dx) in x.iter().zip(dy).zip(dx) {
                        *dx = T::from_f32(f32::mul_add(x.to_f32(), -along, dy.to_f32()) * inverse);
                    }
                }
            });
        });
    });
}

/// The norm to divide by; a NaN stays one, which `max` would hide.
#[inline(always)]
fn at_least(norm: f32) -> f32 {
    if norm < LEAST_NORM { LEAST_NORM } else { norm }
}

#[inline(always)]
fn dot<T: Element>(a: &[T], b: &[T]) -> f32 {
    let ((a_chunks, a_rest), (b_chunks, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            lanes[lane] = f32::mul_add(a[lane].to_f32(), b[lane].to_f32(), lanes[lane]);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane = f32::mul_add(a.to_f32(), b.to_f32(), *lane);
    }
    sum_lanes(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::{SHAPES, check};

    #[test]
    fn column_sums_match_the_reference_written_and_added() {
        for shape @ [_, columns] in SHAPES {
            check(1e-5, |case| {
                let x = case.activation(1, &shape);
                let (mut written, mut added) = (case.parameter_output(&[columns]), case.parameter(2, &[columns]));
                case.kernels.sum_rows(&x, &mut written, false);
                case.kernels.sum_rows(&x, &mut added, true);
                vec![written, added]
            });
        }
    }

    #[test]
    fn gathered_rows_scatter_back() {
        let rows = [3, 0, 6];
        for columns in [1, 97, 768] {
            check(0.0, |case| {
                let (x, mut y) = (case.activation(1, &[7, columns]), case.output(&[3, columns]));
                case.kernels.gather_rows(&x, &rows, &mut y);
                let mut dx = case.output(&[7, columns]);
                case.kernels.scatter_rows(&y, &rows, &mut dx);
                vec![y, dx]
            });
        }
    }

    #[test]
    fn mean_pooling_and_its_gradient_skip_empty_sequences() {
        let offsets = [0, 1, 1, 10, 14];
        for columns in [1, 97, 768] {
            check(1e-6, |case| {
                let (x, mut y) = (case.activation(1, &[14, columns]), case.output(&[4, columns]));
                case.kernels.mean_pool(&x, &offsets, &mut y);
                let (dy, mut dx) = (case.activation(2, &[4, columns]), case.output(&[14, columns]));
                case.kernels.mean_pool_gradient(&dy, &offsets, &mut dx);
                vec![y, dx]
            });
        }
        check(0.0, |case| {
            let (x, mut y) = (case.activation(1, &[0, 5]), case.output(&[0, 5]));
            case.kernels.mean_pool(&x, &[0], &mut y);
            vec![y]
        });
    }

    #[test]
    fn normalised_rows_and_their_gradient_match_the_reference() {
        for shape in SHAPES {
            check(1e-5, |case| {
                let (x, dy) = (case.activation(1, &shape), case.activation(2, &shape));
                let (mut y, mut dx) = (case.output(&shape), case.output(&shape));
                case.kernels.normalize_rows(&x, &mut y);
                case.kernels.normalize_rows_gradient(&x, &dy, &mut dx);
                vec![y, dx]
            });
        }
    }

    #[test]
    fn a_row_of_zeros_stays_zero() {
        let kernels = CpuKernels::new(1);
        let (zeros, mut y) =
            (kernels.pool.zeros(crate::DType::F32, &[2, 5]), kernels.pool.zeros(crate::DType::F32, &[2, 5]));
        normalize_rows(&kernels, &zeros, &mut y);
        assert_eq!(y.to_vec_f32(), [0.0; 10]);
    }
}
