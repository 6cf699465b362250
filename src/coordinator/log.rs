//! The log of one state partition: read it, append to it. Must not decide what is written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;

use crate::domain::append::{AppendConfig, AppendFailure, Comparison, producer_id};
use crate::domain::shard::Shard;
use crate::domain::state_log::StateRecord;
use crate::domain::types::{TopicId, TopicPartition};
use crate::kafka::append::{Appended, LogAppender, Standing};
use crate::kafka::cluster::{Cluster, ClusterError, Lane, Topics};
use crate::kafka::offsets::{OffsetKind, list_offsets};
use crate::kafka::visible::{ReadError, ReadOptions, VisibleReader};
use crate::metrics::Metrics;
use crate::wire::records::Record;
use crate::wire::state_record::{self, StateRecordError};

/// Bytes of one read while a partition is loaded (KIP-1279: `mirror.coordinator.load.buffer.size`); a larger batch comes as a
/// whole.
const LOAD_BYTES: i32 = 5 * 1024 * 1024;

/// Bytes of keys and values in one batch: well below `max.message.bytes` of any broker.
const BATCH_BYTES: usize = 512 * 1024;

/// The outcome of an append is unknown after this (KIP-1279: `mirror.coordinator.write.timeout.ms`).
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// Who all state producers are in the name of.
const OWNER: &str = "\u{0}state";

/// Why the log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error("cannot read state partition {partition}")]
    Read {
        partition: TopicPartition,
        #[source]
        source: ReadError,
    },
    #[error("cannot ask where the log of state partition {partition} begins")]
    Start { partition: TopicPartition },
    #[error("cannot append to state partition {partition}")]
    Append {
        partition: TopicPartition,
        #[source]
        source: AppendFailure,
    },
    #[error("a record is too long for the protocol")]
    Encode(#[from] crate::wire::bounded::EncodeError),
    #[error("the topic of state partition {partition} was deleted and created again")]
    AnotherTopic { partition: TopicPartition },
    #[error("cannot ask for the topic of state partition {partition}")]
    Metadata {
        partition: TopicPartition,
        #[source]
        source: ClusterError,
    },
    #[error("the outcome of an append to state partition {partition} is not known")]
    Doubt { partition: TopicPartition },
}

/// One state partition.
#[derive(Debug)]
pub(super) struct StateLog {
    cluster: Cluster,
    partition: TopicPartition,
    topic_id: TopicId,
    appender: LogAppender,
    wall_clock_ms: fn() -> i64,
    metrics: Metrics,
    /// Up to here, exclusive, the log has been read.
    position: i64,
}

impl StateLog {
    /// The log of a partition of the topic with this id, whatever topics of the same name come later.
    pub(super) fn new(
        cluster: Cluster,
        partition: TopicPartition,
        topic_id: TopicId,
        wall_clock_ms: fn() -> i64,
        metrics: Metrics,
    ) -> Self {
        let config = AppendConfig::new(producer_id(OWNER, &partition, 0));
        Self {
            appender: LogAppender::new(
                cluster.clone(),
                partition.clone(),
                topic_id,
                config,
                WRITE_TIMEOUT,
                wall_clock_ms,
            ),
            cluster,
            partition,
            topic_id,
            wall_clock_ms,
            metrics,
            position: 0,
        }
    }

    /// Reads the log up to its end into a shard, and makes ready to append behind it.
    pub(super) async fn load(&mut self) -> Result<Shard, LogError> {
        let mut shard = Shard::default();
        self.position = 0;
        loop {
            match self.appender.settle().await {
                Standing::Compare { log_end_offset } => {
                    match self.read(&mut shard, log_end_offset).await {
                        Ok(()) => self.appender.compared(Comparison::Equal),
                        Err(error) => {
                            self.appender.compared(Comparison::Unavailable);
                            return Err(error);
                        }
                    }
                }
                Standing::Ready { cursor } if cursor == self.position => return Ok(shard),
                // It was ready before; what stands in the log since then is read as well.
                Standing::Ready { cursor } => self.read(&mut shard, cursor).await?,
                Standing::Failed(source) => {
                    return Err(LogError::Append {
                        partition: self.partition.clone(),
                        source,
                    });
                }
            }
        }
    }

