//! Walks record batches of format 2 by their 61-byte headers, and gives them a new header for Produce.
//! Must not look into the records (see [`super::records`]) and must not copy them.
//!
//! Layout and CRC range: `DefaultRecordBatch` of Kafka. Base offset, length, leader epoch and magic lie outside the CRC,
//! which is a CRC-32C of everything from the attributes to the end.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::domain::types::{BatchHeader, LeaderEpoch, ProducerEpoch, ProducerId, Sequence};

/// Bytes of a batch before its first record.
pub const HEADER_BYTES: usize = 61;
/// The record format this program reads and writes.
pub const MAGIC: i8 = 2;

/// Base offset and length: the bytes that the length field does not count.
const LENGTH_PREFIX_BYTES: usize = 12;
/// Bytes up to and including the magic, which sits at the same place in all formats.
const BYTES_TO_MAGIC: usize = 17;
/// First byte under the CRC.
const CRC_START: usize = 21;
/// A message of format 0 counts at least this many bytes (`LegacyRecord.RECORD_OVERHEAD_V0`).
const SMALLEST_LEGACY_LENGTH: usize = 14;
/// Length, attributes, two deltas, key length, value length and header count take one byte each at least.
pub(super) const SMALLEST_RECORD_BYTES: usize = 7;

/// One complete batch as its log holds it. Cheap to clone; shares the frame's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawBatch {
    /// The parsed header.
    pub header: BatchHeader,
    /// The whole batch, header included, as a slice of the buffer it was read from.
    pub bytes: Bytes,
}

impl RawBatch {
    /// What follows the header: the records, compressed as [`BatchHeader::codec`] says.
    pub fn payload(&self) -> Bytes {
        self.bytes.slice(HEADER_BYTES.min(self.bytes.len())..)
    }

    /// The CRC-32C that the header carries; the walk has compared it with the bytes.
    pub fn crc(&self) -> u32 {
        self.bytes
            .get(BYTES_TO_MAGIC..)
            .and_then(|mut field| field.try_get_u32().ok())
            .unwrap_or(0)
    }
}

/// Why a batch cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BatchFault {
    /// The length field is negative or smaller than a header.
    #[error("impossible batch length {length}")]
    Length {
        /// The length field, which counts the bytes behind itself.
        length: i32,
    },
    /// A message set of format 0 or 1 (before Kafka 0.11), which this program does not convert.
    #[error("record format {magic} not supported")]
    LegacyFormat {
        /// 0 or 1.
        magic: i8,
    },
    /// A format that is not known: newer than 2, or damaged bytes.
    #[error("unknown record format {magic}")]
    UnknownFormat {
        /// The magic byte.
        magic: i8,
    },
    /// Larger than the caller takes.
    #[error("batch of {size_bytes} bytes is larger than the limit of {limit_bytes} bytes")]
    TooLarge {
        /// Bytes of the whole batch.
        size_bytes: usize,
        /// The limit given to the walk.
        limit_bytes: usize,
    },
    /// The bytes are not those that were written. Fetching again may bring good ones.
    #[error("CRC mismatch: the header says {stored:#010x}, the bytes give {computed:#010x}")]
    Crc {
        /// From the header.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// Negative, or so large that the batch would end behind the largest offset.
    #[error("impossible offsets: base offset {base_offset}, last offset delta {last_offset_delta}")]
    Offsets {
        /// From the header.
        base_offset: i64,
        /// From the header.
        last_offset_delta: i32,
    },
    /// Negative, more than the batch has offsets, or more than its bytes could hold.
    #[error(
        "impossible record count {record_count} for last offset delta {last_offset_delta} and {payload_bytes} bytes"
    )]
    RecordCount {
        /// From the header.
        record_count: i32,
        /// From the header.
        last_offset_delta: i32,
        /// Bytes behind the header.
        payload_bytes: usize,
    },
}

/// A fault, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("batch at offset {base_offset} (byte {position}): {fault}")]
pub struct BatchError {
    /// Base offset as the bytes say; under a CRC fault it proves nothing.
    pub base_offset: i64,
    /// First byte of the batch in the buffer.
    pub position: usize,
    /// What is wrong.
    pub fault: BatchFault,
}

