//! Which updates a profile is of.

use std::str::FromStr;

use crate::error::TrainError;

/// Updates `first..end`, numbered from 1 as in `metrics.jsonl`; `end` is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first update.
    pub first: u64,
    /// The update after the last.
    pub end: u64,
}

impl FromStr for Window {
    type Err = String;

    /// Reads `steps=20..40`.
    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is not a range of updates such as steps=20..40");
        let (first, end) = text.strip_prefix("steps=").and_then(|range| range.split_once("..")).ok_or_else(form)?;
        let number = |text: &str| text.parse::<u64>().map_err(|_| form());
        let window = Window { first: number(first)?, end: number(end)? };
        if window.first == 0 {
            return Err(format!("`{text}`: updates are counted from 1"));
        }
        if window.end <= window.first {
            return Err(format!("`{text}` has no updates: the end is not part of the range"));
        }
        Ok(window)
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "steps={}..{}", self.first, self.end)
    }
}

impl Window {
    /// Refuses a window that a run of `total` updates, of which `made` are made, cannot record whole.
    pub fn refuse_misfit(self, made: u64, total: u64) -> Result<(), TrainError> {
        let unfit = |text: String| Err(TrainError::Unfit(format!("--profile {self}: {text}")));
        if self.first > total {
            return unfit(format!("the run makes only {total} updates"));
        }
        if self.end > total + 1 {
            return unfit(format!("the run makes only {total} updates: its last range ends at {}", total + 1));
        }
        if self.first <= made {
            return unfit(format!("the run goes on after update {made}: begin at {} or later", made + 1));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_written() {
        let window: Window = "steps=20..40".parse().unwrap();
        assert_eq!((window, window.to_string()), (Window { first: 20, end: 40 }, "steps=20..40".into()));
        for (text, problem) in [
            ("20..40", "such as steps=20..40"),
            ("steps=20", "such as"),
            ("steps=a..b", "such as"),
            ("steps=-1..4", "such as"),
            ("steps=1..99999999999999999999", "such as"),
            ("steps=0..4", "counted from 1"),
            ("steps=4..4", "no updates"),
            ("steps=5..4", "no updates"),
        ] {
            let error = text.parse::<Window>().unwrap_err();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_range_must_lie_within_the_run() {
        let refused = |first, end, made| {
            Window { first, end }.refuse_misfit(made, 120).err().map_or(String::new(), |error| error.to_string())
        };
        assert_eq!(refused(1, 121, 0), "");
        assert_eq!(refused(50, 60, 49), "");
        assert!(refused(121, 130, 0).contains("only 120 updates"), "{}", refused(121, 130, 0));
        assert!(refused(100, 122, 0).contains("ends at 121"), "{}", refused(100, 122, 0));
        assert!(refused(50, 60, 50).contains("begin at 51"), "{}", refused(50, 60, 50));
    }
}
