//! Every number of the dashboard from a stored profile.

use std::path::PathBuf;
use std::time::Instant;

use profile::analysis::{Options, analyse};
use profile::{Host, Run};
use trace::Profile;

/// Load a profile and compute every number of the dashboard, once
#[derive(clap::Args)]
pub struct Args {
    /// The profile directory
    profile: PathBuf,
}

/// Prints how long it took, from the closed profile to the last number.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let start = Instant::now();
    let profile = Profile::open(&args.profile)?;
    let run = Run::load(&profile, None, Host::Slices)?;
    let load = start.elapsed().as_secs_f64();
    let analyses = analyse(&run, &profile, &Options::default())?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({"seconds": seconds, "load": load, "ranks": analyses.ranks.len()}));
    Ok(())
}
