//! The order of the examples, and where batches end.
//!
//! An epoch's order is a seeded permutation that can be asked for any position without having been
//! walked to ([`Permutation`]), so a run resumes at example *n* at once and exactly, and no list of
//! indices is kept. A batch never spans two epochs: the last one of an epoch may be short.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::BatchLimit;

/// A permutation of `0..len` keyed by a seed and an epoch, in constant memory: a Feistel network over
/// the next power of four, walked until it lands inside the range (Black & Rogaway, "Ciphers with
/// arbitrary finite domains", 2002).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    round_keys: [u64; Permutation::ROUNDS],
}

impl Permutation {
    const ROUNDS: usize = 6;

    /// The permutation of `0..len` for one epoch.
    pub fn new(len: usize, seed: u64, epoch: u64) -> Self {
        let len = len as u64;
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let key = mix(mix(seed) ^ epoch);
        let round_keys = std::array::from_fn(|round| mix(key ^ (round as u64 + 1)));
        Self { len, half_bits: bits.div_ceil(2).max(1), round_keys }
    }

    /// The element at `position`, which must be below the length.
    pub fn at(&self, position: usize) -> usize {
        debug_assert!((position as u64) < self.len);
        let mut value = position as u64;
        loop {
            value = self.encrypt(value);
            if value < self.len {
                return value as usize;
            }
        }
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// A bijective scrambler of 64 bits: the finaliser of SplitMix64 (Steele, Lea & Flood, 2014).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where a sampler stands; all a checkpoint must keep of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// Epochs completed.
    pub epoch: u64,
    /// Examples of the current epoch already handed out; a finished epoch reads as position 0 of the next.
    pub position: usize,
}

/// The examples of one micro-batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBatch {
    /// Epoch the examples belong to.
    pub epoch: u64,
    /// Indices into the data set, in the order of the epoch.
    pub examples: Vec<usize>,
}

/// Hands out micro-batches, epoch after epoch, without end.
///
/// ```
/// use train::job::BatchLimit;
/// use train::sampler::Sampler;
///
/// let lengths = vec![5; 10]; // tokens of each example
/// let mut sampler = Sampler::new(lengths, BatchLimit::Examples(4), true, 42);
/// assert_eq!(sampler.batches_in_epoch(0), 3);
/// let sizes: Vec<usize> = (0..3).map(|_| sampler.next_batch().examples.len()).collect();
/// assert_eq!(sizes, [4, 4, 2]);
/// assert_eq!(sampler.state().epoch, 1);
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    lengths: Arc<[u32]>,
    limit: BatchLimit,
    shuffle: bool,
    seed: u64,
    state: SamplerState,
}

impl Sampler {
    /// A sampler over examples of `lengths` tokens, at the start of epoch 0.
    pub fn new(lengths: impl Into<Arc<[u32]>>, limit: BatchLimit, shuffle: bool, seed: u64) -> Self {
        Self { lengths: lengths.into(), limit, shuffle, seed, state: SamplerState::default() }
    }

    /// Examples in the data set.
    pub fn examples(&self) -> usize {
        self.lengths.len()
    }

    /// Where the next batch begins.
    pub fn state(&self) -> SamplerState {
        self.state
    }

    /// Continues from a state taken from a sampler over the same data and limits. A position
    /// beyond the data means the next epoch.
    pub fn resume(&mut self, state: SamplerState) {
        self.state = state;
        self.turn_epoch();
    }

    /// The next micro-batch; empty only if the data set is.
    pub fn next_batch(&mut self) -> MicroBatch {
        let SamplerState { epoch, position } = self.state;
        let order = self.order(epoch);
        let end = self.batch_end(&order, position);
        let examples = (position..end).map(|at| order.at(at)).collect();
        self.state.position = end;
        self.turn_epoch();
        MicroBatch { epoch, examples }
    }

