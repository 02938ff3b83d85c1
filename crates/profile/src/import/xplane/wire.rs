//! Protobuf's wire format, walked in place: nothing is copied, so nothing that a file claims takes memory.

use prost::encoding::{WireType, decode_key, decode_varint};

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// A text, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The bytes of a message or a text; none for a number.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// An `int64`.
    pub fn int(self) -> Option<i64> {
        match self {
            Value::Varint(value) => Some(value as i64),
            _ => None,
        }
    }
}

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Field<'a> {
    pub number: u32,
    pub value: Value<'a>,
    /// The message ends within the field.
    pub cut: bool,
}

/// The fields of a message, in the order of the file. What is no wire format ends them, and counts as cut.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    /// Whether the message ended within a field.
    pub cut: bool,
}

impl<'a> Fields<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self { rest: message, cut: false }
    }

    fn read(&mut self) -> Option<Field<'a>> {
        let (number, kind) = decode_key(&mut self.rest).ok()?;
        let value = match kind {
            WireType::Varint => Value::Varint(decode_varint(&mut self.rest).ok()?),
            WireType::SixtyFourBit => Value::Fixed64(u64::from_le_bytes(*self.take()?)),
            WireType::ThirtyTwoBit => Value::Fixed32(u32::from_le_bytes(*self.take()?)),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.rest).ok()?;
                let there = usize::try_from(length).unwrap_or(usize::MAX).min(self.rest.len());
                let (bytes, rest) = self.rest.split_at(there);
                self.rest = rest;
                let cut = (there as u64) < length;
                self.cut |= cut;
                return Some(Field { number, value: Value::Bytes(bytes), cut });
            }
            // Groups: no message of a profile has any.
            WireType::StartGroup | WireType::EndGroup => return None,
        };
        Some(Field { number, value, cut: false })
    }

    fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    fn next(&mut self) -> Option<Field<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.rest = &[];
            self.cut = true;
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_come_in_order_and_a_cut_one_says_so() {
        // 1: varint 150; 2: "ab"; 3: fixed64 1; 4: fixed32 2
        let message = [0x08, 0x96, 1, 0x12, 2, b'a', b'b', 0x19, 1, 0, 0, 0, 0, 0, 0, 0, 0x25, 2, 0, 0, 0];
        let all: Vec<_> = Fields::of(&message).map(|field| (field.number, field.value, field.cut)).collect();
        let expected = [
            (1, Value::Varint(150), false),
            (2, Value::Bytes(b"ab"), false),
            (3, Value::Fixed64(1), false),
            (4, Value::Fixed32(2), false),
        ];
        assert_eq!(all, expected);
        let mut fields = Fields::of(&message[..6]);
        assert_eq!(fields.nth(1), Some(Field { number: 2, value: Value::Bytes(b"a"), cut: true }));
        assert!(fields.next().is_none() && fields.cut);
        let mut claimed = Fields::of(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f, 1]);
        assert!(claimed.next().is_some_and(|field| field.cut));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
        }
    }
}
