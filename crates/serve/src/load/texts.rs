//! The texts to send.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::LoadError;

const MAX_FILE_BYTES: u64 = 256 << 20;

/// Reads a file with one text a line, UTF-8, lines ended by `\n` or `\r\n`. Empty lines are texts too. At most 256 MiB.
pub fn read_texts(path: &Path) -> Result<Vec<String>, LoadError> {
    let unreadable = |source| LoadError::Unreadable { path: path.into(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(unreadable)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(LoadError::TooLarge { path: path.into(), limit: MAX_FILE_BYTES });
    }
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() {
        return Err(LoadError::NoTexts);
    }
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    lines
        .map(|(index, line)| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let text = std::str::from_utf8(line).map_err(|error| LoadError::NotUtf8 {
                path: path.into(),
                line: index + 1,
                byte: error.valid_up_to() + 1,
            })?;
            Ok(text.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<String>, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("texts.txt");
        std::fs::write(&path, bytes).unwrap();
        read_texts(&path)
    }

    #[test]
    fn every_line_is_a_text_even_an_empty_one() {
        assert_eq!(read(b"one\r\n\ntwo\x85\n".strip_suffix(b"\x85\n").unwrap()).unwrap(), ["one", "", "two"]);
        assert_eq!(read("\u{feff}a\nb\n\n".as_bytes()).unwrap(), ["a", "b", ""]);
    }

    #[test]
    fn a_bad_byte_is_named_by_file_line_and_place() {
        let message = read(b"fine\nna\xefve\n").unwrap_err().to_string();
        assert!(message.contains("texts.txt line 2: not UTF-8 from byte 3"), "{message}");
    }

    #[test]
    fn an_empty_or_missing_file_is_refused() {
        assert!(matches!(read(b""), Err(LoadError::NoTexts)));
        let message = read_texts(Path::new("no-such-file.txt")).unwrap_err().to_string();
        assert!(message.starts_with("cannot read no-such-file.txt"), "{message}");
    }
}
