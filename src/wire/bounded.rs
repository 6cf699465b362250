//! Checked reading and writing of the protocol's primitive types (Kafka protocol guide, "Protocol Primitive Types").
//! A reader never trusts a number it read: a count or length is compared with the bytes that are left before anything
//! is reserved. Must not know messages, sockets or tasks.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Elements that are reserved ahead for an array, whatever its count says; more grow as they are decoded.
const RESERVED_ELEMENTS: usize = 1024;

/// Slices shorter than this are copied into the framing piece: one more segment would cost more than the copy.
const COPIED_BELOW_BYTES: usize = 256;

/// Bytes that do not form the message they should be. Offsets count from the start of the reader's bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The bytes end inside a value.
    #[error("{field}: needs {needed} bytes at byte {at}, only {left} are left")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
        /// Where.
        at: usize,
        /// Bytes the value takes.
        needed: usize,
        /// Bytes there are.
        left: usize,
    },
    /// An array says it has more elements than the bytes left can hold.
    #[error(
        "{field}: an array of {count} elements at byte {at} cannot fit into the {left} bytes left"
    )]
    Count {
        /// The field that was being read.
        field: &'static str,
        /// Where.
        at: usize,
        /// The elements it claims.
        count: i64,
        /// Bytes there are.
        left: usize,
    },
    /// A length or count below -1.
    #[error("{field}: negative length {length} at byte {at}")]
    NegativeLength {
        /// The field that was being read.
        field: &'static str,
        /// Where.
        at: usize,
        /// The length.
        length: i64,
    },
    /// Null where the schema has no null.
    #[error("{field}: null at byte {at}, where a value is required")]
    Null {
        /// The field that was being read.
        field: &'static str,
        /// Where.
        at: usize,
    },
    /// A variable-length integer of more than 32 bits.
    #[error("{field}: variable-length integer at byte {at} is longer than 32 bits")]
    Varint {
        /// The field that was being read.
        field: &'static str,
        /// Where.
        at: usize,
    },
    /// A string that is not UTF-8.
    #[error("{field}: string at byte {at} is not UTF-8")]
    NotUtf8 {
        /// The field that was being read.
        field: &'static str,
        /// Where.
        at: usize,
    },
    /// The message ended, the bytes did not.
    #[error("{left} bytes are left over behind {field}")]
    Trailing {
        /// The last field that was read.
        field: &'static str,
        /// Bytes left over.
        left: usize,
    },
    /// A version that is not spoken here.
    #[error("version {version} is not spoken, only {min} to {max}")]
    Version {
        /// What was asked for.
        version: i16,
        /// The lowest version spoken.
        min: i16,
        /// The highest version spoken.
        max: i16,
    },
}

/// A value that the wire format cannot carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {what} of {length} bytes or elements does not fit its length field")]
pub struct EncodeError {
    /// String, bytes, array or frame.
    pub what: &'static str,
    /// Its length.
    pub length: usize,
}

/// Reads values from one message. Byte fields are slices of the message, not copies.
#[derive(Clone, Debug)]
pub struct Reader {
    bytes: Bytes,
    total: usize,
    field: &'static str,
}

