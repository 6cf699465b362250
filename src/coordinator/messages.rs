//! Reads and writes of states as the messages ReadMirrorStates and WriteMirrorStates, for both of their ends. Must not send them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{ReadAnswer, Unavailable, WriteAnswer};
use crate::domain::shard::{PartitionWrite, Refusal, last_mirror};
use crate::domain::state::PartitionState;
use crate::domain::state_log::{Divergence, MirrorPartition, PartitionValue};
use crate::domain::types::{LeaderEpoch, TopicId, TopicPartition};
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::{
    ReadMirrorStatesPartition, ReadMirrorStatesPartitionResult, ReadMirrorStatesRequest,
    ReadMirrorStatesResponse, ReadMirrorStatesTopic, WriteMirrorStatesPartition,
    WriteMirrorStatesPartitionResult, WriteMirrorStatesRequest, WriteMirrorStatesResponse,
    WriteMirrorStatesTopic,
};
use crate::wire::state_record::divergence;

/// The code and the words of a reason that passes.
pub fn unavailable(reason: Unavailable) -> (ErrorCode, Option<Arc<str>>) {
    let code = match reason {
        Unavailable::Loading => ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
        Unavailable::NoCoordinator => ErrorCode::NOT_COORDINATOR,
        Unavailable::Busy => ErrorCode::COORDINATOR_NOT_AVAILABLE,
    };
    (code, Some(reason.to_string().into()))
}

/// The code and the words of a refusal, as KIP-1279's prototype has them.
pub fn refused(refusal: &Refusal) -> (ErrorCode, Option<Arc<str>>) {
    let code = match refusal {
        Refusal::StateEpoch { .. } => ErrorCode::FENCED_STATE_EPOCH,
        Refusal::Transition { .. } | Refusal::Overtaken | Refusal::Elsewhere(_) => {
            ErrorCode::INVALID_CLUSTER_MIRROR_STATES
        }
        Refusal::UnknownMirror => ErrorCode::UNKNOWN_CLUSTER_MIRROR,
        Refusal::UnknownTopic => ErrorCode::TOPIC_NOT_IN_CLUSTER_MIRROR,
        Refusal::OtherMirror(_) => ErrorCode::TOPIC_ALREADY_IN_CLUSTER_MIRROR,
        Refusal::BeingStopped => ErrorCode::MIRROR_TOPIC_BEING_STOPPED,
        Refusal::NotPaused => ErrorCode::MIRROR_TOPIC_NOT_PAUSED,
        Refusal::NotStopped => ErrorCode::MIRROR_TOPIC_NOT_STOPPED,
        Refusal::NotEmpty(_) => ErrorCode::CLUSTER_MIRROR_NOT_EMPTY,
    };
    (code, Some(refusal.to_string().into()))
}

/// What a peer's code means: it passes, or it is a refusal.
fn meaning(code: ErrorCode, words: Option<Arc<str>>) -> Result<Refusal, Unavailable> {
    match code {
        ErrorCode::NOT_COORDINATOR => Err(Unavailable::NoCoordinator),
        ErrorCode::COORDINATOR_NOT_AVAILABLE => Err(Unavailable::Busy),
        ErrorCode::COORDINATOR_LOAD_IN_PROGRESS | ErrorCode::REQUEST_TIMED_OUT => {
            Err(Unavailable::Loading)
        }
        code => Ok(Refusal::Elsewhere(
            words.unwrap_or_else(|| code.to_string().into()),
        )),
    }
}

fn diverged_topic_id(divergence: Option<Divergence>) -> TopicId {
    divergence
        .map(|found| found.destination_topic_id)
        .unwrap_or_default()
}

