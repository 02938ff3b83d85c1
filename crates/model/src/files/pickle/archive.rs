//! The zip archive around a torch pickle: names to byte ranges, with sizes checked and checksums kept.

use super::PickleError;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zip::{CompressionMethod, ZipArchive};

/// Compressed archives may not unpack to more than this many times their size, once past [`RATIO_FREE_BYTES`].
const MAX_RATIO: u64 = 200;
const RATIO_FREE_BYTES: u64 = 64 << 20;

const PICKLE_SUFFIX: &str = "/data.pkl";

/// A file inside the archive.
#[derive(Debug, Clone)]
pub(super) struct ZipEntry {
    name: String,
    /// Where its stored or compressed bytes lie in the file.
    range: Range<usize>,
    /// Length when unpacked, in bytes.
    pub len: usize,
    deflated: bool,
    crc: u32,
    /// Set once the checksum has been found right, so that a storage is summed once however many tensors share it.
    verified: Arc<AtomicBool>,
}

/// The directory of a torch archive, names without the leading `NAME/`.
#[derive(Debug)]
pub(super) struct Archive {
    entries: BTreeMap<String, ZipEntry>,
}

impl Archive {
    pub fn parse(file: &[u8]) -> Result<Self, PickleError> {
        if !file.starts_with(b"PK\x03\x04") {
            return Err(match file {
                // A bare pickle of protocol 2 and up.
                [0x80, 2..=5, ..] => PickleError::OldFormat,
                _ => PickleError::BadArchive("it does not start like a zip file".into()),
            });
        }
        let bad = |e: zip::result::ZipError| PickleError::BadArchive(e.to_string());
        let mut zip = ZipArchive::new(Cursor::new(file)).map_err(bad)?;
        if zip.has_duplicate_names() || zip.has_overlapping_files().map_err(bad)? {
            return Err(PickleError::BadArchive("two of its entries share a name or bytes".into()));
        }
        let mut all = Vec::new();
        let mut unpacked_bytes = 0u64;
        for i in 0..zip.len() {
            let entry = ZipEntry::new(&mut zip, i, file.len())?;
            unpacked_bytes = unpacked_bytes.saturating_add(entry.len as u64);
            all.push(entry);
        }
        if unpacked_bytes > RATIO_FREE_BYTES && unpacked_bytes / MAX_RATIO > file.len() as u64 {
            return Err(PickleError::BadArchive(format!(
                "{} bytes claim to unpack to {unpacked_bytes}, over {MAX_RATIO} times as many",
                file.len()
            )));
        }
        Self::strip_prefix(all)
    }

    /// Keeps the entries under the directory that holds `data.pkl`, and settles what kind of archive this is.
    fn strip_prefix(all: Vec<ZipEntry>) -> Result<Self, PickleError> {
        let prefix = all
            .iter()
            .find_map(|e| e.name.strip_suffix(PICKLE_SUFFIX).filter(|p| !p.contains('/')))
            .ok_or_else(|| PickleError::BadArchive("it has no data.pkl".into()))?;
        let prefix = format!("{prefix}/");
        let entries = all.into_iter().filter_map(|e| Some((e.name.strip_prefix(&prefix)?.to_owned(), e))).collect();
        let archive = Self { entries };
        if archive.entries.contains_key("constants.pkl") {
            return Err(PickleError::BadArchive(
                "it is a TorchScript program, not a state dictionary; save the model's state_dict() instead".into(),
            ));
        }
        Ok(archive)
    }

    pub fn entry(&self, name: &str) -> Option<&ZipEntry> {
        self.entries.get(name)
    }

    /// Unpacks an entry of at most `limit` bytes. Also refuses the archive if its numbers are big-endian.
    pub fn read<'a>(&self, file: &'a [u8], name: &str, limit: u64) -> Result<Cow<'a, [u8]>, PickleError> {
        if let Some(entry) = self.entry("byteorder")
            && (entry.len > 16 || *entry.read(file)? != *b"little")
        {
            return Err(entry.bad("only little-endian files are read"));
        }
        let entry = self.entry(name).ok_or_else(|| PickleError::BadArchive(format!("it has no {name}")))?;
        if entry.len as u64 > limit {
            return Err(entry.bad(format!("{} bytes is over the limit of {limit}", entry.len)));
        }
        entry.read(file)
    }
}

impl ZipEntry {
    fn new(zip: &mut ZipArchive<Cursor<&[u8]>>, index: usize, file_bytes: usize) -> Result<Self, PickleError> {
        let entry = zip.by_index_raw(index).map_err(|e| PickleError::BadArchive(e.to_string()))?;
        let name = String::from_utf8_lossy(entry.name_raw()).into_owned();
        let refused = |problem: &str| PickleError::BadEntry { entry: name.clone(), problem: problem.into() };
        let deflated = match entry.compression() {
            CompressionMethod::Stored => false,
            CompressionMethod::Deflated => true,
            _ => {
                return Err(refused("its compression is neither `stored` nor `deflated`"));
            }
        };
        if entry.encrypted() {
            return Err(refused("it is encrypted"));
        }
        let place = entry.data_start().and_then(|start| {
            let end = start.checked_add(entry.compressed_size())?;
            (end <= file_bytes as u64).then_some(start as usize..end as usize)
        });
        let range = place.ok_or_else(|| refused("it reaches past the end of the file: the file is truncated"))?;
        let len = usize::try_from(entry.size()).map_err(|_| refused("it is too large for this machine"))?;
        if !deflated && len != range.len() {
            return Err(refused("it is stored, but its two sizes differ"));
        }
        let crc = entry.crc32();
        drop(entry);
        Ok(Self { name, range, len, deflated, crc, verified: Arc::default() })
    }

    fn bad(&self, problem: impl Into<String>) -> PickleError {
        PickleError::BadEntry { entry: self.name.clone(), problem: problem.into() }
    }

    /// The unpacked bytes, exactly [`len`](Self::len) of them, with the checksum verified.
    pub fn read<'a>(&self, file: &'a [u8]) -> Result<Cow<'a, [u8]>, PickleError> {
        let raw = file.get(self.range.clone()).ok_or_else(|| self.bad("it reaches past the end of the file"))?;
        let bytes = if self.deflated { Cow::Owned(self.inflate(raw)?) } else { Cow::Borrowed(raw) };
        if self.deflated || !self.verified.load(Ordering::Relaxed) {
            let mut crc = Crc::new();
            crc.update(&bytes);
            if crc.sum() != self.crc {
                return Err(self.bad("its checksum does not match: the file is damaged"));
            }
            self.verified.store(true, Ordering::Relaxed);
        }
        Ok(bytes)
    }

    fn inflate(&self, raw: &[u8]) -> Result<Vec<u8>, PickleError> {
        let mut bytes = Vec::new();
        // The declared length is the bound, so a lying directory costs no memory.
        let read = DeflateDecoder::new(raw).take(self.len as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|e| self.bad(format!("it does not unpack: {e}")))?;
        if bytes.len() != self.len {
            return Err(self.bad(format!("it does not unpack to the {} bytes it declares", self.len)));
        }
        Ok(bytes)
    }
}
