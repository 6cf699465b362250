//! The data path of one mirror: fetch from the source, append to the destination. Must not know HTTP or the command line,
//! and must not decide: decisions are `domain`'s, this carries them out.
//!
//! ```text
//! source leader --Fetch--> fetcher --batches--> plan --> queue --> append machine --> lane --Produce--> destination leader
//! ```
//!
//! One task per mirror owns all of its partitions. It never waits for a single broker: whatever asks somebody is a future in
//! `Mirror::asked`, and its answer comes back as an `Event`. So a broker that stands still delays its own partitions only,
//! and no lock is needed. The bytes flow in the connections' own tasks; per batch this task walks a header, computes two
//! checksums and moves a few pointers.

mod alignment;
mod appender;
mod appending;
mod budget;
mod fetching;
mod lifecycle;
mod markers;
mod partition;
mod reads;
pub(crate) mod report;
mod stopping;
mod topics;
mod watching;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use self::alignment::Alignment;
use self::appender::{LaneKey, Outcome, ProduceLane, Sent};
use self::budget::Budget;
use self::fetching::{Asked, FetcherKey, FetcherSeat};
use self::markers::Markers;
use self::partition::{Partition, PartitionKey};
use self::reads::Reads;
use crate::config;
use crate::coordinator::{Handle, Unavailable, WriteAnswer};
use crate::domain::append::{
    AppendMachine, Effect, EndRead, FillAnswer, PRODUCER_EXPIRATION, ProducerEntry, ResumeCause,
};
use crate::domain::desired::TopicSet;
use crate::domain::shard::PartitionWrite;
use crate::domain::state::DesiredState;
use crate::domain::state_log::PartitionValue;
use crate::domain::status::MirrorStatus;
use crate::domain::types::{BrokerId, ProducerId, TopicPartition};
use crate::kafka::cluster::{Cluster, Leaders};
use crate::kafka::connect::ConnectError;
use crate::kafka::connection::Connection;
use crate::kafka::contact::Contact;
use crate::kafka::fetcher::{FetchFault, FetchOutcome, Fetcher};
use crate::kafka::group::GroupHandle;
use crate::kafka::group::Membership;
use crate::metrics::Metrics;

/// How often status and gauges are renewed, and stalls looked for.
const TICK: Duration = Duration::from_millis(500);

/// News of the state topic are looked at this often at most.
const STATES_PAUSE: Duration = Duration::from_millis(20);

/// A partition that could not append for so long gives its bytes back.
const STALL: Duration = Duration::from_secs(1);

/// After a change of leaders the old one's answers are awaited so long.
const OLD_LEADER_GRACE: Duration = Duration::from_secs(2);

/// Comparisons at the same time per pair of leaders: each reads up to 1 MiB from both sides, and a broker that stands still
/// must not hold up those of others.
const COMPARED_AT_ONCE: usize = 4;

/// Answers in flight are awaited so long at a stop.
const STOP_GRACE: Duration = Duration::from_secs(8);

/// A summary in the log at most so often.
const SUMMARY_EVERY: Duration = Duration::from_secs(60);

/// What one mirror needs from the outside.
pub struct MirrorParts {
    /// Its part of the configuration.
    pub config: config::Mirror,
    /// Bytes of records that it may hold; less when there are more mirrors.
    pub memory_bytes: Arc<AtomicUsize>,
    /// Time limit of one request to either side.
    pub request_timeout: Duration,
    /// Where records come from.
    pub source: Cluster,
    /// Where they go.
    pub destination: Cluster,
    /// The source's health.
    pub source_contact: Arc<Contact>,
    /// The topics to mirror, as `sync` prepares them.
    pub topics: watch::Receiver<Arc<TopicSet>>,
    /// Asks `sync` to hold the configs of a topic.
    pub hold: mpsc::Sender<Arc<str>>,
    /// Where the partitions' status goes.
    pub status: watch::Sender<Arc<MirrorStatus>>,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// The wall clock, in milliseconds since 1970.
    pub wall_clock_ms: fn() -> i64,
    /// The states of partitions, as the state topic has them.
    pub states: Handle,
    /// Which partitions are ours.
    pub group: GroupHandle,
    /// How long a stop waits where it may not write a fence: until whoever does not hear of it has given up.
    pub unfenced_wait: Duration,
    /// Ends the mirror.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for MirrorParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MirrorParts")
            .field("name", &self.config.name)
            .finish_non_exhaustive()
    }
}

/// Runs the data path of one mirror until it is stopped; answers in flight are awaited then.
pub async fn run(parts: MirrorParts) {
    let stop = parts.stop.clone();
    let mut mirror = Mirror::new(parts);
    mirror.run(&stop).await;
}

