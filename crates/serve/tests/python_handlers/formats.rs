//! What the default functions read and write, and what they refuse.

use super::*;

/// Answers with what `predict_fn` got.
const ECHO: &str = "
def model_fn(model_dir): return None
def predict_fn(data, model): return data
";

#[tokio::test]
async fn the_default_input_fn_reads_the_toolkits_types() {
    let model = Model::new(ECHO);
    let handler = model.start().await;
    for (content_type, body, read) in [
        ("application/json", "{\"a\": [1, 2.5, null]}".as_bytes(), "{\"a\": [1, 2.5, null]}"),
        ("", b"[1]", "[1]"),
        ("application/json; charset=utf-8", "\u{feff}\"é\"".as_bytes(), "\"\\u00e9\""),
        ("application/json; charset=latin-1", b"\"\xe9\"", "\"\\u00e9\""),
        ("application/vnd.x+json", b"1", "1"),
        ("application/jsonlines", b"{\"a\":1}\n\n[2]", "[{\"a\": 1}, [2]]"),
        ("text/csv", b"1,2.5,a\n3,4,b\r\n", "[[1, 2.5, \"a\"], [3, 4.0, \"b\"]]"),
        ("text/csv", b"inputs\n\"one, two\"\nthree", "{\"inputs\": [\"one, two\", \"three\"]}"),
        ("text/csv", b"question,context\nq,c", "{\"inputs\": [{\"question\": \"q\", \"context\": \"c\"}]}"),
        ("text/csv", b"", "[]"),
        ("text/plain", "zwölf".as_bytes(), "\"zw\\u00f6lf\""),
        ("application/json", b"\"\\ud800\"", "\"\\ud800\""),
    ] {
        let response = handler.invoke(request(content_type, body)).await.unwrap();
        assert_eq!(text(&response), read, "{content_type} {}", String::from_utf8_lossy(body));
    }
}

