//! The pickle interpreter: a stack, a memo, and an arena of containers.
//!
//! Instructions and their meaning: `Lib/pickletools.py` of CPython. Every value is small and `Copy`; containers live
//! in the arena and are referred to by number. So a pickle may nest or refer to itself as it likes: nothing here
//! recurses, and memory stays within about 25 times the pickle's length, which the caller bounds.

use super::PickleError;
use super::arena::{Arena, Node, Text, Value};
use super::globals::{self, Global, TensorRecord};
use std::collections::HashMap;

/// Most values on the stack, containers, and remembered values. A pickle of 10,000 tensors makes 60,000 containers.
const MAX_VALUES: usize = 2 << 20;

/// Runs a pickle that holds a dictionary at its top level; returns the tensors in it, in order, with their names.
/// Entries that are no tensors are passed over.
pub(super) fn run(pickle: &[u8]) -> Result<Vec<(String, TensorRecord)>, PickleError> {
    let mut machine = Machine {
        arena: Arena::new(pickle),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        at: 0,
        opcode_at: 0,
    };
    let top = machine.run()?;
    let Some(Node::Dict(items)) = machine.arena.node(top) else {
        return Err(PickleError::NoTensors);
    };
    let mut tensors = Vec::new();
    let mut name_bytes = 0usize;
    for &(key, value) in items {
        if let (Value::Str(name), Some(Node::Tensor(record))) = (key, machine.arena.node(value)) {
            // Names can be shared in the pickle; copied out, they may take no more room than the pickle itself.
            name_bytes += name.len();
            if name_bytes > pickle.len() {
                return Err(machine.malformed("its names are longer than the pickle"));
            }
            tensors.push((machine.arena.text(name).to_owned(), TensorRecord::clone(record)));
        }
    }
    Ok(tensors)
}

struct Machine<'a> {
    arena: Arena<'a>,
    stack: Vec<Value>,
    /// Stack heights at the open MARKs.
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    /// The next byte to read.
    at: usize,
    /// The instruction being executed, for errors.
    opcode_at: usize,
}

