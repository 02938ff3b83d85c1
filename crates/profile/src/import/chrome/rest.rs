//! Arguments of events that become one object again.

use std::borrow::Cow;

use super::event::{Args, Raw, int_of, object};

/// Arguments without a column of their own.
#[derive(Default)]
pub(super) struct Rest<'a> {
    pub fields: Vec<(Cow<'a, str>, Raw<'a>)>,
}

impl<'a> Rest<'a> {
    /// The integer, or the argument is kept as it is.
    pub fn int(&mut self, raw: Option<Raw<'a>>, key: &'static str) -> Option<i64> {
        let value = int_of(raw?);
        if value.is_none() {
            self.keep(raw, key);
        }
        value
    }

    pub fn keep(&mut self, raw: Option<Raw<'a>>, key: &'static str) {
        self.fields.extend(raw.map(|raw| (Cow::Borrowed(key), raw)));
    }

    pub fn all(&mut self, fields: &[(Cow<'a, str>, Raw<'a>)]) {
        self.fields.extend(fields.iter().cloned());
    }

    pub fn everything(&mut self, args: &Args<'a>) {
        for (raw, key) in [
            (args.external_id, "External id"),
            (args.correlation, "correlation"),
            (args.stream, "stream"),
            (args.device, "device"),
            (args.bytes, "bytes"),
            (args.bandwidth, "memory bandwidth (GB/s)"),
            (args.event_index, "Ev Idx"),
            (args.record_function, "Record function id"),
            (args.sequence, "Sequence number"),
            (args.forward_thread, "Fwd thread id"),
            (args.python_id, "Python id"),
            (args.python_parent, "Python parent id"),
            (args.python_module, "Python module id"),
            (args.group, "Process Group Name"),
            (args.collective_sequence, "Seq"),
            (args.dtype, "dtype"),
        ] {
            self.keep(raw, key);
        }
        self.all(&args.inputs);
        self.all(&args.rest);
    }

    pub fn text<'t>(&self, buffer: &'t mut String) -> Option<&'t str> {
        if self.fields.is_empty() {
            return None;
        }
        object(buffer, &self.fields);
        Some(buffer)
    }
}
