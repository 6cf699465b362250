//! Creating, widening and deleting topics. Must not decide what an answer means.
//! After Kafka 4.4's `CreateTopicsRequest.json`, `CreateTopicsResponse.json`, `CreatePartitionsRequest.json`,
//! `CreatePartitionsResponse.json`, `DeleteTopicsRequest.json`, `DeleteTopicsResponse.json`.

use std::sync::Arc;

use crate::domain::types::{BrokerId, TopicId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "CreateTopics" key 19, versions 5..=7, flexible from 5:
    CreateTopicsRequest => CreateTopicsResponse throttled
}

wire_struct! {
    /// What is asked (CreateTopics).
    pub struct CreateTopicsRequest {
        /// The topics to create.
        topics: Vec<CreatableTopic> [0..],
        /// How long to wait in milliseconds before timing out the request.
        timeout_ms: i32 [0..] = 60_000,
        /// If true, check that the topics can be created as specified, but don't create anything.
        validate_only: bool [1..],
    }
}

wire_struct! {
    /// An element: the topics to create.
    pub struct CreatableTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// The number of partitions to create in the topic, or -1 if we are either specifying a manual
        /// partition assignment or using the default partitions.
        num_partitions: i32 [0..],
        /// The number of replicas to create for each partition in the topic, or -1 if we are either
        /// specifying a manual partition assignment or using the default replication factor.
        replication_factor: i16 [0..],
        /// The manual partition assignment, or the empty array if we are using automatic assignment.
        assignments: Vec<CreatableReplicaAssignment> [0..],
        /// The custom topic configurations to set.
        configs: Vec<CreatableTopicConfig> [0..],
    }
}

wire_struct! {
    /// An element: the manual partition assignment, or the empty array if we are using automatic assignment.
    pub struct CreatableReplicaAssignment {
        /// The partition index.
        partition_index: i32 [0..],
        /// The brokers to place the partition on.
        broker_ids: Vec<BrokerId> [0..],
    }
}

wire_struct! {
    /// An element: the custom topic configurations to set.
    pub struct CreatableTopicConfig {
        /// The configuration name.
        name: Arc<str> [0..],
        /// The configuration value.
        value: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// What a broker answers (CreateTopics).
    pub struct CreateTopicsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [2..],
        /// Results for each topic we tried to create.
        topics: Vec<CreatableTopicResult> [0..],
    }
}

wire_struct! {
    /// Results for each topic we tried to create.
    pub struct CreatableTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// The unique topic ID.
        topic_id: TopicId [7..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The error message, or null if there was no error.
        error_message: Option<Arc<str>> [1..],
        /// Number of partitions of the topic.
        num_partitions: i32 [5..] = -1,
        /// Replication factor of the topic.
        replication_factor: i16 [5..] = -1,
        /// Configuration of the topic.
        configs: Option<Vec<CreatableTopicConfigs>> [5..],
    }
    tagged {
        /// Optional topic config error returned if configs are not returned in the response.
        0 => topic_config_error_code: ErrorCode [5..],
    }
}

wire_struct! {
    /// Configuration of the topic.
    pub struct CreatableTopicConfigs {
        /// The configuration name.
        name: Arc<str> [5..],
        /// The configuration value.
        value: Option<Arc<str>> [5..],
        /// True if the configuration is read-only.
        read_only: bool [5..],
        /// The configuration source.
        config_source: i8 [5..] = -1,
        /// True if this configuration is sensitive.
        is_sensitive: bool [5..],
    }
}

wire_api! {
    "CreatePartitions" key 37, versions 2..=3, flexible from 2:
    CreatePartitionsRequest => CreatePartitionsResponse throttled
}

wire_struct! {
    /// What is asked (CreatePartitions).
    pub struct CreatePartitionsRequest {
        /// Each topic that we want to create new partitions inside.
        topics: Vec<CreatePartitionsTopic> [0..],
        /// The time in ms to wait for the partitions to be created.
        timeout_ms: i32 [0..],
        /// If true, then validate the request, but don't actually increase the number of partitions.
        validate_only: bool [0..],
    }
}

wire_struct! {
    /// An element: each topic that we want to create new partitions inside.
    pub struct CreatePartitionsTopic {
        /// The topic name.
        name: Arc<str> [0..],
        /// The new partition count.
        count: i32 [0..],
        /// The new partition assignments.
        assignments: Option<Vec<CreatePartitionsAssignment>> [0..],
    }
}

wire_struct! {
    /// An element: the new partition assignments.
    pub struct CreatePartitionsAssignment {
        /// The assigned broker IDs.
        broker_ids: Vec<BrokerId> [0..],
    }
}

wire_struct! {
    /// What a broker answers (CreatePartitions).
    pub struct CreatePartitionsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The partition creation results for each topic.
        results: Vec<CreatePartitionsTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: the partition creation results for each topic.
    pub struct CreatePartitionsTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// The result error, or zero if there was no error.
        error_code: ErrorCode [0..],
        /// The result message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
    }
}

wire_api! {
    "DeleteTopics" key 20, versions 6..=6, flexible from 4:
    DeleteTopicsRequest => DeleteTopicsResponse throttled
}

wire_struct! {
    /// What is asked (DeleteTopics).
    pub struct DeleteTopicsRequest {
        /// The name or topic ID of the topic.
        topics: Vec<DeleteTopicState> [6..],
        /// The length of time in milliseconds to wait for the deletions to complete.
        timeout_ms: i32 [0..],
    }
}

wire_struct! {
    /// An element: the name or topic ID of the topic.
    pub struct DeleteTopicState {
        /// The topic name.
        name: Option<Arc<str>> [6..],
        /// The unique topic ID.
        topic_id: TopicId [6..],
    }
}

wire_struct! {
    /// What a broker answers (DeleteTopics).
    pub struct DeleteTopicsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [1..],
        /// The results for each topic we tried to delete.
        responses: Vec<DeletableTopicResult> [0..],
    }
}

wire_struct! {
    /// An element: the results for each topic we tried to delete.
    pub struct DeletableTopicResult {
        /// The topic name.
        name: Option<Arc<str>> [0..],
        /// The unique topic ID.
        topic_id: TopicId [6..],
        /// The deletion error, or 0 if the deletion succeeded.
        error_code: ErrorCode [0..],
        /// The error message, or null if there was no error.
        error_message: Option<Arc<str>> [5..],
    }
}