/// The last batch of a buffer was not there as a whole, which is normal: the broker cuts at the fetch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// How many bytes of it are there.
    pub available_bytes: usize,
    /// How many it has in all, at most the walk's limit; `None` if even its length was cut off.
    /// If it is also the first batch of the answer, the fetch size must grow to this.
    pub wanted_bytes: Option<usize>,
}

/// Iterates over the batches of one buffer.
///
/// Good batches before a bad one are yielded; the bad one is the last item. A cut-off batch ends the walk without an
/// error and shows up in [`Batches::cut_off`].
#[derive(Clone, Debug)]
pub struct Batches {
    rest: Bytes,
    position: usize,
    limit_bytes: usize,
    cut_off: Option<CutOff>,
}

impl Batches {
    /// Walks `buffer`; a batch larger than `limit_bytes`, header included, is an error also if it is cut off.
    pub fn new(buffer: Bytes, limit_bytes: usize) -> Self {
        Self {
            rest: buffer,
            position: 0,
            limit_bytes,
            cut_off: None,
        }
    }

    /// After the walk: the batch that was not complete, if any. After an error: `None`.
    pub fn cut_off(&self) -> Option<CutOff> {
        self.cut_off
    }

    fn stop_at_cut(&mut self, wanted_bytes: Option<usize>) {
        self.cut_off = Some(CutOff {
            available_bytes: self.rest.len(),
            wanted_bytes,
        });
        self.rest.clear();
    }

    /// The size of the batch in front if all of it is there.
    fn complete_size(&mut self) -> Result<Option<usize>, BatchFault> {
        let mut front: &[u8] = &self.rest;
        let (Ok(_base_offset), Ok(length)) = (front.try_get_i64(), front.try_get_i32()) else {
            self.stop_at_cut(None);
            return Ok(None);
        };
        let counted = usize::try_from(length).map_err(|_| BatchFault::Length { length })?;
        if counted < SMALLEST_LEGACY_LENGTH {
            return Err(BatchFault::Length { length });
        }
        // The magic comes before any other check: what the rest means depends on it.
        if let (Ok(_leader_epoch), Ok(magic)) = (front.try_get_i32(), front.try_get_i8()) {
            match magic {
                MAGIC => {}
                0 | 1 => return Err(BatchFault::LegacyFormat { magic }),
                _ => return Err(BatchFault::UnknownFormat { magic }),
            }
            if counted < HEADER_BYTES - LENGTH_PREFIX_BYTES {
                return Err(BatchFault::Length { length });
            }
        }
        let size_bytes = counted.saturating_add(LENGTH_PREFIX_BYTES);
        if size_bytes > self.limit_bytes {
            return Err(BatchFault::TooLarge {
                size_bytes,
                limit_bytes: self.limit_bytes,
            });
        }
        if self.rest.len() < size_bytes {
            self.stop_at_cut(Some(size_bytes));
            return Ok(None);
        }
        Ok(Some(size_bytes))
    }

    fn step(&mut self) -> Result<Option<RawBatch>, BatchFault> {
        let Some(size_bytes) = self.complete_size()? else {
            return Ok(None);
        };
        let Some((header, stored)) = parse_header(&self.rest, size_bytes) else {
            // Not reachable: a complete batch is never shorter than its header.
            return Err(BatchFault::Length { length: 0 });
        };
        let covered = self.rest.get(CRC_START..size_bytes).unwrap_or_default();
        let computed = crc32c::crc32c(covered);
        if computed != stored {
            return Err(BatchFault::Crc { stored, computed });
        }
        check_header(&header)?;
        let bytes = self.rest.split_to(size_bytes);
        self.position = self.position.saturating_add(size_bytes);
        Ok(Some(RawBatch { header, bytes }))
    }
}

impl Iterator for Batches {
    type Item = Result<RawBatch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        match self.step() {
            Ok(batch) => batch.map(Ok),
            Err(fault) => {
                let base_offset = self.rest.try_get_i64().unwrap_or(-1);
                self.rest.clear();
                Some(Err(BatchError {
                    base_offset,
                    position: self.position,
                    fault,
                }))
            }
        }
    }
}

