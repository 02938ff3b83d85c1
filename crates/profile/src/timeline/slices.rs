//! The viewport query: what to draw of a track between two times, at most two slices for each pixel and row.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;
use serde::Serialize;
use trace::schema::Table;
use trace::{Batch, Filter, NO_INT, NO_TEXT, Profile, Texts};

use super::group::{Grouper, Item};
use super::tracks::Line;

/// Wider windows than this many pixels are on no screen.
const MAX_PIXELS: u32 = 1 << 16;

/// Why a window cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The profile cannot be read.
    #[error(transparent)]
    Profile(#[from] trace::Error),
    /// No such track.
    #[error("the profile has no track {track}; it has {known}")]
    Track {
        /// The track that was asked for.
        track: i64,
        /// Those that are there, in words.
        known: String,
    },
    /// A window without time.
    #[error("the window ends at {to_ns} ns and starts at {from_ns} ns: it must end after it starts")]
    Window {
        /// Start, ns.
        from_ns: i64,
        /// End, ns.
        to_ns: i64,
    },
    /// A window without pixels, or with more than any screen has.
    #[error("{0} pixels: 1 to 65536 can be drawn")]
    Pixels(u32),
}

/// Slices to draw, on the clock of the track's rank.
#[derive(Clone, Debug, Serialize)]
pub struct Viewport {
    /// The track.
    pub track: i64,
    /// Its rank.
    pub rank: i64,
    /// Start of the window, ns: at or before what was asked for.
    pub from_ns: i64,
    /// End of the window, ns: at or after what was asked for.
    pub to_ns: i64,
    /// Closer slices than this were merged, ns.
    pub pixel_ns: i64,
    /// Slices that are shown, merged ones counted each.
    pub slices: i64,
    /// Names that the slices refer to.
    pub names: Vec<String>,
    /// Rows of the track that show something, from the bottom of the stack.
    pub rows: Vec<Row>,
}

/// A row of a track.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its number, from 0.
    pub depth: i64,
    /// Time covered within the window, ns: exactly that of the recorded slices, at any zoom.
    pub busy: i64,
    /// By start.
    pub slices: Vec<Slice>,
}

/// What to draw as one rectangle: a slice as recorded (`count` = 1), or several merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Slice {
    /// Start of the first slice, ns; may lie before the window.
    pub ts: i64,
    /// From the start of the first to the end of the last, ns; may reach beyond the window.
    pub dur: i64,
    /// Time covered within the window, ns.
    pub busy: i64,
    /// Slices.
    pub count: i64,
    /// Index in [`Viewport::names`] of the name that covers most.
    pub name: usize,
    /// Correlation of a single slice.
    pub correlation: Option<i64>,
}

/// Answers viewport queries on a profile. `P` is `&Profile` or `Arc<Profile>`.
///
/// Far zoom reads the summaries of the `overview` table, which are kept once read; near zoom, and tracks with few slices, read
/// the slices themselves.
pub struct Timeline<P> {
    profile: P,
    tracks: BTreeMap<i64, Line>,
    /// Levels of each track's overview.
    widths: Mutex<FxHashMap<i64, Vec<i64>>>,
    /// Levels that were read, by track and width.
    levels: Mutex<FxHashMap<(i64, i64), Arc<Level>>>,
}

/// A level of a track's overview, by start.
struct Level {
    items: Vec<Item>,
    texts: Texts,
}

