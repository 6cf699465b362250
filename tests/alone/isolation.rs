//! What stands still delays only itself: frozen brokers, and a thousand idle partitions that cost next to nothing. Must not
//! share its clusters.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::checker::{CheckOptions, assert_equal, ends, wait_for_same_end};
use crate::support::daemon::{Daemon, another_mirror, config};
use crate::support::kafka::{ClusterOptions, KafkaCluster, unique};
use crate::support::poll_until;
use crate::support::process::{cpu_time, resident_bytes, signal};
use crate::support::producer::{Load, every_partition};
use crate::support::status::{count, partition, scaled};
use crate::support::stillness::Stillness;
use tokio::time::{Instant, sleep};

const PARTITIONS: i32 = 6;

/// Log ends by partition, of those whose leaders answer.
async fn known_ends(daemon: &mut Daemon, topic: &str) -> BTreeMap<i64, i64> {
    let status = daemon.status().await.expect("status");
    let partitions = status["mirrors"][0]["partitions"]
        .as_array()
        .expect("partitions")
        .clone();
    partitions
        .iter()
        .filter(|partition| partition["topic"] == topic)
        .filter_map(|p| {
            Some((
                p["partition"].as_i64()?,
                p["destination_log_end_offset"].as_i64()?,
            ))
        })
        .collect()
}

