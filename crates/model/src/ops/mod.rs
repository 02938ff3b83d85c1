//! The fused operators of transformers, each with its gradient.
//!
//! An operator knows its parameters by index and its place in the model by a `site` for dropout masks; what it keeps
//! for its gradient is the tape's decision.

mod add_norm;
mod attention;
mod dropout;
mod embed_norm;
mod feed_forward;
mod linear;
mod pooling;

pub use add_norm::AddNorm;
pub use attention::Attention;
pub use dropout::RowDropout;
pub use embed_norm::EmbedNorm;
pub use feed_forward::FeedForward;
pub use linear::Linear;
pub use pooling::{FirstToken, MeanPool, NormalizeRows};

use tensor::{Norm, Tensor};

use crate::params::{Gradients, ParamId};
use crate::tape::Pass;

/// A weight matrix with its bias.
#[derive(Clone, Copy, Debug)]
pub struct LinearParams {
    /// `[out, in]`
    pub weight: ParamId,
    /// `[out]`
    pub bias: ParamId,
}

impl LinearParams {
    fn ids(self) -> [ParamId; 2] {
        [self.weight, self.bias]
    }

    /// Adds the gradients of `y = x·Wᵀ + b`, as far as they are trained.
    fn accumulate(self, pass: &Pass, dy: &Tensor, x: &Tensor, gradients: &mut Gradients) {
        if let Some((dw, accumulate)) = gradients.target(self.weight) {
            pass.kernels.linear_weight_gradient(dy, x, dw, accumulate);
        }
        if let Some((db, accumulate)) = gradients.target(self.bias) {
            pass.kernels.sum_rows(dy, db, accumulate);
        }
    }
}

/// The scale and shift of a layer normalisation.
#[derive(Clone, Copy, Debug)]
pub struct NormParams {
    /// `[hidden]`
    pub gamma: ParamId,
    /// `[hidden]`
    pub beta: ParamId,
    /// Added to the variance.
    pub eps: f64,
}

impl NormParams {
    fn ids(self) -> [ParamId; 2] {
        [self.gamma, self.beta]
    }

    fn of<'a>(self, pass: &'a Pass) -> Norm<'a> {
        Norm { gamma: pass.weights.get(self.gamma), beta: pass.weights.get(self.beta), eps: self.eps }
    }

    /// Runs the gradient of the normalisation; frozen scales get theirs into scratch.
    fn gradient(
        self,
        pass: &Pass,
        gradients: &mut Gradients,
        run: impl FnOnce(&Tensor, &mut Tensor, &mut Tensor, bool),
    ) {
        let gamma = pass.weights.get(self.gamma);
        let lent = (gradients.take(self.gamma), gradients.take(self.beta));
        let scratch = || (pass.statistics(gamma.shape()), false);
        let [trained_gamma, trained_beta] = [lent.0.is_some(), lent.1.is_some()];
        let (mut dgamma, gamma_accumulate) = lent.0.unwrap_or_else(scratch);
        let (mut dbeta, beta_accumulate) = lent.1.unwrap_or_else(scratch);
        // One kernel writes both, so a fresh one is cleared when its partner already holds a sum or is not trained.
        let accumulate = gamma_accumulate || beta_accumulate;
        for (tensor, holds_sum) in [(&mut dgamma, gamma_accumulate), (&mut dbeta, beta_accumulate)] {
            if accumulate && !holds_sum {
                pass.kernels.zero(tensor);
            }
        }
        run(gamma, &mut dgamma, &mut dbeta, accumulate);
        if trained_gamma {
            gradients.put(self.gamma, dgamma);
        }
        if trained_beta {
            gradients.put(self.beta, dbeta);
        }
    }
}
