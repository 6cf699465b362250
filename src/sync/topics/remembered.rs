//! What the state topic says of a mirror's topics, and what follows: topics that are known without the source, the source that is
//! pinned, topics that were adopted, stopped or recovered. Must not ask a cluster: steps are only queued.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::step::{Ready, count};
use super::{Keeper, Outcome, Topic, Work};
use crate::coordinator::read_elsewhere;
use crate::domain::desired::{TopicEntry, TopicGate};
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{MirrorPartition, PartitionValue};
use crate::kafka::cluster::Metadata;

/// The source's state topic is read for so long before topics are begun without it.
const OTHER_SIDE_PATIENCE: Duration = Duration::from_secs(15);

impl Keeper {
    /// Compares the source's cluster id with the one that is pinned, and pins it at first contact. Another cluster under the
    /// source's address halts the mirror until an operator says, in the configuration, that it is the right one.
    pub(super) fn is_the_same_source(
        &mut self,
        found: Option<&Arc<str>>,
        destination: &Metadata,
    ) -> bool {
        let Some(found) = found else {
            return true;
        };
        let remembered = self.stage.states.model().mirror(&self.stage.mirror);
        let settings = remembered.as_ref().map_or(0, |mirror| mirror.fingerprint);
        let pinned = remembered
            .map(|mirror| mirror.source_cluster_id)
            .filter(|id| !id.is_empty());
        let confirmed = self.source_cluster_id.as_ref() == Some(found);
        let fault = match (&self.source_cluster_id, &pinned) {
            (Some(wanted), _) if wanted != found => Some(format!(
                "the source is cluster {found}, but mirror.source.cluster_id is {wanted}; correct one of bootstrap_servers and \
                 cluster_id in [mirror.source]"
            )),
            (None, Some(pinned)) if pinned != found => Some(format!(
                "the source is cluster {found}, but this mirror was begun with cluster {pinned}; if that is wanted, set \
                 mirror.source.cluster_id = \"{found}\", else correct mirror.source.bootstrap_servers"
            )),
            _ => None,
        };
        let Some(reason) = fault else {
            self.another_source = None;
            let coordinates = self.coordinates();
            let other_settings = settings != self.fingerprint;
            let differs = !coordinates && other_settings && settings != 0;
            if differs && !self.said_other_settings {
                warn!(
                    mirror = %self.stage.mirror,
                    "the process that coordinates the mirror has other settings for it, and decides by them which topics are mirrored \
                     and how they are prepared; give all processes the same [[mirror]] tables"
                );
            }
            self.said_other_settings = differs;
            if coordinates && (pinned.as_ref() != Some(found) || other_settings) {
                let stage = Arc::clone(&self.stage);
                let (id, settings) = (Arc::clone(found), self.fingerprint);
                self.running.push(Box::pin(async move {
                    let mirror = Arc::clone(&stage.mirror);
                    let pinned = stage
                        .states
                        .remember_mirror(mirror, id, confirmed, settings)
                        .await;
                    Outcome::Pinned(pinned.is_ok())
                }));
            }
            return true;
        };
        if self.another_source.as_ref() != Some(&reason) {
            error!(mirror = %self.stage.mirror, %reason, "mirror halted");
            self.another_source = Some(reason.clone());
        }
        // What is known from earlier is shown and can be stopped, as while there is no source at all.
        self.take_seeded(destination);
        let names: Vec<_> = self.topics.keys().cloned().collect();
        for name in names {
            if let Some(topic) = self.topics.get_mut(&name) {
                topic.said = Some(reason.clone());
            }
            self.fail(&name, reason.clone(), true);
        }
        false
    }

    /// False while it is to be found out what the sidecars of the source do, if there are such: they may mirror the same topics
    /// the other way round. One that cannot be read is given up after a while.
    pub(super) fn knows_the_other_side(&mut self, source: &Metadata) -> bool {
        if let Some((model, since)) = &self.other_side {
            return model.is_loaded() || since.elapsed() > OTHER_SIDE_PATIENCE;
        }
        let found = source.topics.get(&self.state_topic);
        let Some(found) = found.filter(|found| found.error.is_none()) else {
            return true;
        };
        let (model, reading) = read_elsewhere(
            self.stage.source.clone(),
            Arc::clone(&self.state_topic),
            count(found),
            self.stage.request_timeout,
            // Ends with this keeper, which drops it.
            CancellationToken::new(),
        );
        self.running.push(Box::pin(async move {
            reading.await;
            Outcome::Unread
        }));
        self.other_side = Some((model, Instant::now()));
        self.follow();
        false
    }

    /// The mirror at the source that mirrors a topic from this destination, if there is one.
    pub(super) fn circle(&self, topic: &Arc<str>) -> Option<Arc<str>> {
        let (model, _) = self.other_side.as_ref()?;
        let ours = self.stage.destination.cluster_id()?;
        let mirrors = model.mirrors().into_iter();
        mirrors
            .filter(|(_, mirror)| mirror.source_cluster_id == ours)
            .map(|(name, _)| name)
            .find(|mirror| {
                let theirs = model.topic(mirror, topic);
                theirs.is_some_and(|theirs| theirs.desired != DesiredState::Stopped)
            })
    }

    /// Topics that the state topic knows: they are the mirror's also while the source cannot be asked, and they have the ids
    /// that they had.
    pub(super) fn seed(&mut self) {
        let remembered = self.stage.states.model().topics(&self.stage.mirror);
        for (name, value) in remembered {
            if self.filter.matches(&name) {
                self.topics.entry(name).or_insert_with(|| {
                    Topic::new(TopicEntry {
                        partitions: 0,
                        source_topic_id: value.source_topic_id,
                        destination_topic_id: value.destination_topic_id,
                        gate: TopicGate::Unheld,
                    })
                });
            }
        }
    }

