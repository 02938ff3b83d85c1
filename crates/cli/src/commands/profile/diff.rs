//! `trainyard profile diff`

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use profile::analysis::diff::{self, Change, Changes, Comparison, Diff, Scope, Side, diff};
use profile::analysis::{Analyses, Options, analyse};
use profile::report::units::{TimeUnit, count, fixed, percent, time};
use profile::{Host, Run};
use trace::Profile;

use super::table::{Page, Table};
use super::{STDOUT, open};
use crate::commands::print_json;

#[derive(clap::Args)]
pub struct Args {
    /// The profile to compare with
    control: PathBuf,
    /// The profile that is compared
    test: PathBuf,
    /// Rows of each table
    #[arg(long, value_name = "K", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    top: u16,
    /// Means that differ by less than this count as the same
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    tolerance: f64,
    /// Names that differ in template arguments, argument lists or addresses only are one name: kernels of other versions, other GPUs
    #[arg(long)]
    similar_names: bool,
    /// Print as one JSON object, times in ns
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (control, test) = (open(&args.control)?, open(&args.test)?);
    let ((control_run, control_analyses), (test_run, test_analyses)) = thread::scope(|scope| {
        let other = scope.spawn(|| load(&test));
        let one = load(&control);
        anyhow::Ok((one?, other.join().expect("an analysis does not panic")?))
    })?;
    let options =
        diff::Options { top: args.top.into(), tolerance: args.tolerance / 100.0, similar_names: args.similar_names };
    let control = Side { run: &control_run, analyses: &control_analyses };
    let test = Side { run: &test_run, analyses: &test_analyses };
    let found = diff(control, test, &options);
    if args.json {
        print_json(&found)?;
    } else {
        print(&found, &args).context(STDOUT)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load(profile: &Profile) -> anyhow::Result<(Run, Analyses)> {
    let run = Run::load(profile, None, Host::Slices)?;
    let analyses = analyse(&run, profile, &Options::default())?;
    Ok((run, analyses))
}

fn print(found: &Diff, args: &Args) -> io::Result<()> {
    let mut page = Page::stdout();
    page.line(&format!("control  {}", args.control.display()))?;
    page.line(&format!("test     {}", args.test.display()))?;
    page.line(&match &found.scope {
        Scope::CommonRanks(ranks) if ranks.len() == 1 => format!("rank {} of both", ranks[0]),
        Scope::CommonRanks(ranks) => format!("the {} ranks that both have, together and one by one", ranks.len()),
        Scope::AllRanks { control, test } => {
            format!("no rank in common: {} of the control and {} of the test, all together", list(control), list(test))
        }
    })?;
    comparison(&mut page, &found.total)?;
    for rank in &found.ranks {
        page.heading(&format!("Rank {}", rank.rank.unwrap_or_default()), "")?;
        breakdown(&mut page, rank)?;
    }
    page.flush()
}

fn list(ranks: &[i64]) -> String {
    let numbers: Vec<String> = ranks.iter().map(i64::to_string).collect();
    match numbers.as_slice() {
        [] => "none".into(),
        [only] => format!("rank {only}"),
        several => format!("ranks {}", several.join(", ")),
    }
}

fn comparison(page: &mut Page<impl Write>, of: &Comparison) -> io::Result<()> {
    page.heading("Time", "shares of the span; difference = test − control")?;
    breakdown(page, of)?;
    if !of.steps.is_empty() {
        page.heading("Steps", "")?;
        let mut table = Table::new(["name*", "control", "test", "mean, control", "mean, test", "test/control"]);
        for step in &of.steps {
            table.row([
                step.name.clone(),
                count(step.control_count),
                count(step.test_count),
                time(step.control_mean_ns),
                time(step.test_mean_ns),
                if step.ratio > 0.0 { fixed(step.ratio, 3) } else { "–".into() },
            ]);
        }
        page.table(&table)?;
    }
    changes(page, "Kernels, copies and fills", &of.kernels)?;
    changes(page, "Operators", &of.operators)
}

fn breakdown(page: &mut Page<impl Write>, of: &Comparison) -> io::Result<()> {
    let mut table = Table::new(["<", "control", "%", "test", "%", "difference"]);
    for measure in of.breakdown.iter().filter(|measure| measure.control_ns != 0 || measure.test_ns != 0) {
        table.row([
            measure.name.replace('_', " "),
            time(measure.control_ns as f64),
            percent(measure.control_share),
            time(measure.test_ns as f64),
            percent(measure.test_share),
            signed(measure.diff_ns),
        ]);
    }
    page.table(&table)
}

fn signed(ns: i64) -> String {
    format!("{}{}", if ns > 0 { "+" } else { "" }, time(ns as f64))
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Removed => "removed",
        Change::MoreOften => "more often",
        Change::LessOften => "less often",
        Change::Slower => "slower",
        Change::Faster => "faster",
        Change::Same => "same",
    }
}

fn changes(page: &mut Page<impl Write>, title: &str, of: &Changes) -> io::Result<()> {
    if of.rows.is_empty() {
        return Ok(());
    }
    let kinds: Vec<String> = of
        .kinds
        .iter()
        .map(|kind| format!("{} {} ({})", count(kind.names), word(kind.change), signed(kind.diff_ns)))
        .collect();
    page.heading(title, "")?;
    page.paragraph(
        "  ",
        &format!("{} → {}: {}", time(of.control_ns as f64), time(of.test_ns as f64), kinds.join(", ")),
    )?;
    let largest = of.rows.iter().map(|row| row.control_ns.max(row.test_ns)).max().unwrap_or(0);
    let unit = TimeUnit::of(largest);
    let mut table = Table::new([
        "name*".to_owned(),
        "<change".into(),
        "control".into(),
        "test".into(),
        format!("control {}", unit.sign()),
        format!("test {}", unit.sign()),
        format!("difference {}", unit.sign()),
        "mean, control?".into(),
        "mean, test?".into(),
    ]);
    for row in &of.rows {
        let mean = |mean: Option<f64>| mean.map_or("–".into(), time);
        let plus = if row.diff_ns > 0 { "+" } else { "" };
        table.row([
            row.name.clone(),
            word(row.change).to_owned(),
            count(row.control_count),
            count(row.test_count),
            unit.number(row.control_ns as f64),
            unit.number(row.test_ns as f64),
            format!("{plus}{}", unit.number(row.diff_ns as f64)),
            mean(row.control_mean_ns),
            mean(row.test_mean_ns),
        ]);
    }
    page.table(&table)
}
