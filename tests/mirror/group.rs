//! Members of the group against real Kafka: who gets what, who gets it next, and that nobody ever has the same. Must not
//! know how a member works: it sees what those see who do the work.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::support::kafka::{ClusterOptions as KafkaOptions, KafkaCluster, unique};
use crate::support::proxy::Mode;
use crate::support::status::scaled;
use crate::support::{client, poll_until};
use kafka_protocol::messages::FindCoordinatorRequest;
use kafka_protocol::protocol::StrBytes;
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use truemirror::domain::assign::{STATE_TOPIC, Work};
use truemirror::domain::types::{BrokerId, TopicPartition};
use truemirror::kafka::cluster::{Cluster, ClusterOptions, Side};
use truemirror::kafka::group::{
    GroupError, GroupHandle, GroupMember, GroupOptions, Identity, Membership, Wanted,
};

const SOON: Duration = Duration::from_secs(60);

/// One cluster for all tests: they use groups of their own. Members that are to be frozen go through its proxy, all others
/// beside it.
struct Shared {
    kafka: KafkaCluster,
    /// Whoever stops brokers has it alone.
    turn: RwLock<()>,
}

async fn shared() -> &'static Shared {
    static SHARED: OnceLock<Shared> = OnceLock::new();
    let start = || {
        // A runtime of its own: the one of the test that comes first ends with that test.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let options = KafkaOptions::three_brokers("group")
            .proxied()
            .with("offsets.topic.replication.factor", "3");
        Shared {
            kafka: runtime.block_on(KafkaCluster::start(options)),
            turn: RwLock::new(()),
        }
    };
    tokio::task::spawn_blocking(move || SHARED.get_or_init(start))
        .await
        .expect("the cluster starts")
}

/// Who works on what, as those who work see it.
#[derive(Default)]
struct Ledger {
    owners: HashMap<TopicPartition, (usize, GroupHandle)>,
    /// Partitions that two had at the same time and could both decide about.
    faults: Vec<String>,
    /// What was taken from whom, by the sidecar's id.
    losses: Vec<(String, TopicPartition)>,
    /// Since when something has been nobody's because it was given up, and the longest that anything was.
    given_up: HashMap<TopicPartition, Instant>,
    longest_pause: Duration,
}

/// One process that takes part.
struct Sidecar {
    id: String,
    handle: GroupHandle,
    stop: CancellationToken,
    member: JoinSet<Result<(), GroupError>>,
    worker: JoinSet<()>,
}

impl Sidecar {
    fn now(&self) -> Arc<Membership> {
        Arc::clone(&self.handle.membership().borrow())
    }

    fn work(&self) -> BTreeSet<TopicPartition> {
        held(&self.now())
    }

    /// As a power cut would: whatever it was doing, it does no more.
    async fn kill(mut self) {
        self.member.shutdown().await;
        self.worker.shutdown().await;
    }

    /// An ordinary stop.
    async fn stop(mut self) -> Result<(), GroupError> {
        self.stop.cancel();
        let ended = self.member.join_next().await.unwrap().unwrap();
        self.worker.shutdown().await;
        ended
    }

    async fn leave(self) {
        self.handle.leave_on_stop();
        self.stop().await.unwrap();
    }
}

fn held(membership: &Membership) -> BTreeSet<TopicPartition> {
    let state = membership
        .state
        .iter()
        .map(|p| TopicPartition::new(STATE_TOPIC, *p));
    membership.mirror.iter().cloned().chain(state).collect()
}

/// A group and the work that there is for it.
struct Fleet {
    kafka: &'static KafkaCluster,
    group: String,
    session: Duration,
    /// Giving something up takes up to so long.
    slowness: Duration,
    /// What has not been given up by then is taken.
    give_up_timeout: Duration,
    /// How often the sidecar of an id has moved to another address.
    moved: BTreeMap<String, u16>,
    wanted: watch::Sender<Wanted>,
    ledger: Arc<Mutex<Ledger>>,
    started: usize,
}

impl Fleet {
    fn new(kafka: &'static KafkaCluster, name: &str, session: Duration) -> Self {
        Self {
            kafka,
            group: unique(name),
            session,
            slowness: Duration::ZERO,
            give_up_timeout: Duration::from_secs(5),
            moved: BTreeMap::new(),
            wanted: watch::Sender::new(None),
            ledger: Arc::default(),
            started: 0,
        }
    }

