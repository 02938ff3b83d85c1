//! `trainyard profile slices`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use profile::report::units::{count, time};
use profile::timeline::{Line, Timeline, Viewport};

use super::table::{Page, Table};
use super::{STDOUT, open};
use crate::commands::print_json;
use crate::exit::Refused;

#[derive(clap::Args)]
pub struct Args {
    /// Profile directory
    profile: PathBuf,
    /// Track to draw; without it, the tracks are listed
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    track: Option<i64>,
    /// Start of the window, ns on the clock of the track's rank [default: the track's first slice]
    #[arg(long, value_name = "NS", allow_negative_numbers = true, requires = "track")]
    from: Option<i64>,
    /// End of the window, ns [default: the end of the track's last slice]
    #[arg(long, value_name = "NS", allow_negative_numbers = true, requires = "track")]
    to: Option<i64>,
    /// Pixels to draw on: at most two slices for each pixel and row are given, closer ones as one
    #[arg(long, value_name = "PIXELS", default_value_t = 1600)]
    px: u32,
    /// Print as one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let profile = open(&args.profile)?;
    let timeline = Timeline::open(&profile)?;
    let Some(track) = args.track else {
        let lines: Vec<&Line> = timeline.tracks().collect();
        if args.json {
            print_json(&serde_json::json!({ "tracks": lines }))?;
        } else {
            print_lines(&lines).context(STDOUT)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let (from, to) = match (args.from, args.to) {
        (Some(from), Some(to)) => (from, to),
        (from, to) => {
            let known = timeline.extent(track)?.ok_or_else(|| Refused(format!("track {track} has no slices")))?;
            (from.unwrap_or(known.0), to.unwrap_or(known.1.max(known.0.saturating_add(1))))
        }
    };
    let view = timeline.slices(track, from, to, args.px)?;
    if args.json {
        print_json(&view)?;
    } else {
        print_view(&view).context(STDOUT)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print_lines(lines: &[&Line]) -> std::io::Result<()> {
    let mut table =
        Table::new(["track", "rank", "<kind", "device", "stream", "<process", "<thread", "process name*", "name*"]);
    let number = |value: Option<i64>| value.map_or(String::new(), |value| value.to_string());
    for line in lines {
        table.row([
            line.track.to_string(),
            line.rank.to_string(),
            line.kind.clone(),
            number(line.device),
            number(line.stream),
            line.process.clone(),
            line.thread.clone(),
            line.process_name.clone().unwrap_or_default(),
            line.thread_name.clone().unwrap_or_default(),
        ]);
    }
    let mut page = Page::stdout();
    page.table(&table.without_empty_columns())?;
    page.flush()
}

fn print_view(view: &Viewport) -> std::io::Result<()> {
    let mut page = Page::stdout();
    let shown: usize = view.rows.iter().map(|row| row.slices.len()).sum();
    page.line(&format!(
        "track {} of rank {}, {} to {} ns ({}): {} slices in {} rectangles, {} a pixel",
        view.track,
        view.rank,
        view.from_ns,
        view.to_ns,
        time(view.to_ns.saturating_sub(view.from_ns) as f64),
        count(view.slices.unsigned_abs()),
        count(shown as u64),
        time(view.pixel_ns as f64),
    ))?;
    let mut table = Table::new(["row", "ts ns", "duration", "busy", "slices", "correlation", "name*"]);
    for row in &view.rows {
        for slice in &row.slices {
            table.row([
                row.depth.to_string(),
                slice.ts.to_string(),
                time(slice.dur as f64),
                time(slice.busy as f64),
                count(slice.count.unsigned_abs()),
                slice.correlation.map_or(String::new(), |id| id.to_string()),
                view.names[slice.name].clone(),
            ]);
        }
    }
    page.table(&table.without_empty_columns())?;
    page.flush()
}
