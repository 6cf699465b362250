//! `truemirror verify` and the reader under it, over real Kafka. Both clusters are written by librdkafka, so that nothing
//! of the mirror is needed.

use std::process::Stdio;
use std::time::Duration;

use crate::support::checker;
use crate::support::kafka::{KafkaCluster, shared_pair, unique};
use crate::support::poll_until;
use crate::support::producer::{
    CODECS, Producer, ProducerOptions, TestRecord, odd_records, records,
};
use crate::support::steps::trim;
use serde_json::Value;
use truemirror::domain::types::{TopicId, TopicPartition};
use truemirror::kafka::cluster::{Cluster, ClusterOptions, Lane, Side, Topics};
use truemirror::kafka::visible::{ReadError, ReadOptions, VisibleBatch, VisibleReader, tail};

const PATIENCE: Duration = Duration::from_secs(120);

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }
}

/// Runs the command for the topics of a prefix.
async fn verify(source: &str, destination: &str, include: &str, args: &[&str]) -> Ran {
    let config = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "[destination]\nbootstrap_servers = [\"{destination}\"]\n[[mirror]]\nname = \"m\"\n\
         [mirror.source]\nbootstrap_servers = [\"{source}\"]\n[mirror.topics]\ninclude = [\"{include}.*\"]\n"
    );
    std::fs::write(config.path(), text).unwrap();
    let command = tokio::process::Command::new(env!("CARGO_BIN_EXE_truemirror"))
        .arg("verify")
        .arg("--config")
        .arg(config.path())
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, command).await.unwrap();
    let output = output.unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Both outputs of the command, which must agree on the exit code.
async fn verify_both_ways(
    (source, destination): (&KafkaCluster, &KafkaCluster),
    include: &str,
    args: &[&str],
) -> (i32, String, Value) {
    let (source, destination) = (source.bootstrap(), destination.bootstrap());
    let with_json = [args, &["--json"]].concat();
    let (text, json) = tokio::join!(
        verify(&source, &destination, include, args),
        verify(&source, &destination, include, &with_json)
    );
    assert_eq!(text.code, json.code, "{}{}", text.stdout, text.stderr);
    let document = json.json();
    assert_eq!(document["equal"], json.code == 0);
    (text.code, text.stdout, document["mirrors"][0].clone())
}

async fn create(pair: (&KafkaCluster, &KafkaCluster), topic: &str, configs: &[(&str, &str)]) {
    pair.0.create_topic(topic, 1, 1, configs).await;
    pair.1.create_topic(topic, 1, 1, configs).await;
}

async fn write(cluster: &KafkaCluster, topic: &str, records: &[TestRecord]) -> Vec<i64> {
    let producer = Producer::new(&cluster.bootstrap(), &ProducerOptions::default()).await;
    producer.produce(topic, 0, records).await
}

/// Waits until a read_committed consumer is shown everything below `end`.
async fn wait_for_end(cluster: &KafkaCluster, topic: &str, end: i64) {
    let bootstrap = cluster.bootstrap();
    poll_until("the end of the transaction", PATIENCE, async || {
        let ends = checker::ends(&bootstrap, topic, "read_committed").await;
        let found = ends[&0].1;
        (found == end)
            .then_some(())
            .ok_or_else(|| found.to_string())
    })
    .await;
}

/// The same at every call: with timestamps, so that both clusters get the same.
fn steady(seed: u64, count: usize) -> Vec<TestRecord> {
    let mut records = records(seed, count);
    for (record, timestamp) in records.iter_mut().zip(1_700_000_000_000..) {
        record.timestamp = Some(timestamp);
    }
    records
}

fn client(cluster: &KafkaCluster, side: Side) -> Cluster {
    let servers = vec![cluster.bootstrap()];
    Cluster::new(ClusterOptions::new(side, servers)).unwrap()
}

async fn topic_id(cluster: &Cluster, topic: &str) -> TopicId {
    let metadata = cluster.refresh(Topics::Named(vec![topic.into()])).await;
    metadata.unwrap().topics[topic].topic_id
}

async fn read(reader: &mut VisibleReader) -> Vec<VisibleBatch> {
    let mut batches = Vec::new();
    while let Some(batch) = reader.next().await.unwrap() {
        batches.push(batch);
    }
    batches
}

fn offsets(batches: &[VisibleBatch]) -> Vec<i64> {
    let records = batches.iter().flat_map(|batch| &batch.records);
    records.map(|record| record.offset).collect()
}

