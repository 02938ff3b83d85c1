//! Where requests go, and the form of their bodies.

use std::path::PathBuf;

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::Scheme;
use serde_json::json;

use super::LoadError;

const DEFAULT_PATH: &str = "/invocations";

/// The form of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// `{"inputs": "…"}`, or a list: SageMaker's Hugging Face toolkit, text-embeddings-inference. For several texts to
    /// `/predict` each is a list of its own, for that protocol takes a plain list for a text and its pair.
    Inputs,
    /// `{"input": "…", "model": "…"}`: OpenAI's embeddings.
    OpenAi,
    /// KServe v2 with one BYTES tensor named `text`.
    Kserve,
}

impl Protocol {
    /// What the path of a URL stands for.
    fn of_path(path: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        match path {
            "/invocations" | "/predict" | "/embed" => Some(Self::Inputs),
            "/v1/embeddings" => Some(Self::OpenAi),
            _ if path.starts_with("/v2/models/") && path.ends_with("/infer") => Some(Self::Kserve),
            _ if path.starts_with("/models/") && path.ends_with("/invoke") => Some(Self::Inputs),
            _ => None,
        }
    }
}

/// Whose certificate to trust over https.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The certificates of the system, or of `SSL_CERT_FILE`.
    System,
    /// The certificates of a PEM file.
    File(PathBuf),
    /// Any, as for a self-signed one: the connection is encrypted, and the server is not authenticated.
    Any,
}

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Target {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) authority: HeaderValue,
    pub(super) path: Uri,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) trust: Trust,
    protocol: Protocol,
    model: String,
}

impl Target {
    /// Reads a URL such as `http://127.0.0.1:8080`; the path is `/invocations` when it has none. The body's form follows
    /// from the path unless `protocol` says it. `model` is named in OpenAI bodies.
    pub fn parse(url: &str, protocol: Option<Protocol>, model: &str, trust: Trust) -> Result<Self, LoadError> {
        let wrong = |problem: String| LoadError::Url { url: url.into(), problem };
        let uri: Uri = url.parse().map_err(|error| wrong(format!("not a URL ({error})")))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("a URL starts with http:// or https://".into())),
        };
        let (Some(authority), Some(host)) = (uri.authority(), uri.host()) else {
            return Err(wrong("the URL names no host".into()));
        };
        if authority.as_str().contains('@') {
            return Err(wrong("user names in URLs are not supported; give an API key instead".into()));
        }
        let path = uri.path_and_query().map_or("", |path| path.as_str());
        let path = if matches!(path, "" | "/") { DEFAULT_PATH } else { path };
        let path: Uri = path.parse().map_err(|error| wrong(format!("the path cannot be sent ({error})")))?;
        let protocol = protocol.or_else(|| Protocol::of_path(path.path())).ok_or_else(|| {
            wrong(format!(
                "no known protocol has the path {}; say which one it speaks: inputs, openai or kserve",
                path.path()
            ))
        })?;
        let authority = HeaderValue::from_str(authority.as_str()).map_err(|error| wrong(error.to_string()))?;
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').into(),
            port: uri.port_u16().unwrap_or(if tls { 443 } else { 80 }),
            tls,
            authority,
            path,
            authorization: None,
            trust,
            protocol,
            model: model.into(),
        })
    }

    /// Sends an API key with every request, as `Authorization: Bearer`.
    pub fn with_api_key(mut self, key: &str) -> Result<Self, LoadError> {
        let mut value = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| LoadError::ApiKey)?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// The URL that requests go to.
    pub fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", String::from_utf8_lossy(self.authority.as_bytes()), self.path)
    }

    /// The JSON body for these texts; a single one is sent bare where the protocol allows it.
    pub(super) fn body(&self, texts: &[&str]) -> Vec<u8> {
        let inputs = if let [text] = texts { json!(text) } else { json!(texts) };
        let body = match self.protocol {
            Protocol::Inputs if texts.len() > 1 && self.path.path().trim_end_matches('/') == "/predict" => {
                json!({"inputs": texts.iter().map(|text| [text]).collect::<Vec<_>>()})
            }
            Protocol::Inputs => json!({"inputs": inputs}),
            Protocol::OpenAi => json!({"input": inputs, "model": self.model}),
            Protocol::Kserve => json!({"inputs": [
                {"name": "text", "shape": [texts.len()], "datatype": "BYTES", "data": texts}
            ]}),
        };
        body.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<Target, LoadError> {
        Target::parse(url, None, "m", Trust::System)
    }

    #[track_caller]
    fn sends(url: &str, texts: &[&str], path: &str, body: &str) {
        let target = target(url).unwrap();
        assert_eq!((target.path.to_string().as_str(), target.body(texts)), (path, body.as_bytes().to_vec()));
    }

    #[test]
    fn the_path_decides_the_form_of_the_body() {
        sends("http://h:1", &["a"], "/invocations", r#"{"inputs":"a"}"#);
        sends("http://h:1/", &["a", "b"], "/invocations", r#"{"inputs":["a","b"]}"#);
        sends("http://h/embed?x=1", &["a"], "/embed?x=1", r#"{"inputs":"a"}"#);
        sends("http://h/embed", &["a", "b"], "/embed", r#"{"inputs":["a","b"]}"#);
        sends("http://h/predict", &["a"], "/predict", r#"{"inputs":"a"}"#);
        sends("http://h/predict", &["a", "b"], "/predict", r#"{"inputs":[["a"],["b"]]}"#);
        sends("http://h/models/x/invoke", &["a"], "/models/x/invoke", r#"{"inputs":"a"}"#);
        sends("http://h/v1/embeddings", &["a"], "/v1/embeddings", r#"{"input":"a","model":"m"}"#);
        let kserve = r#"{"inputs":[{"data":["a"],"datatype":"BYTES","name":"text","shape":[1]}]}"#;
        sends("http://h/v2/models/x/infer", &["a"], "/v2/models/x/infer", kserve);
    }

    #[test]
    fn hosts_and_ports() {
        let address = |url| target(url).map(|target| (target.host, target.port, target.tls)).unwrap();
        assert_eq!(address("https://example.org"), ("example.org".into(), 443, true));
        assert_eq!(address("http://[::1]:8080"), ("::1".into(), 8080, false));
    }

    #[test]
    fn a_wrong_url_is_named_with_what_to_do() {
        for (url, part) in [
            ("localhost:8080", "starts with http://"),
            ("/invocations", "starts with http://"),
            ("ftp://h", "starts with http://"),
            ("http://u:p@h", "API key"),
            ("http://h/other", "inputs, openai or kserve"),
            ("http://h h", "not a URL"),
        ] {
            let message = target(url).unwrap_err().to_string();
            assert!(message.starts_with(url) && message.contains(part), "{message}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let target = target("http://h").unwrap().with_api_key("hunter2").unwrap();
        assert!(!format!("{target:?}").contains("hunter2"));
        assert!(matches!(target.with_api_key("a\nb"), Err(LoadError::ApiKey)));
    }
}
