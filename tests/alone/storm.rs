//! A storm: three brokers, three sidecars beside them, three mirrors, kills, freezes, elections and cut connections under load;
//! afterwards every record is equal and the state topic tells one story. Must not share its clusters.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::checker::{CheckOptions, assert_equal, ends, wait_for_same_end};
use crate::support::daemon::{
    Daemon, SHORT_SESSION, another_mirror, beside, config, member, state_topic,
};
use crate::support::kafka::{ClusterOptions, KafkaCluster, unique};
use crate::support::poll_until;
use crate::support::process::signal;
use crate::support::producer::Load;
use crate::support::status::scaled;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use truemirror::domain::state_log::{StateKey, StateValue};
use truemirror::wire::state_record;

/// Each has a third of the topics.
const MIRRORS: [&str; 3] = ["test", "second", "third"];
const CALM: Duration = Duration::from_secs(120);
const STATE_PARTITIONS: i32 = 4;

fn seed() -> u64 {
    let given = std::env::var("TRUEMIRROR_SEED").ok();
    let seed = given.map_or_else(rand::random, |text| text.parse().unwrap());
    eprintln!("TRUEMIRROR_SEED={seed}");
    seed
}

/// The topics of one mirror.
fn topics_of<'t>(topics: &[&'t str], mirror: usize) -> Vec<&'t str> {
    topics
        .iter()
        .copied()
        .skip(mirror)
        .step_by(MIRRORS.len())
        .collect()
}

fn sidecar(source: &KafkaCluster, destination: &KafkaCluster, topics: &[&str], id: i32) -> Daemon {
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    let mut text = config(&from, &to, &topics_of(topics, 0), "");
    for (index, name) in MIRRORS.iter().enumerate().skip(1) {
        text += &another_mirror(name, &from, &topics_of(topics, index));
    }
    let text = member(&text, &id.to_string(), SHORT_SESSION);
    Daemon::start(&beside(&text, id))
}

/// Every record of the state topic's partition, in order, as key and value.
fn state_log(bootstrap: &str, topic: &str, partition: i32) -> Vec<(Option<Bytes>, Option<Bytes>)> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "storm-reader")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let wait = Duration::from_secs(20);
    let (start, end) = consumer.fetch_watermarks(topic, partition, wait).unwrap();
    let mut list = TopicPartitionList::new();
    list.add_partition_offset(topic, partition, Offset::Offset(start))
        .unwrap();
    consumer.assign(&list).unwrap();
    let mut found = Vec::new();
    let mut next = start;
    while next < end {
        let message = consumer.poll(wait).expect("a record in time").unwrap();
        next = message.offset() + 1;
        let bytes = |part: Option<&[u8]>| part.map(Bytes::copy_from_slice);
        found.push((bytes(message.key()), bytes(message.payload())));
    }
    found
}

