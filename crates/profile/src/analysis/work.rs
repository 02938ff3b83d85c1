//! The work of one rank's devices, as the analyses see it: exact, or as HTA would.

use std::borrow::Cow;
use std::ops::Range;
use std::thread;

use super::Options;
use super::compat::Rounding;
use super::intervals::{self, Interval};
use super::threads::Threads;
use crate::{Class, DeviceEvent, DeviceKind, Flag, HostEvent, HostKind, RankEvents, Run};

/// No launch call is known.
pub(super) const NO_CALL: u32 = u32::MAX;

/// What an event counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Kind {
    Compute,
    Communication,
    Memory,
    /// Busy, and nothing of the above: HTA's class OTHER. The exact analyses have none.
    Other,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Compute, Kind::Communication, Kind::Memory, Kind::Other];

    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Compute => "compute",
            Kind::Communication => "communication",
            Kind::Memory => "memory",
            Kind::Other => "other",
        }
    }
}

/// A piece of work of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub ts: i64,
    pub dur: i64,
    pub name: u32,
    /// Index in [`RankEvents::device`].
    pub event: u32,
    /// Index in [`Rank::host`] of the call that launched it, or [`NO_CALL`].
    pub call: u32,
    /// Start and duration of that call.
    pub call_ts: i64,
    pub call_dur: i64,
    pub kind: Kind,
    pub device_kind: DeviceKind,
}

impl Work {
    /// A device's slice, before its launch call is known.
    pub(super) fn new(event: &DeviceEvent, at: usize, kind: Kind) -> Self {
        let DeviceEvent { ts, dur, name, kind: device_kind, .. } = *event;
        Work { ts, dur, name, event: at as u32, call: NO_CALL, call_ts: 0, call_dur: 0, kind, device_kind }
    }

    /// Finds the launch call.
    pub(super) fn join(&mut self, calls: &mut Calls, host: &[HostEvent], correlation: Option<i64>) {
        if let Some(call) = correlation.and_then(|correlation| calls.find(host, correlation, self.ts)) {
            let event = &host[call as usize];
            (self.call, self.call_ts, self.call_dur) = (call, event.ts, event.dur);
        }
    }

    /// When its launch call started, if that is known.
    pub(super) fn launched(&self) -> Option<i64> {
        (self.call != NO_CALL).then_some(self.call_ts)
    }

    pub(super) fn end(&self) -> i64 {
        self.ts.saturating_add(self.dur)
    }
}

/// A stream, and where its work is.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub track: i64,
    pub device: i64,
    pub stream: i64,
    pub range: Range<usize>,
}

/// One rank's work.
pub(super) struct Rank<'r> {
    pub run: &'r Run,
    pub events: &'r RankEvents,
    pub options: &'r Options,
    /// By stream, then start.
    pub work: Vec<Work>,
    pub streams: Vec<Stream>,
    /// The host's slices; with HTA's rounding where that is asked for.
    pub host: Cow<'r, [HostEvent]>,
    /// What its threads do.
    pub threads: Threads,
    /// HTA's, where that is asked for and the trace has fractions of a µs.
    pub rounding: Option<Rounding>,
}

