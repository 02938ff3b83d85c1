//! The panel of steps.

use super::super::{Report, readable_bins, units};
use super::svg::{self, Column};
use super::table::{Cell, Table};
use super::{Panel, Width, counted, escape};
use crate::analysis::Steps;

/// Charts of ranks; further ones are in the table only.
const MOST_CHARTS: usize = 16;
/// Bars of single steps.
const MOST_STEPS: usize = 200;

pub(super) fn steps(report: &Report) -> Option<Panel> {
    let steps: Vec<_> =
        report.analyses.ranks.iter().flat_map(|rank| rank.steps.iter().map(move |steps| (rank.rank, steps))).collect();
    if steps.is_empty() {
        return None;
    }
    let mut body = String::new();
    let mut table = Table::new(&["rank", "name", "on", "steps", "mean", "std", "min", "median", "p90", "p99", "max"]);
    for (rank, steps) in &steps {
        let of = &steps.durations;
        table.row([
            Cell::Number(*rank as f64, rank.to_string()),
            Cell::Name(steps.name.clone(), 80),
            Cell::text(steps.on),
            Cell::count(of.count),
            Cell::time(of.mean_ns),
            of.std_ns.map_or(Cell::none(), Cell::time),
            Cell::time(of.min_ns as f64),
            Cell::time(of.median_ns),
            Cell::time(of.p90_ns),
            Cell::time(of.p99_ns),
            Cell::time(of.max_ns as f64),
        ]);
    }
    for (rank, steps) in
        steps.iter().filter(|(_, steps)| steps.on == "host" && steps.instances.len() > 1).take(MOST_CHARTS)
    {
        let shown = &steps.instances[..steps.instances.len().min(MOST_STEPS)];
        let column = |step: &crate::analysis::Step| Column {
            value: step.dur as f64,
            title: format!(
                "{} {}: {}, device busy {}",
                steps.name,
                step.number.map_or(String::new(), |number| number.to_string()),
                units::time(step.dur as f64),
                units::time(step.device_busy_ns as f64)
            ),
            inner: step.device_busy_ns as f64,
        };
        let columns: Vec<Column> = shown.iter().map(column).collect();
        let label = |step: &crate::analysis::Step| step.number.map_or(String::new(), |number| number.to_string());
        let title = format!("{} of rank {rank}, one by one", steps.name);
        let top = format!("{} at the top", units::time(steps.durations.max_ns as f64));
        let (first, last) = (shown.first().map_or(String::new(), label), shown.last().map_or(String::new(), label));
        let keys = svg::keys(&[("device busy", "c0"), ("not busy", "idle")]);
        body += &format!(
            "<h3>{}</h3>{keys}{}",
            escape(&title),
            svg::columns(&title, &columns, ["idle", "c0"], &first, &last, &top)
        );
        if steps.instances.len() > 12 {
            body += &histogram(steps, *rank);
        }
    }
    let note = "Annotations named like steps, by their name without the number.".into();
    Some(Panel { id: "steps", title: "Step times", note, width: Width::Whole, body: body + &table.html() })
}

fn histogram(steps: &Steps, rank: i64) -> String {
    let bins = readable_bins(&steps.histogram).bins;
    let column = |bin: &crate::analysis::Bin| Column {
        value: bin.count as f64,
        title: format!(
            "{} to {}: {}",
            units::time(bin.from_ns as f64),
            units::time(bin.to_ns as f64),
            units::count(bin.count)
        ),
        inner: 0.0,
    };
    let columns: Vec<Column> = bins.iter().map(column).collect();
    let title = format!("{} of rank {rank}, by duration", steps.name);
    let end = |ns: Option<i64>| ns.map_or(String::new(), |ns| units::time(ns as f64));
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0);
    format!(
        "<h3>{}</h3>{}",
        escape(&title),
        svg::columns(
            &title,
            &columns,
            ["c0", "c0"],
            &end(bins.first().map(|bin| bin.from_ns)),
            &end(bins.last().map(|bin| bin.to_ns)),
            &format!("{} at the top", counted(most, "step")),
        )
    )
}
