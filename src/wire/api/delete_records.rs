//! Raising the log start offset (KIP-107). Must not decide what an answer means.
//! After Kafka 4.4's `DeleteRecordsRequest.json`, `DeleteRecordsResponse.json`.

use std::sync::Arc;

use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "DeleteRecords" key 21, versions 2..=2, flexible from 2:
    DeleteRecordsRequest => DeleteRecordsResponse throttled
}

wire_struct! {
    /// What is asked (DeleteRecords).
    pub struct DeleteRecordsRequest {
        /// Each topic that we want to delete records from.
        topics: Vec<DeleteRecordsTopic> [0..],
        /// How long to wait for the deletion to complete, in milliseconds.
        timeout_ms: i32 [0..],
    }
}

wire_struct! {
    /// An element: each topic that we want to delete records from.
    pub struct DeleteRecordsTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// Each partition that we want to delete records from.
        partitions: Vec<DeleteRecordsPartition> [0..],
    }
}

wire_struct! {
    /// An element: each partition that we want to delete records from.
    pub struct DeleteRecordsPartition {
        /// The partition index.
        partition_index: i32 [0..],
        /// The deletion offset. -1 means that records should be truncated to the high watermark.
        offset: i64 [0..],
    }
}

wire_struct! {
    /// What a broker answers (DeleteRecords).
    pub struct DeleteRecordsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// Each topic that we wanted to delete records from.
        topics: Vec<DeleteRecordsTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: each topic that we wanted to delete records from.
    pub struct DeleteRecordsTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// Each partition that we wanted to delete records from.
        partitions: Vec<DeleteRecordsPartitionResult> [0..],
    }
}

wire_struct! {
    /// An element: each partition that we wanted to delete records from.
    pub struct DeleteRecordsPartitionResult {
        /// The partition index.
        partition_index: i32 [0..],
        /// The partition low water mark.
        low_watermark: i64 [0..],
        /// The deletion error code, or 0 if the deletion succeeded.
        error_code: ErrorCode [0..],
    }
}
