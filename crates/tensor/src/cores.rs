//! Which cores there are, and keeping a team on its own.

use std::collections::HashSet;

/// The number of physical cores this process may use, at least 1: what a team is best sized by, since two threads on one
/// core share its arithmetic.
pub fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cores: HashSet<(String, String)> = processors().into_iter().filter_map(|p| p.core).collect();
    if cores.is_empty() { available } else { cores.len().min(available) }
}

/// Deals `threads` out to `teams` as numbers of logical processors, a core of its own for each as long as there are
/// enough: `teams` lists that hold `threads` entries together.
pub fn split_cores(threads: usize, teams: usize) -> Vec<Vec<usize>> {
    let order = cores_first(&allowed(), &processors());
    let core = |thread: usize| order[thread % order.len()];
    (0..teams).map(|team| (threads * team / teams..threads * (team + 1) / teams).map(core).collect()).collect()
}

/// Keeps this thread, and the threads it starts from now on, on the given logical processors. Where the system does not
/// allow it, threads run where it puts them.
pub fn pin_to_cores(processors: &[usize]) {
    #[cfg(target_os = "linux")]
    // SAFETY: the set is a plain bit mask on the stack; numbers beyond it are left out.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        processors.iter().filter(|&&p| p < libc::CPU_SETSIZE as usize).for_each(|&p| libc::CPU_SET(p, &mut set));
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = processors;
}

/// A logical processor and, where the system tells, the package and core it belongs to.
struct Processor {
    number: usize,
    core: Option<(String, String)>,
}

fn processors() -> Vec<Processor> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |block: &str, key: &str| -> Option<String> {
        let line = block.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let processor = |block: &str| {
        let number = field(block, "processor")?.parse().ok()?;
        let core = field(block, "physical id").zip(field(block, "core id"));
        Some(Processor { number, core })
    };
    info.split("\n\n").filter_map(processor).collect()
}

/// The logical processors this process may run on.
fn allowed() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    // SAFETY: the set is a plain bit mask on the stack, and the system fills no more than its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) == 0 {
            return (0..libc::CPU_SETSIZE as usize).filter(|&p| libc::CPU_ISSET(p, &set)).collect();
        }
    }
    (0..std::thread::available_parallelism().map_or(1, |n| n.get())).collect()
}

/// The allowed processors, one of every core before the second of any.
fn cores_first(allowed: &[usize], processors: &[Processor]) -> Vec<usize> {
    let (mut seen, mut first, mut second) = (HashSet::new(), Vec::new(), Vec::new());
    for &number in allowed {
        let core = processors.iter().find(|p| p.number == number).and_then(|p| p.core.clone());
        if core.is_none_or(|core| seen.insert(core)) { first.push(number) } else { second.push(number) }
    }
    first.append(&mut second);
    if first.is_empty() { vec![0] } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_gives_its_second_thread_only_after_all_have_given_one() {
        let processor = |number, core: &str| Processor { number, core: Some(("0".into(), core.into())) };
        let processors = [processor(0, "a"), processor(1, "a"), processor(2, "b"), processor(3, "b")];
        assert_eq!(cores_first(&[0, 1, 2, 3], &processors), [0, 2, 1, 3]);
        assert_eq!(cores_first(&[1, 3], &processors), [1, 3]);
    }

    #[test]
    fn every_thread_is_dealt_once() {
        let teams = split_cores(5, 2);
        assert_eq!(teams.iter().map(Vec::len).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn a_pinned_thread_and_its_children_stay() {
        let Some(&one) = allowed().last() else { return };
        let seen = std::thread::spawn(move || {
            pin_to_cores(&[one]);
            (allowed(), std::thread::spawn(allowed).join().unwrap())
        });
        assert_eq!(seen.join().unwrap(), (vec![one], vec![one]));
    }
}
