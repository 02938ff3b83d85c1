//! The body of the Hugging Face inference toolkit, `{"inputs": ..., "parameters": {...}}`, and what answers it.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::app::Inputs;
use super::parameters::{LabelForm, Parameters, Side};
use crate::engine::{Answer, Engine};
use crate::failure::Failure;
use crate::input::Input;
use crate::task::classification::{Label, labels};
use crate::task::entities::{Entity, entities};
use crate::task::{Item, Task, items};

/// A request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InvocationRequest {
    /// A text, a pair `{"text", "text_pair"}`, or a list of texts, pairs or `[text, text]`.
    #[schema(value_type = InputsSchema)]
    inputs: Value,
    /// How to answer.
    #[serde(default)]
    parameters: Parameters,
    /// As `parameters.normalize`; Hugging Face's client has it here.
    normalize: Option<bool>,
    /// As `parameters.truncate`.
    truncate: Option<bool>,
    /// As `parameters.truncation_direction`.
    truncation_direction: Option<Side>,
    /// Refused, for an embedding without it is another one.
    #[schema(ignore)]
    prompt_name: Option<String>,
    /// Refused.
    #[schema(ignore)]
    dimensions: Option<Value>,
    /// Of Hugging Face's API, about its own cache; without effect.
    #[schema(ignore)]
    #[allow(dead_code, reason = "accepted and without effect")]
    options: Option<Value>,
}

impl InvocationRequest {
    /// The parameters, with those that came beside them.
    ///
    /// # Errors
    /// Names a field that changes embeddings and is not supported.
    pub fn into_parts(self) -> Result<(Value, Parameters), Failure> {
        refuse_unsupported(self.prompt_name.as_deref(), self.dimensions.as_ref())?;
        let parameters = self.parameters.or(self.normalize, self.truncate, self.truncation_direction);
        Ok((self.inputs, parameters))
    }
}

/// Refuses what would otherwise silently make another embedding than the one asked for.
///
/// # Errors
/// Names the field.
pub fn refuse_unsupported(prompt_name: Option<&str>, dimensions: Option<&Value>) -> Result<(), Failure> {
    if prompt_name.is_some() {
        return Err(Failure::invalid("prompt_name", "is not supported; put the prompt in front of the text"));
    }
    if dimensions.is_some() {
        return Err(Failure::invalid("dimensions", "is not supported; embeddings have all dimensions of their model"));
    }
    Ok(())
}

/// What `inputs` may be.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it only describes the JSON")]
#[serde(untagged)]
pub(crate) enum InputsSchema {
    /// One text.
    Text(String),
    /// One pair.
    Pair(PairSchema),
    /// Several.
    List(InputListSchema),
}

/// Several inputs.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 1)]
pub(crate) struct InputListSchema(Vec<InputSchema>);

/// What an element of a list of `inputs` may be.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "it only describes the JSON")]
#[serde(untagged)]
pub(crate) enum InputSchema {
    /// A text.
    Text(String),
    /// A pair.
    Pair(PairSchema),
    /// A pair as a list.
    List(TwoTextsSchema),
}

/// Two texts that belong together, as a list.
#[derive(Serialize, ToSchema)]
#[schema(min_items = 2, max_items = 2)]
pub(crate) struct TwoTextsSchema(Vec<String>);

/// Two texts that belong together.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairSchema {
    /// The first.
    text: String,
    /// The second.
    text_pair: Option<String>,
}

/// The inputs in a value of `inputs`: each one read on its own, so that a bad one is its own failure.
///
/// # Errors
/// When `inputs` as a whole is of no use.
pub fn inputs_of(value: Value) -> Result<Inputs, Failure> {
    match value {
        Value::Array(list) => {
            let each = list.into_iter().enumerate().map(|(i, v)| input_of(v, &format!("inputs[{i}]"))).collect();
            Ok(Inputs { each, list: Some("inputs") })
        }
        value => Ok(Inputs::one(input_of(value, "inputs")?)),
    }
}

