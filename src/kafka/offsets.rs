//! Where logs start and end, and what a partition's leader knows of its producers. Must not find out who the leader is:
//! the connection must lead there.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, RequestError};
use crate::domain::types::{BrokerId, LeaderEpoch, TopicPartition};
use crate::wire::api::delete_records::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use crate::wire::api::list_offsets::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
use crate::wire::api::producers::{DescribeProducersRequest, ProducerState, TopicRequest};
use crate::wire::error_code::ErrorCode;

/// Which end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OffsetKind {
    /// The first offset that is still there.
    LogStart,
    /// The next offset after what is replicated.
    HighWatermark,
    /// The next offset that a read_committed consumer waits for.
    LastStable,
    /// The next offset to be written, known to the leader alone.
    LogEnd,
}

/// A replica id that no broker has. Any id but -1 and -2 is answered with the log end, by the leader only (measured on
/// Kafka 4.4.0); -2 would be answered by followers as well, each with its own end.
const NO_REPLICA: BrokerId = BrokerId(-3);

impl OffsetKind {
    fn replica_id(self) -> BrokerId {
        match self {
            Self::LogEnd => NO_REPLICA,
            Self::LogStart | Self::HighWatermark | Self::LastStable => BrokerId(-1),
        }
    }

    fn isolation_level(self) -> i8 {
        match self {
            Self::LastStable => 1,
            Self::LogStart | Self::HighWatermark | Self::LogEnd => 0,
        }
    }

    fn timestamp(self) -> i64 {
        match self {
            Self::LogStart => -2,
            Self::HighWatermark | Self::LastStable | Self::LogEnd => -1,
        }
    }
}

/// Why there is no answer for one partition of a request that was answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionFault {
    /// The broker refuses.
    #[error("{code}{}", broker_words(message.as_deref()))]
    Refused {
        /// The error.
        code: ErrorCode,
        /// The broker's words, if it has any.
        message: Option<Arc<str>>,
    },
    /// The answer does not have the partition.
    #[error("the broker's answer leaves the partition out")]
    LeftOut,
}

/// One answer for every partition asked, in the order asked.
pub type PerPartition<T> = Vec<(TopicPartition, Result<T, PartitionFault>)>;

/// One offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedOffset {
    /// The offset; see [`OffsetKind`].
    pub offset: i64,
    /// The leader epoch of the record there, or of the leader; -1 if it is not known.
    pub leader_epoch: LeaderEpoch,
}

fn by_topic<'a, T: 'a, P>(
    parts: impl IntoIterator<Item = &'a T>,
    topic: impl Fn(&T) -> &TopicPartition,
    partition: impl Fn(&T) -> P,
) -> BTreeMap<Arc<str>, Vec<P>> {
    let mut topics: BTreeMap<Arc<str>, Vec<P>> = BTreeMap::new();
    for part in parts {
        let name = Arc::clone(&topic(part).topic);
        topics.entry(name).or_default().push(partition(part));
    }
    topics
}

fn in_order_asked<T>(
    asked: impl IntoIterator<Item = TopicPartition>,
    mut answered: HashMap<TopicPartition, Result<T, PartitionFault>>,
) -> PerPartition<T> {
    let answer = |tp: TopicPartition| {
        let found = answered.remove(&tp).unwrap_or(Err(PartitionFault::LeftOut));
        (tp, found)
    };
    asked.into_iter().map(answer).collect()
}

fn refused(code: ErrorCode, message: Option<Arc<str>>) -> Result<(), PartitionFault> {
    code.ok()
        .map_err(|code| PartitionFault::Refused { code, message })
}

