//! Self-attention over a ragged batch.

use tensor::{AttentionShape, Tensor};

use crate::params::Gradients;
use crate::tape::{InputGradient, Op, Pass, Saved};

/// Softmax attention within each sequence: fused queries, keys and values `[tokens, (q + 2 kv) * head_dim]` to
/// `[tokens, q * head_dim]`.
pub struct Attention {
    /// The heads.
    pub shape: AttentionShape,
    /// Dropout on the probabilities.
    pub dropout: f32,
    /// Source of the mask.
    pub site: u32,
}

impl Op for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], saved: &mut Saved) -> Tensor {
        let tokens = inputs[0].rows();
        let mut y = pass.empty(&[tokens, self.shape.output_columns()]);
        let mut log_sum = pass.statistics(&[tokens, self.shape.query_heads]);
        let dropout = pass.token_dropout(self.dropout, self.site);
        let offsets = &pass.batch.offsets;
        pass.kernels.attention(self.shape, inputs[0], offsets, dropout.as_ref(), &mut y, &mut log_sum);
        [inputs[0], &y, &log_sum].into_iter().for_each(|tensor| saved.push(tensor));
        y
    }

    fn backward(&self, pass: &Pass, saved: &Saved, dy: Tensor, inputs: &mut [InputGradient], _: &mut Gradients) {
        let [qkv, y, log_sum] = saved.get();
        let dropout = pass.token_dropout(self.dropout, self.site);
        let mut dqkv = pass.empty(qkv.shape());
        let offsets = &pass.batch.offsets;
        pass.kernels.attention_gradient(self.shape, qkv, y, log_sum, offsets, dropout.as_ref(), &dy, &mut dqkv);
        inputs[0].add(pass, dqkv);
    }
}
