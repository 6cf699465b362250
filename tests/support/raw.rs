//! Record batches as bytes: fixtures that no client writes, a Produce request that carries them, and changes to the batches
//! in Fetch answers on their way through the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{FetchResponse, ProduceRequest, ResponseHeader, TopicName};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, StrBytes};

use super::client;
use super::kafka::KafkaCluster;
use super::proxy::Replace;

/// Api key of Produce.
pub const PRODUCE: i16 = 0;
/// Api key of Fetch.
pub const FETCH: i16 = 1;
/// Api key of ApiVersions.
pub const API_VERSIONS: i16 = 18;

/// The bytes of a line of `tests/data/batches-open.hex`, by the start of its name.
pub fn fixture(name: &str) -> Vec<u8> {
    let text = include_str!("../data/batches-open.hex");
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("no fixture {name}"));
    let hex = line.split_whitespace().nth(1).unwrap();
    (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect()
}

/// The same batch at another offset. The base offset is not under the CRC.
pub fn at_offset(mut batch: Vec<u8>, base_offset: i64) -> Vec<u8> {
    batch[..8].copy_from_slice(&base_offset.to_be_bytes());
    batch
}

/// Writes one batch as it is (base offset 0) to the leader of a partition, and returns the offset it got, or the broker's
/// error code.
pub async fn produce_raw(
    cluster: &KafkaCluster,
    topic: &str,
    partition: i32,
    batch: Vec<u8>,
) -> Result<i64, i16> {
    let data = PartitionProduceData::default()
        .with_index(partition)
        .with_records(Some(Bytes::from(at_offset(batch, 0))));
    let topic_data = TopicProduceData::default()
        .with_name(TopicName(StrBytes::from_string(topic.to_owned())))
        .with_partition_data(vec![data]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_topic_data(vec![topic_data]);
    let leader = cluster.leader_of(topic, partition).await;
    let answer = client::call(
        cluster.internal_address(leader),
        9,
        &request,
        Duration::from_secs(15),
    )
    .await
    .unwrap();
    let result = &answer.responses[0].partition_responses[0];
    match result.error_code {
        0 => Ok(result.base_offset),
        code => Err(code),
    }
}

/// Changes Fetch answers as a whole.
pub fn on_fetch_answer(change: impl Fn(&mut FetchResponse) + Send + Sync + 'static) -> Replace {
    Arc::new(move |_, version, frame| {
        let mut rest = Bytes::from(std::mem::take(frame));
        let header_version = FetchResponse::header_version(version);
        let header = ResponseHeader::decode(&mut rest, header_version).unwrap();
        let mut body = FetchResponse::decode(&mut rest, version).unwrap();
        change(&mut body);
        let mut changed = BytesMut::new();
        header.encode(&mut changed, header_version).unwrap();
        body.encode(&mut changed, version).unwrap();
        *frame = changed.to_vec();
    })
}

/// Changes the answer for every partition whose records hold `marker` somewhere, at most `times`.
pub fn on_records_with(
    marker: Vec<u8>,
    times: u64,
    change: impl Fn(&mut PartitionData) + Send + Sync + 'static,
) -> Replace {
    let left = AtomicU64::new(times);
    on_fetch_answer(move |answer| {
        let partitions = answer
            .responses
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions);
        for partition in partitions {
            let marked = partition
                .records
                .as_ref()
                .is_some_and(|records| position(records, &marker).is_some());
            let counted = |left: u64| left.checked_sub(1);
            if marked
                && left
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted)
                    .is_ok()
            {
                change(partition);
            }
        }
    })
}

/// Where `marker` stands first.
pub fn position(bytes: &[u8], marker: &[u8]) -> Option<usize> {
    bytes
        .windows(marker.len())
        .position(|window| window == marker)
}
