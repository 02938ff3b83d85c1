//! What a recording costs besides its call sites: bytes per event on disk, and processor time of the writer's thread.
//!
//! `cargo run --release -p trainyard-trace --example recorder_cost [SECONDS]` plays a training step over and over: kernels of
//! some twenty kinds, each with a length of its own and some noise, in annotated phases.

use std::time::{Duration, Instant};

use trace::recorder::{Name, Options, Recorder, Work};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |text| text.parse())?;
    let dir = tempfile::tempdir()?;
    let recorder = Recorder::start(Options::new(&dir.path().join("p"), "cost"))?;
    let device = recorder.device(0, "cpu", None);
    let stream = recorder.stream(device, 0, "compute");
    let lane = recorder.lane("main");
    let kernels: Vec<Name> =
        (0..20).map(|kind| Name::with_values(&format!("kernel_{kind}"), &["rows", "columns"])).collect();
    let dtype = Name::new("f32");
    let (step, forward, backward) = (Name::new("step"), Name::new("forward"), Name::new("backward"));
    let mut noise = 1u64;
    let begun = Instant::now();
    for number in 0.. {
        if begun.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        let _step = lane.step(step, number);
        for phase in [forward, backward] {
            let _phase = lane.annotate(phase);
            for at in 0..120usize {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let kind = at % kernels.len();
                let length = 20_000 * (1 + kind as u64 * kind as u64 / 8);
                let length = Duration::from_nanos(length + length * (noise >> 54) / 10_000);
                let from = lane.now();
                let until = Instant::now() + length;
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
                let work = Work { stream, name: kernels[kind], from, to: lane.now(), correlation: None };
                lane.kernel(work, Some(dtype), &[384 + (number % 7) as i64, 64 * kind as i64]);
            }
        }
    }
    let spent = begun.elapsed();
    let writer = processor_time("trace-writer");
    let summary = recorder.finish()?;
    let profile = trace::Profile::open(&summary.path)?;
    let manifest = profile.manifest();
    println!("{} events, {} dropped, in {:.1} s", summary.recorded, summary.dropped, spent.as_secs_f64());
    println!(
        "{:.2} bytes per event, samples of the host among them",
        manifest.bytes() as f64 / summary.recorded as f64
    );
    for (table, segments) in &manifest.tables {
        let (rows, bytes) = segments.iter().fold((0, 0), |sum, segment| (sum.0 + segment.rows, sum.1 + segment.bytes));
        println!(
            "  {table}: {rows} rows, {:.2} bytes per row, {} segments",
            bytes as f64 / rows as f64,
            segments.len()
        );
    }
    if let Some(writer) = writer {
        println!("{:.2} % of one core for the writer's thread", 100.0 * writer.as_secs_f64() / spent.as_secs_f64());
    }
    Ok(())
}

/// Processor time of this process's thread with this name, where the system tells.
fn processor_time(name: &str) -> Option<Duration> {
    for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).ok();
        if read("comm")?.trim() == name {
            let nanoseconds: u64 = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
            return Some(Duration::from_nanos(nanoseconds));
        }
    }
    None
}
