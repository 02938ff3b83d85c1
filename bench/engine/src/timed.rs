//! Kernels that keep a clock: where the time of a bench goes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tensor::*;

/// CPU kernels that add up the wall-clock time of every method.
pub struct TimedKernels {
    inner: CpuKernels,
    times: Mutex<BTreeMap<&'static str, (u64, Duration)>>,
}

impl TimedKernels {
    pub fn new(inner: CpuKernels) -> Self {
        Self { inner, times: Mutex::default() }
    }

    /// Starts counting anew.
    pub fn reset(&self) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// One line per kernel, the most expensive first.
    pub fn table(&self) -> String {
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let total: Duration = times.values().map(|(_, time)| *time).sum();
        let mut rows: Vec<_> = times.iter().collect();
        rows.sort_by_key(|(_, (_, time))| std::cmp::Reverse(*time));
        let mut table = format!("{:<26} {:>8} {:>10} {:>7}\n", "kernel", "calls", "seconds", "share");
        for (name, (calls, time)) in rows {
            let share = 100.0 * time.as_secs_f64() / total.as_secs_f64();
            let _ = writeln!(table, "{name:<26} {calls:>8} {:>10.3} {share:>6.1}%", time.as_secs_f64());
        }
        table
    }

    fn timed<R>(&self, name: &'static str, call: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let result = call();
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = times.entry(name).or_default();
        *entry = (entry.0 + 1, entry.1 + begun.elapsed());
        result
    }
}

macro_rules! timed_kernels {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Kernels for TimedKernels {
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
                self.timed(stringify!($name), || self.inner.$name($($argument),*))
            })*
        }
    };
}

timed_kernels! {
    linear(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, activation: Activation, pre: Option<&mut Tensor>, y: &mut Tensor);
    prepack(w: &Tensor) -> Tensor;
    quantize(w: &Tensor) -> Tensor;
    linear_input_gradient(dy: &Tensor, w: &Tensor, dx: &mut Tensor, accumulate: bool);
    linear_weight_gradient(dy: &Tensor, x: &Tensor, dw: &mut Tensor, accumulate: bool);
    sum_rows(x: &Tensor, sum: &mut Tensor, accumulate: bool);
    activation_gradient(activation: Activation, pre: &Tensor, dy: &mut Tensor, y: Option<&mut Tensor>);
    embed_norm(embedding: &Embedding, norm: &Norm, saved: Option<NormSaved>, y: &mut Tensor);
    embedding_gradient(rows: &[u32], dsum: &Tensor, dtable: &mut Tensor);
    add_norm(x: &Tensor, dropout: Option<&Dropout>, residual: Option<&Tensor>, norm: &Norm, saved: Option<NormSaved>, y: &mut Tensor);
    norm_gradient(dy: &Tensor, normalized: &Tensor, inverse_deviation: &Tensor, gamma: &Tensor, dropout: Option<&Dropout>, dsum: &mut Tensor, dx: Option<&mut Tensor>, dgamma: &mut Tensor, dbeta: &mut Tensor, accumulate: bool);
    attention(shape: AttentionShape, qkv: &Tensor, offsets: &[u32], dropout: Option<&Dropout>, y: &mut Tensor, log_sum: &mut Tensor);
    attention_gradient(shape: AttentionShape, qkv: &Tensor, y: &Tensor, log_sum: &Tensor, offsets: &[u32], dropout: Option<&Dropout>, dy: &Tensor, dqkv: &mut Tensor);
    dropout(x: &Tensor, dropout: &Dropout, y: &mut Tensor);
    gather_rows(x: &Tensor, rows: &[u32], y: &mut Tensor);
    scatter_rows(dy: &Tensor, rows: &[u32], dx: &mut Tensor);
    mean_pool(x: &Tensor, offsets: &[u32], y: &mut Tensor);
    mean_pool_gradient(dy: &Tensor, offsets: &[u32], dx: &mut Tensor);
    normalize_rows(x: &Tensor, y: &mut Tensor);
    normalize_rows_gradient(x: &Tensor, dy: &Tensor, dx: &mut Tensor);
    cross_entropy(logits: &Tensor, targets: &[i32], weights: Option<&[f32]>, smoothing: f32, gradient: Option<(&mut Tensor, f64)>) -> LossSum;
    binary_cross_entropy(logits: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum;
    squared_error(outputs: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum;
    add_assign(a: &mut Tensor, b: &Tensor);
    zero(a: &mut Tensor);
    cast(source: &Tensor, target: &mut Tensor);
    sum_of_squares(tensors: &[&Tensor]) -> f64;
    all_finite(x: &Tensor) -> bool;
    adamw(tensors: &mut [AdamwTensor], step: &AdamwStep);
}
