//! Panels about time: utilisation, ranks, kernels, steps, kinds of work.

use super::super::{Report, span_ns, units};
use super::svg::{self, COLOURS, Slice};
use super::table::{Cell, Table};
use super::{Panel, Width, counted, escape, kernels, steps};
use crate::analysis::{RankAnalyses, Series, Steps};

/// Charts of one kind; further ones are in the table only.
const MOST_CHARTS: usize = 16;

/// Devices that worked for less than this share of the profile's span worked for a short time.
const SHORT_SHARE: f64 = 0.05;

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
    let mut tiles: Vec<(String, String)> = Vec::new();
    // Where devices worked for a small part of the time, the tiles say of what they are shares.
    let longest = worked.iter().map(|rank| rank.temporal.span_ns).max().unwrap_or(0);
    let of = match report.profile.span_ns {
        Some(span) if (longest as f64) < SHORT_SHARE * span as f64 => {
            format!(", of the {} from first to last device event", units::time(longest as f64))
        }
        _ => String::new(),
    };
    if !worked.is_empty() {
        let busy = mean(&|rank| rank.temporal.busy_ns as f64 / rank.temporal.span_ns as f64);
        tiles.push((percent(busy), format!("devices busy{of}")));
        tiles.push((percent(mean(&|rank| rank.temporal.compute_share)), format!("computing{of}")));
        tiles.push((percent(mean(&|rank| rank.temporal.idle_share)), format!("idle{of}")));
    }
    let (communication, exposed) = ranks
        .iter()
        .fold((0, 0), |sums, rank| (sums.0 + rank.overlap.communication_ns, sums.1 + rank.overlap.exposed_ns));
    if communication > 0 {
        tiles.push((percent(1.0 - exposed as f64 / communication as f64), "of communication hidden".into()));
    }
    if let Some(steps) = main_steps(report) {
        tiles.push((units::time(steps.durations.median_ns), "median step".into()));
    }
    let kernels = &report.analyses.kernels.rows;
    if !kernels.is_empty() {
        tiles.push((units::count(kernels.iter().map(|row| row.durations.count).sum()), "device operations".into()));
    }
    let tile = |(value, name): &(String, String)| {
        format!(r#"<div class="tile"><b>{}</b><span>{}</span></div>"#, escape(value), escape(name))
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
    panels.extend(kernels::kernels(report));
    panels.extend(steps::steps(report));
    panels.extend(precision(report));
    panels.extend(kinds(report));
    panels
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
                    svg::part("compute", of.compute_ns, of.span_ns, "c0"),
                    svg::part("other work", of.non_compute_ns, of.span_ns, "c1"),
                    svg::part("idle", of.idle_ns, of.span_ns, "idle"),
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
            let keys = svg::keys(&[
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
        let title = if report.has_gpus() { "GPU active time" } else { "Device active time" };
        panels.push(Panel {
            id: "gpu-active",
            title,
            note: format!(
                "Parts of the {} in which a device did anything; mean of {}.",
                whole(devices.iter().map(|device| &device.busy)),
                counted(devices.len() as u64, "device")
            ),
            width: Width::Third,
            body: ring(title, share),
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
                "Parts of the {} in which the host did anything; from {}.",
                whole(processors.iter().map(|cpu| &cpu.busy)),
                processors[0].source.unwrap_or_default()
            ),
            width: Width::Third,
            body: ring("CPU active time", share),
        });
    }
    panels
}

/// The time that these series cover: `whole 1.29 s`.
fn whole<'a>(series: impl Iterator<Item = &'a Series> + Clone) -> String {
    let spans = series.map(span_ns);
    let (least, most) = (spans.clone().min().unwrap_or(0), spans.max().unwrap_or(0));
    let (least, most) = (units::time(least as f64), units::time(most as f64));
    if least == most { format!("whole {most}") } else { format!("whole {least} to {most} of each rank") }
}