/// An answer to something that was asked.
enum Event {
    Fetched {
        key: FetcherKey,
        fetcher: Fetcher,
        outcome: Result<FetchOutcome, FetchFault>,
        wanted: Vec<Asked>,
    },
    Produced {
        lane: LaneKey,
        outcomes: Vec<(Sent, Outcome)>,
        lost: Option<&'static str>,
    },
    Connected {
        lane: LaneKey,
        connection: Result<Connection, ConnectError>,
    },
    ProducersRead(Vec<(PartitionKey, u64, Option<Option<ProducerEntry>>)>),
    EndsRead(Vec<(PartitionKey, u64, Option<EndRead>)>),
    Filled {
        broker: BrokerId,
        answers: Vec<(PartitionKey, u64, FillAnswer)>,
    },
    Watermarks {
        broker: BrokerId,
        answers: Vec<(PartitionKey, i64)>,
    },
    Aligned {
        pair: FetcherKey,
        key: PartitionKey,
        generation: u64,
        alignment: Alignment,
    },
    Located {
        key: PartitionKey,
        generation: u64,
        ends: Option<(i64, i64)>,
    },
    Identified {
        key: PartitionKey,
        generation: u64,
        expected: i64,
        reason: String,
        producer_id: Option<ProducerId>,
    },
    Expiration(Option<Duration>),
    Saved(Vec<(PartitionKey, PartitionWrite, WriteAnswer)>),
    StateRead(PartitionKey, Result<Option<PartitionValue>, Unavailable>),
    StopTarget {
        key: PartitionKey,
        generation: u64,
        end: Option<i64>,
    },
}

/// What a timer wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alarm {
    Tick,
    Waited(PartitionKey, u64, u64),
    Retry(PartitionKey, u64),
    Undelay(PartitionKey),
    GiveUpAnswers(PartitionKey, u64),
    Fetch(FetcherKey),
    Expiration,
    States,
    Save(PartitionKey),
    Unfenced(PartitionKey, u64),
    Fence(PartitionKey),
}

struct Mirror {
    name: String,
    mirror: Arc<str>,
    parts: MirrorParts,
    partitions: HashMap<PartitionKey, Partition>,
    keys: BTreeMap<TopicPartition, PartitionKey>,
    next_key: PartitionKey,
    topics: Arc<TopicSet>,
    hold_asked: HashSet<Arc<str>>,
    asked: FuturesUnordered<BoxFuture<'static, Event>>,
    effects: VecDeque<(PartitionKey, u64, Effect)>,
    reads: Reads,
    markers: Markers,
    to_compare: BTreeMap<FetcherKey, Comparisons>,
    fetchers: BTreeMap<FetcherKey, FetcherSeat>,
    next_fetch_lane: u16,
    eager_fetchers: BTreeSet<FetcherKey>,
    lanes: HashMap<LaneKey, ProduceLane>,
    eager_lanes: BTreeSet<LaneKey>,
    budget: Budget,
    held_bytes: HeldBytes,
    asking_watermarks: HashSet<BrokerId>,
    alarms: BinaryHeap<Reverse<(Instant, Alarm)>>,
    expiration: Option<Duration>,
    /// Partitions with a state to be written.
    unsaved: BTreeSet<PartitionKey>,
    states_version: watch::Receiver<u64>,
    membership: watch::Receiver<Arc<Membership>>,
    /// A look at the state topic is due soon.
    states_alarm: bool,
    states_pause: Duration,
    /// The mirror has been deleted by an operator.
    deleted: bool,
    source_leaders: watch::Receiver<Arc<Leaders>>,
    destination_leaders: watch::Receiver<Arc<Leaders>>,
    summary_at: Instant,
    stopping: bool,
}

impl Mirror {
    fn new(parts: MirrorParts) -> Self {
        let now = Instant::now();
        Self {
            name: parts.config.name.clone(),
            mirror: parts.config.name.as_str().into(),
            unsaved: BTreeSet::new(),
            states_version: parts.states.model().watch(),
            membership: parts.group.membership(),
            states_alarm: false,
            states_pause: STATES_PAUSE,
            deleted: false,
            budget: Budget::new(Arc::clone(&parts.memory_bytes)),
            source_leaders: parts.source.watch(),
            destination_leaders: parts.destination.watch(),
            partitions: HashMap::new(),
            keys: BTreeMap::new(),
            next_key: 0,
            topics: Arc::default(),
            hold_asked: HashSet::new(),
            asked: FuturesUnordered::new(),
            effects: VecDeque::new(),
            reads: Reads::default(),
            markers: Markers::default(),
            to_compare: BTreeMap::new(),
            fetchers: BTreeMap::new(),
            next_fetch_lane: 0,
            eager_fetchers: BTreeSet::new(),
            lanes: HashMap::new(),
            eager_lanes: BTreeSet::new(),
            held_bytes: HeldBytes::default(),
            asking_watermarks: HashSet::new(),
            alarms: BinaryHeap::from([
                Reverse((now, Alarm::Tick)),
                Reverse((now, Alarm::Expiration)),
            ]),
            expiration: None,
            summary_at: now,
            stopping: false,
            parts,
        }
    }

