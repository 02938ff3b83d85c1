//! The backward pass: probabilities are recomputed tile by tile from the logarithms of their denominators.
//!
//! ```text
//! P = exp(scale·Q·Kᵀ - log_sum)     D = dropout factors     δ = Σ_d dO∘O
//! dV = (P∘D)ᵀ·dO     dS = scale·P∘(D∘(dO·Vᵀ) - δ)     dQ = dS·K     dK = dSᵀ·Q
//! ```
//!
//! A task is one key-value head of one sequence: it owns the gradients of its keys and values, and of the queries of
//! every head that reads them.

use std::ops::Range;

use super::softmax::{self, GROUP, Mask, visible};
use super::tile::{self, Arena, Left, Product, left_lanes, right_lanes};
use super::{Call, HeadColumns, KEYS, QUERIES, SHORT};
use crate::cpu::gemm::kernel::Lane;
use crate::cpu::gemm::operand::{Data, Operand, Target};
use crate::cpu::gemm::pack;
use crate::cpu::gemm::store;
use crate::tensor::Tensor;

/// Writes the gradient of the input.
pub fn run(call: &Call, y: &Tensor, dy: &Tensor, log_sum: &[f32], dqkv: Target) {
    let (groups, longest) = (call.shape.key_value_heads, call.longest());
    let lanes = lanes(longest, call.shape.head_dim, call.lane);
    let (y, dy) = (Data::of(y), Operand::rows_outer(dy));
    call.for_each(call.sequences() * groups, lanes, |task, workspace| {
        let tokens = call.tokens(task / groups);
        if !tokens.is_empty() {
            // SAFETY: the workspace is this thread's and has `lanes`.
            let arena = unsafe { Arena::new(workspace, lanes) };
            let parts = Parts::new(arena, tokens.len(), call.shape.head_dim, call.lane);
            Group { call, group: task % groups, tokens, y, dy, log_sum, dqkv, parts }.run();
        }
    });
}

/// A task's workspace.
struct Parts {
    /// Right sides: keys and values transposed, keys, and a block's queries and output gradients.
    transposed_keys: *mut f32,
    transposed_values: *mut f32,
    keys: *mut f32,
    queries: *mut f32,
    gradients: *mut f32,
    /// Left sides: a block's queries and output gradients.
    query_rows: *mut f32,
    gradient_rows: *mut f32,
    /// Tiles: probabilities behind dropout, and gradients of the scores.
    probabilities: *mut f32,
    score_gradients: *mut f32,
    /// The same in pairs of queries, where lanes are pairs.
    probability_pairs: *mut f32,
    score_gradient_pairs: *mut f32,
    /// Sums.
    query_sums: *mut f32,
    key_sums: *mut f32,
    value_sums: *mut f32,
}

fn part_lanes(longest: usize, dim: usize, lane: Lane) -> [usize; 14] {
    let (keys, queries, tile) = (right_lanes(longest, dim, lane), right_lanes(dim, QUERIES, lane), QUERIES * KEYS);
    let (rows, sums) = (left_lanes(QUERIES, dim, lane), longest * dim);
    let pairs = if lane == Lane::Pair { tile.div_ceil(2) } else { 0 };
    let right = [keys, keys, right_lanes(dim, longest, lane), queries, queries];
    let [a, b, c, d, e] = right;
    [a, b, c, d, e, rows, rows, tile, tile, pairs, pairs, QUERIES * dim, sums, sums]
}

fn lanes(longest: usize, dim: usize, lane: Lane) -> usize {
    part_lanes(longest, dim, lane).map(Arena::rounded).iter().sum()
}

impl Parts {
    fn new(mut arena: Arena, length: usize, dim: usize, lane: Lane) -> Self {
        let mut parts = part_lanes(length, dim, lane).into_iter().map(|lanes| arena.take(lanes));
        let mut next = || parts.next().unwrap_or(std::ptr::null_mut());
        Self {
            transposed_keys: next(),
            transposed_values: next(),
            keys: next(),
            queries: next(),
            gradients: next(),
            query_rows: next(),
            gradient_rows: next(),
            probabilities: next(),
            score_gradients: next(),
            probability_pairs: next(),
            score_gradient_pairs: next(),
            query_sums: next(),
            key_sums: next(),
            value_sums: next(),
        }
    }
}

/// One key-value head of one sequence.
struct Group<'a> {
    call: &'a Call<'a>,
    group: usize,
    tokens: Range<usize>,
    y: Data<'a>,
    dy: Operand<'a>,
    log_sum: &'a [f32],
    dqkv: Target,
    parts: Parts,
}

/// A block of queries of one head.
struct Block {
    head: usize,
    /// Positions in the sequence.
    queries: Range<usize>,
}

