//! Records from a seed, and librdkafka producers that write them and say at which offsets they lie.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::message::{DeliveryResult, Header, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::Instant;

/// All codecs by librdkafka's names.
pub const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

/// How long librdkafka tries to deliver a record.
const DELIVERY: Duration = Duration::from_secs(60);

/// Longest wait for the outcomes; longer than the deliveries, so that their errors are seen.
const OUTCOME: Duration = Duration::from_secs(75);

/// A record as a test wants it written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TestRecord {
    /// Key; null and empty differ.
    pub key: Option<Vec<u8>>,
    /// Value; null and empty differ.
    pub value: Option<Vec<u8>>,
    /// Headers in order; names may repeat, null and empty values differ.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Milliseconds since 1970; `None`: the producer's clock.
    pub timestamp: Option<i64>,
}

impl TestRecord {
    /// A record of text.
    pub fn new(key: &str, value: &str) -> Self {
        Self {
            key: Some(key.into()),
            value: Some(value.into()),
            ..Self::default()
        }
    }
}

/// Ordinary records from a seed: keys from a small set, half-compressible values of 10 to 400 bytes, few headers.
pub fn records(seed: u64, count: usize) -> Vec<TestRecord> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count)
        .map(|number| {
            let mut value = format!("{seed}/{number}/").into_bytes();
            let noise = random.random_range(0..200);
            value.extend((0..noise).map(|_| random.random_range(b'a'..=b'z')));
            value.extend(std::iter::repeat_n(b'-', random.random_range(10..200)));
            let headers = (0..random.random_range(0..3))
                .map(|at| (format!("h{at}"), Some(number.to_string().into_bytes())))
                .collect();
            TestRecord {
                key: Some(format!("key-{}", random.random_range(0..100)).into_bytes()),
                value: Some(value),
                headers,
                timestamp: None,
            }
        })
        .collect()
}

/// Records that break careless code: null, empty, repeated, binary and large things, in all combinations of key and
/// value. Only librdkafka's own limits are kept (a timestamp above 0, header names without a zero byte).
pub fn odd_records(seed: u64) -> Vec<TestRecord> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut binary = vec![0; 300];
    random.fill_bytes(&mut binary);
    let mut large = vec![0; 400_000];
    random.fill_bytes(&mut large);
    let contents = [
        None,
        Some(Vec::new()),
        Some(vec![0]),
        Some(binary.clone()),
        Some("zwölf Boxkämpfer \u{1F980}".into()),
    ];
    let headers: [Vec<(String, Option<Vec<u8>>)>; 4] = [
        Vec::new(),
        vec![("null".into(), None), ("empty".into(), Some(Vec::new()))],
        vec![
            ("same".into(), Some(b"1".to_vec())),
            ("same".into(), None),
            ("other".into(), Some(binary.clone())),
            ("same".into(), Some(b"1".to_vec())),
        ],
        vec![(String::new(), Some(b"no name".to_vec()))],
    ];
    let mut records = Vec::new();
    for key in &contents {
        for value in &contents {
            let at = records.len();
            records.push(TestRecord {
                key: key.clone(),
                value: value.clone(),
                headers: headers[at % headers.len()].clone(),
                timestamp: Some(1_500_000_000_000 + random.random_range(0..1_000_000_000)),
            });
        }
    }
    records.push(TestRecord {
        value: Some(large),
        ..TestRecord::new("large", "")
    });
    records.push(TestRecord {
        timestamp: Some(1),
        ..TestRecord::new("in 1970", "")
    });
    records
}

/// How a producer writes.
#[derive(Debug, Clone)]
pub struct ProducerOptions {
    /// One of [`CODECS`].
    pub codec: &'static str,
    /// With producer id and sequences.
    pub idempotent: bool,
    /// Makes it transactional (and idempotent).
    pub transactional_id: Option<String>,
    /// Longest wait for a batch to fill.
    pub linger: Duration,
    /// Records per batch at most.
    pub batch_num_messages: usize,
    /// librdkafka settings besides.
    pub extra: Vec<(String, String)>,
}

impl Default for ProducerOptions {
    fn default() -> Self {
        Self {
            codec: "none",
            idempotent: false,
            transactional_id: None,
            linger: Duration::from_millis(5),
            batch_num_messages: 10_000,
            extra: Vec::new(),
        }
    }
}

impl ProducerOptions {
    /// The same with a codec.
    pub fn codec(mut self, codec: &'static str) -> Self {
        self.codec = codec;
        self
    }

    /// The same, idempotent.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// The same, transactional.
    pub fn transactional(mut self, id: &str) -> Self {
        self.transactional_id = Some(id.into());
        self
    }

