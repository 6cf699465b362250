//! One state partition: what its records say, and which records a request makes. Must not wait, append or answer: the caller
//! appends the records of a [`Draft`], applies them once they are in the log, and only then answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use thiserror::Error;

use super::state::{DesiredState, PartitionState};
use super::state_log::{
    Divergence, LastMirrorEpochsValue, MirrorPartition, MirrorValue, PartitionValue, StateKey,
    StateRecord, StateValue, TopicValue,
};
use super::types::{LeaderEpoch, TopicId, TopicPartition};

/// What the log of one state partition says.
///
/// Memory: about 300 bytes per mirrored partition, with the names shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shard {
    values: BTreeMap<StateKey, Stored>,
    overtaken: BTreeSet<StateKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Stored {
    value: StateValue,
    /// Where in the state partition it stands.
    offset: i64,
}

impl Shard {
    /// Takes in the record at `offset` of the log. One that is older than what is known of its key changes nothing, but the
    /// key must be written again ([`Shard::overtaken`]): compaction keeps the last record, not the newest state.
    pub fn apply(&mut self, offset: i64, record: StateRecord) {
        let Some(value) = record.value else {
            self.values.remove(&record.key);
            self.overtaken.remove(&record.key);
            return;
        };
        let known = self.values.get(&record.key);
        let known_epoch = known.and_then(|stored| stored.value.state_epoch());
        if value.state_epoch() < known_epoch {
            self.overtaken.insert(record.key);
            return;
        }
        self.overtaken.remove(&record.key);
        self.values.insert(record.key, Stored { value, offset });
    }

    /// The value of a key.
    pub fn get(&self, key: &StateKey) -> Option<&StateValue> {
        self.values.get(key).map(|stored| &stored.value)
    }

    /// Every key with its value, by type, mirror, topic and partition.
    pub fn iter(&self) -> impl Iterator<Item = (&StateKey, &StateValue)> {
        self.values.iter().map(|(key, stored)| (key, &stored.value))
    }

    /// The topics of a mirror that something is remembered of.
    pub fn topics_of(&self, of: &Arc<str>) -> impl Iterator<Item = (&Arc<str>, &TopicValue)> {
        let first = StateKey::Topic {
            mirror: Arc::clone(of),
            topic: "".into(),
        };
        self.values
            .range(first..)
            .map_while(move |(key, stored)| match (key, &stored.value) {
                (StateKey::Topic { mirror, topic }, StateValue::Topic(value)) if mirror == of => {
                    Some((topic, value))
                }
                _ => None,
            })
    }

    /// The partitions of a mirror that have a state.
    pub fn partitions_of(
        &self,
        of: &Arc<str>,
    ) -> impl Iterator<Item = (&MirrorPartition, &PartitionValue)> {
        let first = StateKey::Partition(MirrorPartition {
            mirror: Arc::clone(of),
            partition: TopicPartition {
                topic: "".into(),
                partition: i32::MIN,
            },
        });
        self.values
            .range(first..)
            .map_while(move |(key, stored)| match (key, &stored.value) {
                (StateKey::Partition(key), StateValue::Partition(value)) if key.mirror == *of => {
                    Some((key, value))
                }
                _ => None,
            })
    }

    /// The mirrors that something is remembered of.
    pub fn mirrors(&self) -> impl Iterator<Item = (&Arc<str>, &MirrorValue)> {
        let first = StateKey::Mirror { mirror: "".into() };
        self.values
            .range(first..)
            .filter_map(|(key, stored)| match (key, &stored.value) {
                (StateKey::Mirror { mirror }, StateValue::Mirror(value)) => Some((mirror, value)),
                _ => None,
            })
    }

    /// How many keys have a value.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if no key has a value.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The current values of keys behind which an older record stands in the log.
    pub fn overtaken(&self) -> Vec<StateRecord> {
        let current = |key: &StateKey| {
            self.get(key).map(|value| StateRecord {
                key: key.clone(),
                value: Some(value.clone()),
            })
        };
        self.overtaken.iter().filter_map(current).collect()
    }

    /// True once somebody has coordinated this log: the coordinator's record is the last thing that is written when a log is
    /// taken over, so that nothing of what had to be written first is missing.
    pub fn is_taken_over(&self) -> bool {
        self.get(&StateKey::Coordinator).is_some()
    }

    /// What is to be written into this log if the log that `remembered` was read from is lost. Nothing once the log has been
    /// taken over: then it is the truth itself. Values keep their state epochs; where the log has a newer one, that one stays.
    pub fn restored_from(&self, remembered: &Self) -> Vec<StateRecord> {
        if self.is_taken_over() {
            return Vec::new();
        }
        let lost = remembered.iter().filter(|(key, value)| {
            let known = self.get(key);
            **key != StateKey::Coordinator
                && known.is_none_or(|known| known.state_epoch() < value.state_epoch())
        });
        let records = lost.map(|(key, value)| StateRecord {
            key: key.clone(),
            value: Some(value.clone()),
        });
        records.collect()
    }
}

