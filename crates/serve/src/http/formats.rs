//! Bodies of `/invocations` in every content type, and its answers in every type that can be accepted.

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::app::{App, Inputs};
use super::body;
use super::content::Content;
use super::invocations::{InvocationRequest, InvocationResponse, inputs_of};
use super::parameters::Parameters;
use crate::failure::{ErrorBody, Failure, Kind, Place};
use crate::input::Input;
use crate::task::{Item, some_done};

/// A request read from whatever its content type is: the inputs with their parameters. JSON lines may have several of
/// these; the other types have one.
pub struct Decoded {
    /// What is asked for.
    pub inputs: Inputs,
    /// How.
    pub parameters: Parameters,
}

impl Decoded {
    /// Refuses a request without inputs.
    ///
    /// # Errors
    /// As [`App::check_count`].
    pub fn check_count(&self, app: &App) -> Result<(), Failure> {
        app.check_count(self.inputs.each.len(), "inputs")
    }

    /// The first texts of the inputs; empty where an input is none.
    pub fn texts(&self) -> Vec<String> {
        let text = |input: &Result<Input, Failure>| input.as_ref().map_or_else(|_| String::new(), |i| i.text.clone());
        self.inputs.each.iter().map(text).collect()
    }
}

/// Reads a body. For JSON lines each line is a request of its own, and a line that cannot be read its own failure.
///
/// # Errors
/// What makes the body as a whole useless.
pub fn decode(content: Content, bytes: &[u8]) -> Result<Vec<Result<Decoded, Failure>>, Failure> {
    match content {
        Content::Json => Ok(vec![Ok(request(body::json(bytes)?)?)]),
        Content::JsonLines => lines(body::text(bytes)?),
        Content::Csv => Ok(vec![Ok(rows(body::text(bytes)?)?)]),
        Content::Text => {
            let inputs = Inputs::one(Input::text(body::text(bytes)?));
            Ok(vec![Ok(Decoded { inputs, parameters: Parameters::default() })])
        }
    }
}

/// The inputs and parameters of a JSON body.
///
/// # Errors
/// Names the field.
pub fn request(request: InvocationRequest) -> Result<Decoded, Failure> {
    let (inputs, parameters) = request.into_parts()?;
    Ok(Decoded { inputs: inputs_of(inputs)?, parameters })
}

fn lines(text: &str) -> Result<Vec<Result<Decoded, Failure>>, Failure> {
    let read = |(index, line): (usize, &str)| -> Result<Decoded, Failure> {
        if let Ok(Value::String(text)) = serde_json::from_str(line) {
            return Ok(Decoded { inputs: Inputs::one(Input::text(text)), parameters: Parameters::default() });
        }
        request(body::object(line, index + 1)?).map_err(|failure| match failure.place {
            Some(_) => failure,
            None => failure.at(Place::Line { line: index + 1, column: 1 }),
        })
    };
    // A blank line is no request, but all others keep their numbers.
    let lines = text.split('\n').enumerate().filter(|(_, line)| !line.trim().is_empty());
    let requests: Vec<_> = lines.map(read).collect();
    if requests.is_empty() {
        return Err(Failure::new(Kind::Malformed, "the body has no lines"));
    }
    Ok(requests)
}

/// First rows that are headers.
const HEADERS: [&[&str]; 3] = [&["inputs"], &["text"], &["text", "text_pair"]];

/// One input a row: a text, or two columns that are a pair. A first row that says so is a header.
fn rows(text: &str) -> Result<Decoded, Failure> {
    let text = with_blank_rows(text);
    let mut reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    let mut each = Vec::new();
    for (index, record) in reader.records().enumerate() {
        let record = record.map_err(|error| {
            let line = error.position().map_or(0, |position| position.line() as usize);
            let failure = Failure::new(Kind::Malformed, format!("the body is not valid CSV: {error}"));
            failure.at(Place::Line { line, column: 1 })
        })?;
        let cells: Vec<&str> = record.iter().collect();
        if index == 0 && HEADERS.contains(&cells.as_slice()) {
            continue;
        }
        each.push(match cells[..] {
            [text] => Ok(Input::text(text)),
            [text, pair] => Ok(Input { text: text.into(), pair: Some(pair.into()) }),
            _ => {
                let line = record.position().map_or(0, |position| position.line() as usize);
                let text = format!(
                    "row {} has {} columns; a row is a text, or two texts that are a pair (quote texts with commas)",
                    index + 1,
                    cells.len()
                );
                Err(Failure::new(Kind::Invalid, text).at(Place::Line { line, column: 1 }))
            }
        });
    }
    if each.is_empty() {
        return Err(Failure::new(Kind::Malformed, "the body has no rows"));
    }
    Ok(Decoded { inputs: Inputs { each, list: Some("inputs") }, parameters: Parameters::default() })
}

