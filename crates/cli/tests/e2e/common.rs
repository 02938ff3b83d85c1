//! A temporary directory with a tiny model, a job and data, and the binary to run there.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use model::files::{SaveDType, TensorRef, write_safetensors};
use model::{Encoder, ModelConfig, Weights};
use serde_json::{Value, json};
use tempfile::TempDir;
use tensor::CpuKernels;

pub const BINARY: &str = env!("CARGO_BIN_EXE_trainyard");

/// The longest sequence of the tiny model, control tokens included.
pub const MAX_TOKENS: usize = 64;

pub const GOOD: [&str; 3] = ["good", "lovely", "great"];
pub const BAD: [&str; 3] = ["bad", "awful", "poor"];
pub const COLOURS: [&str; 3] = ["red", "green", "blue"];
const FILLER: [&str; 16] = [
    "the", "train", "was", "in", "a", "station", "we", "saw", "people", "and", "then", "it", "on", "to", "this",
    "morning",
];

/// A job that learns two labels in a second.
const JOB: &str = r#"model = "base"
threads = 1

[data]
train = "train.tsv"
validation = "validation.tsv"

[batch]
size = 16

[optimizer]
lr = 0.003

[schedule]
epochs = 20

[evaluate]
every_epochs = 5
"#;

/// A directory to work in.
pub struct Yard {
    dir: TempDir,
}

impl Yard {
    /// An untrained encoder in `base`, `train.tsv` with 96 rows, `validation.tsv` with 48, and `job.toml`.
    pub fn new() -> Self {
        let yard = Self { dir: tempfile::tempdir().unwrap() };
        write_model(&yard.path("base"), &json!({"architectures": ["BertModel"]}));
        yard.write("train.tsv", tsv(&sentiments(96, 1)));
        yard.write("validation.tsv", tsv(&sentiments(48, 2)));
        yard.write("job.toml", JOB);
        yard
    }

    /// The same with a trained model in `runs/job`.
    pub fn trained() -> Self {
        let yard = Self::new();
        yard.train(&[]).ok();
        yard
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.read(name)).unwrap()
    }

    /// The lines of a run's `metrics.jsonl`.
    pub fn log(&self, run: &str) -> Vec<Value> {
        self.text(&format!("{run}/metrics.jsonl")).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }

    /// `trainyard train job.toml --json` with these `--set` arguments.
    pub fn train(&self, sets: &[&str]) -> Ran {
        self.run(&train_args(sets))
    }

    /// Runs a shell command in the yard; `trainyard` is on its path.
    pub fn shell(&self, command: &str) -> Ran {
        let bin = Path::new(BINARY).parent().unwrap().display();
        let path = format!("{bin}:{}", std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).env("PATH", path).current_dir(self.dir.path()).stdin(Stdio::null());
        Ran::of(shell.output().unwrap())
    }

    /// The tensors of a weights file, by name.
    pub fn tensors(&self, dir: &str) -> Tensors {
        let checkpoint = model::files::Checkpoint::open(&self.path(dir)).unwrap();
        let names: Vec<String> = checkpoint.names().map(String::from).collect();
        let read = |name: String| {
            let info = checkpoint.info(&name).unwrap();
            let mut values = vec![0.0; info.elements()];
            checkpoint.read_f32(&name, &mut values).unwrap();
            (name, info.shape.clone(), values)
        };
        names.into_iter().map(read).collect()
    }

    /// Writes `dir/model.safetensors`.
    pub fn write_tensors(&self, dir: &str, tensors: &Tensors) {
        let refs: Vec<TensorRef> = tensors.iter().map(|(name, shape, data)| TensorRef { name, shape, data }).collect();
        write_safetensors(&self.path(dir).join("model.safetensors"), &refs, SaveDType::F32, &[]).unwrap();
    }

    /// Copies a flat directory.
    pub fn copy_dir(&self, from: &str, to: &str) {
        std::fs::create_dir_all(self.path(to)).unwrap();
        for entry in std::fs::read_dir(self.path(from)).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, self.path(to).join(path.file_name().unwrap())).unwrap();
        }
    }

    /// Changes keys of a model's `config.json`.
    pub fn edit_config(&self, dir: &str, keys: &Value) {
        let name = format!("{dir}/config.json");
        let mut config = self.json(&name);
        config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        self.write(&name, config.to_string());
    }
}

