//! Begin and end events, paired.

use rustc_hash::FxHashMap;
use trace::NO_INT;
use trace::schema::{HostRow, InstantRow, Table};

use super::{Cursor, Ints, Place, Spills, TableRuns};
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::import::gather::Gather;
use crate::import::runs::{Run, Values};

/// Open begins that are looked through for an end: no program nests deeper, and a file that does would take quadratic time.
const DEEPEST: usize = 4096;

/// Pairs begins with ends, track by track in the order of time, and pushes the slices to `gather`.
pub(in crate::import) fn pair(
    spills: &Spills,
    runs: &[Run],
    places: &[Place],
    gather: &mut Gather<'_>,
) -> Result<(), Error> {
    let table = Table::Host;
    let open = spills.runs(runs, table, true);
    if open.is_empty() {
        return Ok(());
    }
    let table_runs = TableRuns::new(open, table, false);
    let texts = |name: &str| table_runs.texts(name);
    let (flag, name, kind, category, args, key) =
        (texts("flag"), texts("name"), texts("kind"), texts("category"), texts("args"), texts("inputs"));
    let ints = |name: &str| table_runs.ints(name);
    let (correlation, external_id, event_index) = (ints("correlation"), ints("external_id"), ints("event_index"));
    let (sequence, forward_thread, record_function) =
        (ints("sequence"), ints("forward_thread"), ints("record_function"));
    let (python_id, python_parent, python_module) = (ints("python_id"), ints("python_parent"), ints("python_module"));
    let text = |column: &[Values<'_, u32>], cursor| -> Option<&str> { table_runs.text(column, cursor) };
    for place in places {
        // Begins that wait for their end, of each key; a thread's have none.
        let mut waiting: FxHashMap<Option<&str>, Vec<(Cursor, i64)>> = FxHashMap::default();
        let mut last = i64::MIN;
        let emit = |gather: &mut Gather<'_>, begin: Cursor, ts: i64, end: i64, flag, end_args: Option<&str>| {
            let int = |column: &Ints<'_>| Some(column.get(begin)).filter(|value| *value != NO_INT);
            let joined = join(text(&args, begin), end_args, text(&key, begin));
            gather.push(&HostRow {
                track: place.slot.into(),
                ts,
                dur: end.saturating_sub(ts),
                kind: text(&kind, begin).unwrap_or("other"),
                category: text(&category, begin),
                name: text(&name, begin).unwrap_or_default(),
                correlation: int(&correlation),
                external_id: int(&external_id),
                sequence: int(&sequence),
                forward_thread: int(&forward_thread),
                event_index: int(&event_index),
                record_function: int(&record_function),
                python_id: int(&python_id),
                python_parent: int(&python_parent),
                python_module: int(&python_module),
                flag,
                args: joined.as_deref(),
                ..HostRow::default()
            })
        };
        for (cursor, ts, _) in table_runs.rows(place.slot) {
            last = last.max(ts);
            let open = waiting.entry(text(&key, cursor)).or_default();
            if text(&flag, cursor) == Some("begin") {
                open.push((cursor, ts));
                continue;
            }
            // The innermost begin of the end's name; of any name where it states none.
            let wanted = text(&name, cursor).unwrap_or_default();
            let deepest = open.len().saturating_sub(DEEPEST);
            let fits = |(begin, _): &(Cursor, i64)| wanted.is_empty() || text(&name, *begin) == Some(wanted);
            let found = open[deepest..].iter().rposition(fits).map(|at| deepest + at);
            match found {
                Some(at) => {
                    let (begin, started) = open.remove(at);
                    emit(gather, begin, started, ts, None, text(&args, cursor))?;
                }
                None => {
                    gather.odd(Anomaly::UnmatchedEnd, || wanted, None);
                    gather.push(&InstantRow {
                        rank: 0,
                        track: place.slot.into(),
                        ts,
                        name: wanted,
                        category: text(&category, cursor),
                        scope: Some("thread"),
                        args: text(&args, cursor),
                    })?;
                }
            }
        }
        let mut unfinished: Vec<(Cursor, i64)> = waiting.into_values().flatten().collect();
        unfinished.sort_by_key(|(cursor, ts)| (*ts, *cursor));
        for (begin, ts) in unfinished {
            gather.odd(Anomaly::UnmatchedBegin, || text(&name, begin).unwrap_or_default(), None);
            emit(gather, begin, ts, last, Some("unfinished"), None)?;
        }
    }
    Ok(())
}

/// One object of the arguments of both ends, and of the id they were paired by.
fn join(begin: Option<&str>, end: Option<&str>, id: Option<&str>) -> Option<String> {
    let id = id.map(|id| format!("{{\"id\":{}}}", serde_json::Value::from(id)));
    let parts: Vec<&str> = [begin, end, id.as_deref()].into_iter().flatten().collect();
    match parts.as_slice() {
        [] => None,
        [one] => Some((*one).to_owned()),
        many => {
            // They are objects: the importer wrote them.
            let fields: Vec<&str> = many
                .iter()
                .map(|object| {
                    object.strip_prefix('{').unwrap_or(object).trim_end().strip_suffix('}').unwrap_or(object).trim()
                })
                .filter(|fields| !fields.is_empty())
                .collect();
            Some(format!("{{{}}}", fields.join(",")))
        }
    }
}
