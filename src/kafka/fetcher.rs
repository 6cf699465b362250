//! One fetcher: long polls at one broker for many partitions, in a session, with the batches of each answer walked. Must not
//! decide what the batches mean.

use std::time::Duration;

use super::cluster::{Cluster, Lane};
use super::connect::ConnectError;
use super::connection::{Connection, RequestError};
use super::fetch_session::{FetchLimits, FetchSession, Wanted};
use crate::domain::types::{BrokerId, LeaderEpoch, TopicPartition};
use crate::wire::api::fetch::PartitionData;
use crate::wire::batch::{BatchError, Batches, RawBatch};
use crate::wire::error_code::ErrorCode;

/// No batch is larger: `max.message.bytes` is an int, and a frame must hold it.
const BATCH_LIMIT_BYTES: usize = 256 * 1024 * 1024;

/// The session of one fetcher with its broker.
#[derive(Debug, Default)]
pub struct Fetcher {
    connection: Option<Connection>,
    session: FetchSession,
}

/// What one answer says of one partition.
#[derive(Debug)]
pub struct Fetched {
    /// Which one.
    pub partition: TopicPartition,
    /// The broker's code for it.
    pub error_code: ErrorCode,
    /// The next offset that is not replicated.
    pub high_watermark: i64,
    /// The next offset that is not decided.
    pub last_stable_offset: i64,
    /// The first offset that is there, inclusive.
    pub log_start_offset: i64,
    /// End of the last epoch that both logs share, if ours has another tail.
    pub diverging: Option<(LeaderEpoch, i64)>,
    /// Whole batches in log order, CRC checked.
    pub batches: Vec<RawBatch>,
    /// What stands behind them and is no batch.
    pub fault: Option<BatchError>,
}

/// One answer.
#[derive(Debug, Default)]
pub struct FetchOutcome {
    /// What it says of each partition that it has news of.
    pub partitions: Vec<Fetched>,
    /// Bytes of records in it.
    pub record_bytes: usize,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum FetchFault {
    /// The broker cannot be reached.
    #[error("cannot reach broker {broker}")]
    Connect {
        /// Who.
        broker: BrokerId,
        /// Why.
        #[source]
        source: ConnectError,
    },
    /// It did not answer.
    #[error("broker {broker} did not answer Fetch")]
    Request {
        /// Who.
        broker: BrokerId,
        /// Why.
        #[source]
        source: RequestError,
    },
}

impl FetchFault {
    /// As a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connection",
            Self::Request {
                source: RequestError::TimedOut { .. },
                ..
            } => "timeout",
            Self::Request { .. } => "request",
        }
    }
}

impl Fetcher {
    /// The pauses that the broker has asked for on the connection that is open now.
    pub fn throttled(&self) -> Duration {
        self.connection
            .as_ref()
            .map_or(Duration::ZERO, |connection| connection.throttling().total)
    }

    /// Asks once. The fetcher comes back with the answer.
    pub async fn fetch(
        mut self,
        cluster: Cluster,
        broker: BrokerId,
        lane: Lane,
        wanted: Vec<Wanted>,
        limits: FetchLimits,
        timeout: Duration,
    ) -> (Self, Result<FetchOutcome, FetchFault>) {
        let outcome = self
            .ask(&cluster, broker, lane, &wanted, limits, timeout)
            .await;
        if outcome.is_err() {
            self.connection = None;
            self.session.reset();
        }
        (self, outcome)
    }

    async fn ask(
        &mut self,
        cluster: &Cluster,
        broker: BrokerId,
        lane: Lane,
        wanted: &[Wanted],
        limits: FetchLimits,
        timeout: Duration,
    ) -> Result<FetchOutcome, FetchFault> {
        let connection = cluster
            .broker(broker, lane)
            .await
            .map_err(|source| FetchFault::Connect { broker, source })?;
        if self
            .connection
            .as_ref()
            .is_none_or(|known| !known.same_as(&connection))
        {
            // A session would outlive its connection, but not the broker; a new connection may lead to a new one.
            self.session.reset();
            self.connection = Some(connection.clone());
        }
        let request = self.session.request(wanted, limits);
        let expected = usize::try_from(limits.max_bytes).unwrap_or(0);
        let response = connection
            .enqueue_expecting(&request, timeout, expected)
            .await
            .map_err(|source| FetchFault::Request { broker, source })?;
        let mut outcome = FetchOutcome::default();
        if !self
            .session
            .answered(response.error_code, response.session_id)
        {
            tracing::debug!(%broker, code = %response.error_code, "fetch session is gone, beginning a new one");
            return Ok(outcome);
        }
        for topic in response.responses {
            for data in topic.partitions {
                // What nobody asked for says nothing about what was asked.
                let known =
                    self.session
                        .partition_of(&topic.topic, topic.topic_id, data.partition_index);
                let Some(partition) = known else { continue };
                let fetched = read(partition, data);
                outcome.record_bytes = fetched
                    .batches
                    .iter()
                    .fold(outcome.record_bytes, |sum, batch| {
                        sum.saturating_add(batch.bytes.len())
                    });
                outcome.partitions.push(fetched);
            }
        }
        Ok(outcome)
    }
}

fn read(partition: TopicPartition, data: PartitionData) -> Fetched {
    let mut batches = Vec::new();
    let mut fault = None;
    for batch in Batches::new(data.records.unwrap_or_default(), BATCH_LIMIT_BYTES) {
        match batch {
            Ok(batch) => batches.push(batch),
            Err(error) => fault = Some(error),
        }
    }
    let diverging = (data.diverging_epoch.end_offset >= 0)
        .then_some((data.diverging_epoch.epoch, data.diverging_epoch.end_offset));
    Fetched {
        partition,
        error_code: data.error_code,
        high_watermark: data.high_watermark,
        last_stable_offset: data.last_stable_offset,
        log_start_offset: data.log_start_offset,
        diverging,
        batches,
        fault,
    }
}