/// A blank row is an empty text, which the reader of CSV would leave out, so that all results after it belonged to others.
fn with_blank_rows(text: &str) -> String {
    let mut quoted = false;
    let mut rows = String::with_capacity(text.len() + 2);
    for line in text.split_inclusive('\n') {
        if !quoted && line.trim_end_matches(['\r', '\n']).is_empty() {
            rows.push_str("\"\"");
        }
        rows.push_str(line);
        quoted ^= line.matches('"').count() % 2 == 1;
    }
    rows
}

/// Writes the answers to all requests of a body.
///
/// # Errors
/// The first failure, where no request has an answer.
pub fn encode(accept: Content, responses: Vec<Result<InvocationResponse, Failure>>) -> Result<Response, Failure> {
    some_done(&responses)?;
    let bytes = match accept {
        Content::Json | Content::Text => match <[_; 1]>::try_from(responses) {
            Ok([only]) => return Ok(body::respond(&only?)),
            Err(several) => return Ok(body::respond(&several.into_iter().map(Item::from).collect::<Vec<_>>())),
        },
        Content::JsonLines => {
            let mut out = Vec::new();
            let only = responses.len() == 1;
            for response in responses {
                let written = match response {
                    // A line for every input, unless the lines of the request say what belongs together.
                    Ok(response) if only => write_lines(&mut out, &response),
                    response => write_line(&mut out, &Item::from(response)),
                };
                written.map_err(|error| unwritable(&error))?;
            }
            out
        }
        Content::Csv => {
            let mut out = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
            for response in responses {
                write_rows(&mut out, response).map_err(|error| unwritable(&error))?;
            }
            out.into_inner().map_err(|error| unwritable(&error))?
        }
    };
    Ok(([(header::CONTENT_TYPE, accept.name())], bytes).into_response())
}

fn unwritable(error: &impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Internal, format!("the answer cannot be written: {error}"))
}

fn write_line(out: &mut Vec<u8>, value: &impl serde::Serialize) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.push(b'\n');
    Ok(())
}

fn write_lines(out: &mut Vec<u8>, response: &InvocationResponse) -> serde_json::Result<()> {
    match response {
        InvocationResponse::Labels(items) => items.iter().try_for_each(|item| write_line(out, item)),
        InvocationResponse::LabelLists(items) => items.iter().try_for_each(|item| write_line(out, item)),
        InvocationResponse::Entities(entities) => write_line(out, entities),
        InvocationResponse::EntityLists(items) => items.iter().try_for_each(|item| write_line(out, item)),
        InvocationResponse::Embeddings(items) => items.iter().try_for_each(|item| write_line(out, item)),
        InvocationResponse::TokenEmbeddings(items) => items.iter().try_for_each(|item| write_line(out, item)),
    }
}

