//! Dropout that stands alone, before a classifier.

use tensor::Tensor;

use crate::params::Gradients;
use crate::tape::{InputGradient, Op, Pass, Saved};

/// Dropout on one row per sequence, or per token when `per_token`.
pub struct RowDropout {
    /// Share of elements set to zero.
    pub dropout: f32,
    /// Source of the mask.
    pub site: u32,
    /// Whether rows are tokens instead of sequences.
    pub per_token: bool,
}

impl RowDropout {
    fn apply(&self, pass: &Pass, x: Tensor) -> Tensor {
        let mask = if self.per_token {
            pass.token_dropout(self.dropout, self.site)
        } else {
            pass.sequence_dropout(self.dropout, self.site)
        };
        let Some(mask) = mask else { return x };
        let mut y = pass.empty(x.shape());
        pass.kernels.dropout(&x, &mask, &mut y);
        y
    }
}

impl Op for RowDropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], _: &mut Saved) -> Tensor {
        self.apply(pass, inputs[0].clone())
    }

    fn backward(&self, pass: &Pass, _: &Saved, dy: Tensor, inputs: &mut [InputGradient], _: &mut Gradients) {
        inputs[0].add(pass, self.apply(pass, dy));
    }
}
