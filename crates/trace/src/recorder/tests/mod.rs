mod events;
mod kill;
mod limits;
mod nesting;
mod threads;

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::schema::Table;
use crate::{Batch, Profile};

/// A recording without counters of the host: what a test records is all there is.
fn quiet(path: &Path) -> Options {
    Options { host_counters: None, ..Options::new(path, "test") }
}

/// Records in a new profile and opens it.
fn record(options: Options, work: impl FnOnce(&Recorder)) -> (Profile, Summary) {
    let recorder = Recorder::start(options).unwrap();
    work(&recorder);
    let summary = recorder.finish().unwrap();
    (Profile::open(&summary.path).unwrap(), summary)
}

fn all(profile: &Profile, table: Table) -> Batch {
    let columns: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
    profile.read(table, &columns).unwrap()
}

/// The texts of a column; none for nulls.
fn texts<'b>(batch: &'b Batch, column: &str) -> Vec<Option<&'b str>> {
    batch.texts(column).iter().map(|&id| (id != crate::NO_TEXT).then(|| batch.text(id))).collect()
}

fn some(value: i64) -> Option<i64> {
    (value != crate::NO_INT).then_some(value)
}
