//! One Parquet file per table.

use std::path::Path;

use trace::schema::Table;
use trace::{Profile, SegmentWriter, Writer};

use super::output::{self, directory};
use super::{Error, Summary, rows};

/// Writes every table that has rows to `out/TABLE.parquet`, the segments of a profile merged and sorted by rank, track and
/// time: for tools that want one file per table, and to make one of a recording's many small segments.
pub(super) fn export(profile: &Profile, out: &Path, overwrite: bool) -> Result<Summary, Error> {
    directory(out, overwrite)?;
    // A profile is written aside and its files are taken out of it: they are the same ones.
    let aside = tempfile::Builder::new().prefix(".export").tempdir_in(out).map_err(Error::io(out))?;
    let mut writer = Writer::create(&aside.path().join("tables"), &profile.manifest().name)?;
    let mut summary = Summary::default();
    for &table in Table::ALL {
        if profile.manifest().rows(table) == 0 {
            continue;
        }
        let mut segment = SegmentWriter::new(table);
        rows::sorted(profile, table, None, |batch| {
            summary.events += batch.len() as u64;
            Ok(segment.append(batch, &mut writer)?)
        })?;
        segment.close(&mut writer)?;
        let name = match writer.manifest().segments(table) {
            [only] => only.file.clone(),
            _ => unreachable!("one segment was written to each table"),
        };
        let path = out.join(table.folder()).with_extension("parquet");
        let whole = writer.path().join(table.folder()).join(name);
        summary.files.push(output::move_here(&whole, &path, overwrite)?);
    }
    Ok(summary)
}
