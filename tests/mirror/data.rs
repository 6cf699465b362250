//! Public faults of other replicators with record data, on real Kafka: cut and damaged answers, large records, codecs, odd
//! records, duplicates after a crash, foreign writers, refusals, adoption, and sources that cannot be mirrored. Must not
//! break brokers: they are shared.

use std::sync::OnceLock;
use std::time::Duration;

use crate::support::checker::{ends, read_all};
use crate::support::daemon::{Daemon, config};
use crate::support::kafka::{ClusterOptions, ConfigOf, KafkaCluster, shared_pair, unique};
use crate::support::pairs::{Pair, Turn, take_turn};
use crate::support::poll_until;
use crate::support::process::resident_bytes;
use crate::support::producer::{CODECS, Load, Producer, ProducerOptions, TestRecord, records};
use crate::support::proxy::{Action, Rule};
use crate::support::raw::{
    FETCH, PRODUCE, at_offset, fixture, on_records_with, position, produce_raw,
};
use crate::support::segments::{assert_same_batches, batches};
use crate::support::status::{is_in, scaled, wait_failed, wait_mirrored};
use crate::support::steps::{arrives, produce};

const SOON: Duration = Duration::from_secs(60);

/// A pair behind proxies, for one test at a time.
async fn proxied_pair() -> Turn {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    take_turn(
        &PAIR,
        ClusterOptions::new("data-source").proxied(),
        ClusterOptions::new("data-destination").proxied(),
    )
    .await
}

fn start(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    topics: &[&str],
    extra: &str,
) -> Daemon {
    Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        topics,
        extra,
    ))
}

async fn end(cluster: &KafkaCluster, topic: &str, partition: i32) -> i64 {
    ends(&cluster.direct_bootstrap(), topic, "read_uncommitted").await[&partition].1
}

/// A record whose value does not compress.
fn large(bytes: usize) -> TestRecord {
    TestRecord {
        value: Some((0..bytes).map(|_| rand::random()).collect()),
        ..TestRecord::new("large", "")
    }
}

fn texts(prefix: &str, count: usize) -> Vec<TestRecord> {
    (0..count)
        .map(|n| TestRecord::new(&format!("key-{n}"), &format!("{prefix} {n}")))
        .collect()
}

// ---- what an answer holds

