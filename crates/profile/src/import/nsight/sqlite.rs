//! A stranger's SQLite file, read table by table within bounds.
//!
//! Only whole tables are read, front to back: no joins, no sorting, no views, no triggers. So the memory is that of a row,
//! whatever the file says of itself.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rusqlite::config::DbConfig;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, ffi};
use rustc_hash::FxHashMap;

use crate::import::Error;
use crate::import::diagnostics::Anomaly;
use crate::import::gather::Gather;

/// A row, and each value in it, may have this many bytes. Larger rows end the import.
const MAX_ROW_BYTES: i32 = 16 << 20;
/// A table may have this many columns.
const MAX_COLUMNS: i32 = 400;
/// A text that becomes a name or an argument is cut to this many bytes.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 16;
/// Tables of a report; Nsight Systems knows about 150.
const MAX_TABLES: usize = 10_000;
/// Bytes a row takes at least: its length, its number, an empty header, and its place in the page.
const MIN_ROW_BYTES: u64 = 5;

/// A report that is open for reading.
pub(super) struct Database {
    connection: Connection,
    path: PathBuf,
    /// Columns of each table.
    tables: FxHashMap<String, Vec<String>>,
    /// Size of the file.
    pub bytes: u64,
}

impl Database {
    /// Opens a file that nobody changes meanwhile.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::metadata(path).map_err(Error::io(path))?.len();
        let fail = |error: rusqlite::Error| Error::format(path, format!("no SQLite file that can be read: {error}"));
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri(path), flags).map_err(fail)?;
        for (limit, value) in [
            (ffi::SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES),
            (ffi::SQLITE_LIMIT_COLUMN, MAX_COLUMNS),
            (ffi::SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
            (ffi::SQLITE_LIMIT_EXPR_DEPTH, 50),
            (ffi::SQLITE_LIMIT_ATTACHED, 0),
            (ffi::SQLITE_LIMIT_WORKER_THREADS, 0),
        ] {
            // SAFETY: the handle is that of the open connection, and the call only lowers one of its limits.
            unsafe { ffi::sqlite3_limit(connection.handle(), limit, value) };
        }
        for (config, value) in [
            (DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true),
            (DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false),
            (DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false),
        ] {
            connection.set_db_config(config, value).map_err(fail)?;
        }
        // 16 MiB of pages are kept; the map of the file is not, so that a file that shrinks is an error and no signal.
        connection
            .execute_batch("PRAGMA cell_size_check = ON; PRAGMA cache_size = -16384; PRAGMA mmap_size = 0;")
            .map_err(fail)?;
        let mut database = Self { connection, path: path.to_owned(), tables: FxHashMap::default(), bytes };
        database.read_tables()?;
        Ok(database)
    }

    /// The error for this file.
    pub fn fail(&self, table: &str, error: impl std::fmt::Display) -> Error {
        Error::format(&self.path, format!("table {table}: {error}"))
    }

    fn read_tables(&mut self) -> Result<(), Error> {
        let mut names: Vec<String> = Vec::new();
        let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'";
        let fail =
            |error: rusqlite::Error| Error::format(&self.path, format!("no SQLite file that can be read: {error}"));
        let mut statement = self.connection.prepare(sql).map_err(fail)?;
        let mut rows = statement.query([]).map_err(fail)?;
        while let Some(row) = rows.next().map_err(fail)? {
            if names.len() == MAX_TABLES {
                return Err(Error::TooMuch { what: "tables", limit: MAX_TABLES });
            }
            names.push(row.get(0).map_err(fail)?);
        }
        drop(rows);
        for name in names {
            let mut statement = self.connection.prepare("SELECT name FROM pragma_table_info(?1)").map_err(fail)?;
            let mut rows = statement.query([&name]).map_err(fail)?;
            let mut columns = Vec::new();
            while let Some(row) = rows.next().map_err(fail)? {
                columns.push(row.get(0).map_err(fail)?);
            }
            self.tables.insert(name, columns);
        }
        Ok(())
    }

    /// Whether the report has a table.
    pub fn has(&self, table: &str) -> bool {
        self.tables.contains_key(table)
    }

    /// Whether a table has a column.
    pub fn has_column(&self, table: &str, column: &str) -> bool {
        self.tables.get(table).is_some_and(|columns| columns.iter().any(|name| name == column))
    }

    /// Names of the tables that begin so, sorted.
    pub fn beginning(&self, prefix: &str) -> Vec<String> {
        let mut names: Vec<String> = self.tables.keys().filter(|name| name.starts_with(prefix)).cloned().collect();
        names.sort_unstable();
        names
    }

    /// Calls `each` for every row of a table, in the order of the file, with the values of these columns: null where the table
    /// lacks the column. A table that is not there has no rows.
    pub fn scan(
        &self,
        table: &str,
        columns: &[&str],
        mut each: impl FnMut(&Values<'_, '_>) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        if !self.has(table) {
            return Ok(0);
        }
        let fail = |error: rusqlite::Error| self.fail(table, error);
        let mut sql = String::from("SELECT ");
        for column in columns {
            let quoted = if self.has_column(table, column) { quote(column) } else { "NULL".to_owned() };
            sql.push_str(&quoted);
            sql.push_str(", ");
        }
        sql.push_str("NULL FROM main.");
        sql.push_str(&quote(table));
        let mut statement = self.connection.prepare(&sql).map_err(fail)?;
        let mut rows = statement.query([]).map_err(fail)?;
        let mut count = 0;
        while let Some(row) = rows.next().map_err(fail)? {
            count += 1;
            // Pages that refer to each other in circles have no end of rows.
            if count > self.bytes / MIN_ROW_BYTES + 1 {
                return Err(self.fail(table, "more rows than the file has room for: it is damaged"));
            }
            each(&Values { row, table, columns })?;
        }
        Ok(count)
    }

    /// Texts by their number, from a table `id`, `value`.
    pub fn strings(&self) -> Result<Strings<'_>, Error> {
        const TABLE: &str = "StringIds";
        let fail = |error: rusqlite::Error| self.fail(TABLE, error);
        if !self.has_column(TABLE, "id") || !self.has_column(TABLE, "value") {
            return Ok(Strings { statement: None, known: FxHashMap::default(), bytes: 0, database: self });
        }
        // Without an index every look-up would read the whole table.
        let sql = "SELECT count(*) FROM pragma_table_info('StringIds') WHERE pk > 0 AND (name = 'id' OR pk > 1)";
        let keys: i64 = self.connection.query_row(sql, [], |row| row.get(0)).map_err(fail)?;
        if keys != 1 {
            return Err(self.fail(TABLE, "its column id is no primary key"));
        }
        let statement = self.connection.prepare("SELECT value FROM main.StringIds WHERE id = ?1").map_err(fail)?;
        Ok(Strings { statement: Some(statement), known: FxHashMap::default(), bytes: 0, database: self })
    }
}

