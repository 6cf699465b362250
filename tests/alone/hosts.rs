//! Three hosts, each with a broker and a sidecar beside it: what users see when sidecars are restarted one after the other, when one stays
//! away, and when a whole host is lost. Must not share its clusters.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::daemon::{Daemon, beside, config, member};
use crate::support::kafka::{ClusterOptions, KafkaCluster, unique};
use crate::support::operate::{described, done};
use crate::support::poll_until;
use crate::support::producer::{Load, every_partition, records};
use crate::support::status::{count, partitions, scaled};
use crate::support::steps::{all_flow, arrives, end_of, produce, restart, wait_mirroring};
use crate::support::stillness::Stillness;
use tokio::time::{Instant, sleep};

const PARTITIONS: i32 = 12;
const SOON: Duration = Duration::from_secs(60);
/// The default of `group.session_timeout`, and the time in which late requests of a lost host may arrive.
const SESSION_AND_DRAIN: Duration = Duration::from_secs(15);

fn sidecar(source: &KafkaCluster, destination: &KafkaCluster, topics: &[&str], id: i32) -> Daemon {
    let text = config(&source.bootstrap(), &destination.bootstrap(), topics, "");
    Daemon::start(&beside(&member(&text, &id.to_string(), ""), id))
}

/// Waits until one of them describes all partitions in this state, and says so of those of the others too.
async fn wait_described(daemon: &mut Daemon, state: &str) {
    poll_until(&format!("all are described {state}"), SOON, async || {
        let shown = described(daemon).await;
        let there = shown.iter().filter(|one| one["state"] == state).count();
        let right = there == 12;
        right.then_some(()).ok_or_else(|| format!("{shown:#?}"))
    })
    .await;
}

fn worst(still: &BTreeMap<i32, Duration>, of: &[i32]) -> Duration {
    of.iter().map(|partition| still[partition]).max().unwrap()
}

