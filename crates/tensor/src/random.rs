//! Counter-based randomness: a draw is a pure function of where it is used.
//!
//! The same dropout mask therefore comes back in the backward pass, after recomputation, after resume, and under
//! every parallel layout, and nothing is stored. The generator is Philox4x32-10 (Salmon et al., "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011).

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// One stream of random bits: a place in the model (`site`) at one training step of one seeded run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    key: [u32; 2],
    site: u32,
}

impl Stream {
    /// The stream of `site` at `step` of the run with `seed`.
    pub fn new(seed: u64, step: u64, site: u32) -> Self {
        let key = mix(seed ^ mix(step.wrapping_add(0x9E37_79B9_7F4A_7C15)));
        Self { key: [key as u32, (key >> 32) as u32], site }
    }

    /// Four independent uniform 32-bit words for columns `4 * block .. 4 * block + 4` of the row with identity `row`.
    #[inline(always)]
    pub fn block(&self, row: u64, block: u32) -> [u32; 4] {
        let mut counter = [block, row as u32, (row >> 32) as u32, self.site];
        let mut key = self.key;
        for _ in 0..ROUNDS {
            let low = MULTIPLIER[0] as u64 * counter[0] as u64;
            let high = MULTIPLIER[1] as u64 * counter[2] as u64;
            counter = [
                (high >> 32) as u32 ^ counter[1] ^ key[0],
                high as u32,
                (low >> 32) as u32 ^ counter[3] ^ key[1],
                low as u32,
            ];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        counter
    }

    /// The words of [`block`](Self::block) for `N` blocks from `first`, by place in the block: `[4][N]`.
    ///
    /// A lane holds a 32-bit word in 64 bits, so that a vector unit multiplies without rearranging.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)]
    pub(crate) fn blocks<const N: usize>(&self, row: u64, first: u32) -> [[u64; N]; 4] {
        const LOW: u64 = 0xFFFF_FFFF;
        let mut words = [[0u64; N]; 4];
        for lane in 0..N {
            let block = first.wrapping_add(lane as u32) as u64;
            let mut counter = [block, row & LOW, row >> 32, self.site as u64];
            let mut key = self.key;
            for _ in 0..ROUNDS {
                let low = MULTIPLIER[0] as u64 * (counter[0] & LOW);
                let high = MULTIPLIER[1] as u64 * (counter[2] & LOW);
                // The upper halves may hold anything: the next multiplication does not read them.
                counter =
                    [(high >> 32) ^ counter[1] ^ key[0] as u64, high, (low >> 32) ^ counter[3] ^ key[1] as u64, low];
                key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
            }
            for place in 0..4 {
                words[place][lane] = counter[place] & LOW;
            }
        }
        words
    }

    /// The word for one column of a row.
    pub fn word(&self, row: u64, column: u32) -> u32 {
        self.block(row, column / 4)[(column % 4) as usize]
    }

    /// A uniform value in `[0, 1)` for one column of a row.
    pub fn uniform(&self, row: u64, column: u32) -> f64 {
        self.word(row, column) as f64 / (1u64 << 32) as f64
    }

    /// A standard normal value for one column of a row (Box-Muller over the row's block).
    pub fn normal(&self, row: u64, column: u32) -> f64 {
        let words = self.block(row, column);
        let [u, v] = [words[0], words[1]].map(|w| (w as f64 + 0.5) / (1u64 << 32) as f64);
        (-2.0 * u.ln()).sqrt() * (2.0 * std::f64::consts::PI * v).cos()
    }
}

/// The finaliser of SplitMix64 (Steele et al., 2014): near seeds and steps give unrelated keys.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_words_of_the_random123_known_answer_test() {
        let zero = Stream { key: [0, 0], site: 0 };
        assert_eq!(zero.block(0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Stream { key: [u32::MAX; 2], site: u32::MAX };
        assert_eq!(ones.block(u64::MAX, u32::MAX), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn many_blocks_at_once_hold_the_same_words() {
        let stream = Stream::new(1, 2, 3);
        for first in [0, 7, u32::MAX - 3] {
            let [a, b, c, d] = stream.blocks::<16>(u64::MAX - 5, first);
            for (lane, words) in a.into_iter().zip(b).zip(c.into_iter().zip(d)).enumerate() {
                let block = stream.block(u64::MAX - 5, first.wrapping_add(lane as u32)).map(u64::from);
                assert_eq!(((block[0], block[1]), (block[2], block[3])), words);
            }
        }
    }

    #[test]
    fn normal_values_have_mean_zero_and_variance_one() {
        let stream = Stream::new(7, 0, 3);
        let values: Vec<f64> = (0..20_000).map(|i| stream.normal(i, 5)).collect();
        let mean = values.iter().sum::<f64>() / 20_000.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn seeds_steps_and_sites_give_different_streams() {
        let words = [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)].map(|(a, b, c)| Stream::new(a, b, c).word(0, 0));
        let distinct: std::collections::HashSet<_> = words.into_iter().collect();
        assert_eq!(distinct.len(), 4);
    }
}
