//! The interpreter that runs a script: the base interpreter, or a virtual environment with the script's requirements.
//!
//! An environment is a directory named by a hash of the base interpreter, of `requirements.txt` and of every file that it
//! names, so that a restart finds it again and a change makes a new one. It sees the packages of the base interpreter too:
//! requirements written for the inference toolkits leave out what their images hold already, such as torch. For that it has
//! `--system-site-packages`, or, where the base interpreter is of a virtual environment itself, a `.pth` file with the
//! directories of that one, which `--system-site-packages` would pass over. An environment counts only with its mark `complete`, which is renamed into place last.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::{process::Command, task::spawn_blocking};

use super::{
    HandlerError, HandlerOptions,
    output::cut,
    process::{describe, run},
};

/// Time for the interpreter to say what it is.
const PROBE_LIMIT: Duration = Duration::from_secs(30);
const OLDEST: (u32, u32) = (3, 9);
/// Prints what becomes [`Base`]; `packages` is there where the interpreter is of a virtual environment.
const PROBE: &str = "
import json, site, sys
packages = None
if sys.prefix != sys.base_prefix:
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    packages = site.getsitepackages() + user
about = {'executable': sys.executable, 'version': sys.version_info[:3], 'packages': packages}
print('interpreter', json.dumps(about))
";
/// Adds the directories of its argument, a JSON list, to the environment of the interpreter that runs it, with what their own
/// `.pth` files name, such as editable installations.
const ADD_PACKAGES: &str = "
import json, os, sys, sysconfig
with open(os.path.join(sysconfig.get_path('purelib'), 'base_interpreter.pth'), 'w', encoding='ascii') as file:
    for path in json.loads(sys.argv[1]):
        print(f'import site; site.addsitedir({path!a})', file=file)
";
/// Files and bytes that requirements may refer to.
const REFERRED_FILES: usize = 10_000;
const REFERRED_BYTES: u64 = 4 << 30;
/// Bytes of a requirements file.
const REQUIREMENTS_LIMIT: u64 = 1 << 20;

/// The interpreter for `script`, with its requirements installed, and the environment's directory where there is one.
pub(super) async fn prepare(
    options: &HandlerOptions,
    script: &Path,
) -> Result<(PathBuf, Option<PathBuf>), HandlerError> {
    let base = base_interpreter(&options.python).await?;
    let Some(code) = script.parent() else { return Ok((base.executable, None)) };
    let requirements = code.join("requirements.txt");
    if !requirements.is_file() {
        return Ok((base.executable, None));
    }
    let environment = Environment { code, requirements: &requirements, base: &base, limit: options.install_timeout };
    let mut digest = Sha256::new();
    digest.update(format!("{base:?}\n"));
    let (owned_code, list) = (code.to_owned(), requirements.clone());
    let digest =
        spawn_blocking(move || digest_requirements(&owned_code, &list, &mut digest).map(|()| digest.finalize()))
            .await
            .map_err(|error| environment.failed(error))?
            .map_err(|error| environment.failed(error))?;
    let key: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let directory = options.environments.join(key);
    environment.make(&directory).await?;
    let inside =
        std::path::absolute(directory.join("bin").join("python")).map_err(|error| environment.failed(error))?;
    Ok((inside, Some(directory)))
}

/// The base interpreter. `Debug` is part of the key of an environment.
#[derive(Debug, Deserialize)]
struct Base {
    executable: PathBuf,
    version: (u32, u32, u32),
    /// Where the packages are, in a virtual environment.
    packages: Option<Vec<String>>,
}

