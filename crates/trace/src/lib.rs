//! Recording, and the profile directory.
//!
//! A profile is a directory of Parquet files: one folder per table, one file per segment, and a manifest. Times are `i64`
//! nanoseconds. [`schema`] defines every table and column once; rows are typed ([`schema::HostRow`]), gathered in a
//! [`Batch`], written by [`Writer`] and read back, column by column, by [`Profile`]. DuckDB, Polars and pandas read the same
//! files.
//!
//! ```
//! use trace::schema::{CounterRow, Table};
//! use trace::{Batch, Profile, Writer};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("run.profile");
//! let mut writer = Writer::create(&path, "run")?;
//! let mut batch = Batch::new(Table::Counters);
//! batch.push(&CounterRow { rank: 0, track: 0, ts: 5, name: "memory", series: "rss", value: 1e9, unit: Some("B") });
//! writer.write(&batch)?;
//! writer.finish()?;
//!
//! let profile = Profile::open(&path)?;
//! let counters = profile.read(Table::Counters, &["ts", "name"])?;
//! assert_eq!(counters.ints("ts"), [5]);
//! assert_eq!(counters.text(counters.texts("name")[0]), "memory");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
pub mod recorder;
pub mod schema;
mod store;
mod texts;

pub use batch::{Batch, Column, NO_INT, NO_TEXT};
pub use store::{Error, Filter, Manifest, Profile, Segment, SegmentWriter, State, Writer};
pub use texts::Texts;