    fn start(&mut self, id: &str, broker: Option<i32>) -> Sidecar {
        self.start_at(id, broker, &self.kafka.direct_bootstrap())
    }

    fn start_at(&mut self, id: &str, broker: Option<i32>, bootstrap: &str) -> Sidecar {
        self.started += 1;
        let servers = bootstrap.split(',').map(str::to_owned).collect();
        let mut cluster_options = ClusterOptions::new(Side::Destination, servers);
        cluster_options.request_timeout = Duration::from_secs(5);
        let cluster = Cluster::new(cluster_options).unwrap();
        let identity = Identity {
            sidecar_id: id.into(),
            broker_id: broker.map(BrokerId),
            advertised: self.address(id).parse().unwrap(),
            version: "test".into(),
            config_fingerprint: u64::MAX - 7,
        };
        let mut options = GroupOptions::new(&self.group, identity);
        options.session_timeout = self.session;
        options.give_up_timeout = self.give_up_timeout;
        let (member, handle) = GroupMember::new(cluster, options, self.wanted.subscribe());
        let stop = CancellationToken::new();
        let mut members = JoinSet::new();
        let stopped = stop.clone();
        members.spawn(async move { member.run(&stopped).await });
        let mut worker = JoinSet::new();
        worker.spawn(work(
            self.started,
            id.to_owned(),
            handle.clone(),
            Arc::clone(&self.ledger),
            self.slowness,
        ));
        Sidecar {
            id: id.into(),
            handle,
            stop,
            member: members,
            worker,
        }
    }

    /// Where the sidecar of an id is known to listen.
    fn address(&self, id: &str) -> String {
        format!("{id}.example:{}", 9001 + self.moved.get(id).unwrap_or(&0))
    }

    /// From its next start on the sidecar listens somewhere else.
    fn relocate(&mut self, id: &str) {
        *self.moved.entry(id.to_owned()).or_default() += 1;
    }

    fn want(&self, work: Vec<Work>) {
        self.wanted.send_replace(Some(work.into()));
    }

    fn all(&self) -> BTreeSet<TopicPartition> {
        let wanted = self.wanted.borrow();
        let work = wanted.iter().flat_map(|work| work.iter());
        work.map(|work| work.partition.clone()).collect()
    }

    /// Waits until all work is done by these, as `right` wants it.
    async fn settled<F>(&self, what: &str, sidecars: &[&Sidecar], right: F) -> Duration
    where
        F: Fn() -> Result<(), String>,
    {
        let begin = Instant::now();
        poll_until(what, SOON, async || {
            let mut all = BTreeSet::new();
            for sidecar in sidecars {
                let now = sidecar.now();
                if !now.revoking.is_empty() {
                    return Err(format!("{} gives up {:?}", sidecar.id, now.revoking));
                }
                all.extend(held(&now));
            }
            if all != self.all() {
                return Err(format!("{} of {} are held", all.len(), self.all().len()));
            }
            right()
        })
        .await;
        self.no_faults();
        begin.elapsed()
    }

    fn no_faults(&self) {
        let ledger = self.ledger.lock().unwrap();
        assert!(ledger.faults.is_empty(), "{:#?}", ledger.faults);
    }

    /// The longest that anything was nobody's between being given up and being taken over, since the last question.
    fn longest_pause(&self) -> Duration {
        std::mem::take(&mut self.ledger.lock().unwrap().longest_pause)
    }

    fn losses(&self) -> Vec<(String, TopicPartition)> {
        std::mem::take(&mut self.ledger.lock().unwrap().losses)
    }
}

