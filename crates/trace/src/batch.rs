//! Rows of one table, column by column.

use crate::schema::{Kind, Row, Table};
use crate::texts::Texts;

/// A missing integer.
pub const NO_INT: i64 = i64::MIN;
/// A missing text.
pub const NO_TEXT: u32 = u32::MAX;

/// The values of one column.
#[derive(Clone)]
pub enum Column {
    /// Integers; [`NO_INT`] is null.
    Int(Vec<i64>),
    /// Numbers; NaN is null.
    Float(Vec<f64>),
    /// Numbers of texts in the batch's [`Texts`]; [`NO_TEXT`] is null.
    Text(Vec<u32>),
}

impl Column {
    /// An empty column of this kind.
    pub fn new(kind: Kind) -> Self {
        match kind {
            Kind::Int => Column::Int(Vec::new()),
            Kind::Float => Column::Float(Vec::new()),
            Kind::Text => Column::Text(Vec::new()),
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Column::Int(values) => values.len(),
            Column::Float(values) => values.len(),
            Column::Text(values) => values.len(),
        }
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values at these rows, in that order.
    pub fn gather(&self, rows: &[u32]) -> Self {
        fn pick<T: Copy>(values: &[T], rows: &[u32]) -> Vec<T> {
            rows.iter().map(|&row| values[row as usize]).collect()
        }
        match self {
            Column::Int(values) => Column::Int(pick(values, rows)),
            Column::Float(values) => Column::Float(pick(values, rows)),
            Column::Text(values) => Column::Text(pick(values, rows)),
        }
    }
}

/// Rows of one table: all of its columns, or those that were asked for.
#[derive(Clone)]
pub struct Batch {
    table: Table,
    /// Index of each column in the table's definition, and its values.
    columns: Vec<(usize, Column)>,
    texts: Texts,
    rows: usize,
}

impl Batch {
    /// No rows yet, all columns.
    pub fn new(table: Table) -> Self {
        let columns = table.columns().iter().enumerate().map(|(at, spec)| (at, Column::new(spec.kind))).collect();
        Self { table, columns, texts: Texts::new(), rows: 0 }
    }

    /// A batch of all columns, in the table's order, with their texts.
    ///
    /// # Panics
    /// When they are not as many as the table has, or not of one length.
    pub fn of_all(table: Table, columns: Vec<Column>, texts: Texts) -> Self {
        let rows = columns.first().map_or(0, Column::len);
        assert!(columns.len() == table.columns().len() && columns.iter().all(|column| column.len() == rows));
        Self { table, columns: columns.into_iter().enumerate().collect(), texts, rows }
    }

    /// A batch of these columns, given by their index in the table's definition; all have `rows` values and their texts
    /// are in `texts`.
    pub(crate) fn from_columns(table: Table, columns: Vec<(usize, Column)>, texts: Texts, rows: usize) -> Self {
        debug_assert!(columns.iter().all(|(_, column)| column.len() == rows));
        Self { table, columns, texts, rows }
    }

