//! The independent judge: reads source and destination wholly with librdkafka consumers and compares what consumers see.
//! It knows nothing of how the mirror works.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet};
use std::hash::{Hash, Hasher};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::Offset;
use rdkafka::Timestamp;
use rdkafka::TopicPartitionList;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Headers, Message};
use tokio::time::Instant;

use super::poll_until;

/// What equal means, and how long reading may take.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// For reading everything, on all sides at once.
    pub deadline: Duration,
    /// What the timestamp type at the destination must be.
    pub timestamp_type: TimestampType,
    /// Compaction runs on both sides at its own times: a record may be missing on one side if that side holds a later
    /// record of its key, or if it is a tombstone.
    pub compacted: bool,
    /// Compare where the logs begin.
    pub log_start: bool,
    /// Compare where the logs end: the source's last stable offset against the destination's high watermark.
    pub log_end: bool,
    /// Differences to report at most, over all.
    pub differences: usize,
    /// librdkafka settings for the source side, for example security.
    pub source_config: Vec<(String, String)>,
    /// The same for the destination.
    pub destination_config: Vec<(String, String)>,
}

impl Default for CheckOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(120),
            timestamp_type: TimestampType::CreateTime,
            compacted: false,
            log_start: true,
            log_end: true,
            differences: 10,
            source_config: Vec::new(),
            destination_config: Vec::new(),
        }
    }
}

/// What the timestamp type at the destination must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// CreateTime, as the destination reads while it is mirrored.
    CreateTime,
    /// The source's.
    Same,
}

/// What was compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// Partitions compared.
    pub partitions: usize,
    /// Records that a read_committed consumer of the source sees.
    pub records: usize,
    /// The first differences, in words; empty when equal.
    pub differences: Vec<String>,
}

/// Panics with the first differences unless consumers of both clusters see the same in these topics.
pub async fn assert_equal(
    source: &str,
    destination: &str,
    topics: &[&str],
    options: &CheckOptions,
) -> CheckReport {
    let report = compare(source, destination, topics, options).await;
    assert!(
        report.differences.is_empty(),
        "source and destination differ ({} records, {} partitions compared):\n  {}",
        report.records,
        report.partitions,
        report.differences.join("\n  ")
    );
    report
}

/// Compares what a read_committed consumer of the source sees with what consumers of both isolation levels see at the
/// destination.
pub async fn compare(
    source: &str,
    destination: &str,
    topics: &[&str],
    options: &CheckOptions,
) -> CheckReport {
    let mut report = CheckReport {
        partitions: 0,
        records: 0,
        differences: Vec::new(),
    };
    for topic in topics {
        compare_topic(source, destination, topic, options, &mut report).await;
    }
    report.differences.truncate(options.differences);
    report
}

/// Waits until every partition of the topics ends at the destination where it ends at the source.
pub async fn wait_for_same_end(
    source: &str,
    destination: &str,
    topics: &[&str],
    deadline: Duration,
) {
    for topic in topics {
        let (from, to) = (
            Side::new(source, topic, "read_committed", &[]),
            Side::new(destination, topic, "read_uncommitted", &[]),
        );
        poll_until(
            &format!("{topic}: same end on both sides"),
            deadline,
            async || {
                let (from, to) = (from.clone(), to.clone());
                let (from, to) = blocking(move || (from.ends(), to.ends())).await;
                if from.is_ok() && from == to {
                    Ok(())
                } else {
                    Err(format!("source {from:?}, destination {to:?}"))
                }
            },
        )
        .await;
    }
}

/// Log start and end by partition, as a consumer of an isolation level ("read_committed": the end is the last stable
/// offset) sees them.
pub async fn ends(
    bootstrap: &str,
    topic: &str,
    isolation: &'static str,
) -> BTreeMap<i32, (i64, i64)> {
    let side = Side::new(bootstrap, topic, isolation, &[]);
    blocking(move || side.ends_within(&side.consumer(), Duration::from_secs(30))).await
}

