//! Requests that wait for a free worker, first come first served. One whose caller goes away leaves at once.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use tokio::sync::{Notify, oneshot, watch};

use super::{HandlerError, Request, Response};

/// Which functions a request runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Invoke,
    Input,
    Output,
}

/// A request in the queue.
pub(super) struct Job {
    pub operation: Operation,
    pub request: Request,
    /// Set when a worker begins.
    pub running: Arc<AtomicBool>,
    pub reply: oneshot::Sender<Result<Response, HandlerError>>,
}

/// The caller's end of a [`Job`]; dropping it takes the job from the queue.
pub(super) struct Ticket<'a> {
    queue: &'a Queue,
    number: u64,
    running: Arc<AtomicBool>,
    pub answer: oneshot::Receiver<Result<Response, HandlerError>>,
}

impl Ticket<'_> {
    /// Whether a worker has begun with the request.
    pub(super) fn running(&self) -> bool {
        self.running.load(Relaxed)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.running() {
            self.queue.waiting().jobs.retain(|(number, _)| *number != self.number);
        }
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<(u64, Job)>,
    numbered: u64,
    closed: bool,
}

/// Why a request does not enter the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    Full,
    Closed,
}

/// A bounded queue with any number of callers and workers.
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    capacity: usize,
    ready: Notify,
    closed: watch::Sender<bool>,
}

impl Queue {
    pub(super) fn new(capacity: usize) -> Self {
        let (closed, _) = watch::channel(false);
        Self { waiting: Mutex::default(), capacity, ready: Notify::new(), closed }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting().jobs.len()
    }

    pub(super) fn push(&self, operation: Operation, request: Request) -> Result<Ticket<'_>, Rejected> {
        let mut waiting = self.waiting();
        if waiting.closed {
            return Err(Rejected::Closed);
        }
        if waiting.jobs.len() >= self.capacity {
            return Err(Rejected::Full);
        }
        let running = Arc::new(AtomicBool::new(false));
        let (reply, answer) = oneshot::channel();
        let number = waiting.numbered;
        waiting.numbered += 1;
        waiting.jobs.push_back((number, Job { operation, request, running: running.clone(), reply }));
        drop(waiting);
        self.ready.notify_one();
        Ok(Ticket { queue: self, number, running, answer })
    }

    /// The next job, or `None` when the queue is closed and empty. Cancelling this loses no job.
    pub(super) async fn next(&self) -> Option<Job> {
        loop {
            let mut ready = std::pin::pin!(self.ready.notified());
            // Registered before looking, so that of two workers that find nothing both are woken by two jobs.
            ready.as_mut().enable();
            {
                let mut waiting = self.waiting();
                if let Some((_, job)) = waiting.jobs.pop_front() {
                    job.running.store(true, Relaxed);
                    return Some(job);
                }
                if waiting.closed {
                    return None;
                }
            }
            tokio::select! {
                () = ready => {}
                () = self.closed() => {}
            }
        }
    }

    /// Everything that waits, taken out.
    pub(super) fn take_all(&self) -> Vec<Job> {
        self.waiting().jobs.drain(..).map(|(_, job)| job).collect()
    }

    /// Lets nothing more in.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.closed.send_replace(true);
    }

    /// Resolves when the queue is closed.
    pub(super) async fn closed(&self) {
        let mut closed = self.closed.subscribe();
        // The sender lives in `self`, so this ends only when the value is true.
        let _ = closed.wait_for(|closed| *closed).await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn request(body: &'static str) -> Request {
        let (content_type, accept) = (String::new(), String::new());
        Request { content_type, accept, body: body.into(), headers: Vec::new(), deadline: Instant::now() }
    }

    #[tokio::test]
    async fn jobs_come_out_in_order_and_cancelled_ones_not_at_all() {
        let queue = Queue::new(3);
        let _first = queue.push(Operation::Invoke, request("1")).unwrap();
        let second = queue.push(Operation::Invoke, request("2")).unwrap();
        let _third = queue.push(Operation::Invoke, request("3")).unwrap();
        assert_eq!(queue.push(Operation::Invoke, request("4")).err(), Some(Rejected::Full));
        drop(second);
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.next().await.unwrap().request.body, "1");
        assert_eq!(queue.next().await.unwrap().request.body, "3");
    }

    #[tokio::test]
    async fn a_closed_queue_is_emptied_before_it_ends() {
        let queue = Queue::new(3);
        let _waiting = queue.push(Operation::Invoke, request("1")).unwrap();
        queue.close();
        assert_eq!(queue.push(Operation::Invoke, request("2")).err(), Some(Rejected::Closed));
        assert!(queue.next().await.is_some());
        assert!(queue.next().await.is_none());
    }

    #[tokio::test]
    async fn two_jobs_wake_two_workers() {
        let queue = Queue::new(3);
        let work = async { tokio::join!(queue.next(), queue.next()) };
        let feed = async {
            tokio::task::yield_now().await;
            (queue.push(Operation::Invoke, request("1")), queue.push(Operation::Invoke, request("2")))
        };
        let ((first, second), _tickets) = tokio::join!(work, feed);
        assert!(first.is_some() && second.is_some());
    }
}