impl<P: Deref<Target = Profile>> Timeline<P> {
    /// Reads which tracks there are.
    pub fn open(profile: P) -> Result<Self, trace::Error> {
        let tracks = super::tracks(&profile)?.into_iter().map(|line| (line.track, line)).collect();
        Ok(Self { profile, tracks, widths: Mutex::default(), levels: Mutex::default() })
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The tracks, by number.
    pub fn tracks(&self) -> impl Iterator<Item = &Line> {
        self.tracks.values()
    }

    /// Start of a track's first slice and end of its last, ns; none without slices.
    pub fn extent(&self, track: i64) -> Result<Option<(i64, i64)>, Error> {
        let line = self.line(track)?;
        let filter = Filter { track: Some(track), ..Filter::default() };
        let rows = self.profile.read_where(line.table(), &["ts", "dur"], filter)?;
        let ends = rows.ints("ts").iter().zip(rows.ints("dur")).map(|(ts, dur)| ts.saturating_add(*dur.max(&0)));
        Ok(rows.ints("ts").iter().copied().min().zip(ends.max()))
    }

    fn line(&self, track: i64) -> Result<&Line, Error> {
        self.tracks.get(&track).ok_or_else(|| Error::Track { track, known: self.known() })
    }

    /// What to draw of a track in `[from_ns, to_ns)` on `pixels` pixels. The window is widened to whole pixels.
    pub fn slices(&self, track: i64, from_ns: i64, to_ns: i64, pixels: u32) -> Result<Viewport, Error> {
        let line = self.line(track)?;
        if to_ns <= from_ns {
            return Err(Error::Window { from_ns, to_ns });
        }
        if pixels == 0 || pixels > MAX_PIXELS {
            return Err(Error::Pixels(pixels));
        }
        // Times beyond are beyond any clock; within, no sum below overflows.
        let (from, to) = (from_ns.clamp(-(1 << 61), 1 << 61), to_ns.clamp(-(1 << 61) + 1, (1 << 61) + 1));
        let pixel = round_up(to - from, i64::from(pixels)) / i64::from(pixels);

        // Buckets of up to two pixels will do: far fewer slices have to be read then.
        let level = self.widths(track)?.into_iter().rev().find(|&width| width / 2 <= pixel);
        let pixel = round_up(pixel, level.unwrap_or(1));
        let window = (from.div_euclid(pixel) * pixel, round_up(to, pixel));
        let mut grouper = Grouper::new(pixel);
        let mut draw = |item: &Item| {
            if let Some(item) = within(item, window) {
                grouper.push(item);
            }
        };
        Ok(match level {
            Some(width) => {
                let level = self.level(track, width)?;
                level.items.iter().take_while(|item| item.ts < window.1).for_each(&mut draw);
                view(track, line.rank, window, grouper, &level.texts)
            }
            None => {
                let columns = ["ts", "dur", "depth", "name", "correlation"];
                let filter = Filter { track: Some(track), window: Some(window), ..Filter::default() };
                let rows = self.profile.read_where(line.table(), &columns, filter)?;
                let mut slices = slices_of(&rows);
                // A recording is sorted segment by segment, an import as a whole.
                slices.sort_by_key(|slice| slice.ts);
                slices.iter().for_each(&mut draw);
                view(track, line.rank, window, grouper, rows.all_texts())
            }
        })
    }

    /// The levels that summarise a track, rising: none where it has few slices.
    fn widths(&self, track: i64) -> Result<Vec<i64>, trace::Error> {
        if let Some(known) = lock(&self.widths).get(&track) {
            return Ok(known.clone());
        }
        let filter = Filter { track: Some(track), ..Filter::default() };
        let mut widths = self.profile.read_where(Table::Overview, &["width"], filter)?.ints("width").to_vec();
        widths.retain(|&width| width > 0);
        widths.sort_unstable();
        widths.dedup();
        lock(&self.widths).insert(track, widths.clone());
        Ok(widths)
    }

    fn level(&self, track: i64, width: i64) -> Result<Arc<Level>, trace::Error> {
        if let Some(known) = lock(&self.levels).get(&(track, width)) {
            return Ok(known.clone());
        }
        let columns = ["depth", "ts", "dur", "idle", "count", "name", "correlation"];
        let filter = Filter { track: Some(track), width: Some(width), ..Filter::default() };
        let rows = self.profile.read_where(Table::Overview, &columns, filter)?;
        let mut items = slices_of(&rows);
        for ((item, &idle), &count) in items.iter_mut().zip(rows.ints("idle")).zip(rows.ints("count")) {
            item.busy = item.dur.max(0).saturating_sub(idle);
            item.count = count;
        }
        items.sort_by_key(|item| item.ts);
        let level = Arc::new(Level { items, texts: rows.all_texts().clone() });
        lock(&self.levels).insert((track, width), level.clone());
        Ok(level)
    }

    fn known(&self) -> String {
        match (self.tracks.keys().next(), self.tracks.keys().next_back()) {
            (Some(first), Some(last)) => format!("{} tracks, numbered {first} to {last}", self.tracks.len()),
            _ => "none".into(),
        }
    }
}

/// The slices of a batch.
fn slices_of(rows: &Batch) -> Vec<Item> {
    let int = |name: &str| rows.ints(name);
    let (ts, dur, depth, correlation) = (int("ts"), int("dur"), int("depth"), int("correlation"));
    let name = rows.texts("name");
    let slice = |row: usize| {
        let correlation = (correlation[row] != NO_INT).then_some(correlation[row]);
        Item::slice(ts[row], dur[row], depth[row], name[row], correlation)
    };
    (0..rows.len()).map(slice).collect()
}

/// What of an item lies within a window whose borders are borders of the item's level; nothing where it only touches it.
fn within(item: &Item, (from, to): (i64, i64)) -> Option<Item> {
    let end = item.end();
    let busy = if item.count == 1 {
        end.min(to).saturating_sub(item.ts.max(from)).max(0)
    } else if item.ts < from {
        // Only the last slice reaches beyond the border of its bucket, and it covers all from there to the end.
        end.min(to).saturating_sub(from).max(0)
    } else {
        item.busy.saturating_sub(end.saturating_sub(to).max(0)).max(0)
    };
    let shown = item.ts < to && (item.ts >= from || busy > 0);
    shown.then_some(Item { busy, ..*item })
}

fn view(track: i64, rank: i64, window: (i64, i64), grouper: Grouper, texts: &Texts) -> Viewport {
    let pixel_ns = grouper.width();
    let mut names: Vec<String> = Vec::new();
    let mut places: FxHashMap<u32, usize> = FxHashMap::default();
    let mut rows: BTreeMap<i64, Row> = BTreeMap::new();
    let mut slices = 0i64;
    for item in grouper.finish() {
        let name = *places.entry(item.name).or_insert_with(|| {
            names.push(if item.name == NO_TEXT { String::new() } else { texts.get(item.name).to_owned() });
            names.len() - 1
        });
        let row = rows.entry(item.depth).or_insert_with(|| Row { depth: item.depth, busy: 0, slices: Vec::new() });
        row.busy = row.busy.saturating_add(item.busy);
        slices = slices.saturating_add(item.count);
        let Item { ts, dur, busy, count, correlation, .. } = item;
        row.slices.push(Slice { ts, dur, busy, count, name, correlation });
    }
    let rows = rows.into_values().collect();
    Viewport { track, rank, from_ns: window.0, to_ns: window.1, pixel_ns, slices, names, rows }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next multiple of `step` at or above `value`.
fn round_up(value: i64, step: i64) -> i64 {
    value.div_euclid(step) * step + if value.rem_euclid(step) == 0 { 0 } else { step }
}
