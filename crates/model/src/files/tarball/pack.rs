//! Packing a model directory.

use super::ArchiveError;
use crate::files::{FileError, atomic};
use flate2::{Compression, GzBuilder};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Directories deeper than this are not part of any model; a link could make them endless.
const MAX_DEPTH: usize = 16;

/// Packs the model directory `dir` as `out`, a `.tar.gz` with the model at its root.
///
/// Every regular file is taken, nested ones (`code/`, `1_Pooling/`) included, also through a link to a file as the
/// hub's cache has them. Names that start with a dot are left out: unfinished files of [`atomic::write`], `.git`,
/// `.cache`. The archive depends only on names and contents: names are sorted, times and owners are 0, modes 0644.
///
/// # Errors
/// [`FileError::Archive`] naming the file that cannot be packed; an archive already at `out` is then unchanged.
pub fn pack(dir: &Path, out: &Path) -> Result<(), FileError> {
    let failed = |cause| FileError::Archive { path: out.into(), cause };
    if !dir.join("config.json").is_file() {
        return Err(failed(ArchiveError::NoConfig(dir.display().to_string())));
    }
    let mut files = Vec::new();
    list(dir, "", 0, out, &mut files).map_err(failed)?;
    files.sort();
    // The closure may only return an I/O error; the one with the file's name waits here.
    let mut reason = None;
    let written = atomic::write(out, |file| {
        write(&files, BufWriter::new(file)).map_err(|e| {
            reason = Some(e);
            io::Error::other("packing failed")
        })
    });
    match reason {
        Some(reason) => Err(failed(reason)),
        None => written,
    }
}

/// Appends (name in the archive, path) of each file under `dir`; `prefix` is empty or ends with a slash.
fn list(
    dir: &Path,
    prefix: &str,
    depth: usize,
    out: &Path,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<(), ArchiveError> {
    let refused = |entry: String, problem: &str| ArchiveError::Refused { entry, problem: problem.into() };
    let unreadable = |e| ArchiveError::io("read", dir, e);
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let Some(file_name) = path.file_name().and_then(|n| n.to_str()) else {
            return Err(refused(path.display().to_string(), "has a name that is not UTF-8"));
        };
        if file_name.starts_with('.') || path == out {
            continue;
        }
        let name = format!("{prefix}{file_name}");
        let link = fs::symlink_metadata(&path).map_err(|e| ArchiveError::io("read", &path, e))?;
        let target = fs::metadata(&path).map_err(|e| ArchiveError::io("read", &path, e))?;
        if target.is_file() {
            files.push((name, path));
        } else if link.is_dir() && depth < MAX_DEPTH {
            list(&path, &format!("{name}/"), depth + 1, out, files)?;
        } else {
            return Err(refused(name, "is not a regular file or a directory; move it out of the model directory"));
        }
    }
    Ok(())
}

fn write(files: &[(String, PathBuf)], out: impl Write) -> Result<(), ArchiveError> {
    // The fast level: weights hardly compress at any.
    let gzip = GzBuilder::new().mtime(0).write(out, Compression::fast());
    let mut tar = tar::Builder::new(gzip);
    for (name, path) in files {
        let file = File::open(path).map_err(|e| ArchiveError::io("open", path, e))?;
        let size = file.metadata().map_err(|e| ArchiveError::io("read", path, e))?.len();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        let mut content = Counted { inner: file.take(size), read: 0 };
        tar.append_data(&mut header, name, &mut content).map_err(|e| ArchiveError::io("pack", path, e))?;
        if content.read != size {
            let cause = io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read");
            return Err(ArchiveError::io("pack", path, cause));
        }
    }
    let finish = || -> io::Result<()> { tar.into_inner()?.finish()?.flush() };
    finish().map_err(|e| ArchiveError::Io { action: "finish", path: "the archive".into(), cause: e })
}

struct Counted<R> {
    inner: R,
    read: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.read += n as u64;
        Ok(n)
    }
}