impl std::iter::FusedIterator for Batches {}

/// Reads the header in front of `bytes`, and its CRC.
fn parse_header(mut bytes: &[u8], size_bytes: usize) -> Option<(BatchHeader, u32)> {
    let buf = &mut bytes;
    let base_offset = buf.try_get_i64().ok()?;
    let _length = buf.try_get_i32().ok()?;
    let partition_leader_epoch = LeaderEpoch(buf.try_get_i32().ok()?);
    let _magic = buf.try_get_i8().ok()?;
    let crc = buf.try_get_u32().ok()?;
    let header = BatchHeader {
        base_offset,
        partition_leader_epoch,
        attributes: buf.try_get_i16().ok()?,
        last_offset_delta: buf.try_get_i32().ok()?,
        base_timestamp: buf.try_get_i64().ok()?,
        max_timestamp: buf.try_get_i64().ok()?,
        producer_id: ProducerId(buf.try_get_i64().ok()?),
        producer_epoch: ProducerEpoch(buf.try_get_i16().ok()?),
        base_sequence: buf.try_get_i32().ok()?,
        record_count: buf.try_get_i32().ok()?,
        size_bytes,
    };
    Some((header, crc))
}

/// What must hold for any batch, whatever its records are.
fn check_header(header: &BatchHeader) -> Result<(), BatchFault> {
    let BatchHeader {
        base_offset,
        last_offset_delta,
        record_count,
        ..
    } = *header;
    // The end offset, one behind the last, must exist too.
    let end = base_offset
        .checked_add(i64::from(last_offset_delta))
        .and_then(|last| last.checked_add(1));
    if base_offset < 0 || last_offset_delta < 0 || end.is_none() {
        return Err(BatchFault::Offsets {
            base_offset,
            last_offset_delta,
        });
    }
    let payload_bytes = header.size_bytes.saturating_sub(HEADER_BYTES);
    let impossible = BatchFault::RecordCount {
        record_count,
        last_offset_delta,
        payload_bytes,
    };
    let Ok(count) = usize::try_from(record_count) else {
        return Err(impossible);
    };
    // A bare header (count 0) is what compaction leaves of a batch whose producer must be remembered.
    let too_many_for_offsets = i64::from(record_count) > i64::from(last_offset_delta) + 1;
    let uncompressed = header.attributes & BatchHeader::CODEC_MASK == 0;
    let too_many_for_bytes =
        uncompressed && count.saturating_mul(SMALLEST_RECORD_BYTES) > payload_bytes;
    if too_many_for_offsets || too_many_for_bytes {
        return Err(impossible);
    }
    Ok(())
}

/// Whose batch it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp {
    /// The producer id to write.
    pub producer_id: ProducerId,
    /// Its epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the batch's first record.
    pub base_sequence: Sequence,
}

/// The batch under a new header, ready for Produce: header and untouched payload, which is not copied.
///
/// Base offset 0 (so that the broker does not recompress) and leader epoch -1, as producers send them. Of the
/// attributes only the codec stays: a data batch is neither transactional nor control for the destination, and record
/// times are base timestamp plus delta whether or not the base was a delete horizon (KIP-534). A LogAppendTime batch
/// must be re-encoded instead, since its records' times are in no delta.
pub fn rewrite_header(batch: &RawBatch, stamp: &ProducerStamp) -> [Bytes; 2] {
    let payload = batch.payload();
    let header = BatchHeader {
        base_offset: 0,
        partition_leader_epoch: LeaderEpoch::NONE,
        attributes: batch.header.attributes & BatchHeader::CODEC_MASK,
        producer_id: stamp.producer_id,
        producer_epoch: stamp.producer_epoch,
        base_sequence: stamp.base_sequence.0,
        ..batch.header
    };
    [write_header(&header, &payload), payload]
}

