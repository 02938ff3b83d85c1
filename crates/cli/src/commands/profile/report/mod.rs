//! `trainyard profile report`

mod events;
mod histogram;
mod overview;
mod time;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use profile::analysis::Options;
use profile::report::{Report, html};

use super::table::Page;
use super::{STDOUT, open};
use crate::commands::print_json;
use crate::exit::Refused;

#[derive(clap::Args)]
pub struct Args {
    /// Profile directory
    profile: PathBuf,
    /// Ranks to analyse: a number, or `all`
    #[arg(long, value_name = "N|all", default_value = "all", allow_negative_numbers = true)]
    rank: Ranks,
    /// Print as one JSON object, times in ns
    #[arg(long, conflicts_with_all = ["html", "annotation"])]
    json: bool,
    /// Write one self-contained page with all charts
    #[arg(long, value_name = "FILE", conflicts_with = "annotation")]
    html: Option<PathBuf>,
    /// Replace the page if it is there
    #[arg(long, requires = "html")]
    overwrite: bool,
    /// Reproduce the filter, rounding and classes of HTA 0.5.0, to compare numbers
    #[arg(long)]
    hta_compat: bool,
    /// Names in lists; the rest is summed up as one
    #[arg(long, value_name = "K", default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: u16,
    /// Print the durations of this annotation (or span) as a histogram, and nothing else; a name without its number
    /// (`ProfilerStep` for `ProfilerStep#12`) takes all of them
    #[arg(long, value_name = "NAME")]
    annotation: Option<String>,
}

#[derive(Clone, Copy)]
enum Ranks {
    All,
    One(i64),
}

impl std::str::FromStr for Ranks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Ranks::All),
            text => text.parse().map(Ranks::One).map_err(|_| "a rank is a number, or `all`".into()),
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = open(&args.profile)?;
    let rank = match args.rank {
        Ranks::All => None,
        Ranks::One(rank) => Some(rank),
    };
    if let Some(rank) = rank
        && !profile.manifest().ranks.contains(&rank)
    {
        let known: Vec<String> = profile.manifest().ranks.iter().map(i64::to_string).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(Refused(format!("--rank {rank}: the profile has no such rank; it has {known}")).into());
    }
    if let Some(name) = &args.annotation {
        histogram::print(&profile, rank, name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options { hta_compat: args.hta_compat, top: args.top.into(), ..Options::default() };
    if let Some(path) = &args.html
        && path.exists()
        && !args.overwrite
    {
        return Err(Refused(format!("{}: exists already; name another, or add --overwrite", path.display())).into());
    }
    let report = Report::of(&profile, rank, &options)?;
    match &args.html {
        Some(path) => {
            write_page(path, &html::page(&report))?;
            println!("{}", path.display());
        }
        None if args.json => print_json(&report)?,
        None => print(&report).context(STDOUT)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts the page in its place whole, or not at all.
fn write_page(path: &Path, page: &str) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(Refused(format!("cannot write {}: there is no folder {}", path.display(), folder.display())).into());
    }
    let failed = || format!("cannot write {}", path.display());
    let mut file = tempfile::Builder::new()
        .prefix(".report")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)
        .with_context(failed)?;
    file.write_all(page.as_bytes()).with_context(failed)?;
    file.persist(path).map_err(|error| error.error).with_context(failed)?;
    Ok(())
}

fn print(report: &Report) -> std::io::Result<()> {
    let mut page = Page::stdout();
    overview::head(&mut page, report)?;
    overview::findings(&mut page, report)?;
    time::temporal(&mut page, report)?;
    time::utilisation(&mut page, report)?;
    time::steps(&mut page, report)?;
    time::kernels(&mut page, report)?;
    time::kinds(&mut page, report)?;
    events::idle(&mut page, report)?;
    events::launches(&mut page, report)?;
    events::queues(&mut page, report)?;
    events::memory(&mut page, report)?;
    events::stragglers(&mut page, report)?;
    events::critical_paths(&mut page, report)?;
    overview::annotations(&mut page, report)?;
    overview::counters(&mut page, report)?;
    overview::ranks(&mut page, report)?;
    overview::diagnostics(&mut page, report)?;
    page.flush()
}
