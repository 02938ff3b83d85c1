//! Layer normalisation and its gradient (Ba et al., 2016).

use super::{kept, store};
use crate::kernels::{Dropout, Norm, NormSaved};
use crate::tensor::Tensor;

pub fn add_norm(
    x: &Tensor,
    dropout: Option<&Dropout>,
    residual: Option<&Tensor>,
    norm: &Norm,
    mut saved: Option<NormSaved>,
    y: &mut Tensor,
) {
    let hidden = x.columns();
    let (gamma, beta) = (norm.gamma.as_slice::<f64>(), norm.beta.as_slice::<f64>());
    for row in 0..x.rows() {
        let sum = |c: usize| {
            let at = row * hidden + c;
            x.as_slice::<f64>()[at] * kept(dropout, row, c) + residual.map_or(0.0, |r| r.as_slice::<f64>()[at])
        };
        let mean = (0..hidden).map(sum).sum::<f64>() / hidden as f64;
        let variance = (0..hidden).map(|c| (sum(c) - mean).powi(2)).sum::<f64>() / hidden as f64;
        let inverse = 1.0 / (variance + norm.eps).sqrt();
        for c in 0..hidden {
            let normalized = (sum(c) - mean) * inverse;
            y.as_mut_slice::<f64>()[row * hidden + c] = gamma[c] * normalized + beta[c];
            if let Some(saved) = &mut saved {
                saved.normalized.as_mut_slice::<f64>()[row * hidden + c] = normalized;
                saved.inverse_deviation.as_mut_slice::<f64>()[row] = inverse;
            }
        }
    }
}

pub fn norm_gradient(dy: &Tensor, normalized: &Tensor, inverse_deviation: &Tensor, gamma: &Tensor, dsum: &mut Tensor) {
    let hidden = dy.columns();
    let (dy, normalized, gamma) = (dy.as_slice::<f64>(), normalized.as_slice::<f64>(), gamma.as_slice::<f64>());
    for (row, &inverse) in inverse_deviation.as_slice::<f64>().iter().enumerate() {
        let at = row * hidden;
        let mean = (0..hidden).map(|c| dy[at + c] * gamma[c]).sum::<f64>() / hidden as f64;
        let slope = (0..hidden).map(|c| dy[at + c] * gamma[c] * normalized[at + c]).sum::<f64>() / hidden as f64;
        for c in 0..hidden {
            dsum.as_mut_slice::<f64>()[at + c] = inverse * (dy[at + c] * gamma[c] - mean - normalized[at + c] * slope);
        }
    }
}

pub fn parameter_gradients(
    dy: &Tensor,
    normalized: &Tensor,
    dgamma: &mut Tensor,
    dbeta: &mut Tensor,
    accumulate: bool,
) {
    let (rows, hidden) = (dy.rows(), dy.columns());
    let (dy, normalized) = (dy.as_slice::<f64>(), normalized.as_slice::<f64>());
    for c in 0..hidden {
        let column = || (0..rows).map(|row| row * hidden + c);
        store(&mut dgamma.as_mut_slice::<f64>()[c], column().map(|at| dy[at] * normalized[at]).sum(), accumulate);
        store(&mut dbeta.as_mut_slice::<f64>()[c], column().map(|at| dy[at]).sum(), accumulate);
    }
}

/// The Euclidean length of a row, at least `1e-12`.
pub fn length(row: &[f64]) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12)
}
