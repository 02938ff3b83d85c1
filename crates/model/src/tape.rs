//! The tape: runs operators forward, remembers what their gradients need, and runs them backward.
//!
//! What an operator saves is decided by the [`Policy`] of the segment it runs in, never by the operator or the model:
//! kept until the backward pass, or dropped and computed again from the segment's inputs. Masks come from counters,
//! so a recomputed segment is bit for bit the first one.

use std::collections::HashMap;

use tensor::{DType, Dropout, Kernels, Stream, Tensor};

use crate::batch::Batch;
use crate::params::{Gradients, ParamId, Weights};

/// What happens to the tensors that a segment's operators save for their gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// They stay until the backward pass.
    Keep,
    /// Only the segment's inputs stay; the backward pass runs the segment again (activation checkpointing).
    Recompute,
}

/// Where dropout masks of one training step come from.
#[derive(Clone, Copy, Debug)]
pub struct Randomness {
    /// Seed of the run.
    pub seed: u64,
    /// Number of the update.
    pub step: u64,
}

/// What every operator of one pass over one batch works with.
pub struct Pass<'a> {
    /// The device.
    pub kernels: &'a dyn Kernels,
    /// The parameters.
    pub weights: &'a Weights,
    /// The tokens.
    pub batch: &'a Batch,
    /// The type of activations and their gradients.
    pub dtype: DType,
    /// Present in training with dropout; absent, no mask is applied.
    pub randomness: Option<Randomness>,
}

impl Pass<'_> {
    /// An output of the activation type.
    pub fn empty(&self, shape: &[usize]) -> Tensor {
        self.kernels.pool().empty(self.dtype, shape)
    }

    /// Statistics of the kernels' own type.
    pub fn statistics(&self, shape: &[usize]) -> Tensor {
        self.kernels.pool().empty(self.kernels.dtype(), shape)
    }

    /// Dropout at `site` over tokens, or `None` where it does nothing.
    pub fn token_dropout(&self, probability: f32, site: u32) -> Option<Dropout<'_>> {
        self.dropout(probability, site, &self.batch.rows)
    }

    /// Dropout at `site` over sequences, or `None` where it does nothing.
    pub fn sequence_dropout(&self, probability: f32, site: u32) -> Option<Dropout<'_>> {
        self.dropout(probability, site, &self.batch.sequence_rows)
    }

    fn dropout<'b>(&'b self, probability: f32, site: u32, rows: &'b [u64]) -> Option<Dropout<'b>> {
        let randomness = self.randomness.filter(|_| probability > 0.0)?;
        Some(Dropout { probability, stream: Stream::new(randomness.seed, randomness.step, site), rows })
    }
}

/// One fused operator with its hand-written gradient.
pub trait Op: Send + Sync {
    /// Name for profiles and messages: `attention`.
    fn name(&self) -> &'static str;

    /// The parameters it reads.
    fn parameters(&self) -> Vec<ParamId> {
        Vec::new()
    }

    /// Computes the output and offers to `saved` what [`Op::backward`] will ask for.
    fn forward(&self, pass: &Pass, inputs: &[&Tensor], saved: &mut Saved) -> Tensor;

    /// From the gradient of the output, adds to those of the parameters and of the inputs that want one.
    fn backward(&self, pass: &Pass, saved: &Saved, dy: Tensor, inputs: &mut [InputGradient], gradients: &mut Gradients);
}

/// What an operator keeps for its gradient, in an order of its own.
#[derive(Default)]
pub struct Saved {
    wanted: bool,
    tensors: Vec<Tensor>,
}

impl Saved {
    /// Whether a backward pass will come: saving is free to be skipped otherwise.
    pub fn wanted(&self) -> bool {
        self.wanted
    }

    /// Keeps a tensor if a backward pass will come.
    pub fn push(&mut self, tensor: &Tensor) {
        if self.wanted {
            self.tensors.push(tensor.clone());
        }
    }

    /// The tensors in the order they were pushed.
    ///
    /// # Panics
    /// When the operator saved another number of tensors: a bug in the operator.
    pub fn get<const N: usize>(&self) -> [&Tensor; N] {
        assert_eq!(self.tensors.len(), N, "an operator reads back another number of tensors than it saved");
        std::array::from_fn(|i| &self.tensors[i])
    }
}

/// The gradient of one input of an operator, which other operators may have added to already.
#[derive(Default)]
pub struct InputGradient {
    wanted: bool,
    tensor: Option<Tensor>,
}

