//! Carrying out a plan.

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::client::Client;
use super::report::{FailureKind, Report, Tally};
use super::schedule::{Arrival, Schedule};
use super::{LoadError, Pace, Plan};

/// Carries out a plan to its end. Must be called within a Tokio runtime with I/O and time.
pub async fn run(plan: Plan) -> Result<Report, LoadError> {
    run_until(plan, pending()).await
}

/// Carries out a plan to its end or until `stop` is ready; requests that are in flight then are given up, and the report
/// tells what was seen so far.
pub async fn run_until(plan: Plan, stop: impl Future<Output = ()>) -> Result<Report, LoadError> {
    plan.check()?;
    let client = Client::new(&plan)?;
    let begin = Instant::now();
    let counted_from = begin + plan.warmup;
    let end = counted_from + plan.duration;
    let run = Arc::new(Run { tally: Tally::new(counted_from), client, plan, end });
    let mut stop = pin!(stop);
    let mut tasks = JoinSet::new();
    let mut interrupted = match run.plan.pace {
        Pace::Open { rate, arrival } => open(&run, begin, rate, arrival, &mut tasks, stop.as_mut()).await?,
        Pace::Closed { concurrency } => {
            let callers = (0..concurrency as u64).map(|caller| run.clone().call(caller, concurrency as u64));
            callers.for_each(|caller| drop(tasks.spawn(caller)));
            false
        }
    };
    while !interrupted && !tasks.is_empty() {
        tokio::select! {
            biased;
            () = stop.as_mut() => interrupted = true,
            _ = tasks.join_next() => {}
        }
    }
    let end = if interrupted { end.min(Instant::now()) } else { end };
    tasks.shutdown().await;
    Ok(run.tally.report(&run.plan, &run.client, end, interrupted))
}

/// Starts requests by the schedule; true if it was interrupted.
async fn open(
    run: &Arc<Run>,
    begin: Instant,
    rate: f64,
    arrival: Arrival,
    tasks: &mut JoinSet<()>,
    mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
) -> Result<bool, LoadError> {
    let (sender, mut starts) = mpsc::unbounded_channel();
    let schedule = Schedule::new(arrival, rate, run.plan.seed);
    let length = run.plan.warmup + run.plan.duration;
    // Tokio's timers tick in milliseconds; a thread's sleep is twenty times finer.
    let clock = std::thread::Builder::new()
        .name("load-schedule".into())
        .spawn(move || keep_time(schedule.take_while(|time| *time < length), begin, &sender))
        .map_err(LoadError::Thread)?;
    let mut number = 0;
    let interrupted = loop {
        tokio::select! {
            biased;
            () = stop.as_mut() => break true,
            due = starts.recv() => match due {
                Some(due) => {
                    tasks.spawn(run.clone().start(number, due));
                    number += 1;
                }
                None => break false,
            },
            Some(_) = tasks.join_next() => {}
        }
    };
    drop(starts);
    clock.thread().unpark(); // it finds that nobody listens and ends
    Ok(interrupted)
}

/// Sends every start time when it has come.
fn keep_time(times: impl Iterator<Item = Duration>, begin: Instant, sender: &mpsc::UnboundedSender<Instant>) {
    for time in times {
        let due = begin + time;
        loop {
            let left = due.saturating_duration_since(Instant::now());
            if sender.is_closed() {
                return;
            }
            if left.is_zero() {
                break;
            }
            std::thread::park_timeout(left);
        }
        if sender.send(due).is_err() {
            return;
        }
    }
}

struct Run {
    plan: Plan,
    client: Client,
    tally: Tally,
    end: Instant,
}

impl Run {
    /// One request of an open loop.
    async fn start(self: Arc<Self>, number: u64, due: Instant) {
        self.tally.started(due, due.elapsed());
        self.finish(number, due).await;
    }

    /// One caller of a closed loop.
    async fn call(self: Arc<Self>, caller: u64, callers: u64) {
        let mut number = caller;
        loop {
            let start = Instant::now();
            if start >= self.end {
                return;
            }
            self.tally.started(start, Duration::ZERO);
            let failed = self.finish(number, start).await;
            if failed {
                // A server that refuses connections is not to be asked a million times.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            number += callers;
        }
    }

    /// Sends a request and notes what became of it; true if it got no answer.
    async fn finish(&self, number: u64, due: Instant) -> bool {
        let answer = self.client.send(self.plan.body(number));
        let outcome = tokio::time::timeout_at((due + self.plan.timeout).into(), answer).await;
        let outcome = outcome.unwrap_or(Err(FailureKind::Timeout));
        let failed = outcome.is_err();
        self.tally.finished(due, outcome);
        failed
    }
}
