//! What several ranks, devices or steps say together; and whether the input can be trusted.

use rustc_hash::FxHashMap;
use trace::schema::Table;
use trace::{Error, NO_INT, Profile};

use super::{Facts, Finding, Hit, Link, percent, sum, time, verb};

/// Ranks that wait less than this for each other are in step.
const LEAST_WAIT: f64 = 0.03;
/// Devices whose computing time differs by less than this share of the span are balanced.
const LEAST_IMBALANCE: f64 = 0.05;
/// A step this much longer than the median is an outlier.
const OUTLIER: f64 = 1.5;
/// Outliers that take less than this share of all steps cost little.
const LEAST_OUTLIERS: f64 = 0.02;
/// Fewer steps than this have no spread to speak of.
const FEWEST_STEPS: usize = 5;
/// A share of events without usable times above which sums and shares are off.
const MOST_LOST: f64 = 0.01;

/// Findings about ranks and steps.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Finding> {
    [stragglers(facts), imbalance(facts), outliers(facts)].into_iter().flatten().collect()
}

fn stragglers(facts: &Facts<'_>) -> Option<Finding> {
    let stragglers = &facts.analyses.stragglers;
    // HTA's measure finds who is late, not how long others wait.
    if stragglers.collectives == 0 || facts.ranks_span_ns == 0 {
        return None;
    }
    let share = stragglers.waited_ns as f64 / facts.ranks_span_ns as f64;
    if share < LEAST_WAIT {
        return None;
    }
    let mut late: Vec<_> = stragglers.ranks.iter().filter(|rank| rank.made_others_wait_ns > 0).collect();
    late.sort_by_key(|rank| (-rank.made_others_wait_ns, rank.rank));
    let worst = late.first()?;
    let named: Vec<i64> = late.iter().filter(|rank| rank.straggler).map(|rank| rank.rank).collect();
    let named = if named.is_empty() { vec![worst.rank] } else { named };
    let who = match &named[..] {
        [one] => format!("Rank {one} comes"),
        several => format!("Ranks {} come", several.iter().map(i64::to_string).collect::<Vec<_>>().join(" and ")),
    };
    let text = format!(
        "{who} last to collectives: the ranks together wait {} for the last to come, {} of their time, and {} of it for rank {} alone; find why it \
         is late (more data or longer sequences, a slower device, host work).",
        time(stragglers.waited_ns),
        percent(share),
        time(worst.made_others_wait_ns),
        worst.rank,
    );
    let span = facts.analyses.ranks.iter().find(|of| of.rank == worst.rank).map(|of| &of.temporal);
    let track = facts.run.ranks.iter().find(|of| of.info.rank == worst.rank).and_then(|of| of.device.first());
    let link =
        span.zip(track).map(|(span, event)| Link { track: event.track, from_ns: span.first_ns, to_ns: span.last_ns });
    Some(Finding { rule: "stragglers", text, ns: stragglers.waited_ns, share, ranks: named, devices: Vec::new(), link })
}

fn imbalance(facts: &Facts<'_>) -> Option<Finding> {
    let all = facts.analyses.ranks.iter().flat_map(|of| of.devices.iter().map(|device| (of.rank, device)));
    let devices: Vec<_> = all.filter(|(_, device)| device.temporal.span_ns > 0).collect();
    // A device that hardly worked has a short span of its own; what it could have done, the longest tells.
    let span_ns = devices.iter().map(|(_, device)| device.temporal.span_ns).max()?;
    let most = devices.iter().max_by_key(|(_, device)| device.temporal.compute_ns)?;
    let of_most = (most.0, most.1.device, most.1.temporal.compute_ns);
    let hits = devices.iter().map(|&(rank, device)| Hit {
        rank,
        device: Some(device.device),
        ns: of_most.2 - device.temporal.compute_ns,
        span_ns,
        link: None,
    });
    let hits: Vec<Hit> = hits.collect();
    let track = |rank: i64, device: i64| {
        let of = facts.run.ranks.iter().find(|of| of.info.rank == rank)?;
        let event = of.device.iter().find(|event| event.is_work() && event.device == device)?;
        let time = &facts.analyses.ranks.iter().find(|of| of.rank == rank)?.temporal;
        Some(Link { track: event.track, from_ns: time.first_ns, to_ns: time.last_ns })
    };
    let mut finding = facts.finding("imbalance", LEAST_IMBALANCE, hits, |worst, count| {
        let noun = facts.noun(of_most.0);
        let busiest = if facts.ranks > 1 {
            format!("{noun} {} of rank {}", of_most.1, of_most.0)
        } else {
            format!("{noun} {}", of_most.1)
        };
        format!(
            "Work is uneven: {} {} {}{} ({} of the longest span, {}) less than {busiest}, which computes for {}: spread layers, experts, \
             tables or tokens more evenly.",
            facts.who(worst, count).replacen("All", "all", 1).replacen("Both", "both", 1),
            verb(count, "computes", "compute"),
            if count > 1 { "up to " } else { "" },
            time(worst.ns),
            percent(worst.share()),
            time(span_ns),
            time(of_most.2),
        )
    })?;
    finding.link = track(of_most.0, of_most.1);
    finding.share = finding.ns as f64 / (span_ns as f64 * devices.len() as f64);
    Some(finding)
}

