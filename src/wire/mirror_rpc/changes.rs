//! What an operator asks to be changed: start, stop, pause, resume, recover topics, delete a mirror. Must not know which of it
//! is allowed when.
//! After the schemas of KIP-1279's prototype of July 2026 (RecoverMirrorTopics: August 2026); the tags from 1000 on are ours.

use std::sync::Arc;

use super::TopicAnswer;
use crate::domain::types::TopicId;
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "StartMirrorTopics" key 95, versions 0..=0, flexible from 0:
    StartMirrorTopicsRequest => StartMirrorTopicsResponse throttled
}

wire_struct! {
    /// Asks for topics to be mirrored (StartMirrorTopics).
    pub struct StartMirrorTopicsRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The topics to start.
        topics: Vec<StartMirrorTopic> [0..],
        /// The offset in the log of desired states that the states were checked at; -1: do not compare.
        state_validation_offset: i64 [0..] = -1,
    }
    tagged {
        /// Regular expressions of whole names: which topics to start, beside those that are named.
        0 => include_patterns: Vec<Arc<str>> [0..],
        /// Regular expressions of whole names: which topics to leave out.
        1 => exclude_patterns: Vec<Arc<str>> [0..],
        /// Ours: true to be told what would happen, with nothing done.
        1000 => dry_run: bool [0..],
    }
}

wire_struct! {
    /// An element: the topics to start.
    pub struct StartMirrorTopic {
        /// The id that the topic must have; zero: any.
        topic_id: TopicId [0..],
        /// The topic name.
        topic_name: Arc<str> [0..],
        /// The partitions that the source's topic has; 0: not known.
        num_partitions: i32 [0..],
    }
}

wire_struct! {
    /// An element of every answer below: what became of one topic.
    pub struct MirrorTopicResult {
        /// The topic name.
        name: Arc<str> [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The error in words, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// An element: a topic by its name.
    pub struct MirrorTopicName {
        /// The topic name.
        topic_name: Arc<str> [0..],
    }
}

/// Declares an answer that has nothing but the results of topics.
macro_rules! topic_results {
    ($(#[$meta:meta])* $name:ident) => {
        wire_struct! {
            $(#[$meta])*
            pub struct $name {
                /// The duration in milliseconds for which the request was throttled due to a quota violation, or
                /// zero if the request did not violate any quota.
                throttle_time_ms: i32 [0..],
                /// The error code, or 0 if there was no error.
                error_code: ErrorCode [0..],
                /// The top-level error message, or null if there was no error.
                error_message: Option<Arc<str>> [0..],
                /// The results for the topics.
                topics: Vec<MirrorTopicResult> [0..],
            }
        }

        impl TopicAnswer for $name {
            fn of_topics(
                error_code: ErrorCode,
                error_message: Option<Arc<str>>,
                topics: Vec<MirrorTopicResult>,
            ) -> Self {
                Self {
                    throttle_time_ms: 0,
                    error_code,
                    error_message,
                    topics,
                }
            }
        }
    };
}

topic_results! {
    /// What became of the topics (StartMirrorTopics).
    StartMirrorTopicsResponse
}

wire_api! {
    "StopMirrorTopics" key 96, versions 0..=0, flexible from 0:
    StopMirrorTopicsRequest => StopMirrorTopicsResponse throttled
}

wire_struct! {
    /// Asks for topics to become ordinary ones (StopMirrorTopics).
    pub struct StopMirrorTopicsRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The topics to stop.
        topics: Vec<MirrorTopicName> [0..],
        /// The offset in the log of desired states that the states were checked at; -1: do not compare.
        state_validation_offset: i64 [0..] = -1,
    }
    tagged {
        /// Regular expressions of whole names: which topics to stop, beside those that are named.
        0 => patterns: Vec<Arc<str>> [0..],
        /// Ours: true to be told what would happen, with nothing done.
        1000 => dry_run: bool [0..],
    }
}

topic_results! {
    /// What became of the topics (StopMirrorTopics).
    StopMirrorTopicsResponse
}

wire_api! {
    "PauseMirrorTopics" key 102, versions 0..=0, flexible from 0:
    PauseMirrorTopicsRequest => PauseMirrorTopicsResponse throttled
}

wire_struct! {
    /// Asks for topics to stand still, read only (PauseMirrorTopics).
    pub struct PauseMirrorTopicsRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The topics to pause.
        topics: Vec<MirrorTopicName> [0..],
        /// The offset in the log of desired states that the states were checked at; -1: do not compare.
        state_validation_offset: i64 [0..] = -1,
    }
    tagged {
        /// Ours: true to be told what would happen, with nothing done.
        1000 => dry_run: bool [0..],
    }
}

topic_results! {
    /// What became of the topics (PauseMirrorTopics).
    PauseMirrorTopicsResponse
}

wire_api! {
    "ResumeMirrorTopics" key 103, versions 0..=0, flexible from 0:
    ResumeMirrorTopicsRequest => ResumeMirrorTopicsResponse throttled
}

wire_struct! {
    /// Asks for paused topics to be mirrored again (ResumeMirrorTopics).
    pub struct ResumeMirrorTopicsRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The topics to resume.
        topics: Vec<MirrorTopicName> [0..],
        /// The offset in the log of desired states that the states were checked at; -1: do not compare.
        state_validation_offset: i64 [0..] = -1,
    }
    tagged {
        /// Ours: true to be told what would happen, with nothing done.
        1000 => dry_run: bool [0..],
    }
}

topic_results! {
    /// What became of the topics (ResumeMirrorTopics).
    ResumeMirrorTopicsResponse
}

wire_api! {
    "DeleteClusterMirror" key 104, versions 0..=0, flexible from 0:
    DeleteClusterMirrorRequest => DeleteClusterMirrorResponse throttled
}

wire_struct! {
    /// Asks for a mirror of which every topic is stopped to be forgotten (DeleteClusterMirror).
    pub struct DeleteClusterMirrorRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The offset in the log of desired states that the states were checked at; -1: do not compare.
        state_validation_offset: i64 [0..] = -1,
    }
    tagged {
        /// Ours: true to be told what would happen, with nothing done.
        1000 => dry_run: bool [0..],
    }
}

wire_struct! {
    /// Whether the mirror is gone (DeleteClusterMirror).
    pub struct DeleteClusterMirrorResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The top-level error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
    }
}

wire_api! {
    "RecoverMirrorTopics" key 106, versions 0..=0, flexible from 0:
    RecoverMirrorTopicsRequest => RecoverMirrorTopicsResponse throttled
}

wire_struct! {
    /// Asks for FAILED partitions to be tried again now, also those that would not be by themselves (RecoverMirrorTopics).
    pub struct RecoverMirrorTopicsRequest {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// The topics to recover.
        topics: Vec<MirrorTopicName> [0..],
    }
    tagged {
        /// Ours: true to be told what would happen, with nothing done.
        1000 => dry_run: bool [0..],
    }
}

topic_results! {
    /// What became of the topics (RecoverMirrorTopics).
    RecoverMirrorTopicsResponse
}
