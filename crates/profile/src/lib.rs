//! Understanding profiles: importers for what other tools record, exact analyses, reports, and timeline queries.
//!
//! [`import`] turns files of other profilers into a profile directory (see the `trace` crate); [`Run::load`] reads what the
//! analyses need back into memory. All times are integer nanoseconds.

pub mod analysis;
mod events;
pub mod export;
pub mod import;
mod json;
pub mod report;
pub mod timeline;

pub use events::{
    Class, Device, DeviceEvent, DeviceKind, Flag, Host, HostEvent, HostKind, RankEvents, RankInfo, Run, Track,
};