async fn base_interpreter(python: &Path) -> Result<Base, HandlerError> {
    let failed = |reason: String| HandlerError::Interpreter { python: python.to_owned(), reason };
    let mut command = Command::new(python);
    command.args(["-c", PROBE]);
    let (status, lines) = run(command, "python", PROBE_LIMIT).await.map_err(|error| failed(error.to_string()))?;
    let answer = lines.iter().rev().find_map(|line| line.strip_prefix("interpreter "));
    let (Some(true), Some(answer)) = (status.map(|status| status.success()), answer) else {
        let ended = status.map_or_else(|| format!("no answer in {PROBE_LIMIT:?}"), describe);
        return Err(failed(format!("{ended}: {}", joined(&lines))));
    };
    let base: Base = serde_json::from_str(answer).map_err(|error| failed(format!("it says {answer:?}: {error}")))?;
    let (major, minor, patch) = base.version;
    if (major, minor) < OLDEST {
        return Err(failed(format!("it is Python {major}.{minor}.{patch}")));
    }
    Ok(base)
}

/// The last lines of a tool in one, for a message.
fn joined(lines: &[String]) -> String {
    lines.iter().map(|line| cut(line)).collect::<Vec<_>>().join(" | ")
}

struct Environment<'a> {
    code: &'a Path,
    requirements: &'a Path,
    base: &'a Base,
    limit: Duration,
}