/// State epochs of each key follow one another: nobody has written on top of a state that was not the last.
fn assert_one_story(bootstrap: &str, topic: &str) -> usize {
    let mut writes = 0;
    for partition in 0..STATE_PARTITIONS {
        let mut epochs: BTreeMap<StateKey, i32> = BTreeMap::new();
        for (key, value) in state_log(bootstrap, topic, partition) {
            let record = state_record::decode(key.as_ref(), value.as_ref()).unwrap();
            let Some(epoch) = record.value.as_ref().and_then(StateValue::state_epoch) else {
                continue;
            };
            writes += 1;
            let last = epochs.insert(record.key.clone(), epoch).unwrap_or(0);
            assert_eq!(epoch, last + 1, "{:?} in {topic}-{partition}", record.key);
        }
    }
    writes
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_freezes_and_elections_leave_every_record_equal_and_one_story() {
    let source = KafkaCluster::start(ClusterOptions::new("source").proxied()).await;
    let destination = KafkaCluster::start(
        ClusterOptions::three_brokers("destination")
            .with("default.replication.factor", "3")
            .proxied(),
    )
    .await;
    let topics: Vec<String> = (0..scaled(6, 40))
        .map(|n| unique(&format!("storm{n}")))
        .collect();
    // 300 partitions in all at full scale.
    let width = |topic: usize| scaled(3, 7 + i32::try_from(topic % 2).unwrap());
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    for (index, topic) in names.iter().enumerate() {
        source.create_topic(topic, width(index), 1, &[]).await;
    }
    let targets: Vec<(String, i32)> = topics
        .iter()
        .enumerate()
        .flat_map(|(index, topic)| (0..width(index)).map(move |p| (topic.clone(), p)))
        .collect();
    let all = targets.len();
    let load = Load::start(&source.direct_bootstrap(), 1_000, &targets);
    let mut sidecars: Vec<Daemon> = (1..=3)
        .map(|id| sidecar(&source, &destination, &names, id))
        .collect();
    calm(&mut sidecars, all).await;

    let mut dice = StdRng::seed_from_u64(seed());
    let until = Instant::now() + scaled(Duration::from_secs(25), Duration::from_secs(600));
    let mut weather: BTreeMap<&str, u32> = BTreeMap::new();
    while Instant::now() < until {
        sleep(Duration::from_millis(dice.random_range(0..2_000))).await;
        let victim = dice.random_range(0..sidecars.len());
        match dice.random_range(0..10) {
            0..5 => {
                *weather.entry("sidecars killed").or_default() += 1;
                sidecars[victim].kill();
                sleep(Duration::from_millis(dice.random_range(0..1_000))).await;
                sidecars[victim].start_again();
            }
            5..7 => {
                *weather
                    .entry("sidecars killed for longer than a session")
                    .or_default() += 1;
                sidecars[victim].kill();
                sleep(Duration::from_secs(8)).await;
                sidecars[victim].start_again();
            }
            7 => {
                *weather.entry("connections cut").or_default() += 1;
                let cluster = if dice.random_bool(0.5) {
                    &source
                } else {
                    &destination
                };
                cluster.proxy().cut_connections(None);
            }
            8 => {
                *weather
                    .entry("sidecars frozen for longer than a session")
                    .or_default() += 1;
                let pid = sidecars[victim].pid().unwrap();
                signal(pid, "STOP");
                sleep(Duration::from_secs(8)).await;
                signal(pid, "CONT");
            }
            _ => {
                *weather.entry("brokers killed").or_default() += 1;
                let broker = dice.random_range(1..=3);
                destination.kill(broker);
                sleep(Duration::from_millis(dice.random_range(0..3_000))).await;
                destination.start_again(broker);
                destination.wait_ready().await;
            }
        }
    }
    eprintln!("{weather:?}");
    let calm_after = calm(&mut sidecars, all).await;
    eprintln!("all MIRRORING {calm_after:?} after the storm");
    load.stop().await;
    let (from, to) = (source.direct_bootstrap(), destination.direct_bootstrap());
    wait_for_same_end(&from, &to, &names, CALM).await;
    assert_equal(&from, &to, &names, &CheckOptions::default()).await;
    for daemon in &sidecars {
        let failed = daemon.log_lines_with(&["partition FAILED"]);
        assert!(failed.is_empty(), "{failed:#?}");
    }
    let state = state_topic(&topics_of(&names, 0));
    let held = ends(&to, &state, "read_committed").await;
    assert_eq!(held.len(), STATE_PARTITIONS as usize);
    let writes = tokio::task::spawn_blocking(move || assert_one_story(&to, &state))
        .await
        .unwrap();
    eprintln!("{writes} states written, each on top of the one before");
}

/// How many partitions a sidecar has, in all of its mirrors, and in how many it mirrors.
fn share(status: &Value) -> (usize, usize) {
    let mirrors = status["mirrors"].as_array().unwrap();
    let partitions = mirrors
        .iter()
        .flat_map(|mirror| mirror["partitions"].as_array().unwrap());
    let states: Vec<&Value> = partitions.map(|partition| &partition["state"]).collect();
    let mirroring = states.iter().filter(|state| **state == "MIRRORING").count();
    (states.len(), mirroring)
}

/// Waits until every partition is MIRRORING at exactly one sidecar.
async fn calm(sidecars: &mut [Daemon], all: usize) -> Duration {
    let since = Instant::now();
    poll_until("all partitions are MIRRORING", CALM, async || {
        let mut found = Vec::new();
        for daemon in sidecars.iter_mut() {
            let status = daemon.status().await?;
            found.push(share(&status));
        }
        let right = found.iter().map(|(have, _)| have).sum::<usize>() == all
            && found.iter().map(|(_, mirroring)| mirroring).sum::<usize>() == all;
        if right {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
    since.elapsed()
}
