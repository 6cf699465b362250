//! Reads the records of one batch, for comparing and re-encoding; the copy path never comes here.
//! Must not trust a number in the data: decompression is bounded by the caller's limit, counts and lengths by the bytes
//! that are there.
//!
//! Layout: `DefaultRecord` of Kafka. Compression framings: `Compression*` classes of Kafka, and what other clients write.

use std::io::{self, Read};

use bytes::{Buf, Bytes};
use thiserror::Error;

use super::batch::{RawBatch, SMALLEST_RECORD_BYTES};
use crate::domain::types::{BatchHeader, Codec};

/// First bytes of the Java client's snappy framing.
pub(super) const XERIAL_MAGIC: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
/// No snappy element gives more bytes for its own (64 for 3), so a block that claims more is lying.
const SNAPPY_MAX_RATIO: usize = 22;
/// A header has two length bytes at least.
const SMALLEST_HEADER_BYTES: usize = 2;

/// One record. Key, value and headers are slices of the (decompressed) batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Offset in its log.
    pub offset: i64,
    /// Milliseconds; that of the batch if the batch is LogAppendTime.
    pub timestamp: i64,
    /// Null and empty are different things.
    pub key: Option<Bytes>,
    /// Null (a tombstone on compacted topics) and empty are different things.
    pub value: Option<Bytes>,
    /// In their order, repeats included.
    pub headers: Vec<Header>,
}

/// One header of a record. Keys are kept as bytes: nothing makes a producer write UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Never null.
    pub key: Bytes,
    /// Null and empty are different things.
    pub value: Option<Bytes>,
}

/// Why the records of a batch cannot be read.
#[derive(Debug, Error)]
pub enum RecordsError {
    /// A codec number that Kafka has not defined.
    #[error("batch at offset {base_offset}: unknown codec {codec}")]
    UnknownCodec {
        /// Of the batch.
        base_offset: i64,
        /// Attribute bits 0 to 2.
        codec: i16,
    },
    /// The batch inflates beyond the limit, or one record has more headers than fit into it.
    #[error(
        "batch at offset {base_offset} of {size_bytes} bytes needs more than the limit of {limit} bytes to be read"
    )]
    TooLarge {
        /// Of the batch.
        base_offset: i64,
        /// Of the batch, as stored.
        size_bytes: usize,
        /// What the caller allowed.
        limit: usize,
    },
    /// The compressed bytes are damaged, or in a framing that is not known.
    #[error("batch at offset {base_offset}: cannot decompress ({codec:?})")]
    Decompress {
        /// Of the batch.
        base_offset: i64,
        /// Its codec.
        codec: Codec,
        /// What the codec says.
        #[source]
        source: io::Error,
    },
    /// The records do not follow the format.
    #[error("batch at offset {base_offset}: record {index}: {fault}")]
    Malformed {
        /// Of the batch.
        base_offset: i64,
        /// Which record, from 0; the record count if bytes follow the last one.
        index: usize,
        /// What is wrong.
        fault: RecordFault,
    },
}

/// What is wrong with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordFault {
    /// The bytes end before the record does.
    #[error("cut off")]
    CutOff,
    /// More bytes than the type can have.
    #[error("overlong variable-length number")]
    Varint,
    /// A length below zero where null is not allowed, or below -1.
    #[error("impossible length {length}")]
    Length {
        /// As read.
        length: i32,
    },
    /// Negative, or more than the record's bytes could hold.
    #[error("impossible header count {count}")]
    HeaderCount {
        /// As read.
        count: i32,
    },
    /// Not above the record before, or outside of the batch.
    #[error("offset delta {delta} out of order or outside of the batch")]
    OffsetDelta {
        /// As read.
        delta: i32,
    },
    /// Bytes are left inside the record's declared length, or behind the last record.
    #[error("{bytes} bytes too many")]
    Surplus {
        /// How many.
        bytes: usize,
    },
}

/// Iterates over the records of one batch. The first error is the last item.
#[derive(Clone, Debug)]
pub struct Records {
    header: BatchHeader,
    rest: Bytes,
    read: usize,
    count: usize,
    lowest_delta: i32,
    limit: usize,
    failed: bool,
}

impl Records {
    /// Opens a batch, decompressing its records into at most `max_bytes` (the codecs' own windows come on top: for zstd
    /// up to 128 MiB of address space, for lz4 up to 16 MiB).
    ///
    /// A collected `Vec<Record>` can take 20 times the bytes of the batch; take them one by one where that matters.
    pub fn new(batch: &RawBatch, max_bytes: usize) -> Result<Self, RecordsError> {
        let header = batch.header;
        let base_offset = header.base_offset;
        let codec = header
            .codec()
            .map_err(|codec| RecordsError::UnknownCodec { base_offset, codec })?;
        let payload = batch.payload();
        // The cleaner keeps the header of an emptied batch, and nothing behind it to decompress.
        let rest = if header.record_count == 0 && payload.is_empty() {
            payload
        } else {
            decompress(payload, codec, max_bytes).map_err(|error| match error {
                InflateError::TooLarge => RecordsError::TooLarge {
                    base_offset,
                    size_bytes: header.size_bytes,
                    limit: max_bytes,
                },
                InflateError::Io(source) => RecordsError::Decompress {
                    base_offset,
                    codec,
                    source,
                },
            })?
        };
        // The walk refuses negative counts; a header made elsewhere simply has no records.
        let count = usize::try_from(header.record_count).unwrap_or(0);
        Ok(Self {
            header,
            rest,
            read: 0,
            count,
            lowest_delta: 0,
            limit: max_bytes,
            failed: false,
        })
    }

