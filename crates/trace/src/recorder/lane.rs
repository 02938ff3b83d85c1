//! Where a thread records: one ring, no lock, no allocation.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::Producer;

use super::event::{Head, Kind, MAX_MORE, MAX_VALUES, NONE, Slot, TEXT_FOLLOWS, cut, put_text};
use super::names::{Counter, Name};

/// Where one thread records. What it records becomes rows on its own track, and on the tracks of [`Stream`]s.
///
/// An event goes into a ring of fixed size, from which the writer's thread takes it. When the ring is full the event is
/// dropped and counted: recording never waits and never grows.
pub struct Lane {
    core: Option<Box<Core>>,
    /// A lane belongs to the thread that uses it.
    _thread: PhantomData<*const ()>,
}

/// The recording side of a ring.
pub(super) struct Core {
    pub clock: quanta::Clock,
    pub ring: RefCell<Producer<Slot>>,
    /// The rows of open spans, one bit each.
    pub open: Cell<u64>,
    /// The next correlation.
    pub correlation: Cell<u64>,
    pub dropped: Arc<Dropped>,
}

/// Events that found a full ring, by kind. Written by one thread, read by another.
#[derive(Default)]
pub(super) struct Dropped([AtomicU64; Kind::ALL.len()]);

impl Dropped {
    /// One writer only: a load and a store are enough.
    #[cold]
    fn count(&self, kind: Kind) {
        let counter = &self.0[kind as usize];
        counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize].load(Ordering::Relaxed)
    }
}

/// A moment, from [`Lane::now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

/// A stream of a device, from [`Handle::stream`](super::Handle::stream).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(pub(super) u32);

/// Joins a launch to what it started, from [`Lane::launch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Correlation(u64);

/// A piece of work of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Where it ran.
    pub stream: Stream,
    /// What it is called.
    pub name: Name,
    /// When it began.
    pub from: Time,
    /// When it ended.
    pub to: Time,
    /// What launched it.
    pub correlation: Option<Correlation>,
}

/// What a collective moves, and which one it is.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    /// Process group.
    pub group: Name,
    /// Number of the collective within its group: ranks are aligned by it.
    pub sequence: i64,
    /// Bytes that this rank contributes.
    pub bytes: i64,
    /// Element type.
    pub dtype: Option<Name>,
}

/// What happened to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MemoryKind {
    /// `alloc`
    Allocated,
    /// `free`
    Freed,
    /// `high_water`: the most that was in use since the last one.
    HighWater,
}

impl MemoryKind {
    pub(super) fn word(number: u8) -> &'static str {
        match number {
            0 => "alloc",
            1 => "free",
            _ => "high_water",
        }
    }
}

/// A memory event.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// What happened.
    pub kind: MemoryKind,
    /// Address.
    pub address: Option<u64>,
    /// Bytes: positive allocates, negative frees; of a high-water mark, its height.
    pub bytes: Option<i64>,
    /// Bytes in use after it.
    pub allocated: Option<i64>,
    /// Bytes held from the system after it.
    pub reserved: Option<i64>,
    /// Device number; none for the host's memory.
    pub device: Option<u32>,
}

impl Lane {
    /// A lane that records nothing, at the cost of looking whether it does.
    pub const fn off() -> Self {
        Self { core: None, _thread: PhantomData }
    }

    pub(super) fn new(core: Core) -> Self {
        Self { core: Some(Box::new(core)), _thread: PhantomData }
    }

    /// Whether this lane records.
    pub fn is_on(&self) -> bool {
        self.core.is_some()
    }

    /// Whether its recorder still takes what it records.
    pub(super) fn is_read(&self) -> bool {
        self.core.as_ref().is_some_and(|core| !core.ring.borrow().is_abandoned())
    }

    /// Now. Without meaning when the lane is off.
    #[inline]
    pub fn now(&self) -> Time {
        Time(self.core.as_ref().map_or(0, |core| core.clock.raw()))
    }

