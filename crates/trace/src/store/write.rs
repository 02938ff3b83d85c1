use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, ConvertedType, Encoding, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};

use super::{Error, GROUP_ROWS, Manifest, Segment, State};
use crate::batch::{Batch, Column, NO_INT, NO_TEXT};
use crate::schema::{ColumnSpec, Kind, Layout, Table};

/// Distinct values of a column may take this much of a segment before it gives up on numbering them.
const DICTIONARY_BYTES: usize = 16 << 20;

/// Writes a profile, segment by segment.
pub struct Writer {
    dir: PathBuf,
    manifest: Manifest,
    /// Segments opened so far, by table: no two have the same name.
    opened: HashMap<Table, usize>,
    /// The smallest layout of each table's columns, as the first rows showed it.
    layouts: HashMap<Table, Vec<Layout>>,
}

impl Writer {
    /// Starts a profile in a new or empty directory.
    pub fn create(dir: &Path, name: &str) -> Result<Self, Error> {
        // A file, or a link to nothing.
        if fs::symlink_metadata(dir).is_ok() && !dir.is_dir() {
            return Err(Error::Exists { path: dir.to_owned() });
        }
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        if fs::read_dir(dir).map_err(Error::io(dir))?.next().is_some() {
            return Err(Error::Exists { path: dir.to_owned() });
        }
        let manifest = Manifest::new(name);
        manifest.store(dir)?;
        Ok(Self { dir: dir.to_owned(), manifest, opened: HashMap::new(), layouts: HashMap::new() })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// What the next [`Writer::write`] or [`Writer::finish`] will put into the manifest.
    pub fn manifest(&mut self) -> &mut Manifest {
        &mut self.manifest
    }

    /// Appends a segment with these rows; nothing for no rows.
    pub fn write(&mut self, batch: &Batch) -> Result<(), Error> {
        self.write_all([batch])
    }

    /// Appends a segment to each batch's table and names them all in one new manifest: all are part of the profile, or none.
    pub fn write_all<'b>(&mut self, batches: impl IntoIterator<Item = &'b Batch>) -> Result<(), Error> {
        let mut any = false;
        for batch in batches.into_iter().filter(|batch| !batch.is_empty()) {
            let mut segment = SegmentWriter::new(batch.table());
            segment.append(batch, self)?;
            segment.close(self)?;
            any = true;
        }
        if any { self.manifest.store(&self.dir) } else { Ok(()) }
    }

    /// Opens a file for a segment whose first rows are `sample`: the columns are laid out as is best for them.
    fn open(&mut self, sample: &Batch) -> Result<OpenSegment, Error> {
        let table = sample.table();
        let folder = self.dir.join(table.folder());
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let number = self.opened.entry(table).or_default();
        let path = folder.join(format!("{number:06}.parquet"));
        *number += 1;
        let file = tempfile::Builder::new()
            .prefix(".segment")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(&folder)
            .map_err(Error::io(&folder))?;
        let layouts = match self.layouts.get(&table) {
            Some(layouts) => layouts.clone(),
            None if sample.len() >= layout::MIN_ROWS => {
                let best = layout::best(sample).map_err(|error| Error::segment(&path, error))?;
                self.layouts.insert(table, best.clone());
                best
            }
            None => table.columns().iter().map(|column| column.layout).collect(),
        };
        let output = io::BufWriter::with_capacity(1 << 18, file);
        let parquet = SerializedFileWriter::new(output, schema(table.columns()), Arc::new(properties(table, &layouts)))
            .map_err(|error| Error::segment(&path, error))?;
        Ok(OpenSegment { path, parquet })
    }

    /// Writes the manifest of a whole profile.
    pub fn finish(mut self) -> Result<Manifest, Error> {
        self.manifest.state = State::Complete;
        self.manifest.pid = None;
        self.manifest.store(&self.dir)?;
        Ok(self.manifest)
    }

    /// Replaces the manifest, so that readers see the segments closed so far.
    pub fn publish(&self) -> Result<(), Error> {
        self.manifest.store(&self.dir)
    }
}

/// A segment that is filled by several batches, a row group or more for each. Without rows there is no file.
pub struct SegmentWriter {
    table: Table,
    open: Option<OpenSegment>,
    rows: u64,
}

