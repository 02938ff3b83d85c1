//! One persistent team of threads that spins briefly before it parks.
//!
//! A transformer step is hundreds of short parallel regions. Waking a sleeping thread costs as much as a small matrix
//! product, so the members of a team wait for the next region by spinning for about [`SPINS`] polls and only then
//! park. On a machine that does other things too, a member may have lost its core when a region begins: where the work is
//! taken piece by piece, the others do it and nobody waits for the one who never came ([`Team::run_open`]).

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// Polls before a waiting member parks: some 50 µs, longer than the serial stretches inside a step.
const SPINS: usize = 20_000;
/// Polls between two yields of a thread that waits for its team: on a shared machine a member may have lost its core.
const SPINS_BEFORE_YIELD: usize = 2_000;

/// A fixed number of threads, the caller included, that run one region at a time.
pub struct Team {
    shared: Arc<Shared>,
    members: Vec<JoinHandle<()>>,
    parked: Vec<Arc<Parking>>,
    running: Mutex<()>,
}

/// A thread's place in a running region.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// `0..count`; the caller of [`Team::run`] is 0.
    pub index: usize,
    /// Number of threads in the region.
    pub count: usize,
    shared: &'a Shared,
}

struct Shared {
    count: usize,
    /// The region: its number in the upper half, whether members may still join it, how many have joined, and how many of
    /// them have not finished.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    panicked: AtomicBool,
    /// What the first member to panic said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    barrier_arrived: AtomicUsize,
    barrier_generation: AtomicUsize,
}

type Job = *const (dyn Fn(Worker) + Sync);

const OPEN: u64 = 1 << 31;
const JOINED: u64 = 1 << 16;
const ACTIVE: u64 = 1;

fn number(state: u64) -> u32 {
    (state >> 32) as u32
}

fn joined(state: u64) -> usize {
    (state % OPEN / JOINED) as usize
}

fn active(state: u64) -> usize {
    (state % JOINED) as usize
}

struct Parking {
    parked: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

// SAFETY: `job` is written only by the caller of `run` while no region is open and no member active, and read only by
// members that joined the region that publishes it; the pointee outlives the region because the caller closes it and then
// returns after the last active member has finished.
unsafe impl Sync for Shared {}
// SAFETY: as above; the job pointer is never used outside a region.
unsafe impl Send for Shared {}

impl Team {
    /// A team of `threads` (at least 1) threads, the caller included.
    pub fn new(threads: usize) -> Self {
        let count = threads.max(1);
        let shared = Arc::new(Shared {
            count,
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            barrier_arrived: AtomicUsize::new(0),
            barrier_generation: AtomicUsize::new(0),
        });
        let mut team = Self { shared, members: Vec::new(), parked: Vec::new(), running: Mutex::new(()) };
        for index in 1..count {
            let parking = Arc::new(Parking { parked: AtomicBool::new(false), thread: Mutex::new(None) });
            let (shared, own) = (team.shared.clone(), parking.clone());
            let member =
                thread::Builder::new().name(format!("team-{index}")).spawn(move || serve(&shared, &own, index));
            team.members.push(member.expect("the system refused a thread"));
            team.parked.push(parking);
        }
        team
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.shared.count
    }

    /// Runs `region` once on every thread and returns when all have finished. A panic in one of them is passed on.
    ///
    /// # Panics
    /// When called from within a region: its threads are taken.
    pub fn run(&self, region: impl Fn(Worker) + Sync) {
        self.begin_and_end(&region, true);
    }

    /// Runs `region` on the caller and on those members that come before the caller has finished, each once: for work
    /// that is taken piece by piece until none is left. A region must not wait for others ([`Worker::barrier`]).
    ///
    /// # Panics
    /// As [`Team::run`].
    pub fn run_open(&self, region: impl Fn(Worker) + Sync) {
        self.begin_and_end(&region, false);
    }

