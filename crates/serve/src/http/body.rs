//! Reading bodies: bounded, in time, and with errors that say where.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::app::{App, Arrival};
use super::content::Content;
use crate::failure::{Failure, Kind, Place};

/// What is not wanted of a body is read up to this many times the limit.
const DISCARDED: usize = 8;
/// As long as that may take.
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// Memory asked for at once, whatever length a client announces.
const FIRST_CAPACITY: u64 = 1 << 20;

/// Reads a whole body of at most `limit` bytes before `deadline`.
///
/// # Errors
/// [`Kind::TooLarge`], [`Kind::SlowBody`], or [`Kind::Malformed`] when the connection breaks.
pub async fn read(headers: &HeaderMap, body: Body, limit: usize, deadline: Instant) -> Result<Bytes, Failure> {
    refuse_encoding(headers)?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let mut body = body;
    if let Some(length) = length.filter(|&length| length > limit as u64) {
        return Err(too_large(Some(length), limit));
    }
    let mut bytes = BytesMut::with_capacity(length.unwrap_or(0).min(FIRST_CAPACITY) as usize);
    let all = async {
        while let Some(frame) = body.frame().await {
            let frame = frame
                .map_err(|error| Failure::new(Kind::Malformed, format!("the body ended before its end: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(too_large(None, limit));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(())
    };
    let result = tokio::time::timeout_at(deadline.into(), all).await;
    match result {
        Ok(Ok(())) => Ok(bytes.freeze()),
        Ok(Err(failure)) => Err(failure),
        Err(_) => {
            Err(Failure::new(Kind::SlowBody, "the body did not arrive within the request's deadline (--timeout)"))
        }
    }
}

/// The body of a request to a route that takes JSON alone.
///
/// # Errors
/// As [`read`] and [`json`], and [`Kind::MediaType`].
pub async fn request<T: DeserializeOwned>(app: &App, arrival: &Arrival, request: Request) -> Result<T, Failure> {
    let (head, body) = request.into_parts();
    if Content::of_request(&head.headers)? != Content::Json {
        let text =
            "this route takes application/json; /invocations takes text/plain, text/csv and application/jsonlines too";
        return Err(Failure::new(Kind::MediaType, text).in_field("content-type"));
    }
    json(&read(&head.headers, body, app.options.limits.body_bytes, arrival.deadline).await?)
}

/// A body that its handler reads and that can be read to its end afterwards.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Body>>);

impl Shared {
    /// The rest of `body` can be discarded after a handler has had the returned one.
    pub fn new(body: Body) -> (Self, Body) {
        let shared = Self(Arc::new(Mutex::new(body)));
        (shared.clone(), Body::new(shared))
    }

    /// Reads what no one wanted and throws it away, so that a client which sends all before it reads gets the answer and
    /// not a broken pipe: a few times `limit` bytes, for a few seconds. A client that sends more or more slowly gets
    /// its answer over a connection that then closes.
    pub async fn discard(mut self, limit: usize) {
        let mut left = limit.saturating_mul(DISCARDED);
        let rest = async {
            while let Some(Ok(frame)) = self.frame().await {
                let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else { break };
                left = rest;
            }
        };
        let _ = tokio::time::timeout(DISCARD_TIME, rest).await;
    }
}

impl hyper::body::Body for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }
}

fn too_large(length: Option<u64>, limit: usize) -> Failure {
    let found = length.map_or("the body".to_string(), |length| format!("the body of {length} bytes"));
    let text = format!("{found} is over the limit of {limit} bytes (--max-body-bytes); send fewer inputs at a time");
    Failure::new(Kind::TooLarge, text)
}

fn refuse_encoding(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").to_ascii_lowercase()) {
        Some(encoding) if encoding != "identity" => {
            let text = format!("content-encoding `{encoding}` is not supported; send the body as it is");
            Err(Failure::new(Kind::MediaType, text).in_field("content-encoding"))
        }
        _ => Ok(()),
    }
}

/// A body as text, without a byte order mark.
///
/// # Errors
/// [`Kind::NotUtf8`] with the byte.
pub fn text(bytes: &[u8]) -> Result<&str, Failure> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(error) => {
            let byte = error.valid_up_to();
            let text = format!("the body is not UTF-8: the byte at offset {byte} starts no character");
            Err(Failure::new(Kind::NotUtf8, text).at(Place::Byte(byte)))
        }
    }
}

/// A body as a value of a type that is written as an object.
///
/// # Errors
/// [`Kind::NotUtf8`], [`Kind::Malformed`] with line and column, or [`Kind::Invalid`] with the field.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    object(text(bytes)?, 1)
}

/// As [`json`], for text that begins at a line of the body.
///
/// # Errors
/// As [`json`].
pub fn object<T: DeserializeOwned>(text: &str, line: usize) -> Result<T, Failure> {
    if !text.trim_start().starts_with('{') {
        // What is no JSON at all is told first.
        let found = match value::<serde_json::Value>(text, line)? {
            serde_json::Value::Array(_) => "a list",
            serde_json::Value::String(_) => "a string",
            serde_json::Value::Number(_) => "a number",
            _ => "no object",
        };
        return Err(Failure::new(
            Kind::Invalid,
            format!("the body is {found}; it must be an object: {{\"inputs\": ...}}"),
        ));
    }
    value(text, line)
}

