//! What threads reach a recording by: their lanes, its devices and streams.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rtrb::{Consumer, RingBuffer};

use super::Options;
use super::event::{MAX_MORE, Slot};
use super::lane::{Core, Dropped, Lane, Stream};

/// Tracks of a rank: its lanes and streams. Tracks of rank `r` are numbered from `r << TRACK_BITS`.
pub(super) const TRACK_BITS: u32 = 20;

/// What all threads of a recording share.
pub(super) struct Shared {
    /// Tells recordings apart in a thread's list of lanes.
    id: u64,
    clock: quanta::Clock,
    ring_slots: usize,
    tracks: AtomicU32,
    /// Lanes and streams that found no track left.
    pub without_track: AtomicU64,
    news: Mutex<Vec<News>>,
    pub stop: AtomicBool,
}

/// What the writer's thread must know.
pub(super) enum News {
    Lane { track: u32, thread: u64, name: String, ring: Consumer<Slot>, dropped: Arc<Dropped> },
    Stream { track: u32, device: u32, number: i64, name: String },
    Device { number: u32, name: String, memory_bytes: Option<i64> },
}

impl Shared {
    pub fn new(options: &Options) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            clock: quanta::Clock::new(),
            ring_slots: options.ring_slots.max(MAX_MORE + 1),
            tracks: AtomicU32::new(0),
            without_track: AtomicU64::new(0),
            news: Mutex::new(Vec::new()),
            stop: AtomicBool::new(false),
        }
    }

    pub fn clock(&self) -> &quanta::Clock {
        &self.clock
    }

    pub fn take_news(&self) -> Vec<News> {
        std::mem::take(&mut *self.news())
    }

    /// The list is whole after every change, so a panic elsewhere does not spoil it.
    fn news(&self) -> MutexGuard<'_, Vec<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next track; none when the rank has as many as it can have, which is counted.
    pub fn track(&self) -> Option<u32> {
        let next = |track: u32| (track < 1 << TRACK_BITS).then_some(track + 1);
        let track = self.tracks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok();
        if track.is_none() {
            self.without_track.fetch_add(1, Ordering::Relaxed);
        }
        track
    }
}

/// Reaches a recording from any thread, or none: a handle that is off gives lanes that record nothing.
#[derive(Clone)]
pub struct Handle(Option<Arc<Shared>>);

/// A device whose streams are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device(u32);

thread_local! {
    /// This thread's lanes, by recording.
    static HERE: RefCell<Vec<(u64, Rc<Lane>)>> = const { RefCell::new(Vec::new()) };
    /// A number for this thread.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// A number for this thread: on Linux the kernel's.
fn thread_number() -> u64 {
    THREAD.with(|thread| {
        if thread.get() == 0 {
            thread.set(new_thread_number());
        }
        thread.get()
    })
}

#[cfg(target_os = "linux")]
fn new_thread_number() -> u64 {
    // SAFETY: the call takes nothing and always succeeds.
    unsafe { libc::gettid() as u64 }
}

#[cfg(not(target_os = "linux"))]
fn new_thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Handle {
    /// A handle to no recording.
    pub const fn off() -> Self {
        Self(None)
    }

    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(Some(shared))
    }

    /// Whether there is a recording.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A new lane for this thread, with a track of its own. A rank has up to a million tracks; a lane beyond them is off, and
    /// the profile says so.
    pub fn lane(&self, name: &str) -> Lane {
        let Some(shared) = &self.0 else { return Lane::off() };
        let Some(track) = shared.track() else { return Lane::off() };
        let (producer, ring) = RingBuffer::new(shared.ring_slots);
        let dropped = Arc::new(Dropped::default());
        let news = News::Lane { track, thread: thread_number(), name: name.into(), ring, dropped: dropped.clone() };
        shared.news().push(news);
        Lane::new(Core {
            clock: shared.clock.clone(),
            ring: RefCell::new(producer),
            open: Cell::new(0),
            // Unique among lanes, and never 0.
            correlation: Cell::new((u64::from(track) << 40) + 1),
            dropped,
        })
    }

    /// Does something with this thread's lane, which is made the first time and bears the thread's name.
    pub fn here<R>(&self, record: impl FnOnce(&Lane) -> R) -> R {
        let Some(shared) = &self.0 else { return record(&Lane::off()) };
        let found = HERE.with_borrow(|lanes| Some(lanes.iter().find(|(id, _)| *id == shared.id)?.1.clone()));
        let lane = found.unwrap_or_else(|| {
            let thread = std::thread::current();
            let lane = Rc::new(self.lane(thread.name().unwrap_or("thread")));
            HERE.with_borrow_mut(|lanes| {
                lanes.retain(|(_, lane)| lane.is_read());
                lanes.push((shared.id, lane.clone()));
            });
            lane
        });
        record(&lane)
    }

    /// Names a device of this rank; again, to say more of it.
    pub fn device(&self, number: u32, name: &str, memory_bytes: Option<i64>) -> Device {
        if let Some(shared) = &self.0 {
            shared.news().push(News::Device { number, name: name.into(), memory_bytes });
        }
        Device(number)
    }

    /// A stream of a device, with a track of its own.
    pub fn stream(&self, device: Device, number: i64, name: &str) -> Stream {
        let track = self.0.as_ref().and_then(|shared| {
            let track = shared.track()?;
            shared.news().push(News::Stream { track, device: device.0, number, name: name.into() });
            Some(track)
        });
        // What is recorded on a stream beyond the last track is dropped.
        Stream(track.unwrap_or(u32::MAX))
    }
}
