//! Counters of the host, sampled beside the events. Counts are of the time since the sample before.
//!
//! | counter | series | unit | meaning |
//! |---|---|---|---|
//! | `cpu_utilisation` | `core 0`, … | `%` | share of the time in which the core was not idle (the kernel counts in ticks of 10 ms) |
//! | `process_cpu_utilisation` | | `%` | processor time of the process; 100 is one core |
//! | `process_memory` | | `B` | resident set now |
//! | `page_faults` | `minor`, `major` | `1` | of the process; major ones had to read |
//! | `context_switches` | `voluntary`, `involuntary` | `1` | of the process's threads |
//! | `disk` | `read`, `written` | `B` | what the process made the storage do |
//! | `network` | `eth0 received`, `eth0 sent`, … | `B` | through the interfaces that the process sees, by whatever process |
//! | `cycles`, `instructions`, `llc_misses`, `itlb_misses` | | `1` | of the process in user mode, see `hardware` |

use std::collections::BTreeMap;

use procfs::process::Process;
use procfs::{CpuTime, CurrentSI, KernelStats};

use super::hardware::Hardware;
use super::rows::Sample;

/// What the host said last.
pub(super) struct HostCounters {
    process: Option<Process>,
    hardware: Option<Hardware>,
    at: i64,
    /// Busy and all ticks of every core.
    cores: Vec<(u64, u64)>,
    totals: BTreeMap<(&'static str, String), f64>,
    /// What the host does not say, and why.
    pub absent: BTreeMap<&'static str, String>,
}

impl HostCounters {
    /// Counts from `now`, ns.
    pub fn new(now: i64, hardware: Option<Hardware>) -> Self {
        let mut absent = BTreeMap::new();
        let process = Process::myself().map_err(|error| absent.insert("process", error.to_string())).ok();
        let mut counters = Self { process, hardware, at: now, cores: Vec::new(), totals: BTreeMap::new(), absent };
        counters.sample(now, &mut |_| ());
        counters
    }

    /// Tells the counts since the sample before.
    pub fn sample(&mut self, now: i64, tell: &mut dyn FnMut(&Sample)) {
        let passed = (now - self.at).max(1) as f64;
        self.at = now;
        self.cores(now, tell);
        let usage = usage();
        if let Some(seconds) = self.since("process_cpu_utilisation", "", usage.cpu_seconds) {
            let value = 100.0 * seconds * 1e9 / passed;
            tell(&Sample { ts: now, name: "process_cpu_utilisation", series: "", unit: "%", value });
        }
        for (name, series, total) in [
            ("page_faults", "minor", usage.minor_faults),
            ("page_faults", "major", usage.major_faults),
            ("context_switches", "voluntary", usage.voluntary),
            ("context_switches", "involuntary", usage.involuntary),
        ] {
            self.count(now, (name, series, "1"), total as f64, tell);
        }
        self.process(now, tell);
        self.network(now, tell);
        let hardware: Vec<(&str, f64)> = self.hardware.as_mut().map(Hardware::totals).unwrap_or_default();
        for (name, total) in hardware {
            self.count(now, (name, "", "1"), total, tell);
        }
    }

