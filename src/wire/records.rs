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

#[cfg(test)]
pub(in crate::wire) mod tests {
    use std::io::Write;

    use bytes::{BufMut, BytesMut};
    use proptest::prelude::*;

    use super::*;
    use crate::domain::types::{LeaderEpoch, ProducerEpoch, ProducerId};
    use crate::wire::batch::{Batches, HEADER_BYTES, write_header};
    use crate::wire::encode::{BatchOptions, encode_batch};

    const LIMIT: usize = 1 << 20;

    pub(in crate::wire) fn fixture(name: &str) -> Bytes {
        let line = include_str!("../../tests/data/batches-open.hex")
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .unwrap_or_else(|| panic!("no fixture {name}"));
        let digits = line.trim().as_bytes().chunks(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    pub(in crate::wire) fn some_records(base_offset: i64, count: usize) -> Vec<Record> {
        (0..i64::try_from(count).unwrap())
            .map(|n| Record {
                offset: base_offset + n,
                timestamp: 1_700_000_000_000 - n,
                key: (n % 2 == 0).then(|| Bytes::from(format!("key {n}"))),
                value: (n % 3 != 0)
                    .then(|| Bytes::from(vec![b'v'; usize::try_from(n).unwrap() * 10])),
                headers: vec![
                    Header {
                        key: Bytes::from_static(b"h"),
                        value: None
                    };
                    usize::try_from(n % 3).unwrap()
                ],
            })
            .collect()
    }

    /// The records with their offsets moved up by `shift`.
    pub(in crate::wire) fn same_records(batch: &RawBatch, shift: i64) -> Vec<Record> {
        let moved = |record: Record| Record {
            offset: record.offset + shift,
            ..record
        };
        Records::new(batch, LIMIT)
            .unwrap()
            .map(|record| moved(record.unwrap()))
            .collect()
    }

    pub(in crate::wire) fn any_codec() -> impl Strategy<Value = Codec> {
        prop::sample::select(vec![
            Codec::None,
            Codec::Gzip,
            Codec::Snappy,
            Codec::Lz4,
            Codec::Zstd,
        ])
    }

    fn only(bytes: Bytes) -> RawBatch {
        let mut batches = Batches::new(bytes, usize::MAX);
        let batch = batches.next().unwrap().unwrap();
        assert!(batches.next().is_none());
        batch
    }

    fn decode(bytes: Bytes) -> Result<Vec<Record>, RecordsError> {
        Records::new(&only(bytes), LIMIT)?.collect()
    }

    /// A batch whose payload is given as it shall stand there.
    fn with_payload(codec: i16, record_count: i32, payload: &[u8]) -> RawBatch {
        let header = BatchHeader {
            base_offset: 0,
            partition_leader_epoch: LeaderEpoch::NONE,
            attributes: codec,
            last_offset_delta: record_count.max(1) - 1,
            base_timestamp: 1_700_000_000_000,
            max_timestamp: 1_700_000_000_000,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch(-1),
            base_sequence: -1,
            record_count,
            size_bytes: HEADER_BYTES + payload.len(),
        };
        only([&write_header(&header, payload), payload].concat().into())
    }

    fn plain_payload(records: &[Record]) -> Bytes {
        only(encode_batch(records, 0, &BatchOptions::plain(Codec::None)).unwrap()).payload()
    }

    fn text(bytes: &Option<Bytes>) -> Option<&str> {
        bytes
            .as_ref()
            .map(|bytes| std::str::from_utf8(bytes).unwrap())
    }

    #[test]
    fn fixtures_with_plain_records() {
        const T: i64 = 1_700_000_000_000;
        for (name, expected) in [
            (
                "F01_gap_inside_batch",
                vec![(0, T, Some("a"), Some("1")), (2, T, Some("c"), Some("3"))],
            ),
            ("F02_empty_batch", vec![]),
            (
                "F08_ts_delta_over_i32",
                vec![
                    (60, 0, Some("k"), Some("v0")),
                    (61, 1_787_086_231_121, Some("k"), Some("v1")),
                ],
            ),
            (
                "F09_log_append_time",
                vec![
                    (70, T + 999_000, Some("k"), Some("v")),
                    (71, T + 999_000, Some("k"), Some("v")),
                ],
            ),
            (
                "F19_gzip_two_members",
                vec![
                    (160, T, Some("k"), Some("v")),
                    (161, T, Some("k"), Some("w")),
                ],
            ),
            (
                "F20_snappy_xerial_two_blocks",
                vec![
                    (170, T, Some("k"), Some("v0")),
                    (171, T, Some("k"), Some("v1")),
                ],
            ),
        ] {
            let records = decode(fixture(name)).unwrap();
            let seen: Vec<_> = records
                .iter()
                .map(|r| (r.offset, r.timestamp, text(&r.key), text(&r.value)))
                .collect();
            assert_eq!(seen, expected, "{name}");
        }
    }

    #[test]
    fn headers_keep_order_repeats_and_nulls() {
        let list = |record: &Record| -> Vec<(String, Option<String>)> {
            let owned = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
            record
                .headers
                .iter()
                .map(|h| (owned(&h.key), h.value.as_deref().map(owned)))
                .collect()
        };
        let pair = |k: &str, v: Option<&str>| (k.to_owned(), v.map(str::to_owned));

        let repeated = decode(fixture("F06_dup_headers")).unwrap();
        assert_eq!(
            list(&repeated[0]),
            [
                pair("x-tag", Some("tag1")),
                pair("x-tag", Some("tag2")),
                pair("other", Some("o"))
            ]
        );

        let nulls = decode(fixture("F07_null_vs_empty_header")).unwrap();
        assert_eq!(list(&nulls[0]), [pair("n", None), pair("e", Some(""))]);
        let key_value: Vec<_> = nulls
            .iter()
            .map(|r| (text(&r.key), text(&r.value)))
            .collect();
        assert_eq!(
            key_value,
            [(Some("k"), Some("v")), (None, Some("")), (Some(""), None)]
        );
    }

    #[test]
    fn control_records_are_read_as_bytes() {
        for (name, kind) in [("F03_control_abort", 0_u8), ("F04_control_commit", 1)] {
            let records = decode(fixture(name)).unwrap();
            assert_eq!(records.len(), 1, "{name}");
            assert_eq!(
                records[0].key.as_deref(),
                Some(&[0, 0, 0, kind][..]),
                "{name}"
            );
        }
    }

    #[test]
    fn fixtures_that_cannot_be_decoded() {
        let error = decode(fixture("F13_num_headers_huge")).unwrap_err();
        assert!(
            matches!(
                error,
                RecordsError::Malformed {
                    base_offset: 110,
                    index: 0,
                    fault: RecordFault::HeaderCount {
                        count: 1_073_741_823
                    }
                }
            ),
            "{error}"
        );
        let error = decode(fixture("F18_codec_unknown_7")).unwrap_err();
        assert!(
            matches!(
                error,
                RecordsError::UnknownCodec {
                    base_offset: 150,
                    codec: 7
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn framings_of_other_writers() {
        let records = some_records(0, 40);
        let count = 40;
        let plain = plain_payload(&records);
        let (front, back) = plain.split_at(plain.len() / 2);

        let snappy = |block: &[u8]| snap::raw::Encoder::new().compress_vec(block).unwrap();
        let xerial = |version: i32, blocks: &[&[u8]]| {
            let mut out = BytesMut::new();
            out.put_slice(&XERIAL_MAGIC);
            out.put_i32(version);
            out.put_i32(1);
            for block in blocks {
                let block = snappy(block);
                out.put_i32(i32::try_from(block.len()).unwrap());
                out.put_slice(&block);
            }
            out.to_vec()
        };
        let lz4 = |block: &[u8], mode, size| {
            let info = lz4_flex::frame::FrameInfo::new()
                .block_mode(mode)
                .block_size(size)
                .content_checksum(true);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(block).unwrap();
            encoder.finish().unwrap()
        };
        use lz4_flex::frame::{BlockMode, BlockSize};
        let zstd = |block: &[u8]| zstd::stream::encode_all(block, 22).unwrap();
        for (codec, payload) in [
            (2, snappy(&plain)),
            (2, xerial(1, &[front, back])),
            (2, xerial(2, &[front, back])),
            (2, [xerial(1, &[front]), xerial(1, &[back])].concat()),
            (3, lz4(&plain, BlockMode::Linked, BlockSize::Max64KB)),
            (
                3,
                [
                    lz4(front, BlockMode::Independent, BlockSize::Max4MB),
                    lz4(back, BlockMode::Linked, BlockSize::Max64KB),
                ]
                .concat(),
            ),
            (4, zstd(&plain)),
            (4, [zstd(front), zstd(back)].concat()),
        ] {
            let batch = with_payload(codec, count, &payload);
            let read: Vec<_> = Records::new(&batch, LIMIT)
                .unwrap()
                .map(|r| (r.as_ref().unwrap().key.clone(), r.unwrap().value))
                .collect();
            let written: Vec<_> = records
                .iter()
                .map(|r| (r.key.clone(), r.value.clone()))
                .collect();
            assert_eq!(read, written);
        }
        let version_0 = with_payload(2, count, &xerial(0, &[&plain]));
        assert!(matches!(
            Records::new(&version_0, LIMIT),
            Err(RecordsError::Decompress { .. })
        ));
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bomb = vec![Record {
            offset: 0,
            timestamp: 0,
            key: None,
            value: Some(Bytes::from(vec![0; 16 << 20])),
            headers: Vec::new(),
        }];
        for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
            let batch = only(encode_batch(&bomb, 0, &BatchOptions::plain(codec)).unwrap());
            let error = Records::new(&batch, LIMIT).unwrap_err();
            assert!(
                matches!(error, RecordsError::TooLarge { limit: LIMIT, .. }),
                "{codec:?}: {error}"
            );
            assert_eq!(Records::new(&batch, 17 << 20).unwrap().count(), 1);
        }
        // 4 GiB claimed in five bytes
        let lying = with_payload(2, 1, &[0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(matches!(
            Records::new(&lying, usize::MAX),
            Err(RecordsError::Decompress { .. })
        ));
        // many empty headers cost more memory than bytes
        let header = Header {
            key: Bytes::new(),
            value: None,
        };
        let wide = vec![Record {
            headers: vec![header; 100_000],
            value: None,
            ..bomb[0].clone()
        }];
        let error =
            decode(encode_batch(&wide, 0, &BatchOptions::plain(Codec::Gzip)).unwrap()).unwrap_err();
        assert!(matches!(error, RecordsError::TooLarge { .. }), "{error}");
    }

    #[test]
    fn malformed_records_are_named() {
        // length, attributes, timestamp delta, offset delta, key, value, header count
        let good = [12, 0, 0, 0, 1, 1, 0];
        let fault = |payload: &[u8], count| {
            let batch = with_payload(0, count, payload);
            match Records::new(&batch, LIMIT)
                .unwrap()
                .collect::<Result<Vec<_>, _>>()
            {
                Ok(_) => None,
                Err(RecordsError::Malformed { fault, .. }) => Some(fault),
                Err(other) => panic!("{other}"),
            }
        };
        assert_eq!(fault(&good, 1), None);
        assert_eq!(
            fault(&[&good[..], &[9]].concat(), 1),
            Some(RecordFault::Surplus { bytes: 1 })
        );
        assert_eq!(
            fault(&[14, 0, 0, 0, 1, 1, 0, 0], 1),
            Some(RecordFault::Surplus { bytes: 1 })
        );
        assert_eq!(fault(&[14, 0, 0, 0, 1, 1, 0], 1), Some(RecordFault::CutOff));
        assert_eq!(
            fault(&[12, 0, 0, 2, 1, 1, 0], 1),
            Some(RecordFault::OffsetDelta { delta: 1 })
        );
        assert_eq!(
            fault(&[good, good].concat(), 2),
            Some(RecordFault::OffsetDelta { delta: 0 })
        );
        assert_eq!(
            fault(&[12, 0, 0, 0, 3, 1, 0], 1),
            Some(RecordFault::Length { length: -2 })
        );
        assert_eq!(
            fault(&[1, 0, 0, 0, 1, 1, 0], 1),
            Some(RecordFault::Length { length: -1 })
        );
        assert_eq!(
            fault(&[12, 0, 0, 0, 1, 1, 1], 1),
            Some(RecordFault::HeaderCount { count: -1 })
        );
        assert_eq!(
            fault(&[255, 255, 255, 255, 255, 0, 0], 1),
            Some(RecordFault::Varint)
        );
    }

    /// Another implementation reads what we write and we read what it writes, within what it gets right.
    #[test]
    fn agrees_with_kafka_protocol_on_plain_records() {
        use kafka_protocol::records::{
            Compression, RecordBatchDecoder, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
        };
        let records: Vec<_> = some_records(0, 30)
            .into_iter()
            .map(|record| Record {
                headers: record.headers.into_iter().take(1).collect(),
                ..record
            })
            .collect();
        let theirs: Vec<_> = records
            .iter()
            .map(|r| kafka_protocol::records::Record {
                transactional: false,
                control: false,
                delete_horizon: false,
                partition_leader_epoch: -1,
                producer_id: -1,
                producer_epoch: -1,
                timestamp_type: TimestampType::Creation,
                offset: r.offset,
                sequence: i32::try_from(r.offset).unwrap() - 1,
                timestamp: r.timestamp,
                key: r.key.clone(),
                value: r.value.clone(),
                headers: r
                    .headers
                    .iter()
                    .map(|h| {
                        (
                            std::str::from_utf8(&h.key).unwrap().to_owned().into(),
                            h.value.clone(),
                        )
                    })
                    .collect(),
            })
            .collect();
        let mut encoded = BytesMut::new();
        let options = RecordEncodeOptions {
            version: 2,
            compression: Compression::None,
        };
        RecordBatchEncoder::encode(&mut encoded, &theirs, &options).unwrap();
        assert_eq!(decode(encoded.freeze()).unwrap(), records);

        let mut ours = encode_batch(&records, 0, &BatchOptions::plain(Codec::None)).unwrap();
        let read = RecordBatchDecoder::decode(&mut ours).unwrap().records;
        let fields = |r: &kafka_protocol::records::Record| {
            (
                r.offset,
                r.timestamp,
                r.key.clone(),
                r.value.clone(),
                r.headers.clone(),
            )
        };
        assert_eq!(
            read.iter().map(fields).collect::<Vec<_>>(),
            theirs.iter().map(fields).collect::<Vec<_>>()
        );
    }

    fn any_bytes() -> impl Strategy<Value = Option<Bytes>> {
        prop::option::of(prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from))
    }

    prop_compose! {
        fn any_record()(
            step in 1_i64..5,
            timestamp in any::<i64>(),
            key in any_bytes(),
            value in any_bytes(),
            headers in prop::collection::vec((any_bytes(), any_bytes()), 0..4),
        ) -> (i64, Record) {
            let headers = headers
                .into_iter()
                .map(|(key, value)| Header { key: key.unwrap_or_default(), value })
                .collect();
            (step, Record { offset: 0, timestamp, key, value, headers })
        }
    }

    prop_compose! {
        fn any_batch()(
            base in 0_i64..i64::MAX - 1000,
            records in prop::collection::vec(any_record(), 0..30),
            codec in any_codec(),
            tail in 0_i32..5,
            base_timestamp in prop::option::of(any::<i64>()),
        ) -> (Bytes, Vec<Record>) {
            let mut offset = base - 1;
            let records: Vec<_> = records
                .into_iter()
                .map(|(step, record)| {
                    offset += step;
                    Record { offset, ..record }
                })
                .collect();
            let last = i32::try_from(offset.max(base) - base).unwrap() + tail;
            let options = BatchOptions { last_offset_delta: Some(last), base_timestamp, ..BatchOptions::plain(codec) };
            (encode_batch(&records, base, &options).unwrap(), records)
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read((bytes, records) in any_batch()) {
            prop_assert_eq!(decode(bytes).unwrap(), records);
        }

        #[test]
        fn damage_behind_the_header_never_panics(
            (bytes, _) in any_batch(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            attributes in 0_i16..6,
        ) {
            let batch = only(bytes);
            let mut payload = batch.payload().to_vec();
            for (at, byte) in damage {
                if !payload.is_empty() {
                    let at = at.index(payload.len());
                    payload[at] = byte;
                }
            }
            let header = BatchHeader { attributes, ..batch.header };
            let size_bytes = HEADER_BYTES + payload.len();
            let bytes = [&write_header(&header, &payload)[..], &payload].concat().into();
            let damaged = RawBatch { header: BatchHeader { size_bytes, ..header }, bytes };
            if let Ok(records) = Records::new(&damaged, LIMIT) {
                prop_assert!(records.rest.len() <= LIMIT);
                records.for_each(drop);
            }
        }

        #[test]
        fn numbers_of_any_size_are_read_back(timestamp in any::<i64>(), base in any::<i64>()) {
            let record = Record { offset: 3, timestamp, key: None, value: None, headers: Vec::new() };
            let options = BatchOptions { base_timestamp: Some(base), ..BatchOptions::plain(Codec::None) };
            let bytes = encode_batch(std::slice::from_ref(&record), 3, &options).unwrap();
            prop_assert_eq!(decode(bytes).unwrap(), vec![record]);
        }
    }
}
