//! What stands in the state topic, as values: one key and one value per record. Must not know bytes, nor decide which record
//! is written.
//!
//! The topic is compacted, so a key holds what is to be kept once: KIP-1279's own key is the mirror's name alone, under which
//! compaction would keep one partition per mirror. Here the topic and the partition are part of the key.

use std::fmt;
use std::sync::Arc;

use super::state::{DesiredState, PartitionState};
use super::types::{LeaderEpoch, TopicId, TopicPartition};

/// Config values that the state topic is created with, and must have.
const CONFIGS: [(&str, &str); 2] = [
    ("cleanup.policy", "compact"),
    ("message.timestamp.type", "CreateTime"),
];

/// Config values that it is created with beyond those.
const MORE_CONFIGS: [(&str, &str); 2] = [
    ("compression.type", "producer"),
    // What is read as history for an hour is still there to be looked at.
    ("min.compaction.lag.ms", "3600000"),
];

/// The config values that a new state topic gets.
pub fn new_configs() -> Vec<(Arc<str>, Arc<str>)> {
    let all = CONFIGS.into_iter().chain(MORE_CONFIGS);
    all.map(|(key, value)| (key.into(), value.into())).collect()
}

/// What makes an existing topic unfit to be the state topic, by the config values that are known of it: keys, the values that
/// they must have, and those that they have.
pub fn unfit_configs(
    value: impl Fn(&str) -> Option<Arc<str>>,
) -> Vec<(&'static str, &'static str, Arc<str>)> {
    let unfit = CONFIGS.into_iter().filter_map(|(key, wanted)| {
        let found = value(key).filter(|found| &**found != wanted)?;
        Some((key, wanted, found))
    });
    unfit.collect()
}

/// One partition of one mirror.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MirrorPartition {
    /// The mirror's name.
    pub mirror: Arc<str>,
    /// The partition, which has the same name on both sides.
    pub partition: TopicPartition,
}

impl MirrorPartition {
    /// Partition `partition` of `topic` in `mirror`.
    pub fn new(mirror: &Arc<str>, topic: &Arc<str>, partition: i32) -> Self {
        Self {
            mirror: Arc::clone(mirror),
            partition: TopicPartition {
                topic: Arc::clone(topic),
                partition,
            },
        }
    }
}

impl fmt::Display for MirrorPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.mirror, self.partition)
    }
}

/// The key of a record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKey {
    /// Type 0: who coordinates this state partition.
    Coordinator,
    /// Type 1: how far a partition was mirrored when it was stopped.
    LastMirrorEpochs(MirrorPartition),
    /// Type 2: the state of a partition.
    Partition(MirrorPartition),
    /// Type 3: what is wanted and remembered of a topic.
    Topic {
        /// The mirror.
        mirror: Arc<str>,
        /// The topic.
        topic: Arc<str>,
    },
    /// Type 4: what is remembered of a mirror.
    Mirror {
        /// Its name.
        mirror: Arc<str>,
    },
}

impl StateKey {
    /// The mirror that the record is about; `None` for the coordinator's own.
    pub fn mirror(&self) -> Option<&Arc<str>> {
        match self {
            Self::Coordinator => None,
            Self::LastMirrorEpochs(one) | Self::Partition(one) => Some(&one.mirror),
            Self::Topic { mirror, .. } | Self::Mirror { mirror } => Some(mirror),
        }
    }
}

/// Who coordinates a state partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorValue {
    /// The sidecar's id.
    pub sidecar: Arc<str>,
    /// Which run of it: differs with every start of the process.
    pub incarnation: Arc<str>,
    /// Its listener, `host:port`.
    pub address: Arc<str>,
    /// When it took over, in milliseconds since 1970.
    pub time_ms: i64,
}

/// How far a partition was mirrored when it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastMirrorEpochsValue {
    /// The source's leader epoch of the last mirrored record.
    pub last_mirror_epoch: LeaderEpoch,
    /// The next offset after the last mirrored record; -1 if it is not known.
    pub last_mirror_offset: i64,
}

