//! What was odd in the input: counted, with one example each, and kept in the profile.

use std::collections::BTreeMap;

use serde::Serialize;
use trace::Batch;
use trace::schema::DiagnosticRow;

macro_rules! anomalies {
    ($( $variant:ident $code:literal $meaning:literal, )*) => {
        /// An oddity that imports accept, and what they do about it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Anomaly { $( #[doc = $meaning] $variant, )* }

        impl Anomaly {
            /// All of them.
            pub const ALL: &[Anomaly] = &[$( Anomaly::$variant, )*];

            /// Its name for machines.
            pub fn code(self) -> &'static str {
                match self { $( Anomaly::$variant => $code, )* }
            }

            /// What it is and what was done, for people.
            pub fn meaning(self) -> &'static str {
                match self { $( Anomaly::$variant => $meaning, )* }
            }
        }
    };
}

anomalies! {
    ControlBytes "control_bytes" "raw control bytes in a text; kept as they are",
    BrokenEvent "broken_event" "an event that is no JSON (an unescaped quote, mostly); what could be read of it was kept",
    UnreadableEvent "unreadable_event" "an event, or bytes between or behind events, of which nothing could be used; skipped",
    OversizedEvent "oversized_event" "an event larger than the limit; skipped",
    InvalidUtf8 "invalid_utf8" "bytes that are no UTF-8; replaced by U+FFFD",
    Truncated "truncated" "the file ends in the middle; loaded up to its last whole event",
    MillionEvents "million_events" "exactly 1,000,000 events: the writer (XLA) cuts there silently, so the rest is missing",
    TextNumber "text_number" "a number written as a text; read as a number",
    SubNanosecond "sub_nanosecond" "a time finer than a nanosecond; rounded to the nearest, ties to even",
    TimeOutOfRange "time_out_of_range" "a time that 64 bits of nanoseconds cannot hold; the event was skipped",
    MissingTime "missing_time" "an event without a time; skipped",
    MissingDuration "missing_duration" "a complete event without a duration; taken as 0",
    LostTimestamp "lost_timestamp" "device work whose times the profiler lost (ts 0); kept, left out of all intervals",
    ZeroDuration "zero_duration" "slices of duration 0; kept",
    NegativeDuration "negative_duration" "slices that end before they start; kept, left out of all intervals",
    UnmatchedBegin "unmatched_begin" "a begin without its end; lasts to the last time seen on its track",
    UnmatchedEnd "unmatched_end" "an end without its begin; kept as an instant",
    PartialOverlap "partial_overlap" "slices that overlap their neighbours partly on one track; drawn in rows of their own",
    DuplicateCorrelation "duplicate_correlation" "correlation ids of several launches or several device slices (CUDA graphs); a slice belongs to the latest launch before it",
    WithoutLaunch "without_launch" "device work without a launch record; kept",
    BeforeLaunch "before_launch" "device work that starts before its launch; kept, its launch delay counts as 0",
    LargeFlowId "large_flow_id" "arrow ids above 2^53, which JavaScript tools round; read exactly",
    UnknownPhase "unknown_phase" "an event of an unknown phase; skipped",
    UnknownCategory "unknown_category" "slices of a category this program does not know; kept as host slices",
    ForeignFile "foreign_file" "a file in the folder that is no profile; skipped",
    EmptyTrace "empty_trace" "a file without any events",
    MissingRank "missing_rank" "ranks of the job that no file is of",
    AssumedRank "assumed_rank" "a file that does not state its rank; taken from its name, else from its place",
    RankConflict "rank_conflict" "two files that state the same rank; the later one was numbered anew",
    DifferentBases "different_bases" "ranks whose base times differ; each is added before ranks are compared",
    LooseAlignment "loose_alignment" "ranks whose collective ends still lie far apart when aligned; their offset may be wrong",
    DifferentJobs "different_jobs" "files that are hardly of one job (unlike world sizes, or clocks more than an hour apart); what compares ranks may mean nothing",
    NoCollectives "no_collectives" "ranks without collectives in common; their clocks are taken as they are",
    SumExceedsSpan "sum_exceeds_span" "streams whose durations add up to more than their span; busy time is the union",
    MissingTable "missing_table" "an optional table that the report lacks",
    SecretsSkipped "secrets_skipped" "the environment of the profiled process, and what is named like a credential; not copied",
    EmptyPlane "empty_plane" "planes without events; skipped",
    IgnoredField "ignored_field" "a field of an unexpected type; left out",
    OversizedText "oversized_text" "a text longer than the limit; cut",
}

