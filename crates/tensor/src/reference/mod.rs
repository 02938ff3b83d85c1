//! The oracle: every kernel written the obvious way, in `f64`, on one thread.
//!
//! Finite differences of a model over these kernels check its gradients; their results check the fast kernels.

mod attention;
mod int8;
mod loss;
mod norm;

use crate::dtype::DType;
use crate::kernels::*;
use crate::pool::Pool;
use crate::tensor::Tensor;

/// Naive kernels over `f64` tensors.
#[derive(Default)]
pub struct ReferenceKernels {
    pool: Pool,
}

impl ReferenceKernels {
    /// Kernels with a pool of their own.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Writes or adds, as the `accumulate` arguments of [`Kernels`] say.
fn store(target: &mut f64, value: f64, accumulate: bool) {
    *target = if accumulate { *target + value } else { value };
}

/// The factor of every element of row `row` under dropout: 0 or the scale of kept elements.
fn kept(dropout: Option<&Dropout>, row: usize, column: usize) -> f64 {
    dropout.map_or(1.0, |d| {
        let dropped = d.stream.word(d.rows[row], column as u32) < d.threshold();
        if dropped { 0.0 } else { 1.0 / (1.0 - d.probability as f64) }
    })
}

/// The error function by its Maclaurin series, and by the continued fraction of its complement where that converges
/// faster (Abramowitz and Stegun, 7.1.5 and 7.1.14).
fn erf(x: f64) -> f64 {
    let square = x * x;
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for n in 1..100 {
            term *= -square / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        return sum * 2.0 / std::f64::consts::PI.sqrt();
    }
    let fraction = (1..=60).rev().fold(x.abs(), |f, n| x.abs() + n as f64 / 2.0 / f);
    let complement = (-square).exp() / std::f64::consts::PI.sqrt() / fraction;
    x.signum() * (1.0 - complement)
}

const GELU_TANH_CUBIC: f64 = 0.044715;

/// The activation and its derivative.
fn activation(kind: Activation, x: f64) -> (f64, f64) {
    match kind {
        Activation::Identity => (x, 1.0),
        Activation::Gelu => {
            let distribution = 0.5 * (1.0 + erf(x / std::f64::consts::SQRT_2));
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            (x * distribution, distribution + x * density)
        }
        Activation::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let t = (root * (x + GELU_TANH_CUBIC * x.powi(3))).tanh();
            let slope = root * (1.0 + 3.0 * GELU_TANH_CUBIC * x * x);
            (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
        }
        Activation::Relu => (x.max(0.0), if x > 0.0 { 1.0 } else { 0.0 }),
        Activation::Tanh => (x.tanh(), 1.0 - x.tanh().powi(2)),
    }
}

impl Kernels for ReferenceKernels {
    fn name(&self) -> String {
        "reference".into()
    }

