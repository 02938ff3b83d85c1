//! The model's tokenizer behind the data readers' seam.

use model::tokenizer::{Encoding, Tokenizer};

use crate::data::{Encode, EncodeError, Encoded};

/// Encodes texts for one model, cut to `max_tokens`.
pub struct TokenizerEncode<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The longest sequence, special tokens included.
    pub max_tokens: usize,
}

impl Encode for TokenizerEncode<'_> {
    fn text(&self, text: &str, pair: Option<&str>) -> Result<Encoded, EncodeError> {
        let encoding = match pair {
            None => self.tokenizer.encode(text, self.max_tokens)?,
            Some(second) => self.tokenizer.encode_pair(text, second, self.max_tokens)?,
        };
        refuse_empty(&encoding)?;
        Ok(encoded(encoding))
    }

    /// Words are joined by spaces, and a token belongs to the word in which it begins.
    fn words(&self, words: &[String]) -> Result<Encoded, EncodeError> {
        let text = words.join(" ");
        let mut ends = Vec::with_capacity(words.len());
        for word in words {
            ends.push(ends.last().map_or(0, |end| end + 1) + word.len());
        }
        let encoding = self.tokenizer.encode(&text, self.max_tokens)?;
        refuse_empty(&encoding)?;
        let word_of = |&(start, end): &(usize, usize)| {
            // Byte-level tokens may begin with the space before their word.
            let leading = text[start..end].len() - text[start..end].trim_start().len();
            let word = ends.partition_point(|&word_end| word_end <= start + leading);
            (start != end && word < words.len()).then_some(word as u32)
        };
        let words = encoding.offsets.iter().map(word_of).collect();
        Ok(Encoded { words, ..encoded(encoding) })
    }
}

/// A tokenizer without control tokens makes nothing of an empty text, and there is no first token to classify by.
pub(crate) fn refuse_empty(encoding: &Encoding) -> Result<(), NoTokens> {
    if encoding.ids.is_empty() { Err(NoTokens) } else { Ok(()) }
}

/// A text without a token.
#[derive(Debug, thiserror::Error)]
#[error("the text has no tokens, and this tokenizer adds none of its own")]
pub(crate) struct NoTokens;

fn encoded(encoding: Encoding) -> Encoded {
    let second_from = encoding.type_ids.iter().position(|&id| id == 1).unwrap_or(encoding.ids.len());
    Encoded { ids: encoding.ids, second_from, words: Vec::new(), truncated: encoding.truncated }
}