struct OpenSegment {
    path: PathBuf,
    parquet: SerializedFileWriter<io::BufWriter<tempfile::NamedTempFile>>,
}

impl SegmentWriter {
    /// A segment of this table, without rows.
    pub fn new(table: Table) -> Self {
        Self { table, open: None, rows: 0 }
    }

    /// Appends rows; the first open a file in `writer`'s profile.
    ///
    /// # Panics
    /// When the batch is of another table.
    pub fn append(&mut self, batch: &Batch, writer: &mut Writer) -> Result<(), Error> {
        assert_eq!(batch.table(), self.table);
        if batch.is_empty() {
            return Ok(());
        }
        let OpenSegment { path, parquet } = match &mut self.open {
            Some(open) => open,
            none => none.insert(writer.open(batch)?),
        };
        // Shared by the values that refer to them.
        let texts: Vec<ByteArray> =
            batch.all_texts().iter().map(|text| ByteArray::from(Bytes::copy_from_slice(text.as_bytes()))).collect();
        for from in (0..batch.len()).step_by(GROUP_ROWS) {
            let rows = from..(from + GROUP_ROWS).min(batch.len());
            write_group(parquet, batch, rows, &texts).map_err(|error| Error::segment(path, error))?;
        }
        self.rows += batch.len() as u64;
        Ok(())
    }

    /// Renames the segment into place and names it in the manifest of `writer`, in whose profile it was opened. Readers see it
    /// after [`Writer::publish`], the next [`Writer::write`] or [`Writer::finish`].
    pub fn close(self, writer: &mut Writer) -> Result<(), Error> {
        let Some(OpenSegment { path, parquet }) = self.open else { return Ok(()) };
        let fail = |source: io::Error| Error::Io { path: path.clone(), source };
        let output = parquet.into_inner().map_err(|error| Error::segment(&path, error))?;
        let file = output.into_inner().map_err(|error| fail(error.into_error()))?;
        let bytes = file.as_file().metadata().map_err(fail)?.len();
        file.persist(&path).map_err(|error| fail(error.error))?;
        let file = path.file_name().expect("a path of ours").to_string_lossy().into_owned();
        let segments = writer.manifest.tables.entry(self.table.folder().into()).or_default();
        segments.push(Segment { file, rows: self.rows, bytes });
        Ok(())
    }
}

fn schema(columns: &[ColumnSpec]) -> Arc<Type> {
    let field = |column: &ColumnSpec| {
        let physical = match column.kind {
            Kind::Int => Physical::INT64,
            Kind::Float => Physical::DOUBLE,
            Kind::Text => Physical::BYTE_ARRAY,
        };
        let repetition = if column.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let mut field = Type::primitive_type_builder(column.name, physical).with_repetition(repetition);
        if column.kind == Kind::Text {
            field = field.with_logical_type(Some(LogicalType::String)).with_converted_type(ConvertedType::UTF8);
        }
        Arc::new(field.build().expect("a plain field"))
    };
    let fields = columns.iter().map(field).collect();
    Arc::new(Type::group_type_builder("profile").with_fields(fields).build().expect("a flat schema"))
}

fn properties(table: Table, layouts: &[Layout]) -> WriterProperties {
    // Pages of the first version: those of the second leave the levels of nullable columns uncompressed.
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).expect("a level of zstd")))
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_data_page_size_limit(4 << 20)
        .set_data_page_row_count_limit(GROUP_ROWS)
        .set_write_batch_size(4096)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("trainyard ", env!("CARGO_PKG_VERSION")).into());
    for (column, layout) in table.columns().iter().zip(layouts) {
        let path = ColumnPath::from(column.name);
        properties = properties.set_column_dictionary_enabled(path.clone(), *layout == Layout::Dictionary);
        properties = match layout {
            Layout::Dictionary | Layout::Plain => properties,
            Layout::Delta => properties.set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED),
            Layout::Split => properties.set_column_encoding(path.clone(), Encoding::BYTE_STREAM_SPLIT),
        };
        // What readers skip by.
        if matches!(column.name, "rank" | "track" | "ts" | "dur" | "depth" | "width") {
            properties = properties.set_column_statistics_enabled(path, EnabledStatistics::Chunk);
        }
    }
    properties.build()
}

