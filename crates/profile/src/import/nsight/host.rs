//! What ran on host threads: calls of the CUDA libraries, NVTX ranges and marks, other traced calls, the profiler's own work.

use rustc_hash::FxHashMap;
use trace::schema::{HostRow, InstantRow};

use super::Report;
use super::sqlite::{MAX_TEXT_BYTES, Values};
use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::json::Object;

/// Tables of traced calls, with their kind in the table `host` and what is said of their category.
const CALLS: [(&str, &str, Option<&str>); 6] = [
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "runtime", None),
    ("CUPTI_ACTIVITY_KIND_OVERHEAD", "overhead", None),
    ("PROFILER_OVERHEAD", "overhead", None),
    ("OSRT_API", "other", Some("osrt")),
    ("CUDNN_EVENTS", "other", Some("cudnn")),
    ("CUBLAS_EVENTS", "other", Some("cublas")),
];

/// Domains and categories of NVTX that are kept with their names.
const MAX_NVTX_NAMES: usize = 1 << 16;

/// `ENUM_NSYS_EVENT_TYPE` of NVTX rows.
mod nvtx {
    pub const CATEGORY: i64 = 33;
    pub const MARK: i64 = 34;
    pub const PUSH: i64 = 35;
    pub const START: i64 = 37;
    pub const PUSH_POP: i64 = 59;
    pub const START_END: i64 = 60;
    pub const DOMAIN: i64 = 75;
}

/// A slice of a thread before it has its track.
struct Call<'c> {
    start: Option<i64>,
    end: Option<i64>,
    thread: Option<i64>,
    kind: &'static str,
    category: Option<&'static str>,
    name: &'c str,
    correlation: Option<i64>,
    sequence: Option<i64>,
    /// The line beside the thread for what does not nest with its calls.
    line: &'static str,
}

