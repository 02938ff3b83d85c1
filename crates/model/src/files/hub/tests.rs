use super::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `acme/tiny`, that serves `files` until the process ends; returns its address.
fn serve(files: &'static [(&'static str, &'static str)]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            answer(stream, files);
        }
    });
    address
}

/// Answers one request as the hub does: the listing under `/api/`, files under `/resolve/` with ranges.
fn answer(mut stream: TcpStream, files: &[(&str, &str)]) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let request = lines.next().unwrap_or_default();
    let headers: Vec<_> = lines.take_while(|line| !line.is_empty()).collect();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let reply = if path == "/api/models/acme/tiny/revision/main" {
        let siblings: Vec<_> = files.iter().map(|(name, _)| format!(r#"{{"rfilename":"{name}"}}"#)).collect();
        let body = format!(r#"{{"siblings":[{}],"sha":"{COMMIT}"}}"#, siblings.join(","));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
    } else if let Some((name, body)) =
        files.iter().find(|(name, _)| path == format!("/acme/tiny/resolve/{COMMIT}/{name}"))
    {
        let head = headers.iter().any(|h| h.to_ascii_lowercase().ends_with("bytes=0-0"));
        let part = if head { &body[..1] } else { body };
        format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"{name}\"\r\nX-Repo-Commit: {COMMIT}\r\n\
             Content-Range: bytes 0-{}/{}\r\nContent-Length: {}\r\n\r\n{part}",
            part.len() - 1,
            body.len(),
            part.len()
        )
    } else {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()
    };
    let _ = stream.write_all(reply.as_bytes());
}

/// A proxy would be asked for 127.0.0.1; these tests then say so and pass.
fn behind_proxy() -> bool {
    let set = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"].iter().any(|v| std::env::var_os(v).is_some());
    if set {
        eprintln!("skipped: a proxy is set, the test's own server cannot be reached");
    }
    set
}

fn hub(cache: &Path, endpoint: String) -> Hub {
    Hub { cache: Cache::new(cache.to_owned()), endpoint: Some(endpoint) }
}

#[test]
fn a_model_is_downloaded_once_and_nothing_else_is() {
    if behind_proxy() {
        return;
    }
    let address = serve(&[
        ("README.md", "# tiny"),
        ("config.json", "{}"),
        ("tokenizer.json", "{\"t\":1}"),
        ("model.safetensors", "weights"),
        ("pytorch_model.bin", "the same weights"),
        ("onnx/model.onnx", "and again"),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let dir = hub(cache.path(), address).fetch("acme/tiny").unwrap();
    let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read_to_string(dir.join("tokenizer.json")).unwrap(), "{\"t\":1}");

    // The second time there is no hub to ask.
    let offline = hub(cache.path(), "http://127.0.0.1:1".into());
    assert_eq!(offline.fetch("acme/tiny").unwrap(), dir);
}

#[test]
fn shards_are_downloaded_as_the_index_says() {
    if behind_proxy() {
        return;
    }
    let address = serve(&[
        ("config.json", "{}"),
        ("vocab.txt", "[UNK]"),
        ("model.safetensors.index.json", r#"{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}"#),
        ("1.safetensors", "one"),
        ("2.safetensors", "two"),
        ("3.safetensors", "not in the index"),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let dir = hub(cache.path(), address).fetch("acme/tiny").unwrap();
    assert_eq!(fs::read_to_string(dir.join("2.safetensors")).unwrap(), "two");
    assert!(!dir.join("3.safetensors").exists());
}

#[test]
fn what_is_missing_is_named() {
    if behind_proxy() {
        return;
    }
    let cache = tempfile::tempdir().unwrap();
    let without = serve(&[("config.json", "{}"), ("README.md", "x")]);
    let error = hub(cache.path(), without.clone()).fetch("acme/tiny").unwrap_err().to_string();
    assert!(error.contains("hf:acme/tiny") && error.contains("no model.safetensors"), "{error}");
    let error = hub(cache.path(), without).fetch("acme/other").unwrap_err().to_string();
    assert!(error.contains("hf:acme/other") && error.contains("404"), "{error}");
}

#[test]
fn without_a_network_the_error_says_what_works() {
    let cache = tempfile::tempdir().unwrap();
    let error = hub(cache.path(), "http://127.0.0.1:1".into()).fetch("acme/tiny").unwrap_err().to_string();
    assert!(error.contains("check the name and the network") && error.contains(".tar.gz"), "{error}");
}

#[test]
fn names_are_checked_before_anything_is_asked() {
    assert_eq!(parse("org/name").unwrap(), ("org/name", "main"));
    assert_eq!(parse("org/name@refs/pr/1").unwrap(), ("org/name", "refs/pr/1"));
    for spec in ["", "name", "a/b/c", "../x", "a/..", "org/name@", "org/na me", "org/name@../x", "http://x/y"] {
        assert!(parse(spec).unwrap_err().to_string().contains("hf:org/name"), "{spec}");
    }
}