    fn dtype(&self) -> DType {
        DType::F64
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn linear(
        &self,
        x: &Tensor,
        w: &Tensor,
        bias: Option<&Tensor>,
        kind: Activation,
        mut pre: Option<&mut Tensor>,
        y: &mut Tensor,
    ) {
        let (rows, inner, columns) = (x.rows(), x.columns(), w.rows());
        assert_eq!((w.columns(), y.shape()), (inner, &[rows, columns][..]), "linear {x:?}·{w:?}ᵀ");
        if w.dtype() == DType::I8 {
            let w = int8::unpacked(&self.pool, w);
            return self.linear(&int8::rounded(&self.pool, x), &w, bias, kind, pre, y);
        }
        for i in 0..rows {
            for j in 0..columns {
                let (x, w) = (&x.as_slice::<f64>()[i * inner..], &w.as_slice::<f64>()[j * inner..]);
                let product: f64 = (0..inner).map(|k| x[k] * w[k]).sum();
                let value = product + bias.map_or(0.0, |b| b.as_slice::<f64>()[j]);
                if let Some(pre) = &mut pre {
                    pre.as_mut_slice::<f64>()[i * columns + j] = value;
                }
                y.as_mut_slice::<f64>()[i * columns + j] = activation(kind, value).0;
            }
        }
    }

    fn prepack(&self, w: &Tensor) -> Tensor {
        w.clone()
    }

    fn quantize(&self, w: &Tensor) -> Tensor {
        int8::packed(&self.pool, w)
    }

    fn linear_input_gradient(&self, dy: &Tensor, w: &Tensor, dx: &mut Tensor, accumulate: bool) {
        let (rows, outer, inner) = (dy.rows(), w.rows(), w.columns());
        assert_eq!((dy.columns(), dx.shape()), (outer, &[rows, inner][..]), "input gradient {dy:?}·{w:?}");
        for i in 0..rows {
            for k in 0..inner {
                let (dy, w) = (&dy.as_slice::<f64>()[i * outer..], w.as_slice::<f64>());
                let value = (0..outer).map(|j| dy[j] * w[j * inner + k]).sum();
                store(&mut dx.as_mut_slice::<f64>()[i * inner + k], value, accumulate);
            }
        }
    }

    fn linear_weight_gradient(&self, dy: &Tensor, x: &Tensor, dw: &mut Tensor, accumulate: bool) {
        let (rows, outer, inner) = (dy.rows(), dy.columns(), x.columns());
        assert_eq!((x.rows(), dw.shape()), (rows, &[outer, inner][..]), "weight gradient {dy:?}ᵀ·{x:?}");
        let (dy, x) = (dy.as_slice::<f64>(), x.as_slice::<f64>());
        for j in 0..outer {
            for k in 0..inner {
                let value = (0..rows).map(|i| dy[i * outer + j] * x[i * inner + k]).sum();
                store(&mut dw.as_mut_slice::<f64>()[j * inner + k], value, accumulate);
            }
        }
    }

    fn sum_rows(&self, x: &Tensor, sum: &mut Tensor, accumulate: bool) {
        let columns = x.columns();
        for (c, sum) in sum.as_mut_slice::<f64>().iter_mut().enumerate() {
            let column = x.as_slice::<f64>().chunks_exact(columns).map(|row| row[c]);
            store(sum, column.sum(), accumulate);
        }
    }

    fn activation_gradient(&self, kind: Activation, pre: &Tensor, dy: &mut Tensor, mut y: Option<&mut Tensor>) {
        for (i, &pre) in pre.as_slice::<f64>().iter().enumerate() {
            let (value, derivative) = activation(kind, pre);
            dy.as_mut_slice::<f64>()[i] *= derivative;
            if let Some(y) = &mut y {
                y.as_mut_slice::<f64>()[i] = value;
            }
        }
    }

    fn embed_norm(&self, e: &Embedding, norm: &Norm, saved: Option<NormSaved>, y: &mut Tensor) {
        let hidden = e.word.columns();
        let mut sum = self.pool.empty(DType::F64, &[e.ids.len(), hidden]);
        for (token, row) in sum.as_mut_slice::<f64>().chunks_exact_mut(hidden).enumerate() {
            let word = &e.word.as_slice::<f64>()[e.ids[token] as usize * hidden..];
            let position = &e.position.as_slice::<f64>()[e.positions[token] as usize * hidden..];
            for (c, value) in row.iter_mut().enumerate() {
                let kind = e.token_type.map_or(0.0, |t| t.as_slice::<f64>()[e.types[token] as usize * hidden + c]);
                *value = word[c] + position[c] + kind;
            }
        }
        norm::add_norm(&sum, None, None, norm, saved, y);
    }

    fn embedding_gradient(&self, rows: &[u32], dsum: &Tensor, dtable: &mut Tensor) {
        let hidden = dtable.columns();
        for (i, &row) in rows.iter().enumerate() {
            for c in 0..hidden {
                dtable.as_mut_slice::<f64>()[row as usize * hidden + c] += dsum.as_slice::<f64>()[i * hidden + c];
            }
        }
    }

    fn add_norm(
        &self,
        x: &Tensor,
        dropout: Option<&Dropout>,
        residual: Option<&Tensor>,
        norm: &Norm,
        saved: Option<NormSaved>,
        y: &mut Tensor,
    ) {
        norm::add_norm(x, dropout, residual, norm, saved, y);
    }

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
    ) {
        norm::norm_gradient(dy, normalized, inverse_deviation, gamma, dsum);
        norm::parameter_gradients(dy, normalized, dgamma, dbeta, accumulate);
        if let Some(dx) = dx {
            match dropout {
                Some(dropout) => self.dropout(dsum, dropout, dx),
                None => self.cast(dsum, dx),
            }
        }
    }

