//! The panel of the host's counters.

use super::super::{HostCounter, Report, units};
use super::table::{Cell, Table};
use super::{Panel, Width, escape, svg};

pub(super) fn panel(report: &Report) -> Option<Panel> {
    let of = &report.host_counters;
    let several = report.analyses.ranks.len() > 1;
    let name = |counter: &HostCounter| {
        let name = format!("{} {}", counter.name.replace('_', " "), counter.series);
        if several { format!("rank {}: {}", counter.rank, name.trim_end()) } else { name.trim_end().to_owned() }
    };
    let mut table = Table::new(&["rank", "counter", "samples", "first", "mean", "max"]);
    let mut charts = String::new();
    for counter in &of.series {
        let value = |value: f64| units::value(value, counter.unit.as_deref());
        let cell = |number: f64| Cell::Number(number, value(number));
        table.row([
            Cell::Number(counter.rank as f64, counter.rank.to_string()),
            Cell::Name(name(counter), 60),
            Cell::count(counter.samples as u64),
            cell(counter.first),
            cell(counter.mean),
            cell(counter.max),
        ]);
        // What stays as it is needs no picture.
        let (Some(first), Some(last)) = (counter.points.first(), counter.points.last()) else { continue };
        if counter.points.iter().all(|point| point.1 == first.1) {
            continue;
        }
        let points: Vec<(f64, f64)> =
            counter.points.iter().map(|(ts, value)| (ts.abs_diff(first.0) as f64, *value)).collect();
        let most = points.iter().map(|point| point.1).fold(0.0, f64::max);
        let title = name(counter);
        let span = units::time(last.0.abs_diff(first.0) as f64);
        charts += &format!(
            "<div><h3>{}</h3>{}</div>",
            escape(&title),
            svg::line(&title, &points, most, "0", &span, &format!("{} at the top", value(most)))
        );
    }
    let more = match of.left_out {
        0 => String::new(),
        more => format!("<p>… and {} more series.</p>", units::count(more as u64)),
    };
    (!table.is_empty()).then(|| Panel {
        id: "host-counters",
        title: "Host counters",
        note: "Samples of the process and its host; faults, switches, disk and network count what came since the sample before."
            .into(),
        width: Width::Whole,
        body: format!(
            r#"<div class="multiples small">{charts}</div>{more}<details><summary>Table</summary>{}</details>"#,
            table.html()
        ),
    })
}
