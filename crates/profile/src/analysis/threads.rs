//! What the analyses need of the host's slices, found in one pass over them: there are millions.

use super::intervals::Interval;
use super::work::{Calls, trusted};
use crate::{HostEvent, HostKind, Run};

/// A rank's threads.
pub(super) struct Threads {
    /// The time in which each thread that does anything is busy with operators, calls or spans.
    pub busy: Vec<Vec<Interval>>,
    /// Synchronisation calls: how many, and the sum of their durations, ns.
    pub sync_calls: (u64, i64),
    /// Indices of annotations, and of steps that Kineto wrote as operators before it had annotations.
    pub annotations: Vec<u32>,
}

/// What keeps a thread busy. Annotations and Python frames span what others do, or nothing at all.
fn is_busy(kind: HostKind) -> bool {
    matches!(kind, HostKind::Operator | HostKind::Runtime | HostKind::Driver | HostKind::Span)
}

/// What a name says, looked up once.
#[derive(Clone, Copy)]
struct Named {
    waits: bool,
    step: bool,
}

impl Threads {
    /// Looks at all slices, which are sorted by track, then start; gathers those with a correlation that `is_call` takes.
    pub(super) fn scan(run: &Run, host: &[HostEvent], is_call: impl Fn(&HostEvent) -> bool) -> (Self, Calls) {
        let mut threads = Threads { busy: Vec::new(), sync_calls: (0, 0), annotations: Vec::new() };
        let mut calls: Vec<(i64, u32)> = Vec::new();
        let mut names: Vec<Option<Named>> = vec![None; run.texts.len()];
        let mut named = |name: u32| {
            *names[name as usize].get_or_insert_with(|| {
                let text = run.text(name);
                Named { waits: text.contains("Synchronize"), step: text.starts_with("ProfilerStep") }
            })
        };
        let mut track = None;
        let mut busy: Vec<Interval> = Vec::new();
        for (at, event) in host.iter().enumerate() {
            if let Some(correlation) = event.correlation
                && is_call(event)
            {
                calls.push((correlation, at as u32));
            }
            if track != Some(event.track) {
                track = Some(event.track);
                threads.end(&mut busy);
            }
            if !trusted(event.flag) {
                continue;
            }
            if is_busy(event.kind) {
                match busy.last_mut() {
                    Some(last) if event.ts <= last.1 => last.1 = last.1.max(event.end()),
                    _ => busy.push((event.ts, event.end())),
                }
            }
            let annotation = match event.kind {
                HostKind::Annotation => true,
                HostKind::Operator => named(event.name).step,
                _ => false,
            };
            if annotation {
                threads.annotations.push(at as u32);
            }
            let waits = match event.kind {
                HostKind::Sync => true,
                HostKind::Runtime | HostKind::Driver => named(event.name).waits,
                _ => false,
            };
            if waits {
                threads.sync_calls.0 += 1;
                threads.sync_calls.1 = threads.sync_calls.1.saturating_add(event.dur);
            }
        }
        threads.end(&mut busy);
        (threads, Calls::new(calls, host))
    }

    /// The last slice of a thread has been seen.
    fn end(&mut self, busy: &mut Vec<Interval>) {
        if !busy.is_empty() {
            self.busy.push(std::mem::take(busy));
        }
    }
}