    fn attention(
        &self,
        shape: AttentionShape,
        qkv: &Tensor,
        offsets: &[u32],
        dropout: Option<&Dropout>,
        y: &mut Tensor,
        log_sum: &mut Tensor,
    ) {
        attention::attention(shape, qkv, offsets, dropout, y, log_sum);
    }

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
    ) {
        attention::attention_gradient(shape, (qkv, y, log_sum), offsets, dropout, dy, dqkv);
    }

    fn dropout(&self, x: &Tensor, dropout: &Dropout, y: &mut Tensor) {
        let columns = x.columns();
        for (i, (y, &x)) in y.as_mut_slice::<f64>().iter_mut().zip(x.as_slice::<f64>()).enumerate() {
            *y = x * kept(Some(dropout), i / columns, i % columns);
        }
    }

    fn gather_rows(&self, x: &Tensor, rows: &[u32], y: &mut Tensor) {
        let columns = x.columns();
        for (&row, y) in rows.iter().zip(y.as_mut_slice::<f64>().chunks_exact_mut(columns)) {
            y.copy_from_slice(&x.as_slice::<f64>()[row as usize * columns..][..columns]);
        }
    }

    fn scatter_rows(&self, dy: &Tensor, rows: &[u32], dx: &mut Tensor) {
        let columns = dx.columns();
        self.zero(dx);
        for (&row, dy) in rows.iter().zip(dy.as_slice::<f64>().chunks_exact(columns)) {
            dx.as_mut_slice::<f64>()[row as usize * columns..][..columns].copy_from_slice(dy);
        }
    }

    fn mean_pool(&self, x: &Tensor, offsets: &[u32], y: &mut Tensor) {
        let columns = x.columns();
        for (s, y) in y.as_mut_slice::<f64>().chunks_exact_mut(columns).enumerate() {
            let tokens = offsets[s] as usize..offsets[s + 1] as usize;
            for (c, y) in y.iter_mut().enumerate() {
                let sum: f64 = tokens.clone().map(|t| x.as_slice::<f64>()[t * columns + c]).sum();
                *y = sum / tokens.len().max(1) as f64;
            }
        }
    }

    fn mean_pool_gradient(&self, dy: &Tensor, offsets: &[u32], dx: &mut Tensor) {
        let columns = dx.columns();
        for (s, dy) in dy.as_slice::<f64>().chunks_exact(columns).enumerate() {
            let tokens = offsets[s] as usize..offsets[s + 1] as usize;
            for t in tokens.clone() {
                let row = &mut dx.as_mut_slice::<f64>()[t * columns..][..columns];
                row.iter_mut().zip(dy).for_each(|(dx, dy)| *dx = dy / tokens.len() as f64);
            }
        }
    }

