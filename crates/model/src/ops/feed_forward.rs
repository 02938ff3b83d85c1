//! The two linear layers between which a transformer is four times as wide.

use tensor::{Activation, Tensor};

use super::LinearParams;
use crate::params::{Gradients, ParamId};
use crate::tape::{InputGradient, Op, Pass, Saved};

/// `y = activation(x·W₁ᵀ + b₁)·W₂ᵀ + b₂`: `[tokens, hidden] -> [tokens, hidden]`.
///
/// Of the wide tensors only the one before the activation is saved; the backward pass gets the one after it back
/// together with the derivative, for the price of one evaluation.
pub struct FeedForward {
    /// `[intermediate, hidden]`
    pub up: LinearParams,
    /// `[hidden, intermediate]`
    pub down: LinearParams,
    /// Between the two.
    pub activation: Activation,
}

impl Op for FeedForward {
    fn name(&self) -> &'static str {
        "feed_forward"
    }

    fn parameters(&self) -> Vec<ParamId> {
        [self.up.ids(), self.down.ids()].concat()
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], saved: &mut Saved) -> Tensor {
        let x = inputs[0];
        let (up, down) = (pass.weights.get(self.up.weight), pass.weights.get(self.down.weight));
        let wide_shape = [x.rows(), up.shape()[0]];
        let mut wide = pass.empty(&wide_shape);
        let mut pre = saved.wanted().then(|| pass.empty(&wide_shape));
        let bias = pass.weights.get(self.up.bias);
        pass.kernels.linear(x, up, Some(bias), self.activation, pre.as_mut(), &mut wide);
        let mut y = pass.empty(&[x.rows(), down.shape()[0]]);
        let bias = pass.weights.get(self.down.bias);
        pass.kernels.linear(&wide, down, Some(bias), Activation::Identity, None, &mut y);
        if let Some(pre) = &pre {
            saved.push(x);
            saved.push(pre);
        }
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
        let [x, pre] = saved.get();
        let (up, down) = (pass.weights.get(self.up.weight), pass.weights.get(self.down.weight));
        let mut dpre = pass.empty(pre.shape());
        pass.kernels.linear_input_gradient(&dy, down, &mut dpre, false);
        let mut wide = pass.empty(pre.shape());
        pass.kernels.activation_gradient(self.activation, pre, &mut dpre, Some(&mut wide));
        self.down.accumulate(pass, &dy, &wide, gradients);
        // Both are free for reuse before the input's gradient is made; `dy` may share its memory with that gradient.
        drop((wide, dy));
        self.up.accumulate(pass, &dpre, x, gradients);
        inputs[0].write(pass, x.shape(), |dx, accumulate| {
            pass.kernels.linear_input_gradient(&dpre, up, dx, accumulate);
        });
    }
}
