//! From one declaration of a message's fields to a struct with both directions of its codec, for flexible and classic
//! versions (KIP-482). A declaration reads like Kafka's message JSON, and uses its names. Must not know single messages.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::bounded::{DecodeError, Reader, Writer};
use super::error_code::ErrorCode;
use crate::domain::types::{BrokerId, LeaderEpoch, ProducerEpoch, ProducerId, TopicId};

/// How a message is laid out: by its version, with compact lengths and tag sections or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The version of the message.
    pub version: i16,
    /// True from the message's first flexible version on.
    pub flexible: bool,
}

/// A value that can stand in a message.
pub trait Field: Sized {
    /// The least bytes that a value takes; at least 1, or array counts could not be checked.
    const MIN_BYTES: usize = 1;

    /// Writes the value. Fields that the version does not have are left out, whatever they hold.
    fn encode(&self, layout: Layout, w: &mut Writer);

    /// Reads a value. Fields that the version does not have get their defaults.
    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError>;

    /// Some value that fills every field the version has, for tests.
    #[cfg(test)]
    fn sample(layout: Layout, seed: &mut Seed) -> Self;
}

/// A whole request or response body.
pub trait Message: Field + Send + Sync + 'static {
    /// The versions that are spoken here.
    const VERSIONS: RangeInclusive<i16>;
    /// The first version with compact lengths and tag sections.
    const FIRST_FLEXIBLE: i16;

    /// How `version` of this message is laid out.
    fn layout(version: i16) -> Layout {
        Layout {
            version,
            flexible: version >= Self::FIRST_FLEXIBLE,
        }
    }

    /// Writes the body in `version`.
    fn encode_body(&self, version: i16, w: &mut Writer) {
        self.encode(Self::layout(version), w);
    }

    /// Reads a body of `version`, which must take all the bytes that are left.
    fn decode_body(version: i16, r: &mut Reader) -> Result<Self, DecodeError> {
        if !Self::VERSIONS.contains(&version) {
            return Err(DecodeError::Version {
                version,
                min: *Self::VERSIONS.start(),
                max: *Self::VERSIONS.end(),
            });
        }
        let message = Self::decode(Self::layout(version), r)?;
        r.finish()?;
        Ok(message)
    }

    /// How long the broker asks its client to stay silent (KIP-219), in milliseconds.
    fn throttle_time_ms(&self) -> i32 {
        0
    }
}

/// A message that asks for an answer.
pub trait Request: Message {
    /// The number of the API (`ApiKeys`).
    const API_KEY: i16;
    /// The name of the API, for logs and errors.
    const NAME: &'static str;
    /// What answers it.
    type Response: Message;

    /// True if request and response header of `version` have tag sections (request header v2, response header v1).
    fn flexible(version: i16) -> bool {
        version >= Self::FIRST_FLEXIBLE
    }
}

macro_rules! number {
    ($($ty:ty, $bytes:literal, $read:ident, $write:ident;)+) => {$(
        impl Field for $ty {
            const MIN_BYTES: usize = $bytes;

            fn encode(&self, _: Layout, w: &mut Writer) {
                w.$write(*self);
            }

            fn decode(_: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
                r.$read()
            }

            #[cfg(test)]
            fn sample(_: Layout, seed: &mut Seed) -> Self {
                seed.$read()
            }
        }
    )+};
}

number! {
    bool, 1, bool, put_bool;
    i8, 1, i8, put_i8;
    i16, 2, i16, put_i16;
    i32, 4, i32, put_i32;
    i64, 8, i64, put_i64;
    [u8; 16], 16, uuid, put_uuid;
}

macro_rules! newtype {
    ($($ty:ident($inner:ty);)+) => {$(
        impl Field for $ty {
            const MIN_BYTES: usize = <$inner as Field>::MIN_BYTES;

            fn encode(&self, layout: Layout, w: &mut Writer) {
                self.0.encode(layout, w);
            }

            fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
                Field::decode(layout, r).map(Self)
            }

            #[cfg(test)]
            fn sample(layout: Layout, seed: &mut Seed) -> Self {
                Self(Field::sample(layout, seed))
            }
        }
    )+};
}

newtype! {
    BrokerId(i32);
    LeaderEpoch(i32);
    ProducerId(i64);
    ProducerEpoch(i16);
    TopicId([u8; 16]);
    ErrorCode(i16);
}

impl Field for Arc<str> {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_string(layout.flexible, Some(self));
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.string(layout.flexible)
    }

    #[cfg(test)]
    fn sample(_: Layout, seed: &mut Seed) -> Self {
        format!("s{}", seed.i16()).into()
    }
}

