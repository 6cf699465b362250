//! Control batches, written with one request per destination broker for all partitions that wait at that moment: what comes while
//! a request is in flight goes with the next one. Must not decide what is written, nor what an answer means.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Event;
use super::partition::PartitionKey;
use crate::domain::append::FillAnswer;
use crate::domain::types::{BrokerId, ProducerEpoch, ProducerId, TopicPartition};
use crate::kafka::cluster::{Cluster, Lane};
use crate::wire::api::txn_markers::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest, WriteTxnMarkersResponse,
};
use crate::wire::error_code::ErrorCode;

/// Control batches in one request, but for a first partition that wants more: a broker is busy with so many for about 0.2 s.
const MARKERS_PER_REQUEST: i64 = 5_000;

/// What one partition wants to have written.
#[derive(Clone, Debug)]
pub(super) struct Fillers {
    pub(super) key: PartitionKey,
    pub(super) generation: u64,
    pub(super) partition: TopicPartition,
    pub(super) producer_id: ProducerId,
    pub(super) producer_epoch: ProducerEpoch,
    /// How many control batches.
    pub(super) count: i64,
}

#[derive(Debug, Default)]
struct Seat {
    waiting: VecDeque<Fillers>,
    in_flight: bool,
}

/// What waits to be written, by broker.
#[derive(Debug, Default)]
pub(super) struct Markers {
    brokers: BTreeMap<BrokerId, Seat>,
}

impl Markers {
    pub(super) fn want(&mut self, broker: BrokerId, fillers: Fillers) {
        let seat = self.brokers.entry(broker).or_default();
        seat.waiting.push_back(fillers);
    }

    /// True if nothing waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.brokers.values().all(|seat| seat.waiting.is_empty())
    }

    /// Takes out what nobody wants any more.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Fillers) -> bool) {
        for seat in self.brokers.values_mut() {
            seat.waiting.retain(&wanted);
        }
    }

    /// Takes out everything that has not been sent.
    pub(super) fn take_back(&mut self) -> Vec<Fillers> {
        let seats = self.brokers.values_mut();
        seats.flat_map(|seat| seat.waiting.drain(..)).collect()
    }

    /// The next request of each broker that has none in flight.
    pub(super) fn ask(
        &mut self,
        cluster: &Cluster,
        timeout: Duration,
    ) -> Vec<BoxFuture<'static, Event>> {
        let idle = self.brokers.iter_mut().filter(|(_, seat)| !seat.in_flight);
        let requests = idle.filter_map(|(broker, seat)| {
            let sent = next_of(&mut seat.waiting);
            seat.in_flight = !sent.is_empty();
            let (broker, cluster) = (*broker, cluster.clone());
            seat.in_flight.then(|| {
                async move {
                    let answers = write(&cluster, broker, &sent, timeout).await;
                    let answers = sent.into_iter().zip(answers);
                    Event::Filled {
                        broker,
                        answers: answers
                            .map(|(one, answer)| (one.key, one.generation, answer))
                            .collect(),
                    }
                }
                .boxed()
            })
        });
        requests.collect()
    }

    /// The broker's request has been answered, or given up.
    pub(super) fn answered(&mut self, broker: BrokerId) {
        if let Some(seat) = self.brokers.get_mut(&broker) {
            seat.in_flight = false;
        }
    }
}

/// What goes into the next request.
fn next_of(waiting: &mut VecDeque<Fillers>) -> Vec<Fillers> {
    let (mut sent, mut markers) = (Vec::new(), 0_i64);
    while let Some(next) = waiting.front() {
        markers = markers.saturating_add(next.count);
        if !sent.is_empty() && markers > MARKERS_PER_REQUEST {
            break;
        }
        sent.extend(waiting.pop_front());
    }
    sent
}

/// Writes them, and says for each what came of it; no answer says how many were applied.
async fn write(
    cluster: &Cluster,
    broker: BrokerId,
    sent: &[Fillers],
    timeout: Duration,
) -> Vec<FillAnswer> {
    let response = match cluster.broker(broker, Lane::Markers).await {
        Ok(connection) => connection.call(&request(sent), timeout).await.ok(),
        Err(_) => None,
    };
    answers(sent, response.unwrap_or_default())
}

