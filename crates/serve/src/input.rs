//! What a caller wants answered.

use model::Pooling;

/// One text, or two that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
}

impl Input {
    /// A single text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), pair: None }
    }

    /// Size of all text in bytes.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.pair.as_ref().map_or(0, String::len)
    }
}

/// How inputs become tokens, and tokens a result.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InputOptions {
    /// Whether a text that is too long is cut; the server's default where not said. Else it is a failure.
    pub truncate: Option<bool>,
    /// The end that is cut off.
    pub cut: model::tokenizer::Cut,
    /// Longest sequence in tokens, control tokens included; what the model can take where not said.
    pub max_tokens: Option<usize>,
    /// Control tokens written out in a text become those tokens.
    pub allow_special_tokens: bool,
    /// How an embedding is made; as the model directory says where not said.
    pub pooling: Option<Pooling>,
    /// Whether an embedding is divided by its length; as the model directory says where not said.
    pub normalize: Option<bool>,
}
