//! Rows of a table in order, a bounded number at a time.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use trace::schema::{Kind, Table};
use trace::{Batch, Filter, NO_INT, NO_TEXT, Profile};

use super::Error;

/// Calls `each` with all columns of a table's rows, sorted by rank, track and time, longer slices first.
///
/// An imported profile is sorted as it lies on disk and is read a row group at a time. A recording consists of segments that
/// are sorted one by one: of it, one track at a time is read and sorted. Tables without times come as they are.
pub(super) fn sorted(
    profile: &Profile,
    table: Table,
    rank: Option<i64>,
    mut each: impl FnMut(&Batch) -> Result<(), Error>,
) -> Result<(), Error> {
    let all: Vec<&str> = table.columns().iter().map(|column| column.name).collect();
    let filter = Filter { rank, ..Filter::default() };
    let tracks = match tracks_if_unsorted(profile, table, filter)? {
        None => {
            for batch in profile.chunks(table, &all, filter)? {
                let batch = batch?;
                if !batch.is_empty() {
                    each(&batch)?;
                }
            }
            return Ok(());
        }
        Some(tracks) => tracks,
    };
    for (rank, track) in tracks {
        let filter = Filter { rank: Some(rank), track: Some(track), ..Filter::default() };
        let batch = profile.read_where(table, &all, filter)?;
        let ts = batch.ints("ts");
        let dur = table.column("dur").map(|_| batch.ints("dur"));
        let depth = table.column("depth").map(|_| batch.ints("depth"));
        let of = |column: Option<&[i64]>, row: u32| column.map_or(0, |values| values[row as usize]);
        let mut order: Vec<u32> = (0..batch.len() as u32).collect();
        order.sort_by_key(|&row| (ts[row as usize], Reverse(of(dur, row)), of(depth, row)));
        each(&batch.gather(&order))?;
    }
    Ok(())
}

/// Ranks and tracks of the rows, unless the rows are in order.
fn tracks_if_unsorted(profile: &Profile, table: Table, filter: Filter) -> Result<Option<BTreeSet<(i64, i64)>>, Error> {
    // Without these a table has no order beyond that of its rows; `overview` has an order of its own.
    if table == Table::Overview || ["track", "ts"].iter().any(|name| table.column(name).is_none()) {
        return Ok(None);
    }
    let slices = table.column("dur").is_some();
    let columns: &[&str] = if slices { &["rank", "track", "ts", "dur"] } else { &["rank", "track", "ts"] };
    let mut tracks = BTreeSet::new();
    let mut last = (i64::MIN, i64::MIN, i64::MIN, Reverse(i64::MAX));
    let mut in_order = true;
    for batch in profile.chunks(table, columns, filter)? {
        let batch = batch?;
        let (rank, track, ts) = (batch.ints("rank"), batch.ints("track"), batch.ints("ts"));
        for row in 0..batch.len() {
            let dur = if slices { batch.ints("dur")[row] } else { 0 };
            let place = (rank[row], track[row], ts[row], Reverse(dur));
            if (place.0, place.1) != (last.0, last.1) || tracks.is_empty() {
                tracks.insert((place.0, place.1));
            }
            in_order &= last <= place;
            last = place;
        }
    }
    Ok((!in_order).then_some(tracks))
}

/// The columns of a batch by name, value by value.
pub(super) struct Values<'b> {
    batch: &'b Batch,
}

/// An integer column.
#[derive(Clone, Copy)]
pub(super) struct Ints<'b>(&'b [i64]);

/// A column of numbers.
#[derive(Clone, Copy)]
pub(super) struct Floats<'b>(&'b [f64]);

/// A text column.
#[derive(Clone, Copy)]
pub(super) struct Words<'b> {
    ids: &'b [u32],
    batch: &'b Batch,
}

impl<'b> Values<'b> {
    pub fn new(batch: &'b Batch) -> Self {
        Self { batch }
    }

    pub fn ints(&self, name: &str) -> Ints<'b> {
        debug_assert!(self.batch.table().columns().iter().any(|spec| spec.name == name && spec.kind == Kind::Int));
        Ints(self.batch.ints(name))
    }

    pub fn floats(&self, name: &str) -> Floats<'b> {
        Floats(self.batch.floats(name))
    }

    pub fn texts(&self, name: &str) -> Words<'b> {
        Words { ids: self.batch.texts(name), batch: self.batch }
    }
}

impl Ints<'_> {
    /// The value where one must be.
    pub fn at(&self, row: usize) -> i64 {
        self.0[row]
    }

    pub fn get(&self, row: usize) -> Option<i64> {
        Some(self.0[row]).filter(|&value| value != NO_INT)
    }
}

impl Floats<'_> {
    /// The value; NaN for none.
    pub fn at(&self, row: usize) -> f64 {
        self.0[row]
    }
}

impl<'b> Words<'b> {
    pub fn get(&self, row: usize) -> Option<&'b str> {
        Some(self.ids[row]).filter(|&id| id != NO_TEXT).map(|id| self.batch.text(id))
    }

    /// The text; empty for none.
    pub fn at(&self, row: usize) -> &'b str {
        self.get(row).unwrap_or("")
    }
}
