//! The tree of tracks in a Perfetto trace: rank, process, thread or stream, and what hangs below.

use rustc_hash::FxHashMap;
use trace::Profile;
use trace::schema::Table;

use super::packets::Packets;
use super::proto::{CounterDescriptor, EXPLICIT_ORDER, TrackDescriptor};
use crate::export::Error;
use crate::export::rows::Values;

/// Numbers of the tracks in the file. All are plain named tracks with parents: ids of processes and threads of different
/// ranks would clash, and on devices they are none.
pub(super) struct Tracks {
    next: u64,
    ranks: FxHashMap<i64, u64>,
    /// Parents of tracks, by rank and process.
    processes: FxHashMap<(i64, String), u64>,
    /// Line 0 of each track, with its parent and name for further lines.
    lines: FxHashMap<i64, Line>,
    /// Lines above 0, by track.
    more: FxHashMap<(i64, usize), u64>,
    counters: FxHashMap<(i64, String, String), u64>,
    lost: FxHashMap<i64, u64>,
    /// Names that are taken: Perfetto merges siblings of one name.
    taken: FxHashMap<(u64, String), u32>,
}

struct Line {
    uuid: u64,
    parent: u64,
    name: String,
}

impl Tracks {
    /// Describes all tracks of the profile.
    pub fn describe(profile: &Profile, packets: &mut Packets) -> Result<Self, Error> {
        let mut tracks = Tracks {
            next: 0,
            ranks: FxHashMap::default(),
            processes: FxHashMap::default(),
            lines: FxHashMap::default(),
            more: FxHashMap::default(),
            counters: FxHashMap::default(),
            lost: FxHashMap::default(),
            taken: FxHashMap::default(),
        };
        let columns = [
            "rank",
            "track",
            "process",
            "thread",
            "process_name",
            "thread_name",
            "label",
            "process_order",
            "thread_order",
        ];
        for batch in profile.chunks(Table::Tracks, &columns, trace::Filter::default())? {
            let batch = batch?;
            let values = Values::new(&batch);
            let (rank, track) = (values.ints("rank"), values.ints("track"));
            let (process, thread) = (values.texts("process"), values.texts("thread"));
            let (process_name, thread_name) = (values.texts("process_name"), values.texts("thread_name"));
            let label = values.texts("label");
            let (process_order, thread_order) = (values.ints("process_order"), values.ints("thread_order"));
            for row in 0..batch.len() {
                let place = Place { rank: rank.at(row), process: process.at(row), order: process_order.get(row) };
                let mut name = titled(process_name.get(row), process.at(row));
                if let Some(label) = label.get(row) {
                    name = format!("{name} {label}");
                }
                let parent = tracks.process(&place, &name, packets)?;
                let name = titled(thread_name.get(row), thread.at(row));
                tracks.line(track.at(row), parent, name, thread_order.get(row), packets)?;
            }
        }
        Ok(tracks)
    }

