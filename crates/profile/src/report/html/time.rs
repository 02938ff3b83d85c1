//! Panels about time: utilisation, ranks, kernels, steps, kinds of work.

use super::super::{Report, units};
use super::svg::{self, COLOURS, Column, Slice};
use super::table::{Cell, Table};
use super::{Panel, Width, counted, escape};
use crate::analysis::{KernelTable, Part, RankAnalyses, Series, Steps};

/// Rows of the full kernel table.
const MOST_KERNELS: usize = 500;
/// Charts of one kind; further ones are in the table only.
const MOST_CHARTS: usize = 16;
/// Bars of single steps.
const MOST_STEPS: usize = 200;

/// The panel with the numbers behind a rule's finding.
pub(super) fn panel_of(rule: &str) -> &'static str {
    match rule {
        "exposed_communication" => "overlap",
        "pageable_copies" => "memory",
        "dominant_kernel" => "kernels",
        "low_tensor_core_use" => "precision",
        "queue_full" => "queue",
        "launch_bound" | "host_allocation" => "launches",
        "synchronisation" => "activity",
        "data_loading" | "between_steps" | "step_outliers" => "steps",
        "stragglers" => "stragglers",
        "unreliable_input" => "diagnostics",
        rule if rule.contains("idle") || rule.contains("host") => "idle",
        _ => "ranks",
    }
}