#[tokio::test]
async fn what_is_equal_is_called_equal_whatever_the_codec() {
    let pair = shared_pair().await;
    let prefix = unique("equal");
    let mut written = 0;
    for (seed, codec) in (0..).zip(CODECS) {
        let topic = format!("{prefix}-{codec}");
        create(pair, &topic, &[]).await;
        let mut records = steady(seed, 2_000);
        records.extend(odd_records(seed));
        for record in &mut records {
            record.timestamp.get_or_insert(1_600_000_000_000);
        }
        written += records.len();
        for (cluster, per_batch) in [(pair.0, 300), (pair.1, 1_000)] {
            let options = ProducerOptions::default()
                .codec(codec)
                .batches_of(per_batch);
            let producer = Producer::new(&cluster.bootstrap(), &options).await;
            producer.produce(&topic, 0, &records).await;
        }
    }
    let (code, text, json) = verify_both_ways(pair, &prefix, &[]).await;
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("5 partitions, "), "{text}");
    assert!(text.trim_end().ends_with("all equal"), "{text}");
    assert_eq!(json["records"], written);
    assert_eq!(json["lag_offsets"], 0);
    for partition in json["partitions"].as_array().unwrap() {
        assert_eq!(partition["result"], "equal");
        assert_eq!(partition["compared"], partition["source"]);
        assert!(partition["bytes"].as_u64().unwrap() > 0);
    }
}