    fn begin_and_end(&self, region: &(dyn Fn(Worker) + Sync), everyone: bool) {
        let own = Worker { index: 0, count: self.shared.count, shared: &self.shared };
        if self.shared.count == 1 {
            return region(own);
        }
        assert!(!IN_REGION.get(), "a region of a team begins another one");
        let _one_region_at_a_time = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // A region that ended in a panic may have left these; no member runs now.
        self.shared.panicked.store(false, Ordering::Relaxed);
        self.shared.barrier_arrived.store(0, Ordering::Relaxed);
        // SAFETY: no region is open and no member active (we hold the lock and the last one has ended), so no member reads
        // the job now. The lifetime is erased only for the time of this call, which waits for every member that joins.
        unsafe {
            *self.shared.job.get() = Some(std::mem::transmute::<&(dyn Fn(Worker) + Sync), Job>(region));
        }
        let state = &self.shared.state;
        let next = number(state.load(Ordering::Relaxed)).wrapping_add(1);
        state.store(u64::from(next) << 32 | OPEN, Ordering::SeqCst);
        self.parked.iter().for_each(|parking| parking.wake());
        let result = within_region(|| region(own));
        if result.is_err() {
            // Members that wait at a barrier must not wait for this thread.
            self.shared.panicked.store(true, Ordering::Relaxed);
        }
        if everyone {
            wait(|| joined(state.load(Ordering::Acquire)) == self.shared.count - 1);
        }
        state.fetch_and(!OPEN, Ordering::AcqRel);
        wait(|| active(state.load(Ordering::Acquire)) == 0);
        let member_panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = result.err().or(member_panic) {
            resume_unwind(panic);
        }
    }

    /// Runs `region` on the caller alone, as a team of one: for work too small to share.
    pub fn run_alone(&self, region: impl FnOnce(Worker)) {
        region(Worker { index: 0, count: 1, shared: &self.shared });
    }

    /// Calls `work` for every index below `count`; threads take the next index when they are free.
    pub fn for_each(&self, count: usize, work: impl Fn(usize) + Sync) {
        if count <= 1 || self.shared.count == 1 {
            return (0..count).for_each(work);
        }
        let next = AtomicUsize::new(0);
        self.run_open(|_| {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    break;
                }
                work(index);
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Another number, and no region to join.
        self.shared.state.fetch_add(1 << 32, Ordering::SeqCst);
        self.parked.iter().for_each(|parking| parking.wake());
        for member in self.members.drain(..) {
            let _ = member.join();
        }
    }
}

impl Worker<'_> {
    /// This thread's share of `0..count`, in multiples of `grain`; the shares of all threads cover it in order.
    pub fn share(&self, count: usize, grain: usize) -> Range<usize> {
        let grains = count.div_ceil(grain);
        let bound = |index: usize| (grains * index / self.count * grain).min(count);
        bound(self.index)..bound(self.index + 1)
    }

    /// Waits until every thread of the region has come here.
    pub fn barrier(&self) {
        if self.count == 1 {
            return;
        }
        let shared = self.shared;
        let generation = shared.barrier_generation.load(Ordering::Acquire);
        if shared.barrier_arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            shared.barrier_arrived.store(0, Ordering::Relaxed);
            shared.barrier_generation.store(generation.wrapping_add(1), Ordering::Release);
        } else {
            wait(|| {
                assert!(!shared.panicked.load(Ordering::Relaxed), "a team member panicked before a barrier");
                shared.barrier_generation.load(Ordering::Acquire) != generation
            });
        }
    }
}

impl Parking {
    fn wake(&self) {
        if self.parked.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
    }
}

thread_local! {
    static IN_REGION: Cell<bool> = const { Cell::new(false) };
}

fn within_region(region: impl FnOnce()) -> thread::Result<()> {
    IN_REGION.set(true);
    let result = catch_unwind(AssertUnwindSafe(region));
    IN_REGION.set(false);
    result
}

