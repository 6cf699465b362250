//! The topics of one mirror: finds them at the source, has them created, widened and held at the destination, and says
//! how far each is. Must not touch record data, and not decide anything that `domain::desired` can.
//!
//! One loop does it all: a round lists both clusters, compares, and queues a step for every topic that needs one; a few
//! steps run at a time. What fails is tried again at the next round, which then comes sooner.

mod holding;
mod recreate;
mod remembered;
mod round;
mod step;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use self::recreate::recreate;
use self::step::{Ready, Stage, Trouble, hold, prepare, restore, wait_for_hold};
use crate::config::{NamePatterns, TopicFilter};
use crate::coordinator::{Handle, ReadModel};
use crate::domain::desired::{Step, TopicEntry, TopicGate, TopicSet, may_be_mirrored};
use crate::domain::recreate::OnDivergence;
use crate::domain::state_log::TopicValue;
use crate::kafka::backoff::Backoff;
use crate::kafka::cluster::{Cluster, ClusterError, Metadata, Topics};
use crate::kafka::contact::Contact;

/// Steps of different topics that run at the same time.
const STEPS_AT_ONCE: usize = 8;

/// The state topic is looked at this often at most for topics that have been stopped.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Pauses between rounds while something waits for another try.
const RETRIES: Backoff = Backoff {
    first: Duration::from_millis(500),
    cap: Duration::from_secs(5),
};

/// What the topics of one mirror are prepared by.
#[derive(Clone, Debug)]
pub struct TopicsOptions {
    /// The mirror's name, for the log.
    pub mirror: String,
    /// Which topics are mirrored.
    pub filter: TopicFilter,
    /// Topic configs that are not copied.
    pub config_exclude: NamePatterns,
    /// Of topics that are created; -1: the destination's default.
    pub replication_factor: i16,
    /// What happens to one that is not its source's.
    pub on_divergence: OnDivergence,
    /// Time between two listings of both clusters.
    pub refresh_interval: Duration,
    /// How long each answer may take.
    pub request_timeout: Duration,
    /// The name of the state topic, which the source has too if it is the destination of other mirrors.
    pub state_topic: Arc<str>,
    /// The id that the source must have, if the configuration says one.
    pub source_cluster_id: Option<Arc<str>>,
    /// A number for the mirror's part of the configuration.
    pub fingerprint: i64,
    /// Cancelled as soon as both clusters have been listed, or cannot be: until then nothing is created anywhere, since they
    /// may be one and the same.
    pub compared: CancellationToken,
}

/// Why the topics of a mirror cannot be looked after at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicsError {
    /// A mirror of a cluster to itself. Nothing was created or changed.
    #[error(
        "source and destination are the same cluster ({cluster_id}): bootstrap_servers of one of them lead to the other"
    )]
    SameCluster {
        /// The id that both gave.
        cluster_id: Arc<str>,
    },
}

/// Looks after the topics of one mirror until `stop`. Publishes through `sets` whenever something changes. A topic that
/// comes through `hold_wanted` has its configs held, once; asking again looks again.
///
/// # Errors
/// [`TopicsError`] for what no waiting can mend; an unreachable cluster is waited for without end.
#[expect(
    clippy::too_many_arguments,
    reason = "each is a different handle, given once by the part that builds the mirror"
)]
pub async fn run(
    options: TopicsOptions,
    source: Cluster,
    destination: Cluster,
    source_contact: Arc<Contact>,
    destination_contact: Arc<Contact>,
    sets: watch::Sender<Arc<TopicSet>>,
    hold_wanted: mpsc::Receiver<Arc<str>>,
    states: Handle,
    stop: CancellationToken,
) -> Result<(), TopicsError> {
    let stage = Arc::new(Stage {
        mirror: options.mirror.into(),
        states,
        source,
        destination,
        config_exclude: options.config_exclude,
        replication_factor: options.replication_factor,
        on_divergence: options.on_divergence,
        request_timeout: options.request_timeout,
    });
    let mut keeper = Keeper {
        stage,
        filter: options.filter,
        refresh_interval: options.refresh_interval,
        source_cluster_id: options.source_cluster_id,
        fingerprint: options.fingerprint,
        said_other_settings: false,
        state_topic: options.state_topic,
        other_side: None,
        compared: options.compared,
        another_source: None,
        source_contact,
        destination_contact,
        sets,
        topics: BTreeMap::new(),
        waiting: VecDeque::new(),
        running: FuturesUnordered::new(),
        steps: 0,
        next_round: Some(Instant::now()),
        troubled: false,
        troubled_rounds: 0,
        seeded: false,
        coordinated: false,
        deleted: false,
        look_at_stopped: None,
    };
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        error = keeper.work(hold_wanted) => Err(error),
    }
}