/// The texts in the value of a field that takes no pairs.
///
/// # Errors
/// When the value as a whole is of no use.
pub fn texts_of(value: Value, field: &'static str) -> Result<Inputs, Failure> {
    match value {
        Value::String(text) => Ok(Inputs::one(Input::text(text))),
        Value::Array(list) => {
            let text = |(index, value)| match value {
                Value::String(text) => Ok(Input::text(text)),
                _ => Err(Failure::invalid(format!("{field}[{index}]"), "must be a string")),
            };
            Ok(Inputs { each: list.into_iter().enumerate().map(text).collect(), list: Some(field) })
        }
        _ => Err(Failure::invalid(field, "must be a string or a list of strings")),
    }
}

fn input_of(value: Value, field: &str) -> Result<Input, Failure> {
    let expected = "must be a string, a pair {\"text\", \"text_pair\"} or [string, string]";
    match value {
        Value::String(text) => Ok(Input::text(text)),
        Value::Array(pair) => match <[Value; 2]>::try_from(pair) {
            Ok([Value::String(text), Value::String(pair)]) => Ok(Input { text, pair: Some(pair) }),
            _ => Err(Failure::invalid(field, format!("{expected}; this list is not two strings"))),
        },
        Value::Object(mut pair) => {
            let Some(Value::String(text)) = pair.remove("text") else {
                return Err(Failure::invalid(format!("{field}.text"), "must be a string"));
            };
            let second = match pair.remove("text_pair") {
                None | Some(Value::Null) => None,
                Some(Value::String(second)) => Some(second),
                Some(_) => return Err(Failure::invalid(format!("{field}.text_pair"), "must be a string")),
            };
            match pair.keys().next() {
                Some(other) => {
                    Err(Failure::invalid(format!("{field}.{other}"), "is not known; `text` and `text_pair` are"))
                }
                None => Ok(Input { text, pair: second }),
            }
        }
        Value::Null => Err(Failure::invalid(field, format!("is null; it {expected}"))),
        Value::Bool(_) => Err(Failure::invalid(field, format!("is a boolean; it {expected}"))),
        Value::Number(_) => Err(Failure::invalid(field, format!("is a number; it {expected}"))),
    }
}

/// The answer to a request; which form follows from the model and the request.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum InvocationResponse {
    /// Text classification: the best label of every input; or the labels of the only one.
    Labels(Vec<Item<Label>>),
    /// Text classification with `top_k`: the labels of every input.
    LabelLists(Vec<Item<Vec<Label>>>),
    /// Token classification: the entities of the only input.
    Entities(Vec<Entity>),
    /// Token classification: the entities of every input.
    EntityLists(Vec<Item<Vec<Entity>>>),
    /// Feature extraction: an embedding of every input.
    Embeddings(Vec<Item<Vec<f32>>>),
    /// Feature extraction without pooling: `[inputs][tokens][hidden]`.
    TokenEmbeddings(Vec<Item<Vec<Vec<f32>>>>),
}

