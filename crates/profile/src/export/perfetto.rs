//! A Perfetto trace: for ui.perfetto.dev and its SQL.
//!
//! All ranks are on the clock of the first one (`ts + ranks.offset_ns`). Every slice is there: slices that overlap partly get
//! lines of their own, and those whose times the profiler lost lie at the start of their rank on a line of their own. A launch
//! and what it started share a flow.

mod lanes;
mod packets;
mod proto;
mod tracks;

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{Batch, Filter, NO_INT, Profile};

use self::lanes::Lanes;
use self::packets::{Details, Packets};
use self::tracks::Tracks;
use super::output::Output;
use super::rows::{self, Ints, Values};
use super::{Error, Summary};
use crate::{Flag, HostKind};

#[cfg(test)]
pub(super) use proto::{EventType, Trace};

pub(super) fn export(profile: &Profile, out: &Path, overwrite: bool) -> Result<Summary, Error> {
    let mut packets = Packets::new(Output::create(out, overwrite)?);
    let clocks = Clocks::read(profile)?;
    let tracks = Tracks::describe(profile, &mut packets)?;
    let mut flowing = BTreeSet::new();
    for batch in profile.chunks(Table::Flows, &["rank", "track"], Filter::default())? {
        let batch = batch?;
        flowing.extend(batch.ints("rank").iter().copied().zip(batch.ints("track").iter().copied()));
    }
    let mut export = Export {
        profile,
        clocks,
        tracks,
        packets,
        lanes: Lanes::default(),
        place: None,
        flowing,
        arrows: Arrows::default(),
    };
    rows::sorted(profile, Table::Host, None, |batch| export.host(batch))?;
    rows::sorted(profile, Table::Device, None, |batch| export.device(batch))?;
    export.enter(None)?;
    for (rank, track) in std::mem::take(&mut export.flowing) {
        export.flowing.insert((rank, track));
        export.enter(Some((rank, track)))?;
    }
    export.enter(None)?;
    for table in [Table::Memory, Table::Instants, Table::Counters] {
        for batch in profile.chunks(table, &columns(table), Filter::default())? {
            let batch = batch?;
            match table {
                Table::Memory => export.memory(&batch)?,
                Table::Instants => export.instants(&batch)?,
                _ => export.counters(&batch)?,
            }
        }
    }
    let events = export.packets.events;
    Ok(Summary { files: vec![export.packets.finish()?], events })
}

fn columns(table: Table) -> Vec<&'static str> {
    table.columns().iter().map(|column| column.name).collect()
}

struct Export<'p> {
    profile: &'p Profile,
    clocks: Clocks,
    tracks: Tracks,
    packets: Packets,
    lanes: Lanes,
    /// Rank and track of the slices that come.
    place: Option<(i64, i64)>,
    /// Tracks with arrow ends that were not drawn yet.
    flowing: BTreeSet<(i64, i64)>,
    arrows: Arrows,
}

/// A slice as it lies in the profile.
struct Slice<'r> {
    ts: i64,
    dur: i64,
    flag: Option<&'r str>,
    category: &'r str,
    name: &'r str,
}

