//! `trainyard profile import`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use profile::import::{Diagnostic, Options, Summary, import};
use profile::report::units::{bytes, count, fixed, time};

use super::STDOUT;
use super::table::{Page, Table};
use crate::commands::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// Traces, and folders of traces, of one job: Kineto or Chrome JSON (plain, .gz, .zst), an Nsight Systems .sqlite, an .xplane.pb
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Profile directory to make
    #[arg(short, long, value_name = "PATH")]
    out: PathBuf,
    /// Name of the profile [default: that of the directory]
    #[arg(long)]
    name: Option<String>,
    /// Print what was imported and everything odd as one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let summary = import(&args.traces, &args.out, &Options { name: args.name })?;
    if args.json {
        print_json(&summary)?;
    } else {
        print(&summary).context(STDOUT)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(summary: &Summary) -> std::io::Result<()> {
    let mut page = Page::stdout();
    let mut sources = Table::new(["source*", "<format", "<ranks", "events", "on disk", "unpacked"]);
    for source in &summary.sources {
        sources.row([
            source.path.display().to_string(),
            source.format.to_owned(),
            source.ranks.iter().map(i64::to_string).collect::<Vec<_>>().join(", "),
            count(source.events),
            bytes(source.file_bytes as f64),
            bytes(source.bytes as f64),
        ]);
    }
    page.table(&sources)?;

    if summary.ranks.len() > 1 {
        page.heading("Ranks", "clocks aligned to the first rank by the ends of collectives")?;
        let mut ranks = Table::new(["rank", "<known from", "offset", "left over", "collectives", "<matched by"]);
        for rank in &summary.ranks {
            ranks.row([
                rank.rank.to_string(),
                rank.rank_from.to_owned(),
                time(rank.offset_ns as f64),
                rank.residual_ns.map_or("–".into(), |residual| time(residual as f64)),
                count(rank.matched_collectives.unsigned_abs()),
                rank.matched_by.unwrap_or_default().to_owned(),
            ]);
        }
        page.table(&ranks)?;
    }

    let rows: Vec<String> = summary
        .rows
        .iter()
        .filter(|(table, _)| !matches!(*table, "overview" | "ranks" | "diagnostics"))
        .map(|(table, rows)| format!("{} {table}", count(*rows)))
        .collect();
    page.line("")?;
    page.paragraph("rows      ", &rows.join(", "))?;
    let (disk, unpacked) = (sum(summary, |source| source.file_bytes), sum(summary, |source| source.bytes));
    let mut size = vec![bytes(summary.bytes as f64)];
    size.extend(compared(summary.bytes, disk, "its source"));
    if disk != unpacked {
        size.extend(compared(summary.bytes, unpacked, "its source unpacked"));
    }
    page.line(&format!("profile   {} ({})", summary.profile.display(), size.join(", ")))?;
    print_diagnostics(&mut page, &summary.diagnostics)?;
    page.flush()
}

/// `8.1× smaller than its source`; nothing where both are about as large.
fn compared(bytes: u64, other: u64, what: &str) -> Option<String> {
    let (ours, theirs) = (bytes.max(1) as f64, other.max(1) as f64);
    let (ratio, words) = if ours <= theirs { (theirs / ours, "smaller than") } else { (ours / theirs, "the size of") };
    let ratio = fixed(ratio, 1);
    (ratio != "1.0").then(|| format!("{ratio}× {words} {what}"))
}

fn sum(summary: &Summary, of: impl Fn(&profile::import::SourceLine) -> u64) -> u64 {
    summary.sources.iter().map(of).sum()
}

/// One paragraph for each kind of oddity: how often, what it means, where, and the first one.
fn print_diagnostics(page: &mut Page<impl std::io::Write>, diagnostics: &[Diagnostic]) -> std::io::Result<()> {
    if diagnostics.is_empty() {
        return page.line("\ndiagnostics: none; nothing in the input was odd");
    }
    page.heading("Diagnostics", "kept in the profile's table `diagnostics`")?;
    let widest = diagnostics.iter().map(|diagnostic| count(diagnostic.count).len()).max().unwrap_or(0);
    let mut codes: Vec<&str> = Vec::new();
    for diagnostic in diagnostics {
        if codes.contains(&diagnostic.code) {
            continue;
        }
        codes.push(diagnostic.code);
        let same: Vec<&Diagnostic> = diagnostics.iter().filter(|other| other.code == diagnostic.code).collect();
        let total: u64 = same.iter().map(|diagnostic| diagnostic.count).sum();
        let ranks: Vec<String> =
            same.iter().filter_map(|diagnostic| diagnostic.rank).map(|rank| rank.to_string()).collect();
        let of = match ranks.len() {
            0 => String::new(),
            1 => format!(" (rank {})", ranks[0]),
            _ => format!(" (ranks {})", ranks.join(", ")),
        };
        let mark = format!("  {:>widest$}  ", count(total));
        page.paragraph(&mark, &format!("{}: {}{of}", diagnostic.code, diagnostic.meaning))?;
        if let Some(example) = &diagnostic.example {
            let at = diagnostic.example_at.map_or(String::new(), |at| format!(" at byte {}", count(at)));
            let example = profile::report::units::printable(example);
            page.paragraph(&" ".repeat(widest + 4), &format!("e.g. {example}{at}"))?;
        }
    }
    Ok(())
}
