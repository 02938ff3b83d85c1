//! The names a pickle may use, and what each stands for. This list is the security boundary of the reader.
//!
//! | name in the pickle | stands for |
//! |---|---|
//! | `collections OrderedDict` | an empty dictionary |
//! | `torch FloatStorage`, `HalfStorage`, … | an element type |
//! | `torch._utils _rebuild_tensor_v2` | a strided view of a storage |
//! | `torch._utils _rebuild_parameter` | the tensor that is its first argument |

use super::arena::{Arena, Node, Value};
use super::{FileDType, PickleError};

/// Largest number of dimensions, torch's own limit.
const MAX_DIMS: usize = 64;

/// An allowed name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    Storage(FileDType),
    RebuildTensor,
    RebuildParameter,
}

impl Global {
    pub fn lookup(module: &[u8], name: &[u8], at: usize) -> Result<Self, PickleError> {
        let storage = |dtype| Ok(Self::Storage(dtype));
        match (module, name) {
            (b"collections", b"OrderedDict") => Ok(Self::OrderedDict),
            (b"torch._utils", b"_rebuild_tensor_v2") => Ok(Self::RebuildTensor),
            (b"torch._utils", b"_rebuild_parameter") => Ok(Self::RebuildParameter),
            (b"torch", b"DoubleStorage") => storage(FileDType::F64),
            (b"torch", b"FloatStorage") => storage(FileDType::F32),
            (b"torch", b"HalfStorage") => storage(FileDType::F16),
            (b"torch", b"BFloat16Storage") => storage(FileDType::BF16),
            (b"torch", b"LongStorage") => storage(FileDType::I64),
            (b"torch", b"IntStorage") => storage(FileDType::I32),
            (b"torch", b"ShortStorage") => storage(FileDType::I16),
            (b"torch", b"CharStorage") => storage(FileDType::I8),
            (b"torch", b"ByteStorage") => storage(FileDType::U8),
            (b"torch", b"BoolStorage") => storage(FileDType::BOOL),
            _ => {
                let shown =
                    |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).escape_debug().to_string();
                Err(PickleError::ForeignGlobal { name: format!("{}.{}", shown(module), shown(name)), at })
            }
        }
    }
}

/// A storage named by a persistent id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StorageRef {
    pub dtype: FileDType,
    /// Name under `data/` in the archive.
    pub key: String,
}

/// A tensor as the pickle describes it, not yet checked against its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorRecord {
    pub storage: StorageRef,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// What a call of `global` with `args` makes.
pub(super) fn call(arena: &Arena, global: Global, args: &[Value]) -> Result<Node, String> {
    match (global, args) {
        (Global::OrderedDict, []) => Ok(Node::Dict(Vec::new())),
        // (storage, offset, size, stride, requires_grad, backward_hooks[, metadata])
        (Global::RebuildTensor, [storage, offset, size, stride, ..]) if args.len() <= 7 => {
            let Some(Node::Storage(storage)) = arena.node(*storage) else {
                return Err("a tensor's first argument is not a storage".into());
            };
            let shape = sizes(arena, *size)?;
            let strides = sizes(arena, *stride)?;
            if shape.len() != strides.len() {
                return Err(format!("a tensor has {} sizes and {} strides", shape.len(), strides.len()));
            }
            let offset = size_of(*offset)?;
            Ok(Node::Tensor(Box::new(TensorRecord { storage: storage.clone(), offset, shape, strides })))
        }
        // (data, requires_grad, backward_hooks)
        (Global::RebuildParameter, [tensor, ..]) if args.len() <= 3 => match arena.node(*tensor) {
            Some(Node::Tensor(record)) => Ok(Node::Tensor(record.clone())),
            _ => Err("a parameter's first argument is not a tensor".into()),
        },
        (global, args) => Err(format!("{global:?} is called with {} arguments", args.len())),
    }
}

/// The storage that a persistent id names: `("storage", type, key, location, elements)`.
pub(super) fn storage(arena: &Arena, id: Value) -> Result<Node, String> {
    let Some(Node::Tuple(parts)) = arena.node(id) else {
        return Err("a persistent id is not a tuple".into());
    };
    let [Value::Str(tag), Value::Global(Global::Storage(dtype)), Value::Str(key), _location, _elements] = parts[..]
    else {
        return Err("a persistent id is not (\"storage\", type, key, location, elements)".into());
    };
    if arena.text(tag) != "storage" {
        return Err("a persistent id does not name a storage".into());
    }
    let key = arena.text(key);
    // Torch numbers its storages; this keeps a key from meaning another entry of the archive.
    if key.is_empty() || key.len() > 64 || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err("a storage has a key that torch would not write".into());
    }
    Ok(Node::Storage(StorageRef { dtype, key: key.to_owned() }))
}

fn sizes(arena: &Arena, value: Value) -> Result<Vec<usize>, String> {
    match arena.node(value) {
        Some(Node::Tuple(items) | Node::List(items)) if items.len() <= MAX_DIMS => {
            items.iter().map(|&v| size_of(v)).collect()
        }
        Some(Node::Tuple(items) | Node::List(items)) => Err(format!("a tensor has {} dimensions", items.len())),
        _ => Err("a tensor's size or stride is not a tuple".into()),
    }
}

fn size_of(value: Value) -> Result<usize, String> {
    match value {
        Value::Int(n) => usize::try_from(n).map_err(|_| format!("a tensor has the size, stride or offset {n}")),
        _ => Err("a tensor's size, stride or offset is not a whole number".into()),
    }
}
