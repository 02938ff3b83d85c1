//! Files as streams of plain bytes.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Error;

/// A stream that inflates this many times beyond [`BOMB_BYTES`] is a bomb: traces reach 60.
const BOMB_RATIO: u64 = 400;
const BOMB_BYTES: u64 = 256 << 20;

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Magic {
    Gzip,
    Zstd,
    Sqlite,
    /// Begins like JSON.
    Json,
    /// A profile directory's Parquet, an archive, an image, text: nothing that is read here.
    Other,
}

/// The magic of the file and its first bytes.
pub(super) fn magic(path: &Path) -> Result<Magic, Error> {
    let mut first = Vec::new();
    let file = File::open(path).map_err(Error::io(path))?;
    file.take(64).read_to_end(&mut first).map_err(Error::io(path))?;
    Ok(match first.as_slice() {
        [0x1f, 0x8b, ..] => Magic::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Magic::Zstd,
        bytes if bytes.starts_with(b"SQLite format 3\0") => Magic::Sqlite,
        bytes => {
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
            match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'{' | b'[') => Magic::Json,
                _ => Magic::Other,
            }
        }
    })
}

/// A file, decompressed on the way.
pub(super) struct Source {
    reader: Box<dyn Read + Send>,
    compressed: Option<Arc<AtomicU64>>,
    read: u64,
}

impl Source {
    /// Opens a file; gzip (all members) and zstd (all frames) are told by their first bytes.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(Error::io(path))?;
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, taken: taken.clone() };
        let buffered = |counted| io::BufReader::with_capacity(1 << 18, counted);
        let (reader, compressed): (Box<dyn Read + Send>, _) = match magic(path)? {
            Magic::Gzip => (Box::new(flate2::bufread::MultiGzDecoder::new(buffered(counted))), Some(taken)),
            Magic::Zstd => {
                let mut decoder = zstd::Decoder::with_buffer(buffered(counted)).map_err(Error::io(path))?;
                decoder.window_log_max(27).map_err(Error::io(path))?;
                (Box::new(decoder), Some(taken))
            }
            _ => (Box::new(counted), None),
        };
        Ok(Self { reader, compressed, read: 0 })
    }

    /// Fills the buffer's spare bytes up to `until` bytes; false at the end of the file.
    pub fn fill(&mut self, buffer: &mut Vec<u8>, until: usize) -> io::Result<bool> {
        let mut from = buffer.len();
        buffer.resize(until.max(from), 0);
        let mut result = Ok(true);
        while from < buffer.len() {
            match self.reader.read(&mut buffer[from..]) {
                Ok(0) => {
                    result = Ok(false);
                    break;
                }
                Ok(bytes) => {
                    from += bytes;
                    self.read += bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        buffer.truncate(from);
        if let Some(compressed) = &self.compressed
            && self.read > BOMB_BYTES
            && self.read / BOMB_RATIO > compressed.load(Ordering::Relaxed)
        {
            return Err(io::Error::other(format!("it inflates more than {BOMB_RATIO} times: a decompression bomb")));
        }
        result
    }

    /// Whether an error of [`Source::fill`] is the refusal of a bomb.
    pub fn is_bomb(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::Other && error.to_string().ends_with("bomb")
    }
}

/// Counts the bytes taken from a file.
struct Counted {
    file: File,
    taken: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read(buffer)?;
        self.taken.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}
