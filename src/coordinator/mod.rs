//! The state of mirrors: who coordinates which part of it, and how it is asked and changed. Must not know the data path, the
//! listener or what lies around the records; they know it, through [`Handle`].
//!
//! ```text
//! owner of a partition ──Handle──► actor of its state partition ──append──► state topic
//! operator, sync       ──Handle──►   (decide, append, apply, answer)            │
//!                          ▲                                                    ▼
//!                          └────────────── read model ◄───────── tail of the whole topic
//! ```
//!
//! # When the state topic is deleted
//!
//! The log owns the truth, and memory is a cache of it. If the log is gone, the last known state of a living sidecar is the truth.
//!
//! - Each process notices it by itself: the topic is unknown or has another id, in two looks in a row at brokers that answer. It
//!   says so once, as an ERROR, ends its coordinators (who asks them is told to come again), and creates the topic with its
//!   settings; whoever is second finds it there. Copying goes on meanwhile: it asks the destination's logs, not the states.
//! - The read model goes on showing what the lost log said. Per state partition, it does so until somebody has taken over the
//!   partition's new log.
//! - The coordinator of a state partition reads the new log and appends what its own read model knows and the log lacks, with the
//!   state epochs that it had, so that epochs go on rising. Its coordinator record comes last. So a log without such a record may
//!   be incomplete, and whoever takes it over next completes it; a log with one is the truth again, and nothing that anybody
//!   remembers is written into it any more. Compare-and-append decides between two who try at the same time.
//! - Nothing is lost as long as the sidecar that coordinates a state partition had read all of it. One that starts while the topic
//!   is gone remembers nothing: state partitions that the group gives to it before another has taken them over start empty.
//!   What an empty one means: topics and partitions begin anew, from what their logs say; what operators wanted must be said
//!   again, and the mirror's source cluster is pinned anew.

mod actor;
mod handle;
mod log;
pub mod messages;
mod model;
mod sharing;
mod tail;
mod topic;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::actor::{Actor, Identity, Job};
use self::handle::Seat;
pub use self::handle::{Handle, ReadAnswer, Unavailable, WriteAnswer};
use self::log::StateLog;
pub use self::model::ReadModel;
pub use self::sharing::{MirrorWork, Sharing};
use self::tail::Tail;
use self::topic::TopicIds;
pub use self::topic::{StateTopic, StateTopicError};
use crate::domain::assign::STATE_TOPIC;
use crate::domain::route;
use crate::domain::types::{TopicId, TopicPartition};
use crate::kafka::backoff::Backoff;
use crate::kafka::cluster::Cluster;
use crate::kafka::contact::chain;
use crate::kafka::group::{GroupHandle, Membership};
use crate::metrics::Metrics;

/// Requests that wait for one state partition.
const QUEUE: usize = 1024;

/// A mirror that is being deleted is forgotten after this: everybody must have seen the mark by then, or would begin it anew.
const FORGET_PAUSE: Duration = Duration::from_secs(2);

/// Pauses between looks at the state topic while it cannot be used.
const RETRIES: Backoff = Backoff {
    first: Duration::from_millis(100),
    cap: Duration::from_secs(5),
};

