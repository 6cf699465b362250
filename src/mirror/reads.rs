//! Questions to destination leaders about the ends of their logs and our producers, gathered per broker so that a thousand
//! partitions cost a few requests. Must not decide what the answers mean.

use std::collections::HashMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::Event;
use super::partition::PartitionKey;
use crate::domain::append::{EndRead, ProducerEntry};
use crate::domain::types::{BrokerId, LeaderEpoch, ProducerId, TopicPartition};
use tokio::time::sleep;

use crate::kafka::admin::{AdminError, describe_broker_configs};
use crate::kafka::append::entry_of;
use crate::kafka::cluster::{Cluster, Lane, Topics};
use crate::kafka::offsets::{OffsetKind, describe_producers, list_offsets};

/// A broker that does not answer such a small question for so long is asked again over a new connection.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Between questions to a destination that does not answer.
const EXPIRATION_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct EndWanted {
    key: PartitionKey,
    generation: u64,
    partition: TopicPartition,
    leader_epoch: LeaderEpoch,
}

#[derive(Debug)]
struct ProducerWanted {
    key: PartitionKey,
    generation: u64,
    partition: TopicPartition,
    producer_id: ProducerId,
}

/// What is wanted and not asked yet.
#[derive(Debug, Default)]
pub(super) struct Reads {
    ends: HashMap<BrokerId, Vec<EndWanted>>,
    producers: HashMap<BrokerId, Vec<ProducerWanted>>,
}

impl Reads {
    pub(super) fn want_end(
        &mut self,
        broker: BrokerId,
        leader_epoch: LeaderEpoch,
        key: PartitionKey,
        generation: u64,
        partition: TopicPartition,
    ) {
        self.ends.entry(broker).or_default().push(EndWanted {
            key,
            generation,
            partition,
            leader_epoch,
        });
    }

    pub(super) fn want_producer(
        &mut self,
        broker: BrokerId,
        producer_id: ProducerId,
        key: PartitionKey,
        generation: u64,
        partition: TopicPartition,
    ) {
        self.producers
            .entry(broker)
            .or_default()
            .push(ProducerWanted {
                key,
                generation,
                partition,
                producer_id,
            });
    }

    /// One request per broker for all that is wanted.
    pub(super) fn ask(
        &mut self,
        cluster: &Cluster,
        timeout: Duration,
    ) -> Vec<BoxFuture<'static, Event>> {
        let timeout = timeout.min(READ_TIMEOUT);
        let ends = std::mem::take(&mut self.ends)
            .into_iter()
            .map(|(broker, wanted)| {
                let cluster = cluster.clone();
                async move { Event::EndsRead(read_ends(&cluster, broker, wanted, timeout).await) }
                    .boxed()
            });
        let producers = std::mem::take(&mut self.producers)
            .into_iter()
            .map(|(broker, wanted)| {
                let cluster = cluster.clone();
                async move {
                    Event::ProducersRead(read_producers(&cluster, broker, wanted, timeout).await)
                }
                .boxed()
            });
        ends.chain(producers).collect()
    }
}

async fn read_ends(
    cluster: &Cluster,
    broker: BrokerId,
    wanted: Vec<EndWanted>,
    timeout: Duration,
) -> Vec<(PartitionKey, u64, Option<EndRead>)> {
    let nothing = |wanted: Vec<EndWanted>| {
        wanted
            .into_iter()
            .map(|one| (one.key, one.generation, None))
            .collect()
    };
    let Ok(connection) = cluster.broker(broker, Lane::Control).await else {
        cluster.request_refresh();
        return nothing(wanted);
    };
    let parts: Vec<_> = wanted
        .iter()
        .map(|one| (one.partition.clone(), one.leader_epoch))
        .collect();
    // Both are queued at once, the log end first: what the watermark then says is not older than the end.
    let (ends, marks) = futures::join!(
        list_offsets(&connection, OffsetKind::LogEnd, &parts, timeout),
        list_offsets(&connection, OffsetKind::HighWatermark, &parts, timeout),
    );
    let (Ok(ends), Ok(marks)) = (ends, marks) else {
        cluster.request_refresh();
        return nothing(wanted);
    };
    let mut refresh = false;
    let answers = wanted
        .into_iter()
        .zip(ends.into_iter().zip(marks))
        .map(|(one, ((_, end), (_, mark)))| {
            let read = match (end, mark) {
                (Ok(end), Ok(mark)) => Some(EndRead {
                    leader_epoch: one.leader_epoch,
                    log_end_offset: end.offset,
                    high_watermark: mark.offset,
                }),
                _ => None,
            };
            refresh |= read.is_none();
            (one.key, one.generation, read)
        })
        .collect();
    if refresh {
        cluster.request_refresh();
    }
    answers
}

