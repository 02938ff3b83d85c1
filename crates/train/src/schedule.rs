//! The learning rate over a run: linear warm-up, then linear, cosine or constant.
//!
//! With `s` updates made, `w` of warm-up and `n` in all, the peak rate is multiplied by
//!
//! | while | kind | factor |
//! |---|---|---|
//! | `s < w` | all | `s / w` |
//! | `s ≥ w` | linear | `(n − s) / (n − w)` |
//! | | cosine | `(1 + cos(π (s − w) / (n − w))) / 2` |
//! | | constant | `1` |
//!
//! and 0 from `s = n` on, except for the constant one. These are the schedules of the `transformers`
//! library to the last digit (`get_linear_schedule_with_warmup` and its siblings), the first update of
//! a warm-up at rate 0 included; only its cosine, which rises again after `n`, stays at 0 here.

use std::f64::consts::PI;
use std::time::Duration;

use crate::job::{Schedule, ScheduleKind};

/// A learning-rate schedule with its lengths worked out.
///
/// With a time limit the run is a race of two clocks: progress is `max(s / n, elapsed / limit)`, and
/// the schedule reads its factor at `s = progress · n`. So the rate reaches 0 when the time is over,
/// however many updates fitted in. The price: such a run depends on the speed of the machine and
/// does not repeat bit for bit.
///
/// ```
/// use std::time::Duration;
/// use train::job::ScheduleKind;
/// use train::schedule::LrSchedule;
///
/// let schedule = LrSchedule::new(ScheduleKind::Linear, 10, 100);
/// assert_eq!(schedule.factor(5, Duration::ZERO), 0.5);
/// assert_eq!(schedule.factor(55, Duration::ZERO), 0.5);
/// assert!(schedule.finished(100, Duration::ZERO));
///
/// let timed = schedule.with_time_limit(Duration::from_secs(180));
/// assert_eq!(timed.factor(20, Duration::from_secs(180)), 0.0);
/// assert!(timed.finished(20, Duration::from_secs(180)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrSchedule {
    kind: ScheduleKind,
    warmup_steps: f64,
    total_steps: u64,
    time_limit: Option<Duration>,
}

impl LrSchedule {
    /// A schedule of `total_steps` updates, the first `warmup_steps` of them warm-up.
    pub fn new(kind: ScheduleKind, warmup_steps: u64, total_steps: u64) -> Self {
        Self { kind, warmup_steps: warmup_steps as f64, total_steps, time_limit: None }
    }

    /// The schedule of a job whose run takes `total_steps` updates. A `warmup_ratio` is rounded up to
    /// whole updates, as `transformers` does.
    pub fn of_job(table: &Schedule, total_steps: u64) -> Self {
        let share = table.warmup_ratio.unwrap_or(0.0);
        let from_ratio = || ((share * total_steps as f64).ceil() as u64).min(total_steps.saturating_sub(1));
        let warmup_steps = table.warmup_steps.unwrap_or_else(from_ratio);
        let schedule = Self::new(table.kind, warmup_steps, total_steps);
        match table.max_minutes.map(|minutes| Duration::try_from_secs_f64(minutes * 60.0)) {
            Some(Ok(limit)) => schedule.with_time_limit(limit),
            // More seconds than a `Duration` holds is no limit.
            Some(Err(_)) | None => schedule,
        }
    }

    /// The same schedule, over at the latest after `limit` of training.
    pub fn with_time_limit(self, limit: Duration) -> Self {
        Self { time_limit: Some(limit), ..self }
    }

    /// Updates of the whole run, if the time allows.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// What to multiply the peak rate by for the next update, after `steps` updates that took
    /// `elapsed` (over all sessions of a resumed run).
    pub fn factor(&self, steps: u64, elapsed: Duration) -> f64 {
        let total = self.total_steps as f64;
        let step = match self.time_limit {
            None => steps as f64,
            Some(limit) => (steps as f64).max(share_of(elapsed, limit) * total),
        };
        if step < self.warmup_steps {
            return step / self.warmup_steps.max(1.0);
        }
        let left = total - step;
        let decay = (total - self.warmup_steps).max(1.0);
        match self.kind {
            ScheduleKind::Constant => 1.0,
            _ if left <= 0.0 => 0.0,
            ScheduleKind::Linear => left / decay,
            ScheduleKind::Cosine => 0.5 * (1.0 + (PI * ((step - self.warmup_steps) / decay)).cos()),
        }
    }

    /// How much of the run is done, from 0 to 1.
    pub fn progress(&self, steps: u64, elapsed: Duration) -> f64 {
        let by_steps = steps as f64 / self.total_steps.max(1) as f64;
        let by_time = self.time_limit.map_or(0.0, |limit| share_of(elapsed, limit));
        by_steps.max(by_time).min(1.0)
    }