/// Both listings of one round.
struct Listed {
    source: Result<Arc<Metadata>, ClusterError>,
    destination: Result<Arc<Metadata>, ClusterError>,
}

/// What came of something that ran.
enum Outcome {
    Listed(Listed),
    Prepared(Arc<str>, Result<Ready, Trouble>),
    Held(Arc<str>, Result<usize, Trouble>),
    /// It was held a while ago, and whoever wants the topic too has said so by now.
    Claimed(Arc<str>, usize),
    Restored(Arc<str>, Result<(), Trouble>),
    Recreated(Arc<str>, Result<Option<Ready>, Trouble>),
    /// The source's cluster id has been written down, or could not be.
    Pinned(bool),
    /// The source's state topic is not read any more: the process ends.
    Unread,
}

/// A step that waits for its turn.
enum Work {
    Prepare {
        topic: Arc<str>,
        partitions: i32,
        step: Step,
    },
    Hold(Arc<str>),
    Restore(Arc<str>, TopicValue),
    Recreate(Arc<str>),
}

struct Topic {
    entry: TopicEntry,
    /// Both sides have it in the same shape, or had when that was last known.
    ready: bool,
    /// The data path wants its configs held.
    hold_wanted: bool,
    /// A step of it waits or runs.
    busy: bool,
    /// The mirror has not had the topic before: another may want it at the same time.
    new_claim: bool,
    missed_at_source: u32,
    missed_at_destination: u32,
    /// The last listing of the destination had another topic of this name: a broker that lags shows an earlier one.
    odd_at_destination: bool,
    /// Its coordinator has marked it, when that was last looked at.
    recreating: bool,
    /// The source's listings do not have it any more.
    deleted: bool,
    /// The state topic has shown that it failed for good.
    blamed: bool,
    /// State epochs of its partitions when it failed for good: what an operator says to that has later ones.
    failed_at: Vec<i32>,
    /// State epoch of the record by which its configs were last restored: what is read later than that was done is not done
    /// again.
    restored_by: Option<i32>,
    /// The last reason that was logged.
    said: Option<String>,
}

impl Topic {
    fn new(entry: TopicEntry) -> Self {
        Self {
            entry,
            ready: false,
            hold_wanted: false,
            busy: false,
            new_claim: false,
            missed_at_source: 0,
            missed_at_destination: 0,
            odd_at_destination: false,
            recreating: false,
            deleted: false,
            blamed: false,
            failed_at: Vec::new(),
            restored_by: None,
            said: None,
        }
    }

    fn failed_for_good(&self) -> bool {
        matches!(
            self.entry.gate,
            TopicGate::Failed {
                permanent: true,
                ..
            }
        )
    }

    fn is_held(&self) -> bool {
        matches!(self.entry.gate, TopicGate::Held { .. })
    }
}