/// The 61 bytes in front of `payload`, with length and CRC; `header.size_bytes` is not used.
pub(super) fn write_header(header: &BatchHeader, payload: &[u8]) -> Bytes {
    let mut covered = BytesMut::with_capacity(HEADER_BYTES - CRC_START);
    covered.put_i16(header.attributes);
    covered.put_i32(header.last_offset_delta);
    covered.put_i64(header.base_timestamp);
    covered.put_i64(header.max_timestamp);
    covered.put_i64(header.producer_id.0);
    covered.put_i16(header.producer_epoch.0);
    covered.put_i32(header.base_sequence);
    covered.put_i32(header.record_count);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&covered), payload);

    let counted = payload
        .len()
        .saturating_add(HEADER_BYTES - LENGTH_PREFIX_BYTES);
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES);
    bytes.put_i64(header.base_offset);
    // A payload that was read from a batch fits, and `encode_batch` refuses a larger one.
    bytes.put_i32(i32::try_from(counted).unwrap_or(i32::MAX));
    bytes.put_i32(header.partition_leader_epoch.0);
    bytes.put_i8(MAGIC);
    bytes.put_u32(crc);
    bytes.put_slice(&covered);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::domain::types::Codec;
    use crate::wire::encode::{BatchOptions, encode_batch};
    use crate::wire::records::Records;
    use crate::wire::records::tests::{fixture, same_records, some_records};

    const LIMIT: usize = 1 << 20;

    fn walk(bytes: Bytes) -> (Vec<RawBatch>, Option<BatchError>, Option<CutOff>) {
        let mut batches = Batches::new(bytes, LIMIT);
        let mut good = Vec::new();
        let mut bad = None;
        for item in batches.by_ref() {
            assert!(bad.is_none(), "an error is the last item");
            match item {
                Ok(batch) => good.push(batch),
                Err(error) => bad = Some(error),
            }
        }
        (good, bad, batches.cut_off())
    }

    fn plain(base_offset: i64) -> Bytes {
        encode_batch(
            &some_records(base_offset, 3),
            base_offset,
            &BatchOptions::plain(Codec::None),
        )
        .unwrap()
    }

    /// Replaces bytes, then makes the CRC right again.
    fn patched(batch: &Bytes, at: usize, with: &[u8]) -> Bytes {
        let mut bytes = batch.to_vec();
        bytes[at..at + with.len()].copy_from_slice(with);
        let crc = crc32c::crc32c(&bytes[CRC_START..]);
        bytes[BYTES_TO_MAGIC..CRC_START].copy_from_slice(&crc.to_be_bytes());
        bytes.into()
    }

    #[test]
    fn fixtures_that_a_walk_accepts() {
        // name, base offset, end offset, record count, attributes
        for (name, base, end, count, attributes) in [
            ("F01_gap_inside_batch", 0, 4, 2, 0x00),
            ("F02_empty_batch", 10, 15, 0, 0x00),
            ("F03_control_abort", 20, 21, 1, 0x30),
            ("F04_control_commit", 21, 22, 1, 0x30),
            ("F06_dup_headers", 40, 41, 1, 0x00),
            ("F07_null_vs_empty_header", 50, 53, 3, 0x00),
            ("F08_ts_delta_over_i32", 60, 62, 2, 0x00),
            ("F09_log_append_time", 70, 72, 2, 0x08),
            ("F13_num_headers_huge", 110, 111, 1, 0x00),
            ("F18_codec_unknown_7", 150, 151, 1, 0x07),
            ("F19_gzip_two_members", 160, 162, 2, 0x01),
            ("F20_snappy_xerial_two_blocks", 170, 172, 2, 0x02),
        ] {
            let bytes = fixture(name);
            let (good, bad, cut) = walk(bytes.clone());
            assert_eq!((bad, cut), (None, None), "{name}");
            assert_eq!(good.len(), 1, "{name}");
            let header = good[0].header;
            assert_eq!(
                (
                    header.base_offset,
                    header.end_offset(),
                    header.record_count,
                    header.attributes
                ),
                (base, end, count, attributes),
                "{name}"
            );
            assert_eq!(header.size_bytes, bytes.len(), "{name}");
            assert_eq!(good[0].bytes, bytes, "{name}");
            assert_eq!(good[0].crc().to_be_bytes(), bytes[17..21], "{name}");
        }
    }

    #[test]
    fn fixtures_that_a_walk_refuses() {
        let count = |record_count, payload_bytes| BatchFault::RecordCount {
            record_count,
            last_offset_delta: 0,
            payload_bytes,
        };
        for (name, base_offset, fault) in [
            (
                "F11_bad_crc",
                90,
                BatchFault::Crc {
                    stored: 0xe99b_8dd9,
                    computed: 0xe99b_8dd8,
                },
            ),
            ("F12_count_i32max", 100, count(i32::MAX, 1)),
            ("F14_negative_count", 120, count(-2, 0)),
            (
                "F15_negative_batch_len",
                130,
                BatchFault::Length { length: -1 },
            ),
            ("F16_magic3", 80, BatchFault::UnknownFormat { magic: 3 }),
        ] {
            // A good batch in front is still yielded, and nothing behind the bad one is.
            let front = plain(5);
            let position = front.len();
            let (good, bad, cut) = walk([front, fixture(name), plain(1000)].concat().into());
            assert_eq!(good.len(), 1, "{name}");
            assert_eq!(
                bad,
                Some(BatchError {
                    base_offset,
                    position,
                    fault
                }),
                "{name}"
            );
            assert_eq!(cut, None, "{name}");
        }
    }

    #[test]
    fn a_cut_off_last_batch_is_no_error() {
        let bytes = fixture("F17_partial_trailing");
        let (good, bad, cut) = walk(bytes.clone());
        assert_eq!((good.len(), bad), (1, None));
        assert_eq!(good[0].header.end_offset(), 141);
        let available_bytes = bytes.len() - good[0].bytes.len();
        assert_eq!(
            cut,
            Some(CutOff {
                available_bytes,
                wanted_bytes: Some(0x7c + 12)
            })
        );
    }

    #[test]
    fn message_sets_of_older_formats_are_named() {
        // offset 7, size 20 (smaller than a header of format 2), CRC, magic
        for magic in [0_i8, 1] {
            let mut bytes = BytesMut::new();
            bytes.put_i64(7);
            bytes.put_i32(20);
            bytes.put_i32(0);
            bytes.put_i8(magic);
            bytes.put_bytes(0, 15);
            let (good, bad, _) = walk([bytes.freeze(), plain(8)].concat().into());
            assert!(good.is_empty());
            let error = bad.unwrap();
            assert_eq!(error.fault, BatchFault::LegacyFormat { magic });
            assert_eq!(error.base_offset, 7);
            assert!(
                error
                    .to_string()
                    .contains(&format!("record format {magic} not supported"))
            );
        }
    }

    #[test]
    fn impossible_headers_under_a_right_crc() {
        let batch = plain(5);
        let offsets = |base_offset, last_offset_delta| BatchFault::Offsets {
            base_offset,
            last_offset_delta,
        };
        let payload_bytes = batch.len() - HEADER_BYTES;
        let count = |record_count, last_offset_delta| BatchFault::RecordCount {
            record_count,
            last_offset_delta,
            payload_bytes,
        };
        let many = patched(&batch, 23, &99_999_i32.to_be_bytes());
        for (bytes, fault) in [
            (patched(&batch, 0, &(-1_i64).to_be_bytes()), offsets(-1, 2)),
            (
                patched(&batch, 0, &(i64::MAX - 2).to_be_bytes()),
                offsets(i64::MAX - 2, 2),
            ),
            (patched(&batch, 23, &(-1_i32).to_be_bytes()), offsets(5, -1)),
            (patched(&batch, 57, &4_i32.to_be_bytes()), count(4, 2)),
            (
                patched(&many, 57, &100_000_i32.to_be_bytes()),
                count(100_000, 99_999),
            ),
            (
                patched(&batch, 8, &48_i32.to_be_bytes()),
                BatchFault::Length { length: 48 },
            ),
            (
                patched(&batch, 8, &13_i32.to_be_bytes()),
                BatchFault::Length { length: 13 },
            ),
        ] {
            assert_eq!(walk(bytes).1.unwrap().fault, fault);
        }
        let size_bytes = batch.len();
        let mut small = Batches::new(batch.slice(..30), size_bytes - 1);
        assert_eq!(
            small.next().unwrap().unwrap_err().fault,
            BatchFault::TooLarge {
                size_bytes,
                limit_bytes: size_bytes - 1
            }
        );
        assert_eq!(small.next(), None);
    }

    #[test]
    fn a_stamp_on_a_delete_horizon_keeps_the_times() {
        let records = some_records(100, 4);
        let options = BatchOptions {
            flags: BatchHeader::DELETE_HORIZON | BatchHeader::TRANSACTIONAL,
            base_timestamp: Some(9_999_999),
            ..BatchOptions::plain(Codec::Lz4)
        };
        let batch = walk(encode_batch(&records, 100, &options).unwrap())
            .0
            .remove(0);
        let stamp = ProducerStamp {
            producer_id: ProducerId(7),
            producer_epoch: ProducerEpoch(3),
            base_sequence: Sequence(11),
        };
        let rewritten = walk(rewrite_header(&batch, &stamp).concat().into())
            .0
            .remove(0);
        assert_eq!(rewritten.header.attributes, 3);
        let times = |batch| {
            Records::new(batch, LIMIT)
                .unwrap()
                .map(|r| r.unwrap().timestamp)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            times(&rewritten),
            records.iter().map(|r| r.timestamp).collect::<Vec<_>>()
        );
    }

    proptest! {
        #[test]
        fn a_cut_anywhere_yields_the_whole_batches(counts in prop::collection::vec(0_usize..5, 1..6), cut in 0.0..1.0_f64) {
            let mut all = Vec::new();
            let mut ends = Vec::new();
            let mut offset = 0;
            for count in counts {
                let options = BatchOptions { last_offset_delta: Some(9), ..BatchOptions::plain(Codec::None) };
                all.extend_from_slice(&encode_batch(&some_records(offset, count), offset, &options).unwrap());
                ends.push(all.len());
                offset += 10;
            }
            let cut = (0..=all.len()).rev().find(|n| f64::from(u32::try_from(*n).unwrap()) <= cut * f64::from(u32::try_from(all.len()).unwrap())).unwrap();
            let (good, bad, cut_off) = walk(Bytes::copy_from_slice(&all[..cut]));
            prop_assert_eq!(bad, None);
            let whole: Vec<_> = ends.iter().filter(|end| **end <= cut).collect();
            prop_assert_eq!(good.len(), whole.len());
            let done = whole.last().map_or(0, |end| **end);
            let expected = (done < cut).then(|| CutOff {
                available_bytes: cut - done,
                wanted_bytes: (cut - done >= 12).then(|| ends[whole.len()] - done),
            });
            prop_assert_eq!(cut_off, expected);
        }

        #[test]
        fn a_new_header_changes_only_what_it_should(
            count in 1_usize..20, producer_id in 0_i64.., epoch in 0_i16.., sequence in 0_i32..,
            codec in crate::wire::records::tests::any_codec(),
        ) {
            let options = BatchOptions {
                flags: BatchHeader::TRANSACTIONAL,
                partition_leader_epoch: LeaderEpoch(5),
                producer_id: ProducerId(1),
                ..BatchOptions::plain(codec)
            };
            let bytes = encode_batch(&some_records(500, count), 500, &options).unwrap();
            let batch = walk(bytes.clone()).0.remove(0);
            let stamp = ProducerStamp {
                producer_id: ProducerId(producer_id),
                producer_epoch: ProducerEpoch(epoch),
                base_sequence: Sequence(sequence),
            };
            let [header, payload] = rewrite_header(&batch, &stamp);
            prop_assert_eq!(payload.as_ptr(), batch.bytes[HEADER_BYTES..].as_ptr(), "the payload was copied");
            let (good, bad, cut) = walk([header, payload].concat().into());
            prop_assert_eq!((bad, cut), (None, None));
            let new = good[0].header;
            prop_assert_eq!(new, BatchHeader {
                base_offset: 0,
                partition_leader_epoch: LeaderEpoch::NONE,
                attributes: batch.header.attributes & 7,
                producer_id: ProducerId(producer_id),
                producer_epoch: ProducerEpoch(epoch),
                base_sequence: sequence,
                ..batch.header
            });
            prop_assert_eq!(same_records(&good[0], 500), same_records(&batch, 0));
        }

        #[test]
        fn any_bytes_are_walked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            walk(bytes.into());
        }
    }
}
