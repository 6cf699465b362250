//! Tests of the test harness itself: what it says about clusters, connections and equality must be true.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::checker::{
    CheckOptions, assert_equal, compare, ends, read_all, wait_for_same_end,
};
use crate::support::kafka::{ClusterOptions, ConfigOf, KafkaCluster, shared_pair, unique};
use crate::support::producer::{
    CODECS, Load, Producer, ProducerOptions, TestRecord, odd_records, records,
};
use crate::support::proxy::{Action, Mode, Rule};
use crate::support::segments::{batch_count, batches};
use tokio::time::Instant;

const PRODUCE: i16 = 0;
const METADATA: i16 = 3;

#[tokio::test]
async fn equal_content_is_equal_for_all_codecs_and_odd_records() {
    let (source, destination) = shared_pair().await;
    let topic = unique("equal");
    for cluster in [source, destination] {
        cluster.create_topic(&topic, 2, 1, &[]).await;
        for (number, codec) in CODECS.into_iter().enumerate() {
            let options = ProducerOptions::default().codec(codec);
            let producer = Producer::new(&cluster.bootstrap(), &options).await;
            let mut content = odd_records(number as u64);
            content.extend(records(number as u64, 500));
            for record in &mut content {
                record.timestamp.get_or_insert(1_700_000_000_000);
            }
            let offsets = producer.produce(&topic, 1, &content).await;
            let first = (number * content.len()) as i64;
            let expected: Vec<i64> = (first..first + content.len() as i64).collect();
            assert_eq!(offsets, expected, "{codec}");
        }
        let codecs: Vec<i16> = batches(cluster, &topic, 1)
            .await
            .iter()
            .map(|batch| batch.codec)
            .collect();
        for codec in 0..5 {
            assert!(
                codecs.contains(&codec),
                "codec {codec} is missing in {codecs:?}"
            );
        }
    }
    let report = assert_equal(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[&topic],
        &CheckOptions::default(),
    )
    .await;
    assert_eq!((report.partitions, report.records), (2, 5 * 527));
}

#[tokio::test]
async fn null_and_empty_survive_the_way_through_librdkafka() {
    let (source, _) = shared_pair().await;
    let topic = unique("null");
    source.create_topic(&topic, 1, 1, &[]).await;
    let producer = Producer::new(&source.bootstrap(), &ProducerOptions::default()).await;
    let headers = vec![
        ("a".into(), None),
        ("a".into(), Some(Vec::new())),
        (String::new(), Some(vec![0, 255])),
    ];
    let null = TestRecord {
        headers,
        timestamp: Some(5),
        ..TestRecord::default()
    };
    let empty = TestRecord {
        key: Some(Vec::new()),
        value: Some(Vec::new()),
        headers: Vec::new(),
        timestamp: Some(6),
    };
    producer.produce(&topic, 0, &[null, empty]).await;
    assert_eq!(
        read_all(&source.bootstrap(), &topic, "read_committed").await,
        [
            r#"0: offset 0, CreateTime(5), key null, value null, headers ["a"=null, "a"="", ""="\x00\xff"]"#,
            r#"0: offset 1, CreateTime(6), key "", value "", headers []"#,
        ]
    );
}

