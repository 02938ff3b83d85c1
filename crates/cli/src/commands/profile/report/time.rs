//! Where the time of ranks, steps and kernels went.

use std::io::{self, Write};

use profile::analysis::{Part, Series};
use profile::report::units::{TimeUnit, count, percent, time};
use profile::report::{Report, span_ns};

use super::super::table::{Page, Table};
use super::overview::counted;

/// Steps shown one by one.
const MOST_STEPS: usize = 12;

pub fn temporal(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let longest = report.analyses.ranks.iter().map(|rank| rank.temporal.span_ns).max().unwrap_or(0);
    let unit = TimeUnit::of(longest);
    let about = "from the first to the last device event, all streams together; other: busy without a computing kernel; hidden: communication behind computation";
    page.heading("Time by rank", &format!("in {}; {about}", unit.sign()))?;
    let mut table = Table::new([
        "rank",
        "device*",
        "span",
        "idle",
        "%",
        "compute",
        "%",
        "other",
        "%",
        "comm.?",
        "hidden %?",
        "memory?",
    ]);
    let mut line = |rank: String, device: String, of: &profile::analysis::Temporal| {
        let number = |ns: i64| unit.number(ns as f64);
        let hidden = match of.communication_ns {
            0 => "–".into(),
            whole => percent(of.overlap_ns as f64 / whole as f64),
        };
        table.row([
            rank,
            device,
            number(of.span_ns),
            number(of.idle_ns),
            percent(of.idle_share),
            number(of.compute_ns),
            percent(of.compute_share),
            number(of.non_compute_ns),
            percent(of.non_compute_share),
            number(of.communication_ns),
            hidden,
            number(of.memory_ns),
        ]);
    };
    for rank in &report.analyses.ranks {
        let model = |name: &Option<String>, device: i64| match name {
            Some(name) => format!("{device} {name}"),
            None => device.to_string(),
        };
        match rank.devices.as_slice() {
            [] => {}
            [only] => line(rank.rank.to_string(), model(&only.name, only.device), &rank.temporal),
            several => {
                line(rank.rank.to_string(), "all".into(), &rank.temporal);
                several
                    .iter()
                    .for_each(|device| line(String::new(), model(&device.name, device.device), &device.temporal));
            }
        }
    }
    if table.is_empty() {
        return page.line("  no device did any work");
    }
    page.table(&table)
}

pub fn utilisation(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let spans = report.analyses.ranks.iter().flat_map(|rank| {
        let devices = rank.utilisation.iter().map(|device| &device.busy);
        devices.chain(rank.cpu.source.map(|_| &rank.cpu.busy)).map(span_ns)
    });
    let (least, most) = (spans.clone().min().unwrap_or(0), spans.max().unwrap_or(0));
    let (least, most) = (time(least as f64), time(most as f64));
    let whole = if least == most { format!("whole {most}") } else { format!("whole {least} to {most} of each rank") };
    page.heading(
        "Utilisation over time",
        &format!("of the {whole}, host and devices, of which each mark is a part; active = parts with any work"),
    )?;
    let room = page.width.saturating_sub(46).clamp(20, 100);
    let mut table = Table::new(["of*", "mean %", "active %", "<over time"]);
    for rank in &report.analyses.ranks {
        for device in &rank.utilisation {
            let name = format!("rank {} device {}", rank.rank, device.device);
            table.row([name, percent(device.mean), percent(device.active), spark(&device.busy, room, 1.0)]);
        }
    }
    if report.analyses.nodes.iter().any(|node| node.devices > 1) {
        for node in &report.analyses.nodes {
            let name = format!("node {} ({} devices)", node.node.as_deref().unwrap_or("–"), node.devices);
            table.row([name, percent(node.mean), percent(node.active), spark(&node.busy, room, 1.0)]);
        }
    }
    for rank in report.analyses.ranks.iter().filter(|rank| rank.cpu.source.is_some()) {
        let (name, mean, most) = match rank.cpu.source {
            Some("counters") => (format!("rank {} CPU", rank.rank), percent(rank.cpu.mean), 1.0),
            _ => {
                let most = rank.cpu.busy.values.iter().copied().fold(1.0, f64::max);
                (format!("rank {} busy threads", rank.rank), format!("{:.2}", rank.cpu.mean), most)
            }
        };
        table.row([name, mean, percent(rank.cpu.active), spark(&rank.cpu.busy, room, most)]);
    }
    if table.is_empty() { page.line("  nothing ran") } else { page.table(&table) }
}

