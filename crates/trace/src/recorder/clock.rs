//! From raw ticks of the processor's counter to nanoseconds of `CLOCK_MONOTONIC`.
//!
//! The hot path reads the counter alone. The writer's thread turns ticks into time with a line through a *knot* (ticks, ns):
//! from time to time it compares the line with the system's clock, and where they differ by more than [`TOLERANCE_NS`] a new
//! knot begins, whose slope brings the line back within about a second. Lines join, and slopes are positive, so time never
//! runs backwards; knots are kept, so the start of a long span is turned into the same time as what it encloses was.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far the line may be from the system's clock before it is bent: more than what a comparison is wrong by.
const TOLERANCE_NS: i64 = 1_000;
/// A difference above this is no drift: the machine slept or was moved.
const JUMP_NS: i64 = 100_000_000;
/// Time in which a difference is made good.
const SLEW_NS: f64 = 1e9;
/// Comparisons are not made more often than this: their own error would be taken for drift.
const APART: Duration = Duration::from_millis(100);
/// Knots kept; beyond it every second one of the older half goes.
const MAX_KNOTS: usize = 1 << 15;

/// Where ticks and the system's clock are read.
pub trait Source {
    /// Ticks now.
    fn ticks(&self) -> u64;
    /// `CLOCK_MONOTONIC` now, ns.
    fn monotonic(&self) -> i64;
}

/// The machine's counter and clock.
pub struct Machine(pub quanta::Clock);

impl Source for Machine {
    fn ticks(&self) -> u64 {
        self.0.raw()
    }

    fn monotonic(&self) -> i64 {
        monotonic_ns()
    }
}

/// `CLOCK_MONOTONIC`, ns since an arbitrary start (on Linux: the boot).
pub fn monotonic_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one `timespec`, which is ours; the clock exists on every system this is built for.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Wall-clock time (UTC, ns since 1970) minus [`monotonic_ns`].
pub fn wall_offset_ns() -> i64 {
    let before = monotonic_ns();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
    wall - (before + (monotonic_ns() - before) / 2)
}

#[derive(Clone, Copy, Debug)]
struct Knot {
    ticks: u64,
    ns: i64,
    /// ns per tick to the next knot.
    slope: f64,
}

impl Knot {
    fn at(&self, ticks: u64) -> i64 {
        // A difference below 2^53 ticks (a month) is exact, and its product is off by less than a nanosecond.
        let ticks = ticks.wrapping_sub(self.ticks) as i64;
        self.ns.saturating_add((ticks as f64 * self.slope).round() as i64)
    }
}

/// The line from ticks to nanoseconds.
pub struct Timeline<S> {
    source: S,
    knots: Vec<Knot>,
    /// The comparison that the rate is measured from.
    compared: (u64, i64),
    /// The latest ticks that were turned into a time: no knot begins before them.
    latest: u64,
}

impl<S: Source> Timeline<S> {
    /// A line that agrees with the system's clock now; `slope`, in ns per tick, is a first guess.
    pub fn new(source: S, slope: f64) -> Self {
        let (ticks, ns) = compare(&source);
        let knot = Knot { ticks, ns, slope };
        Self { source, knots: vec![knot], compared: (ticks, ns), latest: ticks }
    }

    /// The time of these ticks, ns. Never falls as ticks rise.
    pub fn ns(&mut self, ticks: u64) -> i64 {
        self.latest = self.latest.max(ticks);
        let last = self.knots.len() - 1;
        let at = match self.knots[last].ticks <= ticks {
            true => last,
            false => self.knots.partition_point(|knot| knot.ticks <= ticks).saturating_sub(1),
        };
        self.knots[at].at(ticks)
    }

    /// Compares the line with the system's clock, and bends it where they differ.
    pub fn check(&mut self) {
        if self.source.monotonic() - self.compared.1 < APART.as_nanos() as i64 {
            return;
        }
        let (ticks, ns) = compare(&self.source);
        let Some(last) = self.knots.last() else { return };
        let error = ns - last.at(ticks);
        let rate = (ns - self.compared.1) as f64 / ticks.saturating_sub(self.compared.0).max(1) as f64;
        if error.abs() <= TOLERANCE_NS || rate <= 0.0 {
            // A rate over a long time is a better one; over too long it is not today's.
            if ns - self.compared.1 > SLEW_NS as i64 {
                self.compared = (ticks, ns);
            }
            return;
        }
        self.compared = (ticks, ns);
        let begins = ticks.max(self.latest + 1);
        let knot = if error > JUMP_NS {
            // Time that the counter did not see is left out at once. The rate across it means nothing.
            Knot { ticks: begins, ns: ns + (last.at(begins) - last.at(ticks)), slope: last.slope }
        } else {
            let slope = rate * (1.0 + error as f64 / SLEW_NS).clamp(0.5, 2.0);
            Knot { ticks: begins, ns: last.at(begins), slope }
        };
        self.knots.push(knot);
        if self.knots.len() > MAX_KNOTS {
            let mut at = 0;
            self.knots.retain(|_| {
                at += 1;
                at > MAX_KNOTS / 2 || at % 2 == 1
            });
        }
    }
}

