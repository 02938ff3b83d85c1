//! The metrics a job can name.

use serde::{Deserialize, Serialize};

use crate::job::Task;

/// A number that can select the best checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Mean loss; lower is better.
    Loss,
    /// Share of examples (tokens) whose label is right; for multi-label, whose set of labels is.
    Accuracy,
    /// Mean of the labels' F1.
    MacroF1,
    /// F1 of the pooled counts.
    MicroF1,
    /// Mean of the labels' recall, the measure of TweetEval's sentiment task.
    MacroRecall,
    /// F1 of whole entities under BIO tags.
    EntityF1,
    /// Mean squared error; lower is better.
    Mse,
    /// Mean absolute error; lower is better.
    Mae,
    /// Spearman's rank correlation.
    Spearman,
    /// Pearson's correlation.
    Pearson,
}

impl Metric {
    const ALL: [Metric; 10] = [
        Metric::Loss,
        Metric::Accuracy,
        Metric::MacroF1,
        Metric::MicroF1,
        Metric::MacroRecall,
        Metric::EntityF1,
        Metric::Mse,
        Metric::Mae,
        Metric::Spearman,
        Metric::Pearson,
    ];

    /// The name in job files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Loss => "loss",
            Metric::Accuracy => "accuracy",
            Metric::MacroF1 => "macro_f1",
            Metric::MicroF1 => "micro_f1",
            Metric::MacroRecall => "macro_recall",
            Metric::EntityF1 => "entity_f1",
            Metric::Mse => "mse",
            Metric::Mae => "mae",
            Metric::Spearman => "spearman",
            Metric::Pearson => "pearson",
        }
    }

    /// The metrics that `task` has.
    pub fn all_for(task: Task) -> impl Iterator<Item = Metric> {
        Self::ALL.into_iter().filter(move |metric| metric.suits(task))
    }

    /// What selects the best checkpoint when the job does not say.
    pub fn default_for(task: Task) -> Metric {
        match task {
            Task::Regression => Metric::Mse,
            _ => Metric::MacroF1,
        }
    }

    /// Whether `task` has this metric.
    pub fn suits(self, task: Task) -> bool {
        match self {
            Metric::Loss => true,
            Metric::Accuracy | Metric::MacroF1 | Metric::MicroF1 | Metric::MacroRecall => task != Task::Regression,
            Metric::EntityF1 => task == Task::TokenClassification,
            Metric::Mse | Metric::Mae | Metric::Spearman | Metric::Pearson => task == Task::Regression,
        }
    }

    /// Whether `new` is an improvement over `best`. Equal is none, and NaN never is one.
    pub fn improves(self, new: f64, best: f64) -> bool {
        match self {
            Metric::Loss | Metric::Mse | Metric::Mae => new < best,
            _ => new > best,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_serde_reads() {
        for metric in Metric::ALL {
            assert_eq!(serde_json::to_value(metric).unwrap(), metric.name());
        }
    }

    #[test]
    fn errors_improve_downwards_and_scores_upwards() {
        assert!(Metric::Loss.improves(0.1, 0.2) && !Metric::Loss.improves(0.2, 0.2));
        assert!(Metric::MacroRecall.improves(0.7, 0.6) && !Metric::MacroRecall.improves(f64::NAN, 0.6));
    }

    #[test]
    fn every_task_has_its_default() {
        for task in [Task::Classification, Task::MultiLabel, Task::Regression, Task::TokenClassification] {
            assert!(Metric::default_for(task).suits(task));
        }
        assert!(!Metric::EntityF1.suits(Task::Classification));
    }
}
