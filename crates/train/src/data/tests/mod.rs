//! Data files, right and wrong: [`formats`] one by one, then what becomes of their rows ([`rows`]).

use std::fs;

use tempfile::TempDir;

use super::*;
use crate::job::{DataTable, Sources, Task};

mod formats;
mod rows;

/// Encodes a text as its bytes between two special tokens, at most `LONGEST` in all.
struct Bytes;

const START: u32 = 1000;
const END: u32 = 1001;
const LONGEST: usize = 64;

impl Encode for Bytes {
    fn text(&self, text: &str, pair: Option<&str>) -> Result<Encoded, EncodeError> {
        let whole = text.len() + pair.map_or(0, str::len) + 2;
        let first = text.bytes().map(u32::from).take(LONGEST - 2);
        let mut ids: Vec<u32> = std::iter::once(START).chain(first).collect();
        let second_from = ids.len();
        ids.extend(pair.unwrap_or("").bytes().map(u32::from));
        ids.push(END);
        let second_from = if pair.is_some() { second_from } else { ids.len() };
        Ok(Encoded { ids, second_from, words: Vec::new(), truncated: whole > LONGEST })
    }

    fn words(&self, words: &[String]) -> Result<Encoded, EncodeError> {
        let (mut ids, mut of_word) = (vec![START], vec![None]);
        for (index, word) in (0..).zip(words) {
            ids.extend(word.bytes().map(u32::from));
            of_word.extend(word.bytes().map(|_| Some(index)));
        }
        ids.push(END);
        of_word.push(None);
        let second_from = ids.len();
        Ok(Encoded { ids, second_from, words: of_word, truncated: false })
    }
}

/// A folder of data files and the table that reads them.
struct Fixture {
    folder: TempDir,
    table: DataTable,
    task: Task,
}

impl Fixture {
    fn new(task: Task, files: &[(&str, &[u8])]) -> Self {
        let folder = TempDir::new().unwrap();
        for (name, content) in files {
            fs::write(folder.path().join(name), content).unwrap();
        }
        let train = Sources(vec![path_in(&folder, files[0].0)]);
        Self { folder, table: DataTable { train, ..DataTable::default() }, task }
    }

    fn with(mut self, change: impl FnOnce(&mut DataTable)) -> Self {
        change(&mut self.table);
        self
    }

    fn path(&self, name: &str) -> String {
        path_in(&self.folder, name)
    }

    fn load(&self) -> Result<Loaded, String> {
        load_job(&self.table, self.task, 42, None, &Bytes).map_err(|error| self.plain(error))
    }

    fn refusal(&self) -> String {
        self.load().expect_err("data that should be refused")
    }

    /// The message with the folder's name taken out.
    fn plain(&self, error: DataError) -> String {
        error.to_string().replace(&self.path(""), "")
    }
}

fn path_in(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn csv(content: &str) -> Fixture {
    Fixture::new(Task::Classification, &[("a.csv", content.as_bytes())])
}

fn texts(data: &Dataset) -> Vec<String> {
    data.examples()
        .map(|example| {
            let bytes = example.tokens.iter().filter(|&&id| id < 256).map(|&id| id as u8).collect();
            String::from_utf8(bytes).unwrap()
        })
        .collect()
}

fn classes(data: &Dataset) -> Vec<u32> {
    match data.targets() {
        Targets::Classes(classes) => classes.clone(),
        other => panic!("{other:?}"),
    }
}