/// Values as a line of blocks, each the mean of those that fall into its place.
fn spark(series: &Series, room: usize, most: f64) -> String {
    const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let values = &series.values;
    let places = room.min(values.len());
    let block = |place: usize| {
        let (from, to) = (place * values.len() / places, (place + 1) * values.len() / places);
        let part = &values[from..to.max(from + 1)];
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        let level = (mean / most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * 8.0;
        // The least of work is seen.
        BLOCKS[if level > 0.0 { level.round().max(1.0) as usize } else { 0 }]
    };
    (0..places).map(block).collect()
}

/// A head with the unit of its numbers before the mark of what may be left out.
fn in_unit(head: &str, sign: &str) -> String {
    let optional = if head.ends_with('?') { "?" } else { "" };
    format!("{} {sign}{optional}", head.trim_end_matches('?'))
}

pub fn steps(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let steps: Vec<_> =
        report.analyses.ranks.iter().flat_map(|rank| rank.steps.iter().map(move |steps| (rank.rank, steps))).collect();
    if steps.is_empty() {
        return Ok(());
    }
    page.heading("Steps", "by annotation")?;
    let unit = TimeUnit::of(steps.iter().map(|(_, steps)| steps.durations.max_ns).max().unwrap_or(0));
    let sign = unit.sign();
    let mut table = Table::new(
        ["rank", "name*", "<on", "steps"]
            .map(String::from)
            .into_iter()
            .chain(["mean", "std?", "min", "median", "p90?", "p99?", "max"].map(|head| in_unit(head, sign))),
    );
    for (rank, steps) in &steps {
        let of = &steps.durations;
        table.row([
            rank.to_string(),
            steps.name.clone(),
            steps.on.to_owned(),
            count(of.count),
            unit.number(of.mean_ns),
            of.std_ns.map_or("–".into(), |std| unit.number(std)),
            unit.number(of.min_ns as f64),
            unit.number(of.median_ns),
            unit.number(of.p90_ns),
            unit.number(of.p99_ns),
            unit.number(of.max_ns as f64),
        ]);
    }
    page.table(&table)?;
    for (rank, steps) in steps.iter().filter(|(_, steps)| steps.on == "host") {
        if (2..=MOST_STEPS).contains(&steps.instances.len()) {
            each_step(page, *rank, steps)?;
        } else if steps.instances.len() > MOST_STEPS {
            page.line(&format!("\n  {} of rank {rank}, by duration", steps.name))?;
            super::histogram::bars(page, &steps.histogram)?;
        }
    }
    Ok(())
}

fn each_step(page: &mut Page<impl Write>, rank: i64, steps: &profile::analysis::Steps) -> io::Result<()> {
    let longest = steps.durations.max_ns.max(1);
    let room = page.width.saturating_sub(45 + steps.name.chars().count()).clamp(10, 60);
    let mut table = Table::new(["<step", "duration", "device busy %", "<"]);
    for step in &steps.instances {
        let busy = if step.dur > 0 { percent(step.device_busy_ns as f64 / step.dur as f64) } else { "–".into() };
        let bar = "█".repeat((step.dur.max(0) as f64 / longest as f64 * room as f64).round() as usize);
        let name = step.number.map_or(steps.name.clone(), |number| format!("rank {rank} {} {number}", steps.name));
        table.row([name, time(step.dur as f64), busy, bar]);
    }
    page.table(&table)
}

pub fn kernels(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let table = &report.analyses.kernels;
    if table.rows.is_empty() {
        return Ok(());
    }
    let top = report.analyses.options.top;
    let of = ranks_together(report);
    let unit = TimeUnit::of(table.rows.iter().map(|row| row.durations.sum_ns).max().unwrap_or(0));
    let each = TimeUnit::of(table.rows.iter().take(top).map(|row| row.durations.median_ns as i64).max().unwrap_or(0));
    let names = counted(table.rows.len() as u64, "name");
    let about = if top < table.rows.len() { format!("the first {top} of {names}{of}") } else { format!("{names}{of}") };
    page.heading("Kernels by time", &about)?;
    let heads = ["mean", "median?", "max?", "p90?", "min?"].map(|head| in_unit(head, each.sign()));
    let mut lines = Table::new(
        ["name*", "<class?", "runs", "launches?"]
            .map(String::from)
            .into_iter()
            .chain([format!("sum {}", unit.sign()), "% time".into(), "% span?".into()])
            .chain(heads),
    );
    for row in table.rows.iter().take(top) {
        let of = &row.durations;
        lines.row([
            row.name.clone(),
            row.class.to_owned(),
            count(of.count),
            count(row.launches),
            unit.number(of.sum_ns as f64),
            percent(row.share_of_time),
            percent(row.share_of_span),
            each.number(of.mean_ns),
            each.number(of.median_ns),
            each.number(of.max_ns as f64),
            each.number(of.p90_ns),
            each.number(of.min_ns as f64),
        ]);
    }
    if let Some(others) = table.by_time.iter().find(|part| part.name.is_none()) {
        let mut cells =
            vec![format!("{} others", count(others.names)), String::new(), count(others.runs), String::new()];
        cells.extend([unit.number(others.sum_ns as f64), percent(others.share), percent(others.share_of_span)]);
        cells.extend((0..5).map(|_| String::new()));
        lines.row(cells);
    }
    page.table(&if report.has_launches() { lines } else { lines.without("launches") })?;

    page.heading("Kernels by runs", &format!("shares of all runs{of}"))?;
    let mut lines = Table::new(["name*".into(), "runs".into(), "%".into(), format!("sum {}", unit.sign())]);
    for part in &table.by_runs {
        lines.row([part_name(part), count(part.runs), percent(part.share), unit.number(part.sum_ns as f64)]);
    }
    page.table(&lines)
}

fn part_name(part: &Part) -> String {
    part.name.clone().unwrap_or_else(|| format!("{} others", count(part.names)))
}

/// What a table over several ranks says of itself.
pub fn ranks_together(report: &Report) -> String {
    match report.analyses.ranks.len() {
        0 | 1 => String::new(),
        ranks => format!(", {ranks} ranks together"),
    }
}

pub fn kinds(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let analyses = &report.analyses;
    let of = ranks_together(report);
    if !analyses.kernel_types.is_empty() {
        page.heading("Kinds of work", &format!("shares of busy time{of}"))?;
        let mut table = Table::new(["<at once", "time", "%"]);
        for kind in &analyses.kernel_types {
            table.row([kind.classes.join(" + "), time(kind.ns as f64), percent(kind.share)]);
        }
        page.table(&table)?;
    }
    let activity = &analyses.activity;
    let parts = [
        ("kernels", activity.kernel),
        ("copies", activity.memcpy),
        ("fills", activity.memset),
        ("synchronisation", activity.sync),
    ];
    if parts.iter().any(|(_, part)| part.count > 0) {
        let from = activity.sync_from.map_or(String::new(), |from| format!("; synchronisation as the {from} sees it"));
        page.heading("Device activity", &format!("sums of durations{of}{from}"))?;
        let mut table = Table::new(["<activity", "count", "time", "%"]);
        for (name, part) in parts.iter().filter(|(_, part)| part.count > 0) {
            table.row([(*name).to_owned(), count(part.count), time(part.sum_ns as f64), percent(part.share)]);
        }
        page.table(&table)?;
    }
    if !analyses.precisions.parts.is_empty() {
        let about = format!(
            "by time{of}; {} % unknown, {} % in kernels named for tensor cores",
            percent(analyses.precisions.unknown_share),
            percent(analyses.precisions.tensor_core_share)
        );
        page.heading("Precision", &about)?;
        let mut table = Table::new(["<precision", "runs", "time", "%", "by name", "by type", "by operands"]);
        for part in &analyses.precisions.parts {
            let or_nothing = |ns: i64| if ns == 0 { "–".into() } else { time(ns as f64) };
            table.row([
                part.precision.to_owned(),
                count(part.runs),
                time(part.ns as f64),
                percent(part.share),
                or_nothing(part.by_name_ns),
                or_nothing(part.by_dtype_ns),
                or_nothing(part.by_operands_ns),
            ]);
        }
        page.table(&table.without_empty_columns())?;
    }
    Ok(())
}
