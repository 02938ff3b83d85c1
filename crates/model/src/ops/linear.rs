//! A linear layer with its activation.

use tensor::{Activation, Tensor};

use super::LinearParams;
use crate::params::{Gradients, ParamId};
use crate::tape::{InputGradient, Op, Pass, Saved};

/// `y = activation(x·Wᵀ + b)`: `[rows, in] -> [rows, out]`.
pub struct Linear {
    /// Weight and bias.
    pub params: LinearParams,
    /// Applied to every output.
    pub activation: Activation,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn parameters(&self) -> Vec<ParamId> {
        self.params.ids().into()
    }

    fn forward(&self, pass: &Pass, inputs: &[&Tensor], saved: &mut Saved) -> Tensor {
        let (x, weight) = (inputs[0], pass.weights.get(self.params.weight));
        let shape = [x.rows(), weight.shape()[0]];
        let mut y = pass.empty(&shape);
        let mut pre = (saved.wanted() && self.activation != Activation::Identity).then(|| pass.empty(&shape));
        let bias = pass.weights.get(self.params.bias);
        pass.kernels.linear(x, weight, Some(bias), self.activation, pre.as_mut(), &mut y);
        saved.push(x);
        if let Some(pre) = &pre {
            saved.push(pre);
        }
        y
    }

    fn backward(
        &self,
        pass: &Pass,
        saved: &Saved,
        mut dy: Tensor,
        inputs: &mut [InputGradient],
        gradients: &mut Gradients,
    ) {
        let x = if self.activation == Activation::Identity {
            let [x] = saved.get();
            x
        } else {
            let [x, pre] = saved.get();
            pass.kernels.activation_gradient(self.activation, pre, &mut dy, None);
            x
        };
        self.params.accumulate(pass, &dy, x, gradients);
        let weight = pass.weights.get(self.params.weight);
        inputs[0].write(pass, x.shape(), |dx, accumulate| {
            pass.kernels.linear_input_gradient(&dy, weight, dx, accumulate);
        });
    }
}
