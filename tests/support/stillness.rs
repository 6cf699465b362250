//! How long a consumer waits for the next record of each partition: the reader is somebody else's client, and sees what users see.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::Instant;

/// A consumer at the end of a topic.
pub struct Stillness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<BTreeMap<i32, Duration>>,
}

impl Stillness {
    /// Begins at the end of partitions `0..partitions`.
    pub fn watch(bootstrap: &str, topic: &str, partitions: i32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
        let thread = std::thread::Builder::new()
            .name("stillness".into())
            .spawn(move || follow(&bootstrap, &topic, partitions, &stopped))
            .unwrap();
        Self { stop, thread }
    }

    /// Ends it: the longest time without a record of each partition.
    pub async fn longest(self) -> BTreeMap<i32, Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let joined = tokio::task::spawn_blocking(move || self.thread.join());
        joined.await.unwrap().unwrap()
    }
}

fn follow(
    bootstrap: &str,
    topic: &str,
    partitions: i32,
    stopped: &AtomicBool,
) -> BTreeMap<i32, Duration> {
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "stillness")
        .set("enable.auto.commit", "false")
        .set("fetch.wait.max.ms", "50")
        .set("fetch.error.backoff.ms", "50")
        .set("topic.metadata.refresh.fast.interval.ms", "50")
        .set("reconnect.backoff.max.ms", "500")
        .create()
        .unwrap();
    let mut list = TopicPartitionList::new();
    for partition in 0..partitions {
        list.add_partition_offset(topic, partition, Offset::End)
            .unwrap();
    }
    consumer.assign(&list).unwrap();
    let begin = Instant::now();
    let mut last: BTreeMap<i32, Instant> = (0..partitions).map(|p| (p, begin)).collect();
    let mut longest: BTreeMap<i32, Duration> =
        (0..partitions).map(|p| (p, Duration::ZERO)).collect();
    let mut see = |partition: i32, at: Instant| {
        let before = last.insert(partition, at).unwrap();
        let pause = longest.get_mut(&partition).unwrap();
        *pause = (*pause).max(at - before);
    };
    while !stopped.load(Ordering::Relaxed) {
        // An error is a broker that is away; librdkafka looks for the next one.
        if let Some(Ok(message)) = consumer.poll(Duration::from_millis(50)) {
            see(message.partition(), Instant::now());
        }
    }
    let end = Instant::now();
    (0..partitions).for_each(|partition| see(partition, end));
    longest
}
