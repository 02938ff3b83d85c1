//! Which functions of the contract a script has, and whether they fit together.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{HandlerError, frame::Found};

/// The contract: names and parameters, in the order of their calls. Each function may take `context` as one more.
const CONTRACT: [(&str, &str); 7] = [
    ("pre_model_fn", "model_dir"),
    ("model_fn", "model_dir"),
    ("model_warmup_fn", "model_dir, model"),
    ("input_fn", "body, content_type"),
    ("predict_fn", "data, model"),
    ("output_fn", "prediction, accept"),
    ("transform_fn", "model, body, content_type, accept"),
];
/// Names from other servers and from habit.
const HABITS: [(&str, &str); 12] = [
    ("handle", "transform_fn"),
    ("handler", "transform_fn"),
    ("transform", "transform_fn"),
    ("predict", "predict_fn"),
    ("inference", "predict_fn"),
    ("infer", "predict_fn"),
    ("load_fn", "model_fn"),
    ("load", "model_fn"),
    ("load_model", "model_fn"),
    ("initialize", "model_fn"),
    ("preprocess", "input_fn"),
    ("postprocess", "output_fn"),
];
/// Damerau-Levenshtein similarity from which a name is taken for a slip.
const NEAR: f64 = 0.7;

/// One function of the script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// Its name in the contract.
    pub name: &'static str,
    /// Whether it takes `context`.
    pub context: bool,
}

/// The functions of a script that are used. `Display` gives one line for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Functions {
    script: PathBuf,
    active: Vec<Function>,
    warnings: Vec<String>,
    model_is_callable: bool,
}

impl Functions {
    /// The functions that are called, in the order of their calls.
    pub fn active(&self) -> &[Function] {
        &self.active
    }

    /// Whether the script has a function of this name.
    pub fn has(&self, name: &str) -> bool {
        self.active.iter().any(|function| function.name == name)
    }

    /// Whether the script predicts by itself: by `predict_fn`, `transform_fn` or a model that can be called. Otherwise it
    /// only reads and writes, and another engine predicts in between.
    pub fn predicts(&self) -> bool {
        self.has("predict_fn") || self.has("transform_fn") || self.model_is_callable
    }

    /// What looks like a mistake: names near one of the contract that is missing.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Checks what was found in `script`.
    pub(super) fn check(script: &Path, found: &[Found], others: &[String]) -> Result<Self, HandlerError> {
        let wrong = |reason: String| HandlerError::Contract { script: script.to_owned(), reason };
        let problems: Vec<&str> = found.iter().filter_map(|function| function.problem.as_deref()).collect();
        if !problems.is_empty() {
            return Err(wrong(problems.join("; ")));
        }
        let active: Vec<Function> = CONTRACT
            .iter()
            .filter_map(|&(name, _)| {
                found.iter().find(|f| f.name == name).map(|f| Function { name, context: f.context })
            })
            .collect();
        let has = |name: &str| active.iter().any(|function| function.name == name);
        let warnings: Vec<String> = others
            .iter()
            .filter_map(|other| {
                let meant = nearest(other)?;
                let covered = has(meant) || (has("transform_fn") && meant != "model_fn");
                (!covered).then(|| format!("`{other}` is not called; did you mean `{meant}`?"))
            })
            .collect();
        if has("transform_fn")
            && let Some(excluded) = ["input_fn", "predict_fn", "output_fn"].into_iter().find(|name| has(name))
        {
            let reason =
                format!("transform_fn does the work of {excluded} too; keep transform_fn or the other functions");
            return Err(wrong(reason));
        }
        let serves = ["input_fn", "predict_fn", "output_fn", "transform_fn"].into_iter().any(has);
        if !has("model_fn") && (has("predict_fn") || has("transform_fn") || !serves) {
            return Err(wrong(format!(
                "model_fn(model_dir) is missing; found {}{}",
                listed(&active, others),
                warnings.iter().map(|warning| format!("; {warning}")).collect::<String>()
            )));
        }
        Ok(Self { script: script.to_owned(), active, warnings, model_is_callable: false })
    }

    /// Takes note of what `model_fn` returned.
    pub(super) fn with_model(mut self, callable: bool, kind: &str) -> Result<Self, HandlerError> {
        self.model_is_callable = callable && self.has("model_fn");
        if self.has("model_fn") && !self.predicts() {
            let reason = format!(
                "predict_fn(data, model) is missing, and what model_fn returned ({kind}) cannot be called{}",
                self.warnings.iter().map(|warning| format!("; {warning}")).collect::<String>()
            );
            return Err(HandlerError::Contract { script: self.script, reason });
        }
        Ok(self)
    }
}

