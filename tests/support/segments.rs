//! A reader of broker segment files by their 61-byte batch headers, of the tests' own: it says how the records lie in
//! batches, which no consumer can see.

use std::path::Path;

use super::kafka::KafkaCluster;

/// One batch as it lies in a `.log` file (Kafka message format v2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentBatch {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Offset of its last record, inclusive.
    pub last_offset: i64,
    /// Records that are in it.
    pub count: i32,
    /// Whole size with header.
    pub bytes: usize,
    /// Codec id: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    pub codec: i16,
    /// Stamped by the broker (LogAppendTime).
    pub log_append_time: bool,
    /// Part of a transaction.
    pub transactional: bool,
    /// A control batch (marker).
    pub control: bool,
    /// Producer id, -1 for none.
    pub producer_id: i64,
    /// Producer epoch.
    pub producer_epoch: i16,
    /// First sequence.
    pub base_sequence: i32,
    /// Leader epoch.
    pub leader_epoch: i32,
    /// Milliseconds since 1970 that the records' deltas count from.
    pub base_timestamp: i64,
    /// The latest of its records.
    pub max_timestamp: i64,
    /// The records as they are compressed.
    pub payload: Vec<u8>,
}

impl SegmentBatch {
    /// What a copy must have in common with it: all but who wrote it, and under which leader.
    pub fn content(&self) -> (i64, i64, i32, i16, i64, i64, &[u8]) {
        let codec_and_flags = self.codec
            | i16::from(self.log_append_time) << 3
            | i16::from(self.transactional) << 4
            | i16::from(self.control) << 5;
        (
            self.base_offset,
            self.last_offset,
            self.count,
            codec_and_flags,
            self.base_timestamp,
            self.max_timestamp,
            &self.payload,
        )
    }
}

/// Panics unless the batches of a partition are the same on both sides, byte for byte, but for who wrote them.
pub async fn assert_same_batches(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    topic: &str,
    partition: i32,
) -> Vec<SegmentBatch> {
    let wanted = batches(source, topic, partition).await;
    let found = batches(destination, topic, partition).await;
    assert_eq!(wanted.len(), found.len(), "{topic}-{partition}: batches");
    for (wanted, found) in wanted.iter().zip(&found) {
        assert_eq!(wanted.content(), found.content(), "{topic}-{partition}");
    }
    found
}

/// The batches of a partition in offset order, from the files of its leader.
pub async fn batches(cluster: &KafkaCluster, topic: &str, partition: i32) -> Vec<SegmentBatch> {
    let leader = cluster.leader_of(topic, partition).await;
    batches_of_replica(cluster, leader, topic, partition)
}

/// The batches of a partition in the files of one broker.
pub fn batches_of_replica(
    cluster: &KafkaCluster,
    broker: i32,
    topic: &str,
    partition: i32,
) -> Vec<SegmentBatch> {
    let directory = cluster
        .broker_log_dir(broker)
        .join(format!("{topic}-{partition}"));
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    files.sort();
    files.iter().flat_map(|file| read_segment(file)).collect()
}

/// Number of batches per partition, by index.
pub async fn batch_count(cluster: &KafkaCluster, topic: &str) -> Vec<usize> {
    let partitions = cluster.partitions(topic).await.unwrap();
    let mut counts = Vec::new();
    for partition in partitions.keys() {
        counts.push(batches(cluster, topic, *partition).await.len());
    }
    counts
}

fn read_segment(file: &Path) -> Vec<SegmentBatch> {
    let bytes = std::fs::read(file).unwrap_or_default();
    let mut rest = bytes.as_slice();
    let mut found = Vec::new();
    // A batch that is being written has its length, but not all of its bytes.
    while rest.len() >= 61 {
        let size = be(rest, 8, 4) as usize + 12;
        if size < 61 || rest.len() < size {
            break;
        }
        assert_eq!(rest[16], 2, "{}: message format", file.display());
        let base_offset = be(rest, 0, 8);
        let attributes = be(rest, 21, 2);
        found.push(SegmentBatch {
            base_offset,
            last_offset: base_offset + be(rest, 23, 4),
            count: be(rest, 57, 4) as i32,
            bytes: size,
            codec: (attributes & 7) as i16,
            log_append_time: attributes & 8 != 0,
            transactional: attributes & 16 != 0,
            control: attributes & 32 != 0,
            producer_id: be(rest, 43, 8),
            producer_epoch: be(rest, 51, 2) as i16,
            base_sequence: be(rest, 53, 4) as i32,
            leader_epoch: be(rest, 12, 4) as i32,
            base_timestamp: be(rest, 27, 8),
            max_timestamp: be(rest, 35, 8),
            payload: rest[61..size].to_vec(),
        });
        rest = &rest[size..];
    }
    found
}

/// A signed big-endian integer of `width` bytes.
fn be(bytes: &[u8], at: usize, width: usize) -> i64 {
    let first = i64::from(bytes[at] as i8);
    bytes[at + 1..at + width]
        .iter()
        .fold(first, |value, byte| (value << 8) | i64::from(*byte))
}