fn request(sent: &[Fillers]) -> WriteTxnMarkersRequest {
    let markers = sent.iter().flat_map(|one| {
        let marker = WritableTxnMarker {
            producer_id: one.producer_id,
            producer_epoch: one.producer_epoch,
            transaction_result: false,
            topics: vec![WritableTxnMarkerTopic {
                name: Arc::clone(&one.partition.topic),
                partition_indexes: vec![one.partition.partition],
            }],
            coordinator_epoch: 0,
        };
        std::iter::repeat_n(marker, usize::try_from(one.count).unwrap_or(0))
    });
    WriteTxnMarkersRequest {
        markers: markers.collect(),
    }
}

/// Sorts a response by what was sent. The broker gives one result per producer id and partition, however many markers there were;
/// of a partition that it leaves out nothing is known.
fn answers(sent: &[Fillers], response: WriteTxnMarkersResponse) -> Vec<FillAnswer> {
    let mut codes: HashMap<(ProducerId, Arc<str>, i32), ErrorCode> = HashMap::new();
    for marker in response.markers {
        for topic in marker.topics {
            for partition in topic.partitions {
                let place = (
                    marker.producer_id,
                    Arc::clone(&topic.name),
                    partition.partition_index,
                );
                // An error stays, whatever is said beside it.
                let code = codes.entry(place).or_insert(ErrorCode::NONE);
                if code.is_none() {
                    *code = partition.error_code;
                }
            }
        }
    }
    let answer = |one: &Fillers| {
        let name = &one.partition;
        match codes.get(&(one.producer_id, Arc::clone(&name.topic), name.partition)) {
            None => FillAnswer::Lost,
            Some(&ErrorCode::NONE) => FillAnswer::Written,
            Some(
                code @ (&ErrorCode::CLUSTER_AUTHORIZATION_FAILED
                | &ErrorCode::TOPIC_AUTHORIZATION_FAILED),
            ) => FillAnswer::Denied(code.0),
            Some(code) => FillAnswer::Error(code.0),
        }
    };
    sent.iter().map(answer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::api::txn_markers::{
        WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    };

    fn fillers(index: i32, count: i64) -> Fillers {
        Fillers {
            key: 7,
            generation: 1,
            partition: TopicPartition::new("t", index),
            producer_id: ProducerId(100 + i64::from(index)),
            producer_epoch: ProducerEpoch(3),
            count,
        }
    }

    #[test]
    fn what_waits_goes_together_up_to_a_limit_and_a_wide_one_goes_alone() {
        for (counts, requests) in [
            (vec![], vec![]),
            (vec![1; 200], vec![200]),
            (vec![1, 5_000, 1, 4_999, 1], vec![1, 1, 2, 1]),
            (vec![9_000, 1], vec![1, 1]),
        ] {
            let mut waiting: VecDeque<_> = (0..).zip(counts).map(|(i, n)| fillers(i, n)).collect();
            let next = || Some(next_of(&mut waiting).len()).filter(|sent| *sent > 0);
            assert_eq!(std::iter::from_fn(next).collect::<Vec<_>>(), requests);
        }
    }

    #[test]
    fn each_partition_gets_its_own_answer() {
        let sent: Vec<_> = [(0, 1), (1, 2), (2, 1), (3, 1)]
            .map(|(index, count)| fillers(index, count))
            .into();
        let markers = request(&sent).markers;
        let ids: Vec<i64> = markers.iter().map(|marker| marker.producer_id.0).collect();
        assert_eq!(ids, [100, 101, 101, 102, 103]);
        let result = |index: i32, error_code| WritableTxnMarkerResult {
            producer_id: ProducerId(100 + i64::from(index)),
            topics: vec![WritableTxnMarkerTopicResult {
                name: "t".into(),
                partitions: vec![WritableTxnMarkerPartitionResult {
                    partition_index: index,
                    error_code,
                }],
            }],
        };
        let fenced = ErrorCode::INVALID_PRODUCER_EPOCH;
        let denied = ErrorCode::CLUSTER_AUTHORIZATION_FAILED;
        // In any order, and an error is not hidden by a success of the same partition.
        let response = WriteTxnMarkersResponse {
            markers: vec![
                result(2, denied),
                result(1, fenced),
                result(1, ErrorCode::NONE),
                result(0, ErrorCode::NONE),
            ],
        };
        assert_eq!(
            answers(&sent, response),
            [
                FillAnswer::Written,
                FillAnswer::Error(fenced.0),
                FillAnswer::Denied(denied.0),
                FillAnswer::Lost
            ]
        );
    }
}
