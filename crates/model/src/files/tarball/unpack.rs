//! Unpacking an archive from a stranger.

use super::guard::Guard;
use super::names::{safe_path, shown};
use super::{ArchiveError, Limits};
use crate::files::atomic::parent_of;
use flate2::bufread::MultiGzDecoder;
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use tar::{Archive, Entry, EntryType};

/// Unpacks the gzip-compressed tar stream `archive` (one gzip member or several) as the directory `dest`, which must
/// not exist yet or be empty.
///
/// Files are unpacked beside `dest` and renamed at the end, so `dest` appears whole or not at all. Modes, times and
/// owners in the archive are ignored.
///
/// # Errors
/// [`ArchiveError`] naming the entry: for absolute names, `..`, names that are not UTF-8 or over-long, names given
/// twice, links, devices and fifos; for more than `limits` allow; for a stream that is truncated or followed by
/// anything but zeros. Nothing is left on the disk then.
pub fn unpack(archive: impl Read, dest: &Path, limits: &Limits) -> Result<(), ArchiveError> {
    let occupied = match fs::read_dir(dest) {
        Ok(mut entries) => entries.next().is_some(),
        Err(e) => e.kind() != io::ErrorKind::NotFound,
    };
    if occupied {
        return Err(ArchiveError::Occupied(dest.display().to_string()));
    }
    let parent = parent_of(dest);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".unpacking.");
    #[cfg(unix)]
    let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let staging = builder.tempdir_in(parent).map_err(|e| ArchiveError::io("create a directory in", parent, e))?;
    unpack_into(archive, staging.path(), limits)?;
    fs::rename(staging.path(), dest).map_err(|e| ArchiveError::io("rename the unpacked files to", dest, e))?;
    // The directory has another name now, there is nothing to remove.
    let _ = staging.keep();
    Ok(())
}

fn unpack_into(archive: impl Read, dest: &Path, limits: &Limits) -> Result<(), ArchiveError> {
    let guard = Guard::new(*limits);
    let gzip = MultiGzDecoder::new(BufReader::new(guard.packed(archive)));
    let mut tar = Archive::new(guard.unpacked(gzip));
    let damaged = |e: io::Error| guard.explain(|| ArchiveError::Tar { cause: e.to_string() });
    let mut entries = tar.entries().map_err(damaged)?;
    let mut names = HashSet::new();
    let mut count = 0;
    while let Some(entry) = guard.header(|| entries.next()) {
        let mut entry = entry.map_err(damaged)?;
        count += 1;
        if count > limits.entries {
            return Err(ArchiveError::TooManyEntries { limit: limits.entries });
        }
        if let Some(path) = check(&entry, &mut names)? {
            create(&mut entry, &dest.join(path), &guard)?;
        }
    }
    expect_zeros(tar.into_inner()).map_err(damaged)
}

/// What to create for an entry: its path below the destination, or nothing for the root itself and for PAX globals.
fn check<R: Read>(entry: &Entry<R>, names: &mut HashSet<PathBuf>) -> Result<Option<PathBuf>, ArchiveError> {
    let name = entry.path_bytes();
    let refused = |problem: &str| ArchiveError::Refused { entry: shown(&name), problem: problem.into() };
    let kind = entry.header().entry_type();
    match kind {
        EntryType::Regular | EntryType::Continuous | EntryType::Directory => {}
        // Comments such as the commit that `git archive` writes.
        EntryType::XGlobalHeader => return Ok(None),
        EntryType::Symlink | EntryType::Link => {
            return Err(refused("is a link; pack the file it points to"));
        }
        EntryType::Char | EntryType::Block => return Err(refused("is a device")),
        EntryType::Fifo => return Err(refused("is a fifo")),
        _ => return Err(refused("is neither a file nor a directory")),
    }
    let path = safe_path(&name).map_err(refused)?;
    if path.as_os_str().is_empty() {
        return if kind.is_dir() { Ok(None) } else { Err(refused("has no name")) };
    }
    // A directory may be listed again, as `tar -r` does; a file may not.
    if !names.insert(path.clone()) && !kind.is_dir() {
        return Err(refused("is in the archive twice"));
    }
    Ok(Some(path))
}

fn create<R: Read>(entry: &mut Entry<R>, path: &Path, guard: &Guard) -> Result<(), ArchiveError> {
    if entry.header().entry_type().is_dir() {
        return fs::create_dir_all(path).map_err(|e| ArchiveError::io("create the directory", path, e));
    }
    let dir = parent_of(path);
    fs::create_dir_all(dir).map_err(|e| ArchiveError::io("create the directory", dir, e))?;
    let mut file = File::create_new(path).map_err(|e| ArchiveError::io("create", path, e))?;
    let mut buffer = vec![0; 128 << 10];
    let mut copied = 0;
    loop {
        let n = match entry.read(&mut buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            result => result.map_err(|e| guard.explain(|| ArchiveError::Tar { cause: e.to_string() }))?,
        };
        if n == 0 {
            break;
        }
        copied += n as u64;
        io::Write::write_all(&mut file, &buffer[..n]).map_err(|e| ArchiveError::io("write", path, e))?;
    }
    if copied != entry.size() {
        return Err(ArchiveError::Refused {
            entry: shown(&entry.path_bytes()),
            problem: format!("has {copied} of its {} bytes: the archive is truncated", entry.size()),
        });
    }
    Ok(())
}

/// Reads to the end of the stream, past the padding of a tar file, so that damage anywhere in it is found.
fn expect_zeros(mut rest: impl Read) -> io::Result<()> {
    let mut buffer = [0; 8192];
    loop {
        match rest.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) if buffer[..n].iter().all(|&b| b == 0) => {}
            Ok(_) => return Err(io::Error::other("something follows the end of the archive")),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
