//! `on_divergence`: a destination topic that is ahead of its source or differs from it is deleted and mirrored again, or is not,
//! on real Kafka.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::daemon::{Daemon, SHORT_SESSION, config, member};
use crate::support::kafka::{ConfigOf, KafkaCluster, shared_pair, unique};
use crate::support::operate::done;
use crate::support::poll_until;
use crate::support::producer::{Load, records};
use crate::support::status::{
    count, is_in, partitions, reason, scaled, wait_failed, wait_mirrored,
};
use crate::support::steps::{
    all_ends, arrives, end, end_of, produce, reconfigure, restart, start, trim, wait_in,
};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{MetadataRequest, TopicName};
use kafka_protocol::protocol::StrBytes;
use rand::Rng;
use tokio::time::sleep;

const SOON: Duration = Duration::from_secs(60);

const RECREATE: &str = "[mirror.policy]\non_divergence = \"recreate\"\n";

/// What the one line says that announces a deletion.
const ANNOUNCED: &str = "mirroring it again from the beginning";

fn start_recreating(source: &KafkaCluster, destination: &KafkaCluster, topics: &[&str]) -> Daemon {
    Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        topics,
        RECREATE,
    ))
}

fn load(source: &KafkaCluster, topic: &str, partitions: i32) -> Load {
    let partitions: Vec<(String, i32)> = (0..partitions).map(|p| (topic.to_owned(), p)).collect();
    Load::start(&source.bootstrap(), 1_000, &partitions)
}

fn name(topic: &str) -> TopicName {
    TopicName(StrBytes::from_string(topic.to_owned()))
}

/// The id of a topic, in words; `None` while there is none.
async fn topic_id(cluster: &KafkaCluster, topic: &str) -> Option<String> {
    let request = MetadataRequest::default()
        .with_topics(Some(vec![
            MetadataRequestTopic::default().with_name(Some(name(topic))),
        ]))
        .with_allow_auto_topic_creation(false);
    let answer = cluster.admin(12, &request).await;
    let found = answer.topics.first().unwrap();
    (found.error_code == 0).then(|| format!("{:?}", found.topic_id))
}

/// Lines of the log above INFO that are about deleting and mirroring again.
fn announced(daemon: &Daemon) -> Vec<String> {
    let mut lines = daemon.log_lines_with(&["WARN", ANNOUNCED]);
    lines.extend(daemon.log_lines_with(&["ERROR"]));
    lines
}

async fn topic_command(daemon: &mut Daemon, command: &str, topic: &str) {
    let mut arguments = vec![command, "--mirror", "test", "--topics", topic];
    if command == "stop" {
        arguments.push("--yes");
    }
    done(daemon, &arguments).await;
}