impl Export<'_> {
    /// Slices of another track follow: what arrow ends no slice took are drawn as instants.
    fn enter(&mut self, place: Option<(i64, i64)>) -> Result<(), Error> {
        if self.place == place {
            return Ok(());
        }
        let rest = std::mem::take(&mut self.arrows);
        if let Some((rank, track)) = self.place {
            for arrow in &rest.ends[rest.next..] {
                self.stray(rank, track, arrow)?;
            }
        }
        self.place = place;
        self.lanes.clear();
        if let Some((rank, track)) = place.filter(|place| self.flowing.remove(place)) {
            self.arrows = Arrows::read(self.profile, rank, track)?;
        }
        Ok(())
    }

    fn stray(&mut self, rank: i64, track: i64, arrow: &Arrow) -> Result<(), Error> {
        let line = self.tracks.of(rank, track, &mut self.packets)?;
        let mut details = Details::default();
        details.flow(arrow.id);
        self.packets.instant(line, self.clocks.common(rank, arrow.ts), ("flow", &arrow.name), details)
    }

    fn slice(&mut self, slice: &Slice<'_>, mut details: Details) -> Result<(), Error> {
        let Some((rank, track)) = self.place else { return Ok(()) };
        details.text("flag", slice.flag);
        let labels = (slice.category, slice.name);
        let flag = slice.flag.map_or(Flag::None, Flag::of);
        if flag == Flag::LostTimestamp {
            let line = self.tracks.untrusted(rank, &mut self.packets)?;
            let start = self.clocks.start(rank);
            return self.packets.slice(line, (start, start), labels, details);
        }
        while let Some(arrow) = self.arrows.until(slice.ts) {
            if arrow.ts == slice.ts {
                details.flow(arrow.id);
            } else {
                self.stray(rank, track, &arrow)?;
            }
        }
        if slice.dur < 0 {
            details.int("duration", Some(slice.dur));
        }
        let end = slice.ts.saturating_add(slice.dur.max(0));
        let lane = self.lanes.place(slice.ts, end);
        let line = self.tracks.lane(rank, track, lane, &mut self.packets)?;
        let times = (self.clocks.common(rank, slice.ts), self.clocks.common(rank, end));
        self.packets.slice(line, times, labels, details)
    }

    fn host(&mut self, batch: &Batch) -> Result<(), Error> {
        let values = Values::new(batch);
        let (rank, track) = (values.ints("rank"), values.ints("track"));
        let (ts, dur) = (values.ints("ts"), values.ints("dur"));
        let (kind, category, name) = (values.texts("kind"), values.texts("category"), values.texts("name"));
        let (flag, inputs, args) = (values.texts("flag"), values.texts("inputs"), values.texts("args"));
        let numbers = [
            "correlation",
            "external_id",
            "sequence",
            "forward_thread",
            "event_index",
            "record_function",
            "python_id",
            "python_parent",
            "python_module",
        ]
        .map(|name| (name, values.ints(name)));
        let implied = values.ints("implied");
        for row in 0..batch.len() {
            self.enter(Some((rank.at(row), track.at(row))))?;
            let mut details = Details::default();
            for (name, numbers) in &numbers {
                details.int(name, numbers.get(row));
            }
            implied_id(&mut details, &implied, &numbers[0].1, row);
            details.json("inputs", inputs.get(row));
            details.json("args", args.get(row));
            if let Some(correlation) = numbers[0].1.get(row)
                && matches!(HostKind::of(kind.at(row)), HostKind::Runtime | HostKind::Driver)
            {
                details.flow(launch(rank.at(row), correlation));
            }
            let slice = Slice {
                ts: ts.at(row),
                dur: dur.at(row),
                flag: flag.get(row),
                category: category.get(row).unwrap_or(kind.at(row)),
                name: name.at(row),
            };
            self.slice(&slice, details)?;
        }
        Ok(())
    }

    fn device(&mut self, batch: &Batch) -> Result<(), Error> {
        let values = Values::new(batch);
        let (rank, track) = (values.ints("rank"), values.ints("track"));
        let (ts, dur) = (values.ints("ts"), values.ints("dur"));
        let (kind, category, name) = (values.texts("kind"), values.texts("category"), values.texts("name"));
        let (flag, args, bandwidth) = (values.texts("flag"), values.texts("args"), values.floats("bandwidth"));
        let numbers = ["correlation", "external_id", "device", "stream", "bytes", "sequence"]
            .map(|name| (name, values.ints(name)));
        let texts = ["group", "dtype"].map(|name| (name, values.texts(name)));
        let implied = values.ints("implied");
        for row in 0..batch.len() {
            self.enter(Some((rank.at(row), track.at(row))))?;
            let mut details = Details::default();
            for (name, numbers) in &numbers {
                details.int(name, numbers.get(row));
            }
            implied_id(&mut details, &implied, &numbers[0].1, row);
            details.float("bandwidth", bandwidth.at(row));
            for (name, texts) in &texts {
                details.text(name, texts.get(row));
            }
            details.json("args", args.get(row));
            if let Some(correlation) = numbers[0].1.get(row) {
                details.flow(launch(rank.at(row), correlation));
            }
            let slice = Slice {
                ts: ts.at(row),
                dur: dur.at(row),
                flag: flag.get(row),
                category: category.get(row).unwrap_or(kind.at(row)),
                name: name.at(row),
            };
            self.slice(&slice, details)?;
        }
        Ok(())
    }

    fn memory(&mut self, batch: &Batch) -> Result<(), Error> {
        let values = Values::new(batch);
        let (rank, track, ts) = (values.ints("rank"), values.ints("track"), values.ints("ts"));
        let (name, args) = (values.texts("name"), values.texts("args"));
        let numbers = ["address", "bytes", "allocated", "reserved", "device_type", "device", "event_index"]
            .map(|name| (name, values.ints(name)));
        for row in 0..batch.len() {
            let mut details = Details::default();
            for (name, numbers) in &numbers {
                details.int(name, numbers.get(row));
            }
            details.json("args", args.get(row));
            let line = self.tracks.of(rank.at(row), track.at(row), &mut self.packets)?;
            let ts = self.clocks.common(rank.at(row), ts.at(row));
            self.packets.instant(line, ts, ("memory", name.at(row)), details)?;
        }
        Ok(())
    }

    fn instants(&mut self, batch: &Batch) -> Result<(), Error> {
        let values = Values::new(batch);
        let (rank, track, ts) = (values.ints("rank"), values.ints("track"), values.ints("ts"));
        let (name, category) = (values.texts("name"), values.texts("category"));
        let (scope, args) = (values.texts("scope"), values.texts("args"));
        for row in 0..batch.len() {
            let mut details = Details::default();
            details.text("scope", scope.get(row));
            details.json("args", args.get(row));
            let line = self.tracks.of(rank.at(row), track.at(row), &mut self.packets)?;
            let ts = self.clocks.common(rank.at(row), ts.at(row));
            self.packets.instant(line, ts, (category.at(row), name.at(row)), details)?;
        }
        Ok(())
    }

    fn counters(&mut self, batch: &Batch) -> Result<(), Error> {
        let values = Values::new(batch);
        let (rank, track, ts) = (values.ints("rank"), values.ints("track"), values.ints("ts"));
        let (name, series, unit) = (values.texts("name"), values.texts("series"), values.texts("unit"));
        let value = values.floats("value");
        for row in 0..batch.len() {
            let place = (rank.at(row), track.at(row));
            let line = self.tracks.counter(place, (name.at(row), series.at(row)), unit.get(row), &mut self.packets)?;
            let ts = self.clocks.common(rank.at(row), ts.at(row));
            self.packets.counter(line, ts, value.at(row))?;
        }
        Ok(())
    }
}