impl InputGradient {
    /// Whether anything below needs this gradient.
    pub fn wanted(&self) -> bool {
        self.wanted
    }

    /// Lets `write(target, accumulate)` overwrite a new gradient of `shape`, or add to the one there is.
    pub fn write(&mut self, pass: &Pass, shape: &[usize], write: impl FnOnce(&mut Tensor, bool)) {
        if !self.wanted {
            return;
        }
        match self.tensor.take() {
            None => write(self.tensor.insert(pass.empty(shape)), false),
            Some(mut present) => {
                if !present.is_unique() {
                    let mut copy = pass.empty(shape);
                    pass.kernels.cast(&present, &mut copy);
                    present = copy;
                }
                write(self.tensor.insert(present), true);
            }
        }
    }

    /// Adds a gradient that stands in a tensor of its own; the first one is moved, not copied.
    pub fn add(&mut self, pass: &Pass, gradient: Tensor) {
        if self.wanted && self.tensor.is_none() {
            self.tensor = Some(gradient);
        } else {
            let shape = gradient.shape().to_vec();
            self.write(pass, &shape, |target, _| pass.kernels.add_assign(target, &gradient));
        }
    }
}

/// The output of an operator (or an input of the model) on a tape.
#[derive(Clone)]
pub struct Value {
    id: usize,
    /// Its elements.
    pub tensor: Tensor,
}

struct Node {
    op: Box<dyn Op>,
    inputs: Vec<usize>,
    output: usize,
    saved: Saved,
    segment: Option<usize>,
}

struct Segment {
    first_node: usize,
    end_node: usize,
    /// Values from outside the segment that its operators read.
    inputs: HashMap<usize, Tensor>,
}

/// Operators in the order they ran, with what they saved.
pub struct Tape<'a> {
    pass: Pass<'a>,
    /// Whether a value's gradient is needed by a trained parameter below it; `None` when nothing is recorded.
    needs_gradient: Option<Vec<bool>>,
    trainable: Vec<bool>,
    values: usize,
    nodes: Vec<Node>,
    segments: Vec<Segment>,
    open_segment: Option<usize>,
    inspection: Option<Inspection>,
}

/// Where a value first went wrong.
#[derive(Default)]
struct Inspection {
    scope: String,
    first_not_finite: Option<String>,
}

impl<'a> Tape<'a> {
    /// A tape for inference: nothing is recorded, memory is returned as soon as a value is dropped.
    pub fn inference(pass: Pass<'a>) -> Self {
        Self {
            pass,
            needs_gradient: None,
            trainable: Vec::new(),
            values: 0,
            nodes: Vec::new(),
            segments: Vec::new(),
            open_segment: None,
            inspection: None,
        }
    }

    /// An inference tape that looks at every output for [`Tape::first_not_finite`]; slow.
    pub fn inspection(pass: Pass<'a>) -> Self {
        Self { inspection: Some(Inspection::default()), ..Self::inference(pass) }
    }

    /// A tape that records for [`Tape::backward`]; operators over frozen parameters alone are not recorded.
    pub fn training(pass: Pass<'a>, gradients: &Gradients) -> Self {
        let trainable = pass.weights.ids().map(|id| gradients.wants(id)).collect();
        Self { needs_gradient: Some(Vec::new()), trainable, ..Self::inference(pass) }
    }

