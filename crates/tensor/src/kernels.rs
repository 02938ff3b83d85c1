//! The seam between the model and the machine.

use crate::dtype::DType;
use crate::pool::Pool;
use crate::random::Stream;
use crate::tensor::Tensor;

/// The function applied after a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x`
    Identity,
    /// `x Φ(x)` with the exact Gaussian distribution function (erf).
    Gelu,
    /// `x/2 (1 + tanh(√(2/π)(x + 0.044715 x³)))`, the approximation of `gelu_new` and `gelu_pytorch_tanh`.
    GeluTanh,
    /// `max(x, 0)`
    Relu,
    /// `tanh(x)`
    Tanh,
}

/// Dropout with a mask that is a function of where it is applied, never of batch layout.
#[derive(Clone, Copy)]
pub struct Dropout<'a> {
    /// The share of elements set to zero, in `[0, 1)`; the others are scaled by `1 / (1 - probability)`.
    pub probability: f32,
    /// The source of the mask.
    pub stream: Stream,
    /// The identity of every row (token or sequence), the same in whatever batch or micro-batch it appears.
    pub rows: &'a [u64],
}

impl Dropout<'_> {
    /// An element is dropped when its random word is below this: `probability * 2^32`.
    pub fn threshold(&self) -> u32 {
        (self.probability as f64 * (1u64 << 32) as f64) as u32
    }

    /// What kept elements are multiplied by.
    pub fn scale(&self) -> f32 {
        (1.0 / (1.0 - self.probability as f64)) as f32
    }

    /// The column of [`Stream::word`] for an attention probability: `key`, below 2^20, is the position in its sequence,
    /// `head` is below 2^12.
    pub fn attention_column(head: usize, key: usize) -> u32 {
        debug_assert!(head < 1 << 12 && key < 1 << 20, "masks of different heads would coincide");
        ((head as u32) << 20) | key as u32
    }
}

/// Layer normalisation over the last dimension: `gamma (x - mean) / sqrt(variance + eps) + beta`, biased variance.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// `[hidden]`
    pub gamma: &'a Tensor,
    /// `[hidden]`
    pub beta: &'a Tensor,
    /// Added to the variance.
    pub eps: f64,
}

/// What the gradient of a normalisation needs.
pub struct NormSaved<'a> {
    /// The normalised input before `gamma` and `beta`: `[rows, hidden]`.
    pub normalized: &'a mut Tensor,
    /// `1 / sqrt(variance + eps)`: `[rows]`.
    pub inverse_deviation: &'a mut Tensor,
}

/// The inputs of an embedding sum, one entry per token.
#[derive(Clone, Copy)]
pub struct Embedding<'a> {
    /// Rows of `word`.
    pub ids: &'a [u32],
    /// Rows of `position`.
    pub positions: &'a [u32],
    /// Rows of `token_type`; without a `token_type` table they are not read.
    pub types: &'a [u32],
    /// `[vocabulary, hidden]`
    pub word: &'a Tensor,
    /// `[max positions, hidden]`
    pub position: &'a Tensor,
    /// `[token types, hidden]`
    pub token_type: Option<&'a Tensor>,
}

/// The heads of an attention layer. A row of its input is `[query heads | key heads | value heads] * head_dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Number of query heads; a multiple of `key_value_heads`.
    pub query_heads: usize,
    /// Number of key heads and of value heads.
    pub key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Whether a token sees only itself and what stands before it.
    pub causal: bool,
}

impl AttentionShape {
    /// Columns of the fused query-key-value input.
    pub fn input_columns(&self) -> usize {
        (self.query_heads + 2 * self.key_value_heads) * self.head_dim
    }

    /// Columns of the output.
    pub fn output_columns(&self) -> usize {
        self.query_heads * self.head_dim
    }

    /// What scores are multiplied by: `1 / sqrt(head_dim)`.
    pub fn scale(&self) -> f64 {
        1.0 / (self.head_dim as f64).sqrt()
    }
}

/// A loss as a sum and what it is a sum over; never a mean, so that micro-batches and ranks add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSum {
    /// Weighted sum of the losses.
    pub sum: f64,
    /// Sum of the weights (the number of targets when none are given).
    pub weight: f64,
}

/// One parameter with its gradient and moments, all of one shape.
pub struct AdamwTensor<'a> {
    /// Master weights, updated in place.
    pub parameter: &'a mut Tensor,
    /// The gradient of the loss.
    pub gradient: &'a Tensor,
    /// First moment, updated in place.
    pub first: &'a mut Tensor,
    /// Second moment, updated in place.
    pub second: &'a mut Tensor,
    /// Receives the new weights rounded to its type: the working copy of mixed precision.
    pub copy: Option<&'a mut Tensor>,
    /// Decoupled weight decay; 0 for biases and norms.
    pub weight_decay: f64,
}