/// No partition was still for longer than Kafka's own topic beside it, and this.
async fn assert_flowed(when: &str, seen: [Stillness; 2], limit: Duration) {
    let [mirrored, plain] = seen;
    let (mirrored, plain) = (mirrored.longest().await, plain.longest().await);
    let longest = |still: &BTreeMap<i32, Duration>| *still.values().max().unwrap();
    let (longest, kafka) = (longest(&mirrored), longest(&plain));
    eprintln!("still {when}: {longest:?}, Kafka's own {kafka:?}");
    assert!(longest < limit + kafka, "{mirrored:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_an_absence_and_a_lost_host_are_seen_by_nobody_for_long() {
    let source = KafkaCluster::start(ClusterOptions::new("source")).await;
    let destination = KafkaCluster::start(
        ClusterOptions::three_brokers("destination").with("default.replication.factor", "3"),
    )
    .await;
    let (topic, single, plain) = (unique("hosts"), unique("single"), unique("plain"));
    source.create_topic(&topic, PARTITIONS, 1, &[]).await;
    source.create_topic(&single, 1, 1, &[]).await;
    produce(&source, &single, 0, &records(1, 10)).await;
    // What Kafka itself makes of a lost host is seen in a topic that nobody mirrors.
    destination.create_topic(&plain, PARTITIONS, 3, &[]).await;
    let load = Load::start(
        &source.bootstrap(),
        1_200,
        &every_partition(&topic, PARTITIONS),
    );
    let plain_load = Load::start(
        &destination.bootstrap(),
        1_200,
        &every_partition(&plain, PARTITIONS),
    );
    let watch = || {
        [&topic, &plain].map(|topic| Stillness::watch(&destination.bootstrap(), topic, PARTITIONS))
    };
    let names = [topic.as_str(), single.as_str()];
    let [mut one, mut two, mut three] =
        [1, 2, 3].map(|id| sidecar(&source, &destination, &names, id));
    // 12 partitions led by three brokers, and the single one somewhere.
    wait_mirroring(&mut [&mut one, &mut two, &mut three], 13).await;
    done(
        &mut one,
        &["stop", "--mirror", "test", "--topics", &single, "--yes"],
    )
    .await;

    // A rolling restart.
    let seen = watch();
    for daemon in [&mut one, &mut two, &mut three] {
        let before = partitions(&daemon.status().await.unwrap()).len();
        restart(daemon).await;
        poll_until("it has its work back", SOON, async || {
            let status = daemon.status().await?;
            let now = (
                partitions(&status).len(),
                count(&status, "MIRRORING") + count(&status, "STOPPED"),
            );
            (now == (before, before))
                .then_some(())
                .ok_or_else(|| format!("{now:?}"))
        })
        .await;
    }
    assert_flowed("in a rolling restart", seen, Duration::from_secs(3)).await;

    // A sidecar is away while its broker lives.
    two.kill();
    wait_mirroring(&mut [&mut one, &mut three], 12).await;
    let seen = watch();
    sleep(scaled(Duration::from_secs(5), Duration::from_secs(300))).await;
    let shown = described(&mut one).await;
    let mirroring: Vec<_> = shown
        .iter()
        .filter(|one| one["state"] == "MIRRORING")
        .collect();
    assert_eq!(mirroring.len(), 12, "{shown:#?}");
    // Records flow without a pause, so both sides are hardly ever equal, and yet little is missing.
    let lags = mirroring
        .iter()
        .map(|one| one["lagSeconds"].as_f64().unwrap());
    let lag = lags.fold(0.0, f64::max);
    assert!(lag < 3.0, "{lag}");
    assert_flowed("while a sidecar is away", seen, Duration::from_secs(1)).await;
    done(
        &mut three,
        &["pause", "--mirror", "test", "--topics", &topic],
    )
    .await;
    wait_described(&mut one, "PAUSED").await;
    done(
        &mut one,
        &["resume", "--mirror", "test", "--topics", &topic],
    )
    .await;
    wait_described(&mut three, "MIRRORING").await;
    two.start_again();
    let leaders = destination.partitions(&topic).await.unwrap();
    let beside: Vec<usize> = (1..=3)
        .map(|id| {
            leaders
                .values()
                .filter(|view| view.leader == Some(id))
                .count()
        })
        .collect();
    // Each has all of its work before the next host goes: what is on its way to one is nobody's example of a host that stays.
    poll_until("each mirrors what its broker leads", SOON, async || {
        let shares = wait_mirroring(&mut [&mut one, &mut two, &mut three], 12).await;
        (shares == beside)
            .then_some(())
            .ok_or_else(|| format!("{shares:?} for {beside:?}"))
    })
    .await;

    // A whole host is lost.
    let plain_leaders = destination.partitions(&plain).await.unwrap();
    let [mirrored, baseline] = watch();
    for topic in [&topic, &plain] {
        all_flow(&destination, topic).await;
    }
    let lost = Instant::now();
    three.kill();
    destination.kill(3);
    wait_mirroring(&mut [&mut one, &mut two], 12).await;
    eprintln!(
        "a lost host's work is taken over after {:?}",
        lost.elapsed()
    );
    all_flow(&destination, &topic).await;
    let (mirrored, baseline) = (mirrored.longest().await, baseline.longest().await);
    let led_by =
        |leaders: &BTreeMap<i32, crate::support::kafka::PartitionView>, lost: bool| -> Vec<i32> {
            let led = leaders
                .iter()
                .filter(|(_, view)| (view.leader == Some(3)) == lost);
            led.map(|(partition, _)| *partition).collect()
        };
    let of_lost = worst(&mirrored, &led_by(&leaders, true));
    let of_others = worst(&mirrored, &led_by(&leaders, false));
    let kafka_lost = worst(&baseline, &led_by(&plain_leaders, true));
    let kafka_others = worst(&baseline, &led_by(&plain_leaders, false));
    eprintln!(
        "still after the loss of a host: its partitions {of_lost:?}, Kafka's own {kafka_lost:?}; all others {of_others:?}, \
         Kafka's own {kafka_others:?}"
    );
    assert!(of_lost < SESSION_AND_DRAIN + kafka_lost, "{of_lost:?}");
    assert!(
        of_others < kafka_others + Duration::from_secs(3),
        "{of_others:?}"
    );
    plain_load.stop().await;
    destination.start_again(3);
    destination.wait_ready().await;
    three.start_again();
    wait_mirroring(&mut [&mut one, &mut two, &mut three], 12).await;
    load.stop().await;
    arrives(&source, &destination, &[&topic]).await;
    assert_eq!(end_of(&destination, &single).await, 11);
    for daemon in [&one, &two, &three] {
        let failed = daemon.log_lines_with(&["partition FAILED"]);
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
