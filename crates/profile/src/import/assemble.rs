//! An import from its beginning to its end.

use std::fs;
use std::path::{Path, PathBuf};

use rustc_hash::FxHashSet;
use serde::Serialize;
use trace::schema::Table;
use trace::{Batch, Manifest, Writer};

use super::align::{Alignment, align};
use super::diagnose::diagnose;
use super::diagnostics::{Anomaly, Diagnostic, Diagnostics};
use super::discover::{Candidate, Format, discover};
use super::facts::{write_facts, write_ranks, write_tracks};
use super::gather::{CollectiveEnd, Gather, Shared, SharedState, TrackInfo, TrackKind};
use super::listen::{Extents, RankDiagnostics, Watch};
use super::merge::{Arrows, Place, Spills, pair, points, slices};
use super::ranks::{Assigned, assign};
use super::{Error, SourceFacts, chrome, nsight, xplane};

/// How to import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the profile; the output's file name without it.
    pub name: Option<String>,
}

/// A file that was imported.
#[derive(Clone, Debug, Serialize)]
pub struct SourceLine {
    /// The file.
    pub path: PathBuf,
    /// `chrome`, `nsight` or `xplane`.
    pub format: &'static str,
    /// Its ranks.
    pub ranks: Vec<i64>,
    /// Events read.
    pub events: u64,
    /// Bytes on disk.
    pub file_bytes: u64,
    /// Bytes after decompression.
    pub bytes: u64,
}

/// A rank of the profile.
#[derive(Clone, Debug, Serialize)]
pub struct RankLine {
    /// The rank.
    pub rank: i64,
    /// How it was found.
    pub rank_from: &'static str,
    /// Added to the source's times, ns.
    pub base_ns: i64,
    /// To be added to bring it onto the clock of the first rank, ns.
    pub offset_ns: i64,
    /// Median of the absolute deviations of matched collective ends, ns.
    pub residual_ns: Option<i64>,
    /// Collectives matched with the first rank.
    pub matched_collectives: i64,
    /// How they were matched.
    pub matched_by: Option<&'static str>,
}

/// What an import did.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The profile.
    pub profile: PathBuf,
    /// The files that were read.
    pub sources: Vec<SourceLine>,
    /// The ranks.
    pub ranks: Vec<RankLine>,
    /// Rows of every table that has any.
    pub rows: Vec<(&'static str, u64)>,
    /// Bytes of the profile.
    pub bytes: u64,
    /// Everything odd, and what was done about it.
    pub diagnostics: Vec<Diagnostic>,
}

/// A file that was read.
pub(super) struct Source {
    pub path: PathBuf,
    pub format: Format,
    pub facts: SourceFacts,
    /// By part.
    pub ranks: Vec<Assigned>,
}

impl Source {
    /// Its name, without the folders that lead to it.
    pub fn file_name(&self) -> String {
        let path = &self.path;
        path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }
}

/// Imports files and folders of files as one profile into a new directory.
///
/// # Errors
/// When a file that was named is no profile, when a folder holds none, when a limit that bounds memory is exceeded, or when the
/// output cannot be written. A directory that this call has made is removed again.
pub fn import(inputs: &[PathBuf], output: &Path, options: &Options) -> Result<Summary, Error> {
    let (candidates, skipped) = discover(inputs)?;
    let existed = output.exists();
    let name = options.name.clone().unwrap_or_else(|| {
        output.file_stem().map_or_else(|| "profile".into(), |stem| stem.to_string_lossy().into_owned())
    });
    let writer = Writer::create(output, &name)?;
    let mut lost = Diagnostics::default();
    for file in &skipped {
        lost.count(Anomaly::ForeignFile, || format!("{}: {}", file.path.display(), file.reason), None);
    }
    let result = fill(&candidates, inputs, writer, lost);
    if result.is_err() {
        // The error of the import is the one to report.
        let _ = if existed { clear(output) } else { fs::remove_dir_all(output) };
    }
    result
}

/// Removes what an import has put into a directory that was there before it.
fn clear(output: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(output)? {
        let path = entry?.path();
        if path.is_dir() { fs::remove_dir_all(&path)? } else { fs::remove_file(&path)? }
    }
    Ok(())
}

