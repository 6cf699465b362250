//! The limit of the benchmark: how fast the destination takes batches that need no work any more. Reads a topic of the
//! source into memory and gives every batch the header of an idempotent producer; then, when a line comes on standard input,
//! appends them as truemirror does: one batch per partition and request, five in flight per partition. Ends with the next
//! line. Must not be part of the product.
//!
//! `replay SOURCE DESTINATION TOPIC ACKS`; says `ready` when everything is in memory, and `done` when all is acknowledged.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a tool of the benchmark: a broken assumption ends it"
)]

use std::collections::{BTreeMap, VecDeque};
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use truemirror::domain::types::{BrokerId, ProducerEpoch, ProducerId, Sequence, TopicId};
use truemirror::kafka::cluster::{Cluster, ClusterOptions, Lane, Side, TopicMetadata, Topics};
use truemirror::kafka::connection::Connection;
use truemirror::wire::api::fetch::{FetchPartition, FetchRequest, FetchTopic};
use truemirror::wire::api::produce::{PartitionProduceData, ProduceRequest, TopicProduceData};
use truemirror::wire::batch::{Batches, ProducerStamp, rewrite_header};
use truemirror::wire::schema::RecordSlices;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes asked for per Fetch, and the largest batch that is taken.
const FETCH_BYTES: i32 = 16 << 20;
const BATCH_BYTES: usize = 64 << 20;

/// What truemirror and Kafka's own producer keep in flight; a broker remembers as many batches of a producer.
const IN_FLIGHT: usize = 5;

/// With acks=all a connection stands still until the followers have what it carries, so a broker gets three.
const LANES_ACKS_ALL: i32 = 3;

type Batch = [Bytes; 2];

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, source, destination, topic, acks] = args.as_slice() else {
        panic!("usage: replay SOURCE DESTINATION TOPIC ACKS");
    };
    let acks = if acks == "all" { -1 } else { 1 };
    let name: Arc<str> = topic.as_str().into();
    let (source, from) = open(Side::Source, source, &name).await;
    let mut batches: BTreeMap<i32, VecDeque<Batch>> = BTreeMap::new();
    for (&partition, metadata) in &from.partitions {
        let leader = source
            .broker(metadata.leader.unwrap(), Lane::Control)
            .await
            .unwrap();
        let read = read(&leader, &name, from.topic_id, partition).await;
        batches.insert(partition, read);
    }
    source.close().await;

    let (destination, to) = open(Side::Destination, destination, &name).await;
    let lanes = if acks == 1 { 1 } else { LANES_ACKS_ALL };
    let mut by_lane: BTreeMap<(BrokerId, i32), BTreeMap<i32, VecDeque<Batch>>> = BTreeMap::new();
    for (partition, batches) in batches {
        let leader = to.partitions[&partition].leader.unwrap();
        let lane = by_lane.entry((leader, partition % lanes)).or_default();
        lane.insert(partition, batches);
    }
    let mut work = Vec::new();
    for ((broker, lane), batches) in by_lane {
        let lane = Lane::Produce(u16::try_from(lane).unwrap());
        let connection = destination.broker(broker, lane).await.unwrap();
        work.push(append(connection, &name, to.topic_id, acks, batches));
    }
    println!("ready");
    let mut lines = std::io::stdin().lock().lines();
    lines.next();
    futures::future::join_all(work).await;
    println!("done");
    // Whoever measures looks at this process once more.
    lines.next();
}

async fn open(side: Side, servers: &str, topic: &Arc<str>) -> (Cluster, TopicMetadata) {
    let servers = servers.split(',').map(str::to_owned).collect();
    let options = ClusterOptions {
        // As truemirror's default.
        socket_buffer_bytes: Some(1 << 20),
        ..ClusterOptions::new(side, servers)
    };
    let cluster = Cluster::new(options).unwrap();
    let topics = Topics::Named(vec![Arc::clone(topic)]);
    let metadata = cluster.refresh(topics).await.unwrap();
    let found = metadata.topics[topic].clone();
    (cluster, found)
}

/// All batches of a partition, each with the header that it is appended with.
async fn read(
    leader: &Connection,
    topic: &Arc<str>,
    topic_id: TopicId,
    partition: i32,
) -> VecDeque<Batch> {
    let mut all = VecDeque::new();
    let (mut offset, mut end) = (0, 1);
    let mut sequence = Sequence(0);
    while offset < end {
        let request = FetchRequest {
            max_wait_ms: 500,
            min_bytes: 1,
            max_bytes: FETCH_BYTES,
            topics: vec![FetchTopic {
                topic: Arc::clone(topic),
                topic_id,
                partitions: vec![FetchPartition {
                    partition,
                    fetch_offset: offset,
                    partition_max_bytes: FETCH_BYTES,
                    ..FetchPartition::default()
                }],
            }],
            ..FetchRequest::default()
        };
        let response = leader.call(&request, TIMEOUT).await.unwrap();
        let data = response.responses[0].partitions[0].clone();
        assert!(data.error_code.is_none(), "{}", data.error_code);
        end = data.high_watermark;
        for batch in Batches::new(data.records.unwrap_or_default(), BATCH_BYTES) {
            let batch = batch.unwrap();
            let stamp = ProducerStamp {
                producer_id: ProducerId(i64::MAX - i64::from(partition)),
                producer_epoch: ProducerEpoch(0),
                base_sequence: sequence,
            };
            all.push_back(rewrite_header(&batch, &stamp));
            offset = batch.header.end_offset();
            sequence = Sequence(i32::try_from(offset).unwrap());
        }
    }
    all
}

/// Appends everything: requests of one batch per partition, some in flight.
async fn append(
    connection: Connection,
    topic: &Arc<str>,
    topic_id: TopicId,
    acks: i16,
    mut batches: BTreeMap<i32, VecDeque<Batch>>,
) {
    let mut in_flight = FuturesUnordered::new();
    loop {
        while in_flight.len() < IN_FLIGHT {
            let partition_data: Vec<PartitionProduceData> = batches
                .iter_mut()
                .filter_map(|(&index, batches)| {
                    let records = RecordSlices(Vec::from(batches.pop_front()?));
                    Some(PartitionProduceData { index, records })
                })
                .collect();
            if partition_data.is_empty() {
                break;
            }
            let request = ProduceRequest {
                acks,
                timeout_ms: 30_000,
                topic_data: vec![TopicProduceData {
                    name: Arc::clone(topic),
                    topic_id,
                    partition_data,
                }],
                ..ProduceRequest::default()
            };
            in_flight.push(connection.enqueue_produce(&request, TIMEOUT));
        }
        let Some(answer) = in_flight.next().await else {
            return;
        };
        for topic in answer.unwrap().responses {
            for partition in topic.partition_responses {
                let code = partition.error_code;
                assert!(code.is_none(), "partition {}: {code}", partition.index);
            }
        }
    }
}
