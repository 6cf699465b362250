//! How the state of mirrors is asked and changed: here where it is coordinated here, else at the sidecar that does. Must not decide
//! anything: a request is carried out by the actor of its state partition.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::debug;

use super::actor::Job;
use super::messages::{read_answers, read_request, write_answers, write_request};
use super::model::ReadModel;
use crate::domain::route;
use crate::domain::shard::{Draft, PartitionWrite, Refusal, TopicChange};
use crate::domain::state_log::{
    LastMirrorEpochsValue, MirrorPartition, PartitionValue, TopicValue,
};
use crate::domain::types::{TopicId, TopicPartition};
use crate::kafka::connect::Address;
use crate::kafka::contact::chain;
use crate::kafka::peer::{PeerError, Peers};
use crate::metrics::{Metrics, StateWrite};
use crate::wire::schema::Request;

/// A peer that does not answer for so long is asked again later.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a state was neither read nor written. All of them pass: ask again after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The state partition is being loaded, or the outcome of the last append to it is not known.
    #[error("the state is being loaded")]
    Loading,
    /// Nobody is known to coordinate the state partition.
    #[error("nobody coordinates this state yet")]
    NoCoordinator,
    /// More requests wait than there is room for.
    #[error("too many requests wait for this state")]
    Busy,
}

/// What came of one write: the state epoch, or why there is none.
pub type WriteAnswer = Result<Result<i32, Refusal>, Unavailable>;

/// What came of one read: the state, and how far the partition was mirrored, where there is such.
pub type ReadAnswer = Result<(Option<PartitionValue>, Option<LastMirrorEpochsValue>), Unavailable>;

/// One state partition of ours.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) jobs: mpsc::Sender<Job>,
}