#[tokio::test]
async fn the_first_difference_is_named_with_its_offset() {
    let pair = shared_pair().await;
    let prefix = unique("different");
    let base = steady(7, 20);
    let with_headers = |order: [&str; 2]| {
        let mut records = steady(7, 20);
        records[13].headers = order.map(|name| (name.to_owned(), None)).into();
        records
    };
    let changed = |change: &dyn Fn(&mut TestRecord)| {
        let mut records = steady(7, 20);
        change(&mut records[11]);
        records
    };
    // Name, source, destination; the offset of the difference, and a word of the reason.
    let cases = [
        (
            "value",
            base.clone(),
            changed(&|record| record.value = Some(b"other".to_vec())),
            Some((11, "differ in: value")),
        ),
        (
            "null",
            changed(&|record| record.value = Some(Vec::new())),
            changed(&|record| record.value = None),
            Some((11, "differ in: value")),
        ),
        (
            "key",
            base.clone(),
            changed(&|record| record.key = None),
            Some((11, "differ in: key")),
        ),
        (
            "time",
            base.clone(),
            changed(&|record| record.timestamp = Some(5)),
            Some((11, "differ in: timestamp")),
        ),
        (
            "headers",
            with_headers(["a", "b"]),
            with_headers(["b", "a"]),
            Some((13, "differ in: headers")),
        ),
        (
            "extra",
            base[..19].to_vec(),
            base.clone(),
            Some((19, "the destination ends at 20")),
        ),
        ("behind", base.clone(), base[..19].to_vec(), None),
    ];
    for (name, theirs, ours, _) in &cases {
        let topic = format!("{prefix}-{name}");
        create(pair, &topic, &[]).await;
        write(pair.0, &topic, theirs).await;
        write(pair.1, &topic, ours).await;
    }
    pair.0
        .create_topic(&format!("{prefix}-missing"), 1, 1, &[])
        .await;
    pair.1
        .create_topic(&format!("{prefix}-foreign"), 1, 1, &[])
        .await;

    let (code, text, json) = verify_both_ways(pair, &prefix, &[]).await;
    assert_eq!(code, 1);
    let partitions = json["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), cases.len());
    for (name, _, _, wanted) in &cases {
        let topic = format!("{prefix}-{name}");
        let partition = partitions.iter().find(|part| part["topic"] == *topic);
        let partition = partition.unwrap();
        let Some((offset, reason)) = wanted else {
            assert_eq!(partition["result"], "equal", "{partition}");
            assert_eq!(partition["lag_offsets"], 1, "{partition}");
            assert_eq!(partition["records"], 19, "{partition}");
            continue;
        };
        let difference = &partition["difference"];
        assert_eq!(partition["result"], "different", "{partition}");
        assert_eq!(difference["offset"], *offset, "{partition}");
        assert_eq!(difference["destination_producer_id"], -1, "{partition}");
        let words = difference["reason"].as_str().unwrap();
        assert!(words.contains(reason), "{partition}");
        assert!(
            text.contains(&format!(
                "{topic}-0: offset {offset}: {words}\n  source:      "
            )),
            "{topic} in {text}"
        );
    }
    assert_eq!(json["missing_topics"][0], format!("{prefix}-missing"));
    assert_eq!(json["only_at_destination"][0], format!("{prefix}-foreign"));
    assert!(text.contains(&format!(
        "{prefix}-missing: the destination does not have the topic"
    )));
    assert!(
        text.contains(
            ": 1 topics missing, 6 partitions different; the destination is 1 offsets behind"
        ),
        "{text}"
    );

    // One topic of it alone.
    let only = format!("{prefix}-behind");
    let (code, text, _) = verify_both_ways(pair, &prefix, &["--topics", &only]).await;
    assert_eq!(code, 0, "{text}");
    // The difference lies before the last offsets, or within.
    let value = format!("{prefix}-value");
    for (last, code_wanted, compared) in [("8", 0, 8), ("9", 1, 0)] {
        let args = ["--topics", &value, "--last", last];
        let (code, text, json) = verify_both_ways(pair, &prefix, &args).await;
        assert_eq!(code, code_wanted, "{text}");
        assert_eq!(json["records"], compared, "{text}");
    }
}

#[tokio::test]
async fn a_record_may_be_missing_only_where_compaction_could_have_removed_it() {
    let pair = shared_pair().await;
    let prefix = unique("hole");
    let at = |key: &str, value: &str| TestRecord {
        timestamp: Some(1_700_000_000_000),
        ..TestRecord::new(key, value)
    };
    // Name, policy, key and value at offset 1 where the destination has a control record, whether that is equal.
    let cases = [
        ("plain", "delete", "k", "old", false),
        ("excused", "compact", "k", "old", true),
        ("guilty", "compact", "other", "old", false),
    ];
    for (name, policy, key, value, _) in cases {
        let topic = format!("{prefix}-{name}");
        create(pair, &topic, &[("cleanup.policy", policy)]).await;
        write(
            pair.0,
            &topic,
            &[at("a", "1"), at(key, value), at("k", "new")],
        )
        .await;
        let options = ProducerOptions::default().transactional(&topic);
        let producer = Producer::new(&pair.1.bootstrap(), &options).await;
        producer.begin().await;
        producer.produce(&topic, 0, &[at("a", "1")]).await;
        producer.commit().await;
        // The marker follows the answer to the commit.
        wait_for_end(pair.1, &topic, 2).await;
        write(pair.1, &topic, &[at("k", "new")]).await;
    }
    // An aborted record that looks right: only read_committed consumers miss it.
    let hidden = format!("{prefix}-hidden");
    create(pair, &hidden, &[]).await;
    write(pair.0, &hidden, &[at("a", "1")]).await;
    let options = ProducerOptions::default().transactional(&hidden);
    let producer = Producer::new(&pair.1.bootstrap(), &options).await;
    producer.begin().await;
    producer.produce(&hidden, 0, &[at("a", "1")]).await;
    producer.abort().await;
    wait_for_end(pair.1, &hidden, 2).await;

    let (code, text, json) = verify_both_ways(pair, &prefix, &[]).await;
    assert_eq!(code, 1, "{text}");
    let found = |topic: &str| {
        let mut partitions = json["partitions"].as_array().unwrap().iter();
        partitions
            .find(|part| part["topic"] == *topic)
            .unwrap()
            .clone()
    };
    for (name, _, _, _, equal) in cases {
        let partition = found(&format!("{prefix}-{name}"));
        let result = if equal { "equal" } else { "different" };
        assert_eq!(partition["result"], result, "{partition}");
        if !equal {
            assert_eq!(partition["difference"]["offset"], 1, "{partition}");
            let reason = partition["difference"]["reason"].as_str().unwrap();
            assert_eq!(reason, "the record is missing at the destination");
            let source = partition["difference"]["source"].as_str().unwrap();
            assert!(source.contains("value \"old\""), "{partition}");
        }
    }
    let partition = found(&hidden);
    assert_eq!(partition["difference"]["offset"], 0, "{partition}");
    let reason = partition["difference"]["reason"].as_str().unwrap();
    assert!(
        reason.ends_with("missing at the destination for read_committed consumers"),
        "{reason}"
    );
}

#[tokio::test]
async fn the_destination_must_begin_where_the_source_does_or_before() {
    let pair = shared_pair().await;
    for (trimmed, name, code_wanted) in [(pair.0, "source", 0), (pair.1, "destination", 1)] {
        let prefix = unique(&format!("trimmed-{name}"));
        create(pair, &prefix, &[]).await;
        write(pair.0, &prefix, &steady(1, 20)).await;
        write(pair.1, &prefix, &steady(1, 20)).await;
        trim(trimmed, &prefix, 5).await;
        let (code, text, json) = verify_both_ways(pair, &prefix, &[]).await;
        assert_eq!(code, code_wanted, "{text}");
        assert_eq!(json["records"], 15);
        if code == 1 {
            let difference = &json["partitions"][0]["difference"];
            assert_eq!(difference["offset"], 0);
            assert_eq!(
                difference["reason"],
                "the destination's log starts at 5 only"
            );
        }
        // The beginning does not matter to whoever asks for the end.
        let (code, text, json) = verify_both_ways(pair, &prefix, &["--last", "10"]).await;
        assert_eq!(code, 0, "{text}");
        assert_eq!(json["records"], 10);
    }
}

#[tokio::test]
async fn the_reader_shows_what_a_consumer_is_shown() {
    let (source, _) = shared_pair().await;
    let topic = unique("transactions");
    source.create_topic(&topic, 1, 1, &[]).await;
    let bootstrap = source.bootstrap();
    let mut producers = Vec::new();
    for id in ["x", "y"] {
        let options = ProducerOptions::default().transactional(&format!("{topic}-{id}"));
        producers.push(Producer::new(&bootstrap, &options).await);
    }
    let [x, y] = &producers[..] else {
        panic!("two producers");
    };
    let mut next = steady(3, 200).into_iter();
    let mut some = |count: usize| next.by_ref().take(count).collect::<Vec<_>>();
    // Two transactions inside of each other, plain records between, both ends in both orders.
    for (x_commits, y_commits) in [(false, true), (true, false), (false, false), (true, true)] {
        x.begin().await;
        x.produce(&topic, 0, &some(5)).await;
        y.begin().await;
        y.produce(&topic, 0, &some(4)).await;
        write(source, &topic, &some(3)).await;
        x.produce(&topic, 0, &some(2)).await;
        for (producer, commits) in [(x, x_commits), (y, y_commits)] {
            if commits {
                producer.commit().await;
            } else {
                producer.abort().await;
            }
        }
        y.begin().await;
        y.produce(&topic, 0, &some(1)).await;
        y.abort().await;
    }
    write(source, &topic, &some(1)).await;

    let cluster = client(source, Side::Source);
    let id = topic_id(&cluster, &topic).await;
    let tp = TopicPartition::new(&topic, 0);
    for (isolation, read_committed) in [("read_committed", true), ("read_uncommitted", false)] {
        let (start, end) = checker::ends(&bootstrap, &topic, isolation).await[&0];
        assert_eq!(start, 0);
        let wanted: Vec<i64> = {
            let lines = checker::read_all(&bootstrap, &topic, isolation).await;
            let offsets = lines.iter().map(|line| {
                let digits: String = line
                    .split_once(": ")
                    .unwrap()
                    .1
                    .chars()
                    .skip_while(|c| !c.is_ascii_digit())
                    .take_while(char::is_ascii_digit)
                    .collect();
                digits.parse().unwrap()
            });
            let mut offsets: Vec<i64> = offsets.collect();
            offsets.sort_unstable();
            offsets
        };
        assert!(wanted.len() > 10, "{wanted:?}");
        // In one answer, and batch by batch: then most answers begin inside of a transaction.
        for fetch_bytes in [1 << 20, 1] {
            let options = ReadOptions {
                fetch_bytes,
                ..ReadOptions::new(Lane::Compare, read_committed)
            };
            let mut reader = VisibleReader::new(cluster.clone(), tp.clone(), id, 0..end, options);
            let batches = read(&mut reader).await;
            assert_eq!(offsets(&batches), wanted, "{isolation}, {fetch_bytes}");
            assert_eq!(reader.position(), end);
            assert!(batches.iter().any(|batch| batch.records.is_empty()));
            // From every offset, also from within batches, up to one that cuts a batch.
            for start in (0..end).step_by(if fetch_bytes == 1 { 9 } else { 1 }) {
                let part = start..end - 3;
                let mut reader =
                    VisibleReader::new(cluster.clone(), tp.clone(), id, part.clone(), options);
                let found = offsets(&read(&mut reader).await);
                let wanted: Vec<_> = wanted
                    .iter()
                    .copied()
                    .filter(|at| part.contains(at))
                    .collect();
                assert_eq!(found, wanted, "{isolation}, {fetch_bytes}, {part:?}");
            }
        }
    }
    cluster.close().await;
}

#[tokio::test]
async fn a_batch_above_the_fetch_size_is_read_and_the_tail_gets_shorter_for_it() {
    let (source, _) = shared_pair().await;
    let topic = unique("big");
    source
        .create_topic(&topic, 1, 1, &[("max.message.bytes", "5000000")])
        .await;
    let options = ProducerOptions::default().batches_of(50);
    let producer = Producer::new(&source.bootstrap(), &options).await;
    producer.produce(&topic, 0, &steady(1, 1_500)).await;
    let cluster = client(source, Side::Source);
    let id = topic_id(&cluster, &topic).await;
    let tp = TopicPartition::new(&topic, 0);
    let options = ReadOptions::new(Lane::Compare, true);

    let small = tail(&cluster, &tp, id, 0, 1_500, options).await.unwrap();
    assert_eq!(small.from, 500);
    assert_eq!(offsets(&small.batches), (500..1_500).collect::<Vec<_>>());
    let floored = tail(&cluster, &tp, id, 1_400, 1_500, options)
        .await
        .unwrap();
    assert_eq!(floored.from, 1_400);
    let empty = tail(&cluster, &tp, id, 1_500, 1_500, options)
        .await
        .unwrap();
    assert!(empty.batches.is_empty() && empty.from == 1_500);

    let big = TestRecord {
        value: Some((0..2_000_000_u32).map(|at| at.to_le_bytes()[0]).collect()),
        ..TestRecord::new("big", "")
    };
    producer
        .produce(&topic, 0, std::slice::from_ref(&big))
        .await;
    let mut reader = VisibleReader::new(cluster.clone(), tp.clone(), id, 1_495..1_501, options);
    let batches = read(&mut reader).await;
    assert_eq!(offsets(&batches), (1_495..1_501).collect::<Vec<_>>());
    let last = batches.last().unwrap();
    assert_eq!(last.records[0].value.as_deref(), big.value.as_deref());
    assert!(last.size_bytes > 2_000_000);
    let tail_of_big = tail(&cluster, &tp, id, 0, 1_501, options).await.unwrap();
    assert_eq!(tail_of_big.from, 1_500);
    assert_eq!(offsets(&tail_of_big.batches), [1_500]);

    // What cannot be read is said: trimmed offsets, offsets that are not there yet, batches above the limit.
    trim(source, &topic, 700).await;
    let mut reader = VisibleReader::new(cluster.clone(), tp.clone(), id, 0..10, options);
    let error = reader.next().await.unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::OutOfRange {
                position: 0,
                log_start: 700,
                high_watermark: 1_501,
                ..
            }
        ),
        "{error}"
    );
    let trimmed = tail(&cluster, &tp, id, 0, 1_500, options).await.unwrap();
    assert_eq!(trimmed.from, 700);
    assert_eq!(offsets(&trimmed.batches), (700..1_500).collect::<Vec<_>>());
    let impatient = ReadOptions {
        patience: Duration::from_millis(300),
        ..options
    };
    let mut reader = VisibleReader::new(cluster.clone(), tp.clone(), id, 1_501..1_502, impatient);
    let error = reader.next().await.unwrap_err();
    assert!(
        matches!(
            error,
            ReadError::NotYet {
                position: 1_501,
                watermark: 1_501,
                ..
            }
        ),
        "{error}"
    );
    let narrow = ReadOptions {
        max_batch_bytes: 1 << 20,
        ..options
    };
    let mut reader = VisibleReader::new(cluster.clone(), tp, id, 1_500..1_501, narrow);
    let error = reader.next().await.unwrap_err();
    assert!(matches!(error, ReadError::Batch { .. }), "{error}");
    cluster.close().await;
}

#[tokio::test]
async fn whoever_cannot_be_compared_is_told_why_in_one_line() {
    let pair = shared_pair().await;
    let (source, destination) = (pair.0.bootstrap(), pair.1.bootstrap());
    let gone = "127.0.0.1:1";
    for (from, to, args, code, words) in [
        (
            gone,
            &*destination,
            &[][..],
            1,
            "cannot reach the source cluster: ",
        ),
        (
            &*source,
            gone,
            &[],
            1,
            "cannot reach the destination cluster: ",
        ),
        (
            &source,
            &destination,
            &["--mirror", "other"],
            1,
            "the configuration has no mirror \"other\", only m",
        ),
        (
            &source,
            &destination,
            &[],
            1,
            "mirror m: no topic of either cluster matches",
        ),
        (&source, &destination, &["--topics", "("], 2, "--topics"),
        (&source, &destination, &["--last", "0"], 2, "--last"),
    ] {
        let ran = verify(from, to, "no-topic-is-called-so", args).await;
        assert_eq!(ran.code, code, "{}", ran.stderr);
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
        if code == 1 {
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        }
    }
}
