//! The reader of visible records against brokers of bad will and bad luck. Must not need a real broker.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests stop the test like tests do"
)]

#[cfg(test)]
mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use support::fake_broker::{Asked, FakeBroker, Reply, answer_metadata, metadata};
use truemirror::domain::types::{Codec, TopicId, TopicPartition};
use truemirror::kafka::cluster::{Cluster, ClusterOptions, Lane, Side};
use truemirror::kafka::visible::{ReadError, ReadOptions, VisibleReader};
use truemirror::wire::api::fetch::{
    FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData,
};
use truemirror::wire::encode::{BatchOptions, encode_batch};
use truemirror::wire::error_code::ErrorCode;
use truemirror::wire::records::Record;

const ID: TopicId = TopicId([7; 16]);

/// Ten records from `base_offset` on, in one batch.
fn batch(base_offset: i64) -> Bytes {
    let records: Vec<Record> = (base_offset..base_offset + 10)
        .map(|offset| Record {
            offset,
            timestamp: 1,
            key: None,
            value: Some(Bytes::from_static(b"value")),
            headers: Vec::new(),
        })
        .collect();
    encode_batch(&records, base_offset, &BatchOptions::plain(Codec::None)).unwrap()
}

fn damaged(mut batch: BytesMut) -> Bytes {
    *batch.last_mut().unwrap() ^= 1;
    batch.freeze()
}

/// What a broker says to one Fetch.
#[derive(Clone, Debug)]
enum Said {
    /// These bytes, with the watermark.
    Records(Bytes, i64),
    Error(ErrorCode),
    /// An answer without any partition, as a broker gives it when it throttles.
    Nothing,
    Closes,
}

fn answer(asked: &Asked, said: Said) -> Reply {
    let mut data = PartitionData::default();
    match said {
        Said::Records(records, watermark) => {
            data.records = Some(records);
            data.high_watermark = watermark;
            data.last_stable_offset = watermark;
        }
        Said::Error(code) => data.error_code = code,
        Said::Nothing => {
            return asked.answer::<FetchRequest>(&FetchResponse::default());
        }
        Said::Closes => return Reply::Close,
    }
    let response = FetchResponse {
        responses: vec![FetchableTopicResponse {
            topic_id: ID,
            partitions: vec![data],
            ..Default::default()
        }],
        ..Default::default()
    };
    asked.answer::<FetchRequest>(&response)
}

/// Reads 0 to 20 from brokers that say this, one after the other: whoever is asked first leads until the script says
/// NOT_LEADER_OR_FOLLOWER; from then on the other one does.
async fn read(script: Vec<Said>, topic_id: TopicId) -> (Result<Vec<i64>, ReadError>, Vec<String>) {
    let log = Arc::new(Mutex::new(Vec::new()));
    let script = Arc::new(Mutex::new(script.into_iter()));
    let leader = Arc::new(Mutex::new(1));
    let addresses = Arc::new(Mutex::new(Vec::new()));
    let mut brokers = Vec::new();
    for id in [1, 2] {
        let (log, script) = (Arc::clone(&log), Arc::clone(&script));
        let (leader, addresses) = (Arc::clone(&leader), Arc::clone(&addresses));
        let known = Arc::clone(&addresses);
        let broker = FakeBroker::start(Box::new(move |asked| {
            if asked.is::<FetchRequest>() {
                let request: FetchRequest = asked.body();
                let partition = &request.topics[0].partitions[0];
                let line = format!(
                    "{id}: {} {}",
                    partition.fetch_offset, partition.partition_max_bytes
                );
                log.lock().unwrap().push(line);
                let said = script.lock().unwrap().next()?;
                if matches!(said, Said::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER)) {
                    *leader.lock().unwrap() = 3 - id;
                }
                return Some(answer(asked, said));
            }
            let brokers: Vec<_> = (1..).zip(known.lock().unwrap().iter().copied()).collect();
            let mut response = metadata("c", &brokers, "t", &[*leader.lock().unwrap()]);
            response.topics[0].topic_id = ID;
            answer_metadata(asked, &response)
        }))
        .await;
        addresses.lock().unwrap().push(broker.address);
        brokers.push(broker);
    }
    let servers = vec![brokers[0].address.to_string()];
    let cluster = Cluster::new(ClusterOptions::new(Side::Source, servers)).unwrap();
    let options = ReadOptions {
        fetch_bytes: 1_000,
        patience: Duration::from_secs(5),
        ..ReadOptions::new(Lane::Compare, true)
    };
    let tp = TopicPartition::new("t", 0);
    let mut reader = VisibleReader::new(cluster.clone(), tp, topic_id, 0..20, options);
    let mut offsets = Vec::new();
    let read = loop {
        match reader.next().await {
            Ok(Some(batch)) => offsets.extend(batch.records.iter().map(|record| record.offset)),
            Ok(None) => break Ok(offsets),
            Err(error) => break Err(error),
        }
    };
    cluster.close().await;
    let log = log.lock().unwrap().clone();
    (read, log)
}

