use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Error, MANIFEST};
use crate::schema::Table;

/// What `format` says in every manifest.
const FORMAT: &str = "trainyard profile";
/// The version this crate writes, and the only one it reads.
const VERSION: u32 = 1;
/// A manifest is small; more than this is no manifest.
const MAX_BYTES: u64 = 64 << 20;

/// Whether a profile is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is being written, or its writer was killed: all segments named here are whole.
    Recording,
    /// It is whole.
    Complete,
}

/// A file of a table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Name within the table's folder.
    pub file: String,
    /// Rows.
    pub rows: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// `manifest.json`: what the profile is, and which files it consists of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    format: String,
    version: u32,
    /// Name of the profile.
    pub name: String,
    /// When it was created: RFC 3339, UTC.
    pub created: String,
    /// Version of Trainyard that wrote it.
    pub writer: String,
    /// Process that writes it, while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Whether it is whole.
    pub state: State,
    /// Ranks, as far as known.
    pub ranks: Vec<i64>,
    /// Devices of all ranks.
    pub devices: u64,
    /// Earliest start of any slice on the common clock, ns.
    pub first_ns: Option<i64>,
    /// Latest end of any slice on the common clock, ns.
    pub last_ns: Option<i64>,
    /// Segments of every table that has any, in the order of writing.
    pub tables: BTreeMap<String, Vec<Segment>>,
}

impl Manifest {
    pub(crate) fn new(name: &str) -> Self {
        Manifest {
            format: FORMAT.into(),
            version: VERSION,
            name: name.into(),
            created: chrono::DateTime::<chrono::Utc>::from(std::time::SystemTime::now())
                .to_rfc3339_opts(chrono::SecondsFormat::Millis, true),
            writer: concat!("trainyard ", env!("CARGO_PKG_VERSION")).into(),
            pid: Some(std::process::id()),
            state: State::Recording,
            ranks: Vec::new(),
            devices: 0,
            first_ns: None,
            last_ns: None,
            tables: BTreeMap::new(),
        }
    }

    /// Segments of this table.
    pub fn segments(&self, table: Table) -> &[Segment] {
        self.tables.get(table.folder()).map_or(&[], Vec::as_slice)
    }

    /// Rows of this table.
    pub fn rows(&self, table: Table) -> u64 {
        self.segments(table).iter().map(|segment| segment.rows).sum()
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.tables.values().flatten().map(|segment| segment.bytes).sum()
    }

    pub(crate) fn load(dir: &Path) -> Result<Self, Error> {
        let path = dir.join(MANIFEST);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(match fs::metadata(dir) {
                    Ok(_) => Error::NoProfile { path: dir.to_owned() },
                    Err(source) => Error::Io { path: dir.to_owned(), source },
                });
            }
            Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => {
                return Err(Error::NoProfile { path: dir.to_owned() });
            }
            Err(source) => return Err(Error::Io { path, source }),
        };
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(Error::io(&path))?;
        let fail = |reason: String| Error::Manifest { path: path.clone(), reason };
        let manifest: Manifest =
            serde_json::from_str(&text).map_err(|error| fail(format!("not a manifest: {error}")))?;
        if manifest.format != FORMAT {
            return Err(fail(format!("format is {:?}, not {FORMAT:?}", manifest.format)));
        }
        if manifest.version != VERSION {
            return Err(fail(format!("version is {}; this program reads {VERSION}", manifest.version)));
        }
        for segment in manifest.tables.values().flatten() {
            if segment.file.contains(['/', '\\']) || segment.file.starts_with('.') {
                return Err(fail(format!("segment {:?} is no plain file name", segment.file)));
            }
        }
        Ok(manifest)
    }

    pub(crate) fn store(&self, dir: &Path) -> Result<(), Error> {
        let path = dir.join(MANIFEST);
        let mut file = tempfile::Builder::new()
            .prefix(".manifest")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(dir)
            .map_err(Error::io(&path))?;
        let text = serde_json::to_string_pretty(self).expect("a manifest is plain data");
        file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(Error::io(&path))?;
        file.persist(&path).map_err(|error| Error::Io { path, source: error.error })?;
        Ok(())
    }
}
