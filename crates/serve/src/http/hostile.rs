//! Bytes from strangers through every reader of bodies: what the fuzz target and the property test share.

use axum::http::{HeaderMap, HeaderValue, header};

use super::content::Content;
use super::kserve::InferRequest;
use super::{body, formats};

/// Reads `bytes` as the body of every content type and of KServe with `json` bytes of JSON at the front. Returns the statuses
/// of the failures; all of them are the client's.
pub fn read_everywhere(bytes: &[u8], json: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for content in [Content::Json, Content::JsonLines, Content::Csv, Content::Text] {
        match formats::decode(content, bytes) {
            Err(failure) => statuses.push(failure.kind.status()),
            Ok(requests) => {
                let failures = requests.iter().filter_map(|request| request.as_ref().err());
                statuses.extend(failures.map(|failure| failure.kind.status()));
            }
        }
    }
    let (front, behind) = bytes.split_at(json.min(bytes.len()));
    let inputs = body::json::<InferRequest>(front).and_then(|request| request.inputs(behind));
    statuses.extend(inputs.err().map(|failure| failure.kind.status()));
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, value.clone()), (header::ACCEPT, value)]);
        statuses.extend(Content::of_request(&headers).err().map(|failure| failure.kind.status()));
        statuses.extend(Content::of_answer(&headers, None).err().map(|failure| failure.kind.status()));
    }
    statuses
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that are nearly what a route expects.
    fn nearly() -> impl Strategy<Value = Vec<u8>> {
        let parts = prop::sample::select(vec![
            "{\"inputs\":",
            "[",
            "]",
            "{",
            "}",
            "\"",
            "\\ud800",
            ":",
            ",",
            "\n",
            "\r\n",
            "null",
            "1e999",
            "\"text\"",
            "\"name\"",
            "\"shape\"",
            "\"datatype\":\"BYTES\"",
            "\"data\"",
            "\"parameters\"",
            "binary_data_size",
            "top_k",
            "18446744073709551615",
            "-1",
            "é",
            "\u{feff}",
            "\0",
            ";q=",
            "text/csv",
            "*/*",
        ]);
        let piece = prop_oneof![
            8 => parts.prop_map(|part: &str| part.as_bytes().to_vec()),
            1 => prop::collection::vec(any::<u8>(), 0..8),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn whatever_comes_is_the_clients_mistake_at_most(bytes in nearly(), json in 0usize..200) {
            for status in read_everywhere(&bytes, json) {
                prop_assert!((400..500).contains(&status), "{status}");
            }
        }
    }
}
