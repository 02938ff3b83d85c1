//! `requirements.txt`: installed once into an environment of its own, whole or not at all.

use super::*;

/// Makes `helper-1.0-py3-none-any.whl`, whose module has `ANSWER = {answer}`.
fn write_wheel(directory: &Path, answer: u32) {
    let program = "
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/helper-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('helper.py', 'ANSWER = ' + sys.argv[2])
    wheel.writestr('helper-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: helper\\nVersion: 1.0\\n')
    wheel.writestr('helper-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr('helper-1.0.dist-info/RECORD', '')
";
    let made = Command::new(python()).args(["-c", program]).arg(directory).arg(answer.to_string()).status().unwrap();
    assert!(made.success());
}

fn environments(model: &Model) -> Vec<PathBuf> {
    let entries = fs::read_dir(model.path().join("environments")).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.join("bin").is_dir()).collect()
}

#[tokio::test]
async fn requirements_are_installed_once_and_again_when_they_change() {
    let model = Model::new(
        "
import helper, sys
def model_fn(model_dir): return [helper.ANSWER, sys.prefix]
def predict_fn(data, model): return model
",
    );
    write_wheel(&model.code(), 42);
    model.write("requirements.txt", "--no-index\n./helper-1.0-py3-none-any.whl\n");
    let handler = model.start().await;
    let answer = ask(&handler, "1").await.unwrap();
    let [environment] = &environments(&model)[..] else { panic!("one environment") };
    assert_eq!(answer, format!("[42, \"{}\"]", environment.display()));
    assert!(environment.join("complete").is_file());

    fs::write(environment.join("seen"), "").unwrap();
    model.start().await;
    assert!(environment.join("seen").exists(), "a complete environment is used again");

    fs::remove_file(environment.join("complete")).unwrap();
    model.start().await;
    assert!(!environment.join("seen").exists(), "one without its mark is made again");

    write_wheel(&model.code(), 43);
    assert!(ask(&model.start().await, "1").await.unwrap().starts_with("[43, "));
    assert_eq!(environments(&model).len(), 2);
}

#[tokio::test]
async fn packages_of_a_virtual_environment_as_the_interpreter_are_seen_beside_the_requirements() {
    let model = Model::new(
        "
import beside, edited, helper, sys
def model_fn(model_dir): return [helper.ANSWER, beside.ANSWER, edited.ANSWER, sys.prefix == sys.base_prefix]
def predict_fn(data, model): return model
",
    );
    let base = model.path().join("base \"quoted\"");
    // With the packages of the system only so that pip need not be installed.
    let venv = ["-m", "venv", "--without-pip", "--system-site-packages"];
    assert!(Command::new(python()).args(venv).arg(&base).status().unwrap().success());
    let libraries = fs::read_dir(base.join("lib")).unwrap().map(|entry| entry.unwrap().path());
    let packages = libraries.map(|path| path.join("site-packages")).find(|path| path.is_dir()).unwrap();
    fs::write(packages.join("beside.py"), "ANSWER = 7").unwrap();
    fs::write(packages.join("helper.py"), "ANSWER = 'of the base, under the requirement'").unwrap();
    let edited = model.path().join("edited");
    fs::create_dir(&edited).unwrap();
    fs::write(edited.join("edited.py"), "ANSWER = 8").unwrap();
    fs::write(packages.join("edited.pth"), edited.display().to_string()).unwrap();
    write_wheel(&model.code(), 42);
    model.write("requirements.txt", "--no-index\n./helper-1.0-py3-none-any.whl\n");
    let mut options = model.options();
    options.python = base.join("bin/python");
    let handler = Handler::start(options).await.unwrap();
    assert_eq!(ask(&handler, "1").await.unwrap(), "[42, 7, 8, false]");
}

#[tokio::test]
async fn what_cannot_be_installed_is_told_in_pips_words() {
    let model = Model::new("def model_fn(model_dir): return print\n");
    model.write("requirements.txt", "--no-index\nno-such-package==1.0\n");
    let error = model.start_error().await;
    assert_eq!(error.code(), "handler_requirements");
    let message = error.to_string();
    assert!(message.contains("requirements.txt: pip ended with exit code 1"), "{message}");
    assert!(message.contains("No matching distribution found for no-such-package==1.0"), "{message}");
    assert!(environments(&model).is_empty(), "nothing half-made is left");

    let mut options = model.options();
    options.install_timeout = Duration::from_millis(1);
    let error = Handler::start(options).await.err().unwrap().to_string();
    assert!(error.contains("venv did not end within 0.001 s"), "{error}");
}
