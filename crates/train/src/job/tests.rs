//! A job file, right and wrong.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::metrics::Metric;

const MINIMAL: &str = "model = \"m\"\n[data]\ntrain = \"t.csv\"\n";

fn load(text: &str) -> Result<Job, JobError> {
    Job::parse(text, Path::new("jobs/tweets.toml"), &[])
}

fn load_with(text: &str, sets: &[&str]) -> Result<Job, JobError> {
    let sets: Vec<String> = sets.iter().map(|&set| set.to_owned()).collect();
    Job::parse(text, Path::new("jobs/tweets.toml"), &sets)
}

/// The message of a minimal job with `set` applied.
fn refusal(set: &str) -> String {
    load_with(MINIMAL, &[set]).expect_err(set).to_string()
}

#[test]
fn a_minimal_job_states_the_whole_run() {
    let job = load(MINIMAL).unwrap();
    assert_eq!(job.out, Path::new("runs/tweets"));
    assert_eq!(job.batch.limit(), BatchLimit::Examples(32));
    assert_eq!(job.schedule.warmup_ratio, Some(0.06));
    assert_eq!(job.evaluate.metric, Some(Metric::MacroF1));
    assert_eq!(job.data.text, Some(Column::Name("text".into())));
    let resolved = job.resolved();
    assert_eq!(resolved["optimizer"]["betas"], serde_json::json!([0.9, 0.999]));
    assert_eq!(resolved["data"]["format"], "auto");
    assert_eq!(serde_json::from_value::<Job>(resolved).unwrap(), job);
}

#[test]
fn values_take_every_form_the_manual_shows() {
    let job = load(
        r#"
        model = "hf:org/name"
        task = "multi-label"
        freeze = ["embeddings.*"]
        [data]
        train = ["a_text.txt,b.txt", "c/*.csv"]
        text = 2
        label = "sentiment"
        label_names = ["no", "yes"]
        [batch]
        tokens = 4096
        [optimizer]
        lr = 1
        "#,
    )
    .unwrap();
    assert_eq!(job.data.train.0, ["a_text.txt,b.txt", "c/*.csv"]);
    assert_eq!(job.data.text, Some(Column::Index(2)));
    assert_eq!(job.data.label_names, Some(LabelNames::List(vec!["no".into(), "yes".into()])));
    assert_eq!(job.batch.limit(), BatchLimit::Tokens(4096));
    assert_eq!(job.batch.size, None);
    assert_eq!(job.optimizer.lr, 1.0);
}

