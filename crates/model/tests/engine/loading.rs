//! Loading and saving: the names of every version, what is missing, superfluous or of another shape, and round trips.

use std::path::Path;

use model::files::{Checkpoint, ModelDir, SaveDType, TensorRef, write_safetensors};
use model::{Encoder, Family, Head, InferenceDtype, LoadMode, LoadReport, Model, ModelConfig, ModelError, Problem};
use tensor::CpuKernels;

use crate::support::{FAMILIES, Setting, Size, bits, encoder, infer, pack, texts, weights};

const SIZE: Size = Size { vocab: 11, hidden: 6, heads: 2, layers: 2, intermediate: 10, tokens: 9 };
const SEED: u64 = 40;
const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\ne\nf\n";

/// A model directory as `Model::save` writes one, whose values are those of `weights(.., SEED)`.
fn saved(family: Family, suffix: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let vocabulary = tempfile::tempdir().unwrap();
    std::fs::write(vocabulary.path().join("vocab.txt"), VOCABULARY).unwrap();
    let kernels = CpuKernels::new(1);
    let encoder = encoder(family, suffix, SIZE);
    let weights = weights(encoder.descriptors(), &kernels, SEED);
    let tokenizer = model::tokenizer::Tokenizer::open(vocabulary.path()).unwrap();
    Model { encoder, weights, tokenizer }.save(dir.path()).unwrap();
    dir
}

/// Tensors of a file: name, shape, values.
type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

/// Rewrites the weights of a directory.
fn edit(dir: &Path, change: impl FnOnce(&mut Tensors)) {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let read = |name: &str| {
        let info = checkpoint.info(name).unwrap();
        let mut values = vec![0.0; info.elements()];
        checkpoint.read_f32(name, &mut values).unwrap();
        (name.to_string(), info.shape.clone(), values)
    };
    let mut tensors: Tensors = checkpoint.names().map(read).collect();
    change(&mut tensors);
    let tensors: Vec<TensorRef> = tensors.iter().map(|(name, shape, data)| TensorRef { name, shape, data }).collect();
    write_safetensors(&dir.join("model.safetensors"), &tensors, SaveDType::F32, &[]).unwrap();
}

fn load(dir: &Path, mode: &LoadMode) -> Result<(Model, LoadReport), ModelError> {
    Model::load(&ModelDir::open(dir.to_str().unwrap()).unwrap(), mode, &CpuKernels::new(1))
}

fn fine_tune(labels: &[&str]) -> LoadMode {
    let labels = labels.iter().map(|label| label.to_string()).collect();
    LoadMode::FineTune { head: Head::Sequence(Problem::SingleLabel), labels, seed: 1 }
}

/// Whether a loaded model holds the values that [`saved`] wrote, as far as `part` selects.
fn assert_values(model: &Model, part: impl Fn(&model::ParamDescr) -> bool) {
    let expected = weights(model.encoder.descriptors(), &CpuKernels::new(1), SEED);
    for id in expected.ids().filter(|&id| part(expected.descriptor(id))) {
        let name = &expected.descriptor(id).name;
        assert!(bits(model.weights.master(id)) == bits(expected.master(id)), "values of `{name}`");
    }
}

fn error(dir: &Path, mode: &LoadMode) -> String {
    load(dir, mode).err().expect("an error").to_string()
}

fn classifier(name: &str) -> bool {
    name.contains("classifier") || name.starts_with("pre_classifier")
}

#[test]
fn loading_for_inference_gives_what_a_loaded_model_becomes() {
    for family in FAMILIES {
        let dir = saved(family, "ForSequenceClassification");
        for dtype in InferenceDtype::ALL {
            let (loaded, report) = load(dir.path(), &LoadMode::Inference(dtype)).unwrap();
            assert_eq!(report, LoadReport::default());
            let kernels = CpuKernels::new(1);
            let mut weights = weights(loaded.encoder.descriptors(), &kernels, SEED);
            weights.for_inference(&kernels, &loaded.encoder.packable(), dtype);
            let batch = pack(&loaded.encoder, &texts(SIZE.vocab, &[9, 1, 4], 1), 0);
            let setting = Setting { dtype: dtype.activations(), ..Setting::plain(&kernels) };
            let expected = infer(&loaded.encoder, &weights, &batch, setting);
            assert_eq!(bits(&loaded.infer(&kernels, &batch, dtype.activations())), bits(&expected), "{family} {dtype}");
        }
    }
}

