//! Public faults of other replicators in operation, on real Kafka: restarted brokers, metrics, topics that come and go, lag,
//! idle load, many topics.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;

use crate::support::checker::{ends, wait_for_same_end};
use crate::support::daemon::{Daemon, config, series};
use crate::support::kafka::{ClusterOptions, KafkaCluster, shared_pair, unique};
use crate::support::poll_until;
use crate::support::process::{cpu_time, open_files, resident_bytes};
use crate::support::producer::{Load, Producer, ProducerOptions, TestRecord, records};
use crate::support::status::{
    Progress, count, is_in, partition, partitions, scaled, wait_failed, wait_mirrored,
};
use crate::support::steps::{arrives, produce, start};

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn o01_a_restarted_destination_broker_stops_only_its_own_partitions() {
    const PARTITIONS: i32 = 30;
    let (source, _) = shared_pair().await;
    let destination = &KafkaCluster::start(ClusterOptions::three_brokers("o01")).await;
    let topic = unique("o01");
    source.create_topic(&topic, PARTITIONS, 1, &[]).await;
    destination.create_topic(&topic, PARTITIONS, 2, &[]).await;
    let partitions: Vec<_> = (0..PARTITIONS).map(|p| (topic.clone(), p)).collect();
    let load = Load::start(&source.bootstrap(), 1000, &partitions);
    let mut daemon = start(source, destination, &[&topic]);
    daemon
        .wait_until("all mirroring", SOON, |status| {
            count(status, "MIRRORING") == PARTITIONS as usize
        })
        .await;
    let views = destination.partitions(&topic).await.unwrap();
    let led_by_2: BTreeSet<i32> = views
        .iter()
        .filter(|(_, view)| view.leader == Some(2))
        .map(|(index, _)| *index)
        .collect();
    assert!(!led_by_2.is_empty(), "{views:?}");
    let mut progress = Progress::of(&topic, PARTITIONS);
    let restart = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        destination.stop(2).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        destination.start_again(2);
        destination.wait_ready().await;
    };
    tokio::select! {
        () = restart => {}
        () = progress.watch(&mut daemon, &load) => {}
    }
    let back = Instant::now();
    for (index, pause) in &progress.longest {
        if !led_by_2.contains(index) {
            assert!(
                *pause < Duration::from_secs(5),
                "partition {index} is not led by broker 2 ({led_by_2:?}) and stood still for {pause:?}: {progress:?}"
            );
        }
    }
    // From its return on: every partition moves again.
    let mut after = Progress::of(&topic, PARTITIONS);
    let watched =
        tokio::time::timeout(Duration::from_secs(5), after.watch(&mut daemon, &load)).await;
    watched.unwrap_err();
    assert!(
        after
            .longest
            .values()
            .all(|pause| *pause < Duration::from_secs(5)),
        "{after:?}"
    );
    load.stop().await;
    arrives(source, destination, &[&topic]).await;
    assert!(back.elapsed() < Duration::from_secs(30));
    let failures = daemon.metric_sum("truemirror_failures_total", &[]).await;
    assert_eq!(failures, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn o02_every_partition_counts_for_itself() {
    let (source, destination) = shared_pair().await;
    let topic = unique("o02");
    source.create_topic(&topic, 3, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    produce(source, &topic, 1, &records(2, 20)).await;
    let mut daemon = start(source, destination, &[&topic]);
    arrives(source, destination, &[&topic]).await;
    for (index, wanted) in [("0", 10.0), ("1", 20.0), ("2", 0.0)] {
        wait_mirrored(&mut daemon, &topic, index.parse().unwrap(), SOON).await;
        let labels = [("topic", topic.as_str()), ("partition", index)];
        let name = "truemirror_records_mirrored_total";
        assert_eq!(daemon.metric(name, &labels).await, wanted, "{index}");
        assert_eq!(daemon.metric("truemirror_lag_records", &labels).await, 0.0);
        assert_eq!(
            daemon.metric("truemirror_partition_state", &labels).await,
            2.0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn o03_what_is_no_longer_mirrored_has_no_series() {
    let (source, destination) = shared_pair().await;
    let (kept, removed) = (unique("o03-kept"), unique("o03-removed"));
    for topic in [&kept, &removed] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, 10)).await;
    }
    let mut daemon = start(source, destination, &[&kept, &removed]);
    arrives(source, destination, &[&kept, &removed]).await;
    // Its copy is kept, so it is still a partition of the mirror, and says so.
    source.delete_topic(&removed).await;
    wait_failed(&mut daemon, &removed, 0, &["deleted", "kept"], SOON).await;
    let labels = [("topic", removed.as_str())];
    assert_eq!(
        daemon.metric("truemirror_partition_state", &labels).await,
        7.0
    );
    assert_eq!(ends_of(destination, &removed).await, (0, 10));
    // Out of the configuration: nothing of it is left.
    daemon.terminate(Duration::from_secs(15)).await;
    let file = daemon.config_file();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(&format!(", {removed:?}"), "")).unwrap();
    daemon.start_again();
    wait_mirrored(&mut daemon, &kept, 0, SOON).await;
    let text = daemon.metrics().await.unwrap();
    assert!(!text.contains(&removed), "{text}");
    assert!(text.contains(&kept));
}

async fn ends_of(cluster: &KafkaCluster, topic: &str) -> (i64, i64) {
    ends(&cluster.direct_bootstrap(), topic, "read_uncommitted").await[&0]
}

#[tokio::test(flavor = "multi_thread")]
async fn o05_an_open_transaction_is_undecided_and_no_lag() {
    let (source, destination) = shared_pair().await;
    let topic = unique("o05");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let options = ProducerOptions::default().transactional(&unique("open"));
    let open = Producer::new(&source.bootstrap(), &options).await;
    open.begin().await;
    open.produce(&topic, 0, &records(2, 1)).await;
    produce(source, &topic, 0, &records(3, 100)).await;
    let mut daemon = start(source, destination, &[&topic]);
    let status = daemon
        .wait_until("all that is decided is copied", SOON, |status| {
            is_in(status, &topic, 0, "MIRRORING")
                && partition(status, &topic, 0)
                    .is_some_and(|p| p["lag_records"] == 0 && p["destination_high_watermark"] == 10)
        })
        .await;
    let shown = partition(&status, &topic, 0).unwrap();
    assert_eq!(shown["source_last_stable_offset"], 10);
    assert_eq!(shown["source_high_watermark"], 111);
    assert_eq!(shown["undecided_records"], 101);
    let labels = [("topic", topic.as_str())];
    let undecided = "truemirror_undecided_records";
    assert_eq!(daemon.metric("truemirror_lag_records", &labels).await, 0.0);
    assert_eq!(daemon.metric(undecided, &labels).await, 101.0);
    assert_eq!(ends_of(destination, &topic).await, (0, 10));
    open.commit().await;
    let words = ["offset 10", "transaction"];
    wait_failed(&mut daemon, &topic, 0, &words, SOON).await;
    assert_eq!(ends_of(destination, &topic).await, (0, 10));
}

#[tokio::test(flavor = "multi_thread")]
async fn o06_topics_that_are_created_later_are_found_the_empty_ones_too() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("o06");
    let (one, two) = (format!("{prefix}-1"), format!("{prefix}-2"));
    let mut daemon = start(source, destination, &[&format!("{prefix}.*")]);
    daemon
        .wait_until("it runs", SOON, |status| status["mirrors"][0].is_object())
        .await;
    source.create_topic(&one, 2, 1, &[]).await;
    produce(source, &one, 0, &records(1, 10)).await;
    arrives_soon(source, destination, &one).await;
    tokio::time::sleep(scaled(Duration::from_secs(1), Duration::from_secs(5))).await;
    source.create_topic(&two, 3, 1, &[]).await;
    arrives_soon(source, destination, &two).await;
    let status = daemon
        .wait_until("both mirrored", SOON, |status| {
            count(status, "MIRRORING") == 5
        })
        .await;
    for (topic, partitions) in [(&one, 2), (&two, 3)] {
        assert_eq!(
            destination.partitions(topic).await.unwrap().len(),
            partitions
        );
        for index in 0..partitions {
            assert!(is_in(&status, topic, index as i32, "MIRRORING"));
        }
    }
}

