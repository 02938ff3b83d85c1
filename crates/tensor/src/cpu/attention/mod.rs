//! Ragged self-attention in tiles, with an online softmax (Dao et al., "FlashAttention", 2022).
//!
//! A task is one head of one sequence (in the forward pass a part of its queries, where there are few tasks). It
//! never holds more than [`QUERIES`] x [`KEYS`] scores; the tiles are products of the micro-kernels of
//! [`gemm`](super::gemm): in `f32`, or of `bf16` pairs where the input is `bf16` and the CPU multiplies them faster; then
//! probabilities and gradients of scores are rounded to `bf16` for the products alone, and softmax and sums stay `f32`.
//! Tiles are cut from the start of a sequence, so its result depends on nothing else.

mod backward;
mod forward;
#[cfg(test)]
mod naive;
mod softmax;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use crate::dtype::DType;
use crate::kernels::{AttentionShape, Dropout};
use crate::tensor::Tensor;

use super::CpuKernels;
use super::gemm::kernel::{Lane, MR, ROW_PITCH};
use super::gemm::operand::Target;
use super::gemm::packed_lane;
use super::parallel::for_pieces;

/// Queries of a tile.
const QUERIES: usize = 4 * MR;
/// Keys of a tile.
const KEYS: usize = ROW_PITCH;
/// Tokens of a sequence up to which a task asks for all its input at once, so that the waits for memory overlap.
const SHORT: usize = 64;
/// Tasks per thread below which the queries of a sequence are shared out.
const TASKS_PER_THREAD: usize = 4;

/// What all tasks of a call share.
struct Call<'a> {
    kernels: &'a CpuKernels,
    shape: AttentionShape,
    qkv: &'a Tensor,
    offsets: &'a [u32],
    dropout: Option<&'a Dropout<'a>>,
    /// How operands are packed.
    lane: Lane,
}

impl<'a> Call<'a> {
    /// # Panics
    /// When shapes disagree or the offsets do not cover the tokens.
    fn new(
        kernels: &'a CpuKernels,
        shape: AttentionShape,
        qkv: &'a Tensor,
        offsets: &'a [u32],
        dropout: Option<&'a Dropout<'a>>,
    ) -> Self {
        let tokens = qkv.rows();
        assert_eq!(qkv.columns(), shape.input_columns(), "attention: {qkv:?} for {shape:?}");
        assert_eq!(shape.query_heads % shape.key_value_heads, 0, "attention: {shape:?}");
        assert!(offsets.first().is_none_or(|&first| first == 0), "attention: offsets start at {:?}", offsets.first());
        assert_eq!(offsets.last().map_or(0, |&last| last as usize), tokens, "attention: offsets for {tokens} tokens");
        assert!(offsets.is_sorted(), "attention: offsets {offsets:?} are not sorted");
        assert!(
            dropout.is_none_or(|dropout| dropout.rows.len() == tokens),
            "attention: identities for {tokens} tokens"
        );
        let lane = packed_lane(kernels.path, qkv.dtype());
        Self { kernels, shape, qkv, offsets, dropout, lane }
    }

    fn sequences(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// The tokens of a sequence.
    fn tokens(&self, sequence: usize) -> Range<usize> {
        self.offsets[sequence] as usize..self.offsets[sequence + 1] as usize
    }

    /// What unscaled scores are multiplied by to be exponents of 2.
    fn scale_of_powers(&self) -> f32 {
        (self.shape.scale() * std::f64::consts::LOG2_E) as f32
    }

    fn longest(&self) -> usize {
        self.offsets.windows(2).map(|w| (w[1] - w[0]) as usize).max().unwrap_or(0)
    }

    /// Runs `work(task, workspace)` for every task below `tasks`, with `lanes` of its own for each thread.
    fn for_each(&self, tasks: usize, lanes: usize, work: impl Fn(usize, *mut f32) + Sync) {
        let team = &self.kernels.team;
        let workspace = self.kernels.pool.empty(DType::F32, &[team.threads() * lanes]);
        let base = Target::F32(workspace.address() as *mut f32);
        for_pieces(team, tasks, 1, |worker, task| {
            if let Target::F32(base) = base {
                work(task.start, base.wrapping_add(worker * lanes));
            }
        });
    }

    /// The first columns of a head's queries, keys and values in a row of the input.
    fn columns(&self, head: usize) -> HeadColumns {
        let AttentionShape { query_heads, key_value_heads, head_dim, .. } = self.shape;
        let group = head / (query_heads / key_value_heads);
        let from = |head: usize| head * head_dim..(head + 1) * head_dim;
        HeadColumns {
            query: from(head),
            key: from(query_heads + group),
            value: from(query_heads + key_value_heads + group),
        }
    }
}

/// Where a head lies in a row of the input.
struct HeadColumns {
    query: Range<usize>,
    key: Range<usize>,
    value: Range<usize>,
}

/// See [`Kernels::attention`](crate::Kernels::attention).
pub fn attention(
    kernels: &CpuKernels,
    shape: AttentionShape,
    qkv: &Tensor,
    offsets: &[u32],
    dropout: Option<&Dropout>,
    y: &mut Tensor,
    log_sum: &mut Tensor,
) {
    let call = Call::new(kernels, shape, qkv, offsets, dropout);
    assert_eq!((y.rows(), y.columns()), (qkv.rows(), shape.output_columns()), "attention: {qkv:?} into {y:?}");
    assert_eq!(log_sum.len(), qkv.rows() * shape.query_heads, "attention: {log_sum:?} for {qkv:?}");
    forward::run(&call, Target::of(y), log_sum.as_mut_slice());
}

/// See [`Kernels::attention_gradient`](crate::Kernels::attention_gradient).
pub fn attention_gradient(
    kernels: &CpuKernels,
    shape: AttentionShape,
    qkv: &Tensor,
    y: &Tensor,
    log_sum: &Tensor,
    offsets: &[u32],
    dropout: Option<&Dropout>,
    dy: &Tensor,
    dqkv: &mut Tensor,
) {
    let call = Call::new(kernels, shape, qkv, offsets, dropout);
    let width = shape.output_columns();
    let fits = [y, dy].iter().all(|t| (t.rows(), t.columns()) == (qkv.rows(), width));
    assert!(fits && dqkv.shape() == qkv.shape(), "attention_gradient: {y:?}, {dy:?} and {dqkv:?} for {qkv:?}");
    assert_eq!(dy.dtype(), qkv.dtype(), "attention_gradient: {dy:?} for {qkv:?}");
    assert_eq!(log_sum.len(), qkv.rows() * shape.query_heads, "attention_gradient: {log_sum:?} for {qkv:?}");
    backward::run(&call, y, dy, log_sum.as_slice(), Target::of(dqkv));
}
