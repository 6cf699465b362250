//! Public faults of other replicators that concern states: what stands in the state topic, topics and clusters that are not
//! what they were, failures that come back, stops that must end. By their numbers in the collection of cases.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::support::checker::read_all;
use crate::support::daemon::{Daemon, config, member, state_topic};
use crate::support::kafka::{ClusterOptions, ConfigOf, KafkaCluster, shared_pair, unique};
use crate::support::operate::{delete_when_restored, described, done};
use crate::support::pairs::{Pair, Turn, take_turn};
use crate::support::poll_until;
use crate::support::producer::{Load, Producer, ProducerOptions, TestRecord, records};
use crate::support::proxy::{Action, Mode, Replace, Rule};
use crate::support::raw::{FETCH, on_records_with, position, produce_raw};
use crate::support::segments::batches;
use crate::support::status::{partitions, reason, scaled, wait_failed, wait_mirrored};
use crate::support::steps::{
    all_ends, arrives, end, end_of, grow, produce, reconfigure, restart, start, stop_and_time,
    wait_in, wait_mirroring,
};
use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::{
    CreateAclsRequest, DescribeConfigsResponse, InitProducerIdRequest, MetadataResponse,
    ResponseHeader,
};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};
use kafka_protocol::records::{
    Compression, Record, RecordBatchEncoder, RecordEncodeOptions, TimestampType,
};
use serde_json::Value;
use tokio::time::Instant;
use truemirror::domain::route;
use truemirror::domain::state::PartitionState;
use truemirror::domain::state_log::{
    MirrorPartition, PartitionValue, StateKey, StateRecord, StateValue,
};
use truemirror::domain::types::TopicPartition;
use truemirror::kafka::connect::Address;
use truemirror::kafka::peer::Peers;
use truemirror::wire::mirror_rpc::{
    ReadMirrorStatesPartition, ReadMirrorStatesPartitionResult, ReadMirrorStatesRequest,
    ReadMirrorStatesTopic,
};
use truemirror::wire::state_record;

const SOON: Duration = Duration::from_secs(60);

/// Api key of Metadata.
const METADATA: i16 = 3;
/// Api key of WriteTxnMarkers.
const WRITE_TXN_MARKERS: i16 = 27;
/// Api key of DescribeConfigs.
const DESCRIBE_CONFIGS: i16 = 32;

/// State partitions of [`config`].
const STATE_PARTITIONS: i32 = 4;

/// A pair behind proxies, for one test at a time.
async fn proxied_pair() -> Turn {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    let turn = take_turn(
        &PAIR,
        ClusterOptions::new("states-source").proxied(),
        ClusterOptions::new("states-destination").proxied(),
    )
    .await;
    let (source, proxy) = (turn.source, turn.source.proxy());
    proxy.set_upstream(1, source.client_port(1));
    proxy.set_mode_of_all(Mode::Pass);
    turn
}

/// Returns after the mirror has looked at all topics of both clusters once more: it has found one that is new. The name must
/// be one that the mirror's pattern matches.
async fn looked_again(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    daemon: &mut Daemon,
    prefix: &str,
) {
    let later = unique(&format!("{prefix}-later"));
    source.create_topic(&later, 1, 1, &[]).await;
    produce(source, &later, 0, &records(7, 3)).await;
    arrives(source, destination, &[&later]).await;
    wait_mirrored(daemon, &later, 0, SOON).await;
}

async fn topic_command(daemon: &mut Daemon, command: &str, topic: &str) {
    let mut arguments = vec![command, "--mirror", "test", "--topics", topic];
    if command == "stop" {
        arguments.push("--yes");
    }
    done(daemon, &arguments).await;
}

/// What the coordinator answers for partitions of one topic; the codes of errors among it.
async fn read_states(
    daemon: &mut Daemon,
    mirror: &str,
    topic: &str,
    indexes: &[i32],
) -> Vec<ReadMirrorStatesPartitionResult> {
    let address = daemon.addr_of("listener ready").await;
    let address: Address = address.to_string().parse().unwrap();
    let request = read_request(mirror, topic, indexes);
    let answer = Peers::default()
        .call(&address, &request, Duration::from_secs(10))
        .await
        .unwrap();
    assert!(answer.error_code.is_none(), "{answer:?}");
    answer.topics.into_iter().next().unwrap().partitions
}

/// What the coordinator of partition 0 of a topic says once it is loaded.
async fn read_state(daemon: &mut Daemon, topic: &str) -> ReadMirrorStatesPartitionResult {
    poll_until("the state is loaded", SOON, async || {
        let found = read_states(daemon, "test", topic, &[0]).await.remove(0);
        match found.error_code.0 {
            0 => Ok(found),
            14 | 16 => Err(format!("{found:?}")),
            code => panic!("code {code}: {found:?}"),
        }
    })
    .await
}

fn read_request(mirror: &str, topic: &str, indexes: &[i32]) -> ReadMirrorStatesRequest {
    let partitions = indexes.iter().map(|index| ReadMirrorStatesPartition {
        partition_index: *index,
    });
    ReadMirrorStatesRequest {
        mirror_name: mirror.into(),
        topics: vec![ReadMirrorStatesTopic {
            name: topic.into(),
            partitions: partitions.collect(),
        }],
    }
}

// ---- the state topic

