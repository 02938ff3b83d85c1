//! Kernels that are recorded: one execution on the stream `compute` for every fused operation.

use std::sync::LazyLock;

use tensor::*;
use trace::recorder::{Handle, Name, Stream, Work};

macro_rules! names {
    ($($name:ident: $values:expr;)*) => {
        struct Names { $($name: Name,)* }

        static NAMES: LazyLock<Names> =
            LazyLock::new(|| Names { $($name: Name::with_values(stringify!($name), &$values),)* });
    };
}

names! {
    linear: ["rows", "in", "out"];
    prepack: ["in", "out"];
    quantize: ["in", "out"];
    linear_input_gradient: ["rows", "in", "out"];
    linear_weight_gradient: ["rows", "in", "out"];
    sum_rows: ["rows", "columns"];
    activation_gradient: ["rows", "columns"];
    embed_norm: ["tokens", "hidden"];
    embedding_gradient: ["tokens", "hidden"];
    add_norm: ["rows", "hidden"];
    norm_gradient: ["rows", "hidden"];
    attention: ["tokens", "sequences", "query_heads", "key_value_heads", "head_dim"];
    attention_gradient: ["tokens", "sequences", "query_heads", "key_value_heads", "head_dim"];
    dropout: ["rows", "columns"];
    gather_rows: ["rows", "columns"];
    scatter_rows: ["rows", "columns"];
    mean_pool: ["tokens", "sequences", "hidden"];
    mean_pool_gradient: ["tokens", "sequences", "hidden"];
    normalize_rows: ["rows", "columns"];
    normalize_rows_gradient: ["rows", "columns"];
    cross_entropy: ["rows", "classes"];
    binary_cross_entropy: ["rows", "classes"];
    squared_error: ["rows", "columns"];
    add_assign: ["elements"];
    zero: ["elements"];
    cast: ["elements"];
    sum_of_squares: ["elements", "tensors"];
    all_finite: ["elements"];
    adamw: ["elements", "tensors"];
}

/// Names of the element types, in the order of [`dtype_name`].
static DTYPES: LazyLock<[Name; 5]> =
    LazyLock::new(|| [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I8].map(|dtype| Name::new(dtype.name())));

fn dtype_name(dtype: DType) -> Name {
    DTYPES[match dtype {
        DType::F64 => 0,
        DType::F32 => 1,
        DType::BF16 => 2,
        DType::F16 => 3,
        DType::I8 => 4,
    }]
}

/// Kernels of a device that record what they do, with the type of their activations and their sizes, while the handle is on.
pub struct RecordingKernels<'a> {
    inner: &'a dyn Kernels,
    handle: Handle,
    stream: Stream,
}

impl<'a> RecordingKernels<'a> {
    /// `inner` as device 0 of a recording, or of none.
    pub fn new(inner: &'a dyn Kernels, handle: Handle) -> Self {
        let device = handle.device(0, &inner.name(), None);
        let stream = handle.stream(device, 0, "compute");
        Self { inner, handle, stream }
    }

    fn record<R>(&self, name: Name, dtype: DType, values: &[usize], run: impl FnOnce(&dyn Kernels) -> R) -> R {
        self.handle.here(|lane| {
            if !lane.is_on() {
                return run(self.inner);
            }
            let from = lane.now();
            let result = run(self.inner);
            let work = Work { stream: self.stream, name, from, to: lane.now(), correlation: None };
            let mut sizes = [0; 8];
            let sizes = &mut sizes[..values.len().min(8)];
            sizes.iter_mut().zip(values).for_each(|(size, &value)| *size = value as i64);
            lane.kernel(work, Some(dtype_name(dtype)), sizes);
            result
        })
    }
}

fn matrix(x: &Tensor) -> [usize; 2] {
    [x.rows(), x.columns()]
}

fn attention_sizes(shape: AttentionShape, qkv: &Tensor, offsets: &[u32]) -> [usize; 5] {
    let sequences = offsets.len().saturating_sub(1);
    [qkv.rows(), sequences, shape.query_heads, shape.key_value_heads, shape.head_dim]
}

/// Implements the operations: each with the tensor whose type is recorded, and its sizes.
macro_rules! recorded {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?, $dtype:expr, $sizes:expr;)*) => {
        impl Kernels for RecordingKernels<'_> {
            fn name(&self) -> String {
                self.inner.name()
            }

            fn dtype(&self) -> DType {
                self.inner.dtype()
            }

            fn pool(&self) -> &Pool {
                self.inner.pool()
            }

            fn threads(&self) -> usize {
                self.inner.threads()
            }

            $(fn $name(&self, $($argument: $type),*) $(-> $result)? {
                let (dtype, sizes) = ($dtype, $sizes);
                self.record(NAMES.$name, dtype, &sizes, |inner| inner.$name($($argument),*))
            })*
        }
    };
}

