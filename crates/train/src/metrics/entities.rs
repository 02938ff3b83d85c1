//! Whole entities under BIO tags (Ramshaw & Marcus, 1995).

use serde::Serialize;

use super::ratio;

/// How many entities are found whole: same first word, same last word, same type.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntityScores {
    /// Share of the predicted entities that are right.
    pub precision: f64,
    /// Share of the entities in the data that are found.
    pub recall: f64,
    /// Harmonic mean of both.
    pub f1: f64,
    /// Entities in the data.
    pub support: u64,
}

/// What a tag says about an entity: whether it opens one, and of which type.
#[derive(Clone, Copy, Debug)]
struct Part {
    begins: bool,
    kind: u32,
}

#[derive(Clone, Debug)]
pub(super) struct EntityCounts {
    parts: Vec<Option<Part>>,
    support: u64,
    predicted: u64,
    right: u64,
}

impl EntityCounts {
    /// `None` unless the labels are `O` and names that begin with `B-` or `I-`.
    pub(super) fn new(labels: &[String]) -> Option<Self> {
        let mut kinds: Vec<&str> = Vec::new();
        let mut kind_id = |name| {
            let known = kinds.iter().position(|kind| *kind == name);
            known.unwrap_or_else(|| {
                kinds.push(name);
                kinds.len() - 1
            }) as u32
        };
        let mut parts = Vec::with_capacity(labels.len());
        for label in labels {
            parts.push(match label.split_once('-') {
                Some(("B", kind)) => Some(Part { begins: true, kind: kind_id(kind) }),
                Some(("I", kind)) => Some(Part { begins: false, kind: kind_id(kind) }),
                None if label == "O" => None,
                _ => return None,
            });
        }
        let any = parts.iter().any(Option::is_some);
        any.then_some(Self { parts, support: 0, predicted: 0, right: 0 })
    }

    /// Adds a sentence: (true, predicted) tag of each word.
    pub(super) fn add(&mut self, tags: &[(u32, u32)]) {
        let actual = self.entities(tags.iter().map(|&(actual, _)| actual));
        let predicted = self.entities(tags.iter().map(|&(_, predicted)| predicted));
        self.support += actual.len() as u64;
        self.predicted += predicted.len() as u64;
        self.right += predicted.iter().filter(|entity| actual.binary_search(entity).is_ok()).count() as u64;
    }

    pub(super) fn scores(&self) -> EntityScores {
        EntityScores {
            precision: ratio(self.right, self.predicted),
            recall: ratio(self.right, self.support),
            f1: ratio(2 * self.right, self.support + self.predicted),
            support: self.support,
        }
    }

    /// (first word, word after the last, type) of each entity, in order. `I-` after another type or
    /// after `O` opens an entity, as in the conlleval script.
    fn entities(&self, tags: impl Iterator<Item = u32>) -> Vec<(usize, usize, u32)> {
        let mut found: Vec<(usize, usize, u32)> = Vec::new();
        for (word, tag) in tags.enumerate() {
            let Some(part) = self.parts[tag as usize] else {
                continue;
            };
            match found.last_mut() {
                Some((_, end, kind)) if *end == word && *kind == part.kind && !part.begins => *end += 1,
                _ => found.push((word, word + 1, part.kind)),
            }
        }
        found
    }
}