fn write_group<W: io::Write + Send>(
    parquet: &mut SerializedFileWriter<W>,
    batch: &Batch,
    rows: std::ops::Range<usize>,
    texts: &[ByteArray],
) -> Result<(), ParquetError> {
    let mut group = parquet.next_row_group()?;
    let specs = batch.table().columns();
    for (at, column) in batch.columns() {
        let mut writer = group.next_column()?.expect("as many columns as the schema has");
        write_column(writer.untyped(), column, rows.clone(), specs[*at].nullable, texts)?;
        writer.close()?;
    }
    group.close()?;
    Ok(())
}

fn write_column(
    writer: &mut ColumnWriter<'_>,
    column: &Column,
    rows: std::ops::Range<usize>,
    nullable: bool,
    texts: &[ByteArray],
) -> Result<(), ParquetError> {
    match (writer, column) {
        (ColumnWriter::Int64ColumnWriter(writer), Column::Int(values)) => {
            let (levels, present) = present(&values[rows], nullable, |&value| value != NO_INT);
            writer.write_batch(&present, levels.as_deref(), None)?;
        }
        (ColumnWriter::DoubleColumnWriter(writer), Column::Float(values)) => {
            let (levels, present) = present(&values[rows], nullable, |value| !value.is_nan());
            writer.write_batch(&present, levels.as_deref(), None)?;
        }
        (ColumnWriter::ByteArrayColumnWriter(writer), Column::Text(values)) => {
            let (levels, present) = present(&values[rows], nullable, |&value| value != NO_TEXT);
            let present: Vec<ByteArray> = present.iter().map(|&id| texts[id as usize].clone()).collect();
            writer.write_batch(&present, levels.as_deref(), None)?;
        }
        _ => unreachable!("the schema and the batch come from one definition"),
    }
    Ok(())
}

/// The definition levels, and the values that are there.
fn present<T: Copy>(values: &[T], nullable: bool, there: impl Fn(&T) -> bool) -> (Option<Vec<i16>>, Vec<T>) {
    if !nullable {
        return (None, values.to_vec());
    }
    let levels = values.iter().map(|value| there(value) as i16).collect();
    (Some(levels), values.iter().copied().filter(there).collect())
}

/// Which layout makes a column smallest, found by trying.
mod layout {
    use super::*;

    /// Fewer rows than this say little.
    pub const MIN_ROWS: usize = 512;
    /// Rows that are tried.
    const SAMPLE: usize = 1 << 15;

    /// The smallest layout of every column for the rows in the middle of this batch.
    pub fn best(batch: &Batch) -> Result<Vec<Layout>, ParquetError> {
        let table = batch.table();
        let from = (batch.len().saturating_sub(SAMPLE)) / 2;
        let rows = from..(from + SAMPLE).min(batch.len());
        let mut layouts: Vec<Layout> = table.columns().iter().map(|column| column.layout).collect();
        for (at, column) in batch.columns() {
            let candidates: &[Layout] = match column {
                Column::Text(_) => continue,
                Column::Int(values) if values[rows.clone()].windows(2).all(|pair| pair[0] == pair[1]) => continue,
                Column::Int(_) => &[Layout::Dictionary, Layout::Delta, Layout::Split, Layout::Plain],
                Column::Float(_) => &[Layout::Dictionary, Layout::Split, Layout::Plain],
            };
            let mut smallest = (usize::MAX, layouts[*at]);
            for &layout in candidates {
                let bytes = size(table, *at, column, rows.clone(), layout)?;
                if bytes < smallest.0 {
                    smallest = (bytes, layout);
                }
            }
            layouts[*at] = smallest.1;
        }
        Ok(layouts)
    }

    fn size(
        table: Table,
        at: usize,
        column: &Column,
        rows: std::ops::Range<usize>,
        layout: Layout,
    ) -> Result<usize, ParquetError> {
        let spec = &table.columns()[at..=at];
        let mut layouts = vec![Layout::Plain; table.columns().len()];
        layouts[at] = layout;
        let properties = Arc::new(properties(table, &layouts));
        let mut parquet = SerializedFileWriter::new(Vec::new(), schema(spec), properties)?;
        let mut group = parquet.next_row_group()?;
        let mut writer = group.next_column()?.expect("one column");
        write_column(writer.untyped(), column, rows, spec[0].nullable, &[])?;
        writer.close()?;
        group.close()?;
        Ok(parquet.into_inner()?.len())
    }
}