/// What a peer is to write, all of one mirror.
pub(super) fn write_request(
    mirror: &Arc<str>,
    incarnation: &Arc<str>,
    writes: &[(MirrorPartition, PartitionWrite)],
) -> WriteMirrorStatesRequest {
    let mut topics: BTreeMap<Arc<str>, Vec<WriteMirrorStatesPartition>> = BTreeMap::new();
    for (key, write) in writes {
        let last = write.last_mirror;
        topics
            .entry(Arc::clone(&key.partition.topic))
            .or_default()
            .push(WriteMirrorStatesPartition {
                partition_index: key.partition.partition,
                last_mirror_epoch: last.map_or(-1, |last| last.last_mirror_epoch.0),
                state: write.state.unwrap_or_default().number(),
                state_epoch: write.expected_state_epoch.unwrap_or(-1),
                error_message: write.error_message.clone(),
                last_mirror_offset: last.map_or(-1, |last| last.last_mirror_offset),
                adopted_below: write.adopted_below.unwrap_or(-1),
                producer_generation: write.producer_generation.unwrap_or(-1),
                retry_attempt: write.retry_attempt.unwrap_or(-2),
                diverged_topic_id: diverged_topic_id(write.divergence),
                diverged_at: write.divergence.map_or(-1, |found| found.offset),
            });
    }
    WriteMirrorStatesRequest {
        mirror_name: Arc::clone(mirror),
        topics: topics
            .into_iter()
            .map(|(name, partitions)| WriteMirrorStatesTopic { name, partitions })
            .collect(),
        stopped_topics: Vec::new(),
        incarnation: Arc::clone(incarnation),
    }
}

/// What came of each write, by partition. What the answer leaves out is not in it.
pub(super) fn write_answers(
    response: WriteMirrorStatesResponse,
) -> BTreeMap<TopicPartition, WriteAnswer> {
    let mut answers = BTreeMap::new();
    for topic in response.topics {
        for one in topic.partitions {
            let partition = TopicPartition {
                topic: Arc::clone(&topic.name),
                partition: one.partition_index,
            };
            let answer = if one.error_code.is_none() {
                Ok(Ok(one.state_epoch))
            } else {
                meaning(one.error_code, one.error_message).map(Err)
            };
            answers.insert(partition, answer);
        }
    }
    answers
}

/// What a peer is asked, all of one mirror.
pub(super) fn read_request(mirror: &Arc<str>, keys: &[MirrorPartition]) -> ReadMirrorStatesRequest {
    let mut topics: BTreeMap<Arc<str>, Vec<ReadMirrorStatesPartition>> = BTreeMap::new();
    for key in keys {
        topics
            .entry(Arc::clone(&key.partition.topic))
            .or_default()
            .push(ReadMirrorStatesPartition {
                partition_index: key.partition.partition,
            });
    }
    ReadMirrorStatesRequest {
        mirror_name: Arc::clone(mirror),
        topics: topics
            .into_iter()
            .map(|(name, partitions)| ReadMirrorStatesTopic { name, partitions })
            .collect(),
    }
}

/// What came of each read, by partition.
pub(super) fn read_answers(
    response: ReadMirrorStatesResponse,
) -> BTreeMap<TopicPartition, ReadAnswer> {
    let mut answers = BTreeMap::new();
    for topic in response.topics {
        for one in topic.partitions {
            let partition = TopicPartition {
                topic: Arc::clone(&topic.name),
                partition: one.partition_index,
            };
            answers.insert(partition, read_answer(one));
        }
    }
    answers
}

fn read_answer(one: ReadMirrorStatesPartitionResult) -> ReadAnswer {
    if !one.error_code.is_none() {
        return Err(meaning(one.error_code, None)
            .err()
            .unwrap_or(Unavailable::NoCoordinator));
    }
    let state = PartitionState::from_number(one.state).unwrap_or_default();
    let known = one.state_epoch > 0;
    let value = PartitionValue {
        state,
        previous_state: PartitionState::from_number(one.previous_state).unwrap_or_default(),
        retry_attempt: one.retry_attempt,
        error_message: one.error_message,
        state_epoch: one.state_epoch,
        adopted_below: one.adopted_below,
        producer_generation: one.producer_generation,
        divergence: divergence(one.diverged_topic_id, one.diverged_at),
    };
    let last = last_mirror(LeaderEpoch(one.last_mirror_epoch), one.last_mirror_offset);
    Ok((known.then_some(value), last))
}

/// The answer to one read.
pub fn read_result(index: i32, answer: ReadAnswer) -> ReadMirrorStatesPartitionResult {
    match answer {
        Ok((state, last)) => {
            let state_epoch = state.as_ref().map_or(-1, |value| value.state_epoch);
            let value = state.unwrap_or_default();
            ReadMirrorStatesPartitionResult {
                partition_index: index,
                last_mirror_epoch: last.map_or(-1, |last| last.last_mirror_epoch.0),
                state: value.state.number(),
                error_code: ErrorCode::NONE,
                previous_state: value.previous_state.number(),
                retry_attempt: value.retry_attempt,
                state_epoch,
                error_message: value.error_message,
                last_mirror_offset: last.map_or(-1, |last| last.last_mirror_offset),
                adopted_below: value.adopted_below,
                producer_generation: value.producer_generation,
                diverged_topic_id: diverged_topic_id(value.divergence),
                diverged_at: value.divergence.map_or(-1, |found| found.offset),
            }
        }
        Err(reason) => {
            let (error_code, error_message) = unavailable(reason);
            ReadMirrorStatesPartitionResult {
                partition_index: index,
                error_code,
                error_message,
                state: PartitionState::Unknown.number(),
                ..ReadMirrorStatesPartitionResult::default()
            }
        }
    }
}

