//! The state of mirrors: who coordinates which part of it, and how it is asked and changed. Must not know the data path, the
//! listener or what lies around the records; they know it, through [`Handle`].
//!
//! ```text
//! owner of a partition ──Handle──► actor of its state partition ──append──► state topic
//! operator, sync       ──Handle──►   (decide, append, apply, answer)            │
//!                          ▲                                                    ▼
//!                          └────────────── read model ◄───────── tail of the whole topic
//! ```

mod actor;
mod log;
pub mod messages;
mod model;
mod sharing;
mod tail;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use self::actor::{Actor, Identity, Job};
use self::log::StateLog;
use self::messages::{read_answers, read_request, write_answers, write_request};
pub use self::model::ReadModel;
pub use self::sharing::{MirrorWork, Sharing};
use self::tail::Tail;
pub use self::topic::{StateTopic, StateTopicError};
use crate::domain::assign::STATE_TOPIC;
use crate::domain::route;
use crate::domain::shard::{Draft, PartitionWrite, Refusal, TopicChange};
use crate::domain::state_log::{
    LastMirrorEpochsValue, MirrorPartition, PartitionValue, TopicValue,
};
use crate::domain::types::TopicPartition;
use crate::kafka::backoff::Backoff;
use crate::kafka::cluster::Cluster;
use crate::kafka::connect::Address;
use crate::kafka::contact::chain;
use crate::kafka::group::{GroupHandle, Membership};
use crate::kafka::peer::{PeerError, Peers};
use crate::metrics::Metrics;
use crate::wire::schema::Request;

/// Requests that wait for one state partition.
const QUEUE: usize = 1024;

/// News of the state topic are looked at this often at most for mirrors that are being deleted.
const FORGET_PAUSE: Duration = Duration::from_millis(200);

/// Pauses between looks at the state topic while it cannot be used.
const RETRIES: Backoff = Backoff {
    first: Duration::from_millis(100),
    cap: Duration::from_secs(5),
};

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
struct Seat {
    jobs: mpsc::Sender<Job>,
}

/// How the state of mirrors is asked and changed. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    seats: watch::Receiver<Arc<BTreeMap<i32, Seat>>>,
    loaded: watch::Receiver<BTreeSet<i32>>,
    model: ReadModel,
    peers: Arc<Peers>,
    incarnation: Arc<str>,
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
        in_order(split.total, split.order, here, there)
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

    /// Pins the source cluster's id at first contact, or one that an operator has confirmed.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub async fn remember_mirror(
        &self,
        mirror: Arc<str>,
        source_cluster_id: Arc<str>,
        confirmed: bool,
    ) -> Result<(), Unavailable> {
        let name = Arc::clone(&mirror);
        self.ask(
            move |count| route::of_mirror(&name, count),
            move |draft| draft.remember_mirror(&mirror, &source_cluster_id, confirmed),
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

/// What the coordinators of one process need.
pub struct CoordinatorParts {
    /// The destination, through connections of their own.
    pub cluster: Cluster,
    /// The state topic.
    pub topic: StateTopic,
    /// Which of its partitions are ours.
    pub group: GroupHandle,
    /// The state topic is not created before all of these are cancelled: a mirror may turn out to be one of a cluster to itself.
    pub created_after: Vec<CancellationToken>,
    /// The sidecar's id.
    pub sidecar: Arc<str>,
    /// Which run of it.
    pub incarnation: Arc<str>,
    /// The listener, `host:port`.
    pub address: Arc<str>,
    /// Time limit of one request.
    pub request_timeout: Duration,
    /// The broker's `producer.id.expiration.ms`.
    pub producer_expiration: Duration,
    /// The wall clock, in milliseconds since 1970.
    pub wall_clock_ms: fn() -> i64,
    /// Metrics of the process.
    pub metrics: Metrics,
}

impl fmt::Debug for CoordinatorParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CoordinatorParts")
            .field("topic", &self.topic)
            .field("sidecar", &self.sidecar)
            .finish_non_exhaustive()
    }
}

/// Coordinators that have not been started yet, and the handle to ask them.
#[derive(Debug)]
pub struct Coordinators {
    parts: CoordinatorParts,
    seats: watch::Sender<Arc<BTreeMap<i32, Seat>>>,
    loaded: watch::Sender<BTreeSet<i32>>,
    model: ReadModel,
}

impl Coordinators {
    /// The coordinators of this process, and how they are asked.
    pub fn new(parts: CoordinatorParts) -> (Self, Handle) {
        let seats = watch::Sender::new(Arc::default());
        let loaded = watch::Sender::new(BTreeSet::new());
        let model = ReadModel::default();
        let handle = Handle {
            seats: seats.subscribe(),
            loaded: loaded.subscribe(),
            model: model.clone(),
            peers: Arc::default(),
            incarnation: Arc::clone(&parts.incarnation),
        };
        let coordinators = Self {
            parts,
            seats,
            loaded,
            model,
        };
        (coordinators, handle)
    }

