//! HTTP/1.1 with kept-alive connections.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, Version};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, TryAcquireError};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::report::FailureKind;
use super::target::{Target, Trust};
use super::{LoadError, Plan};

/// Most bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Where systems keep the certificates that they trust.
const SYSTEM_CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The answer to a request.
pub struct Answered {
    pub status: u16,
    /// The body, unless the status is 2xx.
    pub refusal: Option<Bytes>,
}

type Sender = SendRequest<Full<Bytes>>;

/// Sends requests to one target, over as many connections as are needed at once.
pub struct Client {
    target: Target,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    permits: Semaphore,
    idle: Mutex<Vec<Sender>>,
    opened: AtomicU64,
    waited: AtomicU64,
}

impl Client {
    pub fn new(plan: &Plan) -> Result<Self, LoadError> {
        let target = plan.target.clone();
        let tls = if target.tls {
            let config = match &target.trust {
                Trust::Any => trusting_any()?,
                Trust::File(path) => trusting(path)?,
                Trust::System => trusting(&system_certificates()?)?,
            };
            let name = ServerName::try_from(target.host.clone())
                .map_err(|error| LoadError::Url { url: target.url(), problem: error.to_string() })?;
            Some((TlsConnector::from(Arc::new(config)), name))
        } else {
            None
        };
        let permits = Semaphore::new(plan.max_connections);
        let (opened, waited) = Default::default();
        Ok(Self { target, tls, permits, idle: Mutex::default(), opened, waited })
    }

    /// Connections opened so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Requests that had to wait because all connections were taken.
    pub fn waited(&self) -> u64 {
        self.waited.load(Ordering::Relaxed)
    }

    /// Sends one request and reads its whole answer.
    pub async fn send(&self, body: Vec<u8>) -> Result<Answered, FailureKind> {
        let _permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => {
                self.waited.fetch_add(1, Ordering::Relaxed);
                self.permits.acquire().await.map_err(|_| FailureKind::Closed)?
            }
        };
        let (response, sender) = self.answer(self.request(body)).await?;
        let status = response.status();
        if response.body().size_hint().lower() > MAX_ANSWER_BYTES as u64 {
            return Err(FailureKind::TooLarge);
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES);
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => return Err(FailureKind::TooLarge),
            Err(error) => return Err(error.downcast_ref::<hyper::Error>().map_or(FailureKind::Closed, kind_of)),
        };
        self.keep(sender);
        let refusal = (!status.is_success()).then_some(body);
        Ok(Answered { status: status.as_u16(), refusal })
    }

    fn request(&self, body: Vec<u8>) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_11;
        *request.uri_mut() = self.target.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.target.authority.clone());
        headers.insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
        if let Some(authorization) = &self.target.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        request
    }

    /// The head of the answer, over an idle connection or a new one. An idle one that the server has closed meanwhile
    /// hands the request back unsent, and the next is tried.
    async fn answer(&self, mut request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Sender), FailureKind> {
        while let Some(mut sender) = self.take_idle() {
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(kind_of(error.error())),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await.map_err(|error| kind_of(&error))?;
        Ok((response, sender))
    }

    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find(|sender| !sender.is_closed())
    }

    fn keep(&self, sender: Sender) {
        if !sender.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        }
    }

    async fn connect(&self) -> Result<Sender, FailureKind> {
        let address = (self.target.host.as_str(), self.target.port);
        let stream = TcpStream::connect(address).await.map_err(|_| FailureKind::Connect)?;
        stream.set_nodelay(true).map_err(|_| FailureKind::Connect)?;
        self.opened.fetch_add(1, Ordering::Relaxed);
        match &self.tls {
            None => handshake(stream).await,
            Some((connector, name)) => {
                handshake(connector.connect(name.clone(), stream).await.map_err(|_| FailureKind::Tls)?).await
            }
        }
    }
}

async fn handshake(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Sender, FailureKind> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|_| FailureKind::Connect)?;
    // What goes wrong on the connection is told to the request that uses it.
    tokio::spawn(connection);
    sender.ready().await.map_err(|error| kind_of(&error))?;
    Ok(sender)
}

fn kind_of(error: &hyper::Error) -> FailureKind {
    if error.is_parse() { FailureKind::Malformed } else { FailureKind::Closed }
}

fn system_certificates() -> Result<PathBuf, LoadError> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = || SYSTEM_CERTIFICATES.iter().map(PathBuf::from).find(|path| path.exists());
    named.or_else(usual).ok_or_else(|| LoadError::Certificates("this system has no certificates".into()))
}

fn builder() -> Result<tokio_rustls::rustls::ConfigBuilder<ClientConfig, tokio_rustls::rustls::WantsVerifier>, LoadError>
{
    ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| LoadError::Certificates(error.to_string()))
}

fn trusting(path: &Path) -> Result<ClientConfig, LoadError> {
    let bad = |problem: String| LoadError::Certificates(format!("{}: {problem}", path.display()));
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))?;
    let certificates: Result<Vec<_>, _> = certificates.collect();
    roots.add_parsable_certificates(certificates.map_err(|error| bad(error.to_string()))?);
    if roots.is_empty() {
        return Err(bad("no certificate in it".into()));
    }
    Ok(builder()?.with_root_certificates(roots).with_no_client_auth())
}

fn trusting_any() -> Result<ClientConfig, LoadError> {
    let verifier = Arc::new(any::AnyCertificate(crypto::ring::default_provider()));
    Ok(builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// For servers with self-signed certificates.
mod any {
    use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use tokio_rustls::rustls::crypto::{self, CryptoProvider};
    use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use tokio_rustls::rustls::{DigitallySignedStruct, Error, SignatureScheme};

    /// Accepts every certificate; the handshake must still be signed with its key.
    #[derive(Debug)]
    pub struct AnyCertificate(pub CryptoProvider);

    impl ServerCertVerifier for AnyCertificate {
        fn verify_server_cert(
            &self,
            _certificate: &CertificateDer<'_>,
            _intermediates: &[CertificateDer<'_>],
            _name: &ServerName<'_>,
            _ocsp: &[u8],
            _now: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            crypto::verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            crypto::verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}
