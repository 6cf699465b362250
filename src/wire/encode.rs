//! Writes record batches of format 2: for the few batches that cannot be copied as they are, and for tests.
//! Must not decide what goes into a batch.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use thiserror::Error;

use super::batch::{HEADER_BYTES, write_header};
use super::records::{Record, XERIAL_MAGIC};
use crate::domain::types::{BatchHeader, Codec, LeaderEpoch, ProducerEpoch, ProducerId};

/// Block size of the Java client's snappy framing (`CompressionType.SNAPPY` of Kafka).
const XERIAL_BLOCK_BYTES: usize = 32 * 1024;

/// What a batch says apart from its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// How the records are compressed.
    pub codec: Codec,
    /// Attribute bits other than the codec's; those of the codec are ignored.
    pub flags: i16,
    /// Leader epoch; [`LeaderEpoch::NONE`] in a Produce.
    pub partition_leader_epoch: LeaderEpoch,
    /// Who produces.
    pub producer_id: ProducerId,
    /// The producer's epoch.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record, -1 if not idempotent.
    pub base_sequence: i32,
    /// Where the batch ends if not at its last record: what compaction leaves behind.
    pub last_offset_delta: Option<i32>,
    /// The base timestamp if not that of the first record: the delete horizon.
    pub base_timestamp: Option<i64>,
    /// The largest timestamp if not that of the records: a LogAppendTime.
    pub max_timestamp: Option<i64>,
}

impl BatchOptions {
    /// A plain batch of a producer that is not idempotent.
    pub fn plain(codec: Codec) -> Self {
        Self {
            codec,
            flags: 0,
            partition_leader_epoch: LeaderEpoch::NONE,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch(-1),
            base_sequence: -1,
            last_offset_delta: None,
            base_timestamp: None,
            max_timestamp: None,
        }
    }
}

/// Why records do not make a batch.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// Offsets must rise from the base offset on and stay within the batch.
    #[error(
        "record offset {offset} does not fit into a batch of offsets {base_offset} to {last_offset}"
    )]
    Offset {
        /// The record's.
        offset: i64,
        /// Of the batch.
        base_offset: i64,
        /// Of the batch, inclusive.
        last_offset: i64,
    },
    /// A field or the batch is longer than the format can say (2^31-1 bytes).
    #[error("{what} of {bytes} bytes is too long for a record batch")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A codec failed.
    #[error("cannot compress the records")]
    Compress(#[source] std::io::Error),
}

/// One batch that holds `records`, whose offsets rise from `base_offset` on, with or without holes.
///
/// A LogAppendTime batch needs `max_timestamp` in the options; the records' own timestamps then go into the deltas,
/// where readers do not look.
pub fn encode_batch(
    records: &[Record],
    base_offset: i64,
    options: &BatchOptions,
) -> Result<Bytes, EncodeError> {
    let base_timestamp = options
        .base_timestamp
        .or_else(|| records.first().map(|r| r.timestamp))
        .unwrap_or(-1);
    let max_timestamp = options
        .max_timestamp
        .or_else(|| records.iter().map(|r| r.timestamp).max())
        .unwrap_or(-1);
    let last_offset = match (options.last_offset_delta, records.last()) {
        (Some(delta), _) => base_offset.saturating_add(i64::from(delta)),
        (None, Some(last)) => last.offset,
        (None, None) => base_offset,
    };
    let delta_of = |offset: i64| {
        let outside = EncodeError::Offset {
            offset,
            base_offset,
            last_offset,
        };
        match offset
            .checked_sub(base_offset)
            .and_then(|delta| i32::try_from(delta).ok())
        {
            Some(delta) if delta >= 0 && offset <= last_offset => Ok(delta),
            _ => Err(outside),
        }
    };
    let last_offset_delta = delta_of(last_offset)?;

    let mut plain = Vec::new();
    let mut previous = None;
    for record in records {
        if previous.is_some_and(|previous| record.offset <= previous) {
            return Err(EncodeError::Offset {
                offset: record.offset,
                base_offset,
                last_offset,
            });
        }
        previous = Some(record.offset);
        // Java's long arithmetic wraps, and so do readers.
        put_record(
            &mut plain,
            record,
            delta_of(record.offset)?,
            record.timestamp.wrapping_sub(base_timestamp),
        )?;
    }
    let payload = compress(&plain, options.codec).map_err(EncodeError::Compress)?;
    let size_bytes = payload.len().saturating_add(HEADER_BYTES);
    let too_long = |bytes| EncodeError::TooLong {
        what: "batch",
        bytes,
    };
    if i32::try_from(size_bytes).is_err() {
        return Err(too_long(size_bytes));
    }
    let header = BatchHeader {
        base_offset,
        partition_leader_epoch: options.partition_leader_epoch,
        attributes: (options.flags & !BatchHeader::CODEC_MASK) | codec_bits(options.codec),
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id: options.producer_id,
        producer_epoch: options.producer_epoch,
        base_sequence: options.base_sequence,
        record_count: i32::try_from(records.len()).map_err(|_| too_long(size_bytes))?,
        size_bytes,
    };
    let mut batch = BytesMut::with_capacity(size_bytes);
    batch.put_slice(&write_header(&header, &payload));
    batch.put_slice(&payload);
    Ok(batch.freeze())
}

