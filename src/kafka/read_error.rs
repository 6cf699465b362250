//! Why a range of a log cannot be read, and which errors pass. Must not wait or ask again.

use std::time::Duration;

use super::cluster::ClusterError;
use super::connect::ConnectError;
use super::connection::RequestError;
use crate::domain::types::TopicPartition;
use crate::wire::batch::BatchError;
use crate::wire::error_code::ErrorCode;
use crate::wire::records::RecordsError;

/// Why a range cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The log does not have the offset: trimmed away, or not written.
    #[error(
        "{partition}: offset {position} is not in the log, which spans {log_start} to {high_watermark}"
    )]
    OutOfRange {
        /// Where.
        partition: TopicPartition,
        /// The offset that was asked for.
        position: i64,
        /// First offset of the log.
        log_start: i64,
        /// Exclusive end of what is replicated.
        high_watermark: i64,
    },
    /// The range ends beyond what consumers are shown, and patience ended first.
    #[error(
        "{partition}: consumers are shown offsets below {watermark}, not yet {end}; read up to {position}"
    )]
    NotYet {
        /// Where.
        partition: TopicPartition,
        /// Exclusive end of what was read.
        position: i64,
        /// Exclusive end of the range.
        end: i64,
        /// The last stable offset (read_committed) or the high watermark.
        watermark: i64,
    },
    /// No good answer in time.
    #[error("{partition}: offset {position} could not be read within {after:?}")]
    Unavailable {
        /// Where.
        partition: TopicPartition,
        /// The next offset to be read.
        position: i64,
        /// How long it was tried.
        after: Duration,
        /// What happened the last time.
        #[source]
        last: Box<Trouble>,
    },
    /// The broker refuses, and would do so again.
    #[error("{partition}: the broker refuses to give offset {position}: {code}")]
    Refused {
        /// Where.
        partition: TopicPartition,
        /// The next offset to be read.
        position: i64,
        /// Its error.
        code: ErrorCode,
    },
    /// The topic was deleted and created again while it was read.
    #[error("{partition}: the topic has another id now: it was deleted and created again")]
    Recreated {
        /// Where.
        partition: TopicPartition,
    },
    /// A batch whose bytes cannot be right, also when asked again.
    #[error("{partition}: a batch cannot be read")]
    Batch {
        /// Where.
        partition: TopicPartition,
        /// What is wrong with it.
        #[source]
        source: BatchError,
    },
    /// A batch whose records cannot be read.
    #[error("{partition}: records cannot be read")]
    Records {
        /// Where.
        partition: TopicPartition,
        /// What is wrong with them.
        #[source]
        source: RecordsError,
    },
    /// Answers without what was asked for.
    #[error("{partition}: the broker's answers do not have offset {position}")]
    NoProgress {
        /// Where.
        partition: TopicPartition,
        /// The offset that was asked for.
        position: i64,
    },
}

/// Something that may be over when asked again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// Nobody leads the partition, as far as we know.
    #[error("the partition has no leader")]
    NoLeader,
    /// The leader cannot be reached.
    #[error("cannot reach the leader")]
    Connect(#[source] ConnectError),
    /// The leader does not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The leaders are not known.
    #[error(transparent)]
    Metadata(#[from] ClusterError),
    /// The answer to the question for leaders takes too long.
    #[error("the cluster does not say who leads the partition")]
    MetadataLate,
    /// An error that passes.
    #[error("{0}")]
    Refused(ErrorCode),
    /// The broker gave nothing (it does so when it throttles us).
    #[error("the broker's answer leaves the partition out")]
    LeftOut,
}

/// Errors of a partition that a moment or another broker may cure.
pub fn may_pass(code: ErrorCode) -> bool {
    [
        ErrorCode::NOT_LEADER_OR_FOLLOWER,
        ErrorCode::LEADER_NOT_AVAILABLE,
        ErrorCode::REPLICA_NOT_AVAILABLE,
        ErrorCode::FENCED_LEADER_EPOCH,
        ErrorCode::UNKNOWN_LEADER_EPOCH,
        ErrorCode::OFFSET_NOT_AVAILABLE,
        ErrorCode::KAFKA_STORAGE_ERROR,
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode::UNKNOWN_TOPIC_ID,
        ErrorCode::INCONSISTENT_TOPIC_ID,
        ErrorCode::REQUEST_TIMED_OUT,
        ErrorCode::UNKNOWN_SERVER_ERROR,
    ]
    .contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_pass_are_asked_again() {
        for (code, passes) in [
            (ErrorCode::NOT_LEADER_OR_FOLLOWER, true),
            (ErrorCode::FENCED_LEADER_EPOCH, true),
            (ErrorCode::UNKNOWN_TOPIC_ID, true),
            (ErrorCode::TOPIC_AUTHORIZATION_FAILED, false),
            (ErrorCode::OFFSET_MOVED_TO_TIERED_STORAGE, false),
            (ErrorCode::OFFSET_OUT_OF_RANGE, false),
        ] {
            assert_eq!(may_pass(code), passes, "{code}");
        }
    }
}