    /// Work of this thread, until the span is dropped. Spans nest; up to 64 are open at once, and more are dropped.
    #[inline]
    pub fn span(&self, name: Name) -> Span<'_> {
        self.open(Kind::Span, name.number(), 0, "")
    }

    /// A span whose name is not known beforehand; names of more than 256 bytes are cut. The name is copied when the span
    /// ends.
    pub fn span_of<'l>(&'l self, name: &'l str) -> Span<'l> {
        self.open(Kind::Span, TEXT_FOLLOWS, 0, cut(name))
    }

    /// A part of the program as its user calls it.
    #[inline]
    pub fn annotate(&self, name: Name) -> Span<'_> {
        self.open(Kind::Annotation, name.number(), 0, "")
    }

    /// An annotation whose name is not known beforehand, as [`Lane::span_of`].
    pub fn annotation<'l>(&'l self, name: &'l str) -> Span<'l> {
        self.open(Kind::Annotation, TEXT_FOLLOWS, 0, cut(name))
    }

    /// The annotation `name_number`, such as `step_12`. Reports gather such annotations under `name`.
    #[inline]
    pub fn step(&self, name: Name, number: u64) -> Span<'_> {
        self.open(Kind::Annotation, name.number(), number.saturating_add(1), "")
    }

    /// The thread waits for something: another thread, a stream, a peer.
    #[inline]
    pub fn wait(&self, name: Name) -> Span<'_> {
        self.open(Kind::Wait, name.number(), 0, "")
    }

    /// The thread gives work to a stream. The correlation goes with the work, as often as it starts any.
    #[inline]
    pub fn launch(&self, name: Name) -> (Span<'_>, Option<Correlation>) {
        let number = self.core.as_ref().map_or(0, |core| core.correlation.replace(core.correlation.get() + 1));
        (self.open(Kind::Launch, name.number(), number, ""), self.is_on().then_some(Correlation(number)))
    }

    #[inline(always)]
    fn open<'l>(&'l self, kind: Kind, name: u32, aux: u64, text: &'l str) -> Span<'l> {
        let Some(core) = self.core.as_deref() else {
            return Span { core: None, kind, row: 0, name, start: 0, aux, text };
        };
        // The lowest row above all open ones, so that slices of a row never overlap, in whatever order spans end.
        let row = 64 - core.open.get().leading_zeros();
        if row < 64 {
            core.open.set(core.open.get() | 1 << row);
        }
        Span { core: Some(core), kind, row: row as u8, name, start: core.clock.raw(), aux, text }
    }

    /// A point in time.
    #[inline]
    pub fn instant(&self, name: Name) {
        if let Some(core) = self.core.as_deref() {
            core.push([head(Kind::Instant, name), core.clock.raw(), 0, 0]);
        }
    }

    /// A point in time whose name is not known beforehand; names of more than 256 bytes are cut.
    pub fn instant_of(&self, name: &str) {
        if let Some(core) = self.core.as_deref() {
            let mut slots = [[0; 4]; MAX_MORE + 1];
            let text = cut(name);
            let more = put_text(text, &mut slots[1..]);
            let head = Head { kind: Kind::Instant, row: 0, more: more as u8, values: 0, name: TEXT_FOLLOWS };
            slots[0] = [head.word(), core.clock.raw(), 0, text.len() as u64];
            core.push_all(Kind::Instant, &slots[..=more]);
        }
    }

    /// The value of a counter now.
    #[inline]
    pub fn counter(&self, counter: Counter, value: f64) {
        if let Some(core) = self.core.as_deref() {
            core.push([head(Kind::Counter, counter.0), core.clock.raw(), value.to_bits(), 0]);
        }
    }

    /// A kernel ran on a stream: element type, and the values that its name names, such as the sides of its operands. Up to
    /// eight values are kept.
    #[inline]
    pub fn kernel(&self, work: Work, dtype: Option<Name>, values: &[i64]) {
        let Some(core) = self.core.as_deref() else { return };
        let values = &values[..values.len().min(MAX_VALUES)];
        let mut slots = [[0; 4]; 4];
        slots[1][0] = stream_and_name(work.stream, dtype);
        for (word, &value) in slots[1..].as_flattened_mut()[1..].iter_mut().zip(values) {
            *word = value as u64;
        }
        let more = (1 + values.len()).div_ceil(4);
        slots[0] = core.work(Kind::Kernel, work, more, values.len());
        core.push_all(Kind::Kernel, &slots[..=more]);
    }

    /// A stream copied so many bytes.
    #[inline]
    pub fn copy(&self, work: Work, bytes: i64) {
        self.bytes(Kind::Copy, work, bytes);
    }

    /// A stream filled so many bytes.
    #[inline]
    pub fn fill(&self, work: Work, bytes: i64) {
        self.bytes(Kind::Set, work, bytes);
    }

    fn bytes(&self, kind: Kind, work: Work, bytes: i64) {
        if let Some(core) = self.core.as_deref() {
            let more = [stream_and_name(work.stream, None), bytes as u64, 0, 0];
            core.push_all(kind, &[core.work(kind, work, 1, 0), more]);
        }
    }

    /// Ranks communicated on a stream.
    #[inline]
    pub fn collective(&self, work: Work, collective: &Collective) {
        if let Some(core) = self.core.as_deref() {
            let Collective { group, sequence, bytes, dtype } = *collective;
            let more = [stream_and_name(work.stream, dtype), bytes as u64, u64::from(group.number()), sequence as u64];
            core.push_all(Kind::Collective, &[core.work(Kind::Collective, work, 1, 0), more]);
        }
    }

    /// Something happened to memory now.
    pub fn memory(&self, memory: &Memory) {
        let Some(core) = self.core.as_deref() else { return };
        let Memory { kind, address, bytes, allocated, reserved, device } = *memory;
        let device = device.map(i64::from);
        let given = [address.map(|address| address as i64), bytes, allocated, reserved, device];
        let mask = given.iter().enumerate().fold(0, |mask, (at, word)| mask | u8::from(word.is_some()) << at);
        let [address, bytes, allocated, reserved, device] = given.map(|word| word.unwrap_or(0) as u64);
        let head = Head { kind: Kind::Memory, row: kind as u8, more: 1, values: mask, name: NONE };
        let slots = [[head.word(), core.clock.raw(), address, bytes], [allocated, reserved, device, 0]];
        core.push_all(Kind::Memory, &slots);
    }
}

