//! What this process knows of mirrors and partitions, as DescribeClusterMirrors shows it. Must not ask anybody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::handlers::MirrorService;
use crate::coordinator::messages::refused;
use crate::domain::shard::Refusal;
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{MirrorPartition, PartitionValue, TopicValue};
use crate::domain::status::{MirrorStatus, PartitionStatus};
use crate::domain::types::TopicPartition;
use crate::wire::mirror_rpc::{
    DescribeClusterMirrorsRequest, DescribedMirror, DescribedMirrorPartition, DescribedMirrorTopic,
};

impl MirrorService {
    pub(super) fn describe(&self, request: &DescribeClusterMirrorsRequest) -> Vec<DescribedMirror> {
        let model = self.inner.states.model();
        let status = (self.inner.status)();
        let mut names: BTreeSet<Arc<str>> = model.mirrors().into_keys().collect();
        names.extend((self.inner.mirrors)().into_iter().map(|mirror| mirror.name));
        let wanted: BTreeSet<Arc<str>> = if request.mirror_names.is_empty() {
            names.clone()
        } else {
            request.mirror_names.iter().cloned().collect()
        };
        wanted
            .into_iter()
            .map(|name| {
                if !names.contains(&name) {
                    let (error_code, error_message) = refused(&Refusal::UnknownMirror);
                    return DescribedMirror {
                        error_code,
                        error_message,
                        mirror_name: name,
                        ..DescribedMirror::default()
                    };
                }
                let shown = status.mirrors.iter().find(|mirror| *mirror.name == *name);
                self.describe_one(name, shown)
            })
            .collect()
    }

    fn describe_one(&self, name: Arc<str>, shown: Option<&MirrorStatus>) -> DescribedMirror {
        let model = self.inner.states.model();
        let desired = model.topics(&name);
        let mut partitions: BTreeMap<TopicPartition, DescribedMirrorPartition> = model
            .partitions_of(&name)
            .into_iter()
            .map(|(key, value)| (key.partition.clone(), recorded(&key, &value)))
            .collect();
        for one in shown.iter().flat_map(|mirror| &mirror.partitions) {
            let key = TopicPartition {
                topic: Arc::clone(&one.topic),
                partition: one.partition,
            };
            let state_epoch = partitions.get(&key).map_or(-1, |known| known.state_epoch);
            let described = live(one, state_epoch, &self.inner.sidecar);
            partitions.insert(key, described);
        }
        let mut topics: BTreeMap<Arc<str>, Vec<DescribedMirrorPartition>> = BTreeMap::new();
        for (key, partition) in partitions {
            topics.entry(key.topic).or_default().push(partition);
        }
        let remembered = model.mirror(&name);
        DescribedMirror {
            topics: topics
                .into_iter()
                .map(|(topic_name, partitions)| DescribedMirrorTopic {
                    topic_name,
                    partitions,
                })
                .collect(),
            desired_state: of_mirror(&desired),
            source_bootstrap: self
                .configured(&name)
                .map_or_else(|| "".into(), |mirror| Arc::clone(&mirror.source_bootstrap)),
            source_cluster_id: remembered
                .map(|mirror| mirror.source_cluster_id)
                .unwrap_or_else(|| "".into()),
            source_reachable: shown.is_none_or(|mirror| mirror.source.reachable),
            error_message: shown
                .and_then(|mirror| mirror.source.last_error.as_deref())
                .map(Arc::from),
            mirror_name: name,
            ..DescribedMirror::default()
        }
    }
}

/// What the state topic alone says of a partition.
fn recorded(key: &MirrorPartition, value: &PartitionValue) -> DescribedMirrorPartition {
    DescribedMirrorPartition {
        partition_index: key.partition.partition,
        state_value: value.state.name().into(),
        retry_attempt: value.retry_attempt,
        error_message: value.error_message.clone(),
        state_epoch: value.state_epoch,
        ..DescribedMirrorPartition::default()
    }
}

/// What this process knows of a partition that it owns.
fn live(one: &PartitionStatus, state_epoch: i32, sidecar: &Arc<str>) -> DescribedMirrorPartition {
    let millis = |seconds: Option<f64>| {
        let found = seconds.and_then(|s| std::time::Duration::try_from_secs_f64(s).ok());
        found.map_or(-1, |found| {
            i64::try_from(found.as_millis()).unwrap_or(i64::MAX)
        })
    };
    let attempt = i16::try_from(one.retry_attempt).unwrap_or(i16::MAX);
    DescribedMirrorPartition {
        partition_index: one.partition,
        source_offset: one.source_last_stable_offset.unwrap_or(-1),
        destination_offset: one.destination_high_watermark.unwrap_or(-1),
        lag: one.lag_records.unwrap_or(-1),
        state_value: one.state.name().into(),
        retry_attempt: if one.permanent { -1 } else { attempt },
        error_message: one.reason.as_deref().map(Arc::from),
        lag_ms: millis(one.lag_seconds),
        undecided_records: one.undecided_records.unwrap_or(-1),
        source_log_start_offset: one.source_log_start_offset.unwrap_or(-1),
        next_retry_ms: millis(one.next_retry_seconds),
        sidecar: Some(Arc::clone(sidecar)),
        state_epoch,
    }
}

/// One desired state for a whole mirror: that of all its topics, or none if they differ.
pub(super) fn of_mirror(topics: &BTreeMap<Arc<str>, TopicValue>) -> i8 {
    let mut all = topics.values().map(|topic| topic.desired);
    let Some(first) = all.next() else {
        return DesiredState::Mirroring.as_state().number();
    };
    if all.all(|desired| desired == first) {
        first.as_state().number()
    } else {
        PartitionState::Unknown.number()
    }
}
