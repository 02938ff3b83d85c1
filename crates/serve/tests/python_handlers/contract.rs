//! Which functions are called with what, and what is said about those that are not.

use serve::python::HandlerError;

use super::*;

#[tokio::test]
async fn the_four_functions_are_called_in_turn() {
    let model = Model::new(
        "
import json, os
def model_fn(model_dir): return {'dir': os.path.basename(model_dir), 'calls': ['model']}
def input_fn(body, content_type): return json.loads(body), content_type
def predict_fn(data, model): return {'data': data[0], 'type': data[1], 'model': model['dir']}
def output_fn(prediction, accept): return json.dumps([prediction, accept])
",
    );
    let handler = model.start().await;
    let response = handler.invoke(json(r#"{"x":1}"#)).await.unwrap();
    assert_eq!(
        text(&response),
        r#"[{"data": {"x": 1}, "type": "application/json", "model": "model"}, "application/json"]"#
    );
    assert_eq!((response.content_type.as_str(), response.status), ("application/json", 200));
    let shown = handler.functions().to_string();
    let expected = "inference.py: model_fn(model_dir), input_fn(body, content_type), predict_fn(data, model), \
                    output_fn(prediction, accept)";
    assert!(shown.ends_with(expected), "{shown}");
    assert!(handler.functions().predicts());
}

#[tokio::test]
async fn each_function_may_be_left_out() {
    let parts = [
        "def input_fn(body, content_type): return [body]\n",
        "def predict_fn(data, model): return model(data)\n",
        "def output_fn(prediction, accept): return str(prediction) + '!'\n",
    ];
    let expected = ["{\"got\": \"1\"}", "{'got': '1'}!", "{\"got\": [\"\\\"1\\\"\"]}", "{'got': ['\"1\"']}!"];
    for (wanted, answer) in [(0b010, expected[0]), (0b110, expected[1]), (0b001, expected[2]), (0b101, expected[3])] {
        let mut script = "def model_fn(model_dir): return lambda data: {'got': data}\n".to_owned();
        for (place, part) in parts.iter().enumerate() {
            if wanted & (1 << place) != 0 {
                script += part;
            }
        }
        let model = Model::new(&script);
        let handler = model.start().await;
        assert_eq!(ask(&handler, "\"1\"").await.unwrap(), answer, "{wanted:03b}");
    }
}

#[tokio::test]
async fn a_callable_model_needs_no_predict_fn_and_gets_parameters() {
    let model = Model::new(
        "
def model_fn(model_dir):
    return lambda inputs, top_k=1: [inputs, top_k]
",
    );
    let handler = model.start().await;
    assert_eq!(ask(&handler, r#"{"inputs":"a","parameters":{"top_k":3}}"#).await.unwrap(), r#"["a", 3]"#);
    assert_eq!(ask(&handler, r#"{"inputs":"a"}"#).await.unwrap(), r#"["a", 1]"#);
    assert_eq!(ask(&handler, "[5]").await.unwrap(), "[[5], 1]");
}

#[tokio::test]
async fn transform_fn_does_everything_and_sets_type_and_status() {
    let model = Model::new(
        "
def model_fn(model_dir): return 'm'
def transform_fn(model, body, content_type, accept, context):
    context.set_response_status(202)
    return f'{model} {body!r} {content_type} {accept} {context.get_request_header(0, \"X-Id\")}', 'text/custom'
",
    );
    let handler = model.start().await;
    let mut asked = request("application/octet-stream", b"\xff\x00");
    asked.headers = vec![("x-ID".into(), "7".into())];
    asked.accept = "*/*".into();
    let response = handler.invoke(asked).await.unwrap();
    assert_eq!(text(&response), r"m b'\xff\x00' application/octet-stream application/json 7");
    assert_eq!((response.content_type.as_str(), response.status), ("text/custom", 202));
    assert!(handler.functions().to_string().ends_with("transform_fn(model, body, content_type, accept, context)"));
}

#[tokio::test]
async fn context_is_passed_where_the_signature_takes_it() {
    let model = Model::new(
        "
def model_fn(model_dir, context): return context.system_properties['gpu_id'] is None
def input_fn(body, content_type, *, context): return context.request_headers['a-header']
def predict_fn(data, model, extra): return [data, model, extra.request_headers.get('A-Header')]
def output_fn(prediction, accept, indent=None): return repr((prediction, indent))
",
    );
    let handler = model.start().await;
    let mut asked = json("1");
    asked.headers = vec![("A-Header".into(), "v".into())];
    assert_eq!(text(&handler.invoke(asked).await.unwrap()), "(['v', True, 'v'], None)");
    let takes: Vec<bool> = handler.functions().active().iter().map(|function| function.context).collect();
    assert_eq!(takes, [true, true, true, false]);
}

#[tokio::test]
async fn context_carries_headers_and_status_back() {
    let model = Model::new(
        "
def model_fn(model_dir, context):
    about = context.system_properties
    assert about['model_dir'] == model_dir and about['batch_size'] == 1 and context.manifest == {}
    return [about['server_name'], about['server_version']]
def predict_fn(data, model, context):
    context.set_response_header(0, 'X-Model', 'old')
    context.set_response_header(0, 'x-model', 'v' + str(2))
    context.set_response_header(0, 'Content-Type', 'text/own')
    context.set_all_response_status(201, 'made')
    for name, value in data: context.set_response_header(0, name, value)
    return [model, context.get_response_headers(0)]
",
    );
    let handler = model.start().await;
    let response = handler.invoke(json(r#"[["Set-Cookie", "a=b; c"]]"#)).await.unwrap();
    let version = env!("CARGO_PKG_VERSION");
    let headers = r#"{"Content-Type": "text/own", "x-model": "v2", "Set-Cookie": "a=b; c"}"#;
    assert_eq!(text(&response), format!(r#"[["trainyard", "{version}"], {headers}]"#));
    assert_eq!((response.content_type.as_str(), response.status), ("text/own", 201));
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(response.headers, [own("x-model", "v2"), own("Set-Cookie", "a=b; c")]);
    let many = (0..70).map(|number| serde_json::json!([format!("x-{number}"), "v"])).collect::<Vec<_>>();
    for (headers, reason) in [
        (serde_json::json!([["Content-Length", "1"]]), "Content-Length is set by the server"),
        (serde_json::json!([["transfer-encoding", "chunked"]]), "transfer-encoding is set by the server"),
        (serde_json::json!([["a b", "1"]]), "'a b': '1' is not a header of ASCII in one line"),
        (serde_json::json!([["x", "1\r\ny: 2"]]), "is not a header of ASCII in one line"),
        (serde_json::json!([["x", "v".repeat(10_000)]]), "x has more than 8192 characters"),
        (many.into(), "a response has at most 64 headers of a script"),
    ] {
        let error = ask(&handler, &headers.to_string()).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
    let response = handler.invoke(json("[]")).await.unwrap();
    assert_eq!(response.headers, [own("x-model", "v2")], "nothing stays from another request");
}

#[tokio::test]
async fn signatures_that_cannot_be_called_are_errors_at_load() {
    for (function, reason) in [
        (
            "def input_fn(body): return body",
            "input_fn takes 1 arguments; the server would call it as input_fn(body, content_type) or input_fn(body, content_type, context)",
        ),
        ("def input_fn(a, b, c, d): return a", "input_fn takes 4 arguments"),
        ("def input_fn(body, content_type, *, limit): return body", "input_fn needs the keyword argument `limit`"),
        ("async def input_fn(body, content_type): return body", "input_fn is `async def`"),
    ] {
        let model = Model::new(&format!("def model_fn(model_dir): return print\n{function}\n"));
        let error = model.start_error().await;
        assert!(matches!(error, HandlerError::Contract { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn wrong_names_are_reported_with_the_nearest_right_one() {
    let model = Model::new("def load_fn(d): return 1\ndef predict_fn(data, model): return 1\n");
    let error = model.start_error().await.to_string();
    assert!(error.contains("inference.py: model_fn(model_dir) is missing; found `predict_fn`, `load_fn`"), "{error}");
    assert!(error.contains("`load_fn` is not called; did you mean `model_fn`?"), "{error}");

    let model = Model::new("def model_fn(d): return 1\ndef predict(data, model): return 1\n");
    let error = model.start_error().await.to_string();
    assert!(error.contains("what model_fn returned (int) cannot be called"), "{error}");
    assert!(error.contains("`predict` is not called; did you mean `predict_fn`?"), "{error}");

    let model = Model::new("def model_fn(d): return print\ndef output_func(p, accept): return ''\n");
    let handler = model.start().await;
    assert_eq!(handler.functions().warnings(), ["`output_func` is not called; did you mean `output_fn`?"]);
}

#[tokio::test]
async fn transform_fn_beside_predict_fn_is_an_error_at_load() {
    let model = Model::new(
        "
def model_fn(model_dir): return 1
def predict_fn(data, model): return 1
def transform_fn(model, body, content_type, accept): return ''
",
    );
    let error = model.start_error().await.to_string();
    assert!(error.contains("transform_fn does the work of predict_fn too"), "{error}");
}

#[tokio::test]
async fn warm_up_functions_run_around_model_fn() {
    let model = Model::new(
        "
steps = []
def pre_model_fn(model_dir): steps.append('before')
def model_fn(model_dir): steps.append('load'); return steps
def model_warmup_fn(model_dir, model): model.append('warm')
def predict_fn(data, model): return model
",
    );
    assert_eq!(ask(&model.start().await, "1").await.unwrap(), r#"["before", "load", "warm"]"#);
}

#[tokio::test]
async fn a_script_that_only_reads_and_writes_leaves_predicting_to_the_engine() {
    let model = Model::new(
        "
def input_fn(body, content_type): return {'inputs': body.split('|')}
def output_fn(prediction, accept): return ';'.join(p['label'] for p in prediction), 'text/labels'
",
    );
    let handler = model.start().await;
    assert!(!handler.functions().predicts());
    let value = handler.input(request("text/plain", "a|b")).await.unwrap();
    assert_eq!(value, serde_json::json!({"inputs": ["a", "b"]}));
    let prediction = serde_json::json!([{"label": "x"}, {"label": "y"}]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let response = handler.output(&prediction, "*/*".into(), Vec::new(), deadline).await.unwrap();
    assert_eq!((text(&response), response.content_type.as_str()), ("x;y", "text/labels"));
    let error = handler.invoke(json("1")).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (500, "handler_predicts_nothing"));
}

#[tokio::test]
async fn modules_beside_the_script_and_dataclasses_work() {
    let model = Model::new(
        "
from helper import Point
def model_fn(model_dir): return Point(1, 2)
def predict_fn(data, model): return model.x + model.y
",
    );
    model.write("helper.py", "from dataclasses import dataclass\n@dataclass\nclass Point:\n    x: int\n    y: int\n");
    assert_eq!(ask(&model.start().await, "1").await.unwrap(), "3");
    assert!(!model.code().join("__pycache__").exists(), "nothing is written into the model");
}

#[tokio::test]
async fn another_script_may_be_named() {
    let model = Model::new("");
    model.write("serve_me.py", "def model_fn(d): return lambda x: 'other'\n");
    for name in ["serve_me.py", "code/serve_me.py"] {
        let mut options = model.options();
        options.code = name.into();
        assert_eq!(ask(&Handler::start(options).await.unwrap(), "1").await.unwrap(), "\"other\"");
    }
    let mut options = model.options();
    options.code = "missing.py".into();
    let error = Handler::start(options).await.err().unwrap();
    assert!(error.to_string().contains("code/missing.py: No such file"), "{error}");
}
