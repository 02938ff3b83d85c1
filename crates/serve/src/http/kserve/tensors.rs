//! The tensors of an inference request and its response.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::failure::{Failure, Kind};
use crate::input::Input;

/// The output with the messages of inputs that failed.
pub const ERROR: &str = "error";

/// Texts to answer.
#[derive(Debug, Deserialize, ToSchema)]
pub struct InferRequest {
    /// Given back as it came.
    id: Option<String>,
    /// `truncation`: whether texts that are too long are cut. `binary_data_output`: outputs behind the JSON.
    #[serde(default)]
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
    /// `text`, and for pairs `text_pair`.
    #[schema(min_items = 1)]
    inputs: Vec<InputTensor>,
    /// The outputs wanted; all where absent.
    outputs: Option<Vec<WantedOutput>>,
}

/// An input.
#[derive(Debug, Deserialize, ToSchema)]
pub struct InputTensor {
    /// `text` or `text_pair`.
    #[schema(pattern = "^text(_pair)?$")]
    name: String,
    /// `[n]` or `[n, 1]`.
    #[schema(min_items = 1, max_items = 2)]
    shape: Vec<usize>,
    /// `BYTES`.
    #[schema(pattern = "^BYTES$")]
    datatype: String,
    /// `binary_data_size`: bytes behind the JSON that hold the data.
    #[serde(default)]
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
    /// The texts, in lists nested as the shape or flat; absent where they stand behind the JSON.
    #[schema(value_type = Option<Vec<String>>)]
    data: Option<Value>,
}

/// An output that is wanted.
#[derive(Debug, Deserialize, ToSchema)]
pub struct WantedOutput {
    /// Its name.
    name: String,
    /// `binary_data`: behind the JSON.
    #[serde(default)]
    #[schema(value_type = Object)]
    parameters: Map<String, Value>,
}

/// The outputs of a model.
#[derive(Debug, Serialize, ToSchema)]
pub struct InferResponse {
    model_name: String,
    model_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    outputs: Vec<OutputTensor>,
}

/// One output.
#[derive(Debug, Serialize, ToSchema)]
pub struct OutputTensor {
    name: &'static str,
    shape: Vec<usize>,
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data>,
}

/// Bytes behind the JSON that hold an output.
#[derive(Debug, Serialize, ToSchema)]
pub struct BinarySize {
    binary_data_size: usize,
}

/// Values, flat.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Data {
    /// `BYTES`
    Bytes(Vec<String>),
    /// `FP32`
    Fp32(Vec<f32>),
    /// `FP64`
    Fp64(Vec<f64>),
}

/// An output before it is written.
#[derive(Debug)]
pub struct Output {
    name: &'static str,
    shape: Vec<usize>,
    data: Data,
    binary: bool,
}

impl Output {
    pub fn bytes(name: &'static str, texts: Vec<String>) -> Self {
        Self { name, shape: vec![texts.len()], data: Data::Bytes(texts), binary: false }
    }

    pub fn fp32(name: &'static str, shape: Vec<usize>, values: Vec<f32>) -> Self {
        Self { name, shape, data: Data::Fp32(values), binary: false }
    }

    pub fn fp64(name: &'static str, shape: Vec<usize>, values: Vec<f64>) -> Self {
        Self { name, shape, data: Data::Fp64(values), binary: false }
    }
}

impl Data {
    fn datatype(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "BYTES",
            Self::Fp32(_) => "FP32",
            Self::Fp64(_) => "FP64",
        }
    }

    /// Little-endian; a text is its length as `u32` and its bytes.
    fn binary(&self) -> Vec<u8> {
        let text = |text: &String| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
        match self {
            Self::Bytes(texts) => texts.iter().flat_map(text).collect(),
            Self::Fp32(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            Self::Fp64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        }
    }
}