/// Within one refresh (1 s), and what two busy cores need besides.
async fn arrives_soon(source: &KafkaCluster, destination: &KafkaCluster, topic: &str) {
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[topic], Duration::from_secs(10)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn o08_with_nothing_to_copy_there_are_few_requests_and_little_work() {
    let (source, destination) = tokio::join!(
        KafkaCluster::start(ClusterOptions::new("o08-source").proxied()),
        KafkaCluster::start(ClusterOptions::new("o08-destination").proxied()),
    );
    let (idle, deleted) = (unique("o08-idle"), unique("o08-deleted"));
    for topic in [&idle, &deleted] {
        source.create_topic(topic, 2, 1, &[]).await;
        produce(&source, topic, 0, &records(1, 10)).await;
    }
    let text = config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[&idle, &deleted],
        "",
    );
    // The default would be 30 s; the deletion is to be found sooner.
    let text = text.replace("interval = \"1s\"", "interval = \"5s\"");
    let mut daemon = Daemon::start(&text);
    wait_mirrored(&mut daemon, &idle, 0, SOON).await;
    wait_mirrored(&mut daemon, &deleted, 0, SOON).await;
    assert_quiet(&daemon, &source, &destination, "idle").await;
    source.delete_topic(&deleted).await;
    wait_failed(&mut daemon, &deleted, 0, &["deleted"], SOON).await;
    assert_quiet(&daemon, &source, &destination, "one topic FAILED").await;
    produce(&source, &idle, 0, &records(2, 10)).await;
    arrives(&source, &destination, &[&idle]).await;
}

