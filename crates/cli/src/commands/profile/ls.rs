//! `trainyard profile ls`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use profile::report::About;
use profile::report::units::{bytes, time};
use serde::Serialize;
use trace::{Error, Profile};

use super::STDOUT;
use super::table::{Page, Table};
use crate::commands::print_json;
use crate::exit::Refused;

/// Folders within folders that are looked into: a run's profile is `runs/NAME/profile`.
const DEPTH: usize = 3;

#[derive(clap::Args)]
pub struct Args {
    /// Folder whose profiles to list, those of run directories in it included
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Print the list as one JSON object
    #[arg(long)]
    json: bool,
}

/// What a folder holds.
#[derive(Serialize, Default)]
struct List {
    profiles: Vec<About>,
    /// Those that cannot be read, and why.
    unreadable: Vec<Unreadable>,
}

#[derive(Serialize)]
struct Unreadable {
    path: String,
    reason: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut list = List::default();
    let kind = fs::metadata(&args.dir).map_err(|error| Refused(format!("{}: {error}", args.dir.display())))?;
    if !kind.is_dir() {
        return Err(Refused(format!("{}: not a folder", args.dir.display())).into());
    }
    find(&args.dir, DEPTH, &mut list);
    list.profiles.sort_by(|a, b| (&b.created, &a.path).cmp(&(&a.created, &b.path)));
    if args.json {
        print_json(&list)?;
    } else {
        print(&list, &args.dir).context(STDOUT)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn find(dir: &Path, depth: usize, list: &mut List) {
    match Profile::open(dir) {
        Ok(profile) => return list.profiles.push(About::of(&profile)),
        Err(Error::NoProfile { .. }) => {}
        // A manifest.json of something else is no profile's.
        Err(Error::Manifest { path, .. }) if !looks_like_ours(&path) => {}
        Err(error) => {
            let (path, reason) = (dir.display().to_string(), error.to_string());
            return list.unreadable.push(Unreadable { path, reason });
        }
    }
    if depth == 0 {
        return;
    }
    // Links are not followed: they may lead back.
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    folders.iter().for_each(|folder| find(folder, depth - 1, list));
}

fn looks_like_ours(manifest: &Path) -> bool {
    fs::read_to_string(manifest).is_ok_and(|text| text.contains("trainyard profile"))
}

fn print(list: &List, dir: &Path) -> std::io::Result<()> {
    let mut page = Page::stdout();
    if list.profiles.is_empty() && list.unreadable.is_empty() {
        return page.line(&format!("no profiles in {}", dir.display()));
    }
    let mut table =
        Table::new(["name*", "<created (UTC)", "ranks", "devices", "span", "slices", "size", "<state", "<path"]);
    for about in &list.profiles {
        table.row([
            about.name.clone(),
            about.created.replace('T', " ").chars().take(19).collect(),
            about.ranks.len().to_string(),
            about.devices.to_string(),
            about.span_ns.map_or("–".into(), |span| time(span as f64)),
            profile::report::units::count(about.host_slices + about.device_slices),
            bytes(about.bytes as f64),
            about.state.to_owned(),
            about.path.clone(),
        ]);
    }
    if !table.is_empty() {
        page.table(&table)?;
    }
    for unreadable in &list.unreadable {
        page.paragraph("  unreadable: ", &unreadable.reason)?;
    }
    page.flush()
}
