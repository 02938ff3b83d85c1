//! How long viewport queries take: `cargo run --release --example viewport -- run.profile`.
//!
//! Asks for windows of every size on the tracks with the most slices, and prints the slowest and the median answer of each zoom.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use profile::timeline::Timeline;
use trace::Profile;
use trace::schema::Table;

const PIXELS: u32 = 1600;
const WINDOWS: i64 = 24;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("which profile?")?);
    let opened = Instant::now();
    let profile = Profile::open(&path)?;
    let timeline = Timeline::open(&profile)?;
    println!("opened in {:.1} ms", opened.elapsed().as_secs_f64() * 1e3);

    // Track: slices, earliest start, latest end.
    let mut tracks: BTreeMap<i64, (u64, i64, i64)> = BTreeMap::new();
    for table in [Table::Host, Table::Device] {
        let rows = profile.read(table, &["track", "ts", "dur"])?;
        for ((&track, &ts), &dur) in rows.ints("track").iter().zip(rows.ints("ts")).zip(rows.ints("dur")) {
            let end = ts.saturating_add(dur);
            let (slices, first, last) = tracks.entry(track).or_insert((0, ts, end));
            (*slices, *first, *last) = (*slices + 1, ts.min(*first), end.max(*last));
        }
    }
    let mut tracks: Vec<_> = tracks.into_iter().collect();
    tracks.sort_by_key(|(_, (slices, ..))| std::cmp::Reverse(*slices));
    for (track, (slices, first, last)) in tracks.into_iter().take(4) {
        println!("track {track}: {slices} slices");
        let mut size = last - first;
        while size > 1000 {
            let mut times = Vec::new();
            let mut most = 0;
            for at in 0..WINDOWS {
                let from = first + (last - first - size) / WINDOWS * at;
                let asked = Instant::now();
                let view = timeline.slices(track, from, from + size, PIXELS)?;
                times.push(asked.elapsed().as_secs_f64() * 1e3);
                most = most.max(view.rows.iter().map(|row| row.slices.len()).sum::<usize>());
            }
            let first = times[0];
            times.sort_by(f64::total_cmp);
            let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
            println!(
                "  window {:>14} ns: first {first:6.2}, median {median:6.2}, worst {worst:6.2} ms; at most {most} rectangles",
                size
            );
            size /= 4;
        }
    }
    Ok(())
}
