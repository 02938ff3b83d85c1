//! What the system tells a server.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at SIGTERM or Ctrl-C. Where signals cannot be had it never resolves.
pub async fn stop_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Calls `reload` at every SIGHUP.
pub async fn hangups<F: Future<Output = ()>>(reload: impl Fn() -> F) {
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        reload().await;
    }
}
