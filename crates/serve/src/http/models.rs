//! The multi-model API: models listed, loaded, unloaded and reloaded over HTTP.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::app::{App, Arrival};
use super::body;
use super::path::InPath;
use crate::failure::{ErrorBody, Failure, Kind};
use crate::memory;
use crate::options::{ModelSpec, MultiModel};
use crate::registry::Reservation;
use crate::served::{Found, ServeError, Served};

/// A model to load.
#[derive(Debug, Deserialize, ToSchema)]
pub struct LoadRequest {
    /// What requests will call it: letters, digits, dots, dashes, underscores, and slashes between them.
    #[schema(min_length = 1, max_length = 256)]
    model_name: String,
    /// A path below the server's model root.
    url: String,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadedModel {
    /// What requests call it.
    model_name: String,
    /// Where it came from.
    model_url: String,
}

impl From<&Served> for LoadedModel {
    fn from(served: &Served) -> Self {
        Self { model_name: served.name.clone(), model_url: served.source.clone() }
    }
}

/// The loaded models.
#[derive(Debug, Serialize, ToSchema)]
pub struct LoadedModels {
    /// In the order of their arrival.
    models: Vec<LoadedModel>,
}

/// Loads a model.
///
/// Only where the server was started with `--multi-model`, and only from below its `--model-root`. Models load one after the
/// other; a model that has begun to load goes on when its client does not wait for it.
#[utoipa::path(post, path = "/models", tag = "SageMaker", request_body = LoadRequest,
    responses(
        (status = 200, description = "Loaded and warm", body = LoadedModel),
        (status = 409, description = "A model of that name is loaded", body = ErrorBody),
        (status = 507, description = "There is no memory for it", body = ErrorBody),
        super::Failures))]
pub async fn load_model(
    State(app): State<Arc<App>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Result<Response, Failure> {
    may_manage(&app, request.headers())?;
    let root = &multi_model(&app)?.root;
    let LoadRequest { model_name, url } = body::request(&app, &arrival, request).await?;
    let spec = ModelSpec::new(model_name, below(root, &url)?).map_err(|error| Failure::invalid("model_name", error))?;
    let loading = async move {
        let reservation = app.registry.reserve(&spec)?;
        load(&app, &spec, reservation).await
    };
    let served = to_the_end(loading).await?;
    Ok(body::respond(&LoadedModel::from(served.as_ref())))
}

/// Lists the loaded models.
#[utoipa::path(get, path = "/models", tag = "SageMaker",
    responses((status = 200, description = "The models", body = LoadedModels), super::Failures))]
pub async fn list_models(State(app): State<Arc<App>>) -> Response {
    body::respond(&LoadedModels { models: app.registry.all().iter().map(|served| served.as_ref().into()).collect() })
}

/// Describes a loaded model.
#[utoipa::path(get, path = "/models/{name}", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "The model", body = LoadedModel), super::Failures))]
pub async fn show_model(State(app): State<Arc<App>>, InPath(name): InPath<String>) -> Result<Response, Failure> {
    Ok(body::respond(&LoadedModel::from(app.registry.get(Some(&name))?.as_ref())))
}

/// Unloads a model; requests that it is answering are finished. One that is still loading is not served.
#[utoipa::path(delete, path = "/models/{name}", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    responses((status = 200, description = "Unloaded", body = LoadedModel), super::Failures))]
pub async fn unload_model(
    State(app): State<Arc<App>>,
    InPath(name): InPath<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    may_manage(&app, &headers)?;
    multi_model(&app)?;
    let ModelSpec { name, source } = app.registry.remove(&name)?;
    tracing::info!(model = name, "model unloaded");
    Ok(body::respond(&LoadedModel { model_name: name, model_url: source }))
}

/// Loads a model anew from where it came from; requests go to the old one until the new one is warm.
///
/// While it lasts, both are in memory; models load one after the other.
#[utoipa::path(post, path = "/models/{name}/reload", tag = "SageMaker",
    params(("name" = String, Path, description = "Name of a model")),
    responses(
        (status = 200, description = "Reloaded", body = LoadedModel),
        (status = 409, description = "It is being loaded already", body = ErrorBody),
        (status = 507, description = "There is no memory for it", body = ErrorBody),
        super::Failures))]
