//! Golden numbers, computed by scikit-learn 1.9, scipy 1.17 and seqeval 1.2 on the same data.

use super::*;
use crate::metrics::Report;

fn names(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|&label| label.to_owned()).collect()
}

/// Logits that predict `label` among `count`.
fn vote(label: usize, count: usize) -> Vec<f32> {
    (0..count).map(|id| if id == label { 1.0 } else { -0.5 }).collect()
}

fn assert_value(report: &Report, metric: Metric, expected: f64) {
    let value = report.value(metric).unwrap_or(f64::NAN);
    assert!((value - expected).abs() < 1e-12, "{}: {value} instead of {expected}", metric.name());
}

/// Twelve examples over five labels: `d` only in the predictions, `e` nowhere.
fn five_labels() -> Evaluation {
    let actual = [0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 1, 2];
    let predicted = [0, 1, 1, 1, 3, 2, 0, 2, 1, 0, 1, 2];
    let mut evaluation = Evaluation::new(Task::Classification, &names(&["a", "b", "c", "d", "e"]));
    for (actual, predicted) in actual.into_iter().zip(predicted) {
        evaluation.add(Target::Class(actual), &vote(predicted, 5));
        evaluation.add_loss(0.5, 1.0);
    }
    evaluation
}

#[test]
fn classification_equals_scikit_learn() {
    let report = five_labels().report();
    assert_eq!(report.examples(), 12);
    assert_value(&report, Metric::Loss, 0.5);
    assert_value(&report, Metric::Accuracy, 0.6666666666666666);
    assert_value(&report, Metric::MicroF1, 0.6666666666666666);
    assert_value(&report, Metric::MacroF1, 0.5208333333333333);
    assert_value(&report, Metric::MacroRecall, 0.5041666666666667);
    assert_eq!(report.value(Metric::Mse), None);

    let Report::Classification(report) = report else { panic!("another task") };
    let c = &report.per_label[2];
    assert_eq!((c.label.as_str(), c.precision, c.recall, c.support), ("c", 1.0, 0.6, 5));
    assert!((c.f1 - 0.75).abs() < 1e-12);
    assert_eq!(report.per_label[3].f1, 0.0);
    assert_eq!(report.confusion.unwrap(), [[2, 1, 0, 0, 0], [0, 3, 0, 1, 0], [1, 1, 3, 0, 0], [0; 5], [0; 5]]);
    let baseline = report.majority_baseline.unwrap();
    assert_eq!((baseline.label.as_str(), baseline.accuracy), ("c", 5.0 / 12.0));
    assert_eq!(baseline.macro_recall, 1.0 / 3.0);
}

#[test]
fn the_json_has_the_promised_keys() {
    let json = serde_json::to_value(five_labels().report()).unwrap();
    for key in ["examples", "loss", "accuracy", "macro_f1", "macro_recall", "micro_f1"] {
        assert!(json[key].is_number(), "{key}");
    }
    for key in ["label", "precision", "recall", "f1", "support"] {
        assert!(!json["per_label"][0][key].is_null(), "{key}");
    }
    assert_eq!(json["confusion"][0][1], 1);
    assert!(json.get("entities").is_none());
}

#[test]
fn the_text_sets_metrics_beside_the_majority_baseline() {
    let mut evaluation = Evaluation::new(Task::Classification, &names(&["no", "yes"]));
    evaluation.add(Target::Class(0), &vote(0, 2));
    evaluation.add(Target::Class(0), &vote(1, 2));
    evaluation.add(Target::Class(1), &vote(1, 2));
    assert_eq!(
        evaluation.report().to_string(),
        "               value  majority
examples           3
accuracy      0.6667    0.6667
macro_recall  0.7500    0.5000
macro_f1      0.6667
micro_f1      0.6667

label  precision  recall      f1  support
no        1.0000  0.5000  0.6667        2
yes       0.5000  1.0000  0.6667        1

actual \\ predicted  no  yes
no                   1    1
yes                  0    1
"
    );
}

#[test]
fn the_first_of_equal_logits_is_predicted() {
    assert_eq!(highest(&[0.0, 3.0, 3.0]), 1);
    assert_eq!(highest(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), 0);
}

