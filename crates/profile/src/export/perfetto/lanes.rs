//! Slices of one track, spread over lines on which they nest.

/// Perfetto draws a line as a stack: a slice must lie within the one that is open below it, or it is dropped. Slices that
/// overlap partly therefore get lines of their own.
#[derive(Default)]
pub(super) struct Lanes {
    /// Ends of the slices that are open on each line, the innermost last.
    open: Vec<Vec<i64>>,
}

impl Lanes {
    /// The line for the next slice. Slices come by rising start, longer ones first.
    pub fn place(&mut self, start: i64, end: i64) -> usize {
        for (lane, open) in self.open.iter_mut().enumerate() {
            while open.last().is_some_and(|&outer| outer <= start) {
                open.pop();
            }
            if open.last().is_none_or(|&outer| end <= outer) {
                open.push(end);
                return lane;
            }
        }
        self.open.push(vec![end]);
        self.open.len() - 1
    }

    /// Forgets everything: the next slice is of another track.
    pub fn clear(&mut self) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::Lanes;

    #[test]
    fn nested_slices_share_a_line_and_partly_overlapping_ones_do_not() {
        let mut lanes = Lanes::default();
        let mut place = |start, end| lanes.place(start, end);
        assert_eq!(place(0, 100), 0);
        assert_eq!(place(0, 50), 0);
        assert_eq!(place(10, 10), 0);
        assert_eq!(place(20, 60), 1);
        assert_eq!(place(30, 70), 2);
        // What begins where another ends does not overlap it.
        assert_eq!(place(50, 100), 0);
        assert_eq!(place(60, 61), 0);
        assert_eq!(place(100, 120), 0);
    }
}