/// Name, shape and values.
pub type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

pub fn train_args<'a>(sets: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "job.toml", "--json"];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    args
}

/// A command that ended.
pub struct Ran {
    /// `None` after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        ran
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.stdout, self.stderr);
        self
    }

    /// The one JSON object on standard output.
    #[track_caller]
    pub fn object(self) -> Value {
        let ran = self.ok();
        assert_eq!(ran.stdout.lines().count(), 1, "one line: {}", ran.stdout);
        let value: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert!(value.is_object());
        value
    }

    /// The input is wrong: exit code 2, nothing on standard output, and a message with all of `parts`.
    #[track_caller]
    pub fn refused(self, parts: &[&str]) {
        self.ended(2, parts);
    }

    /// Something failed: exit code 1.
    #[track_caller]
    pub fn failed(self, parts: &[&str]) {
        self.ended(1, parts);
    }

    #[track_caller]
    fn ended(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "", "nothing on standard output");
        let message = self.stderr.find("error: ").map(|at| &self.stderr[at..]);
        let message = message.unwrap_or_else(|| panic!("no message in: {}", self.stderr));
        for part in parts {
            assert!(message.contains(part), "{message}should contain: {part}");
        }
    }
}

/// A repeatable source of choices (SplitMix64).
pub struct Dice(pub u64);

impl Dice {
    /// A number below `sides`.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    pub fn pick<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.roll(words.len())]
    }

    /// Three to eight words that mean nothing, with `words` among them in their order.
    pub fn sentence(&mut self, words: &[&str]) -> String {
        let mut all: Vec<&str> = (0..3 + self.roll(6)).map(|_| self.pick(&FILLER)).collect();
        let mut from = 0;
        for word in words {
            from += self.roll(all.len() - from + 1);
            all.insert(from, word);
            from += 1;
        }
        all.join(" ")
    }
}

/// Sentences with a good or a bad word, labelled `up` and `down`.
pub fn sentiments(rows: usize, seed: u64) -> Vec<(String, String)> {
    let mut dice = Dice(seed);
    let row = |i| {
        let (words, label) = if i % 2 == 0 { (&GOOD, "up") } else { (&BAD, "down") };
        let word = dice.pick(words);
        (dice.sentence(&[word]), label.to_string())
    };
    (0..rows).map(row).collect()
}

/// A TSV file with a header.
pub fn tsv(rows: &[(String, String)]) -> String {
    let lines = rows.iter().map(|(text, label)| format!("{text}\t{label}\n"));
    std::iter::once("text\tlabel\n".to_string()).chain(lines).collect()
}

/// A model directory: two layers, 32 wide, with the words of the tests as its vocabulary.
pub fn write_model(dir: &Path, keys: &Value) {
    std::fs::create_dir_all(dir).unwrap();
    let vocabulary = vocabulary();
    let mut config = json!({
        "model_type": "bert", "vocab_size": vocabulary.len(), "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": MAX_TOKENS,
        "initializer_range": 0.1, "pad_token_id": 0,
    });
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let config = config.to_string();
    std::fs::write(dir.join("config.json"), &config).unwrap();
    std::fs::write(dir.join("vocab.txt"), vocabulary.join("\n")).unwrap();
    let encoder = Encoder::new(ModelConfig::parse(&config).unwrap());
    let weights = Weights::initialised(encoder.descriptors(), &CpuKernels::new(1), 7);
    model::save_weights(&encoder, &weights, &dir.join("model.safetensors")).unwrap();
}

fn vocabulary() -> Vec<String> {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter();
    let words = special.chain(FILLER).chain(GOOD).chain(BAD).chain(COLOURS).chain(["not", "very", ".", ",", "!"]);
    let letters = ('a'..='z').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
    // The filler has `a` already.
    words.map(String::from).chain(letters.filter(|letter| letter != "a")).collect()
}