    fn malformed(&self, fault: RecordFault) -> RecordsError {
        RecordsError::Malformed {
            base_offset: self.header.base_offset,
            index: self.read,
            fault,
        }
    }

    fn read_next(&mut self) -> Result<Option<Record>, RecordsError> {
        if self.read == self.count {
            return match self.rest.len() {
                0 => Ok(None),
                bytes => Err(self.malformed(RecordFault::Surplus { bytes })),
            };
        }
        let left = self.count.saturating_sub(self.read);
        if left.saturating_mul(SMALLEST_RECORD_BYTES) > self.rest.len() {
            return Err(self.malformed(RecordFault::CutOff));
        }
        match self.record() {
            Ok(record) => {
                self.read = self.read.saturating_add(1);
                Ok(Some(record))
            }
            Err(RecordStop::Fault(fault)) => Err(self.malformed(fault)),
            Err(RecordStop::TooManyHeaders) => Err(RecordsError::TooLarge {
                base_offset: self.header.base_offset,
                size_bytes: self.header.size_bytes,
                limit: self.limit,
            }),
        }
    }

    fn record(&mut self) -> Result<Record, RecordStop> {
        let mut body = take_bytes(&mut self.rest)?.ok_or(RecordFault::Length { length: -1 })?;
        let body = &mut body;
        let _attributes = body.try_get_i8().map_err(|_| RecordFault::CutOff)?;
        let timestamp_delta = take_varlong(body)?;
        let delta = take_varint(body)?;
        if delta < self.lowest_delta || delta > self.header.last_offset_delta {
            return Err(RecordFault::OffsetDelta { delta }.into());
        }
        self.lowest_delta = delta.saturating_add(1);
        let timestamp = if self.header.has(BatchHeader::LOG_APPEND_TIME) {
            self.header.max_timestamp
        } else {
            // Also with a delete horizon in the base timestamp: the cleaner writes the deltas against it
            // (`MemoryRecordsBuilder`). Java's long arithmetic wraps.
            self.header.base_timestamp.wrapping_add(timestamp_delta)
        };
        let key = take_bytes(body)?;
        let value = take_bytes(body)?;
        let headers = take_headers(body, self.limit)?;
        if !body.is_empty() {
            return Err(RecordFault::Surplus { bytes: body.len() }.into());
        }
        let offset = self.header.base_offset.saturating_add(i64::from(delta));
        Ok(Record {
            offset,
            timestamp,
            key,
            value,
            headers,
        })
    }
}

impl Iterator for Records {
    type Item = Result<Record, RecordsError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.read_next();
        self.failed = next.is_err();
        next.transpose()
    }
}

impl std::iter::FusedIterator for Records {}

enum RecordStop {
    Fault(RecordFault),
    TooManyHeaders,
}

impl From<RecordFault> for RecordStop {
    fn from(fault: RecordFault) -> Self {
        Self::Fault(fault)
    }
}

/// A header list costs far more memory than its bytes, so it is charged against the limit before it grows.
fn take_headers(body: &mut Bytes, limit: usize) -> Result<Vec<Header>, RecordStop> {
    let count = take_varint(body)?;
    let impossible = RecordFault::HeaderCount { count };
    let wanted = usize::try_from(count).map_err(|_| impossible)?;
    if wanted.saturating_mul(SMALLEST_HEADER_BYTES) > body.len() {
        return Err(impossible.into());
    }
    if wanted.saturating_mul(size_of::<Header>()) > limit {
        return Err(RecordStop::TooManyHeaders);
    }
    let mut headers = Vec::with_capacity(wanted);
    for _ in 0..wanted {
        let key = take_bytes(body)?.ok_or(RecordFault::Length { length: -1 })?;
        let value = take_bytes(body)?;
        headers.push(Header { key, value });
    }
    Ok(headers)
}

/// A length and that many bytes; -1 is null.
fn take_bytes(from: &mut Bytes) -> Result<Option<Bytes>, RecordFault> {
    let length = take_varint(from)?;
    if length == -1 {
        return Ok(None);
    }
    let bytes = usize::try_from(length).map_err(|_| RecordFault::Length { length })?;
    if bytes > from.len() {
        return Err(RecordFault::CutOff);
    }
    Ok(Some(from.split_to(bytes)))
}

