//! Which rank each file is of.

use std::collections::BTreeSet;
use std::path::Path;

use super::PartFacts;

/// A rank and how it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Assigned {
    pub rank: i64,
    pub from: &'static str,
    /// The rank that was asked for, where another file has it already.
    pub conflict: Option<i64>,
}

/// Ranks of parts, in order: what they state, else what the file's name says, else the first that is free.
pub(super) fn assign(parts: &[(&Path, &PartFacts)]) -> Vec<Assigned> {
    let mut taken = BTreeSet::new();
    let mut assigned: Vec<Option<Assigned>> = vec![None; parts.len()];
    let mut conflicts = vec![None; parts.len()];
    let mut claim = |at: usize, wish: Option<(i64, &'static str)>, assigned: &mut Vec<Option<Assigned>>| {
        let Some((rank, from)) = wish else { return };
        if assigned[at].is_some() {
            return;
        }
        if taken.insert(rank) {
            assigned[at] = Some(Assigned { rank, from, conflict: None });
        } else {
            conflicts[at] = conflicts[at].or(Some(rank));
        }
    };
    for (at, (_, facts)) in parts.iter().enumerate() {
        claim(at, facts.rank, &mut assigned);
    }
    for (at, (path, facts)) in parts.iter().enumerate() {
        // A rank that is stated outweighs a name, also when another file states the same.
        let named = if facts.rank.is_none() { rank_in_name(path).map(|rank| (rank, "file name")) } else { None };
        claim(at, named, &mut assigned);
    }
    let mut free = 0;
    let mut done = Vec::new();
    for (at, assigned) in assigned.into_iter().enumerate() {
        done.push(assigned.unwrap_or_else(|| {
            while !taken.insert(free) {
                free += 1;
            }
            Assigned { rank: free, from: "order", conflict: conflicts[at] }
        }));
    }
    done
}

/// The number after the last `rank` or `worker` in the file's name.
fn rank_in_name(path: &Path) -> Option<i64> {
    let name = path.file_name()?.to_str()?.to_lowercase();
    let number = |word: &str| -> Option<i64> {
        let numbers = name.match_indices(word).filter_map(|(at, _)| {
            let rest = name[at + word.len()..].trim_start_matches(['-', '_', '.', '=']);
            let digits = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
            rest[..digits].parse().ok()
        });
        numbers.last()
    };
    number("rank").or_else(|| number("worker"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(files: &[(&str, Option<i64>)]) -> Vec<(i64, &'static str, Option<i64>)> {
        let facts: Vec<PartFacts> = files
            .iter()
            .map(|(_, rank)| PartFacts { rank: rank.map(|rank| (rank, "distributedInfo")), ..PartFacts::default() })
            .collect();
        let parts: Vec<(&Path, &PartFacts)> =
            files.iter().zip(&facts).map(|((name, _), facts)| (Path::new(*name), facts)).collect();
        assign(&parts).into_iter().map(|assigned| (assigned.rank, assigned.from, assigned.conflict)).collect()
    }

    #[test]
    fn a_stated_rank_outweighs_a_name_and_a_name_the_order() {
        let found =
            ranks(&[("a.json", None), ("rank-1.json", Some(7)), ("x_rank0.json", None), ("worker3.pt.json", None)]);
        assert_eq!(
            found,
            [(1, "order", None), (7, "distributedInfo", None), (0, "file name", None), (3, "file name", None)]
        );
    }

    #[test]
    fn of_two_files_of_one_rank_the_later_is_numbered_anew() {
        let found = ranks(&[("a.json", Some(0)), ("b.json", Some(0)), ("rank0.json", None)]);
        assert_eq!(found, [(0, "distributedInfo", None), (1, "order", Some(0)), (2, "order", Some(0))]);
    }
}
