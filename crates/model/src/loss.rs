//! From logits and targets to a loss, as a sum and a weight.

use tensor::{Kernels, LossSum, Tensor};

/// What a batch's outputs are compared with.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// A class for every row of logits (sequence or token); negative ones do not count.
    Classes(Vec<i32>),
    /// A value in `[0, 1]` for every logit.
    Probabilities(Vec<f32>),
    /// A number for every output.
    Numbers(Vec<f32>),
}

/// How outputs and targets become a loss.
#[derive(Clone, Debug, Default)]
pub struct Loss {
    /// Weight of every class, for [`Targets::Classes`].
    pub class_weights: Option<Vec<f32>>,
    /// Share of a target that is spread over all classes, for [`Targets::Classes`].
    pub label_smoothing: f32,
}

impl Loss {
    /// The weight of `targets` in a sum of losses: what the sum over one update is divided by. It is known before any
    /// output is, so every micro-batch can scale its gradient.
    pub fn weight(&self, targets: &Targets) -> f64 {
        match (targets, &self.class_weights) {
            (Targets::Classes(classes), Some(weights)) => {
                classes.iter().filter_map(|&class| weights.get(usize::try_from(class).ok()?)).map(|&w| w as f64).sum()
            }
            (Targets::Classes(classes), None) => classes.iter().filter(|&&class| class >= 0).count() as f64,
            (Targets::Probabilities(values) | Targets::Numbers(values), _) => values.len() as f64,
        }
    }

    /// The loss alone.
    pub fn value(&self, kernels: &dyn Kernels, outputs: &Tensor, targets: &Targets) -> LossSum {
        self.run(kernels, outputs, targets, None)
    }

    /// The loss, and the gradient of `scale` times its sum.
    pub fn gradient(
        &self,
        kernels: &dyn Kernels,
        outputs: &Tensor,
        targets: &Targets,
        scale: f64,
    ) -> (LossSum, Tensor) {
        let mut gradient = kernels.pool().empty(outputs.dtype(), outputs.shape());
        let loss = self.run(kernels, outputs, targets, Some((&mut gradient, scale)));
        (loss, gradient)
    }

    fn run(
        &self,
        kernels: &dyn Kernels,
        outputs: &Tensor,
        targets: &Targets,
        gradient: Option<(&mut Tensor, f64)>,
    ) -> LossSum {
        match targets {
            Targets::Classes(classes) => {
                let weights = self.class_weights.as_deref();
                kernels.cross_entropy(outputs, classes, weights, self.label_smoothing, gradient)
            }
            Targets::Probabilities(values) => kernels.binary_cross_entropy(outputs, values, gradient),
            Targets::Numbers(values) => kernels.squared_error(outputs, values, gradient),
        }
    }
}