#[test]
fn what_is_saved_loads_bit_for_bit_and_saves_to_the_same_file() {
    for family in FAMILIES {
        for suffix in ["ForSequenceClassification", "ForTokenClassification", "Model"] {
            let dir = saved(family, suffix);
            let (model, report) = load(dir.path(), &LoadMode::AsIs).unwrap();
            assert_eq!(report, LoadReport::default());
            assert_values(&model, |_| true);
            let again = tempfile::tempdir().unwrap();
            model.save(again.path()).unwrap();
            for file in ["model.safetensors", "config.json"] {
                let read = |dir: &Path| std::fs::read(dir.join(file)).unwrap();
                assert!(read(dir.path()) == read(again.path()), "{family}{suffix}: {file}");
            }
        }
    }
}

#[test]
fn a_saved_configuration_reads_back() {
    for family in FAMILIES {
        for suffix in ["ForSequenceClassification", "ForTokenClassification", "Model"] {
            let config = encoder(family, suffix, SIZE).config().clone();
            let again = ModelConfig::parse(&config.to_json()).unwrap();
            assert_eq!((&again.encoder, again.head, &again.labels), (&config.encoder, config.head, &config.labels));
            assert_eq!(again.to_json(), config.to_json());
        }
    }
}

#[test]
fn names_with_and_without_the_prefix_and_gamma_and_beta_are_the_same_tensors() {
    for family in FAMILIES {
        let with_prefix = encoder(family, "ForSequenceClassification", SIZE).file_prefix();
        let bare = |name: &str| name.strip_prefix(with_prefix).unwrap_or(name).to_string();
        let old = |name: &str| {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        };
        let spellings: [&dyn Fn(&str) -> String; 3] = [&bare, &old, &|name| old(&bare(name))];
        for spelling in spellings {
            let dir = saved(family, "ForSequenceClassification");
            edit(dir.path(), |tensors| tensors.iter_mut().for_each(|(name, ..)| *name = spelling(name)));
            let (model, report) = load(dir.path(), &LoadMode::AsIs).unwrap();
            assert_eq!(report, LoadReport::default());
            assert_values(&model, |_| true);
        }
        let dir = saved(family, "Model");
        edit(dir.path(), |tensors| tensors.iter_mut().for_each(|(name, ..)| *name = format!("{with_prefix}{name}")));
        let (model, report) = load(dir.path(), &LoadMode::AsIs).unwrap();
        assert_eq!(report, LoadReport::default());
        assert_values(&model, |_| true);
    }
}

#[test]
fn buffers_of_old_versions_are_ignored_and_other_tensors_are_listed() {
    for family in FAMILIES {
        let dir = saved(family, "ForSequenceClassification");
        let prefix = encoder(family, "ForSequenceClassification", SIZE).file_prefix();
        edit(dir.path(), |tensors| {
            tensors.push((format!("{prefix}embeddings.position_ids"), vec![1, 9], vec![0.0; 9]));
            tensors.push(("embeddings.token_type_ids".into(), vec![9], vec![0.0; 9]));
            tensors.push(("lm_head.bias".into(), vec![2], vec![0.0; 2]));
        });
        let (model, report) = load(dir.path(), &LoadMode::AsIs).unwrap();
        assert_eq!(report, LoadReport { unexpected: vec!["lm_head.bias".into()], ..LoadReport::default() });
        assert_values(&model, |_| true);
    }
}

