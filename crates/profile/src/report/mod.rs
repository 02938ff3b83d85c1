//! Reports: everything that is known of a profile, for people and for programs.
//!
//! [`Report::of`] computes it, [`html::page`] draws it as one self-contained page.

mod about;
pub mod html;
pub mod units;

use std::thread;

use serde::Serialize;
use trace::{Error, Profile};

use crate::analysis::critical_path::{Bound, CriticalPath, Window, critical_path};
use crate::analysis::findings::{Finding, findings};
use crate::analysis::{Analyses, Options, analyse};
use crate::{Host, Run};

pub use about::{About, AboutDiagnostic, AboutRank};

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
        Ok(Report { profile: About::of(profile), ranks, findings, analyses, critical_paths, diagnostics })
    }
}

fn critical_paths(run: &Run, profile: &Profile) -> Result<Vec<CriticalPath>, Error> {
    let paths = run.ranks.iter().map(|rank| critical_path(run, profile, rank.info.rank, &Window::Whole, LONGEST_PARTS));
    paths.filter_map(Result::transpose).collect()
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
