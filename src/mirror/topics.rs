//! Which partitions a mirror has here, and how one begins and fails. Must not fetch, append or write states down by itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;
use tracing::{debug, error, info};

use super::lifecycle::{Course, failed};
use super::partition::{Failure, Partition, PartitionKey};
use super::{Alarm, Mirror};
use crate::domain::append::{AppendConfig, PRODUCER_EXPIRATION, producer_id};
use crate::domain::desired::{TopicEntry, TopicGate};
use crate::domain::recreate::OnDivergence;
use crate::domain::shard::PartitionWrite;
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::Divergence;
use crate::domain::types::TopicPartition;

impl Mirror {
    pub(super) fn take_topics(&mut self) {
        let set = Arc::clone(&self.parts.topics.borrow_and_update());
        self.topics = Arc::clone(&set);
        let ours = Arc::clone(&self.membership.borrow_and_update());
        let wanted: BTreeSet<TopicPartition> = set
            .topics
            .iter()
            .flat_map(|(topic, entry)| {
                (0..entry.partitions).map(|partition| TopicPartition {
                    topic: Arc::clone(topic),
                    partition,
                })
            })
            .filter(|name| ours.mirror.contains(name))
            .collect();
        let gone: Vec<TopicPartition> = self
            .keys
            .keys()
            .filter(|name| !wanted.contains(name))
            .cloned()
            .collect();
        for name in gone {
            if ours.revoking.contains(&name) {
                self.begin_leaving(&name);
            } else {
                self.forget(&name, "no longer mirrored here");
            }
        }
        self.give_up(&ours);
        for name in wanted {
            if let Some(entry) = set.topics.get(&name.topic) {
                self.take_partition(name, entry);
            }
        }
        self.follow_destination_leaders();
        self.follow_source_leaders();
        self.look_at_states();
    }

    fn take_partition(&mut self, name: TopicPartition, entry: &TopicEntry) {
        let known = self.keys.get(&name).copied();
        let key = known.unwrap_or_else(|| {
            let key = self.next_key;
            self.next_key = self.next_key.saturating_add(1);
            let metrics = self.parts.metrics.partition(&self.name, &name);
            let ids = (entry.source_topic_id, entry.destination_topic_id);
            let mut partition =
                Partition::new(name.clone(), ids, self.append_config(&name), metrics);
            partition.enter(PartitionState::Unknown);
            self.partitions.insert(key, partition);
            self.keys.insert(name.clone(), key);
            key
        });
        match &entry.gate {
            TopicGate::Failed { reason, permanent } => {
                self.hold_asked.remove(&name.topic);
                let already = self
                    .partitions
                    .get(&key)
                    .and_then(|partition| partition.failure.as_ref());
                let stops = self
                    .partitions
                    .get(&key)
                    .is_some_and(|partition| partition.desired == DesiredState::Stopped);
                if !stops && already.is_none_or(|failure| failure.reason != *reason) {
                    self.fail(key, "topic", reason.clone(), *permanent, false);
                }
            }
            TopicGate::Unheld | TopicGate::Held { .. } => {
                let Some(partition) = self.partitions.get_mut(&key) else {
                    return;
                };
                partition.source_topic_id = entry.source_topic_id;
                let known_as = partition.destination_topic_id;
                partition.destination_topic_id = entry.destination_topic_id;
                if let TopicGate::Held { max_message_bytes } = entry.gate {
                    partition.machine.limit_batch_bytes(max_message_bytes);
                    self.hold_asked.remove(&name.topic);
                }
                let of_topic = partition
                    .failure
                    .as_ref()
                    .is_some_and(|failure| failure.of_topic);
                if of_topic {
                    partition.failure = None;
                    self.decide(key);
                } else if known.is_some() && known_as != entry.destination_topic_id {
                    self.decide(key);
                } else if known.is_some() {
                    self.begin_mirroring(key);
                }
            }
        }
    }