#[tokio::test]
async fn every_single_difference_is_found() {
    let (source, destination) = shared_pair().await;
    let base = TestRecord {
        headers: vec![("h".into(), Some(b"1".to_vec())), ("h".into(), None)],
        timestamp: Some(1_700_000_000_000),
        ..TestRecord::new("key", "value")
    };
    let with = |change: fn(&mut TestRecord)| {
        let mut record = base.clone();
        change(&mut record);
        record
    };
    let cases: [(&str, Vec<TestRecord>, &str); 8] = [
        (
            "value",
            vec![with(|r| r.value = Some(b"valuf".to_vec()))],
            "offset 1: the records differ",
        ),
        (
            "null-key",
            vec![with(|r| r.key = None)],
            "offset 1: the records differ",
        ),
        (
            "empty-value",
            vec![with(|r| r.value = Some(Vec::new()))],
            "offset 1: the records differ",
        ),
        (
            "timestamp",
            vec![with(|r| r.timestamp = Some(1))],
            "offset 1: the records differ",
        ),
        (
            "header-order",
            vec![with(|r| r.headers.reverse())],
            "offset 1: the records differ",
        ),
        (
            "header-null",
            vec![with(|r| r.headers[1].1 = Some(Vec::new()))],
            "offset 1: the records differ",
        ),
        ("missing", vec![], "missing at the destination"),
        (
            "more",
            vec![base.clone(), base.clone()],
            "only at the destination",
        ),
    ];
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    let from_producer = Producer::new(&from, &ProducerOptions::default()).await;
    let to_producer = Producer::new(&to, &ProducerOptions::default()).await;
    for (name, at_destination, expected) in cases {
        let topic = unique(name);
        source.create_topic(&topic, 1, 1, &[]).await;
        destination.create_topic(&topic, 1, 1, &[]).await;
        from_producer
            .produce(&topic, 0, &[base.clone(), base.clone()])
            .await;
        to_producer
            .produce(&topic, 0, std::slice::from_ref(&base))
            .await;
        to_producer.produce(&topic, 0, &at_destination).await;
        let report = compare(&from, &to, &[&topic], &CheckOptions::default()).await;
        assert!(
            report
                .differences
                .iter()
                .any(|text| text.contains(expected)),
            "{name}: {:?}",
            report.differences
        );
    }
}

#[tokio::test]
async fn aborted_records_are_not_expected_and_the_end_is_the_last_stable_offset() {
    let (source, destination) = shared_pair().await;
    let topic = unique("transactions");
    for cluster in [source, destination] {
        cluster.create_topic(&topic, 1, 1, &[]).await;
    }
    let options = ProducerOptions::default().transactional(&topic);
    let producer = Producer::new(&source.bootstrap(), &options).await;
    producer.begin().await;
    producer.produce(&topic, 0, &records(1, 3)).await;
    producer.abort().await;
    producer.begin().await;
    producer.produce(&topic, 0, &records(2, 3)).await;
    producer.commit().await;
    producer.begin().await;
    producer.produce(&topic, 0, &records(3, 3)).await;
    let seen = ends(&source.bootstrap(), &topic, "read_committed").await;
    assert_eq!(seen[&0], (0, 8), "the open transaction begins at 8");
    let all = ends(&source.bootstrap(), &topic, "read_uncommitted").await;
    assert_eq!(all[&0], (0, 11));
    let read = read_all(&source.bootstrap(), &topic, "read_committed").await;
    assert_eq!(read.len(), 3, "{read:?}");
    let markers = batches(source, &topic, 0).await;
    let markers: Vec<i64> = markers
        .iter()
        .filter(|batch| batch.control)
        .map(|batch| batch.base_offset)
        .collect();
    assert_eq!(markers, [3, 7]);
    producer.abort().await;
    let report = compare(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[&topic],
        &CheckOptions::default(),
    )
    .await;
    assert_eq!(report.records, 3);
    assert!(
        !report.differences.is_empty(),
        "the destination topic is empty"
    );
}