fn fill(
    candidates: &[Candidate],
    inputs: &[PathBuf],
    mut writer: Writer,
    mut lost: Diagnostics,
) -> Result<Summary, Error> {
    let spill_dir =
        tempfile::Builder::new().prefix(".runs").tempdir_in(writer.path()).map_err(Error::io(writer.path()))?;
    let shared = Shared::new(spill_dir.path());
    let mut sources: Vec<Option<Source>> = Vec::new();
    for candidate in candidates {
        let facts = match read(candidate, &shared, sources.len() as u32) {
            Ok(facts) => facts,
            // One of many files, and not what it looked like.
            Err(Error::Format { path, reason }) if candidate.found => {
                lost.count(Anomaly::ForeignFile, || format!("{}: {reason}", path.display()), None);
                sources.push(None);
                continue;
            }
            Err(error) => return Err(error),
        };
        sources.push(Some(Source { path: candidate.path.clone(), format: candidate.format, facts, ranks: Vec::new() }));
    }
    if sources.iter().all(Option::is_none) {
        let looked_at: Vec<String> = candidates.iter().take(5).map(|file| file.path.display().to_string()).collect();
        return Err(Error::NothingThere { path: inputs[0].clone(), looked_at: looked_at.join(", ") });
    }
    assign_ranks(&mut sources);

    let mut state = shared.into_state();
    let mut spills = Spills::open(&state.runs)?;
    let places = places(&state.infos, &sources);
    if state.runs.iter().any(|run| run.pending) {
        let pairs = Shared::new(spill_dir.path());
        // Pairs are of all sources: those of a source go to a gather of its own.
        for source in 0..sources.len() as u32 {
            let mine: Vec<Place> =
                places.iter().filter(|place| state.infos[place.slot as usize].source == source).copied().collect();
            let mut gather = Gather::new(&pairs, source);
            pair(&spills, &state.runs, &mine, &mut gather)?;
            gather.finish()?;
        }
        let mut paired = pairs.into_state();
        for (source, diagnostics) in std::mem::take(&mut paired.diagnostics) {
            state.diagnostics.entry(source).or_default().merge(diagnostics);
        }
        state.runs.append(&mut paired.runs);
        spills = Spills::open(&state.runs)?;
    }

    let (extents, watched) = merge_tables(&spills, &state, &places, &mut writer)?;
    let ranks = rank_lines(&sources, &state);
    let mut manifest_extent: Option<(i64, i64)> = None;
    for rank in &ranks {
        if let Some(extent) = extents.get(&rank.rank) {
            let (first, last) =
                (extent.first.saturating_add(rank.offset_ns), extent.last.saturating_add(rank.offset_ns));
            manifest_extent = Some(match manifest_extent {
                Some((from, to)) => (from.min(first), to.max(last)),
                None => (first, last),
            });
        }
    }
    write_ranks(&sources, &ranks, &extents, &mut writer)?;
    write_tracks(&state, &places, &mut writer)?;
    write_facts(&sources, &mut writer)?;
    let device_count = devices(&state.infos, &places);
    let diagnostics = diagnose(&sources, state, &spills, &places, &ranks, watched, lost);
    let mut rows = Batch::new(Table::Diagnostics);
    diagnostics.iter().for_each(|line| line.push(&mut rows));
    writer.write(&rows)?;

    let manifest = writer.manifest();
    manifest.ranks = ranks.iter().map(|rank| rank.rank).collect();
    manifest.devices = device_count;
    (manifest.first_ns, manifest.last_ns) = manifest_extent.unzip();
    // Readers of the finished profile find no leftovers.
    drop(spills);
    spill_dir.close().map_err(Error::io(writer.path()))?;
    let path = writer.path().to_owned();
    let manifest = writer.finish()?;
    Ok(summary(path, &sources, ranks, &manifest, diagnostics))
}

fn read(candidate: &Candidate, shared: &Shared, source: u32) -> Result<SourceFacts, Error> {
    match candidate.format {
        Format::Chrome => chrome::read(&candidate.path, shared, source)?.ok_or_else(|| {
            Error::format(&candidate.path, "JSON, but no trace: neither a list of events nor `traceEvents`")
        }),
        Format::Nsight => nsight::read(&candidate.path, shared, source),
        Format::Xplane => xplane::read(&candidate.path, shared, source),
    }
}

fn assign_ranks(sources: &mut [Option<Source>]) {
    let parts: Vec<_> = sources
        .iter()
        .flatten()
        .flat_map(|source| source.facts.parts.iter().map(|part| (source.path.as_path(), part)))
        .collect();
    let mut assigned = assign(&parts).into_iter();
    for source in sources.iter_mut().flatten() {
        source.ranks = assigned.by_ref().take(source.facts.parts.len()).collect();
    }
}