/// All that a consumer sees of a partition, as text with the offset: for topics of a few records.
pub async fn read_all(bootstrap: &str, topic: &str, isolation: &'static str) -> Vec<String> {
    let side = Side::new(bootstrap, topic, isolation, &[]);
    blocking(move || {
        let mut lines = Vec::new();
        side.read(Duration::from_secs(60), |partition, message| {
            lines.push(format!("{partition}: {}", in_words(message)));
        });
        lines.sort();
        lines
    })
    .await
}

/// One reader of one topic.
#[derive(Debug, Clone)]
struct Side {
    bootstrap: String,
    topic: String,
    isolation: &'static str,
    extra: Vec<(String, String)>,
}

/// A record, small enough to hold millions.
#[derive(Debug, Clone, Copy)]
struct Digest {
    offset: i64,
    content: u64,
    key: u64,
    tombstone: bool,
    log_append_time: bool,
}

/// What one reader saw of a topic.
struct Seen {
    ends: BTreeMap<i32, (i64, i64)>,
    records: BTreeMap<i32, Vec<Digest>>,
}

async fn compare_topic(
    source: &str,
    destination: &str,
    topic: &str,
    options: &CheckOptions,
    report: &mut CheckReport,
) {
    let from = Side::new(source, topic, "read_committed", &options.source_config);
    let deadline = options.deadline;
    let digest = |side: &Side| {
        let side = side.clone();
        blocking(move || side.digest(deadline))
    };
    let any = Side::new(
        destination,
        topic,
        "read_uncommitted",
        &options.destination_config,
    );
    let committed = Side::new(
        destination,
        topic,
        "read_committed",
        &options.destination_config,
    );
    let (source_seen, any_seen, committed_seen) =
        tokio::join!(digest(&from), digest(&any), digest(&committed));
    report.partitions += source_seen.records.len();
    report.records += source_seen.records.values().map(Vec::len).sum::<usize>();
    for (side, seen) in [(&any, &any_seen), (&committed, &committed_seen)] {
        let what = format!("{topic}, destination {}", side.isolation);
        compare_ends(&what, &source_seen, seen, options, report);
        for (partition, wanted) in &source_seen.records {
            let Some(found) = seen.records.get(partition) else {
                continue;
            };
            let differing = first_difference(wanted, found, options);
            let Some((offset, reason)) = differing else {
                continue;
            };
            // The second look, at the one record, for words instead of hashes.
            let (left, right) = (from.clone(), (*side).clone());
            let partition = *partition;
            let (left, right) = blocking(move || {
                (
                    left.look_at(partition, offset),
                    right.look_at(partition, offset),
                )
            })
            .await;
            report.differences.push(format!(
                "{what}: partition {partition}, offset {offset}: {reason}\n    source:      {left}\n    destination: {right}"
            ));
        }
    }
}

fn compare_ends(
    what: &str,
    source: &Seen,
    destination: &Seen,
    options: &CheckOptions,
    report: &mut CheckReport,
) {
    if source.ends.len() != destination.ends.len() {
        report.differences.push(format!(
            "{what}: {} partitions, the source has {}",
            destination.ends.len(),
            source.ends.len()
        ));
    }
    for (partition, (start, end)) in &source.ends {
        let Some((other_start, other_end)) = destination.ends.get(partition) else {
            continue;
        };
        if options.log_start && start != other_start {
            report.differences.push(format!(
                "{what}: partition {partition} starts at {other_start}, at the source at {start}"
            ));
        }
        if options.log_end && end != other_end {
            report.differences.push(format!(
                "{what}: partition {partition} ends at {other_end}, at the source at {end}"
            ));
        }
    }
}