impl InferRequest {
    /// The texts of the inputs; `binary` is what stands behind the JSON.
    pub fn inputs(&self, binary: &[u8]) -> Result<Vec<Input>, Failure> {
        let (mut texts, mut pairs, mut rest) = (None, None, binary);
        for (index, tensor) in self.inputs.iter().enumerate() {
            let target = match tensor.name.as_str() {
                "text" => &mut texts,
                "text_pair" => &mut pairs,
                other => {
                    let problem = format!("is `{other}`; this server's inputs are `text` and `text_pair`");
                    return Err(Failure::invalid(format!("inputs[{index}].name"), problem));
                }
            };
            if target.replace(tensor.texts(&format!("inputs[{index}]"), &mut rest)?).is_some() {
                return Err(Failure::invalid(format!("inputs[{index}].name"), "is there twice"));
            }
        }
        if !rest.is_empty() {
            let text = format!("{} bytes behind the JSON belong to no input", rest.len());
            return Err(Failure::new(Kind::Malformed, text));
        }
        let texts = texts.ok_or_else(|| Failure::invalid("inputs", "has no `text`"))?;
        match pairs {
            None => Ok(texts.into_iter().map(Input::text).collect()),
            Some(pairs) if pairs.len() == texts.len() => {
                Ok(texts.into_iter().zip(pairs).map(|(text, pair)| Input { text, pair: Some(pair) }).collect())
            }
            Some(pairs) => {
                let problem = format!("has {} texts in `text` and {} in `text_pair`", texts.len(), pairs.len());
                Err(Failure::invalid("inputs", problem))
            }
        }
    }

    /// Refuses parameters and outputs that there are not, before anything is computed.
    ///
    /// # Errors
    /// Names the field.
    pub fn check(&self, outputs: &[&str]) -> Result<(), Failure> {
        let known = ["truncation", "binary_data_output"];
        if let Some(key) = self.parameters.keys().find(|key| !known.contains(&key.as_str())) {
            let problem = "is not known; `truncation` and `binary_data_output` are";
            return Err(Failure::invalid(format!("parameters.{key}"), problem));
        }
        for (index, wanted) in self.outputs.iter().flatten().enumerate() {
            if wanted.name != ERROR && !outputs.contains(&wanted.name.as_str()) {
                let names: Vec<String> = outputs.iter().map(|name| format!("`{name}`")).collect();
                let problem = format!("is `{}`; this model's outputs are {}", wanted.name, names.join(", "));
                return Err(Failure::invalid(format!("outputs[{index}].name"), problem));
            }
        }
        Ok(())
    }

    /// Whether texts that are too long are cut, if the request says.
    pub fn truncation(&self) -> Result<Option<bool>, Failure> {
        match self.parameters.get("truncation") {
            None => Ok(None),
            Some(Value::Bool(cut)) => Ok(Some(*cut)),
            Some(_) => Err(Failure::invalid("parameters.truncation", "must be true or false")),
        }
    }

    /// Those outputs that are asked for, and whether they go behind the JSON. The errors of single inputs always go.
    pub fn wanted(&self, outputs: Vec<Output>) -> Vec<Output> {
        let is_true = |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_bool).unwrap_or(false);
        let all_binary = is_true(&self.parameters, "binary_data_output");
        let Some(wanted) = self.outputs.as_ref().filter(|wanted| !wanted.is_empty()) else {
            return outputs.into_iter().map(|output| Output { binary: all_binary, ..output }).collect();
        };
        let keep = |output: Output| {
            let wanted = wanted.iter().find(|wanted| wanted.name == output.name);
            match wanted {
                Some(wanted) => {
                    let binary = all_binary || is_true(&wanted.parameters, "binary_data");
                    Some(Output { binary, ..output })
                }
                None => (output.name == ERROR).then_some(output),
            }
        };
        outputs.into_iter().filter_map(keep).collect()
    }
}

