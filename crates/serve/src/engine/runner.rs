//! A thread team with a model: batches of token sequences in, rows of numbers out.

use std::sync::Arc;

use model::{Batch, Encoder, Model, Pass, Pooling, Sequence, Tape};
use tensor::{CpuKernels, DType, Kernels};

use crate::scheduler::Runner;

/// One sequence of tokens.
pub struct Work {
    /// Token ids, control tokens included.
    pub ids: Vec<u32>,
    /// Tokens of the first text of a pair.
    pub first_segment: usize,
    /// How the output is made.
    pub recipe: Recipe,
}

/// How an encoder without a head makes its output; of no effect under a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What becomes of the tokens.
    pub pooling: Pooling,
    /// Whether rows are divided by their length.
    pub normalize: bool,
}

/// The model's output for one sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows {
    /// `[rows, columns]`: one row, or one for every token.
    pub values: Vec<f32>,
    /// Labels, or the width of an embedding.
    pub columns: usize,
}

impl Rows {
    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.columns)
    }

    /// Whether no value is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        self.values.iter().all(|value| value.is_finite())
    }
}

/// Runs an encoder on its own team.
pub struct EncoderRunner {
    model: Arc<Model>,
    /// The encoder as each recipe wants it.
    encoders: Vec<(Recipe, Encoder)>,
    kernels: CpuKernels,
    activations: DType,
}

impl EncoderRunner {
    /// A runner over shared weights.
    pub fn new(model: Arc<Model>, kernels: CpuKernels, activations: DType) -> Self {
        Self { model, encoders: Vec::new(), kernels, activations }
    }

    /// The longest sequence the model can take.
    pub fn max_tokens(&self) -> usize {
        self.model.encoder.config().encoder.max_tokens()
    }

    /// Runs those pieces of work that share a recipe.
    fn run_alike(&mut self, recipe: Recipe, batch: &[Work], outcomes: &mut [Option<Rows>]) {
        let alike: Vec<usize> = (0..batch.len()).filter(|&i| batch[i].recipe == recipe).collect();
        let config = &self.model.encoder.config().encoder;
        let sequences = alike.iter().map(|&i| {
            let work = &batch[i];
            Sequence { ids: &work.ids, first_segment: work.first_segment, identity: i as u64 }
        });
        let packed = Batch::pack(config, sequences);
        let encoder = match self.encoders.iter().position(|(known, _)| *known == recipe) {
            Some(known) => &self.encoders[known].1,
            None => {
                let mut encoder = self.model.encoder.clone();
                (encoder.pooling, encoder.normalize) = (recipe.pooling, recipe.normalize);
                self.encoders.push((recipe, encoder));
                &self.encoders[self.encoders.len() - 1].1
            }
        };
        let (kernels, weights, dtype) = (&self.kernels, &self.model.weights, self.activations);
        let pass = Pass { kernels, weights, batch: &packed, dtype, randomness: None };
        let output = encoder.forward(&mut Tape::inference(pass)).tensor;
        let (columns, values) = (output.columns(), output.to_vec_f32());
        let per_token = encoder.is_per_token();
        let mut rest = values.as_slice();
        for &i in &alike {
            let rows = if per_token { batch[i].ids.len() } else { 1 };
            let (own, others) = rest.split_at(rows * columns);
            outcomes[i] = Some(Rows { values: own.to_vec(), columns });
            rest = others;
        }
    }
}

impl Runner for EncoderRunner {
    type Work = Work;
    type Outcome = Rows;

    fn run(&mut self, batch: &[Work]) -> Vec<Rows> {
        let mut outcomes: Vec<Option<Rows>> = batch.iter().map(|_| None).collect();
        while let Some(next) = outcomes.iter().position(Option::is_none) {
            self.run_alike(batch[next].recipe, batch, &mut outcomes);
        }
        outcomes.into_iter().flatten().collect()
    }

    fn idle(&mut self) {
        self.kernels.pool().release_idle();
    }
}
