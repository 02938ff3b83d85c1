//! One number for each example: errors and correlations.

use serde::Serialize;

/// Metrics of a regression task, computed in f64.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegressionReport {
    /// Examples seen.
    pub examples: u64,
    /// Mean loss, if one was measured.
    pub loss: Option<f64>,
    /// Mean squared error; absent without data.
    pub mse: Option<f64>,
    /// Mean absolute error; absent without data.
    pub mae: Option<f64>,
    /// Spearman's rank correlation, equal values sharing their mean rank; absent where a side is constant.
    pub spearman: Option<f64>,
    /// Pearson's correlation; absent where a side is constant.
    pub pearson: Option<f64>,
}

impl RegressionReport {
    /// From pairs of (target, prediction).
    pub(super) fn new(scores: &[(f32, f32)], loss: Option<f64>) -> Self {
        let targets: Vec<f64> = scores.iter().map(|&(target, _)| f64::from(target)).collect();
        let predictions: Vec<f64> = scores.iter().map(|&(_, guess)| f64::from(guess)).collect();
        let errors = || targets.iter().zip(&predictions).map(|(target, guess)| target - guess);
        let mean = |sum: f64| (!scores.is_empty()).then(|| sum / scores.len() as f64);
        Self {
            examples: scores.len() as u64,
            loss,
            mse: mean(errors().map(|error| error * error).sum()),
            mae: mean(errors().map(f64::abs).sum()),
            spearman: pearson(&ranks(&targets), &ranks(&predictions)),
            pearson: pearson(&targets, &predictions),
        }
    }
}

/// Pearson's correlation; `None` where a side is constant or empty.
fn pearson(a: &[f64], b: &[f64]) -> Option<f64> {
    let count = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / count, b.iter().sum::<f64>() / count);
    let (mut covariance, mut variance_a, mut variance_b) = (0.0, 0.0, 0.0);
    for (x, y) in a.iter().zip(b) {
        covariance += (x - mean_a) * (y - mean_b);
        variance_a += (x - mean_a) * (x - mean_a);
        variance_b += (y - mean_b) * (y - mean_b);
    }
    let correlation = covariance / (variance_a.sqrt() * variance_b.sqrt());
    correlation.is_finite().then(|| correlation.clamp(-1.0, 1.0))
}

/// The rank of each value from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut rank_before = 0;
    for equals in order.chunk_by(|&a, &b| values[a] == values[b]) {
        let mean_rank = rank_before as f64 + (equals.len() as f64 + 1.0) / 2.0;
        for &index in equals {
            ranks[index] = mean_rank;
        }
        rank_before += equals.len();
    }
    ranks
}
