//! Processes and threads of a rank's tracks, and what they are called.

use std::borrow::Cow;
use std::collections::BTreeSet;

use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{Filter, Profile};

use super::{File, Line};
use crate::export::Error;
use crate::export::rows::Values;
use crate::json::Object;

/// The tracks of one rank.
pub(super) struct Names {
    lines: FxHashMap<i64, Place>,
    /// Names to be written, each once.
    titles: BTreeSet<Title>,
}

struct Place {
    process: String,
    thread: String,
}

/// A name of a process (`thread` none) or thread.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Title {
    process: String,
    thread: Option<String>,
    event: &'static str,
    value: Value,
}

/// What imports append to the name of a stream for the line with its annotations, which has the stream's process and thread.
const ANNOTATIONS: &str = " annotations";

fn without_suffix(name: &str) -> &str {
    name.strip_suffix(ANNOTATIONS).unwrap_or(name)
}

/// Whether an import made the name of a line of annotations, since the source does not name the stream.
fn is_derived(name: &str, thread: &str) -> bool {
    name.strip_suffix(ANNOTATIONS).is_some_and(|name| name == format!("stream {thread}"))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Name(String),
    Label(String),
    Order(i64),
}

impl Names {
    pub fn read(profile: &Profile, rank: i64) -> Result<Self, Error> {
        let mut names = Names { lines: FxHashMap::default(), titles: BTreeSet::new() };
        let columns = [
            "track",
            "kind",
            "process",
            "thread",
            "process_name",
            "thread_name",
            "label",
            "process_order",
            "thread_order",
        ];
        let filter = Filter { rank: Some(rank), ..Filter::default() };
        for batch in profile.chunks(Table::Tracks, &columns, filter)? {
            let batch = batch?;
            let values = Values::new(&batch);
            let (track, process, thread) = (values.ints("track"), values.texts("process"), values.texts("thread"));
            let (process_name, thread_name) = (values.texts("process_name"), values.texts("thread_name"));
            let (label, process_order) = (values.texts("label"), values.ints("process_order"));
            let (kind, thread_order) = (values.texts("kind"), values.ints("thread_order"));
            for row in 0..batch.len() {
                let mut title = |thread: Option<&str>, event: &'static str, value: Option<Value>| {
                    names.titles.extend(value.map(|value| Title {
                        process: process.at(row).to_owned(),
                        thread: thread.map(str::to_owned),
                        event,
                        value,
                    }));
                };
                let name = |text: Option<&str>| text.map(|text| Value::Name(text.to_owned()));
                title(None, "process_name", name(process_name.get(row)));
                title(None, "process_labels", label.get(row).map(|label| Value::Label(label.to_owned())));
                title(None, "process_sort_index", process_order.get(row).map(Value::Order));
                let own =
                    thread_name.get(row).filter(|name| kind.at(row) != "stream" || !is_derived(name, thread.at(row)));
                let own = own.map(|name| if kind.at(row) == "stream" { without_suffix(name) } else { name });
                title(Some(thread.at(row)), "thread_name", name(own));
                title(Some(thread.at(row)), "thread_sort_index", thread_order.get(row).map(Value::Order));
                let line = Place { process: process.at(row).to_owned(), thread: thread.at(row).to_owned() };
                names.lines.insert(track.at(row), line);
            }
        }
        Ok(names)
    }

    /// Process and thread of a track. One that the table `tracks` does not name (its writer was killed) is a thread of its own.
    pub fn line(&self, track: i64) -> Line<'_> {
        match self.lines.get(&track) {
            Some(place) => Line { process: &place.process, thread: Cow::Borrowed(&place.thread) },
            None => Line { process: "", thread: Cow::Owned(format!("track {track}")) },
        }
    }

    /// Writes what processes and threads are called.
    pub fn write(&self, file: &mut File) -> Result<(), Error> {
        for title in &self.titles {
            file.event(|event, _| {
                event.text("name", title.event);
                event.text("ph", "M");
                event.us("ts", 0);
                event.id("pid", &title.process);
                match &title.thread {
                    Some(thread) => event.id("tid", thread),
                    None => event.int("tid", 0),
                }
                event.object("args", |args: &mut Object<'_>| match &title.value {
                    Value::Name(name) => args.text("name", name),
                    Value::Label(label) => args.text("labels", label),
                    Value::Order(order) => args.int("sort_index", *order),
                });
            })?;
        }
        Ok(())
    }
}