/// The numbers of one AdamW update (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
#[derive(Clone, Copy, Debug)]
pub struct AdamwStep {
    /// Learning rate of this step.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// 1 for the first update.
    pub step: u64,
    /// Every gradient is multiplied by this first (clipping).
    pub gradient_scale: f64,
}

/// The numerical operations of a transformer, on one device.
///
/// Object-safe: a model holds a `&dyn Kernels`. Shapes: `rows` is the number of tokens of a ragged batch (or of
/// sequences, behind the pooler), sequences are given by `offsets` (`cu_seqlens`): sequence `s` is the rows
/// `offsets[s]..offsets[s + 1]`. Outputs are written whole, whatever they held, unless a method *adds* by its
/// `accumulate` argument. Activations and their gradients share one type; norm parameters, biases, statistics and
/// parameter gradients are of type [`Kernels::dtype`]; weight matrices and embedding tables are of either.
/// A result never depends on the number of threads, and a row's result never on the rows beside it, unless an
/// implementation's documentation says so.
///
/// # Panics
/// Every method panics when shapes or types disagree: a caller's bug, never a user's input.
pub trait Kernels: Send + Sync {
    /// Name for logs and `run.json`, with the instruction set: `cpu/avx512`.
    fn name(&self) -> String;

    /// The type of sums, statistics and parameter gradients.
    fn dtype(&self) -> DType;

    /// Where tensors of this device come from.
    fn pool(&self) -> &Pool;

    /// Number of threads that work on one call.
    fn threads(&self) -> usize {
        1
    }