/// Ticks and the system's clock at one moment: of a few tries the one that took least.
fn compare(source: &impl Source) -> (u64, i64) {
    let tries = (0..5).map(|_| {
        let before = source.ticks();
        let ns = source.monotonic();
        let after = source.ticks();
        (after.saturating_sub(before), (before + after.saturating_sub(before) / 2, ns))
    });
    tries.min_by_key(|(took, _)| *took).map_or_else(|| (source.ticks(), source.monotonic()), |(_, pair)| pair)
}

/// A first guess of a clock's ns per tick.
pub fn slope_of(clock: &quanta::Clock) -> f64 {
    const TICKS: u64 = 1 << 40;
    let ns = clock.delta_as_nanos(0, TICKS);
    if ns == 0 { 1.0 } else { ns as f64 / TICKS as f64 }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    /// A counter of `per_ns` ticks per ns of the system's clock, which a test moves.
    #[derive(Clone)]
    struct Test {
        ticks: Rc<Cell<f64>>,
        ns: Rc<Cell<i64>>,
    }

    impl Test {
        fn new() -> Self {
            Self { ticks: Rc::new(Cell::new(1e12)), ns: Rc::new(Cell::new(5_000_000_000)) }
        }

        fn pass(&self, ns: i64, per_ns: f64) {
            self.ns.set(self.ns.get() + ns);
            self.ticks.set(self.ticks.get() + ns as f64 * per_ns);
        }
    }

    impl Source for Test {
        fn ticks(&self) -> u64 {
            self.ticks.get() as u64
        }
        fn monotonic(&self) -> i64 {
            self.ns.get()
        }
    }

    #[test]
    fn a_poor_guess_and_drift_are_made_good() {
        let test = Test::new();
        let mut line = Timeline::new(test.clone(), 1.0 / 2.6 * 1.001);
        let mut worst = 0;
        for step in 0..1000 {
            // The rate drifts by 100 ppm and back.
            test.pass(200_000_000, 2.6 * (1.0 + 1e-4 * (step as f64 / 50.0).sin()));
            let error = (line.ns(test.ticks()) - test.monotonic()).abs();
            if step > 50 {
                worst = worst.max(error);
            }
            line.check();
        }
        assert!(worst < 50_000, "{worst} ns");
    }

    #[test]
    fn what_the_counter_did_not_see_is_left_out() {
        let test = Test::new();
        let mut line = Timeline::new(test.clone(), 1.0);
        test.pass(1_000_000_000, 1.0);
        line.check();
        test.ns.set(test.ns.get() + 3_600_000_000_000);
        line.check();
        assert!((line.ns(test.ticks()) - test.monotonic()).abs() < 10);
    }

    #[test]
    fn a_clock_without_a_counter_is_exact() {
        let test = Test::new();
        test.ticks.set(test.ns.get() as f64);
        let mut line = Timeline::new(test.clone(), 1.0);
        for _ in 0..100 {
            test.pass(333_333_333, 1.0);
            line.check();
            assert_eq!(line.ns(test.ticks()), test.monotonic());
        }
    }

    #[test]
    fn the_machines_clock_agrees_with_the_systems() {
        let clock = quanta::Clock::new();
        let mut line = Timeline::new(Machine(clock.clone()), slope_of(&clock));
        std::thread::sleep(Duration::from_millis(150));
        line.check();
        let (ticks, ns) = compare(&Machine(clock));
        assert!((line.ns(ticks) - ns).abs() < 100_000, "{} ns", line.ns(ticks) - ns);
    }

    proptest! {
        /// Whatever the clocks do, time never falls as ticks rise, and the same ticks are always the same time.
        #[test]
        fn time_is_monotone_and_never_rewritten(steps in prop::collection::vec((1i64..3_000_000_000, 0.3f64..4.0), 1..60)) {
            let test = Test::new();
            let mut line = Timeline::new(test.clone(), 0.5);
            let mut known: Vec<(u64, i64)> = Vec::new();
            for (ns, rate) in steps {
                let from = test.ticks();
                test.pass(ns, rate);
                for part in 0..=8u64 {
                    let ticks = from + (test.ticks() - from) / 8 * part;
                    known.push((ticks, line.ns(ticks)));
                }
                line.check();
            }
            for &(ticks, ns) in &known {
                prop_assert_eq!(line.ns(ticks), ns);
            }
            known.sort_unstable();
            prop_assert!(known.windows(2).all(|pair| pair[0].1 <= pair[1].1));
        }
    }
}
