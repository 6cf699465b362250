//! The JSON of `/api/v1/status`. Must not compute: every number comes from the snapshot.

use serde::Serialize;

use crate::domain::state::DesiredState;
use crate::domain::status::{
    ClusterStatus, GroupStatus, MemberStatus, MirrorStatus, PartitionStatus, RecordedMirror,
    Status, TopicError,
};

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
    sidecar: &'s str,
    group: GroupJson<'s>,
    destination: ClusterJson<'s>,
    mirrors: Vec<MirrorJson<'s>>,
}

#[derive(Serialize)]
struct GroupJson<'s> {
    id: &'s str,
    generation: i32,
    may_decide: bool,
    members: Vec<MemberJson<'s>>,
}

#[derive(Serialize)]
struct MemberJson<'s> {
    sidecar: &'s str,
    broker_id: Option<i32>,
    address: &'s str,
    version: &'s str,
    config_differs: bool,
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
    desired: Option<&'static str>,
    deleting: Option<bool>,
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
    desired_state: Option<&'static str>,
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
            sidecar: &status.sidecar,
            group: GroupJson::from(&status.group),
            destination: ClusterJson::from(&status.destination),
            mirrors: status
                .mirrors
                .iter()
                .map(|mirror| MirrorJson::new(mirror, status.recorded.get(&mirror.name)))
                .collect(),
        }
    }
}

impl<'s> From<&'s GroupStatus> for GroupJson<'s> {
    fn from(group: &'s GroupStatus) -> Self {
        Self {
            id: &group.id,
            generation: group.generation,
            may_decide: group.may_decide,
            members: group.members.iter().map(MemberJson::from).collect(),
        }
    }
}

impl<'s> From<&'s MemberStatus> for MemberJson<'s> {
    fn from(member: &'s MemberStatus) -> Self {
        Self {
            sidecar: &member.sidecar,
            broker_id: member.broker_id.map(|id| id.0),
            address: &member.address,
            version: &member.version,
            config_differs: member.config_differs,
        }
    }
}

fn name_of(desired: DesiredState) -> &'static str {
    desired.as_state().name()
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

impl<'s> MirrorJson<'s> {
    fn new(mirror: &'s MirrorStatus, recorded: Option<&RecordedMirror>) -> Self {
        let partition = |partition: &'s PartitionStatus| {
            let desired = recorded.and_then(|mirror| mirror.topics.get(&partition.topic));
            PartitionJson::new(partition, desired.copied())
        };
        let error = |error: &'s TopicError| TopicErrorJson {
            topic: &error.topic,
            reason: &error.reason,
        };
        Self {
            name: &mirror.name,
            desired: recorded.and_then(RecordedMirror::desired).map(name_of),
            deleting: recorded.map(|mirror| mirror.deleting),
            source: ClusterJson::from(&mirror.source),
            topic_errors: mirror.topic_errors.iter().map(error).collect(),
            partitions: mirror.partitions.iter().map(partition).collect(),
        }
    }
}

impl<'s> PartitionJson<'s> {
    fn new(partition: &'s PartitionStatus, desired: Option<DesiredState>) -> Self {
        Self {
            topic: &partition.topic,
            partition: partition.partition,
            state: partition.state.name(),
            desired_state: desired.map(name_of),
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
