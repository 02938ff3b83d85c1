//! Panels about idle time, launches, queues, memory, stragglers, the critical path, and what the profile is made of.

use super::super::{Report, bound_words, units};
use super::svg::{self, Slice};
use super::table::{Cell, Table};
use super::{Panel, Width};
use crate::analysis::critical_path::{Bound, CriticalPath};
use crate::analysis::{Idle, RankAnalyses};

/// Bars of single streams; the table has all.
const MOST_STREAMS: usize = 40;
/// Names on the critical path.
const MOST_NAMES: usize = 40;

pub(super) fn panels(report: &Report) -> Vec<Panel> {
    let panels = [
        overlap(report),
        stragglers(report),
        idle(report),
        launches(report),
        queues(report),
        memory(report),
        critical_paths(report),
        annotations(report),
        Some(ranks(report)),
        diagnostics(report),
    ];
    panels.into_iter().flatten().collect()
}

fn number(value: i64) -> Cell {
    Cell::Number(value as f64, value.to_string())
}

fn overlap(report: &Report) -> Option<Panel> {
    let ranks: Vec<&RankAnalyses> =
        report.analyses.ranks.iter().filter(|rank| rank.overlap.communication_ns > 0).collect();
    let mut table = Table::new(&["rank", "communication", "hidden", "exposed", "hidden %"]);
    let mut bars = Vec::new();
    for rank in &ranks {
        let of = &rank.overlap;
        bars.push((
            format!("rank {}", rank.rank),
            vec![
                svg::part("hidden behind computation", of.overlap_ns, of.communication_ns, "c0"),
                svg::part("exposed", of.exposed_ns, of.communication_ns, "c1"),
            ],
        ));
        table.row([
            number(rank.rank),
            Cell::time(of.communication_ns as f64),
            Cell::time(of.overlap_ns as f64),
            Cell::time(of.exposed_ns as f64),
            of.share.map_or(Cell::none(), Cell::percent),
        ]);
    }
    let whole = ranks.iter().map(|rank| rank.overlap.communication_ns).max()? as f64;
    let keys = svg::keys(&[("hidden behind computation", "c0"), ("exposed", "c1")]);
    Some(Panel {
        id: "overlap",
        title: "Communication behind computation",
        note: "Time with collectives and transfers, with and without a computing kernel beside them.".into(),
        width: if report.analyses.stragglers.method.is_some() { Width::Half } else { Width::Whole },
        body: keys + &svg::stacks("Hidden and exposed communication", &bars, whole) + &table.html(),
    })
}

fn idle(report: &Report) -> Option<Panel> {
    let mut streams: Vec<_> = report
        .analyses
        .ranks
        .iter()
        .flat_map(|rank| rank.idle.iter().map(move |stream| (rank.rank, stream)))
        .filter(|(_, stream)| stream.total_ns > 0)
        .collect();
    streams.sort_by_key(|(_, stream)| std::cmp::Reverse(stream.total_ns));
    let longest = streams.first()?.1.total_ns as f64;
    let mut table =
        Table::new(&["rank", "device", "stream", "idle", "host too late", "between kernels", "other", "longest gap"]);
    let mut bars = Vec::new();
    for (rank, stream) in &streams {
        let part = |name, idle: &Idle, colour| svg::part(name, idle.gaps.sum_ns, stream.total_ns, colour);
        bars.push((
            format!("rank {rank} stream {}", stream.stream),
            vec![
                part("host too late", &stream.host_wait, "c4"),
                part("between kernels", &stream.kernel_wait, "c7"),
                part("other", &stream.other, "idle"),
            ],
        ));
        let longest = [&stream.host_wait, &stream.kernel_wait, &stream.other];
        table.row([
            number(*rank),
            number(stream.device),
            number(stream.stream),
            Cell::time(stream.total_ns as f64),
            Cell::time(stream.host_wait.gaps.sum_ns as f64),
            Cell::time(stream.kernel_wait.gaps.sum_ns as f64),
            Cell::time(stream.other.gaps.sum_ns as f64),
            Cell::time(longest.iter().map(|idle| idle.gaps.max_ns).max().unwrap_or(0) as f64),
        ]);
    }
    bars.truncate(MOST_STREAMS);
    let keys = svg::keys(&[
        ("host too late with the launch", "c4"),
        ("between kernels", "c7"),
        ("other: another stream, a resource", "idle"),
    ]);
    Some(Panel {
        id: "idle",
        title: "Why streams were idle",
        note: "Gaps between the events of each stream.".into(),
        width: Width::Whole,
        body: format!(
            "{keys}{}<details><summary>Table</summary>{}</details>",
            svg::stacks("Idle time of each stream by cause", &bars, longest),
            table.html()
        ),
    })
}

