use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

use parquet::basic::Type as Physical;
use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use rustc_hash::FxHashMap;

use super::source::Source;
use super::{Error, GROUP_ROWS, Manifest};
use crate::batch::{Batch, Column, NO_INT, NO_TEXT};
use crate::schema::{Kind, Table};
use crate::texts::Texts;

/// A segment that claims more rows in one group is damaged: nothing of that size is allocated.
const MAX_GROUP_ROWS: usize = GROUP_ROWS << 8;

/// Which rows to read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter {
    /// Of this rank.
    pub rank: Option<i64>,
    /// Of this track.
    pub track: Option<i64>,
    /// That touch this time, `from <= end` and `start < to`, ns.
    pub window: Option<(i64, i64)>,
    /// Of this level of the overview.
    pub width: Option<i64>,
}

/// A profile to read.
pub struct Profile {
    dir: PathBuf,
    manifest: Manifest,
    /// The open segments of each table.
    tables: Vec<OnceLock<Vec<SegmentFile>>>,
}

struct SegmentFile {
    path: PathBuf,
    reader: SerializedFileReader<Source>,
    /// Where each column of the table's definition is in this file.
    columns: Vec<Option<usize>>,
}

impl Profile {
    /// Opens a profile, whole or not: what its manifest names is there.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let manifest = Manifest::load(dir)?;
        Ok(Self { dir: dir.to_owned(), manifest, tables: Table::ALL.iter().map(|_| OnceLock::new()).collect() })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// What the profile is.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// These columns of all rows, in the order of the segments.
    ///
    /// # Panics
    /// When the table has no such column.
    pub fn read(&self, table: Table, columns: &[&str]) -> Result<Batch, Error> {
        self.read_where(table, columns, Filter::default())
    }

    /// These columns of the rows that a filter takes, in the order of the segments. Rows of a segment are sorted by rank,
    /// track and time. Two threads decode.
    ///
    /// # Panics
    /// When the table has no such column.
    pub fn read_where(&self, table: Table, columns: &[&str], filter: Filter) -> Result<Batch, Error> {
        let mut batches = self.read_mapped(table, columns, filter, |batch| batch)?.into_iter();
        let mut all = batches.next().unwrap_or_else(|| empty(table, &indices(table, columns)));
        for batch in batches {
            all.append(&batch);
        }
        Ok(all)
    }

    /// What `map` makes of these columns of the rows that a filter takes, a row group at a time, in the order of the segments.
    /// Two threads decode and map.
    ///
    /// # Panics
    /// When the table has no such column, or `map` panics.
    pub fn read_mapped<T: Send>(
        &self,
        table: Table,
        columns: &[&str],
        filter: Filter,
        map: impl Fn(Batch) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        let columns = indices(table, columns);
        let groups: Vec<(&SegmentFile, usize)> = self
            .segments(table)?
            .iter()
            .flat_map(|segment| (0..segment.reader.metadata().num_row_groups()).map(move |group| (segment, group)))
            .filter(|(segment, group)| {
                let group = segment.reader.metadata().row_group(*group);
                filter.may_take(&Bounds::of(group, &segment.columns, table))
            })
            .collect();

        let next = AtomicUsize::new(0);
        let mapped: Mutex<Vec<Option<T>>> = Mutex::new(groups.iter().map(|_| None).collect());
        let decode = || -> Result<(), Error> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some((segment, group)) = groups.get(at) else { return Ok(()) };
                let value = map(read_group(segment, *group, table, &columns, &filter)?);
                mapped.lock().expect("no panic while it is held")[at] = Some(value);
            }
        };
        if groups.len() < 2 {
            decode()?;
        } else {
            thread::scope(|scope| {
                let other = scope.spawn(decode);
                decode().and(other.join().expect("a reader does not panic"))
            })?;
        }
        Ok(mapped.into_inner().expect("no panic while it is held").into_iter().flatten().collect())
    }

    /// These columns of the rows that a filter takes, a row group at a time, in the order of the segments: memory is that of
    /// one row group, however large the profile is. Empty batches are possible.
    ///
    /// # Panics
    /// When the table has no such column.
    pub fn chunks<'p>(
        &'p self,
        table: Table,
        columns: &[&str],
        filter: Filter,
    ) -> Result<impl Iterator<Item = Result<Batch, Error>> + use<'p>, Error> {
        let columns = indices(table, columns);
        let segments = self.segments(table)?.iter();
        let groups =
            segments.flat_map(|segment| (0..segment.reader.metadata().num_row_groups()).map(move |at| (segment, at)));
        let taken = groups.filter(move |(segment, group)| {
            filter.may_take(&Bounds::of(segment.reader.metadata().row_group(*group), &segment.columns, table))
        });
        Ok(taken.map(move |(segment, group)| read_group(segment, group, table, &columns, &filter)))
    }

    fn segments(&self, table: Table) -> Result<&[SegmentFile], Error> {
        let place = Table::ALL.iter().position(|other| *other == table).expect("a table is one of all");
        let cell = &self.tables[place];
        if let Some(open) = cell.get() {
            return Ok(open);
        }
        let folder = self.dir.join(table.folder());
        let open =
            self.manifest.segments(table).iter().map(|segment| SegmentFile::open(folder.join(&segment.file), table));
        let open = open.collect::<Result<Vec<_>, _>>()?;
        Ok(cell.get_or_init(|| open))
    }
}

