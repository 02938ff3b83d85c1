//! From what a user names to files with a format.

use std::path::{Path, PathBuf};

use super::error::DataError;
use crate::job::{Format, Sources, Task};

/// One file of examples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DataFile {
    /// A file that holds texts and labels, in a format that is not `Auto` or `Pair`.
    Single(PathBuf, Format),
    /// A file of texts and a file of labels.
    Pair(PathBuf, PathBuf),
}

/// All files of `sources`, in the order named; the files of a glob in alphabetical order.
pub(super) fn expand(sources: &Sources, format: Format, task: Task) -> Result<Vec<DataFile>, DataError> {
    let mut files = Vec::new();
    for pattern in &sources.0 {
        if let Some((texts, labels)) = named_pair(pattern) {
            for path in [texts, labels] {
                if !path.is_file() {
                    return Err(no_file(&path.to_string_lossy()));
                }
            }
            files.push(DataFile::Pair(texts.to_owned(), labels.to_owned()));
            continue;
        }
        for path in matches(pattern)? {
            files.push(with_format(path, format, task)?);
        }
    }
    Ok(files)
}

/// `texts,labels`, unless a file of that very name exists.
fn named_pair(pattern: &str) -> Option<(&Path, &Path)> {
    let (texts, labels) = pattern.split_once(',')?;
    (!Path::new(pattern).exists()).then(|| (Path::new(texts.trim()), Path::new(labels.trim())))
}

fn matches(pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let path = Path::new(pattern);
    if path.is_dir() {
        return Err(DataError::Directory { path: path.to_owned() });
    }
    if path.exists() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = glob::glob(pattern).map_err(|source| DataError::Pattern { pattern: pattern.to_owned(), source })?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| DataError::Read { path: error.path().to_owned(), source: error.into() })?;
        if path.is_file() {
            paths.push(path);
        }
    }
    if paths.is_empty() { Err(no_file(pattern)) } else { Ok(paths) }
}

fn no_file(pattern: &str) -> DataError {
    let tried = std::path::absolute(pattern).unwrap_or_else(|_| pattern.into());
    DataError::NoFile { pattern: pattern.to_owned(), tried }
}

fn with_format(path: PathBuf, format: Format, task: Task) -> Result<DataFile, DataError> {
    let format = match format {
        Format::Auto => match by_name(&path, task) {
            Some(format) => format,
            None => return Err(DataError::UnknownFormat { path }),
        },
        named => named,
    };
    if format != Format::Pair {
        return Ok(DataFile::Single(path, format));
    }
    match labels_beside(&path) {
        Some(labels) if labels.is_file() => Ok(DataFile::Pair(path, labels)),
        Some(labels) => Err(DataError::NoLabelsFile { texts: path, tried: labels.display().to_string() }),
        None => Err(DataError::NoLabelsFile { texts: path, tried: "X_labels.txt beside X_text.txt".to_owned() }),
    }
}

fn by_name(path: &Path, task: Task) -> Option<Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let of_words = task == Task::TokenClassification;
    match extension.as_str() {
        "conll" | "bio" | "iob" | "iob2" => Some(Format::Conll),
        "tsv" | "txt" if of_words => Some(Format::Conll),
        "tsv" => Some(Format::Tsv),
        "txt" => Some(Format::Pair),
        "csv" => Some(Format::Csv),
        "jsonl" | "ndjson" => Some(Format::Jsonl),
        _ => None,
    }
}

/// `X_labels.txt` for `X_text.txt` (or `X_texts.txt`).
fn labels_beside(texts: &Path) -> Option<PathBuf> {
    let stem = texts.file_stem()?.to_str()?;
    let base = stem.strip_suffix("text").or_else(|| stem.strip_suffix("texts"))?;
    let mut name = format!("{base}labels");
    if let Some(extension) = texts.extension().and_then(|extension| extension.to_str()) {
        name = format!("{name}.{extension}");
    }
    Some(texts.with_file_name(name))
}