#[inline]
fn head(kind: Kind, name: Name) -> u64 {
    Head { kind, row: 0, more: 0, values: 0, name: name.number() }.word()
}

#[inline]
fn stream_and_name(stream: Stream, name: Option<Name>) -> u64 {
    u64::from(stream.0) | u64::from(name.map_or(NONE, Name::number)) << 32
}

impl Core {
    #[inline]
    fn push(&self, slot: Slot) {
        if self.ring.borrow_mut().push(slot).is_err()
            && let Some(head) = Head::of(slot[0])
        {
            self.dropped.count(head.kind);
        }
    }

    #[inline]
    fn push_all(&self, kind: Kind, slots: &[Slot]) {
        if self.ring.borrow_mut().push_entire_slice(slots).is_err() {
            self.dropped.count(kind);
        }
    }

    #[inline]
    fn work(&self, kind: Kind, work: Work, more: usize, values: usize) -> Slot {
        let head = Head { kind, row: 0, more: more as u8, values: values as u8, name: work.name.number() };
        [head.word(), work.from.0, work.to.0, work.correlation.map_or(0, |correlation| correlation.0)]
    }
}

/// A slice of a thread that lasts until this is dropped.
#[must_use = "a span ends when it is dropped"]
pub struct Span<'l> {
    core: Option<&'l Core>,
    kind: Kind,
    row: u8,
    name: u32,
    start: u64,
    aux: u64,
    text: &'l str,
}

impl Span<'_> {
    /// Ends the span with the values that its name names; up to eight are kept.
    pub fn end_with(mut self, values: &[i64]) {
        if let Some(core) = self.core.take() {
            self.end(core, values);
        }
    }

    #[inline]
    fn end(&self, core: &Core, values: &[i64]) {
        let end = core.clock.raw();
        if self.row >= 64 {
            return core.dropped.count(self.kind);
        }
        core.open.set(core.open.get() & !(1 << self.row));
        let head = Head { kind: self.kind, row: self.row, more: 0, values: 0, name: self.name };
        if values.is_empty() && self.name != TEXT_FOLLOWS {
            core.push([head.word(), self.start, end, self.aux]);
        } else {
            self.push_long(core, head, end, &values[..values.len().min(MAX_VALUES)]);
        }
    }

    #[cold]
    fn push_long(&self, core: &Core, head: Head, end: u64, values: &[i64]) {
        let mut slots = [[0; 4]; MAX_MORE + 1];
        let mut more = put_text(self.text, &mut slots[1..]);
        for (word, &value) in slots[1 + more..].as_flattened_mut().iter_mut().zip(values) {
            *word = value as u64;
        }
        more += values.len().div_ceil(4);
        let aux = if self.name == TEXT_FOLLOWS { self.text.len() as u64 } else { self.aux };
        let head = Head { more: more as u8, values: values.len() as u8, ..head };
        slots[0] = [head.word(), self.start, end, aux];
        core.push_all(self.kind, &slots[..=more]);
    }
}

impl Drop for Span<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(core) = self.core {
            self.end(core, &[]);
        }
    }
}
