//! How good the predictions are: exact counts first, ratios from them at the end.
//!
//! An [`Evaluation`] takes one example after the other, in any order and any batches, and gives a
//! [`Report`]. Conventions, which are those of scikit-learn:
//!
//! - The predicted label is the one of the highest logit, the first of equals; a label of a
//!   multi-label task is predicted where its logit is 0 or more (probability ½ or more).
//! - A ratio without cases (0 / 0) is 0.
//! - Macro averages weigh labels equally. They run over the labels that occur in the data or in the
//!   predictions (all labels for multi-label tasks); a label that occurs in neither does not count.
//! - Micro averages pool the counts of all labels; with one label per example, micro F1 is accuracy.
//!
//! ```
//! use train::data::Target;
//! use train::job::Task;
//! use train::metrics::{Evaluation, Metric};
//!
//! let labels = ["no".to_owned(), "yes".to_owned()];
//! let mut evaluation = Evaluation::new(Task::Classification, &labels);
//! evaluation.add(Target::Class(1), &[-1.0, 2.0]);
//! evaluation.add(Target::Class(0), &[0.5, 0.7]);
//! evaluation.add_loss(1.2, 2.0);
//! let report = evaluation.report();
//! assert_eq!(report.value(Metric::Accuracy), Some(0.5));
//! assert_eq!(report.value(Metric::Loss), Some(0.6));
//! ```

mod classification;
mod entities;
mod multi_label;
mod names;
mod regression;
mod report;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use classification::{ClassificationReport, LabelScores, MajorityBaseline};
pub use entities::EntityScores;
pub use multi_label::MultiLabelReport;
pub use names::Metric;
pub use regression::RegressionReport;
pub use report::Report;
pub use table::Table;

use crate::data::{NO_TAG, Target};
use crate::job::Task;
use classification::Confusion;
use entities::EntityCounts;
use multi_label::MultiLabelCounts;

/// Collects what the reports are made of.
#[derive(Clone, Debug)]
pub struct Evaluation {
    examples: u64,
    loss_sum: f64,
    loss_weight: f64,
    counts: Counts,
}

#[derive(Clone, Debug)]
enum Counts {
    Classes(Confusion),
    Labels(MultiLabelCounts),
    Scores(Vec<(f32, f32)>),
    Tags(Confusion, Option<EntityCounts>),
}

impl Evaluation {
    /// An empty evaluation of `task`; `labels` are the names in the order of their ids.
    pub fn new(task: Task, labels: &[String]) -> Self {
        let counts = match task {
            Task::Classification => Counts::Classes(Confusion::new(labels)),
            Task::MultiLabel => Counts::Labels(MultiLabelCounts::new(labels)),
            Task::Regression => Counts::Scores(Vec::new()),
            Task::TokenClassification => Counts::Tags(Confusion::new(labels), EntityCounts::new(labels)),
        };
        Self { examples: 0, loss_sum: 0.0, loss_weight: 0.0, counts }
    }

    /// Adds one example. `logits`: `[labels]`, for token classification `[tokens, labels]` row by
    /// row, for regression `[1]`.
    ///
    /// # Panics
    /// If the target belongs to another task or `logits` has another length: an error of the caller.
    pub fn add(&mut self, target: Target<'_>, logits: &[f32]) {
        self.examples += 1;
        match (&mut self.counts, target) {
            (Counts::Classes(confusion), Target::Class(class)) => {
                assert_eq!(logits.len(), confusion.labels(), "one logit for each label");
                confusion.add(class, highest(logits));
            }
            (Counts::Labels(counts), Target::Labels(labels)) => counts.add(labels, logits),
            (Counts::Scores(scores), Target::Score(score)) => {
                assert_eq!(logits.len(), 1, "one prediction for each example");
                scores.push((score, logits[0]));
            }
            (Counts::Tags(confusion, entities), Target::Tags(tags)) => {
                assert_eq!(logits.len(), tags.len() * confusion.labels(), "one row for each token");
                let rows = logits.chunks_exact(confusion.labels().max(1));
                let tagged = tags.iter().zip(rows).filter(|(tag, _)| **tag != NO_TAG);
                let pairs: Vec<(u32, u32)> = tagged.map(|(&tag, row)| (tag, highest(row))).collect();
                for &(tag, predicted) in &pairs {
                    confusion.add(tag, predicted);
                }
                if let Some(entities) = entities {
                    entities.add(&pairs);
                }
            }
            (_, target) => panic!("a target of another task: {target:?}"),
        }
    }

    /// Adds to the loss: a sum over examples (or tokens) and what to divide it by at the end.
    pub fn add_loss(&mut self, sum: f64, weight: f64) {
        self.loss_sum += sum;
        self.loss_weight += weight;
    }

    /// The metrics of everything added so far.
    pub fn report(&self) -> Report {
        let loss = (self.loss_weight > 0.0).then(|| self.loss_sum / self.loss_weight);
        match &self.counts {
            Counts::Classes(confusion) => Report::Classification(confusion.report(self.examples, loss, None)),
            Counts::Tags(confusion, entities) => {
                let entities = entities.as_ref().map(EntityCounts::scores);
                Report::Classification(confusion.report(self.examples, loss, entities))
            }
            Counts::Labels(counts) => Report::MultiLabel(counts.report(self.examples, loss)),
            Counts::Scores(scores) => Report::Regression(RegressionReport::new(scores, loss)),
        }
    }
}

/// `numerator / denominator`, 0 where there is nothing to divide by.
fn ratio(numerator: u64, denominator: u64) -> f64 {
    if denominator == 0 { 0.0 } else { numerator as f64 / denominator as f64 }
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len();
    if count == 0 { 0.0 } else { values.sum::<f64>() / count as f64 }
}

/// Index of the highest logit, the first of equals.
fn highest(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best as u32
}

/// Counts keyed by (true, predicted) label id.
type PairCounts = BTreeMap<(u32, u32), u64>;