    /// `y = activation(x·Wᵀ + bias)`; `pre`, where given, receives the value before the activation.
    /// `x: [rows, in]`, `w: [out, in]` row-major, packed or quantised, `bias: [out]`, `y, pre: [rows, out]`.
    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        activation: Activation,
        pre: Option<&mut Tensor>,
        y: &mut Tensor,
    );

    /// A copy of a weight matrix `[out, in]` arranged for [`Kernels::linear`].
    fn prepack(&self, w: &Tensor) -> Tensor;

    /// A copy of a weight matrix `[out, in]` as 8-bit integers for [`Kernels::linear`], which then rounds its input to 8 bits
    /// too: every row `v` of either becomes `q = round(v / s)` in `[-127, 127]` with `s = max|v| / 127`, products are summed
    /// as integers, and sums multiplied by both scales. A row of `x` that is not finite gives a row of NaN, a row of `w` a
    /// column of NaN. A matrix of more than 2^17 columns, whose sums would not fit, is only prepacked.
    fn quantize(&self, w: &Tensor) -> Tensor;

    /// `dx = dy·W`, or `dx += dy·W`. `dy: [rows, out]`, `w: [out, in]` row-major, `dx: [rows, in]`.
    fn linear_input_gradient(&self, dy: &Tensor, w: &Tensor, dx: &mut Tensor, accumulate: bool);

    /// `dw = dyᵀ·x`, or added. `dy: [rows, out]`, `x: [rows, in]`, `dw: [out, in]`.
    fn linear_weight_gradient(&self, dy: &Tensor, x: &Tensor, dw: &mut Tensor, accumulate: bool);

    /// `sum = Σ_rows x`, or added: `x: [rows, columns]`, `sum: [columns]`.
    fn sum_rows(&self, x: &Tensor, sum: &mut Tensor, accumulate: bool);

    /// Turns the gradient of an activation's output into that of its input `pre`, in place, and rebuilds the output
    /// into `y` where given (so that it need not be saved). All `[rows, columns]`.
    fn activation_gradient(&self, activation: Activation, pre: &Tensor, dy: &mut Tensor, y: Option<&mut Tensor>);

    /// `y = norm(word[ids] + position[positions] + token_type[types])`: `[tokens, hidden]`.
    fn embed_norm(&self, embedding: &Embedding, norm: &Norm, saved: Option<NormSaved>, y: &mut Tensor);

    /// `dtable[rows[i]] += dsum[i]`, in the order of `i`. `dsum: [tokens, hidden]`, `dtable: [table rows, hidden]`.
    fn embedding_gradient(&self, rows: &[u32], dsum: &Tensor, dtable: &mut Tensor);

    /// `y = norm(residual + dropout(x))`: `[rows, hidden]`.
    fn add_norm(
        &self,
        x: &Tensor,
        dropout: Option<&Dropout>,
        residual: Option<&Tensor>,
        norm: &Norm,
        saved: Option<NormSaved>,
        y: &mut Tensor,
    );

    /// Gradient of a normalisation. `dsum` receives the gradient of its input (thus of `residual`), `dx` that of the
    /// branch behind `dropout`; `dgamma` and `dbeta` are written or added to.
    fn norm_gradient(
        &self,
        dy: &Tensor,
        normalized: &Tensor,
        inverse_deviation: &Tensor,
        gamma: &Tensor,
        dropout: Option<&Dropout>,
        dsum: &mut Tensor,
        dx: Option<&mut Tensor>,
        dgamma: &mut Tensor,
        dbeta: &mut Tensor,
        accumulate: bool,
    );

    /// Ragged self-attention, softmax over each sequence alone, dropout on the probabilities.
    /// `qkv: [tokens, shape.input_columns()]`, `y: [tokens, shape.output_columns()]`; `log_sum: [tokens, query_heads]`
    /// receives the logarithm of each softmax's denominator (of the scaled scores).
    /// `dropout.rows` are the tokens; its columns are [`Dropout::attention_column`].
    fn attention(
        &self,
        shape: AttentionShape,
        qkv: &Tensor,
        offsets: &[u32],
        dropout: Option<&Dropout>,
        y: &mut Tensor,
        log_sum: &mut Tensor,
    );

    /// Gradient of [`Kernels::attention`], which recomputes the probabilities tile by tile.
    fn attention_gradient(
        &self,
        shape: AttentionShape,
        qkv: &Tensor,
        y: &Tensor,
        log_sum: &Tensor,
        offsets: &[u32],
        dropout: Option<&Dropout>,
        dy: &Tensor,
        dqkv: &mut Tensor,
    );

    /// `y = dropout(x)`; with the same mask also the gradient. `[rows, columns]`.
    fn dropout(&self, x: &Tensor, dropout: &Dropout, y: &mut Tensor);

    /// `y[i] = x[rows[i]]`.
    fn gather_rows(&self, x: &Tensor, rows: &[u32], y: &mut Tensor);

    /// `dx = 0`, then `dx[rows[i]] = dy[i]`; `rows` are distinct.
    fn scatter_rows(&self, dy: &Tensor, rows: &[u32], dx: &mut Tensor);

    /// Mean over each sequence's tokens: `x: [tokens, hidden]`, `y: [sequences, hidden]`; 0 for an empty sequence.
    fn mean_pool(&self, x: &Tensor, offsets: &[u32], y: &mut Tensor);

    /// Gradient of [`Kernels::mean_pool`].
    fn mean_pool_gradient(&self, dy: &Tensor, offsets: &[u32], dx: &mut Tensor);

    /// `y = x / max(‖x‖₂, 1e-12)` for every row.
    fn normalize_rows(&self, x: &Tensor, y: &mut Tensor);

    /// Gradient of [`Kernels::normalize_rows`], from its input `x`.
    fn normalize_rows_gradient(&self, x: &Tensor, dy: &Tensor, dx: &mut Tensor);

    /// Softmax cross-entropy of `logits: [rows, classes]`; a negative target is ignored. `weights: [classes]` weigh
    /// each target's class; `smoothing` spreads that share of a target evenly over the classes (weighted likewise).
    /// `gradient`, where given, receives the gradient of `scale * sum`.
    fn cross_entropy(
        &self,
        logits: &Tensor,
        targets: &[i32],
        weights: Option<&[f32]>,
        smoothing: f32,
        gradient: Option<(&mut Tensor, f64)>,
    ) -> LossSum;

    /// Binary cross-entropy of every logit with its target in `[0, 1]`; the weight counts elements. As above.
    fn binary_cross_entropy(&self, logits: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum;

    /// Squared error of every output with its target; the weight counts elements. As above.
    fn squared_error(&self, outputs: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum;

    /// `a += b`.
    fn add_assign(&self, a: &mut Tensor, b: &Tensor);

    /// Sets every element to zero.
    fn zero(&self, a: &mut Tensor);

    /// Copies with rounding between types of one shape.
    fn cast(&self, source: &Tensor, target: &mut Tensor);

    /// `Σ x²` over all tensors, in `f64`, in an order that depends on the shapes alone.
    fn sum_of_squares(&self, tensors: &[&Tensor]) -> f64;

    /// Whether no element is NaN or infinite.
    fn all_finite(&self, x: &Tensor) -> bool;

    /// One AdamW update of all tensors in one pass over memory.
    fn adamw(&self, tensors: &mut [AdamwTensor], step: &AdamwStep);
}