    async fn run(&mut self, stop: &CancellationToken) {
        let mut give_up = None;
        loop {
            self.work();
            if self.stopping
                && (self.in_flight() == 0 || give_up.is_some_and(|at| at <= Instant::now()))
            {
                break;
            }
            let wake_at = self
                .alarms
                .peek()
                .map_or_else(|| Instant::now() + TICK, |Reverse((at, _))| *at);
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.stopping => {
                    self.stopping = true;
                    give_up = Some(Instant::now() + STOP_GRACE);
                }
                Some(event) = self.asked.next(), if !self.asked.is_empty() => {
                    self.hear(event);
                    // More answers may be there: one round of sending serves them all.
                    while let Some(Some(event)) = self.asked.next().now_or_never() {
                        self.hear(event);
                    }
                }
                changed = self.parts.topics.changed() => match changed {
                    Ok(()) => self.take_topics(),
                    Err(_) => self.stopping = true,
                },
                Ok(()) = self.destination_leaders.changed() => self.follow_destination_leaders(),
                Ok(()) = self.source_leaders.changed() => self.follow_source_leaders(),
                Ok(()) = self.membership.changed() => self.take_topics(),
                Ok(()) = self.states_version.changed(), if !self.states_alarm => {
                    self.states_alarm = true;
                    self.wake_in(self.states_pause, Alarm::States);
                }
                () = sleep_until(wake_at) => self.ring(),
            }
        }
        self.held_bytes.report(&self.parts.metrics, 0);
        let unanswered = self.in_flight();
        if unanswered > 0 {
            warn!(mirror = %self.name, unanswered, "stopped with unanswered appends, the next start looks at the log");
        }
    }

    /// Everything that can be done now without waiting.
    fn work(&mut self) {
        loop {
            while let Some((key, generation, effect)) = self.effects.pop_front() {
                let machine = self.partitions.get(&key).map(|p| p.generation);
                if machine == Some(generation) {
                    self.carry_out(key, effect);
                }
            }
            self.save_all();
            self.send_reads();
            self.send_markers();
            self.compare_next();
            self.append_all();
            self.fetch_all();
            // Appending finds connections that are gone, and what follows from it is more work.
            if self.effects.is_empty() {
                return;
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.lanes.values().map(|lane| lane.in_flight).sum()
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Fetched {
                key,
                fetcher,
                outcome,
                wanted,
            } => self.fetched(key, fetcher, outcome, &wanted),
            Event::Produced {
                lane,
                outcomes,
                lost,
            } => self.produced(lane, outcomes, lost),
            Event::Connected { lane, connection } => self.connected(lane, connection),
            Event::ProducersRead(answers) => {
                for (key, generation, entry) in answers {
                    self.tell(key, generation, |machine| match entry {
                        Some(entry) => machine.producer_read(entry),
                        None => machine.read_failed(),
                    });
                }
            }
            Event::EndsRead(answers) => {
                for (key, generation, end) in answers {
                    if let (Some(end), Some(partition)) = (end, self.partitions.get_mut(&key)) {
                        partition.destination_high_watermark = end.high_watermark;
                        self.fence_replicated(key);
                    }
                    self.tell(key, generation, |machine| match end {
                        Some(end) => machine.end_read(end),
                        None => machine.read_failed(),
                    });
                }
            }
            Event::Filled { broker, answers } => {
                self.markers.answered(broker);
                for (key, generation, answer) in answers {
                    self.tell(key, generation, |machine| machine.filled(answer));
                }
            }
            Event::Watermarks { broker, answers } => {
                self.asking_watermarks.remove(&broker);
                for (key, high_watermark) in answers {
                    if let Some(partition) = self.partitions.get_mut(&key) {
                        partition.destination_high_watermark = high_watermark;
                        self.fence_replicated(key);
                    }
                }
            }
            Event::Aligned {
                pair,
                key,
                generation,
                alignment,
            } => self.aligned(pair, key, generation, alignment),
            Event::Located {
                key,
                generation,
                ends,
            } => self.located(key, generation, ends),
            Event::Identified {
                key,
                generation,
                expected,
                reason,
                producer_id,
            } => {
                self.identified(key, generation, expected, reason, producer_id);
            }
            Event::Saved(answers) => {
                for (key, write, answer) in answers {
                    self.saved(key, write, answer);
                }
            }
            Event::StateRead(key, found) => self.state_read(key, found),
            Event::StopTarget {
                key,
                generation,
                end,
            } => self.stop_target(key, generation, end),
            Event::Expiration(found) => {
                if self.expiration.is_none() {
                    self.expiration = Some(found.unwrap_or(PRODUCER_EXPIRATION));
                    self.look_at_states();
                }
            }
        }
    }

    /// Tells a partition's machine something and notes what it wants next. Nothing if the machine is another by now.
    fn tell(
        &mut self,
        key: PartitionKey,
        generation: u64,
        event: impl FnOnce(&mut AppendMachine) -> Effect,
    ) {
        if let Some(partition) = self
            .partitions
            .get_mut(&key)
            .filter(|p| p.generation == generation)
        {
            let effect = event(&mut partition.machine);
            if effect != Effect::None {
                self.effects.push_back((key, generation, effect));
            }
        }
    }

    fn wake_in(&mut self, pause: Duration, alarm: Alarm) {
        self.alarms.push(Reverse((Instant::now() + pause, alarm)));
    }

    fn ring(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, alarm))) = self.alarms.peek().copied() {
            if at > now {
                break;
            }
            self.alarms.pop();
            match alarm {
                Alarm::Tick => {
                    self.wake_in(TICK, Alarm::Tick);
                    self.tick(now);
                }
                Alarm::Waited(key, generation, id) => {
                    self.tell(key, generation, |machine| machine.waited(id));
                }
                Alarm::Retry(key, generation) => {
                    let still = self.partitions.get(&key).is_some_and(|partition| {
                        partition.generation == generation
                            && partition.failure.is_some()
                            && partition.desired == DesiredState::Mirroring
                    });
                    if still {
                        self.start(key);
                    }
                }
                Alarm::Undelay(key) => {
                    if let Some(partition) = self.partitions.get_mut(&key) {
                        partition.delayed_until = None;
                    }
                    self.want_fetch(key);
                }
                Alarm::GiveUpAnswers(key, round) => self.give_up_answers(key, round),
                Alarm::Fetch(key) => {
                    self.eager_fetchers.insert(key);
                }
                Alarm::Expiration => self.ask_expiration(),
                Alarm::States => {
                    self.states_alarm = false;
                    let begun = Instant::now();
                    self.look_at_states();
                    // With very many partitions a look takes a while, and must not be all that is done.
                    self.states_pause = STATES_PAUSE.max(begun.elapsed() * 10);
                }
                Alarm::Save(key) => {
                    self.unsaved.insert(key);
                }
                Alarm::Unfenced(key, generation) => self.waited_unfenced(key, generation),
                Alarm::Fence(key) => self.fence_again(key),
            }
        }
    }

    /// How long the destination remembers producers, asked until somebody answers.
    fn ask_expiration(&mut self) {
        if self.expiration.is_some() {
            return;
        }
        let cluster = self.parts.destination.clone();
        let timeout = self.parts.request_timeout;
        self.asked.push(
            async move { Event::Expiration(reads::producer_expiration(&cluster, timeout).await) }
                .boxed(),
        );
    }
}

