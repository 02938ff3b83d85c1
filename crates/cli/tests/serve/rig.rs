//! A server on a port of its own, and a client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Yard, write_model};

const PATIENCE: Duration = Duration::from_secs(60);

/// A running `trainyard serve`; killed when dropped.
pub struct Serving {
    child: Child,
    pub address: String,
    log: Arc<Mutex<String>>,
    pub yard: Yard,
}

/// A directory without models.
pub fn yard() -> Yard {
    Yard::new()
}

/// Writes an untrained classifier with the labels `down`, `level` and `up`.
pub fn classifier(dir: &Path) {
    let labels = json!({"0": "down", "1": "level", "2": "up"});
    write_model(dir, &json!({"architectures": ["BertForSequenceClassification"], "id2label": labels}));
}

/// Writes an untrained tagger.
pub fn tagger(dir: &Path) {
    let labels = json!({"0": "O", "1": "B-COL", "2": "I-COL"});
    write_model(dir, &json!({"architectures": ["BertForTokenClassification"], "id2label": labels}));
}

/// Writes an untrained bare encoder.
pub fn encoder(dir: &Path) {
    write_model(dir, &json!({"architectures": ["BertModel"]}));
}

impl Serving {
    /// Serves a classifier, ready.
    pub fn classifier(args: &[&str]) -> Self {
        let yard = yard();
        classifier(&yard.path("c"));
        Self::start(yard, &[&["c"], args].concat()).ready()
    }

    /// Serves an encoder, ready.
    pub fn encoder(args: &[&str]) -> Self {
        let yard = yard();
        encoder(&yard.path("e"));
        Self::start(yard, &[&["e"], args].concat()).ready()
    }

    /// Starts the binary; the port is known when this returns, the models may still load.
    pub fn start(yard: Yard, args: &[&str]) -> Self {
        Self::start_with(yard, args, &[])
    }

    pub fn start_with(yard: Yard, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let threads: &[&str] = if args.contains(&"--threads") { &[] } else { &["--threads", "1"] };
        let all = [&["serve", "--port", "0", "--log-level", "debug"], threads, args].concat();
        let mut command = yard.command(&all);
        command.stderr(Stdio::piped()).envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (sender, receiver) = std::sync::mpsc::channel();
        let (stderr, shared) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(at) = line.find("://") {
                    let address: String = line[at + 3..].chars().take_while(|c| !"\" ".contains(*c)).collect();
                    let _ = sender.send(address);
                }
                let mut log = shared.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let Ok(address) = receiver.recv_timeout(PATIENCE) else {
            panic!("the server did not listen:\n{}", log.lock().unwrap());
        };
        Self { child, address, log, yard }
    }

    /// Waits until `/ping` is 200.
    pub fn ready(self) -> Self {
        let start = Instant::now();
        while self.get("/ping").status != 200 {
            assert!(start.elapsed() < PATIENCE, "never ready:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        self
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits for a line in the log.
    pub fn await_log(&self, part: &str) {
        let start = Instant::now();
        while !self.log().contains(part) {
            assert!(start.elapsed() < PATIENCE, "`{part}` never came:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let status = std::process::Command::new("kill").args([format!("-{name}"), self.pid().to_string()]).status();
        assert!(status.unwrap().success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "never ended:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    /// Posts JSON.
    pub fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    /// Posts bytes.
    pub fn post_raw(&self, path: &str, content_type: &str, body: &[u8]) -> Reply {
        self.send("POST", path, &[("content-type", content_type)], body)
    }

    /// A whole request over a connection of its own.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut stream = self.connect();
        write_request(&mut stream, method, path, headers, body);
        read_reply(&mut stream)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A sample of `/metrics`, 0 where there is none.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log();
        // A test that failed has said why already.
        if !std::thread::panicking() {
            assert!(!log.contains("panicked at"), "{log}");
        }
    }
}

pub fn write_request(stream: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
    head.push_str(&format!("content-length: {}\r\n", body.len()));
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
}

/// Reads a response until the connection closes.
pub fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    Reply::parse(&bytes)
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("no whole response");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let header = |line: &str| line.split_once(": ").map(|(n, v)| (n.to_ascii_lowercase(), v.to_string()));
        Self { status, headers: lines.filter_map(header).collect(), body: bytes[end + 4..].to_vec() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        assert_eq!(self.header("content-type"), Some("application/json"), "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The JSON of a success.
    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// The JSON of an error with a status and a code, in which all of `parts` occur.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str, parts: &[&str]) -> Value {
        let text = self.text();
        assert_eq!(self.status, status, "{text}");
        let json = self.json();
        assert_eq!(json["error_type"], code, "{text}");
        for part in parts {
            assert!(json["error"].as_str().unwrap().contains(part), "{text} should contain {part}");
        }
        json
    }
}
