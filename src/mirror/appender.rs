//! Lanes to the destination brokers: one connection each, on which Produce requests of many partitions are in flight. Must
//! not decide where a batch belongs; the append machine of its partition has done that.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::partition::{Partition, PartitionKey};
use crate::domain::append::{Answer, Send};
use crate::domain::types::{BrokerId, TopicId, TopicPartition};
use crate::kafka::append::classify;
use crate::kafka::connection::Connection;
use crate::wire::api::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse,
    TopicProduceData,
};
use crate::wire::batch::{ProducerStamp, rewrite_header};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::RecordSlices;

/// Produce requests in flight on one lane: enough for every partition's window, with some for those that come in between.
pub(super) const LANE_DEPTH: usize = 8;

/// Record bytes in one Produce request; a larger batch goes alone.
pub(super) const REQUEST_BYTES: usize = 4 * 1024 * 1024;

/// Which lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct LaneKey {
    pub(super) broker: BrokerId,
    pub(super) number: u16,
}

/// One connection to one destination broker.
#[derive(Debug, Default)]
pub(super) struct ProduceLane {
    pub(super) connection: Option<Connection>,
    pub(super) connecting: bool,
    /// How many connections of it were lost.
    pub(super) losses: u64,
    pub(super) in_flight: usize,
    /// Partitions that may have something to send.
    pub(super) listed: VecDeque<PartitionKey>,
}

/// One batch in a request.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) key: PartitionKey,
    pub(super) round: u64,
    pub(super) first_offset: i64,
    pub(super) partition: TopicPartition,
    topic_id: TopicId,
}

/// A request under construction: at most one batch per partition, as the protocol wants it.
#[derive(Debug, Default)]
pub(super) struct RequestDraft {
    topics: HashMap<Arc<str>, TopicProduceData>,
    pub(super) sent: Vec<Sent>,
    pub(super) bytes: usize,
}

impl RequestDraft {
    /// Adds the first queued batch of a partition, with the header that its machine gives it. The record bytes are not copied.
    pub(super) fn add(&mut self, key: PartitionKey, partition: &Partition, send: Send) {
        let Some(queued) = partition.queue.front() else {
            return;
        };
        let stamp = ProducerStamp {
            producer_id: partition.machine.producer_id(),
            producer_epoch: send.producer_epoch,
            base_sequence: send.base_sequence,
        };
        let (name, topic_id) = (&partition.name, partition.destination_topic_id);
        let topic = self
            .topics
            .entry(Arc::clone(&name.topic))
            .or_insert_with(|| TopicProduceData {
                name: Arc::clone(&name.topic),
                topic_id,
                partition_data: Vec::new(),
            });
        topic.partition_data.push(PartitionProduceData {
            index: name.partition,
            records: RecordSlices(Vec::from(rewrite_header(&queued.batch, &stamp))),
        });
        self.bytes = self.bytes.saturating_add(queued.span.size_bytes);
        self.sent.push(Sent {
            key,
            round: partition.round,
            first_offset: queued.span.first_offset,
            partition: name.clone(),
            topic_id,
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sent.is_empty()
    }

    /// The request, and what is in it.
    pub(super) fn finish(self, acks: i16, timeout: Duration) -> (ProduceRequest, Vec<Sent>) {
        let request = ProduceRequest {
            transactional_id: None,
            acks,
            // The broker gives up before we do, so that its own words still reach us.
            timeout_ms: i32::try_from(timeout.as_millis() / 4 * 3).unwrap_or(i32::MAX),
            topic_data: self.topics.into_values().collect(),
        };
        (request, self.sent)
    }
}

/// What became of one batch, and the broker's words if it has any.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) answer: Answer,
    pub(super) code: ErrorCode,
    pub(super) words: Option<Arc<str>>,
}

/// Sorts a response by what was sent. A partition that the response leaves out has an unknown outcome.
pub(super) fn outcomes(sent: &[Sent], response: ProduceResponse) -> Vec<Outcome> {
    let mut answers: HashMap<(Arc<str>, TopicId, i32), PartitionProduceResponse> = HashMap::new();
    for topic in response.responses {
        let (name, id) = (topic.name, topic.topic_id);
        for partition in topic.partition_responses {
            // Up to version 12 by name, from 13 by id.
            let id = if name.is_empty() {
                id
            } else {
                TopicId::default()
            };
            answers.insert((Arc::clone(&name), id, partition.index), partition);
        }
    }
    let nameless: Arc<str> = "".into();
    sent.iter()
        .map(|one| {
            let index = one.partition.partition;
            let by_name =
                answers.remove(&(Arc::clone(&one.partition.topic), TopicId::default(), index));
            let found =
                by_name.or_else(|| answers.remove(&(Arc::clone(&nameless), one.topic_id, index)));
            found.map_or(
                Outcome {
                    answer: Answer::Lost,
                    code: ErrorCode::NONE,
                    words: None,
                },
                |response| Outcome {
                    answer: classify(&response),
                    code: response.error_code,
                    words: response
                        .record_errors
                        .into_iter()
                        .find_map(|error| error.batch_index_error_message)
                        .or(response.error_message),
                },
            )
        })
        .collect()
}

/// What an operator can do about a batch that the destination refuses with `code`.
pub(super) fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE => {
            "raise max.message.bytes of the topic on the destination"
        }
        ErrorCode::INVALID_RECORD => {
            "if the topic is compacted there, records need keys: set cleanup.policy=delete on it or exclude it; else the record \
             is damaged on the source"
        }
        ErrorCode::INVALID_TIMESTAMP => {
            "set message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic on the destination to \
             9223372036854775807"
        }
        ErrorCode::TOPIC_AUTHORIZATION_FAILED => {
            "grant WRITE on the topic to our principal on the destination"
        }
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
            "grant IDEMPOTENT_WRITE on the destination cluster to our principal"
        }
        ErrorCode::POLICY_VIOLATION => {
            "a policy of the destination brokers forbids it; ask who runs them"
        }
        _ => "look at the destination broker's log",
    }
}
