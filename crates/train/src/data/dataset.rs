//! Encoded examples, packed in memory.

use sha2::{Digest, Sha256};

use super::encode::Encoded;
use super::targets::{Target, Targets};
use crate::job::Task;

/// Encoded examples with their targets: all tokens in one vector, 4 bytes each, and 8 bytes of
/// offset (16 with pairs of texts) for each example.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    tokens: Vec<u32>,
    ends: Vec<usize>,
    /// For each example its [`Encoded::second_from`]; empty while no example has a second text.
    second_from: Vec<usize>,
    targets: Targets,
}

/// One example of a [`Dataset`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Example<'a> {
    /// Token ids, special tokens included.
    pub tokens: &'a [u32],
    /// Index of the first token of the second text (token type 1); `tokens.len()` if there is none.
    pub second_from: usize,
    /// What to predict.
    pub target: Target<'a>,
}

impl Dataset {
    /// A data set without examples.
    pub fn new(task: Task) -> Self {
        let targets = match task {
            Task::Classification => Targets::Classes(Vec::new()),
            Task::MultiLabel => Targets::Labels { ids: Vec::new(), ends: Vec::new() },
            Task::Regression => Targets::Scores(Vec::new()),
            Task::TokenClassification => Targets::Tags(Vec::new()),
        };
        Self { tokens: Vec::new(), ends: Vec::new(), second_from: Vec::new(), targets }
    }

    /// Adds an example.
    ///
    /// # Panics
    /// If the target belongs to another task, or tags and tokens differ in number: an error of the
    /// caller.
    pub fn push(&mut self, encoded: &Encoded, target: Target<'_>) {
        let length = encoded.ids.len();
        let second_from = encoded.second_from.min(length);
        if second_from < length && self.second_from.is_empty() {
            self.second_from = self.lengths().into_iter().map(|length| length as usize).collect();
        }
        if second_from < length || !self.second_from.is_empty() {
            self.second_from.push(second_from);
        }
        self.tokens.extend_from_slice(&encoded.ids);
        self.ends.push(self.tokens.len());
        match (&mut self.targets, target) {
            (Targets::Classes(classes), Target::Class(class)) => classes.push(class),
            (Targets::Labels { ids, ends }, Target::Labels(labels)) => {
                ids.extend_from_slice(labels);
                ends.push(ids.len());
            }
            (Targets::Scores(scores), Target::Score(score)) => scores.push(score),
            (Targets::Tags(all), Target::Tags(tags)) => {
                assert_eq!(tags.len(), length, "one tag for each token");
                all.extend_from_slice(tags);
            }
            (_, target) => panic!("a target of another task: {target:?}"),
        }
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Number of tokens of all examples, special tokens included.
    pub fn token_count(&self) -> usize {
        self.tokens.len()
    }

    /// Tokens of each example: what a [`crate::sampler::Sampler`] asks for.
    pub fn lengths(&self) -> Vec<u32> {
        (0..self.len()).map(|index| self.range(index).len() as u32).collect()
    }

    /// Example `index`.
    ///
    /// # Panics
    /// If there is no such example.
    pub fn example(&self, index: usize) -> Example<'_> {
        let range = self.range(index);
        let target = match &self.targets {
            Targets::Classes(classes) => Target::Class(classes[index]),
            Targets::Labels { ids, ends } => Target::Labels(&ids[start_of(ends, index)..ends[index]]),
            Targets::Scores(scores) => Target::Score(scores[index]),
            Targets::Tags(tags) => Target::Tags(&tags[range.clone()]),
        };
        let tokens = &self.tokens[range];
        let second_from = self.second_from.get(index).copied().unwrap_or(tokens.len());
        Example { tokens, second_from, target }
    }

    /// All examples in order.
    pub fn examples(&self) -> impl ExactSizeIterator<Item = Example<'_>> {
        (0..self.len()).map(|index| self.example(index))
    }

    /// All targets.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    pub(super) fn targets_mut(&mut self) -> &mut Targets {
        &mut self.targets
    }

    /// SHA-256 over examples and targets in order, in hexadecimal: equal for equal data sets,
    /// whatever files they came from.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for example in self.examples() {
            // Lengths go first, so that no two data sets flatten to the same bytes.
            hash.update((example.tokens.len() as u64).to_le_bytes());
            hash.update((example.second_from as u64).to_le_bytes());
            update_ids(&mut hash, example.tokens);
            match example.target {
                Target::Class(class) => update_ids(&mut hash, &[class]),
                Target::Score(score) => hash.update(score.to_le_bytes()),
                Target::Labels(ids) | Target::Tags(ids) => {
                    hash.update((ids.len() as u64).to_le_bytes());
                    update_ids(&mut hash, ids);
                }
            }
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn range(&self, index: usize) -> std::ops::Range<usize> {
        start_of(&self.ends, index)..self.ends[index]
    }
}

fn start_of(ends: &[usize], index: usize) -> usize {
    index.checked_sub(1).map_or(0, |before| ends[before])
}

fn update_ids(hash: &mut Sha256, ids: &[u32]) {
    for id in ids {
        hash.update(id.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(ids: &[u32], second_from: usize) -> Encoded {
        Encoded { ids: ids.to_vec(), second_from, ..Encoded::default() }
    }

    #[test]
    fn examples_come_back_as_they_went_in() {
        let mut data = Dataset::new(Task::MultiLabel);
        data.push(&encoded(&[1, 2, 3], 3), Target::Labels(&[0, 2]));
        data.push(&encoded(&[], 0), Target::Labels(&[]));
        data.push(&encoded(&[4, 5], 1), Target::Labels(&[1]));
        assert_eq!((data.len(), data.token_count(), data.lengths()), (3, 5, vec![3, 0, 2]));
        let second: Vec<usize> = data.examples().map(|example| example.second_from).collect();
        assert_eq!(second, [3, 0, 1]);
        assert_eq!(data.example(0).target, Target::Labels(&[0, 2]));
        assert_eq!(data.example(1).target, Target::Labels(&[]));
        assert_eq!(data.example(2).tokens, [4, 5]);
    }

    #[test]
    fn a_fingerprint_sees_tokens_borders_and_targets() {
        let print = |parts: &[(&[u32], u32)]| {
            let mut data = Dataset::new(Task::Classification);
            for &(ids, class) in parts {
                data.push(&encoded(ids, ids.len()), Target::Class(class));
            }
            data.fingerprint()
        };
        let base = print(&[(&[1, 2], 0), (&[3], 1)]);
        assert_eq!(base.len(), 64);
        assert_eq!(base, print(&[(&[1, 2], 0), (&[3], 1)]));
        for other in [
            print(&[(&[1], 0), (&[2, 3], 1)]),
            print(&[(&[1, 2], 1), (&[3], 1)]),
            print(&[(&[3], 1), (&[1, 2], 0)]),
            print(&[(&[1, 2], 0)]),
        ] {
            assert_ne!(base, other);
        }
    }
}