/// Offset of the first record that is not the same, and why.
fn first_difference(
    source: &[Digest],
    destination: &[Digest],
    options: &CheckOptions,
) -> Option<(i64, String)> {
    let (mut left, mut right) = (source.iter().peekable(), destination.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (None, None) => return None,
            (Some(wanted), Some(found)) if wanted.offset == found.offset => {
                if wanted.content != found.content {
                    return Some((wanted.offset, "the records differ".into()));
                }
                let stamped = match options.timestamp_type {
                    TimestampType::CreateTime => false,
                    TimestampType::Same => wanted.log_append_time,
                };
                if found.log_append_time != stamped {
                    return Some((wanted.offset, "the timestamp types differ".into()));
                }
                left.next();
                right.next();
            }
            (Some(wanted), found) if found.is_none_or(|found| wanted.offset < found.offset) => {
                if !(options.compacted && may_be_gone(wanted, destination)) {
                    return Some((wanted.offset, "missing at the destination".into()));
                }
                left.next();
            }
            (_, Some(found)) => {
                if !(options.compacted && may_be_gone(found, source)) {
                    return Some((found.offset, "only at the destination".into()));
                }
                right.next();
            }
            (Some(_), None) => unreachable!("the arm above takes it"),
        }
    }
}

/// Whether the cleaner of a side may have removed a record, going by what that side still holds.
fn may_be_gone(record: &Digest, side: &[Digest]) -> bool {
    record.tombstone
        || side
            .iter()
            .rev()
            .take_while(|other| other.offset > record.offset)
            .any(|other| other.key == record.key)
}

impl Side {
    fn new(
        bootstrap: &str,
        topic: &str,
        isolation: &'static str,
        extra: &[(String, String)],
    ) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            topic: topic.into(),
            isolation,
            extra: extra.to_vec(),
        }
    }

    fn consumer(&self) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.bootstrap)
            .set("group.id", "the-checker-commits-nothing")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("isolation.level", self.isolation)
            .set("check.crcs", "true")
            .set("fetch.message.max.bytes", "8000000")
            .set("fetch.max.bytes", "64000000")
            .set("fetch.wait.max.ms", "50")
            .set("fetch.error.backoff.ms", "50")
            .set("queued.min.messages", "200000")
            .set("queued.max.messages.kbytes", "131072")
            .set("reconnect.backoff.max.ms", "500");
        for (key, value) in &self.extra {
            config.set(key, value);
        }
        config.create().unwrap()
    }

    fn ends(&self) -> Result<BTreeMap<i32, (i64, i64)>, String> {
        self.ends_by(&self.consumer())
    }

    /// The ends, asked again while a broker says that it is not the leader or is away. Blocks; panics at the deadline.
    fn ends_within(
        &self,
        consumer: &BaseConsumer,
        deadline: Duration,
    ) -> BTreeMap<i32, (i64, i64)> {
        let end = Instant::now() + deadline;
        loop {
            match self.ends_by(consumer) {
                Ok(ends) => return ends,
                Err(error) if Instant::now() >= end => {
                    panic!("{} at {}: {error}", self.topic, self.bootstrap)
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    fn ends_by(&self, consumer: &BaseConsumer) -> Result<BTreeMap<i32, (i64, i64)>, String> {
        let wait = Duration::from_secs(10);
        let metadata = consumer
            .fetch_metadata(Some(&self.topic), wait)
            .map_err(|error| error.to_string())?;
        let topic = metadata.topics().first().ok_or("no topic")?;
        if let Some(error) = topic.error() {
            return Err(format!("{}: {error:?}", self.topic));
        }
        let partitions = topic.partitions().iter().map(|partition| {
            let ends = consumer
                .fetch_watermarks(&self.topic, partition.id(), wait)
                .map_err(|error| format!("{}-{}: {error}", self.topic, partition.id()))?;
            Ok((partition.id(), ends))
        });
        partitions.collect()
    }

    /// Reads all partitions from the start to their ends. Blocks; panics at the deadline.
    fn read(
        &self,
        deadline: Duration,
        mut each: impl FnMut(i32, &BorrowedMessage<'_>),
    ) -> BTreeMap<i32, (i64, i64)> {
        let consumer = self.consumer();
        let ends = self.ends_within(&consumer, deadline);
        let mut assignment = TopicPartitionList::new();
        for (partition, (start, _)) in &ends {
            assignment
                .add_partition_offset(&self.topic, *partition, Offset::Offset(*start))
                .unwrap();
        }
        consumer.assign(&assignment).unwrap();
        let end = Instant::now() + deadline;
        let mut unfinished: HashSet<i32> = ends.keys().copied().collect();
        while !unfinished.is_empty() {
            assert!(
                Instant::now() < end,
                "{} at {} ({}): partitions {unfinished:?} not read within {deadline:?}",
                self.topic,
                self.bootstrap,
                self.isolation
            );
            match consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) => each(message.partition(), &message),
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    unfinished.remove(&partition);
                }
                // A broker that is away for a moment; the deadline bounds it.
                Some(Err(_)) | None => {}
            }
        }
        ends
    }

    fn digest(&self, deadline: Duration) -> Seen {
        let mut records: BTreeMap<i32, Vec<Digest>> = BTreeMap::new();
        let ends = self.read(deadline, |partition, message| {
            records.entry(partition).or_default().push(digest(message));
        });
        for partition in ends.keys() {
            records.entry(*partition).or_default();
        }
        Seen { ends, records }
    }

    /// The record at an offset, in words.
    fn look_at(&self, partition: i32, offset: i64) -> String {
        let consumer = self.consumer();
        let mut assignment = TopicPartitionList::new();
        assignment
            .add_partition_offset(&self.topic, partition, Offset::Offset(offset))
            .unwrap();
        consumer.assign(&assignment).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            match consumer.poll(Duration::from_millis(200)) {
                Some(Ok(message)) if message.offset() == offset => return in_words(&message),
                Some(Ok(message)) => return format!("nothing; next is {}", in_words(&message)),
                Some(Err(KafkaError::PartitionEOF(_))) => return "nothing; the log ends".into(),
                Some(Err(error)) => return format!("not readable: {error}"),
                None => {}
            }
        }
        "not readable within 10 s".into()
    }
}