/// JSON text that begins at a line of the body as a value of a type.
///
/// # Errors
/// As [`json`].
pub fn value<T: DeserializeOwned>(text: &str, line: usize) -> Result<T, Failure> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        bad_json(error.into_inner(), &path, line)
    })?;
    deserializer.end().map_err(|error| bad_json(error, ".", line))?;
    Ok(parsed)
}

fn bad_json(error: serde_json::Error, path: &str, first_line: usize) -> Failure {
    let (line, column) = (error.line() + first_line - 1, error.column());
    let place = Place::Line { line, column };
    let what = error.to_string();
    let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
    if !error.is_data() {
        // The parser's words for half of a pair of escapes.
        let what = what.replace("unexpected end of hex escape", "a lone surrogate is no character");
        let what = what.replace("lone leading surrogate in hex escape", "a lone surrogate is no character");
        let text = format!("the body is not valid JSON: {what} at line {line}, column {column}");
        return Failure::new(Kind::Malformed, text).at(place);
    }
    let missing = what.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
    let field = match (missing, path) {
        (Some(name), ".") => name.to_string(),
        (Some(name), path) => format!("{path}.{name}"),
        (None, ".") => return Failure::new(Kind::Invalid, format!("the body is not as expected: {what}")).at(place),
        (None, path) => path.to_string(),
    };
    let known = ["top_k", "function_to_apply", "truncation", "max_length", "aggregation_strategy", "pooling"];
    let hint =
        if known.contains(&path) && what.starts_with("unknown field") { "; it belongs into `parameters`" } else { "" };
    let problem =
        if missing.is_some() { "is missing".to_string() } else { format!("is wrong: {}{hint}", in_words(what)) };
    Failure::invalid(field, problem).at(place)
}

/// The parser's words for types, in the words of JSON.
fn in_words(what: &str) -> String {
    [("struct Parameters", "an object"), ("usize", "a whole number"), ("u32", "a whole number"), ("f32", "a number")]
        .iter()
        .fold(what.to_string(), |what, (theirs, ours)| what.replace(theirs, ours))
}

/// A response with a JSON body.
pub fn respond<T: Serialize>(value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(),
        Err(error) => Failure::new(Kind::Internal, format!("the answer cannot be written: {error}")).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Asked {
        inputs: String,
        #[serde(default)]
        top: Vec<u32>,
    }

    fn failure(bytes: &[u8]) -> Failure {
        json::<Asked>(bytes).unwrap_err()
    }

    #[test]
    fn json_errors_say_where() {
        let error = failure(b"{\"inputs\":\n \"a\",}");
        assert_eq!((error.kind, error.place), (Kind::Malformed, Some(Place::Line { line: 2, column: 6 })));
        assert_eq!(failure(b"").kind, Kind::Malformed);
        assert_eq!(failure(b"{\"inputs\":\"a\"} x").kind, Kind::Malformed);
        let error = failure(b"{\"inputs\":\"a\\ud800b\"}");
        assert_eq!(error.kind, Kind::Malformed, "a lone surrogate is no character: {error}");
        let error = failure(b"{\"top\":[1]}");
        assert_eq!((error.kind, error.field.as_deref()), (Kind::Invalid, Some("inputs")));
        let error = failure(b"{\"inputs\":\"a\",\"top\":[1,\"x\"]}");
        assert_eq!((error.kind, error.field.as_deref()), (Kind::Invalid, Some("top[1]")));
        let error = failure(b"{\"inputs\":\"\xff\"}");
        assert_eq!((error.kind, error.place), (Kind::NotUtf8, Some(Place::Byte(11))));
        assert_eq!(failure("[".repeat(100_000).as_bytes()).kind.status() / 100, 4);
        assert!(failure(b"[\"a\", []]").message.contains("is a list; it must be an object"));
        assert!(failure(b"{\"inputs\":\"a\",\"top\":[-1]}").message.contains("whole number"));
    }

    #[test]
    fn a_byte_order_mark_is_no_error() {
        assert_eq!(json::<Asked>(b"\xef\xbb\xbf{\"inputs\":\"a\"}").unwrap().inputs, "a");
    }

    #[tokio::test]
    async fn bodies_are_bounded_whether_they_tell_their_length_or_not() {
        let soon = || Instant::now() + Duration::from_secs(5);
        let none = HeaderMap::new();
        assert_eq!(read(&none, Body::from("12345"), 5, soon()).await.unwrap(), "12345");
        let error = read(&none, Body::from("123456"), 5, soon()).await.unwrap_err();
        assert_eq!(error.kind, Kind::TooLarge);
        assert!(error.message.contains("5 bytes"), "{error}");
        let mut said = HeaderMap::new();
        said.insert(header::CONTENT_LENGTH, "6".parse().unwrap());
        assert!(read(&said, Body::from("123456"), 5, soon()).await.unwrap_err().message.contains("6 bytes"));
        said.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        assert_eq!(read(&said, Body::from("1"), 9, soon()).await.unwrap_err().kind, Kind::MediaType);
    }
}
