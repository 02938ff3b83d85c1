//! Events as they lie in a ring: one slot of four words, and more slots for what does not fit.
//!
//! | kind | slot 0: head, and three words | further slots |
//! |---|---|---|
//! | `Span`, `Annotation`, `Wait`, `Launch` | start, end, correlation or number | text, values |
//! | `Instant` | time, -, - | text |
//! | `Counter` | time, bits of the value, - | |
//! | `Kernel` | start, end, correlation | stream and type, up to 3 values; more values |
//! | `Copy`, `Set` | start, end, correlation | stream, bytes |
//! | `Collective` | start, end, correlation | stream and type, bytes, group, sequence |
//! | `Memory` | time, address, bytes | allocated, reserved, device |
//!
//! The head holds the kind, the row, the number of further slots, the number of values, and the name.

/// Four words: an event, or a part of one.
pub type Slot = [u64; 4];

/// Bytes of a slot.
pub const SLOT_BYTES: usize = std::mem::size_of::<Slot>();
/// Further slots of the largest event.
pub const MAX_MORE: usize = (MAX_TEXT + MAX_VALUES * 8).div_ceil(SLOT_BYTES) + 1;
/// Values of an event.
pub const MAX_VALUES: usize = 8;
/// Bytes of a text that is no [`Name`](super::Name); longer ones are cut.
pub const MAX_TEXT: usize = 256;
/// In place of a name: the text follows.
pub const TEXT_FOLLOWS: u32 = u32::MAX;
/// In place of a name: there is none.
pub const NONE: u32 = u32::MAX;

macro_rules! kinds {
    ($( $(#[$meta:meta])* $kind:ident = $word:literal, )*) => {
        /// What an event is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $( $(#[$meta])* $kind, )* }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Kind] = &[$( Kind::$kind, )*];

            /// The word of this kind in diagnostics.
            pub fn word(self) -> &'static str {
                match self { $( Kind::$kind => $word, )* }
            }
        }
    };
}

kinds! {
    /// Work of a thread.
    Span = "spans",
    /// A part of the program as its user calls it.
    Annotation = "annotations",
    /// A thread waits.
    Wait = "waits",
    /// A thread gives work to a stream.
    Launch = "launches",
    /// A point in time.
    Instant = "instants",
    /// A value.
    Counter = "counters",
    /// A stream computes.
    Kernel = "kernels",
    /// A stream copies.
    Copy = "copies",
    /// A stream fills memory.
    Set = "fills",
    /// Ranks communicate on a stream.
    Collective = "collectives",
    /// Memory is allocated or freed, or its use noted.
    Memory = "memory events",
}

impl Kind {
    /// The kind with this number.
    pub fn of(number: u8) -> Option<Kind> {
        Kind::ALL.get(usize::from(number)).copied()
    }
}

/// The first word of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What it is.
    pub kind: Kind,
    /// Row of a host slice within its track.
    pub row: u8,
    /// Further slots.
    pub more: u8,
    /// Values, or for `Memory` which words are there.
    pub values: u8,
    /// Number of the name, or [`TEXT_FOLLOWS`].
    pub name: u32,
}

impl Head {
    /// As a word.
    #[inline]
    pub fn word(self) -> u64 {
        self.kind as u64
            | u64::from(self.row) << 8
            | u64::from(self.more) << 16
            | u64::from(self.values) << 24
            | u64::from(self.name) << 32
    }

    /// Of a word that [`Head::word`] made.
    pub fn of(word: u64) -> Option<Head> {
        let [kind, row, more, values, ..] = word.to_le_bytes();
        Some(Head { kind: Kind::of(kind)?, row, more, values, name: (word >> 32) as u32 })
    }
}

/// Writes a text into slots, from slot `at`; returns how many it takes.
pub fn put_text(text: &str, slots: &mut [Slot]) -> usize {
    let count = text.len().div_ceil(SLOT_BYTES);
    for (slot, bytes) in slots.iter_mut().zip(text.as_bytes().chunks(SLOT_BYTES)) {
        for (word, bytes) in slot.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
        }
    }
    count
}

/// The text of `length` bytes in slots.
pub fn text(slots: &[Slot], length: usize) -> String {
    let bytes = slots.iter().flatten().flat_map(|word| word.to_le_bytes()).take(length).collect::<Vec<u8>>();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The longest beginning of `text` that is kept.
pub fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_texts_come_back() {
        for (number, &kind) in Kind::ALL.iter().enumerate() {
            let head = Head { kind, row: 63, more: number as u8, values: 7, name: 0xfedc_ba98 };
            assert_eq!(Head::of(head.word()), Some(head));
        }
        assert_eq!(Head::of(0xff), None);
        for written in ["", "a", "eight by", "größer als ein Slot: 🚂 und noch ein Wort mehr"] {
            let mut slots = [[u64::MAX; 4]; MAX_MORE];
            let count = put_text(written, &mut slots);
            assert_eq!(count, written.len().div_ceil(32));
            assert_eq!(text(&slots, written.len()), written);
        }
        let long = "ü".repeat(MAX_TEXT);
        assert_eq!(cut(&long).len(), MAX_TEXT);
        let odd = format!("a{long}");
        assert_eq!(cut(&odd).len(), MAX_TEXT - 1);
    }
}
