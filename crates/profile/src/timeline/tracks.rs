//! The lines of the timeline.

use serde::Serialize;
use trace::schema::Table;
use trace::{Batch, Error, NO_INT, NO_TEXT, Profile};

/// A line of the timeline: a thread, a stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Number of the track, unique in the profile.
    pub track: i64,
    /// Its rank.
    pub rank: i64,
    /// `thread`, `stream`, `counter` or `other`.
    pub kind: String,
    /// Process, as the source writes it.
    pub process: String,
    /// Thread, as the source writes it.
    pub thread: String,
    /// Device of a stream.
    pub device: Option<i64>,
    /// Stream number.
    pub stream: Option<i64>,
    /// Name of the process.
    pub process_name: Option<String>,
    /// Name of the thread or stream.
    pub thread_name: Option<String>,
}

impl Line {
    /// The table of its slices.
    pub fn table(&self) -> Table {
        if self.kind == "stream" { Table::Device } else { Table::Host }
    }
}

/// The lines of a profile's timeline, by number.
pub fn tracks(profile: &Profile) -> Result<Vec<Line>, Error> {
    let columns = ["rank", "track", "kind", "process", "thread", "device", "stream", "process_name", "thread_name"];
    let rows = profile.read(Table::Tracks, &columns)?;
    let text = |column: &str, row: usize| rows.text(rows.texts(column)[row]).to_owned();
    let some_text = |rows: &Batch, column: &str, row: usize| {
        let id = rows.texts(column)[row];
        (id != NO_TEXT).then(|| rows.text(id).to_owned())
    };
    let some = |value: i64| (value != NO_INT).then_some(value);
    let line = |row: usize| Line {
        track: rows.ints("track")[row],
        rank: rows.ints("rank")[row],
        kind: text("kind", row),
        process: text("process", row),
        thread: text("thread", row),
        device: some(rows.ints("device")[row]),
        stream: some(rows.ints("stream")[row]),
        process_name: some_text(&rows, "process_name", row),
        thread_name: some_text(&rows, "thread_name", row),
    };
    let mut lines: Vec<Line> = (0..rows.len()).map(line).collect();
    lines.sort_by_key(|line| line.track);
    Ok(lines)
}