impl Group<'_> {
    fn run(&self) {
        let shape = self.call.shape;
        let heads_per_group = shape.query_heads / shape.key_value_heads;
        let heads = self.group * heads_per_group..(self.group + 1) * heads_per_group;
        let columns = self.call.columns(heads.start);
        // SAFETY: the workspace has room for the packed keys and values, and the sums are complete when they are
        // written; the columns of this group are this task's alone.
        unsafe {
            self.pack_keys(&columns);
            let sums = self.tokens.len() * shape.head_dim;
            std::slice::from_raw_parts_mut(self.parts.key_sums, sums).fill(0.0);
            std::slice::from_raw_parts_mut(self.parts.value_sums, sums).fill(0.0);
            for head in heads.clone() {
                for query in (0..self.tokens.len()).step_by(QUERIES) {
                    let queries = query..(query + QUERIES).min(self.tokens.len());
                    self.block(&Block { head, queries });
                }
            }
            self.write(0..self.tokens.len(), columns.key.start, self.parts.key_sums);
            self.write(0..self.tokens.len(), columns.value.start, self.parts.value_sums);
        }
    }

    unsafe fn pack_keys(&self, columns: &HeadColumns) {
        let (call, tokens, parts, lane) = (self.call, self.tokens.clone(), &self.parts, self.call.lane);
        let (along, across) = (Operand::rows_outer(call.qkv), Operand::rows_summed(call.qkv));
        if tokens.len() <= SHORT {
            for columns in [&columns.key, &columns.value, &columns.query] {
                pack::prefetch(&along, tokens.clone(), columns.clone());
            }
            for matrix in [self.dy, Operand { data: self.y, ..self.dy }] {
                pack::prefetch(&matrix, tokens.clone(), columns.query.clone());
            }
        }
        // SAFETY: the caller's promise.
        unsafe {
            tile::right(call.kernels, &along, tokens.clone(), columns.key.clone(), lane, parts.transposed_keys);
            tile::right(call.kernels, &across, columns.key.clone(), tokens.clone(), lane, parts.keys);
            tile::right(call.kernels, &along, tokens, columns.value.clone(), lane, parts.transposed_values);
        }
    }

    unsafe fn block(&self, block: &Block) {
        let transposed_dy = Operand { along_k: false, ..self.dy };
        let (call, parts, dim, length) = (self.call, &self.parts, self.call.shape.head_dim, self.tokens.len());
        let (kernels, lane) = (call.kernels, call.lane);
        let rows = self.tokens.start + block.queries.start..self.tokens.start + block.queries.end;
        let (count, columns) = (rows.len(), call.columns(block.head).query);
        let output = block.head * dim..(block.head + 1) * dim;
        let (along, across) = (Operand::rows_outer(call.qkv), Operand::rows_summed(call.qkv));
        // SAFETY: the workspace has room for the operands of a block.
        let (query_rows, gradient_rows) = unsafe {
            (
                tile::left(kernels, &along, rows.clone(), columns.clone(), lane, parts.query_rows),
                tile::left(kernels, &self.dy, rows.clone(), output.clone(), lane, parts.gradient_rows),
            )
        };
        // Singles in rows are a right side as they stand.
        let by_rows =
            if let (Lane::Single, Left::Rows(queries), Left::Rows(gradients)) = (lane, query_rows, gradient_rows) {
                [(queries, GROUP, KEYS), (gradients, GROUP, KEYS)]
            } else {
                // SAFETY: as above.
                unsafe {
                    tile::right(kernels, &across, columns.clone(), rows.clone(), lane, parts.queries);
                    tile::right(kernels, &transposed_dy, output, rows, lane, parts.gradients);
                }
                [parts.queries, parts.gradients].map(|panels| (panels.cast_const(), GROUP * lane.count(count), GROUP))
            };
        let deltas = self.deltas(block);
        let seen = if call.shape.causal { block.queries.end } else { length };
        for first in (0..seen).step_by(KEYS) {
            let keys = first..(first + KEYS).min(seen);
            let scores = Product {
                rows: count,
                columns: keys.len().next_multiple_of(GROUP),
                lane,
                lanes: lane.count(dim),
                left: query_rows,
                right: parts.transposed_keys.wrapping_add(first * lane.count(dim)),
                panel_lanes: GROUP * lane.count(dim),
                right_pitch: GROUP,
                c: parts.probabilities,
                c_pitch: KEYS,
                add: false,
            };
            let probability_gradients = Product {
                left: gradient_rows,
                right: parts.transposed_values.wrapping_add(first * lane.count(dim)),
                c: parts.score_gradients,
                ..scores
            };
            let query_sums = Product {
                rows: count,
                columns: dim,
                lane,
                lanes: lane.count(keys.len()),
                left: Left::Rows(parts.score_gradients),
                right: parts.keys.wrapping_add(lane.count(first) * GROUP),
                panel_lanes: GROUP * lane.count(length),
                right_pitch: GROUP,
                c: parts.query_sums,
                c_pitch: dim,
                add: first > 0,
            };
            let columns_of = match lane {
                Lane::Single => [parts.probabilities, parts.score_gradients],
                _ => [parts.probability_pairs, parts.score_gradient_pairs],
            };
            let key_sums = Product {
                rows: keys.len(),
                columns: dim,
                lane,
                lanes: lane.count(count),
                left: Left::Columns(columns_of[1]),
                right: by_rows[0].0,
                panel_lanes: by_rows[0].1,
                right_pitch: by_rows[0].2,
                c: parts.key_sums.wrapping_add(first * dim),
                c_pitch: dim,
                add: true,
            };
            let value_sums = Product {
                left: Left::Columns(columns_of[0]),
                right: by_rows[1].0,
                c: parts.value_sums.wrapping_add(first * dim),
                ..key_sums
            };
            // SAFETY: the operands were packed for these sizes; tiles and sums are this thread's.
            unsafe {
                scores.run(kernels);
                probability_gradients.run(kernels);
                self.score_gradients(block, &keys, &deltas);
                if lane == Lane::Pair {
                    self.round(count, scores.columns);
                }
                value_sums.run(kernels);
                query_sums.run(kernels);
                key_sums.run(kernels);
            }
        }
        // SAFETY: the sums of the block's queries are complete.
        unsafe { self.write(block.queries.clone(), columns.start, parts.query_sums) };
    }

    /// `Σ_d dO∘O` for every query of a block.
    fn deltas(&self, block: &Block) -> [f32; QUERIES] {
        let (heads, dim) = (self.call.shape.query_heads, self.call.shape.head_dim);
        let mut deltas = [0.0; QUERIES];
        vectorized!(self.call.kernels, {
            for (delta, query) in deltas.iter_mut().zip(block.queries.clone()) {
                let first = ((self.tokens.start + query) * heads + block.head) * dim;
                *delta = softmax::dot(self.y, self.dy.data, first..first + dim);
            }
        });
        deltas
    }

    /// Turns scores and gradients of probabilities into probabilities behind dropout and gradients of scores.
    ///
    /// # Safety
    /// Both tiles hold the block's rows for these keys.
    unsafe fn score_gradients(&self, block: &Block, keys: &Range<usize>, deltas: &[f32; QUERIES]) {
        let (call, scale, scale_of_powers) = (self.call, self.call.shape.scale() as f32, self.call.scale_of_powers());
        let mask = call.dropout.map(|dropout| Mask { dropout, head: block.head });
        let width = keys.len().next_multiple_of(GROUP);
        let (probabilities, gradients) = (self.parts.probabilities, self.parts.score_gradients);
        vectorized!(call.kernels, {
            let mut factors = [1.0; KEYS];
            for ((r, query), delta) in block.queries.clone().enumerate().zip(deltas) {
                let token = self.tokens.start + query;
                let log_sum = self.log_sum[token * call.shape.query_heads + block.head];
                // SAFETY: the caller's promise; the tiles are disjoint.
                let (probabilities, gradients) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(probabilities.add(r * KEYS), width),
                        std::slice::from_raw_parts_mut(gradients.add(r * KEYS), width),
                    )
                };
                softmax::probabilities(
                    probabilities,
                    visible(call.shape.causal, query, keys),
                    scale_of_powers,
                    log_sum,
                );
                if let Some(mask) = mask {
                    mask.factors(token, keys.start, &mut factors[..width]);
                }
                for ((p, g), factor) in probabilities.iter_mut().zip(gradients).zip(&factors) {
                    *g = scale * *p * (factor * *g - delta);
                    *p *= factor;
                }
            }
        });
    }

    /// Rounds a pair of tiles to `bf16`: the gradients of scores by rows, and both by columns.
    ///
    /// # Safety
    /// Both tiles hold `rows` rows of `columns`; lanes are pairs.
    unsafe fn round(&self, rows: usize, columns: usize) {
        let (path, parts) = (self.call.kernels.path, &self.parts);
        // SAFETY: the caller's promise; the tiles of pairs have half the rows.
        unsafe {
            pack::round_columns(path, parts.probabilities, KEYS, rows, columns, parts.probability_pairs);
            pack::round_columns(path, parts.score_gradients, KEYS, rows, columns, parts.score_gradient_pairs);
            pack::round_rows(path, parts.score_gradients, KEYS, rows, columns);
        }
    }

    /// Writes rows of sums to the gradient, from `column` on.
    ///
    /// # Safety
    /// The sums hold a row for every position; the columns are this task's.
    unsafe fn write(&self, positions: Range<usize>, column: usize, sums: *const f32) {
        let (width, dim) = (self.call.shape.input_columns(), self.call.shape.head_dim);
        vectorized!(self.call.kernels, {
            for (r, position) in positions.enumerate() {
                // SAFETY: the caller's promise.
                unsafe {
                    let row = std::slice::from_raw_parts(sums.add(r * dim), dim);
                    store(self.dqkv, (self.tokens.start + position) * width + column, row, false);
                }
            }
        });
    }
}
