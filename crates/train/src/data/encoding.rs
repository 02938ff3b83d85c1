//! From bytes to text.

use encoding_rs::{DecoderResult, Encoding};

use super::error::DataError;
use crate::job::DataTable;

/// How the bytes of a data file become text. A byte order mark of the encoding is removed.
///
/// ```
/// use train::data::TextEncoding;
///
/// let latin = TextEncoding::for_label("latin1").unwrap();
/// assert_eq!(latin.decode(b"caf\xe9".to_vec(), "a.csv".as_ref()).unwrap(), "café");
/// let strict = TextEncoding::for_label("utf-8").unwrap();
/// let error = strict.decode(b"a\nb\xe9".to_vec(), "a.csv".as_ref()).unwrap_err();
/// assert!(error.to_string().starts_with("a.csv:2: byte 3 of the file (0xE9) is not valid utf-8"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TextEncoding {
    /// UTF-8; the first bad byte is an error.
    Utf8,
    /// UTF-8; bad bytes become U+FFFD.
    Utf8Lossy,
    /// Another encoding of the WHATWG standard; the first bad byte is an error.
    Other(&'static Encoding),
}

/// A name that no encoding has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown encoding: use utf-8, utf-8-lossy or a WHATWG label such as windows-1252, macintosh or utf-16le")]
pub struct UnknownEncoding;

impl TextEncoding {
    /// The encoding that a job calls `label`.
    ///
    /// # Errors
    /// If no encoding is called that.
    pub fn for_label(label: &str) -> Result<Self, UnknownEncoding> {
        if label.eq_ignore_ascii_case("utf-8-lossy") {
            return Ok(Self::Utf8Lossy);
        }
        match Encoding::for_label(label.as_bytes()) {
            Some(encoding) if encoding == encoding_rs::UTF_8 => Ok(Self::Utf8),
            // WHATWG's "replacement" decodes nothing; it stands for encodings that are unsafe.
            Some(encoding) if encoding == encoding_rs::REPLACEMENT => Err(UnknownEncoding),
            Some(encoding) => Ok(Self::Other(encoding)),
            None => Err(UnknownEncoding),
        }
    }

    /// The encoding of a `[data]` table.
    ///
    /// # Errors
    /// If no encoding is called that.
    pub fn of_table(table: &DataTable) -> Result<Self, DataError> {
        Self::for_label(&table.encoding)
            .map_err(|source| DataError::UnknownEncoding { label: table.encoding.clone(), source })
    }

    /// Decodes a whole file.
    ///
    /// # Errors
    /// [`DataError::Encoding`] with line and byte offset of the first byte that does not decode.
    pub fn decode(self, bytes: Vec<u8>, path: &std::path::Path) -> Result<String, DataError> {
        let bad = |offset: usize, line: usize, encoding: &str, hint: &'static str, byte: u8| DataError::Encoding {
            path: path.to_owned(),
            line,
            offset,
            byte,
            encoding: encoding.to_lowercase(),
            hint,
        };
        match self {
            Self::Utf8 => {
                let bom = if bytes.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
                match String::from_utf8(bytes) {
                    Ok(mut text) => {
                        text.drain(..bom);
                        Ok(text)
                    }
                    Err(error) => {
                        let offset = error.utf8_error().valid_up_to();
                        let bytes = error.into_bytes();
                        let utf16 = bytes.starts_with(b"\xFF\xFE") || bytes.starts_with(b"\xFE\xFF");
                        let hint = if utf16 { "the file looks like UTF-16: " } else { "" };
                        Err(bad(offset, line_of(&bytes[..offset]), "utf-8", hint, bytes[offset]))
                    }
                }
            }
            Self::Utf8Lossy => Ok(encoding_rs::UTF_8.decode_with_bom_removal(&bytes).0.into_owned()),
            Self::Other(encoding) => {
                let mut decoder = encoding.new_decoder_with_bom_removal();
                let mut text = String::new();
                let room = decoder.max_utf8_buffer_length_without_replacement(bytes.len());
                text.reserve(room.unwrap_or(bytes.len()));
                match decoder.decode_to_string_without_replacement(&bytes, &mut text, true) {
                    (DecoderResult::Malformed(length, behind), read) => {
                        let offset = read.saturating_sub(usize::from(length) + usize::from(behind));
                        let byte = bytes.get(offset).copied().unwrap_or_default();
                        Err(bad(offset, line_of(text.as_bytes()), encoding.name(), "", byte))
                    }
                    _ => Ok(text),
                }
            }
        }
    }
}

fn line_of(before: &[u8]) -> usize {
    before.iter().filter(|&&byte| byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(label: &str, bytes: &[u8]) -> Result<String, String> {
        let encoding = TextEncoding::for_label(label).unwrap();
        encoding.decode(bytes.to_vec(), "f.txt".as_ref()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_byte_order_mark_is_removed() {
        assert_eq!(decode("utf-8", b"\xEF\xBB\xBFa").unwrap(), "a");
        assert_eq!(decode("utf-8-lossy", b"\xEF\xBB\xBFa\xFF").unwrap(), "a\u{FFFD}");
        assert_eq!(decode("utf-16le", b"\xFF\xFEa\0").unwrap(), "a");
    }

    #[test]
    fn the_first_bad_byte_is_located() {
        let message = decode("utf-8", b"\xEF\xBB\xBFab\ncd\xD5x").unwrap_err();
        assert!(message.starts_with("f.txt:2: byte 8 of the file (0xD5) is not valid utf-8"), "{message}");
        let message = decode("utf-8", b"\xFF\xFEa\0").unwrap_err();
        assert!(message.contains("the file looks like UTF-16"), "{message}");
        let message = decode("shift_jis", b"ab\n\x81\xFFcd").unwrap_err();
        assert!(message.starts_with("f.txt:2: byte 3 of the file (0x81) is not valid shift_jis"), "{message}");
    }

    #[test]
    fn other_encodings_decode_in_full() {
        assert_eq!(decode("macintosh", b"it\xD5s").unwrap(), "it\u{2019}s");
        assert_eq!(decode("utf8", "é".as_bytes()).unwrap(), "é");
        assert!(TextEncoding::for_label("utf-9").is_err());
        assert!(TextEncoding::for_label("iso-2022-kr").is_err());
    }
}
