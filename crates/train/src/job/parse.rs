//! From text and `--set` arguments to a [`Job`], keeping track of where every value came from.

use std::borrow::Cow;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::check;
use super::error::{JobError, Place, Problem};
use super::keys::{is_table, known_keys, nearest_key};
use super::tables::Job;

/// The largest job file accepted, in bytes.
const MAX_JOB_BYTES: u64 = 1 << 20;

/// Keys that exclude each other: one that is `--set` takes the place of the other in the file.
const EXCLUSIVE: [(&str, &str); 5] = [
    ("data.validation", "data.validation_split"),
    ("batch.size", "batch.tokens"),
    ("schedule.warmup_steps", "schedule.warmup_ratio"),
    ("schedule.epochs", "schedule.steps"),
    ("evaluate.every_steps", "evaluate.every_epochs"),
];

impl Job {
    /// Reads the job file `path`, then applies each of `sets`, a `key=value` argument whose value is
    /// TOML if it parses as TOML and a string otherwise.
    ///
    /// # Errors
    /// [`JobError`]; everything wrong with keys and values is collected into one error, each with
    /// its place: file, line and column, or the `--set` argument.
    pub fn load(path: &Path, sets: &[String]) -> Result<Job, JobError> {
        let read_error = |source| JobError::Read { path: absolute(path), source };
        let bytes = fs::metadata(path).map_err(read_error)?.len();
        if bytes > MAX_JOB_BYTES {
            return Err(JobError::TooLarge { path: path.to_owned(), bytes, most: MAX_JOB_BYTES });
        }
        let text = fs::read_to_string(path).map_err(read_error)?;
        Self::parse(&text, path, sets)
    }

    /// [`Job::load`] for a text already in memory; `path` names it in messages and names the run.
    ///
    /// # Errors
    /// As [`Job::load`].
    pub fn parse(text: &str, path: &Path, sets: &[String]) -> Result<Job, JobError> {
        let document = Document::new(text, path, sets)?;
        let unknown = document.unknown_keys();
        if !unknown.is_empty() {
            return Err(JobError::Invalid(unknown));
        }
        let mut job = document.read()?;
        let wrong = check::check(&job);
        if !wrong.is_empty() {
            let located = |(key, message)| document.problem(key, message);
            return Err(JobError::Invalid(wrong.into_iter().map(located).collect()));
        }
        check::fill_defaults(&mut job, path);
        Ok(job)
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// A parsed job file with the `--set` values in it. A value's span lies inside the file's text; the
/// span of the value of `sets[i]` is the single position `text.len() + 1 + i` behind it.
struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    sets: &'a [String],
    root: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    fn new(text: &'a str, path: &'a Path, sets: &'a [String]) -> Result<Self, JobError> {
        let root = Spanned::new(0..text.len(), DeTable::new());
        let mut document = Self { path, text, sets, root };
        document.root = DeTable::parse(text).map_err(|error| {
            let place = document.place(error.span().unwrap_or(0..0));
            let message = format!("not valid TOML: {}", error.message());
            JobError::Invalid(vec![Problem { place, key: String::new(), message }])
        })?;
        for (index, argument) in sets.iter().enumerate() {
            let behind_text = text.len() + 1 + index;
            set(document.root.get_mut(), argument, behind_text..behind_text + 1)?;
            document.replace_excluded(argument);
        }
        Ok(document)
    }

    /// Takes the key out of the file that the key of a `--set` argument excludes.
    fn replace_excluded(&mut self, argument: &str) {
        let Some((key, value)) = argument.split_once('=') else {
            return;
        };
        let (key, clears) = (key.trim(), value.trim() == "[]");
        let excluded = EXCLUSIVE.iter().find_map(|&(one, other)| match key {
            _ if clears => None,
            _ if key == one => Some(other),
            _ if key == other => Some(one),
            _ => None,
        });
        let Some((table, name)) = excluded.and_then(|key| key.split_once('.')) else {
            return;
        };
        if let Some(DeValue::Table(table)) = self.root.get_mut().get_mut(table).map(Spanned::get_mut)
            && table.get(name).is_some_and(|value| value.span().start < self.text.len())
        {
            table.remove(name);
        }
    }

    fn read(&self) -> Result<Job, JobError> {
        Job::deserialize(toml::Deserializer::from(self.root.clone())).map_err(|error| {
            let span = error.span().unwrap_or_else(|| self.root.span());
            let key = path_at(self.root.get_ref(), &span).unwrap_or_default();
            let message = format!("`{key}`: {}", in_words(error.message()));
            JobError::Invalid(vec![Problem { place: self.place(span), key, message }])
        })
    }

    fn unknown_keys(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        self.collect_unknown("", self.root.get_ref(), &mut problems);
        problems
    }

    fn collect_unknown(&self, table: &str, entries: &DeTable<'a>, problems: &mut Vec<Problem>) {
        for (name, value) in entries {
            let key = join(table, name.get_ref());
            if !known_keys().contains(&key) {
                let advice = match nearest_key(&key) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("known here: {}", known_in(table)),
                };
                let message = format!("unknown key `{key}`: {advice}");
                problems.push(Problem { place: self.place(name.span()), key, message });
            } else if let (true, DeValue::Table(inner)) = (is_table(&key), value.get_ref()) {
                self.collect_unknown(&key, inner, problems);
            }
        }
        problems.sort_by_key(|problem| match &problem.place {
            Place::Text { line, column, .. } => (*line, *column),
            Place::Set(_) | Place::Missing(_) => (usize::MAX, 0),
        });
    }