impl SegmentFile {
    fn open(path: PathBuf, table: Table) -> Result<Self, Error> {
        let source = File::open(&path).and_then(Source::new).map_err(Error::io(&path))?;
        let reader = SerializedFileReader::new(source).map_err(|error| Error::segment(&path, error))?;
        let schema = reader.metadata().file_metadata().schema_descr_ptr();
        let mut columns = Vec::new();
        for spec in table.columns() {
            let at = schema.columns().iter().position(|column| column.name() == spec.name);
            let physical = match spec.kind {
                Kind::Int => Physical::INT64,
                Kind::Float => Physical::DOUBLE,
                Kind::Text => Physical::BYTE_ARRAY,
            };
            if let Some(at) = at {
                let column = schema.column(at);
                if column.physical_type() != physical || column.max_rep_level() != 0 || column.max_def_level() > 1 {
                    return Err(Error::segment(&path, format!("column {} is not {physical}", spec.name)));
                }
            } else if !spec.nullable {
                return Err(Error::segment(&path, format!("it has no column {}", spec.name)));
            }
            columns.push(at);
        }
        Ok(Self { path, reader, columns })
    }
}

/// Bounds of the values in a row group; unbounded where nothing is stated.
struct Bounds {
    rank: (i64, i64),
    track: (i64, i64),
    width: (i64, i64),
    first: i64,
    last_start: i64,
    last_end: i64,
}

impl Bounds {
    fn of(group: &RowGroupMetaData, columns: &[Option<usize>], table: Table) -> Self {
        let bounds = |name: &str| -> Option<(i64, i64)> {
            let at = columns[table.column(name)?]?;
            match group.column(at).statistics()? {
                Statistics::Int64(statistics) => Some((*statistics.min_opt()?, *statistics.max_opt()?)),
                _ => None,
            }
        };
        const ALL: (i64, i64) = (i64::MIN, i64::MAX);
        let ts = bounds("ts").unwrap_or(ALL);
        let longest = if table.column("dur").is_some() { bounds("dur").unwrap_or(ALL).1 } else { 0 };
        Self {
            rank: bounds("rank").unwrap_or(ALL),
            track: bounds("track").unwrap_or(ALL),
            width: bounds("width").unwrap_or(ALL),
            first: ts.0,
            last_start: ts.1,
            last_end: ts.1.saturating_add(longest.max(0)),
        }
    }
}

impl Filter {
    fn may_take(&self, bounds: &Bounds) -> bool {
        let within =
            |value: Option<i64>, (low, high): (i64, i64)| value.is_none_or(|value| low <= value && value <= high);
        within(self.rank, bounds.rank)
            && within(self.track, bounds.track)
            && within(self.width, bounds.width)
            && self.window.is_none_or(|(from, to)| bounds.first < to && from <= bounds.last_end)
    }

