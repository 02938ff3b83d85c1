//! From a classifier's logits to labels with scores.

use serde::{Deserialize, Serialize};

use crate::config::Problem;

/// A label and how sure the model is of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelScore {
    /// Its name.
    pub label: String,
    /// From 0 to 1; the raw output where nothing is applied to it, as for regression.
    pub score: f64,
}

/// The function that turns logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScoreFunction {
    /// `exp(x) / Σ exp(x)`: probabilities of labels that exclude each other.
    Softmax,
    /// `1 / (1 + exp(-x))`: a probability for each label alone.
    Sigmoid,
    /// The logits themselves.
    None,
}

impl ScoreFunction {
    /// The function that fits what a classifier was trained for.
    pub fn of(problem: Problem) -> Self {
        match problem {
            Problem::SingleLabel => Self::Softmax,
            Problem::MultiLabel => Self::Sigmoid,
            Problem::Regression => Self::None,
        }
    }

    /// Scores of one row of logits, in `f64`.
    pub fn apply(self, logits: &[f32]) -> Vec<f64> {
        match self {
            Self::Softmax => softmax(logits),
            Self::Sigmoid => logits.iter().map(|&x| 1.0 / (1.0 + (-x as f64).exp())).collect(),
            Self::None => logits.iter().map(|&x| x as f64).collect(),
        }
    }
}

/// Pairs labels with scores, the highest first; equal scores keep the labels' order.
pub fn ranked(labels: &[String], scores: Vec<f64>) -> Vec<LabelScore> {
    let mut ranked: Vec<LabelScore> =
        labels.iter().cloned().zip(scores).map(|(label, score)| LabelScore { label, score }).collect();
    ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
    ranked
}

/// The index and value of the highest score, the first of equal ones; `None` without any.
pub fn best(scores: &[f64]) -> Option<(usize, f64)> {
    let scores = scores.iter().copied().enumerate();
    scores.reduce(|best, next| if next.1 > best.1 { next } else { best })
}

fn softmax(row: &[f32]) -> Vec<f64> {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f64> = row.iter().map(|&x| ((x - largest) as f64).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|x| x / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_by_function() {
        let close = |a: Vec<f64>, b: [f64; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        let e = std::f64::consts::E;
        assert!(close(ScoreFunction::Softmax.apply(&[1.0, 0.0]), [e / (e + 1.0), 1.0 / (e + 1.0)]));
        assert!(close(ScoreFunction::Softmax.apply(&[1000.0, 1000.0]), [0.5, 0.5]));
        assert!(close(ScoreFunction::Sigmoid.apply(&[0.0, 1000.0]), [0.5, 1.0]));
        assert!(close(ScoreFunction::None.apply(&[-1.5, 2.0]), [-1.5, 2.0]));
    }

    #[test]
    fn the_highest_comes_first_and_ties_keep_their_order() {
        let labels = ["a", "b", "c"].map(String::from);
        let names: Vec<String> = ranked(&labels, vec![0.2, 0.4, 0.4]).into_iter().map(|l| l.label).collect();
        assert_eq!(names, ["b", "c", "a"]);
        assert_eq!(best(&[0.2, 0.4, 0.4]), Some((1, 0.4)));
        assert_eq!(best(&[]), None);
    }
}
