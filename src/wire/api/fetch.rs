//! Reading record batches, with incremental sessions (KIP-227), divergence detection (KIP-595) and topic ids
//! (KIP-516). Must not decide what an answer means.
//! After Kafka 4.4's `FetchRequest.json`, `FetchResponse.json`.

use std::sync::Arc;

use bytes::Bytes;

use crate::domain::types::{BrokerId, LeaderEpoch, ProducerId, TopicId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "Fetch" key 1, versions 12..=13, flexible from 12:
    FetchRequest => FetchResponse throttled
}

wire_struct! {
    /// What is asked (Fetch).
    pub struct FetchRequest {
        /// The broker ID of the follower, of -1 if this request is from a consumer.
        replica_id: BrokerId [0..=14] = BrokerId(-1),
        /// The maximum time in milliseconds to wait for the response.
        max_wait_ms: i32 [0..],
        /// The minimum bytes to accumulate in the response.
        min_bytes: i32 [0..],
        /// The maximum bytes to fetch.  See KIP-74 for cases where this limit may not be honored.
        max_bytes: i32 [3..] = i32::MAX,
        /// This setting controls the visibility of transactional records. Using READ_UNCOMMITTED
        /// (isolation_level = 0) makes all records visible. With READ_COMMITTED (isolation_level = 1),
        /// non-transactional and COMMITTED transactional records are visible. To be more concrete,
        /// READ_COMMITTED returns all data from offsets smaller than the current LSO (last stable
        /// offset), and enables the inclusion of the list of aborted transactions in the result, which
        /// allows consumers to discard ABORTED transactional records.
        isolation_level: i8 [4..],
        /// The fetch session ID.
        session_id: i32 [7..],
        /// The fetch session epoch, which is used for ordering requests in a session.
        session_epoch: i32 [7..] = -1,
        /// The topics to fetch.
        topics: Vec<FetchTopic> [0..],
        /// In an incremental fetch request, the partitions to remove.
        forgotten_topics_data: Vec<ForgottenTopic> [7..],
        /// Rack ID of the consumer making this request.
        rack_id: Arc<str> [11..],
    }
    tagged {
        /// The clusterId if known. This is used to validate metadata fetches prior to broker registration.
        0 => cluster_id: Option<Arc<str>> [12..],
    }
}

wire_struct! {
    /// An element: the topics to fetch.
    pub struct FetchTopic {
        /// The name of the topic to fetch.
        topic: Arc<str> [0..=12],
        /// The unique topic ID.
        topic_id: TopicId [13..],
        /// The partitions to fetch.
        partitions: Vec<FetchPartition> [0..],
    }
}

wire_struct! {
    /// An element: the partitions to fetch.
    pub struct FetchPartition {
        /// The partition index.
        partition: i32 [0..],
        /// The current leader epoch of the partition.
        current_leader_epoch: LeaderEpoch [9..] = LeaderEpoch::NONE,
        /// The message offset.
        fetch_offset: i64 [0..],
        /// The epoch of the last fetched record or -1 if there is none.
        last_fetched_epoch: LeaderEpoch [12..] = LeaderEpoch::NONE,
        /// The earliest available offset of the follower replica.  The field is only used when the
        /// request is sent by the follower.
        log_start_offset: i64 [5..] = -1,
        /// The maximum bytes to fetch from this partition.  See KIP-74 for cases where this limit may not
        /// be honored.
        partition_max_bytes: i32 [0..],
    }
}

wire_struct! {
    /// In an incremental fetch request, the partitions to remove.
    pub struct ForgottenTopic {
        /// The topic name.
        topic: Arc<str> [7..=12],
        /// The unique topic ID.
        topic_id: TopicId [13..],
        /// The partitions indexes to forget.
        partitions: Vec<i32> [7..],
    }
}

wire_struct! {
    /// What a broker answers (Fetch).
    pub struct FetchResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The top level response error code.
        error_code: ErrorCode [7..],
        /// The fetch session ID, or 0 if this is not part of a fetch session.
        session_id: i32 [7..],
        /// The response topics.
        responses: Vec<FetchableTopicResponse> [0..],
    }
}

wire_struct! {
    /// An element: the response topics.
    pub struct FetchableTopicResponse {
        /// The topic name.
        topic: Arc<str> [0..=12],
        /// The unique topic ID.
        topic_id: TopicId [13..],
        /// The topic partitions.
        partitions: Vec<PartitionData> [0..],
    }
}

wire_struct! {
    /// An element: the topic partitions.
    pub struct PartitionData {
        /// The partition index.
        partition_index: i32 [0..],
        /// The error code, or 0 if there was no fetch error.
        error_code: ErrorCode [0..],
        /// The current high water mark.
        high_watermark: i64 [0..],
        /// The last stable offset (or LSO) of the partition. This is the last offset such that the state
        /// of all transactional records prior to this offset have been decided (ABORTED or COMMITTED).
        last_stable_offset: i64 [4..] = -1,
        /// The current log start offset.
        log_start_offset: i64 [5..] = -1,
        /// The aborted transactions.
        aborted_transactions: Option<Vec<AbortedTransaction>> [4..],
        /// The preferred read replica for the consumer to use on its next fetch request.
        preferred_read_replica: BrokerId [11..] = BrokerId(-1),
        /// Record batches as they lie in the log; the last one may be cut off.
        records: Option<Bytes> [0..],
    }
    tagged {
        /// In case divergence is detected based on the `LastFetchedEpoch` and `FetchOffset` in the
        /// request, this field indicates the largest epoch and its end offset such that subsequent
        /// records are known to diverge.
        0 => diverging_epoch: EpochEndOffset [12..],
        /// The current leader of the partition.
        1 => current_leader: LeaderIdAndEpoch [12..],
        /// In the case of fetching an offset less than the LogStartOffset, this is the end offset and
        /// epoch that should be used in the FetchSnapshot request.
        2 => snapshot_id: SnapshotId [12..],
    }
}

wire_struct! {
    /// In case divergence is detected based on the `LastFetchedEpoch` and `FetchOffset` in the request, this
    /// field indicates the largest epoch and its end offset such that subsequent records are known to
    /// diverge.
    pub struct EpochEndOffset {
        /// The largest epoch.
        epoch: LeaderEpoch [12..] = LeaderEpoch::NONE,
        /// The end offset of the epoch.
        end_offset: i64 [12..] = -1,
    }
}

wire_struct! {
    /// An element: the current leader of the partition.
    pub struct LeaderIdAndEpoch {
        /// The ID of the current leader or -1 if the leader is unknown.
        leader_id: BrokerId [12..] = BrokerId(-1),
        /// The latest known leader epoch.
        leader_epoch: LeaderEpoch [12..] = LeaderEpoch::NONE,
    }
}

wire_struct! {
    /// In the case of fetching an offset less than the LogStartOffset, this is the end offset and epoch that
    /// should be used in the FetchSnapshot request.
    pub struct SnapshotId {
        /// The end offset of the epoch.
        end_offset: i64 [0..] = -1,
        /// The largest epoch.
        epoch: LeaderEpoch [0..] = LeaderEpoch::NONE,
    }
}

wire_struct! {
    /// An element: the aborted transactions.
    pub struct AbortedTransaction {
        /// The producer id associated with the aborted transaction.
        producer_id: ProducerId [4..] = ProducerId::NONE,
        /// The first offset in the aborted transaction.
        first_offset: i64 [4..],
    }
}
