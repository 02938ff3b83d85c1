//! Every table and column of a profile, defined once: rows, files and documentation follow from here.

use crate::batch::{Cell, Cells};

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `BIGINT`
    Int,
    /// `DOUBLE`
    Float,
    /// `VARCHAR`
    Text,
}

/// How a column is laid out in its file, before zstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Differences between neighbours, bit-packed: times, and ids that count up.
    Delta,
    /// Numbers of distinct values: names, and what repeats.
    Dictionary,
    /// All first bytes, then all second bytes and so on: numbers whose high bytes are alike.
    Split,
    /// As it is.
    Plain,
}

/// One column.
#[derive(Clone, Copy, Debug)]
pub struct ColumnSpec {
    /// Its name in the files.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether a value may be missing.
    pub nullable: bool,
    /// How it is laid out until there are enough rows to see what is smallest.
    pub layout: Layout,
    /// What it means, with its unit.
    pub meaning: &'static str,
}

/// A typed row of a table.
pub trait Row {
    /// The table.
    const TABLE: Table;
    /// Appends each value to its column.
    fn push(&self, cells: &mut Cells<'_>);
}

/// Bits of the column `implied`: what the source says and other columns say already, so that its own column is null.
pub mod implied {
    /// The external id repeats the correlation, and names no operator.
    pub const SAME_AS_CORRELATION: i64 = 1;
    /// The Python parent is the Python frame around the slice.
    pub const ENCLOSING_FRAME: i64 = 2;
}

/// The column `flow`: bits for the ends of launch arrows, and above them the category and name of the arrows.
pub mod flow {
    /// An arrow starts here.
    pub const STARTS: i64 = 1;
    /// An arrow ends here.
    pub const ENDS: i64 = 2;
    /// Value over the bits, category, name: as Kineto wrote them over the years, the newest first.
    pub const LABELS: [(i64, &str, &str); 3] =
        [(0, "ac2g", "ac2g"), (4, "async", "launch"), (8, "async_cpu_to_gpu", "async_gpu")];
}

macro_rules! tables {
    ($(
        $(#[doc = $meaning:literal])*
        $table:ident $folder:literal $row:ident $(<$life:lifetime>)? {
            $( #[doc = $text:literal] $field:ident: $type:ty = $layout:ident, )*
        }
    )*) => {
        /// The tables of a profile, each a folder of Parquet files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Table {
            $( $(#[doc = $meaning])* $table, )*
        }

        impl Table {
            /// All tables.
            pub const ALL: &[Table] = &[$( Table::$table, )*];

            /// The folder of the table's files.
            pub fn folder(self) -> &'static str {
                match self { $( Table::$table => $folder, )* }
            }

            /// What the table holds.
            pub fn meaning(self) -> &'static str {
                match self { $( Table::$table => concat!($($meaning),*).trim_ascii(), )* }
            }

            /// The columns, in the order of the files.
            pub fn columns(self) -> &'static [ColumnSpec] {
                match self { $( Table::$table => $row::COLUMNS, )* }
            }
        }

        $(
            $(#[doc = $meaning])*
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            pub struct $row $(<$life>)? {
                $( #[doc = $text] pub $field: $type, )*
            }

            impl $(<$life>)? $row $(<$life>)? {
                const COLUMNS: &'static [ColumnSpec] = &[$(
                    ColumnSpec {
                        name: stringify!($field),
                        kind: <$type as Cell>::KIND,
                        nullable: <$type as Cell>::NULLABLE,
                        layout: Layout::$layout,
                        meaning: $text.trim_ascii(),
                    },
                )*];
            }

            impl $(<$life>)? Row for $row $(<$life>)? {
                const TABLE: Table = Table::$table;
                fn push(&self, cells: &mut Cells<'_>) {
                    $( self.$field.push(cells); )*
                }
            }
        )*
    };
}

impl Table {
    /// Index of the column with this name.
    pub fn column(self, name: &str) -> Option<usize> {
        self.columns().iter().position(|column| column.name == name)
    }
}

tables! {
    /// What ran on host threads: operators, runtime calls, annotations, Python frames, spans of our own recorder.
    Host "host" HostRow<'a> {
        /// The rank (process of the job) it belongs to.
        rank: i64 = Dictionary,
        /// The track, see `tracks`: one per thread.
        track: i64 = Dictionary,
        /// Start, ns, on the clock of the rank (see `ranks.offset_ns`).
        ts: i64 = Delta,
        /// Duration, ns; negative only when the source says so (`flag` = `negative_duration`).
        dur: i64 = Dictionary,
        /// Row within the track: 0 at the bottom of the stack. Slices of one row never overlap.
        depth: i64 = Dictionary,
        /// `operator`, `runtime`, `driver`, `annotation`, `python`, `sync`, `overhead`, `span` or `other`.
        kind: &'a str = Dictionary,
        /// The category as the source wrote it.
        category: Option<&'a str> = Dictionary,
        /// Name.
        name: &'a str = Dictionary,
        /// Joins a launch to what it started on a device (1:N).
        correlation: Option<i64> = Delta,
        /// Joins runtime calls and device work to the operator that caused them.
        external_id: Option<i64> = Delta,
        /// Autograd's number: shared by an operator and its gradient.
        sequence: Option<i64> = Delta,
        /// Thread of the forward operator, for an operator of the backward pass.
        forward_thread: Option<i64> = Dictionary,
        /// Kineto's `Ev Idx` (2022: `Profiler Event Index`).
        event_index: Option<i64> = Delta,
        /// Kineto's `Record function id`.
        record_function: Option<i64> = Delta,
        /// Kineto's `Python id`.
        python_id: Option<i64> = Delta,
        /// Kineto's `Python parent id`.
        python_parent: Option<i64> = Delta,
        /// Kineto's `Python module id`.
        python_module: Option<i64> = Delta,
        /// Ends of launch arrows here, whose id is `correlation`: 1 a start, 2 an end, 3 both. Their category is `ac2g`; plus 4: `async` (2021), plus 8: `async_cpu_to_gpu` (2022).
        flow: Option<i64> = Dictionary,
        /// What the source says and other columns imply, so that its column is null: 1 the external id repeats the correlation (and names no operator), 2 the Python parent is the frame around it.
        implied: Option<i64> = Dictionary,
        /// Why the slice is not to be trusted: `lost_timestamp`, `negative_duration`, `unfinished`.
        flag: Option<&'a str> = Dictionary,
        /// Shapes, strides, types and values of the operands: a JSON object.
        inputs: Option<&'a str> = Dictionary,
        /// Everything else the source says: a JSON object.
        args: Option<&'a str> = Dictionary,
    }