#[test]
fn a_missing_classifier_is_an_error_as_is_and_a_notice_when_fine_tuning() {
    for family in FAMILIES {
        let dir = saved(family, "ForSequenceClassification");
        let mut removed = Vec::new();
        edit(dir.path(), |tensors| {
            removed = tensors.iter().map(|(name, ..)| name.clone()).filter(|name| classifier(name)).collect();
            tensors.retain(|(name, ..)| !classifier(name));
        });
        assert!(removed.len() >= 2);
        let message = error(dir.path(), &LoadMode::AsIs);
        assert!(message.contains(&format!("asks for ({}, the first", removed.len())), "{message}");
        assert!(message.contains("classifier") && message.contains("trainyard train"), "{message}");

        let (model, mut report) = load(dir.path(), &fine_tune(&["no", "yes"])).unwrap();
        report.missing.sort();
        assert_eq!(report, LoadReport { missing: removed, ..LoadReport::default() });
        assert_eq!(model.encoder.config().labels, ["no", "yes"]);
        assert_values(&model, |descriptor| !descriptor.is_head());
        let id = model.weights.ids().find(|&id| model.weights.descriptor(id).name == "classifier.weight").unwrap();
        assert!(model.weights.master(id).to_vec_f32().iter().all(|&x| x != 0.0 && x.abs() < 0.2), "drawn anew");
    }
}

#[test]
fn a_head_of_another_size_is_an_error_as_is_and_reinitialised_when_fine_tuning() {
    for family in FAMILIES {
        let dir = saved(family, "ForSequenceClassification");
        let (model, report) = load(dir.path(), &fine_tune(&["a", "b", "c", "d", "e"])).unwrap();
        assert_eq!(report.missing, [""; 0]);
        assert_eq!(report.reinitialised.len(), 2, "{report:?}");
        let last = |shape: &str| report.reinitialised.iter().any(|line| line.contains(shape));
        assert!(last("([3, 6] in the file, [5, 6] needed)") && last("([3] in the file, [5] needed)"), "{report:?}");
        assert_values(&model, |descriptor| !descriptor.name.starts_with("classifier."));

        let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config["id2label"] = serde_json::json!({"0": "a", "1": "b"});
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let message = error(dir.path(), &LoadMode::AsIs);
        assert!(
            message.contains("classifier") && message.contains("[3, 6]") && message.contains("[2, 6]"),
            "{message}"
        );
    }
}

#[test]
fn an_encoder_tensor_of_the_wrong_shape_or_none_is_an_error_that_names_it() {
    for family in FAMILIES {
        let name = encoder(family, "Model", SIZE).descriptors()[0].parts[0].name.clone();
        for mode in [LoadMode::AsIs, fine_tune(&["a", "b", "c"])] {
            let dir = saved(family, "ForSequenceClassification");
            edit(dir.path(), |tensors| {
                let (_, shape, values) = tensors.iter_mut().find(|(n, ..)| n.ends_with(&name)).unwrap();
                (*shape, *values) = (vec![12, 6], vec![0.0; 72]);
            });
            let message = error(dir.path(), &mode);
            assert!(message.contains(&name) && message.contains("[12, 6]") && message.contains("[11, 6]"), "{message}");

            edit(dir.path(), |tensors| tensors.retain(|(n, ..)| !n.ends_with(&name)));
            let message = error(dir.path(), &mode);
            assert!(message.contains(&name) && message.contains("asks for (1, the first"), "{message}");
        }
    }
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_model_has_rows_is_refused() {
    let dir = saved(Family::Bert, "ForSequenceClassification");
    let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["vocab_size"] = serde_json::json!(10);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let message = error(dir.path(), &LoadMode::AsIs);
    assert!(message.contains("11 tokens") && message.contains("10 embeddings"), "{message}");
}

#[test]
fn weights_and_configuration_compare_without_reading_a_value() {
    let dir = saved(Family::Bert, "ForSequenceClassification");
    edit(dir.path(), |tensors| {
        tensors.retain(|(name, ..)| name != "classifier.bias");
        tensors.push(("extra".into(), vec![1], vec![0.0]));
    });
    let size = Size { vocab: 12, ..SIZE };
    let encoder: Encoder = encoder(Family::Bert, "ForSequenceClassification", size);
    let comparison = model::compare_weights(&encoder, &Checkpoint::open(dir.path()).unwrap());
    assert_eq!(comparison.missing, ["classifier.bias"]);
    assert_eq!(comparison.unused, ["extra"]);
    assert_eq!(comparison.mismatched.len(), 1);
    assert!(comparison.mismatched[0].contains("word_embeddings"), "{comparison:?}");
}
