//! The forward pass: for a block of queries, over the blocks of keys, scores → online softmax → sums of values.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::softmax::{GROUP, Mask, Running, visible};
use super::tile::{self, Arena, Left, Product, left_lanes, right_lanes};
use super::{Call, KEYS, QUERIES, SHORT, TASKS_PER_THREAD};
use crate::cpu::gemm::kernel::Lane;
use crate::cpu::gemm::operand::{Operand, Target};
use crate::cpu::gemm::pack;
use crate::cpu::gemm::store;

/// Writes the output and the logarithms of the denominators.
pub fn run(call: &Call, y: Target, log_sum: &mut [f32]) {
    let (heads, longest) = (call.shape.query_heads, call.longest());
    let blocks = longest.div_ceil(QUERIES).max(1);
    let wanted = if call.kernels.team.threads() == 1 { 1 } else { TASKS_PER_THREAD * call.kernels.team.threads() };
    let parts = wanted.div_ceil((call.sequences() * heads).max(1)).min(blocks);
    let blocks_per_part = blocks.div_ceil(parts);
    let log_sum = Target::F32(log_sum.as_mut_ptr());
    let lanes = lanes(longest, call.shape.head_dim, call.lane);
    call.for_each(call.sequences() * parts * heads, lanes, |task, workspace| {
        let (head, part, sequence) = (task % heads, task / heads % parts, task / heads / parts);
        let tokens = call.tokens(sequence);
        let first = (part * blocks_per_part * QUERIES).min(tokens.len());
        let end = ((part + 1) * blocks_per_part * QUERIES).min(tokens.len());
        if first < end {
            // SAFETY: the workspace is this thread's and has `lanes`.
            let arena = unsafe { Arena::new(workspace, lanes) };
            Head { call, head, tokens, y, log_sum }.queries(first..end, arena);
        }
    });
}

fn lanes(longest: usize, dim: usize, lane: Lane) -> usize {
    let right = [right_lanes(longest, dim, lane), right_lanes(dim, longest, lane)];
    let parts = [right[0], right[1], left_lanes(QUERIES, dim, lane), QUERIES * KEYS];
    parts.map(Arena::rounded).iter().sum::<usize>() + Arena::rounded(QUERIES * dim)
}

/// One head of one sequence.
struct Head<'a> {
    call: &'a Call<'a>,
    head: usize,
    tokens: Range<usize>,
    y: Target,
    log_sum: Target,
}

