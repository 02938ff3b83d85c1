//! What processes write: line by line into the log, and their last lines for messages.
//!
//! Records of Python's `logging` arrive as lines that begin with [`MARK`], a letter for the level, the logger's name and
//! [`MARK`] again (`worker.py` writes them). A script that prints such a line itself gets its wish: a level.

use std::{
    borrow::Cow,
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tracing::Level;

/// Longer lines of output are logged in pieces of this many bytes.
const LINE_LIMIT: u64 = 8 << 10;
/// Last lines that are kept, and how many of them may come before an interpreter's own report of its end.
const TAIL_LINES: usize = 12;
const LINES_BEFORE_FATAL: usize = 3;
/// Characters of a line in a message.
const LINE_WIDTH: usize = 300;
const MARK: char = '\u{1e}';

/// Whose output it is, for the log.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// A worker, by its model and number; only its standard error is kept for messages.
    Worker { model: Arc<str>, worker: usize },
    /// A tool such as pip.
    Tool(&'static str),
}

/// The level of a line and the logger that it came from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Record {
    level: Level,
    logger: Option<String>,
}

impl Record {
    const PRINTED: Self = Self { level: Level::INFO, logger: None };

    /// The record that begins with this line, and the line's text.
    fn of_line(line: &str) -> (Self, &str) {
        let marked = || {
            let (head, text) = line.strip_prefix(MARK)?.split_once(MARK)?;
            let mut name = head.chars();
            let level = match name.next()? {
                'E' => Level::ERROR,
                'W' => Level::WARN,
                'I' => Level::INFO,
                'D' => Level::DEBUG,
                _ => return None,
            };
            Some((Self { level, logger: Some(visible(name.as_str()).into_owned()) }, text))
        };
        marked().unwrap_or((Self::PRINTED, line))
    }
}

/// Logs what comes from `stream` until it ends, and keeps the last lines in `kept`.
pub(super) async fn forward(stream: impl AsyncRead + Unpin, origin: Origin, name: &'static str, kept: Option<Tail>) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    // The record of a line whose end has not come yet: the next piece belongs to it.
    let mut open: Option<Record> = None;
    loop {
        line.clear();
        match (&mut reader).take(LINE_LIMIT).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let whole = line.ends_with(b"\n");
        let text = String::from_utf8_lossy(&line);
        let (record, text) = match open.take() {
            Some(record) => (record, &*text),
            None => Record::of_line(&text),
        };
        // A progress bar writes over its line again and again; a terminal would show the last version.
        let mut last = None;
        for version in text.split('\r').map(str::trim_end).filter(|version| !version.is_empty()) {
            let version = visible(version);
            log(&origin, name, &record, &version);
            last = Some(version);
        }
        if let (Some(kept), Some(last)) = (&kept, last) {
            kept.push(&last);
        }
        open = (!whole).then_some(record);
    }
}

fn log(origin: &Origin, stream: &str, record: &Record, text: &str) {
    match origin {
        Origin::Tool(tool) => tracing::debug!(tool, stream, "{text}"),
        Origin::Worker { model, worker } => {
            let (model, logger) = (&**model, record.logger.as_deref());
            match record.level {
                Level::ERROR => tracing::error!(model, worker, stream, logger, "{text}"),
                Level::WARN => tracing::warn!(model, worker, stream, logger, "{text}"),
                Level::INFO => tracing::info!(model, worker, stream, logger, "{text}"),
                _ => tracing::debug!(model, worker, stream, logger, "{text}"),
            }
        }
    }
}

/// Control characters, line separators and changes of direction as escapes, so that a line stays one and shows what it has.
pub(super) fn visible(text: &str) -> Cow<'_, str> {
    let hidden =
        |c: char| (c.is_control() && c != '\t') || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if !text.contains(hidden) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown.into()
}

/// Lines below a message of the log: each visible and indented, so that none passes for a message of its own.
pub(super) fn indented<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().map(|line| format!("\n    {}", visible(line))).collect()
}

/// The beginning of a line, for a message.
pub(super) fn cut(line: &str) -> &str {
    line.char_indices().nth(LINE_WIDTH).map_or(line, |(end, _)| &line[..end])
}

/// The last lines that a process wrote, shared with what reads them. Where the interpreter reports its own end, that report
/// is kept instead: the reason and the innermost calls, without its list of extension modules.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    /// Where among the lines the interpreter's report begins.
    fatal: Option<usize>,
    /// The report is over.
    complete: bool,
}

impl Tail {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn push(&self, line: &str) {
        let mut kept = self.kept();
        match kept.fatal {
            None if line.starts_with("Fatal Python error") => {
                let surplus = kept.lines.len().saturating_sub(LINES_BEFORE_FATAL);
                kept.lines.drain(..surplus);
                kept.fatal = Some(kept.lines.len());
            }
            // Other threads' calls come first and matter less.
            Some(fatal) if line.starts_with("Current thread") => kept.lines.truncate(fatal + 1),
            Some(_) if line.starts_with("Extension modules: ") => kept.complete = true,
            _ => {}
        }
        let full = kept.lines.len() >= TAIL_LINES;
        if kept.complete || (full && kept.fatal.is_some()) {
            return;
        }
        if full {
            kept.lines.pop_front();
        }
        kept.lines.push_back(line.to_owned());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.kept().lines.iter().cloned().collect()
    }

