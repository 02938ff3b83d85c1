//! The embedding sum, fused with its normalisation, and the gradient of a table.

use super::CpuKernels;
use super::norm::RowNorm;
use super::parallel::{for_pieces, parts, rows_per_piece};
use crate::dtype::{DType, Element};
use crate::kernels::{Embedding, Norm, NormSaved};
use crate::tensor::Tensor;

/// See [`Kernels::embed_norm`](crate::Kernels::embed_norm). The tables share one type, which need not be that of `y`.
pub(super) fn embed_norm(
    kernels: &CpuKernels,
    embedding: &Embedding,
    norm: &Norm,
    saved: Option<NormSaved>,
    y: &mut Tensor,
) {
    with_element!(embedding.word.dtype(), W => with_element!(y.dtype(), T => {
        gather_sum_norm::<W, T>(kernels, embedding, norm, saved, y);
    }));
}

fn gather_sum_norm<W: Element, T: Element>(
    kernels: &CpuKernels,
    embedding: &Embedding,
    norm: &Norm,
    saved: Option<NormSaved>,
    y: &mut Tensor,
) {
    let (rows, columns) = (y.rows(), y.columns());
    assert_eq!((embedding.ids.len(), embedding.positions.len()), (rows, rows), "one id and position for every row");
    let word = Table::<W>::new(embedding.word, embedding.ids, columns);
    let position = Table::<W>::new(embedding.position, embedding.positions, columns);
    let token_type = embedding.token_type.map(|table| {
        assert_eq!(embedding.types.len(), rows, "one type for every row");
        Table::<W>::new(table, embedding.types, columns)
    });
    let mut scratch = kernels.pool.empty(DType::F32, &[kernels.team.threads(), columns]);
    let scratch = parts::<f32>(&mut scratch);
    let output = RowNorm::<T>::new(norm, saved, y);
    for_pieces(&kernels.team, rows, rows_per_piece(columns), |worker, range| {
        // SAFETY: every worker has its own row of the scratch memory.
        let sum = unsafe { scratch.part(worker * columns..(worker + 1) * columns) };
        vectorized!(kernels, {
            for row in range {
                let (word, position) = (word.row(row), position.row(row));
                for ((sum, w), p) in sum.iter_mut().zip(word).zip(position) {
                    *sum = w.to_f32() + p.to_f32();
                }
                if let Some(token_type) = &token_type {
                    sum.iter_mut().zip(token_type.row(row)).for_each(|(sum, t)| *sum += t.to_f32());
                }
                // SAFETY: the rows of the pieces are disjoint.
                unsafe { output.write(row, sum) };
            }
        });
    });
}

/// A table with the rows that are wanted of it.
struct Table<'a, W> {
    values: &'a [W],
    indices: &'a [u32],
    columns: usize,
}

impl<'a, W: Element> Table<'a, W> {
    fn new(table: &'a Tensor, indices: &'a [u32], columns: usize) -> Self {
        assert_eq!(table.columns(), columns, "width of an embedding table");
        Self { values: table.as_slice(), indices, columns }
    }

    #[inline(always)]
    fn row(&self, row: usize) -> &'a [W] {
        let start = self.indices[row] as usize * self.columns;
        &self.values[start..start + self.columns]
    }
}

/// See [`Kernels::embedding_gradient`](crate::Kernels::embedding_gradient). Every thread adds to its own columns of the
/// table, so that tokens with one id need no lock and join in their order.
pub(super) fn embedding_gradient(kernels: &CpuKernels, rows: &[u32], dsum: &Tensor, dtable: &mut Tensor) {
    let columns = dsum.columns();
    assert_eq!((dsum.rows(), dtable.columns()), (rows.len(), columns), "one row of the gradient for every token");
    with_element!(dsum.dtype(), T => {
        let (dsum, dtable) = (dsum.as_slice::<T>(), parts::<f32>(dtable));
        kernels.team.run(|worker| {
            let share = worker.share(columns, 16);
            vectorized!(kernels, {
                for (&row, dsum) in rows.iter().zip(dsum.chunks_exact(columns)) {
                    let start = row as usize * columns;
                    // SAFETY: the columns of the threads are disjoint.
                    let target = unsafe { dtable.part(start + share.start..start + share.end) };
                    target.iter_mut().zip(&dsum[share.clone()]).for_each(|(t, d)| *t += d.to_f32());
                }
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::oracle::check;

    const IDS: [u32; 7] = [4, 0, 4, 10, 4, 2, 0];
    const POSITIONS: [u32; 7] = [0, 1, 2, 0, 1, 0, 1];
    const TYPES: [u32; 7] = [0, 0, 1, 0, 1, 1, 0];

    #[test]
    fn embedding_sums_match_the_reference_for_tables_of_either_type() {
        for (tokens, columns, stored) in [(7, 33, false), (7, 768, true), (1, 1, false), (0, 5, true)] {
            check(1e-5, |case| {
                let table = |seed, rows: usize| {
                    let shape = [rows, columns];
                    if stored { case.activation(seed, &shape) } else { case.parameter(seed, &shape) }
                };
                let (word, position, kinds) = (table(1, 11), table(2, 3), table(3, 2));
                let (gamma, beta) = (case.parameter(4, &[columns]), case.parameter(5, &[columns]));
                let norm = Norm { gamma: &gamma, beta: &beta, eps: 1e-3 };
                let run = |token_type, types| {
                    let embedding = Embedding {
                        ids: &IDS[..tokens],
                        positions: &POSITIONS[..tokens],
                        types,
                        word: &word,
                        position: &position,
                        token_type,
                    };
                    let (mut y, mut normalized) = (case.output(&[tokens, columns]), case.output(&[tokens, columns]));
                    let mut inverse = case.parameter_output(&[tokens]);
                    let saved = NormSaved { normalized: &mut normalized, inverse_deviation: &mut inverse };
                    case.kernels.embed_norm(&embedding, &norm, Some(saved), &mut y);
                    vec![y, normalized, inverse]
                };
                [run(Some(&kinds), &TYPES[..tokens]), run(None, &[])].concat()
            });
        }
    }

    #[test]
    fn tokens_with_one_id_add_up_in_their_row() {
        for columns in [1, 33, 768] {
            check(1e-6, |case| {
                let (dsum, mut dtable) = (case.activation(1, &[7, columns]), case.parameter(2, &[11, columns]));
                case.kernels.embedding_gradient(&IDS, &dsum, &mut dtable);
                vec![dtable]
            });
        }
    }
}
