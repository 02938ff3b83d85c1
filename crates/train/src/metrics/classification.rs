//! One label for each example or token: the confusion matrix and what follows from it.

use serde::Serialize;

use super::entities::EntityScores;
use super::{PairCounts, mean, ratio};

/// The largest number of labels whose confusion matrix is written out in a report.
const MAX_MATRIX_LABELS: usize = 1000;

/// How one label fares.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelScores {
    /// Name of the label.
    pub label: String,
    /// Share of the predictions of this label that are right.
    pub precision: f64,
    /// Share of the examples of this label that are found.
    pub recall: f64,
    /// Harmonic mean of precision and recall.
    pub f1: f64,
    /// Examples of this label in the data.
    pub support: u64,
}

impl LabelScores {
    /// From the examples of the label, the predictions of it, and where both agree.
    pub(super) fn new(label: &str, support: u64, predicted: u64, both: u64) -> Self {
        Self {
            label: label.to_owned(),
            precision: ratio(both, predicted),
            recall: ratio(both, support),
            f1: ratio(2 * both, support + predicted),
            support,
        }
    }
}

/// What always answering the most frequent label of the data would give.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MajorityBaseline {
    /// The most frequent label.
    pub label: String,
    /// Its share of the data.
    pub accuracy: f64,
    /// 1 / the number of labels that occur.
    pub macro_recall: f64,
}

/// Metrics of a task with one label for each example, or for each token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassificationReport {
    /// Examples: texts, also when the labels belong to tokens.
    pub examples: u64,
    /// Labels compared: the examples, or the tokens that carry a tag.
    pub labelled: u64,
    /// Mean loss, if one was measured.
    pub loss: Option<f64>,
    /// Share of right labels.
    pub accuracy: f64,
    /// Mean F1 of the labels that occur in data or predictions.
    pub macro_f1: f64,
    /// Mean recall of the same labels.
    pub macro_recall: f64,
    /// Equal to accuracy here.
    pub micro_f1: f64,
    /// Every label, in the order of the ids.
    pub per_label: Vec<LabelScores>,
    /// Rows: label in the data; columns: label predicted. Left out above 1,000 labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Vec<Vec<u64>>>,
    /// For comparison; absent without data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub majority_baseline: Option<MajorityBaseline>,
    /// Scores of whole entities, where the tags are BIO tags.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entities: Option<EntityScores>,
}

/// Counts of (true, predicted) labels.
#[derive(Clone, Debug)]
pub(super) struct Confusion {
    labels: Vec<String>,
    counts: PairCounts,
}

impl Confusion {
    pub(super) fn new(labels: &[String]) -> Self {
        Self { labels: labels.to_vec(), counts: PairCounts::new() }
    }

    pub(super) fn labels(&self) -> usize {
        self.labels.len()
    }

    pub(super) fn add(&mut self, actual: u32, predicted: u32) {
        *self.counts.entry((actual, predicted)).or_default() += 1;
    }

    pub(super) fn report(
        &self,
        examples: u64,
        loss: Option<f64>,
        entities: Option<EntityScores>,
    ) -> ClassificationReport {
        let k = self.labels.len();
        let (mut support, mut predicted, mut right) = (vec![0; k], vec![0; k], vec![0; k]);
        for (&(actual, guess), &count) in &self.counts {
            support[actual as usize] += count;
            predicted[guess as usize] += count;
            if actual == guess {
                right[actual as usize] += count;
            }
        }
        let labelled: u64 = support.iter().sum();
        let accuracy = ratio(right.iter().sum(), labelled);
        let per_label: Vec<LabelScores> =
            (0..k).map(|id| LabelScores::new(&self.labels[id], support[id], predicted[id], right[id])).collect();
        let occurring: Vec<usize> = (0..k).filter(|&id| support[id] + predicted[id] > 0).collect();
        ClassificationReport {
            examples,
            labelled,
            loss,
            accuracy,
            macro_f1: mean(occurring.iter().map(|&id| per_label[id].f1)),
            macro_recall: mean(occurring.iter().map(|&id| per_label[id].recall)),
            micro_f1: accuracy,
            confusion: (k <= MAX_MATRIX_LABELS).then(|| self.matrix()),
            majority_baseline: majority(&per_label, labelled),
            per_label,
            entities,
        }
    }

    fn matrix(&self) -> Vec<Vec<u64>> {
        let mut matrix = vec![vec![0; self.labels.len()]; self.labels.len()];
        for (&(actual, predicted), &count) in &self.counts {
            matrix[actual as usize][predicted as usize] = count;
        }
        matrix
    }
}

fn majority(per_label: &[LabelScores], labelled: u64) -> Option<MajorityBaseline> {
    // The first of equals: `max_by_key` would give the last.
    let most = per_label.iter().rev().max_by_key(|scores| scores.support)?;
    let occurring = per_label.iter().filter(|scores| scores.support > 0).count() as u64;
    (labelled > 0).then(|| MajorityBaseline {
        label: most.label.clone(),
        accuracy: ratio(most.support, labelled),
        macro_recall: ratio(1, occurring),
    })
}
