//! Parameters: one descriptor drives initialisation, decay, gradients, checkpoints and Hugging Face names.

use std::ops::Range;

use tensor::{DType, Kernels, Stream, Tensor};

/// Index of a parameter in its model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// How a parameter starts when no file provides it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with mean 0 and this standard deviation.
    Normal(f64),
    /// All zero.
    Zeros,
    /// All one.
    Ones,
}

/// A tensor of a Hugging Face file that holds some rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Name without the family's prefix: `encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// Rows of the parameter (elements, for a vector).
    pub rows: Range<usize>,
    /// Whether the name stands at the root of a model with a head (`classifier.weight`) instead of under the prefix.
    pub root: bool,
}

/// Everything there is to know about a parameter but its values.
#[derive(Clone, Debug)]
pub struct ParamDescr {
    /// Logical name, the same for every architecture: `layers.0.attention.qkv.weight`.
    pub name: String,
    /// Global shape: `[out, in]` for matrices, `[rows, hidden]` for tables, `[n]` for vectors.
    pub shape: Vec<usize>,
    /// Values without a file.
    pub init: Init,
    /// Whether weight decay applies: not to biases and norms.
    pub decay: bool,
    /// Where its values stand in a Hugging Face file, in the order of their rows.
    pub parts: Vec<FilePart>,
}

impl ParamDescr {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it multiplies activations as a matrix or is looked up as a table: what mixed precision rounds.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2
    }

    /// Whether it belongs to the head, which fine-tuning may initialise anew.
    pub fn is_head(&self) -> bool {
        self.name.starts_with("pooler.") || self.name.starts_with("classifier.")
    }

    /// Elements in one row of [`FilePart::rows`].
    pub fn row_len(&self) -> usize {
        self.shape[1..].iter().product()
    }
}

/// The values of all parameters of a model: master weights, and the working copies that kernels read.
pub struct Weights {
    descriptors: Vec<ParamDescr>,
    master: Vec<Tensor>,
    working: Vec<Option<Tensor>>,
}

impl Weights {
    /// Allocates every parameter and lets `fill` write it, for instance from a file.
    pub fn build<E>(
        descriptors: &[ParamDescr],
        kernels: &dyn Kernels,
        fill: impl FnMut(ParamId, &ParamDescr, &mut Tensor) -> Result<(), E>,
    ) -> Result<Self, E> {
        Self::build_as(descriptors, kernels, fill, |_, _, tensor| tensor)
    }

    /// As [`Weights::build`], but every parameter becomes what `arrange` makes of it before the next one is allocated.
    pub(crate) fn build_as<E>(
        descriptors: &[ParamDescr],
        kernels: &dyn Kernels,
        mut fill: impl FnMut(ParamId, &ParamDescr, &mut Tensor) -> Result<(), E>,
        arrange: impl Fn(ParamId, &ParamDescr, Tensor) -> Tensor,
    ) -> Result<Self, E> {
        let fill = |(i, descriptor): (usize, &ParamDescr)| {
            let mut tensor = kernels.pool().empty(kernels.dtype(), &descriptor.shape);
            fill(ParamId(i), descriptor, &mut tensor)?;
            Ok(arrange(ParamId(i), descriptor, tensor))
        };
        let master = descriptors.iter().enumerate().map(fill).collect::<Result<Vec<_>, E>>()?;
        let working = vec![None; master.len()];
        Ok(Self { descriptors: descriptors.to_vec(), master, working })
    }

    /// Freshly initialised values; every element is drawn by its place, so equal seeds give equal models.
    pub fn initialised(descriptors: &[ParamDescr], kernels: &dyn Kernels, seed: u64) -> Self {
        let built = Self::build(descriptors, kernels, |id, descriptor, tensor| {
            initialise(id, descriptor, seed, tensor);
            Ok::<(), std::convert::Infallible>(())
        });
        match built {
            Ok(weights) => weights,
        }
    }

    /// The descriptors, indexed by [`ParamId`].
    pub fn descriptors(&self) -> &[ParamDescr] {
        &self.descriptors
    }