fn outliers(facts: &Facts<'_>) -> Option<Finding> {
    let mut told: FxHashMap<i64, (usize, usize, i64, i64)> = FxHashMap::default();
    let mut hits = Vec::new();
    for of in &facts.analyses.ranks {
        for steps in of.steps.iter().filter(|steps| steps.on == "host" && steps.instances.len() >= FEWEST_STEPS) {
            let median = steps.durations.median_ns;
            let long: Vec<_> = steps.instances.iter().filter(|step| step.dur as f64 > OUTLIER * median).collect();
            let lost = |dur: i64| dur.saturating_sub(median as i64);
            let Some(longest) = long.iter().max_by_key(|step| step.dur) else { continue };
            let ns = sum(long.iter().map(|step| lost(step.dur)));
            let link =
                Link { track: longest.track, from_ns: longest.ts, to_ns: longest.ts.saturating_add(longest.dur) };
            let hit = Hit { rank: of.rank, device: None, ns, span_ns: steps.durations.sum_ns, link: Some(link) };
            // Of several names the one with the most at stake.
            let known = hits.iter().position(|other: &Hit| other.rank == of.rank);
            if known.is_none_or(|at| hits[at].ns < ns) {
                if let Some(at) = known {
                    hits.swap_remove(at);
                }
                told.insert(of.rank, (long.len(), steps.instances.len(), longest.dur, median as i64));
                hits.push(hit);
            }
        }
    }
    facts.finding("step_outliers", LEAST_OUTLIERS, hits, |worst, _| {
        let (long, all, longest, median) = told.get(&worst.rank).copied().unwrap_or_default();
        let of_rank = if facts.ranks > 1 { format!(" of rank {}", worst.rank) } else { String::new() };
        format!(
            "{long} of {all} steps{of_rank} {} far longer than the median of {} (longest {}), which costs {} of all step time: see what \
             happens in {} (first-step compilation, checkpoints, evaluation, garbage collection, new shapes).",
            verb(long, "is", "are"),
            time(median),
            time(longest),
            percent(worst.share()),
            verb(long, "it", "them"),
        )
    })
}

/// A warning that the numbers are unreliable, if they are.
pub(super) fn unreliable(facts: &Facts<'_>, profile: &Profile) -> Result<Option<Finding>, Error> {
    let rows = profile.read(Table::Diagnostics, &["rank", "code", "count"])?;
    let mut counts: FxHashMap<&str, i64> = FxHashMap::default();
    let mut ranks: Vec<i64> = Vec::new();
    for row in 0..rows.len() {
        let (rank, code) = (rows.ints("rank")[row], rows.text(rows.texts("code")[row]));
        if rank != NO_INT && !facts.run.ranks.iter().any(|of| of.info.rank == rank) {
            continue;
        }
        *counts.entry(code).or_default() += rows.ints("count")[row];
    }
    let count = |code: &str| counts.get(code).copied().unwrap_or_default();
    let events = |of: &crate::RankEvents| of.device.len() as i64;
    let device_events: i64 = facts.run.ranks.iter().map(events).sum();
    let temporal = facts.analyses.ranks.iter().map(|of| (&of.rank, &of.temporal));
    let mut lost = 0i64;
    for (rank, time) in temporal {
        let of_rank = (time.lost_timestamp + time.negative_duration) as i64;
        lost += of_rank;
        if of_rank > 0 {
            ranks.push(*rank);
        }
    }
    let mut reasons: Vec<String> = Vec::new();
    if lost > 0 && lost as f64 >= MOST_LOST * device_events as f64 {
        reasons.push(format!(
            "{} of device events ({lost}) have no usable time and count nowhere",
            percent(lost as f64 / device_events as f64)
        ));
    }
    if count("truncated") > 0 {
        reasons.push("a source file ends in the middle, so its last events are missing".to_owned());
    }
    if count("million_events") > 0 {
        reasons.push("a source was cut at exactly 1,000,000 events by its writer, so the rest is missing".to_owned());
    }
    let unread =
        count("unreadable_event") + count("oversized_event") + count("time_out_of_range") + count("missing_time");
    if unread > 0 {
        reasons.push(format!("{unread} {} could not be read", verb(unread as usize, "event", "events")));
    }
    if count("dropped_events") > 0 {
        reasons.push(format!("the recorder dropped {} events because the disk was too slow", count("dropped_events")));
    }
    // One rank alone is looked at for itself.
    if count("missing_rank") > 0 && facts.ranks > 1 {
        reasons.push(format!(
            "{} ranks of the job are missing, so waits between ranks are seen in part",
            count("missing_rank")
        ));
    }
    if reasons.is_empty() {
        return Ok(None);
    }
    let text = format!(
        "The numbers below are incomplete: {}; record again, with fewer steps or options, before trusting small differences.",
        reasons.join("; ")
    );
    Ok(Some(Finding { rule: "unreliable_input", text, ns: 0, share: 0.0, ranks, devices: Vec::new(), link: None }))
}
