use std::path::Path;

use trace::schema::{
    CounterRow, DevicePropertiesRow, DeviceRow, DiagnosticRow, HostRow, RankRow, Row, Table, TrackRow,
};
use trace::{Batch, Profile, Writer};

use super::super::Report;
use super::page;
use crate::analysis::Options;

const HOSTILE: &str = "</script><script>alert('\"1\"')</script><img src=x onerror=alert(2)>&amp;\u{1}";

fn report(dir: &Path, fill: impl FnOnce(&mut dyn FnMut(Table, &mut dyn FnMut(&mut Batch)))) -> Report {
    let mut writer = Writer::create(dir, HOSTILE).unwrap();
    let mut batches: Vec<Batch> = Vec::new();
    fill(&mut |table, push| {
        let mut batch = Batch::new(table);
        push(&mut batch);
        batches.push(batch);
    });
    writer.write_all(&batches).unwrap();
    writer.manifest().ranks = vec![0];
    writer.finish().unwrap();
    Report::of(&Profile::open(dir).unwrap(), None, &Options::default()).unwrap()
}

fn all<R: Row>(rows: Vec<R>) -> impl FnMut(&mut Batch) {
    move |batch| rows.iter().for_each(|row| batch.push(row))
}

fn device(ts: i64, dur: i64, kind: &'static str, name: &'static str) -> DeviceRow<'static> {
    DeviceRow {
        track: 1,
        stream: 7,
        ts,
        dur,
        kind,
        name,
        correlation: Some(ts),
        bytes: Some(0),
        ..DeviceRow::default()
    }
}

fn host(ts: i64, dur: i64, kind: &'static str, name: &'static str) -> HostRow<'static> {
    HostRow { ts, dur, kind, name, correlation: Some(ts + 10), ..HostRow::default() }
}

fn track(track: i64, kind: &'static str) -> TrackRow<'static> {
    TrackRow {
        rank: 0,
        track,
        kind,
        process: HOSTILE,
        thread: HOSTILE,
        device: Some(0),
        stream: Some(7),
        process_name: Some(HOSTILE),
        thread_name: Some(HOSTILE),
        label: None,
        process_order: None,
        thread_order: None,
    }
}

/// Everything that a browser would act on, or that is no number.
fn check(html: &str) {
    for bad in [
        "<img",
        "alert('",
        "onerror=alert(2)>",
        "NaN",
        "inf%",
        "http://",
        "https://",
        "src=\"",
        "url(",
        "@import",
        "\u{1}",
    ] {
        assert!(!html.contains(bad), "the page has {bad:?}");
    }
    assert_eq!(html.matches("<script").count(), 1);
    for tag in ["section", "table", "svg", "details", "div", "span"] {
        let (opened, closed) = (html.matches(&format!("<{tag}")).count(), html.matches(&format!("</{tag}>")).count());
        assert_eq!(opened, closed, "{tag}");
    }
    // Every link within the page leads somewhere.
    for link in html.split("href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert!(html.contains(&format!("id=\"{id}\"")), "nothing is named {id}");
    }
}