async fn read_producers(
    cluster: &Cluster,
    broker: BrokerId,
    wanted: Vec<ProducerWanted>,
    timeout: Duration,
) -> Vec<(PartitionKey, u64, Option<Option<ProducerEntry>>)> {
    let parts: Vec<_> = wanted.iter().map(|one| one.partition.clone()).collect();
    let answers = match cluster.broker(broker, Lane::Control).await {
        Ok(connection) => describe_producers(&connection, &parts, timeout).await.ok(),
        Err(_) => None,
    };
    let Some(answers) = answers else {
        cluster.request_refresh();
        return wanted
            .into_iter()
            .map(|one| (one.key, one.generation, None))
            .collect();
    };
    wanted
        .into_iter()
        .zip(answers)
        .map(|(one, (_, producers))| {
            let entry = producers
                .ok()
                .map(|producers| entry_of(&producers, one.producer_id));
            (one.key, one.generation, entry)
        })
        .collect()
}

/// High watermarks of the partitions that `broker` leads; those that it does not answer for are left out.
pub(super) async fn read_watermarks(
    cluster: &Cluster,
    broker: BrokerId,
    wanted: Vec<(PartitionKey, TopicPartition)>,
    timeout: Duration,
) -> Vec<(PartitionKey, i64)> {
    let Ok(connection) = cluster.broker(broker, Lane::Control).await else {
        return Vec::new();
    };
    let parts: Vec<_> = wanted
        .iter()
        .map(|(_, name)| (name.clone(), LeaderEpoch::NONE))
        .collect();
    let answers = list_offsets(
        &connection,
        OffsetKind::HighWatermark,
        &parts,
        timeout.min(READ_TIMEOUT),
    )
    .await;
    let found = answers.unwrap_or_default();
    wanted
        .into_iter()
        .zip(found)
        .filter_map(|((key, _), (_, mark))| Some((key, mark.ok()?.offset)))
        .collect()
}

/// Start and leader's end of the source log; `None` if its leader cannot be asked.
pub(super) async fn locate(
    cluster: &Cluster,
    broker: BrokerId,
    partition: TopicPartition,
    timeout: Duration,
) -> Option<(i64, i64)> {
    let connection = cluster.broker(broker, Lane::Control).await.ok()?;
    let parts = [(partition, LeaderEpoch::NONE)];
    let timeout = timeout.min(READ_TIMEOUT);
    let (start, end) = futures::join!(
        list_offsets(&connection, OffsetKind::LogStart, &parts, timeout),
        list_offsets(&connection, OffsetKind::LogEnd, &parts, timeout),
    );
    let one = |answer: Vec<(
        TopicPartition,
        Result<crate::kafka::offsets::ListedOffset, _>,
    )>| {
        let (_, found): (_, Result<_, crate::kafka::offsets::PartitionFault>) =
            answer.into_iter().next()?;
        Some(found.ok()?.offset)
    };
    Some((one(start.ok()?)?, one(end.ok()?)?))
}

/// The source's last stable offset; `None` if its leader does not say it in time.
pub(super) async fn stable_end(
    cluster: &Cluster,
    broker: BrokerId,
    partition: TopicPartition,
    patience: Duration,
) -> Option<i64> {
    let asked = async {
        let connection = cluster.broker(broker, Lane::Control).await.ok()?;
        let parts = [(partition, LeaderEpoch::NONE)];
        let answer = list_offsets(&connection, OffsetKind::LastStable, &parts, patience).await;
        let (_, found) = answer.ok()?.into_iter().next()?;
        Some(found.ok()?.offset)
    };
    tokio::time::timeout(patience, asked).await.ok().flatten()
}

/// How long the destination's brokers remember an idle producer (`producer.id.expiration.ms`), asked until somebody
/// answers; `None` if we may not know.
pub(super) async fn producer_expiration(cluster: &Cluster, timeout: Duration) -> Option<Duration> {
    loop {
        // `sync` tells when the cluster cannot be reached.
        let Ok(metadata) = cluster.refresh(Topics::Named(Vec::new())).await else {
            sleep(EXPIRATION_PAUSE).await;
            continue;
        };
        let broker = metadata.brokers.keys().next().copied()?;
        let Ok(connection) = cluster.broker(broker, Lane::Control).await else {
            continue;
        };
        match describe_broker_configs(&connection, broker, timeout).await {
            Ok(configs) => {
                let value = configs.get("producer.id.expiration.ms")?.value.clone()?;
                return Some(Duration::from_millis(value.parse().ok()?));
            }
            Err(AdminError::Refused { .. } | AdminError::LeftOut { .. }) => return None,
            Err(_) => sleep(EXPIRATION_PAUSE).await,
        }
    }
}
