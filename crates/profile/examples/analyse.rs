//! Times what a dashboard needs of a stored profile: `analyse RUN.profile [TIMES]`. With `--json` it prints the numbers instead.

use std::path::PathBuf;
use std::time::Instant;

use profile::analysis::{Options, analyse};
use profile::{Host, Run};
use trace::Profile;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = arguments.first().map(PathBuf::from) else {
        return Err("usage: analyse RUN.profile [TIMES | --json]".into());
    };
    let json = arguments.get(1).is_some_and(|argument| argument == "--json");
    let times: usize = if json { 1 } else { arguments.get(1).map_or(Ok(3), |times| times.parse())? };
    for _ in 0..times {
        let start = Instant::now();
        let profile = Profile::open(&path)?;
        let run = Run::load(&profile, None, Host::Slices)?;
        let loaded = start.elapsed();
        let analyses = analyse(&run, &profile, &Options::default())?;
        let all = start.elapsed();
        if json {
            println!("{}", serde_json::to_string_pretty(&analyses)?);
            continue;
        }
        let rows = |count: fn(&profile::RankEvents) -> usize| run.ranks.iter().map(count).sum::<usize>();
        println!(
            "{} device and {} host slices: load {:.0} ms, analyse {:.0} ms, all {:.0} ms",
            rows(|rank| rank.device.len()),
            rows(|rank| rank.host.len()),
            loaded.as_secs_f64() * 1e3,
            (all - loaded).as_secs_f64() * 1e3,
            all.as_secs_f64() * 1e3
        );
    }
    Ok(())
}
