//! Sorted runs of rows in temporary files: written by gathers, read by the merge.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use trace::schema::{Kind, Table};
use trace::{Batch, Column};

use super::Error;

/// A file that runs are appended to.
pub(super) struct Spilled {
    file: BufWriter<File>,
    path: PathBuf,
    bytes: u64,
}

impl Spilled {
    /// A new file in this folder, which outlives it.
    pub fn create(dir: &Path) -> Result<Self, Error> {
        let file = tempfile::Builder::new().prefix("run").tempfile_in(dir);
        let (file, path) = file.and_then(|file| file.keep().map_err(|error| error.error)).map_err(Error::io(dir))?;
        Ok(Self { file: BufWriter::with_capacity(1 << 20, file), path, bytes: 0 })
    }

    /// Appends the rows of a batch in this order. What the run is of is for the caller to say.
    pub fn store(&mut self, batch: &Batch, order: &[u32]) -> Result<Run, Error> {
        let mut columns = Vec::new();
        for (_, column) in batch.columns() {
            columns.push(match column {
                Column::Int(values) => self.column(values, order)?,
                Column::Float(values) => self.column(values, order)?,
                Column::Text(values) => self.column(values, order)?,
            });
        }
        let mut end = 0u64;
        let mut ends = Vec::with_capacity(batch.all_texts().len());
        for text in batch.all_texts().iter() {
            end += text.len() as u64;
            ends.push(end);
        }
        let text_ends = self.write(bytemuck::cast_slice(&ends))?;
        let text_start = self.bytes;
        for text in batch.all_texts().iter() {
            self.write_some(text.as_bytes())?;
        }
        self.pad()?;
        Ok(Run {
            table: batch.table(),
            pending: false,
            source: 0,
            order: 0,
            path: self.path.clone(),
            rows: batch.len(),
            columns,
            text_count: ends.len(),
            text_ends,
            text_start,
            tracks: Vec::new(),
        })
    }

    /// Writes what is left.
    pub fn finish(mut self) -> Result<(), Error> {
        self.file.flush().map_err(Error::io(&self.path))
    }

    /// Appends the values in this order; those that are all equal cost nothing.
    fn column<T: bytemuck::Pod + PartialEq>(&mut self, values: &[T], order: &[u32]) -> Result<Stored, Error> {
        let first = values[0];
        let bits = bytemuck::bytes_of(&first);
        if values.iter().all(|value| bytemuck::bytes_of(value) == bits) {
            let mut word = [0; 8];
            word[..bits.len()].copy_from_slice(bits);
            return Ok(Stored::Constant(u64::from_le_bytes(word)));
        }
        let sorted: Vec<T> = order.iter().map(|&row| values[row as usize]).collect();
        Ok(Stored::At(self.write(bytemuck::cast_slice(&sorted))?))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<u64, Error> {
        let at = self.bytes;
        self.write_some(bytes)?;
        self.pad()?;
        Ok(at)
    }

    fn write_some(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io(&self.path))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Values of the next column are aligned.
    fn pad(&mut self) -> Result<(), Error> {
        let rest = (self.bytes.next_multiple_of(8) - self.bytes) as usize;
        self.write_some(&[0; 8][..rest])
    }
}

/// Where the values of a run's column are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stored {
    /// All are this.
    Constant(u64),
    /// From this byte on.
    At(u64),
}

/// Sorted rows of one table in a temporary file.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub table: Table,
    /// Whether they are begins and ends.
    pub pending: bool,
    pub source: u32,
    pub order: u64,
    pub path: PathBuf,
    pub rows: usize,
    pub columns: Vec<Stored>,
    pub text_count: usize,
    pub text_ends: u64,
    pub text_start: u64,
    /// The rows of each track.
    pub tracks: Vec<(u32, Range<u32>)>,
}

/// A run, readable.
pub(super) struct OpenRun<'m> {
    pub run: &'m Run,
    bytes: &'m [u8],
}

impl<'m> OpenRun<'m> {
    pub fn new(run: &'m Run, bytes: &'m [u8]) -> Self {
        Self { run, bytes }
    }

    /// The values of an integer column by the table's index.
    pub fn ints(&self, column: usize) -> Values<'m, i64> {
        debug_assert_eq!(self.run.table.columns()[column].kind, Kind::Int);
        self.values(column, |word| word as i64)
    }

    pub fn floats(&self, column: usize) -> Values<'m, f64> {
        self.values(column, f64::from_bits)
    }

    pub fn texts(&self, column: usize) -> Values<'m, u32> {
        self.values(column, |word| word as u32)
    }

    fn values<T: bytemuck::Pod>(&self, column: usize, constant: impl Fn(u64) -> T) -> Values<'m, T> {
        match self.run.columns[column] {
            Stored::Constant(word) => Values::Constant(constant(word)),
            Stored::At(at) => {
                let at = at as usize;
                let bytes = &self.bytes[at..at + self.run.rows * size_of::<T>()];
                Values::Slice(bytemuck::cast_slice(bytes))
            }
        }
    }

    /// The text with this number.
    pub fn text(&self, id: u32) -> &'m str {
        let at = self.run.text_ends as usize;
        let ends: &[u64] = bytemuck::cast_slice(&self.bytes[at..at + self.run.text_count * 8]);
        let id = id as usize;
        let from = if id == 0 { 0 } else { ends[id - 1] as usize };
        let start = self.run.text_start as usize;
        let bytes = &self.bytes[start + from..start + ends[id] as usize];
        std::str::from_utf8(bytes).expect("texts were written as texts")
    }
}

/// Values of a column.
#[derive(Clone, Copy)]
pub(super) enum Values<'m, T> {
    Constant(T),
    Slice(&'m [T]),
}

impl<T: Copy> Values<'_, T> {
    pub fn get(&self, row: usize) -> T {
        match self {
            Values::Constant(value) => *value,
            Values::Slice(values) => values[row],
        }
    }
}
