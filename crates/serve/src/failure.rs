//! Why a request, or one of its inputs, gets no result.

use std::borrow::Cow;

use serde::Serialize;
use utoipa::ToSchema;

/// The kinds of failure. Each has a status and a code that clients can rely on; see [`Kind::status`] and [`Kind::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The body is not what its content type says: bad JSON, a broken CSV row.
    Malformed,
    /// The body is not UTF-8.
    NotUtf8,
    /// No or no valid API key.
    Unauthorized,
    /// Not allowed here, whoever asks.
    Forbidden,
    /// No such route.
    NoRoute,
    /// No model of that name.
    NoModel,
    /// The route exists for other methods.
    Method,
    /// None of the accepted content types can be produced.
    NotAcceptable,
    /// The body did not arrive in time.
    SlowBody,
    /// A model of that name is loaded already.
    Conflict,
    /// The body is over the limit.
    TooLarge,
    /// The content type cannot be read.
    MediaType,
    /// A field is missing, of the wrong type or out of range.
    Invalid,
    /// More inputs than one request may have.
    TooManyInputs,
    /// More tokens than the model can take.
    TooManyTokens,
    /// The model was made for another task than the route.
    WrongTask,
    /// The queue is full.
    Overloaded,
    /// The model's output is NaN or infinite.
    NotFinite,
    /// A model cannot be loaded.
    Unloadable,
    /// A Python handler refused the request.
    HandlerRefused,
    /// A Python handler failed.
    HandlerFailed,
    /// A fault of this server.
    Internal,
    /// Not loaded yet, or no longer taking requests.
    Unavailable,
    /// The deadline passed.
    Deadline,
    /// No memory for another model.
    Memory,
}

impl Kind {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed | Self::NotUtf8 | Self::HandlerRefused => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NoRoute | Self::NoModel => 404,
            Self::Method => 405,
            Self::NotAcceptable => 406,
            Self::SlowBody => 408,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::MediaType => 415,
            Self::Invalid | Self::TooManyInputs | Self::TooManyTokens | Self::WrongTask | Self::Unloadable => 422,
            Self::Overloaded => 429,
            Self::NotFinite | Self::HandlerFailed | Self::Internal => 500,
            Self::Unavailable => 503,
            Self::Deadline => 504,
            Self::Memory => 507,
        }
    }

    /// The `error_type` of a response, and the label `kind` of the error counter.
    pub fn code(self) -> &'static str {
        match self {
            Self::Malformed => "malformed_body",
            Self::NotUtf8 => "invalid_utf8",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NoRoute => "no_route",
            Self::NoModel => "model_not_found",
            Self::Method => "method_not_allowed",
            Self::NotAcceptable => "not_acceptable",
            Self::SlowBody => "request_timeout",
            Self::Conflict => "model_already_loaded",
            Self::TooLarge => "payload_too_large",
            Self::MediaType => "unsupported_media_type",
            Self::Invalid => "invalid_input",
            Self::TooManyInputs => "too_many_inputs",
            Self::TooManyTokens => "too_many_tokens",
            Self::WrongTask => "wrong_task",
            Self::Overloaded => "overloaded",
            Self::NotFinite => "not_finite",
            Self::Unloadable => "model_unloadable",
            Self::HandlerRefused => "handler_refused",
            Self::HandlerFailed => "handler_failed",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Deadline => "deadline_exceeded",
            Self::Memory => "out_of_memory",
        }
    }
}

/// One failure, complete in itself: what is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Decides status and code.
    pub kind: Kind,
    /// For people.
    pub message: Cow<'static, str>,
    /// The field at fault, as a path: `inputs[3]`.
    pub field: Option<String>,
    /// Where in the body.
    pub place: Option<Place>,
    /// Seconds after which another try makes sense.
    pub retry_after: Option<u32>,
    /// A status that a handler asked for instead of its kind's.
    pub own_status: Option<u16>,
}

/// A place in a body. Lines and columns count from 1, bytes from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In text.
    Line {
        /// From 1.
        line: usize,
        /// In bytes, from 1.
        column: usize,
    },
    /// In bytes that are not text.
    Byte(usize),
}