impl Head<'_> {
    /// Queries by their position in the sequence.
    fn queries(&self, queries: Range<usize>, mut arena: Arena) {
        let (call, length, dim) = (self.call, self.tokens.len(), self.call.shape.head_dim);
        let lane = call.lane;
        let columns = call.columns(self.head);
        let seen = if call.shape.causal { queries.end } else { length };
        let keys = self.tokens.start..self.tokens.start + seen;
        let transposed_keys = arena.take(right_lanes(length, dim, lane));
        let values = arena.take(right_lanes(dim, length, lane));
        let left = arena.take(left_lanes(QUERIES, dim, lane));
        let (scores, sums) = (arena.take(QUERIES * KEYS), arena.take(QUERIES * dim));
        let (along, across) = (Operand::rows_outer(call.qkv), Operand::rows_summed(call.qkv));
        if keys.len() <= SHORT {
            for columns in [&columns.key, &columns.value, &columns.query] {
                pack::prefetch(&along, keys.clone(), columns.clone());
            }
        }
        // SAFETY: the parts of the workspace have room for the packed keys and values.
        unsafe {
            tile::right(call.kernels, &along, keys.clone(), columns.key, lane, transposed_keys);
            tile::right(call.kernels, &across, columns.value, keys, lane, values);
        }
        for first in queries.clone().step_by(QUERIES) {
            let block = first..(first + QUERIES).min(queries.end);
            let rows = self.tokens.start + block.start..self.tokens.start + block.end;
            // SAFETY: as above.
            let queries = unsafe { tile::left(call.kernels, &along, rows, columns.query.clone(), lane, left) };
            let seen_by_block = if call.shape.causal { block.end } else { seen };
            let mut running = [Running::START; QUERIES];
            for first_key in (0..seen_by_block).step_by(KEYS) {
                let keys = first_key..(first_key + KEYS).min(seen_by_block);
                let products = [
                    Product {
                        rows: block.len(),
                        columns: keys.len().next_multiple_of(GROUP),
                        lane,
                        lanes: lane.count(dim),
                        left: queries,
                        right: transposed_keys.wrapping_add(first_key * lane.count(dim)),
                        panel_lanes: GROUP * lane.count(dim),
                        right_pitch: GROUP,
                        c: scores,
                        c_pitch: KEYS,
                        add: false,
                    },
                    Product {
                        rows: block.len(),
                        columns: dim,
                        lane,
                        lanes: lane.count(keys.len()),
                        left: Left::Rows(scores),
                        right: values.wrapping_add(lane.count(first_key) * GROUP),
                        panel_lanes: GROUP * lane.count(seen),
                        right_pitch: GROUP,
                        c: sums,
                        c_pitch: dim,
                        add: first_key > 0,
                    },
                ];
                // SAFETY: the operands were packed for these sizes; scores and sums are this thread's.
                unsafe {
                    products[0].run(call.kernels);
                    let tile = Advance { head: self, block: &block, keys: &keys, scores, sums, running: &mut running };
                    call.kernels.arch.dispatch(tile);
                    if lane == Lane::Pair {
                        let width = keys.len().next_multiple_of(GROUP);
                        pack::round_rows(call.kernels.path, scores, KEYS, block.len(), width);
                    }
                    products[1].run(call.kernels);
                }
            }
            // SAFETY: the sums of the block are complete.
            unsafe { self.finish(&block, sums, &running) };
        }
    }

    /// Divides by the denominators and writes the rows of a block.
    ///
    /// # Safety
    /// `sums` holds the rows of the block.
    unsafe fn finish(&self, block: &Range<usize>, sums: *mut f32, running: &[Running; QUERIES]) {
        let (heads, dim) = (self.call.shape.query_heads, self.call.shape.head_dim);
        vectorized!(self.call.kernels, {
            for ((r, query), running) in block.clone().enumerate().zip(running) {
                let token = self.tokens.start + query;
                // SAFETY: the caller's promise; this head of this token is this task's alone.
                unsafe {
                    let sums = std::slice::from_raw_parts_mut(sums.add(r * dim), dim);
                    let inverse = 1.0 / running.sum;
                    sums.iter_mut().for_each(|v| *v *= inverse);
                    store(self.y, (token * heads + self.head) * dim, sums, false);
                    store(self.log_sum, token * heads + self.head, &[running.log_sum()], false);
                }
            }
        });
    }
}

/// Softmax and dropout of a tile of scores; rescales the sums so far. Whoever makes one vouches that `scores` holds a
/// tile and that `sums` holds the sums so far, where this is not the first block of keys.
struct Advance<'a> {
    head: &'a Head<'a>,
    block: &'a Range<usize>,
    keys: &'a Range<usize>,
    scores: *mut f32,
    sums: *mut f32,
    running: &'a mut [Running; QUERIES],
}

impl WithSimd for Advance<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Head { call, head, tokens, .. } = self.head;
        let (dim, scale, width) =
            (call.shape.head_dim, call.scale_of_powers(), self.keys.len().next_multiple_of(GROUP));
        let mask = call.dropout.map(|dropout| Mask { dropout, head: *head });
        for ((r, query), running) in self.block.clone().enumerate().zip(self.running) {
            // SAFETY: its maker's promise; the rows are disjoint.
            let (row, sums) = unsafe {
                (
                    std::slice::from_raw_parts_mut(self.scores.add(r * KEYS), width),
                    std::slice::from_raw_parts_mut(self.sums.add(r * dim), dim),
                )
            };
            let factor = running.advance(simd, row, visible(call.shape.causal, query, self.keys), scale);
            if self.keys.start > 0 {
                sums.iter_mut().for_each(|v| *v *= factor);
            }
            if let Some(mask) = mask {
                let mut factors = [0.0; KEYS];
                mask.factors(tokens.start + query, self.keys.start, &mut factors[..width]);
                row.iter_mut().zip(&factors).for_each(|(p, factor)| *p *= factor);
            }
        }
    }
}