/// How times of ranks become times of the trace.
struct Clocks {
    /// Offset and earliest start of each rank.
    ranks: FxHashMap<i64, (i64, i64)>,
    /// Added to all times, so that none is negative.
    shift: i128,
}

impl Clocks {
    fn read(profile: &Profile) -> Result<Self, Error> {
        let rows = profile.read(Table::Ranks, &["rank", "offset_ns", "first_ns"])?;
        let (rank, offset, first) = (rows.ints("rank"), rows.ints("offset_ns"), rows.ints("first_ns"));
        let mut ranks = FxHashMap::default();
        for row in 0..rows.len() {
            let first = Some(first[row]).filter(|&first| first != NO_INT).unwrap_or(0);
            ranks.insert(rank[row], (offset[row], first));
        }
        let earliest = ranks.values().map(|&(offset, first)| i128::from(offset) + i128::from(first)).min();
        Ok(Self { ranks, shift: -earliest.unwrap_or(0).min(0) })
    }

    /// A time of a rank on the trace's clock, which has no negative times and ends at 2^63 ns.
    fn common(&self, rank: i64, ts: i64) -> u64 {
        let offset = self.ranks.get(&rank).map_or(0, |&(offset, _)| offset);
        (i128::from(ts) + i128::from(offset) + self.shift).clamp(0, i64::MAX.into()) as u64
    }

    fn start(&self, rank: i64) -> u64 {
        self.common(rank, self.ranks.get(&rank).map_or(0, |&(_, first)| first))
    }
}

/// Arrow ends of one track by time.
#[derive(Default)]
struct Arrows {
    ends: Vec<Arrow>,
    next: usize,
}

#[derive(Clone)]
struct Arrow {
    ts: i64,
    id: u64,
    name: String,
}

impl Arrows {
    fn read(profile: &Profile, rank: i64, track: i64) -> Result<Self, Error> {
        let filter = Filter { rank: Some(rank), track: Some(track), ..Filter::default() };
        let batch = profile.read_where(Table::Flows, &["ts", "id", "id_text", "category", "name"], filter)?;
        let values = Values::new(&batch);
        let (ts, id) = (values.ints("ts"), values.ints("id"));
        let (id_text, category, name) = (values.texts("id_text"), values.texts("category"), values.texts("name"));
        let end = |row: usize| Arrow {
            ts: ts.at(row),
            id: hash(&(rank, category.get(row), id.get(row), id_text.get(row))),
            name: name.at(row).to_owned(),
        };
        let mut ends: Vec<Arrow> = (0..batch.len()).map(end).collect();
        ends.sort_by_key(|arrow| arrow.ts);
        Ok(Self { ends, next: 0 })
    }

    /// The next arrow end that is not after this time.
    fn until(&mut self, ts: i64) -> Option<Arrow> {
        let arrow = self.ends.get(self.next).filter(|arrow| arrow.ts <= ts)?.clone();
        self.next += 1;
        Some(arrow)
    }
}

/// The external id where it repeats the correlation (bit 1 of the column `implied`).
fn implied_id(details: &mut Details, implied: &Ints<'_>, correlation: &Ints<'_>, row: usize) {
    if implied.get(row).is_some_and(|bits| bits & 1 != 0) {
        details.int("external_id", correlation.get(row));
    }
}

/// The flow of a launch.
fn launch(rank: i64, correlation: i64) -> u64 {
    hash(&(rank, "launch", correlation))
}

/// Numbers of flows are global in the trace, so they are made of everything that tells two of them apart.
fn hash(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