    fn normalize_rows(&self, x: &Tensor, y: &mut Tensor) {
        let columns = x.columns();
        let rows = x.as_slice::<f64>().chunks_exact(columns).zip(y.as_mut_slice::<f64>().chunks_exact_mut(columns));
        for (x, y) in rows {
            let length = norm::length(x);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x / length);
        }
    }

    fn normalize_rows_gradient(&self, x: &Tensor, dy: &Tensor, dx: &mut Tensor) {
        let columns = x.columns();
        for (i, dx) in dx.as_mut_slice::<f64>().chunks_exact_mut(columns).enumerate() {
            let (x, dy) = (&x.as_slice::<f64>()[i * columns..][..columns], &dy.as_slice::<f64>()[i * columns..]);
            let length = norm::length(x);
            let projection: f64 = x.iter().zip(dy).map(|(x, dy)| x * dy).sum::<f64>() / length.powi(2);
            dx.iter_mut().enumerate().for_each(|(c, dx)| *dx = (dy[c] - x[c] * projection) / length);
        }
    }

    fn cross_entropy(
        &self,
        logits: &Tensor,
        targets: &[i32],
        weights: Option<&[f32]>,
        smoothing: f32,
        gradient: Option<(&mut Tensor, f64)>,
    ) -> LossSum {
        loss::cross_entropy(logits, targets, weights, smoothing as f64, gradient)
    }

    fn binary_cross_entropy(&self, logits: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum {
        loss::elementwise(logits, targets, gradient, |x, t| {
            let loss = x.max(0.0) - x * t + (-x.abs()).exp().ln_1p();
            (loss, 1.0 / (1.0 + (-x).exp()) - t)
        })
    }

    fn squared_error(&self, outputs: &Tensor, targets: &[f32], gradient: Option<(&mut Tensor, f64)>) -> LossSum {
        loss::elementwise(outputs, targets, gradient, |x, t| ((x - t).powi(2), 2.0 * (x - t)))
    }

    fn add_assign(&self, a: &mut Tensor, b: &Tensor) {
        a.as_mut_slice::<f64>().iter_mut().zip(b.as_slice::<f64>()).for_each(|(a, b)| *a += b);
    }

    fn zero(&self, a: &mut Tensor) {
        a.as_mut_slice::<f64>().fill(0.0);
    }

    fn cast(&self, source: &Tensor, target: &mut Tensor) {
        target.as_mut_slice::<f64>().copy_from_slice(source.as_slice::<f64>());
    }

    fn sum_of_squares(&self, tensors: &[&Tensor]) -> f64 {
        tensors.iter().flat_map(|t| t.as_slice::<f64>()).map(|x| x * x).sum()
    }

    fn all_finite(&self, x: &Tensor) -> bool {
        x.as_slice::<f64>().iter().all(|x| x.is_finite())
    }

    fn adamw(&self, tensors: &mut [AdamwTensor], step: &AdamwStep) {
        let correction1 = 1.0 - step.beta1.powi(step.step as i32);
        let correction2 = 1.0 - step.beta2.powi(step.step as i32);
        for tensor in tensors {
            let (first, second) = (tensor.first.as_mut_slice::<f64>(), tensor.second.as_mut_slice::<f64>());
            let gradient = tensor.gradient.as_slice::<f64>();
            for (i, parameter) in tensor.parameter.as_mut_slice::<f64>().iter_mut().enumerate() {
                let gradient = gradient[i] * step.gradient_scale;
                first[i] = step.beta1 * first[i] + (1.0 - step.beta1) * gradient;
                second[i] = step.beta2 * second[i] + (1.0 - step.beta2) * gradient * gradient;
                let update = (first[i] / correction1) / ((second[i] / correction2).sqrt() + step.eps);
                *parameter -= step.lr * (update + tensor.weight_decay * *parameter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_has_its_published_values() {
        // Abramowitz and Stegun, table 7.1; erfc(4) from the same series.
        for (x, expected) in [(0.0, 0.0), (0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (-2.0, -0.995_322_265_0)] {
            assert!((erf(x) - expected).abs() < 1e-9, "{x}");
        }
        assert!((1.0 - erf(4.0) - 1.541_725_790_028e-8).abs() < 1e-15);
        assert!((erf(2.999_999) - erf(3.000_001)).abs() < 1e-8);
    }
}