/// Waits until the destination topic has its own `retention.ms`.
async fn wait_restored(cluster: &KafkaCluster, topic: &str, retention_ms: &str) {
    poll_until("its configs are its own", SOON, async || {
        let of = ConfigOf::Topic(topic.to_owned());
        let found = cluster.describe_config(&of).await;
        match found["retention.ms"].as_str() {
            found if found == retention_ms => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_record_goes_with_its_topic_and_all_partitions_flow_again_under_load() {
    let (source, destination) = shared_pair().await;
    let (topic, other) = (unique("anew"), unique("beside"));
    source
        .create_topic(&topic, 3, 1, &[("retention.ms", "86400000")])
        .await;
    source.create_topic(&other, 1, 1, &[]).await;
    produce(source, &other, 0, &records(1, 50)).await;
    let load = load(source, &topic, 3);
    let mut daemon = start_recreating(source, destination, &[&topic, &other]);
    wait_mirrored(&mut daemon, &other, 0, SOON).await;
    daemon
        .wait_until("all mirror", SOON, |status| count(status, "MIRRORING") == 4)
        .await;
    let before = [&topic, &other].map(|topic| topic_id(destination, topic));
    let before = futures::future::join_all(before).await;

    produce(destination, &topic, 1, &records(9, 1)).await;
    // While it lasts, whoever looks is told why.
    daemon
        .wait_until("the reason is shown", SOON, |status| {
            is_in(status, &topic, 1, "FAILED")
                && reason(status, &topic, 1).contains("is to be deleted and mirrored again")
                && reason(status, &topic, 0).contains("another partition of it differs")
        })
        .await;
    daemon
        .wait_until("all mirror again", SOON, |status| {
            count(status, "MIRRORING") == 4
        })
        .await;
    load.stop().await;
    arrives(source, destination, &[&topic, &other]).await;
    let lines = announced(&daemon);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    for words in ["mirror=test", "partition=1", "offset=", "by another writer"] {
        assert!(lines[0].contains(words), "{words} in {}", lines[0]);
    }
    assert!(lines[0].contains(&topic), "{}", lines[0]);
    assert_ne!(topic_id(destination, &topic).await, before[0]);
    assert_eq!(topic_id(destination, &other).await, before[1]);
    let held = destination
        .describe_config(&ConfigOf::Topic(topic.clone()))
        .await;
    assert_eq!(held["retention.ms"], "-1", "it is held like any other");

    // What is remembered is about the new one.
    restart(&mut daemon).await;
    produce(source, &topic, 1, &records(2, 20)).await;
    arrives(source, destination, &[&topic]).await;
    topic_command(&mut daemon, "stop", &topic).await;
    wait_in(&mut daemon, &topic, 1, "STOPPED").await;
    wait_restored(destination, &topic, "86400000").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_there_and_is_another_is_replaced() {
    let (source, destination) = shared_pair().await;
    let topic = unique("different");
    source.create_topic(&topic, 2, 1, &[]).await;
    destination.create_topic(&topic, 2, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 100)).await;
    produce(destination, &topic, 0, &records(2, 30)).await;
    produce(destination, &topic, 1, &records(3, 5)).await;
    let mut daemon = start_recreating(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    arrives(source, destination, &[&topic]).await;
    let lines = announced(&daemon);
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_while_it_recreates_it_ends_what_was_begun_and_deletes_no_more_than_that() {
    let (source, destination) = shared_pair().await;
    let topic = unique("kills");
    source.create_topic(&topic, 3, 1, &[]).await;
    let load = load(source, &topic, 3);
    let mut daemon = start_recreating(source, destination, &[&topic]);
    daemon
        .wait_until("all mirror", SOON, |status| count(status, "MIRRORING") == 3)
        .await;
    for round in 0..scaled(3, 20) {
        daemon.kill();
        let mut ids = BTreeSet::new();
        ids.extend(topic_id(destination, &topic).await);
        assert_eq!(ids.len(), 1);
        produce(destination, &topic, round % 3, &records(9, 1)).await;
        tokio::select! {
            () = watch(destination, &topic, &mut ids) => {}
            // From its start until it mirrors again takes such a process about three seconds.
            () = async {
                for _ in 0..6 {
                    daemon.start_again();
                    sleep(Duration::from_millis(rand::rng().random_range(300..3_000))).await;
                    daemon.kill();
                }
                daemon.start_again();
                daemon
                    .wait_until("all mirror", SOON, |status| count(status, "MIRRORING") == 3)
                    .await;
            } => {}
        }
        ids.extend(topic_id(destination, &topic).await);
        assert_eq!(
            ids.len(),
            2,
            "round {round}, one deletion was needed: {ids:?}"
        );
    }
    load.stop().await;
    arrives(source, destination, &[&topic]).await;
    let failed = daemon.log_lines_with(&["ERROR"]);
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Notes every id that a topic has, without end.
async fn watch(cluster: &KafkaCluster, topic: &str, ids: &mut BTreeSet<String>) {
    loop {
        ids.extend(topic_id(cluster, topic).await);
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_recreate_a_topic_once_whoever_owns_what() {
    let (source, destination) = shared_pair().await;
    let topic = unique("two");
    source.create_topic(&topic, 6, 1, &[]).await;
    let load = load(source, &topic, 6);
    let mut sidecars = ["one", "other"].map(|name| {
        let text = config(
            &source.bootstrap(),
            &destination.bootstrap(),
            &[&topic],
            RECREATE,
        );
        Daemon::start(&member(&text, name, SHORT_SESSION))
    });
    for daemon in &mut sidecars {
        daemon
            .wait_until("half of them mirror", SOON, |status| {
                partitions(status).len() == 3 && count(status, "MIRRORING") == 3
            })
            .await;
    }
    for partition in [0, 5] {
        let before = topic_id(destination, &topic).await;
        produce(destination, &topic, partition, &records(9, 1)).await;
        poll_until("it is another topic", SOON, async || {
            let now = topic_id(destination, &topic).await;
            if now.is_some() && now != before {
                Ok(())
            } else {
                Err(format!("{now:?}"))
            }
        })
        .await;
        for daemon in &mut sidecars {
            daemon
                .wait_until("half of them mirror again", SOON, |status| {
                    count(status, "MIRRORING") == 3
                })
                .await;
        }
    }
    load.stop().await;
    arrives(source, destination, &[&topic]).await;
    let lines: Vec<_> = sidecars.iter().flat_map(announced).collect();
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_topic_that_is_started_again_is_recreated_or_failed_as_configured() {
    let (source, destination) = shared_pair().await;
    let topic = unique("again");
    let day = "86400000";
    source
        .create_topic(&topic, 2, 1, &[("retention.ms", day)])
        .await;
    produce(source, &topic, 0, &records(1, 100)).await;
    let mut daemon = start(source, destination, &[&topic]);
    for index in 0..2 {
        wait_mirrored(&mut daemon, &topic, index, SOON).await;
    }
    topic_command(&mut daemon, "stop", &topic).await;
    for index in 0..2 {
        wait_in(&mut daemon, &topic, index, "STOPPED").await;
    }
    wait_restored(destination, &topic, day).await;
    // Somebody has failed over to it, and the source went on.
    produce(destination, &topic, 0, &records(2, 10)).await;
    produce(source, &topic, 0, &records(3, 20)).await;
    let stopped = all_ends(destination, &topic).await;

    topic_command(&mut daemon, "start", &topic).await;
    for index in 0..2 {
        let words = ["on_divergence = \"recreate\"", "truemirror recover"];
        wait_failed(&mut daemon, &topic, index, &words, SOON).await;
    }
    assert_eq!(all_ends(destination, &topic).await, stopped);
    // It is not the source's, so nothing is held.
    wait_restored(destination, &topic, day).await;

    end(&mut daemon).await;
    reconfigure(
        &daemon,
        "[mirror.source]",
        &format!("{RECREATE}[mirror.source]"),
    );
    daemon.start_again();
    for index in 0..2 {
        wait_mirrored(&mut daemon, &topic, index, SOON).await;
    }
    arrives(source, destination, &[&topic]).await;
    let lines = daemon.log_lines_with(&["WARN", ANNOUNCED]);
    assert_eq!(lines.len(), 1, "{lines:#?}");

    // And once more, in one go.
    topic_command(&mut daemon, "stop", &topic).await;
    for index in 0..2 {
        wait_in(&mut daemon, &topic, index, "STOPPED").await;
    }
    topic_command(&mut daemon, "start", &topic).await;
    produce(source, &topic, 1, &records(4, 20)).await;
    for index in 0..2 {
        wait_mirrored(&mut daemon, &topic, index, SOON).await;
    }
    arrives(source, destination, &[&topic]).await;
    let lines = daemon.log_lines_with(&["WARN", ANNOUNCED]);
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_topic_is_not_recreated_before_it_is_resumed() {
    let (source, destination) = shared_pair().await;
    let (paused, other) = (unique("paused"), unique("other"));
    for topic in [&paused, &other] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, 100)).await;
    }
    let mut daemon = start(source, destination, &[&paused, &other]);
    for topic in [&paused, &other] {
        wait_mirrored(&mut daemon, topic, 0, SOON).await;
        produce(destination, topic, 0, &records(9, 1)).await;
        produce(source, topic, 0, &records(2, 10)).await;
        wait_failed(&mut daemon, topic, 0, &["another writer"], SOON).await;
    }
    topic_command(&mut daemon, "pause", &paused).await;
    let before = topic_id(destination, &paused).await;
    end(&mut daemon).await;
    reconfigure(
        &daemon,
        "[mirror.source]",
        &format!("{RECREATE}[mirror.source]"),
    );
    daemon.start_again();
    wait_mirrored(&mut daemon, &other, 0, SOON).await;
    wait_in(&mut daemon, &paused, 0, "FAILED").await;
    assert_eq!(topic_id(destination, &paused).await, before);
    assert_eq!(end_of(destination, &paused).await, 111);
    topic_command(&mut daemon, "resume", &paused).await;
    wait_mirrored(&mut daemon, &paused, 0, SOON).await;
    arrives(source, destination, &[&paused, &other]).await;
    let lines = daemon.log_lines_with(&["WARN", ANNOUNCED]);
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_mirrored_from_nothing_is_not_deleted() {
    let (source, destination) = shared_pair().await;
    let (topic, other) = (unique("late"), unique("other"));
    for topic in [&topic, &other] {
        source.create_topic(topic, 2, 1, &[]).await;
        produce(source, topic, 0, &records(1, 100)).await;
    }
    let mut daemon = start_recreating(source, destination, &[&topic, &other]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    trim(source, &topic, 50).await;
    let before = topic_id(destination, &topic).await;
    // The partition that differs is another than the one whose beginning is gone.
    produce(destination, &topic, 1, &records(9, 1)).await;
    produce(source, &topic, 1, &records(2, 10)).await;
    let words = [
        "another writer",
        "partition 0 of the source starts at offset 50",
    ];
    wait_failed(&mut daemon, &topic, 1, &words, SOON).await;
    restart(&mut daemon).await;
    wait_failed(&mut daemon, &topic, 1, &words, SOON).await;
    // Whoever recreates goes on with others.
    produce(destination, &other, 1, &records(9, 1)).await;
    produce(source, &other, 1, &records(2, 10)).await;
    arrives(source, destination, &[&other]).await;
    assert_eq!(topic_id(destination, &topic).await, before);
    let lines = daemon.log_lines_with(&["ERROR", "cannot be recreated"]);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let lines = daemon.log_lines_with(&["WARN", ANNOUNCED, &topic]);
    assert!(lines.is_empty(), "{lines:#?}");
    // The neighbours go on.
    produce(source, &topic, 0, &records(3, 10)).await;
    poll_until("partition 0 flows", SOON, async || {
        let ends = all_ends(destination, &topic).await;
        if ends[&0] == 110 {
            Ok(())
        } else {
            Err(format!("{ends:?}"))
        }
    })
    .await;
}