/// One row an input: label and score, as often as there are labels; or the numbers of an embedding; or `error`, its code
/// and its text. Entities take a row each: number of the input, label, score, start, end, word.
fn write_rows(out: &mut csv::Writer<Vec<u8>>, response: Result<InvocationResponse, Failure>) -> csv::Result<()> {
    let failed = |out: &mut csv::Writer<Vec<u8>>, error: &ErrorBody| {
        out.write_record(["error", &error.error_type, &error.error])
    };
    let cells = |labels: &[crate::task::classification::Label]| -> Vec<String> {
        labels.iter().flat_map(|label| [label.label.clone(), label.score.to_string()]).collect()
    };
    let numbers = |row: &[f32]| row.iter().map(ToString::to_string).collect::<Vec<_>>();
    match response {
        Err(failure) => failed(out, &failure.body()),
        Ok(InvocationResponse::Labels(items)) => items.iter().try_for_each(|item| match item {
            Item::Done(label) => out.write_record(cells(std::slice::from_ref(label))),
            Item::Failed(error) => failed(out, error),
        }),
        Ok(InvocationResponse::LabelLists(items)) => items.iter().try_for_each(|item| match item {
            Item::Done(labels) => out.write_record(cells(labels)),
            Item::Failed(error) => failed(out, error),
        }),
        Ok(InvocationResponse::Entities(entities)) => {
            write_rows(out, Ok(InvocationResponse::EntityLists(vec![Item::Done(entities)])))
        }
        Ok(InvocationResponse::EntityLists(items)) => {
            items.iter().enumerate().try_for_each(|(input, item)| match item {
                Item::Done(entities) => entities.iter().try_for_each(|entity| {
                    let label = entity.entity.as_ref().or(entity.entity_group.as_ref());
                    let cells = [input.to_string(), label.cloned().unwrap_or_default(), entity.score.to_string()];
                    let place = [entity.start.to_string(), entity.end.to_string(), entity.word.clone()];
                    out.write_record(cells.iter().chain(&place))
                }),
                Item::Failed(error) => failed(out, error),
            })
        }
        Ok(InvocationResponse::Embeddings(items)) => items.iter().try_for_each(|item| match item {
            Item::Done(row) => out.write_record(numbers(row)),
            Item::Failed(error) => failed(out, error),
        }),
        Ok(InvocationResponse::TokenEmbeddings(items)) => items.iter().try_for_each(|item| match item {
            Item::Done(rows) => rows.iter().try_for_each(|row| out.write_record(numbers(row))),
            Item::Failed(error) => failed(out, error),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::classification::Label;

    fn texts(decoded: &Decoded) -> Vec<Option<&str>> {
        decoded.inputs.each.iter().map(|input| input.as_ref().ok().map(|input| input.text.as_str())).collect()
    }

    #[test]
    fn csv_rows_are_texts_or_pairs_and_a_bad_row_is_its_own_failure() {
        let decoded = decode(Content::Csv, b"inputs\n\"a, b\"\nc,d\n1,2,3\n").unwrap();
        let only = decoded[0].as_ref().unwrap();
        assert_eq!(texts(only), [Some("a, b"), Some("c"), None]);
        assert!(only.inputs.list.is_some());
        assert_eq!(decode(Content::Csv, b"").err().unwrap().kind, Kind::Malformed);
    }

    #[test]
    fn blank_rows_are_empty_texts_and_headers_are_none() {
        let texts_of = |body: &[u8]| {
            let decoded = decode(Content::Csv, body).unwrap();
            let inputs = &decoded[0].as_ref().unwrap().inputs;
            inputs.each.iter().map(|input| input.as_ref().unwrap().text.clone()).collect::<Vec<_>>()
        };
        assert_eq!(texts_of(b"a\n\nb\n"), ["a", "", "b"]);
        assert_eq!(texts_of(b"text,text_pair\r\nx,y\r\n\r\n"), ["x", ""]);
        assert_eq!(texts_of(b"\"a\n\nb\",c\n"), ["a\n\nb"]);
    }

    #[test]
    fn failures_alone_are_the_requests_in_every_type() {
        for accept in [Content::Json, Content::JsonLines, Content::Csv] {
            let failures = || vec![Err(Failure::invalid("inputs", "is empty")); 2];
            assert_eq!(encode(accept, failures()).unwrap_err().kind, Kind::Invalid);
        }
    }

    #[test]
    fn a_bad_json_line_is_its_own_failure_with_its_number() {
        let decoded = decode(Content::JsonLines, b"{\"inputs\":\"a\"}\n\n{\"inputs\":\n\"plain\"").unwrap();
        assert_eq!(decoded.len(), 3);
        let failure = decoded[1].as_ref().err().unwrap();
        assert!(matches!(failure.place, Some(Place::Line { line: 3, .. })), "{failure:?}");
        assert_eq!(texts(decoded[2].as_ref().unwrap()), [Some("plain")]);
    }

    #[test]
    fn plain_text_is_one_text_with_its_line_breaks() {
        let decoded = decode(Content::Text, b"a\nb").unwrap();
        assert_eq!(texts(decoded[0].as_ref().unwrap()), [Some("a\nb")]);
    }

    #[test]
    fn csv_answers_keep_one_row_an_input() {
        let label = |score| Item::Done(Label { label: "good, really".into(), score });
        let error = Failure::invalid("inputs[1]", "is a number").body();
        let mut out = csv::WriterBuilder::new().flexible(true).from_writer(Vec::new());
        write_rows(&mut out, Ok(InvocationResponse::Labels(vec![label(0.5), Item::Failed(error)]))).unwrap();
        let text = String::from_utf8(out.into_inner().unwrap()).unwrap();
        assert_eq!(text, "\"good, really\",0.5\nerror,invalid_input,`inputs[1]` is a number\n");
    }
}