fn launches(report: &Report) -> Option<Panel> {
    let options = &report.analyses.options;
    let mut table = Table::new(&[
        "rank",
        "launched",
        "without call",
        "before call",
        "call median",
        "call p99",
        "event median",
        "delay median",
        "delay p99",
        "runs ahead, median",
        "short",
        "slow calls",
        "late starts",
    ]);
    for rank in report.analyses.ranks.iter().filter(|rank| rank.launches.pairs > 0) {
        let of = &rank.launches;
        table.row([
            number(rank.rank),
            Cell::count(of.pairs),
            Cell::count(of.without_launch),
            Cell::count(of.before_launch),
            Cell::time(of.call.median_ns),
            Cell::time(of.call.p99_ns),
            Cell::time(of.event.median_ns),
            Cell::time(of.delay.median_ns),
            Cell::time(of.delay.p99_ns),
            Cell::time(of.run_ahead.median_ns),
            Cell::percent(of.short.share),
            Cell::percent(of.slow_calls.share),
            Cell::percent(of.long_delays.share),
        ]);
    }
    (!table.is_empty()).then(|| Panel {
        id: "launches",
        title: "Launches",
        note: format!(
            "Short: the event took less than its call. Slow: calls over {}. Late: the event began {} or more after its call.",
            units::time(options.runtime_cutoff_ns as f64),
            units::time(options.launch_delay_cutoff_ns as f64)
        ),
        width: Width::Whole,
        body: table.html(),
    })
}

fn queues(report: &Report) -> Option<Panel> {
    let mut table = Table::new(&[
        "rank",
        "device",
        "stream",
        "mean over time",
        "mean at changes",
        "median",
        "max",
        "empty",
        "full",
    ]);
    for rank in &report.analyses.ranks {
        for queue in &rank.queues {
            let value = |value: f64, decimals| Cell::Number(value, units::fixed(value, decimals));
            table.row([
                number(rank.rank),
                number(queue.device),
                number(queue.stream),
                value(queue.mean_over_time, 2),
                value(queue.at_changes.mean, 2),
                value(queue.at_changes.median, 0),
                value(queue.at_changes.max, 0),
                Cell::time(queue.empty_ns as f64),
                Cell::time(queue.full_ns as f64),
            ]);
        }
    }
    let limit = units::count(report.analyses.options.queue_limit.unsigned_abs());
    (!table.is_empty()).then(|| Panel {
        id: "queue",
        title: "Queue length",
        note: format!("Events launched and not begun, by stream; launch calls block when {limit} wait."),
        width: Width::Whole,
        body: table.html(),
    })
}

