//! Programs with known timings.

use profile::{Class, DeviceEvent, DeviceKind, Flag, HostEvent, HostKind, RankEvents, RankInfo, Run};
use trace::{Profile, Texts, Writer};

/// A run being written down.
#[derive(Default)]
pub struct Program {
    pub texts: Texts,
    pub ranks: Vec<RankEvents>,
}

impl Program {
    /// The next rank.
    pub fn rank(&mut self) -> &mut Self {
        let info = RankInfo {
            rank: self.ranks.len() as i64,
            source: String::new(),
            base_ns: 0,
            offset_ns: 0,
            residual_ns: None,
            matched_collectives: 0,
            resolution_ns: 1,
            world_size: None,
            host: None,
        };
        self.ranks.push(RankEvents { info, device: Vec::new(), host: Vec::new() });
        self
    }

    /// Work on a stream of a device, whose track is 100 · device + stream.
    pub fn device(&mut self, at: (i64, i64), kind: DeviceKind, name: &str, ts: i64, dur: i64) -> &mut DeviceEvent {
        let name_id = self.texts.intern(name);
        let event = DeviceEvent {
            ts,
            dur,
            name: name_id,
            kind,
            class: Class::of(kind, name),
            flag: Flag::None,
            track: 100 * at.0 + at.1,
            device: at.0,
            stream: at.1,
            correlation: None,
            external_id: None,
            bytes: None,
            bandwidth: f64::NAN,
            dtype: None,
            group: None,
            sequence: None,
        };
        let rank = self.ranks.last_mut().unwrap();
        rank.device.push(event);
        rank.device.last_mut().unwrap()
    }

    /// A slice of a thread, whose track is 10,000 + thread.
    pub fn host(&mut self, thread: i64, kind: HostKind, name: &str, ts: i64, dur: i64) -> &mut HostEvent {
        let event = HostEvent {
            ts,
            dur,
            name: self.texts.intern(name),
            kind,
            flag: Flag::None,
            depth: 0,
            track: 10_000 + thread,
            correlation: None,
            external_id: None,
            inputs: None,
        };
        let rank = self.ranks.last_mut().unwrap();
        rank.host.push(event);
        rank.host.last_mut().unwrap()
    }

    /// The run, sorted as a profile is.
    pub fn run(&mut self) -> Run {
        let mut ranks = std::mem::take(&mut self.ranks);
        for rank in &mut ranks {
            rank.device.sort_by_key(|event| (event.track, event.ts, -event.dur));
            rank.host.sort_by_key(|event| (event.track, event.ts, -event.dur));
        }
        Run { texts: std::mem::take(&mut self.texts), ranks, tracks: Vec::new(), devices: Vec::new() }
    }
}

/// A profile without rows: analyses that look for more than the run finds nothing.
pub fn empty_profile() -> (tempfile::TempDir, Profile) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty.profile");
    Writer::create(&path, "empty").unwrap().finish().unwrap();
    let profile = Profile::open(&path).unwrap();
    (dir, profile)
}
