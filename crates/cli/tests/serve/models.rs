//! Models that come and go over HTTP: who may ask for it, from where they come, and how many there is memory for.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use crate::rig::{Reply, Serving, classifier, encoder, yard};

/// Takes a while to load.
const SLOW: &str = "
import time
def model_fn(model_dir):
    time.sleep(1.5)
def predict_fn(data, model):
    return data
";

fn load(serving: &Serving, name: &str, url: &str) -> Reply {
    serving.post("/models", json!({"model_name": name, "url": url}))
}

fn delete(serving: &Serving, name: &str) -> Reply {
    serving.send("DELETE", &format!("/models/{name}"), &[], b"")
}

/// A server over `root` in a yard.
fn multi_model(yard: crate::common::Yard, args: &[&str]) -> Serving {
    let (root, environments) =
        (yard.path("root").display().to_string(), yard.path("environments").display().to_string());
    let own = ["--multi-model", "--model-root", &root, "--host", "127.0.0.1", "--environments", &environments];
    Serving::start(yard, &[&own, args].concat()).ready()
}

#[test]
fn models_are_loaded_and_unloaded_over_http_from_below_the_root() {
    let yard = yard();
    classifier(&yard.path("root/c"));
    encoder(&yard.path("root/e"));
    encoder(&yard.path("outside"));
    yard.write("root/broken/config.json", "{");
    let outside = yard.path("outside").display().to_string();
    let serving = multi_model(yard, &[]);
    assert_eq!(serving.get("/models").ok(), json!({"models": []}));
    assert_eq!(load(&serving, "first", "c").ok()["modelName"], "first");
    load(&serving, "first", "e").refused(409, "model_already_loaded", &["first"]);
    load(&serving, "other", "../outside").refused(422, "invalid_input", &["url"]);
    load(&serving, "other", "https://example.com/m.tar.gz").refused(422, "invalid_input", &["URL"]);
    load(&serving, "other", "gone").refused(422, "invalid_input", &["url"]);
    load(&serving, "other", &outside).refused(422, "invalid_input", &["names nothing below"]);
    load(&serving, "other/", "c").refused(422, "invalid_input", &["model_name", "letters"]);
    load(&serving, "other", "broken").refused(422, "model_unloadable", &["no weights"]);
    load(&serving, "second", "e").ok();
    assert_eq!(serving.get("/models").ok()["models"].as_array().unwrap().len(), 2);
    assert!(serving.get("/models/second").ok()["modelUrl"].as_str().unwrap().ends_with("root/e"));
    serving.post("/models/second/invoke", json!({"inputs": "a"})).ok();
    assert_eq!(delete(&serving, "second").ok()["modelName"], "second");
    delete(&serving, "second").refused(404, "model_not_found", &["first"]);
    assert_eq!(serving.get("/models").ok()["models"].as_array().unwrap().len(), 1, "a failed load leaves no trace");
}

/// A directory with the files of another one, by links.
fn link_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        std::os::unix::fs::symlink(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn models_take_no_more_memory_together_than_they_may_however_they_are_stored() {
    let yard = yard();
    classifier(&yard.path("root/c"));
    link_files(&yard.path("root/c"), &yard.path("root/links"));
    yard.run(&["package", "root/c", "--out", "root/c.tar.gz"]).ok();
    let weights = yard.path("root/c/model.safetensors").metadata().unwrap().len();
    // Enough for one and a half.
    let serving = multi_model(yard, &["--model-memory", &(weights * 2).to_string()]);
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let loads = ["a", "b", "d"].map(|name| scope.spawn(|| load(&serving, name, "c").status));
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 507, 507]);
    for url in ["links", "c.tar.gz"] {
        load(&serving, "more", url).refused(507, "out_of_memory", &["--model-memory"]);
    }
    let models = serving.get("/models").ok();
    let name = models["models"][0]["modelName"].as_str().unwrap();
    assert_eq!(models["models"].as_array().unwrap().len(), 1);
    // Loading it anew takes its own place.
    serving.post(&format!("/models/{name}/reload"), json!({})).ok();
    delete(&serving, name).ok();
    for url in ["links", "c.tar.gz"] {
        load(&serving, "more", url).ok();
        delete(&serving, "more").ok();
    }
}

#[test]
fn a_model_loads_once_at_a_time_and_is_not_served_when_it_is_deleted_meanwhile() {
    let yard = yard();
    yard.write("root/slow/code/inference.py", SLOW);
    let serving = multi_model(yard, &[]);
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| load(&serving, "m", "slow"));
        std::thread::sleep(Duration::from_millis(400));
        serving.get("/models/m").refused(503, "unavailable", &["still loading"]);
        load(&serving, "m", "slow").refused(409, "model_already_loaded", &["`m`"]);
        delete(&serving, "m").ok();
        loading.join().unwrap().refused(404, "model_not_found", &["deleted while it loaded"]);
    });
    serving.get("/models/m").refused(404, "model_not_found", &[]);
    load(&serving, "m", "slow").ok();
    let statuses = std::thread::scope(|scope| {
        let reload = || serving.post("/models/m/reload", json!({}));
        let first = scope.spawn(reload);
        std::thread::sleep(Duration::from_millis(400));
        reload().refused(409, "model_already_loaded", &["being loaded already"]);
        assert_eq!(serving.post("/models/m/invoke", json!(7)).ok(), json!(7), "the old one answers");
        first.join().unwrap().status
    });
    assert_eq!(statuses, 200);
}

#[test]
fn models_are_not_to_be_loaded_over_http_unless_allowed() {
    let serving = Serving::classifier(&[]);
    load(&serving, "x", "x").refused(403, "forbidden", &["--multi-model"]);
    delete(&serving, "c").refused(403, "forbidden", &["--multi-model"]);
}

#[test]
fn who_manages_models_over_a_network_has_a_key_but_in_a_container_of_the_contract() {
    let root = || {
        let yard = yard();
        classifier(&yard.path("root/c"));
        let root = yard.path("root").display().to_string();
        (yard, root)
    };
    let (open, path) = root();
    let serving = Serving::start(open, &["--multi-model", "--model-root", &path, "--host", "0.0.0.0"]).ready();
    load(&serving, "c", "c").refused(403, "forbidden", &["--api-key-file"]);
    delete(&serving, "c").refused(403, "forbidden", &["--api-key-file"]);
    serving.post("/models/c/reload", json!({})).refused(403, "forbidden", &["--api-key-file"]);
    let (contract, path) = root();
    let environment = [("SAGEMAKER_MULTI_MODEL", "true")];
    let serving = Serving::start_with(contract, &["--model-root", &path], &environment).ready();
    load(&serving, "c", "c").ok();
    delete(&serving, "c").ok();
}

#[test]
fn pages_of_other_sites_manage_nothing() {
    let serving = Serving::classifier(&["--multi-model"]);
    let json = ("content-type", "application/json");
    let foreign = ("origin", "https://evil.example");
    serving.send("POST", "/models", &[json, foreign], b"{}").refused(403, "forbidden", &["other sites"]);
    serving.send("DELETE", "/models/c", &[foreign], b"").refused(403, "forbidden", &["other sites"]);
    serving.send("POST", "/models/c/reload", &[foreign], b"").refused(403, "forbidden", &["other sites"]);
    // What a form can send without a browser's asking first.
    let reply = serving.post_raw("/models", "text/plain", b"{\"model_name\":\"x\",\"url\":\"x\"}");
    reply.refused(415, "unsupported_media_type", &["application/json"]);
}
