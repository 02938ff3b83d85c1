//! The small tables: ranks, tracks, devices, and what sources say of themselves.

use trace::schema::{DevicePropertiesRow, MetadataRow, RankRow, Table, TrackRow};
use trace::{Batch, Writer};

use super::Error;
use super::assemble::{RankLine, Source};
use super::gather::{SharedState, TrackKind};
use super::listen::Extents;
use super::merge::Place;

pub(super) fn write_ranks(
    sources: &[Option<Source>],
    ranks: &[RankLine],
    extents: &Extents,
    writer: &mut Writer,
) -> Result<(), Error> {
    let mut rows = Batch::new(Table::Ranks);
    for line in ranks {
        let found = sources.iter().flatten().find_map(|source| {
            let part = source.ranks.iter().position(|assigned| assigned.rank == line.rank)?;
            Some((source, &source.facts.parts[part]))
        });
        let Some((source, part)) = found else { continue };
        let extent = extents.get(&line.rank);
        rows.push(&RankRow {
            rank: line.rank,
            source: &source.file_name(),
            rank_from: line.rank_from,
            world_size: part.world_size,
            host: part.host.as_deref(),
            base_ns: line.base_ns,
            offset_ns: line.offset_ns,
            residual_ns: line.residual_ns,
            matched_collectives: line.matched_collectives,
            matched_by: line.matched_by,
            wall_offset_ns: source.facts.wall_offset_ns,
            resolution_ns: source.facts.resolution_ns,
            first_ns: extent.map(|extent| extent.first),
            last_ns: extent.map(|extent| extent.last),
        });
    }
    Ok(writer.write(&rows)?)
}

pub(super) fn write_tracks(state: &SharedState, places: &[Place], writer: &mut Writer) -> Result<(), Error> {
    let mut rows = Batch::new(Table::Tracks);
    for place in places {
        let info = &state.infos[place.slot as usize];
        let named = |thread: Option<&str>| {
            state.names.get(&(info.source, info.part, info.process.clone(), thread.map(str::to_owned)))
        };
        let (process, thread) = (named(None), named(Some(&info.thread)));
        let annotations = info.kind == TrackKind::StreamAnnotations;
        let thread_name = thread.and_then(|naming| naming.name.clone());
        let thread_name = if annotations {
            Some(format!("{} annotations", thread_name.unwrap_or_else(|| format!("stream {}", info.thread))))
        } else {
            thread_name
        };
        rows.push(&TrackRow {
            rank: place.rank,
            track: place.track,
            kind: info.kind.word(),
            process: &info.process,
            thread: &info.thread,
            device: info.device,
            stream: info.stream,
            process_name: process.and_then(|naming| naming.name.as_deref()),
            thread_name: thread_name.as_deref(),
            label: process.and_then(|naming| naming.label.as_deref()),
            process_order: process.and_then(|naming| naming.order),
            thread_order: thread.and_then(|naming| naming.order),
        });
    }
    Ok(writer.write(&rows)?)
}

pub(super) fn write_facts(sources: &[Option<Source>], writer: &mut Writer) -> Result<(), Error> {
    let mut devices = Batch::new(Table::Devices);
    let mut metadata = Batch::new(Table::Metadata);
    for source in sources.iter().flatten() {
        for (part, assigned) in source.facts.parts.iter().zip(&source.ranks) {
            for device in &part.devices {
                devices.push(&DevicePropertiesRow {
                    rank: assigned.rank,
                    device: device.device,
                    name: &device.name,
                    memory_bytes: device.memory_bytes,
                    multiprocessors: device.multiprocessors,
                    properties: device.properties.as_deref(),
                });
            }
        }
        for (key, value) in &source.facts.metadata {
            let rank = source.ranks.first().map_or(0, |assigned| assigned.rank);
            metadata.push(&MetadataRow { rank, key, value });
        }
    }
    writer.write(&devices)?;
    Ok(writer.write(&metadata)?)
}
