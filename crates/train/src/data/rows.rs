//! Rows: what every format is read into.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::encoding::TextEncoding;
use super::error::{DataError, RowError};
use super::files::DataFile;
use super::{conll, delimited, jsonl, pair};
use crate::job::{Column, DataTable, Format, Task};

/// The largest data file, in bytes: it is read whole.
pub const MAX_FILE_BYTES: u64 = 4 << 30;

/// The longest text of one example, in bytes. A file with a quote left open ends up here.
pub const MAX_TEXT_BYTES: usize = 1 << 20;

/// One example as read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    /// A text, or a pair of texts, with its label.
    Text { text: String, pair: Option<String>, label: Label },
    /// A sentence of words, each with its tag.
    Words { words: Vec<String>, tags: Vec<String> },
}

/// A label as read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Label {
    /// Exactly one.
    One(String),
    /// Any number.
    Many(Vec<String>),
    /// A number to predict.
    Score(f32),
}

/// What a reader calls with each row.
pub(super) type OnRow<'a> = dyn FnMut(Row) -> Result<(), RowError> + 'a;

/// What to look for in a row.
pub(super) struct RowSpec<'a> {
    pub(super) task: Task,
    pub(super) table: &'a DataTable,
    pub(super) text: Column,
    pub(super) label: Column,
}

impl<'a> RowSpec<'a> {
    pub(super) fn new(table: &'a DataTable, task: Task) -> Self {
        let (text, label) = DataTable::default_columns(task);
        Self { task, table, text: table.text.clone().unwrap_or(text), label: table.label.clone().unwrap_or(label) }
    }

    /// The label in a cell or on a line of its own.
    pub(super) fn label_in(&self, cell: &str) -> Result<Label, RowError> {
        let cell = cell.trim();
        match self.task {
            Task::MultiLabel => {
                let names = cell.split(&self.table.label_separator).map(str::trim);
                let given = names.filter(|name| !name.is_empty());
                Ok(Label::Many(given.map(str::to_owned).collect()))
            }
            _ if cell.is_empty() => Err(RowError::NoLabel),
            Task::Regression => score(cell),
            Task::Classification | Task::TokenClassification => Ok(Label::One(cell.to_owned())),
        }
    }
}

pub(super) fn score(number: &str) -> Result<Label, RowError> {
    match number.parse::<f32>() {
        Ok(score) if score.is_finite() => Ok(Label::Score(score)),
        _ => Err(RowError::NotANumber(number.to_owned())),
    }
}

/// Calls `on_row` with every row of `file`, in order.
pub(super) fn read_rows(file: &DataFile, spec: &RowSpec<'_>, on_row: &mut OnRow<'_>) -> Result<(), DataError> {
    let encoding = TextEncoding::of_table(spec.table)?;
    let mut rows = 0u64;
    let mut counted = |row: Row| {
        let bytes = match &row {
            Row::Text { text, pair, .. } => text.len() + pair.as_ref().map_or(0, String::len),
            Row::Words { words, .. } => words.iter().map(String::len).sum(),
        };
        if bytes > MAX_TEXT_BYTES {
            return Err(RowError::TextTooLong { bytes });
        }
        rows += 1;
        on_row(row)
    };
    let path = match file {
        DataFile::Pair(texts, labels) => {
            let (text, label) = (read_text(texts, encoding)?, read_text(labels, encoding)?);
            pair::read((&text, texts), (&label, labels), spec, &mut counted)?;
            texts
        }
        DataFile::Single(path, format) => {
            let text = read_text(path, encoding)?;
            match format {
                Format::Jsonl => jsonl::read(&text, path, spec, &mut counted)?,
                Format::Conll => conll::read(&text, path, spec, &mut counted)?,
                Format::Tsv => delimited::read(&text, path, delimited::Dialect::Tsv, spec, &mut counted)?,
                Format::Csv | Format::Auto | Format::Pair => {
                    delimited::read(&text, path, delimited::Dialect::Csv, spec, &mut counted)?;
                }
            }
            path
        }
    };
    if rows == 0 { Err(DataError::Empty { path: path.clone() }) } else { Ok(()) }
}

/// The whole of a file as text.
pub(super) fn read_text(path: &Path, encoding: TextEncoding) -> Result<String, DataError> {
    let read_error = |source| DataError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read_error)?;
    let mut bytes = Vec::new();
    // A pipe or a growing file has no size to ask for, so the bound is on what is read.
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(read_error)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let bytes = bytes.len() as u64;
        return Err(DataError::TooLarge { path: path.to_owned(), bytes, most: MAX_FILE_BYTES });
    }
    encoding.decode(bytes, path)
}

/// The lines of a text, split on line feeds only, each without its carriage return.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    let body = text.strip_suffix('\n').unwrap_or(text);
    let any = !text.is_empty();
    any.then(|| body.split('\n')).into_iter().flatten().map(|line| line.strip_suffix('\r').unwrap_or(line))
}

/// Adds file and line to what is wrong with a row.
pub(super) fn at(path: &Path, line: u64) -> impl FnOnce(RowError) -> DataError + '_ {
    move |problem| DataError::Row { path: path.to_owned(), line, problem }
}
