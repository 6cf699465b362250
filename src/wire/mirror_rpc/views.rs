//! What an operator looks at: the mirrors, and how far each partition is. Must not compute anything.
//! After the schemas of KIP-1279's prototype of July 2026; the tags from 1000 on are ours.

use std::sync::Arc;

use crate::domain::types::{BrokerId, TopicId};
use crate::wire::error_code::ErrorCode;
use crate::wire::schema::{wire_api, wire_struct};

wire_api! {
    "ListClusterMirrors" key 98, versions 0..=0, flexible from 0:
    ListClusterMirrorsRequest => ListClusterMirrorsResponse throttled
}

wire_struct! {
    /// Asks for all mirrors (ListClusterMirrors).
    pub struct ListClusterMirrorsRequest {
        /// Whether the answer should name topics.
        include_topic_names: bool [0..],
    }
}

wire_struct! {
    /// The mirrors (ListClusterMirrors).
    pub struct ListClusterMirrorsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The top-level error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
        /// The mirrors.
        mirrors: Vec<ListedMirror> [0..],
    }
}

wire_struct! {
    /// An element: the mirrors.
    pub struct ListedMirror {
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// Where the source is asked for its brokers, separated by commas.
        source_bootstrap: Arc<str> [0..],
        /// The id of the source cluster; empty if not known.
        source_cluster_id: Arc<str> [0..],
        /// Topics that are wanted neither paused nor stopped.
        topic_count: i32 [0..],
        /// If asked for: topics that are not wanted stopped, paused ones included.
        topic_names: Vec<Arc<str>> [0..],
    }
    tagged {
        /// Ours: what is wanted of the mirror as a whole, by the number of the state; -1 if not known.
        1000 => desired_state: i8 [0..] = -1,
    }
}

wire_api! {
    "DescribeClusterMirrors" key 99, versions 0..=0, flexible from 0:
    DescribeClusterMirrorsRequest => DescribeClusterMirrorsResponse throttled
}

wire_struct! {
    /// Asks how far mirrors are (DescribeClusterMirrors).
    pub struct DescribeClusterMirrorsRequest {
        /// The mirrors; none: all.
        mirror_names: Vec<Arc<str>> [0..],
        /// Whether the answer should say what the asker may do.
        include_authorized_operations: bool [0..],
    }
    tagged {
        /// For a failback: the cluster that asks, whose mirrors the lookups are about.
        0 => cluster_id: Option<Arc<str>> [0..],
        /// For a failback: of which partitions the last mirrored epoch is wanted.
        1 => last_mirror_epoch_lookups: Vec<LastMirrorEpochLookup> [0..],
    }
}

wire_struct! {
    /// An element: of which partitions the last mirrored epoch is wanted.
    pub struct LastMirrorEpochLookup {
        /// The topic.
        topic_id: TopicId [0..],
        /// Its partitions.
        partitions: Vec<i32> [0..],
    }
}

wire_struct! {
    /// How far mirrors are (DescribeClusterMirrors). Whoever is asked answers for what it owns.
    pub struct DescribeClusterMirrorsResponse {
        /// The duration in milliseconds for which the request was throttled due to a quota violation, or
        /// zero if the request did not violate any quota.
        throttle_time_ms: i32 [0..],
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The top-level error message, or null if there was no error.
        error_message: Option<Arc<str>> [0..],
        /// The mirrors.
        mirrors: Vec<DescribedMirror> [0..],
    }
    tagged {
        /// The last mirrored epochs that were asked for.
        0 => lookup_results: Vec<LastMirrorEpochResult> [0..],
        /// Ours: all processes of this destination, the answering one included.
        1000 => members: Vec<MirrorMember> [0..],
        /// Ours: which of them answers, by its id.
        1001 => answering: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// An element: the mirrors.
    pub struct DescribedMirror {
        /// The error code, or 0 if there was no error.
        error_code: ErrorCode [0..],
        /// The mirror name.
        mirror_name: Arc<str> [0..],
        /// A bitfield of what the asker may do; the default if it was not asked for.
        authorized_operations: i32 [0..] = i32::MIN,
        /// The topics.
        topics: Vec<DescribedMirrorTopic> [0..],
    }
    tagged {
        /// Ours: what is wanted of the mirror as a whole, by the number of the state; -1 if not known.
        1000 => desired_state: i8 [0..] = -1,
        /// Ours: where the source is asked for its brokers, separated by commas.
        1001 => source_bootstrap: Arc<str> [0..] = Arc::from(""),
        /// Ours: the id of the source cluster; empty if not known.
        1002 => source_cluster_id: Arc<str> [0..] = Arc::from(""),
        /// Ours: false if the source does not answer.
        1003 => source_reachable: bool [0..] = true,
        /// Ours: the words to `error_code`, or what hinders the mirror as a whole.
        1004 => error_message: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// An element: the topics.
    pub struct DescribedMirrorTopic {
        /// The topic name.
        topic_name: Arc<str> [0..],
        /// The partitions.
        partitions: Vec<DescribedMirrorPartition> [0..],
    }
}

wire_struct! {
    /// An element: the partitions.
    pub struct DescribedMirrorPartition {
        /// The partition index.
        partition_index: i32 [0..],
        /// The source's log end offset, exclusive, or -1 if it is not known to who answers.
        source_offset: i64 [0..] = -1,
        /// The destination's log end offset, exclusive, or -1 likewise.
        destination_offset: i64 [0..] = -1,
        /// The difference, or -1 likewise.
        lag: i64 [0..] = -1,
        /// The state's name.
        state_value: Arc<str> [0..],
        /// How often FAILED was tried again; -1: it is not.
        retry_attempt: i16 [0..],
        /// Why the partition is FAILED.
        error_message: Option<Arc<str>> [0..],
    }
    tagged {
        /// Ours: milliseconds since the destination last had all that was decided at the source, or -1.
        1000 => lag_ms: i64 [0..] = -1,
        /// Ours: offsets of the source that open transactions keep undecided, or -1.
        1001 => undecided_records: i64 [0..] = -1,
        /// Ours: the source's first offset, or -1.
        1002 => source_log_start_offset: i64 [0..] = -1,
        /// Ours: milliseconds until FAILED is tried again, or -1.
        1003 => next_retry_ms: i64 [0..] = -1,
        /// Ours: the process that owns the partition.
        1004 => sidecar: Option<Arc<str>> [0..],
        /// Ours: the number of the state's last change, or -1.
        1005 => state_epoch: i32 [0..] = -1,
    }
}

wire_struct! {
    /// An element: the last mirrored epochs that were asked for.
    pub struct LastMirrorEpochResult {
        /// The topic.
        topic_id: TopicId [0..],
        /// Its partitions.
        partitions: Vec<LastMirrorEpochPartition> [0..],
    }
}

wire_struct! {
    /// An element: the partitions of a lookup.
    pub struct LastMirrorEpochPartition {
        /// The partition index.
        partition_index: i32 [0..],
        /// The last source epoch that was mirrored, or -1.
        last_mirror_epoch: i32 [0..] = -1,
    }
}

wire_struct! {
    /// An element, ours: one process of this destination, and where it listens for these calls.
    pub struct MirrorMember {
        /// The process's id.
        sidecar: Arc<str> [0..],
        /// Its advertised host.
        host: Arc<str> [0..],
        /// Its advertised port.
        port: i32 [0..],
        /// The broker that it stands beside, or -1.
        broker_id: BrokerId [0..] = BrokerId(-1),
        /// The program's version.
        version: Arc<str> [0..],
    }
}