    /// What the operators work with.
    pub fn pass(&self) -> &Pass<'a> {
        &self.pass
    }

    /// Puts a tensor that no operator made on the tape; `wants_gradient` makes the operators over it recorded.
    pub fn input(&mut self, tensor: Tensor, wants_gradient: bool) -> Value {
        let value = Value { id: self.values, tensor };
        self.values += 1;
        if let Some(needs) = &mut self.needs_gradient {
            needs.push(wants_gradient);
        }
        value
    }

    /// Says which part of the model the next operators belong to, for [`Tape::first_not_finite`].
    pub fn enter(&mut self, scope: impl std::fmt::Display) {
        if let Some(inspection) = &mut self.inspection {
            inspection.scope = scope.to_string();
        }
    }

    /// The first operator whose output held a NaN or an infinity, with its place in the model: `layers.3, attention`.
    pub fn first_not_finite(&self) -> Option<&str> {
        self.inspection.as_ref()?.first_not_finite.as_deref()
    }

    /// Runs an operator and records it if its gradient will be needed.
    pub fn run(&mut self, op: impl Op + 'static, inputs: &[&Value]) -> Value {
        let tensors: Vec<&Tensor> = inputs.iter().map(|value| &value.tensor).collect();
        let recorded = self.needs_gradient.as_ref().is_some_and(|needs| {
            inputs.iter().any(|value| needs[value.id]) || op.parameters().iter().any(|id| self.trainable[id.0])
        });
        let mut saved = Saved { wanted: recorded && self.open_segment.is_none(), tensors: Vec::new() };
        let tensor = op.forward(&self.pass, &tensors, &mut saved);
        if let Some(inspection) = self.inspection.as_mut().filter(|i| i.first_not_finite.is_none())
            && !self.pass.kernels.all_finite(&tensor)
        {
            inspection.first_not_finite = Some(format!("{}, {}", inspection.scope, op.name()));
        }
        let value = Value { id: self.values, tensor };
        self.values += 1;
        if let Some(needs) = &mut self.needs_gradient {
            needs.push(recorded);
        }
        if recorded {
            self.remember_segment_inputs(inputs);
            let inputs = inputs.iter().map(|value| value.id).collect();
            self.nodes.push(Node { op: Box::new(op), inputs, output: value.id, saved, segment: self.open_segment });
        }
        value
    }

    /// Runs `body` as one segment under `policy`. Segments do not nest.
    pub fn segment<R>(&mut self, policy: Policy, body: impl FnOnce(&mut Self) -> R) -> R {
        if policy == Policy::Keep || self.needs_gradient.is_none() {
            return body(self);
        }
        assert!(self.open_segment.is_none(), "segments do not nest");
        let first_node = self.nodes.len();
        self.segments.push(Segment { first_node, end_node: first_node, inputs: HashMap::new() });
        let index = self.segments.len() - 1;
        self.open_segment = Some(index);
        let result = body(self);
        self.open_segment = None;
        self.segments[index].end_node = self.nodes.len();
        result
    }

    /// Bytes that the tape holds for the backward pass, each buffer counted once.
    pub fn saved_bytes(&self) -> usize {
        let saved = self.nodes.iter().flat_map(|node| &node.saved.tensors);
        let inputs = self.segments.iter().flat_map(|segment| segment.inputs.values());
        let buffers: HashMap<usize, usize> = saved.chain(inputs).map(|t| (t.address(), t.bytes())).collect();
        buffers.values().sum()
    }

    /// Runs the tape backward from the gradient of `output` and adds to `gradients`.
    pub fn backward(mut self, output: &Value, gradient: Tensor, gradients: &mut Gradients) {
        let Some(needs) = self.needs_gradient.take() else { return };
        let mut pending: Vec<Option<Tensor>> = vec![None; self.values];
        pending[output.id] = Some(gradient);
        while let Some(mut node) = self.nodes.pop() {
            let Some(dy) = pending[node.output].take() else { continue };
            if let Some(segment) = node.segment {
                self.nodes.push(node);
                self.recompute(segment);
                let Some(again) = self.nodes.pop() else { return };
                node = again;
            }
            let take = |&id: &usize| InputGradient { wanted: needs[id], tensor: pending[id].take() };
            let mut inputs: Vec<InputGradient> = node.inputs.iter().map(take).collect();
            node.op.backward(&self.pass, &node.saved, dy, &mut inputs, gradients);
            for (&id, input) in node.inputs.iter().zip(inputs) {
                pending[id] = input.tensor;
            }
        }
    }

    /// A segment's inputs are what its operators read that was made outside.
    fn remember_segment_inputs(&mut self, inputs: &[&Value]) {
        let Some(index) = self.open_segment else { return };
        let segment = &mut self.segments[index];
        let inside: Vec<usize> = self.nodes[segment.first_node..].iter().map(|node| node.output).collect();
        for value in inputs.iter().filter(|value| !inside.contains(&value.id)) {
            segment.inputs.entry(value.id).or_insert_with(|| value.tensor.clone());
        }
    }

    /// Runs the operators of a segment that are still on the tape again, saving this time.
    fn recompute(&mut self, index: usize) {
        let segment = &mut self.segments[index];
        let mut values = std::mem::take(&mut segment.inputs);
        let end = segment.end_node.min(self.nodes.len());
        for node in &mut self.nodes[segment.first_node..end] {
            node.saved = Saved { wanted: true, tensors: Vec::new() };
            node.segment = None;
            let inputs: Vec<&Tensor> = node.inputs.iter().map(|id| &values[id]).collect();
            let output = node.op.forward(&self.pass, &inputs, &mut node.saved);
            values.insert(node.output, output);
        }
    }
}