/// Tracks in the order of the profile: by rank, threads before streams, by process and thread.
fn places(infos: &[TrackInfo], sources: &[Option<Source>]) -> Vec<Place> {
    let mut order: Vec<(u32, &TrackInfo, i64, i64)> = Vec::new();
    for (slot, info) in infos.iter().enumerate() {
        let Some(source) = &sources[info.source as usize] else { continue };
        let Some(rank) = source.ranks.get(info.part as usize) else { continue };
        order.push((slot as u32, info, rank.rank, source.facts.base_ns));
    }
    let number = |text: &str| text.parse::<i64>().unwrap_or(i64::MAX);
    order.sort_by(|(_, a, rank_a, _), (_, b, rank_b, _)| {
        let key = |info: &TrackInfo, rank: i64| {
            (rank, info.kind, number(&info.process), info.device, info.stream, number(&info.thread))
        };
        key(a, *rank_a).cmp(&key(b, *rank_b)).then_with(|| (&a.process, &a.thread).cmp(&(&b.process, &b.thread)))
    });
    order
        .into_iter()
        .enumerate()
        .map(|(track, (slot, _, rank, base_ns))| Place { slot, track: track as i64, rank, base_ns })
        .collect()
}

fn merge_tables(
    spills: &Spills,
    state: &SharedState,
    places: &[Place],
    writer: &mut Writer,
) -> Result<(Extents, RankDiagnostics), Error> {
    let mut arrows = Arrows::new(spills, &state.runs);
    let mut watch = Watch::new();
    for table in [Table::Host, Table::Device] {
        watch.device = table == Table::Device;
        slices(table, spills, &state.runs, places, &mut arrows, writer, &mut watch)?;
        watch.end_track(writer)?;
    }
    arrows.write_rest(places, writer)?;
    for table in [Table::Memory, Table::Counters, Table::Instants] {
        points(table, spills, &state.runs, places, writer)?;
    }
    watch.finish(writer)
}

/// Every rank with its alignment to the first one.
fn rank_lines(sources: &[Option<Source>], state: &SharedState) -> Vec<RankLine> {
    let mut ranks: Vec<(RankLine, Vec<&CollectiveEnd>)> = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        let Some(source) = source else { continue };
        let collectives = state.collectives.get(&(number as u32));
        for (part, assigned) in source.ranks.iter().enumerate() {
            let mine = collectives.into_iter().flatten().filter(|collective| collective.part == part as u32).collect();
            let line = RankLine {
                rank: assigned.rank,
                rank_from: assigned.from,
                base_ns: source.facts.base_ns,
                offset_ns: 0,
                residual_ns: None,
                matched_collectives: 0,
                matched_by: None,
            };
            ranks.push((line, mine));
        }
    }
    ranks.sort_by_key(|(line, _)| line.rank);
    let Some(((first, reference), others)) = ranks.split_first_mut() else { return Vec::new() };
    for (line, mine) in others.iter_mut() {
        let Alignment { offset_ns, residual_ns, matched, by } = align(reference, mine, first.base_ns, line.base_ns);
        (line.offset_ns, line.residual_ns) = (offset_ns, residual_ns);
        (line.matched_collectives, line.matched_by) = (matched, by);
    }
    ranks.into_iter().map(|(line, _)| line).collect()
}

/// Devices with a stream, of all ranks.
fn devices(infos: &[TrackInfo], places: &[Place]) -> u64 {
    let streams = places.iter().map(|place| (place.rank, &infos[place.slot as usize]));
    let devices: FxHashSet<(i64, Option<i64>)> =
        streams.filter(|(_, info)| info.kind == TrackKind::Stream).map(|(rank, info)| (rank, info.device)).collect();
    devices.len() as u64
}

fn summary(
    profile: PathBuf,
    sources: &[Option<Source>],
    ranks: Vec<RankLine>,
    manifest: &Manifest,
    diagnostics: Vec<Diagnostic>,
) -> Summary {
    let line = |source: &Source| SourceLine {
        path: source.path.clone(),
        format: source.format.word(),
        ranks: source.ranks.iter().map(|assigned| assigned.rank).collect(),
        events: source.facts.events,
        file_bytes: fs::metadata(&source.path).map_or(0, |metadata| metadata.len()),
        bytes: source.facts.bytes,
    };
    let rows = Table::ALL.iter().map(|table| (table.folder(), manifest.rows(*table))).filter(|(_, rows)| *rows > 0);
    Summary {
        profile,
        sources: sources.iter().flatten().map(line).collect(),
        ranks,
        rows: rows.collect(),
        bytes: manifest.bytes(),
        diagnostics,
    }
}
