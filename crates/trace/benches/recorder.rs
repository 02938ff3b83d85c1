//! What recording costs at the call site: `cargo bench -p trainyard-trace --bench recorder`.
//!
//! `ticks` is one reading of the processor's counter, of which a span takes two. The writer's thread works beside the
//! measurement, as it does beside a program; events that find a full ring are cheaper than others, so their share is printed.

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use trace::recorder::{Counter, Lane, Name, Options, Recorder, Work};

/// Events between two pauses in which the ring is emptied; the pauses are not measured.
const BURST: u64 = 8_192;

fn recorder(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let recorder = Recorder::start(Options::new(&dir.path().join("p"), "bench")).expect("a recording");
    let device = recorder.device(0, "cpu", None);
    let stream = recorder.stream(device, 0, "compute");
    let lane = recorder.lane("bench");
    let off = Lane::off();
    let (name, kernel) = (Name::new("forward"), Name::with_values("linear", &["rows", "in", "out"]));
    let (counter, dtype) = (Counter::new("pool", "live", "B"), Name::new("f32"));

    let mut measure = |what: &str, event: &dyn Fn(u64)| {
        c.bench_function(what, |b| {
            b.iter_custom(|times| {
                let mut spent = Duration::ZERO;
                let mut left = times;
                while left > 0 {
                    let burst = left.min(BURST);
                    let begun = std::time::Instant::now();
                    event(burst);
                    spent += begun.elapsed();
                    left -= burst;
                    std::thread::sleep(Duration::from_millis(if burst < BURST { 1 } else { 40 }));
                }
                spent
            })
        });
    };
    let clock = quanta::Clock::new();
    measure("ticks", &|times| (0..times).for_each(|_| _ = black_box(clock.raw())));
    measure("span", &|times| (0..times).for_each(|_| drop(black_box(&lane).span(black_box(name)))));
    measure("step", &|times| (0..times).for_each(|number| drop(black_box(&lane).step(black_box(name), number))));
    measure("counter", &|times| (0..times).for_each(|value| black_box(&lane).counter(counter, value as f64)));
    measure("instant", &|times| (0..times).for_each(|_| black_box(&lane).instant(name)));
    measure("kernel", &|times| {
        for rows in 0..times {
            let from = lane.now();
            let work = Work { stream, name: kernel, from, to: lane.now(), correlation: None };
            black_box(&lane).kernel(work, Some(dtype), &[rows as i64, 384, 1536]);
        }
    });
    measure("span of this thread's lane", &|times| {
        (0..times).for_each(|_| recorder.here(|lane| drop(lane.span(black_box(name)))));
    });
    measure("span off", &|times| (0..times).for_each(|_| drop(black_box(&off).span(black_box(name)))));
    let summary = recorder.finish().expect("a profile");
    println!("{} events recorded, {} dropped", summary.recorded, summary.dropped);
}

criterion_group!(benches, recorder);
criterion_main!(benches);
