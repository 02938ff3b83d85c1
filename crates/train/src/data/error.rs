//! What can be wrong with data, and where.

use std::path::PathBuf;

use super::encode::EncodeError;
use super::encoding::UnknownEncoding;
use super::labels::MAX_LABELS;
use super::rows::MAX_TEXT_BYTES;

/// Why data could not be loaded. Lines and columns count from 1, columns by index from 0.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Nothing there.
    #[error("no data file {pattern} (tried {}); relative paths start at the current directory", .tried.display())]
    NoFile {
        /// The path or glob as written.
        pattern: String,
        /// The same as an absolute path.
        tried: PathBuf,
    },
    /// A directory instead of files.
    #[error("{} is a directory; name its files with a glob such as {}/*.csv", .path.display(), .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
    },
    /// Not a glob.
    #[error("{pattern} is not a valid glob: {source}")]
    Pattern {
        /// The glob as written.
        pattern: String,
        /// What is wrong with it.
        source: glob::PatternError,
    },
    /// A format that cannot be told from the name.
    #[error(
        "cannot tell the format of {} by its name; set data.format to tsv, csv, jsonl, pair or conll",
        .path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A file of texts without its labels.
    #[error("no labels for {}: {tried} does not exist; name both as texts.txt,labels.txt", .texts.display())]
    NoLabelsFile {
        /// The file of texts.
        texts: PathBuf,
        /// Where the labels were sought.
        tried: String,
    },
    /// The system's refusal.
    #[error("cannot read {}: {source}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file above the bound.
    #[error("{}: {bytes} bytes are more than the {most} a data file may have; split it and name the parts with a glob", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The bound.
        most: u64,
    },
    /// `data.encoding` names no encoding.
    #[error("data.encoding = \"{label}\": {source}")]
    UnknownEncoding {
        /// The name given.
        label: String,
        /// What would be valid.
        source: UnknownEncoding,
    },
    /// A byte that does not decode.
    #[error(
        "{}:{line}: byte {offset} of the file (0x{byte:02X}) is not valid {encoding}; {hint}set data.encoding to the \
         file's encoding, or to utf-8-lossy to replace what does not decode",
        .path.display()
    )]
    Encoding {
        /// The file.
        path: PathBuf,
        /// Line from 1.
        line: usize,
        /// Offset from 0 in the file.
        offset: usize,
        /// The byte.
        byte: u8,
        /// The encoding expected.
        encoding: String,
        /// A guess at the cause, or nothing.
        hint: &'static str,
    },
    /// No rows.
    #[error("{} holds no examples", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Rows, but none that passed.
    #[error("no {part} examples are left of {rows} rows; look at data.keep, data.dedup and data.validation_split")]
    NothingLeft {
        /// `training` or `validation`.
        part: &'static str,
        /// Rows read.
        rows: u64,
    },
    /// Texts and labels that do not pair up.
    #[error(
        "{} has {text_rows} rows but {} has {label_rows}; each text needs one label line",
        .texts.display(), .labels.display()
    )]
    UnequalPair {
        /// The file of texts.
        texts: PathBuf,
        /// Its rows.
        text_rows: usize,
        /// The file of labels.
        labels: PathBuf,
        /// Its rows.
        label_rows: usize,
    },
    /// A column that the header lacks.
    #[error("{}:1: no column {column} (for data.{key}); the header has: {header}{hint}", .path.display())]
    NoColumn {
        /// The file.
        path: PathBuf,
        /// The key that names the column.
        key: &'static str,
        /// The column sought.
        column: String,
        /// The columns there are.
        header: String,
        /// The nearest name, or nothing.
        hint: String,
    },
    /// A name where there are no names.
    #[error("{}: column `{column}` (data.{key}) cannot be found by name in a file without a header; give its index from 0", .path.display())]
    NameWithoutHeader {
        /// The file.
        path: PathBuf,
        /// The key that names the column.
        key: &'static str,
        /// The name.
        column: String,
    },
    /// An index where there are only names.
    #[error("{}: data.{key} = {index} is an index, but the fields of this format have names", .path.display())]
    IndexOfField {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The index.
        index: usize,
    },
    /// A combination that makes no sense.
    #[error("{}: {problem}", .path.display())]
    Unsuited {
        /// The file.
        path: PathBuf,
        /// What does not go together, and what would.
        problem: &'static str,
    },
    /// A row.
    #[error("{}:{line}: {problem}", .path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// Line from 1 at which the row begins.
        line: u64,
        /// What is wrong with it.
        problem: RowError,
    },
    /// A mapping file or a list of names.
    #[error("{origin}: {problem}")]
    LabelNames {
        /// File and line, or the key.
        origin: String,
        /// What is wrong.
        problem: String,
    },
}

/// What is wrong with a row.
#[derive(Debug, thiserror::Error)]
pub enum RowError {
    /// The row ends early.
    #[error("the row has {found} {}, but column {needed} (counted from 0) is needed; {advice}", columns(*found))]
    TooFewColumns {
        /// Columns found.
        found: usize,
        /// The highest index needed.
        needed: usize,
        /// What may be missing.
        advice: &'static str,
    },
    /// More columns than the header.
    #[error("the row has {found} columns, the header {header}; {advice}")]
    TooManyColumns {
        /// Columns found.
        found: usize,
        /// Columns of the header.
        header: usize,
        /// What may have happened.
        advice: &'static str,
    },
    /// Not JSON.
    #[error("not a JSON object: {0}")]
    Json(
        /// What the parser said, with the column.
        String,
    ),
    /// A field is missing.
    #[error("no field `{field}` (for data.{key}); the object has: {has}")]
    NoField {
        /// The key that names the field.
        key: &'static str,
        /// The field.
        field: String,
        /// The fields there are.
        has: String,
    },
    /// A field of the wrong type.
    #[error("field `{field}` is {found}, expected {expected}")]
    FieldType {
        /// The field.
        field: String,
        /// The type found.
        found: &'static str,
        /// The types accepted.
        expected: &'static str,
    },
    /// No label.
    #[error("the row has no label")]
    NoLabel,
    /// A label that should be a number.
    #[error("label `{0}` is not a finite number, which regression needs")]
    NotANumber(
        /// The label.
        String,
    ),
    /// A label outside the map.
    #[error("label `{label}` is none of the known ones: {advice}")]
    UnknownLabel {
        /// The label.
        label: String,
        /// The nearest or all known labels.
        advice: String,
    },
    /// Too many labels to be labels.
    #[error("more than {MAX_LABELS} different labels; is data.label the right column?")]
    TooManyLabels,
    /// A text above the bound.
    #[error("a text of {bytes} bytes is longer than the {MAX_TEXT_BYTES} allowed; is a quote left open?")]
    TextTooLong {
        /// Its length.
        bytes: usize,
    },
    /// Words and tags that do not pair up.
    #[error("{words} words but {tags} tags")]
    UnequalTags {
        /// Words.
        words: usize,
        /// Tags.
        tags: usize,
    },
    /// The tokenizer's refusal.
    #[error("cannot tokenize the text: {0}")]
    Encode(#[source] EncodeError),
}

fn columns(count: usize) -> &'static str {
    if count == 1 { "column" } else { "columns" }
}
