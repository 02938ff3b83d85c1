//! Labels of a text.

use model::config::Problem;
use model::scores::{LabelScore, ScoreFunction, ranked};
use model::{Head, ModelConfig};
use serde::Serialize;
use utoipa::ToSchema;

use crate::engine::Answer;

/// A label and its score.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct Label {
    /// Its name.
    pub label: String,
    /// A probability, unless the function asked for is none.
    pub score: f64,
}

impl From<LabelScore> for Label {
    fn from(LabelScore { label, score }: LabelScore) -> Self {
        Self { label, score }
    }
}

/// The function that fits a model.
pub fn function_of(config: &ModelConfig) -> ScoreFunction {
    match config.head {
        // Rerankers are such models: one label, and no word about what it means.
        Head::Sequence(Problem::Regression) if !config.names_problem() => ScoreFunction::Sigmoid,
        Head::Sequence(problem) => ScoreFunction::of(problem),
        _ => ScoreFunction::of(Problem::SingleLabel),
    }
}

/// All labels of a text, the highest score first, at most `top_k`.
pub fn labels(config: &ModelConfig, answer: &Answer, function: Option<ScoreFunction>, top_k: usize) -> Vec<Label> {
    let logits = answer.rows.iter().next().unwrap_or_default();
    let scores = function.unwrap_or_else(|| function_of(config)).apply(logits);
    ranked(&config.labels, scores).into_iter().take(top_k).map(Label::from).collect()
}