    fn cores(&mut self, now: i64, tell: &mut dyn FnMut(&Sample)) {
        let stats = match KernelStats::current() {
            Ok(stats) => stats,
            Err(error) => return self.lacks("cpu_utilisation", &error),
        };
        let cores: Vec<(u64, u64)> = stats.cpu_time.iter().map(ticks).collect();
        // A core that came or went gives the others new numbers.
        if cores.len() == self.cores.len() {
            for (core, (before, after)) in self.cores.iter().zip(&cores).enumerate() {
                let (busy, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
                if all > 0 {
                    let (series, value) = (format!("core {core}"), 100.0 * busy as f64 / all as f64);
                    tell(&Sample { ts: now, name: "cpu_utilisation", series: &series, unit: "%", value });
                }
            }
        }
        self.cores = cores;
    }

    fn process(&mut self, now: i64, tell: &mut dyn FnMut(&Sample)) {
        let Some(process) = &self.process else { return };
        let (memory, disk) = (process.statm(), process.io());
        match memory {
            Ok(memory) => {
                let value = (memory.resident * procfs::page_size()) as f64;
                tell(&Sample { ts: now, name: "process_memory", series: "", unit: "B", value });
            }
            Err(error) => self.lacks("process_memory", &error),
        }
        match disk {
            Ok(disk) => {
                self.count(now, ("disk", "read", "B"), disk.read_bytes as f64, tell);
                self.count(now, ("disk", "written", "B"), disk.write_bytes as f64, tell);
            }
            Err(error) => self.lacks("disk", &error),
        }
    }

    fn network(&mut self, now: i64, tell: &mut dyn FnMut(&Sample)) {
        match procfs::net::dev_status() {
            Ok(interfaces) => {
                let interfaces: BTreeMap<_, _> = interfaces.into_iter().filter(|(name, _)| name != "lo").collect();
                for (name, status) in interfaces {
                    let (received, sent) = (format!("{name} received"), format!("{name} sent"));
                    self.count(now, ("network", &received, "B"), status.recv_bytes as f64, tell);
                    self.count(now, ("network", &sent, "B"), status.sent_bytes as f64, tell);
                }
            }
            Err(error) => self.lacks("network", &error),
        }
    }

    fn count(
        &mut self,
        ts: i64,
        (name, series, unit): (&'static str, &str, &str),
        total: f64,
        tell: &mut dyn FnMut(&Sample),
    ) {
        if let Some(value) = self.since(name, series, total) {
            tell(&Sample { ts, name, series, unit, value });
        }
    }

    /// What has been added to a total; nothing the first time. A counter that was reset counts from 0.
    fn since(&mut self, name: &'static str, series: &str, total: f64) -> Option<f64> {
        let before = self.totals.insert((name, series.into()), total)?;
        Some(if total >= before { total - before } else { total })
    }

    fn lacks(&mut self, what: &'static str, why: &dyn std::fmt::Display) {
        self.absent.entry(what).or_insert_with(|| why.to_string());
    }
}

/// Busy and all ticks. The ticks of guests are part of `user` and `nice` already.
fn ticks(time: &CpuTime) -> (u64, u64) {
    let idle = time.idle + time.iowait.unwrap_or(0);
    let some = [time.irq, time.softirq, time.steal].into_iter().flatten().sum::<u64>();
    let busy = time.user + time.nice + time.system + some;
    (busy, busy + idle)
}

struct Usage {
    cpu_seconds: f64,
    minor_faults: i64,
    major_faults: i64,
    voluntary: i64,
    involuntary: i64,
}

/// What the threads of this process have used.
fn usage() -> Usage {
    // SAFETY: all bits zero is a valid `rusage`, which holds plain numbers; the call fills it, and fails for no argument
    // that is given here.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    Usage {
        cpu_seconds: seconds(usage.ru_utime) + seconds(usage.ru_stime),
        minor_faults: usage.ru_minflt,
        major_faults: usage.ru_majflt,
        voluntary: usage.ru_nvcsw,
        involuntary: usage.ru_nivcsw,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::recorder::clock::monotonic_ns;

    #[test]
    fn a_busy_second_shows() {
        let mut counters = HostCounters::new(monotonic_ns(), None);
        // Touch new memory, and be busy for a while.
        let mut pages = vec![0u8; 64 << 20];
        let until = Instant::now() + Duration::from_millis(300);
        while Instant::now() < until {
            pages.iter_mut().step_by(4096).for_each(|page| *page = page.wrapping_add(1));
        }
        std::thread::sleep(Duration::from_millis(10));
        let mut seen: BTreeMap<String, f64> = BTreeMap::new();
        counters.sample(monotonic_ns(), &mut |sample| {
            assert!(sample.value >= 0.0 && sample.value.is_finite(), "{} {}", sample.name, sample.value);
            seen.insert(format!("{} {}", sample.name, sample.series).trim().into(), sample.value);
        });
        std::hint::black_box(pages);
        assert!(seen["process_cpu_utilisation"] > 20.0, "{seen:?}");
        assert!(seen["process_memory"] > (64 << 20) as f64, "{seen:?}");
        // Huge pages make few faults of many.
        assert!(seen["page_faults minor"] >= 16.0, "{seen:?}");
        assert!(seen["context_switches voluntary"] >= 1.0, "{seen:?}");
        assert!(seen["cpu_utilisation core 0"] <= 100.0, "{seen:?}");
    }
}
