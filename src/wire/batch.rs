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