/// The answer to one write.
pub fn write_result(index: i32, answer: WriteAnswer) -> WriteMirrorStatesPartitionResult {
    let (state_epoch, (error_code, error_message)) = match answer {
        Ok(Ok(state_epoch)) => (state_epoch, (ErrorCode::NONE, None)),
        Ok(Err(refusal)) => (-1, refused(&refusal)),
        Err(reason) => (-1, unavailable(reason)),
    };
    WriteMirrorStatesPartitionResult {
        partition_index: index,
        error_code,
        state_epoch,
        error_message,
    }
}

/// The write that a request asks for; `None` for a state's number that no state has.
pub fn write_of(partition: &WriteMirrorStatesPartition) -> Option<PartitionWrite> {
    let state = PartitionState::from_number(partition.state).ok()?;
    Some(PartitionWrite {
        state: (state != PartitionState::Unknown).then_some(state),
        expected_state_epoch: (partition.state_epoch >= 0).then_some(partition.state_epoch),
        error_message: partition.error_message.clone(),
        divergence: divergence(partition.diverged_topic_id, partition.diverged_at),
        retry_attempt: (partition.retry_attempt >= -1).then_some(partition.retry_attempt),
        last_mirror: last_mirror(
            LeaderEpoch(partition.last_mirror_epoch),
            partition.last_mirror_offset,
        ),
        adopted_below: (partition.adopted_below >= 0).then_some(partition.adopted_below),
        producer_generation: (partition.producer_generation >= 0)
            .then_some(partition.producer_generation),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(index: i32) -> MirrorPartition {
        MirrorPartition {
            mirror: "m".into(),
            partition: TopicPartition::new("t", index),
        }
    }

    #[test]
    fn a_write_arrives_as_it_was_meant() {
        let writes = [
            PartitionWrite::default(),
            PartitionWrite {
                state: Some(PartitionState::Failed),
                expected_state_epoch: Some(0),
                error_message: Some("why".into()),
                retry_attempt: Some(-1),
                last_mirror: last_mirror(LeaderEpoch(3), 7),
                adopted_below: Some(0),
                producer_generation: Some(2),
                divergence: divergence(TopicId([7; 16]), -1),
            },
        ];
        for write in writes {
            let request = write_request(&"m".into(), &"run".into(), &[(key(4), write.clone())]);
            let partition = &request.topics[0].partitions[0];
            assert_eq!(partition.partition_index, 4);
            assert_eq!(write_of(partition), Some(write));
        }
    }

    #[test]
    fn answers_come_back_as_they_were_given() {
        let refusal = Refusal::UnknownTopic;
        for (given, wanted) in [
            (Ok(Ok(5)), Ok(Ok(5))),
            (
                Ok(Err(refusal.clone())),
                Ok(Err(Refusal::Elsewhere(refusal.to_string().into()))),
            ),
            (Err(Unavailable::Loading), Err(Unavailable::Loading)),
            (
                Err(Unavailable::NoCoordinator),
                Err(Unavailable::NoCoordinator),
            ),
            (Err(Unavailable::Busy), Err(Unavailable::Busy)),
        ] {
            let response = WriteMirrorStatesResponse {
                topics: vec![crate::wire::mirror_rpc::WriteMirrorStatesTopicResult {
                    name: "t".into(),
                    partitions: vec![write_result(4, given)],
                }],
                ..WriteMirrorStatesResponse::default()
            };
            let answers = write_answers(response);
            assert_eq!(answers.get(&key(4).partition), Some(&wanted));
        }
        let value = PartitionValue {
            state: PartitionState::Failed,
            state_epoch: 9,
            divergence: divergence(TopicId([7; 16]), 12),
            ..PartitionValue::default()
        };
        for given in [
            Ok((Some(value), last_mirror(LeaderEpoch(1), 2))),
            Ok((None, None)),
            Err(Unavailable::Loading),
        ] {
            assert_eq!(read_answer(read_result(0, given.clone())), given);
        }
    }
}