    /// Whether the run is over: all updates made, or the time used up.
    pub fn finished(&self, steps: u64, elapsed: Duration) -> bool {
        steps >= self.total_steps || self.time_limit.is_some_and(|limit| elapsed >= limit)
    }
}

fn share_of(elapsed: Duration, limit: Duration) -> f64 {
    if elapsed >= limit { 1.0 } else { elapsed.as_secs_f64() / limit.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn factors(kind: ScheduleKind, warmup: u64, total: u64, steps: &[u64]) -> Vec<f64> {
        let schedule = LrSchedule::new(kind, warmup, total);
        steps.iter().map(|&step| schedule.factor(step, NOW)).collect()
    }

    fn assert_close(ours: &[f64], golden: &[f64]) {
        assert_eq!(ours.len(), golden.len());
        for (index, (a, b)) in ours.iter().zip(golden).enumerate() {
            assert!((a - b).abs() <= 1e-15, "at {index}: {a} instead of {b}");
        }
    }

    // The golden numbers are those of transformers 5.24: `lr_lambdas[0](step)` of
    // get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup.
    const STEPS: [u64; 14] = [0, 1, 3, 5, 6, 7, 9, 10, 11, 37, 55, 99, 100, 101];

    #[test]
    fn linear_equals_transformers() {
        let golden =
            [0.0, 0.1, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0, 0.9888888888888889, 0.7, 0.5, 0.011111111111111112, 0.0, 0.0];
        assert_close(&factors(ScheduleKind::Linear, 10, 100, &STEPS), &golden);
        let golden = [1.0, 0.8571428571428571, 0.5714285714285714, 0.14285714285714285, 0.0, 0.0];
        assert_close(&factors(ScheduleKind::Linear, 0, 7, &[0, 1, 3, 6, 7, 9]), &golden);
        assert_close(&factors(ScheduleKind::Linear, 5, 5, &[0, 1, 3, 5, 6]), &[0.0, 0.2, 0.6, 0.0, 0.0]);
    }

    #[test]
    fn cosine_equals_transformers_and_stays_at_its_end() {
        let golden = [
            0.0,
            0.1,
            0.3,
            0.5,
            0.6,
            0.7,
            0.9,
            1.0,
            0.9996954135095479,
            0.7938926261462366,
            0.5,
            0.00030458649045211894,
            0.0,
            0.0,
        ];
        assert_close(&factors(ScheduleKind::Cosine, 10, 100, &STEPS), &golden);
        let golden = [1.0, 0.9504844339512095, 0.6112604669781572, 0.18825509907063326, 0.04951556604879048, 0.0];
        assert_close(&factors(ScheduleKind::Cosine, 0, 7, &[0, 1, 3, 5, 6, 7]), &golden);
    }

    #[test]
    fn constant_equals_transformers() {
        let golden = [0.0, 0.3, 0.9, 1.0, 1.0];
        assert_close(&factors(ScheduleKind::Constant, 10, 20, &[0, 3, 9, 10, 50]), &golden);
    }

    #[test]
    fn with_a_time_limit_the_faster_clock_drives_the_rate() {
        let schedule = LrSchedule::new(ScheduleKind::Linear, 10, 100).with_time_limit(Duration::from_secs(50));
        assert_eq!(schedule.factor(55, NOW), 0.5, "steps ahead of time");
        assert_eq!(schedule.factor(0, Duration::from_secs(5)), 1.0, "a tenth of the time is the warm-up");
        assert_eq!(schedule.factor(3, Duration::from_secs(50)), 0.0, "time is over");
        assert!(!schedule.finished(99, Duration::from_secs(49)));
        assert!(schedule.finished(3, Duration::from_secs(50)));
        assert!(schedule.finished(100, NOW));
        assert_eq!(schedule.progress(25, Duration::from_secs(10)), 0.25);
        assert_eq!(schedule.progress(25, Duration::from_secs(20)), 0.4);
    }

    #[test]
    fn a_job_gives_warm_up_as_updates_or_as_a_share() {
        let share = Schedule { warmup_ratio: Some(0.06), ..Schedule::default() };
        assert_eq!(LrSchedule::of_job(&share, 110), LrSchedule::new(ScheduleKind::Linear, 7, 110));
        let steps = Schedule { warmup_steps: Some(4), max_minutes: Some(0.5), ..Schedule::default() };
        let expected = LrSchedule::new(ScheduleKind::Linear, 4, 110).with_time_limit(Duration::from_secs(30));
        assert_eq!(LrSchedule::of_job(&steps, 110), expected);
    }

    #[test]
    fn a_run_of_no_updates_is_over_at_once() {
        let schedule = LrSchedule::new(ScheduleKind::Linear, 0, 0);
        assert!(schedule.finished(0, NOW));
        assert_eq!(schedule.factor(0, NOW), 0.0);
    }
}
