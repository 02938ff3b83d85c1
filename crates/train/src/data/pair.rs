//! A file of texts and a file of labels, one a line: the layout of TweetEval.

use std::path::Path;

use super::error::{DataError, RowError};
use super::rows::{OnRow, Row, RowSpec, at, lines};
use crate::job::Task;

/// Lines end at a line feed and nowhere else; a blank line is an empty text.
pub(super) fn read(
    (texts, texts_path): (&str, &Path),
    (labels, labels_path): (&str, &Path),
    spec: &RowSpec<'_>,
    on_row: &mut OnRow<'_>,
) -> Result<(), DataError> {
    let unsuited = if spec.task == Task::TokenClassification {
        Some("token classification reads words and tags from conll or jsonl files")
    } else if spec.table.text_pair.is_some() {
        Some("a file of texts holds one text a line; data.text_pair needs tsv, csv or jsonl")
    } else {
        None
    };
    if let Some(problem) = unsuited {
        return Err(DataError::Unsuited { path: texts_path.to_owned(), problem });
    }
    let (text_rows, label_rows) = (lines(texts).count(), lines(labels).count());
    if text_rows != label_rows {
        return Err(DataError::UnequalPair {
            texts: texts_path.to_owned(),
            text_rows,
            labels: labels_path.to_owned(),
            label_rows,
        });
    }
    for (line, (text, label)) in (1..).zip(lines(texts).zip(lines(labels))) {
        let label = spec.label_in(label).map_err(at(labels_path, line))?;
        let row = Row::Text { text: text.to_owned(), pair: None, label };
        on_row(row).map_err(|problem| match problem {
            RowError::UnknownLabel { .. } | RowError::TooManyLabels => at(labels_path, line)(problem),
            _ => at(texts_path, line)(problem),
        })?;
    }
    Ok(())
}