/// Freezes a broker of `victim`; partitions that it does not lead on that side must go on.
async fn freeze(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    victim: &KafkaCluster,
    topic: &'static str,
) {
    let partitions = every_partition(topic, PARTITIONS);
    let load = Load::start(&source.bootstrap(), 1_000, &partitions);
    let mut daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[topic],
        "[mirror.fetch]\nmax_bytes = \"4MiB\"\n",
    ));
    daemon
        .wait_until("records flow", Duration::from_secs(60), |status| {
            let partitions = status["mirrors"][0]["partitions"].as_array();
            partitions.is_some_and(|found| {
                found.len() == 6
                    && found.iter().all(|p| {
                        p["destination_log_end_offset"]
                            .as_i64()
                            .is_some_and(|end| end > 0)
                    })
            })
        })
        .await;
    let frozen = victim.leader_of(topic, 0).await;
    let leaders = victim.partitions(topic).await.unwrap();
    victim.pause(frozen);
    let until = Instant::now() + Duration::from_secs(scaled(15, 60));
    let others: Vec<i64> = leaders
        .iter()
        .filter(|(_, view)| view.leader != Some(frozen))
        .map(|(partition, _)| i64::from(*partition))
        .collect();
    assert!(!others.is_empty(), "{leaders:?}");
    let mut before = known_ends(&mut daemon, topic).await;
    while Instant::now() < until {
        before = poll_until(
            &format!("the partitions {others:?}, which broker {frozen} does not lead, go on"),
            Duration::from_secs(6),
            async || {
                let now = known_ends(&mut daemon, topic).await;
                let go_on = others.iter().all(|p| now[p] > before[p]);
                if go_on {
                    Ok(now)
                } else {
                    Err(format!("{now:?} after {before:?}"))
                }
            },
        )
        .await;
    }
    victim.resume(frozen);
    let awake = Instant::now();
    load.stop().await;
    wait_for_same_end(
        &source.direct_bootstrap(),
        &destination.direct_bootstrap(),
        &[topic],
        Duration::from_secs(90),
    )
    .await;
    eprintln!("equal ends {:?} after the broker woke", awake.elapsed());
    assert_equal(
        &source.direct_bootstrap(),
        &destination.direct_bootstrap(),
        &[topic],
        &CheckOptions::default(),
    )
    .await;
    let failed = daemon.log_lines_with(&["partition FAILED"]);
    assert!(failed.is_empty(), "{failed:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_source_broker_delays_only_its_own_partitions() {
    let source = KafkaCluster::start(ClusterOptions::three_brokers("source")).await;
    let destination = KafkaCluster::start(ClusterOptions::new("destination")).await;
    let topic: &'static str = Box::leak(unique("frozen").into_boxed_str());
    // One replica each: nobody takes over.
    source.create_topic(topic, PARTITIONS, 1, &[]).await;
    freeze(&source, &destination, &source, topic).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_destination_broker_starves_no_other() {
    let source = KafkaCluster::start(ClusterOptions::new("source")).await;
    let destination = KafkaCluster::start(
        ClusterOptions::three_brokers("destination").with("default.replication.factor", "1"),
    )
    .await;
    let topic: &'static str = Box::leak(unique("frozen").into_boxed_str());
    source.create_topic(topic, PARTITIONS, 1, &[]).await;
    freeze(&source, &destination, &destination, topic).await;
    a_second_signal_ends_it_at_once(&source, &destination, topic).await;
}

/// With appends at a frozen broker unanswered, the first signal waits for them, the second does not.
async fn a_second_signal_ends_it_at_once(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    topic: &'static str,
) {
    let load = Load::start(&source.bootstrap(), 1_000, &[(topic.to_owned(), 0)]);
    let mut daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[topic],
        "",
    ));
    // An append connection must be there: one that is still being made has nothing unanswered.
    poll_until("records flow", Duration::from_secs(60), async || {
        let mirrored = daemon
            .metric_sum("truemirror_records_mirrored_total", &[])
            .await;
        (mirrored > 0.0)
            .then_some(())
            .ok_or_else(|| "none mirrored".into())
    })
    .await;
    let frozen = destination.leader_of(topic, 0).await;
    destination.pause(frozen);
    // What it fetches from here on can only be appended in vain.
    let (_, end) = ends(&source.direct_bootstrap(), topic, "read_committed").await[&0];
    daemon
        .wait_until(
            "records behind the freeze are fetched",
            Duration::from_secs(20),
            |status| {
                let fetched = partition(status, topic, 0)
                    .and_then(|p| p["source_last_stable_offset"].as_i64());
                fetched.is_some_and(|fetched| fetched > end)
            },
        )
        .await;
    signal(daemon.pid().unwrap(), "TERM");
    poll_until(
        "the first signal is heard",
        Duration::from_secs(5),
        async || {
            let heard = daemon.log_lines_with(&["stopping"]);
            (!heard.is_empty()).then_some(()).ok_or_else(|| "no".into())
        },
    )
    .await;
    let (asked, status) = (
        Instant::now(),
        daemon.terminate(Duration::from_secs(5)).await,
    );
    destination.resume(frozen);
    assert!(
        asked.elapsed() < Duration::from_secs(1),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(
        status.code(),
        Some(1),
        "{:#?}",
        daemon.log_lines_with(&["signal"])
    );
    load.stop().await;
}