impl Failure {
    /// A failure without a place.
    pub fn new(kind: Kind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: printable(message.into(), MOST_MESSAGE),
            field: None,
            place: None,
            retry_after: None,
            own_status: None,
        }
    }

    /// A field's value is wrong.
    pub fn invalid(field: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let field = printable(Cow::Owned(field.into()), MOST_FIELD).into_owned();
        Self::new(Kind::Invalid, format!("`{field}` {problem}")).in_field(field)
    }

    /// The same, of a named field.
    pub fn in_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(printable(Cow::Owned(field.into()), MOST_FIELD).into_owned());
        self
    }

    /// The same, at a place.
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// The same, worth another try after some seconds.
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The same under another status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.own_status = Some(status);
        self
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.own_status.unwrap_or_else(|| self.kind.status())
    }

    /// The same for an input of which only the position in its list is known.
    pub fn in_input(self, list: &str, index: usize) -> Self {
        if self.field.is_some() { self } else { self.in_field(format!("{list}[{index}]")) }
    }

    /// The JSON of a response.
    pub fn body(&self) -> ErrorBody {
        let (line, column, byte) = match self.place {
            Some(Place::Line { line, column }) => (Some(line), Some(column), None),
            Some(Place::Byte(byte)) => (None, None, Some(byte)),
            None => (None, None, None),
        };
        let error_type = self.kind.code().into();
        ErrorBody { error: self.message.to_string(), error_type, field: self.field.clone(), line, column, byte }
    }
}

/// Characters of a message; of what a client sent, no more is told back to it and to the log.
const MOST_MESSAGE: usize = 1000;
/// Characters of a field's path.
const MOST_FIELD: usize = 200;

/// A text on one line: control characters escaped, and cut where it is long.
fn printable(text: Cow<'static, str>, most: usize) -> Cow<'static, str> {
    if text.len() <= most && !text.chars().any(char::is_control) {
        return text;
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let mut printable: String = text.chars().take(most).map(escaped).collect();
    if text.chars().nth(most).is_some() {
        printable.push('…');
    }
    Cow::Owned(printable)
}

/// What every failed request gets, and in a list every input that failed.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct ErrorBody {
    /// What is wrong and what to do.
    pub error: String,
    /// A stable code: `invalid_input`, `too_many_tokens`, `overloaded`, ...
    pub error_type: String,
    /// The field at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Line of the body, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Column in bytes, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// Byte of the body, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub byte: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_says_what_where_and_under_which_code() {
        let failure = Failure::new(Kind::Malformed, "expected `,`").at(Place::Line { line: 2, column: 7 });
        let json = serde_json::to_value(failure.body()).unwrap();
        let expected =
            serde_json::json!({"error": "expected `,`", "error_type": "malformed_body", "line": 2, "column": 7});
        assert_eq!(json, expected);
        let failure = Failure::invalid("parameters.top_k", "must be at least 1");
        assert_eq!(failure.kind.status(), 422);
        let json = serde_json::to_value(failure.body()).unwrap();
        assert_eq!(json["field"], "parameters.top_k");
        assert_eq!(json["error"], "`parameters.top_k` must be at least 1");
    }

    #[test]
    fn what_a_client_sent_is_told_back_on_one_line_and_in_part() {
        let failure =
            Failure::invalid(format!("a\n{}", "x".repeat(5_000_000)), format!("is `{}`", "y".repeat(3_000_000)));
        assert!(failure.message.starts_with("`a\\nxxx") && failure.message.ends_with('…'));
        assert!(failure.message.len() < 1100 && failure.field.unwrap().len() < 300);
        assert_eq!(Failure::new(Kind::NoModel, "é\u{1b}[2J").message, "é\\u{1b}[2J");
    }

    #[test]
    fn an_input_is_named_by_its_position_unless_its_field_is_known() {
        let failure = Failure::new(Kind::TooManyTokens, "513 tokens").in_input("inputs", 3);
        assert_eq!(failure.field.as_deref(), Some("inputs[3]"));
        let named = Failure::invalid("inputs[1].text", "is missing").in_input("inputs", 1);
        assert_eq!(named.field.as_deref(), Some("inputs[1].text"));
    }
}