impl Report<'_, '_, '_> {
    /// Reads all tables of host threads.
    pub(super) fn host(&mut self) -> Result<(), Error> {
        for (table, kind, category) in CALLS {
            self.calls(table, kind, category)?;
        }
        for table in self.database.beginning("NVTX_EVENTS") {
            self.nvtx(&table)?;
        }
        Ok(())
    }

    fn calls(&mut self, table: &str, kind: &'static str, category: Option<&'static str>) -> Result<(), Error> {
        let columns =
            ["start", "end", "globalTid", "nameId", "correlationId", "eventClass", "returnValue", "overheadType"];
        self.events += self.database.scan(table, &columns, |row| {
            let mut int = |at| row.int(at, self.sink.gather);
            let (start, end, thread, name) = (int(0), int(1), int(2), int(3));
            let (correlation, class, returned, overhead) = (int(4), int(5), int(6), int(7));
            let full = self.strings.get(name, self.sink.gather)?;
            let full = full.as_deref().unwrap_or_else(|| overhead.map_or("unknown call", overhead_name));
            let name = unversioned(full);
            let driver =
                kind == "runtime" && (class == Some(1) || (name.starts_with("cu") && !name.starts_with("cuda")));
            let call = Call {
                start,
                end,
                thread,
                kind: if driver { "driver" } else { kind },
                category,
                name,
                correlation: correlation.filter(|&id| id != 0 && kind == "runtime"),
                sequence: None,
                line: if kind == "overhead" { " overhead" } else { "" },
            };
            self.sink.call(&call, |args| {
                if name.len() < full.len() {
                    args.text("api", full);
                }
                if kind == "overhead" {
                    args.int("call correlation", correlation);
                    if let Some(overhead) = overhead {
                        args.text("overhead", overhead_name(overhead));
                    }
                }
                args.int("return value", returned.filter(|&value| value != 0));
            })
        })?;
        Ok(())
    }

    fn nvtx(&mut self, table: &str) -> Result<(), Error> {
        let columns = [
            "start",
            "end",
            "eventType",
            "globalTid",
            "text",
            "textId",
            "domainId",
            "category",
            "int64Value",
            "uint64Value",
            "int32Value",
            "uint32Value",
            "doubleValue",
            "floatValue",
            "jsonText",
            "jsonTextId",
            "rangeId",
            "endGlobalTid",
        ];
        let (mut domains, mut categories) = (FxHashMap::default(), FxHashMap::default());
        self.database.scan(table, &columns[..8], |row| {
            let kind = row.int(2, self.sink.gather);
            if matches!(kind, Some(nvtx::DOMAIN | nvtx::CATEGORY)) {
                let domain = row.int(6, self.sink.gather).unwrap_or(0);
                let category = row.int(7, self.sink.gather).unwrap_or(0);
                if let Some(text) = self.nvtx_text(row, 4, 5)?
                    && domains.len() + categories.len() < MAX_NVTX_NAMES
                {
                    if kind == Some(nvtx::DOMAIN) {
                        domains.insert(domain, text);
                    } else {
                        categories.insert((domain, category), text);
                    }
                }
            }
            Ok(())
        })?;
        self.events += self.database.scan(table, &columns, |row| {
            let mut int = |at| row.int(at, self.sink.gather);
            let (start, end, kind, thread) = (int(0), int(1), int(2).unwrap_or(nvtx::PUSH_POP), int(3));
            let (domain, category) = (int(6).unwrap_or(0), int(7).unwrap_or(0));
            let integers = [int(8), int(9), int(10), int(11)];
            let (range, end_thread) = (int(16), int(17));
            let floats = [row.float(12, self.sink.gather), row.float(13, self.sink.gather)];
            let is_range = matches!(kind, nvtx::PUSH | nvtx::START | nvtx::PUSH_POP | nvtx::START_END);
            if !is_range && kind != nvtx::MARK {
                return Ok(());
            }
            let text = self.nvtx_text(row, 4, 5)?.unwrap_or_default();
            let json = self.nvtx_text(row, 14, 15)?;
            let operator = is_range.then(|| Operator::of(&text)).flatten();
            let own = |args: &mut Object<'_>| {
                if let Some(operator) = &operator {
                    args.int("op_id", operator.id);
                    if let Some(sizes) = operator.sizes {
                        args.text("sizes", sizes);
                    }
                }
                if domain != 0 {
                    match domains.get(&domain) {
                        Some(name) => args.text("domain", name),
                        None => args.int("domain", domain),
                    }
                }
                if category != 0 {
                    match categories.get(&(domain, category)) {
                        Some(name) => args.text("category", name),
                        None => args.int("category", category),
                    }
                }
                args.int("payload", integers.iter().flatten().next().copied());
                if let Some(value) = floats.iter().flatten().next() {
                    args.float("payload", *value);
                }
                if let Some(json) = json.as_deref() {
                    if crate::json::is_json(json) { args.raw("json", json) } else { args.text("json", json) }
                }
                args.int("range id", range.filter(|_| kind == nvtx::START_END));
                args.int("end thread", end_thread.filter(|_| end_thread != thread).map(super::names::thread_of));
            };
            if kind == nvtx::MARK {
                return self.sink.mark(start, thread, &text, own);
            }
            let call = Call {
                start,
                end,
                thread,
                kind: if operator.is_some() { "operator" } else { "annotation" },
                category: None,
                name: operator.as_ref().map_or(&text, |operator| operator.name),
                correlation: None,
                sequence: operator.as_ref().and_then(|operator| operator.sequence),
                // Ranges with a start and an end of their own need not nest.
                line: if matches!(kind, nvtx::START | nvtx::START_END) { " ranges" } else { "" },
            };
            self.sink.call(&call, own)
        })?;
        Ok(())
    }

    /// The text of an NVTX row, its own or a registered one.
    fn nvtx_text(&mut self, row: &Values<'_, '_>, text: usize, id: usize) -> Result<Option<String>, Error> {
        if let Some(text) = row.text(text, self.sink.gather) {
            return Ok(Some(text));
        }
        let id = row.int(id, self.sink.gather);
        Ok(self.strings.get(id, self.sink.gather)?.map(|text| text.to_string()))
    }
}