#[tokio::test(flavor = "multi_thread")]
async fn d23_a_batch_that_was_cut_off_is_fetched_again() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d23");
    source.create_topic(&topic, 1, 1, &[]).await;
    let producer = Producer::new(
        &source.bootstrap(),
        &ProducerOptions::default().batches_of(1),
    )
    .await;
    let three: Vec<_> = (0..3).map(|_| large(400_000)).collect();
    producer.produce(&topic, 0, &three).await;
    let extra = "[mirror.fetch]\npartition_max_bytes = \"512KiB\"";
    let mut daemon = start(source, destination, &[&topic], extra);
    arrives(source, destination, &[&topic]).await;
    assert_eq!(
        daemon
            .metric_sum("truemirror_fetch_errors_total", &[])
            .await,
        0.0
    );
    assert_eq!(
        daemon
            .metric_sum("truemirror_corrupt_batches_total", &[])
            .await,
        0.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn d23_a_batch_that_was_cut_off_on_the_way_is_fetched_again() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("d23-proxy");
    source.create_topic(&topic, 1, 1, &[]).await;
    // The fixture is one batch and the beginning of the next.
    let whole = fixture("F17").iter().copied().take(12 + 0x3a).collect();
    produce_raw(source, &topic, 0, whole).await.unwrap();
    produce(source, &topic, 0, &texts("cut", 5)).await;
    let cut = on_records_with(b"cut 4".to_vec(), 1, |answer| {
        let records = answer.records.as_mut().unwrap();
        assert!(records.len() > 12 + 0x3a);
        records.truncate(records.len() - 20);
    });
    source
        .proxy()
        .add(Rule::on(FETCH, Action::ReplaceAnswer(cut)));
    let mut daemon = start(source, destination, &[&topic], "");
    arrives(source, destination, &[&topic]).await;
    assert_eq!(end(destination, &topic, 0).await, 6);
    for metric in [
        "truemirror_fetch_errors_total",
        "truemirror_corrupt_batches_total",
        "truemirror_failures_total",
    ] {
        assert_eq!(daemon.metric_sum(metric, &[]).await, 0.0, "{metric}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d24_a_record_larger_than_the_fetch_size_arrives_without_a_busy_loop() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d24");
    source
        .create_topic(&topic, 1, 1, &[("max.message.bytes", "8000000")])
        .await;
    produce(
        source,
        &topic,
        0,
        &[large(6_000_000), TestRecord::new("small", "")],
    )
    .await;
    let extra = "[mirror.fetch]\nmax_bytes = \"1MiB\"\npartition_max_bytes = \"1MiB\"";
    let mut daemon = start(source, destination, &[&topic], extra);
    arrives(source, destination, &[&topic]).await;
    let fetches = "truemirror_fetch_requests_total";
    let before = daemon.metric_sum(fetches, &[]).await;
    assert!(
        before < 20.0,
        "{before} fetches for a record that comes whole"
    );
    let over = Duration::from_secs(4);
    tokio::time::sleep(over).await;
    let rate = (daemon.metric_sum(fetches, &[]).await - before) / over.as_secs_f64();
    assert!(rate < 5.0, "{rate} fetches per second while idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn d25_all_batches_of_an_answer_are_read() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d25");
    source.create_topic(&topic, 1, 1, &[]).await;
    let options = ProducerOptions::default().batches_of(1);
    let producer = Producer::new(&source.bootstrap(), &options).await;
    producer.produce(&topic, 0, &texts("one", 100)).await;
    assert_eq!(batches(source, &topic, 0).await.len(), 100);
    let mut daemon = start(source, destination, &[&topic], "");
    let fetches = poll_until("all 100 mirrored", SOON, async || {
        let text = daemon.metrics().await?;
        let sum = |name| -> f64 {
            crate::support::daemon::series(&text, name, &[])
                .iter()
                .sum()
        };
        match sum("truemirror_records_mirrored_total") {
            100.0 => Ok(sum("truemirror_fetch_requests_total")),
            other => Err(format!("{other} mirrored")),
        }
    })
    .await;
    assert!(fetches <= 5.0, "{fetches} fetches");
    arrives(source, destination, &[&topic]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d32_timestamps_of_one_batch_may_lie_half_a_century_apart() {
    raw_fixtures_arrive("d32", &["F08"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d34_headers_keep_order_and_repetitions() {
    let topic = raw_fixtures_arrive("d34", &["F06"]).await;
    let (_, destination) = shared_pair().await;
    let found = batches(destination, &topic, 0).await;
    let (first, second, other) = (
        position(&found[0].payload, b"tag1"),
        position(&found[0].payload, b"tag2"),
        position(&found[0].payload, b"other"),
    );
    assert!(
        first.is_some() && first < second && second < other,
        "{first:?} {second:?} {other:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn d35_null_stays_null_and_empty_stays_empty() {
    raw_fixtures_arrive("d35", &["F07"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d36_framings_of_gzip_and_snappy_are_kept() {
    let topic = raw_fixtures_arrive("d36-framing", &["F19", "F20"]).await;
    let (_, destination) = shared_pair().await;
    let codecs: Vec<i16> = batches(destination, &topic, 0)
        .await
        .iter()
        .map(|b| b.codec)
        .collect();
    assert_eq!(codecs, [1, 2]);
}

/// Writes fixtures to a topic as they are, and sees that the destination holds the same bytes.
async fn raw_fixtures_arrive(name: &str, fixtures: &[&str]) -> String {
    let (source, destination) = shared_pair().await;
    let topic = unique(name);
    source.create_topic(&topic, 1, 1, &[]).await;
    for fixture_name in fixtures {
        produce_raw(source, &topic, 0, fixture(fixture_name))
            .await
            .unwrap_or_else(|code| panic!("{fixture_name}: the source refuses it with {code}"));
    }
    let _daemon = start(source, destination, &[&topic], "");
    arrives(source, destination, &[&topic]).await;
    let copied = assert_same_batches(source, destination, &topic, 0).await;
    assert_eq!(copied.len(), fixtures.len());
    topic
}

#[tokio::test(flavor = "multi_thread")]
async fn d36_every_codec_of_java_and_librdkafka_is_kept() {
    let (source, destination) = shared_pair().await;
    let mut topics = Vec::new();
    for codec in CODECS {
        let topic = unique(&format!("d36-{codec}"));
        source.create_topic(&topic, 2, 1, &[]).await;
        let mut options = ProducerOptions::default().codec(codec);
        options.linger = Duration::from_millis(100);
        options.extra = vec![("batch.size".into(), "200000".into())];
        let content: Vec<TestRecord> = (0..1000)
            .map(|n| TestRecord::new(&format!("{n}"), &format!("{n:0300}")))
            .collect();
        Producer::new(&source.bootstrap(), &options)
            .await
            .produce(&topic, 0, &content)
            .await;
        topics.push(topic);
    }
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    let _daemon = start(source, destination, &names, "");
    for (codec, topic) in CODECS.iter().zip(&names) {
        let server = format!("bootstrap.servers={}", source.direct_bootstrap());
        let compression = format!("compression.type={codec}");
        let printed = source
            .tool(
                "org.apache.kafka.tools.ProducerPerformance",
                &[
                    "--topic",
                    topic,
                    "--num-records",
                    "1000",
                    "--record-size",
                    "300",
                    "--throughput",
                    "-1",
                    "--producer-props",
                    &server,
                    &compression,
                    "batch.size=200000",
                    "linger.ms=100",
                ],
            )
            .await;
        assert!(printed.contains("1000 records sent"), "{printed}");
    }
    arrives(source, destination, &names).await;
    for (number, topic) in names.iter().enumerate() {
        for partition in 0..2 {
            for batch in assert_same_batches(source, destination, topic, partition).await {
                assert_eq!(batch.codec, number as i16, "{topic}-{partition}");
            }
        }
    }
}

// ---- damage

#[tokio::test(flavor = "multi_thread")]
async fn d39_a_damaged_batch_is_counted_not_appended_and_fetched_until_it_is_whole() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let (bad, good) = (unique("d39-bad"), unique("d39-good"));
    for topic in [&bad, &good] {
        source.create_topic(topic, 1, 1, &[]).await;
    }
    let flip = on_records_with(b"flip me".to_vec(), u64::MAX, |answer| {
        let mut records = answer.records.take().unwrap().to_vec();
        let at = position(&records, b"flip me").unwrap();
        records[at] ^= 1;
        answer.records = Some(records.into());
    });
    source
        .proxy()
        .add(Rule::on(FETCH, Action::ReplaceAnswer(flip)));
    let mut daemon = start(source, destination, &[&bad, &good], "");
    produce(source, &bad, 0, &texts("whole", 3)).await;
    wait_mirrored(&mut daemon, &bad, 0, SOON).await;
    produce(source, &bad, 0, &texts("flip me", 3)).await;
    let labels = [("topic", bad.as_str())];
    let corrupt = "truemirror_corrupt_batches_total";
    poll_until("damage counted", SOON, async || {
        match daemon.metric_sum(corrupt, &labels).await {
            0.0 => Err("none".into()),
            _ => Ok(()),
        }
    })
    .await;
    let damaged_for = scaled(Duration::from_secs(6), Duration::from_secs(60));
    tokio::time::sleep(damaged_for).await;
    produce(source, &good, 0, &texts("good", 5)).await;
    arrives(source, destination, &[&good]).await;
    assert_eq!(end(destination, &bad, 0).await, 3);
    assert!(daemon.metric_sum(corrupt, &labels).await > 1.0);
    source.proxy().clear();
    arrives(source, destination, &[&bad, &good]).await;
    wait_mirrored(&mut daemon, &bad, 0, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d40_impossible_counts_fail_one_partition_for_a_moment_and_reserve_no_memory() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let (bad, good) = (unique("d40-bad"), unique("d40-good"));
    for topic in [&bad, &good] {
        source.create_topic(topic, 1, 1, &[]).await;
    }
    produce(source, &bad, 0, &texts("first", 1)).await;
    produce(source, &good, 0, &texts("first", 1)).await;
    let mut daemon = start(source, destination, &[&bad, &good], "");
    arrives(source, destination, &[&bad, &good]).await;
    let before = resident_bytes(daemon.pid().unwrap()).unwrap();
    for (at, name) in ["F12", "F13", "F14", "F15", "F16", "F18"]
        .iter()
        .enumerate()
    {
        let noticed = noticed_faults(&mut daemon).await;
        let marker = format!("swap me {name}");
        let batch = at_offset(fixture(name), at as i64 + 1);
        let swap = on_records_with(marker.clone().into_bytes(), 1, move |answer| {
            answer.records = Some(batch.clone().into());
        });
        source
            .proxy()
            .add_and_meet(Rule::on(FETCH, Action::ReplaceAnswer(swap)))
            .await;
        produce(source, &bad, 0, &texts(&marker, 1)).await;
        produce(source, &good, 0, &texts(name, 1)).await;
        arrives(source, destination, &[&bad, &good]).await;
        let more = noticed_faults(&mut daemon).await - noticed;
        assert!(more >= 1.0, "{name} was not noticed");
        source.proxy().clear();
    }
    let grown = resident_bytes(daemon.pid().unwrap())
        .unwrap()
        .saturating_sub(before);
    assert!(grown < 50 << 20, "{grown} bytes more memory");
}

/// By the daemon itself, or by the destination's broker: a whole batch's records are its to look into.
async fn noticed_faults(daemon: &mut Daemon) -> f64 {
    daemon.metric_sum("truemirror_failures_total", &[]).await
        + daemon
            .metric_sum("truemirror_append_errors_total", &[])
            .await
}

#[tokio::test(flavor = "multi_thread")]
async fn d42_killed_between_append_and_acknowledgement_every_offset_is_there_once() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("d42");
    source.create_topic(&topic, 2, 1, &[]).await;
    let partitions = [(topic.clone(), 0), (topic.clone(), 1)];
    let load = Load::start(&source.direct_bootstrap(), 1000, &partitions);
    let mut daemon = start(source, destination, &[&topic], "");
    wait_mirroring(&mut daemon, &topic, 2).await;
    let proxy = destination.proxy();
    for _ in 0..scaled(4, 20) {
        proxy
            .add_and_meet(Rule::on(PRODUCE, Action::SwallowAnswer).once())
            .await;
        // At a random moment.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
        daemon.kill();
        proxy.clear();
        daemon.start_again();
        wait_mirroring(&mut daemon, &topic, 2).await;
    }
    let counts = load.stop().await;
    assert_eq!(counts.failed, 0);
    arrives(source, destination, &[&topic]).await;
    assert_eq!(
        daemon.metric_sum("truemirror_failures_total", &[]).await,
        0.0
    );
}

async fn wait_mirroring(daemon: &mut Daemon, topic: &str, partitions: i32) {
    daemon
        .wait_until("all mirroring", SOON, |status| {
            (0..partitions).all(|p| is_in(status, topic, p, "MIRRORING"))
        })
        .await;
}

// ---- foreign writers

#[tokio::test(flavor = "multi_thread")]
async fn d43_a_foreign_record_while_copying_stops_its_partition_and_no_other() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d43");
    source.create_topic(&topic, 2, 1, &[]).await;
    let partitions = [(topic.clone(), 0), (topic.clone(), 1)];
    let load = Load::start(&source.bootstrap(), 400, &partitions);
    let mut daemon = start(source, destination, &[&topic], "");
    wait_mirroring(&mut daemon, &topic, 2).await;
    let foreign = Producer::new(&destination.bootstrap(), &ProducerOptions::default()).await;
    let at = foreign.produce(&topic, 0, &texts("foreign", 1)).await[0];
    let words = [
        &format!("destination changed by another writer at offset {at}") as &str,
        "producer id -1",
    ];
    wait_failed(&mut daemon, &topic, 0, &words, SOON).await;
    let end_when_failed = end(destination, &topic, 0).await;
    // What was under way lands behind the foreign record; nothing is sent after that.
    assert!(
        end_when_failed - at <= 1 + 5 * 400,
        "foreign at {at}, end {end_when_failed}"
    );
    let before = end(destination, &topic, 1).await;
    poll_until("the neighbour goes on", SOON, async || {
        let now = end(destination, &topic, 1).await;
        (now > before + 200)
            .then_some(())
            .ok_or_else(|| format!("{before} to {now}"))
    })
    .await;
    assert_eq!(
        end(destination, &topic, 0).await,
        end_when_failed,
        "nothing is appended once it is FAILED"
    );
    load.stop().await;
    wait_mirrored(&mut daemon, &topic, 1, SOON).await;
    let status = daemon.status().await.unwrap();
    assert!(is_in(&status, &topic, 0, "FAILED"));
}

#[tokio::test(flavor = "multi_thread")]
async fn d43_a_foreign_record_while_idle_is_noticed_at_the_next_append() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d43-idle");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &texts("ours", 10)).await;
    let mut daemon = start(source, destination, &[&topic], "");
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    let options = ProducerOptions::default().idempotent();
    let foreign = Producer::new(&destination.bootstrap(), &options).await;
    assert_eq!(foreign.produce(&topic, 0, &texts("foreign", 1)).await, [10]);
    let writer = batches(destination, &topic, 0)
        .await
        .last()
        .unwrap()
        .producer_id;
    produce(source, &topic, 0, &texts("more", 1)).await;
    let words = [
        "destination changed by another writer at offset 10",
        &format!("producer id {writer}") as &str,
    ];
    wait_failed(&mut daemon, &topic, 0, &words, SOON).await;
    produce(source, &topic, 0, &texts("more", 5)).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(
        end(destination, &topic, 0).await <= 12,
        "at most the append that showed it"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_record_while_truemirror_is_down_fails_its_partition_at_the_restart() {
    let (source, destination) = shared_pair().await;
    let topic = unique("foreign-down");
    source.create_topic(&topic, 3, 1, &[]).await;
    for partition in 0..3 {
        produce(source, &topic, partition, &texts("ours", 10)).await;
    }
    let mut daemon = start(source, destination, &[&topic], "");
    for partition in 0..3 {
        wait_mirrored(&mut daemon, &topic, partition, SOON).await;
    }
    daemon.terminate(Duration::from_secs(15)).await;
    let options = ProducerOptions::default().idempotent();
    let foreign = Producer::new(&destination.bootstrap(), &options).await;
    for partition in 0..2 {
        foreign
            .produce(&topic, partition, &texts("foreign", 1))
            .await;
    }
    let writer = batches(destination, &topic, 0)
        .await
        .last()
        .unwrap()
        .producer_id;
    // The source goes on in partition 0, so that both logs have offset 10; in partition 1 the destination is ahead.
    produce(source, &topic, 0, &texts("more", 5)).await;
    produce(source, &topic, 2, &texts("more", 5)).await;
    daemon.start_again();
    let words = ["offset 10", &format!("producer id {writer}") as &str];
    for partition in 0..2 {
        wait_failed(&mut daemon, &topic, partition, &words, SOON).await;
        assert_eq!(end(destination, &topic, partition).await, 11);
    }
    wait_mirrored(&mut daemon, &topic, 2, SOON).await;
    assert_eq!(end(destination, &topic, 2).await, 15);
}

// ---- refusals

#[tokio::test(flavor = "multi_thread")]
async fn d26_the_size_limit_comes_over_before_the_records() {
    let (source, destination) = shared_pair().await;
    let topic = unique("d26");
    source
        .create_topic(&topic, 1, 1, &[("max.message.bytes", "3000000")])
        .await;
    let mut ten = texts("small", 10);
    ten[5] = large(2_500_000);
    produce(source, &topic, 0, &ten).await;
    let _daemon = start(source, destination, &[&topic], "");
    arrives(source, destination, &[&topic]).await;
    assert_eq!(end(destination, &topic, 0).await, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn d26_a_record_too_large_fails_its_partition_until_the_limit_is_raised() {
    let (source, destination) = shared_pair().await;
    let (big, good) = (unique("d26-big"), unique("d26-good"));
    source
        .create_topic(&big, 1, 1, &[("max.message.bytes", "3000000")])
        .await;
    source.create_topic(&good, 1, 1, &[]).await;
    let mut daemon = start(source, destination, &[&big, &good], "");
    produce(source, &big, 0, &texts("small", 5)).await;
    wait_mirrored(&mut daemon, &big, 0, SOON).await;
    arrives(source, destination, &[&big]).await;
    let of_big = ConfigOf::Topic(big.clone());
    destination
        .alter_config(&of_big, &[("max.message.bytes", Some("1048588"))])
        .await;
    let mut rest = texts("after", 5);
    rest[0] = large(2_500_000);
    produce(source, &big, 0, &rest).await;
    let words = ["offset 5", "MESSAGE_TOO_LARGE", "10", "max.message.bytes"];
    wait_failed(&mut daemon, &big, 0, &words, SOON).await;
    let held = batches(destination, &big, 0).await;
    produce(source, &good, 0, &texts("good", 5)).await;
    arrives(source, destination, &[&good]).await;
    let watched_for = scaled(Duration::from_secs(4), Duration::from_secs(60));
    tokio::time::sleep(watched_for).await;
    assert_eq!(end(destination, &big, 0).await, 5);
    assert_eq!(
        batches(destination, &big, 0).await,
        held,
        "the log does not grow"
    );
    destination
        .alter_config(&of_big, &[("max.message.bytes", Some("3000000"))])
        .await;
    arrives(source, destination, &[&big, &good]).await;
    wait_mirrored(&mut daemon, &big, 0, SOON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_key_fails_its_partition_while_the_destination_compacts() {
    let (source, destination) = shared_pair().await;
    let (keyless, good) = (unique("keyless"), unique("keyless-good"));
    for topic in [&keyless, &good] {
        source.create_topic(topic, 1, 1, &[]).await;
    }
    let mut daemon = start(source, destination, &[&keyless, &good], "");
    produce(source, &keyless, 0, &texts("keyed", 3)).await;
    arrives(source, destination, &[&keyless]).await;
    let of_keyless = ConfigOf::Topic(keyless.clone());
    destination
        .alter_config(&of_keyless, &[("cleanup.policy", Some("compact"))])
        .await;
    let no_key = TestRecord {
        key: None,
        ..TestRecord::new("", "no key")
    };
    produce(source, &keyless, 0, &[no_key]).await;
    let words = ["offset 3", "INVALID_RECORD", "87", "cleanup.policy"];
    wait_failed(&mut daemon, &keyless, 0, &words, SOON).await;
    produce(source, &good, 0, &texts("good", 5)).await;
    arrives(source, destination, &[&good]).await;
    assert_eq!(end(destination, &keyless, 0).await, 3);
    destination
        .alter_config(&of_keyless, &[("cleanup.policy", Some("delete"))])
        .await;
    arrives(source, destination, &[&keyless, &good]).await;
    wait_mirrored(&mut daemon, &keyless, 0, SOON).await;
}

// ---- destinations that hold something already

/// Records with times of their own, so that they can be written twice.
fn dated(seed: u64, count: usize) -> Vec<TestRecord> {
    let mut made = records(seed, count);
    for (at, record) in made.iter_mut().enumerate() {
        record.timestamp = Some(1_700_000_000_000 + at as i64);
    }
    made
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_with_the_same_records_in_other_batches_is_adopted_and_continued() {
    let (source, destination) = shared_pair().await;
    let topic = unique("adopted");
    for cluster in [source, destination] {
        cluster.create_topic(&topic, 1, 1, &[]).await;
    }
    let all = dated(7, 500);
    let as_one = ProducerOptions::default().codec("lz4");
    let in_sevens = ProducerOptions::default().codec("zstd").batches_of(7);
    Producer::new(&source.bootstrap(), &as_one)
        .await
        .produce(&topic, 0, &all)
        .await;
    // The prefix ends inside no batch of the source: the next test does that.
    Producer::new(&destination.bootstrap(), &in_sevens)
        .await
        .produce(&topic, 0, &all)
        .await;
    assert_ne!(
        batches(source, &topic, 0).await.len(),
        batches(destination, &topic, 0).await.len()
    );
    produce(source, &topic, 0, &texts("more", 50)).await;
    let mut daemon = start(source, destination, &[&topic], "");
    arrives(source, destination, &[&topic]).await;
    assert_eq!(end(destination, &topic, 0).await, 550);
    // Once more: what was adopted stays adopted.
    daemon.terminate(Duration::from_secs(15)).await;
    produce(source, &topic, 0, &texts("later", 5)).await;
    daemon.start_again();
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    arrives(source, destination, &[&topic]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s20_a_destination_with_other_records_is_refused_and_left_untouched() {
    let (source, destination) = shared_pair().await;
    let (ahead, differs, good) = (
        unique("s20-ahead"),
        unique("s20-differs"),
        unique("s20-good"),
    );
    source.create_topic(&good, 1, 1, &[]).await;
    for (topic, count) in [(&ahead, 10), (&differs, 40)] {
        source
            .create_topic(topic, 1, 1, &[("max.message.bytes", "2000000")])
            .await;
        produce(source, topic, 0, &texts("source", count)).await;
        let configs = [
            ("retention.ms", "86400000"),
            ("max.message.bytes", "1500000"),
        ];
        destination.create_topic(topic, 1, 1, &configs).await;
        produce(destination, topic, 0, &texts("unrelated", 30)).await;
    }
    let mut before = Vec::new();
    for topic in [&ahead, &differs] {
        let records = read_all(&destination.bootstrap(), topic, "read_uncommitted").await;
        assert_eq!(records.len(), 30);
        let configs = destination
            .describe_config(&ConfigOf::Topic(topic.clone()))
            .await;
        before.push((records, configs));
    }
    let mut daemon = start(source, destination, &[&ahead, &differs, &good], "");
    wait_failed(&mut daemon, &ahead, 0, &["offset 10", "30"], SOON).await;
    wait_failed(&mut daemon, &differs, 0, &["differ at offset 0"], SOON).await;
    produce(source, &good, 0, &texts("good", 5)).await;
    arrives(source, destination, &[&good]).await;
    for (topic, (records, configs)) in [&ahead, &differs].into_iter().zip(before) {
        let now = read_all(&destination.bootstrap(), topic, "read_uncommitted").await;
        assert_eq!(now, records);
        let now = destination
            .describe_config(&ConfigOf::Topic(topic.clone()))
            .await;
        assert_eq!(now, configs);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_with_an_open_transaction_is_refused() {
    let (source, destination) = shared_pair().await;
    let topic = unique("undecided");
    for cluster in [source, destination] {
        cluster.create_topic(&topic, 1, 1, &[]).await;
    }
    let all = dated(9, 20);
    Producer::new(&source.bootstrap(), &ProducerOptions::default())
        .await
        .produce(&topic, 0, &all)
        .await;
    let options = ProducerOptions::default().transactional(&unique("open"));
    let open = Producer::new(&destination.bootstrap(), &options).await;
    open.begin().await;
    open.produce(&topic, 0, &all[..10]).await;
    let mut daemon = start(source, destination, &[&topic], "");
    let words = ["open transaction", "offset 0"];
    wait_failed(&mut daemon, &topic, 0, &words, SOON).await;
    assert_eq!(end(destination, &topic, 0).await, 10);
    open.abort().await;
}

// ---- sources that cannot be mirrored

#[tokio::test(flavor = "multi_thread")]
async fn sources_that_cannot_be_kept_identical_fail_with_offset_and_reason() {
    let (source, destination) = shared_pair().await;
    let (transactional, compacted, stamped, good) = (
        unique("transactional"),
        unique("compacted"),
        unique("stamped"),
        unique("faithful"),
    );
    source.create_topic(&transactional, 1, 1, &[]).await;
    source.create_topic(&good, 1, 1, &[]).await;
    source
        .create_topic(
            &stamped,
            1,
            1,
            &[("message.timestamp.type", "LogAppendTime")],
        )
        .await;
    produce(source, &transactional, 0, &texts("plain", 5)).await;
    let options = ProducerOptions::default().transactional(&unique("id"));
    let producer = Producer::new(&source.bootstrap(), &options).await;
    producer.begin().await;
    producer
        .produce(&transactional, 0, &texts("in a transaction", 3))
        .await;
    producer.commit().await;
    produce(source, &stamped, 0, &texts("stamped", 3)).await;
    compacted_with_a_hole(source, &compacted).await;
    produce(source, &good, 0, &texts("good", 5)).await;

    let topics = [
        transactional.as_str(),
        compacted.as_str(),
        stamped.as_str(),
        good.as_str(),
    ];
    let mut daemon = start(source, destination, &topics, "");
    let cases: [(&str, &[&str], i64); 3] = [
        (&transactional, &["offset 5", "transaction"], 5),
        (
            &compacted,
            &["no records at offsets 0 to 3", "compacted"],
            0,
        ),
        (&stamped, &["offset 0", "LogAppendTime"], 0),
    ];
    for (topic, words, copied) in cases {
        wait_failed(&mut daemon, topic, 0, words, SOON).await;
        assert_eq!(end(destination, topic, 0).await, copied, "{topic}");
    }
    arrives(source, destination, &[&good]).await;
    for (topic, _, copied) in cases {
        let seen = read_all(&destination.bootstrap(), topic, "read_uncommitted").await;
        let wanted = read_all(&source.bootstrap(), topic, "read_committed").await;
        assert_eq!(seen.len() as i64, copied, "{topic}");
        assert!(wanted.starts_with(&seen), "{topic}: {seen:?}");
    }
}

/// Offsets 0 to 3 in one batch, of which the last is compacted away.
async fn compacted_with_a_hole(cluster: &KafkaCluster, topic: &str) {
    let configs = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0"),
        ("min.compaction.lag.ms", "0"),
    ];
    cluster.create_topic(topic, 1, 1, &configs).await;
    let keyed = |keys: &str| -> Vec<TestRecord> {
        keys.chars()
            .map(|key| TestRecord::new(&key.to_string(), "value"))
            .collect()
    };
    let options = ProducerOptions {
        linger: Duration::from_millis(500),
        ..ProducerOptions::default()
    };
    let producer = Producer::new(&cluster.bootstrap(), &options).await;
    producer.produce(topic, 0, &keyed("abcd")).await;
    producer.produce(topic, 0, &keyed("d")).await;
    let mut end = 5;
    poll_until("the cleaner made the hole", SOON, async || {
        // Segments roll by time, but only on an append, and the active one is never cleaned.
        if end < 20 {
            producer.produce(topic, 0, &keyed("r")).await;
            end += 1;
        }
        let first = batches(cluster, topic, 0).await.into_iter().next();
        match first {
            Some(batch) if (batch.last_offset, batch.count) == (3, 3) => Ok(()),
            other => Err(format!("{:?}", other.map(|b| (b.last_offset, b.count)))),
        }
    })
    .await;
}