fn codec_bits(codec: Codec) -> i16 {
    match codec {
        Codec::None => 0,
        Codec::Gzip => 1,
        Codec::Snappy => 2,
        Codec::Lz4 => 3,
        Codec::Zstd => 4,
    }
}

fn put_record(
    out: &mut Vec<u8>,
    record: &Record,
    offset_delta: i32,
    timestamp_delta: i64,
) -> Result<(), EncodeError> {
    let mut body = Vec::new();
    body.put_i8(0); // record attributes: none are defined
    put_varint(&mut body, timestamp_delta);
    put_varint(&mut body, i64::from(offset_delta));
    put_bytes(&mut body, "key", record.key.as_deref())?;
    put_bytes(&mut body, "value", record.value.as_deref())?;
    put_length(&mut body, "header list", record.headers.len())?;
    for header in &record.headers {
        put_bytes(&mut body, "header key", Some(&header.key))?;
        put_bytes(&mut body, "header value", header.value.as_deref())?;
    }
    put_length(out, "record", body.len())?;
    out.extend_from_slice(&body);
    Ok(())
}

fn put_bytes(
    out: &mut Vec<u8>,
    what: &'static str,
    bytes: Option<&[u8]>,
) -> Result<(), EncodeError> {
    match bytes {
        None => put_varint(out, -1),
        Some(bytes) => {
            put_length(out, what, bytes.len())?;
            out.extend_from_slice(bytes);
        }
    }
    Ok(())
}

fn put_length(out: &mut Vec<u8>, what: &'static str, length: usize) -> Result<(), EncodeError> {
    let fits = i32::try_from(length).map_err(|_| EncodeError::TooLong {
        what,
        bytes: length,
    })?;
    put_varint(out, i64::from(fits));
    Ok(())
}

/// Zigzag and seven bits a byte; for an `i32` the same bytes as the 32-bit form.
fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = (value.cast_unsigned() << 1) ^ (value >> 63).cast_unsigned();
    loop {
        let [low, ..] = rest.to_le_bytes();
        rest >>= 7;
        if rest == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

fn compress(plain: &[u8], codec: Codec) -> std::io::Result<Vec<u8>> {
    match codec {
        Codec::None => Ok(plain.to_vec()),
        Codec::Gzip => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(plain)?;
            encoder.finish()
        }
        Codec::Snappy => compress_xerial(plain),
        Codec::Lz4 => {
            // Kafka's reader takes independent blocks only (`Lz4BlockInputStream`), and writes blocks of 64 KiB.
            let info = lz4_flex::frame::FrameInfo::new()
                .block_mode(lz4_flex::frame::BlockMode::Independent)
                .block_size(lz4_flex::frame::BlockSize::Max64KB);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(plain)?;
            encoder.finish().map_err(std::io::Error::from)
        }
        Codec::Zstd => zstd::bulk::compress(plain, zstd::DEFAULT_COMPRESSION_LEVEL),
    }
}

/// Snappy in the Java client's block framing, which every Kafka reader takes.
fn compress_xerial(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = snap::raw::Encoder::new();
    let mut out = Vec::new();
    out.put_slice(&XERIAL_MAGIC);
    out.put_i32(1); // version
    out.put_i32(1); // oldest version that can read it
    for block in plain.chunks(XERIAL_BLOCK_BYTES) {
        let packed = encoder.compress_vec(block)?;
        out.put_i32(i32::try_from(packed.len()).map_err(std::io::Error::other)?);
        out.put_slice(&packed);
    }
    Ok(out)
}
