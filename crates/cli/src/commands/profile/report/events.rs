//! Idle time, launches, queues, memory, stragglers and the critical path.

use std::io::{self, Write};

use profile::analysis::Idle;
use profile::analysis::critical_path::Bound;
use profile::report::units::{bytes, count, fixed, percent, time};
use profile::report::{Report, bound_words};

use super::super::table::{Page, Table};
use super::super::time_and_share;

/// Streams with less than this of their rank's idle time are left out of a long list.
const MOST_STREAMS: usize = 32;
/// How stragglers are found where no collectives match.
const LATE_START: &str = "late start";
/// Ranks whose path is shown name by name.
const MOST_PATHS: usize = 2;

pub fn idle(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let mut streams: Vec<_> = report
        .analyses
        .ranks
        .iter()
        .flat_map(|rank| rank.idle.iter().map(move |stream| (rank.rank, stream)))
        .filter(|(_, stream)| stream.total_ns > 0)
        .collect();
    if streams.is_empty() {
        return Ok(());
    }
    page.heading("Why streams were idle", "between their events; shares of the stream's idle time")?;
    let left_out = streams.len().saturating_sub(MOST_STREAMS);
    if left_out > 0 {
        streams.sort_by_key(|(_, stream)| std::cmp::Reverse(stream.total_ns));
        streams.truncate(MOST_STREAMS);
    }
    let mut table =
        Table::new(["rank", "device?", "stream", "idle", "host too late", "between kernels", "other", "longest?"]);
    for (rank, stream) in streams {
        let part = |idle: &Idle| time_and_share(idle.gaps.sum_ns, idle.share);
        let longest = [&stream.host_wait, &stream.kernel_wait, &stream.other];
        let longest = longest.iter().map(|idle| idle.gaps.max_ns).max().unwrap_or(0);
        table.row([
            rank.to_string(),
            stream.device.to_string(),
            stream.stream.to_string(),
            time(stream.total_ns as f64),
            part(&stream.host_wait),
            part(&stream.kernel_wait),
            part(&stream.other),
            time(longest as f64),
        ]);
    }
    page.table(&table)?;
    if left_out > 0 { page.line(&format!("  and {left_out} streams that were idle for less")) } else { Ok(()) }
}

pub fn launches(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let ranks: Vec<_> = report.analyses.ranks.iter().filter(|rank| rank.launches.pairs > 0).collect();
    if ranks.is_empty() {
        return Ok(());
    }
    let options = &report.analyses.options;
    page.heading(
        "Launches",
        &format!(
            "slow: calls over {}; late: {} and more from call to start; short: shorter than their call",
            time(options.runtime_cutoff_ns as f64),
            time(options.launch_delay_cutoff_ns as f64)
        ),
    )?;
    let mut table = Table::new([
        "rank",
        "launched",
        "without call?",
        "before call?",
        "call median",
        "call p99?",
        "event median?",
        "delay median",
        "delay p99?",
        "ahead median?",
        "short %",
        "slow %",
        "late %",
    ]);
    for rank in ranks {
        let of = &rank.launches;
        let or_nothing = |number: u64| if number == 0 { String::new() } else { count(number) };
        let short = |ns: f64| if of.pairs == 0 { "–".into() } else { time(ns) };
        table.row([
            rank.rank.to_string(),
            count(of.pairs),
            or_nothing(of.without_launch),
            or_nothing(of.before_launch),
            short(of.call.median_ns),
            short(of.call.p99_ns),
            short(of.event.median_ns),
            short(of.delay.median_ns),
            short(of.delay.p99_ns),
            short(of.run_ahead.median_ns),
            percent(of.short.share),
            percent(of.slow_calls.share),
            percent(of.long_delays.share),
        ]);
    }
    page.table(&table.without_empty_columns())
}

pub fn queues(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let mut queues: Vec<_> =
        report.analyses.ranks.iter().flat_map(|rank| rank.queues.iter().map(move |queue| (rank.rank, queue))).collect();
    if queues.is_empty() {
        return Ok(());
    }
    page.heading(
        "Queue length",
        &format!(
            "events launched and not begun; full at {}",
            count(report.analyses.options.queue_limit.unsigned_abs())
        ),
    )?;
    let left_out = queues.len().saturating_sub(MOST_STREAMS);
    if left_out > 0 {
        queues.sort_by(|a, b| b.1.mean_over_time.total_cmp(&a.1.mean_over_time));
        queues.truncate(MOST_STREAMS);
    }
    let mut table = Table::new([
        "rank",
        "device",
        "stream",
        "mean over time",
        "mean at changes?",
        "median?",
        "max",
        "empty",
        "%",
        "full",
    ]);
    for (rank, queue) in queues {
        let share = if queue.span_ns > 0 { queue.empty_ns as f64 / queue.span_ns as f64 } else { f64::NAN };
        table.row([
            rank.to_string(),
            queue.device.to_string(),
            queue.stream.to_string(),
            fixed(queue.mean_over_time, 2),
            fixed(queue.at_changes.mean, 2),
            fixed(queue.at_changes.median, 0),
            fixed(queue.at_changes.max, 0),
            time(queue.empty_ns as f64),
            percent(share),
            if queue.full_ns > 0 { time(queue.full_ns as f64) } else { "–".into() },
        ]);
    }
    page.table(&table.without_empty_columns())?;
    if left_out > 0 { page.line(&format!("  and {left_out} streams with shorter queues")) } else { Ok(()) }
}

