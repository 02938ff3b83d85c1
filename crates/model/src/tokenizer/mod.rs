//! Text to token ids, with the vocabulary and rules that come with a model.
//!
//! [`Tokenizer`] wraps the `tokenizers` crate. What a file stores about padding and truncation is dropped: the caller
//! says how many tokens fit, and nothing is ever padded. Texts are encoded on the calling thread; only
//! [`Tokenizer::encode_batch`] uses more, as many as it is told to.
//!
//! **A user's text stays text.** `"</s>"` in a tweet is five characters, not the end of a sequence. With
//! [`Options::allow_special_tokens`] it becomes the control token, as `transformers` does it.
//!
//! ```no_run
//! use model::tokenizer::Tokenizer;
//!
//! # fn main() -> Result<(), model::tokenizer::TokenizerError> {
//! let tokenizer = Tokenizer::open("models/roberta-base".as_ref())?;
//! let encoding = tokenizer.encode("Covid cases are increasing fast!", 512)?;
//! assert_eq!(encoding.ids, [0, 347, 1417, 808, 1200, 32, 2284, 1769, 328, 2]);
//! # Ok(())
//! # }
//! ```

mod config;
mod encode;
mod load;
mod save;
#[cfg(test)]
mod tests;

use crate::files::FileError;
use config::Config;
use std::path::{Path, PathBuf};
use tokenizers::ModelWrapper;

/// How a tokenizer is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Control tokens written out in a text (`[SEP]`, `</s>`, `<mask>`) become those tokens. Off by default: a text
    /// from a user must not be able to end its own sequence.
    pub allow_special_tokens: bool,
}

/// The end of a text that is cut off when it is too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cut {
    /// Its first tokens go.
    Start,
    /// Its last tokens go.
    #[default]
    End,
}

/// A text as a model reads it. The vectors have one element per token, control tokens included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Token ids.
    pub ids: Vec<u32>,
    /// 0 for the first text and what surrounds it; 1 for the second text of a pair where the family tells them apart.
    pub type_ids: Vec<u32>,
    /// Start and end of each token in its text, in bytes; `(0, 0)` for control tokens.
    pub offsets: Vec<(usize, usize)>,
    /// Whether each token is a control token that was put around the text.
    pub special: Vec<bool>,
    /// Whether tokens were cut off to fit.
    pub truncated: bool,
}

/// Ids of the control tokens, as far as the vocabulary has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Padding.
    pub pad: Option<u32>,
    /// Stands for what the vocabulary cannot spell.
    pub unk: Option<u32>,
    /// Starts a sequence in encoders; its position is read by classifiers.
    pub cls: Option<u32>,
    /// Ends a text in encoders.
    pub sep: Option<u32>,
    /// Stands for a hidden token.
    pub mask: Option<u32>,
    /// Starts a sequence in decoders.
    pub bos: Option<u32>,
    /// Ends a sequence in decoders.
    pub eos: Option<u32>,
}

/// Why a tokenizer cannot be opened, used or saved. Messages are complete in themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A directory without a tokenizer.
    #[error(
        "no tokenizer in `{}`: looked for tokenizer.json, vocab.json with merges.txt, and vocab.txt",
        dir.display()
    )]
    NotFound {
        /// The directory that was searched.
        dir: PathBuf,
    },
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file with the wrong content.
    #[error("`{}`: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        problem: String,
    },
    /// A limit that leaves no room for text.
    #[error("a limit of {max_tokens} tokens is too low: the control tokens alone take {special}")]
    TooFewTokens {
        /// The limit asked for.
        max_tokens: usize,
        /// Control tokens that are always added.
        special: usize,
    },
    /// The tokenizer's rules failed on a text.
    #[error("a text cannot be tokenized: {0}")]
    Encode(String),
}

/// A model's tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The content of the small files beside it.
    config: Config,
    /// The directory it was opened from; vocabulary files are copied from it when saving.
    source: PathBuf,
}

impl Tokenizer {
    /// Opens the tokenizer in `dir` with the default [`Options`].
    ///
    /// # Errors
    /// See [`open_with`](Self::open_with).
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        Self::open_with(dir, &Options::default())
    }

    /// Opens the tokenizer in `dir`: `tokenizer.json`, else `vocab.json` with `merges.txt` (byte-level BPE), else
    /// `vocab.txt` (WordPiece).
    ///
    /// `vocab.json` is put between `<s>` and `</s>` when `config.json` or `tokenizer_config.json` says RoBERTa; without
    /// either, when it has those tokens. A `vocab.txt` is taken to be lower-casing as `do_lower_case` in `tokenizer_config.json` says; without that,
    /// when lower-casing would change no token in it.
    ///
    /// # Errors
    /// [`TokenizerError::NotFound`], [`TokenizerError::Invalid`] or [`TokenizerError::File`], naming the file.
    pub fn open_with(dir: &Path, options: &Options) -> Result<Self, TokenizerError> {
        let config = Config::read(dir)?;
        let mut inner = load::load(dir, &config)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| TokenizerError::Encode(e.to_string()))?;
        inner.set_encode_special_tokens(!options.allow_special_tokens);
        Ok(Self { inner, config, source: dir.into() })
    }

    /// The id of a token, written as in the vocabulary (`##ing`, `Ġcases`).
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of an id, written as in the vocabulary.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// What a token begins with that continues a word (`##` in WordPiece); `None` where tokens carry the space before a
    /// word instead.
    pub fn continuing_prefix(&self) -> Option<&str> {
        match self.inner.get_model() {
            ModelWrapper::WordPiece(model) => Some(&model.continuing_subword_prefix),
            _ => None,
        }
    }

    /// One more than the highest id: the rows an embedding needs.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1)
    }

    /// The ids of the control tokens, by the names that `tokenizer_config.json` and `special_tokens_map.json` give
    /// them, else by their usual names.
    pub fn special_ids(&self) -> SpecialIds {
        let id = |role: &str, usual: &[&str]| match self.config.special_token(role) {
            Some(token) => self.token_to_id(&token),
            None => usual.iter().find_map(|token| self.token_to_id(token)),
        };
        SpecialIds {
            pad: id("pad_token", &["[PAD]", "<pad>"]),
            unk: id("unk_token", &["[UNK]", "<unk>"]),
            cls: id("cls_token", &["[CLS]", "<s>"]),
            sep: id("sep_token", &["[SEP]", "</s>"]),
            mask: id("mask_token", &["[MASK]", "<mask>"]),
            bos: id("bos_token", &["<s>", "<|endoftext|>"]),
            eos: id("eos_token", &["</s>", "<|endoftext|>"]),
        }
    }
}
