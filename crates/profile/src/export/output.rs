//! Files that appear whole or not at all, packed as their names say.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{Error, Written};

/// A file being written under a temporary name.
pub(super) struct Output {
    path: PathBuf,
    overwrite: bool,
    packer: Packer,
}

enum Packer {
    Plain(BufWriter<NamedTempFile>),
    Gzip(flate2::write::GzEncoder<BufWriter<NamedTempFile>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<NamedTempFile>>),
}

impl Output {
    /// Starts a file; its name says whether it is packed (`.gz`, `.zst`).
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, Error> {
        check_free(path, overwrite)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".export")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(folder)
            .map_err(Error::io(path))?;
        let file = BufWriter::with_capacity(1 << 18, file);
        let packer = match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Packer::Gzip(flate2::write::GzEncoder::new(file, flate2::Compression::default())),
            Some("zst") => Packer::Zstd(zstd::stream::write::Encoder::new(file, 3).map_err(Error::io(path))?),
            _ => Packer::Plain(file),
        };
        Ok(Self { path: path.to_owned(), overwrite, packer })
    }

    /// Appends bytes.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.write_all(bytes).map_err(Error::io(&self.path))
    }

    /// Ends the file and gives it its name.
    pub fn finish(self) -> Result<Written, Error> {
        let fail = |source: io::Error| Error::Io { path: self.path.clone(), source };
        let buffer = match self.packer {
            Packer::Plain(file) => file,
            Packer::Gzip(packer) => packer.finish().map_err(fail)?,
            Packer::Zstd(packer) => packer.finish().map_err(fail)?,
        };
        let file = buffer.into_inner().map_err(|error| fail(error.into_error()))?;
        let bytes = file.as_file().metadata().map_err(fail)?.len();
        persist(file, &self.path, self.overwrite)?;
        Ok(Written { path: self.path, bytes })
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.packer {
            Packer::Plain(file) => file.write(bytes),
            Packer::Gzip(packer) => packer.write(bytes),
            Packer::Zstd(packer) => packer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.packer {
            Packer::Plain(file) => file.flush(),
            Packer::Gzip(packer) => packer.flush(),
            Packer::Zstd(packer) => packer.flush(),
        }
    }
}

/// Gives a temporary file its name; what came there in the meantime is replaced only when `overwrite` says so.
fn persist(file: NamedTempFile, path: &Path, overwrite: bool) -> Result<File, Error> {
    let result = if overwrite { file.persist(path) } else { file.persist_noclobber(path) };
    result.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => Error::Exists { path: path.to_owned() },
        _ => Error::Io { path: path.to_owned(), source: error.error },
    })
}

/// Says no when a file is in the way before any work is done.
fn check_free(path: &Path, overwrite: bool) -> Result<(), Error> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() || !overwrite => Err(Error::Exists { path: path.to_owned() }),
        _ => Ok(()),
    }
}

/// Makes a directory for files; one with anything in it is used only when `overwrite` says so.
pub(super) fn directory(path: &Path, overwrite: bool) -> Result<(), Error> {
    if !overwrite && fs::symlink_metadata(path).is_ok() {
        let mut entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                return Err(Error::Exists { path: path.to_owned() });
            }
            Err(error) => return Err(Error::io(path)(error)),
        };
        if entries.next().is_some() {
            return Err(Error::Exists { path: path.to_owned() });
        }
    }
    fs::create_dir_all(path).map_err(Error::io(path))
}

/// Moves a finished file of the same file system to its place.
pub(super) fn move_here(from: &Path, path: &Path, overwrite: bool) -> Result<Written, Error> {
    check_free(path, overwrite)?;
    let bytes = fs::metadata(from).map_err(Error::io(from))?.len();
    fs::rename(from, path).map_err(Error::io(path))?;
    Ok(Written { path: path.to_owned(), bytes })
}