/// How often an anomaly was seen, and the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How often.
    pub count: u64,
    /// The first one.
    pub example: Option<String>,
    /// Where the first one is: byte in the uncompressed source.
    pub at: Option<u64>,
}

/// One line of what `import` reports, and of the table `diagnostics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// The rank it was found in, if one.
    pub rank: Option<i64>,
    /// The file it was found in.
    pub source: String,
    /// What it is, for machines.
    pub code: &'static str,
    /// How often.
    pub count: u64,
    /// What it is and what was done, for people.
    pub meaning: &'static str,
    /// The first one.
    pub example: Option<String>,
    /// Where the first one is: byte in the uncompressed source.
    pub example_at: Option<u64>,
}

/// Counts of one source.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    seen: BTreeMap<Anomaly, Seen>,
}

/// An example is cut to this many bytes.
const EXAMPLE_BYTES: usize = 200;

impl Diagnostics {
    /// Counts one; the example is made for the first only.
    pub fn count<S: AsRef<str>>(&mut self, anomaly: Anomaly, example: impl FnOnce() -> S, at: impl Into<Option<u64>>) {
        match self.seen.entry(anomaly) {
            std::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().count += 1,
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(Seen { count: 1, example: Some(cut(example().as_ref())), at: at.into() });
            }
        }
    }

    /// Adds this many, with an example for the first.
    pub fn add(&mut self, anomaly: Anomaly, count: u64, example: Option<String>) {
        if count > 0 {
            self.merge_one(anomaly, Seen { count, example: example.as_deref().map(cut), at: None });
        }
    }

    /// Adds the counts of another part of the same source; the example nearest to its start stays.
    pub fn merge(&mut self, other: Diagnostics) {
        for (anomaly, seen) in other.seen {
            self.merge_one(anomaly, seen);
        }
    }

    fn merge_one(&mut self, anomaly: Anomaly, other: Seen) {
        match self.seen.entry(anomaly) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(other);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => {
                let seen = entry.get_mut();
                seen.count += other.count;
                if other.at < seen.at || seen.example.is_none() {
                    (seen.example, seen.at) = (other.example, other.at);
                }
            }
        }
    }

    /// How often this was seen.
    pub fn of(&self, anomaly: Anomaly) -> u64 {
        self.seen.get(&anomaly).map_or(0, |seen| seen.count)
    }

    /// All that was seen, as lines of this source.
    pub fn lines(&self, rank: Option<i64>, source: &str) -> Vec<Diagnostic> {
        let line = |(anomaly, seen): (&Anomaly, &Seen)| Diagnostic {
            rank,
            source: source.to_owned(),
            code: anomaly.code(),
            count: seen.count,
            meaning: anomaly.meaning(),
            example: seen.example.clone(),
            example_at: seen.at,
        };
        self.seen.iter().map(line).collect()
    }
}

impl Diagnostic {
    /// Appends the row of the table `diagnostics`.
    pub(super) fn push(&self, rows: &mut Batch) {
        rows.push(&DiagnosticRow {
            rank: self.rank,
            source: &self.source,
            code: self.code,
            count: self.count as i64,
            meaning: self.meaning,
            example: self.example.as_deref(),
            example_at: self.example_at.map(|at| at as i64),
        });
    }
}

fn cut(text: &str) -> String {
    if text.len() <= EXAMPLE_BYTES {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(EXAMPLE_BYTES);
    format!("{}…", &text[..end])
}
