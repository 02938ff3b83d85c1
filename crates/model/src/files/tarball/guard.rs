//! Counting readers that stop a stream which unpacks to too much.

use super::{ArchiveError, Limits};
use std::cell::{Cell, RefCell};
use std::io::{self, Read};

/// Most bytes of extension headers (long names, PAX records) before one entry; the tar reader holds them in memory.
const MAX_HEADER_BYTES: u64 = 1 << 20;

/// What has been read so far, shared by the readers on both sides of the decompressor.
pub(super) struct Guard {
    limits: Limits,
    packed: Cell<u64>,
    unpacked: Cell<u64>,
    /// While a header is being read: the unpacked position it must end before.
    header_end: Cell<u64>,
    /// The reason the stream was stopped. The tar reader only sees an I/O error.
    stopped: RefCell<Option<ArchiveError>>,
}

impl Guard {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            packed: Cell::new(0),
            unpacked: Cell::new(0),
            header_end: Cell::new(u64::MAX),
            stopped: RefCell::new(None),
        }
    }

    /// Counts the bytes of the archive file.
    pub fn packed<R: Read>(&self, inner: R) -> impl Read {
        PackedReader { inner, guard: self }
    }

    /// Counts and limits the bytes that come out of the decompressor `inner`.
    pub fn unpacked<R: Read>(&self, inner: R) -> impl Read {
        UnpackedReader { inner, guard: self }
    }

    /// Runs `read_header` with a limit on what it may read.
    pub fn header<T>(&self, read_header: impl FnOnce() -> T) -> T {
        self.header_end.set(self.unpacked.get() + MAX_HEADER_BYTES);
        let result = read_header();
        self.header_end.set(u64::MAX);
        result
    }

    /// The error behind a failed read: the guard's own reason if it stopped the stream, else `other`.
    pub fn explain(&self, other: impl FnOnce() -> ArchiveError) -> ArchiveError {
        self.stopped.take().unwrap_or_else(other)
    }

    fn check(&self) -> Result<(), ArchiveError> {
        let Limits { total_bytes, ratio, ratio_free_bytes, .. } = self.limits;
        let (packed, unpacked) = (self.packed.get(), self.unpacked.get());
        if unpacked > total_bytes {
            return Err(ArchiveError::TooLarge { limit: total_bytes });
        }
        if unpacked > ratio_free_bytes && unpacked / ratio.max(1) > packed {
            return Err(ArchiveError::Bomb { packed, unpacked, ratio });
        }
        if unpacked > self.header_end.get() {
            let cause = format!("the headers of one entry take more than {MAX_HEADER_BYTES} bytes");
            return Err(ArchiveError::Tar { cause });
        }
        Ok(())
    }
}

struct PackedReader<'a, R> {
    inner: R,
    guard: &'a Guard,
}

impl<R: Read> Read for PackedReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.guard.packed.set(self.guard.packed.get() + n as u64);
        Ok(n)
    }
}

struct UnpackedReader<'a, R> {
    inner: R,
    guard: &'a Guard,
}

impl<R: Read> Read for UnpackedReader<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let stop = |reason| {
            self.guard.stopped.replace(Some(reason));
            io::Error::other("stopped")
        };
        let n = match self.inner.read(buf) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Err(e),
            result => result.map_err(|e| stop(ArchiveError::Gzip { cause: e.to_string() }))?,
        };
        self.guard.unpacked.set(self.guard.unpacked.get() + n as u64);
        self.guard.check().map_err(stop)?;
        Ok(n)
    }
}
