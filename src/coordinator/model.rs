//! What the whole state topic says, as the last look at it found: the read model of one sidecar. Must not be taken for the
//! truth where something is decided: the coordinators decide. The one exception is a state topic that is gone (see the module's
//! page): then this is all that is left of it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use crate::domain::route;
use crate::domain::shard::Shard;
use crate::domain::state_log::{
    CoordinatorValue, LastMirrorEpochsValue, MirrorPartition, MirrorValue, PartitionValue,
    StateKey, StateRecord, StateValue, TopicValue,
};

/// One state partition as it was read.
#[derive(Debug, Default)]
struct Followed {
    shard: Shard,
    /// What the log of an earlier topic said, for as long as nobody has taken over the log of the one that is there now.
    remembered: Option<Shard>,
    /// Up to here, exclusive, it has been read.
    end: i64,
    /// It has been read up to what was replicated at some moment since the start.
    caught_up: bool,
}

impl Followed {
    fn shown(&self) -> &Shard {
        self.remembered.as_ref().unwrap_or(&self.shard)
    }

    /// From now on the log of another topic is read.
    fn begin(&mut self) {
        let shard = std::mem::take(&mut self.shard);
        // Of a log that nobody had taken over, what was remembered before it is more than what stood in it.
        self.remembered.get_or_insert(shard);
        self.end = 0;
    }
}

#[derive(Debug)]
struct Inner {
    shards: RwLock<Vec<Followed>>,
    version: watch::Sender<u64>,
}

/// The read model. Cheap to clone; all clones show the same.
///
/// Memory: as the [`Shard`]s in it.
#[derive(Clone, Debug)]
pub struct ReadModel {
    inner: Arc<Inner>,
}

impl Default for ReadModel {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                shards: RwLock::default(),
                version: watch::Sender::new(0),
            }),
        }
    }
}

impl ReadModel {
    fn read(&self) -> RwLockReadGuard<'_, Vec<Followed>> {
        self.inner
            .shards
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Followed>> {
        self.inner
            .shards
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins with the log of a topic of this many partitions. What the log of an earlier topic said is shown on, partition by
    /// partition, until the new one has been taken over by a coordinator.
    pub(super) fn begin(&self, partitions: i32) {
        let mut shards = self.write();
        for followed in shards.iter_mut() {
            followed.begin();
        }
        shards.resize_with(usize::try_from(partitions).unwrap_or(0), Followed::default);
    }

    /// What of an earlier topic's log is to be written into the log of this partition. See [`Shard::restored_from`].
    pub(super) fn restored(&self, partition: i32, log: &Shard) -> Vec<StateRecord> {
        let shards = self.read();
        let place = usize::try_from(partition).ok();
        let followed = place.and_then(|place| shards.get(place));
        let remembered = followed.and_then(|followed| followed.remembered.as_ref());
        remembered.map_or_else(Vec::new, |remembered| log.restored_from(remembered))
    }

    /// Takes in what was read of one partition: records with their offsets, the next offset, and whether everything that is
    /// replicated is among it.
    pub(super) fn take(
        &self,
        partition: i32,
        records: Vec<(i64, StateRecord)>,
        end: i64,
        caught_up: bool,
    ) {
        {
            let mut shards = self.write();
            let place = usize::try_from(partition).ok();
            let Some(followed) = place.and_then(|place| shards.get_mut(place)) else {
                return;
            };
            let news = !records.is_empty() || caught_up && !followed.caught_up;
            for (offset, record) in records {
                followed.shard.apply(offset, record);
            }
            if followed.shard.is_taken_over() {
                followed.remembered = None;
            }
            followed.end = followed.end.max(end);
            followed.caught_up |= caught_up;
            if !news {
                return;
            }
        }
        self.inner
            .version
            .send_modify(|version| *version = version.wrapping_add(1));
    }

    /// Wakes whenever something has been read.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.inner.version.subscribe()
    }