#[tokio::test]
async fn configs_batches_tools_and_load() {
    let (source, destination) = shared_pair().await;
    let topic = unique("admin");
    source
        .create_topic(&topic, 3, 1, &[("retention.ms", "1000000")])
        .await;
    let of = ConfigOf::Topic(topic.clone());
    assert_eq!(source.describe_config(&of).await["retention.ms"], "1000000");
    source
        .alter_config(
            &of,
            &[("retention.ms", None), ("max.message.bytes", Some("2000"))],
        )
        .await;
    let configs = source.describe_config(&of).await;
    assert_eq!(configs["max.message.bytes"], "2000");
    assert_ne!(configs["retention.ms"], "1000000");

    let options = ProducerOptions::default().batches_of(10);
    let producer = Producer::new(&source.bootstrap(), &options).await;
    let small: Vec<TestRecord> = (0..100).map(|_| TestRecord::new("k", "v")).collect();
    producer.produce(&topic, 2, &small).await;
    let counts = batch_count(source, &topic).await;
    assert_eq!((counts[0], counts[1]), (0, 0));
    assert!(counts[2] >= 10, "{counts:?}");
    let large = TestRecord::new("k", &"large ".repeat(1000));
    let refused = producer.try_produce(&topic, 2, &[large]).await;
    assert!(refused[0].is_err(), "{refused:?}");
    source
        .alter_config(&of, &[("max.message.bytes", None)])
        .await;

    let load = Load::start(
        &source.bootstrap(),
        2000,
        &[(topic.clone(), 0), (topic.clone(), 1)],
    );
    crate::support::poll_until("some load", Duration::from_secs(20), async || {
        (load.delivered() > 500)
            .then_some(())
            .ok_or_else(|| "not yet".into())
    })
    .await;
    let counts = load.stop().await;
    assert_eq!(counts.failed, 0);
    for partition in [0, 1] {
        let key = (topic.clone(), partition);
        let seen = ends(&source.bootstrap(), &topic, "read_uncommitted").await;
        assert_eq!(counts.delivered[&key] as i64, seen[&partition].1);
        assert_eq!(counts.last_offset[&key] + 1, seen[&partition].1);
    }

    let printed = source
        .tool(
            "org.apache.kafka.tools.TopicCommand",
            &["--bootstrap-server", &source.direct_bootstrap(), "--list"],
        )
        .await;
    assert!(printed.contains(&topic), "{printed}");

    destination.create_topic(&topic, 3, 1, &[]).await;
    destination.delete_topic(&topic).await;
    assert!(destination.partitions(&topic).await.is_err());
    assert_ne!(source.cluster_id(), destination.cluster_id());
}

