//! Values of flags and environment variables.

use std::ffi::{OsStr, OsString};

use serve::http::answer_type;
use serve::options::Tls;

use crate::exit::Refused;

/// Bytes of a body: all of it is held in memory.
pub const MOST_BODY_BYTES: usize = 4 << 30;

/// A whole number from 1 to `MOST`.
pub fn up_to<const MOST: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=MOST).contains(&number) => Ok(number),
        _ => Err(format!("must be a whole number from 1 to {MOST}")),
    }
}

/// Types that the usual Python handlers write, beside those of the built-in models.
const HANDLER_TYPES: [&str; 2] = ["text/plain", "application/x-npy"];

/// A type that something here can answer in, without its parameters.
pub fn accept(text: &str) -> Result<String, String> {
    let name = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let known = answer_type(&name).or_else(|| HANDLER_TYPES.into_iter().find(|known| *known == name));
    known.map(String::from).ok_or_else(|| {
        let handlers = HANDLER_TYPES.join(" and ");
        format!("there are application/json, application/jsonlines and text/csv, and for Python handlers {handlers}")
    })
}

/// An environment variable that is set to nothing says nothing.
pub fn without_empty_variable(arg: clap::Arg) -> clap::Arg {
    let is_empty = arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if is_empty { arg.env(clap::builder::Resettable::Reset) } else { arg }
}

/// The value of an environment variable, unless it is empty.
pub fn variable(name: impl AsRef<OsStr>) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// A time.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err("must be a number of seconds above 0".into()),
    }
}

/// Where certificate and key come from.
pub fn tls_of(text: &str) -> Result<Tls, Refused> {
    if text == "self-signed" {
        return Ok(Tls::SelfSigned);
    }
    match text.split_once(',') {
        Some((certificate, key)) if !certificate.is_empty() && !key.is_empty() => {
            Ok(Tls::Files { certificate: certificate.into(), key: key.into() })
        }
        _ => Err(Refused(format!("--tls {text}: give CERT.pem,KEY.pem or self-signed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_what_can_be_used() {
        assert_eq!(up_to::<256>("256"), Ok(256));
        for text in ["0", "257", "-1", "18446744073709551616", "", "x"] {
            assert_eq!(up_to::<256>(text).unwrap_err(), "must be a whole number from 1 to 256", "{text}");
        }
    }

    #[test]
    fn answers_are_of_a_known_type_by_default() {
        assert_eq!(accept("application/json; charset=utf-8").unwrap(), "application/json");
        assert_eq!(accept("Application/X-Jsonlines").unwrap(), "application/jsonlines");
        assert_eq!(accept("application/x-npy").unwrap(), "application/x-npy");
        assert!(accept("image/png").unwrap_err().contains("text/csv"));
    }

    #[test]
    fn tls_is_two_files_or_self_signed() {
        assert_eq!(tls_of("self-signed").unwrap(), Tls::SelfSigned);
        assert!(matches!(tls_of("c.pem,k.pem").unwrap(), Tls::Files { .. }));
        assert!(tls_of("c.pem").is_err());
    }
}