struct Keeper {
    stage: Arc<Stage>,
    filter: TopicFilter,
    refresh_interval: Duration,
    source_cluster_id: Option<Arc<str>>,
    fingerprint: i64,
    /// It has been said that the mirror's coordinator works by other settings.
    said_other_settings: bool,
    state_topic: Arc<str>,
    /// What the source's own sidecars do, and since when that is read, if the source has such.
    other_side: Option<(ReadModel, Instant)>,
    compared: CancellationToken,
    /// Why the mirror is halted: the source is not the cluster that it was.
    another_source: Option<String>,
    source_contact: Arc<Contact>,
    destination_contact: Arc<Contact>,
    sets: watch::Sender<Arc<TopicSet>>,
    topics: BTreeMap<Arc<str>, Topic>,
    waiting: VecDeque<Work>,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
    /// How many of `running` are steps.
    steps: usize,
    /// `None` while the listing of a round runs.
    next_round: Option<Instant>,
    /// Something of this round has to be tried again.
    troubled: bool,
    /// Rounds in a row, before this one, in which something had to.
    troubled_rounds: u32,
    /// The topics that the state topic knows have been taken in.
    seeded: bool,
    /// This process was the mirror's coordinator when that was last looked at.
    coordinated: bool,
    /// An operator has deleted the mirror: this process does not begin it anew.
    deleted: bool,
    /// When the state topic is looked at for topics that have been stopped.
    look_at_stopped: Option<Instant>,
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper")
            .field("mirror", &self.stage.mirror)
            .finish_non_exhaustive()
    }
}

impl Keeper {
    /// Ends with what no waiting can mend.
    async fn work(&mut self, mut hold_wanted: mpsc::Receiver<Arc<str>>) -> TopicsError {
        let mut asked = true;
        let mut states = self.stage.states.model().watch();
        let mut loaded = self.stage.states.watch_loaded();
        loop {
            let (round, look) = (self.next_round, self.look_at_stopped);
            tokio::select! {
                topic = hold_wanted.recv(), if asked => match topic {
                    Some(topic) => self.want_hold(&topic),
                    None => asked = false,
                },
                Some(outcome) = self.running.next() => {
                    if let Err(error) = self.take(outcome) {
                        return error;
                    }
                }
                () = sleep_until(round.unwrap_or_else(Instant::now)), if round.is_some() => self.start_round(),
                Ok(()) = states.changed(), if look.is_none() => {
                    self.look_at_stopped = Some(Instant::now() + LOOK_PAUSE);
                }
                () = sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => {
                    self.look_at_stopped = None;
                    self.look_at_states();
                }
                Ok(_) = loaded.changed() => self.take_over(),
            }
            self.start_steps();
        }
    }

    fn start_round(&mut self) {
        self.troubled_rounds = if self.troubled {
            self.troubled_rounds.saturating_add(1)
        } else {
            0
        };
        self.troubled = false;
        self.next_round = None;
        let stage = Arc::clone(&self.stage);
        self.running.push(Box::pin(async move {
            let (source, destination) = tokio::join!(
                stage.source.refresh(Topics::All),
                stage.destination.refresh(Topics::All),
            );
            Outcome::Listed(Listed {
                source,
                destination,
            })
        }));
    }

    fn take(&mut self, outcome: Outcome) -> Result<(), TopicsError> {
        match outcome {
            Outcome::Listed(listed) => {
                self.next_round = Some(Instant::now() + self.refresh_interval);
                if self.troubled {
                    self.try_again_soon();
                }
                self.listed(listed)?;
            }
            Outcome::Prepared(topic, result) => {
                self.steps = self.steps.saturating_sub(1);
                self.prepared(&topic, result);
            }
            Outcome::Claimed(topic, max_message_bytes) => self.claimed(&topic, max_message_bytes),
            Outcome::Unread => {}
            Outcome::Pinned(done) => {
                if !done {
                    self.try_again_soon();
                }
            }
            Outcome::Restored(topic, result) => {
                self.steps = self.steps.saturating_sub(1);
                if let Some(known) = self.topics.get_mut(&topic) {
                    known.busy = false;
                    known.hold_wanted = false;
                    known.entry.gate = TopicGate::Unheld;
                }
                if let Err(trouble) = result {
                    if let Some(known) = self.topics.get_mut(&topic) {
                        known.restored_by = None;
                    }
                    self.trouble(&topic, trouble);
                    self.look_at_stopped = Some(Instant::now() + RETRIES.cap);
                }
            }
            Outcome::Recreated(topic, result) => {
                self.steps = self.steps.saturating_sub(1);
                self.recreated(&topic, result);
            }
            Outcome::Held(topic, result) => {
                self.steps = self.steps.saturating_sub(1);
                self.held(&topic, result);
            }
        }
        self.publish();
        Ok(())
    }