impl Environment<'_> {
    fn failed(&self, reason: impl ToString) -> HandlerError {
        HandlerError::Install { requirements: self.requirements.to_owned(), reason: reason.to_string() }
    }

    /// Makes `directory` unless it is complete; one process at a time, the others wait for it.
    async fn make(&self, directory: &Path) -> Result<(), HandlerError> {
        let mark = directory.join("complete");
        let until = Instant::now() + self.limit;
        let lock = self.lock(directory, until).await?;
        if mark.is_file() {
            return Ok(());
        }
        tracing::info!(directory = %directory.display(), "installing {}", self.requirements.display());
        let made = self.fill(directory, until).await;
        let made = match made {
            Ok(()) => File::create(directory.join("unmarked"))
                .and_then(|file| file.sync_all())
                .and_then(|()| fs::rename(directory.join("unmarked"), &mark))
                .map_err(|error| self.failed(error)),
            Err(error) => {
                // What stays behind has no mark and is removed by the next attempt.
                let _ = fs::remove_dir_all(directory);
                Err(error)
            }
        };
        drop(lock);
        made
    }

    async fn lock(&self, directory: &Path, until: Instant) -> Result<File, HandlerError> {
        if let Some(parent) = directory.parent() {
            fs::create_dir_all(parent).map_err(|error| self.failed(format!("{}: {error}", parent.display())))?;
        }
        let path = directory.with_extension("lock");
        let named = |error: io::Error| self.failed(format!("{}: {error}", path.display()));
        let file = File::create(&path).map_err(named)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(self.failed(format!("{} is locked by another installation", path.display())));
                }
                Err(TryLockError::Error(error)) => return Err(named(error)),
            }
        }
    }

    async fn fill(&self, directory: &Path, until: Instant) -> Result<(), HandlerError> {
        if directory.exists() {
            fs::remove_dir_all(directory).map_err(|error| self.failed(error))?;
        }
        let mut venv = Command::new(&self.base.executable);
        venv.args(["-m", "venv", "--without-pip"]);
        if self.base.packages.is_none() {
            venv.arg("--system-site-packages");
        }
        venv.arg(directory);
        self.step(venv, "venv", until).await?;
        let inside = std::path::absolute(directory.join("bin").join("python")).map_err(|error| self.failed(error))?;
        let run_inside = |option: &str, what: &str| {
            let mut command = Command::new(&inside);
            command.args([option, what]);
            command
        };
        if let Some(packages) = &self.base.packages {
            let mut add = run_inside("-c", ADD_PACKAGES);
            add.arg(Value::from(packages.as_slice()).to_string());
            self.step(add, "python", until).await?;
        }
        // The base interpreter's pip serves as well and saves seconds; not every interpreter has one.
        if self.step(run_inside("-c", "import pip"), "python", until).await.is_err() {
            self.step(run_inside("-m", "ensurepip"), "ensurepip", until).await?;
        }
        let mut pip = run_inside("-m", "pip");
        pip.args(["install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "-r"]);
        pip.arg(self.requirements).current_dir(self.code);
        self.step(pip, "pip", until).await
    }

    async fn step(&self, mut command: Command, name: &'static str, until: Instant) -> Result<(), HandlerError> {
        command.stdin(std::process::Stdio::null());
        let left = until.saturating_duration_since(Instant::now());
        let (status, lines) = run(command, name, left).await.map_err(|error| self.failed(error))?;
        let Some(status) = status else {
            let seconds = self.limit.as_secs_f64();
            return Err(self.failed(format!("{name} did not end within {seconds} s: {}", joined(&lines))));
        };
        if status.success() {
            return Ok(());
        }
        Err(self.failed(format!("{name} ended with {}: {}", describe(status), joined(&lines))))
    }
}

/// Feeds `digest` with a requirements file and everything that its lines name beside it: further lists, wheels, packages.
fn digest_requirements(code: &Path, requirements: &Path, digest: &mut Sha256) -> io::Result<()> {
    let (mut files, mut bytes) = (0, 0_u64);
    let mut seen = BTreeSet::new();
    let mut pending = vec![requirements.to_owned()];
    while let Some(path) = pending.pop() {
        if !seen.insert(path.clone()) {
            continue;
        }
        let kind = fs::metadata(&path)?;
        if kind.is_dir() {
            let mut entries =
                fs::read_dir(&path)?.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<_>>>()?;
            entries.retain(|entry| fs::symlink_metadata(entry).is_ok_and(|kind| kind.is_dir() || kind.is_file()));
            entries.sort();
            pending.extend(entries);
            continue;
        }
        files += 1;
        bytes = bytes.saturating_add(kind.len());
        if !kind.is_file() || files > REFERRED_FILES || bytes > REFERRED_BYTES {
            let limits =
                format!("it refers to more than {REFERRED_FILES} files or {REFERRED_BYTES} bytes, or to a device");
            return Err(io::Error::other(limits));
        }
        digest.update(format!("{}\n{}\n", path.strip_prefix(code).unwrap_or(&path).display(), kind.len()));
        io::copy(&mut File::open(&path)?, digest)?;
        let is_list = path == requirements || path.extension().is_some_and(|extension| extension == "txt");
        if is_list && kind.len() <= REQUIREMENTS_LIMIT {
            pending.extend(named_in(code, &String::from_utf8_lossy(&fs::read(&path)?)));
        }
    }
    Ok(())
}

/// The files and directories that a requirements file names.
fn named_in(code: &Path, list: &str) -> Vec<PathBuf> {
    let lines = list.lines().filter(|line| !line.trim_start().starts_with('#'));
    let names = lines.flat_map(str::split_whitespace).map(|word| {
        let name = word.rsplit_once('=').map_or(word, |(_, name)| name);
        name.trim_start_matches("file://").trim_start_matches("-r").trim_start_matches("-c")
    });
    names.filter(|name| !name.is_empty()).map(|name| code.join(name)).filter(|path| path.exists()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(code: &Path) -> Vec<u8> {
        let mut digest = Sha256::new();
        digest_requirements(code, &code.join("requirements.txt"), &mut digest).unwrap();
        digest.finalize().to_vec()
    }

    #[test]
    fn the_key_follows_every_file_that_the_requirements_name() {
        let code = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(code.path().join(name), text).unwrap();
        fs::create_dir(code.path().join("package")).unwrap();
        write(
            "requirements.txt",
            "-r more.txt\n--constraint=bounds.txt\n./one.whl\n./package\n# unrelated.whl\nnumpy==2.0\n",
        );
        write("more.txt", "-r requirements.txt\n");
        for name in ["bounds.txt", "one.whl", "package/setup.py", "unrelated.whl", "inference.py"] {
            write(name, "1");
        }
        let first = key(code.path());
        for name in ["unrelated.whl", "inference.py"] {
            write(name, "2");
            assert_eq!(key(code.path()), first, "{name} is not referred to");
        }
        for name in ["more.txt", "bounds.txt", "one.whl", "package/setup.py"] {
            let before = key(code.path());
            write(name, "2");
            assert_ne!(key(code.path()), before, "{name} is referred to");
        }
    }
}