/// What is to be written of one partition. Fields that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionWrite {
    /// The state that it goes to.
    pub state: Option<PartitionState>,
    /// The write is refused if the state epoch is another by now.
    pub expected_state_epoch: Option<i32>,
    /// Why, for FAILED.
    pub error_message: Option<Arc<str>>,
    /// The same for the topic as a whole; belongs to `error_message` and is replaced with it.
    pub divergence: Option<Divergence>,
    /// Failures in a row; by itself it counts on with every FAILED.
    pub retry_attempt: Option<i16>,
    /// How far it was mirrored.
    pub last_mirror: Option<LastMirrorEpochsValue>,
    /// Records below are adopted.
    pub adopted_below: Option<i64>,
    /// Which of our producer ids.
    pub producer_generation: Option<i32>,
}

impl PartitionValue {
    /// What a write makes of it, with the state epoch still the same.
    ///
    /// The state before and the count of failures follow by KIP-1279's rules where the write does not say them: FAILED
    /// counts one more (one that no retry helps stays so), PAUSED, STOPPED and a new start clear the count. What was adopted is
    /// asked anew where the topic was an ordinary one, or may be another by now.
    ///
    /// # Errors
    /// [`Refusal::StateEpoch`], [`Refusal::Transition`].
    pub fn after(&self, write: &PartitionWrite) -> Result<Self, Refusal> {
        if let Some(expected) = write.expected_state_epoch
            && expected != self.state_epoch
        {
            return Err(Refusal::StateEpoch {
                expected,
                current: self.state_epoch,
            });
        }
        let state = write.state.unwrap_or(self.state);
        if !self.state.may_become(state) {
            return Err(Refusal::Transition {
                from: self.state,
                to: state,
            });
        }
        let counted = match (write.state, self.state) {
            (Some(PartitionState::Failed), _) if self.retry_attempt < 0 => self.retry_attempt,
            (Some(PartitionState::Failed), _) => self.retry_attempt.saturating_add(1),
            (Some(PartitionState::Paused | PartitionState::Stopped), _)
            | (
                Some(PartitionState::LogTruncation),
                PartitionState::Unknown | PartitionState::Stopped,
            ) => 0,
            _ => self.retry_attempt,
        };
        let (error_message, divergence) = match &write.error_message {
            _ if state != PartitionState::Failed => (None, None),
            Some(words) => (Some(Arc::clone(words)), write.divergence),
            None => (self.error_message.clone(), self.divergence),
        };
        let begins_anew = state == PartitionState::LogTruncation
            && (self.state == PartitionState::Stopped || self.divergence.is_some());
        let adopted_below = if begins_anew { -1 } else { self.adopted_below };
        Ok(Self {
            state,
            previous_state: if state == self.state {
                self.previous_state
            } else {
                self.state
            },
            retry_attempt: write.retry_attempt.unwrap_or(counted),
            error_message,
            divergence,
            adopted_below: write.adopted_below.unwrap_or(adopted_below),
            producer_generation: write
                .producer_generation
                .unwrap_or(self.producer_generation),
            state_epoch: self.state_epoch,
        })
    }
}

fn topic_key(mirror: &Arc<str>, topic: &Arc<str>) -> StateKey {
    StateKey::Topic {
        mirror: Arc::clone(mirror),
        topic: Arc::clone(topic),
    }
}

/// What an operator does with a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicChange {
    /// Mirror it (again).
    Start,
    /// Make an ordinary topic of it.
    Stop,
    /// Let it stand still.
    Pause,
    /// Take it up again.
    Resume,
}

/// Why a request changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Somebody else has written since.
    #[error("the state was changed meanwhile: expected state epoch {expected}, found {current}")]
    StateEpoch {
        /// As the request says.
        expected: i32,
        /// In the log.
        current: i32,
    },
    /// The table of states does not have it.
    #[error("{from} cannot become {to}")]
    Transition {
        /// The state now.
        from: PartitionState,
        /// The state wanted.
        to: PartitionState,
    },
    /// Nothing is known of such a mirror.
    #[error("there is no mirror of this name")]
    UnknownMirror,
    /// The topic is not one of the mirror's.
    #[error("the topic is not part of this mirror")]
    UnknownTopic,
    /// The topic is part of another mirror.
    #[error("the topic is part of mirror {0}")]
    OtherMirror(Arc<str>),
    /// What the request was based on has changed.
    #[error("the desired state of the topic was changed meanwhile; look at it and try again")]
    Overtaken,
    /// A topic that is to be stopped cannot be paused.
    #[error("the topic is being stopped or is stopped; stopping cannot be taken back")]
    BeingStopped,
    /// Only a paused topic can be resumed.
    #[error("the topic is not paused")]
    NotPaused,
    /// Only a stopped topic can be started.
    #[error("the topic is paused; resume it instead")]
    NotStopped,
    /// A mirror with topics that are not stopped, or whose configs are not their own again.
    #[error(
        "topic {0} is not stopped, or its configs are not its own again yet; stop all topics of the mirror first"
    )]
    NotEmpty(Arc<str>),
    /// Another sidecar, which coordinates the state, says so in these words.
    #[error("{0}")]
    Elsewhere(Arc<str>),
}

