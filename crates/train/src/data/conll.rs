//! Words and tags, one a line, sentences apart by a blank line: the layout of the CoNLL shared tasks.

use std::path::Path;

use super::error::{DataError, RowError};
use super::rows::{OnRow, Row, RowSpec, at, lines};
use crate::job::{Column, Task};

/// Columns stand apart by tabs or spaces. The word is the first column and the tag the last, unless
/// the job gives indices; `-DOCSTART-` lines are passed over.
pub(super) fn read(text: &str, path: &Path, spec: &RowSpec<'_>, on_row: &mut OnRow<'_>) -> Result<(), DataError> {
    if spec.task != Task::TokenClassification {
        let problem = "conll files hold a tag for each word: set task = \"token-classification\"";
        return Err(DataError::Unsuited { path: path.to_owned(), problem });
    }
    let index = |column: &Column| match column {
        Column::Index(index) => Some(*index),
        Column::Name(_) => None,
    };
    let (word_column, tag_column) = (index(&spec.text).unwrap_or(0), index(&spec.label));
    let (mut words, mut tags, mut first_line) = (Vec::new(), Vec::new(), 1);
    // A blank line behind the end closes the last sentence.
    for (number, line) in (1..).zip(lines(text).chain([""])) {
        let cells: Vec<&str> = line.split_ascii_whitespace().collect();
        match cells.first() {
            None if words.is_empty() => {}
            None => {
                let (words, tags) = (std::mem::take(&mut words), std::mem::take(&mut tags));
                on_row(Row::Words { words, tags }).map_err(at(path, first_line))?;
            }
            Some(&"-DOCSTART-") => {}
            Some(_) => {
                if words.is_empty() {
                    first_line = number;
                }
                let tag_column = tag_column.unwrap_or((cells.len() - 1).max(1));
                let needed = word_column.max(tag_column);
                if needed >= cells.len() {
                    let found = cells.len();
                    let advice = "blanks or tabs separate a word from its tag";
                    return Err(at(path, number)(RowError::TooFewColumns { found, needed, advice }));
                }
                words.push(cells[word_column].to_owned());
                tags.push(cells[tag_column].to_owned());
            }
        }
    }
    Ok(())
}