/// Does what the group wants, in the order in which a careful worker does it, and keeps the ledger.
async fn work(
    process: usize,
    id: String,
    handle: GroupHandle,
    ledger: Arc<Mutex<Ledger>>,
    slowness: Duration,
) {
    let mut membership = handle.membership();
    let mut mine = BTreeSet::new();
    loop {
        let now = Arc::clone(&membership.borrow_and_update());
        let wanted = held(&now);
        {
            let mut ledger = ledger.lock().unwrap();
            for lost in mine.difference(&wanted) {
                if !now.revoking.contains(lost) {
                    ledger.losses.push((id.clone(), lost.clone()));
                }
            }
            for new in wanted.difference(&mine) {
                let before = ledger.owners.insert(new.clone(), (process, handle.clone()));
                if let Some(since) = ledger.given_up.remove(new) {
                    ledger.longest_pause = ledger.longest_pause.max(since.elapsed());
                }
                if let Some((other, theirs)) = before
                    && other != process
                    && theirs.may_decide(new)
                {
                    let fault = format!("{new} is with process {other} and {id} ({process})");
                    ledger.faults.push(fault);
                }
            }
        }
        if !now.revoking.is_empty() {
            tokio::time::sleep(slowness.mul_f64(rand::random())).await;
            let mut ledger = ledger.lock().unwrap();
            for tp in &now.revoking {
                if ledger
                    .owners
                    .get(tp)
                    .is_some_and(|(owner, _)| *owner == process)
                {
                    ledger.owners.remove(tp);
                    ledger.given_up.insert(tp.clone(), Instant::now());
                    ledger.losses.push((id.clone(), tp.clone()));
                }
            }
            drop(ledger);
            handle.given_up(now.round, &now.revoking);
        }
        mine = wanted;
        if membership.changed().await.is_err() {
            return;
        }
    }
}

/// Partitions of topics that need not exist, and of the state topic.
fn pieces(mirror: i32, state: i32) -> Vec<Work> {
    let piece = |topic: &str, partition| Work {
        partition: TopicPartition::new(topic, partition),
        leader: None,
    };
    let mirror = (0..mirror).map(|n| piece(["orders", "payments"][n as usize % 2], n / 2));
    let state = (0..state).map(|n| piece(STATE_TOPIC, n));
    mirror.chain(state).collect()
}

fn sizes(sidecars: &[&Sidecar]) -> Vec<(usize, usize)> {
    let sizes = |s: &&Sidecar| (s.now().mirror.len(), s.now().state.len());
    let mut sizes: Vec<_> = sidecars.iter().map(sizes).collect();
    sizes.sort_unstable();
    sizes
}