    /// Every parameter's index.
    pub fn ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.descriptors.len()).map(ParamId)
    }

    /// The descriptor of one parameter.
    pub fn descriptor(&self, id: ParamId) -> &ParamDescr {
        &self.descriptors[id.0]
    }

    /// What kernels read: the working copy where there is one, else the master weights.
    pub fn get(&self, id: ParamId) -> &Tensor {
        self.working[id.0].as_ref().unwrap_or(&self.master[id.0])
    }

    /// The weights that the optimizer updates and files hold.
    pub fn master(&self, id: ParamId) -> &Tensor {
        &self.master[id.0]
    }

    /// The master weights to write to; [`Weights::refresh`] afterwards when there are working copies.
    pub fn master_mut(&mut self, id: ParamId) -> &mut Tensor {
        &mut self.master[id.0]
    }

    /// All master weights and working copies, for the optimizer's single pass.
    pub fn update_targets(&mut self) -> impl Iterator<Item = (ParamId, &mut Tensor, Option<&mut Tensor>)> {
        let pairs = self.master.iter_mut().zip(&mut self.working).enumerate();
        pairs.map(|(i, (master, working))| (ParamId(i), master, working.as_mut()))
    }

    /// Number of scalar parameters.
    pub fn count(&self) -> usize {
        self.descriptors.iter().map(ParamDescr::len).sum()
    }

    /// Makes working copies of all matrices in a 16-bit type, for mixed precision.
    pub fn keep_working_copies(&mut self, kernels: &dyn Kernels, dtype: DType) {
        for (i, descriptor) in self.descriptors.iter().enumerate() {
            if descriptor.is_matrix() {
                self.working[i] = Some(kernels.pool().empty(dtype, &descriptor.shape));
            }
        }
        self.refresh(kernels);
    }

    /// Rounds the master weights into the working copies again.
    pub fn refresh(&mut self, kernels: &dyn Kernels) {
        for (master, working) in self.master.iter().zip(&mut self.working) {
            if let Some(working) = working {
                kernels.cast(master, working);
            }
        }
    }

    /// Replaces every parameter by what `arrange` makes of the tensor that kernels read.
    pub(crate) fn replace(&mut self, arrange: impl Fn(ParamId, &ParamDescr, Tensor) -> Tensor) {
        for (i, descriptor) in self.descriptors.iter().enumerate() {
            let read = self.working[i].take().unwrap_or_else(|| self.master[i].clone());
            self.master[i] = arrange(ParamId(i), descriptor, read);
        }
    }
}

/// Writes the initial values of a parameter.
pub(crate) fn initialise(id: ParamId, descriptor: &ParamDescr, seed: u64, tensor: &mut Tensor) {
    let values: Vec<f32> = match descriptor.init {
        Init::Zeros => vec![0.0; descriptor.len()],
        Init::Ones => vec![1.0; descriptor.len()],
        Init::Normal(deviation) => {
            let stream = Stream::new(seed, 0, id.0 as u32);
            (0..descriptor.len() as u64).map(|i| (stream.normal(i, 0) * deviation) as f32).collect()
        }
    };
    tensor.copy_from_f32(&values);
}

/// The gradients of a model's parameters over one update; several micro-batches add up in them.
pub struct Gradients {
    slots: Vec<Slot>,
}

struct Slot {
    /// `None` for a frozen parameter.
    tensor: Option<Tensor>,
    /// Nothing was written since [`Gradients::begin`], so the first writer overwrites what the last update left.
    fresh: bool,
}

impl Gradients {
    /// Memory for the gradients of the parameters that `trainable` selects.
    pub fn new(weights: &Weights, kernels: &dyn Kernels, trainable: impl Fn(&ParamDescr) -> bool) -> Self {
        let slot = |descriptor: &ParamDescr| Slot {
            tensor: trainable(descriptor).then(|| kernels.pool().empty(kernels.dtype(), &descriptor.shape)),
            fresh: true,
        };
        Self { slots: weights.descriptors().iter().map(slot).collect() }
    }

    /// Starts an update: what the gradients hold is void.
    pub fn begin(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.fresh = true);
    }

    /// Ends an update: gradients that no operator wrote to become zero.
    pub fn finish(&mut self, kernels: &dyn Kernels) {
        for slot in &mut self.slots {
            if let (Some(tensor), true) = (&mut slot.tensor, slot.fresh) {
                kernels.zero(tensor);
                slot.fresh = false;
            }
        }
    }

    /// Whether a parameter is trained.
    pub fn wants(&self, id: ParamId) -> bool {
        self.slots[id.0].tensor.is_some()
    }

    /// The gradient to write to and whether to add to it instead; `None` for a frozen parameter.
    pub fn target(&mut self, id: ParamId) -> Option<(&mut Tensor, bool)> {
        let slot = &mut self.slots[id.0];
        let accumulate = !std::mem::replace(&mut slot.fresh, false);
        slot.tensor.as_mut().map(|tensor| (tensor, accumulate))
    }

    /// Lends a gradient out, so that one operator can write several; give it back with [`Gradients::put`].
    pub fn take(&mut self, id: ParamId) -> Option<(Tensor, bool)> {
        let slot = &mut self.slots[id.0];
        let tensor = slot.tensor.take()?;
        Some((tensor, !std::mem::replace(&mut slot.fresh, false)))
    }

    /// Returns what [`Gradients::take`] lent.
    pub fn put(&mut self, id: ParamId, tensor: Tensor) {
        self.slots[id.0].tensor = Some(tensor);
    }

    /// The gradient of a trained parameter.
    pub fn get(&self, id: ParamId) -> Option<&Tensor> {
        self.slots[id.0].tensor.as_ref()
    }

    /// All gradients of trained parameters.
    pub fn iter(&self) -> impl Iterator<Item = (ParamId, &Tensor)> {
        self.slots.iter().enumerate().filter_map(|(i, slot)| slot.tensor.as_ref().map(|tensor| (ParamId(i), tensor)))
    }
}
