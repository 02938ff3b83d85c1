//! Why a stream was idle.

use serde::Serialize;

use super::stats::{Distribution, share};
use super::work::Rank;
use crate::DeviceKind;

/// Why a stream was idle between its events.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamIdle {
    /// Track of the stream.
    pub track: i64,
    /// Device number.
    pub device: i64,
    /// Stream number.
    pub stream: i64,
    /// The next event was launched only after the one before had ended: the host was too slow.
    pub host_wait: Idle,
    /// It was launched in time and began within [`Options::kernel_wait_ns`](super::Options::kernel_wait_ns): the device's own delay
    /// between kernels.
    pub kernel_wait: Idle,
    /// Anything else: waiting for another stream or for a resource, or no launch is known.
    pub other: Idle,
    /// All idle time, ns.
    pub total_ns: i64,
}

/// Idle time of one cause.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Idle {
    /// Share of the stream's idle time, 0 to 1.
    pub share: f64,
    /// The gaps.
    pub gaps: Distribution,
    /// The longest gap: `[from, to)`, ns on the rank's clock.
    pub longest: Option<(i64, i64)>,
}

/// Gaps of one cause, as they are found.
#[derive(Default)]
struct Gaps {
    lengths: Vec<i64>,
    longest: Option<(i64, i64)>,
}

impl Gaps {
    fn add(&mut self, from: i64, to: i64) {
        self.lengths.push(to - from);
        if self.longest.is_none_or(|(start, end)| to - from > end - start) {
            self.longest = Some((from, to));
        }
    }

    fn finish(mut self) -> Idle {
        Idle { share: 0.0, gaps: Distribution::of(&mut self.lengths), longest: self.longest }
    }
}

/// Why each stream was idle. Exact: a gap is time without work on the stream, from the latest end so far to the next start.
/// HTA's gaps go from the end of the event before, so they may be 0 or negative, and are summed as they are.
pub(super) fn idle(rank: &Rank<'_>) -> Vec<StreamIdle> {
    let hta = rank.options.hta_compat;
    let mut streams = Vec::with_capacity(rank.streams.len());
    for stream in &rank.streams {
        let [mut host, mut kernel, mut other] = [const { Gaps { lengths: Vec::new(), longest: None } }; 3];
        let mut previous: Option<i64> = None;
        for work in rank.work[stream.range.clone()].iter().filter(|work| work.device_kind != DeviceKind::Sync) {
            if let Some(end) = previous
                && (hta || work.ts > end)
            {
                // A launch at the very end of the work before is the host's delay too, by a hair; HTA says it is not.
                let launched_late = work.launched().is_some_and(|launched| launched > end);
                let gaps = if launched_late {
                    &mut host
                } else if work.ts - end < rank.options.kernel_wait_ns {
                    &mut kernel
                } else {
                    &mut other
                };
                gaps.add(end, work.ts);
            }
            previous = Some(if hta { work.end() } else { previous.map_or(work.end(), |end| end.max(work.end())) });
        }
        let [mut host_wait, mut kernel_wait, mut other] = [host, kernel, other].map(Gaps::finish);
        let total_ns = host_wait.gaps.sum_ns.saturating_add(kernel_wait.gaps.sum_ns).saturating_add(other.gaps.sum_ns);
        for idle in [&mut host_wait, &mut kernel_wait, &mut other] {
            idle.share = share(idle.gaps.sum_ns, total_ns);
        }
        let (track, device, stream) = (stream.track, stream.device, stream.stream);
        streams.push(StreamIdle { track, device, stream, host_wait, kernel_wait, other, total_ns });
    }
    streams
}