fn memory(report: &Report) -> Option<Panel> {
    let mut table =
        Table::new(&["rank", "operation", "count", "time", "mean", "bytes", "GB/s", "peak GB/s", "pageable"]);
    let mut directions: Vec<(&str, i64)> = Vec::new();
    for rank in &report.analyses.ranks {
        for of in &rank.memory {
            match directions.iter_mut().find(|(name, _)| *name == of.direction) {
                Some((_, ns)) => *ns = ns.saturating_add(of.durations.sum_ns),
                None => directions.push((&of.direction, of.durations.sum_ns)),
            }
            let rate = |value: f64| Cell::Number(value, units::fixed(value, 1));
            table.row([
                number(rank.rank),
                Cell::Name(of.direction.clone(), 70),
                Cell::count(of.durations.count),
                Cell::time(of.durations.sum_ns as f64),
                Cell::time(of.durations.mean_ns),
                if of.with_bytes > 0 {
                    Cell::Number(of.bytes as f64, units::bytes(of.bytes as f64))
                } else {
                    Cell::none()
                },
                of.mean_gb_per_s.map_or(Cell::none(), rate),
                if of.bandwidth.count > 0 { rate(of.bandwidth.max) } else { Cell::none() },
                Cell::time(of.pageable.sum_ns as f64),
            ]);
        }
    }
    if table.is_empty() {
        return None;
    }
    directions.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    let whole = directions.iter().map(|(_, ns)| *ns).fold(0, i64::saturating_add);
    let part =
        |(at, (name, ns)): (usize, &(&str, i64))| svg::part(*name, *ns, whole, svg::COLOURS[at % svg::COLOURS.len()]);
    let slices: Vec<Slice> = directions.iter().enumerate().map(part).collect();
    Some(Panel {
        id: "memory",
        title: if report.has_gpus() { "GPU memory operations" } else { "Device memory operations" },
        note: "Copies and fills by direction; GB/s over their own time.".into(),
        width: Width::Whole,
        body: svg::ring("Memory operations", "", &slices) + &table.html(),
    })
}

fn stragglers(report: &Report) -> Option<Panel> {
    let of = &report.analyses.stragglers;
    let method = of.method?;
    let matched = method != "late start";
    let whole = of.ranks.iter().map(|rank| rank.made_others_wait_ns.max(rank.waited_ns)).max().unwrap_or(0);
    let mut table = Table::new(&[
        "rank",
        "came last",
        "late, median",
        "late, p90",
        "waited",
        "made others wait",
        "late start",
        "verdict",
    ]);
    let mut bars = Vec::new();
    for rank in &of.ranks {
        bars.push((
            format!("rank {}", rank.rank),
            vec![svg::part("made others wait", rank.made_others_wait_ns, whole, "c4")],
        ));
        let some = |cell: Cell| if matched { cell } else { Cell::none() };
        table.row([
            number(rank.rank),
            some(Cell::count(rank.last)),
            some(Cell::time(rank.lateness.median_ns)),
            some(Cell::time(rank.lateness.p90_ns)),
            some(Cell::time(rank.waited_ns as f64)),
            some(Cell::time(rank.made_others_wait_ns as f64)),
            rank.late_start.map_or(Cell::none(), |start| Cell::Number(start, units::fixed(start, 3))),
            Cell::text(if rank.straggler { "straggler" } else { "" }),
        ]);
    }
    let note = match matched {
        true => format!(
            "{} collectives matched by {method}; all ranks together waited {} for the last to come. Bars: what each made others wait.",
            units::count(of.collectives),
            units::time(of.waited_ns as f64)
        ),
        false => format!("By {method}: no collectives could be matched."),
    };
    let chart =
        if matched { svg::stacks("What each rank made others wait", &bars, whole as f64) } else { String::new() };
    Some(Panel {
        id: "stragglers",
        title: "Stragglers",
        note,
        width: if report.analyses.ranks.iter().any(|rank| rank.overlap.communication_ns > 0) {
            Width::Half
        } else {
            Width::Whole
        },
        body: chart + &table.html(),
    })
}

/// The colour of a bound class.
fn colour(bound: Bound) -> &'static str {
    match bound {
        Bound::GpuCompute => "c0",
        Bound::GpuCommunication => "c1",
        Bound::MemoryCopy => "c2",
        Bound::CpuBound => "c4",
        Bound::DataLoading => "c5",
        Bound::LaunchOverhead => "c3",
        Bound::KernelKernelOverhead => "c7",
    }
}

