//! ReadMirrorStates and WriteMirrorStates: the owner of a partition and the coordinator of its state. Must not know what
//! a state means.
//! After the schemas on the page of KIP-1279 (June 2026), field by field; the tags from 1000 on are ours.

use std::sync::Arc;

use crate::domain::types::TopicId;
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "ReadMirrorStates" key 100, versions 0..=0, flexible from 0:
    ReadMirrorStatesRequest => ReadMirrorStatesResponse throttled
}

wire_api! {
    "WriteMirrorStates" key 101, versions 0..=0, flexible from 0:
    WriteMirrorStatesRequest => WriteMirrorStatesResponse throttled
}

wire_struct! {
    /// Asks for the states of partitions (ReadMirrorStates).
    pub struct ReadMirrorStatesRequest {
        /// The cluster mirror name.
        mirror_name: Arc<str> [0..],
        /// The data for the topics.
        topics: Vec<ReadMirrorStatesTopic> [0..],
    }
}

wire_struct! {
    /// An element: the data for the topics.
    pub struct ReadMirrorStatesTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// The data for the partitions.
        partitions: Vec<ReadMirrorStatesPartition> [0..],
    }
}

wire_struct! {
    /// An element: the data for the partitions.
    pub struct ReadMirrorStatesPartition {
        /// The partition index.
        partition_index: i32 [0..],
    }
}

wire_struct! {
    /// What the coordinator knows (ReadMirrorStates).
    pub struct ReadMirrorStatesResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The top-level error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
        /// The read results for the topics.
        topics: Vec<ReadMirrorStatesTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: the read results for the topics.
    pub struct ReadMirrorStatesTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// The results for the partitions.
        partitions: Vec<ReadMirrorStatesPartitionResult> [0..],
    }
}

wire_struct! {
    /// An element: the results for the partitions.
    pub struct ReadMirrorStatesPartitionResult {
        /// The partition index.
        partition_index: i32 [0..],
        /// The last mirrored leader epoch, or -1 if not available.
        last_mirror_epoch: i32 [0..] = -1,
        /// The mirror partition state.
        state: i8 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
    }
    tagged {
        /// The mirror partition state before the last transition; UNKNOWN if not recorded. The default, 16, is an older number
        /// of UNKNOWN.
        0 => previous_state: i8 [0..] = 16,
        /// The number of automatic retry attempts while in FAILED state.
        1 => retry_attempt: i16 [0..],
        /// Ours: the number of the state's last change, or -1 if there is no state.
        1000 => state_epoch: i32 [0..] = -1,
        /// Ours: why the partition is FAILED, or the words to `error_code`.
        1001 => error_message: Option<Arc<str>> [0..],
        /// Ours: the offset, exclusive, up to which the partition was mirrored when it was stopped, or -1.
        1002 => last_mirror_offset: i64 [0..] = -1,
        /// Ours: the offset, exclusive, below which the log was there before the mirror, or -1.
        1003 => adopted_below: i64 [0..] = -1,
        /// Ours: which of the partition's producer ids is the one in use.
        1004 => producer_generation: i32 [0..],
        /// Ours: the destination topic because of which it is FAILED; all zero: none.
        1006 => diverged_topic_id: TopicId [0..],
        /// Ours: the first offset there that differs from the source; -1: another partition's does.
        1007 => diverged_at: i64 [0..] = -1,
    }
}

wire_struct! {
    /// Asks for states of partitions to be written (WriteMirrorStates).
    pub struct WriteMirrorStatesRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The data for the topics.
        topics: Vec<WriteMirrorStatesTopic> [0..],
        /// The topic names to be stopped.
        stopped_topics: Vec<Arc<str>> [0..],
    }
    tagged {
        /// Ours: the process that asks, for logs.
        1000 => incarnation: Arc<str> [0..] = Arc::from(""),
    }
}

wire_struct! {
    /// An element: the data for the topics.
    pub struct WriteMirrorStatesTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// The data for the partitions.
        partitions: Vec<WriteMirrorStatesPartition> [0..],
    }
}

wire_struct! {
    /// An element: the data for the partitions.
    pub struct WriteMirrorStatesPartition {
        /// The partition index.
        partition_index: i32 [0..],
        /// The last mirror leader epoch, or -1 if not available: leave it.
        last_mirror_epoch: i32 [0..] = -1,
        /// The mirror partition state; -1: leave it.
        state: i8 [0..],
    }
    tagged {
        /// Ours: the epoch that the state must have until now; -1: any.
        1000 => state_epoch: i32 [0..] = -1,
        /// Ours: why the partition is FAILED.
        1001 => error_message: Option<Arc<str>> [0..],
        /// Ours: the offset, exclusive, up to which the partition was mirrored; -1: leave it.
        1002 => last_mirror_offset: i64 [0..] = -1,
        /// Ours: the offset, exclusive, below which the log was there before the mirror; -1: leave it.
        1003 => adopted_below: i64 [0..] = -1,
        /// Ours: which of the partition's producer ids is the one in use; -1: leave it.
        1004 => producer_generation: i32 [0..] = -1,
        /// Ours: how often FAILED was tried again; -1: never try again; -2: the coordinator counts.
        1005 => retry_attempt: i16 [0..] = -2,
        /// Ours: the destination topic because of which it is FAILED, with the error message; all zero: none.
        1006 => diverged_topic_id: TopicId [0..],
        /// Ours: the first offset there that differs from the source; -1: another partition's does.
        1007 => diverged_at: i64 [0..] = -1,
    }
}

wire_struct! {
    /// What was written (WriteMirrorStates).
    pub struct WriteMirrorStatesResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The top-level error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
        /// The write results for the topics.
        topics: Vec<WriteMirrorStatesTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: the write results for the topics.
    pub struct WriteMirrorStatesTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// The results for the partitions.
        partitions: Vec<WriteMirrorStatesPartitionResult> [0..],
    }
}

wire_struct! {
    /// An element: the results for the partitions.
    pub struct WriteMirrorStatesPartitionResult {
        /// The partition index.
        partition_index: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
    }
    tagged {
        /// Ours: the state's epoch after the write, or the one that is there if it was refused; -1 if there is no state.
        1000 => state_epoch: i32 [0..] = -1,
        /// Ours: the words to `error_code`.
        1001 => error_message: Option<Arc<str>> [0..],
    }
}
