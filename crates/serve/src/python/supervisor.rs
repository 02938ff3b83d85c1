//! The workers of one handler: each has a task that starts its process, feeds it from one queue and starts it again when
//! it is lost.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::header::{HeaderName, HeaderValue};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Functions, HandlerError, Request, Response,
    frame::Ask,
    queue::{Operation, Queue},
    worker::{Failure, Plan, Worker},
};

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(10);
/// Headers that a script may add to a response, as in `worker.py`, which tells it.
const RESPONSE_HEADERS: usize = 64;
/// What belongs to the connection, or has a field of its own.
const SERVERS_HEADERS: [&str; 8] =
    ["connection", "content-length", "content-type", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"];

/// What a worker's task is at.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Starting,
    Alive,
    /// Its last start failed; it waits before the next.
    Failed(HandlerError),
    Gone,
}

/// What the tasks of one handler share with it.
pub(super) struct Shared {
    pub plan: Plan,
    pub queue: Queue,
    states: Mutex<Vec<State>>,
    restarts: AtomicU64,
}

impl Shared {
    pub(super) fn new(plan: Plan, queue: Queue, workers: usize) -> Self {
        let states = Mutex::new(vec![State::Starting; workers]);
        Self { plan, queue, states, restarts: AtomicU64::new(0) }
    }

    /// Workers with their model loaded.
    pub(super) fn alive(&self) -> usize {
        self.with_states(|states| states.iter().filter(|state| **state == State::Alive).count())
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts.load(Relaxed)
    }

    /// Why no worker can answer, where none is alive or still starting.
    pub(super) fn unavailable(&self) -> Option<HandlerError> {
        self.with_states(|states| {
            let mut reason = None;
            for state in states {
                match state {
                    State::Failed(error) => reason = Some(error.to_string()),
                    State::Gone => {}
                    State::Starting | State::Alive => return None,
                }
            }
            Some(reason.map_or(HandlerError::Stopped, |reason| HandlerError::Unavailable { reason }))
        })
    }

    fn with_states<T>(&self, look: impl FnOnce(&mut Vec<State>) -> T) -> T {
        look(&mut self.states.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, slot: usize, state: State) {
        self.with_states(|states| {
            if let Some(place) = states.get_mut(slot) {
                *place = state;
            }
        });
    }

    /// Answers everything that waits when no worker can.
    pub(super) fn refuse_waiting(&self) {
        if let Some(error) = self.unavailable() {
            for job in self.queue.take_all() {
                let _ = job.reply.send(Err(error.clone()));
            }
        }
    }
}

/// Runs worker `slot` until the queue is closed and empty. `started` gets the outcome of the first start; if that fails,
/// there is no second. Aborting the task kills the worker.
pub(super) async fn supervise(
    shared: Arc<Shared>,
    slot: usize,
    started: oneshot::Sender<Result<Functions, HandlerError>>,
) {
    keep_alive(&shared, slot, started).await;
    shared.set(slot, State::Gone);
    shared.refuse_waiting();
}

async fn keep_alive(shared: &Shared, slot: usize, started: oneshot::Sender<Result<Functions, HandlerError>>) {
    let model = &*shared.plan.name;
    let mut started = Some(started);
    let mut backoff = FIRST_BACKOFF;
    loop {
        let start = tokio::select! {
            start = Worker::start(&shared.plan, slot) => start,
            () = shared.queue.closed() => return,
        };
        match start {
            Ok((worker, functions)) => {
                shared.set(slot, State::Alive);
                if let Some(started) = started.take() {
                    let _ = started.send(Ok(functions));
                } else {
                    tracing::info!(model, worker = slot, "worker is back");
                }
                let ended = serve(shared, slot, worker, &mut backoff).await;
                if ended == Ended::Stopped {
                    return;
                }
                shared.set(slot, State::Starting);
            }
            Err(error) => {
                if let Some(started) = started.take() {
                    let _ = started.send(Err(error));
                    return;
                }
                tracing::error!(model, worker = slot, "worker does not start: {error}");
                shared.set(slot, State::Failed(error));
                shared.refuse_waiting();
            }
        }
        tokio::select! {
            () = sleep(backoff) => {}
            () = shared.queue.closed() => return,
        }
        backoff = (backoff * 2).min(LAST_BACKOFF);
        shared.restarts.fetch_add(1, Relaxed);
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Ended {
    Stopped,
    Lost,
}

/// Feeds one worker from the queue until one of them ends. A request whose caller went away before its turn is skipped;
/// one whose caller went away later is finished, for the model in the worker is worth more than the rest of one request.
async fn serve(shared: &Shared, slot: usize, mut worker: Worker, backoff: &mut Duration) -> Ended {
    loop {
        let job = tokio::select! {
            job = shared.queue.next() => job,
            () = worker.ended() => {
                worker.lost("idle time", None).await;
                return Ended::Lost;
            }
        };
        let Some(job) = job else {
            worker.stop().await;
            return Ended::Stopped;
        };
        let deadline = Instant::from_std(job.request.deadline);
        if job.reply.is_closed() || deadline <= Instant::now() {
            let _ = job.reply.send(Err(HandlerError::DeadlineExceeded { running: false }));
            continue;
        }
        let Request { content_type, accept, body, headers, .. } = &job.request;
        let ask = match job.operation {
            Operation::Invoke => Ask::Invoke { content_type, accept, headers },
            Operation::Input => Ask::Input { content_type, headers },
            Operation::Output => Ask::Output { accept, headers },
        };
        let outcome = tokio::select! {
            biased;
            outcome = worker.exchange(&ask, body) => Some(outcome),
            () = sleep_until(deadline) => None,
        };
        let error = match outcome {
            Some(Ok((answer, body))) => {
                *backoff = FIRST_BACKOFF;
                let status = if answer.status == 0 { 200 } else { answer.status };
                let headers = answer.headers.into_iter().filter(is_own_header).take(RESPONSE_HEADERS).collect();
                let response = Response { content_type: answer.content_type, body, status, headers };
                let _ = job.reply.send(Ok(response));
                continue;
            }
            Some(Err(Failure::Answered(error))) => {
                *backoff = FIRST_BACKOFF;
                let _ = job.reply.send(Err(error));
                continue;
            }
            Some(Err(Failure::Lost { stage, reason })) => worker.lost(stage, reason).await,
            None => {
                // Slow is not broken: the next worker need not wait as after a row of crashes.
                *backoff = FIRST_BACKOFF;
                worker.kill().await;
                let error = HandlerError::DeadlineExceeded { running: true };
                tracing::error!(model = &*shared.plan.name, worker = slot, "{error}");
                error
            }
        };
        let _ = job.reply.send(Err(error));
        return Ended::Lost;
    }
}

/// Whether a response may carry this header.
fn is_own_header((name, value): &(String, String)) -> bool {
    HeaderName::from_bytes(name.as_bytes()).is_ok_and(|name| !SERVERS_HEADERS.contains(&name.as_str()))
        && HeaderValue::from_str(value).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_and_broken_ones_are_left_out() {
        let kept = |name: &str, value: &str| is_own_header(&(name.to_owned(), value.to_owned()));
        assert!(kept("X-Model", "a b") && kept("set-cookie", ""));
        for (name, value) in [
            ("Content-Length", "1"),
            ("transfer-encoding", "chunked"),
            ("CONNECTION", "close"),
            ("", "a"),
            ("a b", "a"),
            ("a:", "a"),
            ("x", "a\r\nb: c"),
            ("x", "a\0"),
        ] {
            assert!(!kept(name, value), "{name}: {value}");
        }
    }
}
