//! Where logs start and end. Must not decide what an answer means.
//! After Kafka 4.4's `ListOffsetsRequest.json`, `ListOffsetsResponse.json`.

use std::sync::Arc;

use crate::domain::types::{BrokerId, LeaderEpoch};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "ListOffsets" key 2, versions 6..=6, flexible from 6:
    ListOffsetsRequest => ListOffsetsResponse throttled
}

wire_struct! {
    /// What is asked (ListOffsets).
    pub struct ListOffsetsRequest {
        /// -1 for a consumer (high watermark or last stable offset). Any other id but -2 asks the leader
        /// for its log end; -2 is
    /// answered by followers too, from their own log.
        replica_id: BrokerId [0..] = BrokerId(-1),
        /// This setting controls the visibility of transactional records. Using READ_UNCOMMITTED
        /// (isolation_level = 0) makes all records visible. With READ_COMMITTED (isolation_level = 1),
        /// non-transactional and COMMITTED transactional records are visible. To be more concrete,
        /// READ_COMMITTED returns all data from offsets smaller than the current LSO (last stable
        /// offset), and enables the inclusion of the list of aborted transactions in the result, which
        /// allows consumers to discard ABORTED transactional records.
        isolation_level: i8 [2..],
        /// Each topic in the request.
        topics: Vec<ListOffsetsTopic> [0..],
    }
}

wire_struct! {
    /// An element: each topic in the request.
    pub struct ListOffsetsTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// Each partition in the request.
        partitions: Vec<ListOffsetsPartition> [0..],
    }
}

wire_struct! {
    /// An element: each partition in the request.
    pub struct ListOffsetsPartition {
        /// The partition index.
        partition_index: i32 [0..],
        /// The current leader epoch.
        current_leader_epoch: LeaderEpoch [4..] = LeaderEpoch::NONE,
        /// -1 for the end, -2 for the log start offset; otherwise the first offset at or after this time
        /// in milliseconds.
        timestamp: i64 [0..],
    }
}

wire_struct! {
    /// What a broker answers (ListOffsets).
    pub struct ListOffsetsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [2..],
        /// Each topic in the response.
        topics: Vec<ListOffsetsTopicResponse> [0..],
    }
}

wire_struct! {
    /// An element: each topic in the response.
    pub struct ListOffsetsTopicResponse {
        /// The topic name.
        name: Arc<str> [0..],
        /// Each partition in the response.
        partitions: Vec<ListOffsetsPartitionResponse> [0..],
    }
}

wire_struct! {
    /// An element: each partition in the response.
    pub struct ListOffsetsPartitionResponse {
        /// The partition index.
        partition_index: i32 [0..],
        /// The partition error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The timestamp associated with the returned offset.
        timestamp: i64 [1..] = -1,
        /// The returned offset.
        offset: i64 [1..] = -1,
        /// The leader epoch associated with the returned offset.
        leader_epoch: LeaderEpoch [4..] = LeaderEpoch::NONE,
    }
}
