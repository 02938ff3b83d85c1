//! Durations as a histogram.

use std::io::{self, Write};

use anyhow::Context;
use profile::analysis::{Histogram, Steps, collapse, histogram};
use profile::report::readable_bins;
use profile::report::units::{TimeUnit, count, percent, time};
use profile::{Host, Run};
use trace::Profile;

use super::super::STDOUT;
use super::super::table::{Page, Table};
use crate::exit::Refused;

/// Bins of a histogram on a terminal, at most.
const BINS: usize = 30;
/// Names suggested where one is unknown.
const SUGGESTIONS: usize = 10;

/// All durations of one name: an annotation's, and where there is none, those of a span.
pub fn print(profile: &Profile, rank: Option<i64>, name: &str) -> anyhow::Result<()> {
    let run = Run::load(profile, rank, Host::Slices)?;
    let found = histogram(&run, rank, name, BINS);
    if found.is_empty() {
        return Err(Refused(format!("no annotation is named {name:?}{}", suggestions(&run))).into());
    }
    let mut page = Page::stdout();
    found.iter().try_for_each(|steps| one(&mut page, steps)).and_then(|()| page.flush()).context(STDOUT)
}

fn suggestions(run: &Run) -> String {
    let mut names: Vec<&str> = Vec::new();
    for event in run.ranks.iter().flat_map(|rank| &rank.host) {
        let name = collapse(run.text(event.name)).0;
        if matches!(event.kind, profile::HostKind::Annotation | profile::HostKind::Span) && !names.contains(&name) {
            names.push(name);
        }
        if names.len() > SUGGESTIONS {
            break;
        }
    }
    let more = if names.len() > SUGGESTIONS { " …" } else { "" };
    names.truncate(SUGGESTIONS);
    if names.is_empty() { "; the profile has none".into() } else { format!("; there are {}{more}", names.join(", ")) }
}

fn one(page: &mut Page<impl Write>, steps: &Steps) -> io::Result<()> {
    let of = &steps.durations;
    page.line(&format!(
        "{} on the {}: {} times, {} in all",
        steps.name,
        steps.on,
        count(of.count),
        time(of.sum_ns as f64)
    ))?;
    let mut table = Table::new(["mean", "std", "min", "p25", "median", "p75", "p90", "p99", "max"]);
    table.row([
        time(of.mean_ns),
        of.std_ns.map_or("–".into(), time),
        time(of.min_ns as f64),
        time(of.p25_ns),
        time(of.median_ns),
        time(of.p75_ns),
        time(of.p90_ns),
        time(of.p99_ns),
        time(of.max_ns as f64),
    ]);
    page.table(&table)?;
    page.line("")?;
    bars(page, &steps.histogram)
}

/// A bar for each bin.
pub fn bars(page: &mut Page<impl Write>, histogram: &Histogram) -> io::Result<()> {
    let bins = readable_bins(histogram).bins;
    let unit = TimeUnit::of(bins.last().map_or(0, |bin| bin.to_ns));
    let all: u64 = bins.iter().map(|bin| bin.count).sum();
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let room = page.width.saturating_sub(52).clamp(10, 60);
    let mut table = Table::new([
        format!("from {}", unit.sign()),
        format!("to {}", unit.sign()),
        "count".into(),
        "%".into(),
        "<".into(),
    ]);
    for bin in &bins {
        let length = bin.count as f64 / most as f64 * room as f64;
        // One of many is seen.
        let length = if bin.count > 0 { length.round().max(1.0) as usize } else { 0 };
        table.row([
            unit.number(bin.from_ns as f64),
            unit.number(bin.to_ns as f64),
            count(bin.count),
            percent(bin.count as f64 / all.max(1) as f64),
            "█".repeat(length),
        ]);
    }
    page.table(&table)
}