#[test]
fn multi_label_equals_scikit_learn() {
    let actual: [&[u32]; 5] = [&[0, 2], &[1], &[], &[0, 1], &[0]];
    let predicted = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]];
    let mut evaluation = Evaluation::new(Task::MultiLabel, &names(&["a", "b", "c", "d"]));
    for (actual, predicted) in actual.into_iter().zip(predicted) {
        let logits = predicted.map(|on| if on == 1 { 0.0 } else { -0.1 });
        evaluation.add(Target::Labels(actual), &logits);
    }
    let report = evaluation.report();
    assert_value(&report, Metric::Accuracy, 0.4);
    assert_value(&report, Metric::MacroF1, 0.375);
    assert_value(&report, Metric::MicroF1, 0.6666666666666666);
    assert_value(&report, Metric::MacroRecall, 0.375);
    assert_eq!(report.value(Metric::Loss), None);
}

#[test]
fn regression_equals_scikit_learn_and_scipy() {
    let pairs = [(1.0, 1.5), (2.0, 1.5), (2.0, 2.5), (3.5, 3.0), (-1.0, -0.5), (0.25, 1.5)];
    let mut evaluation = Evaluation::new(Task::Regression, &[]);
    for (target, guess) in pairs {
        evaluation.add(Target::Score(target), &[guess]);
    }
    let report = evaluation.report();
    assert_value(&report, Metric::Mse, 0.46875);
    assert_value(&report, Metric::Mae, 0.625);
    assert_value(&report, Metric::Spearman, 0.8932596002688613);
    assert_value(&report, Metric::Pearson, 0.9136966892972167);
}

#[test]
fn correlations_of_a_constant_are_undefined() {
    let mut evaluation = Evaluation::new(Task::Regression, &[]);
    for target in [1.0, 2.0, 3.0] {
        evaluation.add(Target::Score(target), &[0.1]);
    }
    assert_eq!(evaluation.report().value(Metric::Spearman), None);
    assert_eq!(evaluation.report().value(Metric::Pearson), None);
}

#[test]
fn entities_equal_seqeval_and_untagged_tokens_do_not_count() {
    let labels = names(&["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]);
    let id = |tag: &str| labels.iter().position(|label| label == tag).unwrap();
    let sentences = [
        (["B-PER", "I-PER", "O", "B-LOC", "O"], ["B-PER", "I-PER", "O", "B-LOC", "I-LOC"]),
        (["O", "I-LOC", "I-LOC", "B-LOC", "I-PER"], ["O", "I-LOC", "I-LOC", "I-LOC", "B-PER"]),
    ];
    let mut evaluation = Evaluation::new(Task::TokenClassification, &labels);
    for (actual, predicted) in sentences {
        // A token without a tag stands before each word, as special tokens do.
        let (mut tags, mut logits) = (Vec::new(), Vec::new());
        for (actual, predicted) in actual.into_iter().zip(predicted) {
            tags.extend([NO_TAG, id(actual) as u32]);
            logits.extend(vote(1, 5));
            logits.extend(vote(id(predicted), 5));
        }
        evaluation.add(Target::Tags(&tags), &logits);
    }
    let Report::Classification(report) = evaluation.report() else { panic!("another task") };
    assert_eq!((report.examples, report.labelled), (2, 10));
    assert_eq!(report.accuracy, 0.7);
    let entities = report.entities.unwrap();
    assert_eq!((entities.precision, entities.recall, entities.support), (0.5, 0.4, 5));
    assert!((entities.f1 - 0.4444444444444445).abs() < 1e-12);
}

#[test]
fn tags_that_are_not_bio_have_no_entities() {
    let evaluation = Evaluation::new(Task::TokenClassification, &names(&["NOUN", "VERB"]));
    assert_eq!(evaluation.report().value(Metric::EntityF1), None);
}

#[test]
fn an_evaluation_of_nothing_is_zero_not_nan() {
    let report = Evaluation::new(Task::Classification, &names(&["a", "b"])).report();
    assert_value(&report, Metric::Accuracy, 0.0);
    assert_value(&report, Metric::MacroF1, 0.0);
    assert_eq!(report.value(Metric::Loss), None);
}
