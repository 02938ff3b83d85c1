//! Precision of kernels.

use std::collections::hash_map::Entry;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};
use trace::schema::Table;
use trace::{Error, Filter, NO_TEXT, Profile};

use super::precision_rules::{self as rules, Precision};
use super::stats::share;
use super::work::{Kind, NO_CALL, Rank, trusted};
use crate::HostKind;

/// How kernels divide into precisions, by time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Precisions {
    /// One part for each precision, longest first; `unknown` last.
    pub parts: Vec<PrecisionPart>,
    /// Share of the time whose precision is unknown, 0 to 1.
    pub unknown_share: f64,
    /// Time in kernels that use tensor cores (matrix cores), as far as their names say, ns.
    pub tensor_core_ns: i64,
    /// Share of the time in kernels that use tensor cores (matrix cores), as far as their names say, 0 to 1.
    pub tensor_core_share: f64,
}

/// Kernels of one precision.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PrecisionPart {
    /// `FP64`, `FP32`, `TF32`, `FP16`, `BF16`, `FP8`, `FP4`, `INT64`, `INT32`, `INT16`, `INT8`, `INT4`, `BOOL`, `complex` or `unknown`.
    pub precision: &'static str,
    /// Sum of durations, ns.
    pub ns: i64,
    /// Runs.
    pub runs: u64,
    /// Share of the time, 0 to 1.
    pub share: f64,
    /// Time known by the kernel's name, ns.
    pub by_name_ns: i64,
    /// Time known by the type that the source states (NCCL, our recorder), ns.
    pub by_dtype_ns: i64,
    /// Time known by the operands of the operator that launched it, ns.
    pub by_operands_ns: i64,
}

impl Precisions {
    /// The sum over several ranks.
    pub(super) fn sum<'p>(ranks: impl Iterator<Item = &'p Precisions> + Clone) -> Precisions {
        let mut sum = Precisions::default();
        for one in ranks.clone().flat_map(|precisions| &precisions.parts) {
            match sum.parts.iter_mut().find(|part| part.precision == one.precision) {
                Some(part) => part.add(one),
                None => sum.parts.push(one.clone()),
            }
        }
        sum.tensor_core_ns = ranks.map(|precisions| precisions.tensor_core_ns).fold(0, i64::saturating_add);
        sum.finish();
        sum
    }

    fn finish(&mut self) {
        let all: i128 = self.parts.iter().map(|part| i128::from(part.ns)).sum();
        for part in &mut self.parts {
            part.share = share(part.ns, all);
        }
        let unknown = Precision::Unknown.word();
        self.parts.sort_by_key(|part| (part.precision == unknown, std::cmp::Reverse(part.ns)));
        self.unknown_share = self.parts.last().filter(|part| part.precision == unknown).map_or(0.0, |part| part.share);
        self.tensor_core_share = share(self.tensor_core_ns, all);
    }
}

impl PrecisionPart {
    fn add(&mut self, other: &PrecisionPart) {
        let both = [
            (&mut self.ns, other.ns),
            (&mut self.by_name_ns, other.by_name_ns),
            (&mut self.by_dtype_ns, other.by_dtype_ns),
            (&mut self.by_operands_ns, other.by_operands_ns),
        ];
        for (sum, ns) in both {
            *sum = sum.saturating_add(ns);
        }
        self.runs += other.runs;
    }
}

/// What a name says, looked up once.
#[derive(Clone, Copy)]
struct Named {
    precision: Option<Precision>,
    tensor_cores: bool,
}

/// How the kernels of a rank divide into precisions. First counts the element type that the source states, then the kernel's name,
/// then the operands of the operator that launched it.
pub(super) fn precisions(rank: &Rank<'_>, profile: &Profile) -> Result<Precisions, Error> {
    let mut parts: Vec<PrecisionPart> = Precision::ALL
        .iter()
        .map(|precision| PrecisionPart { precision: precision.word(), ..PrecisionPart::default() })
        .collect();
    let mut result = Precisions::default();
    let mut names: Vec<Option<Named>> = vec![None; rank.run.texts.len()];
    let mut dtypes: FxHashMap<u32, Option<Precision>> = FxHashMap::default();
    let mut unknown: Vec<u32> = Vec::new();
    for (at, work) in rank.work.iter().enumerate() {
        if !matches!(work.kind, Kind::Compute | Kind::Communication) {
            continue;
        }
        let named = *names[work.name as usize].get_or_insert_with(|| {
            let name = rank.run.text(work.name);
            Named { precision: rules::of_name(name), tensor_cores: rules::uses_tensor_cores(name) }
        });
        if named.tensor_cores {
            result.tensor_core_ns = result.tensor_core_ns.saturating_add(work.dur);
        }
        let stated = rank.events.device[work.event as usize].dtype;
        let stated = stated.and_then(|id| *dtypes.entry(id).or_insert_with(|| rules::of_dtype(rank.run.text(id))));
        match (stated, named.precision) {
            (Some(precision), _) => parts[precision as usize].count(work.dur, |part| &mut part.by_dtype_ns),
            (None, Some(precision)) => parts[precision as usize].count(work.dur, |part| &mut part.by_name_ns),
            (None, None) => unknown.push(at as u32),
        }
    }
    let operands = Operands::of(rank, &unknown, profile)?;
    for at in unknown {
        let work = &rank.work[at as usize];
        match operands.precision(rank, work.call, work.event) {
            Some(precision) => parts[precision as usize].count(work.dur, |part| &mut part.by_operands_ns),
            None => {
                let part = &mut parts[Precision::Unknown as usize];
                part.ns = part.ns.saturating_add(work.dur);
                part.runs += 1;
            }
        }
    }
    parts.retain(|part| part.runs > 0);
    result.parts = parts;
    result.finish();
    Ok(result)
}

