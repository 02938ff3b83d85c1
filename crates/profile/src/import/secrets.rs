//! What must not travel with a profile: the environment of the profiled process, and whatever is named like a credential.

use serde_json::Value;

/// What stands in the place of a value that is not copied.
const PLACEHOLDER: &str = "(not copied: it may hold secrets)";

/// Keys whose values are the process's environment.
const ENVIRONMENTS: [&str; 6] =
    ["env", "environ", "environment", "env_vars", "environment_variables", "environment_vars"];
/// Parts of keys that name credentials.
const CREDENTIALS: [&str; 10] = [
    "token",
    "secret",
    "password",
    "passwd",
    "api_key",
    "apikey",
    "private_key",
    "credential",
    "authorization",
    "cookie",
];

/// Replaces environments and credentials at any depth; returns how many.
pub(super) fn redact(value: &mut Value) -> u64 {
    match value {
        Value::Object(fields) => {
            let mut found = 0;
            for (key, value) in fields.iter_mut() {
                let key = key.to_lowercase();
                let environment = ENVIRONMENTS.contains(&key.as_str()) && (value.is_object() || value.is_array());
                let named = CREDENTIALS.iter().any(|word| key.contains(word)) && !key.contains("tokeniz");
                let credential = named && !(value.is_number() || value.is_boolean() || value.is_null());
                if environment || credential {
                    *value = Value::from(PLACEHOLDER);
                    found += 1;
                } else {
                    found += redact(value);
                }
            }
            found
        }
        Value::Array(values) => values.iter_mut().map(redact).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_and_credentials_are_replaced_at_any_depth_and_nothing_else() {
        let mut value = serde_json::json!({
            "system": [{"env": {"PATH": "/bin", "HF_TOKEN": "hf_x"}}, {"env": "none", "pid": 7}],
            "Api_Key": "x", "tokens_per_second": 5, "hub": {"auth_token": ["y"], "tokenizer": "bert"},
        });
        assert_eq!(redact(&mut value), 3);
        let text = value.to_string();
        assert!(!text.contains("hf_x") && !text.contains("\"x\"") && !text.contains("\"y\"") && !text.contains("PATH"));
        assert!(text.contains("bert"));
        assert_eq!((&value["system"][1]["env"], &value["tokens_per_second"]), (&"none".into(), &5.into()));
        assert_eq!(redact(&mut value), 2, "a credential's placeholder is a text as well");
    }
}
