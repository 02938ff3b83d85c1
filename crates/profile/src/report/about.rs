//! What a profile is, before any analysis: its name, ranks, size, state, and what was odd in its sources.

use std::fs;

use serde::Serialize;
use trace::schema::Table;
use trace::{Batch, Error, Manifest, NO_INT, NO_TEXT, Profile, State};

/// A profile, as a list of profiles or the head of a report shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub path: String,
    /// When it was created: RFC 3339, UTC.
    pub created: String,
    /// The program that wrote it.
    pub writer: String,
    /// `complete`, `recording`, or `interrupted`: its writer is gone and left what it had written.
    pub state: &'static str,
    /// Ranks.
    pub ranks: Vec<i64>,
    /// Devices of all ranks.
    pub devices: u64,
    /// From the earliest start to the latest end of any slice on the common clock, ns; none without slices.
    pub span_ns: Option<i64>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Slices of threads.
    pub host_slices: u64,
    /// Slices of devices.
    pub device_slices: u64,
}

impl About {
    /// Reads it from the manifest.
    pub fn of(profile: &Profile) -> Self {
        let manifest = profile.manifest();
        About {
            name: manifest.name.clone(),
            path: profile.path().display().to_string(),
            created: manifest.created.clone(),
            writer: manifest.writer.clone(),
            state: state(manifest),
            ranks: manifest.ranks.clone(),
            devices: manifest.devices,
            span_ns: manifest.first_ns.zip(manifest.last_ns).map(|(first, last)| last.saturating_sub(first)),
            bytes: manifest.bytes(),
            host_slices: manifest.rows(Table::Host),
            device_slices: manifest.rows(Table::Device),
        }
    }
}

fn state(manifest: &Manifest) -> &'static str {
    match (manifest.state, manifest.pid) {
        (State::Complete, _) => "complete",
        (State::Recording, Some(pid)) if is_writer(pid, &manifest.created) => "recording",
        (State::Recording, _) => "interrupted",
    }
}

/// Whether the process with this number runs, and ran when the profile was created: numbers are used again.
fn is_writer(pid: u32, created: &str) -> bool {
    /// `USER_HZ`: the unit of times in `/proc`, the same on every Linux.
    const TICKS_PER_S: i64 = 100;
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let started = || -> Option<i64> {
        // The program's name, the second field, stands in brackets and may contain anything.
        let ticks: i64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        let system = fs::read_to_string("/proc/stat").ok()?;
        let boot: i64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
        Some(boot + ticks / TICKS_PER_S)
    };
    let created = chrono::DateTime::parse_from_rfc3339(created).map(|time| time.timestamp());
    match (started(), created) {
        (Some(started), Ok(created)) => started <= created + 2,
        _ => true,
    }
}

/// A rank, its source, and how its clock was aligned.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboutRank {
    /// The rank.
    pub rank: i64,
    /// The file it came from; empty for our own recorder.
    pub source: String,
    /// How the rank was found.
    pub rank_from: String,
    /// Ranks in the job, where the source says.
    pub world_size: Option<i64>,
    /// Host name, where the source says.
    pub host: Option<String>,
    /// Models of its devices, in the order of their numbers.
    pub devices: Vec<String>,
    /// To be added to bring the rank onto the clock of the first, ns.
    pub offset_ns: i64,
    /// Median of the absolute deviations of matched collective ends, ns.
    pub residual_ns: Option<i64>,
    /// Collectives matched with the first rank.
    pub matched_collectives: i64,
    /// How they were matched.
    pub matched_by: Option<String>,
    /// Resolution of the source's times, ns.
    pub resolution_ns: i64,
}

impl AboutRank {
    /// The models of its devices, alike ones counted: `8 × AMD GPU`.
    pub fn models(&self) -> String {
        let alike = self.devices.chunk_by(|a, b| a == b);
        let words = alike.map(|models| match models.len() {
            1 => models[0].clone(),
            devices => format!("{devices} × {}", models[0]),
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// What was odd in a source, or lost while recording.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AboutDiagnostic {
    /// The rank it was found in, if one.
    pub rank: Option<i64>,
    /// The file it was found in.
    pub source: String,
    /// What it is, for machines.
    pub code: String,
    /// How often.
    pub count: i64,
    /// What it is and what was done, for people.
    pub meaning: String,
    /// The first one.
    pub example: Option<String>,
    /// Where the first one is: byte in the uncompressed source.
    pub example_at: Option<i64>,
}

fn some(value: i64) -> Option<i64> {
    (value != NO_INT).then_some(value)
}

fn text(rows: &Batch, column: &str, row: usize) -> String {
    rows.text(rows.texts(column)[row]).to_owned()
}

fn some_text(rows: &Batch, column: &str, row: usize) -> Option<String> {
    (rows.texts(column)[row] != NO_TEXT).then(|| text(rows, column, row))
}

/// The ranks, in rising order.
pub(super) fn ranks(profile: &Profile) -> Result<Vec<AboutRank>, Error> {
    let columns = [
        "rank",
        "source",
        "rank_from",
        "world_size",
        "host",
        "offset_ns",
        "residual_ns",
        "matched_collectives",
        "matched_by",
        "resolution_ns",
    ];
    let rows = profile.read(Table::Ranks, &columns)?;
    let devices = profile.read(Table::Devices, &["rank", "device", "name"])?;
    let models = |rank: i64| {
        let mut found: Vec<(i64, String)> = (0..devices.len())
            .filter(|&row| devices.ints("rank")[row] == rank)
            .map(|row| (devices.ints("device")[row], text(&devices, "name", row)))
            .collect();
        found.sort();
        found.dedup();
        found.into_iter().map(|(_, name)| name).collect()
    };
    let mut ranks: Vec<AboutRank> = Vec::new();
    for row in 0..rows.len() {
        let rank = rows.ints("rank")[row];
        let about = AboutRank {
            rank,
            source: text(&rows, "source", row),
            rank_from: text(&rows, "rank_from", row),
            world_size: some(rows.ints("world_size")[row]),
            host: some_text(&rows, "host", row),
            devices: models(rank),
            offset_ns: rows.ints("offset_ns")[row],
            residual_ns: some(rows.ints("residual_ns")[row]),
            matched_collectives: rows.ints("matched_collectives")[row],
            matched_by: some_text(&rows, "matched_by", row),
            resolution_ns: rows.ints("resolution_ns")[row],
        };
        // A recording may state a rank again: the last word counts.
        match ranks.iter_mut().find(|known| known.rank == rank) {
            Some(known) => *known = about,
            None => ranks.push(about),
        }
    }
    ranks.sort_by_key(|rank| rank.rank);
    Ok(ranks)
}

/// What was odd, most first within a rank.
pub(super) fn diagnostics(profile: &Profile) -> Result<Vec<AboutDiagnostic>, Error> {
    let columns = ["rank", "source", "code", "count", "meaning", "example", "example_at"];
    let rows = profile.read(Table::Diagnostics, &columns)?;
    let diagnostic = |row: usize| AboutDiagnostic {
        rank: some(rows.ints("rank")[row]),
        source: text(&rows, "source", row),
        code: text(&rows, "code", row),
        count: rows.ints("count")[row],
        meaning: text(&rows, "meaning", row),
        example: some_text(&rows, "example", row),
        example_at: some(rows.ints("example_at")[row]),
    };
    Ok((0..rows.len()).map(diagnostic).collect())
}
