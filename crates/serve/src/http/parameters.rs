//! The `parameters` of a request in the form of the Hugging Face inference toolkit.

use model::Pooling;
use model::scores::ScoreFunction;
use model::tokenizer::Cut;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::failure::Failure;
use crate::input::InputOptions;
use crate::task::entities::Aggregation;

/// How the labels of texts are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelForm {
    /// As transformers' pipelines: the best label, and a list of labels for a single text.
    Pipeline,
    /// As Hugging Face's Inference API, whose client reads it: a list for every text, of all labels unless `top_k` says.
    Lists,
}

/// `parameters`, by transformers' names. An unknown name is an error, not ignored.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Labels to answer with, the best first; all for null. Without it, the best one alone.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    top_k: Option<Option<usize>>,
    /// What turns logits into scores; what the model was trained for where absent.
    function_to_apply: Option<FunctionName>,
    /// All labels, as `top_k: null`.
    return_all_scores: Option<bool>,
    /// Whether a text that is too long is cut.
    truncation: Option<Truncation>,
    /// The same, by the name of other servers.
    truncate: Option<bool>,
    /// The end that is cut: `left` or `right`.
    truncation_direction: Option<Side>,
    /// Longest sequence in tokens.
    #[schema(minimum = 1)]
    max_length: Option<usize>,
    /// Accepted for transformers' sake; there is no padding here.
    #[schema(value_type = Option<bool>)]
    #[allow(dead_code, reason = "accepted and without effect")]
    padding: Option<Value>,
    /// How tokens become entities.
    pub aggregation_strategy: Option<Aggregation>,
    /// Labels of tokens to leave out; `O` where absent.
    pub ignore_labels: Option<Vec<String>>,
    /// Control tokens written out in a text become those tokens, as in transformers.
    allow_special_tokens: Option<bool>,
    /// How an embedding is made of its tokens.
    pooling: Option<PoolingName>,
    /// Whether embeddings have length 1.
    normalize: Option<bool>,
}

/// Tells an absent field from a null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::<usize>::deserialize(deserializer).map(Some)
}

/// Names of the functions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum FunctionName {
    Default,
    Softmax,
    Sigmoid,
    None,
}

/// Whether and how to cut.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
enum Truncation {
    Flag(bool),
    Strategy(Strategy),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Strategy {
    LongestFirst,
    DoNotTruncate,
}

/// An end of a text.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub enum Side {
    /// Its beginning.
    #[serde(rename = "left", alias = "Left")]
    Left,
    /// Its end.
    #[serde(rename = "right", alias = "Right")]
    Right,
}

impl From<Side> for Cut {
    fn from(side: Side) -> Self {
        match side {
            Side::Left => Cut::Start,
            Side::Right => Cut::End,
        }
    }
}

/// Ways to make an embedding of tokens.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum PoolingName {
    Mean,
    Cls,
    None,
}

impl Parameters {
    /// The same, with options that came beside them where they do not say.
    pub fn or(self, normalize: Option<bool>, truncate: Option<bool>, direction: Option<Side>) -> Self {
        Self {
            normalize: self.normalize.or(normalize),
            truncate: self.truncate.or(truncate),
            truncation_direction: self.truncation_direction.or(direction),
            ..self
        }
    }

    /// Whether the answer is the tokens' own states, without pooling.
    pub fn wants_tokens(&self) -> bool {
        matches!(self.pooling, Some(PoolingName::None))
    }

    /// How inputs are read.
    ///
    /// # Errors
    /// Names the field that is out of range.
    pub fn input_options(&self) -> Result<InputOptions, Failure> {
        if self.max_length == Some(0) {
            return Err(Failure::invalid("parameters.max_length", "must be at least 1"));
        }
        let truncation = self.truncation.map(|truncation| match truncation {
            Truncation::Flag(cut) => cut,
            Truncation::Strategy(strategy) => strategy == Strategy::LongestFirst,
        });
        let pooling = self.pooling.map(|name| match name {
            PoolingName::Mean => Pooling::Mean,
            PoolingName::Cls => Pooling::Cls,
            PoolingName::None => Pooling::Tokens,
        });
        let normalize = match (self.normalize, pooling) {
            // The tokens' own states, as transformers gives them.
            (None, Some(Pooling::Tokens)) => Some(false),
            (normalize, _) => normalize,
        };
        Ok(InputOptions {
            truncate: truncation.or(self.truncate),
            cut: self.truncation_direction.map(Cut::from).unwrap_or_default(),
            max_tokens: self.max_length,
            allow_special_tokens: self.allow_special_tokens.unwrap_or(false),
            pooling,
            normalize,
        })
    }

    /// Labels of an answer: how many, and whether that was asked for, which makes an answer a list of labels.
    ///
    /// # Errors
    /// When `top_k` is 0.
    pub fn labels_wanted(&self, form: LabelForm) -> Result<(usize, bool), Failure> {
        match (self.top_k, self.return_all_scores) {
            (Some(Some(0)), _) => Err(Failure::invalid("parameters.top_k", "must be at least 1, or null for all")),
            (Some(top_k), _) => Ok((top_k.unwrap_or(usize::MAX), true)),
            (None, Some(true)) => Ok((usize::MAX, true)),
            (None, _) if form == LabelForm::Lists => Ok((usize::MAX, true)),
            (None, _) => Ok((1, false)),
        }
    }

    /// What turns logits into scores; `None` for what the model was trained for.
    pub fn function(&self) -> Option<ScoreFunction> {
        match self.function_to_apply? {
            FunctionName::Default => None,
            FunctionName::Softmax => Some(ScoreFunction::Softmax),
            FunctionName::Sigmoid => Some(ScoreFunction::Sigmoid),
            FunctionName::None => Some(ScoreFunction::None),
        }
    }
}
