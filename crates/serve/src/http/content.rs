//! Content types of `/invocations`, in and out.

use axum::http::{HeaderMap, header};

use crate::failure::{Failure, Kind};

/// The types that can be read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// `application/json`
    Json,
    /// `application/jsonlines`
    JsonLines,
    /// `text/csv`
    Csv,
    /// `text/plain`: one text; only read.
    Text,
}

impl Content {
    /// The type's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::JsonLines => "application/jsonlines",
            Self::Csv => "text/csv",
            Self::Text => "text/plain",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "application/json" => Self::Json,
            "application/jsonlines" | "application/x-jsonlines" | "application/jsonl" | "application/x-ndjson" => {
                Self::JsonLines
            }
            "text/csv" => Self::Csv,
            "text/plain" => Self::Text,
            _ => return None,
        })
    }

    /// The type of a request's body; JSON where it does not say.
    ///
    /// # Errors
    /// [`Kind::MediaType`] for another type, or text in another encoding than UTF-8.
    pub fn of_request(headers: &HeaderMap) -> Result<Self, Failure> {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(Self::Json) };
        let value = value.to_str().unwrap_or_default();
        let (name, parameters) = split(value);
        let content = Self::parse(&name).ok_or_else(|| {
            let hint = if name == "application/x-www-form-urlencoded" {
                " (curl -d sends this type unless told -H 'content-type: application/json')"
            } else {
                ""
            };
            unsupported(format!(
                "content-type `{value}` is not supported{hint}; send application/json, application/jsonlines, text/csv \
                 or text/plain"
            ))
        })?;
        for parameter in parameters {
            let Some((key, charset)) = parameter.split_once('=') else { continue };
            let charset = charset.trim().trim_matches('"').to_ascii_lowercase();
            if key.trim().eq_ignore_ascii_case("charset") && !["utf-8", "utf8", "us-ascii"].contains(&charset.as_str())
            {
                return Err(unsupported(format!("charset `{charset}` is not supported; send UTF-8")));
            }
        }
        Ok(content)
    }

    /// The type of the answer: the first acceptable one by quality, else by order; `default` where everything is.
    ///
    /// # Errors
    /// [`Kind::NotAcceptable`] where none can be produced.
    pub fn of_answer(headers: &HeaderMap, default: Option<&str>) -> Result<Self, Failure> {
        let fallback = default.and_then(Self::parse).filter(|&content| content != Self::Text).unwrap_or(Self::Json);
        let accepted: Vec<&str> = headers.get_all(header::ACCEPT).iter().filter_map(|v| v.to_str().ok()).collect();
        if accepted.is_empty() {
            return Ok(fallback);
        }
        let mut ranges: Vec<(f32, String)> = accepted.iter().flat_map(|line| line.split(',')).map(range).collect();
        ranges.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (quality, name) in &ranges {
            if *quality <= 0.0 {
                break;
            }
            match name.as_str() {
                "*/*" => return Ok(fallback),
                "application/*" => return Ok(if fallback == Self::Csv { Self::Json } else { fallback }),
                "text/*" => return Ok(Self::Csv),
                name => match Self::parse(name) {
                    Some(Self::Text) | None => continue,
                    Some(content) => return Ok(content),
                },
            }
        }
        let text = format!(
            "none of `{}` can be produced; accept application/json, application/jsonlines or text/csv",
            accepted.join(", ")
        );
        Err(Failure::new(Kind::NotAcceptable, text).in_field("accept"))
    }
}

/// The single type that an `Accept` likes best; none where it takes anything.
pub fn preferred(accept: &str) -> Option<String> {
    let mut ranges: Vec<(f32, String)> = accept.split(',').map(range).filter(|(quality, _)| *quality > 0.0).collect();
    ranges.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranges.into_iter().map(|(_, name)| name).next().filter(|name| !name.is_empty() && !name.contains('*'))
}

/// The name of a type that answers of built-in models can have, without its parameters; `None` for all others.
pub fn answer_type(name: &str) -> Option<&'static str> {
    Content::parse(&split(name).0).filter(|&content| content != Content::Text).map(Content::name)
}

fn unsupported(text: String) -> Failure {
    Failure::new(Kind::MediaType, text).in_field("content-type")
}

/// The lower-case name and the parameters of a media type.
fn split(value: &str) -> (String, impl Iterator<Item = &str>) {
    let mut parts = value.split(';').map(str::trim);
    (parts.next().unwrap_or_default().to_ascii_lowercase(), parts)
}

/// A media range with its quality, 1 where it has none.
fn range(text: &str) -> (f32, String) {
    let (name, mut parameters) = split(text);
    let quality = parameters.find_map(|p| p.strip_prefix("q=").map(|q| q.trim().parse().unwrap_or(0.0)));
    (quality.unwrap_or(1.0), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn bodies_are_json_unless_they_say_otherwise() {
        let of = |value: &str| Content::of_request(&headers(header::CONTENT_TYPE, value));
        assert_eq!(Content::of_request(&HeaderMap::new()).unwrap(), Content::Json);
        assert_eq!(of("Application/JSON; charset=UTF-8").unwrap(), Content::Json);
        assert_eq!(of("text/csv").unwrap(), Content::Csv);
        assert_eq!(of("text/plain; charset=latin1").unwrap_err().kind, Kind::MediaType);
        assert!(of("application/x-www-form-urlencoded").unwrap_err().message.contains("curl"));
    }

    #[test]
    fn the_answer_is_the_best_that_is_accepted() {
        let of = |value: &str| Content::of_answer(&headers(header::ACCEPT, value), None);
        assert_eq!(Content::of_answer(&HeaderMap::new(), Some("text/csv")).unwrap(), Content::Csv);
        assert_eq!(of("*/*").unwrap(), Content::Json);
        assert_eq!(of("text/csv;q=0.5, application/jsonlines").unwrap(), Content::JsonLines);
        assert_eq!(of("image/png, text/*").unwrap(), Content::Csv);
        assert_eq!(of("image/png").unwrap_err().kind, Kind::NotAcceptable);
        assert_eq!(of("application/json;q=0").unwrap_err().kind, Kind::NotAcceptable);
        assert_eq!(preferred("text/html;q=0.5, application/xml"), Some("application/xml".into()));
        assert_eq!(preferred("*/*"), None);
    }
}