/// The records that requests make, one after the other, before any of them is in the log.
#[derive(Debug)]
pub struct Draft<'s> {
    shard: &'s Shard,
    records: Vec<StateRecord>,
    latest: HashMap<StateKey, usize>,
}

impl<'s> Draft<'s> {
    /// A draft on top of what the log says.
    pub fn new(shard: &'s Shard) -> Self {
        Self {
            shard,
            records: Vec::new(),
            latest: HashMap::new(),
        }
    }

    /// What is to be appended, in this order.
    pub fn into_records(self) -> Vec<StateRecord> {
        self.records
    }

    fn get(&self, key: &StateKey) -> Option<&StateValue> {
        match self.latest.get(key).and_then(|at| self.records.get(*at)) {
            Some(record) => record.value.as_ref(),
            None => self.shard.get(key),
        }
    }

    fn put(&mut self, key: StateKey, value: Option<StateValue>) {
        self.latest.insert(key.clone(), self.records.len());
        self.records.push(StateRecord { key, value });
    }

    /// The state of a partition as it will be.
    pub fn partition(&self, key: &MirrorPartition) -> Option<&PartitionValue> {
        match self.get(&StateKey::Partition(key.clone()))? {
            StateValue::Partition(value) => Some(value),
            _ => None,
        }
    }

    /// How far a partition was mirrored when it was last stopped.
    pub fn last_mirror(&self, key: &MirrorPartition) -> Option<LastMirrorEpochsValue> {
        match self.get(&StateKey::LastMirrorEpochs(key.clone()))? {
            StateValue::LastMirrorEpochs(value) => Some(*value),
            _ => None,
        }
    }

    /// What is remembered of a topic, as it will be.
    pub fn topic(&self, mirror: &Arc<str>, topic: &Arc<str>) -> Option<&TopicValue> {
        let key = topic_key(mirror, topic);
        match self.get(&key)? {
            StateValue::Topic(value) => Some(value),
            _ => None,
        }
    }

    /// What is remembered of a mirror, as it will be.
    pub fn mirror(&self, mirror: &Arc<str>) -> Option<&MirrorValue> {
        let key = StateKey::Mirror {
            mirror: Arc::clone(mirror),
        };
        match self.get(&key)? {
            StateValue::Mirror(value) => Some(value),
            _ => None,
        }
    }

    /// Writes again what older records in the log would hide.
    pub fn rewrite(&mut self, overtaken: Vec<StateRecord>) {
        for record in overtaken {
            self.put(record.key, record.value);
        }
    }

    /// Writes a partition's state ([`PartitionValue::after`]). Answers with its state epoch; nothing is written if nothing
    /// would change.
    ///
    /// # Errors
    /// [`Refusal::StateEpoch`], [`Refusal::Transition`].
    pub fn write_partition(
        &mut self,
        key: &MirrorPartition,
        write: &PartitionWrite,
    ) -> Result<i32, Refusal> {
        let old = self.partition(key).cloned().unwrap_or_default();
        let new = old.after(write)?;
        if let Some(last) = write.last_mirror
            && self.last_mirror(key) != Some(last)
        {
            self.put(
                StateKey::LastMirrorEpochs(key.clone()),
                Some(StateValue::LastMirrorEpochs(last)),
            );
        }
        if new == old {
            return Ok(old.state_epoch);
        }
        let state_epoch = old.state_epoch.saturating_add(1);
        self.put(
            StateKey::Partition(key.clone()),
            Some(StateValue::Partition(PartitionValue { state_epoch, ..new })),
        );
        Ok(state_epoch)
    }