#[test]
fn unknown_keys_are_all_named_with_line_column_and_the_nearest() {
    let error = load("modle = 'm'\nlr = 1\n[data]\ntrain = 't'\n  sufle = true\n[optimiser]\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "jobs/tweets.toml:1:1: unknown key `modle`: did you mean `model`?\n\
         jobs/tweets.toml:2:1: unknown key `lr`: did you mean `optimizer.lr`?\n\
         jobs/tweets.toml:5:3: unknown key `data.sufle`: known here: data.train, data.validation, \
         data.validation_split, data.validation_split_by, data.test, data.format, data.text, \
         data.text_pair, data.label, data.label_separator, data.header, data.label_names, \
         data.encoding, data.max_tokens, data.keep, data.dedup, data.limit\n\
         jobs/tweets.toml:6:2: unknown key `optimiser`: did you mean `optimizer`?"
    );
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_what_was_expected() {
    let cases = [
        ("model = 3", "1:9: `model`: invalid type: integer `3`, expected a string"),
        (
            "model = 'm'\n[optimizer]\nlr = 'fast'",
            "3:6: `optimizer.lr`: invalid type: string \"fast\", expected a number",
        ),
        ("seed = -1", "1:8: `seed`: invalid value: integer `-1`, expected a whole number, 0 or more"),
        ("[data]\ntrain = [1]", "2:10: `data.train`: invalid type: integer `1`, expected a string"),
        ("data = 1", "1:8: `data`: invalid type: integer `1`, expected a table"),
        (
            "[data]\ntext = -1",
            "2:8: `data.text`: invalid value: integer `-1`, expected a column name or an index from 0",
        ),
        ("[optimizer]\nbetas = [0.9]", "2:9: `optimizer.betas`: invalid length 1, expected an array of length 2"),
        (
            "task = 'sorting'",
            "1:8: `task`: unknown variant `sorting`, expected one of `classification`, `multi-label`, `regression`, `token-classification`",
        ),
        (
            "[loss]\nclass_weights = 'fair'",
            "2:17: `loss.class_weights`: invalid value: string \"fair\", expected \"equal\", \"balanced\" or a list of numbers",
        ),
        ("[batch]\nshuffle = 'yes'", "2:11: `batch.shuffle`: invalid type: string \"yes\", expected a boolean"),
    ];
    for (text, expected) in cases {
        let message = load(text).expect_err(text).to_string();
        assert_eq!(message, format!("jobs/tweets.toml:{expected}"), "for {text}");
    }
}

#[test]
fn broken_toml_is_located() {
    let message = load("model = 'm'\n[data\n").unwrap_err().to_string();
    assert!(message.starts_with("jobs/tweets.toml:2:6: not valid TOML"), "{message}");
}

#[test]
fn values_out_of_range_are_refused_by_their_full_key() {
    let cases = [
        ("optimizer.lr=0", "`optimizer.lr` must be above 0 and finite, not 0"),
        ("optimizer.lr=-1e-5", "`optimizer.lr` must be above 0"),
        ("optimizer.lr=nan", "`optimizer.lr` must be above 0"),
        ("optimizer.betas=[0.9, 1.0]", "`optimizer.betas` must both be at least 0 and below 1"),
        ("optimizer.eps=0", "`optimizer.eps` must be above 0"),
        ("optimizer.weight_decay=-0.1", "`optimizer.weight_decay` must be 0 or more"),
        ("optimizer.clip_norm=inf", "`optimizer.clip_norm` must be 0 or more and finite"),
        ("dropout.hidden=1", "`dropout.hidden` must be at least 0 and below 1"),
        ("batch.size=0", "`batch.size` must be at least 1"),
        ("batch.accumulate=0", "`batch.accumulate` must be at least 1"),
        ("threads=0", "`threads` must be from 1 to 1024"),
        ("data.validation_split=1.0", "`data.validation_split` must lie between 0 and 1"),
        ("data.max_tokens=2", "`data.max_tokens` must be at least 3"),
        ("data.encoding=utf9", "`data.encoding` = \"utf9\": unknown encoding"),
        ("data.label_names=['a', 'b', 'a']", "`data.label_names` holds `a` twice"),
        ("schedule.warmup_ratio=1", "`schedule.warmup_ratio` must be at least 0 and below 1"),
        ("schedule.max_minutes=0", "`schedule.max_minutes` must be above 0"),
        ("loss.class_weights=[1, -1]", "`loss.class_weights` must all be finite and 0 or more"),
        ("loss.class_weights=[0, 0]", "`loss.class_weights` must not all be 0"),
        ("loss.label_smoothing=1", "`loss.label_smoothing` must be at least 0 and below 1"),
        ("evaluate.metric=mse", "`evaluate.metric` = \"mse\" does not go with task = \"classification\""),
        ("evaluate.early_stopping_patience=2", "`evaluate.early_stopping_patience` needs validation data"),
        ("checkpoint.keep=0", "`checkpoint.keep` must be at least 1"),
        ("freeze=['a[']", "`freeze` holds a pattern that is not a glob"),
    ];
    for (set, expected) in cases {
        let message = refusal(set);
        assert!(message.starts_with(&format!("--set {set}: {expected}")), "{set}: {message}");
    }
}

#[test]
fn options_that_exclude_each_other_are_refused_together() {
    let message = load_with(
        MINIMAL,
        &[
            "data.validation=v.csv",
            "data.validation_split=0.1",
            "batch.size=8",
            "batch.tokens=800",
            "schedule.steps=10",
            "schedule.epochs=1",
            "schedule.warmup_steps=11",
            "evaluate.every_steps=5",
            "evaluate.every_epochs=1",
        ],
    )
    .unwrap_err()
    .to_string();
    for pair in [
        "`data.validation_split` and `data.validation` exclude each other",
        "`batch.tokens` and `batch.size` exclude each other",
        "`schedule.epochs` and `schedule.steps` exclude each other",
        "`schedule.warmup_steps` must not exceed `schedule.steps` (10)",
        "`evaluate.every_epochs` and `evaluate.every_steps` exclude each other",
    ] {
        assert!(message.contains(pair), "{message}");
    }
}

#[test]
fn a_job_without_model_or_data_says_so() {
    let message = load("seed = 1\n").unwrap_err().to_string();
    assert_eq!(
        message,
        "jobs/tweets.toml: `model` is missing: name a model directory, a model.tar.gz or hf:org/name\n\
         jobs/tweets.toml: `data.train` is missing: name one or more files or globs"
    );
}

#[test]
fn set_overrides_the_file_and_makes_missing_tables() {
    let job = load_with(
        MINIMAL,
        &[
            "optimizer.lr=3e-5",
            "data.train=b.csv",
            "model = hf:org/name",
            "data.label_names=[\"x\", \"y\"]",
            "data.limit=5",
        ],
    )
    .unwrap();
    assert_eq!(job.optimizer.lr, 3e-5);
    assert_eq!(job.data.train.0, ["b.csv"]);
    assert_eq!(job.model, "hf:org/name");
    assert_eq!(job.data.limit, Some(5));
}

#[test]
fn a_key_that_is_set_takes_the_place_of_the_one_it_excludes() {
    let file = format!("{MINIMAL}validation = \"v.csv\"\n[batch]\nsize = 8\n[schedule]\nepochs = 2\n");
    let sets = ["batch.tokens=100", "schedule.steps=5", "data.validation_split=0.5"];
    let job = load_with(&file, &sets).unwrap();
    assert_eq!(job.batch.limit(), BatchLimit::Tokens(100));
    assert_eq!((job.schedule.steps, job.schedule.epochs), (Some(5), None));
    assert!(job.data.validation.is_empty());
    let both = ["batch.tokens=100", "batch.size=4"];
    assert!(load_with(&file, &both).unwrap_err().to_string().contains("exclude each other"));
}

#[test]
fn a_wrong_set_argument_is_named() {
    for (set, expected) in [
        ("optimizer.lr", "--set optimizer.lr: there is no `=`"),
        ("=3", "--set =3: `` is not the name of a key"),
        ("a..b=3", "--set a..b=3: `a..b` is not the name of a key"),
        ("model.lr=3", "--set model.lr=3: `model` is a value, not a table"),
        ("optimizer.rl=3", "--set optimizer.rl=3: unknown key `optimizer.rl`: did you mean `optimizer.lr`?"),
        (
            "optimizer.lr=fast",
            "--set optimizer.lr=fast: `optimizer.lr`: invalid type: string \"fast\", expected a number",
        ),
        ("data.train=[1]", "--set data.train=[1]: `data.train`: invalid type: integer `1`, expected a string"),
    ] {
        let message = refusal(set);
        assert!(message.starts_with(expected), "{set}: {message}");
    }
}

#[test]
fn a_missing_job_file_is_named_as_tried() {
    let message = Job::load(Path::new("no/such.toml"), &[]).unwrap_err().to_string();
    let tried = std::env::current_dir().unwrap().join("no/such.toml");
    assert!(message.contains(&tried.display().to_string()), "{message}");
}

proptest! {
    #[test]
    fn no_text_and_no_set_argument_makes_the_reader_panic(
        text in "(model|data|optimizer|lr|train|\\[|\\]|=|\\.|\"|'|1|-|é|\n| ){0,24}",
        set in "(data|optimizer|lr|betas|=|\\.|\\[|\\]|\\{|\\}|\"|0|,|é| ){0,12}",
    ) {
        let _ = Job::parse(&text, Path::new("job.toml"), &[]).map_err(|error| error.to_string());
        let _ = Job::parse(MINIMAL, Path::new("job.toml"), &[set]).map_err(|error| error.to_string());
    }
}