    /// The same with so many records per batch at most; fewer only at the end of a call.
    pub fn batches_of(mut self, records: usize) -> Self {
        self.batch_num_messages = records;
        self.linger = Duration::from_millis(50);
        self
    }
}

/// A librdkafka producer. Its calls block in a thread for blocking work, never in the test's runtime.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<BaseProducer<Deliveries>>,
}

impl std::fmt::Debug for Producer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Producer")
    }
}

/// Where each record of a call has landed: offset or error, by its place in the call.
type Outcomes = Mutex<BTreeMap<usize, Result<i64, String>>>;

struct Deliveries;

impl ClientContext for Deliveries {}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<(usize, Arc<Outcomes>)>;

    fn delivery(&self, result: &DeliveryResult<'_>, opaque: Self::DeliveryOpaque) {
        let (at, outcomes) = *opaque;
        let outcome = match result {
            Ok(message) => Ok(message.offset()),
            Err((error, _)) => Err(error.to_string()),
        };
        outcomes.lock().unwrap().insert(at, outcome);
    }
}

impl Producer {
    /// A producer for a cluster; a transactional one is registered with its coordinator at once.
    pub async fn new(bootstrap: &str, options: &ProducerOptions) -> Self {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap)
            .set("compression.codec", options.codec)
            .set("enable.idempotence", options.idempotent.to_string())
            .set("linger.ms", options.linger.as_millis().to_string())
            .set("batch.num.messages", options.batch_num_messages.to_string())
            .set("message.max.bytes", "10000000")
            .set("queue.buffering.max.messages", "2000000")
            .set("queue.buffering.max.kbytes", "1000000")
            .set("delivery.timeout.ms", DELIVERY.as_millis().to_string())
            .set("reconnect.backoff.max.ms", "500")
            .set("retry.backoff.ms", "50");
        if let Some(id) = &options.transactional_id {
            config.set("transactional.id", id);
            config.set("enable.idempotence", "true");
            config.set("transaction.timeout.ms", DELIVERY.as_millis().to_string());
        }
        for (key, value) in &options.extra {
            config.set(key, value);
        }
        let inner = config.create_with_context(Deliveries).unwrap();
        let producer = Self {
            inner: Arc::new(inner),
        };
        if options.transactional_id.is_some() {
            // The coordinator of a cluster that has just started takes a while to appear.
            producer
                .blocking(|p| p.init_transactions(DELIVERY).unwrap())
                .await;
        }
        producer
    }

    /// Writes records to one partition in order, waits for all acknowledgements, and returns their offsets.
    pub async fn produce(&self, topic: &str, partition: i32, records: &[TestRecord]) -> Vec<i64> {
        self.try_produce(topic, partition, records)
            .await
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|error| panic!("{topic}-{partition}: {error}")))
            .collect()
    }

    /// The same for records that a broker may refuse.
    pub async fn try_produce(
        &self,
        topic: &str,
        partition: i32,
        records: &[TestRecord],
    ) -> Vec<Result<i64, String>> {
        let (topic, records) = (topic.to_owned(), records.to_vec());
        self.blocking(move |producer| {
            let outcomes = Arc::new(Outcomes::default());
            for (at, record) in records.iter().enumerate() {
                enqueue(producer, &topic, partition, record, at, &outcomes);
            }
            let end = Instant::now() + OUTCOME;
            while outcomes.lock().unwrap().len() < records.len() {
                producer.poll(Duration::from_millis(5));
                assert!(
                    Instant::now() < end,
                    "{topic}: not all records acknowledged"
                );
            }
            let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
            outcomes.into_values().collect()
        })
        .await
    }

    /// Opens a transaction.
    pub async fn begin(&self) {
        self.blocking(|p| p.begin_transaction().unwrap()).await;
    }

    /// Commits the open transaction.
    pub async fn commit(&self) {
        self.blocking(|p| p.commit_transaction(DELIVERY).unwrap())
            .await;
    }

    /// Aborts the open transaction.
    pub async fn abort(&self) {
        self.blocking(|p| p.abort_transaction(DELIVERY).unwrap())
            .await;
    }

    async fn blocking<T, F>(&self, work: F) -> T
    where
        T: Send + 'static,
        F: FnOnce(&BaseProducer<Deliveries>) -> T + Send + 'static,
    {
        let inner = Arc::clone(&self.inner);
        tokio::task::spawn_blocking(move || work(&inner))
            .await
            .unwrap()
    }
}

