//! Imports what is named: `import OUTPUT INPUT...`, and prints the summary as JSON.

use std::path::PathBuf;

fn main() -> Result<(), profile::import::Error> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let output = arguments.next().unwrap_or_else(|| "run.profile".into());
    let inputs: Vec<PathBuf> = arguments.collect();
    let summary = profile::import::import(&inputs, &output, &profile::import::Options::default())?;
    println!("{}", serde_json::to_string_pretty(&summary).unwrap_or_default());
    Ok(())
}
