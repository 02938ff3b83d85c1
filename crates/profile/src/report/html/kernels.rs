//! Panels of kernels, copies and fills by name.

use super::super::{Report, units};
use super::table::{Cell, Table};
use super::{Panel, Width, counted};
use crate::analysis::{KernelTable, Part};

/// Rows of the full kernel table.
const MOST_KERNELS: usize = 500;

fn part_name(part: &Part) -> String {
    part.name.clone().unwrap_or_else(|| format!("{} others", units::count(part.names)))
}

fn top_list(table: &KernelTable, by_time: bool) -> String {
    let parts = if by_time { &table.by_time } else { &table.by_runs };
    let mut html = Table::new(match by_time {
        true => &["name", "time", "of all", "of span"],
        false => &["name", "runs", "of all", "time"],
    });
    for part in parts {
        let colour = if part.name.is_some() { "c0" } else { "idle" };
        match by_time {
            true => html.row([
                Cell::Name(part_name(part), 36),
                Cell::time(part.sum_ns as f64),
                Cell::Share(part.share, colour),
                Cell::percent(part.share_of_span),
            ]),
            false => html.row([
                Cell::Name(part_name(part), 36),
                Cell::count(part.runs),
                Cell::Share(part.share, colour),
                Cell::time(part.sum_ns as f64),
            ]),
        }
    }
    html.html()
}

pub(super) fn kernels(report: &Report) -> Vec<Panel> {
    let table = &report.analyses.kernels;
    if table.rows.is_empty() {
        return Vec::new();
    }
    let names = counted(table.rows.len() as u64, "name");
    let together = match report.analyses.ranks.len() {
        1 => String::new(),
        ranks => format!(", {ranks} ranks together"),
    };
    let mut all = Table::new(&[
        "name", "class", "runs", "launches", "sum", "of all", "of span", "mean", "median", "p90", "min", "max",
    ]);
    for row in table.rows.iter().take(MOST_KERNELS) {
        let of = &row.durations;
        all.row([
            Cell::Name(row.name.clone(), 80),
            Cell::text(row.class),
            Cell::count(of.count),
            Cell::count(row.launches),
            Cell::time(of.sum_ns as f64),
            Cell::percent(row.share_of_time),
            Cell::percent(row.share_of_span),
            Cell::time(of.mean_ns),
            Cell::time(of.median_ns),
            Cell::time(of.p90_ns),
            Cell::time(of.min_ns as f64),
            Cell::time(of.max_ns as f64),
        ]);
    }
    let cut = match table.rows.len() > MOST_KERNELS {
        true => format!("<p>The {MOST_KERNELS} longest of {names}; <code>--json</code> has all.</p>"),
        false => String::new(),
    };
    if !report.has_launches() {
        all = all.without("launches");
    }
    vec![
        Panel {
            id: "kernels",
            title: "Time spent by kernels",
            note: format!(
                "Sums of durations of {names}{together}; shares of the span exceed 100 % where streams overlap."
            ),
            width: Width::Half,
            body: top_list(table, true),
        },
        Panel {
            id: "launch-counts",
            title: if report.has_launches() { "Launch counts of kernels" } else { "Runs of kernels" },
            note: format!("Runs of {names}{together}."),
            width: Width::Half,
            body: top_list(table, false),
        },
        Panel {
            id: "all-kernels",
            title: "All kernels, copies and fills",
            note: "Click a head to sort.".into(),
            width: Width::Whole,
            body: format!("<details><summary>Table of {names}</summary>{cut}{}</details>", all.html()),
        },
    ]
}