fn critical_paths(report: &Report) -> Option<Panel> {
    let paths = &report.critical_paths;
    let longest = paths.iter().map(|path| path.length_ns).max()? as f64;
    let mut seen: Vec<Bound> = Vec::new();
    let bar = |path: &CriticalPath| {
        let parts = path
            .bounds
            .iter()
            .map(|part| svg::part(bound_words(part.bound), part.ns, path.length_ns, colour(part.bound)));
        (format!("rank {}", path.rank), parts.collect())
    };
    let bars: Vec<(String, Vec<Slice>)> = paths.iter().map(bar).collect();
    for part in paths.iter().flat_map(|path| &path.bounds) {
        if !seen.contains(&part.bound) {
            seen.push(part.bound);
        }
    }
    seen.sort();
    let legend: Vec<(&str, &str)> = seen.iter().map(|bound| (bound_words(*bound), colour(*bound))).collect();
    let mut table = Table::new(&["rank", "name", "bound", "parts", "time", "of the path"]);
    for path in paths {
        for part in path.names.iter().take(MOST_NAMES) {
            table.row([
                number(path.rank),
                Cell::Name(part.name.clone(), 70),
                Cell::text(bound_words(part.bound)),
                Cell::count(part.count),
                Cell::time(part.ns as f64),
                Cell::Share(part.share, colour(part.bound)),
            ]);
        }
    }
    Some(Panel {
        id: "critical-path",
        title: "Critical path",
        note: "The longest chain of work in which each part waits for the one before, by what bounds it.".into(),
        width: Width::Whole,
        body: format!(
            "{}{}<details><summary>What lies on it</summary>{}</details>",
            svg::keys(&legend),
            svg::stacks("Critical path by bound class", &bars, longest),
            table.html()
        ),
    })
}

fn annotations(report: &Report) -> Option<Panel> {
    let mut table = Table::new(&["rank", "name", "on", "count", "sum", "mean", "median", "min", "max"]);
    for rank in &report.analyses.ranks {
        for annotation in rank.annotations.iter().take(MOST_NAMES) {
            let of = &annotation.durations;
            table.row([
                number(rank.rank),
                Cell::Name(annotation.name.clone(), 70),
                Cell::text(annotation.on),
                Cell::count(of.count),
                Cell::time(of.sum_ns as f64),
                Cell::time(of.mean_ns),
                Cell::time(of.median_ns),
                Cell::time(of.min_ns as f64),
                Cell::time(of.max_ns as f64),
            ]);
        }
    }
    (!table.is_empty()).then(|| Panel {
        id: "annotations",
        title: "Annotations",
        note: "The longest of each rank; profile report --annotation NAME prints the histogram of one.".into(),
        width: Width::Whole,
        body: format!("<details><summary>Table</summary>{}</details>", table.html()),
    })
}

fn ranks(report: &Report) -> Panel {
    let mut table = Table::new(&[
        "rank",
        "known from",
        "ranks in the job",
        "host",
        "offset",
        "left over",
        "collectives matched",
        "by",
        "resolution",
        "devices",
        "source",
    ]);
    for rank in &report.ranks {
        table.row([
            number(rank.rank),
            Cell::text(rank.rank_from.as_str()),
            rank.world_size.map_or(Cell::none(), number),
            Cell::text(rank.host.clone().unwrap_or_default()),
            Cell::time(rank.offset_ns as f64),
            rank.residual_ns.map_or(Cell::none(), |residual| Cell::time(residual as f64)),
            Cell::count(rank.matched_collectives.unsigned_abs()),
            Cell::text(rank.matched_by.clone().unwrap_or_default()),
            Cell::time(rank.resolution_ns as f64),
            Cell::Name(rank.models(), 70),
            Cell::Name(rank.source.clone(), 70),
        ]);
    }
    Panel {
        id: "alignment",
        title: "Ranks and clocks",
        note: "Offset: what was added to bring a rank onto the first one's clock; left over: the spread that stays."
            .into(),
        width: Width::Whole,
        body: table.html(),
    }
}

fn diagnostics(report: &Report) -> Option<Panel> {
    let mut table = Table::new(&["count", "rank", "what", "meaning", "first one"]);
    for diagnostic in &report.diagnostics {
        table.row([
            Cell::count(diagnostic.count.unsigned_abs()),
            diagnostic.rank.map_or(Cell::none(), number),
            Cell::text(diagnostic.code.as_str()),
            Cell::Prose(diagnostic.meaning.clone()),
            Cell::Prose(diagnostic.example.clone().unwrap_or_default()),
        ]);
    }
    (!table.is_empty()).then(|| Panel {
        id: "diagnostics",
        title: "Diagnostics",
        note: "What was odd in the sources, and what was done about it.".into(),
        width: Width::Whole,
        body: table.html(),
    })
}
