//! The timeline: what to draw of a track at any zoom, exactly and within milliseconds.
//!
//! [`Timeline::slices`] answers a viewport. A track with millions of slices would be too much to read for far zoom, so the import
//! (and a finished recording) summarises it once with an [`OverviewBuilder`]: levels of buckets, in which neighbours are one
//! line. A viewport is widened to whole buckets, so that busy time is exact at any zoom.

mod group;
mod overview;
mod slices;
#[cfg(test)]
mod tests;
mod tracks;

pub use overview::OverviewBuilder;
pub use slices::{Error, Row, Slice, Timeline, Viewport};
pub use tracks::{Line, tracks};
