//! From queued work to batches, without artificial delay.
//!
//! [`Scheduler`] holds one bounded queue. A [`Runner`] (a thread team with its model) that is free takes what waits, first
//! come first served, up to a budget of cost (tokens): that is the batch. Nobody waits for a batch to fill. Work whose
//! caller has gone is dropped when its turn comes, work whose deadline has passed is refused.
//!
//! What the work is, the scheduler does not know: a batch of work goes in, one result for each comes out.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

/// How long nothing comes before a runner counts as idle.
const IDLE_AFTER: Duration = Duration::from_secs(2);

/// Does the work of a batch, on a thread of its own.
pub trait Runner: 'static {
    /// One piece of work.
    type Work: Send + 'static;
    /// What comes of it.
    type Outcome: Send + 'static;

    /// Outcomes in the order of the work, as many.
    fn run(&mut self, batch: &[Self::Work]) -> Vec<Self::Outcome>;

    /// Nothing came for a while: the memory of large batches may go.
    fn idle(&mut self) {}
}

/// Why work was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue holds this many already.
    Full {
        /// Pieces of work that wait.
        queued: usize,
    },
    /// The deadline passed while it waited.
    Deadline,
    /// The runner panicked, and said this.
    Crashed(String),
    /// The scheduler was closed.
    Closed,
}

/// A finished piece of work, and when things happened to it.
#[derive(Debug)]
pub struct Done<O> {
    /// What came of it.
    pub outcome: O,
    /// When it was queued.
    pub queued: Instant,
    /// When its batch began.
    pub started: Instant,
    /// When its batch ended.
    pub finished: Instant,
}

/// A result to wait for; dropping it cancels the work unless it has begun.
pub type Pending<O> = oneshot::Receiver<Result<Done<O>, Refusal>>;

/// The limits of a queue and its batches.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Pieces of work that may wait.
    pub queue: usize,
    /// Cost of a batch; a single piece may exceed it.
    pub batch_cost: usize,
    /// Pieces of work in a batch.
    pub batch_size: usize,
}

/// Told about every batch; for metrics.
pub trait Observer: Send + Sync + 'static {
    /// A batch was run.
    fn batch(&self, report: &BatchReport);
    /// The queue has this length now.
    fn queue(&self, length: usize);
    /// So many pieces of work were dropped because their caller had gone.
    fn cancelled(&self, count: usize);
}

/// One batch, for an [`Observer`].
pub struct BatchReport {
    /// Pieces of work.
    pub size: usize,
    /// Their cost together.
    pub cost: usize,
    /// How long the runner took.
    pub seconds: f64,
    /// How long each piece had waited.
    pub waited_seconds: Vec<f64>,
}

/// A queue and the runners that empty it. Dropping it lets queued work finish, and does not wait for that.
pub struct Scheduler<R: Runner> {
    shared: Arc<Shared<R>>,
}

struct Shared<R: Runner> {
    queue: Mutex<Queue<R>>,
    arrived: Condvar,
    limits: Limits,
    observer: Arc<dyn Observer>,
}

struct Queue<R: Runner> {
    tickets: VecDeque<Ticket<R>>,
    open: bool,
}

struct Ticket<R: Runner> {
    work: R::Work,
    cost: usize,
    queued: Instant,
    deadline: Instant,
    reply: oneshot::Sender<Result<Done<R::Outcome>, Refusal>>,
}

impl<R: Runner> Scheduler<R> {
    /// Starts one thread for each of `makers`, which make their runner there.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start<M>(limits: Limits, observer: Arc<dyn Observer>, makers: Vec<M>) -> std::io::Result<Self>
    where
        M: FnOnce() -> R + Send + 'static,
    {
        let queue = Mutex::new(Queue { tickets: VecDeque::new(), open: true });
        let shared = Arc::new(Shared { queue, arrived: Condvar::new(), limits, observer });
        let scheduler = Self { shared };
        for (index, maker) in makers.into_iter().enumerate() {
            let shared = scheduler.shared.clone();
            let thread = std::thread::Builder::new().name(format!("runner-{index}"));
            thread.spawn(move || shared.serve(maker()))?;
        }
        Ok(scheduler)
    }

    /// Queues pieces of work with their costs: all of them or none. Answers come in the same order.
    ///
    /// # Errors
    /// [`Refusal::Full`] or [`Refusal::Closed`].
    pub fn submit(&self, work: Vec<(R::Work, usize)>, deadline: Instant) -> Result<Vec<Pending<R::Outcome>>, Refusal> {
        let queued = Instant::now();
        let mut pending = Vec::with_capacity(work.len());
        let mut queue = self.shared.lock();
        if !queue.open {
            return Err(Refusal::Closed);
        }
        if !work.is_empty() && queue.tickets.len() + work.len() > self.shared.limits.queue {
            // Those whose callers have gone make room.
            let before = queue.tickets.len();
            queue.tickets.retain(|ticket| !ticket.reply.is_closed());
            self.shared.observer.cancelled(before - queue.tickets.len());
            if queue.tickets.len() + work.len() > self.shared.limits.queue {
                return Err(Refusal::Full { queued: queue.tickets.len() });
            }
        }
        for (work, cost) in work {
            let (reply, receiver) = oneshot::channel();
            queue.tickets.push_back(Ticket { work, cost, queued, deadline, reply });
            pending.push(receiver);
        }
        self.shared.observer.queue(queue.tickets.len());
        drop(queue);
        self.shared.arrived.notify_one();
        Ok(pending)
    }
}