/// Comparisons between one pair of leaders.
#[derive(Debug, Default)]
struct Comparisons {
    waiting: VecDeque<(PartitionKey, u64, i64)>,
    running: usize,
}

/// This mirror's part of a gauge that all mirrors of the process share.
#[derive(Debug, Default)]
struct HeldBytes(i64);

impl HeldBytes {
    fn report(&mut self, metrics: &Metrics, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        metrics.memory_held_bytes.add(bytes.saturating_sub(self.0));
        self.0 = bytes;
    }
}

/// The cause of a resume as a metric's label.
fn cause_label(cause: ResumeCause) -> &'static str {
    match cause {
        ResumeCause::Started => "started",
        ResumeCause::Repeated => "repeated",
        ResumeCause::Transient(_) => "error_code",
        ResumeCause::Lost => "lost",
        ResumeCause::LeaderMoved => "leader_moved",
        ResumeCause::FillDoubt => "fill",
    }
}

/// The brokers that lead any of these partitions.
fn leaders_of<'a>(
    cluster: &Cluster,
    names: impl Iterator<Item = &'a TopicPartition>,
) -> BTreeSet<BrokerId> {
    let leaders = cluster.leaders();
    names
        .filter_map(|name| leaders.leader(name))
        .map(|(broker, _)| broker)
        .collect()
}