impl Field for Option<Arc<str>> {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_string(layout.flexible, self.as_deref());
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.nullable_string(layout.flexible)
    }

    #[cfg(test)]
    fn sample(layout: Layout, seed: &mut Seed) -> Self {
        seed.bool().then(|| Field::sample(layout, seed))
    }
}

impl<T: Field> Field for Vec<T> {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_array(layout.flexible, Some(self), |w, element| {
            element.encode(layout, w);
        });
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.array(layout.flexible, T::MIN_BYTES, |r| T::decode(layout, r))
    }

    #[cfg(test)]
    fn sample(layout: Layout, seed: &mut Seed) -> Self {
        (0..seed.count()).map(|_| T::sample(layout, seed)).collect()
    }
}

impl<T: Field> Field for Option<Vec<T>> {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_array(layout.flexible, self.as_deref(), |w, element| {
            element.encode(layout, w);
        });
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.nullable_array(layout.flexible, T::MIN_BYTES, |r| T::decode(layout, r))
    }

    #[cfg(test)]
    fn sample(layout: Layout, seed: &mut Seed) -> Self {
        seed.bool().then(|| Field::sample(layout, seed))
    }
}

/// Records of one partition as they came: a slice of the frame they were in. Null and empty are different on the
/// wire and both mean "no data" (some brokers send the one, some the other).
impl Field for Option<Bytes> {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_bytes(layout.flexible, self.as_ref().map(std::slice::from_ref));
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.nullable_bytes(layout.flexible)
    }

    #[cfg(test)]
    fn sample(_: Layout, seed: &mut Seed) -> Self {
        seed.bool().then(|| seed.bytes())
    }
}

/// Bytes that are never null: what a member of a group says, and is told.
impl Field for Bytes {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_bytes(layout.flexible, Some(std::slice::from_ref(self)));
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.bytes(layout.flexible)
    }

    #[cfg(test)]
    fn sample(_: Layout, seed: &mut Seed) -> Self {
        seed.bytes()
    }
}

/// Records of one partition in several pieces that are sent one behind the other without being copied: a new batch
/// header, say, and the untouched rest of the batch. Equal if the bytes are.
#[derive(Clone, Debug, Default)]
pub struct RecordSlices(pub Vec<Bytes>);

impl RecordSlices {
    /// Bytes in all pieces.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl PartialEq for RecordSlices {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().flatten().eq(other.0.iter().flatten())
    }
}

impl Eq for RecordSlices {}

impl Field for RecordSlices {
    fn encode(&self, layout: Layout, w: &mut Writer) {
        w.put_nullable_bytes(layout.flexible, Some(&self.0));
    }

    fn decode(layout: Layout, r: &mut Reader) -> Result<Self, DecodeError> {
        r.bytes(layout.flexible).map(|bytes| Self(vec![bytes]))
    }

    #[cfg(test)]
    fn sample(_: Layout, seed: &mut Seed) -> Self {
        Self(vec![seed.bytes()])
    }
}

/// The value of a field that a version does not have.
macro_rules! default_of {
    () => {
        Default::default()
    };
    ($value:expr) => {
        $value
    };
}

