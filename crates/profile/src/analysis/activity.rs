//! What devices did: kernels, copies, fills, synchronisation.

use serde::Serialize;

use super::stats::share;
use super::work::{Rank, trusted};
use crate::DeviceKind;

/// Time by kind of activity: sums of durations, overlaps included.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Activity {
    /// Kernels.
    pub kernel: ActivityPart,
    /// Copies.
    pub memcpy: ActivityPart,
    /// Fills.
    pub memset: ActivityPart,
    /// Synchronisation: the device's waits where recorded, else the host's synchronisation calls.
    pub sync: ActivityPart,
    /// Where `sync` comes from: `device`, `host`, or none.
    pub sync_from: Option<&'static str>,
}

/// One kind of activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ActivityPart {
    /// How many.
    pub count: u64,
    /// Sum of durations, ns.
    pub sum_ns: i64,
    /// Share of all activities' time, 0 to 1.
    pub share: f64,
}

impl ActivityPart {
    fn add(&mut self, count: u64, ns: i64) {
        self.count += count;
        self.sum_ns = self.sum_ns.saturating_add(ns);
    }
}

impl Activity {
    fn parts(&mut self) -> [&mut ActivityPart; 4] {
        [&mut self.kernel, &mut self.memcpy, &mut self.memset, &mut self.sync]
    }

    fn finish(&mut self) {
        let all: i128 = self.parts().iter().map(|part| i128::from(part.sum_ns)).sum();
        for part in self.parts() {
            part.share = share(part.sum_ns, all);
        }
    }

    /// The sum over several ranks.
    pub(super) fn sum<'a>(ranks: impl Iterator<Item = &'a Activity>) -> Activity {
        let mut sum = Activity::default();
        for one in ranks {
            let mut other = one.clone();
            for (part, other) in sum.parts().into_iter().zip(other.parts()) {
                part.add(other.count, other.sum_ns);
            }
            sum.sync_from = sum.sync_from.or(one.sync_from);
        }
        sum.finish();
        sum
    }
}

/// What the devices of a rank did.
pub(super) fn activity(rank: &Rank<'_>) -> Activity {
    let mut activity = Activity::default();
    for work in &rank.work {
        let part = match work.device_kind {
            DeviceKind::Memcpy => &mut activity.memcpy,
            DeviceKind::Memset => &mut activity.memset,
            DeviceKind::Sync => continue,
            _ => &mut activity.kernel,
        };
        part.add(1, work.dur);
    }
    for event in rank.events.device.iter().filter(|event| event.kind == DeviceKind::Sync && trusted(event.flag)) {
        activity.sync.add(1, event.dur);
        activity.sync_from = Some("device");
    }
    if activity.sync_from.is_none() {
        let (count, sum_ns) = rank.threads.sync_calls;
        activity.sync.add(count, sum_ns);
        activity.sync_from = (count > 0).then_some("host");
    }
    activity.finish();
    activity
}