impl super::Sink<'_, '_> {
    fn call(&mut self, call: &Call<'_>, own: impl FnOnce(&mut Object<'_>)) -> Result<(), Error> {
        let Some(start) = call.start else { return self.no_time(call.name) };
        let (part, track) = self.places.thread(call.thread, call.line, self.gather)?;
        let dur = match call.end {
            Some(end) => match end.checked_sub(start).filter(|&dur| dur != i64::MIN) {
                Some(dur) => dur,
                None => {
                    self.gather.odd(Anomaly::TimeOutOfRange, || format!("{} from {start}", call.name), None);
                    return Ok(());
                }
            },
            None => 0,
        };
        let flag = if dur < 0 {
            self.gather.odd(Anomaly::NegativeDuration, || format!("{} from {start}", call.name), None);
            Some("negative_duration")
        } else if call.end.is_none() {
            Some("begin")
        } else {
            None
        };
        let args = self.args(own);
        let row = HostRow {
            rank: part.into(),
            track,
            ts: start,
            dur,
            depth: 0,
            kind: call.kind,
            category: call.category,
            name: &call.name[..call.name.floor_char_boundary(MAX_TEXT_BYTES)],
            correlation: call.correlation,
            external_id: None,
            sequence: call.sequence,
            forward_thread: None,
            event_index: None,
            record_function: None,
            python_id: None,
            python_parent: None,
            python_module: None,
            flow: None,
            implied: None,
            flag,
            inputs: None,
            args: args.as_deref(),
        };
        if call.end.is_none() {
            // The report ends before the range does.
            return self.gather.push_pending(&row);
        }
        if let Some(id) = call.correlation {
            self.launch_arrow(part, track, start, id, "s")?;
        }
        self.gather.push(&row)
    }

    fn mark(
        &mut self,
        start: Option<i64>,
        thread: Option<i64>,
        name: &str,
        own: impl FnOnce(&mut Object<'_>),
    ) -> Result<(), Error> {
        let Some(ts) = start else { return self.no_time(name) };
        let (part, track) = self.places.thread(thread, "", self.gather)?;
        let args = self.args(own);
        self.gather.push(&InstantRow {
            rank: part.into(),
            track,
            ts,
            name,
            category: None,
            scope: Some("thread"),
            args: args.as_deref(),
        })
    }
}

/// A range of `torch.autograd.profiler.emit_nvtx`: `aten::add, seq = 5, op_id = 3, sizes = [[2, 3], []]`. Its number is part
/// of its text, so without taking it apart every operator would have a name of its own.
struct Operator<'t> {
    name: &'t str,
    sequence: Option<i64>,
    id: Option<i64>,
    sizes: Option<&'t str>,
}

impl<'t> Operator<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let cut = [", seq = ", ", op_id = "].iter().filter_map(|key| text.find(key)).min()?;
        let (name, rest) = text.split_at(cut);
        let mut operator = Operator { name, sequence: None, id: None, sizes: None };
        let (numbers, sizes) = match rest.split_once(", sizes = ") {
            Some((numbers, sizes)) => (numbers, Some(sizes)),
            None => (rest, None),
        };
        operator.sizes = sizes;
        for field in numbers.split(", ").skip(1) {
            let (key, value) = field.split_once(" = ")?;
            let value = value.parse().ok();
            match key {
                "seq" => operator.sequence = value,
                "op_id" => operator.id = value,
                // Anything else would be lost: the text stays whole.
                _ => return None,
            }
        }
        Some(operator)
    }
}

/// The name of a call without the version that the profiler appends: `cudaLaunchKernel_v7000`.
fn unversioned(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((short, version)) if !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit()) => short,
        _ => name,
    }
}

/// `ENUM_CUPTI_OVERHEAD_TYPE`
fn overhead_name(kind: i64) -> &'static str {
    match kind {
        2 => "Driver JIT compiler",
        3 => "Buffer flush",
        4 => "Instrumentation",
        5 => "Resource creation or destruction",
        6 => "Runtime module loading",
        7 => "Lazy function loading",
        8 => "Command buffer full",
        _ => "Overhead",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        assert_eq!(unversioned("cudaLaunchKernel_v7000"), "cudaLaunchKernel");
        assert_eq!(unversioned("cuMemAlloc_v2_v3020"), "cuMemAlloc_v2");
        assert_eq!(unversioned("step_v"), "step_v");
        let operator = Operator::of("aten::view, op_id = 314290").unwrap();
        assert_eq!(
            (operator.name, operator.id, operator.sequence, operator.sizes),
            ("aten::view", Some(314_290), None, None)
        );
        let operator = Operator::of("aten::add, seq = 5, op_id = 3, sizes = [[2, 3], []]").unwrap();
        assert_eq!((operator.name, operator.id, operator.sequence), ("aten::add", Some(3), Some(5)));
        assert_eq!(operator.sizes, Some("[[2, 3], []]"));
        assert!(Operator::of("step 5").is_none());
        assert!(Operator::of("a, seq = 5, mine = 3").is_none());
    }
}
