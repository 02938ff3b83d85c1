use super::*;
use proptest::prelude::*;

/// A file with this header and `data_bytes` zeros after it.
fn file(json: &str, data_bytes: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data_bytes, 0);
    bytes
}

fn message(json: &str, data_bytes: usize) -> String {
    Header::parse(&file(json, data_bytes)).unwrap_err().to_string()
}

const GOOD: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
    "a":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},
    "empty":{"dtype":"F16","shape":[0,3],"data_offsets":[16,16]}}"#;

#[test]
fn a_good_header_gives_ranges_in_the_file() {
    let bytes = file(GOOD, 24);
    let header = Header::parse(&bytes).unwrap();
    assert_eq!(header.tensors.keys().collect::<Vec<_>>(), ["a", "b", "empty"]);
    assert_eq!(header.tensors["a"].range, bytes.len() - 8..bytes.len());
    assert_eq!(header.tensors["b"].shape, [2, 2]);
    assert!(header.tensors["empty"].range.is_empty());
    assert_eq!(header.metadata["format"], "pt");
}

#[test]
fn a_short_file_is_not_safetensors() {
    assert_eq!(Header::parse(b""), Err(HeaderError::TooShort(0)));
    assert_eq!(Header::parse(b"1234567"), Err(HeaderError::TooShort(7)));
}

#[test]
fn a_header_longer_than_the_file_is_a_truncation() {
    let bytes = file(GOOD, 24);
    let error = Header::parse(&bytes[..40]).unwrap_err().to_string();
    assert!(error.contains("only 40 bytes") && error.contains("truncated"), "{error}");
}

#[test]
fn an_absurd_header_length_is_refused_before_anything_is_read() {
    assert_eq!(Header::parse(&u64::MAX.to_le_bytes()), Err(HeaderError::HeaderTooLarge(u64::MAX)));
}

#[test]
fn a_header_that_is_not_json_is_refused() {
    assert!(message("hello", 0).contains("bad safetensors header"));
    assert!(message("[]", 0).contains("one entry per tensor"));
    assert!(Header::parse(&file("\u{fffd}", 0)).is_err());
}

#[test]
fn an_unknown_dtype_names_its_tensor() {
    let error = message(r#"{"w":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#, 4);
    assert!(error.contains("tensor `w`") && error.contains("F33"), "{error}");
}

#[test]
fn a_name_listed_twice_is_refused() {
    let w = r#""w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    assert!(message(&format!("{{{w},{w}}}"), 4).contains("`w` is listed twice"));
}

#[test]
fn shape_and_bytes_must_agree() {
    let error = message(r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8);
    assert!(error.contains("`w`") && error.contains("[3]") && error.contains("8 bytes"), "{error}");
    let huge = r#"{"w":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}"#;
    assert!(message(huge, 0).contains("does not take"));
}

#[test]
fn offsets_must_tile_the_data() {
    let two = |first: &str, second: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},
                 "b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
        )
    };
    assert!(Header::parse(&file(&two("[0,4]", "[4,8]"), 8)).is_ok());
    assert!(message(&two("[0,4]", "[3,7]"), 7).contains("`b` starts at data byte 3, inside"));
    assert!(message(&two("[0,4]", "[5,9]"), 9).contains("data bytes 4..5 belong to no tensor"));
    assert!(message(&two("[0,4]", "[4,8]"), 9).contains("data bytes 8..9 belong to no tensor"));
    assert!(message(&two("[0,4]", "[4,8]"), 7).contains("`b` ends at data byte 8 but the file holds only 7"));
    assert!(message(&two("[4,0]", "[4,8]"), 8).contains("before its start"));
}

#[test]
fn offsets_near_the_end_of_the_address_space_do_not_wrap() {
    let max = u64::MAX;
    let json = format!(r#"{{"w":{{"dtype":"U8","shape":[{max}],"data_offsets":[0,{max}]}}}}"#);
    assert!(matches!(Header::parse(&file(&json, 8)), Err(HeaderError::PastEnd { .. })));
}

proptest! {
    #[test]
    fn damaged_files_are_errors_or_stay_in_bounds(cut in 0usize..400, at in 0usize..400, byte: u8) {
        let mut bytes = file(GOOD, 24);
        let n = bytes.len();
        bytes[at % n] = byte;
        bytes.truncate(if cut < 200 { n } else { cut % n });
        if let Ok(header) = Header::parse(&bytes) {
            for entry in header.tensors.values() {
                prop_assert!(entry.range.end <= bytes.len());
            }
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        let _ = Header::parse(&bytes);
    }
}
