//! The OpenAPI document: what the handlers' types say, and what they cannot.

use serde_json::{Value, json};
use utoipa::openapi::OpenApi;

use super::observe::OPEN_ROUTES;
use super::openai::{OpenAiError, OpenAiErrorBody};
use crate::failure::ErrorBody;

/// What the document says of the server as a whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Trainyard",
        description = "Encoders over HTTP: SageMaker, Hugging Face, text-embeddings-inference, \
        OpenAI and KServe v2 over one scheduler."
    ),
    components(schemas(ErrorBody, OpenAiError, OpenAiErrorBody))
)]
pub struct Document;

/// The document as it is served; with `keyed`, requests need an API key on all routes but probes.
pub fn finished(document: OpenApi, keyed: bool) -> String {
    let mut document = with_overlapping_forms(json!(document));
    if keyed {
        document["components"]["securitySchemes"] = json!({"api_key": {"type": "http", "scheme": "bearer"}});
        document["security"] = json!([{"api_key": []}]);
        for route in OPEN_ROUTES {
            document["paths"][route]["get"]["security"] = json!([]);
        }
    }
    document.to_string()
}

/// Says `anyOf` instead of `oneOf`: an empty list is a list of labels and a list of embeddings, which `oneOf` forbids.
fn with_overlapping_forms(document: Value) -> Value {
    match document {
        Value::Object(fields) => {
            let renamed = |(key, value): (String, Value)| {
                let key = if key == "oneOf" && value.is_array() { "anyOf".into() } else { key };
                (key, with_overlapping_forms(value))
            };
            fields.into_iter().map(renamed).collect()
        }
        Value::Array(list) => list.into_iter().map(with_overlapping_forms).collect(),
        value => value,
    }
}