    /// The micro-batches of the next update: `accumulate` of them, fewer at the end of an epoch, so
    /// that an update never mixes two epochs.
    pub fn next_update(&mut self, accumulate: usize) -> Vec<MicroBatch> {
        let mut batches = vec![self.next_batch()];
        while batches.len() < accumulate && self.state.position != 0 {
            batches.push(self.next_batch());
        }
        batches
    }

    /// Micro-batches in `epoch`. Under a token budget this depends on the order, so it walks the epoch.
    pub fn batches_in_epoch(&self, epoch: u64) -> u64 {
        match self.limit {
            BatchLimit::Examples(size) => self.lengths.len().div_ceil(size.max(1)) as u64,
            BatchLimit::Tokens(_) => {
                let order = self.order(epoch);
                let (mut position, mut batches) = (0, 0);
                while position < self.lengths.len() {
                    position = self.batch_end(&order, position);
                    batches += 1;
                }
                batches
            }
        }
    }

    /// Updates in `epochs` passes (a fraction of the last pass is rounded up to whole updates), with
    /// `accumulate` micro-batches to an update. Never 0 for a data set that is not empty.
    pub fn updates_in(&self, epochs: f64, accumulate: usize) -> u64 {
        let updates = |epoch: u64| self.batches_in_epoch(epoch).div_ceil(accumulate.max(1) as u64);
        let whole = epochs.floor();
        let whole_updates = match self.limit {
            BatchLimit::Tokens(_) => (0..whole as u64).map(updates).sum(),
            BatchLimit::Examples(_) => updates(0).saturating_mul(whole as u64),
        };
        let rest = epochs - whole;
        let rest_updates = if rest > 0.0 { (rest * updates(whole as u64) as f64).ceil() as u64 } else { 0 };
        whole_updates.saturating_add(rest_updates)
    }

    fn order(&self, epoch: u64) -> Order {
        if self.shuffle {
            Order::Shuffled(Permutation::new(self.lengths.len(), self.seed, epoch))
        } else {
            Order::AsRead
        }
    }

    fn batch_end(&self, order: &Order, start: usize) -> usize {
        let count = self.lengths.len();
        match self.limit {
            BatchLimit::Examples(size) => start.saturating_add(size.max(1)).min(count),
            BatchLimit::Tokens(budget) => {
                let mut tokens = 0usize;
                let mut end = start;
                while end < count {
                    tokens += self.lengths[order.at(end)] as usize;
                    if tokens > budget && end > start {
                        break;
                    }
                    end += 1;
                }
                end
            }
        }
    }

    fn turn_epoch(&mut self) {
        if self.state.position >= self.lengths.len() {
            self.state = SamplerState { epoch: self.state.epoch + 1, position: 0 };
        }
    }
}

enum Order {
    AsRead,
    Shuffled(Permutation),
}

