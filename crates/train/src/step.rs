//! One update: forward and backward over its micro-batches, clipping, AdamW.

use model::{Gradients, Loss, Model, Pass, Randomness, Tape, Weights};
use tensor::{DType, Kernels};
use trace::recorder::Lane;

use crate::batching::Prepared;
use crate::error::TrainError;
use crate::optimizer::Adamw;
use crate::record::NAMES;

/// What an update is made with, besides the model.
pub struct Updater {
    /// From outputs and targets to a loss.
    pub loss: Loss,
    /// Memory for the gradients.
    pub gradients: Gradients,
    /// The moments.
    pub optimizer: Adamw,
    /// Type of activations.
    pub dtype: DType,
    /// Seed of the dropout masks.
    pub seed: u64,
}

/// The numbers of one update.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// Mean loss: the sum over all micro-batches divided by their weight.
    pub loss: f64,
    /// Global norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Bytes that the largest micro-batch kept for its backward pass.
    pub saved_bytes: usize,
}

impl Updater {
    /// Makes one update from micro-batches that together are one batch: the gradient is that of the mean loss over all
    /// of them, however unequal they are. Its phases are recorded in `lane`.
    pub fn update(
        &mut self,
        model: &mut Model,
        micro_batches: &[Prepared],
        lr: f64,
        kernels: &dyn Kernels,
        lane: &Lane,
    ) -> Result<Update, TrainError> {
        let step = self.optimizer.step() + 1;
        let weight: f64 = micro_batches.iter().map(|prepared| self.loss.weight(&prepared.targets)).sum();
        let scale = if weight > 0.0 { 1.0 / weight } else { 0.0 };
        self.gradients.begin();
        let (mut loss_sum, mut saved_bytes) = (0.0, 0);
        for (index, prepared) in micro_batches.iter().enumerate() {
            let micro_batch = lane.annotate(NAMES.micro_batch);
            let forward = lane.annotate(NAMES.forward);
            let mut tape = Tape::training(self.pass(model, prepared, step, kernels), &self.gradients);
            let outputs = model.encoder.forward(&mut tape);
            let (sum, gradient) = self.loss.gradient(kernels, &outputs.tensor, &prepared.targets, scale);
            if !sum.sum.is_finite() {
                return Err(self.explain_loss(model, prepared, step, kernels));
            }
            loss_sum += sum.sum;
            saved_bytes = saved_bytes.max(tape.saved_bytes());
            drop(forward);
            let backward = lane.annotate(NAMES.backward);
            tape.backward(&outputs, gradient, &mut self.gradients);
            drop(backward);
            let batch = &prepared.batch;
            micro_batch.end_with(&[index as i64, batch.sequences() as i64, batch.tokens() as i64]);
        }
        let _optimizer = lane.annotate(NAMES.optimizer);
        self.gradients.finish(kernels);
        let gradient_norm = Adamw::gradient_norm(&self.gradients, kernels);
        if !gradient_norm.is_finite() {
            return Err(self.explain_gradient(model, step, kernels));
        }
        self.optimizer.update(&mut model.weights, &self.gradients, gradient_norm, lr, kernels);
        Ok(Update { loss: loss_sum * scale, gradient_norm, saved_bytes })
    }

    fn pass<'a>(&self, model: &'a Model, prepared: &'a Prepared, step: u64, kernels: &'a dyn Kernels) -> Pass<'a> {
        let randomness = Some(Randomness { seed: self.seed, step });
        Pass { kernels, weights: &model.weights, batch: &prepared.batch, dtype: self.dtype, randomness }
    }

    /// Runs the batch again, looking at every output, to name the first place where a value went wrong.
    fn explain_loss(&self, model: &Model, prepared: &Prepared, step: u64, kernels: &dyn Kernels) -> TrainError {
        match damaged_parameter(&model.weights, kernels) {
            Some(name) if step == 1 => {
                let advice = "the model's weights file is damaged, get it again";
                TrainError::NotFinite { what: "the loss", step, place: parameter(name), advice, checkpoint: None }
            }
            Some(name) => not_finite("the loss", step, parameter(name)),
            None => {
                let mut tape = Tape::inspection(self.pass(model, prepared, step, kernels));
                model.encoder.forward(&mut tape);
                let place = tape.first_not_finite().map_or_else(|| "the loss itself".into(), str::to_string);
                not_finite("the loss", step, place)
            }
        }
    }

    fn explain_gradient(&self, model: &Model, step: u64, kernels: &dyn Kernels) -> TrainError {
        let bad = self.gradients.iter().find(|(_, gradient)| !kernels.all_finite(gradient));
        let name = bad.map_or("the norm itself", |(id, _)| &model.weights.descriptor(id).name);
        not_finite("the gradient", step, format!("the gradient of `{name}`"))
    }
}

/// Weights worth keeping: an error if any of them is not finite after update `step`.
pub fn refuse_damaged(weights: &Weights, step: u64, kernels: &dyn Kernels) -> Result<(), TrainError> {
    let found = damaged_parameter(weights, kernels);
    found.map_or(Ok(()), |name| Err(not_finite("the result", step, parameter(name))))
}

fn damaged_parameter<'a>(weights: &'a Weights, kernels: &dyn Kernels) -> Option<&'a str> {
    let id = weights.ids().find(|&id| !kernels.all_finite(weights.master(id)))?;
    Some(&weights.descriptor(id).name)
}

fn parameter(name: &str) -> String {
    format!("parameter `{name}`")
}

fn not_finite(what: &'static str, step: u64, place: String) -> TrainError {
    let advice = "try a lower optimizer.lr or a longer schedule.warmup_ratio";
    TrainError::NotFinite { what, step, place, advice, checkpoint: None }
}
