//! What the append machine is told and what it wants done, as values. Must not decide anything.

use std::time::Duration;

use thiserror::Error;

use crate::domain::types::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};

/// Requests of a process that has ended, or has lost its work, may still arrive for so long.
pub const DRAIN: Duration = Duration::from_millis(500);

/// The broker's default of `producer.id.expiration.ms`, where it is not known.
pub const PRODUCER_EXPIRATION: Duration = Duration::from_secs(24 * 60 * 60);

/// What one partition's machine is told once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendConfig {
    /// Our producer id on this partition.
    pub producer_id: ProducerId,
    /// Produce requests in flight at most, 1 to 5: five is what a broker remembers.
    pub max_in_flight: usize,
    /// How long the log end must stand still after requests may have been left behind.
    pub drain: Duration,
    /// First pause after a failed read or a refusal that should pass; doubles up to [`AppendConfig::max_pause`].
    pub first_pause: Duration,
    /// Longest pause between attempts to resume.
    pub max_pause: Duration,
    /// The destination's `producer.id.expiration.ms`.
    pub producer_expiration: Duration,
    /// The destination topic's `max.message.bytes`.
    pub max_batch_bytes: usize,
}

impl AppendConfig {
    /// One batch at a time, of any size, with the usual waits.
    pub fn new(producer_id: ProducerId) -> Self {
        Self {
            producer_id,
            max_in_flight: 1,
            drain: DRAIN,
            first_pause: Duration::from_millis(50),
            max_pause: Duration::from_secs(2),
            producer_expiration: PRODUCER_EXPIRATION,
            max_batch_bytes: usize::MAX,
        }
    }
}

/// A batch as the machine sees it. Offsets are the source's, which are the destination's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first record.
    pub first_offset: i64,
    /// Next offset after the last record.
    pub end_offset: i64,
    /// Largest record timestamp, in milliseconds.
    pub max_timestamp: i64,
    /// Size of the whole batch.
    pub size_bytes: usize,
}

impl Span {
    /// How many offsets, and so sequences, it takes.
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.end_offset.saturating_sub(self.first_offset)).unwrap_or(u32::MAX)
    }
}

/// How to stamp and send one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// Producer epoch for the header.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record.
    pub base_sequence: Sequence,
    /// True if this one must be replicated before the answer, whatever the configuration says.
    pub acks_all: bool,
}

/// What the leader knows of our producer id (DescribeProducers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerEntry {
    /// Its current epoch.
    pub epoch: ProducerEpoch,
    /// Sequence of its last record; `None` right after a fence.
    pub last_sequence: Option<Sequence>,
}

/// Both ends of the destination log, as its leader says, the log end read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndRead {
    /// The leader epoch with which the leader was asked, and which it confirmed by answering.
    pub leader_epoch: LeaderEpoch,
    /// Next offset the leader will assign.
    pub log_end_offset: i64,
    /// Next offset that is not yet replicated.
    pub high_watermark: i64,
}

/// What became of a Produce request, for this partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The broker reports success.
    Appended {
        /// Offset it gives for the first record.
        base_offset: i64,
        /// True if the answer carries a log-append time: the batch was there already.
        repeated: bool,
    },
    /// An error that should pass, or that a look at the log resolves (not leader, too few replicas, sequence, epoch).
    Transient(i16),
    /// An error that this batch will meet every time (too large, no key, time out of range).
    Refused(i16),
    /// No answer: the outcome is unknown.
    Lost,
}

/// What became of a filler request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillAnswer {
    /// Error code 0.
    Written,
    /// Any error code. It does not say whether fillers were applied.
    Error(i16),
    /// We lack the right to write markers.
    Denied(i16),
    /// No answer.
    Lost,
}

/// Verdict of the comparison of both logs below the log end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The same records at the same offsets, all of ours above what was adopted.
    Equal,
    /// They differ; the words say where and how.
    Differs(String),
    /// One side could not be read.
    Unavailable,
}

/// Why a partition's append stopped. Offsets are the destination's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AppendFailure {
    /// Somebody else wrote into the partition.
    #[error(
        "destination changed by another writer at offset {expected}: our batch landed at offset {found}; \
         stop whoever writes to this topic on the destination"
    )]
    ForeignWriter {
        /// Where our batch belonged.
        expected: i64,
        /// Where the broker put it.
        found: i64,
    },
    /// The broker will never take this batch as it is.
    #[error("destination refuses the batch at offset {offset} with error code {code}")]
    Refused {
        /// First offset of the batch.
        offset: i64,
        /// Kafka error code.
        code: i16,
    },
    /// The batch is larger than the destination topic allows.
    #[error(
        "batch at offset {offset} has {size_bytes} bytes, the destination topic's max.message.bytes is {limit_bytes}; \
         raise max.message.bytes of the topic on the destination"
    )]
    TooLarge {
        /// First offset of the batch.
        offset: i64,
        /// Its size.
        size_bytes: usize,
        /// The topic's limit.
        limit_bytes: usize,
    },
    /// Source and destination hold different records.
    #[error("{0}")]
    Differs(String),
    /// Control batches may not be written.
    #[error(
        "offset {offset} needs a control batch and the destination refuses WriteTxnMarkers with error code {code}; \
         grant ALTER or CLUSTER_ACTION on the destination cluster to our principal"
    )]
    FillDenied {
        /// First offset to fill.
        offset: i64,
        /// Kafka error code.
        code: i16,
    },
    /// The producer id was fenced too often.
    #[error(
        "producer epoch {0} of this partition is used up; its producer id needs a new generation"
    )]
    EpochsUsedUp(i16),
}

impl AppendFailure {
    /// True if no retry can help: the logs have parted, and only a person can decide what to do.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::ForeignWriter { .. } | Self::Differs(_) | Self::EpochsUsedUp(_) => true,
            Self::Refused { .. } | Self::TooLarge { .. } | Self::FillDenied { .. } => false,
        }
    }
}

/// Why a partition looks at the destination's log again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResumeCause {
    /// The process has just begun with it.
    Started,
    /// A batch was there already: another process, or an earlier request of ours.
    Repeated,
    /// An error code that should pass.
    Transient(i16),
    /// A request was left without an answer.
    Lost,
    /// The partition has another leader, or its leader another connection.
    LeaderMoved,
    /// Fillers did not come out as expected.
    FillDoubt,
}

/// What the driver has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Ask the leader for our producer's entry, then call `producer_read` or `read_failed`.
    ReadProducer,
    /// Ask the leader for log end and high watermark, then call `end_read` or `read_failed`.
    ReadEnd,
    /// Let this much time pass, then call `waited` with the same id. A later wait makes an earlier one void.
    Wait {
        /// How long.
        pause: Duration,
        /// Which wait.
        id: u64,
    },
    /// Compare both logs below this destination log end, then call `compared`.
    Compare {
        /// Next offset of the destination.
        log_end_offset: i64,
    },
    /// Ready to append at `cursor`; what was read for another offset must be fetched again.
    Ready {
        /// Next offset to append.
        cursor: i64,
    },
    /// Records below this offset are appended.
    Acknowledged {
        /// Next offset after them.
        end_offset: i64,
    },
    /// Write this many control batches, then call `filled`.
    SendFillers {
        /// Producer epoch for the markers.
        producer_epoch: ProducerEpoch,
        /// How many offsets.
        count: i64,
    },
    /// Stop: this partition cannot go on by itself.
    Fail(AppendFailure),
}