/// A file URI that says the file does not change: no locks, no journal.
fn uri(path: &Path) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri + "?immutable=1"
}

fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The values of one row.
pub(super) struct Values<'r, 's> {
    row: &'r rusqlite::Row<'s>,
    table: &'r str,
    columns: &'r [&'r str],
}

impl Values<'_, '_> {
    fn value(&self, at: usize) -> ValueRef<'_> {
        self.row.get_ref(at).unwrap_or(ValueRef::Null)
    }

    /// The integer in this column; anything else but null is counted and left out.
    pub fn int(&self, at: usize, gather: &mut Gather<'_>) -> Option<i64> {
        match self.value(at) {
            // The smallest integer stands for none.
            ValueRef::Integer(value) => Some(value).filter(|&value| value != i64::MIN),
            ValueRef::Null => None,
            _ => {
                self.ignored(at, gather);
                None
            }
        }
    }

    /// The number in this column.
    pub fn float(&self, at: usize, gather: &mut Gather<'_>) -> Option<f64> {
        match self.value(at) {
            ValueRef::Real(value) => Some(value).filter(|value| value.is_finite()),
            ValueRef::Integer(value) => Some(value as f64),
            ValueRef::Null => None,
            _ => {
                self.ignored(at, gather);
                None
            }
        }
    }

    /// The text in this column, cut when it is long.
    pub fn text(&self, at: usize, gather: &mut Gather<'_>) -> Option<String> {
        match self.value(at) {
            ValueRef::Text(bytes) => Some(text(bytes, gather)),
            ValueRef::Null => None,
            _ => {
                self.ignored(at, gather);
                None
            }
        }
    }

    fn ignored(&self, at: usize, gather: &mut Gather<'_>) {
        let kind = self.value(at).data_type();
        gather.odd(Anomaly::IgnoredField, || format!("{}.{}: {kind}", self.table, self.columns[at]), None);
    }
}

/// Bytes of a text as a text of bounded length.
fn text(bytes: &[u8], gather: &mut Gather<'_>) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT_BYTES + 4)]);
    if bytes.len() <= MAX_TEXT_BYTES {
        if matches!(text, std::borrow::Cow::Owned(_)) {
            gather.odd(Anomaly::InvalidUtf8, || &text, None);
        }
        return text.into_owned();
    }
    gather.odd(Anomaly::OversizedText, || format!("{} bytes: {text}", bytes.len()), None);
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

/// The table `StringIds`, looked up row by row: it holds whole files besides names, so it is never read as a whole.
pub(super) struct Strings<'d> {
    statement: Option<rusqlite::Statement<'d>>,
    known: FxHashMap<i64, Option<Rc<str>>>,
    bytes: usize,
    database: &'d Database,
}

/// Bytes of texts that are kept for the next look-up.
const KEPT_BYTES: usize = 32 << 20;

impl Strings<'_> {
    /// The text with this number.
    pub fn get(&mut self, id: Option<i64>, gather: &mut Gather<'_>) -> Result<Option<Rc<str>>, Error> {
        let Some(id) = id else { return Ok(None) };
        if let Some(known) = self.known.get(&id) {
            return Ok(known.clone());
        }
        let Some(statement) = &mut self.statement else { return Ok(None) };
        let fail = |error: rusqlite::Error| self.database.fail("StringIds", error);
        let mut rows = statement.query([id]).map_err(fail)?;
        let found: Option<Rc<str>> = match rows.next().map_err(fail)? {
            Some(row) => match row.get_ref(0).map_err(fail)? {
                ValueRef::Text(bytes) => Some(Rc::from(text(bytes, gather))),
                other => {
                    gather.odd(Anomaly::IgnoredField, || format!("StringIds.value: {}", other.data_type()), None);
                    None
                }
            },
            None => None,
        };
        if self.bytes > KEPT_BYTES {
            self.known.clear();
            self.bytes = 0;
        }
        self.bytes += found.as_ref().map_or(0, |text| text.len()) + 64;
        self.known.insert(id, found.clone());
        Ok(found)
    }
}
