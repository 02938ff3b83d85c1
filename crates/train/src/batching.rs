//! From examples of a data set to a ragged batch with its targets.

use model::{Batch, EncoderConfig, Sequence};

use crate::data::{Dataset, NO_TAG, Target};
use crate::job::Task;

/// A micro-batch, ready for the tape.
pub struct Prepared {
    /// The tokens.
    pub batch: Batch,
    /// What the outputs are compared with.
    pub targets: model::Targets,
}

/// Packs the examples `indices`; `first_identity` is the number of examples before them in the same update, so that
/// dropout does not depend on how the update is cut into micro-batches.
pub fn prepare(
    data: &Dataset,
    indices: &[usize],
    first_identity: u64,
    task: Task,
    labels: usize,
    config: &EncoderConfig,
) -> Prepared {
    let sequences = indices.iter().zip(first_identity..).map(|(&index, identity)| {
        let example = data.example(index);
        Sequence { ids: example.tokens, first_segment: example.second_from, identity }
    });
    let batch = Batch::pack(config, sequences);
    let targets = indices.iter().map(|&index| data.example(index).target);
    Prepared { batch, targets: collect_targets(targets, task, labels) }
}

fn collect_targets<'a>(targets: impl Iterator<Item = Target<'a>>, task: Task, labels: usize) -> model::Targets {
    let mut classes = Vec::new();
    let mut values = Vec::new();
    for target in targets {
        match target {
            Target::Class(class) => classes.push(class as i32),
            Target::Tags(tags) => {
                classes.extend(tags.iter().map(|&tag| if tag == NO_TAG { -1 } else { tag as i32 }));
            }
            Target::Score(score) => values.push(score),
            Target::Labels(present) => {
                let row = values.len();
                values.resize(row + labels, 0.0);
                present.iter().for_each(|&label| values[row + label as usize] = 1.0);
            }
        }
    }
    match task {
        Task::Classification | Task::TokenClassification => model::Targets::Classes(classes),
        Task::MultiLabel => model::Targets::Probabilities(values),
        Task::Regression => model::Targets::Numbers(values),
    }
}