impl fmt::Display for Functions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.script.display())?;
        for (place, function) in self.active.iter().enumerate() {
            let parameters = CONTRACT.iter().find(|(name, _)| *name == function.name).map_or("", |(_, p)| p);
            let comma = if place == 0 { "" } else { ", " };
            let context = if function.context { ", context" } else { "" };
            write!(out, "{comma}{}({parameters}{context})", function.name)?;
        }
        if !self.has("transform_fn") {
            let defaults = ["input_fn", "predict_fn", "output_fn"].into_iter().filter(|name| !self.has(name));
            for name in defaults {
                let what =
                    if name == "predict_fn" && !self.predicts() { "by the built-in engine" } else { "by default" };
                write!(out, ", {name} {what}")?;
            }
        }
        Ok(())
    }
}

fn listed(active: &[Function], others: &[String]) -> String {
    let names: Vec<String> = active
        .iter()
        .map(|f| f.name)
        .chain(others.iter().map(String::as_str))
        .map(|n| format!("`{n}`"))
        .take(12)
        .collect();
    if names.is_empty() { "no function".into() } else { names.join(", ") }
}

/// The name of the contract that `other` was probably meant to be.
fn nearest(other: &str) -> Option<&'static str> {
    let lower = other.to_lowercase();
    if let Some((_, meant)) = HABITS.iter().find(|(habit, _)| *habit == lower) {
        return Some(meant);
    }
    CONTRACT
        .iter()
        .map(|&(name, _)| (strsim::normalized_damerau_levenshtein(&lower, name), name))
        .filter(|(similarity, _)| *similarity >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], others: &[&str]) -> Result<Functions, HandlerError> {
        let found: Vec<Found> =
            names.iter().map(|n| Found { name: (*n).into(), context: false, problem: None }).collect();
        let others: Vec<String> = others.iter().map(|name| (*name).into()).collect();
        Functions::check(Path::new("inference.py"), &found, &others)
    }

    #[test]
    fn a_slip_of_a_name_is_reported_with_the_right_one() {
        for (slip, meant) in [
            ("modelfn", "model_fn"),
            ("mode_fn", "model_fn"),
            ("load_fn", "model_fn"),
            ("Model_fn", "model_fn"),
            ("handle", "transform_fn"),
        ] {
            let error = check(&["predict_fn"], &[slip]).unwrap_err().to_string();
            assert!(error.contains("model_fn(model_dir) is missing; found `predict_fn`"), "{error}");
            assert!(error.contains(&format!("`{slip}` is not called; did you mean `{meant}`?")), "{error}");
        }
        for (slip, meant) in [("predict", "predict_fn"), ("predictfn", "predict_fn"), ("ouput_fn", "output_fn")] {
            assert_eq!(
                check(&["model_fn"], &[slip, "tokenize"]).unwrap().warnings(),
                [format!("`{slip}` is not called; did you mean `{meant}`?")]
            );
        }
    }

    #[test]
    fn helpers_of_a_complete_script_are_not_suspected() {
        let all = ["model_fn", "input_fn", "predict_fn", "output_fn"];
        assert!(check(&all, &["load_model", "predict", "preprocess", "softmax"]).unwrap().warnings().is_empty());
        assert!(check(&["model_fn", "transform_fn"], &["preprocess"]).unwrap().warnings().is_empty());
    }

    #[test]
    fn transform_fn_excludes_the_three_others() {
        let error = check(&["model_fn", "transform_fn", "output_fn"], &[]).unwrap_err().to_string();
        assert_eq!(
            error,
            "inference.py: transform_fn does the work of output_fn too; keep transform_fn or the other functions"
        );
    }

    #[test]
    fn a_script_that_only_reads_and_writes_needs_no_model() {
        let functions = check(&["input_fn"], &[]).unwrap().with_model(false, "NoneType").unwrap();
        assert!(!functions.predicts());
        assert_eq!(
            functions.to_string(),
            "inference.py: input_fn(body, content_type), predict_fn by the built-in engine, output_fn by default"
        );
    }

    #[test]
    fn a_model_without_predict_fn_must_be_callable() {
        let functions = check(&["model_fn"], &["predct_fn"]).unwrap();
        assert!(functions.clone().with_model(true, "Pipeline").unwrap().predicts());
        let error = functions.with_model(false, "dict").unwrap_err().to_string();
        assert!(error.contains("what model_fn returned (dict) cannot be called; `predct_fn` is not called"), "{error}");
    }

    #[test]
    fn a_script_without_functions_says_so() {
        let error = check(&[], &[]).unwrap_err().to_string();
        assert_eq!(error, "inference.py: model_fn(model_dir) is missing; found no function");
    }
}
