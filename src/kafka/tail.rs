//! The last offsets of a log, within a bound of bytes. Must not compare them.

use std::ops::Range;

use super::cluster::Cluster;
use super::visible::{ReadError, ReadOptions, VisibleBatch, VisibleReader};
use crate::domain::types::{TopicId, TopicPartition};
use crate::wire::records::Record;

/// Bytes of a window that [`tail`] reads, as long as it is more than the last offset.
const TAIL_BYTES: usize = 1 << 20;

/// How far [`tail`] looks back, at most.
const TAIL_OFFSETS: [i64; 4] = [1_000, 100, 10, 1];

/// The end of a log, as far back as [`tail`] could look.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// First offset of the window.
    pub from: i64,
    /// Every batch that reaches into the window, in order.
    pub batches: Vec<VisibleBatch>,
}

/// Reads the window that ends at `end`: 1,000 offsets, or less where they are more than about 1 MiB (counted as stored or
/// decompressed, whichever is more), but the last offset in any case. Nothing below `floor` is asked for; if the log
/// begins above it by now, the window begins there too.
///
/// # Errors
/// See [`ReadError`].
pub async fn tail(
    cluster: &Cluster,
    partition: &TopicPartition,
    topic_id: TopicId,
    floor: i64,
    end: i64,
    options: ReadOptions,
) -> Result<Tail, ReadError> {
    let mut floor = floor;
    for (try_number, back) in TAIL_OFFSETS.into_iter().enumerate() {
        let mut from = end.saturating_sub(back).max(floor);
        let last_try = try_number.saturating_add(1) == TAIL_OFFSETS.len();
        loop {
            if from >= end {
                return Ok(Tail {
                    from: end,
                    batches: Vec::new(),
                });
            }
            match window(cluster, partition, topic_id, from..end, options, last_try).await {
                Ok(Some(batches)) => return Ok(Tail { from, batches }),
                Ok(None) => break,
                // It was trimmed meanwhile. Every round begins higher, so this ends.
                Err(ReadError::OutOfRange { log_start, .. }) if log_start > from => {
                    floor = log_start;
                    from = log_start;
                }
                Err(error) => return Err(error),
            }
        }
    }
    // Not reachable: the last try gives a window of any size or fails.
    Ok(Tail {
        from: end,
        batches: Vec::new(),
    })
}

/// All batches of the range; `None` if they are too large and may be.
async fn window(
    cluster: &Cluster,
    partition: &TopicPartition,
    topic_id: TopicId,
    range: Range<i64>,
    options: ReadOptions,
    any_size: bool,
) -> Result<Option<Vec<VisibleBatch>>, ReadError> {
    let options = ReadOptions {
        fetch_bytes: options
            .fetch_bytes
            .min(i32::try_from(TAIL_BYTES).unwrap_or(i32::MAX)),
        ..options
    };
    let mut reader =
        VisibleReader::new(cluster.clone(), partition.clone(), topic_id, range, options);
    let mut batches = Vec::new();
    let mut size_bytes = 0_usize;
    while let Some(batch) = reader.next().await? {
        let decompressed: usize = batch.records.iter().map(content_bytes).sum();
        size_bytes = size_bytes.saturating_add(batch.size_bytes.max(decompressed));
        if size_bytes > TAIL_BYTES && !any_size {
            return Ok(None);
        }
        batches.push(batch);
    }
    Ok(Some(batches))
}

/// Bytes of key, value and headers.
pub fn content_bytes(record: &Record) -> usize {
    let length = |bytes: &Option<bytes::Bytes>| bytes.as_ref().map_or(0, bytes::Bytes::len);
    let headers = record.headers.iter();
    let headers: usize = headers
        .map(|header| header.key.len().saturating_add(length(&header.value)))
        .sum();
    length(&record.key)
        .saturating_add(length(&record.value))
        .saturating_add(headers)
}