/// How the state of mirrors is asked and changed. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(super) seats: watch::Receiver<Arc<BTreeMap<i32, Seat>>>,
    pub(super) loaded: watch::Receiver<BTreeSet<i32>>,
    pub(super) model: ReadModel,
    pub(super) peers: Arc<Peers>,
    pub(super) incarnation: Arc<str>,
    pub(super) metrics: Metrics,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// What the whole state topic says, as far as it has been read.
    pub fn model(&self) -> &ReadModel {
        &self.model
    }

    /// State partitions of ours that have not been loaded yet; all of them while that is not known.
    pub fn loading(&self) -> Vec<i32> {
        let loaded = self.loaded.borrow();
        let seats = self.seats.borrow();
        seats
            .keys()
            .filter(|index| !loaded.contains(index))
            .copied()
            .collect()
    }

    /// True once the state topic can be read and every state partition of ours is loaded.
    pub fn is_ready(&self) -> bool {
        self.model.is_loaded() && self.loading().is_empty()
    }

    /// How many state partitions have been read and, if they are ours, loaded.
    pub fn ready_partitions(&self) -> usize {
        let unread = self.model.unread();
        let loading = self.loading();
        (0..self.model.partitions())
            .filter(|place| !unread.contains(place) && !loading.contains(place))
            .count()
    }

    async fn ask<T: Send + 'static>(
        &self,
        place: impl FnOnce(i32) -> i32 + Send,
        act: impl FnOnce(&mut Draft<'_>) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let count = self.model.partitions();
        if count == 0 {
            return Err(Unavailable::NoCoordinator);
        }
        let jobs = {
            let seats = self.seats.borrow();
            let seat = seats.get(&place(count)).ok_or(Unavailable::NoCoordinator)?;
            seat.jobs.clone()
        };
        let (answer, answered) = oneshot::channel();
        let job = Job(Box::new(move |draft| {
            let outcome = act(draft);
            Box::new(move || {
                let _nobody_waits = answer.send(outcome);
            })
        }));
        jobs.try_send(job).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Unavailable::Busy,
            mpsc::error::TrySendError::Closed(_) => Unavailable::NoCoordinator,
        })?;
        answered.await.map_err(|_| Unavailable::Loading)
    }

    /// Does something for each partition at the coordinator of its state, with one request per coordinator; the answers come in
    /// the order asked.
    async fn each<A: Send + 'static, T: Clone + Send + 'static>(
        &self,
        asked: Vec<(MirrorPartition, A)>,
        act: impl Fn(&mut Draft<'_>, &MirrorPartition, &A) -> T + Clone + Send + 'static,
    ) -> Vec<Result<T, Unavailable>> {
        let count = self.model.partitions();
        let mut by_place: BTreeMap<i32, Vec<(usize, MirrorPartition, A)>> = BTreeMap::new();
        let mut answers: Vec<Result<T, Unavailable>> =
            std::iter::repeat_n(Err(Unavailable::NoCoordinator), asked.len()).collect();
        for (at, (key, what)) in asked.into_iter().enumerate() {
            let place = route::of_partition(&key.mirror, &key.partition, count);
            by_place.entry(place).or_default().push((at, key, what));
        }
        let requests = by_place.into_iter().map(|(place, asked)| {
            let act = act.clone();
            async move {
                let order: Vec<usize> = asked.iter().map(|(at, _, _)| *at).collect();
                let all = move |draft: &mut Draft<'_>| {
                    let each = asked.iter();
                    each.map(|(_, key, what)| act(draft, key, what))
                        .collect::<Vec<T>>()
                };
                let answers: Vec<Result<T, Unavailable>> = match self.ask(|_| place, all).await {
                    Ok(answers) => answers.into_iter().map(Ok).collect(),
                    Err(unavailable) => order.iter().map(|_| Err(unavailable)).collect(),
                };
                order.into_iter().zip(answers).collect::<Vec<_>>()
            }
        });
        for (at, answer) in join_all(requests).await.into_iter().flatten() {
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        answers
    }

    /// Writes states of partitions whose coordinator this process is, each by itself, and answers with their state epochs.
    pub async fn write_here(
        &self,
        writes: Vec<(MirrorPartition, PartitionWrite)>,
    ) -> Vec<WriteAnswer> {
        self.each(writes, |draft, key, write| {
            draft.write_partition(key, write)
        })
        .await
    }

    /// States of partitions whose coordinator this process is, and how far each was mirrored when it was last stopped.
    pub async fn read_here(&self, keys: Vec<MirrorPartition>) -> Vec<ReadAnswer> {
        let asked = keys.into_iter().map(|key| (key, ())).collect();
        self.each(asked, |draft, key, ()| {
            (draft.partition(key).cloned(), draft.last_mirror(key))
        })
        .await
    }

    /// Writes states of one mirror's partitions wherever they are coordinated, each by itself.
    pub async fn write(
        &self,
        mirror: &Arc<str>,
        writes: Vec<(MirrorPartition, PartitionWrite)>,
    ) -> Vec<WriteAnswer> {
        let split = self.split(writes, |(key, _)| key);
        let from_peers = split.there.into_iter().map(|(address, wanted, writes)| {
            let request = write_request(mirror, &self.incarnation, &writes);
            let peers = Arc::clone(&self.peers);
            async move {
                let response = peers.call(&address, &request, PEER_TIMEOUT).await;
                of_peer(&address, wanted, response.map(write_answers))
            }
        });
        let (here, there) = futures::join!(self.write_here(split.here), join_all(from_peers));
        let answers = in_order(split.total, split.order, here, there);
        for answer in &answers {
            self.metrics.count_state_write(match answer {
                Ok(Ok(_)) => StateWrite::Written,
                Ok(Err(_)) => StateWrite::Refused,
                Err(_) => StateWrite::Unavailable,
            });
        }
        answers
    }

    /// States of one mirror's partitions as their coordinators know them, wherever they are.
    pub async fn read(&self, mirror: &Arc<str>, keys: Vec<MirrorPartition>) -> Vec<ReadAnswer> {
        let split = self.split(keys, |key| key);
        let from_peers = split.there.into_iter().map(|(address, wanted, keys)| {
            let request = read_request(mirror, &keys);
            let peers = Arc::clone(&self.peers);
            async move {
                let response = peers.call(&address, &request, PEER_TIMEOUT).await;
                of_peer(&address, wanted, response.map(read_answers))
            }
        });
        let (here, there) = futures::join!(self.read_here(split.here), join_all(from_peers));
        in_order(split.total, split.order, here, there)
    }

    /// Sorts what is asked by who coordinates it. What nobody is known to coordinate is in neither part.
    fn split<A>(&self, asked: Vec<A>, key: impl Fn(&A) -> &MirrorPartition) -> Split<A> {
        let count = self.model.partitions();
        let mut split = Split {
            total: asked.len(),
            order: Vec::new(),
            here: Vec::new(),
            there: Vec::new(),
        };
        let mut peers: BTreeMap<String, usize> = BTreeMap::new();
        let seats = self.seats.borrow();
        for (at, one) in asked.into_iter().enumerate() {
            let partition = key(&one);
            let place = route::of_partition(&partition.mirror, &partition.partition, count);
            let name = partition.partition.clone();
            if seats.contains_key(&place) {
                split.order.push(at);
                split.here.push(one);
            } else if let Some(address) = self.elsewhere(place) {
                let peer = *peers.entry(address.to_string()).or_insert_with(|| {
                    split.there.push((address, Vec::new(), Vec::new()));
                    split.there.len() - 1
                });
                if let Some((_, wanted, asked)) = split.there.get_mut(peer) {
                    wanted.push((at, name));
                    asked.push(one);
                }
            }
        }
        split
    }

    /// Where a state partition is coordinated, if it is by another sidecar.
    fn elsewhere(&self, place: i32) -> Option<Address> {
        let value = self.model.coordinator(place)?;
        (value.incarnation != self.incarnation)
            .then(|| value.address.parse().ok())
            .flatten()
    }

    /// Wakes whenever a state partition of ours has been loaded, or is not ours any more.
    pub fn watch_loaded(&self) -> watch::Receiver<BTreeSet<i32>> {
        self.loaded.clone()
    }

    /// True if this process coordinates what concerns a mirror as a whole.
    pub fn coordinates(&self, mirror: &str) -> bool {
        let count = self.model.partitions();
        count > 0
            && self
                .loaded
                .borrow()
                .contains(&route::of_mirror(mirror, count))
    }

    /// Asks the coordinator of a mirror, if it is another sidecar, what this process was asked. `None` if nobody else is known to
    /// be it.
    pub async fn forward<R: Request>(
        &self,
        mirror: &str,
        request: &R,
    ) -> Option<Result<R::Response, Unavailable>> {
        let place = route::of_mirror(mirror, self.model.partitions());
        if self.seats.borrow().contains_key(&place) {
            return None;
        }
        let address = self.elsewhere(place)?;
        let answer = self.peers.call(&address, request, PEER_TIMEOUT).await;
        Some(answer.map_err(|error| {
            debug!(peer = %address, error = %chain(&error), "a coordinator does not answer");
            Unavailable::NoCoordinator
        }))
    }

    /// Changes what is wanted of topics of a mirror, each by itself; true where that is news. See [`Draft::change_topic`].
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn change_topics(
        &self,
        mirror: Arc<str>,
        topics: Vec<Arc<str>>,
        change: TopicChange,
        seen_offset: Option<i64>,
        dry_run: bool,
    ) -> Result<Vec<Result<bool, Refusal>>, Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| {
                let each = topics.iter().map(|topic| {
                    if !dry_run {
                        return draft.change_topic(&mirror, topic, change, seen_offset);
                    }
                    let wanted = draft.would_change_topic(&mirror, topic, change, seen_offset)?;
                    let known = draft.topic(&mirror, topic).map(|topic| topic.desired);
                    Ok(known != Some(wanted))
                });
                each.collect()
            },
        )
        .await
    }

    /// Begins to forget a mirror.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn delete_mirror(
        &self,
        mirror: Arc<str>,
        dry_run: bool,
    ) -> Result<Result<(), Refusal>, Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| draft.delete_mirror(&mirror, dry_run),
        )
        .await
    }

    /// Remembers what is to be remembered of a topic before it is worked on.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn remember_topic(
        &self,
        mirror: Arc<str>,
        topic: Arc<str>,
        value: TopicValue,
    ) -> Result<(), Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| draft.remember_topic(&mirror, &topic, value),
        )
        .await
    }

    /// What is remembered of a topic, as this process, its coordinator, knows it: an answer is the right to decide by it.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn topic_here(
        &self,
        mirror: Arc<str>,
        topic: Arc<str>,
    ) -> Result<Option<TopicValue>, Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| draft.topic(&mirror, &topic).cloned(),
        )
        .await
    }

    /// Marks a destination topic as being recreated, or writes its id down without a mark. See [`Draft::mark_topic`].
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn mark_topic(
        &self,
        mirror: Arc<str>,
        topic: Arc<str>,
        (source_topic_id, destination_topic_id): (TopicId, TopicId),
        recreating: bool,
    ) -> Result<bool, Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| {
                let (source, destination) = (source_topic_id, destination_topic_id);
                draft.mark_topic(&mirror, &topic, source, destination, recreating)
            },
        )
        .await
    }

    /// Pins the source cluster's id at first contact, or one that an operator has confirmed, and writes down by which configuration
    /// the mirror is worked on.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn remember_mirror(
        &self,
        mirror: Arc<str>,
        source_cluster_id: Arc<str>,
        confirmed: bool,
        fingerprint: i64,
    ) -> Result<(), Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| draft.remember_mirror(&mirror, &source_cluster_id, confirmed, fingerprint),
        )
        .await
    }
}

