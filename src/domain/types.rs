//! The words of the field as types. Must not hold decisions.
//!
//! Offsets are plain `i64` everywhere; the *name* of an offset says whose it is and whether it is inclusive:
//! `_end` is always the next offset (exclusive), `_start` and `_offset` are inclusive.

use std::fmt;
use std::sync::Arc;

/// A broker's `node.id` within one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BrokerId(pub i32);

impl fmt::Display for BrokerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A leader epoch of one partition; -1 where a broker does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaderEpoch(pub i32);

impl LeaderEpoch {
    /// "Not known", as the protocol spells it.
    pub const NONE: Self = Self(-1);
}

impl fmt::Display for LeaderEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A producer id; -1 for a producer that is not idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerId(pub i64);

impl ProducerId {
    /// "No producer id", as the protocol spells it.
    pub const NONE: Self = Self(-1);
}

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A producer epoch; -1 for a producer that is not idempotent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerEpoch(pub i16);

impl fmt::Display for ProducerEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The sequence number of a record under a producer id. Wraps from 2^31-1 to 0
/// (`DefaultRecordBatch.incrementSequence`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(pub i32);

impl Sequence {
    /// The sequence that a log without holes gives to the record at `offset`, if sequences began with offsets.
    pub fn of_offset(offset: i64) -> Self {
        Self(i32::try_from(offset.rem_euclid(i64::from(i32::MAX) + 1)).unwrap_or(0))
    }

    /// The sequence `count` records further on.
    pub fn plus(self, count: u32) -> Self {
        let sum = (i64::from(self.0) + i64::from(count)) % (i64::from(i32::MAX) + 1);
        // The remainder of a division by 2^31 fits an i32; a negative base sequence is never advanced.
        Self(i32::try_from(sum).unwrap_or(0))
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A topic id (KIP-516); all zero where a broker does not know ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// True where the broker gave no id (before Kafka 2.8).
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for TopicId {
    /// URL-safe base64 without padding, as Kafka's tools print it (`Uuid.toString`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let number = u128::from_be_bytes(self.0);
        // 22 letters of 6 bits: the last one carries 2 bits of the id and 4 zeros.
        for letter in 0..22_u32 {
            let bits = match 122_u32.checked_sub(letter * 6) {
                Some(shift) => number >> shift,
                None => number << 4,
            };
            let place = usize::try_from(bits & 63).unwrap_or_default();
            write!(
                f,
                "{}",
                char::from(ALPHABET.get(place).copied().unwrap_or(b'?'))
            )?;
        }
        Ok(())
    }
}

/// One partition of one topic. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's index, from 0.
    pub partition: i32,
}

impl TopicPartition {
    /// The partition `partition` of `topic`.
    pub fn new(topic: &str, partition: i32) -> Self {
        Self {
            topic: Arc::from(topic),
            partition,
        }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

/// The five codecs of record batches, by the numbers of attribute bits 0 to 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// 0: not compressed.
    None,
    /// 1: gzip.
    Gzip,
    /// 2: snappy, raw or in the Java client's block framing.
    Snappy,
    /// 3: lz4 frames.
    Lz4,
    /// 4: zstd.
    Zstd,
}

/// The 61-byte header of a record batch of format 2 (`DefaultRecordBatch`), without its length and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the batch's first record, as its log says.
    pub base_offset: i64,
    /// Leader epoch under which the batch was appended to its log.
    pub partition_leader_epoch: LeaderEpoch,
    /// Raw attributes: codec (bits 0-2), timestamp type (3), transactional (4), control (5), delete horizon (6).
    pub attributes: i16,
    /// Distance of the last offset of the batch from the first; compaction keeps it.
    pub last_offset_delta: i32,
    /// Timestamp of the first record, in milliseconds (or the delete horizon if bit 6 is set).
    pub base_timestamp: i64,
    /// The largest timestamp in the batch, in milliseconds.
    pub max_timestamp: i64,
    /// Who produced it.
    pub producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record, -1 if not idempotent.
    pub base_sequence: i32,
    /// How many records the batch says it holds.
    pub record_count: i32,
    /// Bytes of the whole batch, header included.
    pub size_bytes: usize,
}

impl BatchHeader {
    /// Bits 0 to 2.
    pub const CODEC_MASK: i16 = 0x07;
    /// Bit 3: the timestamps are the broker's (LogAppendTime).
    pub const LOG_APPEND_TIME: i16 = 0x08;
    /// Bit 4: part of a transaction.
    pub const TRANSACTIONAL: i16 = 0x10;
    /// Bit 5: control records, which no consumer is shown.
    pub const CONTROL: i16 = 0x20;
    /// Bit 6: the base timestamp is a delete horizon (KIP-534).
    pub const DELETE_HORIZON: i16 = 0x40;

    /// Offset of the last record position of the batch, inclusive.
    pub fn last_offset(&self) -> i64 {
        self.base_offset
            .saturating_add(i64::from(self.last_offset_delta))
    }

    /// The next offset after the batch.
    pub fn end_offset(&self) -> i64 {
        self.last_offset().saturating_add(1)
    }

    /// True if attribute `bit` is set.
    pub fn has(&self, bit: i16) -> bool {
        self.attributes & bit != 0
    }

    /// The codec, or the unknown number.
    pub fn codec(&self) -> Result<Codec, i16> {
        match self.attributes & Self::CODEC_MASK {
            0 => Ok(Codec::None),
            1 => Ok(Codec::Gzip),
            2 => Ok(Codec::Snappy),
            3 => Ok(Codec::Lz4),
            4 => Ok(Codec::Zstd),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_ids_read_as_kafkas_tools_print_them() {
        // `Uuid.ONE_UUID`, and the zero-based counting pattern by another base64.
        let mut one = [0; 16];
        one[15] = 1;
        let counting: [u8; 16] = std::array::from_fn(|index| u8::try_from(index * 17).unwrap());
        for (id, shown) in [
            (one, "AAAAAAAAAAAAAAAAAAAAAQ"),
            (counting, "ABEiM0RVZneImaq7zN3u_w"),
        ] {
            assert_eq!(TopicId(id).to_string(), shown);
        }
    }
}