fn partition_key(mirror: &str, topic: &str, index: i32) -> MirrorPartition {
    MirrorPartition {
        mirror: mirror.into(),
        partition: TopicPartition::new(topic, index),
    }
}

/// A record of the state topic as its writer makes it.
fn state_record(key: StateKey, value: Option<StateValue>) -> TestRecord {
    let (key, value) = state_record::encode(&StateRecord { key, value }).unwrap();
    TestRecord {
        key: Some(key.to_vec()),
        value: value.map(|value| value.to_vec()),
        ..TestRecord::default()
    }
}

/// Makes the state topic as the daemon would.
async fn make_state_topic(
    destination: &KafkaCluster,
    name: &str,
    partitions: i32,
    more: &[(&str, &str)],
) {
    let mut configs = vec![
        ("cleanup.policy", "compact"),
        ("message.timestamp.type", "CreateTime"),
    ];
    configs.extend(more);
    destination
        .create_topic(name, partitions, 1, &configs)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s01_s02_records_of_later_versions_and_lone_tombstones_are_left_alone() {
    let (source, destination) = shared_pair().await;
    let topic = unique("s01");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    topic_command(&mut daemon, "pause", &topic).await;
    wait_in(&mut daemon, &topic, 0, "PAUSED").await;
    end(&mut daemon).await;
    let state = state_topic(&[&topic]);
    let later = TestRecord {
        key: Some(vec![0, 99, 1, 2, 3]),
        value: Some(vec![0, 0, 7]),
        ..TestRecord::default()
    };
    let (mirror, gone): (Arc<str>, Arc<str>) = ("nobody".into(), "gone".into());
    let key = partition_key("nobody", "gone", 0);
    let tombstones = [
        StateKey::LastMirrorEpochs(key.clone()),
        StateKey::Partition(key),
        StateKey::Topic {
            mirror: Arc::clone(&mirror),
            topic: gone,
        },
        StateKey::Mirror { mirror },
    ];
    for partition in 0..STATE_PARTITIONS {
        let mut records = vec![later.clone()];
        let removed = tombstones.iter().map(|key| state_record(key.clone(), None));
        records.extend(removed);
        produce(destination, &state, partition, &records).await;
    }
    daemon.start_again();
    wait_in(&mut daemon, &topic, 0, "PAUSED").await;
    let one = read_state(&mut daemon, &topic).await;
    assert_eq!(one.state, PartitionState::Paused.number(), "{one:?}");
    let said = daemon.log_lines_with(&["WARN", "type 99"]);
    assert_eq!(said.len(), STATE_PARTITIONS as usize, "{said:#?}");
    let labels = [("cause", "unknown_type")];
    let skipped = "truemirror_state_records_skipped_total";
    assert_eq!(
        daemon.metric(skipped, &labels).await,
        f64::from(STATE_PARTITIONS)
    );
    let listed = done(&mut daemon, &["list"]).await;
    assert!(
        listed.contains("test") && !listed.contains("nobody"),
        "{listed}"
    );
    topic_command(&mut daemon, "resume", &topic).await;
    produce(source, &topic, 0, &records(2, 10)).await;
    arrives(source, destination, &[&topic]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s03_a_state_batch_larger_than_one_read_is_loaded() {
    const PARTITIONS: i32 = 3000;
    let (source, destination) = shared_pair().await;
    let topic = unique("s03");
    source.create_topic(&topic, 1, 1, &[]).await;
    let state = state_topic(&[&topic]);
    let large = [("max.message.bytes", "10000000")];
    make_state_topic(destination, &state, 1, &large).await;
    // Two kilobytes of words each: more than 5 MiB, which is what one read of the loader asks for.
    let words: String = (0..500).map(|n| format!("{n:04}")).collect();
    let content: Vec<TestRecord> = (0..PARTITIONS)
        .map(|index| {
            let value = PartitionValue {
                state: PartitionState::Failed,
                previous_state: PartitionState::Mirroring,
                retry_attempt: -1,
                error_message: Some(words.as_str().into()),
                state_epoch: index + 1,
                ..PartitionValue::default()
            };
            let key = StateKey::Partition(partition_key("old", "many", index));
            state_record(key, Some(StateValue::Partition(value)))
        })
        .collect();
    let options = ProducerOptions {
        linger: Duration::from_secs(2),
        extra: vec![("batch.size".into(), "9500000".into())],
        ..ProducerOptions::default()
    };
    Producer::new(&destination.bootstrap(), &options)
        .await
        .produce(&state, 0, &content)
        .await;
    let largest = batches(destination, &state, 0).await;
    let largest = largest.iter().map(|batch| batch.bytes).max().unwrap();
    assert!(largest > 5 << 20, "the batch is of {largest} bytes only");
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "");
    let mut daemon = Daemon::start(&text.replace("partitions = 4", "partitions = 1"));
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    let indexes: Vec<i32> = (0..PARTITIONS).collect();
    let found = read_states(&mut daemon, "old", "many", &indexes).await;
    assert_eq!(found.len(), PARTITIONS as usize);
    for one in found {
        let wanted = (PartitionState::Failed.number(), one.partition_index + 1);
        assert_eq!((one.state, one.state_epoch), wanted, "{one:?}");
        assert_eq!(one.error_message.as_deref(), Some(&*words));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s04_nobody_is_told_that_a_state_is_unknown_before_it_is_loaded() {
    const RECORDS: usize = 200_000;
    const OF_TOPIC: usize = 1_000;
    let (source, destination) = shared_pair().await;
    let topic = unique("s04");
    source.create_topic(&topic, 1, 1, &[]).await;
    let state = state_topic(&[&topic]);
    make_state_topic(destination, &state, STATE_PARTITIONS, &[]).await;
    let mut content: BTreeMap<i32, Vec<TestRecord>> = BTreeMap::new();
    for number in 0..RECORDS {
        let index = (number % OF_TOPIC) as i32;
        let name = format!("topic-{}", number / OF_TOPIC);
        let key = partition_key("old", &name, index);
        let place = route::of_partition("old", &key.partition, STATE_PARTITIONS);
        let value = PartitionValue {
            state: PartitionState::Paused,
            previous_state: PartitionState::Pausing,
            state_epoch: index + 1,
            ..PartitionValue::default()
        };
        let record = state_record(StateKey::Partition(key), Some(StateValue::Partition(value)));
        content.entry(place).or_default().push(record);
    }
    let producer = Producer::new(&destination.bootstrap(), &ProducerOptions::default()).await;
    for (place, content) in &content {
        producer.produce(&state, *place, content).await;
    }

    let mut daemon = start(source, destination, &[&topic]);
    let started = Instant::now();
    let address = daemon.addr_of("listener ready").await;
    let address: Address = address.to_string().parse().unwrap();
    let indexes: Vec<i32> = (0..OF_TOPIC as i32).step_by(20).collect();
    let request = read_request("old", "topic-199", &indexes);
    let peers = Peers::default();
    let (mut not_yet, mut nobody) = (0, 0);
    let mut loading_since = None;
    let took = poll_until("all states are loaded", SOON, async || {
        let answer = peers
            .call(&address, &request, Duration::from_secs(10))
            .await;
        let answer = answer.map_err(|error| error.to_string())?;
        assert!(answer.error_code.is_none(), "{answer:?}");
        let mut missing = 0;
        for one in &answer.topics[0].partitions {
            match one.error_code.0 {
                0 => {
                    let wanted = (PartitionState::Paused.number(), one.partition_index + 1);
                    assert_eq!((one.state, one.state_epoch), wanted, "{one:?}");
                }
                14 => {
                    loading_since.get_or_insert_with(Instant::now);
                    (not_yet, missing) = (not_yet + 1, missing + 1);
                }
                16 => (nobody, missing) = (nobody + 1, missing + 1),
                code => panic!("code {code}: {one:?}"),
            }
        }
        if missing == 0 {
            Ok(loading_since.map(|since: Instant| since.elapsed()))
        } else {
            Err(format!("{missing} are not loaded"))
        }
    })
    .await;
    let took = took.expect("it was asked while it loaded");
    eprintln!(
        "{RECORDS} state records loaded in {took:?} ({:?} after the start of the process); until then {nobody} answers of \
         NOT_COORDINATOR and {not_yet} of COORDINATOR_LOAD_IN_PROGRESS",
        started.elapsed()
    );
    assert!(took < Duration::from_secs(5), "{took:?}");
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s08_nothing_of_a_deleted_mirror_is_left_for_the_next_of_its_name() {
    let (source, destination) = shared_pair().await;
    let (old, new) = (unique("s08-old"), unique("s08-new"));
    for topic in [&old, &new] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, 10)).await;
    }
    let state = state_topic(&[&old]);
    let mut daemon = start(source, destination, &[&old]);
    wait_mirrored(&mut daemon, &old, 0, SOON).await;
    topic_command(&mut daemon, "stop", &old).await;
    wait_in(&mut daemon, &old, 0, "STOPPED").await;
    let stopped = read_state(&mut daemon, &old).await;
    assert!(stopped.last_mirror_epoch >= 0, "{stopped:?}");
    delete_when_restored(&mut daemon).await;
    // Of every kind of record: state, last mirrored epoch, topic and mirror.
    let removed = async || {
        let lines = read_all(&destination.bootstrap(), &state, "read_committed").await;
        let mut last: BTreeMap<String, (i64, bool)> = BTreeMap::new();
        for line in &lines {
            let (place, rest) = line.split_once(": offset ").unwrap();
            let offset: i64 = rest.split(',').next().unwrap().parse().unwrap();
            let key = rest.split_once("key ").unwrap().1;
            let (key, value) = key.split_once(", value ").unwrap();
            if !key.contains("test") {
                continue;
            }
            let known = last.entry(format!("{place} {key}")).or_default();
            *known = (*known).max((offset, value.starts_with("null")));
        }
        let alive: Vec<_> = last.iter().filter(|(_, (_, null))| !null).collect();
        if alive.is_empty() && last.len() >= 4 {
            Ok(())
        } else {
            Err(format!("{alive:#?} of {}", last.len()))
        }
    };
    poll_until("all its keys are removed", SOON, removed).await;
    end(&mut daemon).await;
    let at_once = [
        ("min.compaction.lag.ms", Some("0")),
        ("segment.ms", Some("100")),
        ("min.cleanable.dirty.ratio", Some("0.0")),
    ];
    let of_state = ConfigOf::Topic(state.clone());
    destination.alter_config(&of_state, &at_once).await;
    reconfigure(
        &daemon,
        &format!("include = [{old:?}]"),
        &format!("include = [{new:?}]"),
    );
    daemon.start_again();
    wait_mirrored(&mut daemon, &new, 0, SOON).await;
    poll_until("compaction has removed the old values", SOON, async || {
        let lines = read_all(&destination.bootstrap(), &state, "read_committed").await;
        let left: Vec<_> = lines
            .iter()
            .filter(|line| line.contains(&old) && !line.contains("value null"))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:#?}"))
        }
    })
    .await;
    restart(&mut daemon).await;
    wait_mirrored(&mut daemon, &new, 0, SOON).await;
    let forgotten = read_state(&mut daemon, &old).await;
    assert_eq!(forgotten.state, PartitionState::Unknown.number());
    assert_eq!(
        (forgotten.last_mirror_epoch, forgotten.state_epoch),
        (-1, -1)
    );
    let shown = described(&mut daemon).await;
    assert!(shown.iter().all(|one| one["topic"] == *new), "{shown:#?}");
    arrives(source, destination, &[&new]).await;
}

// ---- what was there is not there any more, or is something else

#[tokio::test(flavor = "multi_thread")]
async fn s06_a_state_topic_that_is_deleted_in_use_is_made_anew_from_memory() {
    let (source, destination) = shared_pair().await;
    let (moving, paused) = (unique("s06-moving"), unique("s06-paused"));
    for topic in [&moving, &paused] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, 10)).await;
    }
    let mut daemon = start(source, destination, &[&moving, &paused]);
    for topic in [&moving, &paused] {
        wait_mirrored(&mut daemon, topic, 0, SOON).await;
    }
    topic_command(&mut daemon, "pause", &paused).await;
    wait_in(&mut daemon, &paused, 0, "PAUSED").await;
    let mut known = Vec::new();
    for topic in [&moving, &paused] {
        known.push(read_state(&mut daemon, topic).await);
    }
    let state = state_topic(&[&moving, &paused]);
    destination.delete_topic(&state).await;
    produce(source, &moving, 0, &records(3, 5)).await;
    arrives(source, destination, &[&moving]).await;
    poll_until("the states are in a topic again", SOON, async || {
        let found = destination.partitions(&state).await?;
        let led = found.len() == STATE_PARTITIONS as usize
            && found.values().all(|view| view.leader.is_some());
        led.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
    for (topic, known) in [&moving, &paused].into_iter().zip(known) {
        // Its state epoch is among it: epochs go on rising.
        assert_eq!(read_state(&mut daemon, topic).await, known);
    }
    let said = daemon.log_lines_with(&["ERROR"]);
    assert!(said.len() == 1 && said[0].contains(&state), "{said:#?}");
    for topic in [&moving, &paused] {
        produce(source, topic, 0, &records(2, 10)).await;
    }
    arrives(source, destination, &[&moving]).await;
    restart(&mut daemon).await;
    wait_mirrored(&mut daemon, &moving, 0, SOON).await;
    wait_in(&mut daemon, &paused, 0, "PAUSED").await;
    assert_eq!(end_of(destination, &moving).await, 25);
    assert_eq!(end_of(destination, &paused).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn s07_a_destination_that_was_made_anew_is_copied_from_the_beginning() {
    let (source, destination) = shared_pair().await;
    let topic = unique("s07");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 100)).await;
    let mut daemon = start(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    end(&mut daemon).await;
    destination.delete_topic(&topic).await;
    destination.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(2, 10)).await;
    daemon.start_again();
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    arrives(source, destination, &[&topic]).await;
    assert_eq!(end_of(destination, &topic).await, 110);
    let held = destination.describe_config(&ConfigOf::Topic(topic)).await;
    assert_eq!(held["retention.ms"], "-1", "it is held like any other");
}

#[tokio::test(flavor = "multi_thread")]
async fn s09_s10_topics_deleted_or_made_anew_at_the_source_fail_for_good() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("s09");
    let (deleted, anew) = (format!("{prefix}-deleted"), format!("{prefix}-anew"));
    for (topic, count) in [(&deleted, 20), (&anew, 100)] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, count)).await;
    }
    let mut daemon = start(source, destination, &[&format!("{prefix}-.*")]);
    for topic in [&deleted, &anew] {
        wait_mirrored(&mut daemon, topic, 0, SOON).await;
    }
    source.delete_topic(&deleted).await;
    source.delete_topic(&anew).await;
    source.create_topic(&anew, 1, 1, &[]).await;
    produce(source, &anew, 0, &records(2, 10)).await;
    wait_failed(&mut daemon, &deleted, 0, &["deleted", "kept"], SOON).await;
    let why = wait_failed(&mut daemon, &anew, 0, &[], SOON).await;
    // The new one may not have been there yet at the first look after the old one was gone.
    assert!(
        why.contains("topic id changed") || why.contains("was deleted"),
        "{why}"
    );
    for round in 0..2 {
        if round > 0 {
            restart(&mut daemon).await;
        }
        looked_again(source, destination, &mut daemon, &prefix).await;
        poll_until("both are FAILED and not retried", SOON, async || {
            let shown = described(&mut daemon).await;
            let failed = |topic: &str| {
                shown.iter().any(|one| {
                    one["topic"] == topic && one["state"] == "FAILED" && one["retryAttempt"] == -1
                })
            };
            if failed(&deleted) && failed(&anew) {
                Ok(())
            } else {
                Err(format!("{shown:#?}"))
            }
        })
        .await;
        assert_eq!(end_of(destination, &deleted).await, 20);
        assert_eq!(end_of(destination, &anew).await, 100);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s17_another_cluster_under_the_sources_address_halts_the_mirror() {
    let turn = proxied_pair().await;
    let (source, (other, destination)) = (turn.source, shared_pair().await);
    let topic = unique("s17");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 50)).await;
    other.create_topic(&topic, 1, 1, &[]).await;
    produce(other, &topic, 0, &records(2, 80)).await;
    let mut daemon = start(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    let lead_to = |port| {
        source.proxy().set_upstream(1, port);
        source.proxy().cut_connections(None);
    };
    let (ours, theirs) = (source.cluster_id(), other.cluster_id());

    // A running one knows its source: it waits until that is back.
    lead_to(other.client_port(1));
    daemon
        .wait_until("it is said whose cluster answers", SOON, |status| {
            let source = &status["mirrors"][0]["source"];
            let words = source["last_error"].as_str().unwrap_or_default();
            source["reachable"] == false && words.contains(ours) && words.contains(theirs)
        })
        .await;
    assert_eq!(end_of(destination, &topic).await, 50);
    lead_to(source.client_port(1));
    produce(source, &topic, 0, &records(3, 5)).await;
    arrives(source, destination, &[&topic]).await;

    let said = daemon.log_lines_with(&["WARN", theirs]);
    assert_eq!(said.len(), 1, "{said:#?}");

    // So does one that is started then: the state topic knows.
    lead_to(other.client_port(1));
    restart(&mut daemon).await;
    wait_failed(&mut daemon, &topic, 0, &[ours, theirs], SOON).await;
    let said = daemon.log_lines_with(&["ERROR", "mirror halted"]);
    assert_eq!(said.len(), 1, "{said:#?}");
    assert_eq!(end_of(destination, &topic).await, 55);
    poll_until("it is written down", SOON, async || {
        let found = read_state(&mut daemon, &topic).await;
        let failed = found.state == PartitionState::Failed.number() && found.retry_attempt == -1;
        failed.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;
    end(&mut daemon).await;
    lead_to(source.client_port(1));
    produce(source, &topic, 0, &records(4, 5)).await;
    daemon.start_again();
    wait_in(&mut daemon, &topic, 0, "FAILED").await;
    topic_command(&mut daemon, "recover", &topic).await;
    arrives(source, destination, &[&topic]).await;
    assert_eq!(end_of(destination, &topic).await, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn s18_s19_new_partitions_are_followed_and_a_wider_destination_is_left_untouched() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("s18");
    let (grown, wider) = (format!("{prefix}-grown"), format!("{prefix}-wider"));
    for topic in [&grown, &wider] {
        source.create_topic(topic, 3, 1, &[]).await;
        for partition in 0..3 {
            produce(source, topic, partition, &records(1, 10)).await;
        }
    }
    destination.create_topic(&wider, 5, 1, &[]).await;
    let mut daemon = start(source, destination, &[&format!("{prefix}-.*")]);
    wait_failed(&mut daemon, &wider, 0, &["5 partitions", "has 3"], SOON).await;
    for partition in 0..3 {
        wait_mirrored(&mut daemon, &grown, partition, SOON).await;
    }
    grow(source, &grown, 6).await;
    for partition in 0..6 {
        produce(source, &grown, partition, &records(2, 10)).await;
    }
    poll_until("six partitions at the destination", SOON, async || {
        let count = destination.partitions(&grown).await?.len();
        (count == 6).then_some(()).ok_or_else(|| count.to_string())
    })
    .await;
    arrives(source, destination, &[&grown]).await;
    for partition in 0..6 {
        wait_mirrored(&mut daemon, &grown, partition, SOON).await;
        let began = format!("partition={partition} ");
        let began = daemon.log_lines_with(&[" mirroring ", &grown, &began]);
        assert_eq!(began.len(), 1, "without a break: {began:#?}");
    }
    let untouched = all_ends(destination, &wider).await;
    assert_eq!(untouched.len(), 5);
    assert!(untouched.values().all(|end| *end == 0), "{untouched:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_partitions_are_followed_by_sidecars_that_do_not_coordinate_too() {
    let (source, destination) = shared_pair().await;
    let topic = unique("widened");
    source.create_topic(&topic, 1, 1, &[]).await;
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "");
    let [mut one, mut other] = ["one", "other"].map(|name| Daemon::start(&member(&text, name, "")));
    wait_mirroring(&mut [&mut one, &mut other], 1).await;
    grow(source, &topic, 6).await;
    let shares = wait_mirroring(&mut [&mut one, &mut other], 6).await;
    assert!(!shares.contains(&0), "{shares:?}");
    for partition in 0..6 {
        produce(source, &topic, partition, &records(2, 10)).await;
    }
    arrives(source, destination, &[&topic]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_topic_is_not_found_again() {
    let (source, destination) = shared_pair().await;
    let prefix = unique("found");
    let topic = format!("{prefix}-stopped");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(source, destination, &[&format!("{prefix}-.*")]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    topic_command(&mut daemon, "stop", &topic).await;
    wait_in(&mut daemon, &topic, 0, "STOPPED").await;
    let stopped_at = end_of(destination, &topic).await;
    produce(source, &topic, 0, &records(2, 10)).await;
    produce(destination, &topic, 0, &records(3, 5)).await;
    for round in 0..2 {
        if round > 0 {
            restart(&mut daemon).await;
        }
        looked_again(source, destination, &mut daemon, &prefix).await;
        wait_in(&mut daemon, &topic, 0, "STOPPED").await;
        assert_eq!(end_of(destination, &topic).await, stopped_at + 5);
    }
}

// ---- failures that are tried again

fn attempt_of(shown: &[Value], topic: &str) -> Option<(String, i64)> {
    let one = shown.iter().find(|one| one["topic"] == topic)?;
    let state = one["state"].as_str()?.to_owned();
    Some((state, one["retryAttempt"].as_i64()?))
}

/// Waits for a state with an attempt that fits, and returns it. What `always` says must be true of every look until then.
async fn wait_attempt(
    daemon: &mut Daemon,
    topic: &str,
    fits: impl Fn(&str, i64) -> bool + Sync + Send,
    always: impl Fn(&str, i64) -> bool + Sync + Send,
) -> i64 {
    poll_until("the attempt", SOON, async || {
        let shown = described(daemon).await;
        let Some((state, attempt)) = attempt_of(&shown, topic) else {
            return Err(format!("{shown:#?}"));
        };
        assert!(always(&state, attempt), "{state}, attempt {attempt}");
        if fits(&state, attempt) {
            Ok(attempt)
        } else {
            Err(format!("{state}, attempt {attempt}"))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn s12_attempts_are_counted_over_restarts_until_they_are_used_up() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let prefix = unique("s12");
    let topic = format!("{prefix}-damaged");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(source, destination, &[&format!("{prefix}-.*")]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;

    let damage = async |text: &'static str| {
        let flip = on_records_with(text.into(), u64::MAX, move |answer| {
            let mut records = answer.records.take().unwrap().to_vec();
            let at = position(&records, text.as_bytes()).unwrap();
            records[at] ^= 1;
            answer.records = Some(records.into());
        });
        let rule = Rule::on(FETCH, Action::ReplaceAnswer(flip));
        source.proxy().add_and_meet(rule).await;
        produce(source, &topic, 0, &[TestRecord::new("k", text)]).await;
    };
    damage("spoilt for now").await;
    let failed_twice = |state: &str, attempt| state == "FAILED" && attempt >= 2;
    let before = wait_attempt(&mut daemon, &topic, failed_twice, |_, _| true).await;
    restart(&mut daemon).await;
    let counts_on = |state: &str, attempt| state != "FAILED" || attempt >= before;
    let more = |state: &str, attempt| state == "FAILED" && attempt > before;
    wait_attempt(&mut daemon, &topic, more, counts_on).await;
    source.proxy().clear();
    arrives(source, destination, &[&topic]).await;
    let well = |state: &str, attempt| state == "MIRRORING" && attempt == 0;
    wait_attempt(&mut daemon, &topic, well, |_, _| true).await;
    poll_until("0 is written down", SOON, async || {
        let found = read_state(&mut daemon, &topic).await;
        let right = found.retry_attempt == 0 && found.state == PartitionState::Mirroring.number();
        right.then_some(()).ok_or_else(|| format!("{found:?}"))
    })
    .await;

    end(&mut daemon).await;
    reconfigure(&daemon, "max = \"1s\"", "max = \"1s\"\nmax_attempts = 2");
    daemon.start_again();
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    damage("spoilt once more").await;
    let used_up = |state: &str, attempt| state == "FAILED" && attempt == -1;
    wait_attempt(&mut daemon, &topic, used_up, |_, _| true).await;
    source.proxy().clear();
    for round in 0..2 {
        if round > 0 {
            restart(&mut daemon).await;
        }
        looked_again(source, destination, &mut daemon, &prefix).await;
        wait_attempt(&mut daemon, &topic, used_up, |_, _| true).await;
        assert_eq!(end_of(destination, &topic).await, 11);
    }
    topic_command(&mut daemon, "recover", &topic).await;
    arrives(source, destination, &[&topic]).await;
    wait_attempt(&mut daemon, &topic, well, |_, _| true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_away_for_a_while_fails_nothing() {
    const PARTITIONS: i32 = 4;
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topics = [unique("away-one"), unique("away-other")];
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    for topic in &names {
        source.create_topic(topic, PARTITIONS, 1, &[]).await;
    }
    let all: Vec<(String, i32)> = topics
        .iter()
        .flat_map(|topic| (0..PARTITIONS).map(move |p| (topic.clone(), p)))
        .collect();
    let load = Load::start(&source.direct_bootstrap(), 200, &all);
    let mut daemon = start(source, destination, &names);
    for (topic, partition) in &all {
        wait_in(&mut daemon, topic, *partition, "MIRRORING").await;
    }
    let warned = daemon.log_lines_with(&["WARN"]).len();
    let gone = Instant::now();
    source.proxy().set_mode_of_all(Mode::Refuse);
    daemon
        .wait_until("it is noticed", SOON, |status| {
            status["mirrors"][0]["source"]["reachable"] == false
        })
        .await;
    tokio::time::sleep_until(gone + scaled(Duration::from_secs(20), Duration::from_secs(600)))
        .await;
    let status = daemon.status().await.unwrap();
    let failed: Vec<_> = partitions(&status)
        .iter()
        .filter(|one| one["state"] == "FAILED")
        .collect();
    assert!(failed.is_empty(), "{failed:#?}");
    let mut before = Vec::new();
    for topic in &names {
        before.push(all_ends(destination, topic).await);
    }
    let back = Instant::now();
    source.proxy().set_mode_of_all(Mode::Pass);
    poll_until("all flow", SOON, async || {
        for (topic, before) in names.iter().zip(&before) {
            let now = all_ends(destination, topic).await;
            let still: Vec<_> = before.iter().filter(|(p, end)| now[p] <= **end).collect();
            if !still.is_empty() {
                return Err(format!("{topic} not in {still:?}"));
            }
        }
        Ok(())
    })
    .await;
    let took = back.elapsed();
    eprintln!("all partitions flow {took:?} after the source's return");
    assert!(took < Duration::from_secs(5), "{took:?}");
    load.stop().await;
    arrives(source, destination, &names).await;
    let warnings = daemon.log_lines_with(&["WARN"]).split_off(warned);
    assert!(
        matches!(&*warnings, [one] if one.contains("cannot be reached")),
        "{warnings:#?}"
    );
    let failures = daemon.metric_sum("truemirror_failures_total", &[]).await;
    assert_eq!(failures, 0.0);
}

/// Makes null of the first array of an answer, which stands behind the throttle time.
fn null_array<R>(empty: fn(&mut R)) -> Replace
where
    R: Decodable + Encodable + HeaderVersion + 'static,
{
    Arc::new(move |_, version, frame| {
        let mut rest = Bytes::from(std::mem::take(frame));
        let header_version = R::header_version(version);
        let header = ResponseHeader::decode(&mut rest, header_version).unwrap();
        let mut body = R::decode(&mut rest, version).unwrap();
        empty(&mut body);
        let mut changed = BytesMut::new();
        header.encode(&mut changed, header_version).unwrap();
        let at = changed.len() + 4;
        body.encode(&mut changed, version).unwrap();
        // An empty array of the flexible layout is a 1, and null a 0.
        assert_eq!((header_version, changed[at]), (1, 1));
        changed[at] = 0;
        *frame = changed.to_vec();
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn p09_null_where_a_list_belongs_is_an_error_of_that_call_only() {
    const DAMAGED_FOR: Duration = Duration::from_secs(3);
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let prefix = unique("p09");
    let answers: [(i16, Replace); 2] = [
        (
            METADATA,
            null_array(|answer: &mut MetadataResponse| answer.brokers.clear()),
        ),
        (
            DESCRIBE_CONFIGS,
            null_array(|answer: &mut DescribeConfigsResponse| answer.results.clear()),
        ),
    ];
    let proxy = source.proxy();
    let mut daemon = None;
    for (api_key, replace) in answers {
        let topic = format!("{prefix}-{api_key}");
        let (damaged, before) = (Instant::now(), proxy.applied());
        proxy.add(Rule::on(api_key, Action::ReplaceAnswer(replace)).during(DAMAGED_FOR));
        source.create_topic(&topic, 1, 1, &[]).await;
        produce(source, &topic, 0, &records(1, 10)).await;
        let daemon =
            daemon.get_or_insert_with(|| start(source, destination, &[&format!("{prefix}-.*")]));
        wait_mirrored(daemon, &topic, 0, SOON).await;
        assert!(damaged.elapsed() >= DAMAGED_FOR, "nothing was needed of it");
        let count = proxy.applied() - before;
        eprintln!("api {api_key}: {count} answers with null in {DAMAGED_FOR:?}");
        assert!((1..=20).contains(&count), "{count} answers with null");
        arrives(source, destination, &[&topic]).await;
    }
    let mut daemon = daemon.unwrap();
    let failures = daemon.metric_sum("truemirror_failures_total", &[]).await;
    assert_eq!(failures, 0.0);
}

// ---- stop

#[tokio::test(flavor = "multi_thread")]
async fn partitions_that_are_stopped_together_write_their_fences_together() {
    const PARTITIONS: i32 = 40;
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("together");
    source.create_topic(&topic, PARTITIONS, 1, &[]).await;
    let mut daemon = start(source, destination, &[&topic]);
    for index in 0..PARTITIONS {
        produce(source, &topic, index, &records(1, 3)).await;
    }
    arrives(source, destination, &[&topic]).await;
    destination.proxy().reset_counts();
    stop_and_time(&mut daemon, &topic, PARTITIONS as usize).await;
    let fences = daemon.log_lines_with(&[" stopped ", "fenced=true"]);
    assert_eq!(fences.len(), PARTITIONS as usize);
    let requests = destination.proxy().requests(WRITE_TXN_MARKERS);
    eprintln!("{PARTITIONS} fences in {requests} requests");
    assert!(requests < 20, "{requests}");
    let ends = all_ends(destination, &topic).await;
    assert!(ends.values().all(|end| *end == 4), "one each: {ends:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_without_the_right_to_write_markers_ends_after_a_wait_and_says_so() {
    let (source, _) = shared_pair().await;
    // The broker itself loses the right to speak to its controller, too: it must not be taken for dead for that.
    let authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer";
    let options = ClusterOptions::new("unfenced")
        .with("authorizer.class.name", authorizer)
        .with("super.users", "User:nobody")
        .with("allow.everyone.if.no.acl.found", "true")
        .with("broker.session.timeout.ms", "600000");
    let destination = KafkaCluster::start(options).await;
    let topic = unique("unfenced");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "");
    let mut daemon =
        Daemon::start(&text.replace("[group]\n", "[group]\nsession_timeout = \"3s\"\n"));
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    // Kafka's codes: cluster 4, literal 3, deny 2; Alter 7, ClusterAction 9: either of them allows markers.
    let denied = [7, 9].map(|operation| {
        AclCreation::default()
            .with_resource_type(4)
            .with_resource_name(StrBytes::from_static_str("kafka-cluster"))
            .with_resource_pattern_type(3)
            .with_principal(StrBytes::from_static_str("User:ANONYMOUS"))
            .with_host(StrBytes::from_static_str("*"))
            .with_operation(operation)
            .with_permission_type(2)
    });
    let request = CreateAclsRequest::default().with_creations(denied.to_vec());
    let answer = destination.admin(3, &request).await;
    assert!(
        answer.results.iter().all(|result| result.error_code == 0),
        "{answer:?}"
    );
    let took = stop_and_time(&mut daemon, &topic, 1).await;
    eprintln!("stopped without a fence after {took:?}");
    assert!(
        (Duration::from_millis(3500)..Duration::from_secs(8)).contains(&took),
        "{took:?}"
    );
    let said = daemon.log_lines_with(&["WARN", "stopping without a fence", "fenced=false"]);
    assert_eq!(said.len(), 1, "{said:#?}");
    let said = daemon.log_lines_with(&[" stopped ", "fenced=false", "end_offset=10"]);
    assert_eq!(said.len(), 1, "{said:#?}");
    assert_eq!(end_of(&destination, &topic).await, 10);
    produce(&destination, &topic, 0, &records(2, 1)).await;
    assert_eq!(end_of(&destination, &topic).await, 11);
    let status = daemon.status().await.unwrap();
    assert_eq!(reason(&status, &topic, 0), "");
}

/// A batch of a producer with this id, epoch 0 and sequences from 0.
fn batch_of(producer_id: i64, values: &[&str]) -> Vec<u8> {
    let records: Vec<Record> = (0..)
        .zip(values)
        .map(|(at, value)| Record {
            transactional: false,
            control: false,
            delete_horizon: false,
            partition_leader_epoch: -1,
            producer_id,
            producer_epoch: 0,
            timestamp_type: TimestampType::Creation,
            offset: i64::from(at),
            sequence: at,
            timestamp: 1_700_000_000_000,
            key: None,
            value: Some(Bytes::from((*value).to_owned())),
            headers: Default::default(),
        })
        .collect();
    let mut bytes = BytesMut::new();
    let options = RecordEncodeOptions {
        version: 2,
        compression: Compression::None,
    };
    RecordBatchEncoder::encode(&mut bytes, &records, &options).unwrap();
    bytes.to_vec()
}

/// The producer id that a cluster hands out next.
async fn next_producer_id(cluster: &KafkaCluster) -> i64 {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(None)
        .with_transaction_timeout_ms(60_000);
    // A broker that has just started has to fetch a block of ids first.
    poll_until("a producer id", SOON, async || {
        let answer = cluster.admin(4, &request).await;
        match answer.error_code {
            0 => Ok(answer.producer_id.0),
            code => Err(format!("error {code}")),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn d11_producers_of_the_destination_may_have_the_ids_of_the_sources() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d11");
    source.create_topic(&topic, 2, 1, &[]).await;
    let used = next_producer_id(destination).await;
    let mut ids = Vec::new();
    while ids.len() < 2 {
        let id = next_producer_id(source).await;
        if id > used + 20 {
            ids.push(id);
        }
    }
    let ten: Vec<String> = (0..10).map(|n| format!("source {n}")).collect();
    let ten: Vec<&str> = ten.iter().map(String::as_str).collect();
    for (partition, id) in (0..).zip(&ids) {
        let written = produce_raw(source, &topic, partition, batch_of(*id, &ten)).await;
        assert_eq!(written, Ok(0));
    }
    let mut daemon = start(source, destination, &[&topic]);
    arrives(source, destination, &[&topic]).await;
    stop_and_time(&mut daemon, &topic, 2).await;
    for (partition, id) in (0..).zip(&ids) {
        poll_until("the same id at the destination", SOON, async || {
            let found = next_producer_id(destination).await;
            assert!(found <= *id, "{found} is beyond {id}");
            (found == *id)
                .then_some(())
                .ok_or_else(|| found.to_string())
        })
        .await;
        let batch = batch_of(*id, &["after the failover"]);
        let written = produce_raw(destination, &topic, partition, batch).await;
        // Behind the fence of the stop.
        assert_eq!(written, Ok(11), "partition {partition}, producer id {id}");
    }
    let seen = read_all(&destination.bootstrap(), &topic, "read_committed").await;
    let seen: Vec<_> = seen
        .iter()
        .filter(|line| line.contains("after the failover"))
        .collect();
    assert_eq!(seen.len(), 2, "{seen:#?}");
}
