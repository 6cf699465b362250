//! The JSON of `/api/v1/status`. Must not compute: every number comes from the snapshot.

use serde::Serialize;

use crate::domain::status::{ClusterStatus, MirrorStatus, PartitionStatus, Status, TopicError};

/// The snapshot as indented JSON: people read it with curl.
pub(super) fn encode(status: &Status) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = serde_json::to_vec_pretty(&StatusJson::from(status))?;
    bytes.push(b'\n');
    Ok(bytes)
}

#[derive(Serialize)]
struct StatusJson<'s> {
    version: &'s str,
    started_at_seconds: Option<u64>,
    destination: ClusterJson<'s>,
    mirrors: Vec<MirrorJson<'s>>,
}

#[derive(Serialize)]
struct ClusterJson<'s> {
    bootstrap_servers: &'s [String],
    cluster_id: Option<&'s str>,
    reachable: bool,
    last_contact_seconds: Option<f64>,
    last_error: Option<&'s str>,
}

#[derive(Serialize)]
struct MirrorJson<'s> {
    name: &'s str,
    source: ClusterJson<'s>,
    topic_errors: Vec<TopicErrorJson<'s>>,
    partitions: Vec<PartitionJson<'s>>,
}

#[derive(Serialize)]
struct TopicErrorJson<'s> {
    topic: &'s str,
    reason: &'s str,
}

#[derive(Serialize)]
struct PartitionJson<'s> {
    topic: &'s str,
    partition: i32,
    state: &'static str,
    reason: Option<&'s str>,
    retry_attempt: u32,
    next_retry_seconds: Option<f64>,
    permanent: bool,
    source_log_start_offset: Option<i64>,
    source_last_stable_offset: Option<i64>,
    source_high_watermark: Option<i64>,
    destination_log_end_offset: Option<i64>,
    destination_high_watermark: Option<i64>,
    lag_records: Option<i64>,
    undecided_records: Option<i64>,
    lag_seconds: Option<f64>,
}

impl<'s> From<&'s Status> for StatusJson<'s> {
    fn from(status: &'s Status) -> Self {
        Self {
            version: &status.version,
            started_at_seconds: status.started_at_seconds,
            destination: ClusterJson::from(&status.destination),
            mirrors: status.mirrors.iter().map(MirrorJson::from).collect(),
        }
    }
}

impl<'s> From<&'s ClusterStatus> for ClusterJson<'s> {
    fn from(cluster: &'s ClusterStatus) -> Self {
        Self {
            bootstrap_servers: &cluster.bootstrap_servers,
            cluster_id: cluster.cluster_id.as_deref(),
            reachable: cluster.reachable,
            last_contact_seconds: cluster.last_contact_seconds,
            last_error: cluster.last_error.as_deref(),
        }
    }
}

impl<'s> From<&'s MirrorStatus> for MirrorJson<'s> {
    fn from(mirror: &'s MirrorStatus) -> Self {
        let error = |error: &'s TopicError| TopicErrorJson {
            topic: &error.topic,
            reason: &error.reason,
        };
        Self {
            name: &mirror.name,
            source: ClusterJson::from(&mirror.source),
            topic_errors: mirror.topic_errors.iter().map(error).collect(),
            partitions: mirror.partitions.iter().map(PartitionJson::from).collect(),
        }
    }
}

impl<'s> From<&'s PartitionStatus> for PartitionJson<'s> {
    fn from(partition: &'s PartitionStatus) -> Self {
        Self {
            topic: &partition.topic,
            partition: partition.partition,
            state: partition.state.name(),
            reason: partition.reason.as_deref(),
            retry_attempt: partition.retry_attempt,
            next_retry_seconds: partition.next_retry_seconds,
            permanent: partition.permanent,
            source_log_start_offset: partition.source_log_start_offset,
            source_last_stable_offset: partition.source_last_stable_offset,
            source_high_watermark: partition.source_high_watermark,
            destination_log_end_offset: partition.destination_log_end_offset,
            destination_high_watermark: partition.destination_high_watermark,
            lag_records: partition.lag_records,
            undecided_records: partition.undecided_records,
            lag_seconds: partition.lag_seconds,
        }
    }
}
