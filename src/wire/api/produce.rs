//! Appending record batches. Must not decide what an answer means.
//! After Kafka 4.4's `ProduceRequest.json`, `ProduceResponse.json`.

use std::sync::Arc;

use crate::domain::types::{BrokerId, LeaderEpoch, TopicId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{RecordSlices, wire_api, wire_struct};

wire_api! {
    "Produce" key 0, versions 9..=13, flexible from 9:
    ProduceRequest => ProduceResponse throttled
}

wire_struct! {
    /// What is asked (Produce).
    pub struct ProduceRequest {
        /// The transactional ID, or null if the producer is not transactional.
        transactional_id: Option<Arc<str>> [3..],
        /// 1: the leader has it; -1: all in-sync replicas have it. 0 has no answer at all and is not used
        /// here.
        acks: i16 [0..],
        /// The timeout to await a response in milliseconds.
        timeout_ms: i32 [0..],
        /// Each topic to produce to.
        topic_data: Vec<TopicProduceData> [0..],
    }
}

wire_struct! {
    /// An element: each topic to produce to.
    pub struct TopicProduceData {
        /// The topic name.
        name: Arc<str> [0..=12],
        /// The unique topic ID
        topic_id: TopicId [13..],
        /// Each partition to produce to.
        partition_data: Vec<PartitionProduceData> [0..],
    }
}

wire_struct! {
    /// An element: each partition to produce to.
    pub struct PartitionProduceData {
        /// The partition index.
        index: i32 [0..],
        /// The record data to be produced.
        records: RecordSlices [0..],
    }
}

wire_struct! {
    /// What a broker answers (Produce).
    pub struct ProduceResponse {
        /// Each produce response.
        responses: Vec<TopicProduceResponse> [0..],
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
    }
    tagged {
        /// Endpoints for all current-leaders enumerated in PartitionProduceResponses, with errors
        /// NOT_LEADER_OR_FOLLOWER.
        0 => node_endpoints: Vec<NodeEndpoint> [10..],
    }
}

wire_struct! {
    /// An element: each produce response.
    pub struct TopicProduceResponse {
        /// The topic name.
        name: Arc<str> [0..=12],
        /// The unique topic ID
        topic_id: TopicId [13..],
        /// Each partition that we produced to within the topic.
        partition_responses: Vec<PartitionProduceResponse> [0..],
    }
}

wire_struct! {
    /// An element: each partition that we produced to within the topic.
    pub struct PartitionProduceResponse {
        /// The partition index.
        index: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The offset of the first record, on the answering broker; an old one for a duplicate.
        base_offset: i64 [0..],
        /// -1 if this request appended the batch on a topic with CreateTime; a timestamp on a topic with
        /// LogAppendTime, and for a
    /// duplicate of a batch that was appended before (measured on Kafka 4.4.0).
        log_append_time_ms: i64 [2..] = -1,
        /// The log start offset.
        log_start_offset: i64 [5..] = -1,
        /// The batch indices of records that caused the batch to be dropped.
        record_errors: Vec<BatchIndexAndErrorMessage> [8..],
        /// The global error message summarizing the common root cause of the records that caused the
        /// batch to be dropped.
        error_message: Option<Arc<str>> [8..],
    }
    tagged {
        /// The leader broker that the producer should use for future requests.
        0 => current_leader: LeaderIdAndEpoch [10..],
    }
}

wire_struct! {
    /// An element: the batch indices of records that caused the batch to be dropped.
    pub struct BatchIndexAndErrorMessage {
        /// The batch index of the record that caused the batch to be dropped.
        batch_index: i32 [8..],
        /// The error message of the record that caused the batch to be dropped.
        batch_index_error_message: Option<Arc<str>> [8..],
    }
}

wire_struct! {
    /// An element: the leader broker that the producer should use for future requests.
    pub struct LeaderIdAndEpoch {
        /// The ID of the current leader or -1 if the leader is unknown.
        leader_id: BrokerId [10..] = BrokerId(-1),
        /// The latest known leader epoch.
        leader_epoch: LeaderEpoch [10..] = LeaderEpoch::NONE,
    }
}

wire_struct! {
    /// Endpoints for all current-leaders enumerated in PartitionProduceResponses, with errors
    /// NOT_LEADER_OR_FOLLOWER.
    pub struct NodeEndpoint {
        /// The ID of the associated node.
        node_id: BrokerId [10..] = BrokerId(-1),
        /// The node's hostname.
        host: Arc<str> [10..],
        /// The node's port.
        port: i32 [10..],
        /// The rack of the node, or null if it has not been assigned to a rack.
        rack: Option<Arc<str>> [10..],
    }
}
