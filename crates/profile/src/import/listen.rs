//! What the merge finds out while slices pass by: extents, overlaps, overviews.

use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{Batch, SegmentWriter, Texts, Writer};

use super::Error;
use super::diagnostics::{Anomaly, Diagnostics};
use super::merge::{Listener, Place, Slice};
use crate::timeline::OverviewBuilder;
use crate::{Class, DeviceKind};

/// Rows of overviews that are written at a time.
const BATCH: usize = 1 << 16;

/// The extent of a rank's slices, on its own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub first: i64,
    pub last: i64,
}

/// Listens to the slices of all tracks.
pub(super) struct Watch {
    /// By rank.
    pub extents: FxHashMap<i64, Extent>,
    /// By rank.
    pub diagnostics: FxHashMap<i64, Diagnostics>,
    /// Whether tracks are streams of devices.
    pub device: bool,
    overviews: SegmentWriter,
    rows: Batch,
    current: Option<Current>,
}

/// The track whose slices pass by.
struct Current {
    place: Place,
    overview: Option<(OverviewBuilder, Texts)>,
    total: i128,
    first: i64,
    last: i64,
}

impl Watch {
    pub fn new() -> Self {
        Self {
            extents: FxHashMap::default(),
            diagnostics: FxHashMap::default(),
            device: false,
            overviews: SegmentWriter::new(Table::Overview),
            rows: Batch::new(Table::Overview),
            current: None,
        }
    }

    /// Ends the last track and writes what is left of the overviews.
    pub fn finish(mut self, writer: &mut Writer) -> Result<(Extents, RankDiagnostics), Error> {
        self.end_track(writer)?;
        self.flush(writer)?;
        self.overviews.close(writer)?;
        Ok((self.extents, self.diagnostics))
    }

    fn flush(&mut self, writer: &mut Writer) -> Result<(), Error> {
        self.overviews.append(&self.rows, writer)?;
        self.rows.clear();
        Ok(())
    }

    /// Ends the track that passes by.
    pub fn end_track(&mut self, writer: &mut Writer) -> Result<(), Error> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let span = i128::from(current.last) - i128::from(current.first);
        if self.device && current.total > span && current.last > current.first {
            let example = || format!("track {}: {} ns in {} ns", current.place.track, current.total, span);
            self.diagnostics.entry(current.place.rank).or_default().count(Anomaly::SumExceedsSpan, example, None);
        }
        if let Some((overview, texts)) = current.overview {
            overview.finish(|name| texts.get(name), &mut self.rows);
            if self.rows.len() >= BATCH {
                self.flush(writer)?;
            }
        }
        Ok(())
    }
}

/// Extents by rank.
pub(super) type Extents = FxHashMap<i64, Extent>;
/// Diagnostics by rank.
pub(super) type RankDiagnostics = FxHashMap<i64, Diagnostics>;

impl Listener for Watch {
    fn track(&mut self, place: &Place, slices: u64, first: i64, last: i64, writer: &mut Writer) -> Result<(), Error> {
        self.end_track(writer)?;
        let overview = (slices > OverviewBuilder::MIN_SLICES)
            .then(|| (OverviewBuilder::new(place.track, slices, first, last), Texts::new()));
        self.current = Some(Current { place: *place, overview, total: 0, first: i64::MAX, last: i64::MIN });
        Ok(())
    }

    fn slice(&mut self, place: &Place, slice: &Slice<'_>) -> Result<(), Error> {
        let Some(current) = &mut self.current else { return Ok(()) };
        if slice.overlaps && slice.flag.is_empty() {
            let example = || format!("{} at {} ns", (slice.name)(), slice.ts);
            self.diagnostics.entry(place.rank).or_default().count(Anomaly::PartialOverlap, example, None);
        }
        if let Some((overview, texts)) = &mut current.overview {
            let name = texts.intern((slice.name)());
            overview.push(slice.ts, slice.dur, slice.depth, name, slice.correlation);
        }
        // Where times are lost there is no place in time.
        if slice.flag.is_empty() {
            let end = slice.ts.saturating_add(slice.dur);
            if self.device && Class::of(DeviceKind::of((slice.kind)()), "") != Class::NotWork {
                current.total += i128::from(slice.dur);
                current.first = current.first.min(slice.ts);
                current.last = current.last.max(end);
            }
            let extent = self.extents.entry(place.rank).or_insert(Extent { first: slice.ts, last: end });
            extent.first = extent.first.min(slice.ts);
            extent.last = extent.last.max(end);
        }
        Ok(())
    }
}