impl InputTensor {
    fn texts(&self, field: &str, rest: &mut &[u8]) -> Result<Vec<String>, Failure> {
        if self.datatype != "BYTES" {
            return Err(Failure::invalid(
                format!("{field}.datatype"),
                format!("is `{}`; texts are BYTES", self.datatype),
            ));
        }
        let texts = match (self.parameters.get("binary_data_size"), &self.data) {
            (Some(size), None) => {
                let field = format!("{field}.parameters.binary_data_size");
                let size = size.as_u64().and_then(|size| usize::try_from(size).ok());
                let parts = size.and_then(|size| rest.split_at_checked(size));
                let (own, others) =
                    parts.ok_or_else(|| Failure::invalid(&field, "is more than stands behind the JSON"))?;
                *rest = others;
                binary_texts(own, &field)?
            }
            (None, Some(data)) => {
                let mut texts = Vec::new();
                flatten(data, &format!("{field}.data"), 0, &mut texts)?;
                texts
            }
            _ => {
                let problem = "must have the texts, or `binary_data_size` among its parameters and not both";
                return Err(Failure::invalid(format!("{field}.data"), problem));
            }
        };
        let size = self.shape.iter().try_fold(1usize, |size, &n| size.checked_mul(n));
        let is_list = matches!(self.shape[..], [_] | [_, 1]);
        if !is_list || size != Some(texts.len()) {
            let problem = format!("is {:?}, but there are {} texts: send [n] or [n, 1]", self.shape, texts.len());
            return Err(Failure::invalid(format!("{field}.shape"), problem));
        }
        Ok(texts)
    }
}

/// Texts one after the other, each behind its length as a little-endian `u32`.
fn binary_texts(mut bytes: &[u8], field: &str) -> Result<Vec<String>, Failure> {
    let mut texts = Vec::new();
    while !bytes.is_empty() {
        let parts = bytes
            .split_first_chunk::<4>()
            .and_then(|(length, rest)| rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?));
        let (text, rest) = parts
            .ok_or_else(|| Failure::invalid(field, format!("holds text {} that ends behind the data", texts.len())))?;
        let text = std::str::from_utf8(text).map_err(|error| {
            let problem = format!("holds text {} that is not UTF-8 at byte {}", texts.len(), error.valid_up_to());
            Failure { kind: Kind::NotUtf8, ..Failure::invalid(field, problem) }
        })?;
        texts.push(text.to_string());
        bytes = rest;
    }
    Ok(texts)
}

/// Nested lists of texts as one list.
fn flatten(data: &Value, field: &str, depth: usize, texts: &mut Vec<String>) -> Result<(), Failure> {
    match data {
        Value::String(text) if depth > 0 => {
            texts.push(text.clone());
            Ok(())
        }
        Value::Array(list) if depth < 2 => {
            list.iter().enumerate().try_for_each(|(i, data)| flatten(data, &format!("{field}[{i}]"), depth + 1, texts))
        }
        _ => Err(Failure::invalid(field, "must be a list of texts, nested as the shape says or flat")),
    }
}

