//! From a profile's columns to events in memory.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{Batch, Error, NO_INT, NO_TEXT, Profile, Texts};

use super::{
    Class, Device, DeviceEvent, DeviceKind, Flag, Host, HostEvent, HostKind, RankEvents, RankInfo, Run, Track,
};

impl Run {
    /// Reads the events of all ranks, or of one.
    pub fn load(profile: &Profile, rank: Option<i64>, host: Host) -> Result<Run, Error> {
        let filter = trace::Filter { rank, ..Default::default() };
        let mut texts = Texts::new();
        let mut ranks: BTreeMap<i64, RankEvents> = load_ranks(profile)?
            .into_iter()
            .filter(|info| rank.is_none_or(|rank| rank == info.rank))
            .map(|info| (info.rank, RankEvents { info, device: Vec::new(), host: Vec::new() }))
            .collect();
        // Rows of a rank that no `ranks` row names (a writer killed early) still count.
        let unknown = |rank| move || RankEvents { info: RankInfo::unknown(rank), device: Vec::new(), host: Vec::new() };
        // Texts get their numbers in the order of the rows, whichever thread was first.
        for part in profile.read_mapped(Table::Device, &DEVICE_COLUMNS, filter, |rows| device_events(&rows))? {
            let number = renumber(&part.texts, &mut texts);
            for (rank, mut events) in part.events {
                for event in &mut events {
                    event.name = number(event.name);
                    event.dtype = event.dtype.map(&number);
                    event.group = event.group.map(&number);
                }
                append(&mut ranks.entry(rank).or_insert_with(unknown(rank)).device, &mut events);
            }
        }
        let columns = match host {
            Host::Nothing => &[][..],
            Host::Slices => &HOST_COLUMNS[..HOST_COLUMNS.len() - 1],
            Host::Operands => &HOST_COLUMNS[..],
        };
        if !columns.is_empty() {
            let operands = host == Host::Operands;
            for part in profile.read_mapped(Table::Host, columns, filter, |rows| host_events(&rows, operands))? {
                let number = renumber(&part.texts, &mut texts);
                for (rank, mut events) in part.events {
                    for event in &mut events {
                        event.name = number(event.name);
                        event.inputs = event.inputs.map(&number);
                    }
                    append(&mut ranks.entry(rank).or_insert_with(unknown(rank)).host, &mut events);
                }
            }
        }
        // An import is sorted as it is; a recording is, segment by segment.
        for rank in ranks.values_mut() {
            let key = |event: &DeviceEvent| (event.track, event.ts, event.dur.saturating_neg());
            if !rank.device.is_sorted_by_key(key) {
                rank.device.sort_by_key(key);
            }
            let key = |event: &HostEvent| (event.track, event.ts, event.dur.saturating_neg());
            if !rank.host.is_sorted_by_key(key) {
                rank.host.sort_by_key(key);
            }
        }
        let ranks = ranks.into_values().collect();
        Ok(Run { texts, ranks, tracks: load_tracks(profile)?, devices: load_devices(profile)? })
    }
}

impl RankInfo {
    fn unknown(rank: i64) -> Self {
        RankInfo {
            rank,
            source: String::new(),
            base_ns: 0,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            resolution_ns: 1,
            world_size: None,
            host: None,
        }
    }
}

const DEVICE_COLUMNS: [&str; 16] = [
    "rank",
    "track",
    "device",
    "stream",
    "ts",
    "dur",
    "kind",
    "name",
    "correlation",
    "external_id",
    "bytes",
    "bandwidth",
    "group",
    "sequence",
    "dtype",
    "flag",
];

/// The last one only where operands are wanted.
const HOST_COLUMNS: [&str; 11] =
    ["rank", "track", "ts", "dur", "depth", "kind", "name", "correlation", "external_id", "flag", "inputs"];

/// The slices of a batch, by runs of equal ranks; texts are numbered as in `texts`.
struct Part<T> {
    events: Vec<(i64, Vec<T>)>,
    texts: Texts,
}

fn device_events(rows: &Batch) -> Part<DeviceEvent> {
    let kinds = lookup(rows, "kind", DeviceKind::of);
    let flags = lookup(rows, "flag", Flag::of);
    let mut classes: FxHashMap<(u32, DeviceKind), Class> = FxHashMap::default();
    let (name, group, dtype) = (rows.texts("name"), rows.texts("group"), rows.texts("dtype"));
    let int = |column: &str| rows.ints(column);
    let (track, device, stream) = (int("track"), int("device"), int("stream"));
    let (ts, dur, correlation, external) = (int("ts"), int("dur"), int("correlation"), int("external_id"));
    let (bytes, sequence, bandwidth) = (int("bytes"), int("sequence"), rows.floats("bandwidth"));
    let events = by_rank(int("rank"), |row| {
        let kind = kinds(row);
        DeviceEvent {
            ts: ts[row],
            dur: dur[row],
            name: name[row],
            kind,
            class: *classes.entry((name[row], kind)).or_insert_with(|| Class::of(kind, rows.text(name[row]))),
            flag: flags(row),
            track: track[row],
            device: device[row],
            stream: stream[row],
            correlation: some(correlation[row]),
            external_id: some(external[row]),
            bytes: some(bytes[row]),
            bandwidth: bandwidth[row],
            dtype: text(dtype[row]),
            group: text(group[row]),
            sequence: some(sequence[row]),
        }
    });
    Part { events, texts: rows.all_texts().clone() }
}