    /// Whether all rows within these bounds are taken.
    fn takes_all(&self, bounds: &Bounds) -> bool {
        let is = |value: Option<i64>, (low, high): (i64, i64)| value.is_none_or(|value| low == value && value == high);
        is(self.rank, bounds.rank)
            && is(self.track, bounds.track)
            && is(self.width, bounds.width)
            && self.window.is_none_or(|(from, to)| from <= bounds.first && bounds.last_start < to)
    }
}

/// Where these columns are in the table's definition.
fn indices(table: Table, columns: &[&str]) -> Vec<usize> {
    let index = |name: &&str| table.column(name).unwrap_or_else(|| panic!("{table:?} has no column {name}"));
    columns.iter().map(index).collect()
}

fn empty(table: Table, columns: &[usize]) -> Batch {
    let specs = table.columns();
    let columns = columns.iter().map(|&at| (at, Column::new(specs[at].kind))).collect();
    Batch::from_columns(table, columns, Texts::new(), 0)
}

fn read_group(
    segment: &SegmentFile,
    group: usize,
    table: Table,
    columns: &[usize],
    filter: &Filter,
) -> Result<Batch, Error> {
    let fail = |error: ParquetError| Error::segment(&segment.path, error);
    let reader = segment.reader.get_row_group(group).map_err(fail)?;
    let rows = usize::try_from(reader.metadata().num_rows()).map_err(|error| Error::segment(&segment.path, error))?;
    if rows > MAX_GROUP_ROWS {
        return Err(Error::segment(&segment.path, format!("a row group of {rows} rows: no profile has such")));
    }
    let mut texts = Texts::new();
    let mut read = |at: usize, range: Range<usize>| -> Result<Column, Error> {
        read_column(&*reader, segment.columns[at], table.columns()[at].kind, range, &mut texts)
            .map_err(|reason| Error::segment(&segment.path, format!("column {}: {reason}", table.columns()[at].name)))
    };
    // Columns of the filter that were read, whole.
    let mut known: Vec<(usize, Vec<i64>)> = Vec::new();
    let bounds = Bounds::of(reader.metadata(), &segment.columns, table);
    let taken = if filter.takes_all(&bounds) {
        None
    } else {
        let mut ints = |name: &str| -> Result<Option<usize>, Error> {
            let Some(at) = table.column(name) else { return Ok(None) };
            match read(at, 0..rows)? {
                Column::Int(values) => known.push((at, values)),
                _ => unreachable!("the columns of a filter are integers"),
            }
            Ok(Some(known.len() - 1))
        };
        let mut keep = vec![true; rows];
        let equal = [
            ("rank", filter.rank, bounds.rank),
            ("track", filter.track, bounds.track),
            ("width", filter.width, bounds.width),
        ];
        let mut places = Vec::new();
        for (name, value, (low, high)) in equal {
            // A row group of one value need not be looked through.
            if let Some(value) = value.filter(|_| low != high)
                && let Some(place) = ints(name)?
            {
                places.push((value, place));
            }
        }
        let times = match filter.window {
            Some(window) => Some((window, ints("ts")?, ints("dur")?)),
            None => None,
        };
        for (value, place) in places {
            keep.iter_mut().zip(&known[place].1).for_each(|(keep, found)| *keep &= *found == value);
        }
        if let Some(((from, to), Some(starts), durations)) = times {
            let durations = durations.map(|place| &known[place].1);
            for (row, start) in known[starts].1.iter().enumerate() {
                let duration = durations.map_or(0, |durations| durations[row].max(0));
                keep[row] &= *start < to && from <= start.saturating_add(duration);
            }
        }
        Some((0..rows as u32).filter(|&row| keep[row as usize]).collect::<Vec<u32>>())
    };
    // Of the other columns only the part with rows that are taken is decoded.
    let range = match &taken {
        None => 0..rows,
        Some(taken) => match (taken.first(), taken.last()) {
            (Some(&first), Some(&last)) => first as usize..last as usize + 1,
            _ => 0..0,
        },
    };
    let within: Option<Vec<u32>> =
        taken.as_ref().map(|taken| taken.iter().map(|row| row - range.start as u32).collect());
    let mut values = Vec::with_capacity(columns.len());
    for &at in columns {
        let column = match (known.iter().find(|(column, _)| *column == at), &taken, &within) {
            (Some((_, whole)), Some(taken), _) => Column::Int(taken.iter().map(|&row| whole[row as usize]).collect()),
            (_, _, Some(rows)) => read(at, range.clone())?.gather(rows),
            _ => read(at, range.clone())?,
        };
        values.push((at, column));
    }
    Ok(Batch::from_columns(table, values, texts, taken.map_or(rows, |taken| taken.len())))
}

