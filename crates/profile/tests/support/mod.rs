//! What the tests share.
#![allow(dead_code)] // Each test binary uses its part.

pub mod naive;
pub mod synthetic;
pub mod tables;

use std::path::{Path, PathBuf};

/// The traces of other projects, where they are.
pub fn traces() -> Option<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    if !dir.exists() {
        eprintln!("skipped: ../shared/traces is not here; it holds the traces and their reference values");
        return None;
    }
    Some(dir)
}

/// The JSON traces of a set, by name.
pub fn files(set: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(set).unwrap_or_else(|error| panic!("{}: {error}", set.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.retain(|path| path.to_string_lossy().contains(".json"));
    files.sort();
    files
}
