//! Merged rows, written a row group at a time.

use rustc_hash::FxHashMap;
use trace::schema::{Kind, Table, implied};
use trace::{Batch, Column, NO_INT, NO_TEXT, SegmentWriter, Texts, Writer};

use super::{Cursor, Place};
use crate::import::Error;
use crate::import::runs::OpenRun;

/// Rows that are written at a time: one row group.
const BATCH: usize = 1 << 17;

/// Rows on their way into a segment.
pub(super) struct Output<'m> {
    table: Table,
    runs: &'m [OpenRun<'m>],
    segment: SegmentWriter,
    cursors: Vec<Cursor>,
    /// Columns that the merge fills.
    rank: Vec<i64>,
    track: Vec<i64>,
    ts: Vec<i64>,
    depth: Vec<i64>,
    flow: Vec<i64>,
    implied: Vec<i64>,
}

/// What the merge works out for a row.
pub(super) struct Worked {
    pub ts: i64,
    pub depth: i64,
    pub flow: i64,
    pub implied: i64,
}

impl<'m> Output<'m> {
    pub fn new(table: Table, runs: &'m [OpenRun<'m>]) -> Self {
        Self {
            table,
            runs,
            segment: SegmentWriter::new(table),
            cursors: Vec::new(),
            rank: Vec::new(),
            track: Vec::new(),
            ts: Vec::new(),
            depth: Vec::new(),
            flow: Vec::new(),
            implied: Vec::new(),
        }
    }

    pub fn push(&mut self, cursor: Cursor, place: Place, worked: Worked, writer: &mut Writer) -> Result<(), Error> {
        self.cursors.push(cursor);
        self.rank.push(place.rank);
        self.track.push(place.track);
        self.ts.push(worked.ts.saturating_add(place.base_ns));
        self.depth.push(worked.depth);
        self.flow.push(worked.flow);
        self.implied.push(worked.implied);
        if self.cursors.len() == BATCH { self.flush(writer) } else { Ok(()) }
    }

    pub fn point(&mut self, cursor: Cursor, place: Place, ts: i64, writer: &mut Writer) -> Result<(), Error> {
        self.push(cursor, place, Worked { ts, depth: 0, flow: NO_INT, implied: NO_INT }, writer)
    }

    fn flush(&mut self, writer: &mut Writer) -> Result<(), Error> {
        if self.cursors.is_empty() {
            return Ok(());
        }
        let said = std::mem::take(&mut self.implied);
        let mut texts = Texts::new();
        let mut known: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut columns = Vec::new();
        for (at, spec) in self.table.columns().iter().enumerate() {
            let column = match spec.name {
                "rank" => Column::Int(std::mem::take(&mut self.rank)),
                "track" => Column::Int(std::mem::take(&mut self.track)),
                "ts" => Column::Int(std::mem::take(&mut self.ts)),
                "depth" => Column::Int(std::mem::take(&mut self.depth)),
                "flow" => Column::Int(std::mem::take(&mut self.flow)),
                "implied" => Column::Int(said.clone()),
                name => match spec.kind {
                    Kind::Int => {
                        let values: Vec<_> = self.runs.iter().map(|run| run.ints(at)).collect();
                        let mut column: Vec<i64> =
                            self.cursors.iter().map(|c| values[c.run as usize].get(c.row as usize)).collect();
                        let bit = match name {
                            "external_id" => implied::SAME_AS_CORRELATION,
                            "python_parent" => implied::ENCLOSING_FRAME,
                            _ => 0,
                        };
                        if bit != 0 {
                            for (value, said) in column.iter_mut().zip(&said) {
                                if *said != NO_INT && said & bit != 0 {
                                    *value = NO_INT;
                                }
                            }
                        }
                        Column::Int(column)
                    }
                    Kind::Float => {
                        let values: Vec<_> = self.runs.iter().map(|run| run.floats(at)).collect();
                        Column::Float(self.cursors.iter().map(|c| values[c.run as usize].get(c.row as usize)).collect())
                    }
                    Kind::Text => {
                        let values: Vec<_> = self.runs.iter().map(|run| run.texts(at)).collect();
                        let number = |c: &Cursor| {
                            let id = values[c.run as usize].get(c.row as usize);
                            if id == NO_TEXT {
                                return NO_TEXT;
                            }
                            *known
                                .entry((c.run, id))
                                .or_insert_with(|| texts.intern(self.runs[c.run as usize].text(id)))
                        };
                        Column::Text(self.cursors.iter().map(number).collect())
                    }
                },
            };
            columns.push(column);
        }
        let batch = Batch::of_all(self.table, columns, texts);
        self.cursors.clear();
        Ok(self.segment.append(&batch, writer)?)
    }

    pub fn close(mut self, writer: &mut Writer) -> Result<(), Error> {
        self.flush(writer)?;
        Ok(self.segment.close(writer)?)
    }
}