    pub(super) fn append_config(&self, name: &TopicPartition) -> AppendConfig {
        let held = self.topics.topics.get(&name.topic).map(|entry| &entry.gate);
        AppendConfig {
            max_in_flight: self.parts.config.append.max_in_flight,
            producer_expiration: self.expiration.unwrap_or(PRODUCER_EXPIRATION),
            max_batch_bytes: match held {
                Some(TopicGate::Held { max_message_bytes }) => *max_message_bytes,
                Some(TopicGate::Unheld | TopicGate::Failed { .. }) | None => usize::MAX,
            },
            ..AppendConfig::new(producer_id(&self.name, name, 0))
        }
    }

    /// Begins with a partition, or begins anew.
    pub(super) fn start(&mut self, key: PartitionKey) {
        if self.expiration.is_none() || self.stopping {
            return;
        }
        let Some(name) = self
            .partitions
            .get(&key)
            .map(|partition| partition.name.clone())
        else {
            return;
        };
        let gate = self.topics.topics.get(&name.topic).map(|entry| &entry.gate);
        if !matches!(gate, Some(TopicGate::Unheld | TopicGate::Held { .. })) {
            return;
        }
        let config = self.append_config(&name);
        let leader = self.parts.destination.leader(&name);
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        partition.renew(config);
        partition.course = Course::Mirror;
        partition.leader = leader;
        partition.enter(PartitionState::LogTruncation);
        let effect = partition.machine.start();
        self.effects.push_back((key, partition.generation, effect));
    }

    /// Puts a partition into FAILED, and plans its retry unless only a person can help.
    pub(super) fn fail(
        &mut self,
        key: PartitionKey,
        kind: &'static str,
        reason: String,
        permanent: bool,
        retried_here: bool,
    ) {
        let policy = self.parts.config.retry;
        let mut on_divergence = self.parts.config.policy.on_divergence;
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if matches!(partition.course, Course::Stop(_)) {
            self.stop_without_the_rest(key, &reason);
            return;
        }
        if partition.course == Course::Rest {
            partition.course = Course::Mirror;
        }
        let divergence = partition.diverged_at.take().map(|offset| Divergence {
            destination_topic_id: partition.destination_topic_id,
            offset,
        });
        // Without ids a topic that was deleted cannot be told from the one that was created.
        if partition.destination_topic_id.is_zero() {
            on_divergence = OnDivergence::Fail;
        }
        let reason = match divergence {
            Some(_) => format!("{reason}; {}", on_divergence.remedy()),
            None => reason,
        };
        let attempt = partition.attempts;
        let pause = (!permanent && retried_here && !policy.exhausted(attempt))
            .then(|| policy.delay(attempt, rand::random()));
        if retried_here {
            partition.attempts = attempt.saturating_add(1);
        }
        let config = partition.machine.config().clone();
        let first = partition
            .failure
            .as_ref()
            .is_none_or(|known| known.reason != reason)
            && attempt == 0;
        partition.renew(config);
        partition.failure = Some(Failure {
            reason: reason.clone(),
            retry_at: pause.map(|pause| Instant::now() + pause),
            of_topic: !retried_here,
            permanent: permanent || (retried_here && pause.is_none()),
            written: false,
        });
        partition.enter(PartitionState::Failed);
        let (name, generation) = (partition.name.clone(), partition.generation);
        if permanent || retried_here {
            let attempts = (!permanent).then_some(partition.attempts);
            let write = PartitionWrite {
                divergence,
                ..failed(&reason, attempts)
            };
            self.save(key, write);
        }
        self.parts
            .metrics
            .failures
            .with_label_values(&[self.name.as_str(), kind])
            .inc();
        if divergence.is_some() && on_divergence == OnDivergence::Recreate {
            // Said by the mirror's coordinator, which decides what follows.
            info!(mirror = %self.name, topic = %name.topic, partition = name.partition, %reason, "partition diverged");
        } else if first || pause.is_none() {
            error!(
                mirror = %self.name,
                topic = %name.topic,
                partition = name.partition,
                retry_in = %pause.map_or_else(|| "never".to_owned(), |pause| format!("{pause:.1?}")),
                %reason,
                "partition FAILED"
            );
        } else {
            debug!(mirror = %self.name, topic = %name.topic, partition = name.partition, attempt, %reason, "failed again");
        }
        if let Some(pause) = pause {
            self.wake_in(pause, Alarm::Retry(key, generation));
        }
    }
}