impl Reader {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: Bytes) -> Self {
        Self {
            total: bytes.len(),
            bytes,
            field: "message",
        }
    }

    /// Names the field that is read next, for errors.
    pub fn at(&mut self, field: &'static str) {
        self.field = field;
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes that were read.
    pub fn position(&self) -> usize {
        self.total.saturating_sub(self.bytes.len())
    }

    /// Fails if bytes are left over.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing {
                field: self.field,
                left,
            }),
        }
    }

    /// Whatever is left, as one slice.
    pub fn rest(self) -> Bytes {
        self.bytes
    }

    fn truncated(&self, needed: usize) -> DecodeError {
        DecodeError::Truncated {
            field: self.field,
            at: self.position(),
            needed,
            left: self.left(),
        }
    }

    fn null(&self) -> DecodeError {
        DecodeError::Null {
            field: self.field,
            at: self.position(),
        }
    }

    /// BOOLEAN: zero is false, anything else true.
    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        self.i8().map(|byte| byte != 0)
    }

    /// INT8.
    pub fn i8(&mut self) -> Result<i8, DecodeError> {
        self.bytes.try_get_i8().map_err(|_| self.truncated(1))
    }

    /// INT16.
    pub fn i16(&mut self) -> Result<i16, DecodeError> {
        self.bytes.try_get_i16().map_err(|_| self.truncated(2))
    }

    /// INT32.
    pub fn i32(&mut self) -> Result<i32, DecodeError> {
        self.bytes.try_get_i32().map_err(|_| self.truncated(4))
    }

    /// INT64.
    pub fn i64(&mut self) -> Result<i64, DecodeError> {
        self.bytes.try_get_i64().map_err(|_| self.truncated(8))
    }

    /// UUID: 16 bytes.
    pub fn uuid(&mut self) -> Result<[u8; 16], DecodeError> {
        let mut uuid = [0; 16];
        self.bytes
            .try_copy_to_slice(&mut uuid)
            .map_err(|_| self.truncated(16))?;
        Ok(uuid)
    }

    /// UNSIGNED_VARINT of at most 32 bits.
    pub fn uvarint(&mut self) -> Result<u32, DecodeError> {
        let at = self.position();
        let mut value = 0_u32;
        for shift in [0, 7, 14, 21, 28] {
            let byte = self.bytes.try_get_u8().map_err(|_| self.truncated(1))?;
            // The fifth byte has room for four bits; more would be lost without a word.
            if shift == 28 && byte > 0x0f {
                break;
            }
            value |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(DecodeError::Varint {
            field: self.field,
            at,
        })
    }

    /// VARINT: zigzag-encoded, at most 32 bits.
    pub fn varint(&mut self) -> Result<i32, DecodeError> {
        let raw = self.uvarint()?;
        Ok((raw >> 1).cast_signed() ^ (raw & 1).cast_signed().wrapping_neg())
    }

    /// A length of the kind the layout uses; `None` is null.
    fn length(&mut self, compact: bool, wide: bool) -> Result<Option<usize>, DecodeError> {
        let at = self.position();
        let length = if compact {
            i64::from(self.uvarint()?) - 1
        } else if wide {
            i64::from(self.i32()?)
        } else {
            i64::from(self.i16()?)
        };
        match length {
            -1 => Ok(None),
            _ => usize::try_from(length)
                .map(Some)
                .map_err(|_| DecodeError::NegativeLength {
                    field: self.field,
                    at,
                    length,
                }),
        }
    }

    /// `count` bytes as a slice of the message.
    pub fn take(&mut self, count: usize) -> Result<Bytes, DecodeError> {
        if count > self.left() {
            return Err(self.truncated(count));
        }
        Ok(self.bytes.split_to(count))
    }

    /// (COMPACT_)NULLABLE_STRING.
    pub fn nullable_string(&mut self, compact: bool) -> Result<Option<Arc<str>>, DecodeError> {
        let Some(length) = self.length(compact, false)? else {
            return Ok(None);
        };
        let at = self.position();
        let bytes = self
            .bytes
            .get(..length)
            .ok_or_else(|| self.truncated(length))?;
        let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::NotUtf8 {
            field: self.field,
            at,
        })?;
        let text = Arc::from(text);
        self.bytes.advance(length);
        Ok(Some(text))
    }

    /// (COMPACT_)STRING.
    pub fn string(&mut self, compact: bool) -> Result<Arc<str>, DecodeError> {
        self.nullable_string(compact)?.ok_or_else(|| self.null())
    }

    /// (COMPACT_)NULLABLE_BYTES and (COMPACT_)RECORDS, as a slice of the message.
    pub fn nullable_bytes(&mut self, compact: bool) -> Result<Option<Bytes>, DecodeError> {
        match self.length(compact, true)? {
            None => Ok(None),
            Some(length) => self.take(length).map(Some),
        }
    }

    /// (COMPACT_)BYTES, as a slice of the message.
    pub fn bytes(&mut self, compact: bool) -> Result<Bytes, DecodeError> {
        self.nullable_bytes(compact)?.ok_or_else(|| self.null())
    }

    /// (COMPACT_)ARRAY that may be null; `min_bytes` is the least that one element takes on the wire (at least 1).
    pub fn nullable_array<T>(
        &mut self,
        compact: bool,
        min_bytes: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        let (at, field) = (self.position(), self.field);
        let Some(count) = self.length(compact, true)? else {
            return Ok(None);
        };
        if count > self.left() / min_bytes.max(1) {
            return Err(DecodeError::Count {
                field,
                at,
                count: i64::try_from(count).unwrap_or(i64::MAX),
                left: self.left(),
            });
        }
        let mut elements = Vec::with_capacity(count.min(RESERVED_ELEMENTS));
        for _ in 0..count {
            self.field = field;
            elements.push(element(self)?);
        }
        Ok(Some(elements))
    }

    /// (COMPACT_)ARRAY.
    pub fn array<T>(
        &mut self,
        compact: bool,
        min_bytes: usize,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.nullable_array(compact, min_bytes, element)?
            .ok_or_else(|| self.null())
    }

    /// The next field of a tag section (KIP-482): its tag, and a reader of exactly its bytes.
    pub fn tagged(&mut self) -> Result<(u32, Self), DecodeError> {
        let tag = self.uvarint()?;
        let size = self.uvarint()?;
        let size = usize::try_from(size).map_err(|_| self.truncated(usize::MAX))?;
        let mut value = Self::new(self.take(size)?);
        value.field = self.field;
        Ok((tag, value))
    }

    /// Reads over a whole tag section.
    pub fn skip_tagged(&mut self) -> Result<(), DecodeError> {
        for _ in 0..self.uvarint()? {
            self.tagged()?.1.skip();
        }
        Ok(())
    }

    /// Leaves the rest unread: an unknown tagged field.
    pub fn skip(self) {}
}