impl<R: Runner> Drop for Scheduler<R> {
    fn drop(&mut self) {
        self.shared.lock().open = false;
        self.shared.arrived.notify_all();
    }
}

impl<R: Runner> Shared<R> {
    /// Every change to the queue leaves it valid, so a panic elsewhere does not spoil it.
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue<R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut runner: R) {
        while let Some(batch) = self.next_batch(&mut runner) {
            self.run(&mut runner, batch);
        }
    }

    /// Waits for work; `None` once the scheduler is closed and the queue empty.
    fn next_batch(&self, runner: &mut R) -> Option<Vec<Ticket<R>>> {
        let mut was_idle = false;
        let mut queue = self.lock();
        loop {
            let (batch, cancelled) = self.take(&mut queue.tickets);
            self.observer.cancelled(cancelled);
            self.observer.queue(queue.tickets.len());
            if !batch.is_empty() {
                if !queue.tickets.is_empty() {
                    self.arrived.notify_one();
                }
                return Some(batch);
            }
            if !queue.open {
                return None;
            }
            if was_idle {
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (waited, result) = self.arrived.wait_timeout(queue, IDLE_AFTER).unwrap_or_else(PoisonError::into_inner);
            queue = waited;
            if result.timed_out() {
                drop(queue);
                runner.idle();
                was_idle = true;
                queue = self.lock();
            }
        }
    }

    /// What waits, first come first served, within the limits, and how many were dropped because no one waits for them.
    fn take(&self, tickets: &mut VecDeque<Ticket<R>>) -> (Vec<Ticket<R>>, usize) {
        let (now, mut batch, mut cost, mut cancelled) = (Instant::now(), Vec::new(), 0, 0);
        while let Some(ticket) = tickets.pop_front() {
            if ticket.reply.is_closed() {
                cancelled += 1;
                continue;
            }
            if ticket.deadline <= now {
                // It may have gone this very moment; then there is no one to tell.
                let _ = ticket.reply.send(Err(Refusal::Deadline));
                continue;
            }
            if !batch.is_empty() && cost + ticket.cost > self.limits.batch_cost {
                tickets.push_front(ticket);
                break;
            }
            cost += ticket.cost;
            batch.push(ticket);
            if batch.len() == self.limits.batch_size {
                break;
            }
        }
        (batch, cancelled)
    }

    fn run(&self, runner: &mut R, batch: Vec<Ticket<R>>) {
        let started = Instant::now();
        let size = batch.len();
        let cost = batch.iter().map(|ticket| ticket.cost).sum();
        let waited = batch.iter().map(|ticket| (started - ticket.queued).as_secs_f64()).collect();
        let mut work = Vec::with_capacity(size);
        let mut replies = Vec::with_capacity(size);
        for ticket in batch {
            work.push(ticket.work);
            replies.push((ticket.queued, ticket.reply));
        }
        let result = catch_unwind(AssertUnwindSafe(|| runner.run(&work)));
        let finished = Instant::now();
        let seconds = (finished - started).as_secs_f64();
        self.observer.batch(&BatchReport { size, cost, seconds, waited_seconds: waited });
        let crashed = match result {
            Ok(outcomes) if outcomes.len() == size => {
                for (outcome, (queued, reply)) in outcomes.into_iter().zip(replies) {
                    // Whoever has gone meanwhile does not want it.
                    let _ = reply.send(Ok(Done { outcome, queued, started, finished }));
                }
                return;
            }
            Ok(outcomes) => format!("the runner gave {} outcomes for {size} pieces of work", outcomes.len()),
            Err(panic) => panic_message(&*panic),
        };
        for (_, reply) in replies {
            let _ = reply.send(Err(Refusal::Crashed(crashed.clone())));
        }
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic without a message".into())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    struct NoObserver;

    impl Observer for NoObserver {
        fn batch(&self, _: &BatchReport) {}
        fn queue(&self, _: usize) {}
        fn cancelled(&self, _: usize) {}
    }

    /// Doubles numbers; reports every batch and waits to be let go.
    struct Doubler {
        seen: mpsc::Sender<Vec<u32>>,
        go: mpsc::Receiver<()>,
    }

    impl Runner for Doubler {
        type Work = u32;
        type Outcome = u32;

        fn run(&mut self, batch: &[u32]) -> Vec<u32> {
            self.seen.send(batch.to_vec()).unwrap();
            self.go.recv().unwrap();
            assert!(!batch.contains(&13), "thirteen");
            batch.iter().map(|n| 2 * n).collect()
        }
    }

    struct Rig {
        scheduler: Scheduler<Doubler>,
        seen: mpsc::Receiver<Vec<u32>>,
        go: mpsc::Sender<()>,
    }

    fn rig(queue: usize, batch_cost: usize) -> Rig {
        let (seen_by, seen) = mpsc::channel();
        let (go, allowed) = mpsc::channel();
        let make = move || Doubler { seen: seen_by, go: allowed };
        let limits = Limits { queue, batch_cost, batch_size: 100 };
        Rig { scheduler: Scheduler::start(limits, Arc::new(NoObserver), vec![make]).unwrap(), seen, go }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    impl Rig {
        fn submit(&self, numbers: &[u32]) -> Vec<Pending<u32>> {
            self.scheduler.submit(numbers.iter().map(|&n| (n, 10)).collect(), later()).unwrap()
        }
    }

    fn outcome(pending: Pending<u32>) -> Result<u32, Refusal> {
        pending.blocking_recv().unwrap().map(|done| done.outcome)
    }

    #[test]
    fn what_waits_when_the_runner_is_free_is_the_batch_up_to_the_budget() {
        let rig = rig(100, 30);
        let first = rig.submit(&[1]);
        assert_eq!(rig.seen.recv().unwrap(), [1], "a lone piece of work starts at once");
        let rest = rig.submit(&[2, 3, 4, 5]);
        (0..3).for_each(|_| rig.go.send(()).unwrap());
        assert_eq!(rig.seen.recv().unwrap(), [2, 3, 4]);
        assert_eq!(rig.seen.recv().unwrap(), [5]);
        let outcomes: Vec<u32> = first.into_iter().chain(rest).map(|p| outcome(p).unwrap()).collect();
        assert_eq!(outcomes, [2, 4, 6, 8, 10]);
    }

    #[test]
    fn work_beyond_the_budget_runs_alone() {
        let rig = rig(100, 5);
        let pending = rig.submit(&[7]);
        rig.go.send(()).unwrap();
        assert_eq!(outcome(pending.into_iter().next().unwrap()), Ok(14));
    }

    #[test]
    fn a_full_queue_refuses_all_of_a_request_and_cancelled_work_makes_room() {
        let rig = rig(3, 10);
        let running = rig.submit(&[1]);
        rig.seen.recv().unwrap();
        let mut waiting = rig.submit(&[2, 3]);
        let refused = rig.scheduler.submit(vec![(4, 1), (5, 1)], later());
        assert_eq!(refused.err(), Some(Refusal::Full { queued: 2 }));
        drop(waiting.remove(0));
        let accepted = rig.submit(&[4, 5]);
        (0..4).for_each(|_| rig.go.send(()).unwrap());
        let rest: Vec<u32> = running.into_iter().chain(waiting).chain(accepted).map(|p| outcome(p).unwrap()).collect();
        assert_eq!(rest, [2, 6, 8, 10]);
        assert_eq!(rig.seen.try_iter().flatten().collect::<Vec<_>>(), [3, 4, 5], "2 was cancelled and never ran");
    }

    #[test]
    fn work_past_its_deadline_is_refused() {
        let rig = rig(10, 10);
        let running = rig.submit(&[1]);
        rig.seen.recv().unwrap();
        let late = rig.scheduler.submit(vec![(2, 1)], Instant::now()).unwrap();
        rig.go.send(()).unwrap();
        assert_eq!(late.into_iter().map(outcome).next(), Some(Err(Refusal::Deadline)));
        assert_eq!(running.into_iter().map(outcome).next(), Some(Ok(2)));
    }

    #[test]
    fn a_panic_fails_its_batch_alone() {
        let rig = rig(10, 10);
        let (bad, good) = (rig.submit(&[13]), rig.submit(&[1]));
        (0..2).for_each(|_| rig.go.send(()).unwrap());
        assert_eq!(bad.into_iter().map(outcome).next(), Some(Err(Refusal::Crashed("thirteen".into()))));
        assert_eq!(good.into_iter().map(outcome).next(), Some(Ok(2)));
    }

    #[test]
    fn closing_lets_queued_work_finish() {
        let rig = rig(10, 10);
        let pending = rig.submit(&[1, 2, 3]);
        (0..3).for_each(|_| rig.go.send(()).unwrap());
        drop(rig.scheduler);
        let outcomes: Vec<u32> = pending.into_iter().map(|p| outcome(p).unwrap()).collect();
        assert_eq!(outcomes, [2, 4, 6]);
    }
}