#[test]
fn hostile_names_stay_text() {
    let dir = tempfile::tempdir().unwrap();
    let report = report(&dir.path().join("p"), |table| {
        let kernels =
            [(10, 5, "kernel"), (20, 0, "kernel"), (30, 4, "memcpy"), (40, 9, "memset"), (60, 3, "annotation")];
        table(Table::Device, &mut all(kernels.map(|(ts, dur, kind)| device(ts, dur, kind, HOSTILE)).into()));
        let calls =
            [(0, 3, "runtime"), (5, 50, "operator"), (10, 2, "runtime"), (70, 9, "annotation"), (80, 0, "annotation")];
        table(Table::Host, &mut all(calls.map(|(ts, dur, kind)| host(ts, dur, kind, HOSTILE)).into()));
        table(Table::Host, &mut all((0..20).map(|i| host(100 + i, 1, "annotation", "step_1")).collect()));
        table(Table::Tracks, &mut all(vec![track(0, "thread"), track(1, "stream")]));
        let rank = RankRow {
            rank: 0,
            source: HOSTILE,
            rank_from: HOSTILE,
            world_size: None,
            host: Some(HOSTILE),
            base_ns: 0,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            matched_by: None,
            wall_offset_ns: None,
            resolution_ns: 1,
            first_ns: None,
            last_ns: None,
        };
        table(Table::Ranks, &mut all(vec![rank]));
        let diagnostic = DiagnosticRow {
            rank: None,
            source: HOSTILE,
            code: HOSTILE,
            count: 1,
            meaning: HOSTILE,
            example: Some(HOSTILE),
            example_at: None,
        };
        table(Table::Diagnostics, &mut all(vec![diagnostic]));
    });
    let html = page(&report);
    check(&html);
    assert!(html.contains("&lt;script&gt;"));
    for panel in ["kernels", "memory", "steps", "diagnostics", "alignment", "launches", "idle", "critical-path"] {
        assert!(html.contains(&format!("<section id=\"{panel}\"")), "no panel {panel}");
    }
}

#[test]
fn a_profile_without_events_is_a_page_too() {
    let dir = tempfile::tempdir().unwrap();
    let html = page(&report(&dir.path().join("p"), |_| {}));
    check(&html);
    assert!(html.contains("No device did any work."));
}

#[test]
fn a_recording_on_processors_speaks_of_devices_and_shows_its_counters() {
    let recording = |dir: &Path, model: &'static str, end: i64| {
        report(dir, |table| {
            let kernels = [(0, 10), (20, 10)]
                .map(|(ts, dur)| DeviceRow { correlation: None, ..device(ts, dur, "kernel", "gemm") });
            table(Table::Device, &mut all(kernels.into()));
            table(Table::Host, &mut all(vec![host(0, end, "span", "step")]));
            table(Table::Tracks, &mut all(vec![track(0, "thread"), track(1, "stream")]));
            let rank = RankRow {
                rank: 0,
                source: "",
                rank_from: "recorder",
                world_size: None,
                host: None,
                base_ns: 0,
                offset_ns: 0,
                residual_ns: None,
                matched_collectives: 0,
                matched_by: None,
                wall_offset_ns: None,
                resolution_ns: 1,
                first_ns: Some(0),
                last_ns: Some(end),
            };
            table(Table::Ranks, &mut all(vec![rank]));
            let models = (0..8).map(|device| DevicePropertiesRow {
                rank: 0,
                device,
                name: model,
                memory_bytes: None,
                multiprocessors: None,
                properties: None,
            });
            table(Table::Devices, &mut all(models.collect()));
            let samples = [(0, 1e6), (10, 3e6), (20, 2e6)].map(|(ts, value)| CounterRow {
                rank: 0,
                track: 0,
                ts,
                name: "process_memory",
                series: "",
                value,
                unit: Some("B"),
            });
            table(Table::Counters, &mut all(samples.into()));
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let html = page(&recording(&dir.path().join("cpu"), "cpu/avx512", 40));
    check(&html);
    for text in
        ["Device utilisation over time", "Device active time", "Runs of kernels", "8 × cpu/avx512", ">devices busy<"]
    {
        assert!(html.contains(text), "{text}");
    }
    for text in ["GPU utilisation", "GPU active", "GPU activity", "Launch", ">launches<"] {
        assert!(!html.contains(text), "{text}");
    }
    assert!(html.contains("<section id=\"host-counters\"") && html.contains("3.0 MB at the top"));
    assert!(html.contains(">1.0 MB<") && html.contains(">2.0 MB<"), "first and mean");

    // Devices that worked for a small part of the time.
    let mut of_gpus = recording(&dir.path().join("gpu"), "AMD GPU", 10_000);
    of_gpus.profile.span_ns = Some(10_000);
    let html = page(&of_gpus);
    check(&html);
    assert!(html.contains("GPU utilisation over time") && html.contains("8 × AMD GPU"));
    assert!(html.contains("devices busy, of the 30 ns from first to last device event"));
    assert!(html.contains("% of the whole 10.0 µs"));
}
