//! The end of workers: by `stop`, by drop, and with the server.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use super::*;

/// Answers with its own process id and that of a child that it started.
const PARENT: &str = "
import os, subprocess, time
def model_fn(model_dir): return subprocess.Popen(['sleep', '60']).pid
def predict_fn(data, model):
    time.sleep(data)
    return [os.getpid(), model]
";

async fn pids(handler: &Handler) -> Vec<u32> {
    serde_json::from_str(&ask(handler, "0").await.unwrap()).unwrap()
}

#[tokio::test]
async fn stop_answers_what_waits_and_leaves_no_process() {
    let model = Model::new(PARENT);
    let handler = model.start().await;
    let processes = pids(&handler).await;
    assert!(processes.iter().all(|pid| runs(*pid)));
    let (first, second) = (ask(&handler, "0.2"), ask(&handler, "0.1"));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        handler.stop().await;
    };
    let (first, second, ()) = tokio::join!(first, second, stop);
    assert!(first.is_ok() && second.is_ok());
    // What the workers had started is killed too, and gone once the system has taken note.
    until("the processes are gone", || !processes.iter().any(|pid| runs(*pid))).await;
    let error = ask(&handler, "0").await.unwrap_err();
    assert_eq!((error.status(), error.code()), (503, "handler_stopped"));
    assert_eq!(handler.status().alive, 0);
    handler.stop().await;
}

#[tokio::test]
async fn a_dropped_handler_and_a_failed_start_leave_no_process() {
    let model = Model::new(PARENT);
    let handler = model.start().await;
    let processes = pids(&handler).await;
    drop(handler);
    until("the processes are gone", || !processes.iter().any(|pid| runs(*pid))).await;

    let model = Model::new(
        "
import os, subprocess
def model_fn(model_dir):
    child = subprocess.Popen(['sleep', '60'])
    open(model_dir + '/pid', 'w').write(str(child.pid))
    raise ValueError('no')
def predict_fn(data, model): return 1
",
    );
    model.start_error().await;
    let child = fs::read_to_string(model.path().join("model/pid")).unwrap().parse().unwrap();
    until("the child is gone", || !runs(child)).await;
}

#[tokio::test]
async fn the_script_may_clean_up_when_it_is_stopped() {
    let model = Model::new(
        "
import atexit
def model_fn(model_dir): atexit.register(lambda: open(model_dir + '/cleaned', 'w').close())
def predict_fn(data, model): return 1
",
    );
    model.start().await.stop().await;
    assert!(model.path().join("model/cleaned").exists());
}

/// Runs in a process of its own for the next test.
#[tokio::test]
async fn serves_until_killed() {
    if std::env::var_os("HANDLER_TO_BE_KILLED").is_none() {
        return;
    }
    let model = Model::new(PARENT);
    let handler = model.start().await;
    println!("worker {}", pids(&handler).await[0]);
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[tokio::test]
async fn a_worker_dies_with_its_server() {
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lifetime::serves_until_killed", "--nocapture"])
        .env("HANDLER_TO_BE_KILLED", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let worker = lines.map_while(Result::ok).find_map(|line| line.rsplit_once("worker ")?.1.parse().ok()).unwrap();
    assert!(runs(worker));
    server.kill().unwrap();
    server.wait().unwrap();
    until("the worker is gone", || !runs(worker)).await;
}