    fn problem(&self, key: &str, message: String) -> Problem {
        let place = match find(self.root.get_ref(), key) {
            Some(span) => self.place(span),
            None => Place::Missing(self.path.to_owned()),
        };
        Problem { place, key: key.to_owned(), message: format!("`{key}` {message}") }
    }

    fn place(&self, span: Range<usize>) -> Place {
        if let Some(argument) = span.start.checked_sub(self.text.len() + 1).and_then(|index| self.sets.get(index)) {
            return Place::Set(argument.clone());
        }
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::Text {
            path: self.path.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// Puts the value of one `--set` argument into the table.
fn set<'a>(root: &mut DeTable<'a>, argument: &'a str, span: Range<usize>) -> Result<(), JobError> {
    let fail = |problem: String| JobError::Set { argument: argument.to_owned(), problem };
    let (key, right) = argument.split_once('=').ok_or_else(|| fail("there is no `=`".into()))?;
    let (key, right) = (key.trim(), right.trim());
    let mut names = key.split('.');
    if key.is_empty() || names.clone().any(|name| name.trim().is_empty()) {
        return Err(fail(format!("`{key}` is not the name of a key")));
    }
    let last = names.next_back().unwrap_or(key);
    let mut table = root;
    for name in names {
        let entry = table
            .entry(Spanned::new(span.clone(), Cow::Borrowed(name)))
            .or_insert_with(|| Spanned::new(span.clone(), DeValue::Table(DeTable::new())));
        let DeValue::Table(inner) = entry.get_mut() else {
            return Err(fail(format!("`{name}` is a value, not a table")));
        };
        table = inner;
    }
    let value = match DeValue::parse(right) {
        Ok(parsed) => moved(parsed.into_inner(), &span),
        Err(_) => DeValue::String(Cow::Borrowed(right)),
    };
    table.remove(last);
    table.insert(Spanned::new(span.clone(), Cow::Borrowed(last)), Spanned::new(span, value));
    Ok(())
}

/// `value` with `span` on everything inside it.
fn moved<'a>(value: DeValue<'a>, span: &Range<usize>) -> DeValue<'a> {
    let within = |item: Spanned<DeValue<'a>>| Spanned::new(span.clone(), moved(item.into_inner(), span));
    match value {
        DeValue::Array(items) => DeValue::Array(items.into_iter().map(within).collect()),
        DeValue::Table(table) => DeValue::Table(
            table
                .into_iter()
                .map(|(name, item)| (Spanned::new(span.clone(), name.into_inner()), within(item)))
                .collect(),
        ),
        plain => plain,
    }
}

/// Where the value of `key` stands.
fn find(table: &DeTable<'_>, key: &str) -> Option<Range<usize>> {
    let (name, rest) = match key.split_once('.') {
        Some((name, rest)) => (name, Some(rest)),
        None => (key, None),
    };
    let value = table.get(name)?;
    match (rest, value.get_ref()) {
        (None, _) => Some(value.span()),
        (Some(rest), DeValue::Table(inner)) => find(inner, rest),
        (Some(_), _) => None,
    }
}

/// The full path of the innermost key whose value covers `span`.
fn path_at(table: &DeTable<'_>, span: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let inner = match value.get_ref() {
            DeValue::Table(inner) => path_at(inner, span),
            _ => None,
        };
        match inner {
            Some(path) => Some(join(name.get_ref(), &path)),
            None => {
                let covers = value.span().start <= span.start && span.end <= value.span().end;
                covers.then(|| name.get_ref().to_string())
            }
        }
    })
}

fn join(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

fn known_in(table: &str) -> String {
    let within = |key: &&String| key.rsplit_once('.').map_or("", |(table, _)| table) == table;
    let names: Vec<&str> = known_keys().iter().filter(within).map(String::as_str).collect();
    names.join(", ")
}

/// Serde's words for what it expected, in those of a user.
fn in_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let expected = match expected {
        "f64" => "a number",
        "u32" | "u64" | "usize" => "a whole number, 0 or more",
        "a sequence" => "a list",
        "path string" => "a path",
        name if name.starts_with("struct ") => "a table",
        other => other,
    };
    format!("{found}, expected {expected}")
}
