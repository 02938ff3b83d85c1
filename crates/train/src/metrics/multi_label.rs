//! Any number of labels for each example: counts label by label.

use serde::Serialize;

use super::classification::LabelScores;
use super::{mean, ratio};

/// Metrics of a task with any number of labels for each example.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MultiLabelReport {
    /// Examples seen.
    pub examples: u64,
    /// Mean loss, if one was measured.
    pub loss: Option<f64>,
    /// Share of examples whose whole set of labels is right (subset accuracy).
    pub accuracy: f64,
    /// Mean F1 of all labels.
    pub macro_f1: f64,
    /// Mean recall of all labels.
    pub macro_recall: f64,
    /// F1 of the pooled counts.
    pub micro_f1: f64,
    /// Every label, in the order of the ids.
    pub per_label: Vec<LabelScores>,
}

/// Counts for each label.
#[derive(Clone, Debug)]
pub(super) struct MultiLabelCounts {
    labels: Vec<String>,
    support: Vec<u64>,
    predicted: Vec<u64>,
    right: Vec<u64>,
    exact: u64,
}

impl MultiLabelCounts {
    pub(super) fn new(labels: &[String]) -> Self {
        let zeros = vec![0; labels.len()];
        Self { labels: labels.to_vec(), support: zeros.clone(), predicted: zeros.clone(), right: zeros, exact: 0 }
    }

    /// `actual`: sorted label ids.
    pub(super) fn add(&mut self, actual: &[u32], logits: &[f32]) {
        assert_eq!(logits.len(), self.labels.len(), "one logit for each label");
        let mut exact = true;
        for (id, &logit) in logits.iter().enumerate() {
            let (in_data, in_prediction) = (actual.binary_search(&(id as u32)).is_ok(), logit >= 0.0);
            self.support[id] += u64::from(in_data);
            self.predicted[id] += u64::from(in_prediction);
            self.right[id] += u64::from(in_data && in_prediction);
            exact &= in_data == in_prediction;
        }
        self.exact += u64::from(exact);
    }

    pub(super) fn report(&self, examples: u64, loss: Option<f64>) -> MultiLabelReport {
        let per_label: Vec<LabelScores> = (0..self.labels.len())
            .map(|id| LabelScores::new(&self.labels[id], self.support[id], self.predicted[id], self.right[id]))
            .collect();
        let sum = |counts: &[u64]| counts.iter().sum::<u64>();
        MultiLabelReport {
            examples,
            loss,
            accuracy: ratio(self.exact, examples),
            macro_f1: mean(per_label.iter().map(|scores| scores.f1)),
            macro_recall: mean(per_label.iter().map(|scores| scores.recall)),
            micro_f1: ratio(2 * sum(&self.right), sum(&self.support) + sum(&self.predicted)),
            per_label,
        }
    }
}
