//! TSV and CSV.

use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Terminator};

use super::error::{DataError, RowError};
use super::rows::{OnRow, Row, RowSpec, at};
use crate::job::{Column, Task, nearest};

/// Which characters mean what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Tabs between columns, line feeds between rows, no quoting.
    Tsv,
    /// RFC 4180, line ends of any kind.
    Csv,
}

/// Columns of the parts of an example.
struct Columns {
    text: usize,
    pair: Option<usize>,
    label: usize,
    /// Columns of the header row, if there is one.
    header: Option<usize>,
}

pub(super) fn read(
    text: &str,
    path: &Path,
    dialect: Dialect,
    spec: &RowSpec<'_>,
    on_row: &mut OnRow<'_>,
) -> Result<(), DataError> {
    if spec.task == Task::TokenClassification {
        let problem = "token classification reads words and tags from conll or jsonl files";
        return Err(DataError::Unsuited { path: path.to_owned(), problem });
    }
    let mut builder = ReaderBuilder::new();
    builder.has_headers(false).flexible(true);
    if dialect == Dialect::Tsv {
        builder.delimiter(b'\t').quoting(false).terminator(Terminator::Any(b'\n'));
    }
    let mut reader = builder.from_reader(text.as_bytes());
    let mut record = StringRecord::new();
    let mut columns = match spec.table.header {
        true => None,
        false => Some(Columns::by_index(path, spec)?),
    };
    loop {
        let more = reader
            .read_record(&mut record)
            .map_err(|error| DataError::Read { path: path.to_owned(), source: error.into() })?;
        if !more {
            return Ok(());
        }
        let cells: Vec<&str> = match dialect {
            Dialect::Tsv => without_carriage_return(&record),
            Dialect::Csv => record.iter().collect(),
        };
        let line = record.position().map_or(0, csv::Position::line);
        match &columns {
            _ if cells == [""] => {}
            None => columns = Some(Columns::by_header(path, &cells, spec)?),
            Some(columns) => {
                columns.row(&cells, dialect, spec).and_then(&mut *on_row).map_err(at(path, line))?;
            }
        }
    }
}

fn without_carriage_return(record: &StringRecord) -> Vec<&str> {
    let mut cells: Vec<&str> = record.iter().collect();
    if let Some(last) = cells.last_mut() {
        *last = last.strip_suffix('\r').unwrap_or(last);
    }
    cells
}

impl Columns {
    fn by_index(path: &Path, spec: &RowSpec<'_>) -> Result<Self, DataError> {
        Self::find(spec, None, |key, column| match column {
            Column::Index(index) => Ok(*index),
            Column::Name(name) => {
                Err(DataError::NameWithoutHeader { path: path.to_owned(), key, column: name.clone() })
            }
        })
    }

    fn by_header(path: &Path, header: &[&str], spec: &RowSpec<'_>) -> Result<Self, DataError> {
        let names: Vec<&str> = header.iter().map(|name| name.trim()).collect();
        Self::find(spec, Some(names.len()), |key, column| {
            let found = match column {
                Column::Index(index) => (*index < names.len()).then_some(*index),
                Column::Name(sought) => names.iter().position(|name| name == sought),
            };
            let near = match column {
                Column::Index(_) => None,
                Column::Name(sought) => nearest(sought, names.iter().copied()),
            };
            found.ok_or_else(|| DataError::NoColumn {
                path: path.to_owned(),
                key,
                column: column.to_string(),
                header: names.join(", "),
                hint: near.map_or(String::new(), |near| format!("; did you mean `{near}`?")),
            })
        })
    }

    fn find(
        spec: &RowSpec<'_>,
        header: Option<usize>,
        index: impl Fn(&'static str, &Column) -> Result<usize, DataError>,
    ) -> Result<Self, DataError> {
        let pair = spec.table.text_pair.as_ref();
        Ok(Self {
            text: index("text", &spec.text)?,
            pair: pair.map(|column| index("text_pair", column)).transpose()?,
            label: index("label", &spec.label)?,
            header,
        })
    }

    fn row(&self, cells: &[&str], dialect: Dialect, spec: &RowSpec<'_>) -> Result<Row, RowError> {
        let found = cells.len();
        if let Some(header) = self.header.filter(|&header| found > header) {
            let advice = match dialect {
                Dialect::Csv => "a text that holds commas must stand in quotes",
                Dialect::Tsv => "a text must not hold tabs",
            };
            return Err(RowError::TooManyColumns { found, header, advice });
        }
        let cell = |index: usize| {
            cells.get(index).copied().ok_or(RowError::TooFewColumns {
                found,
                needed: index,
                advice: match dialect {
                    Dialect::Csv => "commas separate columns",
                    Dialect::Tsv => "tabs separate columns",
                },
            })
        };
        Ok(Row::Text {
            text: cell(self.text)?.to_owned(),
            pair: self.pair.map(cell).transpose()?.map(str::to_owned),
            label: spec.label_in(cell(self.label)?)?,
        })
    }
}