impl Order {
    fn at(&self, position: usize) -> usize {
        match self {
            Order::AsRead => position,
            Order::Shuffled(permutation) => permutation.at(position),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = BatchLimit> {
        prop_oneof![(1usize..9).prop_map(BatchLimit::Examples), (1usize..60).prop_map(BatchLimit::Tokens)]
    }

    fn epoch_of(sampler: &mut Sampler) -> Vec<usize> {
        let epoch = sampler.state().epoch;
        let mut seen = Vec::new();
        while sampler.state().epoch == epoch {
            seen.extend(sampler.next_batch().examples);
        }
        seen
    }

    proptest! {
        #[test]
        fn a_permutation_visits_every_index_once(len in 1usize..700, seed: u64, epoch in 0u64..5) {
            let permutation = Permutation::new(len, seed, epoch);
            let mut seen: Vec<usize> = (0..len).map(|at| permutation.at(at)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn an_epoch_visits_every_example_once(
            lengths in prop::collection::vec(1u32..30, 1..80), limit in limits(), seed: u64, shuffle: bool,
        ) {
            let count = lengths.len();
            let mut sampler = Sampler::new(lengths, limit, shuffle, seed);
            for _ in 0..3 {
                let mut seen = epoch_of(&mut sampler);
                seen.sort_unstable();
                prop_assert_eq!(seen, (0..count).collect::<Vec<_>>());
            }
        }

        #[test]
        fn resuming_anywhere_gives_the_same_rest(
            lengths in prop::collection::vec(1u32..30, 1..40), limit in limits(), seed: u64, stop in 0usize..50,
        ) {
            let mut whole = Sampler::new(lengths.clone(), limit, true, seed);
            for _ in 0..stop {
                whole.next_batch();
            }
            let saved = serde_json::to_string(&whole.state()).unwrap();
            let mut resumed = Sampler::new(lengths, limit, true, seed);
            resumed.resume(serde_json::from_str(&saved).unwrap());
            for _ in 0..20 {
                prop_assert_eq!(whole.next_batch(), resumed.next_batch());
            }
        }

        #[test]
        fn a_token_budget_is_exceeded_only_by_a_lone_example(
            lengths in prop::collection::vec(1u32..30, 1..80), budget in 1usize..60, seed: u64,
        ) {
            let mut sampler = Sampler::new(lengths.clone(), BatchLimit::Tokens(budget), true, seed);
            let expected = sampler.batches_in_epoch(0);
            let mut batches = 0;
            while sampler.state().epoch == 0 {
                let batch = sampler.next_batch();
                let tokens: usize = batch.examples.iter().map(|&example| lengths[example] as usize).sum();
                prop_assert!(tokens <= budget || batch.examples.len() == 1);
                batches += 1;
            }
            prop_assert_eq!(batches, expected);
        }

        #[test]
        fn updates_add_up_to_what_was_planned(
            lengths in prop::collection::vec(1u32..30, 1..60), limit in limits(), accumulate in 1usize..5,
        ) {
            let mut sampler = Sampler::new(lengths, limit, true, 7);
            let planned = sampler.updates_in(2.0, accumulate);
            let mut updates = 0;
            while sampler.state().epoch < 2 {
                let batches = sampler.next_update(accumulate);
                prop_assert!(batches.iter().all(|batch| batch.epoch == batches[0].epoch));
                updates += 1;
            }
            prop_assert_eq!(updates, planned);
        }
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        let order = |seed, epoch| {
            let permutation = Permutation::new(1000, seed, epoch);
            (0..1000).map(|at| permutation.at(at)).collect::<Vec<_>>()
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
    }

    #[test]
    fn a_shuffle_leaves_no_trace_of_the_order() {
        // Of 10,000 elements one is expected to stay in place, and neighbours to be 1/3 of the range apart.
        let permutation = Permutation::new(10_000, 3, 0);
        let fixed = (0..10_000).filter(|&at| permutation.at(at) == at).count();
        let apart: usize = (1..10_000).map(|at| permutation.at(at).abs_diff(permutation.at(at - 1))).sum();
        assert!(fixed < 8, "{fixed} fixed points");
        assert!((apart as f64 / 9_999.0 / 10_000.0 - 1.0 / 3.0).abs() < 0.01);
    }

    #[test]
    fn a_batch_larger_than_the_data_is_the_data() {
        let mut sampler = Sampler::new(vec![3, 3, 3], BatchLimit::Examples(64), false, 0);
        assert_eq!(sampler.next_batch(), MicroBatch { epoch: 0, examples: vec![0, 1, 2] });
        assert_eq!(sampler.state(), SamplerState { epoch: 1, position: 0 });
    }

    #[test]
    fn parts_of_an_epoch_are_rounded_up_to_updates() {
        let sampler = Sampler::new(vec![1; 100], BatchLimit::Examples(10), true, 0);
        assert_eq!(sampler.updates_in(3.0, 1), 30);
        assert_eq!(sampler.updates_in(0.5, 4), 2);
        assert_eq!(sampler.updates_in(1.01, 1), 11);
    }

    #[test]
    fn an_empty_data_set_gives_empty_batches() {
        let mut sampler = Sampler::new(Vec::new(), BatchLimit::Tokens(8), true, 0);
        assert!(sampler.next_batch().examples.is_empty());
        assert_eq!(sampler.updates_in(3.0, 1), 0);
    }
}