/// Megabytes of records of 1 kB that one mirror has to catch up with.
fn backlog_megabytes() -> u32 {
    scaled(200, 2_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_of_one_mirror_holds_up_no_other() {
    let source = KafkaCluster::start(ClusterOptions::new("source")).await;
    let destination = KafkaCluster::start(ClusterOptions::new("destination")).await;
    let [flowing, backlog, plain] = ["flowing", "backlog", "plain"].map(unique);
    source.create_topic(&flowing, PARTITIONS, 1, &[]).await;
    source.create_topic(&backlog, PARTITIONS, 1, &[]).await;
    // What Kafka itself makes of so much work is seen in a topic that nobody mirrors.
    destination.create_topic(&plain, PARTITIONS, 1, &[]).await;
    let records = (backlog_megabytes() * 1_000).to_string();
    let server = format!("bootstrap.servers={}", source.bootstrap());
    let perf = [
        "--topic",
        &backlog,
        "--num-records",
        &records,
        "--record-size",
        "1000",
    ];
    let props = [
        "--throughput",
        "-1",
        "--producer-props",
        &server,
        "batch.size=100000",
        "linger.ms=5",
    ];
    source
        .tool(
            "org.apache.kafka.tools.ProducerPerformance",
            &[&perf[..], &props[..]].concat(),
        )
        .await;
    let load = Load::start(
        &source.bootstrap(),
        600,
        &every_partition(&flowing, PARTITIONS),
    );
    let plain_load = Load::start(
        &destination.bootstrap(),
        600,
        &every_partition(&plain, PARTITIONS),
    );
    let one = config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[&flowing],
        "",
    );
    let mut daemon = Daemon::start(&one);
    daemon
        .wait_until("records flow", Duration::from_secs(60), |status| {
            count(status, "MIRRORING") == PARTITIONS as usize
        })
        .await;

    let [mirrored, baseline] = [&flowing, &plain]
        .map(|topic| Stillness::watch(&destination.bootstrap(), topic, PARTITIONS));
    let two = one + &another_mirror("second", &source.bootstrap(), &[&backlog]);
    std::fs::write(daemon.config_file(), two).unwrap();
    signal(daemon.pid().unwrap(), "HUP");
    let since = Instant::now();
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[&backlog], Duration::from_secs(300)).await;
    let took = since.elapsed();
    let longest = |still: BTreeMap<i32, Duration>| still.into_values().max().unwrap();
    let mirrored = longest(mirrored.longest().await);
    let kafka = longest(baseline.longest().await);
    eprintln!(
        "{} MB caught up with in {took:.1?}; the other mirror's partitions were still for {mirrored:?}, Kafka's own for {kafka:?}",
        backlog_megabytes()
    );
    assert!(mirrored < Duration::from_secs(2) + kafka, "{mirrored:?}");
    load.stop().await;
    plain_load.stop().await;
    wait_for_same_end(&from, &to, &[&flowing], Duration::from_secs(60)).await;
    assert_equal(&from, &to, &[&flowing], &CheckOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_partitions_cost_next_to_nothing() {
    let source = KafkaCluster::start(ClusterOptions::new("source")).await;
    let destination = KafkaCluster::start(ClusterOptions::new("destination")).await;
    let topics: Vec<String> = (0..20).map(|n| unique(&format!("idle{n}"))).collect();
    for topic in &topics {
        source.create_topic(topic, 50, 1, &[]).await;
    }
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let mut daemon = Daemon::start(
        &config(&source.bootstrap(), &destination.bootstrap(), &names, "")
            .replace("refresh_interval = \"1s\"", "refresh_interval = \"30s\""),
    );
    daemon
        .wait_until("all are mirroring", Duration::from_secs(180), |status| {
            let partitions = status["mirrors"][0]["partitions"].as_array();
            partitions.is_some_and(|found| {
                found.len() == 1_000 && found.iter().all(|p| p["state"] == "MIRRORING")
            })
        })
        .await;
    sleep(Duration::from_secs(3)).await;
    let pid = daemon.pid().unwrap();
    let (cpu, since) = (cpu_time(pid).unwrap(), Instant::now());
    // Whole rounds of the refresh: one of them is most of what there is to do.
    sleep(Duration::from_secs(scaled(30, 60))).await;
    let used = (cpu_time(pid).unwrap() - cpu).as_secs_f64() / since.elapsed().as_secs_f64();
    let memory = resident_bytes(pid).unwrap() as f64 / 1024.0 / 1024.0;
    eprintln!(
        "1,000 idle partitions: {:.2} % of one core, {memory:.1} MiB",
        used * 100.0
    );
    assert!(used < 0.02, "{:.2} % of one core", used * 100.0);
    assert!(memory < 100.0, "{memory:.1} MiB");
    let first = ends(
        &destination.bootstrap(),
        Box::leak(topics[0].clone().into_boxed_str()),
        "read_uncommitted",
    )
    .await;
    assert_eq!(first.len(), 50);
}
