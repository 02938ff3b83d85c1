//! What two jobs disagree about: `--resume` tells the user before it goes on.

use serde_json::Value;

use super::tables::Job;

/// A key on which two jobs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Full path of the key.
    pub key: String,
    /// Its value before, as JSON.
    pub before: String,
    /// Its value now, as JSON.
    pub now: String,
}

/// Every key whose value differs between two resolved jobs (see [`Job::resolved`]), in order of their
/// names. A job written by another version may lack keys; they read as `null`.
pub fn differences(before: &Value, now: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(String::new(), before, now, &mut found);
    found
}

impl Job {
    /// The whole job as JSON, defaults filled in: what `run.json` holds.
    pub fn resolved(&self) -> Value {
        // Only maps with keys that are not strings fail to serialise, and a job has none.
        serde_json::to_value(self).unwrap_or(Value::Null)
    }
}

fn compare(path: String, before: &Value, now: &Value, found: &mut Vec<Difference>) {
    match (before, now) {
        (Value::Object(old), Value::Object(new)) => {
            let mut keys: Vec<&String> = old.keys().chain(new.keys()).collect();
            keys.sort();
            keys.dedup();
            for key in keys {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                let value = |side: &serde_json::Map<String, Value>| side.get(key).cloned().unwrap_or_default();
                compare(path, &value(old), &value(new), found);
            }
        }
        _ if before != now => {
            found.push(Difference { key: path, before: before.to_string(), now: now.to_string() });
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_by_key_with_both_values() {
        let before = Job { seed: 1, ..Job::default() };
        let mut now = before.clone();
        now.optimizer.lr = 0.5;
        now.data.limit = Some(7);
        let found = differences(&before.resolved(), &now.resolved());
        let lines: Vec<String> = found.iter().map(|d| format!("{}: {} -> {}", d.key, d.before, d.now)).collect();
        assert_eq!(lines, ["data.limit: null -> 7", "optimizer.lr: 0.00002 -> 0.5"]);
        assert!(differences(&now.resolved(), &now.resolved()).is_empty());
    }
}