pub async fn reload_model(
    State(app): State<Arc<App>>,
    InPath(name): InPath<String>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    may_manage(&app, &headers)?;
    let served = to_the_end(async move { reload(&app, &name).await }).await?;
    Ok(body::respond(&LoadedModel::from(served.as_ref())))
}

/// Loads a model anew from where it came from; requests go to the old one until the new one is warm.
///
/// # Errors
/// When there is no such model, it is being loaded already, or it does not load; then the old one stays.
pub async fn reload(app: &App, name: &str) -> Result<Arc<Served>, Failure> {
    let (reservation, spec) = app.registry.reserve_again(name)?;
    let served = load(app, &spec, reservation).await?;
    tracing::info!(model = name, "model reloaded");
    Ok(served)
}

/// Loads a model when it is its turn, if there is memory for it.
async fn load(app: &App, spec: &ModelSpec, reservation: Reservation<'_>) -> Result<Arc<Served>, Failure> {
    let _turn = app.registry.turn().await;
    let found = Found::open(spec, &app.options).await.map_err(unloadable)?;
    let limit = app.options.multi_model.as_ref().and_then(|multi| multi.memory);
    reservation.claim(found.bytes(), limit)?;
    let (needed, free) = (found.bytes(), memory::available());
    if limit.is_none() && needed > free {
        let text = format!("the model needs about {needed} bytes and {free} are free; unload another model first");
        return Err(Failure::new(Kind::Memory, text));
    }
    let served = Arc::new(found.load(&app.options, &app.metrics).await.map_err(unloadable)?);
    reservation.fill(served.clone())?;
    Ok(served)
}

/// Runs to its end also when the client goes away, so that what it began is not left half done beside the next.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let lost = |error: tokio::task::JoinError| Failure::new(Kind::Internal, format!("loading was lost: {error}"));
    tokio::spawn(work).await.map_err(lost)?
}

fn unloadable(error: ServeError) -> Failure {
    Failure::new(if error.is_input() { Kind::Unloadable } else { Kind::Internal }, error.to_string())
}

fn multi_model(app: &App) -> Result<&MultiModel, Failure> {
    app.options.multi_model.as_ref().ok_or_else(|| {
        let text = "models are loaded and unloaded over HTTP only where the server was started with --multi-model";
        Failure::new(Kind::Forbidden, text)
    })
}

/// Fails unless a request may load, unload and reload models: where other machines can connect a key must be needed, but for a
/// SageMaker container in its own network; and without a key, no page of another site may ask a browser to do it.
fn may_manage(app: &App, headers: &HeaderMap) -> Result<(), Failure> {
    app.ready()?;
    if !app.options.api_keys.is_empty() {
        return Ok(());
    }
    let trusted = app.options.multi_model.as_ref().is_some_and(|multi| multi.trusted_network);
    if !app.options.is_loopback() && !trusted {
        let text = "loading and unloading models needs an API key (--api-key-file) where other machines can connect";
        return Err(Failure::new(Kind::Forbidden, text));
    }
    if is_foreign(headers) {
        let text = "pages of other sites may not load and unload models";
        return Err(Failure::new(Kind::Forbidden, text).in_field("origin"));
    }
    Ok(())
}

/// Whether a browser sends the request for a page that this server, under a name of this machine, did not send.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let text = |value: &header::HeaderValue| value.to_str().map(str::to_ascii_lowercase).ok();
    let (origin, host) = (text(origin), headers.get(header::HOST).and_then(text));
    let (Some(origin), Some(host)) = (origin, host) else { return true };
    let of_page = origin.split_once("://").map(|(_, authority)| authority);
    of_page != Some(&host) || !is_this_machine(&host)
}

