//! A file that several threads read at once. Clones of a `File` share one position, so `parquet`'s own reading of files mixes
//! up threads; reading at an offset does not.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

/// A segment's file.
pub(super) struct Source {
    file: Arc<File>,
    bytes: u64,
}

impl Source {
    pub(super) fn new(file: File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), bytes })
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for Source {
    type T = BufReader<Offset>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(BufReader::new(Offset { file: self.file.clone(), at: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        // A damaged file may claim any length: nothing is allocated beyond its end.
        if start.checked_add(length as u64).is_none_or(|end| end > self.bytes) {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} of {}", self.bytes)));
        }
        let mut buffer = vec![0; length];
        self.file.read_exact_at(&mut buffer, start)?;
        Ok(buffer.into())
    }
}

/// Reads on from a place of the file.
pub(super) struct Offset {
    file: Arc<File>,
    at: u64,
}

impl Read for Offset {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
