//! The values of a running pickle.

use super::globals::{Global, StorageRef, TensorRecord};
use std::ops::Range;

/// What an instruction can push.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Value {
    /// `None`, booleans and floats: they occur beside tensors and mean nothing here.
    Opaque,
    Int(i64),
    Str(Text),
    Global(Global),
    Node(usize),
}

/// A string: a range of the pickle that is known to be UTF-8.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Text {
    start: usize,
    end: usize,
}

impl Text {
    /// The range must be UTF-8.
    pub fn new(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }

    pub fn len(self) -> usize {
        self.end - self.start
    }
}

/// A container or an object.
#[derive(Debug)]
pub(super) enum Node {
    Tuple(Vec<Value>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Storage(StorageRef),
    Tensor(Box<TensorRecord>),
}

/// Containers by number, and the pickle that strings point into.
#[derive(Debug)]
pub(super) struct Arena<'a> {
    pub pickle: &'a [u8],
    pub nodes: Vec<Node>,
}

impl<'a> Arena<'a> {
    pub fn new(pickle: &'a [u8]) -> Self {
        Self { pickle, nodes: Vec::new() }
    }

    pub fn node(&self, value: Value) -> Option<&Node> {
        match value {
            Value::Node(i) => self.nodes.get(i),
            _ => None,
        }
    }

    pub fn text(&self, text: Text) -> &str {
        // Checked when it was pushed.
        std::str::from_utf8(&self.pickle[text.start..text.end]).unwrap_or_default()
    }
}
