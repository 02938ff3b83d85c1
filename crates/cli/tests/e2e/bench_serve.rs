//! `trainyard bench-serve` against a server of a few lines.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::common::Yard;

/// Answers every connection once; ends with the test's process.
fn server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n[]");
        }
    });
    url
}

fn yard() -> Yard {
    let yard = Yard::new();
    yard.write("texts.txt", "one\ntwo\n");
    yard
}

#[test]
fn a_report_is_a_table_or_one_json_object() {
    let (yard, url) = (yard(), server());
    let arguments = ["bench-serve", &url, "--data", "texts.txt", "--rate", "50", "--seconds", "0.2"];
    let table = yard.run(&[&arguments[..], &["--arrival", "constant"]].concat()).ok().stdout;
    let has_row = |row: [&str; 3]| table.lines().any(|line| line.split_whitespace().eq(row));
    assert!(has_row(["status", "200", "10"]) && table.contains("from the scheduled start"), "{table}");
    let closed = ["--concurrency", "2", "--seconds", "0.2", "--json"];
    let report = yard.run(&[&arguments[..4], &closed].concat()).object();
    assert_eq!((&report["concurrency"], &report["sent"]), (&2.into(), &report["statuses"]["200"]));
}

#[test]
fn no_success_is_a_failure_and_wrong_arguments_are_told_apart() {
    let yard = yard();
    let unused = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    let run = |url: &str, data: &str, rest: &[&str]| {
        yard.run(&[&["bench-serve", url, "--data", data, "--seconds", "0.1"], rest].concat())
    };
    let ran = run(&unused, "texts.txt", &[]);
    assert!(ran.code == Some(1) && ran.stdout.contains("no connection"), "{}{}", ran.stdout, ran.stderr);
    yard.write("latin.txt", b"fine\nna\xefve\n");
    for (url, data, rest, part) in [
        ("localhost:8080", "texts.txt", &[][..], "starts with http://"),
        (&unused, "latin.txt", &[], "latin.txt line 2: not UTF-8"),
        (&unused, "missing.txt", &[], "missing.txt"),
        (&unused, "texts.txt", &["--rate=-1"], "rate is -1"),
        (&unused, "texts.txt", &["--timeout", "nan"], "--timeout is NaN"),
        (&unused, "texts.txt", &["--rate", "5", "--concurrency", "5"], "cannot be used with"),
    ] {
        run(url, data, rest).refused(&[part]);
    }
}
