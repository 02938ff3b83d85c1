//! One CSV file per table.

use std::path::Path;

use trace::schema::Table;
use trace::{Column, NO_INT, NO_TEXT, Profile};

use super::output::{Output, directory};
use super::{Error, Summary, rows};

/// Writes every table that has rows to `out/TABLE.csv`: RFC 4180, UTF-8, a header with the columns' names, nulls as empty
/// fields.
pub(super) fn export(profile: &Profile, out: &Path, overwrite: bool) -> Result<Summary, Error> {
    directory(out, overwrite)?;
    let mut summary = Summary::default();
    for &table in Table::ALL {
        if profile.manifest().rows(table) == 0 {
            continue;
        }
        let path = out.join(table.folder()).with_extension("csv");
        let output = Output::create(&path, overwrite)?;
        let fail = |error: csv::Error| Error::io(&path)(error.into());
        let mut writer = csv::Writer::from_writer(output);
        writer.write_record(table.columns().iter().map(|column| column.name)).map_err(fail)?;
        let mut text = String::new();
        rows::sorted(profile, table, None, |batch| {
            for row in 0..batch.len() {
                for (_, column) in batch.columns() {
                    let field = match column {
                        Column::Text(ids) if ids[row] == NO_TEXT => "",
                        Column::Text(ids) => batch.text(ids[row]),
                        Column::Int(values) if values[row] == NO_INT => "",
                        Column::Float(values) if values[row].is_nan() => "",
                        column => {
                            text.clear();
                            match column {
                                Column::Int(values) => push(&mut text, values[row]),
                                Column::Float(values) => push(&mut text, values[row]),
                                Column::Text(_) => {}
                            }
                            &text
                        }
                    };
                    writer.write_field(field).map_err(fail)?;
                }
                writer.write_record(None::<&[u8]>).map_err(fail)?;
            }
            summary.events += batch.len() as u64;
            Ok(())
        })?;
        let output =
            writer.into_inner().map_err(|error| Error::Io { path: path.clone(), source: error.into_error() })?;
        summary.files.push(output.finish()?);
    }
    Ok(summary)
}

fn push(text: &mut String, value: impl std::fmt::Display) {
    use std::fmt::Write;
    // A String takes everything.
    let _ = write!(text, "{value}");
}
