//! `trainyard train`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use train::job::Job;
use train::{Outcome, ProfileRequest, Window};

use super::{Threads, print_json};
use crate::exit::INTERRUPTED;
use crate::progress::Progress;

#[derive(clap::Args)]
pub struct Args {
    /// The job file (TOML); docs/job-file.md explains every key
    job: PathBuf,
    /// Override a key of the job file, such as optimizer.lr=3e-5; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Run directory, instead of the job's `out`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Go on from the newest checkpoint of the run directory, bit for bit
    #[arg(long)]
    resume: bool,
    /// Record a profile in the run directory: of the whole run, or of the updates A to B-1
    #[arg(long, value_name = "steps=A..B", num_args = 0..=1)]
    profile: Option<Option<Window>>,
    #[command(flatten)]
    threads: Threads,
    /// Print the outcome as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut job = Job::load(&args.job, &args.sets).map_err(train::TrainError::from)?;
    if let Some(out) = &args.out {
        job.out = out.clone();
    }
    job.threads = args.threads.count().or(job.threads);
    let stop = stop_on_signals().context("cannot handle signals")?;
    let mut progress = Progress::new();
    let profile = args.profile.map(|window| window.map_or(ProfileRequest::Whole, ProfileRequest::Updates));
    let outcome = train::run(&job, args.resume, profile, &stop, &mut progress);
    progress.finish();
    let outcome = outcome?;
    if args.json {
        print_json(&outcome)?;
    } else {
        print(&outcome).context("cannot write to standard output")?;
    }
    Ok(match &outcome.interrupted {
        None => ExitCode::SUCCESS,
        Some(path) => {
            let command = continue_command(&args, outcome.steps);
            eprintln!("interrupted; saved `{}`; continue with: {command}", path.display());
            ExitCode::from(INTERRUPTED)
        }
    })
}

/// The command that goes on with what `args` began, after `steps` updates, to be pasted into a shell.
fn continue_command(args: &Args, steps: u64) -> String {
    let mut words = vec!["trainyard".to_string(), "train".into(), args.job.display().to_string()];
    words.extend(args.sets.iter().flat_map(|set| ["--set".to_string(), set.clone()]));
    words.extend(args.out.iter().flat_map(|out| ["--out".to_string(), out.display().to_string()]));
    words.extend(args.threads.count().iter().flat_map(|n| ["--threads".to_string(), n.to_string()]));
    words.push("--resume".into());
    match args.profile {
        Some(None) => words.push("--profile".into()),
        // What is left of a range that was begun is another range, which is for the user to ask for.
        Some(Some(window)) if steps < window.first => words.extend(["--profile".into(), window.to_string()]),
        _ => {}
    }
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

/// `word` as a POSIX shell reads it back.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The first Ctrl-C or SIGTERM asks the run to stop after its update, the second one ends the process.
fn stop_on_signals() -> std::io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let (asked, mut signals) = (stop.clone(), Signals::new([SIGINT, SIGTERM])?);
    std::thread::spawn(move || {
        for _ in signals.forever() {
            if asked.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(INTERRUPTED));
            }
            eprintln!("stopping: the update at work is finished and saved; once more to quit without saving");
        }
    });
    Ok(stop)
}

fn print(outcome: &Outcome) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let speed = format!("{:.1} samples/s, {:.0} tokens/s", outcome.samples_per_s, outcome.tokens_per_s);
    let memory = outcome.peak_rss_bytes as f64 / (1 << 20) as f64;
    writeln!(out, "{} updates, {speed}, peak memory {memory:.0} MiB", outcome.steps)?;
    if let Some(report) = &outcome.eval {
        writeln!(out, "\n{report}")?;
    }
    if let Some(dir) = outcome.model_dir.as_ref().filter(|_| outcome.interrupted.is_none()) {
        writeln!(out, "model: {}", dir.display())?;
    }
    if let Some(dir) = &outcome.profile {
        writeln!(out, "profile: {}", dir.display())?;
    }
    Ok(())
}
