//! Residual connection and normalisation.

use tensor::{NormSaved, Tensor};

use super::NormParams;
use crate::params::{Gradients, ParamId};
use crate::tape::{InputGradient, Op, Pass, Saved};

/// `y = norm(residual + dropout(branch))`: inputs `branch, residual: [tokens, hidden]`.
pub struct AddNorm {
    /// Scale and shift.
    pub norm: NormParams,
    /// Dropout on the branch.
    pub dropout: f32,
    /// Source of the mask.
    pub site: u32,
}

impl Op for AddNorm {
    fn name(&self) -> &'static str {
        "add_norm"
    }

    fn parameters(&self) -> Vec<ParamId> {
        self.norm.ids().into()
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], saved: &mut Saved) -> Tensor {
        let [branch, residual] = [inputs[0], inputs[1]];
        let mut y = pass.empty(branch.shape());
        let dropout = pass.token_dropout(self.dropout, self.site);
        with_saved_norm(pass, branch.shape(), saved, |norm_saved| {
            let norm = self.norm.of(pass);
            pass.kernels.add_norm(branch, dropout.as_ref(), Some(residual), &norm, norm_saved, &mut y);
        });
        y
    }

    fn backward(
        &self,
        pass: &Pass,
        saved: &Saved,
        dy: Tensor,
        inputs: &mut [InputGradient],
        gradients: &mut Gradients,
    ) {
        let [normalized, inverse] = saved.get();
        let dropout = pass.token_dropout(self.dropout, self.site);
        let mut dsum = pass.empty(dy.shape());
        let mut dbranch = dropout.map(|_| pass.empty(dy.shape()));
        self.norm.gradient(pass, gradients, |gamma, dgamma, dbeta, accumulate| {
            let (dropout, dbranch) = (dropout.as_ref(), dbranch.as_mut());
            pass.kernels
                .norm_gradient(&dy, normalized, inverse, gamma, dropout, &mut dsum, dbranch, dgamma, dbeta, accumulate);
        });
        inputs[0].add(pass, dbranch.unwrap_or_else(|| dsum.clone()));
        inputs[1].add(pass, dsum);
    }
}

/// Runs a normalisation of `[rows, hidden]` with memory for what its gradient needs, if a backward pass will come.
pub(super) fn with_saved_norm(pass: &Pass, shape: &[usize], saved: &mut Saved, run: impl FnOnce(Option<NormSaved>)) {
    if !saved.wanted() {
        return run(None);
    }
    let mut normalized = pass.empty(shape);
    let mut inverse_deviation = pass.statistics(&shape[..1]);
    run(Some(NormSaved { normalized: &mut normalized, inverse_deviation: &mut inverse_deviation }));
    saved.push(&normalized);
    saved.push(&inverse_deviation);
}
