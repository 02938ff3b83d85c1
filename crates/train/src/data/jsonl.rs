//! JSON Lines: one object a line.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::{DataError, RowError};
use super::rows::{Label, OnRow, Row, RowSpec, at, lines, score};
use crate::job::{Column, Task};

/// Names of the fields of an example.
struct Fields<'a> {
    text: &'a str,
    pair: Option<&'a str>,
    label: &'a str,
}

pub(super) fn read(text: &str, path: &Path, spec: &RowSpec<'_>, on_row: &mut OnRow<'_>) -> Result<(), DataError> {
    let name = |key: &'static str, column| match column {
        &Column::Index(index) => Err(DataError::IndexOfField { path: path.to_owned(), key, index }),
        Column::Name(name) => Ok(name.as_str()),
    };
    let fields = Fields {
        text: name("text", &spec.text)?,
        pair: spec.table.text_pair.as_ref().map(|column| name("text_pair", column)).transpose()?,
        label: name("label", &spec.label)?,
    };
    for (number, line) in (1..).zip(lines(text)) {
        if !line.trim().is_empty() {
            row(line, &fields, spec.task).and_then(&mut *on_row).map_err(at(path, number))?;
        }
    }
    Ok(())
}

fn row(line: &str, fields: &Fields<'_>, task: Task) -> Result<Row, RowError> {
    let object: Map<String, Value> = serde_json::from_str(line).map_err(|error| {
        // The parser sees one line only, so its own line number would mislead.
        let message = error.to_string();
        let cause = message.rsplit_once(" at line ").map_or(message.as_str(), |(cause, _)| cause);
        RowError::Json(format!("{cause} at column {}", error.column()))
    })?;
    if task == Task::TokenClassification {
        let words = strings(&object, "text", fields.text)?;
        let tags = strings(&object, "label", fields.label)?;
        return Ok(Row::Words { words, tags });
    }
    Ok(Row::Text {
        text: string(&object, "text", fields.text)?,
        pair: fields.pair.map(|field| string(&object, "text_pair", field)).transpose()?,
        label: label(&object, fields.label, task)?,
    })
}

fn field<'a>(object: &'a Map<String, Value>, key: &'static str, field: &str) -> Result<&'a Value, RowError> {
    object.get(field).ok_or_else(|| {
        let names: Vec<&str> = object.keys().map(String::as_str).collect();
        RowError::NoField { key, field: field.to_owned(), has: names.join(", ") }
    })
}

fn string(object: &Map<String, Value>, key: &'static str, name: &str) -> Result<String, RowError> {
    match field(object, key, name)? {
        Value::String(text) => Ok(text.clone()),
        other => Err(wrong_type(name, other, "a string")),
    }
}

fn strings(object: &Map<String, Value>, key: &'static str, name: &str) -> Result<Vec<String>, RowError> {
    const EXPECTED: &str = "a list of strings or whole numbers";
    match field(object, key, name)? {
        Value::Array(items) => {
            items.iter().map(|item| plain(item).ok_or_else(|| wrong_type(name, item, EXPECTED))).collect()
        }
        other => Err(wrong_type(name, other, EXPECTED)),
    }
}

fn label(object: &Map<String, Value>, name: &str, task: Task) -> Result<Label, RowError> {
    let value = field(object, "label", name)?;
    match (task, value) {
        (Task::MultiLabel, _) => strings(object, "label", name).map(Label::Many),
        (_, Value::Null) => Err(RowError::NoLabel),
        (Task::Regression, Value::Number(number)) => score(&number.to_string()),
        (Task::Regression, other) => Err(wrong_type(name, other, "a number")),
        _ => match plain(value) {
            Some(label) if label.is_empty() => Err(RowError::NoLabel),
            Some(label) => Ok(Label::One(label)),
            None => Err(wrong_type(name, value, "a string, a whole number or a boolean")),
        },
    }
}

/// A label in its written form.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

fn wrong_type(field: &str, value: &Value, expected: &'static str) -> RowError {
    let found = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    RowError::FieldType { field: field.to_owned(), found, expected }
}