impl PrecisionPart {
    fn count(&mut self, dur: i64, known_by: impl Fn(&mut Self) -> &mut i64) {
        self.ns = self.ns.saturating_add(dur);
        self.runs += 1;
        let known = known_by(self);
        *known = known.saturating_add(dur);
    }
}

/// Precisions of operators by what they were given.
#[derive(Default)]
struct Operands {
    /// Of the launch calls whose operator says it: by index in [`Rank::host`].
    calls: FxHashMap<u32, Precision>,
    /// By the operator's external id.
    external: FxHashMap<i64, Precision>,
}

impl Operands {
    /// What the operators say that launched this work: the innermost one around the launch call that names types of operands; or,
    /// without a launch call, the one that shares its external id.
    fn of(rank: &Rank<'_>, work: &[u32], profile: &Profile) -> Result<Self, Error> {
        let mut operands = Operands::default();
        let mut wanted: FxHashSet<u32> = FxHashSet::default();
        for at in work {
            let work = &rank.work[*at as usize];
            let event = &rank.events.device[work.event as usize];
            if work.call != NO_CALL {
                wanted.insert(work.call);
            } else if let Some(id) = event.external_id.filter(|id| Some(*id) != event.correlation) {
                // Old Kineto writes the correlation here, which is no operator's id.
                operands.external.insert(id, Precision::Unknown);
            }
        }
        if wanted.is_empty() && operands.external.is_empty() {
            return Ok(operands);
        }
        let around = operators_around(rank, &wanted);
        let mut operators: FxHashMap<(i64, i64, i64), Precision> = FxHashMap::default();
        for operator in around.values().flatten() {
            let event = &rank.events.host[*operator as usize];
            operators.insert((event.track, event.ts, event.dur), Precision::Unknown);
        }
        let mut types: FxHashMap<u32, Option<Precision>> = FxHashMap::default();
        let columns = ["track", "ts", "dur", "external_id", "inputs"];
        let filter = Filter { rank: Some(rank.events.info.rank), ..Filter::default() };
        let rows = profile.read_where(Table::Host, &columns, filter)?;
        let (track, ts, dur) = (rows.ints("track"), rows.ints("ts"), rows.ints("dur"));
        let (external, inputs) = (rows.ints("external_id"), rows.texts("inputs"));
        for row in (0..rows.len()).filter(|row| inputs[*row] != NO_TEXT) {
            let precision = match types.entry(inputs[row]) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => *new.insert(of_inputs(rows.text(inputs[row]))),
            };
            let Some(precision) = precision else { continue };
            if let Some(known) = operators.get_mut(&(track[row], ts[row], dur[row])) {
                *known = precision;
            }
            if let Some(known) = operands.external.get_mut(&external[row]) {
                *known = precision;
            }
        }
        for (call, around) in around {
            let known = around.iter().filter_map(|operator| {
                let event = &rank.events.host[*operator as usize];
                operators.get(&(event.track, event.ts, event.dur)).copied()
            });
            if let Some(precision) = known.into_iter().find(|precision| *precision != Precision::Unknown) {
                operands.calls.insert(call, precision);
            }
        }
        Ok(operands)
    }

    fn precision(&self, rank: &Rank<'_>, call: u32, event: u32) -> Option<Precision> {
        if call != NO_CALL {
            return self.calls.get(&call).copied();
        }
        let id = rank.events.device[event as usize].external_id?;
        self.external.get(&id).copied().filter(|precision| *precision != Precision::Unknown)
    }
}

/// Slices around a call that are looked at: beyond these they say little of it.
const MOST_AROUND: usize = 6;

/// The operators around each of these calls on its thread, innermost first; and annotations, since PyTorch records the operands
/// of its collectives there (`nccl:all_to_all`).
fn operators_around(rank: &Rank<'_>, calls: &FxHashSet<u32>) -> FxHashMap<u32, Vec<u32>> {
    let mut around = FxHashMap::default();
    let mut stack: Vec<u32> = Vec::new();
    let mut track = None;
    // By track, then start, then falling duration: what is around comes before.
    for (at, event) in rank.events.host.iter().enumerate() {
        if track != Some(event.track) {
            stack.clear();
            track = Some(event.track);
        }
        if !trusted(event.flag) {
            continue;
        }
        let is_call = matches!(event.kind, HostKind::Runtime | HostKind::Driver);
        if !is_call && !matches!(event.kind, HostKind::Operator | HostKind::Annotation) {
            continue;
        }
        while stack.last().is_some_and(|last| rank.events.host[*last as usize].end() <= event.ts) {
            stack.pop();
        }
        if is_call {
            if calls.contains(&(at as u32)) {
                around.insert(at as u32, stack.iter().rev().take(MOST_AROUND).copied().collect());
            }
        } else {
            stack.push(at as u32);
        }
    }
    around
}

/// The precision that an operator's operands say: a JSON object with the key `Input type`, an array of names, or of arrays of
/// them for lists of tensors.
fn of_inputs(json: &str) -> Option<Precision> {
    #[derive(Deserialize)]
    struct Inputs {
        #[serde(rename = "Input type", alias = "Input Type")]
        types: serde_json::Value,
    }
    fn names<'v>(value: &'v serde_json::Value, into: &mut Vec<&'v str>) {
        match value {
            serde_json::Value::String(name) => into.push(name),
            serde_json::Value::Array(values) => values.iter().for_each(|value| names(value, into)),
            _ => {}
        }
    }
    let inputs: Inputs = serde_json::from_str(json).ok()?;
    let mut types = Vec::new();
    names(&inputs.types, &mut types);
    rules::of_operands(types.into_iter())
}