    /// How many state partitions there are; 0 while that is not known.
    pub fn partitions(&self) -> i32 {
        i32::try_from(self.read().len()).unwrap_or(0)
    }

    /// True once every state partition has been read to where it ended at some moment since the start.
    pub fn is_loaded(&self) -> bool {
        let shards = self.read();
        !shards.is_empty() && shards.iter().all(|followed| followed.caught_up)
    }

    /// State partitions that have not been read so far yet.
    pub fn unread(&self) -> Vec<i32> {
        let shards = self.read();
        let unread = (0..).zip(shards.iter());
        unread
            .filter(|(_, followed)| !followed.caught_up)
            .map(|(place, _)| place)
            .collect()
    }

    /// How many keys have a value.
    pub fn keys(&self) -> usize {
        let shards = self.read();
        shards.iter().map(|followed| followed.shown().len()).sum()
    }

    /// The next offset to be read of a state partition.
    pub fn end(&self, partition: i32) -> i64 {
        let shards = self.read();
        let place = usize::try_from(partition).ok();
        place
            .and_then(|place| shards.get(place))
            .map_or(0, |followed| followed.end)
    }

    fn value<T>(
        &self,
        place: impl FnOnce(i32) -> i32,
        key: &StateKey,
        pick: impl FnOnce(&StateValue) -> Option<T>,
    ) -> Option<T> {
        let shards = self.read();
        let index = place(i32::try_from(shards.len()).ok()?);
        let followed = shards.get(usize::try_from(index).ok()?)?;
        followed.shown().get(key).and_then(pick)
    }

    /// The state of a partition.
    pub fn partition(&self, key: &MirrorPartition) -> Option<PartitionValue> {
        self.value(
            |count| route::of_partition(&key.mirror, &key.partition, count),
            &StateKey::Partition(key.clone()),
            |value| match value {
                StateValue::Partition(value) => Some(value.clone()),
                _ => None,
            },
        )
    }

    /// How far a partition was mirrored when it was last stopped.
    pub fn last_mirror(&self, key: &MirrorPartition) -> Option<LastMirrorEpochsValue> {
        self.value(
            |count| route::of_partition(&key.mirror, &key.partition, count),
            &StateKey::LastMirrorEpochs(key.clone()),
            |value| match value {
                StateValue::LastMirrorEpochs(value) => Some(*value),
                _ => None,
            },
        )
    }

    /// What is remembered of a topic.
    pub fn topic(&self, mirror: &Arc<str>, topic: &Arc<str>) -> Option<TopicValue> {
        let key = StateKey::Topic {
            mirror: Arc::clone(mirror),
            topic: Arc::clone(topic),
        };
        self.value(
            |count| route::of_mirror(mirror, count),
            &key,
            |value| match value {
                StateValue::Topic(value) => Some(value.clone()),
                _ => None,
            },
        )
    }

    /// What is remembered of a mirror.
    pub fn mirror(&self, mirror: &Arc<str>) -> Option<MirrorValue> {
        let key = StateKey::Mirror {
            mirror: Arc::clone(mirror),
        };
        self.value(
            |count| route::of_mirror(mirror, count),
            &key,
            |value| match value {
                StateValue::Mirror(value) => Some(value.clone()),
                _ => None,
            },
        )
    }

    /// Who coordinates a state partition.
    pub fn coordinator(&self, place: i32) -> Option<CoordinatorValue> {
        self.value(
            |_| place,
            &StateKey::Coordinator,
            |value| match value {
                StateValue::Coordinator(value) => Some(value.clone()),
                _ => None,
            },
        )
    }

    /// Every mirror that something is remembered of.
    pub fn mirrors(&self) -> BTreeMap<Arc<str>, MirrorValue> {
        let shards = self.read();
        let all = shards
            .iter()
            .flat_map(|followed| followed.shown().mirrors());
        all.map(|(mirror, value)| (Arc::clone(mirror), value.clone()))
            .collect()
    }