fn enqueue(
    producer: &BaseProducer<Deliveries>,
    topic: &str,
    partition: i32,
    record: &TestRecord,
    at: usize,
    outcomes: &Arc<Outcomes>,
) {
    let opaque = Box::new((at, Arc::clone(outcomes)));
    let mut message: BaseRecord<'_, [u8], [u8], _> =
        BaseRecord::with_opaque_to(topic, opaque).partition(partition);
    message.key = record.key.as_deref();
    message.payload = record.value.as_deref();
    message.timestamp = record.timestamp;
    if !record.headers.is_empty() {
        let empty = OwnedHeaders::new_with_capacity(record.headers.len());
        message.headers = Some(record.headers.iter().fold(empty, |headers, (key, value)| {
            headers.insert(Header {
                key,
                value: value.as_deref(),
            })
        }));
    }
    while let Err((error, back)) = producer.send(message) {
        assert_eq!(
            error.rdkafka_error_code(),
            Some(RDKafkaErrorCode::QueueFull),
            "{topic}: {error}"
        );
        producer.poll(Duration::from_millis(10));
        message = back;
    }
}

/// Steady load in the background, on a thread of its own.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
    delivered: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<LoadCounts>>,
}

/// What a load has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadCounts {
    /// Acknowledged records by topic and partition.
    pub delivered: BTreeMap<(String, i32), u64>,
    /// Highest acknowledged offset by topic and partition, inclusive.
    pub last_offset: BTreeMap<(String, i32), i64>,
    /// Records that failed for good.
    pub failed: u64,
}

/// Partitions `0..count` of a topic, as a load wants them.
pub fn every_partition(topic: &str, count: i32) -> Vec<(String, i32)> {
    (0..count)
        .map(|partition| (topic.to_owned(), partition))
        .collect()
}

impl Load {
    /// Starts writing `rate` records per second in all, in turn to the partitions given.
    pub fn start(bootstrap: &str, rate: u32, partitions: &[(String, i32)]) -> Self {
        Self::start_with(bootstrap, rate, partitions, &ProducerOptions::default())
    }

    /// The same with a producer of one's choice (not a transactional one).
    pub fn start_with(
        bootstrap: &str,
        rate: u32,
        partitions: &[(String, i32)],
        options: &ProducerOptions,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let delivered = Arc::new(AtomicU64::new(0));
        let (stopped, counter) = (Arc::clone(&stop), Arc::clone(&delivered));
        let (bootstrap, options) = (bootstrap.to_owned(), options.clone());
        let partitions = partitions.to_vec();
        let thread = std::thread::Builder::new()
            .name("load".into())
            .spawn(move || run_load(&bootstrap, rate, &partitions, &options, &stopped, &counter))
            .unwrap();
        Self {
            stop,
            delivered,
            thread: Some(thread),
        }
    }

    /// Acknowledged records so far.
    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Stops, waits for the last acknowledgements, and returns the counts.
    pub async fn stop(mut self) -> LoadCounts {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().unwrap();
        tokio::task::spawn_blocking(move || thread.join().unwrap())
            .await
            .unwrap()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn run_load(
    bootstrap: &str,
    rate: u32,
    partitions: &[(String, i32)],
    options: &ProducerOptions,
    stop: &AtomicBool,
    counter: &AtomicU64,
) -> LoadCounts {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let producer = runtime.block_on(Producer::new(bootstrap, options)).inner;
    let content = records(u64::from(rate), 1000);
    let outcomes = Arc::new(Outcomes::default());
    let mut counts = LoadCounts::default();
    let begin = Instant::now();
    let mut sent = 0;
    let mut landed = 0;
    let mut last_words: Option<Instant> = None;
    loop {
        if stop.load(Ordering::Relaxed) {
            let end = *last_words.get_or_insert_with(|| Instant::now() + OUTCOME);
            if landed == sent || Instant::now() >= end {
                counts.failed += (sent - landed) as u64;
                return counts;
            }
        } else {
            let due = (begin.elapsed().as_secs_f64() * f64::from(rate)) as usize;
            let burst_end = due.min(sent + 10_000);
            while sent < burst_end {
                let (topic, partition) = &partitions[sent % partitions.len()];
                let record = &content[sent % content.len()];
                enqueue(&producer, topic, *partition, record, sent, &outcomes);
                sent += 1;
            }
        }
        producer.poll(Duration::from_millis(5));
        for (at, outcome) in std::mem::take(&mut *outcomes.lock().unwrap()) {
            landed += 1;
            let Ok(offset) = outcome else {
                counts.failed += 1;
                continue;
            };
            let partition = partitions[at % partitions.len()].clone();
            let last = counts.last_offset.entry(partition.clone()).or_insert(-1);
            *last = offset.max(*last);
            *counts.delivered.entry(partition).or_default() += 1;
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}