async fn assert_quiet(
    daemon: &Daemon,
    source: &KafkaCluster,
    destination: &KafkaCluster,
    what: &str,
) {
    let pid = daemon.pid().unwrap();
    let proxies = [source.proxy(), destination.proxy()];
    for proxy in &proxies {
        proxy.reset_counts();
    }
    let (begin, used) = (Instant::now(), cpu_time(pid).unwrap());
    tokio::time::sleep(scaled(Duration::from_secs(10), Duration::from_secs(60))).await;
    let (took, used) = (begin.elapsed(), cpu_time(pid).unwrap() - used);
    for proxy in &proxies {
        let counts = proxy.all_requests();
        let rate = counts.values().sum::<u64>() as f64 / took.as_secs_f64();
        assert!(
            rate <= 4.0,
            "{what}: {rate} requests per second: {counts:?}"
        );
    }
    assert!(
        used.as_secs_f64() < took.as_secs_f64() * 0.05,
        "{what}: {used:?} of CPU in {took:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn o09_hundreds_of_topics_are_mirrored_side_by_side() {
    const PARTITIONS: i32 = 10;
    let (source, destination) = shared_pair().await;
    let prefix = unique("o09");
    let topics: Vec<String> = (0..scaled(40, 200))
        .map(|n| format!("{prefix}-{n}"))
        .collect();
    for topic in &topics {
        source.create_topic(topic, PARTITIONS, 1, &[]).await;
    }
    let all = topics.len() * PARTITIONS as usize;
    write_one_each(source, &topics, PARTITIONS).await;
    let mut daemon = start(source, destination, &[&format!("{prefix}-.*")]);
    let (rss, files) = {
        daemon
            .wait_until("the process answers", SOON, |_| true)
            .await;
        let pid = daemon.pid().unwrap();
        (resident_bytes(pid).unwrap(), open_files(pid).unwrap())
    };
    daemon
        .wait_until("all MIRRORING", SOON, |status| {
            count(status, "MIRRORING") == all
        })
        .await;
    mirrored(&mut daemon, all, SOON).await;
    write_one_each(source, &topics, PARTITIONS).await;
    mirrored(&mut daemon, 2 * all, Duration::from_secs(10)).await;
    let pid = daemon.pid().unwrap();
    let grown = resident_bytes(pid).unwrap().saturating_sub(rss);
    // Records in memory up to the limit, and what a partition costs with its metrics and its place in the status.
    let limit = (48 << 20) + all as u64 * (16 << 10);
    assert!(
        grown < limit,
        "{grown} bytes more memory than at first, allowed are {limit}"
    );
    let more_files = open_files(pid).unwrap().saturating_sub(files);
    assert!(more_files < 20, "{more_files} more open files");
    let status = daemon.status().await.unwrap();
    assert_eq!(partitions(&status).len(), all);
    let names: Vec<&str> = topics.iter().step_by(20).map(String::as_str).collect();
    arrives(source, destination, &names).await;
}

async fn write_one_each(cluster: &KafkaCluster, topics: &[String], partitions: i32) {
    let producer = Producer::new(&cluster.bootstrap(), &ProducerOptions::default()).await;
    let writes = topics.iter().flat_map(|topic| {
        (0..partitions).map(|partition| {
            let (producer, topic) = (producer.clone(), topic.clone());
            async move {
                let record = TestRecord::new(&topic, &partition.to_string());
                producer.produce(&topic, partition, &[record]).await
            }
        })
    });
    futures::stream::iter(writes)
        .buffer_unordered(32)
        .collect::<Vec<_>>()
        .await;
}

async fn mirrored(daemon: &mut Daemon, count: usize, deadline: Duration) {
    poll_until("all records mirrored", deadline, async || {
        let text = daemon.metrics().await?;
        let found: f64 = series(&text, "truemirror_records_mirrored_total", &[])
            .iter()
            .sum();
        (found == count as f64)
            .then_some(())
            .ok_or_else(|| format!("{found} of {count}"))
    })
    .await;
}