    /// The state partitions in which something is remembered of a mirror.
    pub(super) fn places_of(&self, mirror: &Arc<str>) -> Vec<i32> {
        let shards = self.read();
        let with = shards.iter().enumerate().filter(|(_, followed)| {
            let mut keys = followed.shown().iter();
            keys.any(|(key, _)| key.mirror() == Some(mirror))
        });
        with.filter_map(|(place, _)| i32::try_from(place).ok())
            .collect()
    }

    /// Every topic of a mirror that something is remembered of.
    pub fn topics(&self, of: &Arc<str>) -> BTreeMap<Arc<str>, TopicValue> {
        let shards = self.read();
        let place = i32::try_from(shards.len()).map(|count| route::of_mirror(of, count));
        let home = place.ok().and_then(|place| usize::try_from(place).ok());
        let topics = home
            .and_then(|home| shards.get(home))
            .into_iter()
            .flat_map(|followed| followed.shown().topics_of(of));
        topics
            .map(|(topic, value)| (Arc::clone(topic), value.clone()))
            .collect()
    }

    /// Every partition of a mirror that has a state.
    pub fn partitions_of(&self, of: &Arc<str>) -> BTreeMap<MirrorPartition, PartitionValue> {
        let shards = self.read();
        let all = shards
            .iter()
            .flat_map(|followed| followed.shown().partitions_of(of));
        all.map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coordinator(by: Option<&str>) -> StateRecord {
        StateRecord {
            key: StateKey::Coordinator,
            value: by.map(|sidecar| {
                StateValue::Coordinator(CoordinatorValue {
                    sidecar: sidecar.into(),
                    incarnation: "i".into(),
                    address: "h:9".into(),
                    time_ms: 1,
                })
            }),
        }
    }

    #[test]
    fn what_has_not_been_read_and_how_much_is_known_can_be_told() {
        let model = ReadModel::default();
        assert_eq!(
            (model.unread(), model.keys(), model.is_loaded()),
            (vec![], 0, false)
        );
        model.begin(3);
        assert_eq!(model.unread(), [0, 1, 2]);
        model.take(
            1,
            vec![(0, coordinator(Some("a"))), (1, coordinator(Some("b")))],
            2,
            true,
        );
        model.take(2, vec![(0, coordinator(Some("a")))], 1, false);
        assert_eq!((model.unread(), model.keys()), (vec![0, 2], 2));
        model.take(0, Vec::new(), 0, true);
        model.take(2, vec![(1, coordinator(None))], 2, true);
        assert_eq!(
            (model.unread(), model.keys(), model.is_loaded()),
            (vec![], 1, true)
        );
    }
    #[test]
    fn what_a_lost_topic_said_is_shown_until_its_successor_is_taken_over() {
        let state = |state_epoch| StateRecord {
            key: StateKey::Mirror { mirror: "m".into() },
            value: Some(StateValue::Mirror(MirrorValue {
                state_epoch,
                ..MirrorValue::default()
            })),
        };
        let model = ReadModel::default();
        let shown = || model.mirror(&"m".into()).map(|value| value.state_epoch);
        model.begin(1);
        model.take(0, vec![(0, state(7)), (1, coordinator(Some("a")))], 2, true);
        assert_eq!(model.restored(0, &Shard::default()), []);
        // The topic is gone twice, the second time before anybody has taken over the one in between.
        for _ in 0..2 {
            model.begin(1);
            model.take(0, vec![(0, state(1))], 1, true);
            assert_eq!((shown(), model.end(0)), (Some(7), 1));
            assert_eq!(model.restored(0, &Shard::default()), [state(7)]);
        }
        assert_eq!((model.partitions(), model.is_loaded()), (1, true));
        model.take(0, vec![(1, state(8)), (2, coordinator(Some("b")))], 3, true);
        assert_eq!((shown(), model.end(0)), (Some(8), 3));
        assert_eq!(model.restored(0, &Shard::default()), []);
    }
}
