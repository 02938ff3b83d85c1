//! Strings, each kept once.

use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Strings numbered in the order in which they first came.
#[derive(Clone, Default)]
pub struct Texts {
    bytes: String,
    /// Where each text ends in `bytes`; it begins where the one before ends.
    ends: Vec<usize>,
    table: HashTable<u32>,
}

impl Texts {
    /// No text yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of this text, which is kept if it is new.
    ///
    /// # Panics
    /// When `u32::MAX - 1` different texts are kept.
    pub fn intern(&mut self, text: &str) -> u32 {
        let hash = FxBuildHasher.hash_one(text);
        let Self { bytes, ends, table } = self;
        let at = |id: u32| slice(bytes, ends, id);
        if let Some(&id) = table.find(hash, |&id| at(id) == text) {
            return id;
        }
        let id = u32::try_from(ends.len()).ok().filter(|&id| id < u32::MAX - 1).expect("fewer texts than 2^32");
        bytes.push_str(text);
        ends.push(bytes.len());
        table.insert_unique(hash, id, |&id| FxBuildHasher.hash_one(slice(bytes, ends, id)));
        id
    }

    /// The text with this number.
    ///
    /// # Panics
    /// When there is none.
    pub fn get(&self, id: u32) -> &str {
        slice(&self.bytes, &self.ends, id)
    }

    /// The number of this text, if it is kept.
    pub fn find(&self, text: &str) -> Option<u32> {
        self.table.find(FxBuildHasher.hash_one(text), |&id| self.get(id) == text).copied()
    }

    /// How many texts are kept.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether no text is kept.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all texts.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All texts in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.ends.len() as u32).map(|id| self.get(id))
    }

    /// Forgets all texts and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.table.clear();
    }
}

fn slice<'a>(bytes: &'a str, ends: &[usize], id: u32) -> &'a str {
    let id = id as usize;
    let start = if id == 0 { 0 } else { ends[id - 1] };
    &bytes[start..ends[id]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_share_a_number_and_come_back() {
        let mut texts = Texts::new();
        let words: Vec<String> = (0..1000).map(|i| format!("kernel_{}", i % 70)).collect();
        let ids: Vec<u32> = words.iter().map(|word| texts.intern(word)).collect();
        assert_eq!(texts.len(), 70);
        for (word, &id) in words.iter().zip(&ids) {
            assert_eq!(texts.get(id), word);
        }
        assert_eq!(texts.find("kernel_69"), Some(69));
        assert_eq!(texts.find("kernel_70"), None);
        let empty = texts.intern("");
        assert_eq!(texts.get(empty), "");
    }
}
