//! AdamW over as many parameters as RoBERTa-base has, in matrices of its size.

use tensor::{AdamwStep, AdamwTensor, Kernels, Tensor};

use crate::protocol::Steps;
use crate::timed::TimedKernels;

/// A feed-forward matrix of RoBERTa-base.
const MATRIX: usize = 3072 * 768;

#[derive(clap::Args)]
pub struct Args {
    /// Number of parameters
    #[arg(long)]
    parameters: usize,
}

pub struct Adamw<'a> {
    kernels: &'a TimedKernels,
    tensors: Vec<[Tensor; 4]>,
    step: u64,
}

impl<'a> Adamw<'a> {
    pub fn new(args: &Args, kernels: &'a TimedKernels) -> Self {
        let sizes = (0..args.parameters).step_by(MATRIX).map(|start| MATRIX.min(args.parameters - start));
        let filled = |size: usize, value: f32| {
            let mut tensor = kernels.pool().empty(kernels.dtype(), &[size]);
            tensor.as_mut_slice::<f32>().fill(value);
            tensor
        };
        let tensors = sizes.map(|n| [filled(n, 0.5), filled(n, 1e-3), filled(n, 0.0), filled(n, 0.0)]).collect();
        Self { kernels, tensors, step: 0 }
    }
}

impl Steps for Adamw<'_> {
    fn step(&mut self) -> anyhow::Result<usize> {
        self.step += 1;
        let step = AdamwStep { lr: 1e-5, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: self.step, gradient_scale: 1.0 };
        let units = self.tensors.iter().map(|tensors| tensors[0].len()).sum();
        let mut tensors: Vec<AdamwTensor> = self
            .tensors
            .iter_mut()
            .map(|[parameter, gradient, first, second]| AdamwTensor {
                parameter,
                gradient,
                first,
                second,
                copy: None,
                weight_decay: 0.01,
            })
            .collect();
        self.kernels.adamw(&mut tensors, &step);
        Ok(units)
    }
}