    /// Reads on from the position up to `end`. What is below the log's start has been compacted away or trimmed.
    async fn read(&mut self, shard: &mut Shard, end: i64) -> Result<(), LogError> {
        if self.position == 0 {
            self.position = self.log_start().await?;
        }
        let options = ReadOptions {
            fetch_bytes: LOAD_BYTES,
            ..ReadOptions::new(Lane::State, false)
        };
        let range = self.position..end;
        let mut reader = VisibleReader::new(
            self.cluster.clone(),
            self.partition.clone(),
            self.topic_id,
            range,
            options,
        );
        while let Some(batch) = reader.next().await.map_err(|source| LogError::Read {
            partition: self.partition.clone(),
            source,
        })? {
            for (offset, record) in
                decoded(batch.records, |offset, error| self.left_out(offset, &error))
            {
                shard.apply(offset, record);
            }
        }
        self.position = end;
        Ok(())
    }

    fn left_out(&self, offset: i64, error: &StateRecordError) {
        let kind = match error {
            StateRecordError::UnknownType(_) => "unknown_type",
            StateRecordError::NewerVersion { .. } => "newer_version",
            StateRecordError::State(_)
            | StateRecordError::NoKey
            | StateRecordError::Malformed(_) => "malformed",
        };
        let skipped = &self.metrics.state_records_skipped;
        skipped.with_label_values(&[kind]).inc();
        warn!(partition = %self.partition, offset, %error, "state record left where it is");
    }

    /// Makes sure that the topic is still the one that this log is a part of. Brokers before Kafka 4.0 take batches by the
    /// topic's name alone, and to them an empty log is like another.
    pub(super) async fn confirm_topic(&self) -> Result<(), LogError> {
        let name = &self.partition.topic;
        let asked = self.cluster.refresh(Topics::Named(vec![Arc::clone(name)]));
        let metadata = asked.await.map_err(|source| LogError::Metadata {
            partition: self.partition.clone(),
            source,
        })?;
        if metadata.topic_id(name) == self.topic_id {
            return Ok(());
        }
        Err(LogError::AnotherTopic {
            partition: self.partition.clone(),
        })
    }

    async fn log_start(&self) -> Result<i64, LogError> {
        let unknown = || LogError::Start {
            partition: self.partition.clone(),
        };
        let (broker, epoch) = self.cluster.leader(&self.partition).ok_or_else(unknown)?;
        let connection = self.cluster.broker(broker, Lane::State).await;
        let connection = connection.map_err(|_| unknown())?;
        let parts = [(self.partition.clone(), epoch)];
        let answer = list_offsets(&connection, OffsetKind::LogStart, &parts, WRITE_TIMEOUT).await;
        let found = answer
            .ok()
            .and_then(|found| found.into_iter().next()?.1.ok());
        found.map(|listed| listed.offset).ok_or_else(unknown)
    }

    /// Appends records, in as few batches as their size allows, and applies them to `shard` once they are in the log of all
    /// in-sync replicas. Must run to its end: dropped halfway, only [`StateLog::load`] is of use.
    pub(super) async fn append(
        &mut self,
        shard: &mut Shard,
        records: Vec<StateRecord>,
    ) -> Result<(), LogError> {
        let mut waiting = records.into_iter().peekable();
        while waiting.peek().is_some() {
            let timestamp = (self.wall_clock_ms)();
            let (mut batch, mut encoded, mut size_bytes) = (Vec::new(), Vec::new(), 0_usize);
            while let Some(record) = waiting.next_if(|_| size_bytes < BATCH_BYTES) {
                let (key, value) = state_record::encode(&record)?;
                size_bytes = size_bytes
                    .saturating_add(key.len())
                    .saturating_add(value.as_ref().map_or(0, Bytes::len));
                encoded.push(Record {
                    offset: 0,
                    timestamp,
                    key: Some(key),
                    value,
                    headers: Vec::new(),
                });
                batch.push(record);
            }
            match self.appender.append(encoded).await {
                Appended::Yes { base_offset } => {
                    for (offset, record) in (base_offset..).zip(batch) {
                        shard.apply(offset, record);
                        self.position = offset.saturating_add(1);
                    }
                }
                Appended::Doubt | Appended::Impossible(_) => {
                    return Err(LogError::Doubt {
                        partition: self.partition.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The state records of a batch with their offsets. What this version does not know is left where it is, and told to `unknown`.
pub(super) fn decoded(
    records: impl IntoIterator<Item = Record>,
    mut unknown: impl FnMut(i64, StateRecordError),
) -> impl Iterator<Item = (i64, StateRecord)> {
    records.into_iter().filter_map(move |record| {
        match state_record::decode(record.key.as_ref(), record.value.as_ref()) {
            Ok(decoded) => Some((record.offset, decoded)),
            Err(error) => {
                unknown(record.offset, error);
                None
            }
        }
    })
}