    /// The line that says most about the end: the interpreter's own reason, the last exception, or just the last line.
    pub(super) fn reason(&self) -> Option<String> {
        let kept = self.kept();
        let fatal = kept.fatal.and_then(|place| kept.lines.get(place));
        let exception = || kept.lines.iter().rev().find(|line| is_exception(line));
        fatal.or_else(exception).or_else(|| kept.lines.back()).map(|line| cut(line).to_owned())
    }
}

/// Whether this looks like the last line of a traceback, such as `package.SomeError: message`.
fn is_exception(line: &str) -> bool {
    let name = line.split_once(": ").map_or(line, |(name, _)| name);
    let is_path = name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.');
    is_path && (name.ends_with("Error") || name.ends_with("Exception"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(lines: &[&str]) -> Tail {
        let tail = Tail::default();
        lines.iter().for_each(|line| tail.push(line));
        tail
    }

    #[test]
    fn a_marked_line_has_its_level_and_logger_and_any_other_is_printed() {
        let logged = |level, name: &str| Record { level, logger: Some(name.into()) };
        assert_eq!(Record::of_line("\u{1e}Wapp.io\u{1e}slow: \u{1e}"), (logged(Level::WARN, "app.io"), "slow: \u{1e}"));
        assert_eq!(Record::of_line("\u{1e}Da\u{1b}b\u{1e}"), (logged(Level::DEBUG, "a\\u{1b}b"), ""));
        for line in ["plain", "", "\u{1e}", "\u{1e}\u{1e}x", "\u{1e}Xa\u{1e}x", "\u{1e}Ewithout end", "é\u{1e}Ea\u{1e}"]
        {
            assert_eq!(Record::of_line(line), (Record::PRINTED, line));
        }
    }

    #[tokio::test]
    async fn the_tail_has_the_last_version_of_a_line_and_no_control_characters() {
        let tail = Tail::default();
        let written = b"  0%\r 50%\r100%\r\nred \x1b[31m\x07\xff\n\n\x1eEapp\x1ebroken\nno end";
        forward(&written[..], Origin::Tool("sh"), "stderr", Some(tail.clone())).await;
        assert_eq!(tail.lines(), ["100%", "red \\u{1b}[31m\\u{7}\u{fffd}", "broken", "no end"]);
    }

    #[test]
    fn what_could_pass_for_other_text_is_escaped() {
        assert_eq!(visible("a\tb é"), "a\tb é");
        assert_eq!(visible("a\u{8}\u{9b}\u{202e}\u{2028}"), "a\\u{8}\\u{9b}\\u{202e}\\u{2028}");
        assert_eq!(indented(["a", "b\rc"]), "\n    a\n    b\\rc");
    }

    #[test]
    fn the_interpreters_report_of_its_end_is_kept_from_its_beginning() {
        let calls: Vec<String> = (0..40).map(|depth| format!("  File \"inference.py\", line {depth} in f")).collect();
        let mut lines = vec!["1", "2", "3", "4", "Fatal Python error: Segmentation fault", "Thread 0x1 (most recent)"];
        lines.extend(["  File \"queue.py\", line 1 in wait", "Current thread 0x2 (most recent call first):"]);
        lines.extend(calls.iter().map(String::as_str));
        lines.extend(["Extension modules: numpy.core, torch._C (total: 2)", "more of them"]);
        let tail = tail(&lines);
        assert_eq!(tail.reason().as_deref(), Some("Fatal Python error: Segmentation fault"));
        let kept = tail.lines();
        assert_eq!(kept[..4], ["2", "3", "4", "Fatal Python error: Segmentation fault"]);
        assert!(kept[4].starts_with("Current thread") && kept[5].contains("line 0 in f"), "{kept:?}");
        assert_eq!(kept.len(), TAIL_LINES);
        tail.clear();
        assert_eq!((tail.reason(), tail.lines().len()), (None, 0));
    }

    #[test]
    fn the_extension_modules_are_no_last_words() {
        let tail = tail(&["Fatal Python error: Aborted", "Current thread 0x2:", "Extension modules: a (total: 1)"]);
        assert_eq!(tail.lines(), ["Fatal Python error: Aborted", "Current thread 0x2:"]);
    }

    #[test]
    fn the_last_exception_says_more_than_the_last_line() {
        let lines = ["ValueError: first", "urllib3.exceptions.HTTPError: gone", "cleaning up: Error"];
        assert_eq!(tail(&lines).reason().as_deref(), Some("urllib3.exceptions.HTTPError: gone"));
        assert_eq!(tail(&["one", "two"]).reason().as_deref(), Some("two"));
        assert_eq!(tail(&[&"é".repeat(400)]).reason(), Some("é".repeat(300)));
    }
}
