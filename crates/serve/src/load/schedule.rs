//! When requests start.

use std::time::Duration;

/// How the start times of an open-loop run are spaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// Equal gaps.
    Constant,
    /// Exponentially distributed gaps: callers who know nothing of one another.
    Poisson,
}

/// Start times from the beginning of a run on, ascending and without end.
pub struct Schedule {
    arrival: Arrival,
    rate: f64,
    random: u64,
    number: u64,
    seconds: f64,
}

impl Schedule {
    /// `rate` in requests per second.
    pub fn new(arrival: Arrival, rate: f64, seed: u64) -> Self {
        Self { arrival, rate, random: seed, number: 0, seconds: 0.0 }
    }

    /// Uniform in (0, 1], by SplitMix64 (Steele, Lea and Flood, 2014).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

impl Iterator for Schedule {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.seconds = match self.arrival {
            Arrival::Constant => self.number as f64 / self.rate,
            Arrival::Poisson => self.seconds - self.uniform().ln() / self.rate,
        };
        self.number += 1;
        Some(Duration::from_secs_f64(self.seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_arrivals_have_equal_gaps() {
        let times: Vec<_> = Schedule::new(Arrival::Constant, 250.0, 0).take(3).collect();
        assert_eq!(times, [0, 4, 8].map(Duration::from_millis));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let times: Vec<f64> = Schedule::new(Arrival::Poisson, 50.0, 7).take(20_000).map(|t| t.as_secs_f64()).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "mean gap {mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "deviation {}", variance.sqrt());
    }

    #[test]
    fn a_seed_gives_the_same_times_again() {
        let times = |seed| Schedule::new(Arrival::Poisson, 10.0, seed).take(5).collect::<Vec<_>>();
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
    }
}
