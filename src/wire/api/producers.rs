//! Producer ids: which ones a partition knows (KIP-664), and getting a fresh one. Must not decide what an answer
//! means.
//! After Kafka 4.4's `DescribeProducersRequest.json`, `DescribeProducersResponse.json`,
//! `InitProducerIdRequest.json`, `InitProducerIdResponse.json`.

use std::sync::Arc;

use crate::domain::types::{ProducerEpoch, ProducerId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "DescribeProducers" key 61, versions 0..=0, flexible from 0:
    DescribeProducersRequest => DescribeProducersResponse throttled
}

wire_struct! {
    /// What is asked (DescribeProducers).
    pub struct DescribeProducersRequest {
        /// The topics to list producers for.
        topics: Vec<TopicRequest> [0..],
    }
}

wire_struct! {
    /// An element: the topics to list producers for.
    pub struct TopicRequest {
        /// The topic name.
        name: Arc<str> [0..],
        /// The indexes of the partitions to list producers for.
        partition_indexes: Vec<i32> [0..],
    }
}

wire_struct! {
    /// What a broker answers (DescribeProducers).
    pub struct DescribeProducersResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// Each topic in the response.
        topics: Vec<TopicResponse> [0..],
    }
}

wire_struct! {
    /// An element: each topic in the response.
    pub struct TopicResponse {
        /// The topic name.
        name: Arc<str> [0..],
        /// Each partition in the response.
        partitions: Vec<PartitionResponse> [0..],
    }
}

wire_struct! {
    /// An element: each partition in the response.
    pub struct PartitionResponse {
        /// The partition index.
        partition_index: i32 [0..],
        /// The partition error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The partition error message, which may be null if no additional details are available.
        error_message: Option<Arc<str>> [0..],
        /// The active producers for the partition.
        active_producers: Vec<ProducerState> [0..],
    }
}

wire_struct! {
    /// An element: the active producers for the partition.
    pub struct ProducerState {
        /// The producer id.
        producer_id: ProducerId [0..] = ProducerId::NONE,
        /// The producer epoch.
        producer_epoch: i32 [0..],
        /// The last sequence number sent by the producer.
        last_sequence: i32 [0..] = -1,
        /// The last timestamp sent by the producer.
        last_timestamp: i64 [0..] = -1,
        /// The current epoch of the producer group.
        coordinator_epoch: i32 [0..],
        /// The current transaction start offset of the producer.
        current_txn_start_offset: i64 [0..] = -1,
    }
}

wire_api! {
    "InitProducerId" key 22, versions 2..=4, flexible from 2:
    InitProducerIdRequest => InitProducerIdResponse throttled
}

wire_struct! {
    /// What is asked (InitProducerId).
    pub struct InitProducerIdRequest {
        /// The transactional id, or null if the producer is not transactional.
        transactional_id: Option<Arc<str>> [0..],
        /// The time in ms to wait before aborting idle transactions sent by this producer. This is only
        /// relevant if a TransactionalId has been defined.
        transaction_timeout_ms: i32 [0..],
        /// The producer id. This is used to disambiguate requests if a transactional id is reused
        /// following its expiration.
        producer_id: ProducerId [3..] = ProducerId::NONE,
        /// The producer's current epoch. This will be checked against the producer epoch on the broker,
        /// and the request will return an error if they do not match.
        producer_epoch: ProducerEpoch [3..] = ProducerEpoch(-1),
    }
}

wire_struct! {
    /// What a broker answers (InitProducerId).
    pub struct InitProducerIdResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The current producer id.
        producer_id: ProducerId [0..] = ProducerId::NONE,
        /// The current epoch associated with the producer id.
        producer_epoch: ProducerEpoch [0..] = ProducerEpoch(-1),
    }
}
