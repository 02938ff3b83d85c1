//! From tokens to one row per sequence.

use tensor::Tensor;

use crate::params::Gradients;
use crate::tape::{InputGradient, Op, Pass, Saved};

/// The row of each sequence's first token: `[tokens, hidden] -> [sequences, hidden]`.
pub struct FirstToken;

impl Op for FirstToken {
    fn name(&self) -> &'static str {
        "first_token"
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], _: &mut Saved) -> Tensor {
        let mut y = pass.empty(&[pass.batch.sequences(), inputs[0].columns()]);
        pass.kernels.gather_rows(inputs[0], pass.batch.first_tokens(), &mut y);
        y
    }

    fn backward(&self, pass: &Pass, _: &Saved, dy: Tensor, inputs: &mut [InputGradient], _: &mut Gradients) {
        let mut dx = pass.empty(&[pass.batch.tokens(), dy.columns()]);
        pass.kernels.scatter_rows(&dy, pass.batch.first_tokens(), &mut dx);
        inputs[0].add(pass, dx);
    }
}

/// The mean of each sequence's rows: `[tokens, hidden] -> [sequences, hidden]`.
pub struct MeanPool;

impl Op for MeanPool {
    fn name(&self) -> &'static str {
        "mean_pool"
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], _: &mut Saved) -> Tensor {
        let mut y = pass.empty(&[pass.batch.sequences(), inputs[0].columns()]);
        pass.kernels.mean_pool(inputs[0], &pass.batch.offsets, &mut y);
        y
    }

    fn backward(&self, pass: &Pass, _: &Saved, dy: Tensor, inputs: &mut [InputGradient], _: &mut Gradients) {
        let mut dx = pass.empty(&[pass.batch.tokens(), dy.columns()]);
        pass.kernels.mean_pool_gradient(&dy, &pass.batch.offsets, &mut dx);
        inputs[0].add(pass, dx);
    }
}

/// Every row divided by its Euclidean length.
pub struct NormalizeRows;

impl Op for NormalizeRows {
    fn name(&self) -> &'static str {
        "normalize_rows"
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], saved: &mut Saved) -> Tensor {
        let mut y = pass.empty(inputs[0].shape());
        pass.kernels.normalize_rows(inputs[0], &mut y);
        saved.push(inputs[0]);
        y
    }

    fn backward(&self, pass: &Pass, saved: &Saved, dy: Tensor, inputs: &mut [InputGradient], _: &mut Gradients) {
        let [x] = saved.get();
        let mut dx = pass.empty(x.shape());
        pass.kernels.normalize_rows_gradient(x, &dy, &mut dx);
        inputs[0].add(pass, dx);
    }
}