    /// What ran on devices: kernels, copies, fills, collectives, one track per stream.
    Device "device" DeviceRow<'a> {
        /// The rank it belongs to.
        rank: i64 = Dictionary,
        /// The track, see `tracks`: one per stream.
        track: i64 = Dictionary,
        /// Device number.
        device: i64 = Dictionary,
        /// Stream number; -1 where the source names none.
        stream: i64 = Dictionary,
        /// Start, ns, on the clock of the rank (see `ranks.offset_ns`).
        ts: i64 = Delta,
        /// Duration, ns.
        dur: i64 = Dictionary,
        /// Row within the track: above 0 where slices of one stream overlap.
        depth: i64 = Dictionary,
        /// `kernel`, `memcpy`, `memset`, `collective`, `sync`, `annotation` or `other`.
        kind: &'a str = Dictionary,
        /// The category as the source wrote it.
        category: Option<&'a str> = Dictionary,
        /// Name.
        name: &'a str = Dictionary,
        /// Joins it to its launch.
        correlation: Option<i64> = Delta,
        /// Joins it to the operator that caused it.
        external_id: Option<i64> = Delta,
        /// Bytes moved, set or communicated.
        bytes: Option<i64> = Dictionary,
        /// Bandwidth as the source states it, GB/s.
        bandwidth: Option<f64> = Dictionary,
        /// Process group of a collective.
        group: Option<&'a str> = Dictionary,
        /// Number of the collective within its group.
        sequence: Option<i64> = Delta,
        /// Element type, where the source names it.
        dtype: Option<&'a str> = Dictionary,
        /// Ends of launch arrows here, whose id is `correlation`: 1 a start, 2 an end, 3 both. Their category is `ac2g`; plus 4: `async` (2021), plus 8: `async_cpu_to_gpu` (2022).
        flow: Option<i64> = Dictionary,
        /// What the source says and other columns imply, so that its column is null: 1 the external id repeats the correlation (and names no operator), 2 the Python parent is the frame around it.
        implied: Option<i64> = Dictionary,
        /// Why the slice is not to be trusted: `lost_timestamp`, `negative_duration`, `unfinished`.
        flag: Option<&'a str> = Dictionary,
        /// Everything else the source says: a JSON object.
        args: Option<&'a str> = Dictionary,
    }

    /// Allocations and frees.
    Memory "memory" MemoryRow<'a> {
        /// The rank it belongs to.
        rank: i64 = Dictionary,
        /// The track of the thread.
        track: i64 = Dictionary,
        /// When, ns.
        ts: i64 = Delta,
        /// What the source calls it; our recorder: `alloc`, `free`, `high_water`.
        name: &'a str = Dictionary,
        /// Address; unsigned 64-bit addresses above 2^63 appear negative.
        address: Option<i64> = Dictionary,
        /// Bytes: positive allocates, negative frees.
        bytes: Option<i64> = Dictionary,
        /// Bytes in use after it.
        allocated: Option<i64> = Dictionary,
        /// Bytes held from the system after it.
        reserved: Option<i64> = Dictionary,
        /// Kind of device, as the source numbers it (Kineto: 0 CPU, 1 CUDA).
        device_type: Option<i64> = Dictionary,
        /// Device number.
        device: Option<i64> = Dictionary,
        /// Kineto's `Ev Idx` (2022: `Profiler Event Index`).
        event_index: Option<i64> = Delta,
        /// Everything else the source says: a JSON object.
        args: Option<&'a str> = Dictionary,
    }

    /// Values over time: utilisation, bytes, hardware counters.
    Counters "counters" CounterRow<'a> {
        /// The rank it belongs to.
        rank: i64 = Dictionary,
        /// The track.
        track: i64 = Dictionary,
        /// When, ns.
        ts: i64 = Delta,
        /// What is counted.
        name: &'a str = Dictionary,
        /// Which of its series: a core, an interface; empty for a single one.
        series: &'a str = Dictionary,
        /// The value.
        value: f64 = Dictionary,
        /// Unit of the value, where known.
        unit: Option<&'a str> = Dictionary,
    }

    /// Points in time.
    Instants "instants" InstantRow<'a> {
        /// The rank it belongs to.
        rank: i64 = Dictionary,
        /// The track.
        track: i64 = Dictionary,
        /// When, ns.
        ts: i64 = Delta,
        /// Name.
        name: &'a str = Dictionary,
        /// The category as the source wrote it.
        category: Option<&'a str> = Dictionary,
        /// What it is of: `thread`, `process` or `global`.
        scope: Option<&'a str> = Dictionary,
        /// Everything else the source says: a JSON object.
        args: Option<&'a str> = Dictionary,
    }

    /// Ends of arrows that no `flow` column says: forward to backward, and whatever a source draws.
    Flows "flows" FlowRow<'a> {
        /// The rank it belongs to.
        rank: i64 = Dictionary,
        /// The track of this end.
        track: i64 = Dictionary,
        /// When, ns.
        ts: i64 = Delta,
        /// Joins the ends of an arrow, within a category.
        id: Option<i64> = Delta,
        /// The same, where the source's id is no 64-bit integer.
        id_text: Option<&'a str> = Dictionary,
        /// `s` starts, `t` passes through, `f` ends.
        phase: &'a str = Dictionary,
        /// The category as the source wrote it.
        category: Option<&'a str> = Dictionary,
        /// Name.
        name: &'a str = Dictionary,
        /// Kineto's binding point.
        binding: Option<&'a str> = Dictionary,
    }

    /// The lines of the timeline.
    Tracks "tracks" TrackRow<'a> {
        /// The rank it belongs to.
        rank: i64 = Plain,
        /// Number of the track; unique in the profile.
        track: i64 = Plain,
        /// `thread`, `stream`, `counter` or `other`.
        kind: &'a str = Plain,
        /// Process, as the source writes it.
        process: &'a str = Plain,
        /// Thread, as the source writes it.
        thread: &'a str = Plain,
        /// Device of a stream.
        device: Option<i64> = Plain,
        /// Stream number.
        stream: Option<i64> = Plain,
        /// Name of the process.
        process_name: Option<&'a str> = Plain,
        /// Name of the thread or stream.
        thread_name: Option<&'a str> = Plain,
        /// Label of the process.
        label: Option<&'a str> = Plain,
        /// Order of the process on a page.
        process_order: Option<i64> = Plain,
        /// Order of the thread on a page.
        thread_order: Option<i64> = Plain,
    }

    /// The ranks, and how their clocks were aligned. Time on the common clock = `ts` + `offset_ns`.
    Ranks "ranks" RankRow<'a> {
        /// The rank.
        rank: i64 = Plain,
        /// The file it came from; empty for our own recorder.
        source: &'a str = Plain,
        /// How the rank was found: `distributedInfo`, `file name`, `order`, `recorder`, `device`.
        rank_from: &'a str = Plain,
        /// Ranks in the job, where the source says.
        world_size: Option<i64> = Plain,
        /// Host name, where the source says.
        host: Option<&'a str> = Plain,
        /// What was added to the source's times, ns: its `baseTimeNanoseconds`, 0 without.
        base_ns: i64 = Plain,
        /// To be added to bring the rank onto the clock of the first rank, ns.
        offset_ns: i64 = Plain,
        /// Spread that is left: median of the absolute deviations of matched collective ends, ns.
        residual_ns: Option<i64> = Plain,
        /// Collectives matched with the first rank.
        matched_collectives: i64 = Plain,
        /// How they were matched: `group and sequence` or `order`.
        matched_by: Option<&'a str> = Plain,
        /// Wall-clock time (UTC, ns since 1970) minus `ts`, where the source tells: 0 where its clock is that already.
        wall_offset_ns: Option<i64> = Plain,
        /// Resolution of the source's times, ns.
        resolution_ns: i64 = Plain,
        /// Earliest start of any slice, ns.
        first_ns: Option<i64> = Plain,
        /// Latest end of any slice, ns.
        last_ns: Option<i64> = Plain,
    }

    /// The devices a source describes.
    Devices "devices" DevicePropertiesRow<'a> {
        /// The rank that sees it.
        rank: i64 = Plain,
        /// Device number.
        device: i64 = Plain,
        /// Name of the model.
        name: &'a str = Plain,
        /// Memory, bytes.
        memory_bytes: Option<i64> = Plain,
        /// Streaming multiprocessors (compute units).
        multiprocessors: Option<i64> = Plain,
        /// Everything the source says of it: a JSON object.
        properties: Option<&'a str> = Plain,
    }

    /// What a source says of itself.
    Metadata "metadata" MetadataRow<'a> {
        /// The rank whose file says it.
        rank: i64 = Plain,
        /// Key.
        key: &'a str = Plain,
        /// Value: JSON.
        value: &'a str = Plain,
    }

    /// What was odd in the input, or lost while recording.
    Diagnostics "diagnostics" DiagnosticRow<'a> {
        /// The rank it was found in, if one.
        rank: Option<i64> = Plain,
        /// The file it was found in.
        source: &'a str = Plain,
        /// What it is, for machines.
        code: &'a str = Plain,
        /// How often.
        count: i64 = Plain,
        /// What it is and what was done, for people.
        meaning: &'a str = Plain,
        /// The first one.
        example: Option<&'a str> = Plain,
        /// Where the first one is: byte in the uncompressed source.
        example_at: Option<i64> = Plain,
    }

    /// Tracks with many slices, summarised for far zoom. A level cuts time into buckets of one width; the short slices of a row
    /// that start in one bucket are one line here. A slice as long as a bucket keeps a line of its own.
    Overview "overview" OverviewRow<'a> {
        /// The track.
        track: i64 = Dictionary,
        /// Row within the track.
        depth: i64 = Dictionary,
        /// The level: width of its buckets, ns, a power of two.
        width: i64 = Dictionary,
        /// Start of the first slice, ns.
        ts: i64 = Delta,
        /// From the start of the first slice to the end of the last, ns.
        dur: i64 = Dictionary,
        /// Of that, time that no slice covers, ns. What reaches beyond the bucket is covered by the last slice.
        idle: i64 = Dictionary,
        /// Slices; where it is 1, the line is the slice itself.
        count: i64 = Dictionary,
        /// Name that covers most.
        name: &'a str = Dictionary,
        /// Correlation of a single slice.
        correlation: Option<i64> = Delta,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_and_column_is_named_once_and_explained() {
        let mut folders: Vec<&str> = Table::ALL.iter().map(|table| table.folder()).collect();
        folders.sort_unstable();
        folders.dedup();
        assert_eq!(folders.len(), Table::ALL.len());
        for table in Table::ALL {
            assert!(table.meaning().ends_with('.'), "{table:?}");
            for (at, column) in table.columns().iter().enumerate() {
                assert_eq!(table.column(column.name), Some(at), "{table:?}.{}", column.name);
                assert!(column.meaning.ends_with('.'), "{table:?}.{}", column.name);
            }
        }
    }
}