/// Writes values. What it holds is a list of segments: small values gather in buffers of its own, long byte
/// fields stay the slices they are, so that record bytes are never copied.
#[derive(Debug, Default)]
pub struct Writer {
    head: Option<BytesMut>,
    shared: Vec<Bytes>,
    tail: BytesMut,
    done_bytes: usize,
    fault: Option<EncodeError>,
}

impl Writer {
    /// An empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.done_bytes.saturating_add(self.tail.len())
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The segments in order, or the first value that did not fit the format. The first segment is writable, so
    /// that a frame's length can be filled in.
    pub fn finish(mut self) -> Result<(BytesMut, Vec<Bytes>), EncodeError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        match self.head {
            None => Ok((self.tail, self.shared)),
            Some(head) => {
                if !self.tail.is_empty() {
                    self.shared.push(self.tail.freeze());
                }
                Ok((head, self.shared))
            }
        }
    }

    /// Everything as one piece (copies if there are several segments).
    pub fn into_bytes(self) -> Result<Bytes, EncodeError> {
        let (mut head, rest) = self.finish()?;
        for segment in rest {
            head.extend_from_slice(&segment);
        }
        Ok(head.freeze())
    }

    /// BOOLEAN.
    pub fn put_bool(&mut self, value: bool) {
        self.tail.put_u8(u8::from(value));
    }

    /// INT8.
    pub fn put_i8(&mut self, value: i8) {
        self.tail.put_i8(value);
    }

    /// INT16.
    pub fn put_i16(&mut self, value: i16) {
        self.tail.put_i16(value);
    }

    /// INT32.
    pub fn put_i32(&mut self, value: i32) {
        self.tail.put_i32(value);
    }

    /// INT64.
    pub fn put_i64(&mut self, value: i64) {
        self.tail.put_i64(value);
    }

    /// UUID.
    pub fn put_uuid(&mut self, value: [u8; 16]) {
        self.tail.put_slice(&value);
    }

    /// UNSIGNED_VARINT.
    pub fn put_uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            let [low, ..] = value.to_le_bytes();
            self.tail.put_u8(low | 0x80);
            value >>= 7;
        }
        let [low, ..] = value.to_le_bytes();
        self.tail.put_u8(low);
    }

    /// VARINT: zigzag.
    pub fn put_varint(&mut self, value: i32) {
        self.put_uvarint(((value << 1) ^ (value >> 31)).cast_unsigned());
    }

    fn put_length(&mut self, length: Option<usize>, compact: bool, wide: bool, what: &'static str) {
        let number = length.map_or(Some(-1), |length| i64::try_from(length).ok());
        let fits = number.is_some_and(|number| {
            if compact {
                u32::try_from(number + 1).map(|plus_one| self.put_uvarint(plus_one))
            } else if wide {
                i32::try_from(number).map(|number| self.put_i32(number))
            } else {
                i16::try_from(number).map(|number| self.put_i16(number))
            }
            .is_ok()
        });
        if !fits && self.fault.is_none() {
            self.fault = Some(EncodeError {
                what,
                length: length.unwrap_or_default(),
            });
        }
    }

    /// (COMPACT_)NULLABLE_STRING.
    pub fn put_nullable_string(&mut self, compact: bool, value: Option<&str>) {
        self.put_length(value.map(str::len), compact, false, "string");
        self.tail.put_slice(value.unwrap_or_default().as_bytes());
    }

    /// (COMPACT_)NULLABLE_BYTES and (COMPACT_)RECORDS. `slices` are one value in several pieces; `None` is null.
    pub fn put_nullable_bytes(&mut self, compact: bool, slices: Option<&[Bytes]>) {
        let length = slices.map(|slices| slices.iter().map(Bytes::len).sum());
        self.put_length(length, compact, true, "bytes field");
        for slice in slices.unwrap_or_default() {
            self.put_shared(slice);
        }
    }

    fn put_shared(&mut self, slice: &Bytes) {
        if slice.len() < COPIED_BELOW_BYTES {
            self.tail.put_slice(slice);
            return;
        }
        let framing = self.tail.split();
        self.done_bytes = self
            .done_bytes
            .saturating_add(framing.len())
            .saturating_add(slice.len());
        if self.head.is_none() {
            self.head = Some(framing);
        } else if !framing.is_empty() {
            self.shared.push(framing.freeze());
        }
        self.shared.push(slice.clone());
    }

    /// (COMPACT_)ARRAY; `None` is null.
    pub fn put_nullable_array<T>(
        &mut self,
        compact: bool,
        elements: Option<&[T]>,
        mut element: impl FnMut(&mut Self, &T),
    ) {
        self.put_length(elements.map(<[T]>::len), compact, true, "array");
        for value in elements.unwrap_or_default() {
            element(self, value);
        }
    }

    /// A tag section (KIP-482) of these fields; they must be in rising order of their tags.
    pub fn put_tagged(&mut self, fields: Vec<(u32, Self)>) {
        self.put_uvarint(u32::try_from(fields.len()).unwrap_or(u32::MAX));
        for (tag, value) in fields {
            let length = value.len();
            match (value.into_bytes(), u32::try_from(length)) {
                (Ok(bytes), Ok(size)) => {
                    self.put_uvarint(tag);
                    self.put_uvarint(size);
                    self.tail.put_slice(&bytes);
                }
                (Err(fault), _) => self.fault = self.fault.take().or(Some(fault)),
                (Ok(_), Err(_)) => {
                    self.fault = self.fault.take().or(Some(EncodeError {
                        what: "tagged field",
                        length,
                    }));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Writer)) -> Bytes {
        let mut writer = Writer::new();
        write(&mut writer);
        writer.into_bytes().unwrap()
    }

    #[test]
    fn variable_length_integers_round_trip_at_every_width() {
        let values = [
            0,
            1,
            127,
            128,
            16_383,
            16_384,
            2_097_152,
            268_435_456,
            u32::MAX,
        ];
        for value in values {
            let bytes = written(|w| w.put_uvarint(value));
            assert_eq!(Reader::new(bytes).uvarint(), Ok(value));
        }
        for value in [0, -1, 1, 63, -64, 64, i32::MAX, i32::MIN] {
            let bytes = written(|w| w.put_varint(value));
            assert_eq!(Reader::new(bytes).varint(), Ok(value));
        }
    }

    #[test]
    fn an_overlong_varint_is_refused() {
        for bytes in [&[0xff, 0xff, 0xff, 0xff, 0x1f][..], &[0x80; 6], &[0xff; 10]] {
            let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
            assert!(matches!(reader.uvarint(), Err(DecodeError::Varint { .. })));
        }
    }

    #[test]
    fn a_count_that_cannot_fit_is_refused_before_anything_is_reserved() {
        let hostile = [
            (false, &[0x7f, 0xff, 0xff, 0xff, 0, 0][..]),
            (true, &[0xff, 0xff, 0xff, 0xff, 0x0f, 0]),
            (true, &[0x04, 0, 0]),
        ];
        for (compact, bytes) in hostile {
            let mut reader = Reader::new(Bytes::copy_from_slice(bytes));
            let answer = reader.array(compact, 1, Reader::i8);
            assert!(
                matches!(answer, Err(DecodeError::Count { .. })),
                "{answer:?}"
            );
        }
    }

    #[test]
    fn null_negative_and_broken_strings_are_told_apart() {
        let cases: [(bool, &[u8], bool); 5] = [
            (true, &[0], true),
            (false, &[0xff, 0xff], true),
            (false, &[0xff, 0xfe], false),
            (true, &[3, 0xc3, 0x28], false),
            (true, &[9, b'a'], false),
        ];
        for (compact, bytes, null) in cases {
            let read = Reader::new(Bytes::copy_from_slice(bytes)).nullable_string(compact);
            if null {
                assert_eq!(read, Ok(None));
                let read = Reader::new(Bytes::copy_from_slice(bytes)).string(compact);
                assert!(matches!(read, Err(DecodeError::Null { .. })));
            } else {
                assert!(read.is_err(), "{bytes:?}");
            }
        }
    }

    #[test]
    fn long_slices_stay_what_they_are_and_short_ones_join_the_framing() {
        let long = Bytes::from(vec![7; COPIED_BELOW_BYTES]);
        let short = Bytes::from_static(b"short");
        let mut writer = Writer::new();
        writer.put_i32(0);
        writer.put_nullable_bytes(true, Some(&[short.clone(), long.clone(), short]));
        writer.put_i8(1);
        let length = writer.len();
        let (head, rest) = writer.finish().unwrap();
        assert_eq!(
            head.len() + rest.iter().map(Bytes::len).sum::<usize>(),
            length
        );
        assert_eq!(rest.len(), 2);
        assert_eq!(rest[0].as_ptr(), long.as_ptr(), "not copied");
        assert_eq!(&rest[1][..], b"short\x01");
    }

    #[test]
    fn a_string_too_long_for_its_length_field_is_an_error_not_a_broken_frame() {
        let mut writer = Writer::new();
        writer.put_nullable_string(false, Some(&"x".repeat(40_000)));
        assert_eq!(writer.finish().unwrap_err().length, 40_000);
    }
}