impl InferResponse {
    /// The response, and what stands behind its JSON where outputs are binary.
    pub fn new(
        model_name: String,
        model_version: &'static str,
        request: InferRequest,
        outputs: Vec<Output>,
    ) -> (Self, Option<Vec<u8>>) {
        let mut binary = outputs.iter().any(|output| output.binary).then(Vec::new);
        let mut tensor = |output: Output| {
            let (name, shape, datatype) = (output.name, output.shape, output.data.datatype());
            let (parameters, data) = match binary.as_mut().filter(|_| output.binary) {
                Some(behind) => {
                    let bytes = output.data.binary();
                    let binary_data_size = bytes.len();
                    behind.extend(bytes);
                    (Some(BinarySize { binary_data_size }), None)
                }
                None => (None, Some(output.data)),
            };
            OutputTensor { name, shape, datatype, parameters, data }
        };
        let outputs = outputs.into_iter().map(&mut tensor).collect();
        (Self { model_name, model_version, id: request.id, outputs }, binary)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(value: Value) -> InferRequest {
        serde_json::from_value(value).unwrap()
    }

    fn tensor(name: &str, shape: Value, data: Value) -> Value {
        json!({"name": name, "shape": shape, "datatype": "BYTES", "data": data})
    }

    #[test]
    fn texts_come_as_json_flat_or_nested_and_as_pairs() {
        let of = |inputs: Value| request(json!({"inputs": inputs})).inputs(&[]);
        let pair = |text: &str, pair: &str| Input { text: text.into(), pair: Some(pair.into()) };
        assert_eq!(of(json!([tensor("text", json!([2, 1]), json!([["a"], ["b"]]))])).unwrap().len(), 2);
        let two = json!([tensor("text", json!([1]), json!(["a"])), tensor("text_pair", json!([1]), json!(["b"]))]);
        assert_eq!(of(two).unwrap(), [pair("a", "b")]);
        let fields = [
            (json!([tensor("words", json!([1]), json!(["a"]))]), "inputs[0].name"),
            (json!([tensor("text", json!([2]), json!(["a"]))]), "inputs[0].shape"),
            (json!([tensor("text", json!([1]), json!([5]))]), "inputs[0].data[0]"),
            (json!([{"name": "text", "shape": [1], "datatype": "FP32", "data": [1]}]), "inputs[0].datatype"),
            (json!([{"name": "text", "shape": [1], "datatype": "BYTES"}]), "inputs[0].data"),
            (json!([]), "inputs"),
        ];
        for (inputs, field) in fields {
            assert_eq!(of(inputs).unwrap_err().field.as_deref(), Some(field));
        }
    }

    #[test]
    fn texts_come_behind_the_json() {
        let input = |size: usize| {
            let parameters = json!({"binary_data_size": size});
            let tensor = json!({"name": "text", "shape": [2], "datatype": "BYTES", "parameters": parameters});
            request(json!({"inputs": [tensor]}))
        };
        let bytes = b"\x01\0\0\0a\x02\0\0\0bc";
        assert_eq!(input(11).inputs(bytes).unwrap(), [Input::text("a"), Input::text("bc")]);
        assert!(input(12).inputs(bytes).is_err());
        assert!(input(5).inputs(bytes).is_err(), "the rest belongs to no input");
        assert_eq!(input(5).inputs(b"\x01\0\0\0\xff").unwrap_err().kind, Kind::NotUtf8);
        assert!(input(8).inputs(b"\xff\xff\xff\xffabcd").is_err());
    }

    #[test]
    fn outputs_go_behind_the_json_where_asked() {
        let wanted = json!([{"name": "score", "parameters": {"binary_data": true}}]);
        let request = request(json!({"id": "7", "inputs": [], "outputs": wanted}));
        let outputs = || vec![Output::bytes("label", vec!["x".into()]), Output::fp64("score", vec![1], vec![0.5])];
        let outputs = request.wanted(outputs());
        let (response, binary) = InferResponse::new("m".into(), "1", request, outputs);
        assert_eq!(binary.unwrap(), 0.5f64.to_le_bytes());
        let expected = json!({"model_name": "m", "model_version": "1", "id": "7", "outputs": [
            {"name": "score", "shape": [1], "datatype": "FP64", "parameters": {"binary_data_size": 8}}
        ]});
        assert_eq!(serde_json::to_value(&response).unwrap(), expected);
    }

    #[test]
    fn an_unknown_output_names_those_there_are() {
        let request = request(json!({"inputs": [], "outputs": [{"name": "logits"}]}));
        let error = request.check(&["label"]).unwrap_err();
        assert!(error.message.contains("`label`"), "{error}");
        let unknown =
            serde_json::from_value::<InferRequest>(json!({"inputs": [], "parameters": {"top_k": 1}})).unwrap();
        assert_eq!(unknown.check(&["label"]).unwrap_err().field.as_deref(), Some("parameters.top_k"));
    }
}
