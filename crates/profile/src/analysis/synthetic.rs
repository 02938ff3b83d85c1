//! Small profiles for tests, written and read back.

use trace::schema::{DevicePropertiesRow, DeviceRow, DiagnosticRow, HostRow, RankRow, Row, Table, TrackRow};
use trace::{Batch, Profile, Writer};

use crate::{Host, Run};

/// A slice of a thread: rank 0, everything else unsaid.
pub(super) fn host<'a>(kind: &'a str, name: &'a str, track: i64, ts: i64, dur: i64) -> HostRow<'a> {
    HostRow { track, ts, dur, kind, name, ..HostRow::default() }
}

/// An operator.
pub(super) fn operator(name: &str, track: i64, ts: i64, dur: i64) -> HostRow<'_> {
    host("operator", name, track, ts, dur)
}

/// A call of the runtime.
pub(super) fn call(name: &str, track: i64, ts: i64, dur: i64, correlation: i64) -> HostRow<'_> {
    HostRow { correlation: Some(correlation), ..host("runtime", name, track, ts, dur) }
}

/// A slice of stream `stream` of device 0, on track `100 + stream`.
pub(super) fn device<'a>(
    kind: &'a str,
    name: &'a str,
    stream: i64,
    ts: i64,
    dur: i64,
    correlation: i64,
) -> DeviceRow<'a> {
    DeviceRow {
        track: 100 + stream,
        stream,
        ts,
        dur,
        kind,
        name,
        correlation: Some(correlation),
        ..DeviceRow::default()
    }
}

/// A kernel.
pub(super) fn kernel(name: &str, stream: i64, ts: i64, dur: i64, correlation: i64) -> DeviceRow<'_> {
    device("kernel", name, stream, ts, dur, correlation)
}

/// A profile in the making.
pub(super) struct Synthetic {
    batches: Vec<Batch>,
}

impl std::fmt::Debug for Synthetic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut list = f.debug_list();
        for batch in &self.batches {
            for (at, column) in batch.columns() {
                let name = batch.table().columns()[*at].name;
                match column {
                    trace::Column::Int(values) if ["track", "ts", "dur", "correlation", "stream"].contains(&name) => {
                        list.entry(&(name, values));
                    }
                    _ => {}
                }
            }
        }
        list.finish()
    }
}

impl Synthetic {
    pub fn new() -> Self {
        let tables = [Table::Host, Table::Device, Table::Ranks, Table::Tracks, Table::Devices, Table::Diagnostics];
        Self { batches: tables.map(Batch::new).into() }
    }

    pub fn push<R: Row>(&mut self, row: &R) -> &mut Self {
        self.batches.iter_mut().find(|batch| batch.table() == R::TABLE).expect("a table of these").push(row);
        self
    }

    pub fn push_all<R: Row>(&mut self, rows: impl IntoIterator<Item = R>) -> &mut Self {
        rows.into_iter().for_each(|row| {
            self.push(&row);
        });
        self
    }

    /// A rank with these threads and these streams of device 0; their tracks are the threads' numbers, and 100 + stream.
    pub fn rank(&mut self, rank: i64, threads: &[i64], streams: &[i64]) -> &mut Self {
        self.push(&RankRow {
            rank,
            source: "synthetic",
            rank_from: "order",
            world_size: None,
            host: None,
            base_ns: 0,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            matched_by: None,
            wall_offset_ns: None,
            resolution_ns: 1,
            first_ns: None,
            last_ns: None,
        });
        for &thread in threads {
            self.track(rank, thread, "thread", None);
        }
        for &stream in streams {
            self.track(rank, 100 + stream, "stream", Some(stream));
        }
        self
    }

    /// A track.
    pub fn track(&mut self, rank: i64, track: i64, kind: &str, stream: Option<i64>) -> &mut Self {
        let thread = track.to_string();
        self.push(&TrackRow {
            rank,
            track,
            kind,
            process: "1",
            thread: &thread,
            device: stream.map(|_| 0),
            stream,
            process_name: None,
            thread_name: None,
            label: None,
            process_order: None,
            thread_order: None,
        })
    }

    /// Device 0 of a rank is of this model.
    pub fn model(&mut self, rank: i64, name: &str) -> &mut Self {
        let row =
            DevicePropertiesRow { rank, device: 0, name, memory_bytes: None, multiprocessors: None, properties: None };
        self.push(&row)
    }

    /// An import found this.
    pub fn diagnostic(&mut self, code: &str, count: i64, meaning: &str) -> &mut Self {
        self.push(&DiagnosticRow {
            rank: Some(0),
            source: "synthetic",
            code,
            count,
            meaning,
            example: None,
            example_at: None,
        })
    }

    /// The events, and the profile they were read from (its directory lives as long as the third).
    pub fn load(&self) -> (Run, Profile, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("profile");
        let mut writer = Writer::create(&path, "synthetic").unwrap();
        writer.write_all(&self.batches).unwrap();
        writer.finish().unwrap();
        let profile = Profile::open(&path).unwrap();
        (Run::load(&profile, None, Host::Operands).unwrap(), profile, dir)
    }
}
