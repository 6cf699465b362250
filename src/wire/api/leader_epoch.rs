//! Up to which offset a leader epoch reaches (KIP-101, KIP-320). Must not decide what an answer means.
//! After Kafka 4.4's `OffsetForLeaderEpochRequest.json`, `OffsetForLeaderEpochResponse.json`.

use std::sync::Arc;

use crate::domain::types::{BrokerId, LeaderEpoch};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "OffsetForLeaderEpoch" key 23, versions 4..=4, flexible from 4:
    OffsetForLeaderEpochRequest => OffsetForLeaderEpochResponse throttled
}

wire_struct! {
    /// What is asked (OffsetForLeaderEpoch).
    pub struct OffsetForLeaderEpochRequest {
        /// The broker ID of the follower, of -1 if this request is from a consumer.
        replica_id: BrokerId [3..] = BrokerId(-1),
        /// Each topic to get offsets for.
        topics: Vec<OffsetForLeaderTopic> [0..],
    }
}

wire_struct! {
    /// An element: each topic to get offsets for.
    pub struct OffsetForLeaderTopic {
        /// The topic name.
        topic: Arc<str> [0..],
        /// Each partition to get offsets for.
        partitions: Vec<OffsetForLeaderPartition> [0..],
    }
}

wire_struct! {
    /// An element: each partition to get offsets for.
    pub struct OffsetForLeaderPartition {
        /// The partition index.
        partition: i32 [0..],
        /// An epoch used to fence consumers/replicas with old metadata. If the epoch provided by the
        /// client is larger than the current epoch known to the broker, then the UNKNOWN_LEADER_EPOCH
        /// error code will be returned. If the provided epoch is smaller, then the FENCED_LEADER_EPOCH
        /// error code will be returned.
        current_leader_epoch: LeaderEpoch [2..] = LeaderEpoch::NONE,
        /// The epoch to look up an offset for.
        leader_epoch: LeaderEpoch [0..] = LeaderEpoch::NONE,
    }
}

wire_struct! {
    /// What a broker answers (OffsetForLeaderEpoch).
    pub struct OffsetForLeaderEpochResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [2..],
        /// Each topic we fetched offsets for.
        topics: Vec<OffsetForLeaderTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: each topic we fetched offsets for.
    pub struct OffsetForLeaderTopicResult {
        /// The topic name.
        topic: Arc<str> [0..],
        /// Each partition in the topic we fetched offsets for.
        partitions: Vec<EpochEndOffset> [0..],
    }
}

wire_struct! {
    /// An element: each partition in the topic we fetched offsets for.
    pub struct EpochEndOffset {
        /// The error code 0, or if there was no error.
        error_code: ErrorCode [0..],
        /// The partition index.
        partition: i32 [0..],
        /// The leader epoch of the partition.
        leader_epoch: LeaderEpoch [1..] = LeaderEpoch::NONE,
        /// The end offset of the epoch.
        end_offset: i64 [0..] = -1,
    }
}
