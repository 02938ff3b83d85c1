//! `docs/job-file.md` and the code name the same keys and defaults, and the example is a valid job.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Full key and default, as written, of every row of the manual's tables of keys.
fn documented() -> BTreeMap<String, String> {
    let manual = fs::read_to_string(in_repository("docs/job-file.md")).unwrap();
    let (mut table, mut inside, mut keys) = (String::new(), false, BTreeMap::new());
    for line in manual.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let named = heading.strip_prefix("`[").and_then(|rest| rest.strip_suffix("]`"));
            table = named.map_or(String::new(), |name| format!("{name}."));
            inside = named.is_some() || heading == "Top level";
        } else if let Some(row) = line.strip_prefix("| `").filter(|_| inside) {
            let cells: Vec<&str> = row.split(" | ").collect();
            let key = format!("{table}{}", cells[0].trim_end_matches('`'));
            assert!(keys.insert(key, cells[2].to_owned()).is_none(), "twice: {line}");
        }
    }
    keys
}

#[test]
fn the_manual_and_the_code_have_the_same_keys() {
    let in_code: Vec<&str> = known_keys().iter().map(String::as_str).filter(|key| !keys::is_table(key)).collect();
    let documented = documented();
    for key in &in_code {
        assert!(documented.contains_key(*key), "`{key}` is missing from docs/job-file.md");
    }
    for key in documented.keys() {
        assert!(in_code.contains(&key.as_str()), "docs/job-file.md has `{key}`, which no code reads");
    }
}

#[test]
fn the_manual_gives_the_defaults_of_the_code() {
    let minimal = "model = 'm'\ndata.train = 't.csv'\n";
    let resolved = Job::parse(minimal, Path::new("job.toml"), &[]).unwrap().resolved();
    for (key, default) in documented() {
        let value = key.split('.').fold(&resolved, |value, name| &value[name]);
        let literal = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'));
        match literal {
            Some(literal) => {
                let table: toml::Table = format!("value = {literal}").parse().unwrap();
                let documented = serde_json::to_value(&table["value"]).unwrap();
                assert_eq!(value, &documented, "default of `{key}`");
            }
            None if default == "–" => assert_eq!(value, &Value::Null, "default of `{key}`"),
            None => assert!(["required", "by task", "from the file's name"].contains(&default.as_str()), "{key}"),
        }
    }
}

#[test]
fn the_example_is_a_valid_job() {
    let job = Job::load(&in_repository("examples/tweets.toml"), &[]).unwrap();
    assert_eq!(job.evaluate.metric, Some(crate::metrics::Metric::MacroRecall));
    assert_eq!(job.schedule.max_minutes, Some(3.0));
}
