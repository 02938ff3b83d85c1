//! A server from its port to its end: listen, load, answer, drain.

mod connection;
mod signals;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;

use crate::http;
use crate::http::app::{App, Phase};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::served::{Found, ServeError};
use crate::telemetry::{Telemetry, TelemetryError};
use connection::Connections;
pub use signals::{hangups, stop_signal};
pub use tls::TlsError;

/// After the drain, for Python workers to end, and for the last traces.
const FAREWELL: Duration = Duration::from_secs(5);

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The port is not to be had.
    #[error("cannot listen on {address}: {cause}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The certificate or key.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The collector of traces.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// A model.
    #[error(transparent)]
    Model(#[from] ServeError),
    /// Two models of one name.
    #[error("two models are called `{0}`; give them names: NAME=MODEL")]
    SameName(String),
}

impl ServerError {
    /// Whether what the user named is at fault, not the machine.
    pub fn is_input(&self) -> bool {
        match self {
            Self::Bind { .. } | Self::Telemetry(_) => false,
            Self::Tls(_) | Self::SameName(_) => true,
            Self::Model(error) => error.is_input(),
        }
    }
}

/// What a running server tells.
pub enum Event<'a> {
    /// It listens here; nothing is loaded yet.
    Listening(&'a str),
    /// All models are loaded and warm; so many seconds after it began.
    Ready(f64),
    /// It was told to stop, and finishes what is in flight.
    Draining,
}

impl Server {
    /// Binds the port.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub async fn bind(options: Options) -> Result<Self, ServerError> {
        let address = SocketAddr::new(options.host, options.port);
        let tls = options.tls.as_ref().map(|tls| tls::acceptor(tls, options.shown_host())).transpose()?;
        let telemetry = options.otlp_endpoint.as_deref().map(Telemetry::to).transpose()?.unwrap_or_default();
        let listener = TcpListener::bind(address).await.map_err(|cause| ServerError::Bind { address, cause })?;
        let address = listener.local_addr().map_err(|cause| ServerError::Bind { address, cause })?;
        let app = Arc::new(App::new(options, Arc::new(Metrics::default()), telemetry));
        Ok(Self { app, listener, address, tls })
    }

    /// The address it listens on, with the port that was chosen.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients find it.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", SocketAddr::new(self.app.options.shown_host(), self.address.port()))
    }

    /// Loads the models and answers requests until `stop` resolves; then finishes what is in flight. A second `stop`
    /// ends at once. A model that is still loading then is not waited for: its thread may outlive this call.
    ///
    /// # Errors
    /// When a model does not load.
    pub async fn run<S: Future>(self, stop: impl Fn() -> S, mut tell: impl FnMut(Event)) -> Result<(), ServerError> {
        let started = Instant::now();
        tell(Event::Listening(&self.url()));
        let Self { app, listener, tls, .. } = self;
        let limits = app.options.limits;
        let (drain, draining) = watch::channel(false);
        let (in_flight, mut finished) = mpsc::channel::<()>(1);
        let connections = Connections {
            router: http::router(app.clone()),
            tls,
            metrics: app.metrics.clone(),
            header_timeout: limits.header_timeout,
            slots: Arc::new(Semaphore::new(limits.connections)),
            draining,
        };
        let accept = tokio::spawn(async move { connections.accept(listener, in_flight).await });
        let result = {
            let stopped = stop();
            tokio::pin!(stopped);
            let loaded = tokio::select! {
                loaded = load_all(&app) => Some(loaded),
                _ = &mut stopped => None,
            };
            match loaded {
                Some(Ok(())) => {
                    app.enter(Phase::Ready);
                    tell(Event::Ready(started.elapsed().as_secs_f64()));
                    stopped.await;
                    Ok(())
                }
                Some(Err(error)) => Err(error),
                None => Ok(()),
            }
        };
        app.enter(Phase::Draining);
        if result.is_ok() {
            tell(Event::Draining);
        }
        // Connections are told to end after the request they are in; none of them may be left to tell.
        let _ = drain.send(true);
        let wound_down = async {
            if tokio::time::timeout(limits.drain, finished.recv()).await.is_err() {
                let seconds = limits.drain.as_secs_f64();
                tracing::warn!(seconds, "requests were still in flight when the drain ended");
            }
            let _ = tokio::time::timeout(FAREWELL, farewell(&app)).await;
        };
        tokio::select! {
            () = wound_down => {}
            _ = stop() => tracing::warn!("told to stop again: requests in flight are given up"),
        }
        accept.abort();
        result
    }

    /// The state behind the routes, for reloads.
    pub fn app(&self) -> Arc<App> {
        self.app.clone()
    }
}

async fn load_all(app: &App) -> Result<(), ServerError> {
    for spec in &app.options.models {
        let reservation = app.registry.reserve(spec).map_err(|_| ServerError::SameName(spec.name.clone()))?;
        let _turn = app.registry.turn().await;
        let found = Found::open(spec, &app.options).await?;
        // Nothing else loads or unloads before the server is ready.
        let _ = reservation.claim(found.bytes(), None);
        let _ = reservation.fill(Arc::new(found.load(&app.options, &app.metrics).await?));
    }
    Ok(())
}

/// Ends the workers, lets go of the models and their files, and sends the last traces.
async fn farewell(app: &Arc<App>) {
    for served in app.registry.all() {
        if let Some(handler) = served.handler() {
            handler.stop().await;
        }
    }
    let app = app.clone();
    let rest = move || {
        app.registry.clear();
        app.telemetry.finish();
    };
    let _ = tokio::task::spawn_blocking(rest).await;
}

/// Loads every model anew; one that does not load stays as it is.
pub async fn reload_all(app: &App) {
    for served in app.registry.all() {
        if let Err(failure) = http::reload(app, &served.name).await {
            tracing::error!(model = served.name, "not reloaded: {failure}");
        }
    }
}
