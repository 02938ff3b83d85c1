//! Counters of the processor for this process, through `perf_event_open`.

use std::collections::BTreeMap;
use std::io;

use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Event, Hardware as HardwareEvent};
use perf_event::{Builder, ReadFormat};
use procfs::process::Process;

/// Threads that counters are opened for, four files each; threads that they start are counted with them.
const MAX_THREADS: usize = 64;

/// Open counters, one for each thread that ran when they were opened.
pub(super) struct Hardware {
    counters: Vec<(&'static str, Vec<perf_event::Counter>)>,
}

impl Hardware {
    /// Opens what the kernel allows, and says of the rest why not.
    pub fn open() -> (Option<Self>, BTreeMap<&'static str, String>) {
        let misses = |which| Cache { which, operation: CacheOp::READ, result: CacheResult::MISS };
        let opened = [
            ("cycles", open(HardwareEvent::CPU_CYCLES)),
            ("instructions", open(HardwareEvent::INSTRUCTIONS)),
            ("llc_misses", open(misses(CacheId::LL))),
            ("itlb_misses", open(misses(CacheId::ITLB))),
        ];
        let (mut counters, mut absent) = (Vec::new(), BTreeMap::new());
        for (name, opened) in opened {
            match opened {
                Ok(opened) => counters.push((name, opened)),
                Err(error) => {
                    absent.insert(name, reason(&error));
                }
            }
        }
        ((!counters.is_empty()).then_some(Self { counters }), absent)
    }

    /// What has been counted so far, made up for the time in which the processor counted something else.
    pub fn totals(&mut self) -> Vec<(&'static str, f64)> {
        let total = |(name, counters): &mut (&'static str, Vec<perf_event::Counter>)| {
            let values = counters.iter_mut().filter_map(|counter| {
                let read = counter.read_count_and_time().ok()?;
                let scale =
                    if read.time_running == 0 { 0.0 } else { read.time_enabled as f64 / read.time_running as f64 };
                Some(read.count as f64 * scale)
            });
            (*name, values.sum())
        };
        self.counters.iter_mut().map(total).collect()
    }
}

fn open(event: impl Event + Clone) -> io::Result<Vec<perf_event::Counter>> {
    let open = |thread: i32| -> io::Result<perf_event::Counter> {
        let mut builder = Builder::new(event.clone());
        builder.observe_pid(thread).any_cpu().inherit(true);
        builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
        let mut counter = builder.build()?;
        counter.enable()?;
        Ok(counter)
    };
    let mut counters = Vec::new();
    for task in Process::myself().and_then(|process| process.tasks()).map_err(io::Error::other)?.take(MAX_THREADS) {
        let Ok(task) = task else { continue };
        match open(task.tid) {
            Ok(counter) => counters.push(counter),
            // The thread has ended since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(counters)
}

/// What the kernel says, and what decides about it where that is known.
fn reason(error: &io::Error) -> String {
    let denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
    match std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid") {
        Ok(level) if denied => format!("perf_event_open: {error}; kernel.perf_event_paranoid is {}", level.trim()),
        _ => format!("perf_event_open: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether or not this machine has counters, each one is there or has a reason.
    #[test]
    fn what_is_absent_has_a_reason_and_what_is_there_counts() {
        let (hardware, absent) = Hardware::open();
        let there = hardware.map_or(Vec::new(), |mut hardware| {
            std::hint::black_box((0..1_000_000u64).fold(0, |sum, i| sum ^ i.wrapping_mul(31)));
            hardware.totals()
        });
        let mut names: Vec<&str> = there.iter().map(|(name, _)| *name).chain(absent.keys().copied()).collect();
        names.sort_unstable();
        assert_eq!(names, ["cycles", "instructions", "itlb_misses", "llc_misses"]);
        assert!(there.iter().all(|(name, total)| *name != "instructions" || *total > 0.0), "{there:?}");
        assert!(absent.values().all(|why| why.starts_with("perf_event_open: ")), "{absent:?}");
    }
}
