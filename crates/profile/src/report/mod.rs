//! Reports: everything that is known of a profile, for people and for programs.
//!
//! [`Report::of`] computes it, [`html::page`] draws it as one self-contained page.

mod about;
mod counters;
pub mod html;
pub mod units;

use std::thread;

use serde::Serialize;
use trace::{Error, Profile};

use crate::analysis::critical_path::{Bound, CriticalPath, Window, critical_path};
use crate::analysis::findings::{Finding, Link, findings};
use crate::analysis::{Analyses, Bin, Histogram, Options, Series, analyse};
use crate::{Host, Run};

pub use about::{About, AboutDiagnostic, AboutRank};
pub use counters::{HostCounter, HostCounters};

/// Parts of the critical path that a report names.
const LONGEST_PARTS: usize = 10;

/// Everything that a report shows; its JSON is what `trainyard profile report --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the profile is.
    pub profile: About,
    /// Its ranks.
    pub ranks: Vec<AboutRank>,
    /// What takes time that need not be taken, most first.
    pub findings: Vec<Finding>,
    /// The analyses.
    pub analyses: Analyses,
    /// The critical path of each rank that has one.
    pub critical_paths: Vec<CriticalPath>,
    /// Counters of the host and of the process, as our recorder writes them.
    pub host_counters: HostCounters,
    /// What was odd in the sources.
    pub diagnostics: Vec<AboutDiagnostic>,
}

impl Report {
    /// Analyses a profile, or one of its ranks.
    pub fn of(profile: &Profile, rank: Option<i64>, options: &Options) -> Result<Report, Error> {
        let run = Run::load(profile, rank, Host::Slices)?;
        let (analyses, critical_paths) = thread::scope(|scope| {
            let paths = scope.spawn(|| critical_paths(&run, profile));
            (analyse(&run, profile, options), paths.join().expect("an analysis does not panic"))
        });
        let (analyses, critical_paths) = (analyses?, critical_paths?);
        let findings = findings(&run, profile, &analyses, &critical_paths)?;
        let of_rank = |other: Option<i64>| rank.is_none() || other.is_none() || other == rank;
        let mut ranks = about::ranks(profile)?;
        ranks.retain(|about| of_rank(Some(about.rank)));
        let mut diagnostics = about::diagnostics(profile)?;
        diagnostics.retain(|diagnostic| of_rank(diagnostic.rank));
        let host_counters = counters::read(profile, rank)?;
        Ok(Report {
            profile: About::of(profile),
            ranks,
            findings,
            analyses,
            critical_paths,
            host_counters,
            diagnostics,
        })
    }

    /// Whether its devices may be called GPUs: not if all that are named are processors, as in a recording of training on CPUs.
    pub fn has_gpus(&self) -> bool {
        let mut names = self.ranks.iter().flat_map(|rank| &rank.devices).peekable();
        names.peek().is_none() || names.any(|name| !name.starts_with("cpu/"))
    }

    /// Whether any device work was joined to a launch.
    pub fn has_launches(&self) -> bool {
        self.analyses.ranks.iter().any(|rank| rank.launches.pairs > 0)
    }

    /// The command that prints a place, ready for a shell.
    pub fn command(&self, link: &Link) -> String {
        let path = units::quoted(&self.profile.path);
        format!("trainyard profile slices {path} --track {} --from {} --to {}", link.track, link.from_ns, link.to_ns)
    }
}

fn critical_paths(run: &Run, profile: &Profile) -> Result<Vec<CriticalPath>, Error> {
    let paths = run.ranks.iter().map(|rank| critical_path(run, profile, rank.info.rank, &Window::Whole, LONGEST_PARTS));
    paths.filter_map(Result::transpose).collect()
}

/// The time that values over time cover, ns; the last of their parts may reach beyond it.
pub fn span_ns(series: &Series) -> i64 {
    series.bucket_ns.saturating_mul(series.values.len() as i64)
}

/// The same counts in about √n bins, 5 to 30, for few durations in many bins look like noise.
pub fn readable_bins(histogram: &Histogram) -> Histogram {
    let durations: u64 = histogram.bins.iter().map(|bin| bin.count).sum();
    let wanted = ((durations as f64).sqrt().round() as usize).clamp(5, 30);
    let together = |bins: &[Bin]| Bin {
        from_ns: bins[0].from_ns,
        to_ns: bins[bins.len() - 1].to_ns,
        count: bins.iter().map(|bin| bin.count).sum(),
    };
    let width = histogram.bins.len().div_ceil(wanted).max(1);
    Histogram { bins: histogram.bins.chunks(width).map(together).collect() }
}

/// A bound class of the critical path in words.
pub fn bound_words(bound: Bound) -> &'static str {
    match bound {
        Bound::KernelKernelOverhead => "between kernels",
        Bound::LaunchOverhead => "launch delay",
        Bound::DataLoading => "data loading",
        Bound::CpuBound => "host",
        Bound::GpuCompute => "compute",
        Bound::GpuCommunication => "communication",
        Bound::MemoryCopy => "copies",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_durations_are_counted_in_few_bins() {
        let bins = |count: u64| Histogram {
            bins: (0..30)
                .map(|at| Bin { from_ns: at, to_ns: at + 1, count: if at == 7 { count } else { 0 } })
                .collect(),
        };
        for (durations, wanted) in [(1, 5), (25, 5), (100, 10), (900, 30), (1_000_000, 30)] {
            let fewer = readable_bins(&bins(durations)).bins;
            assert_eq!((fewer.len(), fewer.iter().map(|bin| bin.count).sum::<u64>()), (wanted, durations));
            assert!(fewer.windows(2).all(|pair| pair[0].to_ns == pair[1].from_ns) && fewer[wanted - 1].to_ns == 30);
        }
        assert!(readable_bins(&Histogram::default()).bins.is_empty());
    }
}