/// What is asked, by who is asked.
struct Split<A> {
    total: usize,
    /// The place of each of `here` in what was asked.
    order: Vec<usize>,
    here: Vec<A>,
    /// For each peer, the places and partitions of what it is asked, and that.
    there: Vec<(Address, Places, Vec<A>)>,
}

/// The place of each partition in what was asked.
type Places = Vec<(usize, TopicPartition)>;

/// What a peer has said of what it was asked; nothing of what its answer leaves out.
fn of_peer<T>(
    address: &Address,
    wanted: Places,
    answer: Result<BTreeMap<TopicPartition, Result<T, Unavailable>>, PeerError>,
) -> Vec<(usize, Result<T, Unavailable>)> {
    match answer {
        Ok(mut found) => wanted
            .into_iter()
            .filter_map(|(at, partition)| Some((at, found.remove(&partition)?)))
            .collect(),
        Err(error) => {
            debug!(peer = %address, error = %chain(&error), "a coordinator does not answer");
            // What it did is not known.
            let unknown = |(at, _)| (at, Err(Unavailable::Loading));
            wanted.into_iter().map(unknown).collect()
        }
    }
}

/// All answers in the order asked.
fn in_order<T: Clone>(
    total: usize,
    order: Vec<usize>,
    here: Vec<Result<T, Unavailable>>,
    there: Vec<Vec<(usize, Result<T, Unavailable>)>>,
) -> Vec<Result<T, Unavailable>> {
    let mut answers: Vec<Result<T, Unavailable>> =
        std::iter::repeat_n(Err(Unavailable::NoCoordinator), total).collect();
    let all = order
        .into_iter()
        .zip(here)
        .chain(there.into_iter().flatten());
    for (at, answer) in all {
        if let Some(place) = answers.get_mut(at) {
            *place = answer;
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_can_take_is_counted_as_such() {
        let metrics = Metrics::new("0").unwrap();
        let (seats, loaded) = (watch::Sender::default(), watch::Sender::default());
        let handle = Handle {
            seats: seats.subscribe(),
            loaded: loaded.subscribe(),
            model: ReadModel::default(),
            peers: Arc::default(),
            incarnation: "i".into(),
            metrics: metrics.clone(),
        };
        let mirror: Arc<str> = "m".into();
        let key = |index| MirrorPartition {
            mirror: Arc::clone(&mirror),
            partition: TopicPartition::new("t", index),
        };
        let writes = [0, 1].map(|index| (key(index), PartitionWrite::default()));
        let answers = handle.write(&mirror, writes.to_vec()).await;
        assert_eq!(answers.len(), 2);
        assert!(answers.iter().all(Result::is_err), "{answers:?}");
        let text = prometheus::TextEncoder::new()
            .encode_to_string(&metrics.registry().gather())
            .unwrap();
        let counted = "truemirror_state_writes_total{outcome=\"unavailable\"} 2\n";
        assert!(text.contains(counted), "{text}");
        assert_eq!(handle.ready_partitions(), 0);
    }
}