fn wait(done: impl Fn() -> bool) {
    let mut polls = 0;
    while !done() {
        polls += 1;
        if polls % SPINS_BEFORE_YIELD == 0 { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

fn serve(shared: &Shared, parking: &Parking, index: usize) {
    *parking.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
    let mut seen = 0;
    loop {
        await_region(shared, parking, seen);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if !shared.join(&mut seen) {
            continue;
        }
        // SAFETY: this member joined the region that published the job, whose caller keeps it alive until no one is active.
        let job = unsafe { (*shared.job.get()).map(|job| &*job) };
        let worker = Worker { index, count: shared.count, shared };
        if let Some(job) = job
            && let Err(panic) = within_region(|| job(worker))
        {
            shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.state.fetch_sub(ACTIVE, Ordering::Release);
    }
}

impl Shared {
    /// Joins the region that is open now, whichever it is; false when none is. `seen` becomes its number.
    fn join(&self, seen: &mut u32) -> bool {
        let join = |state: u64| (state & OPEN != 0).then_some(state + JOINED + ACTIVE);
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, join);
        *seen = number(before.unwrap_or_else(|state| state));
        before.is_ok()
    }
}

/// Returns once the region's number has moved past `seen`. The flag is raised before the last look at the number and
/// the caller looks at the flag after moving it, so a wake-up cannot be lost.
fn await_region(shared: &Shared, parking: &Parking, seen: u32) {
    for _ in 0..SPINS {
        if number(shared.state.load(Ordering::Acquire)) != seen {
            return;
        }
        std::hint::spin_loop();
    }
    loop {
        parking.parked.store(true, Ordering::SeqCst);
        if number(shared.state.load(Ordering::SeqCst)) != seen {
            parking.parked.store(false, Ordering::SeqCst);
            return;
        }
        thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_worked_on_once() {
        let team = Team::new(3);
        for count in [0, 1, 2, 3, 100] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            team.for_each(count, |i| {
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn open_regions_end_with_whoever_came_and_leave_no_one_behind() {
        let team = Team::new(3);
        for round in 0..2000 {
            let (inside, entered) = (AtomicUsize::new(0), AtomicUsize::new(0));
            team.run_open(|worker| {
                inside.fetch_add(1, Ordering::SeqCst);
                entered.fetch_or(1 << worker.index, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            });
            assert_eq!(inside.load(Ordering::SeqCst), 0, "no member is left in a region that ended");
            assert_eq!(entered.load(Ordering::SeqCst) & 1, 1, "the caller takes part");
            if round % 100 == 0 {
                let everyone = AtomicUsize::new(0);
                team.run(|worker| {
                    everyone.fetch_or(1 << worker.index, Ordering::SeqCst);
                });
                assert_eq!(everyone.load(Ordering::SeqCst), 0b111);
                thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn shares_cover_the_range_in_order() {
        let team = Team::new(4);
        let shares = Mutex::new(vec![0..0; 4]);
        team.run(|worker| shares.lock().unwrap()[worker.index] = worker.share(1003, 16));
        let shares = shares.into_inner().unwrap();
        assert_eq!(shares.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..1003).collect::<Vec<_>>());
    }

    #[test]
    fn a_barrier_separates_phases_even_after_parking() {
        let team = Team::new(2);
        for round in 0..50 {
            let written = AtomicUsize::new(0);
            team.run(|worker| {
                written.fetch_add(1, Ordering::Relaxed);
                worker.barrier();
                assert_eq!(written.load(Ordering::Relaxed), 2);
                worker.barrier();
            });
            if round % 10 == 0 {
                thread::sleep(std::time::Duration::from_millis(2));
            }
        }
    }

    #[test]
    fn a_panic_in_a_member_reaches_the_caller_and_the_team_lives_on() {
        let team = Team::new(2);
        let failed = catch_unwind(AssertUnwindSafe(|| team.run(|w| assert!(w.index == 0, "not here, in {}", w.index))));
        assert_eq!(failed.unwrap_err().downcast_ref::<String>().map(String::as_str), Some("not here, in 1"));
        team.for_each(4, |_| {});
    }

    #[test]
    fn a_panic_before_a_barrier_ends_the_region_and_the_next_barrier_still_separates() {
        let team = Team::new(3);
        for unlucky in 0..3 {
            let failed = catch_unwind(AssertUnwindSafe(|| {
                team.run(|worker| {
                    assert!(worker.index != unlucky, "unlucky");
                    worker.barrier();
                })
            }));
            assert!(failed.is_err());
            let arrived = AtomicUsize::new(0);
            team.run(|worker| {
                arrived.fetch_add(1, Ordering::Relaxed);
                worker.barrier();
                assert_eq!(arrived.load(Ordering::Relaxed), 3);
            });
        }
    }

    #[test]
    #[should_panic(expected = "begins another one")]
    fn a_region_within_a_region_is_refused() {
        let team = Team::new(2);
        team.run(|_| team.run(|_| {}));
    }
}
