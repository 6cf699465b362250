//! Brokers, topics, partitions and their leaders. Must not decide what an answer means.
//! After Kafka 4.4's `MetadataRequest.json`, `MetadataResponse.json`.

use std::sync::Arc;

use crate::domain::types::{BrokerId, LeaderEpoch, TopicId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "Metadata" key 3, versions 9..=12, flexible from 9:
    MetadataRequest => MetadataResponse throttled
}

wire_struct! {
    /// What is asked (Metadata).
    pub struct MetadataRequest {
        /// The topics to fetch metadata for.
        topics: Option<Vec<MetadataRequestTopic>> [0..],
        /// If this is true, the broker may auto-create topics that we requested which do not already
        /// exist, if it is configured to do so.
        allow_auto_topic_creation: bool [4..] = true,
        /// Whether to include cluster authorized operations.
        include_cluster_authorized_operations: bool [8..=10],
        /// Whether to include topic authorized operations.
        include_topic_authorized_operations: bool [8..],
    }
}

wire_struct! {
    /// An element: the topics to fetch metadata for.
    pub struct MetadataRequestTopic {
        /// The topic id.
        topic_id: TopicId [10..],
        /// The topic name.
        name: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// What a broker answers (Metadata).
    pub struct MetadataResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [3..],
        /// A list of brokers present in the cluster.
        brokers: Vec<MetadataResponseBroker> [0..],
        /// The cluster ID that responding broker belongs to.
        cluster_id: Option<Arc<str>> [2..],
        /// The ID of the controller broker.
        controller_id: BrokerId [1..] = BrokerId(-1),
        /// Each topic in the response.
        topics: Vec<MetadataResponseTopic> [0..],
        /// 32-bit bitfield to represent authorized operations for this cluster.
        cluster_authorized_operations: i32 [8..=10] = i32::MIN,
    }
}

wire_struct! {
    /// An element: a list of brokers present in the cluster.
    pub struct MetadataResponseBroker {
        /// The broker ID.
        node_id: BrokerId [0..] = BrokerId(-1),
        /// The broker hostname.
        host: Arc<str> [0..],
        /// The broker port.
        port: i32 [0..],
        /// The rack of the broker, or null if it has not been assigned to a rack.
        rack: Option<Arc<str>> [1..],
    }
}

wire_struct! {
    /// An element: each topic in the response.
    pub struct MetadataResponseTopic {
        /// The topic error, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The topic name. Null for non-existing topics queried by ID. This is never null when ErrorCode
        /// is zero. One of Name and TopicId is always populated.
        name: Option<Arc<str>> [0..],
        /// The topic id. Zero for non-existing topics queried by name. This is never zero when ErrorCode
        /// is zero. One of Name and TopicId is always populated.
        topic_id: TopicId [10..],
        /// True if the topic is internal.
        is_internal: bool [1..],
        /// Each partition in the topic.
        partitions: Vec<MetadataResponsePartition> [0..],
        /// 32-bit bitfield to represent authorized operations for this topic.
        topic_authorized_operations: i32 [8..] = i32::MIN,
    }
}

wire_struct! {
    /// An element: each partition in the topic.
    pub struct MetadataResponsePartition {
        /// The partition error, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The partition index.
        partition_index: i32 [0..],
        /// The ID of the leader broker.
        leader_id: BrokerId [0..] = BrokerId(-1),
        /// The leader epoch of this partition.
        leader_epoch: LeaderEpoch [7..] = LeaderEpoch::NONE,
        /// The set of all nodes that host this partition.
        replica_nodes: Vec<BrokerId> [0..],
        /// The set of nodes that are in sync with the leader for this partition.
        isr_nodes: Vec<BrokerId> [0..],
        /// The set of offline replicas of this partition.
        offline_replicas: Vec<BrokerId> [5..],
    }
}
