//! Tables of reference values.

use std::collections::HashMap;
use std::path::Path;

/// A row by the names of its columns.
#[derive(Clone, Debug)]
pub struct Row(HashMap<String, String>);

impl Row {
    pub fn text(&self, column: &str) -> &str {
        self.0.get(column).unwrap_or_else(|| panic!("no column {column} in {:?}", self.0))
    }

    /// An integer, also where it is written with a point.
    pub fn int(&self, column: &str) -> i64 {
        let text = self.text(column);
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        assert!(fraction.bytes().all(|digit| digit == b'0'), "{column}: {text} is no integer");
        whole.parse().unwrap_or_else(|error| panic!("{column}: {text}: {error}"))
    }

    /// A number; none where it is empty.
    pub fn number(&self, column: &str) -> Option<f64> {
        let text = self.text(column);
        (!text.is_empty()).then(|| text.parse().unwrap_or_else(|error| panic!("{column}: {text}: {error}")))
    }
}

/// All rows of a file.
pub fn read(path: &Path) -> Vec<Row> {
    let mut reader = csv::Reader::from_path(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let headers = reader.headers().unwrap().clone();
    let row = |record: csv::StringRecord| {
        Row(headers.iter().map(str::to_owned).zip(record.iter().map(str::to_owned)).collect())
    };
    reader.records().map(|record| row(record.unwrap())).collect()
}
