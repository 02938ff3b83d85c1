//! Names in the path of a request.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::response::Response;
use serde::de::DeserializeOwned;

use super::openai::failure_at;
use crate::failure::{Failure, Kind};

/// What a route has in braces; a path that is not UTF-8 fails in the form of its protocol.
pub struct InPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(names)) => Ok(Self(names)),
            Err(error) => Err(failure_at(parts.uri.path(), Failure::new(Kind::NotUtf8, error.body_text()))),
        }
    }
}
