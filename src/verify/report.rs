//! What a comparison found, as values. Must not know how it is shown.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::types::{ProducerId, TopicPartition};

/// A range of offsets of one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogRange {
    /// The first offset.
    pub start: i64,
    /// The next offset after the last.
    pub end: i64,
}

/// The first difference of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Where; `None` if it is about the partition as a whole.
    pub offset: Option<i64>,
    /// What is different, in words.
    pub reason: String,
    /// What the source has there, in words.
    pub source: Option<String>,
    /// What the destination has there, in words.
    pub destination: Option<String>,
    /// Who wrote the destination's batch, if there is one.
    pub destination_producer_id: Option<ProducerId>,
}

/// What became of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Consumers of both sides see the same in the range that was compared.
    Equal,
    /// They do not.
    Different(Difference),
    /// A log could not be read.
    Unreadable {
        /// Why.
        reason: String,
    },
    /// No difference was found, but equality is not proven.
    Uncertain {
        /// Why.
        reason: String,
    },
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionReport {
    /// Its topic.
    pub topic: Arc<str>,
    /// Its index.
    pub partition: i32,
    /// The source's log, from its start to the last stable offset, as it was before the comparison.
    pub source: Option<LogRange>,
    /// The destination's log, from its start to the high watermark.
    pub destination: Option<LogRange>,
    /// The offsets that were compared; up to the difference if there is one.
    pub compared: Option<LogRange>,
    /// Records that were compared.
    pub records: u64,
    /// Bytes of the batches that were read at the source, as stored.
    pub bytes: u64,
    /// How far the destination's end is behind the source's, in offsets. Not a difference.
    pub lag_offsets: i64,
    /// What came out.
    pub outcome: Outcome,
    /// What else an operator may want to know.
    pub notes: Vec<String>,
}

impl PartitionReport {
    pub(super) fn new(tp: &TopicPartition, outcome: Outcome) -> Self {
        Self {
            topic: Arc::clone(&tp.topic),
            partition: tp.partition,
            source: None,
            destination: None,
            compared: None,
            records: 0,
            bytes: 0,
            lag_offsets: 0,
            outcome,
            notes: Vec::new(),
        }
    }
}

/// A whole comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Every partition of the topics that both sides have, in order.
    pub partitions: Vec<PartitionReport>,
    /// Topics that only the source has: each is a difference.
    pub missing_topics: Vec<Arc<str>>,
    /// Topics that only the destination has: nobody says that they are mirrored, so they are no difference.
    pub only_at_destination: Vec<Arc<str>>,
    /// What had to be assumed.
    pub notes: Vec<String>,
    /// How long it took.
    pub duration: Duration,
}

impl VerifyReport {
    /// True if no topic is missing and every partition was compared and is equal.
    pub fn is_equal(&self) -> bool {
        let mut partitions = self.partitions.iter();
        self.missing_topics.is_empty()
            && partitions.all(|partition| partition.outcome == Outcome::Equal)
    }

    /// Records compared.
    pub fn records(&self) -> u64 {
        self.partitions.iter().map(|part| part.records).sum()
    }

    /// Bytes read at the source, as stored.
    pub fn bytes(&self) -> u64 {
        self.partitions.iter().map(|part| part.bytes).sum()
    }

    /// How far the destination is behind, in offsets, all partitions together.
    pub fn lag_offsets(&self) -> i64 {
        self.partitions.iter().map(|part| part.lag_offsets).sum()
    }
}