/// Reads the state topic of another cluster into a model of its own, until it is stopped: what the sidecars there do.
pub fn read_elsewhere(
    cluster: Cluster,
    topic: Arc<str>,
    partitions: i32,
    request_timeout: Duration,
    stop: CancellationToken,
) -> (ReadModel, impl Future<Output = ()> + Send + 'static) {
    let model = ReadModel::default();
    model.begin(partitions);
    let tail = Tail {
        cluster,
        topic,
        topic_id: None,
        partitions,
        request_timeout,
        model: model.clone(),
    };
    (model, tail.run(stop))
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

/// Why there is nothing more to coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Stopped,
    TopicLost,
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
            metrics: parts.metrics.clone(),
        };
        let coordinators = Self {
            parts,
            seats,
            loaded,
            model,
        };
        (coordinators, handle)
    }

    /// Runs until it is stopped: prepares the state topic, follows it, and coordinates the state partitions that are ours. Begins
    /// anew if the topic is deleted.
    pub async fn run(self, stop: CancellationToken) {
        let mut ids = TopicIds::default();
        let mut said = None;
        loop {
            let id = tokio::select! {
                () = stop.cancelled() => return,
                id = self.prepare(&ids) => id,
                never = self.let_go() => match never {},
            };
            if ids.found(id) {
                self.model.begin(self.parts.topic.partitions);
            }
            if said.is_some() {
                info!(topic = %self.parts.topic.name, topic_id = %id, "the state topic is there again");
            }
            if self.coordinate(id, &ids, &stop).await == Ended::Stopped {
                return;
            }
            if said.replace(id) != Some(id) {
                error!(
                    topic = %self.parts.topic.name, topic_id = %id,
                    "the state topic was deleted; it is created again unless somebody has, and what is remembered of it is written \
                     into it; copying goes on, states can neither be read nor changed meanwhile"
                );
            }
        }
    }

    /// Follows one topic and coordinates until it is stopped, or the topic is gone.
    async fn coordinate(&self, id: TopicId, ids: &TopicIds, stop: &CancellationToken) -> Ended {
        let until = stop.child_token();
        let tail = Tail {
            cluster: self.parts.cluster.clone(),
            topic: Arc::clone(&self.parts.topic.name),
            topic_id: Some(id),
            partitions: self.parts.topic.partitions,
            request_timeout: self.parts.request_timeout,
            model: self.model.clone(),
        };
        let mut following = JoinSet::new();
        following.spawn(tail.run(until.clone()));
        let lost = topic::until_lost(&self.parts.cluster, &self.parts.topic.name, ids);
        tokio::pin!(lost);
        let mut actors: JoinSet<i32> = JoinSet::new();
        let mut running: BTreeMap<i32, CancellationToken> = BTreeMap::new();
        let mut membership = self.parts.group.membership();
        let mut changes = self.model.watch();
        let mut look_at = None;
        let mut marked = BTreeMap::new();
        let ended = loop {
            let now = Arc::clone(&membership.borrow_and_update());
            self.seat(id, &now.state, &mut running, &mut actors, &until);
            self.give_up(&now, &running);
            tokio::select! {
                () = stop.cancelled() => break Ended::Stopped,
                () = &mut lost => break Ended::TopicLost,
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
                    let again = self.forget_deleted(&now.state, &mut marked);
                    look_at = again.then(|| Instant::now() + FORGET_PAUSE);
                }
            }
        };
        until.cancel();
        match ended {
            Ended::Stopped => {
                self.seats.send_replace(Arc::default());
            }
            // The seats stay, with nobody in them: what is ours is not ready.
            Ended::TopicLost => {
                self.loaded.send_replace(BTreeSet::new());
            }
        }
        while actors.join_next().await.is_some() {}
        while following.join_next().await.is_some() {}
        ended
    }

    /// While there is no state topic nothing is coordinated here, so that what goes to another may go at once.
    async fn let_go(&self) -> Infallible {
        let mut membership = self.parts.group.membership();
        loop {
            let now = Arc::clone(&membership.borrow_and_update());
            self.give_up(&now, &BTreeMap::new());
            if membership.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
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
    /// True if some of it is not due yet.
    fn forget_deleted(
        &self,
        own: &BTreeSet<i32>,
        marked: &mut BTreeMap<Arc<str>, Instant>,
    ) -> bool {
        let mut again = false;
        let mut deleting = self.model.mirrors();
        deleting.retain(|_, value| value.deleting);
        marked.retain(|mirror, _| deleting.contains_key(mirror));
        for mirror in deleting.keys() {
            let since = *marked
                .entry(Arc::clone(mirror))
                .or_insert_with(Instant::now);
            if since.elapsed() < FORGET_PAUSE {
                again = true;
                continue;
            }
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
        again
    }

    /// Starts the actors of partitions that became ours and ends those of others.
    fn seat(
        &self,
        id: TopicId,
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
            let (index, actor) = (*index, self.actor(id, *index, queue));
            actors.spawn(async move {
                actor.run(stop_actor).await;
                index
            });
        }
        self.seats.send_replace(Arc::new(seats));
    }

    fn actor(&self, id: TopicId, index: i32, jobs: mpsc::Receiver<Job>) -> Actor {
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
                id,
                parts.wall_clock_ms,
                parts.metrics.clone(),
            ),
            model: self.model.clone(),
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

    /// Until the state topic is there and as it must be: its id.
    async fn prepare(&self, ids: &TopicIds) -> TopicId {
        let topic = &self.parts.topic;
        let mut failures = 0_u32;
        let mut said: Option<String> = None;
        let id = loop {
            let parts = &self.parts;
            let prepared = topic::prepare(
                &parts.cluster,
                topic,
                parts.request_timeout,
                &parts.created_after,
                ids,
            );
            match prepared.await {
                Ok(Some(id)) => break id,
                Ok(None) => {
                    sleep(RETRIES.first).await;
                    continue;
                }
                Err(fault) => {
                    failures = failures.saturating_add(1);
                    let words = chain(&fault).to_string();
                    if said.as_ref() != Some(&words) {
                        if fault.needs_a_person() {
                            error!(topic = %topic.name, error = %words, "the state topic cannot be used, no mirror can begin or be changed");
                        } else {
                            warn!(topic = %topic.name, error = %words, "the state topic cannot be used yet, trying until it can");
                        }
                        said = Some(words);
                    }
                    sleep(RETRIES.pause(failures, rand::random())).await;
                }
            }
        };
        if said.is_some() {
            info!(topic = %topic.name, "the state topic can be used");
        }
        self.parts.cluster.set_topics([Arc::clone(&topic.name)]);
        id
    }
}