    fn listed(&mut self, listed: Listed) -> Result<(), TopicsError> {
        if let (Ok(source), Ok(destination)) = (&listed.source, &listed.destination)
            && let (Some(cluster_id), Some(other)) = (&source.cluster_id, &destination.cluster_id)
            && cluster_id == other
        {
            return Err(TopicsError::SameCluster {
                cluster_id: Arc::clone(cluster_id),
            });
        }
        self.compared.cancel();
        for (result, contact) in [
            (&listed.source, &self.source_contact),
            (&listed.destination, &self.destination_contact),
        ] {
            match result {
                Ok(_) => contact.answered(),
                Err(error) => contact.failed(error),
            }
        }
        if !self.stage.states.model().is_loaded() {
            self.try_again_soon();
            return Ok(());
        }
        let mirror = self.stage.states.model().mirror(&self.stage.mirror);
        self.deleted |= mirror.is_some_and(|mirror| mirror.deleting);
        if self.deleted {
            return Ok(());
        }
        if !self.seeded {
            self.seeded = true;
            self.seed();
        }
        let (Ok(source), Ok(destination)) = (&listed.source, &listed.destination) else {
            if let Ok(destination) = &listed.destination {
                self.take_seeded(destination);
            }
            self.try_again_soon();
            return Ok(());
        };
        if !self.is_the_same_source(source.cluster_id.as_ref(), destination) {
            return Ok(());
        }
        if !self.knows_the_other_side(source) {
            self.try_again_soon();
            return Ok(());
        }
        for (name, found) in &source.topics {
            let wanted = may_be_mirrored(name, found.is_internal)
                && self.filter.matches(name)
                && found.error.is_none()
                && !found.partitions.is_empty();
            if wanted {
                self.compare(name, found, destination.topics.get(name));
            }
        }
        self.miss(source);
        // What the state topic says of them may not have been done before they were known.
        self.look_at_stopped.get_or_insert_with(Instant::now);
        // What other topics the listings brought is forgotten again.
        self.follow();
        Ok(())
    }

    fn start_steps(&mut self) {
        while self.steps < STEPS_AT_ONCE {
            let Some(work) = self.waiting.pop_front() else {
                return;
            };
            self.steps = self.steps.saturating_add(1);
            let stage = Arc::clone(&self.stage);
            self.running.push(match work {
                Work::Prepare {
                    topic,
                    partitions,
                    step,
                } => Box::pin(async move {
                    let result = prepare(&stage, &topic, partitions, step).await;
                    Outcome::Prepared(topic, result)
                }),
                Work::Hold(topic) => {
                    let model = self.stage.states.model();
                    let new = model.topic(&self.stage.mirror, &topic).is_none();
                    let known = self.topics.get_mut(&topic).map(|known| {
                        known.new_claim |= new;
                        &known.entry
                    });
                    let ids = known
                        .map(|entry| (entry.source_topic_id, entry.destination_topic_id))
                        .unwrap_or_default();
                    let alone = !self.coordinates();
                    Box::pin(async move {
                        let result = if alone {
                            wait_for_hold(&stage, &topic).await
                        } else {
                            hold(&stage, &topic, ids).await
                        };
                        Outcome::Held(topic, result)
                    })
                }
                Work::Restore(topic, value) => Box::pin(async move {
                    let result = restore(&stage, &topic, value).await;
                    Outcome::Restored(topic, result)
                }),
                Work::Recreate(topic) => {
                    let known = self.topics.get(&topic);
                    let id = known.map(|topic| topic.entry.source_topic_id);
                    Box::pin(async move {
                        let result = recreate(&stage, &topic, id.unwrap_or_default()).await;
                        Outcome::Recreated(topic, result)
                    })
                }
            });
        }
    }

    /// A step of a topic has ended. The topic, unless it has failed for good meanwhile.
    fn step_ended(&mut self, name: &Arc<str>) -> Option<&mut Topic> {
        let topic = self.topics.get_mut(name)?;
        topic.busy = false;
        Some(topic).filter(|topic| !topic.failed_for_good())
    }