#[tokio::test]
async fn setbacks_cost_time_and_no_record() {
    let good = |base_offset| Said::Records(batch(base_offset), 20);
    let cut = |length: usize| Said::Records(batch(0).slice(..length), 20);
    let bad = || Said::Records(damaged(BytesMut::from(&batch(10)[..])), 20);
    let two = {
        let mut bytes = BytesMut::from(&batch(0)[..]);
        bytes.extend_from_slice(&damaged(BytesMut::from(&batch(10)[..])));
        Said::Records(bytes.freeze(), 20)
    };
    let size = batch(0).len();
    let all: Vec<i64> = (0..20).collect();
    let empty = |watermark| Said::Records(Bytes::new(), watermark);
    for (what, script, wanted, asked) in [
        (
            "nothing goes wrong",
            vec![good(0), good(10)],
            all.clone(),
            vec!["1: 0 1000", "1: 10 1000"],
        ),
        (
            "the leader moves",
            vec![
                good(0),
                Said::Error(ErrorCode::NOT_LEADER_OR_FOLLOWER),
                good(10),
            ],
            all.clone(),
            vec!["1: 0 1000", "1: 10 1000", "2: 10 1000"],
        ),
        (
            "the connection breaks and the broker throttles",
            vec![
                Said::Closes,
                good(0),
                Said::Nothing,
                Said::Nothing,
                good(10),
            ],
            all.clone(),
            vec![
                "1: 0 1000",
                "1: 0 1000",
                "1: 10 1000",
                "1: 10 1000",
                "1: 10 1000",
            ],
        ),
        (
            "bytes are damaged, behind good ones and alone",
            vec![two, bad(), good(10)],
            all.clone(),
            vec!["1: 0 1000", "1: 10 1000", "1: 10 1000"],
        ),
        (
            "less than a batch comes",
            vec![cut(11), cut(size - 1), good(0), good(10)],
            all.clone(),
            vec!["1: 0 1000", "1: 0 2000", "1: 0 2000", "1: 10 1000"],
        ),
        (
            "the log ends with a hole",
            vec![good(0), empty(20)],
            (0..10).collect(),
            vec!["1: 0 1000", "1: 10 1000"],
        ),
        (
            "the watermark comes late",
            vec![empty(0), empty(0), good(0), empty(10), good(10)],
            all,
            vec![
                "1: 0 1000",
                "1: 0 1000",
                "1: 0 1000",
                "1: 10 1000",
                "1: 10 1000",
            ],
        ),
    ] {
        let (read, log) = read(script, ID).await;
        assert_eq!(read.unwrap(), wanted, "{what}");
        assert_eq!(log, asked, "{what}");
    }
}

#[tokio::test]
async fn what_does_not_get_better_is_given_up() {
    let bad = || Said::Records(damaged(BytesMut::from(&batch(0)[..])), 20);
    let (found, log) = read(vec![bad(), bad(), bad(), bad()], ID).await;
    assert!(matches!(found, Err(ReadError::Batch { .. })), "{found:?}");
    assert_eq!(log.len(), 4);

    // A broker that gives other offsets than those asked for.
    let old = || Said::Records(batch(0), 20);
    let (found, log) = read(vec![old(), old(), old(), old(), old()], ID).await;
    assert!(
        matches!(found, Err(ReadError::NoProgress { position: 10, .. })),
        "{found:?}"
    );
    assert_eq!(log.len(), 5);

    let denied = Said::Error(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    let (found, log) = read(vec![denied], ID).await;
    assert!(
        matches!(
            found,
            Err(ReadError::Refused {
                code: ErrorCode::TOPIC_AUTHORIZATION_FAILED,
                ..
            })
        ),
        "{found:?}"
    );
    assert_eq!(log.len(), 1);

    let (found, log) = read(Vec::new(), TopicId([8; 16])).await;
    assert!(
        matches!(found, Err(ReadError::Recreated { .. })),
        "{found:?}"
    );
    assert!(log.is_empty());

    let (found, _) = read(vec![Said::Error(ErrorCode::KAFKA_STORAGE_ERROR); 1_000], ID).await;
    assert!(
        matches!(found, Err(ReadError::Unavailable { position: 0, .. })),
        "{found:?}"
    );
}