    /// Runs until it is stopped: prepares the state topic, follows it, and coordinates the state partitions that are ours.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.prepare() => {}
        }
        let count = self.parts.topic.partitions;
        self.model.reset(usize::try_from(count).unwrap_or(0));
        let tail = Tail {
            cluster: self.parts.cluster.clone(),
            topic: Arc::clone(&self.parts.topic.name),
            partitions: count,
            request_timeout: self.parts.request_timeout,
            model: self.model.clone(),
        };
        let mut following = JoinSet::new();
        following.spawn(tail.run(stop.child_token()));
        let mut actors: JoinSet<i32> = JoinSet::new();
        let mut running: BTreeMap<i32, CancellationToken> = BTreeMap::new();
        let mut membership = self.parts.group.membership();
        let mut changes = self.model.watch();
        let mut look_at = None;
        loop {
            let now = Arc::clone(&membership.borrow_and_update());
            self.seat(&now.state, &mut running, &mut actors, &stop);
            self.give_up(&now, &running);
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = membership.changed() => {}
                Some(ended) = actors.join_next() => {
                    // One that broke takes the process down: its partition would be nobody's.
                    if let Ok(index) = ended
                        && running.get(&index).is_some_and(CancellationToken::is_cancelled)
                    {
                        running.remove(&index);
                    }
                }
                Ok(()) = changes.changed(), if look_at.is_none() => {
                    look_at = Some(Instant::now() + FORGET_PAUSE);
                }
                () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {
                    look_at = None;
                    self.forget_deleted(&now.state);
                }
            }
        }
        self.seats.send_replace(Arc::default());
        while actors.join_next().await.is_some() {}
        while following.join_next().await.is_some() {}
    }

    /// Says of state partitions that go to another that nothing is done for them here any more.
    fn give_up(&self, now: &Membership, running: &BTreeMap<i32, CancellationToken>) {
        let silent = now
            .revoking
            .iter()
            .filter(|tp| &*tp.topic == STATE_TOPIC && !running.contains_key(&tp.partition));
        self.parts.group.given_up(now.round, silent);
    }

    /// Removes what is left in our state partitions of mirrors that are being deleted: a mirror's own record goes last.
    fn forget_deleted(&self, own: &BTreeSet<i32>) {
        let deleting = self.model.mirrors();
        let deleting = deleting.iter().filter(|(_, value)| value.deleting);
        for (mirror, _) in deleting {
            let home = route::of_mirror(mirror, self.parts.topic.partitions);
            let places = self.model.places_of(mirror);
            let seats = self.seats.borrow();
            for place in &places {
                let last = *place == home && places.len() > 1;
                let Some(seat) = seats.get(place).filter(|_| own.contains(place) && !last) else {
                    continue;
                };
                let mirror = Arc::clone(mirror);
                let job = Job(Box::new(move |draft| {
                    draft.forget_mirror(&mirror);
                    Box::new(|| {})
                }));
                // A full queue is asked again with the next news.
                let _asked = seat.jobs.try_send(job);
            }
        }
    }

    /// Starts the actors of partitions that became ours and ends those of others.
    fn seat(
        &self,
        own: &BTreeSet<i32>,
        running: &mut BTreeMap<i32, CancellationToken>,
        actors: &mut JoinSet<i32>,
        stop: &CancellationToken,
    ) {
        let mut seats = BTreeMap::clone(&self.seats.borrow());
        seats.retain(|index, _| own.contains(index));
        for (index, stop) in running.iter().filter(|(index, _)| !own.contains(index)) {
            stop.cancel();
            self.loaded.send_if_modified(|loaded| loaded.remove(index));
        }
        for index in own {
            // One that came back before its last actor was done is seated when that one has ended.
            if running.contains_key(index) {
                continue;
            }
            let stop_actor = stop.child_token();
            let (jobs, queue) = mpsc::channel(QUEUE);
            seats.insert(*index, Seat { jobs });
            running.insert(*index, stop_actor.clone());
            let (index, actor) = (*index, self.actor(*index, queue));
            actors.spawn(async move {
                actor.run(stop_actor).await;
                index
            });
        }
        self.seats.send_replace(Arc::new(seats));
    }

    fn actor(&self, index: i32, jobs: mpsc::Receiver<Job>) -> Actor {
        let parts = &self.parts;
        let partition = TopicPartition {
            topic: Arc::clone(&parts.topic.name),
            partition: index,
        };
        let loaded = self.loaded.clone();
        Actor {
            index,
            identity: Identity {
                sidecar: Arc::clone(&parts.sidecar),
                incarnation: Arc::clone(&parts.incarnation),
                address: Arc::clone(&parts.address),
            },
            log: StateLog::new(
                parts.cluster.clone(),
                partition,
                parts.producer_expiration,
                parts.wall_clock_ms,
                parts.metrics.clone(),
            ),
            jobs,
            wall_clock_ms: parts.wall_clock_ms,
            lease: parts.group.lease().clone(),
            loaded: Box::new(move |is| {
                loaded.send_if_modified(|all| {
                    if is {
                        all.insert(index)
                    } else {
                        all.remove(&index)
                    }
                });
            }),
        }
    }

    /// Until the state topic is there and as it must be.
    async fn prepare(&self) {
        let topic = &self.parts.topic;
        let mut failures = 0_u32;
        let mut said: Option<String> = None;
        loop {
            let parts = &self.parts;
            let prepared = topic::prepare(
                &parts.cluster,
                topic,
                parts.request_timeout,
                &parts.created_after,
            );
            match prepared.await {
                Ok(true) => break,
                Ok(false) => {
                    sleep(RETRIES.first).await;
                    continue;
                }
                Err(fault) => {
                    failures = failures.saturating_add(1);
                    let words = chain(&fault).to_string();
                    if said.as_ref() != Some(&words) {
                        if fault.needs_a_person() {
                            error!(topic = %topic.name, error = %words, "the state topic cannot be used, nothing is mirrored");
                        } else {
                            warn!(topic = %topic.name, error = %words, "the state topic cannot be used yet, trying until it can");
                        }
                        said = Some(words);
                    }
                    sleep(RETRIES.pause(failures, rand::random())).await;
                }
            }
        }
        if said.is_some() {
            info!(topic = %topic.name, "the state topic can be used");
        }
        self.parts.cluster.set_topics([Arc::clone(&topic.name)]);
    }
}
