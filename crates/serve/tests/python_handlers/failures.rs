//! Exceptions, crashes, deadlines and memory: one request fails, with its reason, and the handler goes on.

use serve::python::{HandlerError, Raised};

use super::*;

/// Does what the request says.
const OBEDIENT: &str = "
import ctypes, os, signal, sys, time
class Teapot(Exception):
    status_code = 418
def model_fn(model_dir): return None
def predict_fn(data, model):
    kind, value = data
    if kind == 'pid': return os.getpid()
    if kind == 'sleep': time.sleep(value)
    if kind == 'raise': raise RuntimeError(value)
    if kind == 'teapot': raise Teapot('short and stout')
    if kind == 'exit': sys.exit(value)
    if kind == 'die': print('last words', file=sys.stderr); os._exit(value)
    if kind == 'segfault': ctypes.string_at(0)
    if kind == 'grow': return len(bytearray(value))
    return kind
";

#[tokio::test]
async fn an_exception_is_named_with_its_place_and_the_worker_goes_on() {
    let model = Model::new(OBEDIENT);
    let handler = model.start().await;
    let error = ask(&handler, r#"["raise", "no luck"]"#).await.unwrap_err();
    assert_eq!(error.to_string(), "predict_fn raised RuntimeError: no luck (inference.py line 10)");
    assert_eq!((error.status(), error.code()), (500, "handler_raised"));
    let error = ask(&handler, r#"["exit", 3]"#).await.unwrap_err();
    assert!(error.to_string().starts_with("predict_fn raised SystemExit: 3"), "{error}");
    let error = ask(&handler, r#"["teapot", 0]"#).await.unwrap_err();
    assert_eq!((error.status(), error.code()), (418, "handler_rejected_input"));
    assert_eq!(ask(&handler, r#"["fine", 0]"#).await.unwrap(), "\"fine\"");
    assert_eq!(handler.status().restarts, 0);
}

#[tokio::test]
async fn a_status_of_an_exception_is_passed_on_where_it_is_an_error() {
    let model = Model::new(
        "
import http
class Refusal(Exception): pass
def model_fn(model_dir): return None
def predict_fn(data, model):
    error = Refusal('no')
    setattr(error, *data)
    raise error
def input_fn(body, content_type):
    name, value = body.split()
    return name, {'400': http.HTTPStatus.BAD_REQUEST, 'text': '404', 'yes': True}.get(value) or int(value)
",
    );
    let handler = model.start().await;
    for (asked, status, code) in [
        ("status_code 400", 400, "handler_rejected_input"),
        ("status_code 422", 422, "handler_rejected_input"),
        ("error_code 599", 599, "handler_raised"),
        ("status_code 503", 503, "handler_raised"),
        ("status_code 399", 500, "handler_raised"),
        ("status_code 600", 500, "handler_raised"),
        ("status_code text", 500, "handler_raised"),
        ("status_code yes", 500, "handler_raised"),
        ("code 404", 500, "handler_raised"),
    ] {
        let error = handler.invoke(request("text/plain", asked)).await.unwrap_err();
        assert_eq!((error.status(), error.code()), (status, code), "{asked}: {error}");
    }
}

#[tokio::test]
async fn errors_of_an_own_input_fn_are_the_clients_where_they_may_be() {
    let model = Model::new(
        "
import json
def model_fn(model_dir): return print
def input_fn(body, content_type):
    return {'value': lambda: int('x'), 'key': lambda: {}['inputs'], 'type': lambda: len(1), 'json': lambda: json.loads('{'),
            'unicode': lambda: b'\\xff'.decode(), 'io': lambda: open('/nowhere')}[body]()
",
    );
    let handler = model.start().await;
    for (body, exception, status) in [
        ("value", "ValueError", 400),
        ("key", "KeyError", 400),
        ("type", "TypeError", 400),
        ("json", "JSONDecodeError", 400),
        ("unicode", "UnicodeDecodeError", 400),
        ("io", "FileNotFoundError", 500),
    ] {
        let error = handler.invoke(request("text/plain", body)).await.unwrap_err();
        let HandlerError::Raised(Raised { exception: raised, .. }) = &error else { panic!("{error}") };
        assert_eq!((raised.as_str(), error.status()), (exception, status));
        assert!(error.to_string().contains("(inference.py line"), "{error}");
    }
}

#[tokio::test]
async fn a_script_that_does_not_load_says_why() {
    for (script, message) in [
        ("def model_fn(d:\n    return 1\n", "import raised SyntaxError: "),
        ("def model_fn(d):\n    return [\n", "(inference.py line 2)"),
        (
            "import no_such_module\n",
            "import raised ModuleNotFoundError: No module named 'no_such_module' (inference.py line 1)",
        ),
        (
            "def model_fn(d):\n    raise OSError('weights.bin is cut short')\ndef predict_fn(d, m): return 1\n",
            "model_fn raised OSError: weights.bin is cut short (inference.py line 2)",
        ),
        (
            "import os, sys\nprint('dying', file=sys.stderr)\nos._exit(4)\n",
            "worker 0 ended during import: exit code 4; on stderr: dying",
        ),
    ] {
        let error = Model::new(script).start_error().await;
        assert!(error.to_string().contains(message), "{error}");
    }
    let model = Model::new("import time\ntime.sleep(60)\ndef model_fn(d): return print\n");
    let mut options = model.options();
    options.start_timeout = Duration::from_millis(600);
    let error = Handler::start(options).await.err().unwrap().to_string();
    assert!(error.contains("import did not end within 0.6 s"), "{error}");
    let mut options = model.options();
    options.python = "no-such-python".into();
    let error = Handler::start(options).await.err().unwrap();
    assert!(error.to_string().starts_with("cannot use no-such-python as the Python interpreter"), "{error}");
}

#[tokio::test]
async fn a_worker_killed_in_a_request_fails_that_request_alone() {
    let model = Model::new(OBEDIENT);
    let mut options = model.options();
    options.workers = 2;
    let handler = Handler::start(options).await.unwrap();
    let victim = handler.invoke(json(r#"["sleep", 30]"#));
    let others = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let survivor = ask(&handler, r#"["pid", 0]"#).await.unwrap();
        // The worker that answers is free, so the other one has the request.
        let pids = children(&model);
        let busy = pids.iter().find(|pid| pid.to_string() != survivor).unwrap();
        assert!(Command::new("kill").args(["-9", &busy.to_string()]).status().unwrap().success());
        for _ in 0..20 {
            assert_eq!(ask(&handler, r#"["pid", 0]"#).await.unwrap(), survivor);
        }
    };
    let (outcome, ()) = tokio::join!(victim, others);
    let error = outcome.unwrap_err();
    assert!(matches!(&error, HandlerError::Crashed { exit, .. } if exit.starts_with("signal 9 (SIGKILL")), "{error}");
    assert_eq!((error.status(), error.code()), (500, "handler_crashed"));
    until("the worker is back", || handler.status().alive == 2).await;
    assert_eq!(handler.status().restarts, 1);
}

/// The workers of a model's handler, found by the program they run.
fn children(model: &Model) -> Vec<u32> {
    let marker = model.path().join("environments").canonicalize().unwrap().display().to_string();
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes
        .filter(|pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(&marker)))
        .collect()
}

#[tokio::test]
async fn a_crash_is_told_with_its_exit_and_last_words() {
    let model = Model::new(OBEDIENT);
    let handler = model.start().await;
    let error = ask(&handler, r#"["die", 5]"#).await.unwrap_err();
    assert_eq!(error.to_string(), "worker 0 ended during a request: exit code 5; on stderr: last words");
    let error = ask(&handler, r#"["segfault", 0]"#).await.unwrap_err().to_string();
    assert!(error.contains("signal 11 (SIGSEGV)") && error.contains("Segmentation fault"), "{error}");
    assert_eq!(ask(&handler, r#"["fine", 0]"#).await.unwrap(), "\"fine\"");
    assert_eq!(handler.status().restarts, 2);
}

#[tokio::test]
async fn a_passed_deadline_kills_the_worker_and_the_next_request_gets_a_new_one() {
    let model = Model::new(OBEDIENT);
    let handler = model.start().await;
    let pid = ask(&handler, r#"["pid", 0]"#).await.unwrap();
    let mut asked = json(r#"["sleep", 30]"#);
    asked.deadline = Instant::now() + Duration::from_millis(200);
    let mut behind = json(r#"["fine", 0]"#);
    behind.deadline = Instant::now() + Duration::from_millis(150);
    let (running, waiting) = tokio::join!(handler.invoke(asked), handler.invoke(behind));
    let (running, waiting) = (running.unwrap_err(), waiting.unwrap_err());
    assert_eq!((running.status(), running.code()), (504, "deadline_exceeded"));
    assert_eq!(running, HandlerError::DeadlineExceeded { running: true });
    assert_eq!(waiting, HandlerError::DeadlineExceeded { running: false });
    assert_ne!(ask(&handler, r#"["pid", 0]"#).await.unwrap(), pid);
    assert!(!runs(pid.parse().unwrap()));
}

#[tokio::test]
async fn a_memory_hog_is_told_its_limit_and_the_worker_goes_on() {
    let model = Model::new(OBEDIENT);
    let mut options = model.options();
    options.memory_limit = Some(200 << 20);
    let handler = Handler::start(options).await.unwrap();
    let error = ask(&handler, r#"["grow", 500000000]"#).await.unwrap_err();
    assert_eq!(error.to_string(), "predict_fn ran out of memory (the worker may use 209715200 bytes)");
    assert_eq!((error.status(), error.code()), (500, "handler_out_of_memory"));
    let body = vec![b' '; 210 << 20];
    let error = handler.invoke(request("application/json", body)).await.unwrap_err();
    assert_eq!(error.code(), "handler_out_of_memory", "{error}");
    assert_eq!(ask(&handler, r#"["grow", 1000]"#).await.unwrap(), "1000");
    assert_eq!(handler.status().restarts, 0);
}

#[tokio::test]
async fn a_cancelled_call_does_not_poison_its_worker() {
    let model = Model::new(OBEDIENT);
    let handler = model.start().await;
    let pid = ask(&handler, r#"["pid", 0]"#).await.unwrap();
    for round in 0..10 {
        let call = handler.invoke(json(&format!("[\"sleep\", 0.0{round}]")));
        let _ = tokio::time::timeout(Duration::from_millis(5 * round), call).await;
        assert_eq!(ask(&handler, &format!("[\"r{round}\", 0]")).await.unwrap(), format!("\"r{round}\""));
    }
    assert_eq!(ask(&handler, r#"["pid", 0]"#).await.unwrap(), pid, "nothing was restarted");
    let mut abandoned = json(r#"["sleep", 30]"#);
    abandoned.deadline = Instant::now() + Duration::from_millis(300);
    let _ = tokio::time::timeout(Duration::from_millis(50), handler.invoke(abandoned)).await;
    assert_eq!(ask(&handler, r#"["fine", 0]"#).await.unwrap(), "\"fine\"");
}

#[tokio::test]
async fn a_full_queue_answers_at_once_and_a_cancelled_place_is_free_again() {
    let model = Model::new(OBEDIENT);
    let mut options = model.options();
    options.queue = 1;
    let handler = Handler::start(options).await.unwrap();
    let busy = ask(&handler, r#"["sleep", 0.4]"#);
    let others = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut waiting = Box::pin(ask(&handler, r#"["fine", 0]"#));
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err());
        assert_eq!(handler.status().waiting, 1);
        let error = ask(&handler, r#"["fine", 0]"#).await.unwrap_err();
        assert_eq!((error.status(), error.code()), (429, "overloaded"), "{error}");
        drop(waiting);
        assert_eq!(ask(&handler, r#"["fine", 0]"#).await.unwrap(), "\"fine\"");
    };
    let (busy, ()) = tokio::join!(busy, others);
    assert_eq!(busy.unwrap(), "\"sleep\"");
}

#[tokio::test]
async fn workers_that_no_longer_start_are_a_503_with_the_reason_until_they_do() {
    let model = Model::new(
        "
import os
def model_fn(model_dir):
    if os.path.exists(model_dir + '/broken'): raise OSError('the disk is gone')
def predict_fn(data, model): os._exit(1) if data == 'die' else None; return data
",
    );
    let handler = model.start().await;
    let broken = model.path().join("model/broken");
    fs::write(&broken, "").unwrap();
    ask(&handler, "\"die\"").await.unwrap_err();
    let error = ask(&handler, "1").await.unwrap_err();
    assert_eq!((error.status(), error.code()), (503, "handler_unavailable"));
    assert!(error.to_string().contains("no worker runs: model_fn raised OSError: the disk is gone"), "{error}");
    assert_eq!(handler.status().alive, 0);
    fs::remove_file(broken).unwrap();
    until("the worker is back", || handler.status().alive == 1).await;
    assert_eq!(ask(&handler, "1").await.unwrap(), "1");
}