fn host_events(rows: &Batch, operands: bool) -> Part<HostEvent> {
    let kinds = lookup(rows, "kind", HostKind::of);
    let flags = lookup(rows, "flag", Flag::of);
    let name = rows.texts("name");
    let inputs = operands.then(|| rows.texts("inputs"));
    let int = |column: &str| rows.ints(column);
    let (track, depth, ts, dur) = (int("track"), int("depth"), int("ts"), int("dur"));
    let (correlation, external) = (int("correlation"), int("external_id"));
    let events = by_rank(int("rank"), |row| HostEvent {
        ts: ts[row],
        dur: dur[row],
        name: name[row],
        kind: kinds(row),
        flag: flags(row),
        depth: depth[row],
        track: track[row],
        correlation: some(correlation[row]),
        external_id: some(external[row]),
        inputs: inputs.and_then(|inputs| text(inputs[row])),
    });
    Part { events, texts: rows.all_texts().clone() }
}

fn by_rank<T>(ranks: &[i64], mut event: impl FnMut(usize) -> T) -> Vec<(i64, Vec<T>)> {
    let mut from = 0;
    let runs = ranks.chunk_by(|a, b| a == b).map(|run| {
        let events = (from..from + run.len()).map(&mut event).collect();
        from += run.len();
        (run[0], events)
    });
    runs.collect()
}

fn append<T>(all: &mut Vec<T>, more: &mut Vec<T>) {
    if all.is_empty() { std::mem::swap(all, more) } else { all.append(more) }
}

fn some(value: i64) -> Option<i64> {
    (value != NO_INT).then_some(value)
}

fn text(id: u32) -> Option<u32> {
    (id != NO_TEXT).then_some(id)
}

/// Numbers of a part's texts in `texts`.
fn renumber(part: &Texts, texts: &mut Texts) -> impl Fn(u32) -> u32 + use<> {
    let numbers: Vec<u32> = part.iter().map(|text| texts.intern(text)).collect();
    // A name is never missing; a hostile file's may be.
    let unnamed = texts.intern("");
    move |id| if id == NO_TEXT { unnamed } else { numbers[id as usize] }
}

/// What the words of a text column mean, by row.
fn lookup<'a, T: Copy + 'a>(rows: &'a Batch, column: &str, of: impl Fn(&str) -> T) -> impl Fn(usize) -> T + 'a {
    let ids = rows.texts(column);
    let none = of("");
    let mut meanings: Vec<Option<T>> = vec![None; rows.all_texts().len()];
    for &id in ids {
        if id != NO_TEXT && meanings[id as usize].is_none() {
            meanings[id as usize] = Some(of(rows.text(id)));
        }
    }
    move |row| if ids[row] == NO_TEXT { none } else { meanings[ids[row] as usize].unwrap_or(none) }
}

fn optional(rows: &Batch, id: u32) -> Option<String> {
    (id != NO_TEXT).then(|| rows.text(id).to_owned())
}

fn load_ranks(profile: &Profile) -> Result<Vec<RankInfo>, Error> {
    let columns = [
        "rank",
        "source",
        "base_ns",
        "offset_ns",
        "residual_ns",
        "matched_collectives",
        "resolution_ns",
        "world_size",
        "host",
    ];
    let rows = profile.read(Table::Ranks, &columns)?;
    let info = |row: usize| RankInfo {
        rank: rows.ints("rank")[row],
        source: rows.text(rows.texts("source")[row]).to_owned(),
        base_ns: rows.ints("base_ns")[row],
        offset_ns: rows.ints("offset_ns")[row],
        residual_ns: some(rows.ints("residual_ns")[row]),
        matched_collectives: rows.ints("matched_collectives")[row],
        resolution_ns: rows.ints("resolution_ns")[row],
        world_size: some(rows.ints("world_size")[row]),
        host: optional(&rows, rows.texts("host")[row]),
    };
    // A recording may state a rank again: the last word counts.
    let mut ranks: Vec<RankInfo> = Vec::new();
    for info in (0..rows.len()).map(info) {
        match ranks.iter_mut().find(|rank| rank.rank == info.rank) {
            Some(rank) => *rank = info,
            None => ranks.push(info),
        }
    }
    Ok(ranks)
}

fn load_tracks(profile: &Profile) -> Result<Vec<Track>, Error> {
    let columns = ["rank", "track", "kind", "process", "thread", "device", "stream", "process_name", "thread_name"];
    let rows = profile.read(Table::Tracks, &columns)?;
    let track = |row: usize| Track {
        track: rows.ints("track")[row],
        rank: rows.ints("rank")[row],
        kind: rows.text(rows.texts("kind")[row]).to_owned(),
        process: rows.text(rows.texts("process")[row]).to_owned(),
        thread: rows.text(rows.texts("thread")[row]).to_owned(),
        device: some(rows.ints("device")[row]),
        stream: some(rows.ints("stream")[row]),
        process_name: optional(&rows, rows.texts("process_name")[row]),
        thread_name: optional(&rows, rows.texts("thread_name")[row]),
    };
    Ok((0..rows.len()).map(track).collect())
}

fn load_devices(profile: &Profile) -> Result<Vec<Device>, Error> {
    let rows = profile.read(Table::Devices, &["rank", "device", "name"])?;
    let device = |row: usize| Device {
        rank: rows.ints("rank")[row],
        device: rows.ints("device")[row],
        name: rows.text(rows.texts("name")[row]).to_owned(),
    };
    Ok((0..rows.len()).map(device).collect())
}
