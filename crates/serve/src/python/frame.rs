//! Frames between the server and a worker: header length (u32) and body length (u64), little-endian, a JSON header, the
//! body's bytes.

use std::io;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Bytes that a header may have in either direction.
pub(super) const HEADER_LIMIT: u64 = 1 << 20;
/// Bytes reserved at a time, so that a length alone reserves no memory.
const PIECE: usize = 1 << 20;

/// What a worker is asked.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(super) enum Ask<'a> {
    Import { script: &'a str, model_dir: &'a str, response_limit: Option<u64>, version: &'a str },
    Load,
    Invoke { content_type: &'a str, accept: &'a str, headers: &'a [(String, String)] },
    Input { content_type: &'a str, headers: &'a [(String, String)] },
    Output { accept: &'a str, headers: &'a [(String, String)] },
}

impl Ask<'_> {
    /// For messages: what a worker does while it answers this.
    pub(super) fn stage(&self) -> &'static str {
        match self {
            Self::Import { .. } => "import",
            Self::Load => "model_fn",
            Self::Invoke { .. } => "a request",
            Self::Input { .. } => "input_fn",
            Self::Output { .. } => "output_fn",
        }
    }
}

/// The header of a worker's answer; which fields are there depends on what was asked.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Answer {
    pub ok: bool,
    #[serde(default)]
    pub functions: Vec<Found>,
    #[serde(default)]
    pub others: Vec<String>,
    #[serde(default)]
    pub callable: bool,
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub content_type: String,
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    #[serde(default)]
    pub too_large: Option<u64>,
    #[serde(default)]
    pub stage: String,
    #[serde(default)]
    pub exception: String,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub location: Option<String>,
    #[serde(default)]
    pub memory: bool,
    #[serde(default)]
    pub refused: bool,
    #[serde(default)]
    pub traceback: String,
}

/// A function of the contract, found in the script.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Found {
    pub name: String,
    pub context: bool,
    pub problem: Option<String>,
}

pub(super) async fn write(stream: &mut (impl AsyncWrite + Unpin), header: &[u8], body: &[u8]) -> io::Result<()> {
    let header_size = u32::try_from(header.len()).map_err(io::Error::other)?;
    let mut start = Vec::with_capacity(12 + header.len());
    start.extend_from_slice(&header_size.to_le_bytes());
    start.extend_from_slice(&(body.len() as u64).to_le_bytes());
    start.extend_from_slice(header);
    stream.write_all(&start).await?;
    stream.write_all(body).await?;
    stream.flush().await
}

/// Reads one frame whose body has at most `limit` bytes.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin), limit: Option<u64>) -> io::Result<(Answer, Bytes)> {
    let header_size = u64::from(stream.read_u32_le().await?);
    let body_size = stream.read_u64_le().await?;
    if header_size > HEADER_LIMIT || limit.is_some_and(|limit| body_size > limit) {
        let lengths = format!("a frame of {header_size} header bytes and {body_size} body bytes is over the limit");
        return Err(io::Error::new(io::ErrorKind::InvalidData, lengths));
    }
    let header = exactly(stream, header_size).await?;
    let answer = serde_json::from_slice(&header).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
    Ok((answer, exactly(stream, body_size).await?))
}

async fn exactly(stream: &mut (impl AsyncRead + Unpin), size: u64) -> io::Result<Bytes> {
    let mut buffer = BytesMut::new();
    let mut limited = stream.take(size);
    while limited.limit() > 0 {
        buffer.reserve(PIECE.min(limited.limit() as usize));
        if limited.read_buf(&mut buffer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(buffer.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(header: &[u8], body_size: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u32).to_le_bytes().to_vec();
        bytes.extend(body_size.to_le_bytes());
        bytes.extend(header);
        bytes.extend(body);
        bytes
    }

    #[tokio::test]
    async fn a_written_frame_is_read_again() {
        let mut bytes = Vec::new();
        write(&mut bytes, br#"{"ok":true,"status":201}"#, b"body").await.unwrap();
        let (answer, body) = read(&mut bytes.as_slice(), Some(4)).await.unwrap();
        assert!(answer.ok);
        assert_eq!((answer.status, &body[..]), (201, &b"body"[..]));
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_not_read() {
        let error = read(&mut framed(b"{}", 5, b"12345").as_slice(), Some(4)).await.unwrap_err();
        assert!(error.to_string().contains("5 body bytes is over the limit"), "{error}");
    }

    #[tokio::test]
    async fn a_length_alone_reserves_no_memory() {
        let error = read(&mut framed(br#"{"ok":true}"#, u64::MAX, b"few").as_slice(), None).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn a_header_that_is_no_answer_is_an_error() {
        let error = read(&mut framed(b"[1]", 0, b"").as_slice(), None).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
