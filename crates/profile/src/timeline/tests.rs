use proptest::prelude::*;
use trace::schema::{HostRow, Table, TrackRow};
use trace::{Batch, Profile, Texts, Writer};

use super::{Error, OverviewBuilder, Timeline, Viewport};

#[derive(Clone, Debug)]
struct Raw {
    ts: i64,
    dur: i64,
    depth: i64,
    name: u32,
}

/// A profile with one thread, and its overview.
fn profile(dir: &std::path::Path, slices: &[Raw], overview: bool) -> Profile {
    let mut texts = Texts::new();
    (0..64).for_each(|i| _ = texts.intern(&format!("op{i}")));
    let mut host = Batch::new(Table::Host);
    let first = slices.first().map_or(0, |slice| slice.ts);
    let last = slices.iter().map(|slice| slice.ts + slice.dur.max(0)).max().unwrap_or(0);
    let mut builder = OverviewBuilder::of_any_size(0, slices.len() as u64, first, last);
    for (at, slice) in slices.iter().enumerate() {
        let correlation = (at % 3 == 0).then_some(at as i64);
        builder.push(slice.ts, slice.dur, slice.depth, slice.name, correlation);
        host.push(&HostRow {
            ts: slice.ts,
            dur: slice.dur,
            depth: slice.depth,
            kind: "operator",
            name: texts.get(slice.name),
            correlation,
            ..HostRow::default()
        });
    }
    let mut tracks = Batch::new(Table::Tracks);
    tracks.push(&TrackRow {
        rank: 0,
        track: 0,
        kind: "thread",
        process: "1",
        thread: "1",
        device: None,
        stream: None,
        process_name: None,
        thread_name: None,
        label: None,
        process_order: None,
        thread_order: None,
    });
    let mut rows = Batch::new(Table::Overview);
    builder.finish(|name| texts.get(name), &mut rows);
    let mut writer = Writer::create(dir, "test").unwrap();
    writer.write_all([&host, &tracks]).unwrap();
    if overview {
        writer.write(&rows).unwrap();
    }
    writer.finish().unwrap();
    Profile::open(dir).unwrap()
}

/// Rows of slices that do not overlap, by start. Several scales of gaps and durations, zero and negative ones among them.
fn any_slices(most: usize) -> impl Strategy<Value = Vec<Raw>> {
    let duration = prop_oneof![Just(0i64), Just(-7), 1..20i64, 1..3_000i64, 1..200_000i64];
    let gap = prop_oneof![Just(0i64), 1..10i64, 1..5_000i64, 1..1_000_000i64];
    let slice = (gap, duration, 0..3i64, 0..64u32);
    (-1_000_000..1_000_000i64, prop::collection::vec(slice, 1..most)).prop_map(|(start, steps)| {
        let mut ends = [start; 3];
        let mut slices: Vec<Raw> = Vec::new();
        for (gap, dur, depth, name) in steps {
            let ts = ends[depth as usize] + gap;
            ends[depth as usize] = ts + dur.max(0);
            slices.push(Raw { ts, dur, depth, name });
        }
        slices.sort_by_key(|slice| slice.ts);
        slices
    })
}