pub fn memory(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let operations: Vec<_> = report
        .analyses
        .ranks
        .iter()
        .flat_map(|rank| rank.memory.iter().map(move |operation| (rank.rank, operation)))
        .collect();
    if operations.is_empty() {
        return Ok(());
    }
    page.heading("Memory operations", "GB/s over their own time")?;
    let mut table = Table::new([
        "rank",
        "<operation",
        "count",
        "time",
        "mean",
        "max?",
        "bytes",
        "GB/s",
        "peak GB/s",
        "pageable?",
        "pageable bytes?",
    ]);
    for (rank, of) in operations {
        let some = |yes: bool, text: String| if yes { text } else { String::new() };
        table.row([
            rank.to_string(),
            of.direction.clone(),
            count(of.durations.count),
            time(of.durations.sum_ns as f64),
            time(of.durations.mean_ns),
            time(of.durations.max_ns as f64),
            some(of.with_bytes > 0, bytes(of.bytes as f64)),
            of.mean_gb_per_s.map_or(String::new(), |rate| fixed(rate, 1)),
            some(of.bandwidth.count > 0, fixed(of.bandwidth.max, 1)),
            some(of.pageable.count > 0, time(of.pageable.sum_ns as f64)),
            some(of.pageable.count > 0, bytes(of.pageable_bytes as f64)),
        ]);
    }
    page.table(&table.without_empty_columns())
}

pub fn stragglers(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let stragglers = &report.analyses.stragglers;
    let Some(method) = stragglers.method else { return Ok(()) };
    let about = match method {
        method if method != LATE_START => format!(
            "{} collectives matched by {method}; all ranks together waited {} for the last to come",
            count(stragglers.collectives),
            time(stragglers.waited_ns as f64)
        ),
        method => format!("by {method}, as HTA has it: no collectives could be matched"),
    };
    page.heading("Stragglers", &about)?;
    let mut table = Table::new([
        "rank",
        "came last",
        "late by, median?",
        "late by, p90?",
        "waited",
        "made others wait",
        "late start",
        "<",
    ]);
    for of in &stragglers.ranks {
        let matched = method != LATE_START;
        let some = |text: String| if matched { text } else { String::new() };
        table.row([
            of.rank.to_string(),
            some(count(of.last)),
            some(time(of.lateness.median_ns)),
            some(time(of.lateness.p90_ns)),
            some(time(of.waited_ns as f64)),
            some(time(of.made_others_wait_ns as f64)),
            of.late_start.map_or(String::new(), |start| fixed(start, 3)),
            if of.straggler { "straggler".into() } else { String::new() },
        ]);
    }
    page.table(&table.without_empty_columns())
}

pub fn critical_paths(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    if report.critical_paths.is_empty() {
        return Ok(());
    }
    page.heading("Critical path", "what bounds the longest chain of work; shares of its length in %")?;
    let mut bounds: Vec<Bound> =
        report.critical_paths.iter().flat_map(|path| path.bounds.iter().map(|part| part.bound)).collect();
    bounds.sort();
    bounds.dedup();
    let heads = bounds.iter().map(|bound| match bound {
        Bound::KernelKernelOverhead => "gaps",
        Bound::LaunchOverhead => "launch",
        Bound::DataLoading => "loading",
        Bound::GpuCommunication => "comm.",
        other => bound_words(*other),
    });
    let mut table = Table::new(["rank", "span?", "path", "% of span?"].into_iter().chain(heads));
    for path in &report.critical_paths {
        let share = |bound: &Bound| {
            let part = path.bounds.iter().find(|part| part.bound == *bound);
            part.map_or("–".into(), |part| percent(part.share))
        };
        let mut cells = vec![
            path.rank.to_string(),
            time(path.span_ns as f64),
            time(path.length_ns as f64),
            percent(path.length_ns as f64 / path.span_ns.max(1) as f64),
        ];
        cells.extend(bounds.iter().map(share));
        table.row(cells);
    }
    page.table(&table)?;
    if report.critical_paths.len() > MOST_PATHS {
        return page.line("  --rank N says what lies on the path of one");
    }
    for path in &report.critical_paths {
        page.line("")?;
        let title = format!("on the path of rank {}*", path.rank);
        let mut table = Table::new([title.as_str(), "<bound by", "parts", "time", "%"]);
        for part in path.names.iter().take(report.analyses.options.top) {
            table.row([
                part.name.clone(),
                bound_words(part.bound).to_owned(),
                count(part.count),
                time(part.ns as f64),
                percent(part.share),
            ]);
        }
        page.table(&table)?;
    }
    Ok(())
}