    /// The table.
    pub fn table(&self) -> Table {
        self.table
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Appends a row.
    ///
    /// # Panics
    /// When the row is of another table, or the batch lacks columns.
    pub fn push<R: Row>(&mut self, row: &R) {
        assert!(R::TABLE == self.table, "a row of {:?} in a batch of {:?}", R::TABLE, self.table);
        row.push(&mut Cells { columns: self.columns.iter_mut(), texts: &mut self.texts });
        self.rows += 1;
    }

    /// The columns with their index in the table's definition.
    pub fn columns(&self) -> &[(usize, Column)] {
        &self.columns
    }

    /// The texts of all text columns.
    pub fn all_texts(&self) -> &Texts {
        &self.texts
    }

    /// The text with this number; empty for [`NO_TEXT`].
    pub fn text(&self, id: u32) -> &str {
        if id == NO_TEXT { "" } else { self.texts.get(id) }
    }

    /// The integers of this column.
    ///
    /// # Panics
    /// When the batch does not hold it; names of columns are ours, never a user's.
    pub fn ints(&self, name: &str) -> &[i64] {
        match self.column(name) {
            Column::Int(values) => values,
            _ => panic!("column {name} of {:?} holds no integers", self.table),
        }
    }

    /// The numbers of this column.
    ///
    /// # Panics
    /// When the batch does not hold it.
    pub fn floats(&self, name: &str) -> &[f64] {
        match self.column(name) {
            Column::Float(values) => values,
            _ => panic!("column {name} of {:?} holds no numbers", self.table),
        }
    }

    /// The texts of this column.
    ///
    /// # Panics
    /// When the batch does not hold it.
    pub fn texts(&self, name: &str) -> &[u32] {
        match self.column(name) {
            Column::Text(values) => values,
            _ => panic!("column {name} of {:?} holds no texts", self.table),
        }
    }

    fn column(&self, name: &str) -> &Column {
        let at = self.table.column(name).unwrap_or_else(|| panic!("{:?} has no column {name}", self.table));
        let found = self.columns.iter().find(|(index, _)| *index == at);
        &found.unwrap_or_else(|| panic!("column {name} of {:?} was not read", self.table)).1
    }

    /// The rows at these places, in that order.
    pub fn gather(&self, rows: &[u32]) -> Self {
        let columns = self.columns.iter().map(|(at, column)| (*at, column.gather(rows))).collect();
        Self { table: self.table, columns, texts: self.texts.clone(), rows: rows.len() }
    }

    /// Forgets all rows and texts and keeps the memory.
    pub fn clear(&mut self) {
        for (_, column) in &mut self.columns {
            match column {
                Column::Int(values) => values.clear(),
                Column::Float(values) => values.clear(),
                Column::Text(values) => values.clear(),
            }
        }
        self.texts.clear();
        self.rows = 0;
    }

    /// Appends the rows of another batch with the same columns.
    pub(crate) fn append(&mut self, other: &Batch) {
        let renumbered: Vec<u32> = other.texts.iter().map(|text| self.texts.intern(text)).collect();
        for ((at, ours), (other_at, theirs)) in self.columns.iter_mut().zip(&other.columns) {
            assert_eq!(at, other_at, "batches of the same columns");
            match (ours, theirs) {
                (Column::Int(ours), Column::Int(theirs)) => ours.extend_from_slice(theirs),
                (Column::Float(ours), Column::Float(theirs)) => ours.extend_from_slice(theirs),
                (Column::Text(ours), Column::Text(theirs)) => {
                    ours.extend(theirs.iter().map(|&id| if id == NO_TEXT { id } else { renumbered[id as usize] }));
                }
                _ => unreachable!("one definition gives both their kinds"),
            }
        }
        self.rows += other.rows;
    }
}

/// Where a row puts its values, one after the other in the order of the table's columns.
pub struct Cells<'a> {
    columns: std::slice::IterMut<'a, (usize, Column)>,
    texts: &'a mut Texts,
}

impl Cells<'_> {
    fn next(&mut self) -> &mut Column {
        &mut self.columns.next().expect("a batch that rows are pushed to has all columns").1
    }
}

/// A value of a row.
pub trait Cell {
    /// The kind of its column.
    const KIND: Kind;
    /// Whether its column has nulls.
    const NULLABLE: bool;
    /// Appends the value to its column.
    fn push(self, cells: &mut Cells<'_>);
}

impl Cell for i64 {
    const KIND: Kind = Kind::Int;
    const NULLABLE: bool = false;
    fn push(self, cells: &mut Cells<'_>) {
        let Column::Int(values) = cells.next() else { unreachable!("kinds come from one definition") };
        values.push(self);
    }
}

impl Cell for Option<i64> {
    const KIND: Kind = Kind::Int;
    const NULLABLE: bool = true;
    fn push(self, cells: &mut Cells<'_>) {
        self.unwrap_or(NO_INT).push(cells);
    }
}

impl Cell for f64 {
    const KIND: Kind = Kind::Float;
    const NULLABLE: bool = false;
    fn push(self, cells: &mut Cells<'_>) {
        let Column::Float(values) = cells.next() else { unreachable!("kinds come from one definition") };
        values.push(self);
    }
}

impl Cell for Option<f64> {
    const KIND: Kind = Kind::Float;
    const NULLABLE: bool = true;
    fn push(self, cells: &mut Cells<'_>) {
        self.unwrap_or(f64::NAN).push(cells);
    }
}

impl Cell for &str {
    const KIND: Kind = Kind::Text;
    const NULLABLE: bool = false;
    fn push(self, cells: &mut Cells<'_>) {
        let id = cells.texts.intern(self);
        let Column::Text(values) = cells.next() else { unreachable!("kinds come from one definition") };
        values.push(id);
    }
}

impl Cell for Option<&str> {
    const KIND: Kind = Kind::Text;
    const NULLABLE: bool = true;
    fn push(self, cells: &mut Cells<'_>) {
        match self {
            Some(text) => text.push(cells),
            None => {
                let Column::Text(values) = cells.next() else { unreachable!("kinds come from one definition") };
                values.push(NO_TEXT);
            }
        }
    }
}