    /// Does what an operator wants with a topic: changes its desired state. True if that is news.
    ///
    /// `seen_offset` is the end of this state partition, exclusive, that the operator's request was checked against: a
    /// change of the topic at or above it refuses the request.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn change_topic(
        &mut self,
        mirror: &Arc<str>,
        topic: &Arc<str>,
        change: TopicChange,
        seen_offset: Option<i64>,
    ) -> Result<bool, Refusal> {
        let key = topic_key(mirror, topic);
        let desired = self.would_change_topic(mirror, topic, change, seen_offset)?;
        let old = self.topic(mirror, topic).cloned().unwrap_or_default();
        if desired == old.desired {
            return Ok(false);
        }
        self.put_topic(key, TopicValue { desired, ..old });
        Ok(true)
    }

    /// What [`Draft::change_topic`] would make the desired state, without doing so.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn would_change_topic(
        &self,
        mirror: &Arc<str>,
        topic: &Arc<str>,
        change: TopicChange,
        seen_offset: Option<i64>,
    ) -> Result<DesiredState, Refusal> {
        let key = topic_key(mirror, topic);
        let old = self.topic(mirror, topic).ok_or(Refusal::UnknownTopic)?;
        let written_at = if self.latest.contains_key(&key) {
            Some(i64::MAX)
        } else {
            self.shard.values.get(&key).map(|stored| stored.offset)
        };
        if let (Some(seen), Some(written)) = (seen_offset, written_at)
            && written >= seen
        {
            return Err(Refusal::Overtaken);
        }
        match (change, old.desired) {
            (TopicChange::Start, DesiredState::Paused) => Err(Refusal::NotStopped),
            (TopicChange::Pause, DesiredState::Stopped) => Err(Refusal::BeingStopped),
            (TopicChange::Resume, DesiredState::Stopped) => Err(Refusal::NotPaused),
            (TopicChange::Start | TopicChange::Resume, _) => Ok(DesiredState::Mirroring),
            (TopicChange::Pause, _) => Ok(DesiredState::Paused),
            (TopicChange::Stop, _) => Ok(DesiredState::Stopped),
        }
    }

    /// Begins to forget a mirror: its keys are removed by the coordinators that have them, its own last.
    ///
    /// # Errors
    /// [`Refusal::UnknownMirror`], [`Refusal::NotEmpty`].
    pub fn delete_mirror(&mut self, mirror: &Arc<str>, dry_run: bool) -> Result<(), Refusal> {
        let known = self.mirror(mirror).cloned().ok_or(Refusal::UnknownMirror)?;
        let topics = self.shard.iter().filter_map(|(key, _)| match key {
            StateKey::Topic { mirror: of, topic } if of == mirror => Some(topic),
            _ => None,
        });
        for topic in topics {
            // What its configs are to be stands in the record that would be removed.
            let unfinished = self.topic(mirror, topic).is_some_and(|topic| {
                topic.desired != DesiredState::Stopped
                    || !topic.restored_configs.is_empty()
                    || topic.recreating.is_some()
            });
            if unfinished {
                return Err(Refusal::NotEmpty(Arc::clone(topic)));
            }
        }
        if !known.deleting && !dry_run {
            let state_epoch = known.state_epoch.saturating_add(1);
            let value = MirrorValue {
                deleting: true,
                state_epoch,
                ..known
            };
            self.put(
                StateKey::Mirror {
                    mirror: Arc::clone(mirror),
                },
                Some(StateValue::Mirror(value)),
            );
        }
        Ok(())
    }

    /// Remembers of a topic what is to be remembered before it is first worked on. The desired state is kept, and so is what is
    /// being recreated, with its id.
    pub fn remember_topic(&mut self, mirror: &Arc<str>, topic: &Arc<str>, seen: TopicValue) {
        let key = topic_key(mirror, topic);
        let old = self.topic(mirror, topic);
        let new = TopicValue {
            desired: old.map(|old| old.desired).unwrap_or_default(),
            state_epoch: old.map(|old| old.state_epoch).unwrap_or_default(),
            recreating: old.and_then(|old| old.recreating),
            destination_topic_id: old
                .and_then(|old| old.recreating)
                .unwrap_or(seen.destination_topic_id),
            ..seen
        };
        if old != Some(&new) {
            self.put_topic(key, new);
        }
    }

    /// Marks a destination topic as being recreated, or writes its id down without a mark. False, and nothing is written, if it is
    /// to be marked and an operator does not want it mirrored.
    pub fn mark_topic(
        &mut self,
        mirror: &Arc<str>,
        topic: &Arc<str>,
        source_topic_id: TopicId,
        destination_topic_id: TopicId,
        recreating: bool,
    ) -> bool {
        let key = topic_key(mirror, topic);
        let old = self.topic(mirror, topic).cloned().unwrap_or_default();
        if recreating && old.desired != DesiredState::Mirroring {
            return false;
        }
        let new = TopicValue {
            source_topic_id,
            destination_topic_id,
            recreating: recreating.then_some(destination_topic_id),
            ..old.clone()
        };
        if new != old {
            self.put_topic(key, new);
        }
        true
    }

    fn put_topic(&mut self, key: StateKey, value: TopicValue) {
        let state_epoch = value.state_epoch.saturating_add(1);
        self.put(
            key,
            Some(StateValue::Topic(TopicValue {
                state_epoch,
                ..value
            })),
        );
    }

    /// Remembers the id of a mirror's source cluster. It is pinned: once known, it stays, unless an operator has confirmed that
    /// another one is wanted.
    pub fn remember_mirror(
        &mut self,
        mirror: &Arc<str>,
        cluster_id: &Arc<str>,
        confirmed: bool,
        fingerprint: i64,
    ) {
        let old = self.mirror(mirror).cloned().unwrap_or_default();
        let source_cluster_id = if old.source_cluster_id.is_empty() || confirmed {
            Arc::clone(cluster_id)
        } else {
            Arc::clone(&old.source_cluster_id)
        };
        let new = MirrorValue {
            source_cluster_id,
            fingerprint,
            ..old.clone()
        };
        if new != old || old.state_epoch == 0 {
            let state_epoch = old.state_epoch.saturating_add(1);
            self.put(
                StateKey::Mirror {
                    mirror: Arc::clone(mirror),
                },
                Some(StateValue::Mirror(MirrorValue { state_epoch, ..new })),
            );
        }
    }

    /// Forgets a mirror: a tombstone for each of its keys here.
    pub fn forget_mirror(&mut self, mirror: &Arc<str>) {
        let mut keys: Vec<StateKey> = self
            .shard
            .values
            .keys()
            .chain(self.latest.keys())
            .filter(|key| key.mirror() == Some(mirror))
            .cloned()
            .collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            if self.get(&key).is_some() {
                self.put(key, None);
            }
        }
    }
}