impl Machine<'_> {
    /// Executes up to STOP and returns the value on top of the stack.
    fn run(&mut self) -> Result<Value, PickleError> {
        loop {
            self.opcode_at = self.at;
            if self.stack.len().max(self.marks.len()).max(self.arena.nodes.len()).max(self.memo.len()) > MAX_VALUES {
                return Err(self.malformed("it holds too many values"));
            }
            let opcode = self.byte()?;
            match opcode {
                0x80 => self.protocol()?,
                // FRAME: a length for readers from a stream.
                0x95 => {
                    self.number::<8>()?;
                }
                b'.' => return self.pop(),

                b'N' | 0x88 | 0x89 => self.stack.push(Value::Opaque),
                b'G' => {
                    self.bytes(8)?;
                    self.stack.push(Value::Opaque);
                }
                b'K' => self.push_number::<1>()?,
                b'M' => self.push_number::<2>()?,
                b'J' => {
                    let n = self.number::<4>()? as u32 as i32;
                    self.stack.push(Value::Int(n.into()));
                }
                0x8a => self.long()?,
                b'X' => {
                    let len = self.number::<4>()?;
                    self.text(len)?;
                }
                0x8c => {
                    let len = self.number::<1>()?;
                    self.text(len)?;
                }

                b'(' => self.marks.push(self.stack.len()),
                b')' => self.push_node(Node::Tuple(Vec::new())),
                b't' => {
                    let items = self.pop_mark()?;
                    self.push_node(Node::Tuple(items));
                }
                0x85..=0x87 => {
                    let items = self.pop_many(usize::from(opcode - 0x84))?;
                    self.push_node(Node::Tuple(items));
                }
                b']' => self.push_node(Node::List(Vec::new())),
                b'}' => self.push_node(Node::Dict(Vec::new())),
                b'a' => {
                    let items = self.pop_many(1)?;
                    self.extend_list(items)?;
                }
                b'e' => {
                    let items = self.pop_mark()?;
                    self.extend_list(items)?;
                }
                b's' => {
                    let items = self.pop_many(2)?;
                    self.extend_dict(&items)?;
                }
                b'u' => {
                    let items = self.pop_mark()?;
                    self.extend_dict(&items)?;
                }

                b'q' => {
                    let slot = self.number::<1>()?;
                    self.remember(slot as u32)?;
                }
                b'r' => {
                    let slot = self.number::<4>()?;
                    self.remember(slot as u32)?;
                }
                0x94 => self.remember(self.memo.len() as u32)?,
                b'h' => {
                    let slot = self.number::<1>()?;
                    self.recall(slot as u32)?;
                }
                b'j' => {
                    let slot = self.number::<4>()?;
                    self.recall(slot as u32)?;
                }

                b'c' => self.global()?,
                0x93 => self.stack_global()?,
                b'R' => self.reduce()?,
                b'b' => self.build()?,
                b'Q' => {
                    let id = self.pop()?;
                    let node = globals::storage(&self.arena, id).map_err(|e| self.malformed(e))?;
                    self.push_node(node);
                }
                opcode => {
                    return Err(PickleError::ForeignOpcode { opcode, at: self.opcode_at });
                }
            }
        }
    }

    fn malformed(&self, problem: impl Into<String>) -> PickleError {
        PickleError::Malformed { problem: problem.into(), at: self.opcode_at }
    }

    // Reading operands.

    fn bytes(&mut self, n: usize) -> Result<&[u8], PickleError> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.arena.pickle.len());
        let end = end.ok_or_else(|| self.malformed("it ends in the middle of an instruction"))?;
        let bytes = &self.arena.pickle[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        Ok(self.bytes(1)?[0])
    }

    /// A little-endian number of `N` bytes, at most 8.
    fn number<const N: usize>(&mut self) -> Result<u64, PickleError> {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(self.bytes(N)?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Bytes up to the next newline, which is read and dropped.
    fn line(&mut self) -> Result<(usize, usize), PickleError> {
        let start = self.at;
        let len = self.arena.pickle[start..].iter().position(|&b| b == b'\n');
        let len = len.ok_or_else(|| self.malformed("a name does not end"))?;
        self.at = start + len + 1;
        Ok((start, start + len))
    }

    // Pushing and popping.

    fn push_node(&mut self, node: Node) {
        self.stack.push(Value::Node(self.arena.nodes.len()));
        self.arena.nodes.push(node);
    }

    fn push_number<const N: usize>(&mut self) -> Result<(), PickleError> {
        let n = self.number::<N>()?;
        self.stack.push(Value::Int(n as i64));
        Ok(())
    }

    /// LONG1: a two's-complement number of up to 8 bytes here; Python allows 255.
    fn long(&mut self) -> Result<(), PickleError> {
        let n = usize::from(self.byte()?);
        if n > 8 {
            return Err(self.malformed("a whole number is longer than 64 bits"));
        }
        let bytes = self.bytes(n)?;
        let mut extended = [if bytes.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 }; 8];
        extended[..n].copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(extended)));
        Ok(())
    }

    fn text(&mut self, len: u64) -> Result<(), PickleError> {
        let start = self.at;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if std::str::from_utf8(self.bytes(len)?).is_err() {
            return Err(self.malformed("a string is not UTF-8"));
        }
        self.stack.push(Value::Str(Text::new(start..self.at)));
        Ok(())
    }

    /// The lowest stack position that may be popped: nothing below an open MARK.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop_many(&mut self, n: usize) -> Result<Vec<Value>, PickleError> {
        match self.stack.len().checked_sub(n).filter(|&from| from >= self.floor()) {
            Some(from) => Ok(self.stack.split_off(from)),
            None => Err(self.malformed("it takes more values than there are")),
        }
    }

    fn pop(&mut self) -> Result<Value, PickleError> {
        if self.stack.len() > self.floor() { self.stack.pop() } else { None }
            .ok_or_else(|| self.malformed("it takes more values than there are"))
    }

    fn pop_mark(&mut self) -> Result<Vec<Value>, PickleError> {
        let from = self.marks.pop().ok_or_else(|| self.malformed("a container has no start"))?;
        Ok(self.stack.split_off(from))
    }

    /// The container on top of the stack.
    fn top_node(&mut self) -> Option<&mut Node> {
        match self.stack.last() {
            Some(&Value::Node(i)) if self.stack.len() > self.floor() => self.arena.nodes.get_mut(i),
            _ => None,
        }
    }

    // Containers and the memo.

    fn extend_list(&mut self, items: Vec<Value>) -> Result<(), PickleError> {
        let Some(Node::List(list)) = self.top_node() else {
            return Err(self.malformed("it appends to something that is no list"));
        };
        list.extend(items);
        Ok(())
    }

    fn extend_dict(&mut self, items: &[Value]) -> Result<(), PickleError> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.malformed("a dictionary entry has no value"));
        }
        let Some(Node::Dict(dict)) = self.top_node() else {
            return Err(self.malformed("it sets an item of something that is no dictionary"));
        };
        dict.extend(pairs.iter().map(|&[key, value]| (key, value)));
        Ok(())
    }

    fn remember(&mut self, slot: u32) -> Result<(), PickleError> {
        let value = self.pop()?;
        self.stack.push(value);
        self.memo.insert(slot, value);
        Ok(())
    }

    fn recall(&mut self, slot: u32) -> Result<(), PickleError> {
        let value = self.memo.get(&slot).copied();
        self.stack.push(value.ok_or_else(|| self.malformed("it recalls a value that was never remembered"))?);
        Ok(())
    }

    // Names and calls.

    fn protocol(&mut self) -> Result<(), PickleError> {
        match self.byte()? {
            2..=5 => Ok(()),
            version => Err(self.malformed(format!("pickle protocol {version} is not 2 to 5"))),
        }
    }

    fn global(&mut self) -> Result<(), PickleError> {
        let (module, name) = (self.line()?, self.line()?);
        let pickle = self.arena.pickle;
        let global = Global::lookup(&pickle[module.0..module.1], &pickle[name.0..name.1], self.opcode_at)?;
        self.stack.push(Value::Global(global));
        Ok(())
    }

    fn stack_global(&mut self) -> Result<(), PickleError> {
        let parts = self.pop_many(2)?;
        let [Value::Str(module), Value::Str(name)] = parts[..] else {
            return Err(self.malformed("a global's name is not a string"));
        };
        let (module, name) = (self.arena.text(module).as_bytes(), self.arena.text(name).as_bytes());
        let global = Global::lookup(module, name, self.opcode_at)?;
        self.stack.push(Value::Global(global));
        Ok(())
    }

    fn reduce(&mut self) -> Result<(), PickleError> {
        let parts = self.pop_many(2)?;
        let node = match (parts[0], self.arena.node(parts[1])) {
            (Value::Global(global), Some(Node::Tuple(args))) => globals::call(&self.arena, global, args),
            _ => Err("it calls something that is no allowed name, or without a tuple of arguments".into()),
        };
        let node = node.map_err(|e| self.malformed(e))?;
        self.push_node(node);
        Ok(())
    }

    /// BUILD sets attributes of an object. A state dictionary carries `_metadata` (module versions), which no reader
    /// of weights needs; on anything else the instruction is refused.
    fn build(&mut self) -> Result<(), PickleError> {
        self.pop()?;
        match self.top_node() {
            Some(Node::Dict(_)) => Ok(()),
            _ => Err(self.malformed("it sets attributes of something that is no dictionary")),
        }
    }
}