impl<'r> Rank<'r> {
    /// The work of a rank, each joined with its launch call.
    pub(super) fn new(run: &'r Run, events: &'r RankEvents, options: &'r Options) -> Self {
        if options.hta_compat {
            return super::compat::rank(run, events, options);
        }
        let host = bounded_host(&events.host);
        let is_call =
            |event: &HostEvent| matches!(event.kind, HostKind::Runtime | HostKind::Driver) && trusted(event.flag);
        let ((mut work, streams), (threads, mut calls)) = thread::scope(|scope| {
            let threads = scope.spawn(|| Threads::scan(run, &host, is_call));
            let work = of_streams(events);
            (work, threads.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        for work in &mut work {
            work.join(&mut calls, &host, events.device[work.event as usize].correlation);
        }
        Rank { run, events, options, work, streams, host, threads, rounding: None }
    }

    /// The call that launched this work.
    pub(super) fn call(&self, work: &Work) -> Option<&HostEvent> {
        (work.call != NO_CALL).then(|| &self.host[work.call as usize])
    }

    /// The union of the work of these streams that `take` takes.
    pub(super) fn union_of<'s>(
        &self,
        streams: impl IntoIterator<Item = &'s Stream>,
        take: impl Fn(&Work) -> bool,
    ) -> Vec<Interval> {
        let of = |stream: &Stream| {
            let work = self.work[stream.range.clone()].iter().filter(|work| take(work));
            work.map(|work| (work.ts, work.end()))
        };
        if self.options.hta_compat {
            // Rounding may turn intervals around; HTA merges all streams in one go, so that decides what they do.
            let mut all: Vec<Interval> = streams.into_iter().flat_map(of).collect();
            all.sort_by_key(|interval| interval.0);
            return intervals::merge(all);
        }
        intervals::merge_all(streams.into_iter().map(|stream| intervals::merge(of(stream))).collect())
    }

    /// The devices that work, in rising order, each with its streams.
    pub(super) fn devices(&self) -> Vec<(i64, Vec<&Stream>)> {
        let mut devices: Vec<(i64, Vec<&Stream>)> = Vec::new();
        for stream in &self.streams {
            match devices.iter_mut().find(|(device, _)| *device == stream.device) {
                Some((_, streams)) => streams.push(stream),
                None => devices.push((stream.device, vec![stream])),
            }
        }
        devices.sort_by_key(|(device, _)| *device);
        devices
    }
}

/// Times beyond this, 146 years from 0, are no times: within it, no difference between two overflows.
const LIMIT: i64 = (1 << 62) - (1 << 20);

/// Whether a slice lies within what can be computed with; a hostile file may say anything.
pub(super) fn is_bounded(ts: i64, dur: i64) -> bool {
    let within = |at: i64| (-LIMIT..=LIMIT).contains(&at);
    within(ts) && ts.checked_add(dur).is_some_and(within)
}

/// The host's slices; those that are not bounded count as without a time.
pub(super) fn bounded_host(host: &[HostEvent]) -> Cow<'_, [HostEvent]> {
    if host.iter().all(|event| is_bounded(event.ts, event.dur)) {
        return Cow::Borrowed(host);
    }
    let bounded = |event: &HostEvent| match is_bounded(event.ts, event.dur) {
        true => *event,
        false => HostEvent { ts: 0, dur: 0, flag: Flag::LostTimestamp, ..*event },
    };
    Cow::Owned(host.iter().map(bounded).collect())
}

/// A rank's work and its streams.
fn of_streams(events: &RankEvents) -> (Vec<Work>, Vec<Stream>) {
    let mut work = Vec::with_capacity(events.device.len());
    let mut streams: Vec<Stream> = Vec::new();
    for (at, event) in events.device.iter().enumerate() {
        if !event.is_work() || !is_bounded(event.ts, event.dur) {
            continue;
        }
        let here = work.len();
        match streams.last_mut() {
            Some(stream) if stream.track == event.track => stream.range.end = here + 1,
            _ => {
                let DeviceEvent { track, device, stream, .. } = *event;
                streams.push(Stream { track, device, stream, range: here..here + 1 });
            }
        }
        work.push(Work::new(event, at, kind_of(event.class)));
    }
    (work, streams)
}

/// Whether a slice has a place in time.
pub(super) fn trusted(flag: Flag) -> bool {
    matches!(flag, Flag::None | Flag::Unfinished)
}

fn kind_of(class: Class) -> Kind {
    match class {
        Class::Compute => Kind::Compute,
        Class::Communication => Kind::Communication,
        Class::Memory => Kind::Memory,
        Class::NotWork => Kind::Other,
    }
}

/// Calls of the host by what joins them with their work.
pub(super) struct Calls {
    /// Correlation and index of the call, sorted by correlation, then start.
    sorted: Vec<(i64, u32)>,
    /// Where the last search ended: work comes in the order of its launch, mostly.
    cursor: usize,
}

impl Calls {
    /// Of these correlations with indices of calls in `host`.
    pub(super) fn new(calls: Vec<(i64, u32)>, host: &[HostEvent]) -> Self {
        let mut sorted = calls;
        // Threads launch in rising order, so these are a few sorted runs.
        sorted.sort_by_key(|call| call.0);
        for same in sorted.chunk_by_mut(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            same.sort_by_key(|call| host[call.1 as usize].ts);
        }
        Self { sorted, cursor: 0 }
    }

    /// The range of the calls with this correlation.
    fn range(&mut self, correlation: i64) -> Range<usize> {
        let (mut low, mut step) = (self.cursor, 1);
        if self.sorted.get(low).is_some_and(|call| call.0 >= correlation) {
            low = 0;
        }
        while self.sorted.get(low + step).is_some_and(|call| call.0 < correlation) {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.sorted.len());
        let at = low + self.sorted[low..high].partition_point(|call| call.0 < correlation);
        self.cursor = at.saturating_sub(1);
        let end = at + self.sorted[at..].iter().take_while(|call| call.0 == correlation).count();
        at..end
    }

    /// The call that launched work which started at `ts`: the last one before it, where an id came twice; else the first.
    pub(super) fn find(&mut self, host: &[HostEvent], correlation: i64, ts: i64) -> Option<u32> {
        let range = self.range(correlation);
        let calls = &self.sorted[range];
        let before = calls.iter().rev().find(|(_, at)| host[*at as usize].ts <= ts);
        before.or(calls.first()).map(|call| call.1)
    }
}