/// An epoch and offset that say how far a partition was mirrored; `None` where a message says neither.
pub fn last_mirror(epoch: LeaderEpoch, offset: i64) -> Option<LastMirrorEpochsValue> {
    (epoch != LeaderEpoch::NONE || offset >= 0).then_some(LastMirrorEpochsValue {
        last_mirror_epoch: epoch,
        last_mirror_offset: offset,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::PartitionState::{
        Failed, LogTruncation, Mirroring, Paused, Pausing, Stopped, Stopping, Unknown,
    };
    use super::*;
    use crate::domain::state_log::CoordinatorValue;
    use crate::domain::types::TopicPartition;

    fn key(index: i32) -> MirrorPartition {
        MirrorPartition {
            mirror: "m".into(),
            partition: TopicPartition::new("t", index),
        }
    }

    fn to(state: PartitionState) -> PartitionWrite {
        PartitionWrite {
            state: Some(state),
            ..PartitionWrite::default()
        }
    }

    /// Applies a draft's records as if they had been appended at the end of a log.
    fn commit(shard: &mut Shard, log: &mut Vec<StateRecord>, records: Vec<StateRecord>) {
        for record in records {
            shard.apply(i64::try_from(log.len()).unwrap(), record.clone());
            log.push(record);
        }
    }

    #[test]
    fn attempts_count_up_and_are_cleared_where_the_kip_says() {
        let (mut shard, mut log) = (Shard::default(), Vec::new());
        // (write, state, previous state, attempt)
        let table = [
            (to(LogTruncation), LogTruncation, Unknown, 0),
            (to(Failed), Failed, LogTruncation, 1),
            (to(Failed), Failed, LogTruncation, 2),
            (to(LogTruncation), LogTruncation, Failed, 2),
            (to(Failed), Failed, LogTruncation, 3),
            (to(Mirroring), Mirroring, Failed, 3),
            (
                PartitionWrite {
                    retry_attempt: Some(0),
                    ..to(Mirroring)
                },
                Mirroring,
                Failed,
                0,
            ),
            (
                PartitionWrite {
                    retry_attempt: Some(-1),
                    ..to(Failed)
                },
                Failed,
                Mirroring,
                -1,
            ),
            (to(Failed), Failed, Mirroring, -1),
            (to(Stopping), Stopping, Failed, -1),
            (to(Stopped), Stopped, Stopping, 0),
            (to(LogTruncation), LogTruncation, Stopped, 0),
            (to(Mirroring), Mirroring, LogTruncation, 0),
            (to(Pausing), Pausing, Mirroring, 0),
            (to(Paused), Paused, Pausing, 0),
        ];
        for (step, (write, state, previous_state, attempt)) in table.into_iter().enumerate() {
            let mut draft = Draft::new(&shard);
            draft.write_partition(&key(0), &write).unwrap();
            let found = draft.partition(&key(0)).unwrap().clone();
            assert_eq!(
                (found.state, found.previous_state, found.retry_attempt),
                (state, previous_state, attempt),
                "step {step}"
            );
            let records = draft.into_records();
            commit(&mut shard, &mut log, records);
        }
    }

    #[test]
    fn what_changes_nothing_is_not_written() {
        let (mut shard, mut log) = (Shard::default(), Vec::new());
        let mut draft = Draft::new(&shard);
        draft.write_partition(&key(0), &to(LogTruncation)).unwrap();
        let records = draft.into_records();
        commit(&mut shard, &mut log, records);
        let mut draft = Draft::new(&shard);
        assert_eq!(draft.write_partition(&key(0), &to(LogTruncation)), Ok(1));
        assert_eq!(draft.into_records(), []);
    }

    #[test]
    fn a_write_based_on_an_old_state_and_one_that_the_table_forbids_are_refused() {
        let shard = Shard::default();
        let mut draft = Draft::new(&shard);
        draft.write_partition(&key(0), &to(LogTruncation)).unwrap();
        let late = PartitionWrite {
            expected_state_epoch: Some(0),
            ..to(Failed)
        };
        assert_eq!(
            draft.write_partition(&key(0), &late),
            Err(Refusal::StateEpoch {
                expected: 0,
                current: 1
            })
        );
        assert_eq!(
            draft.write_partition(&key(0), &to(Paused)),
            Err(Refusal::Transition {
                from: LogTruncation,
                to: Paused
            })
        );
        assert_eq!(draft.into_records().len(), 1);
    }

    #[test]
    fn operators_get_what_the_table_says() {
        use DesiredState as D;
        use TopicChange::{Pause, Resume, Start, Stop};
        let table = [
            (D::Mirroring, Start, Ok(D::Mirroring)),
            (D::Mirroring, Pause, Ok(D::Paused)),
            (D::Mirroring, Resume, Ok(D::Mirroring)),
            (D::Mirroring, Stop, Ok(D::Stopped)),
            (D::Paused, Start, Err(Refusal::NotStopped)),
            (D::Paused, Pause, Ok(D::Paused)),
            (D::Paused, Resume, Ok(D::Mirroring)),
            (D::Paused, Stop, Ok(D::Stopped)),
            (D::Stopped, Start, Ok(D::Mirroring)),
            (D::Stopped, Pause, Err(Refusal::BeingStopped)),
            (D::Stopped, Resume, Err(Refusal::NotPaused)),
            (D::Stopped, Stop, Ok(D::Stopped)),
        ];
        let (mirror, topic): (Arc<str>, Arc<str>) = ("m".into(), "t".into());
        for (from, change, wanted) in table {
            let mut shard = Shard::default();
            let value = TopicValue {
                desired: from,
                state_epoch: 4,
                ..TopicValue::default()
            };
            let record = StateRecord {
                key: StateKey::Topic {
                    mirror: Arc::clone(&mirror),
                    topic: Arc::clone(&topic),
                },
                value: Some(StateValue::Topic(value)),
            };
            shard.apply(7, record);
            let mut draft = Draft::new(&shard);
            let answer = draft.change_topic(&mirror, &topic, change, Some(8));
            let found = draft.topic(&mirror, &topic).unwrap().desired;
            match wanted {
                Ok(desired) => {
                    assert_eq!(answer, Ok(desired != from), "{from} {change:?}");
                    assert_eq!(found, desired, "{from} {change:?}");
                }
                Err(refusal) => assert_eq!(answer, Err(refusal), "{from} {change:?}"),
            }
            let mut draft = Draft::new(&shard);
            let overtaken = draft.change_topic(&mirror, &topic, change, Some(7));
            assert_eq!(overtaken, Err(Refusal::Overtaken));
            let other = draft.change_topic(&mirror, &"other".into(), change, None);
            assert_eq!(other, Err(Refusal::UnknownTopic));
        }
    }

    #[test]
    fn what_differs_belongs_to_the_reason_and_what_was_adopted_is_asked_anew_behind_it() {
        let divergence = Some(Divergence {
            destination_topic_id: TopicId([1; 16]),
            offset: 7,
        });
        let adopted = PartitionValue {
            state: Mirroring,
            adopted_below: 5,
            ..PartitionValue::default()
        };
        let diverged = PartitionWrite {
            error_message: Some("differs".into()),
            divergence,
            ..to(Failed)
        };
        let failed = adopted.after(&diverged).unwrap();
        assert_eq!((failed.divergence, failed.adopted_below), (divergence, 5));
        assert_eq!(failed.after(&to(Failed)).unwrap().divergence, divergence);
        let reworded = PartitionWrite {
            divergence: None,
            ..diverged
        };
        assert_eq!(failed.after(&reworded).unwrap().divergence, None);
        let anew = failed.after(&to(LogTruncation)).unwrap();
        assert_eq!((anew.divergence, anew.adopted_below), (None, -1));
        for (from, kept) in [(Failed, 5), (Stopped, -1)] {
            let value = PartitionValue {
                state: from,
                ..adopted.clone()
            };
            let anew = value.after(&to(LogTruncation)).unwrap();
            assert_eq!(anew.adopted_below, kept, "{from}");
        }
    }

    #[test]
    fn a_topic_is_marked_only_while_it_is_to_be_mirrored_and_keeps_the_mark() {
        let (mirror, topic): (Arc<str>, Arc<str>) = ("m".into(), "t".into());
        let (source, old, new) = (TopicId([9; 16]), TopicId([1; 16]), TopicId([2; 16]));
        let shard = Shard::default();
        let mut draft = Draft::new(&shard);
        assert!(draft.mark_topic(&mirror, &topic, source, old, true));
        assert!(draft.mark_topic(&mirror, &topic, source, old, true));
        assert_eq!(draft.topic(&mirror, &topic).unwrap().state_epoch, 1);
        // A hold that was under way.
        let seen = TopicValue {
            source_topic_id: source,
            destination_topic_id: new,
            ..TopicValue::default()
        };
        draft.remember_topic(&mirror, &topic, seen);
        let pause = draft.change_topic(&mirror, &topic, TopicChange::Pause, None);
        assert_eq!(pause, Ok(true));
        let found = draft.topic(&mirror, &topic).unwrap();
        assert_eq!(
            (found.destination_topic_id, found.recreating),
            (old, Some(old))
        );
        assert!(draft.mark_topic(&mirror, &topic, source, old, false));
        assert!(!draft.mark_topic(&mirror, &topic, source, old, true));
        let found = draft.topic(&mirror, &topic).unwrap();
        assert_eq!(
            (found.desired, found.recreating),
            (DesiredState::Paused, None)
        );
    }

    #[test]
    fn an_older_record_behind_a_newer_one_is_written_over() {
        let mut shard = Shard::default();
        let record = |state_epoch| StateRecord {
            key: StateKey::Partition(key(0)),
            value: Some(StateValue::Partition(PartitionValue {
                state: Mirroring,
                state_epoch,
                ..PartitionValue::default()
            })),
        };
        shard.apply(0, record(5));
        assert_eq!(shard.overtaken(), []);
        shard.apply(1, record(4));
        assert_eq!(shard.overtaken(), [record(5)]);
        let mut draft = Draft::new(&shard);
        draft.rewrite(shard.overtaken());
        let records = draft.into_records();
        let mut log = vec![record(5), record(4)];
        commit(&mut shard, &mut log, records);
        assert_eq!(shard.overtaken(), []);
        assert_eq!(log.last(), Some(&record(5)));
    }

    #[test]
    fn a_log_that_nobody_has_taken_over_gets_what_it_lacks_of_a_lost_one() {
        let partition = |index, state_epoch| StateRecord {
            key: StateKey::Partition(key(index)),
            value: Some(StateValue::Partition(PartitionValue {
                state: Mirroring,
                state_epoch,
                ..PartitionValue::default()
            })),
        };
        let last = |offset| StateRecord {
            key: StateKey::LastMirrorEpochs(key(0)),
            value: last_mirror(LeaderEpoch(1), offset).map(StateValue::LastMirrorEpochs),
        };
        let coordinator = |sidecar: &str| StateRecord {
            key: StateKey::Coordinator,
            value: Some(StateValue::Coordinator(CoordinatorValue {
                sidecar: sidecar.into(),
                incarnation: "i".into(),
                address: "h:9".into(),
                time_ms: 1,
            })),
        };
        let shard = |records: &[StateRecord]| {
            let mut shard = Shard::default();
            for (offset, record) in (0..).zip(records) {
                shard.apply(offset, record.clone());
            }
            shard
        };
        let lost = [coordinator("a"), partition(0, 5), partition(1, 7), last(9)];
        // (what stands in the new log, what is written into it)
        let table = [
            (vec![], vec![last(9), partition(0, 5), partition(1, 7)]),
            (
                vec![partition(0, 6), partition(1, 6)],
                vec![last(9), partition(1, 7)],
            ),
            (vec![partition(0, 5), partition(1, 7), last(3)], vec![]),
            (vec![coordinator("b")], vec![]),
        ];
        for (log, written) in table {
            assert_eq!(shard(&log).restored_from(&shard(&lost)), written, "{log:?}");
        }
    }

    #[test]
    fn nothing_is_left_of_a_forgotten_mirror() {
        let (mut shard, mut log) = (Shard::default(), Vec::new());
        let (mirror, other): (Arc<str>, Arc<str>) = ("m".into(), "other".into());
        let mut draft = Draft::new(&shard);
        draft.remember_mirror(&mirror, &"id".into(), false, 1);
        draft.remember_mirror(&other, &"id".into(), false, 1);
        draft.remember_topic(&mirror, &"t".into(), TopicValue::default());
        let write = PartitionWrite {
            last_mirror: last_mirror(LeaderEpoch(3), 10),
            ..to(LogTruncation)
        };
        draft.write_partition(&key(0), &write).unwrap();
        let records = draft.into_records();
        commit(&mut shard, &mut log, records);
        assert_eq!(shard.len(), 5);
        let mut draft = Draft::new(&shard);
        draft.forget_mirror(&mirror);
        let records = draft.into_records();
        assert_eq!(records.len(), 4);
        commit(&mut shard, &mut log, records);
        let left: Vec<_> = shard.iter().map(|(key, _)| key.clone()).collect();
        assert_eq!(left, [StateKey::Mirror { mirror: other }]);
    }

    #[test]
    fn the_first_cluster_id_stays_unless_another_is_confirmed() {
        let shard = Shard::default();
        let mirror: Arc<str> = "m".into();
        let mut draft = Draft::new(&shard);
        for (id, confirmed, settings, pinned) in [
            ("", false, 1, ""),
            ("first", false, 1, "first"),
            ("second", false, 1, "first"),
            ("second", true, 1, "second"),
            ("second", true, 1, "second"),
            // Other settings are written down, and change nothing else.
            ("second", false, 2, "second"),
        ] {
            draft.remember_mirror(&mirror, &id.into(), confirmed, settings);
            let value = draft.mirror(&mirror).unwrap();
            assert_eq!(
                (&*value.source_cluster_id, value.fingerprint),
                (pinned, settings)
            );
        }
        assert_eq!(draft.into_records().len(), 4);
    }

    #[derive(Clone, Debug)]
    enum Request {
        Write(i32, Option<PartitionState>, Option<i32>, Option<i16>),
        Topic(TopicChange),
        Remember,
        Forget,
    }

    fn requests() -> impl Strategy<Value = Request> {
        let state = prop::sample::select(PartitionState::ALL.to_vec());
        let change = prop::sample::select(vec![
            TopicChange::Start,
            TopicChange::Stop,
            TopicChange::Pause,
            TopicChange::Resume,
        ]);
        prop_oneof![
            8 => (0..3, prop::option::of(state), prop::option::of(0..6), prop::option::of(-1_i16..3))
                .prop_map(|(index, state, epoch, attempt)| Request::Write(index, state, epoch, attempt)),
            3 => change.prop_map(Request::Topic),
            2 => Just(Request::Remember),
            1 => Just(Request::Forget),
        ]
    }

    /// Which of the batch's records reach the log, and whether the coordinator learns that they did.
    #[derive(Clone, Copy, Debug)]
    enum Fate {
        Answered,
        Lost,
        LandedButLost,
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Batches of requests, each appended at once, lost, or appended without an answer, after both of which the
        /// coordinator forgets and reloads: what it holds is always what replay gives, and every success is in the log.
        #[test]
        fn replay_of_the_log_is_the_state(
            batches in prop::collection::vec(
                (
                    prop::collection::vec(requests(), 1..5),
                    prop::sample::select(vec![Fate::Answered, Fate::Answered, Fate::Lost, Fate::LandedButLost]),
                ),
                1..20,
            ),
        ) {
            let (mirror, topic): (Arc<str>, Arc<str>) = ("m".into(), "t".into());
            let (mut shard, mut log) = (Shard::default(), Vec::<StateRecord>::new());
            for (batch, fate) in batches {
                let mut draft = Draft::new(&shard);
                let mut successes = Vec::new();
                for request in batch {
                    match request {
                        Request::Write(index, state, expected_state_epoch, retry_attempt) => {
                            let write = PartitionWrite { state, expected_state_epoch, retry_attempt, ..PartitionWrite::default() };
                            if let Ok(epoch) = draft.write_partition(&key(index), &write) {
                                successes.push((index, epoch, state));
                            }
                        }
                        Request::Topic(change) => {
                            let _refused = draft.change_topic(&mirror, &topic, change, None);
                        }
                        Request::Remember => draft.remember_topic(&mirror, &topic, TopicValue::default()),
                        Request::Forget => draft.forget_mirror(&mirror),
                    }
                }
                let records = draft.into_records();
                let replay = |log: &[StateRecord]| {
                    let mut shard = Shard::default();
                    for (offset, record) in log.iter().enumerate() {
                        shard.apply(i64::try_from(offset).unwrap(), record.clone());
                    }
                    shard
                };
                match fate {
                    Fate::Answered => {
                        commit(&mut shard, &mut log, records);
                        for (index, epoch, state) in successes {
                            let written = log.iter().any(|record| {
                                record.key == StateKey::Partition(key(index))
                                    && matches!(&record.value, Some(StateValue::Partition(value))
                                        if value.state_epoch == epoch && state.is_none_or(|state| value.state == state))
                            });
                            prop_assert!(written || epoch == 0 && state.is_none(), "{index} {epoch} {state:?}");
                        }
                    }
                    Fate::Lost => shard = replay(&log),
                    Fate::LandedButLost => {
                        log.extend(records);
                        shard = replay(&log);
                    }
                }
                prop_assert_eq!(&shard, &replay(&log));
            }
        }
    }
}