/// Declares a struct of the protocol: every field with the versions that have it, in wire order, and a default where
/// Kafka's schema has one that is not zero, empty or null. Fields of the `tagged` part are written only if they
/// differ from their default; unknown tags are read over.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( $(#[$fmeta:meta])* $field:ident: $ty:ty [$($range:tt)+] $(= $default:expr)?, )*
        }
        $(tagged {
            $( $(#[$tmeta:meta])* $tag:literal => $tfield:ident: $tty:ty [$($trange:tt)+] $(= $tdefault:expr)?, )+
        })?
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $( $(#[$fmeta])* pub $field: $ty, )*
            $($( $(#[$tmeta])* pub $tfield: $tty, )+)?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $crate::wire::schema::default_of!($($default)?), )*
                    $($( $tfield: $crate::wire::schema::default_of!($($tdefault)?), )+)?
                }
            }
        }

        impl $crate::wire::schema::Field for $name {
            fn encode(
                &self,
                layout: $crate::wire::schema::Layout,
                w: &mut $crate::wire::bounded::Writer,
            ) {
                $( if ($($range)+).contains(&layout.version) {
                    $crate::wire::schema::Field::encode(&self.$field, layout, w);
                } )*
                if layout.flexible {
                    $crate::wire::schema::put_tagged(w, [
                        $($( {
                            let default: $tty = $crate::wire::schema::default_of!($($tdefault)?);
                            (($($trange)+).contains(&layout.version) && self.$tfield != default).then(|| {
                                let mut value = $crate::wire::bounded::Writer::new();
                                $crate::wire::schema::Field::encode(&self.$tfield, layout, &mut value);
                                ($tag, value)
                            })
                        } ),+)?
                    ]);
                }
            }

            fn decode(
                layout: $crate::wire::schema::Layout,
                r: &mut $crate::wire::bounded::Reader,
            ) -> Result<Self, $crate::wire::bounded::DecodeError> {
                $( let $field = if ($($range)+).contains(&layout.version) {
                    r.at(concat!(stringify!($name), ".", stringify!($field)));
                    $crate::wire::schema::Field::decode(layout, r)?
                } else {
                    $crate::wire::schema::default_of!($($default)?)
                }; )*
                $($( let mut $tfield: $tty = $crate::wire::schema::default_of!($($tdefault)?); )+)?
                if layout.flexible {
                    r.at(concat!(stringify!($name), " (tagged fields)"));
                    for _ in 0..r.uvarint()? {
                        let (tag, value) = r.tagged()?;
                        match tag {
                            $($( $tag if ($($trange)+).contains(&layout.version) => {
                                $tfield = $crate::wire::schema::whole(layout, value)?;
                            } )+)?
                            _ => value.skip(),
                        }
                    }
                }
                Ok(Self { $( $field, )* $($( $tfield, )+)? })
            }

            #[cfg(test)]
            fn sample(layout: $crate::wire::schema::Layout, seed: &mut $crate::wire::schema::Seed) -> Self {
                Self {
                    $( $field: if ($($range)+).contains(&layout.version) {
                        $crate::wire::schema::Field::sample(layout, seed)
                    } else {
                        $crate::wire::schema::default_of!($($default)?)
                    }, )*
                    $($( $tfield: if layout.flexible && ($($trange)+).contains(&layout.version) {
                        $crate::wire::schema::Field::sample(layout, seed)
                    } else {
                        $crate::wire::schema::default_of!($($tdefault)?)
                    }, )+)?
                }
            }
        }
    };
}

/// Declares the pair of messages of one API. `throttled` if the response has a `throttle_time_ms`.
macro_rules! wire_api {
    (
        $name:literal key $key:literal, versions $min:literal..=$max:literal, flexible from $flexible:literal:
        $request:ident => $response:ident $($throttled:ident)?
    ) => {
        impl $crate::wire::schema::Message for $request {
            const VERSIONS: std::ops::RangeInclusive<i16> = $min..=$max;
            const FIRST_FLEXIBLE: i16 = $flexible;
        }

        impl $crate::wire::schema::Request for $request {
            const API_KEY: i16 = $key;
            const NAME: &'static str = $name;
            type Response = $response;
        }

        impl $crate::wire::schema::Message for $response {
            const VERSIONS: std::ops::RangeInclusive<i16> = $min..=$max;
            const FIRST_FLEXIBLE: i16 = $flexible;
            $($crate::wire::schema::wire_api!(@$throttled);)?
        }
    };
    (@throttled) => {
        fn throttle_time_ms(&self) -> i32 {
            self.throttle_time_ms
        }
    };
}

pub(crate) use {default_of, wire_api, wire_struct};

/// The tag section: the fields that differ from their defaults.
pub(crate) fn put_tagged<const N: usize>(w: &mut Writer, fields: [Option<(u32, Writer)>; N]) {
    w.put_tagged(fields.into_iter().flatten().collect());
}

/// A tagged field's value, which must take all its bytes.
pub(crate) fn whole<T: Field>(layout: Layout, mut value: Reader) -> Result<T, DecodeError> {
    let decoded = T::decode(layout, &mut value)?;
    value.finish()?;
    Ok(decoded)
}

/// Where sample values come from: a small generator, so that a failing sample can be made again.
#[cfg(test)]
#[derive(Debug)]
pub struct Seed(pub u64);

#[cfg(test)]
impl Seed {
    /// The next 64 bits (splitmix64).
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.next_bits() & 1 == 1
    }

    fn i8(&mut self) -> i8 {
        i8::from_le_bytes([self.next_bits().to_le_bytes()[0]])
    }

    fn i16(&mut self) -> i16 {
        i16::from_le_bytes(self.next_bits().to_le_bytes()[..2].try_into().unwrap())
    }

    fn i32(&mut self) -> i32 {
        i32::from_le_bytes(self.next_bits().to_le_bytes()[..4].try_into().unwrap())
    }

    fn i64(&mut self) -> i64 {
        self.next_bits().cast_signed()
    }

    fn uuid(&mut self) -> [u8; 16] {
        (u128::from(self.next_bits()) << 64 | u128::from(self.next_bits())).to_be_bytes()
    }

    fn count(&mut self) -> u64 {
        self.next_bits() % 4
    }

    fn bytes(&mut self) -> Bytes {
        let length = self.next_bits() % 400;
        (0..length)
            .map(|_| self.next_bits().to_le_bytes()[0])
            .collect()
    }
}