fn read_column(
    group: &dyn RowGroupReader,
    at: Option<usize>,
    kind: Kind,
    range: Range<usize>,
    texts: &mut Texts,
) -> Result<Column, String> {
    let rows = range.len();
    let Some(at) = at else {
        return Ok(match kind {
            Kind::Int => Column::Int(vec![NO_INT; rows]),
            Kind::Float => Column::Float(vec![f64::NAN; rows]),
            Kind::Text => Column::Text(vec![NO_TEXT; rows]),
        });
    };
    let nullable = group.metadata().column(at).column_descr().max_def_level() > 0;
    let mut levels: Vec<i16> = Vec::new();
    let text = |error: ParquetError| error.to_string();
    macro_rules! values {
        ($reader:expr) => {{
            let mut values = Vec::new();
            if range.start > 0 {
                $reader.skip_records(range.start).map_err(text)?;
            }
            let mut read = 0;
            while read < rows {
                let definition = nullable.then_some(&mut levels);
                let (records, _, _) = $reader.read_records(rows - read, definition, None, &mut values).map_err(text)?;
                if records == 0 {
                    break;
                }
                read += records;
            }
            values
        }};
    }
    match group.get_column_reader(at).map_err(text)? {
        ColumnReader::Int64ColumnReader(mut reader) => {
            Ok(Column::Int(spread(values!(reader), nullable.then_some(&levels), rows, NO_INT)?))
        }
        ColumnReader::DoubleColumnReader(mut reader) => {
            Ok(Column::Float(spread(values!(reader), nullable.then_some(&levels), rows, f64::NAN)?))
        }
        ColumnReader::ByteArrayColumnReader(mut reader) => {
            let values: Vec<ByteArray> = values!(reader);
            // Values of one dictionary entry share their bytes, so most texts are known by their address.
            let mut known: FxHashMap<(*const u8, usize), u32> = FxHashMap::default();
            let mut ids = Vec::with_capacity(values.len());
            for value in &values {
                let data = value.data();
                let id = match known.entry((data.as_ptr(), data.len())) {
                    std::collections::hash_map::Entry::Occupied(entry) => *entry.get(),
                    std::collections::hash_map::Entry::Vacant(entry) => {
                        let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
                        *entry.insert(texts.intern(text))
                    }
                };
                ids.push(id);
            }
            Ok(Column::Text(spread(ids, nullable.then_some(&levels), rows, NO_TEXT)?))
        }
        _ => Err("of a type that no profile has".into()),
    }
}

/// Puts the values where their definition level says they are.
fn spread<T: Copy>(values: Vec<T>, levels: Option<&Vec<i16>>, rows: usize, none: T) -> Result<Vec<T>, String> {
    let values = match levels {
        None => values,
        Some(levels) => {
            let mut values = values.into_iter();
            let spread: Vec<T> =
                levels.iter().map(|&level| if level > 0 { values.next().unwrap_or(none) } else { none }).collect();
            spread
        }
    };
    if values.len() == rows { Ok(values) } else { Err(format!("{} values for {rows} rows", values.len())) }
}
