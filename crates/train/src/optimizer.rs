//! AdamW over a model's trained parameters.

use model::{Gradients, ParamId, Weights};
use tensor::{AdamwStep, AdamwTensor, Kernels, Tensor};

/// The constants of AdamW (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamwConfig {
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled decay of matrices and tables; biases and norms are not decayed.
    pub weight_decay: f64,
    /// The global norm that gradients are scaled down to; `None` leaves them.
    pub clip_norm: Option<f64>,
}

/// The moments of every trained parameter and the number of updates made.
pub struct Adamw {
    config: AdamwConfig,
    step: u64,
    moments: Vec<Option<Moments>>,
}

/// Running averages of a parameter's gradient and of its square, of the parameter's shape.
pub struct Moments {
    /// Of the gradient.
    pub first: Tensor,
    /// Of its square.
    pub second: Tensor,
}

impl Adamw {
    /// Zero moments for what `gradients` train.
    pub fn new(config: AdamwConfig, weights: &Weights, gradients: &Gradients, kernels: &dyn Kernels) -> Self {
        let zeros = |id: ParamId| kernels.pool().zeros(kernels.dtype(), &weights.descriptor(id).shape);
        let moments =
            weights.ids().map(|id| gradients.wants(id).then(|| Moments { first: zeros(id), second: zeros(id) }));
        Self { config, step: 0, moments: moments.collect() }
    }

    /// Number of updates made.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The moments of trained parameters, to be saved.
    pub fn moments(&self) -> impl Iterator<Item = (ParamId, &Moments)> {
        self.moments.iter().enumerate().filter_map(|(i, moments)| Some((ParamId(i), moments.as_ref()?)))
    }

    /// Puts back what was saved: `restore` writes the moments of each parameter.
    pub fn restore<E>(
        &mut self,
        step: u64,
        mut restore: impl FnMut(ParamId, &mut Moments) -> Result<(), E>,
    ) -> Result<(), E> {
        self.step = step;
        let trained = self.moments.iter_mut().enumerate();
        trained.filter_map(|(i, m)| Some((ParamId(i), m.as_mut()?))).try_for_each(|(id, m)| restore(id, m))
    }

    /// The global norm of the gradients: the root of the sum of squares over all trained parameters.
    pub fn gradient_norm(gradients: &Gradients, kernels: &dyn Kernels) -> f64 {
        let tensors: Vec<&Tensor> = gradients.iter().map(|(_, tensor)| tensor).collect();
        kernels.sum_of_squares(&tensors).sqrt()
    }

    /// One update with gradients of global norm `norm` at learning rate `lr`.
    pub fn update(&mut self, weights: &mut Weights, gradients: &Gradients, norm: f64, lr: f64, kernels: &dyn Kernels) {
        self.step += 1;
        let gradient_scale = self.clip_scale(norm);
        let decays: Vec<bool> = weights.descriptors().iter().map(|descriptor| descriptor.decay).collect();
        let parameters = weights.update_targets().zip(&mut self.moments);
        let mut tensors: Vec<AdamwTensor> = parameters
            .filter_map(|((id, parameter, copy), moments)| {
                let Moments { first, second } = moments.as_mut()?;
                let weight_decay = if decays[id.0] { self.config.weight_decay } else { 0.0 };
                Some(AdamwTensor { parameter, gradient: gradients.get(id)?, first, second, copy, weight_decay })
            })
            .collect();
        let step = AdamwStep {
            lr,
            beta1: self.config.betas[0],
            beta2: self.config.betas[1],
            eps: self.config.eps,
            step: self.step,
            gradient_scale,
        };
        kernels.adamw(&mut tensors, &step);
    }

    /// As torch's `clip_grad_norm_`: `min(1, clip / (norm + 1e-6))`.
    fn clip_scale(&self, norm: f64) -> f64 {
        self.config.clip_norm.map_or(1.0, |clip| (clip / (norm + 1e-6)).min(1.0))
    }
}