#[tokio::test(flavor = "multi_thread")]
async fn one_gets_everything_two_share_evenly_and_who_leaves_hands_over() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let mut fleet = Fleet::new(&shared.kafka, "even", Duration::from_secs(6));
    fleet.want(pieces(12, 5));
    let first = fleet.start("first", None);
    let took = fleet.settled("one has all", &[&first], || Ok(())).await;
    eprintln!("one member has all after {took:?}");
    assert!(first.handle.may_decide(&TopicPartition::new("orders", 0)));
    assert!(
        first
            .handle
            .may_decide(&TopicPartition::new(STATE_TOPIC, 4))
    );
    assert!(!first.handle.may_decide(&TopicPartition::new("orders", 77)));
    let second = fleet.start("second", None);
    let both = [&first, &second];
    let even = || match sizes(&both)[..] {
        [(6, 2), (6, 3)] => Ok(()),
        ref other => Err(format!("{other:?}")),
    };
    let took = fleet.settled("two share", &both, even).await;
    eprintln!(
        "two share evenly after {took:?}, what moved was nobody's for {:?}",
        fleet.longest_pause()
    );
    for sidecar in both {
        let now = sidecar.now();
        let ids: Vec<_> = now.members.iter().map(|m| &*m.sidecar_id).collect();
        assert_eq!(ids, ["first", "second"]);
        assert_eq!(now.members[1].advertised.to_string(), "second.example:9001");
        assert_eq!(now.members[0].config_fingerprint, u64::MAX - 7);
    }
    // What comes and goes of the work is followed as well.
    fleet.want(pieces(20, 5));
    fleet.settled("more work", &both, || Ok(())).await;
    fleet.want(pieces(8, 5));
    fleet.settled("less work", &both, || Ok(())).await;
    fleet.losses();
    let begin = Instant::now();
    second.leave().await;
    fleet
        .settled("the other has all", &[&first], || Ok(()))
        .await;
    eprintln!("one that leaves is replaced after {:?}", begin.elapsed());
    assert!(
        begin.elapsed() < fleet.session,
        "nobody waits for the session"
    );
    assert!(fleet.losses().iter().all(|(id, _)| id == "second"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_given_up_in_time_goes_all_the_same_and_is_nobodys_before() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let mut fleet = Fleet::new(&shared.kafka, "stuck", Duration::from_secs(3));
    fleet.slowness = Duration::from_secs(3600);
    fleet.give_up_timeout = Duration::from_secs(4);
    fleet.want(pieces(8, 4));
    let stuck = fleet.start("stuck", None);
    fleet.settled("one has all", &[&stuck], || Ok(())).await;
    let other = fleet.start("other", None);
    poll_until("half of it is to be given up", SOON, async || {
        let revoking = stuck.now().revoking.len();
        (revoking == 6)
            .then_some(())
            .ok_or_else(|| format!("{revoking}"))
    })
    .await;
    let begin = Instant::now();
    let took = fleet
        .settled("two share", &[&stuck, &other], || {
            let sizes = sizes(&[&stuck, &other]);
            (sizes == [(4, 2), (4, 2)])
                .then_some(())
                .ok_or_else(|| format!("{sizes:?}"))
        })
        .await;
    eprintln!(
        "what is not given up within {:?} is another's after {took:?}",
        fleet.give_up_timeout
    );
    assert!(begin.elapsed() > fleet.give_up_timeout - Duration::from_millis(200));
    for tp in other.work() {
        assert!(!stuck.handle.may_decide(&tp) && other.handle.may_decide(&tp));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tens_of_thousands_of_partitions_go_through_one_group() {
    let per_topic = scaled(20, 100);
    let all: usize = 500 * usize::try_from(per_topic).unwrap();
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let mut fleet = Fleet::new(&shared.kafka, "large", Duration::from_secs(15));
    let topics = (0..500).map(|n| format!("a-topic-with-a-name-of-usual-length-{n}"));
    let piece = |topic: &str, number| Work {
        partition: TopicPartition::new(topic, number),
        leader: None,
    };
    fleet.want(
        topics
            .flat_map(|topic| (0..per_topic).map(move |n| piece(&topic, n)))
            .collect(),
    );
    let first = fleet.start("first", None);
    let took = fleet.settled("one has all", &[&first], || Ok(())).await;
    eprintln!("{all} partitions are one member's after {took:?}");
    let second = fleet.start("second", None);
    let both = [&first, &second];
    let even = || match sizes(&both)[..] {
        [(one, 0), (other, 0)] if one == all / 2 && other == all / 2 => Ok(()),
        ref other => Err(format!("{other:?}")),
    };
    let took = fleet.settled("two share", &both, even).await;
    let pause = fleet.longest_pause();
    eprintln!("two share {all} partitions after {took:?}, what moved was nobody's for {pause:?}");
}

/// Tells the group of the leaders that the cluster's metadata shows.
async fn follow_leaders(kafka: &KafkaCluster, topics: &[&str], wanted: watch::Sender<Wanted>) {
    let servers = kafka.direct_bootstrap();
    let servers = servers.split(',').map(str::to_owned).collect();
    let mut options = ClusterOptions::new(Side::Destination, servers);
    options.metadata_max_age = Duration::from_millis(300);
    let cluster = Cluster::new(options).unwrap();
    cluster.set_topics(topics.iter().map(|topic| Arc::from(*topic)));
    let mut leaders = cluster.watch();
    loop {
        let work: Vec<Work> = leaders
            .borrow_and_update()
            .topics
            .iter()
            .flat_map(|(topic, metadata)| {
                metadata.partitions.iter().map(|(number, partition)| Work {
                    partition: TopicPartition::new(topic, *number),
                    leader: partition.leader,
                })
            })
            .collect();
        if !work.is_empty() {
            wanted.send_replace(Some(work.into()));
        }
        leaders.changed().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn those_beside_brokers_get_what_these_lead_follow_a_move_and_kafkas_tool_shows_it() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let kafka = &shared.kafka;
    let topic = unique("led");
    kafka.create_topic(&topic, 9, 2, &[]).await;
    kafka.create_topic(STATE_TOPIC, 6, 1, &[]).await;
    let mut fleet = Fleet::new(kafka, "beside", Duration::from_secs(6));
    let mut following = JoinSet::new();
    let (names, wanted) = (topic.clone(), fleet.wanted.clone());
    following.spawn(async move { follow_leaders(kafka, &[&names, STATE_TOPIC], wanted).await });
    let sidecars = [1, 2, 3].map(|id| fleet.start(&format!("beside-{id}"), Some(id)));
    let all: Vec<_> = sidecars.iter().collect();
    let led = async || -> BTreeMap<TopicPartition, i32> {
        let mut led = BTreeMap::new();
        for topic in [&*topic, STATE_TOPIC] {
            for (number, partition) in kafka.partitions(topic).await.unwrap() {
                led.insert(
                    TopicPartition::new(topic, number),
                    partition.leader.unwrap(),
                );
            }
        }
        led
    };
    let beside = |led: BTreeMap<TopicPartition, i32>| {
        for (sidecar, broker) in sidecars.iter().zip(1..) {
            let leads = led.iter().filter(|(_, leader)| **leader == broker);
            let leads: BTreeSet<_> = leads.map(|(tp, _)| tp.clone()).collect();
            if sidecar.work() != leads {
                return Err(format!("{} has {:?}", sidecar.id, sidecar.work()));
            }
        }
        Ok(())
    };
    let before = led().await;
    let took = fleet
        .settled("beside their leaders", &all, || beside(before.clone()))
        .await;
    eprintln!("three members have what their brokers lead after {took:?}");
    fleet.losses();

    for moved in 0..scaled(2, 10) {
        let tp = TopicPartition::new(&topic, moved % 9);
        let to = led().await[&tp] % 3 + 1;
        kafka.move_leader(&topic, tp.partition, to).await;
        let now = led().await;
        assert_eq!(now[&tp], to);
        let took = fleet
            .settled("the move is followed", &all, || beside(now.clone()))
            .await;
        eprintln!(
            "a move of {tp} to broker {to} is followed {took:?} after it was seen everywhere, nobody's for {:?}",
            fleet.longest_pause()
        );
        assert!(took < Duration::from_secs(15), "{took:?}");
        let losses = fleet.losses();
        assert!(
            losses.iter().all(|(_, lost)| *lost == tp),
            "only {tp} moves: {losses:?}"
        );
    }

    let shown = kafka
        .tool(
            "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
            &[
                "--bootstrap-server",
                &kafka.direct_bootstrap(),
                "--describe",
                "--group",
                &fleet.group,
            ],
        )
        .await;
    eprintln!("{shown}");
    for sidecar in &sidecars {
        for tp in sidecar.work() {
            let rows = shown.lines().filter(|line| {
                let cells: Vec<_> = line.split_whitespace().collect();
                cells.get(1) == Some(&&*tp.topic)
                    && cells.get(2) == Some(&&*tp.partition.to_string())
                    && cells.get(6).is_some_and(|id| id.starts_with(&sidecar.id))
            });
            assert_eq!(rows.count(), 1, "{tp} of {}", sidecar.id);
        }
    }
}

/// Looks again and again whether these may decide; how often they could not.
async fn watch_rights(handles: Vec<GroupHandle>) -> usize {
    let mut without = 0;
    let end = Instant::now() + Duration::from_secs(3600);
    while Instant::now() < end {
        without += handles.iter().filter(|h| !h.lease().may_decide()).count();
        if without > 0 {
            return without;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    without
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_one_is_replaced_after_its_session_and_a_restarted_one_never_misses_its_work() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let mut fleet = Fleet::new(&shared.kafka, "restart", Duration::from_secs(6));
    fleet.want(pieces(12, 6));
    let mut sidecars: BTreeMap<&str, Sidecar> = BTreeMap::new();
    for id in ["a", "b", "c"] {
        sidecars.insert(id, fleet.start(id, None));
    }
    let even = |sidecars: &[&Sidecar]| match sizes(sidecars)[..] {
        [(4, 2), (4, 2), (4, 2)] => Ok(()),
        ref other => Err(format!("{other:?}")),
    };
    let all: Vec<_> = sidecars.values().collect();
    fleet.settled("three share", &all, || even(&all)).await;

    // Each in turn, so that the leader is among them.
    for round in 0..scaled(1, 5) {
        for id in ["a", "b", "c"] {
            let old = sidecars.remove(id).unwrap();
            let (had, now) = (old.work(), old.now());
            let (generation, leads) = (now.generation, now.leads);
            let others: Vec<_> = sidecars.values().map(|s| s.handle.clone()).collect();
            fleet.losses();
            let mut rights = JoinSet::new();
            rights.spawn(watch_rights(others));
            if round % 2 == 0 {
                old.kill().await;
            } else {
                old.stop().await.unwrap();
            }
            let begin = Instant::now();
            let new = fleet.start(id, None);
            poll_until("the work is back", SOON, async || {
                let back = new.work() == had && new.handle.lease().may_decide();
                back.then_some(()).ok_or_else(|| format!("{:?}", new.now()))
            })
            .await;
            let took = begin.elapsed();
            eprintln!("restart of {id} (leads: {leads}): work back after {took:?}");
            assert!(took < Duration::from_secs(3), "{took:?}");
            // Two heartbeats later nothing has come of it: there was no rebalance.
            let first = new.handle.lease().last_contact().unwrap();
            poll_until("two heartbeats", SOON, async || {
                let contact = new.handle.lease().last_contact().unwrap();
                (contact > first + fleet.session / 2)
                    .then_some(())
                    .ok_or_else(|| format!("{contact:?}"))
            })
            .await;
            sidecars.insert(id, new);
            for sidecar in sidecars.values() {
                assert_eq!(sidecar.now().generation, generation, "{}", sidecar.id);
            }
            assert_eq!(
                sidecars[id].now().leads,
                leads,
                "the leader stays the leader"
            );
            assert!(
                rights.try_join_next().is_none(),
                "the others could always decide"
            );
            assert_eq!(fleet.losses(), [], "nobody lost anything");
        }

        // One that comes back under another address is heard of, and nothing is touched by that either.
        let id = ["a", "b", "c"][round % 3];
        fleet.relocate(id);
        sidecars.remove(id).unwrap().kill().await;
        sidecars.insert(id, fleet.start(id, None));
        let all: Vec<_> = sidecars.values().collect();
        let address = fleet.address(id);
        let took = fleet
            .settled("the new address is known", &all, || {
                for sidecar in &all {
                    let known = sidecar.now();
                    let known = known.members.iter().find(|m| &*m.sidecar_id == id);
                    if known.is_none_or(|m| m.advertised.to_string() != address) {
                        return Err(format!("{}: {known:?}", sidecar.id));
                    }
                }
                even(&all)
            })
            .await;
        eprintln!("the new address of {id} is known after {took:?}");
        assert_eq!(fleet.losses(), [], "nobody lost anything");
    }

    // A leader that was restarted still follows the work.
    fleet.want(pieces(15, 6));
    let all: Vec<_> = sidecars.values().collect();
    fleet.settled("more work", &all, || Ok(())).await;

    let dead = sidecars.remove("b").unwrap();
    let had = dead.work();
    fleet.losses();
    dead.kill().await;
    let begin = Instant::now();
    let left: Vec<_> = sidecars.values().collect();
    fleet
        .settled("the dead one is replaced", &left, || Ok(()))
        .await;
    let took = begin.elapsed();
    eprintln!(
        "a dead member's {} partitions are taken over after {took:?}, session {:?}",
        had.len(),
        fleet.session
    );
    // From its last heartbeat, which was at most a third of the session before its death.
    assert!(
        took > fleet.session * 2 / 3 - Duration::from_millis(200),
        "{took:?}"
    );
    assert!(took < fleet.session * 3, "{took:?}");
    assert_eq!(fleet.losses(), [], "the others kept what they had");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_frozen_may_not_decide_any_more_before_another_has_its_work() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let kafka = &shared.kafka;
    let mut fleet = Fleet::new(kafka, "frozen", Duration::from_secs(6));
    fleet.want(pieces(8, 4));
    let frozen = fleet.start_at("frozen", None, &kafka.bootstrap());
    fleet.settled("one has all", &[&frozen], || Ok(())).await;
    let other = fleet.start("other", None);
    let both = [&frozen, &other];
    let even = || match sizes(&both)[..] {
        [(4, 2), (4, 2)] => Ok(()),
        ref sizes => Err(format!("{sizes:?}")),
    };
    for _ in 0..scaled(1, 5) {
        fleet.settled("two share", &both, even).await;
        fleet.losses();
        let mine = frozen.work();
        let lease = frozen.handle.lease();
        assert!(lease.may_decide() && lease.limit() == fleet.session * 2 / 3);
        kafka.proxy().set_mode_of_all(Mode::Mute);
        let begin = Instant::now();
        poll_until("the right runs out", SOON, async || {
            let open = lease.may_decide();
            (!open)
                .then_some(())
                .ok_or_else(|| format!("{:?} left", lease.remaining()))
        })
        .await;
        let ran_out = begin.elapsed();
        assert!(
            ran_out <= lease.limit() + Duration::from_millis(500),
            "{ran_out:?}"
        );
        assert_eq!(
            other.work().intersection(&mine).count(),
            0,
            "nobody was hasty"
        );
        assert_eq!(frozen.work(), mine, "copying goes on");
        poll_until("the other takes over", SOON, async || {
            (other.work() == fleet.all())
                .then_some(())
                .ok_or_else(|| format!("{:?}", other.now()))
        })
        .await;
        let taken = begin.elapsed();
        eprintln!(
            "frozen: the right ran out after {ran_out:?}, the work was taken over after {taken:?}"
        );
        assert!(taken > ran_out);
        assert!(!lease.may_decide());
        kafka.proxy().set_mode_of_all(Mode::Pass);
        // It comes back as one that missed something: it drops what is another's at once, and then gets its share.
        let took = fleet
            .settled("two share again", &both, || {
                let open = lease.may_decide();
                open.then_some(()).ok_or_else(|| format!("{lease:?}"))?;
                even()
            })
            .await;
        eprintln!("thawed: shares again after {took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_with_one_id_the_first_ends_with_words_that_name_it() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let mut fleet = Fleet::new(&shared.kafka, "twice", Duration::from_secs(6));
    fleet.want(pieces(4, 2));
    let mut first = fleet.start("twin", None);
    fleet.settled("one has all", &[&first], || Ok(())).await;
    let second = fleet.start("twin", None);
    let ended = first.member.join_next().await.unwrap().unwrap();
    let error = ended.unwrap_err();
    assert!(matches!(error, GroupError::Fenced { .. }), "{error:?}");
    let words = error.to_string();
    assert!(
        words.contains("\"twin\"") && words.contains("another sidecar id"),
        "{words}"
    );
    assert!(!first.handle.lease().may_decide());
    assert!(first.work().is_empty() && first.now().revoking.is_empty());
    poll_until("the second has all", SOON, async || {
        (second.work() == fleet.all())
            .then_some(())
            .ok_or_else(|| format!("{:?}", second.now()))
    })
    .await;
    // A session that no broker allows is said, not tried for ever.
    let mut hopeless = Fleet::new(&shared.kafka, "hopeless", Duration::from_millis(200));
    let mut member = hopeless.start("impatient", None);
    let error = member
        .member
        .join_next()
        .await
        .unwrap()
        .unwrap()
        .unwrap_err();
    assert!(
        error.to_string().contains("group.min.session.timeout.ms"),
        "{error}"
    );
}

/// The broker that coordinates the group.
async fn coordinator_of(kafka: &KafkaCluster, group: &str) -> i32 {
    let request = FindCoordinatorRequest::default()
        .with_key_type(0)
        .with_coordinator_keys(vec![StrBytes::from_string(group.into())]);
    poll_until("a coordinator", SOON, async || {
        let id = kafka
            .broker_ids()
            .into_iter()
            .find(|id| kafka.pid(*id).is_some());
        let address = kafka.internal_address(id.unwrap());
        let answer = client::call(address, 4, &request, Duration::from_secs(5)).await?;
        let found = &answer.coordinators[0];
        match found.error_code {
            0 => Ok(found.node_id.0),
            code => Err(format!("error {code}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_group_outlives_its_coordinator() {
    let shared = shared().await;
    let _turn = shared.turn.write().await;
    let kafka = &shared.kafka;
    let mut fleet = Fleet::new(kafka, "orphans", Duration::from_secs(10));
    fleet.want(pieces(8, 4));
    let a = fleet.start("a", None);
    let b = fleet.start("b", None);
    let even = |sidecars: &[&Sidecar]| match sizes(sidecars)[..] {
        [(4, 2), (4, 2)] => Ok(()),
        ref other => Err(format!("{other:?}")),
    };
    fleet
        .settled("two share", &[&a, &b], || even(&[&a, &b]))
        .await;
    kafka.wait_in_sync("__consumer_offsets").await;
    fleet.losses();
    for orderly in [true, false] {
        let coordinator = coordinator_of(kafka, &fleet.group).await;
        let generation = a.now().generation;
        let begin = Instant::now();
        if orderly {
            kafka.stop(coordinator).await;
        } else {
            kafka.kill(coordinator);
        }
        let gone = a.handle.lease().last_contact().unwrap();
        poll_until("contact with the next coordinator", SOON, async || {
            for sidecar in [&a, &b] {
                let contact = sidecar.handle.lease().last_contact().unwrap();
                if contact <= gone + Duration::from_secs(1) || !sidecar.handle.lease().may_decide()
                {
                    return Err(format!("{}: {contact:?}, {gone:?}", sidecar.id));
                }
            }
            Ok(())
        })
        .await;
        let next = coordinator_of(kafka, &fleet.group).await;
        eprintln!(
            "coordinator {coordinator} gone (orderly: {orderly}), {next} has the group after {:?}; generation {generation} -> {}",
            begin.elapsed(),
            a.now().generation
        );
        fleet
            .settled("two share still", &[&a, &b], || even(&[&a, &b]))
            .await;
        assert_eq!(fleet.losses(), [], "nobody lost anything");
        kafka.start_again(coordinator);
        kafka.wait_ready().await;
        kafka.wait_in_sync("__consumer_offsets").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_ever_has_what_another_has_whoever_comes_goes_dies_and_comes_back() {
    let shared = shared().await;
    let _turn = shared.turn.read().await;
    let seed: u64 = std::env::var("TRUEMIRROR_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    eprintln!("TRUEMIRROR_TEST_SEED={seed}");
    let mut bits = seed | 1;
    let mut roll = move |sides: usize| {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        (bits >> 33) as usize % sides
    };
    let mut fleet = Fleet::new(&shared.kafka, "storm", Duration::from_secs(3));
    fleet.slowness = Duration::from_millis(300);
    let mut work = pieces(30, 10);
    fleet.want(work.clone());
    let ids = ["a", "b", "c", "d"];
    let mut running: BTreeMap<&str, Sidecar> = BTreeMap::new();
    let begin = Instant::now();
    let steps = scaled(12, 100);
    for step in 0..steps {
        let id = ids[roll(ids.len())];
        if roll(4) == 0 {
            fleet.relocate(id);
        }
        let what = match (running.remove(id), roll(6)) {
            (None, _) => {
                running.insert(id, fleet.start(id, Some(1 + roll(3) as i32)));
                "starts"
            }
            (Some(old), 0) => {
                old.kill().await;
                "dies"
            }
            (Some(old), 1) => {
                old.leave().await;
                "leaves"
            }
            (Some(old), 2) => {
                old.kill().await;
                running.insert(id, fleet.start(id, Some(1 + roll(3) as i32)));
                "dies and comes back"
            }
            (Some(old), 3) => {
                old.stop().await.unwrap();
                running.insert(id, fleet.start(id, None));
                "is restarted"
            }
            (Some(old), _) => {
                running.insert(id, old);
                for _ in 0..5 {
                    let at = roll(work.len());
                    work[at].leader = [None, Some(1), Some(2), Some(3)][roll(4)].map(BrokerId);
                }
                fleet.want(work.clone());
                "sees leaders move"
            }
        };
        eprintln!("{:?} step {step}: {id} {what}", begin.elapsed());
        fleet.no_faults();
        if roll(3) == 0 && !running.is_empty() {
            let all: Vec<_> = running.values().collect();
            fleet.settled("all work is done", &all, || Ok(())).await;
        } else {
            tokio::time::sleep(Duration::from_millis(100 * roll(15) as u64)).await;
        }
    }
    if running.is_empty() {
        running.insert("a", fleet.start("a", None));
    }
    let all: Vec<_> = running.values().collect();
    fleet.settled("all work is done", &all, || Ok(())).await;
    eprintln!(
        "{steps} steps in {:?}, {} processes",
        begin.elapsed(),
        fleet.started
    );
}
