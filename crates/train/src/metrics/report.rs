//! The outcome of an evaluation, as numbers, as JSON and as text.

use std::fmt;

use serde::Serialize;

use super::classification::{ClassificationReport, LabelScores};
use super::multi_label::MultiLabelReport;
use super::regression::RegressionReport;
use super::{Metric, Table};

/// The largest number of labels whose confusion matrix is printed.
const MAX_PRINTED_MATRIX: usize = 10;

/// All metrics of one evaluation. Serialises as the report inside; prints as text for a terminal.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// One label for each example or token.
    Classification(ClassificationReport),
    /// Any number of labels for each example.
    MultiLabel(MultiLabelReport),
    /// One number for each example.
    Regression(RegressionReport),
}

impl Report {
    /// Examples evaluated.
    pub fn examples(&self) -> u64 {
        match self {
            Report::Classification(report) => report.examples,
            Report::MultiLabel(report) => report.examples,
            Report::Regression(report) => report.examples,
        }
    }

    /// One metric; `None` if the task has none of that name or the data leave it undefined.
    pub fn value(&self, metric: Metric) -> Option<f64> {
        match self {
            Report::Classification(report) => match metric {
                Metric::Loss => report.loss,
                Metric::Accuracy => Some(report.accuracy),
                Metric::MacroF1 => Some(report.macro_f1),
                Metric::MicroF1 => Some(report.micro_f1),
                Metric::MacroRecall => Some(report.macro_recall),
                Metric::EntityF1 => report.entities.as_ref().map(|entities| entities.f1),
                _ => None,
            },
            Report::MultiLabel(report) => match metric {
                Metric::Loss => report.loss,
                Metric::Accuracy => Some(report.accuracy),
                Metric::MacroF1 => Some(report.macro_f1),
                Metric::MicroF1 => Some(report.micro_f1),
                Metric::MacroRecall => Some(report.macro_recall),
                _ => None,
            },
            Report::Regression(report) => match metric {
                Metric::Loss => report.loss,
                Metric::Mse => report.mse,
                Metric::Mae => report.mae,
                Metric::Spearman => report.spearman,
                Metric::Pearson => report.pearson,
                _ => None,
            },
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Classification(report) => {
                write!(f, "{}", self.summary(report.majority_baseline.as_ref().map(|b| (b.accuracy, b.macro_recall))))?;
                write!(f, "\n{}", label_table(&report.per_label))?;
                match &report.confusion {
                    Some(matrix) if matrix.len() <= MAX_PRINTED_MATRIX => {
                        write!(f, "\n{}", matrix_table(&report.per_label, matrix))
                    }
                    _ => Ok(()),
                }
            }
            Report::MultiLabel(report) => {
                write!(f, "{}\n{}", self.summary(None), label_table(&report.per_label))
            }
            Report::Regression(_) => write!(f, "{}", self.summary(None)),
        }
    }
}

impl Report {
    /// One line for each metric, beside it the majority baseline's (accuracy, macro recall).
    fn summary(&self, baseline: Option<(f64, f64)>) -> Table {
        let mut table = match baseline {
            Some(_) => Table::new(["", "value", "majority"]),
            None => Table::new(["", "value"]),
        };
        table.row(["examples".to_owned(), self.examples().to_string()]);
        let metrics = [
            Metric::Loss,
            Metric::Accuracy,
            Metric::MacroRecall,
            Metric::MacroF1,
            Metric::MicroF1,
            Metric::EntityF1,
            Metric::Mse,
            Metric::Mae,
            Metric::Spearman,
            Metric::Pearson,
        ];
        for metric in metrics {
            let Some(value) = self.value(metric) else {
                continue;
            };
            let mut cells = vec![metric.name().to_owned(), format!("{value:.4}")];
            match (metric, baseline) {
                (Metric::Accuracy, Some((accuracy, _))) => cells.push(format!("{accuracy:.4}")),
                (Metric::MacroRecall, Some((_, recall))) => cells.push(format!("{recall:.4}")),
                _ => {}
            }
            table.row(cells);
        }
        table
    }
}

fn label_table(per_label: &[LabelScores]) -> Table {
    let mut table = Table::new(["label", "precision", "recall", "f1", "support"]);
    for scores in per_label {
        table.row([
            scores.label.clone(),
            format!("{:.4}", scores.precision),
            format!("{:.4}", scores.recall),
            format!("{:.4}", scores.f1),
            scores.support.to_string(),
        ]);
    }
    table
}

fn matrix_table(per_label: &[LabelScores], matrix: &[Vec<u64>]) -> Table {
    let names = per_label.iter().map(|scores| scores.label.clone());
    let mut table = Table::new(std::iter::once("actual \\ predicted".to_owned()).chain(names));
    for (scores, row) in per_label.iter().zip(matrix) {
        let counts = row.iter().map(u64::to_string);
        table.row(std::iter::once(scores.label.clone()).chain(counts));
    }
    table
}
