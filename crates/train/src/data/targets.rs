//! What the examples are to be told apart by.

/// The tag of tokens that have none: special tokens and all pieces of a word but its first.
pub const NO_TAG: u32 = u32::MAX;

/// Targets of all examples, packed.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// One label id for each example.
    Classes(Vec<u32>),
    /// Sorted label ids of each example: those of example `i` are `ids[ends[i - 1]..ends[i]]`.
    Labels {
        /// All ids.
        ids: Vec<u32>,
        /// Where the ids of each example end.
        ends: Vec<usize>,
    },
    /// One number for each example.
    Scores(Vec<f32>),
    /// One label id, or [`NO_TAG`], for each token of the data set.
    Tags(Vec<u32>),
}

/// The target of one example.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target<'a> {
    /// A label id.
    Class(u32),
    /// Sorted label ids.
    Labels(&'a [u32]),
    /// A number.
    Score(f32),
    /// A label id, or [`NO_TAG`], for each token.
    Tags(&'a [u32]),
}

impl Targets {
    /// How often each of `labels` label ids occurs; tokens without a tag do not count, and numbers
    /// are no labels.
    pub fn label_counts(&self, labels: usize) -> Vec<u64> {
        let ids: &[u32] = match self {
            Targets::Classes(ids) | Targets::Tags(ids) | Targets::Labels { ids, .. } => ids,
            Targets::Scores(_) => &[],
        };
        let mut counts = vec![0; labels];
        for &id in ids {
            if let Some(count) = counts.get_mut(id as usize) {
                *count += 1;
            }
        }
        counts
    }

    /// Gives every label id the id `new_ids` has for it.
    pub(super) fn rename(&mut self, new_ids: &[u32]) {
        let rename = |id: &mut u32| {
            if let Some(&new) = new_ids.get(*id as usize) {
                *id = new;
            }
        };
        match self {
            Targets::Classes(ids) | Targets::Tags(ids) => ids.iter_mut().for_each(rename),
            Targets::Labels { ids, ends } => {
                ids.iter_mut().for_each(rename);
                let mut start = 0;
                for &end in &*ends {
                    ids[start..end].sort_unstable();
                    start = end;
                }
            }
            Targets::Scores(_) => {}
        }
    }
}

/// `n / (k · n_c)` for each label of `counts`, with `k` the number of labels that occur: every label
/// contributes the same to the loss in sum, and the mean weight of an example is 1. This is
/// scikit-learn's `class_weight="balanced"`. A label that does not occur weighs 1.
///
/// ```
/// assert_eq!(train::data::balanced_weights(&[6, 2, 0]), [8.0 / 12.0, 2.0, 1.0]);
/// ```
pub fn balanced_weights(counts: &[u64]) -> Vec<f64> {
    let total: u64 = counts.iter().sum();
    let occurring = counts.iter().filter(|&&count| count > 0).count();
    let weight = |&count: &u64| match count {
        0 => 1.0,
        _ => total as f64 / (occurring as f64 * count as f64),
    };
    counts.iter().map(weight).collect()
}
