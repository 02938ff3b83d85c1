//! Central differences in `f64` over the reference kernels.

use model::{Batch, Gradients, ParamDescr, ParamId, Tape, Value, Weights};
use tensor::{Kernels, ReferenceKernels, Stream};

use crate::support::{Setting, relative_difference};

/// What analytic and numeric gradients may differ by, relative to the gradient's length.
const BOUND: f64 = 1e-6;
/// Distance of the points: little enough that none lies beyond the kink of a ReLU, enough for rounding.
const DISTANCE: f64 = 1e-4;

/// Checks the gradients of all `weights` in `Σ c·y`, where `y` is what `build` puts on a tape and `c` is random but fixed.
/// Returns the largest relative error.
pub fn check(
    kernels: &ReferenceKernels,
    weights: &mut Weights,
    batch: &Batch,
    build: impl Fn(&mut Tape) -> Value,
) -> f64 {
    let setting = Setting::dropping(kernels);
    let mut gradients = Gradients::new(weights, kernels, |_| true);
    gradients.begin();
    {
        let mut tape = Tape::training(setting.pass(weights, batch), &gradients);
        let output = build(&mut tape);
        let shape = output.tensor.shape().to_vec();
        let dy = kernels.pool().from_slice(&coefficients(output.tensor.len()), &shape);
        tape.backward(&output, dy, &mut gradients);
    }
    gradients.finish(kernels);

    let objective = |weights: &Weights| -> f64 {
        let output = build(&mut Tape::inference(setting.pass(weights, batch)));
        let values = output.tensor.as_slice::<f64>();
        values.iter().zip(coefficients(values.len())).map(|(y, c)| y * c).sum()
    };
    let mut worst: f64 = 0.0;
    for id in weights.ids() {
        let analytic = gradients.get(id).unwrap().to_vec_f64();
        let numeric: Vec<f64> = (0..analytic.len()).map(|i| difference(weights, id, i, &objective)).collect();
        let error = relative_difference(&analytic, &numeric, 1e-4);
        assert!(error <= BOUND, "`{}`: relative error {error:.2e}", weights.descriptor(id).name);
        worst = worst.max(error);
    }
    worst
}

fn coefficients(count: usize) -> Vec<f64> {
    let stream = Stream::new(4711, 0, 0);
    (0..count as u64).map(|i| stream.normal(i, 0)).collect()
}

/// The derivative by one element: `(8 (f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h`.
fn difference(weights: &mut Weights, id: ParamId, index: usize, objective: &impl Fn(&Weights) -> f64) -> f64 {
    let center = weights.master(id).as_slice::<f64>()[index];
    let mut at = |offset: f64| {
        weights.master_mut(id).as_mut_slice::<f64>()[index] = center + offset * DISTANCE;
        objective(weights)
    };
    let derivative = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * DISTANCE);
    at(0.0);
    derivative
}

/// A parameter that stands in no file.
pub fn parameter(name: &str, shape: &[usize]) -> ParamDescr {
    ParamDescr { name: name.into(), shape: shape.into(), init: model::Init::Zeros, decay: false, parts: Vec::new() }
}