fn check(view: &Viewport, slices: &[Raw], asked: (i64, i64), pixels: u32) -> Result<(), TestCaseError> {
    let window = (view.from_ns, view.to_ns);
    prop_assert!(window.0 <= asked.0 && asked.1 <= window.1);
    prop_assert!((window.1 - window.0) / view.pixel_ns <= i64::from(pixels) + 1);
    for depth in 0..3 {
        let raw: Vec<&Raw> = slices.iter().filter(|slice| slice.depth == depth).collect();
        let busy = |slice: &Raw| ((slice.ts + slice.dur.max(0)).min(window.1) - slice.ts.max(window.0)).max(0);
        let shown = |slice: &&&Raw| slice.ts < window.1 && (slice.ts >= window.0 || busy(slice) > 0);
        let row = view.rows.iter().find(|row| row.depth == depth);
        let drawn = row.map_or(&[][..], |row| &row.slices);
        let sum: i64 = raw.iter().map(|slice| busy(slice)).sum();
        prop_assert_eq!(row.map_or(0, |row| row.busy), sum, "busy of row {}", depth);
        prop_assert_eq!(drawn.iter().map(|slice| slice.busy).sum::<i64>(), sum);
        prop_assert!(drawn.len() as u64 <= 2 * (u64::from(pixels) + 2));
        // Every slice is counted once; one that reaches in from the left may bring the neighbours it was merged with.
        let starts = raw.iter().filter(|slice| (window.0..window.1).contains(&slice.ts)).count() as i64;
        let counted: i64 = drawn.iter().filter(|slice| slice.ts >= window.0).map(|slice| slice.count).sum();
        let before: i64 = drawn.iter().filter(|slice| slice.ts < window.0).map(|slice| slice.count).sum();
        prop_assert!(counted <= starts && starts <= counted + before, "{} {} {}", counted, starts, before);
        prop_assert_eq!(raw.iter().filter(shown).count() == 0, drawn.is_empty());
        for slice in drawn.iter().filter(|slice| slice.count == 1) {
            let name = &view.names[slice.name];
            let recorded =
                |raw: &&&Raw| raw.ts == slice.ts && raw.dur == slice.dur && format!("op{}", raw.name) == *name;
            prop_assert!(raw.iter().find(recorded).is_some(), "{:?} was not recorded", slice);
        }
        // Long slices are never merged.
        for long in raw.iter().filter(shown).filter(|slice| slice.dur >= view.pixel_ns) {
            prop_assert!(drawn.iter().any(|slice| slice.count == 1 && slice.ts == long.ts && slice.dur == long.dur));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_window_at_any_zoom_covers_the_busy_time_of_the_slices(
        slices in any_slices(4000),
        overview in any::<bool>(),
        windows in prop::collection::vec((0.0..1.0f64, 0.0..1.0f64, 1..300u32), 1..12),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let profile = profile(dir.path(), &slices, overview);
        let timeline = Timeline::open(&profile).unwrap();
        let first = slices[0].ts;
        let span = (slices.iter().map(|slice| slice.ts + slice.dur.max(0)).max().unwrap() - first).max(1);
        for (start, size, pixels) in windows {
            let from = first + (start * span as f64) as i64;
            let to = from + ((size.powi(4) * span as f64) as i64).max(1);
            let view = timeline.slices(0, from, to, pixels).unwrap();
            check(&view, &slices, (from, to), pixels)?;
        }
        let all = timeline.slices(0, first, first + span, 100).unwrap();
        check(&all, &slices, (first, first + span), 100)?;
    }
}

#[test]
fn an_overview_is_used_for_far_zoom_and_smaller_than_the_track() {
    let slices: Vec<Raw> =
        (0..200_000).map(|i| Raw { ts: i * 1000, dur: 600, depth: 0, name: (i % 5) as u32 }).collect();
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(dir.path(), &slices, true);
    let rows = profile.manifest().rows(Table::Overview);
    assert!((4000..50_000).contains(&rows), "{rows}");
    let view = Timeline::open(&profile).unwrap().slices(0, 0, 200_000_000, 1000).unwrap();
    assert_eq!(view.rows[0].busy, 200_000 * 600);
    assert_eq!(view.slices, 200_000);
    assert!(view.rows[0].slices.len() <= 2002);
}

#[test]
fn a_track_with_few_slices_has_no_overview() {
    let mut builder = OverviewBuilder::new(0, OverviewBuilder::MIN_SLICES, 0, 1 << 40);
    (0..1 << 16).for_each(|i| builder.push(i << 20, 5, 0, 0, None));
    let mut rows = Batch::new(Table::Overview);
    builder.finish(|_| "x", &mut rows);
    assert!(rows.is_empty());
}

#[test]
fn what_cannot_be_drawn_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let profile = profile(dir.path(), &[Raw { ts: 5, dur: 5, depth: 0, name: 0 }], false);
    let timeline = Timeline::open(&profile).unwrap();
    let error = timeline.slices(7, 0, 10, 100).unwrap_err();
    assert_eq!(error.to_string(), "the profile has no track 7; it has 1 tracks, numbered 0 to 0");
    assert!(matches!(timeline.slices(0, 10, 10, 100), Err(Error::Window { .. })));
    assert!(matches!(timeline.slices(0, 0, 10, 0), Err(Error::Pixels(0))));
    let everything = timeline.slices(0, i64::MIN, i64::MAX, 1600).unwrap();
    assert_eq!(everything.rows[0].busy, 5);
}
