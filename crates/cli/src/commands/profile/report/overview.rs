//! What the profile is, what was found, and what was odd.

use std::collections::BTreeMap;
use std::io::{self, Write};

use profile::analysis::RankAnalyses;
use profile::report::Report;
use profile::report::units::{TimeUnit, bytes, count, printable, time, value};

use super::super::table::{Page, Table};

/// Ranks that stand side by side in one table.
const SIDE_BY_SIDE: usize = 8;
/// Columns that a name and its place need, and those of one rank beside them.
const NAME_ROOM: usize = 28;
const RANK_ROOM: usize = 11;

pub fn head(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let about = &report.profile;
    let span = about.span_ns.map_or("empty".into(), |span| format!("{} span", time(span as f64)));
    page.line(&format!("{}  {}", printable(&about.name), about.path))?;
    let created: String = about.created.replace('T', " ").chars().take(19).collect();
    let (ranks, devices) = (counted(about.ranks.len() as u64, "rank"), counted(about.devices, "device"));
    let slices = format!("{} device and {} host slices", count(about.device_slices), count(about.host_slices));
    let size = bytes(about.bytes as f64);
    page.paragraph("", &format!("{created} UTC, {ranks} on {devices}, {span}, {slices}, {size}, {}", about.state))?;
    if about.state != "complete" {
        page.line("the profile is not whole: what follows speaks of what was written so far")?;
    }
    if report.analyses.options.hta_compat {
        page.line("with HTA 0.5.0's filter, rounding and classes")?;
    }
    Ok(())
}

/// `1 rank`, `8 ranks`.
pub fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", count(number), if number == 1 { "" } else { "s" })
}

pub fn findings(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    page.heading("Findings", "most time at stake first; the command below one prints the place")?;
    if report.findings.is_empty() {
        return page.line("  nothing stands out: no rule found time worth a sentence");
    }
    for (at, finding) in report.findings.iter().enumerate() {
        page.paragraph(&format!("  {}. ", at + 1), &printable(&finding.text))?;
        if let Some(link) = &finding.link {
            // Never broken: it is there to be pasted.
            page.line(&format!("     {}", report.command(link)))?;
        }
    }
    Ok(())
}

pub fn annotations(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let ranks = &report.analyses.ranks;
    if ranks.iter().all(|rank| rank.annotations.is_empty()) {
        return Ok(());
    }
    page.heading("Annotations", "longest sums first; --annotation NAME prints a histogram")?;
    if let [rank] = ranks.as_slice() { annotations_of(page, report, rank) } else { annotations_by_rank(page, report) }
}

fn annotations_of(page: &mut Page<impl Write>, report: &Report, rank: &RankAnalyses) -> io::Result<()> {
    let rows = &rank.annotations[..rank.annotations.len().min(report.analyses.options.top)];
    let unit = TimeUnit::of(rows.iter().map(|row| row.durations.max_ns).max().unwrap_or(0));
    let heads = ["sum", "mean", "median", "min", "max"].map(|head| format!("{head} {}", unit.sign()));
    let mut table = Table::new(["name*", "<on?", "count"].map(String::from).into_iter().chain(heads));
    for row in rows {
        let of = &row.durations;
        table.row([
            row.name.clone(),
            row.on.to_owned(),
            count(of.count),
            unit.number(of.sum_ns as f64),
            unit.number(of.mean_ns),
            unit.number(of.median_ns),
            unit.number(of.min_ns as f64),
            unit.number(of.max_ns as f64),
        ]);
    }
    page.table(&table)
}