    fn uuid(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn rank(&mut self, rank: i64, packets: &mut Packets) -> Result<u64, Error> {
        if let Some(&uuid) = self.ranks.get(&rank) {
            return Ok(uuid);
        }
        let uuid = self.uuid();
        self.ranks.insert(rank, uuid);
        packets.describe(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(format!("rank {rank}")),
            child_ordering: Some(EXPLICIT_ORDER),
            sibling_order_rank: Some(clamp(rank)),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    fn process(&mut self, place: &Place<'_>, name: &str, packets: &mut Packets) -> Result<u64, Error> {
        let key = (place.rank, place.process.to_owned());
        if let Some(&uuid) = self.processes.get(&key) {
            return Ok(uuid);
        }
        let parent = self.rank(place.rank, packets)?;
        let uuid = self.uuid();
        self.processes.insert(key, uuid);
        packets.describe(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(self.unique(parent, name)),
            parent_uuid: Some(parent),
            child_ordering: Some(EXPLICIT_ORDER),
            sibling_order_rank: place.order.map(clamp),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    fn line(
        &mut self,
        track: i64,
        parent: u64,
        name: String,
        order: Option<i64>,
        packets: &mut Packets,
    ) -> Result<u64, Error> {
        if let Some(line) = self.lines.get(&track) {
            return Ok(line.uuid);
        }
        let uuid = self.uuid();
        let name = self.unique(parent, &name);
        packets.describe(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.clone()),
            parent_uuid: Some(parent),
            sibling_order_rank: order.map(clamp),
            ..TrackDescriptor::default()
        })?;
        self.lines.insert(track, Line { uuid, parent, name });
        Ok(uuid)
    }

    /// Line 0 of a track; one that the table `tracks` does not name (its writer was killed) hangs below its rank.
    pub fn of(&mut self, rank: i64, track: i64, packets: &mut Packets) -> Result<u64, Error> {
        if let Some(line) = self.lines.get(&track) {
            return Ok(line.uuid);
        }
        let parent = self.rank(rank, packets)?;
        self.line(track, parent, format!("track {track}"), None, packets)
    }

    /// A line of a track for slices.
    pub fn lane(&mut self, rank: i64, track: i64, lane: usize, packets: &mut Packets) -> Result<u64, Error> {
        let first = self.of(rank, track, packets)?;
        if lane == 0 {
            return Ok(first);
        }
        if let Some(&uuid) = self.more.get(&(track, lane)) {
            return Ok(uuid);
        }
        let uuid = self.uuid();
        self.more.insert((track, lane), uuid);
        let line = &self.lines[&track];
        let (parent, name) = (line.parent, format!("{} (overlapping, {lane})", line.name));
        let name = self.unique(parent, &name);
        packets.describe(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name),
            parent_uuid: Some(parent),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    /// The counter track of a series.
    pub fn counter(
        &mut self,
        (rank, track): (i64, i64),
        (name, series): (&str, &str),
        unit: Option<&str>,
        packets: &mut Packets,
    ) -> Result<u64, Error> {
        let key = (track, name.to_owned(), series.to_owned());
        if let Some(&uuid) = self.counters.get(&key) {
            return Ok(uuid);
        }
        let parent = self.of(rank, track, packets)?;
        let uuid = self.uuid();
        self.counters.insert(key, uuid);
        let name = if series.is_empty() { name.to_owned() } else { format!("{name} {series}") };
        packets.describe(TrackDescriptor {
            uuid: Some(uuid),
            name: Some(self.unique(parent, &name)),
            parent_uuid: Some(parent),
            counter: Some(CounterDescriptor { unit_name: unit.map(str::to_owned) }),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    /// The track for slices of a rank whose times are not to be trusted.
    pub fn untrusted(&mut self, rank: i64, packets: &mut Packets) -> Result<u64, Error> {
        if let Some(&uuid) = self.lost.get(&rank) {
            return Ok(uuid);
        }
        let parent = self.rank(rank, packets)?;
        let uuid = self.uuid();
        self.lost.insert(rank, uuid);
        packets.describe(TrackDescriptor {
            uuid: Some(uuid),
            name: Some("times lost by the profiler".to_owned()),
            parent_uuid: Some(parent),
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    /// The name, numbered if a sibling has it.
    fn unique(&mut self, parent: u64, name: &str) -> String {
        let times = self.taken.entry((parent, name.to_owned())).or_default();
        *times += 1;
        if *times == 1 { name.to_owned() } else { format!("{name} [{times}]") }
    }
}

struct Place<'p> {
    rank: i64,
    process: &'p str,
    order: Option<i64>,
}

/// A name with the id that tells it from others of the same name.
fn titled(name: Option<&str>, id: &str) -> String {
    match name.map(str::trim) {
        None | Some("") if id.is_empty() => "unnamed".to_owned(),
        None | Some("") => id.to_owned(),
        Some(name) if name.contains(id) => name.to_owned(),
        Some(name) => format!("{name} {id}"),
    }
}

fn clamp(order: i64) -> i32 {
    order.clamp(i32::MIN.into(), i32::MAX.into()) as i32
}