#[tokio::test]
async fn a_million_records_are_compared_in_time() {
    let (source, _) = shared_pair().await;
    let topic = unique("million");
    source.create_topic(&topic, 4, 1, &[]).await;
    let options = ProducerOptions::default().codec("lz4");
    let producer = Producer::new(&source.bootstrap(), &options).await;
    let content = records(1, 25_000);
    for _ in 0..10 {
        for partition in 0..4 {
            producer.produce(&topic, partition, &content).await;
        }
    }
    let begin = Instant::now();
    let bootstrap = source.bootstrap();
    let deadline = Duration::from_secs(60);
    wait_for_same_end(&bootstrap, &bootstrap, &[&topic], deadline).await;
    let report = assert_equal(&bootstrap, &bootstrap, &[&topic], &CheckOptions::default()).await;
    assert_eq!(report.records, 1_000_000);
    eprintln!(
        "a million records against themselves: {:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn leaders_move_when_brokers_die_and_nothing_is_left_behind() {
    let cluster = KafkaCluster::start(ClusterOptions::three_brokers("leaders")).await;
    let topic = unique("leaders");
    cluster.create_topic(&topic, 1, 3, &[]).await;
    cluster.move_leader(&topic, 0, 2).await;
    assert_eq!(cluster.leader_of(&topic, 0).await, 2);
    let producer = Producer::new(&cluster.bootstrap(), &ProducerOptions::default()).await;
    producer.produce(&topic, 0, &records(1, 100)).await;

    cluster.kill(2);
    let leader = cluster.leader_of(&topic, 0).await;
    assert_ne!(leader, 2);
    producer.produce(&topic, 0, &records(2, 100)).await;
    cluster.start_again_on_new_port(2);
    cluster.wait_ready().await;
    cluster.wait_in_sync(&topic).await;

    cluster.stop(leader).await;
    let next = cluster.leader_of(&topic, 0).await;
    assert_ne!(next, leader);
    cluster.start_again(leader);
    cluster.wait_in_sync(&topic).await;

    cluster.pause(next);
    assert_ne!(cluster.leader_of(&topic, 0).await, next);
    cluster.resume(next);
    cluster.wait_in_sync(&topic).await;

    let seen = ends(&cluster.bootstrap(), &topic, "read_committed").await;
    assert_eq!(seen[&0].0, 0);
    assert!(seen[&0].1 >= 200, "{seen:?}");
    let pids: Vec<u32> = [1, 2, 3, crate::support::kafka::CONTROLLER_ID]
        .into_iter()
        .map(|id| cluster.pid(id).unwrap())
        .collect();
    for pid in &pids {
        assert!(crate::support::process::resident_bytes(*pid).unwrap() > 10 << 20);
        assert!(crate::support::process::cpu_time(*pid).unwrap() > Duration::ZERO);
    }
    let directory = cluster.directory().to_owned();
    drop(cluster);
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
    assert!(!directory.exists());
}

#[tokio::test]
async fn the_proxy_spoils_what_it_is_asked_to() {
    let cluster = KafkaCluster::start(ClusterOptions::new("proxy").proxied()).await;
    let topic = unique("proxy");
    cluster.create_topic(&topic, 1, 1, &[]).await;
    let proxy = cluster.proxy();
    let options = ProducerOptions {
        // What librdkafka waits for the answer to a Produce; its request.timeout.ms binds the broker only.
        extra: vec![("socket.timeout.ms".into(), "1000".into())],
        ..ProducerOptions::default().idempotent()
    };
    let producer = Producer::new(&cluster.bootstrap(), &options).await;
    let one = [TestRecord::new("k", "v")];
    assert_eq!(producer.produce(&topic, 0, &one).await, [0]);
    assert_eq!(proxy.requests(PRODUCE), 1, "{:?}", proxy.all_requests());
    assert!(proxy.requests(METADATA) >= 1);
    assert!(proxy.last_version(PRODUCE).is_some());

    let delay = Duration::from_millis(400);
    proxy.add(Rule::on(PRODUCE, Action::DelayAnswer(delay)).once());
    let begin = Instant::now();
    producer.produce(&topic, 0, &one).await;
    assert!(begin.elapsed() >= delay, "{:?}", begin.elapsed());

    // The broker appends, the answer is lost in three ways; the idempotent retry must not append again.
    for action in [Action::CutAnswer, Action::SwallowAnswer, Action::Stall] {
        let before = proxy.applied();
        let requests = proxy.requests(PRODUCE);
        proxy.add(Rule::on(PRODUCE, action.clone()).broker(1).once());
        let end = ends(&cluster.direct_bootstrap(), &topic, "read_committed").await[&0].1;
        producer.produce(&topic, 0, &one).await;
        let seen = ends(&cluster.direct_bootstrap(), &topic, "read_committed").await[&0].1;
        assert_eq!(seen, end + 1, "{action:?}");
        assert_eq!(proxy.applied(), before + 1, "{action:?}");
        assert!(proxy.requests(PRODUCE) >= requests + 2, "{action:?}");
    }

    // The broker never sees it.
    proxy.add(Rule::on(PRODUCE, Action::CutRequest).times(2));
    producer.produce(&topic, 0, &one).await;

    // The first answer says NOT_LEADER_OR_FOLLOWER (6) in place of what the broker says, which had appended already.
    let spoil = Arc::new(|_key: i16, version: i16, frame: &mut Vec<u8>| {
        let before_error_code = produce_error_at(version, frame);
        frame[before_error_code..before_error_code + 2].copy_from_slice(&6_i16.to_be_bytes());
    });
    let end = ends(&cluster.direct_bootstrap(), &topic, "read_committed").await[&0].1;
    let before = proxy.applied();
    proxy.add(Rule::on(PRODUCE, Action::ReplaceAnswer(spoil)).once());
    producer.produce(&topic, 0, &one).await;
    assert_eq!(proxy.applied(), before + 1);
    let seen = ends(&cluster.direct_bootstrap(), &topic, "read_committed").await[&0].1;
    assert_eq!(seen, end + 1, "the retry was a duplicate");

    // An answer by the proxy itself, the correlation id and no body: the client sees it, the broker sees nothing.
    let plain = Producer::new(&cluster.bootstrap(), &ProducerOptions::default()).await;
    let itself = Arc::new(|request: &[u8]| Some(request[4..8].to_vec()));
    proxy.add(Rule::on(PRODUCE, Action::AnswerItself(itself)).once());
    let end = ends(&cluster.direct_bootstrap(), &topic, "read_committed").await[&0].1;
    let refused = plain.try_produce(&topic, 0, &one).await;
    assert!(
        refused[0].as_ref().is_err_and(|e| e.contains("underflow")),
        "{refused:?}"
    );
    let seen = ends(&cluster.direct_bootstrap(), &topic, "read_committed").await[&0].1;
    assert_eq!(seen, end);

    for mode in [Mode::Mute, Mode::Refuse] {
        proxy.set_mode_of_all(mode);
        let (other, topic) = (producer.clone(), topic.clone());
        let one = one.clone();
        let write = async move { other.produce(&topic, 0, &one).await };
        tokio::pin!(write);
        let early = tokio::time::timeout(Duration::from_millis(700), &mut write).await;
        assert!(early.is_err(), "{mode:?}: produced all the same");
        proxy.set_mode_of_all(Mode::Pass);
        write.await;
    }
    proxy.cut_connections(None);
    cluster.kill(1);
    cluster.start_again_on_new_port(1);
    cluster.wait_ready().await;
    producer.produce(&topic, 0, &one).await;
}

/// Where the error code of the only partition lies in a Produce answer with one topic: behind correlation id, the
/// header's tags and array, name, array, index, each compact from version 9 on.
fn produce_error_at(version: i16, frame: &[u8]) -> usize {
    if version >= 9 {
        let name = usize::from(frame[6]) - 1;
        4 + 1 + 1 + 1 + name + 1 + 4
    } else {
        let name = usize::from(u16::from_be_bytes([frame[8], frame[9]]));
        4 + 4 + 2 + name + 4 + 4
    }
}

/// Not a test: what [`no_broker_outlives_a_killed_test_process`] runs in a process of its own and kills.
#[tokio::test]
async fn victim() {
    let Ok(report) = std::env::var("HARNESS_VICTIM_FILE") else {
        return;
    };
    let cluster = KafkaCluster::start(ClusterOptions::new("victim")).await;
    std::fs::write(&report, cluster.pid(1).unwrap().to_string()).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn no_broker_outlives_a_killed_test_process() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("pid");
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "harness::victim"])
        .env("HARNESS_VICTIM_FILE", &report)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let broker: u32 =
        crate::support::poll_until("victim's broker", Duration::from_secs(120), async || {
            if let Some(status) = victim.try_wait().unwrap() {
                panic!("the victim ended: {status}");
            }
            let text = std::fs::read_to_string(&report).map_err(|error| error.to_string())?;
            text.parse()
                .map_err(|error: std::num::ParseIntError| error.to_string())
        })
        .await;
    assert!(is_alive(broker));
    crate::support::process::kill_and_reap(&mut victim);
    crate::support::poll_until("the broker's end", Duration::from_secs(10), async || {
        (!is_alive(broker))
            .then_some(())
            .ok_or_else(|| format!("pid {broker} lives"))
    })
    .await;
}

#[test]
fn series_of_a_metrics_text_are_picked_by_name_and_labels() {
    let text =
        "# HELP a b\na{x=\"1\",yx=\"2\"} 3\na{x=\"2\"} 4.5\nab 7\na_total{x=\"1\"} 9\nplain 1e3\n";
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [f64]);
    let cases: [Case<'_>; 6] = [
        ("a", &[], &[3.0, 4.5]),
        ("a", &[("x", "1")], &[3.0]),
        ("a", &[("x", "2")], &[4.5]),
        ("a", &[("yx", "2"), ("x", "1")], &[3.0]),
        ("plain", &[], &[1000.0]),
        ("missing", &[], &[]),
    ];
    for (name, labels, expected) in cases {
        assert_eq!(
            crate::support::daemon::series(text, name, labels),
            expected,
            "{name}"
        );
    }
}

/// Whether a process runs: a zombie does not.
fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|text| !text.rsplit(')').next().unwrap_or("Z").starts_with(" Z"))
}
