//! From a model's rows to what a task answers.

pub mod classification;
pub mod entities;

use model::{Head, ModelConfig};
use serde::Serialize;
use utoipa::ToSchema;

use crate::failure::{ErrorBody, Failure, Kind};

/// What a model is for, by the Hugging Face hub's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// A label, or several, for a text.
    TextClassification,
    /// A label for every token.
    TokenClassification,
    /// An embedding of a text.
    FeatureExtraction,
}

impl Task {
    /// The task of a model's head.
    pub fn of(config: &ModelConfig) -> Self {
        match config.head {
            Head::Sequence(_) => Self::TextClassification,
            Head::Token => Self::TokenClassification,
            Head::Embedding => Self::FeatureExtraction,
        }
    }

    /// The hub's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::TextClassification => "text-classification",
            Self::TokenClassification => "token-classification",
            Self::FeatureExtraction => "feature-extraction",
        }
    }

    /// Fails unless a model is for `needed`, which `route` answers.
    ///
    /// # Errors
    /// [`Kind::WrongTask`], naming the route that would do.
    pub fn require(self, needed: Self, route: &str) -> Result<(), Failure> {
        if self == needed {
            return Ok(());
        }
        let other = match self {
            Self::FeatureExtraction => "/embed, /v1/embeddings or /invocations",
            Self::TextClassification => "/predict or /invocations",
            Self::TokenClassification => "/invocations",
        };
        let text = format!("{route} answers {}, and this model is for {}: use {other}", needed.name(), self.name());
        Err(Failure::new(Kind::WrongTask, text))
    }
}

impl std::str::FromStr for Task {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            // The hub's older name of the same task.
            "text-classification" | "sentiment-analysis" => Ok(Self::TextClassification),
            "token-classification" | "ner" => Ok(Self::TokenClassification),
            "feature-extraction" | "sentence-similarity" | "sentence-embeddings" => Ok(Self::FeatureExtraction),
            _ => Err(format!(
                "`{name}` is not a task served here; text-classification, token-classification and feature-extraction are"
            )),
        }
    }
}

/// The result of one input of a list, or why there is none. Exactly one of the two forms.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Item<T> {
    /// The result.
    Done(T),
    /// The failure, which leaves the other inputs alone.
    Failed(ErrorBody),
}

impl<T> From<Result<T, Failure>> for Item<T> {
    fn from(result: Result<T, Failure>) -> Self {
        match result {
            Ok(done) => Self::Done(done),
            Err(failure) => Self::Failed(failure.body()),
        }
    }
}

/// Results of a list as items. When every input failed there is nothing to answer, and the first failure is the
/// request's.
///
/// # Errors
/// The first failure, if there is no result at all.
pub fn items<T>(results: Vec<Result<T, Failure>>) -> Result<Vec<Item<T>>, Failure> {
    some_done(&results)?;
    Ok(results.into_iter().map(Item::from).collect())
}

/// Fails where there are results and not one of them is done.
///
/// # Errors
/// The first failure.
pub fn some_done<T>(results: &[Result<T, Failure>]) -> Result<(), Failure> {
    match results.first() {
        Some(Err(first)) if results.iter().all(Result::is_err) => Err(first.clone()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_input_gets_its_own_error_and_all_bad_ones_fail_the_request() {
        let bad = || Err::<u32, _>(Failure::invalid("inputs[0]", "is no string"));
        let json = serde_json::to_value(items(vec![bad(), Ok(7)]).unwrap()).unwrap();
        assert_eq!(json[0]["error_type"], "invalid_input");
        assert_eq!(json[1], 7);
        assert_eq!(items(vec![bad(), bad()]).unwrap_err().field.as_deref(), Some("inputs[0]"));
        assert!(items::<u32>(vec![]).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_route_names_the_right_one() {
        let failure = Task::FeatureExtraction.require(Task::TextClassification, "/predict").unwrap_err();
        assert!(failure.message.contains("/embed"), "{failure}");
    }
}