/// A name that only this machine has; others may lead here, but by their owners' will.
fn is_this_machine(host: &str) -> bool {
    let Ok(authority) = host.parse::<axum::http::uri::Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A path that lies below the root, links followed. What lies elsewhere gets the answer of what does not exist.
fn below(root: &Path, url: &str) -> Result<String, Failure> {
    let refused = |problem: String| Failure::invalid("url", problem);
    if url.contains("://") {
        return Err(refused("must be a path on this machine; nothing is loaded from a URL".into()));
    }
    let path = if Path::new(url).is_absolute() { PathBuf::from(url) } else { root.join(url) };
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(refused("must not contain `..`".into()));
    }
    let canonical = root.canonicalize().map_err(|error| {
        Failure::new(Kind::Internal, format!("the model root {} cannot be opened: {error}", root.display()))
    })?;
    let path = path.canonicalize().ok().filter(|path| path.starts_with(&canonical));
    let path = path.ok_or_else(|| refused(format!("names nothing below the model root {}", root.display())))?;
    path.into_os_string().into_string().map_err(|_| refused("is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::super::app::Phase;
    use super::*;
    use crate::metrics::Metrics;
    use crate::options::Options;
    use crate::telemetry::Telemetry;

    #[test]
    fn models_come_from_below_the_root_alone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("m")).unwrap();
        std::fs::create_dir_all(dir.path().join("outside")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("outside"), root.join("link")).unwrap();
        assert!(below(&root, "m").unwrap().ends_with("root/m"));
        assert!(below(&root, root.join("m").to_str().unwrap()).is_ok());
        for url in ["../outside", "s3://bucket/m"] {
            assert_eq!(below(&root, url).unwrap_err().field.as_deref(), Some("url"), "{url}");
        }
        // Nothing tells which files there are elsewhere.
        let outside = dir.path().join("outside").display().to_string();
        let gone = dir.path().join("gone").display().to_string();
        let refused = |url: &str| below(&root, url).unwrap_err();
        for url in ["link", "link/gone", &outside, &gone] {
            assert_eq!(refused(url), refused("gone"), "{url}");
        }
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_page_of_another_site_is_foreign_under_whatever_name_it_finds_the_server() {
        let foreign = |origin: &str, host: &str| is_foreign(&headers(&[("origin", origin), ("host", host)]));
        assert!(!is_foreign(&headers(&[("host", "localhost:8080")])), "no browser");
        assert!(!foreign("http://localhost:8080", "localhost:8080"));
        assert!(!foreign("https://[::1]:8080", "[::1]:8080"));
        assert!(foreign("https://evil.example", "localhost:8080"));
        assert!(foreign("http://localhost:3000", "localhost:8080"));
        assert!(foreign("http://evil.example:8080", "evil.example:8080"), "a name that was made to lead here");
        assert!(foreign("null", "localhost:8080"));
    }

    #[test]
    fn models_are_managed_with_a_key_or_from_this_machine_or_in_a_network_of_the_containers_own() {
        let app = |host: Ipv4Addr, trusted_network: bool| {
            let multi_model = MultiModel { root: PathBuf::from("root"), memory: None, trusted_network };
            let options =
                Options { host: IpAddr::V4(host), multi_model: Some(multi_model), ..Options::new(Vec::new()) };
            let app = App::new(options, Arc::new(Metrics::default()), Telemetry::default());
            app.enter(Phase::Ready);
            app
        };
        let plain = HeaderMap::new();
        assert!(may_manage(&app(Ipv4Addr::LOCALHOST, false), &plain).is_ok());
        assert_eq!(may_manage(&app(Ipv4Addr::UNSPECIFIED, false), &plain).unwrap_err().kind, Kind::Forbidden);
        assert!(may_manage(&app(Ipv4Addr::UNSPECIFIED, true), &plain).is_ok());
        let page = headers(&[("origin", "https://evil.example"), ("host", "127.0.0.1:8080")]);
        assert_eq!(may_manage(&app(Ipv4Addr::LOCALHOST, false), &page).unwrap_err().kind, Kind::Forbidden);
    }
}
