//! What people are shown about a running process, as plain values. Must not know how it is shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::state::{DesiredState, PartitionState};
use super::types::BrokerId;

/// A snapshot of the whole process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// When the process started, in seconds since 1970-01-01 UTC, if known.
    pub started_at_seconds: Option<u64>,
    /// The name of this process among those that share the work.
    pub sidecar: String,
    /// Those that share the work.
    pub group: GroupStatus,
    /// The destination cluster.
    pub destination: ClusterStatus,
    /// What the state topic says of mirrors, by their names; those that it says nothing of, or not yet, are left out.
    pub recorded: BTreeMap<String, RecordedMirror>,
    /// One entry per mirror, in the order of the configuration.
    pub mirrors: Vec<MirrorStatus>,
}

/// The processes that share the work of a destination, as this one knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group's id.
    pub id: String,
    /// Its generation; -1 before the first of this process.
    pub generation: i32,
    /// All members, this process included.
    pub members: Vec<MemberStatus>,
    /// True while this process has the right to decide: it is in contact with the group.
    pub may_decide: bool,
}

/// One member of the group, as it told the others when it last joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its name.
    pub sidecar: String,
    /// The destination broker that it stands beside, if any.
    pub broker_id: Option<BrokerId>,
    /// Where others reach it, `host:port`.
    pub address: String,
    /// The version of its software.
    pub version: String,
    /// True if its configuration is not that of this process.
    pub config_differs: bool,
}

/// What the state topic says of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedMirror {
    /// True while the mirror is being forgotten.
    pub deleting: bool,
    /// What operators want of its topics.
    pub topics: BTreeMap<Arc<str>, DesiredState>,
}

impl RecordedMirror {
    /// What is wanted of the whole mirror: that of all its topics, `None` where they differ or there are none.
    pub fn desired(&self) -> Option<DesiredState> {
        let mut all = self.topics.values();
        let first = all.next()?;
        all.all(|desired| desired == first).then_some(*first)
    }
}

/// One cluster as this process sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterStatus {
    /// The configured bootstrap servers, `host:port`.
    pub bootstrap_servers: Vec<String>,
    /// The cluster's id, once it was heard.
    pub cluster_id: Option<String>,
    /// True while the cluster answers.
    pub reachable: bool,
    /// Seconds since the cluster last answered; absent before the first answer.
    pub last_contact_seconds: Option<f64>,
    /// The last error of a connection or a request to it, kept until it answers again.
    pub last_error: Option<String>,
}

/// One mirror.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MirrorStatus {
    /// The mirror's name.
    pub name: String,
    /// Its source cluster.
    pub source: ClusterStatus,
    /// Topics that cannot be mirrored as a whole, each with the reason; partitions have their own.
    pub topic_errors: Vec<TopicError>,
    /// One entry per mirrored partition, ordered by topic and partition.
    pub partitions: Vec<PartitionStatus>,
}

/// Why a topic as a whole is not mirrored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicError {
    /// The topic.
    pub topic: Arc<str>,
    /// The reason, in words.
    pub reason: String,
}

/// One mirrored partition. Offsets are absent while they are not known.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionStatus {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition's index.
    pub partition: i32,
    /// Its state.
    pub state: PartitionState,
    /// Why it is FAILED or waits, in words.
    pub reason: Option<String>,
    /// How many retries in a row were made.
    pub retry_attempt: u32,
    /// Seconds until the next retry.
    pub next_retry_seconds: Option<f64>,
    /// True if it is FAILED for good: no retry will follow.
    pub permanent: bool,
    /// First offset of the source's log, inclusive.
    pub source_log_start_offset: Option<i64>,
    /// Up to here, exclusive, the source's transactions are decided; records beyond are not copied.
    pub source_last_stable_offset: Option<i64>,
    /// Up to here, exclusive, the source's log is replicated.
    pub source_high_watermark: Option<i64>,
    /// The next offset of the destination leader's log.
    pub destination_log_end_offset: Option<i64>,
    /// Up to here, exclusive, the destination's log is replicated: what counts as mirrored.
    pub destination_high_watermark: Option<i64>,
    /// Offsets between the destination's high watermark and the source's last stable offset.
    pub lag_records: Option<i64>,
    /// Offsets between the source's last stable offset and its high watermark: open transactions.
    pub undecided_records: Option<i64>,
    /// Seconds since the source had decided nothing that the destination does not hold by now; 0 while both are equal.
    pub lag_seconds: Option<f64>,
}

impl PartitionStatus {
    /// A partition of which nothing is known yet but its state.
    pub fn new(topic: Arc<str>, partition: i32, state: PartitionState) -> Self {
        Self {
            topic,
            partition,
            state,
            reason: None,
            retry_attempt: 0,
            next_retry_seconds: None,
            permanent: false,
            source_log_start_offset: None,
            source_last_stable_offset: None,
            source_high_watermark: None,
            destination_log_end_offset: None,
            destination_high_watermark: None,
            lag_records: None,
            undecided_records: None,
            lag_seconds: None,
        }
    }
}