    fn prepared(&mut self, name: &Arc<str>, result: Result<Ready, Trouble>) {
        let Some(topic) = self.step_ended(name) else {
            return;
        };
        match result {
            Ok(ready) => {
                topic.entry.destination_topic_id = ready.destination_topic_id;
                topic.entry.partitions = ready.partitions;
                if !topic.ready {
                    topic.ready = true;
                    topic.entry.gate = TopicGate::Unheld;
                }
                topic.said = None;
                if topic.hold_wanted && !topic.is_held() {
                    self.queue_hold(name);
                }
            }
            // A topic that cannot grow is mirrored on with the partitions it has.
            Err(Trouble::Refused(reason)) if topic.ready => {
                self.try_again_soon();
                self.complain(name, &reason, false);
            }
            Err(trouble) => self.trouble(name, trouble),
        }
    }

    fn trouble(&mut self, name: &Arc<str>, trouble: Trouble) {
        self.try_again_soon();
        match trouble {
            Trouble::Refused(reason) => self.fail(name, reason, false),
            // A cluster that is gone is said by its contact, once for all topics.
            Trouble::Unreached(reason) => {
                debug!(mirror = %self.stage.mirror, topic = %name, reason = %reason, "topic waits");
            }
            Trouble::Waiting(reason) => {
                let Some(topic) = self.topics.get_mut(name) else {
                    return;
                };
                if topic.said.as_ref() != Some(&reason) {
                    info!(mirror = %self.stage.mirror, topic = %name, reason = %reason, "topic waits");
                    topic.said = Some(reason);
                }
            }
        }
    }

    fn fail(&mut self, name: &Arc<str>, reason: String, permanent: bool) {
        self.complain(name, &reason, permanent);
        let known = self.topics.get(name);
        let news = permanent && known.is_some_and(|topic| !topic.failed_for_good());
        let failed_at = news.then(|| self.partitions_of(name));
        if let Some(topic) = self.topics.get_mut(name) {
            if let Some(values) = failed_at {
                topic.failed_at = values.iter().map(|value| value.state_epoch).collect();
            }
            topic.entry.gate = TopicGate::Failed { reason, permanent };
        }
    }

    /// Says a reason once.
    fn complain(&mut self, name: &Arc<str>, reason: &str, permanent: bool) {
        let mirror = &self.stage.mirror;
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        if topic.said.as_deref() == Some(reason) {
            return;
        }
        topic.said = Some(reason.to_owned());
        if permanent {
            error!(mirror = %mirror, topic = %name, reason = %reason, "topic is not mirrored any more");
        } else {
            warn!(mirror = %mirror, topic = %name, reason = %reason, "topic cannot be mirrored now, trying until it can");
        }
    }

    /// Makes the next round come after a short pause, which grows while rounds in a row need it.
    fn try_again_soon(&mut self) {
        self.troubled = true;
        let failures = self.troubled_rounds.saturating_add(1);
        let soon = Instant::now() + RETRIES.pause(failures, rand::random());
        self.next_round = self.next_round.map(|round| round.min(soon));
    }

    /// Tells everybody, if there is news.
    fn publish(&self) {
        let shown = self
            .topics
            .iter()
            // A topic that waits to be created is nothing to work on, but one that is refused is to be seen.
            .filter(|(_, topic)| {
                topic.ready || matches!(topic.entry.gate, TopicGate::Failed { .. })
            });
        let topics = shown
            .map(|(name, topic)| (Arc::clone(name), topic.entry.clone()))
            .collect();
        let set = TopicSet {
            topics,
            known: self.seeded,
        };
        let changed = self.sets.send_if_modified(|sent| {
            let changed = **sent != set;
            if changed {
                *sent = Arc::new(set);
            }
            changed
        });
        if changed {
            self.follow();
        }
    }

    fn follow(&self) {
        let names = |fits: fn(&Topic) -> bool| {
            let fitting = self.topics.iter().filter(move |(_, topic)| fits(topic));
            fitting
                .map(|(name, _)| Arc::clone(name))
                .collect::<Vec<_>>()
        };
        let mut source = names(|topic| topic.missed_at_source < 2);
        if self.other_side.is_some() {
            source.push(Arc::clone(&self.state_topic));
        }
        self.stage.source.set_topics(source);
        self.stage
            .destination
            .set_topics(names(|topic| topic.ready));
    }
}