    /// Without the source, a topic that is known has as many partitions as the destination says.
    pub(super) fn take_seeded(&mut self, destination: &Metadata) {
        let waiting: Vec<_> = self
            .topics
            .iter()
            .filter(|(_, topic)| !topic.ready && !topic.busy)
            .filter_map(|(name, _)| {
                let found = destination.topics.get(name)?;
                let ready = Ready {
                    destination_topic_id: found.topic_id,
                    partitions: count(found),
                };
                found.error.is_none().then(|| (Arc::clone(name), ready))
            })
            .collect();
        for (name, ready) in waiting {
            self.prepared(&name, Ok(ready));
        }
        self.follow();
    }

    /// What is wanted of a topic.
    pub(super) fn desired(&self, name: &Arc<str>) -> DesiredState {
        let remembered = self.stage.states.model().topic(&self.stage.mirror, name);
        remembered.map(|topic| topic.desired).unwrap_or_default()
    }

    /// What the state topic has of the partitions of a topic, in order.
    pub(super) fn partitions_of(&self, name: &Arc<str>) -> Vec<PartitionValue> {
        let model = self.stage.states.model();
        let partitions = self
            .topics
            .get(name)
            .map_or(0, |topic| topic.entry.partitions);
        let values = (0..partitions).map(|partition| {
            let key = MirrorPartition::new(&self.stage.mirror, name, partition);
            model.partition(&key).unwrap_or_default()
        });
        values.collect()
    }

    /// A topic that failed for good, and whose partitions an operator has recovered, is looked at as if it were new.
    pub(super) fn forgive_recovered(&mut self) {
        let failed = self.topics.iter().filter(|(_, t)| t.failed_for_good());
        let failed: Vec<Arc<str>> = failed.map(|(name, _)| Arc::clone(name)).collect();
        let mut forgiven = Vec::new();
        for name in failed {
            let found = self.partitions_of(&name);
            let Some(topic) = self.topics.get_mut(&name) else {
                continue;
            };
            let failing = |value: &PartitionValue| value.state == PartitionState::Failed;
            let blamed = found.iter().any(failing);
            // An operator may be so quick that the failure and the word about it are seen at once.
            let answered = found.iter().zip(&topic.failed_at).any(|(value, at)| {
                value.previous_state == PartitionState::Failed && value.state_epoch > *at
            });
            // The failure must have been written down before it can be taken back.
            if !blamed && (topic.blamed || answered) {
                forgiven.push(name);
            } else {
                topic.blamed |= blamed;
            }
        }
        if !forgiven.is_empty() && self.another_source.is_none() {
            for name in forgiven {
                info!(mirror = %self.stage.mirror, topic = %name, "topic recovered, looking at it anew");
                self.topics.remove(&name);
            }
            self.next_round = self.next_round.map(|_| Instant::now());
            self.publish();
        }
    }

    /// True if this process does what concerns the mirror as a whole: creating, widening and holding topics.
    pub(super) fn coordinates(&self) -> bool {
        self.stage.states.coordinates(&self.stage.mirror)
    }

    /// This process may have become the mirror's coordinator: then there may be something to create.
    pub(super) fn take_over(&mut self) {
        let coordinates = self.coordinates();
        if coordinates && !self.coordinated {
            self.next_round = self.next_round.map(|_| Instant::now());
            self.look_at_stopped = Some(Instant::now());
        }
        self.coordinated = coordinates;
    }

    /// Topics of which any partition was compared by its owner, wherever that is, are to be held.
    pub(super) fn hold_adopted(&mut self, states: &BTreeMap<MirrorPartition, PartitionValue>) {
        let adopted: BTreeSet<Arc<str>> = states
            .iter()
            // What a stopped one adopted was the topic of before: it is compared anew first.
            .filter(|(_, value)| {
                value.state != PartitionState::Stopped
                    && (value.adopted_below >= 0 || value.state == PartitionState::Mirroring)
            })
            .map(|(key, _)| Arc::clone(&key.partition.topic))
            .collect();
        for name in adopted {
            let waits = self
                .topics
                .get(&name)
                .is_some_and(|topic| !topic.hold_wanted && !topic.is_held());
            if waits {
                self.want_hold(&name);
            }
        }
        self.start_steps();
    }

    /// Topics all of whose partitions are STOPPED get back the configs that they are to have.
    pub(super) fn look_at_states(&mut self) {
        let model = self.stage.states.model().clone();
        // Seen here at the latest: the mark is removed again once all else is.
        let mirror = model.mirror(&self.stage.mirror);
        self.deleted |= mirror.is_some_and(|mirror| mirror.deleting);
        if self.deleted {
            return;
        }
        self.forgive_recovered();
        if self.follow_recreated() {
            self.publish();
        }
        if !self.coordinates() {
            return;
        }
        let states = model.partitions_of(&self.stage.mirror);
        self.recreate_diverged(&states);
        self.hold_adopted(&states);
        for (name, value) in model.topics(&self.stage.mirror) {
            if value.desired != DesiredState::Stopped || value.restored_configs.is_empty() {
                continue;
            }
            let partitions = self.partitions_of(&name);
            let stopped = |value: &PartitionValue| value.state == PartitionState::Stopped;
            let Some(topic) = self.topics.get_mut(&name).filter(|topic| !topic.busy) else {
                continue;
            };
            let done = topic.restored_by == Some(value.state_epoch);
            if topic.ready && !done && partitions.iter().all(stopped) {
                topic.busy = true;
                topic.restored_by = Some(value.state_epoch);
                self.waiting
                    .push_back(Work::Restore(Arc::clone(&name), value));
            }
        }
    }
}
