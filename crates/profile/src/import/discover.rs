//! Which files to import.

use std::fs;
use std::path::{Path, PathBuf};

use super::Error;
use super::source::{Magic, magic};

/// Folders within folders that are looked into: `plugins/profile/RUN/` is three deep.
const MAX_DEPTH: usize = 5;
/// More files than this and the folder is not one of profiles.
const MAX_FILES: usize = 1 << 16;

/// What reads a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Chrome,
    Nsight,
    Xplane,
}

impl Format {
    pub fn word(self) -> &'static str {
        match self {
            Format::Chrome => "chrome",
            Format::Nsight => "nsight",
            Format::Xplane => "xplane",
        }
    }
}

/// A file to read.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub path: PathBuf,
    pub format: Format,
    /// It was found in a folder, so it may be something else.
    pub found: bool,
}

/// A file of a folder that is not read.
#[derive(Clone, Debug)]
pub(super) struct Skipped {
    pub path: PathBuf,
    pub reason: String,
}

/// The files that `inputs`, files and folders, name. Those of a folder come in the order of their names.
pub(super) fn discover(inputs: &[PathBuf]) -> Result<(Vec<Candidate>, Vec<Skipped>), Error> {
    let (mut candidates, mut skipped) = (Vec::new(), Vec::new());
    for input in inputs {
        let metadata = fs::metadata(input).map_err(Error::io(input))?;
        if !metadata.is_dir() {
            if !metadata.is_file() {
                return Err(Error::format(input, "not a regular file; a pipe has to be written to a file first"));
            }
            let Some(format) = format(input)? else {
                let reason = "neither JSON (plain, gzip, zstd), nor an Nsight report (.sqlite), nor .xplane.pb";
                return Err(Error::format(input, reason));
            };
            candidates.push(Candidate { path: input.clone(), format, found: false });
            continue;
        }
        let before = candidates.len();
        let mut files = Vec::new();
        walk(input, 0, &mut files)?;
        for path in files {
            match format(&path)? {
                Some(format) => candidates.push(Candidate { path, format, found: true }),
                None => skipped.push(Skipped { path, reason: "no format of a profile".into() }),
            }
        }
        if candidates.len() == before {
            let names: Vec<String> = skipped.iter().take(5).map(|file| file.path.display().to_string()).collect();
            let looked_at = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Error::NothingThere { path: input.clone(), looked_at });
        }
    }
    Ok((candidates, skipped))
}

fn walk(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Error> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        entries.push(entry.map_err(Error::io(folder))?);
    }
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // A dot hides; a link may lead back here.
        let kind = entry.file_type().map_err(Error::io(&path))?;
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if kind.is_dir() {
            if depth < MAX_DEPTH {
                walk(&path, depth + 1, files)?;
            }
        } else if kind.is_file() || (kind.is_symlink() && path.is_file()) {
            if files.len() == MAX_FILES {
                return Err(Error::TooMuch { what: "files in the folder", limit: MAX_FILES });
            }
            files.push(path);
        }
    }
    Ok(())
}

fn format(path: &Path) -> Result<Option<Format>, Error> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let xplane = name.ends_with(".xplane.pb") || name.ends_with(".xplane");
    Ok(match magic(path)? {
        Magic::Gzip | Magic::Zstd | Magic::Json => Some(Format::Chrome),
        Magic::Sqlite => Some(Format::Nsight),
        Magic::Other if xplane => Some(Format::Xplane),
        Magic::Other => None,
    })
}
