//! Which parameters stay as they are.

use glob::{Pattern, PatternError};

/// Glob patterns over parameter names: `*` any run of characters (dots included), `?` one character,
/// `[01]` one of a set. A pattern matches a whole name or the whole of it after leading dotted parts,
/// so `embeddings.*` freezes `bert.embeddings.word_embeddings.weight`.
///
/// ```
/// use train::job::FreezePatterns;
///
/// let freeze = FreezePatterns::new(&["embeddings.*", "encoder.layer.[01].*"])?;
/// assert!(freeze.matches("bert.encoder.layer.1.output.dense.bias"));
/// assert!(!freeze.matches("bert.encoder.layer.10.output.dense.bias"));
/// # Ok::<(), glob::PatternError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FreezePatterns(Vec<Pattern>);

impl FreezePatterns {
    /// # Errors
    /// The first pattern that is not a glob.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, PatternError> {
        patterns.iter().map(|pattern| Pattern::new(pattern.as_ref())).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the parameter `name` is frozen.
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches_tail(pattern, name))
    }

    /// Patterns that freeze none of `names`: most likely misspelt, worth a notice.
    pub fn unused<'a>(&'a self, names: &[impl AsRef<str>]) -> Vec<&'a str> {
        let idle = |pattern: &&Pattern| !names.iter().any(|name| matches_tail(pattern, name.as_ref()));
        self.0.iter().filter(idle).map(Pattern::as_str).collect()
    }
}

fn matches_tail(pattern: &Pattern, name: &str) -> bool {
    let after_dots = name.match_indices('.').map(|(dot, _)| &name[dot + 1..]);
    std::iter::once(name).chain(after_dots).any(|tail| pattern.matches(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_begins_at_a_dot_and_ends_with_the_name() {
        let freeze = FreezePatterns::new(&["embeddings.*", "pooler.dense.bias"]).unwrap();
        assert!(freeze.matches("embeddings.LayerNorm.weight"));
        assert!(freeze.matches("roberta.embeddings.LayerNorm.weight"));
        assert!(freeze.matches("bert.pooler.dense.bias"));
        assert!(!freeze.matches("my_embeddings.weight"));
        assert!(!freeze.matches("bert.pooler.dense.bias.more"));
    }

    #[test]
    fn patterns_that_freeze_nothing_are_named() {
        let freeze = FreezePatterns::new(&["embeddings.*", "encoder.layers.0.*"]).unwrap();
        let names = ["bert.embeddings.LayerNorm.bias", "bert.encoder.layer.0.output.dense.bias"];
        assert_eq!(freeze.unused(&names), ["encoder.layers.0.*"]);
    }
}