/// Ranks side by side, or their spread where there are too many.
fn annotations_by_rank(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let ranks = &report.analyses.ranks;
    // By name and place: sum of each rank.
    let mut sums: BTreeMap<(&str, &str), Vec<Option<i64>>> = BTreeMap::new();
    for (at, rank) in ranks.iter().enumerate() {
        for row in &rank.annotations {
            let of_ranks = sums.entry((row.name.as_str(), row.on)).or_insert_with(|| vec![None; ranks.len()]);
            of_ranks[at] = Some(row.durations.sum_ns);
        }
    }
    let whole = |of_ranks: &[Option<i64>]| of_ranks.iter().flatten().fold(0i64, |sum, ns| sum.saturating_add(*ns));
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, of_ranks)| std::cmp::Reverse(whole(of_ranks)));
    rows.truncate(report.analyses.options.top);
    let unit =
        TimeUnit::of(rows.iter().flat_map(|(_, of_ranks)| of_ranks.iter().flatten().copied()).max().unwrap_or(0));
    let number = |ns: Option<i64>| ns.map_or("–".into(), |ns| unit.number(ns as f64));
    if ranks.len() <= SIDE_BY_SIDE && page.width >= NAME_ROOM + RANK_ROOM * ranks.len() {
        let heads = ranks.iter().map(|rank| format!("rank {} {}", rank.rank, unit.sign()));
        let mut table = Table::new(["name*", "<on?"].map(String::from).into_iter().chain(heads));
        for ((name, on), of_ranks) in rows {
            table.row([name.to_owned(), on.to_owned()].into_iter().chain(of_ranks.into_iter().map(number)));
        }
        return page.table(&table);
    }
    let heads = ["mean", "least", "most"].map(|head| format!("{head} {}", unit.sign()));
    let mut table =
        Table::new(["name*", "<on", "ranks"].map(String::from).into_iter().chain(heads).chain(["most: rank".into()]));
    for ((name, on), of_ranks) in rows {
        let known = of_ranks.iter().flatten().count();
        let most = (0..ranks.len()).max_by_key(|&at| of_ranks[at]).unwrap_or(0);
        table.row([
            name.to_owned(),
            on.to_owned(),
            known.to_string(),
            unit.number(whole(&of_ranks) as f64 / known.max(1) as f64),
            number(of_ranks.iter().flatten().copied().min()),
            number(of_ranks[most]),
            ranks[most].rank.to_string(),
        ]);
    }
    page.table(&table)
}

/// What the recorder sampled of the process and its host.
pub fn counters(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    let of = &report.host_counters;
    if of.series.is_empty() {
        return Ok(());
    }
    page.heading("Host counters", "by sample; faults, switches, disk and network since the sample before")?;
    let mut table = Table::new(["rank", "<counter", "series*", "samples?", "first", "mean", "max"]);
    for counter in &of.series {
        let value = |number: f64| value(number, counter.unit.as_deref());
        table.row([
            counter.rank.to_string(),
            counter.name.replace('_', " "),
            counter.series.clone(),
            count(counter.samples as u64),
            value(counter.first),
            value(counter.mean),
            value(counter.max),
        ]);
    }
    let table = if report.analyses.ranks.len() < 2 { table.without("rank") } else { table };
    page.table(&table)?;
    if of.left_out > 0 { page.line(&format!("  and {} more series", of.left_out)) } else { Ok(()) }
}

pub fn ranks(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    page.heading("Ranks and clocks", "offset: what was added to bring a rank onto the first one's clock")?;
    let mut table = Table::new([
        "rank",
        "<from?",
        "of?",
        "host*",
        "offset",
        "left over?",
        "matched?",
        "<by?",
        "resolution?",
        "devices*",
        "source*",
    ]);
    for rank in &report.ranks {
        table.row([
            rank.rank.to_string(),
            rank.rank_from.clone(),
            rank.world_size.map_or(String::new(), |size| size.to_string()),
            rank.host.clone().unwrap_or_default(),
            time(rank.offset_ns as f64),
            rank.residual_ns.map_or(String::new(), |residual| time(residual as f64)),
            if rank.matched_collectives > 0 { count(rank.matched_collectives.unsigned_abs()) } else { String::new() },
            rank.matched_by.clone().unwrap_or_default(),
            time(rank.resolution_ns as f64),
            rank.models(),
            rank.source.clone(),
        ]);
    }
    page.table(&table.without_empty_columns())
}

pub fn diagnostics(page: &mut Page<impl Write>, report: &Report) -> io::Result<()> {
    if report.diagnostics.is_empty() {
        return Ok(());
    }
    page.heading("Diagnostics", "what was odd in the sources")?;
    let mut table = Table::new(["count", "rank", "<code", "meaning*", "first one*"]);
    for diagnostic in &report.diagnostics {
        table.row([
            count(diagnostic.count.unsigned_abs()),
            diagnostic.rank.map_or(String::new(), |rank| rank.to_string()),
            diagnostic.code.clone(),
            diagnostic.meaning.clone(),
            diagnostic.example.clone().unwrap_or_default(),
        ]);
    }
    page.table(&table.without_empty_columns())
}