/// At most five bytes (`ByteUtils.readVarint`); bits beyond the 32nd are refused.
fn take_varint(from: &mut Bytes) -> Result<i32, RecordFault> {
    let raw = u32::try_from(take_unsigned(from, 5)?).map_err(|_| RecordFault::Varint)?;
    Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

/// At most ten bytes (`ByteUtils.readVarlong`).
fn take_varlong(from: &mut Bytes) -> Result<i64, RecordFault> {
    let raw = take_unsigned(from, 10)?;
    Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

fn take_unsigned(from: &mut Bytes, max_bytes: u32) -> Result<u64, RecordFault> {
    let mut value = 0_u64;
    for place in 0..max_bytes {
        let byte = from.try_get_u8().map_err(|_| RecordFault::CutOff)?;
        let shift = place * 7;
        let part = u64::from(byte & 0x7f);
        let placed = part << shift;
        if placed >> shift != part {
            return Err(RecordFault::Varint);
        }
        value |= placed;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(RecordFault::Varint)
}

enum InflateError {
    TooLarge,
    Io(io::Error),
}

impl From<io::Error> for InflateError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

fn decompress(payload: Bytes, codec: Codec, max_bytes: usize) -> Result<Bytes, InflateError> {
    let mut out = Vec::new();
    match codec {
        // A slice of what the caller holds already: nothing to bound.
        Codec::None => return Ok(payload),
        // All members of a gzip file, not only the first: some producers flush by starting a new one.
        Codec::Gzip => drain(
            flate2::bufread::MultiGzDecoder::new(payload.as_ref()),
            &mut out,
            max_bytes,
        )?,
        Codec::Snappy => decompress_snappy(&payload, &mut out, max_bytes)?,
        Codec::Lz4 => {
            let mut rest = payload.as_ref();
            while !rest.is_empty() {
                // A decoder per frame: it reports an end at the end of each.
                drain(
                    lz4_flex::frame::FrameDecoder::new(&mut rest),
                    &mut out,
                    max_bytes,
                )?;
            }
        }
        // The decoder goes on with the next frame by itself.
        Codec::Zstd => drain(
            zstd::stream::read::Decoder::with_buffer(payload.as_ref())?,
            &mut out,
            max_bytes,
        )?,
    }
    Ok(Bytes::from(out))
}

/// Reads all of `from`, as long as `out` stays within `max_bytes`.
fn drain(from: impl Read, out: &mut Vec<u8>, max_bytes: usize) -> Result<(), InflateError> {
    let room = max_bytes.saturating_sub(out.len());
    let one_more = u64::try_from(room).unwrap_or(u64::MAX).saturating_add(1);
    from.take(one_more).read_to_end(out)?;
    if out.len() > max_bytes {
        Err(InflateError::TooLarge)
    } else {
        Ok(())
    }
}

/// One raw block (librdkafka and others), or the Java client's framing: magic, version, oldest compatible version, then
/// blocks with their lengths; streams may follow each other, each with its own magic and versions.
fn decompress_snappy(
    payload: &[u8],
    out: &mut Vec<u8>,
    max_bytes: usize,
) -> Result<(), InflateError> {
    if !payload.starts_with(&XERIAL_MAGIC) {
        return snappy_block(payload, out, max_bytes);
    }
    let cut_off = || io::Error::new(io::ErrorKind::UnexpectedEof, "snappy framing cut off");
    let mut rest = payload;
    while !rest.is_empty() {
        if let Some(mut versions) = rest.strip_prefix(&XERIAL_MAGIC) {
            // `SnappyInputStream` reads any version from 1 on.
            let version = versions.try_get_i32().map_err(|_| cut_off())?;
            let _compatible = versions.try_get_i32().map_err(|_| cut_off())?;
            if version < 1 {
                return Err(io::Error::other(format!(
                    "unknown version {version} of the snappy framing"
                ))
                .into());
            }
            rest = versions;
            continue;
        }
        let length = rest.try_get_i32().map_err(|_| cut_off())?;
        let length = usize::try_from(length)
            .map_err(|_| io::Error::other("negative length of a snappy block"))?;
        let (block, behind) = rest.split_at_checked(length).ok_or_else(cut_off)?;
        snappy_block(block, out, max_bytes)?;
        rest = behind;
    }
    Ok(())
}

fn snappy_block(block: &[u8], out: &mut Vec<u8>, max_bytes: usize) -> Result<(), InflateError> {
    let claimed = snap::raw::decompress_len(block).map_err(io::Error::from)?;
    if claimed > block.len().saturating_mul(SNAPPY_MAX_RATIO) {
        return Err(io::Error::other(format!(
            "snappy block claims {claimed} bytes for its {}",
            block.len()
        ))
        .into());
    }
    let start = out.len();
    let end = start.saturating_add(claimed);
    if end > max_bytes {
        return Err(InflateError::TooLarge);
    }
    out.resize(end, 0);
    let written = snap::raw::Decoder::new()
        .decompress(block, out.get_mut(start..).unwrap_or_default())
        .map_err(io::Error::from)?;
    out.truncate(start.saturating_add(written));
    Ok(())
}
