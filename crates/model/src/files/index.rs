//! The index of a sharded checkpoint: which file holds which tensor.

use super::{FileError, read_text};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Longest index read. The index of a 400-billion-parameter model takes about 100 KB.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// `model.safetensors.index.json` or `pytorch_model.bin.index.json`.
#[derive(Debug, Deserialize)]
pub(super) struct ShardIndex {
    /// Tensor name to shard file name. The names are plain: no directory part.
    pub weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Reads an index and checks the shard names in it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let text = read_text(path, MAX_INDEX_BYTES)?;
        let wrong = |problem| FileError::Index { path: path.into(), problem };
        let index: Self = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        if index.weight_map.is_empty() {
            return Err(wrong("`weight_map` is empty".into()));
        }
        for (tensor, shard) in &index.weight_map {
            if !is_plain_name(shard) {
                return Err(wrong(format!(
                    "tensor `{tensor}` is said to lie in {shard:?}; a shard is a file name without directories"
                )));
            }
        }
        Ok(index)
    }

    /// The distinct shard names, sorted.
    pub fn shards(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.weight_map.values().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A name that stays in its directory on every system.
fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 255
        && !name.starts_with('.')
        && !name.contains(|c: char| c.is_control() || matches!(c, '/' | '\\' | ':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(text: &str) -> Result<ShardIndex, FileError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors.index.json");
        std::fs::write(&path, text).unwrap();
        ShardIndex::open(&path)
    }

    #[test]
    fn shards_are_listed_once() {
        let index = open(r#"{"metadata":{"total_size":1},"weight_map":{"a":"2.bin","b":"1.bin","c":"2.bin"}}"#);
        assert_eq!(index.unwrap().shards(), ["1.bin", "2.bin"]);
    }

    #[test]
    fn shard_names_may_not_leave_the_directory() {
        for name in ["../w.bin", "a/w.bin", "/etc/passwd", "..", ".", "", "a\\\\w.bin", "C:w.bin", "w\\u0000.bin"] {
            let error = open(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#)).unwrap_err().to_string();
            assert!(error.contains("tensor `a`") && error.contains("without directories"), "{error}");
        }
    }

    #[test]
    fn a_malformed_index_names_its_file() {
        for text in ["", "{", "{}", r#"{"weight_map":{}}"#, r#"{"weight_map":["a"]}"#] {
            let error = open(text).unwrap_err().to_string();
            assert!(error.contains("model.safetensors.index.json"), "{error}");
        }
    }
}
