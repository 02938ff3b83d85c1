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
    /// Bytes of every text of the batch being written, shared by the values that refer to them.
    texts: Vec<ByteArray>,
}

impl Writer {
    /// Starts a profile in a new or empty directory.
    pub fn create(dir: &Path, name: &str) -> Result<Self, Error> {
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        if fs::read_dir(dir).map_err(Error::io(dir))?.next().is_some() {
            return Err(Error::Exists { path: dir.to_owned() });
        }
        let manifest = Manifest::new(name);
        manifest.store(dir)?;
        Ok(Self { dir: dir.to_owned(), manifest, texts: Vec::new() })
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
            let mut segment = self.segment(batch.table())?;
            segment.append(batch)?;
            segment.close()?;
            any = true;
        }
        if any { self.manifest.store(&self.dir) } else { Ok(()) }
    }

    /// Opens a segment that is filled by several batches, a row group or more for each.
    pub fn segment(&mut self, table: Table) -> Result<SegmentWriter<'_>, Error> {
        let folder = self.dir.join(table.folder());
        fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
        let number = self.manifest.segments(table).len();
        let path = folder.join(format!("{number:06}.parquet"));
        let file = tempfile::Builder::new()
            .prefix(".segment")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(&folder)
            .map_err(Error::io(&folder))?;
        let output = io::BufWriter::with_capacity(1 << 18, file);
        let parquet = SerializedFileWriter::new(output, schema(table), Arc::new(properties(table)))
            .map_err(|error| Error::segment(&path, error))?;
        Ok(SegmentWriter { writer: self, table, path, parquet, rows: 0 })
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

/// A segment being written.
pub struct SegmentWriter<'w> {
    writer: &'w mut Writer,
    table: Table,
    path: PathBuf,
    parquet: SerializedFileWriter<io::BufWriter<tempfile::NamedTempFile>>,
    rows: u64,
}

impl SegmentWriter<'_> {
    /// Appends rows.
    pub fn append(&mut self, batch: &Batch) -> Result<(), Error> {
        debug_assert_eq!(batch.table(), self.table);
        let texts = &mut self.writer.texts;
        texts.clear();
        texts.extend(batch.all_texts().iter().map(|text| ByteArray::from(Bytes::copy_from_slice(text.as_bytes()))));
        for from in (0..batch.len()).step_by(GROUP_ROWS) {
            let rows = from..(from + GROUP_ROWS).min(batch.len());
            write_group(&mut self.parquet, batch, rows, texts).map_err(|error| Error::segment(&self.path, error))?;
        }
        self.rows += batch.len() as u64;
        Ok(())
    }

    /// Renames the segment into place. The manifest that names it is written later: by [`Writer::publish`], the next
    /// [`Writer::write`] or [`Writer::finish`].
    pub fn close(self) -> Result<(), Error> {
        let fail = |source: io::Error| Error::Io { path: self.path.clone(), source };
        let output = self.parquet.into_inner().map_err(|error| Error::segment(&self.path, error))?;
        let file = output.into_inner().map_err(|error| fail(error.into_error()))?;
        let bytes = file.as_file().metadata().map_err(fail)?.len();
        file.persist(&self.path).map_err(|error| fail(error.error))?;
        let name = self.path.file_name().expect("a path of ours").to_string_lossy().into_owned();
        let segments = self.writer.manifest.tables.entry(self.table.folder().into()).or_default();
        segments.push(Segment { file: name, rows: self.rows, bytes });
        Ok(())
    }
}

fn schema(table: Table) -> Arc<Type> {
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
    let fields = table.columns().iter().map(field).collect();
    Arc::new(Type::group_type_builder(table.folder()).with_fields(fields).build().expect("a flat schema"))
}

fn properties(table: Table) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).expect("a level of zstd")))
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_data_page_size_limit(1 << 20)
        .set_data_page_row_count_limit(GROUP_ROWS)
        .set_write_batch_size(4096)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_offset_index_disabled(true)
        .set_created_by(concat!("trainyard ", env!("CARGO_PKG_VERSION")).into());
    for column in table.columns() {
        let path = ColumnPath::from(column.name);
        properties = match column.layout {
            Layout::Dictionary => properties.set_column_dictionary_enabled(path.clone(), true),
            Layout::Delta => properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path.clone(), Encoding::DELTA_BINARY_PACKED),
            Layout::Plain => properties.set_column_dictionary_enabled(path.clone(), false),
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
        let nullable = specs[*at].nullable;
        let mut writer = group.next_column()?.expect("as many columns as the schema has");
        match (writer.untyped(), column) {
            (ColumnWriter::Int64ColumnWriter(writer), Column::Int(values)) => {
                let (levels, present) = present(&values[rows.clone()], nullable, |&value| value != NO_INT);
                writer.write_batch(&present, levels.as_deref(), None)?;
            }
            (ColumnWriter::DoubleColumnWriter(writer), Column::Float(values)) => {
                let (levels, present) = present(&values[rows.clone()], nullable, |value| !value.is_nan());
                writer.write_batch(&present, levels.as_deref(), None)?;
            }
            (ColumnWriter::ByteArrayColumnWriter(writer), Column::Text(values)) => {
                let (levels, present) = present(&values[rows.clone()], nullable, |&value| value != NO_TEXT);
                let present: Vec<ByteArray> = present.iter().map(|&id| texts[id as usize].clone()).collect();
                writer.write_batch(&present, levels.as_deref(), None)?;
            }
            _ => unreachable!("the schema and the batch come from one definition"),
        }
        writer.close()?;
    }
    group.close()?;
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
