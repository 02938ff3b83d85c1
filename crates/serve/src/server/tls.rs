//! Certificates.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::options::Tls;

/// Why connections cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file.
    #[error("`{path}`: {problem}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    SelfSigned(#[from] rcgen::Error),
    /// Certificate and key do not go together.
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// What accepts encrypted connections.
pub fn acceptor(tls: &Tls, host: IpAddr) -> Result<TlsAcceptor, TlsError> {
    let (chain, key) = match tls {
        Tls::Files { certificate, key } => (certificates(certificate)?, private_key(key)?),
        Tls::SelfSigned => self_signed(host)?,
    };
    let config =
        ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn failed(path: &Path, problem: impl std::fmt::Display) -> TlsError {
    TlsError::File { path: path.display().to_string(), problem: problem.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain = CertificateDer::pem_file_iter(path).map_err(|error| failed(path, error))?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(|error| failed(path, error))?;
    if chain.is_empty() {
        return Err(failed(path, "there is no certificate in it; PEM is expected"));
    }
    Ok(chain)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| failed(path, format!("no private key can be read: {error}")))
}

fn self_signed(host: IpAddr) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let mut names = vec!["localhost".to_string(), "127.0.0.1".into(), "::1".into()];
    let host = host.to_string();
    if !names.contains(&host) {
        names.push(host);
    }
    let made = rcgen::generate_simple_self_signed(names)?;
    let certificate = made.cert.der().clone();
    let fingerprint: Vec<String> = Sha256::digest(&certificate).iter().map(|byte| format!("{byte:02X}")).collect();
    tracing::info!(sha256 = fingerprint.join(":"), "self-signed certificate; clients must be told to trust it");
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok((vec![certificate], key.into()))
}