/// The state of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionValue {
    /// The state.
    pub state: PartitionState,
    /// The state before the last change; of a FAILED one, what it is tried again as.
    pub previous_state: PartitionState,
    /// Failures in a row; -1: no retry will help.
    pub retry_attempt: i16,
    /// Why it is FAILED, in words.
    pub error_message: Option<Arc<str>>,
    /// Counts the records of this key: the order of states, whatever the order of records.
    pub state_epoch: i32,
    /// Below this offset of the destination, records count as adopted: their producer is not ours. -1: not recorded.
    pub adopted_below: i64,
    /// Which producer id of ours is used: it changes when the epochs of one are used up.
    pub producer_generation: i32,
    /// Of a FAILED one: its destination topic is not its source's, or is being recreated.
    pub divergence: Option<Divergence>,
}

/// Why a partition cannot be continued in the destination topic that it was compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The id of that topic.
    pub destination_topic_id: TopicId,
    /// The first offset there that differs from the source; -1: none does, but another partition's, and this one stands still
    /// until the topic is another.
    pub offset: i64,
}

impl Divergence {
    /// True if it is this topic, and this partition of it, that differs.
    pub fn differs_in(&self, topic_id: TopicId) -> bool {
        self.destination_topic_id == topic_id && self.offset >= 0
    }
}

impl Default for PartitionValue {
    fn default() -> Self {
        Self {
            state: PartitionState::Unknown,
            previous_state: PartitionState::Unknown,
            retry_attempt: 0,
            error_message: None,
            state_epoch: 0,
            adopted_below: -1,
            producer_generation: 0,
            divergence: None,
        }
    }
}

/// What is wanted and remembered of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicValue {
    /// What the operator wants.
    pub desired: DesiredState,
    /// Counts the records of this key.
    pub state_epoch: i32,
    /// The source topic's id; all zero if it is not known.
    pub source_topic_id: TopicId,
    /// The destination topic's id; all zero if it is not known.
    pub destination_topic_id: TopicId,
    /// The configs that the topic is to have when it is no longer mirrored: `None` as value puts a key back to the default.
    pub restored_configs: Vec<(Arc<str>, Option<Arc<str>>)>,
    /// The destination topic with this id is being deleted, and created anew.
    pub recreating: Option<TopicId>,
}

/// What is remembered of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MirrorValue {
    /// The source cluster's id at first contact; empty if it had none.
    pub source_cluster_id: Arc<str>,
    /// The configuration by which its coordinator works, as a number; 0 if that is not known.
    pub fingerprint: i64,
    /// Counts the records of this key.
    pub state_epoch: i32,
    /// True while the mirror's records are being removed.
    pub deleting: bool,
}

/// The value of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StateValue {
    /// Of [`StateKey::Coordinator`].
    Coordinator(CoordinatorValue),
    /// Of [`StateKey::LastMirrorEpochs`].
    LastMirrorEpochs(LastMirrorEpochsValue),
    /// Of [`StateKey::Partition`].
    Partition(PartitionValue),
    /// Of [`StateKey::Topic`].
    Topic(TopicValue),
    /// Of [`StateKey::Mirror`].
    Mirror(MirrorValue),
}

impl StateValue {
    /// The count of records of its key, where it has one: a record with a smaller one is out of date.
    pub fn state_epoch(&self) -> Option<i32> {
        match self {
            Self::Coordinator(_) | Self::LastMirrorEpochs(_) => None,
            Self::Partition(value) => Some(value.state_epoch),
            Self::Topic(value) => Some(value.state_epoch),
            Self::Mirror(value) => Some(value.state_epoch),
        }
    }
}

/// One record: a value for a key, or its removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRecord {
    /// The key.
    pub key: StateKey,
    /// The value; `None` removes the key.
    pub value: Option<StateValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_state_topic_is_fit_and_others_are_named_with_what_they_need() {
        let new = new_configs();
        let of_new = |key: &str| {
            let found = new.iter().find(|(name, _)| &**name == key);
            found.map(|(_, value)| Arc::clone(value))
        };
        assert_eq!(unfit_configs(of_new), []);
        assert_eq!(unfit_configs(|_| None), [], "not known is not unfit");
        let deleted = |key: &str| (key == "cleanup.policy").then(|| Arc::from("delete"));
        assert_eq!(
            unfit_configs(deleted),
            [("cleanup.policy", "compact", Arc::from("delete"))]
        );
    }
}
