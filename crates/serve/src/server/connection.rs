//! Connections: accepted within a limit, encrypted where asked, ended when their client is too slow or the server drains.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;

use crate::metrics::Metrics;

/// How long to wait when the system has no more file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// What all connections share.
#[derive(Clone)]
pub struct Connections {
    pub router: Router,
    pub tls: Option<TlsAcceptor>,
    pub metrics: Arc<Metrics>,
    pub header_timeout: Duration,
    pub slots: Arc<Semaphore>,
    /// Becomes true when connections should end.
    pub draining: watch::Receiver<bool>,
}

/// Counts an open connection, and holds its slot.
struct Open {
    metrics: Arc<Metrics>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.metrics.connections.dec();
    }
}

impl Connections {
    /// Accepts for ever. A connection that begins before the drain holds a clone of `in_flight`; later ones are probes.
    pub async fn accept(self, listener: TcpListener, in_flight: mpsc::Sender<()>) {
        let mut in_flight = Some(in_flight);
        let mut draining = self.draining.clone();
        loop {
            let accepted = tokio::select! {
                accepted = self.next(&listener) => accepted,
                () = until(&mut draining), if in_flight.is_some() => {
                    in_flight = None;
                    continue;
                }
            };
            if let Some((stream, open)) = accepted {
                let (connections, alive) = (self.clone(), in_flight.clone());
                tokio::spawn(async move {
                    connections.serve(stream).await;
                    drop((open, alive));
                });
            }
        }
    }

    /// The next connection, once there is a slot for it.
    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, Open)> {
        let slot = self.slots.clone().acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, _)) => {
                self.metrics.connections.inc();
                Some((stream, Open { metrics: self.metrics.clone(), _slot: slot }))
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                None
            }
        }
    }

    async fn serve(self, stream: TcpStream) {
        // Answers are small and whole; waiting to fill a packet only delays them. Not every socket can be told.
        let _ = stream.set_nodelay(true);
        match self.tls.clone() {
            None => self.speak(stream).await,
            Some(tls) => match tokio::time::timeout(self.header_timeout, tls.accept(stream)).await {
                Ok(Ok(stream)) => self.speak(stream).await,
                Ok(Err(error)) => tracing::debug!(%error, "no TLS handshake"),
                Err(_) => tracing::debug!("no TLS handshake in time"),
            },
        }
    }

    async fn speak(mut self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        // A client that does not read its answer holds a slot no longer than one that does not send its request.
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(self.header_timeout));
        let stream = Box::pin(stream);
        let service = TowerToHyperService::new(self.router);
        // Who comes while the server drains asks whether it is ready, and gets that one answer.
        let is_late = *self.draining.borrow();
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.header_timeout).keep_alive(!is_late);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = until(&mut self.draining), if !is_late => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// Resolves when connections should end; the server that tells it may be gone, which means the same.
async fn until(draining: &mut watch::Receiver<bool>) {
    let _ = draining.wait_for(|draining| *draining).await;
}