/// Turns the answers to a request into its response. `texts` are the first texts of the inputs.
///
/// # Errors
/// The first failure, where no input has an answer.
pub fn response_of(
    engine: &Engine,
    parameters: &Parameters,
    texts: &[String],
    answers: Vec<Result<Answer, Failure>>,
    listed: bool,
    form: LabelForm,
) -> Result<InvocationResponse, Failure> {
    let config = engine.config();
    match Task::of(config) {
        Task::TextClassification => {
            let (top_k, as_list) = parameters.labels_wanted(form)?;
            let of = |answer: &Answer| labels(config, answer, parameters.function(), top_k);
            let mut lists = items(answers.into_iter().map(|answer| Ok(of(&answer?))).collect())?;
            let flat = !listed && form == LabelForm::Pipeline;
            if let ([Item::Done(only)], true) = (lists.as_mut_slice(), flat) {
                return Ok(InvocationResponse::Labels(std::mem::take(only).into_iter().map(Item::Done).collect()));
            }
            if as_list {
                return Ok(InvocationResponse::LabelLists(lists));
            }
            let best = |item: Item<Vec<Label>>| match item {
                Item::Done(labels) => labels.into_iter().next().map(Item::Done),
                Item::Failed(error) => Some(Item::Failed(error)),
            };
            Ok(InvocationResponse::Labels(lists.into_iter().filter_map(best).collect()))
        }
        Task::TokenClassification => {
            let default = ["O".to_string()];
            let ignored = parameters.ignore_labels.as_deref().unwrap_or(&default);
            let aggregation = parameters.aggregation_strategy.unwrap_or_default();
            let of = |(answer, text): (Result<Answer, Failure>, &String)| {
                Ok(entities(config, engine.tokenizer(), text, &answer?, aggregation, ignored))
            };
            let mut lists = items(answers.into_iter().zip(texts).map(of).collect())?;
            if let ([Item::Done(only)], false) = (lists.as_mut_slice(), listed) {
                return Ok(InvocationResponse::Entities(std::mem::take(only)));
            }
            Ok(InvocationResponse::EntityLists(lists))
        }
        Task::FeatureExtraction => {
            if parameters.wants_tokens() {
                let of = |answer: Answer| answer.rows.iter().map(<[f32]>::to_vec).collect();
                let states = items(answers.into_iter().map(|answer| answer.map(of)).collect())?;
                return Ok(InvocationResponse::TokenEmbeddings(states));
            }
            let embeddings = items(answers.into_iter().map(|answer| Ok(answer?.rows.values)).collect())?;
            Ok(InvocationResponse::Embeddings(embeddings))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::body;

    fn parse(value: Value) -> Result<InvocationRequest, Failure> {
        body::json(value.to_string().as_bytes())
    }

    #[test]
    fn inputs_are_texts_pairs_or_lists_of_them() {
        let of = |value| inputs_of(value).map(|inputs| (inputs.list.is_some(), inputs.each));
        let pair = || Input { text: "a".into(), pair: Some("b".into()) };
        assert_eq!(of(json!("")).unwrap(), (false, vec![Ok(Input::text(""))]));
        assert_eq!(of(json!({"text": "a", "text_pair": "b"})).unwrap(), (false, vec![Ok(pair())]));
        assert_eq!(of(json!([["a", "b"], "c"])).unwrap(), (true, vec![Ok(pair()), Ok(Input::text("c"))]));
        assert_eq!(of(json!(5)).unwrap_err().field.as_deref(), Some("inputs"));
        let (_, each) = of(json!(["a", 5, ["x"], {"text": 1}])).unwrap();
        let fields: Vec<_> = each.iter().map(|one| one.as_ref().err().and_then(|f| f.field.as_deref())).collect();
        assert_eq!(fields, [None, Some("inputs[1]"), Some("inputs[2]"), Some("inputs[3].text")]);
    }

    #[test]
    fn embedding_options_may_stand_beside_the_parameters() {
        let request = json!({"inputs": "a", "normalize": false, "truncate": true, "parameters": {"normalize": true}});
        let (_, parameters) = parse(request).unwrap().into_parts().unwrap();
        let options = parameters.input_options().unwrap();
        assert_eq!((options.normalize, options.truncate), (Some(true), Some(true)));
        for (field, value) in [("prompt_name", json!("query")), ("dimensions", json!(64))] {
            let error = parse(json!({"inputs": "a", field: value})).unwrap().into_parts().unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field));
        }
    }

    #[test]
    fn parameters_have_transformers_names_and_unknown_ones_are_refused() {
        let request =
            parse(json!({"inputs": "a", "parameters": {"top_k": null, "truncation": "longest_first"}})).unwrap();
        assert_eq!(request.parameters.labels_wanted(LabelForm::Pipeline).unwrap(), (usize::MAX, true));
        assert_eq!(request.parameters.input_options().unwrap().truncate, Some(true));
        let plain = parse(json!({"inputs": "a"})).unwrap();
        assert_eq!(plain.parameters.labels_wanted(LabelForm::Pipeline).unwrap(), (1, false));
        assert_eq!(plain.parameters.labels_wanted(LabelForm::Lists).unwrap(), (usize::MAX, true));
        let error = parse(json!({"inputs": "a", "parameters": {"topk": 1}})).unwrap_err();
        assert!(error.message.contains("topk") && error.message.contains("top_k"), "{error}");
        assert_eq!(parse(json!({"parameters": {}})).unwrap_err().field.as_deref(), Some("inputs"));
        let zero = parse(json!({"inputs": "a", "parameters": {"top_k": 0}})).unwrap();
        assert_eq!(
            zero.parameters.labels_wanted(LabelForm::Pipeline).unwrap_err().field.as_deref(),
            Some("parameters.top_k")
        );
    }
}
