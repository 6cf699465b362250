//! What people are shown of a mirror: status, gauges, one summary a minute. Must not change anything in it.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::info;

use super::lifecycle::{Course, Stop};
use super::{Mirror, SUMMARY_EVERY, TICK};
use crate::domain::desired::TopicGate;
use crate::domain::state::PartitionState;
use crate::domain::status::{ClusterStatus, MirrorStatus, TopicError};
use crate::kafka::contact::ContactView;

/// A cluster's health, with what the configuration says of it.
pub(crate) fn cluster_status(
    bootstrap_servers: Vec<String>,
    cluster_id: Option<Arc<str>>,
    view: ContactView,
) -> ClusterStatus {
    ClusterStatus {
        bootstrap_servers,
        cluster_id: cluster_id.map(|id| id.to_string()),
        reachable: view.reachable,
        last_contact_seconds: view.since_last_answer.map(|since| since.as_secs_f64()),
        last_error: view.error,
    }
}

impl Mirror {
    pub(super) fn tick(&mut self, now: Instant) {
        self.look_for_stalls(now);
        self.note_fencing(now);
        self.ask_watermarks();
        // An idle source answers when the wait of a fetch is over, and a little later under load.
        let long_poll = self.parts.config.fetch.max_wait.saturating_add(TICK * 2);
        for partition in self.partitions.values_mut() {
            let lag = partition.lag(now, long_poll);
            partition.metrics.lag_seconds.set(lag.as_secs_f64());
            if let Some(records) = partition.lag_records() {
                partition.metrics.lag_records.set(records);
            }
            if let Some(records) = partition.undecided_records() {
                partition.metrics.undecided_records.set(records);
            }
        }
        let metrics = &self.parts.metrics;
        metrics.count_partitions(
            &self.name,
            self.partitions.values().map(|partition| partition.state),
        );
        self.held_bytes.report(metrics, self.budget.held_bytes());
        // Holding was refused a place in the queue, or the topic came late: ask for whatever still waits.
        let waiting: Vec<_> = self
            .partitions
            .iter()
            .filter(|(_, partition)| {
                partition.state == PartitionState::LogTruncation
                    && partition.machine.cursor().is_some()
            })
            .map(|(key, _)| *key)
            .collect();
        for key in waiting {
            self.begin_mirroring(key);
        }
        let stopping: Vec<_> = self
            .partitions
            .iter()
            .filter(|(_, partition)| matches!(partition.course, Course::Stop(Stop::CatchUp { .. })))
            .map(|(key, _)| *key)
            .collect();
        for key in stopping {
            self.stop_caught_up(key);
        }
        self.publish(now);
        if now.saturating_duration_since(self.summary_at) >= SUMMARY_EVERY {
            self.summary_at = now;
            self.summarize();
        }
    }

    fn publish(&self, now: Instant) {
        let partitions = self
            .keys
            .values()
            .filter_map(|key| self.partitions.get(key));
        let errors = self
            .topics
            .topics
            .iter()
            .filter_map(|(topic, entry)| match &entry.gate {
                TopicGate::Failed { reason, .. } => Some(TopicError {
                    topic: Arc::clone(topic),
                    reason: reason.clone(),
                }),
                TopicGate::Unheld | TopicGate::Held { .. } => None,
            });
        let servers = self
            .parts
            .config
            .source
            .bootstrap_servers
            .iter()
            .map(ToString::to_string)
            .collect();
        let contact = self.parts.source_contact.view();
        self.parts.status.send_replace(Arc::new(MirrorStatus {
            name: self.name.clone(),
            source: cluster_status(servers, self.parts.source.cluster_id(), contact),
            topic_errors: errors.collect(),
            partitions: partitions.map(|partition| partition.status(now)).collect(),
        }));
    }

    fn summarize(&self) {
        let count = |state| {
            self.partitions
                .values()
                .filter(|partition| partition.state == state)
                .count()
        };
        let lag: i64 = self
            .partitions
            .values()
            .filter_map(super::partition::Partition::lag_records)
            .sum();
        let mirrored: u64 = self
            .partitions
            .values()
            .map(|partition| partition.metrics.records_mirrored.get())
            .sum();
        info!(
            mirror = %self.name,
            topics = self.topics.topics.len(),
            mirroring = count(PartitionState::Mirroring),
            aligning = count(PartitionState::LogTruncation),
            failed = count(PartitionState::Failed),
            lag_records = lag,
            records_mirrored = mirrored,
            "summary"
        );
    }
}
