//! What most tests of the daemon do between their assertions: start it, write records, wait for them, look at ends. Clients go to the
//! brokers beside a proxy, the daemon through it.

use std::collections::BTreeMap;
use std::time::Duration;

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::{CreatePartitionsRequest, DeleteRecordsRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use serde_json::Value;
use tokio::time::Instant;

use super::checker::{CheckOptions, assert_equal, ends, wait_for_same_end};
use super::daemon::{Daemon, config};
use super::kafka::KafkaCluster;
use super::operate::done;
use super::poll_until;
use super::producer::{Producer, ProducerOptions, TestRecord};
use super::status::{count, is_in, partitions};

const SOON: Duration = Duration::from_secs(60);

/// A daemon with the usual configuration.
pub fn start(source: &KafkaCluster, destination: &KafkaCluster, topics: &[&str]) -> Daemon {
    Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        topics,
        "",
    ))
}

/// Ends it in order, and starts it again.
pub async fn restart(daemon: &mut Daemon) {
    end(daemon).await;
    daemon.start_again();
}

/// Ends it in order.
pub async fn end(daemon: &mut Daemon) {
    let ended = daemon.terminate(Duration::from_secs(10)).await;
    assert_eq!(ended.code(), Some(0), "{:#?}", daemon.log());
}

/// Changes the configuration of a daemon that does not run.
pub fn reconfigure(daemon: &Daemon, from: &str, to: &str) {
    let file = daemon.config_file();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from} in\n{text}");
    std::fs::write(&file, text.replace(from, to)).unwrap();
}

/// Writes records with the usual producer.
pub async fn produce(cluster: &KafkaCluster, topic: &str, partition: i32, records: &[TestRecord]) {
    Producer::new(&cluster.direct_bootstrap(), &ProducerOptions::default())
        .await
        .produce(topic, partition, records)
        .await;
}

/// Removes the records of partition 0 below `offset`.
pub async fn trim(cluster: &KafkaCluster, topic: &str, offset: i64) {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(0)
        .with_offset(offset);
    let topic = DeleteRecordsTopic::default()
        .with_name(TopicName(StrBytes::from_string(topic.into())))
        .with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default()
        .with_topics(vec![topic])
        .with_timeout_ms(10_000);
    let answer = cluster.admin(2, &request).await;
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

/// Waits until both sides end at the same offsets, and compares every record.
pub async fn arrives(source: &KafkaCluster, destination: &KafkaCluster, topics: &[&str]) {
    let (from, to) = (source.direct_bootstrap(), destination.direct_bootstrap());
    wait_for_same_end(&from, &to, topics, SOON).await;
    assert_equal(&from, &to, topics, &CheckOptions::default()).await;
}

/// The end offset of every partition, control records included.
pub async fn all_ends(cluster: &KafkaCluster, topic: &str) -> BTreeMap<i32, i64> {
    let found = ends(&cluster.direct_bootstrap(), topic, "read_uncommitted").await;
    found.into_iter().map(|(p, (_, end))| (p, end)).collect()
}

/// The end offset of partition 0.
pub async fn end_of(cluster: &KafkaCluster, topic: &str) -> i64 {
    all_ends(cluster, topic).await[&0]
}

/// Waits until a partition of the first mirror is in this state.
pub async fn wait_in(daemon: &mut Daemon, topic: &str, index: i32, state: &str) -> Value {
    let what = format!("{topic}-{index} {state}");
    daemon
        .wait_until(&what, SOON, |status| is_in(status, topic, index, state))
        .await
}

/// Stops a topic and says how long it took until all of its partitions were STOPPED.
pub async fn stop_and_time(daemon: &mut Daemon, topic: &str, count: usize) -> Duration {
    let asked = Instant::now();
    done(
        daemon,
        &["stop", "--mirror", "test", "--topics", topic, "--yes"],
    )
    .await;
    let stopped = |status: &Value| {
        let all = partitions(status).iter();
        all.filter(|one| one["topic"] == topic && one["state"] == "STOPPED")
            .count()
    };
    let what = format!("all of {topic} STOPPED");
    daemon
        .wait_until(&what, SOON, |status| stopped(status) == count)
        .await;
    asked.elapsed()
}

/// Gives a topic so many partitions, and waits until all of them are led.
pub async fn grow(cluster: &KafkaCluster, topic: &str, count: i32) {
    let wider = CreatePartitionsTopic::default()
        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
        .with_count(count)
        .with_assignments(None);
    let request = CreatePartitionsRequest::default()
        .with_topics(vec![wider])
        .with_timeout_ms(10_000);
    let answer = cluster.admin(3, &request).await;
    assert_eq!(answer.results[0].error_code, 0, "{answer:?}");
    poll_until("all partitions are led", SOON, async || {
        let found = cluster.partitions(topic).await?;
        let led = found.len() == count as usize && found.values().all(|view| view.leader.is_some());
        led.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
}

/// Waits until every partition has grown, and says how long that took.
pub async fn all_flow(cluster: &KafkaCluster, topic: &str) -> Duration {
    let (since, before) = (Instant::now(), all_ends(cluster, topic).await);
    poll_until("records flow in every partition", SOON, async || {
        let now = all_ends(cluster, topic).await;
        let still: Vec<_> = before.iter().filter(|(p, end)| now[p] <= **end).collect();
        if still.is_empty() {
            Ok(())
        } else {
            Err(format!("not in {still:?}"))
        }
    })
    .await;
    since.elapsed()
}

/// Waits until these mirror in so many partitions of their first mirror together, and says in how many each does.
pub async fn wait_mirroring(sidecars: &mut [&mut Daemon], wanted: usize) -> Vec<usize> {
    poll_until("all is MIRRORING", SOON, async || {
        let mut found = Vec::new();
        for daemon in sidecars.iter_mut() {
            found.push(count(&daemon.status().await?, "MIRRORING"));
        }
        let right = found.iter().sum::<usize>() == wanted;
        right
            .then_some(found.clone())
            .ok_or_else(|| format!("{found:?}"))
    })
    .await
}
