//! Examples: from files of labelled text to token ids and targets in memory.
//!
//! The way of a row: a data source is expanded to files (`files`), a file is decoded
//! ([`TextEncoding`]) and cut into rows by the reader of its format, rows are filtered, split and
//! encoded, labels become ids ([`LabelMap`]), and what remains is a [`Dataset`]. Texts are not kept.
//! [`load_job`] does all of it for a job's `[data]` table, [`load_for_eval`] for one source and a
//! model whose labels are known. The tokenizer enters as [`Encode`], so nothing here knows of models.
//!
//! Bounds: a file may have [`MAX_FILE_BYTES`], a text [`MAX_TEXT_BYTES`], a label map
//! [`MAX_LABELS`] labels; beyond them there is an error, never a silent cut.

mod conll;
mod dataset;
mod delimited;
mod encode;
mod encoding;
mod error;
mod files;
mod jsonl;
mod labels;
mod load;
mod pair;
mod rows;
mod targets;

#[cfg(test)]
mod tests;

pub use dataset::{Dataset, Example};
pub use encode::{Encode, EncodeError, Encoded};
pub use encoding::{TextEncoding, UnknownEncoding};
pub use error::{DataError, RowError};
pub use labels::{LabelMap, MAX_LABELS};
pub use load::{Loaded, PartCounts, load_for_eval, load_job};
pub use rows::{MAX_FILE_BYTES, MAX_TEXT_BYTES};
pub use targets::{NO_TAG, Target, Targets, balanced_weights};