/// The numbers that are looked at first.
pub(super) fn tiles(report: &Report) -> String {
    let ranks = &report.analyses.ranks;
    let worked: Vec<&RankAnalyses> = ranks.iter().filter(|rank| rank.temporal.span_ns > 0).collect();
    let mean =
        |of: &dyn Fn(&RankAnalyses) -> f64| worked.iter().map(|rank| of(rank)).sum::<f64>() / worked.len() as f64;
    let percent = |share: f64| format!("{} %", units::percent(share));
    let mut tiles: Vec<(String, &str)> = Vec::new();
    if !worked.is_empty() {
        tiles
            .push((percent(mean(&|rank| rank.temporal.busy_ns as f64 / rank.temporal.span_ns as f64)), "devices busy"));
        tiles.push((percent(mean(&|rank| rank.temporal.compute_share)), "computing"));
        tiles.push((percent(mean(&|rank| rank.temporal.idle_share)), "idle"));
    }
    let (communication, exposed) = ranks
        .iter()
        .fold((0, 0), |sums, rank| (sums.0 + rank.overlap.communication_ns, sums.1 + rank.overlap.exposed_ns));
    if communication > 0 {
        tiles.push((percent(1.0 - exposed as f64 / communication as f64), "of communication hidden"));
    }
    if let Some(steps) = main_steps(report) {
        tiles.push((units::time(steps.durations.median_ns), "median step"));
    }
    let kernels = &report.analyses.kernels.rows;
    if !kernels.is_empty() {
        tiles.push((units::count(kernels.iter().map(|row| row.durations.count).sum()), "device operations"));
    }
    let tile = |(value, name): &(String, &str)| {
        format!(r#"<div class="tile"><b>{}</b><span>{name}</span></div>"#, escape(value))
    };
    format!(r#"<div class="tiles">{}</div>"#, tiles.iter().map(tile).collect::<String>())
}

fn main_steps(report: &Report) -> Option<&Steps> {
    report
        .analyses
        .ranks
        .iter()
        .flat_map(|rank| &rank.steps)
        .find(|steps| steps.on == "host" && steps.durations.count > 0)
}

pub(super) fn panels(report: &Report) -> Vec<Panel> {
    let mut panels = vec![ranks(report)];
    panels.extend(active(report));
    panels.extend(activity(report));
    panels.extend(utilisation(report));
    panels.extend(cpu(report));
    panels.extend(kernels(report));
    panels.extend(steps(report));
    panels.extend(precision(report));
    panels.extend(kinds(report));
    panels
}

fn slice(name: impl Into<String>, ns: i64, whole: i64, colour: &'static str) -> Slice {
    let share = if whole > 0 { ns as f64 / whole as f64 } else { 0.0 };
    let text = format!("{} · {} %", units::time(ns as f64), units::percent(share));
    Slice { name: name.into(), value: ns as f64, text, colour }
}

fn keys(keys: &[(&str, &str)]) -> String {
    let key = |(name, colour): &(&str, &str)| format!(r#"<li><i class="b-{colour}"></i>{}</li>"#, escape(name));
    format!(r#"<ul class="keys">{}</ul>"#, keys.iter().map(key).collect::<String>())
}

fn ranks(report: &Report) -> Panel {
    let ranks: Vec<&RankAnalyses> = report.analyses.ranks.iter().filter(|rank| rank.temporal.events > 0).collect();
    let mut table = Table::new(&[
        "rank",
        "device",
        "span",
        "busy",
        "idle",
        "idle %",
        "compute",
        "compute %",
        "other work",
        "other %",
        "communication",
        "memory",
    ]);
    let mut bars = Vec::new();
    for rank in &ranks {
        let whole = &rank.temporal;
        let single = rank.devices.len() == 1;
        let lines = std::iter::once((None, whole))
            .chain(rank.devices.iter().filter(|_| !single).map(|device| (Some(device.device), &device.temporal)));
        for (device, of) in lines {
            let label =
                device.map_or(format!("rank {}", rank.rank), |device| format!("rank {} device {device}", rank.rank));
            bars.push((
                label,
                vec![
                    slice("compute", of.compute_ns, of.span_ns, "c0"),
                    slice("other work", of.non_compute_ns, of.span_ns, "c1"),
                    slice("idle", of.idle_ns, of.span_ns, "idle"),
                ],
            ));
            let time = |ns: i64| Cell::time(ns as f64);
            let name = match device {
                Some(device) => device.to_string(),
                None => rank.devices.first().filter(|_| single).map_or("all".into(), |device| {
                    format!("{} {}", device.device, device.name.as_deref().unwrap_or_default())
                }),
            };
            table.row([
                Cell::Number(rank.rank as f64, rank.rank.to_string()),
                Cell::text(name),
                time(of.span_ns),
                time(of.busy_ns),
                time(of.idle_ns),
                Cell::percent(of.idle_share),
                time(of.compute_ns),
                Cell::percent(of.compute_share),
                time(of.non_compute_ns),
                Cell::percent(of.non_compute_share),
                time(of.communication_ns),
                time(of.memory_ns),
            ]);
        }
    }
    let whole = ranks.iter().map(|rank| rank.temporal.span_ns).max().unwrap_or(0) as f64;
    let body = match ranks.is_empty() {
        true => "<p>No device did any work.</p>".into(),
        false => {
            let keys = keys(&[
                ("compute", "c0"),
                ("other work: communication and copies that nothing hides", "c1"),
                ("idle", "idle"),
            ]);
            keys + &svg::stacks("Compute, other work and idle time of each rank", &bars, whole) + &table.html()
        }
    };
    Panel {
        id: "ranks",
        title: "Time by rank",
        note: "From a rank's first device work to its last, all streams together; idle + compute + other work = span."
            .into(),
        width: Width::Whole,
        body,
    }
}

fn active(report: &Report) -> Vec<Panel> {
    let devices: Vec<_> = report.analyses.ranks.iter().flat_map(|rank| &rank.utilisation).collect();
    let mut panels = Vec::new();
    let ring = |title: &str, share: f64| {
        let part = |name: &str, share: f64, colour| {
            let text = format!("{} %", units::percent(share));
            Slice { name: name.into(), value: share, text, colour }
        };
        let parts = [part("active", share, "c0"), part("not active", 1.0 - share, "idle")];
        svg::ring(title, &format!("{} %", units::percent(share)), &parts)
    };
    if !devices.is_empty() {
        let share = devices.iter().map(|device| device.active).sum::<f64>() / devices.len() as f64;
        panels.push(Panel {
            id: "gpu-active",
            title: "GPU active time",
            note: format!(
                "Parts of the span in which a device did anything; mean of {}.",
                counted(devices.len() as u64, "device")
            ),
            width: Width::Third,
            body: ring("GPU active time", share),
        });
    }
    let processors: Vec<_> =
        report.analyses.ranks.iter().map(|rank| &rank.cpu).filter(|cpu| cpu.source.is_some()).collect();
    if !processors.is_empty() {
        let share = processors.iter().map(|cpu| cpu.active).sum::<f64>() / processors.len() as f64;
        panels.push(Panel {
            id: "cpu-active",
            title: "CPU active time",
            note: format!(
                "Parts of the span in which the host did anything; from {}.",
                processors[0].source.unwrap_or_default()
            ),
            width: Width::Third,
            body: ring("CPU active time", share),
        });
    }
    panels
}

fn over_time(title: &str, series: &Series, most: f64, top: &str) -> String {
    let span = series.bucket_ns.saturating_mul(series.values.len() as i64);
    svg::area(title, &series.values, most, "0", &units::time(span as f64), top)
}

fn utilisation(report: &Report) -> Option<Panel> {
    let devices: Vec<_> = report.analyses.ranks.iter().flat_map(|rank| &rank.utilisation).collect();
    if devices.is_empty() {
        return None;
    }
    let mut body = String::new();
    for node in report.analyses.nodes.iter().filter(|node| node.devices > 1).take(MOST_CHARTS) {
        let name = node.node.as_ref().map_or("All devices".into(), |node| format!("Node {node}"));
        let title = format!("{name}: mean {} % of {}", units::percent(node.mean), counted(node.devices, "device"));
        body += &format!(
            "<div><h3>{}</h3>{}</div>",
            escape(&title),
            over_time(&title, &node.busy, 1.0, "100 % at the top")
        );
    }
    for device in devices.iter().take(MOST_CHARTS) {
        let title = format!(
            "Rank {} device {}: mean {} %, active {} %",
            device.rank,
            device.device,
            units::percent(device.mean),
            units::percent(device.active)
        );
        body += &format!(
            "<div><h3>{}</h3>{}</div>",
            escape(&title),
            over_time(&title, &device.busy, 1.0, "100 % at the top")
        );
    }
    let mut body = format!(r#"<div class="multiples">{body}</div>"#);
    if devices.len() > MOST_CHARTS {
        body += &format!("<p>… and {} more devices.</p>", devices.len() - MOST_CHARTS);
    }
    let note = "Busy share of each part of the span; a node is on the common clock of its ranks.".into();
    Some(Panel { id: "utilisation", title: "GPU utilisation over time", note, width: Width::Whole, body })
}

fn cpu(report: &Report) -> Option<Panel> {
    let ranks: Vec<&RankAnalyses> = report.analyses.ranks.iter().filter(|rank| rank.cpu.source.is_some()).collect();
    let first = ranks.first()?;
    let counters = first.cpu.source == Some("counters");
    let mut body = String::new();
    for rank in ranks.iter().take(MOST_CHARTS) {
        let most = rank.cpu.busy.values.iter().copied().fold(1.0, f64::max);
        let (title, top) = match counters {
            true => {
                (format!("Rank {}: mean {} %", rank.rank, units::percent(rank.cpu.mean)), "100 % at the top".into())
            }
            false => (
                format!("Rank {}: mean {} busy threads", rank.rank, units::fixed(rank.cpu.mean, 2)),
                format!("{} at the top", units::fixed(most, 1)),
            ),
        };
        body += &format!("<div><h3>{}</h3>{}</div>", escape(&title), over_time(&title, &rank.cpu.busy, most, &top));
    }
    let note = match counters {
        true => "As the system counts it, mean of all cores.",
        false => "Threads with an operator, a call or a span at work; the sources hold no counters of the system.",
    };
    let body = format!(r#"<div class="multiples">{body}</div>"#);
    Some(Panel { id: "cpu", title: "CPU utilisation over time", note: note.into(), width: Width::Whole, body })
}

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

fn kernels(report: &Report) -> Vec<Panel> {
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
            title: "Launch counts of kernels",
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

fn steps(report: &Report) -> Option<Panel> {
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
        let keys = keys(&[("device busy", "c0"), ("not busy", "idle")]);
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
    let bins = &steps.histogram.bins;
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

fn activity(report: &Report) -> Option<Panel> {
    let of = &report.analyses.activity;
    let parts = [
        ("kernels", of.kernel, "c0"),
        ("copies", of.memcpy, "c2"),
        ("fills", of.memset, "c6"),
        ("waiting", of.sync, "c3"),
    ];
    let whole: i64 = parts.iter().map(|(_, part, _)| part.sum_ns).sum();
    if parts.iter().all(|(_, part, _)| part.count == 0) {
        return None;
    }
    let slices: Vec<Slice> = parts
        .iter()
        .filter(|(_, part, _)| part.count > 0)
        .map(|(name, part, colour)| slice(*name, part.sum_ns, whole, colour))
        .collect();
    let from = of.sync_from.map_or(String::new(), |from| format!("; waiting as the {from} sees it"));
    Some(Panel {
        id: "activity",
        title: "GPU activity",
        note: format!("Sums of durations{from}."),
        width: Width::Third,
        body: svg::ring("GPU activity", "", &slices),
    })
}

fn precision(report: &Report) -> Option<Panel> {
    let of = &report.analyses.precisions;
    if of.parts.is_empty() {
        return None;
    }
    let whole: i64 = of.parts.iter().map(|part| part.ns).sum();
    let slices: Vec<Slice> = of
        .parts
        .iter()
        .enumerate()
        .map(|(at, part)| {
            let colour = if part.precision == "unknown" { "idle" } else { COLOURS[at % COLOURS.len()] };
            slice(part.precision, part.ns, whole, colour)
        })
        .collect();
    let mut table = Table::new(&["precision", "runs", "time", "by name", "by type", "by operands"]);
    for part in &of.parts {
        table.row([
            Cell::text(part.precision),
            Cell::count(part.runs),
            Cell::time(part.ns as f64),
            Cell::time(part.by_name_ns as f64),
            Cell::time(part.by_dtype_ns as f64),
            Cell::time(part.by_operands_ns as f64),
        ]);
    }
    Some(Panel {
        id: "precision",
        title: "Kernel precision",
        note: format!("By time; {} % in kernels named for tensor cores.", units::percent(of.tensor_core_share)),
        width: Width::Half,
        body: format!(
            "{}<details><summary>How it is known</summary>{}</details>",
            svg::ring("Kernel precision", "", &slices),
            table.html()
        ),
    })
}

fn kinds(report: &Report) -> Option<Panel> {
    let kinds = &report.analyses.kernel_types;
    if kinds.is_empty() {
        return None;
    }
    let whole: i64 = kinds.iter().map(|kind| kind.ns).sum();
    let colour = |at: usize, classes: &[&str]| match classes {
        ["compute"] => "c0",
        ["communication"] => "c1",
        ["memory"] => "c2",
        _ => COLOURS[3 + at % 6],
    };
    let slices: Vec<Slice> = kinds
        .iter()
        .enumerate()
        .map(|(at, kind)| slice(kind.classes.join(" + "), kind.ns, whole, colour(at, &kind.classes)))
        .collect();
    Some(Panel {
        id: "kinds",
        title: "Kinds of work and their overlaps",
        note: "Busy time by what ran at once.".into(),
        width: Width::Half,
        body: svg::ring("Kinds of work", "", &slices),
    })
}
