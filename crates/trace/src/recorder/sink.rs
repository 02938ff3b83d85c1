//! Where segments go.
//!
//! A segment a second would make files of a few rows, each as large as its footer. So the rows of small segments are kept in
//! memory for a while, and [`FAN`] of them become one: the new file is named in the manifest in their place, and then they are
//! removed. A row is written a few times in all, and a profile has few files whenever its writer is killed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::batch::Batch;
use crate::schema::Table;
use crate::store::{Error, SegmentWriter, Writer};

/// So many segments of a size become one.
const FAN: usize = 8;

/// What the manifest says of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub rank: i64,
    pub devices: u64,
    pub extent: Option<(i64, i64)>,
}

/// Takes segments. Tests put slow and failing disks in its place.
pub(super) trait Sink: Send {
    /// Appends a segment: all of it, or none.
    fn write(&mut self, batches: Vec<Batch>, facts: Facts) -> Result<(), Error>;
    /// Declares the profile whole.
    fn finish(self: Box<Self>) -> Result<(), Error>;
}

/// A profile directory.
pub(super) struct Disk {
    writer: Writer,
    /// Rows of a table after which a segment stays as it is.
    whole_rows: usize,
    /// The last segments of every table, which are not whole yet.
    pieces: BTreeMap<Table, Vec<Piece>>,
    /// Files that no manifest names any more. Who opened the profile just now may still want them.
    old: Vec<PathBuf>,
}

struct Piece {
    rows: Batch,
    /// How often segments were put together for it.
    level: u32,
}

impl Disk {
    pub fn new(writer: Writer, whole_rows: usize) -> Self {
        Self { writer, whole_rows, pieces: BTreeMap::new(), old: Vec::new() }
    }

    /// Writes a segment, and whatever it makes whole.
    fn add(&mut self, rows: Batch) -> Result<(), Error> {
        let table = rows.table();
        self.segment(&rows)?;
        let pieces = self.pieces.entry(table).or_default();
        pieces.push(Piece { rows, level: 0 });
        loop {
            let pieces = &self.pieces[&table];
            let kept: usize = pieces.iter().map(|piece| piece.rows.len()).sum();
            if kept >= self.whole_rows {
                self.join(table, 0)?;
                self.pieces.remove(&table);
                return Ok(());
            }
            let level = pieces.last().map_or(0, |piece| piece.level);
            let alike = pieces.iter().rev().take_while(|piece| piece.level == level).count();
            if alike < FAN {
                return Ok(());
            }
            self.join(table, pieces.len() - alike)?;
        }
    }

    /// Puts the pieces of a table from `from` on together.
    fn join(&mut self, table: Table, from: usize) -> Result<(), Error> {
        let Some(pieces) = self.pieces.get_mut(&table) else { return Ok(()) };
        let mut joined = pieces.drain(from..);
        let Some(mut whole) = joined.next() else { return Ok(()) };
        let mut count = 1;
        for piece in joined {
            whole.rows.append(&piece.rows);
            whole.level = whole.level.max(piece.level);
            count += 1;
        }
        if count > 1 {
            whole.level += 1;
            whole.rows = sorted(whole.rows);
            let folder = self.writer.path().join(table.folder());
            let named = self.writer.manifest().tables.entry(table.folder().into()).or_default();
            // The pieces are the last segments of their table.
            let replaced = named.split_off(named.len().saturating_sub(count));
            self.old.extend(replaced.into_iter().map(|segment| folder.join(segment.file)));
            self.segment(&whole.rows)?;
        }
        self.pieces.entry(table).or_default().push(whole);
        Ok(())
    }

    fn segment(&mut self, rows: &Batch) -> Result<(), Error> {
        let mut segment = SegmentWriter::new(rows.table());
        segment.append(rows, &mut self.writer)?;
        segment.close(&mut self.writer)
    }

    fn remove(files: Vec<PathBuf>) {
        // What cannot be removed is not part of the profile all the same.
        files.into_iter().for_each(|file| drop(std::fs::remove_file(file)));
    }
}

/// Rows in the order of segments: by track and time. Tables without times stay as they are.
fn sorted(rows: Batch) -> Batch {
    let table = rows.table();
    if table.column("track").is_none() || table.column("ts").is_none() {
        return rows;
    }
    let (track, ts) = (rows.ints("track"), rows.ints("ts"));
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_by_key(|&row| (track[row as usize], ts[row as usize]));
    rows.gather(&order)
}

impl Sink for Disk {
    fn write(&mut self, batches: Vec<Batch>, facts: Facts) -> Result<(), Error> {
        // Somebody who removes the profile wants no new one that lacks its beginning.
        let path = self.writer.path().join("manifest.json");
        std::fs::metadata(&path).map_err(Error::io(&path))?;
        let manifest = self.writer.manifest();
        manifest.ranks = vec![facts.rank];
        manifest.devices = facts.devices;
        manifest.first_ns = facts.extent.map(|(first, _)| first);
        manifest.last_ns = facts.extent.map(|(_, last)| last);
        let old = std::mem::take(&mut self.old);
        for batch in batches {
            if !batch.is_empty() {
                self.add(batch)?;
            }
        }
        self.writer.publish()?;
        Self::remove(old);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), Error> {
        let tables: Vec<Table> = self.pieces.keys().copied().collect();
        for table in tables {
            self.join(table, 0)?;
        }
        self.writer.finish()?;
        Self::remove(self.old);
        Ok(())
    }
}
