//! Kills under load: of truemirror itself, of destination leaders, of source leaders; leader moves; two processes at once.
//! Whatever happens, the copy is equal in the end and records flow again soon.

use std::time::Duration;

use crate::support::checker::{CheckOptions, assert_equal, ends, wait_for_same_end};
use crate::support::daemon::{Daemon, config, state_topic};
use crate::support::kafka::{ClusterOptions, KafkaCluster, unique};
use crate::support::producer::{Load, LoadCounts, every_partition};
use crate::support::status::scaled;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};

/// Records flow again within this time of a restart or of an election.
const SOON: Duration = Duration::from_secs(5);

const PARTITIONS: i32 = 6;

fn seed() -> u64 {
    let seed = std::env::var("TRUEMIRROR_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(rand::random);
    eprintln!("TRUEMIRROR_SEED={seed}");
    seed
}

/// The sum of all log ends of a topic; 0 while it does not exist.
async fn sum_of_ends(cluster: &KafkaCluster, topic: &'static str) -> i64 {
    let bootstrap = cluster.direct_bootstrap();
    match tokio::time::timeout(
        Duration::from_secs(5),
        ends(&bootstrap, topic, "read_uncommitted"),
    )
    .await
    {
        Ok(ends) => ends.values().map(|(_, end)| end).sum(),
        Err(_) => 0,
    }
}

/// Waits until the copy has grown beyond `from`; how long it took since `since`.
async fn flows_again(
    destination: &KafkaCluster,
    topic: &'static str,
    from: i64,
    since: Instant,
) -> Duration {
    let deadline = Instant::now() + Duration::from_secs(60);
    while sum_of_ends(destination, topic).await <= from {
        assert!(Instant::now() < deadline, "nothing flows any more");
    }
    since.elapsed()
}

async fn finish(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    topic: &str,
    load: Load,
) -> LoadCounts {
    let counts = load.stop().await;
    let (from, to) = (source.direct_bootstrap(), destination.direct_bootstrap());
    wait_for_same_end(&from, &to, &[topic], Duration::from_secs(90)).await;
    let report = assert_equal(&from, &to, &[topic], &CheckOptions::default()).await;
    let delivered: u64 = counts.delivered.values().sum();
    eprintln!(
        "{} records equal, {delivered} delivered to the source",
        report.records
    );
    assert!(report.records as u64 >= delivered);
    counts
}

fn topic(name: &str) -> &'static str {
    Box::leak(unique(name).into_boxed_str())
}

fn load(source: &KafkaCluster, topic: &str) -> Load {
    let partitions = every_partition(topic, PARTITIONS);
    Load::start(&source.bootstrap(), 2_000, &partitions)
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_random_points_under_load() {
    let (source, destination) = crate::support::kafka::shared_pair().await;
    let topic = topic("kills");
    source.create_topic(topic, PARTITIONS, 1, &[]).await;
    let load = load(source, topic);
    let mut daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[topic],
        "",
    ));
    let mut dice = StdRng::seed_from_u64(seed());
    flows_again(destination, topic, 0, Instant::now()).await;
    let mut slowest = Duration::ZERO;
    for _ in 0..scaled(5, 50) {
        sleep(Duration::from_millis(dice.random_range(0..2_500))).await;
        daemon.kill();
        let from = sum_of_ends(destination, topic).await;
        daemon.start_again();
        slowest = slowest.max(flows_again(destination, topic, from, Instant::now()).await);
    }
    eprintln!("slowest restart until records flow: {slowest:?}");
    assert!(slowest < SOON, "records flow {slowest:?} after a restart");
    finish(source, destination, topic, load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_the_same_partitions() {
    let (source, destination) = crate::support::kafka::shared_pair().await;
    let topic = topic("two");
    source.create_topic(topic, PARTITIONS, 1, &[]).await;
    let load = load(source, topic);
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[topic], "");
    // In another group, with states of its own: each takes all partitions for its own, as after a mistake of an operator.
    let state = state_topic(&[topic]);
    let mut one = Daemon::start(&text);
    let mut other = Daemon::start(&text.replace(&state, &format!("{state}-other")));
    let mut dice = StdRng::seed_from_u64(seed());
    for _ in 0..scaled(3, 20) {
        sleep(Duration::from_millis(dice.random_range(1_000..4_000))).await;
        let victim = if dice.random() { &mut one } else { &mut other };
        victim.kill();
        victim.start_again();
    }
    finish(source, destination, topic, load).await;
    for daemon in [&mut one, &mut other] {
        let failed = daemon.log_lines_with(&["partition FAILED"]);
        assert!(failed.is_empty(), "{failed:#?}");
    }
}

