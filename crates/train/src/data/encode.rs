//! The seam to the tokenizer.

use std::error::Error;

/// Why a text could not be encoded.
pub type EncodeError = Box<dyn Error + Send + Sync>;

/// One example as the model sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids, special tokens included.
    pub ids: Vec<u32>,
    /// Index of the first token of the second text (token type 1); `ids.len()` if there is none.
    pub second_from: usize,
    /// For [`Encode::words`]: the word each token belongs to, `None` for special tokens. Empty otherwise.
    pub words: Vec<Option<u32>>,
    /// Whether tokens were cut off to fit the longest length.
    pub truncated: bool,
}

/// Turns text into token ids, special tokens added and the longest length applied.
pub trait Encode {
    /// Encodes a text, or a pair of texts.
    ///
    /// # Errors
    /// What the tokenizer says.
    fn text(&self, text: &str, pair: Option<&str>) -> Result<Encoded, EncodeError>;

    /// Encodes the words of a sentence, keeping track of which token belongs to which word.
    ///
    /// # Errors
    /// What the tokenizer says.
    fn words(&self, words: &[String]) -> Result<Encoded, EncodeError>;
}