#[tokio::test]
async fn what_the_client_got_wrong_is_a_4xx_that_says_where() {
    let model = Model::new(ECHO);
    let handler = model.start().await;
    for (content_type, body, status, code, message) in [
        ("application/json", &b"{\"a\": }"[..], 400, "handler_rejected_input", "line 1 column 7"),
        ("application/json", b"\"a\xff\"", 400, "handler_rejected_input", "byte 2 of the body is not utf-8"),
        ("application/jsonlines", b"1\n{", 400, "handler_rejected_input", "line 2 of the body"),
        (
            "text/csv",
            b"inputs\na,b",
            400,
            "handler_rejected_input",
            "row 2 of the CSV body has 2 cells, the header has 1",
        ),
        ("text/csv", b"\"open", 400, "handler_rejected_input", "unexpected end of data"),
        ("text/plain; charset=none", b"1", 415, "unsupported_content_type", "charset 'none' is not known"),
        (
            "image/png",
            b"1",
            415,
            "unsupported_content_type",
            "content type 'image/png' is not read; send application/json",
        ),
    ] {
        let error = handler.invoke(request(content_type, body)).await.unwrap_err();
        assert_eq!((error.status(), error.code()), (status, code), "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
    let deep = handler.invoke(json(&"[".repeat(200_000))).await.unwrap_err();
    assert_eq!(deep.status(), 400, "{deep}");
    assert_eq!(handler.status().restarts, 0);
}

#[tokio::test]
async fn the_default_output_fn_follows_accept() {
    let model = Model::new(ECHO);
    let handler = model.start().await;
    for (accept, body, content_type, written) in [
        ("", "[1, \"é\"]", "application/json", "[1, \"\\u00e9\"]"),
        ("text/plain", "\"é\"", "text/plain; charset=utf-8", "é"),
        ("text/html, */*;q=0.1", "1", "application/json", "1"),
        ("text/csv;q=0.5, application/json", "[1]", "application/json", "[1]"),
        ("text/csv", "[[1, \"a,b\"], [2, \"c\"]]", "text/csv", "1,\"a,b\"\n2,c\n"),
        ("text/csv", "[{\"label\": \"x\", \"score\": 0.5}]", "text/csv", "label,score\nx,0.5\n"),
        ("text/csv", "[1, 2]", "text/csv", "1\n2\n"),
        ("application/jsonlines", "[{\"a\": 1}, 2]", "application/jsonlines", "{\"a\": 1}\n2\n"),
        ("text/plain", "\"a\"", "text/plain; charset=utf-8", "a"),
        ("text/plain", "{\"a\": 1}", "text/plain; charset=utf-8", "{\"a\": 1}"),
    ] {
        let mut asked = json(body);
        asked.accept = accept.into();
        let response = handler.invoke(asked).await.unwrap();
        assert_eq!((response.content_type.as_str(), text(&response)), (content_type, written), "{accept}");
    }
    let mut asked = json("1");
    asked.accept = "image/png".into();
    let error = handler.invoke(asked).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (406, "unsupported_accept"), "{error}");
}

#[tokio::test]
async fn arrays_are_written_as_lists_and_npy_needs_numpy() {
    let model = Model::new(
        "
class Array:
    def tolist(self): return [[1.5, 2], [3, 4]]
def model_fn(model_dir): return None
def predict_fn(data, model): return {'scores': Array()} if data else Array()
",
    );
    let handler = model.start().await;
    assert_eq!(ask(&handler, "1").await.unwrap(), "{\"scores\": [[1.5, 2], [3, 4]]}");
    let mut asked = json("0");
    asked.accept = "text/csv".into();
    assert_eq!(text(&handler.invoke(asked).await.unwrap()), "1.5,2\n3,4\n");
    let npy = handler.invoke(request("application/x-npy", b"x")).await.unwrap_err();
    let numpy = Command::new(python()).args(["-c", "import numpy"]).output().unwrap().status.success();
    assert_eq!(npy.status(), if numpy { 400 } else { 415 }, "{npy}");
}

#[tokio::test]
async fn what_json_cannot_carry_is_an_error_with_its_reason() {
    let model = Model::new(
        "
import math
def model_fn(model_dir): return None
def predict_fn(data, model): return {'nan': math.nan, 'object': [object()], 'bytes': b'x'}[data]
",
    );
    let handler = model.start().await;
    for (asked, message) in [
        ("nan", "the prediction has NaN or infinity, which JSON cannot carry"),
        ("object", "an object of type object cannot be written as JSON"),
        ("bytes", "an object of type bytes cannot be written as JSON"),
    ] {
        let error = ask(&handler, &format!("\"{asked}\"")).await.unwrap_err();
        assert_eq!((error.status(), error.code()), (500, "handler_raised"));
        assert!(error.to_string().starts_with("output_fn raised ") && error.to_string().contains(message), "{error}");
    }
}

#[tokio::test]
async fn an_own_output_fn_may_return_text_bytes_json_or_a_pair() {
    let model = Model::new(
        "
def model_fn(model_dir): return None
def predict_fn(data, model): return data
def output_fn(prediction, accept):
    return {'text': 'é', 'bytes': b'\\xff', 'view': memoryview(b'ab'), 'dict': {'a': 1}, 'pair': (b'x', 'image/png'),
            'none': None, 'triple': (1, 2, 3)}[prediction]
",
    );
    let handler = model.start().await;
    for (asked, body, content_type) in [
        ("text", "é".as_bytes(), "application/json"),
        ("bytes", b"\xff", "application/json"),
        ("view", b"ab", "application/json"),
        ("dict", b"{\"a\": 1}", "application/json"),
        ("pair", b"x", "image/png"),
    ] {
        let response = handler.invoke(json(&format!("\"{asked}\""))).await.unwrap();
        assert_eq!((&response.body[..], response.content_type.as_str()), (body, content_type), "{asked}");
    }
    for (asked, message) in [
        ("none", "output_fn returned NoneType; return str, bytes or (body, content_type)"),
        ("triple", "output_fn returned a tuple; it must be (body, content_type)"),
    ] {
        let error = ask(&handler, &format!("\"{asked}\"")).await.unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
    }
}

#[tokio::test]
async fn large_bodies_pass_both_ways_up_to_the_stated_limits() {
    let model = Model::new(
        "
def model_fn(model_dir): return None
def input_fn(body, content_type): return body
def predict_fn(data, model): return data
def output_fn(prediction, accept): return prediction * 8
",
    );
    let eight_mib = vec![7_u8; 8 << 20];
    let handler = model.start().await;
    let response = handler.invoke(request("application/octet-stream", &eight_mib)).await.unwrap();
    assert_eq!(response.body.len(), 64 << 20);
    assert!(response.body.iter().all(|byte| *byte == 7));

    let mut options = model.options();
    (options.request_limit, options.response_limit) = (100, Some(400));
    let handler = Handler::start(options).await.unwrap();
    assert_eq!(handler.invoke(request("a/b", [0; 50])).await.unwrap().body.len(), 400);
    let error = handler.invoke(request("a/b", [0; 51])).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (500, "response_too_large"), "{error}");
    let error = handler.invoke(request("a/b", [0; 101])).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (413, "request_too_large"), "{error}");
    assert_eq!(handler.status().restarts, 0);
}
