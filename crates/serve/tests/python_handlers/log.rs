//! What reaches the log: output, records of `logging`, tracebacks and last words.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use tracing::{level_filters::LevelFilter, subscriber::DefaultGuard};
use tracing_subscriber::fmt::MakeWriter;

use super::*;

/// What is logged on this thread while it lives.
struct Log {
    lines: Lines,
    _installed: DefaultGuard,
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn new() -> Self {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).without_time();
        let subscriber = subscriber.with_target(false).with_max_level(LevelFilter::DEBUG).finish();
        Self { lines, _installed: tracing::subscriber::set_default(subscriber) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.lines.0.lock().unwrap()).into_owned()
    }

    #[track_caller]
    fn has(&self, lines: &[&str]) {
        let text = self.text();
        for line in lines {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn what_the_script_prints_goes_to_the_log_and_not_into_the_answer() {
    let log = Log::new();
    let model = Model::new(
        "
import os, subprocess, sys
print('while importing')
def model_fn(model_dir): print('while loading'); return None
def predict_fn(data, model):
    print('plain ' + data)
    print('x' * 20000)
    os.write(1, b'raw \\xff\\x00\\n')
    subprocess.run(['echo', 'from a child'])
    print('to stderr', file=sys.stderr)
    print('input: ' + repr(sys.stdin.read()), end='')
    return data
",
    );
    let mut options = model.options();
    options.name = "sentiment".into();
    let handler = Handler::start(options).await.unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&handler, "\"words\"").await.unwrap(), "\"words\"");
    }
    handler.stop().await;
    log.has(&[
        "INFO while importing model=\"sentiment\" worker=0 stream=\"stdout\"\n",
        "while loading",
        "plain words",
        "raw \u{fffd}\\u{0}",
        "from a child",
        "to stderr model=\"sentiment\" worker=0 stream=\"stderr\"\n",
        "input: ''",
    ]);
    let text = log.text();
    assert!(text.contains(&"x".repeat(8000)) && !text.contains(&"x".repeat(9000)), "long lines are cut");
}

#[tokio::test]
async fn records_of_logging_keep_their_level_and_logger() {
    let log = Log::new();
    let model = Model::new(
        "
import logging
logging.info('importing')
app = logging.getLogger('app.io')
def model_fn(model_dir): return None
def predict_fn(data, model):
    app.debug('not asked for')
    app.info('seen %d', 7)
    app.warning('first line\\nsecond line')
    app.critical('x' * 20000)
    try: {}['key']
    except KeyError: logging.exception('no key')
    app.setLevel(logging.DEBUG)
    app.debug('asked for')
    print('\\x1eEforged\\x1eonly its level')
    return data
",
    );
    let handler = model.start().await;
    ask(&handler, "1").await.unwrap();
    handler.stop().await;
    let text = log.text();
    let line = |level: &str, text: &str, logger: &str| {
        format!("{level} {text} model=\"model\" worker=0 stream=\"stderr\" logger=\"{logger}\"\n")
    };
    for line in [
        line(" INFO", "importing", "root"),
        line(" INFO", "seen 7", "app.io"),
        line(" WARN", "first line", "app.io"),
        line(" WARN", "second line", "app.io"),
        line("ERROR", "no key", "root"),
        line("ERROR", "Traceback (most recent call last):", "root"),
        line("ERROR", "KeyError: 'key'", "root"),
        line("DEBUG", "asked for", "app.io"),
    ] {
        assert!(text.contains(&line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains("not asked for"));
    let pieces = text.lines().filter(|line| line.contains("xxxx"));
    assert!(pieces.clone().count() == 3 && pieces.clone().all(|line| line.starts_with("ERROR")), "{text}");
    log.has(&["ERROR only its level"]);
}

#[tokio::test]
async fn a_progress_bar_and_control_characters_make_plain_lines() {
    let log = Log::new();
    let model = Model::new(
        "
import sys
def model_fn(model_dir): return None
def predict_fn(data, model):
    sys.stderr.write('\\r 10%\\r 90%\\r100%\\n')
    print('\\x1b[2Jclear\\x07 \\u202e\\ttab')
    raise RuntimeError('one\\n ERROR forged\\rtwo')
",
    );
    let handler = model.start().await;
    ask(&handler, "1").await.unwrap_err();
    handler.stop().await;
    log.has(&[
        "INFO  10% model=",
        "INFO  90% model=",
        "INFO 100% model=",
        "INFO \\u{1b}[2Jclear\\u{7} \\u{202e}\ttab model=",
    ]);
    log.has(&[
        "raised RuntimeError: one\\n ERROR forged\\rtwo (inference.py line 7)\n    Traceback",
        "\n     ERROR forged\\rtwo",
    ]);
    let text = log.text();
    assert!(!text.contains(|c: char| c.is_control() && !"\n\t".contains(c)), "{text:?}");
}

#[tokio::test]
async fn an_exception_is_logged_once_with_its_traceback_as_loud_as_its_status() {
    let log = Log::new();
    let model = Model::new(
        "
import json
def model_fn(model_dir): return None
def input_fn(body, content_type): return json.loads(body)['inputs']
def predict_fn(data, model): return helper(data)
def helper(data): raise RuntimeError('no luck')
",
    );
    let handler = model.start().await;
    ask(&handler, "{\"inputs\": 1}").await.unwrap_err();
    ask(&handler, "{\"input\": 1}").await.unwrap_err();
    handler.stop().await;
    let text = log.text();
    for (line, within) in [
        ("ERROR predict_fn raised RuntimeError: no luck (inference.py line 6)", "in helper\n"),
        (" WARN input_fn raised KeyError: 'inputs' (inference.py line 4)", "in input_fn\n"),
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line} in\n{text}");
        let after = text.split(line).nth(1).unwrap();
        assert!(after.starts_with("\n    Traceback (most recent call last):") && after.contains(within), "{text}");
    }
    assert_eq!(text.matches("Traceback").count(), 2, "{text}");

    let log = Log::new();
    let model = Model::new("def model_fn(model_dir): return print\n");
    let handler = model.start().await;
    ask(&handler, "{").await.unwrap_err();
    handler.stop().await;
    log.has(&["DEBUG input_fn raised JSONDecodeError"]);
    assert!(!log.text().contains("WARN"), "what only the client got wrong is not loud");
}

#[tokio::test]
async fn a_crash_is_logged_once_with_the_last_lines_of_its_request() {
    let log = Log::new();
    let model = Model::new(
        "
import ctypes, os, sys
def model_fn(model_dir): return None
def predict_fn(data, model):
    print('before ' + data, file=sys.stderr)
    if data == 'crash': ctypes.string_at(0)
    return data
",
    );
    let handler = model.start().await;
    ask(&handler, "\"earlier\"").await.unwrap();
    let error = ask(&handler, "\"crash\"").await.unwrap_err().to_string();
    let told =
        "worker 0 ended during a request: signal 11 (SIGSEGV); on stderr: Fatal Python error: Segmentation fault";
    assert_eq!(error, told);
    let text = log.text();
    assert_eq!(text.matches(told).count(), 1, "{text}");
    let lines = text.split(told).nth(1).unwrap();
    assert!(
        lines.starts_with("\n    before crash\n    Fatal Python error: Segmentation fault\n    Current thread"),
        "{text}"
    );
    assert!(lines.contains("inference.py\", line 6 in predict_fn") && !lines.contains("earlier"), "{text}");
}