fn over_time(title: &str, series: &Series, most: f64, top: &str) -> String {
    let span = span_ns(series);
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
        let title = format!(
            "{name}: mean {} % of the whole {} of {}",
            units::percent(node.mean),
            units::time(span_ns(&node.busy) as f64),
            counted(node.devices, "device")
        );
        body += &format!(
            "<div><h3>{}</h3>{}</div>",
            escape(&title),
            over_time(&title, &node.busy, 1.0, "100 % at the top")
        );
    }
    for device in devices.iter().take(MOST_CHARTS) {
        let title = format!(
            "Rank {} device {}: mean {} % of the whole {}, active {} %",
            device.rank,
            device.device,
            units::percent(device.mean),
            units::time(span_ns(&device.busy) as f64),
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
    let note = format!(
        "Busy share of each part of the {}, host and devices; a node is on the common clock of its ranks.",
        whole(devices.iter().map(|device| &device.busy))
    );
    let title = if report.has_gpus() { "GPU utilisation over time" } else { "Device utilisation over time" };
    Some(Panel { id: "utilisation", title, note, width: Width::Whole, body })
}

fn cpu(report: &Report) -> Option<Panel> {
    let ranks: Vec<&RankAnalyses> = report.analyses.ranks.iter().filter(|rank| rank.cpu.source.is_some()).collect();
    let first = ranks.first()?;
    let counters = first.cpu.source == Some("counters");
    let mut body = String::new();
    for rank in ranks.iter().take(MOST_CHARTS) {
        let most = rank.cpu.busy.values.iter().copied().fold(1.0, f64::max);
        let span = units::time(span_ns(&rank.cpu.busy) as f64);
        let (title, top) = match counters {
            true => (
                format!("Rank {}: mean {} % of the whole {span}", rank.rank, units::percent(rank.cpu.mean)),
                "100 % at the top".into(),
            ),
            false => (
                format!("Rank {}: mean {} busy threads in the whole {span}", rank.rank, units::fixed(rank.cpu.mean, 2)),
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

fn activity(report: &Report) -> Option<Panel> {
    let of = &report.analyses.activity;
    let parts = [
        ("kernels", of.kernel, "c0"),
        ("copies", of.memcpy, "c2"),
        ("fills", of.memset, "c6"),
        ("waiting", of.sync, "c3"),
    ];
    let whole: i64 = parts.iter().map(|(_, part, _)| part.sum_ns).fold(0, i64::saturating_add);
    if parts.iter().all(|(_, part, _)| part.count == 0) {
        return None;
    }
    let slices: Vec<Slice> = parts
        .iter()
        .filter(|(_, part, _)| part.count > 0)
        .map(|(name, part, colour)| svg::part(*name, part.sum_ns, whole, colour))
        .collect();
    let title = if report.has_gpus() { "GPU activity" } else { "Device activity" };
    let from = of.sync_from.map_or(String::new(), |from| format!("; waiting as the {from} sees it"));
    Some(Panel {
        id: "activity",
        title,
        note: format!("Sums of durations{from}."),
        width: Width::Third,
        body: svg::ring(title, "", &slices),
    })
}

fn precision(report: &Report) -> Option<Panel> {
    let of = &report.analyses.precisions;
    if of.parts.is_empty() {
        return None;
    }
    let whole: i64 = of.parts.iter().map(|part| part.ns).fold(0, i64::saturating_add);
    let slices: Vec<Slice> = of
        .parts
        .iter()
        .enumerate()
        .map(|(at, part)| {
            let colour = if part.precision == "unknown" { "idle" } else { COLOURS[at % COLOURS.len()] };
            svg::part(part.precision, part.ns, whole, colour)
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
    let whole: i64 = kinds.iter().map(|kind| kind.ns).fold(0, i64::saturating_add);
    let colour = |at: usize, classes: &[&str]| match classes {
        ["compute"] => "c0",
        ["communication"] => "c1",
        ["memory"] => "c2",
        _ => COLOURS[3 + at % 6],
    };
    let slices: Vec<Slice> = kinds
        .iter()
        .enumerate()
        .map(|(at, kind)| svg::part(kind.classes.join(" + "), kind.ns, whole, colour(at, &kind.classes)))
        .collect();
    Some(Panel {
        id: "kinds",
        title: "Kinds of work and their overlaps",
        note: "Busy time by what ran at once.".into(),
        width: Width::Half,
        body: svg::ring("Kinds of work", "", &slices),
    })
}