/// Kills leaders of the topic on one side, one after the other, and brings them back.
async fn kill_leaders(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    victim: &KafkaCluster,
    topic: &'static str,
) {
    let load = load(source, topic);
    let daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[topic],
        "",
    ));
    let mut dice = StdRng::seed_from_u64(seed());
    flows_again(destination, topic, 0, Instant::now()).await;
    for round in 0..scaled(2, 10) {
        sleep(Duration::from_millis(dice.random_range(0..1_500))).await;
        let partition = dice.random_range(0..PARTITIONS);
        let leader = victim.leader_of(topic, partition).await;
        victim.kill(leader);
        // The partition's new leader is elected when the controller misses the old one.
        let elected = Instant::now();
        let deadline = elected + Duration::from_secs(60);
        while victim.partitions(topic).await.map_or(true, |found| {
            found[&partition].leader.is_none_or(|found| found == leader)
        }) {
            assert!(Instant::now() < deadline, "no new leader");
            sleep(Duration::from_millis(50)).await;
        }
        let from = end_of(destination, topic, partition).await;
        // The producer needs its time to find the new leader, too: counted is from when there is something to copy.
        let mut since = Instant::now();
        let took = loop {
            if end_of(destination, topic, partition).await > from {
                break since.elapsed();
            }
            if end_of(source, topic, partition).await <= from {
                since = Instant::now();
            }
            assert!(
                elected.elapsed() < Duration::from_secs(120),
                "partition {partition} does not flow any more"
            );
        };
        eprintln!(
            "round {round}: leader {leader} of partition {partition} killed, flows {took:?} after the election"
        );
        assert!(took < SOON, "records flow {took:?} after the election");
        victim.start_again(leader);
        victim.wait_in_sync(topic).await;
    }
    finish(source, destination, topic, load).await;
    let failed = daemon.log_lines_with(&["partition FAILED"]);
    assert!(failed.is_empty(), "{failed:#?}");
}

/// One partition's log end as its leader says; -1 if nobody does.
async fn end_of(cluster: &KafkaCluster, topic: &'static str, partition: i32) -> i64 {
    let bootstrap = cluster.direct_bootstrap();
    let asked = tokio::time::timeout(
        Duration::from_secs(10),
        ends(&bootstrap, topic, "read_uncommitted"),
    )
    .await;
    asked
        .ok()
        .and_then(|ends| ends.get(&partition).map(|(_, end)| *end))
        .unwrap_or(-1)
}

#[tokio::test(flavor = "multi_thread")]
async fn destination_leaders_killed_and_moved() {
    let source = KafkaCluster::start(ClusterOptions::new("source")).await;
    let destination = KafkaCluster::start(
        ClusterOptions::three_brokers("destination").with("default.replication.factor", "3"),
    )
    .await;
    let topic = topic("leaders");
    source.create_topic(topic, PARTITIONS, 1, &[]).await;
    kill_leaders(&source, &destination, &destination, topic).await;
    moved_leaders(&source, &destination, &destination, topic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn source_leaders_killed_and_moved() {
    let source = KafkaCluster::start(ClusterOptions::three_brokers("source")).await;
    let destination = KafkaCluster::start(ClusterOptions::new("destination")).await;
    let topic = topic("leaders");
    source.create_topic(topic, PARTITIONS, 3, &[]).await;
    kill_leaders(&source, &destination, &source, topic).await;
    moved_leaders(&source, &destination, &source, topic).await;
}

/// Leaders move by reassignment and preferred election, nobody dies.
async fn moved_leaders(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    victim: &KafkaCluster,
    topic: &'static str,
) {
    let load = load(source, topic);
    let daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[topic],
        "",
    ));
    for round in 0..scaled(2, 10) {
        for partition in 0..PARTITIONS {
            let leader = victim.leader_of(topic, partition).await;
            let next = leader % 3 + 1;
            victim.move_leader(topic, partition, next).await;
        }
        let from = sum_of_ends(destination, topic).await;
        let took = flows_again(destination, topic, from, Instant::now()).await;
        eprintln!("round {round}: all leaders moved, flows after {took:?}");
        assert!(took < SOON);
    }
    finish(source, destination, topic, load).await;
    let failed = daemon.log_lines_with(&["partition FAILED"]);
    assert!(failed.is_empty(), "{failed:#?}");
}