/// Asks for one end of each log; with the leader epoch that the caller believes in, so that a deposed leader refuses
/// ([`LeaderEpoch::NONE`] asks without).
///
/// # Errors
/// If the request as a whole has no answer.
pub async fn list_offsets(
    connection: &Connection,
    kind: OffsetKind,
    parts: &[(TopicPartition, LeaderEpoch)],
    timeout: Duration,
) -> Result<PerPartition<ListedOffset>, RequestError> {
    let topics = by_topic(
        parts,
        |(tp, _)| tp,
        |(tp, epoch)| ListOffsetsPartition {
            partition_index: tp.partition,
            current_leader_epoch: *epoch,
            timestamp: kind.timestamp(),
        },
    );
    let request = ListOffsetsRequest {
        replica_id: kind.replica_id(),
        isolation_level: kind.isolation_level(),
        topics: topics
            .into_iter()
            .map(|(name, partitions)| ListOffsetsTopic { name, partitions })
            .collect(),
    };
    let response = connection.call(&request, timeout).await?;
    let mut answered = HashMap::new();
    for topic in response.topics {
        for partition in topic.partitions {
            let tp = TopicPartition {
                topic: Arc::clone(&topic.name),
                partition: partition.partition_index,
            };
            let offset = ListedOffset {
                offset: partition.offset,
                leader_epoch: partition.leader_epoch,
            };
            answered.insert(tp, refused(partition.error_code, None).map(|()| offset));
        }
    }
    Ok(in_order_asked(
        parts.iter().map(|(tp, _)| tp.clone()),
        answered,
    ))
}

/// Asks which producers the partitions' logs know. Followers answer too, from their own logs: the connection must lead
/// to the leader.
///
/// # Errors
/// If the request as a whole has no answer.
pub async fn describe_producers(
    connection: &Connection,
    parts: &[TopicPartition],
    timeout: Duration,
) -> Result<PerPartition<Vec<ProducerState>>, RequestError> {
    let topics = by_topic(parts, |tp| tp, |tp| tp.partition);
    let request = DescribeProducersRequest {
        topics: topics
            .into_iter()
            .map(|(name, partition_indexes)| TopicRequest {
                name,
                partition_indexes,
            })
            .collect(),
    };
    let response = connection.call(&request, timeout).await?;
    let mut answered = HashMap::new();
    for topic in response.topics {
        for partition in topic.partitions {
            let tp = TopicPartition {
                topic: Arc::clone(&topic.name),
                partition: partition.partition_index,
            };
            let good = refused(partition.error_code, partition.error_message);
            answered.insert(tp, good.map(|()| partition.active_producers));
        }
    }
    Ok(in_order_asked(parts.iter().cloned(), answered))
}

/// Raises the log start of each partition to the offset given; answers with the log start that came of it.
///
/// # Errors
/// If the request as a whole has no answer.
pub async fn delete_records(
    connection: &Connection,
    parts: &[(TopicPartition, i64)],
    timeout: Duration,
) -> Result<PerPartition<i64>, RequestError> {
    let topics = by_topic(
        parts,
        |(tp, _)| tp,
        |(tp, offset)| DeleteRecordsPartition {
            partition_index: tp.partition,
            offset: *offset,
        },
    );
    let request = DeleteRecordsRequest {
        topics: topics
            .into_iter()
            .map(|(name, partitions)| DeleteRecordsTopic { name, partitions })
            .collect(),
        timeout_ms: broker_timeout_ms(timeout),
    };
    let response = connection.call(&request, timeout).await?;
    let mut answered = HashMap::new();
    for topic in response.topics {
        for partition in topic.partitions {
            let tp = TopicPartition {
                topic: Arc::clone(&topic.name),
                partition: partition.partition_index,
            };
            let good = refused(partition.error_code, None);
            answered.insert(tp, good.map(|()| partition.low_watermark));
        }
    }
    Ok(in_order_asked(
        parts.iter().map(|(tp, _)| tp.clone()),
        answered,
    ))
}

/// What a broker is told of our time limit: three quarters of it, so that its own "timed out" still reaches us.
pub(super) fn broker_timeout_ms(timeout: Duration) -> i32 {
    i32::try_from(timeout.mul_f64(0.75).as_millis()).unwrap_or(i32::MAX)
}

/// A broker's message as the end of a line; some send an empty one.
pub(super) fn broker_words(message: Option<&str>) -> String {
    match message {
        None | Some("") => String::new(),
        Some(text) => format!(": {text}"),
    }
}
