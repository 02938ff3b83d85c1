//! API keys.

use std::path::Path;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::failure::{Failure, Kind};

/// Longest file of keys.
const MAX_FILE: u64 = 1 << 20;
/// Shorter keys are guessed too easily to be accepted.
const SHORTEST: usize = 8;

/// The keys that open a server; none where it is open to all. Only their hashes are kept.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

/// A file of keys cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("API keys in `{path}`: {problem}")]
pub struct KeyFileError {
    path: String,
    problem: String,
}

impl ApiKeys {
    /// Reads a file with one key a line; blank lines and lines that begin with `#` are left out.
    ///
    /// # Errors
    /// When it cannot be read, has no key, or one that is too short.
    pub fn read(path: &Path) -> Result<Self, KeyFileError> {
        let failed = |problem: String| KeyFileError { path: path.display().to_string(), problem };
        let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
        if size > MAX_FILE {
            return Err(failed(format!("{size} bytes are over the limit of {MAX_FILE}")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let key = line.trim();
            if key.is_empty() || key.starts_with('#') {
                continue;
            }
            if key.len() < SHORTEST {
                return Err(failed(format!("line {}: a key has at least {SHORTEST} characters", index + 1)));
            }
            keys.push(hash(key));
        }
        if keys.is_empty() {
            return Err(failed("there is no key in it; put one a line".into()));
        }
        Ok(Self(keys))
    }

    /// Whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Fails unless a request has one of the keys, as `Authorization: Bearer KEY` or `X-Api-Key: KEY`.
    ///
    /// # Errors
    /// [`Kind::Unauthorized`].
    pub fn check(&self, headers: &HeaderMap) -> Result<(), Failure> {
        if self.is_empty() {
            return Ok(());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).and_then(bearer_key);
        let Some(key) = bearer.or_else(|| headers.get("x-api-key")?.to_str().ok()) else {
            let text = "an API key is needed: send `Authorization: Bearer KEY`";
            return Err(Failure::new(Kind::Unauthorized, text));
        };
        let given = hash(key.trim());
        // Hashes of one length, all compared: the time taken tells nothing about the keys.
        let known = self.0.iter().fold(Choice::from(0), |known, key| known | key.ct_eq(&given));
        if known.into() { Ok(()) } else { Err(Failure::new(Kind::Unauthorized, "the API key is not known here")) }
    }
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

fn bearer_key(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key)
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn one_of_the_keys_is_needed_where_there_are_any() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        std::fs::write(&file, "# ours\nfirst-key\n\n second-key \n").unwrap();
        let keys = ApiKeys::read(&file).unwrap();
        assert!(keys.check(&headers("authorization", "Bearer first-key")).is_ok());
        assert!(keys.check(&headers("authorization", "bearer second-key")).is_ok());
        assert!(keys.check(&headers("x-api-key", "second-key")).is_ok());
        for refused in
            [HeaderMap::new(), headers("authorization", "Bearer # ours"), headers("authorization", "first-key")]
        {
            assert_eq!(keys.check(&refused).unwrap_err().kind, Kind::Unauthorized);
        }
        assert!(ApiKeys::default().check(&HeaderMap::new()).is_ok());
        assert!(!format!("{keys:?}").contains("key-"));
    }

    #[test]
    fn files_without_a_good_key_are_refused_by_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        for (text, said) in [("# nothing\n", "no key"), ("long-enough\nshort\n", "line 2")] {
            std::fs::write(&file, text).unwrap();
            let error = ApiKeys::read(&file).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!(ApiKeys::read(&dir.path().join("gone")).is_err());
    }
}