fn digest(message: &BorrowedMessage<'_>) -> Digest {
    let mut content = DefaultHasher::new();
    message.key().hash(&mut content);
    message.payload().hash(&mut content);
    message.timestamp().to_millis().hash(&mut content);
    if let Some(headers) = message.headers() {
        for header in headers.iter() {
            header.key.hash(&mut content);
            header.value.hash(&mut content);
        }
    }
    let mut key = DefaultHasher::new();
    message.key().hash(&mut key);
    Digest {
        offset: message.offset(),
        content: content.finish(),
        key: key.finish(),
        tombstone: message.payload().is_none(),
        log_append_time: matches!(message.timestamp(), Timestamp::LogAppendTime(_)),
    }
}

fn in_words(message: &BorrowedMessage<'_>) -> String {
    let mut headers = Vec::new();
    if let Some(list) = message.headers() {
        headers.extend(
            list.iter()
                .map(|header| format!("{:?}={}", header.key, bytes_in_words(header.value))),
        );
    }
    format!(
        "offset {}, {:?}, key {}, value {}, headers [{}]",
        message.offset(),
        message.timestamp(),
        bytes_in_words(message.key()),
        bytes_in_words(message.payload()),
        headers.join(", ")
    )
}

fn bytes_in_words(bytes: Option<&[u8]>) -> String {
    match bytes {
        None => "null".into(),
        Some(bytes) if bytes.len() <= 80 => format!("\"{}\"", bytes.escape_ascii()),
        Some(bytes) => {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            format!(
                "\"{}...\" ({} bytes, hash {:x})",
                bytes[..40].escape_ascii(),
                bytes.len(),
                hasher.finish()
            )
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