recorded! {
    linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, activation: Activation, pre: Option<&mut Tensor>, y: &mut Tensor),
        x.dtype(), [x.rows(), x.columns(), y.columns()];
    prepack(w: &Tensor) -> Tensor, w.dtype(), [w.columns(), w.rows()];
    quantize(w: &Tensor) -> Tensor, DType::I8, [w.columns(), w.rows()];
    linear_input_gradient(dy: &Tensor, w: &Tensor, dx: &mut Tensor, accumulate: bool),
        dy.dtype(), [dy.rows(), dx.columns(), dy.columns()];
    linear_weight_gradient(dy: &Tensor, x: &Tensor, dw: &mut Tensor, accumulate: bool),
        dy.dtype(), [dy.rows(), x.columns(), dy.columns()];
    sum_rows(x: &Tensor, sum: &mut Tensor, accumulate: bool), x.dtype(), matrix(x);
    activation_gradient(activation: Activation, pre: &Tensor, dy: &mut Tensor, y: Option<&mut Tensor>),
        pre.dtype(), matrix(pre);
    embed_norm(embedding: &Embedding, norm: &Norm, saved: Option<NormSaved>, y: &mut Tensor), y.dtype(), matrix(y);
    embedding_gradient(rows: &[u32], dsum: &Tensor, dtable: &mut Tensor), dsum.dtype(), matrix(dsum);
    add_norm(
        x: &Tensor, dropout: Option<&Dropout>, residual: Option<&Tensor>, norm: &Norm, saved: Option<NormSaved>,
        y: &mut Tensor
    ), x.dtype(), matrix(x);
    norm_gradient(
        dy: &Tensor, normalized: &Tensor, inverse_deviation: &Tensor, gamma: &Tensor, dropout: Option<&Dropout>,
        dsum: &mut Tensor, dx: Option<&mut Tensor>, dgamma: &mut Tensor, dbeta: &mut Tensor, accumulate: bool
    ), dy.dtype(), matrix(dy);
    attention(
        shape: AttentionShape, qkv: &Tensor, offsets: &[u32], dropout: Option<&Dropout>, y: &mut Tensor,
        log_sum: &mut Tensor
    ), qkv.dtype(), attention_sizes(shape, qkv, offsets);
    attention_gradient(
        shape: AttentionShape, qkv: &Tensor, y: &Tensor, log_sum: &Tensor, offsets: &[u32], dropout: Option<&Dropout>,
        dy: &Tensor, dqkv: &mut Tensor
    ), qkv.dtype(), attention_sizes(shape, qkv, offsets);
    dropout(x: &Tensor, dropout: &Dropout, y: &mut Tensor), x.dtype(), matrix(x);
    gather_rows(x: &Tensor, rows: &[u32], y: &mut Tensor), x.dtype(), matrix(y);
    scatter_rows(dy: &Tensor, rows: &[u32], dx: &mut Tensor), dy.dtype(), matrix(dy);
    mean_pool(x: &Tensor, offsets: &[u32], y: &mut Tensor), x.dtype(), [x.rows(), y.rows(), x.columns()];
    mean_pool_gradient(dy: &Tensor, offsets: &[u32], dx: &mut Tensor),
        dy.dtype(), [dx.rows(), dy.rows(), dy.columns()];
    normalize_rows(x: &Tensor, y: &mut Tensor), x.dtype(), matrix(x);
    normalize_rows_gradient(x: &Tensor, dy: &Tensor, dx: &mut Tensor), x.dtype(), matrix(x);
    cross_entropy(
        logits: &Tensor, targets: &[i32], weights: Option<&[f32]>, smoothing: f32, gradient: Option<(&mut Tensor, f64)>
    ) -> LossSum, logits.dtype(), matrix(logits);
    binary_cross_entropy(logits: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum,
        logits.dtype(), matrix(logits);
    squared_error(outputs: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum,
        outputs.dtype(), matrix(outputs);
    add_assign(a: &mut Tensor, b: &Tensor), a.dtype(), [a.len()];
    zero(a: &mut Tensor), a.dtype(), [a.len()];
    cast(source: &Tensor, target: &mut Tensor), target.dtype(), [source.len()];
    sum_of_squares(tensors: &[&Tensor]) -> f64, tensors.first().map_or(DType::F32, |tensor| tensor.dtype()),
        [tensors.iter().map(|tensor| tensor.len()).sum(), tensors.len()];
    all_finite(x: &Tensor) -> bool, x.dtype(), [x.len()];
    adamw(tensors: &mut [AdamwTensor], step: &AdamwStep),
        tensors.first().map_or(DType::F32, |tensor| tensor.parameter.dtype()),
        [tensors.iter().map(|tensor| tensor.parameter.len()).sum(), tensors.len()];
}
