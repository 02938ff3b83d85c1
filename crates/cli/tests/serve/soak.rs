//! Many requests, many of which are given up, by clients that read slowly or not at all.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::common::Dice;
use crate::rig::{Serving, read_reply, write_request};

fn resident_bytes(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

fn threads(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

/// One request of some kind; true where an answer was read, which must be a 200.
fn request(serving: &Serving, dice: &mut Dice) -> bool {
    let texts: Vec<String> = (0..1 + dice.roll(8)).map(|_| dice.sentence(&[])).collect();
    let body = json!({"inputs": texts}).to_string();
    let mut stream = serving.connect();
    match dice.roll(8) {
        // Gone before the body.
        0 => {
            let _ = stream.write_all(b"POST /invocations HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{");
            false
        }
        // Gone while it is answered.
        1 => {
            write_request(&mut stream, "POST", "/invocations", &[], body.as_bytes());
            false
        }
        // Reads slowly.
        2 => {
            write_request(&mut stream, "POST", "/invocations", &[], body.as_bytes());
            std::thread::sleep(Duration::from_millis(20));
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200");
            true
        }
        _ => {
            write_request(&mut stream, "POST", "/invocations", &[], body.as_bytes());
            let reply = read_reply(&mut stream);
            assert_eq!(reply.status, 200, "{}", reply.text());
            true
        }
    }
}

fn storm(serving: &Serving, requests: usize, seed: u64) -> usize {
    let (left, answered) = (AtomicUsize::new(requests), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..16 {
            let (left, answered) = (&left, &answered);
            scope.spawn(move || {
                let mut dice = Dice(seed * 100 + client);
                while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    answered.fetch_add(usize::from(request(serving, &mut dice)), Ordering::Relaxed);
                }
            });
        }
    });
    answered.into_inner()
}

#[test]
fn ten_thousand_requests_leave_no_memory_and_no_task_behind() {
    let serving = Serving::classifier(&[]);
    storm(&serving, 2_000, 1);
    let (memory, tasks) = (resident_bytes(serving.pid()), threads(serving.pid()));
    let answered = storm(&serving, 8_000, 2);
    assert!(answered > 5_000, "{answered}");
    // Connections whose clients have gone end on their own.
    let start = std::time::Instant::now();
    while serving.metric("trainyard_connections") > 1.0 || serving.metric("trainyard_in_flight_requests") > 1.0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", serving.get("/metrics").text());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(serving.metric("trainyard_queued_inputs{model=\"c\"}"), 0.0);
    let grown = resident_bytes(serving.pid()).saturating_sub(memory);
    assert!(grown < 8 << 20, "grew by {grown} bytes over 8,000 requests");
    assert!(threads(serving.pid()) <= tasks + 2, "threads were left behind");
}
