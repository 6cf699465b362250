//! Compare-and-append for one partition whose batches are small and come one at a time: the state log. Carries out what the
//! machine of `domain::append` wants; the data path drives thousands of such machines at once, in `mirror`. Must not decide what
//! is appended, nor compare logs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::cluster::{Cluster, Lane};
use super::connection::Connection;
use super::contact::chain;
use super::offsets::{OffsetKind, describe_producers, list_offsets};
use crate::domain::append::{
    Answer, AppendConfig, AppendFailure, AppendMachine, Comparison, Effect, EndRead, FillAnswer,
    ProducerEntry, Span,
};
use crate::domain::types::{
    BrokerId, Codec, LeaderEpoch, ProducerEpoch, ProducerId, Sequence, TopicId, TopicPartition,
};
use crate::wire::api::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData,
};
use crate::wire::api::producers::ProducerState;
use crate::wire::encode::{BatchOptions, EncodeError, encode_batch};
use crate::wire::error_code::ErrorCode;
use crate::wire::records::Record;
use crate::wire::schema::RecordSlices;

/// Between looks for a leader that is not there.
const LEADER_PAUSE: Duration = Duration::from_millis(200);

/// What an answer means for the batch. A code that says nothing about the batch itself passes, or a look at the log
/// resolves it; so does any code that is not known here, since appending again is safe and skipping is not.
pub fn classify(response: &PartitionProduceResponse) -> Answer {
    match response.error_code {
        ErrorCode::NONE => Answer::Appended {
            base_offset: response.base_offset,
            repeated: response.log_append_time_ms >= 0,
        },
        code @ (ErrorCode::MESSAGE_TOO_LARGE
        | ErrorCode::RECORD_LIST_TOO_LARGE
        | ErrorCode::INVALID_RECORD
        | ErrorCode::INVALID_TIMESTAMP
        | ErrorCode::CORRUPT_MESSAGE
        | ErrorCode::UNSUPPORTED_COMPRESSION_TYPE
        | ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT
        | ErrorCode::POLICY_VIOLATION
        | ErrorCode::INVALID_REQUEST
        | ErrorCode::INVALID_REQUIRED_ACKS
        | ErrorCode::TOPIC_AUTHORIZATION_FAILED
        | ErrorCode::CLUSTER_AUTHORIZATION_FAILED) => Answer::Refused(code.0),
        code => Answer::Transient(code.0),
    }
}

/// What the leader knows of `producer_id`, out of all producers that it knows.
pub fn entry_of(producers: &[ProducerState], producer_id: ProducerId) -> Option<ProducerEntry> {
    let ours = producers
        .iter()
        .find(|producer| producer.producer_id == producer_id)?;
    Some(ProducerEntry {
        epoch: ProducerEpoch(i16::try_from(ours.producer_epoch).ok()?),
        last_sequence: (ours.last_sequence >= 0).then_some(Sequence(ours.last_sequence)),
    })
}

/// Where a partition's append stands when it cannot go on without its user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The user must know the log up to here, exclusive, and then say what it found ([`LogAppender::compared`]).
    Compare {
        /// The destination's log end.
        log_end_offset: i64,
    },
    /// A batch may be appended at this offset.
    Ready {
        /// The next offset.
        cursor: i64,
    },
    /// It cannot go on by itself.
    Failed(AppendFailure),
}

/// What became of a batch.
#[derive(Debug)]
pub enum Appended {
    /// It is in the log, on all in-sync replicas.
    Yes {
        /// The offset of its first record.
        base_offset: i64,
    },
    /// Unknown, or somebody else has appended: whoever held a view of the log must look at it again, from
    /// [`LogAppender::settle`] on.
    Doubt,
    /// It cannot be built.
    Impossible(EncodeError),
}

/// One partition's append, one batch at a time, always with acks=all.
#[derive(Debug)]
pub struct LogAppender {
    cluster: Cluster,
    partition: TopicPartition,
    topic_id: TopicId,
    machine: AppendMachine,
    request_timeout: Duration,
    wall_clock_ms: fn() -> i64,
    /// What the machine wants next.
    next: Effect,
}

impl LogAppender {
    /// An appender that has not looked at the log yet. It is the log of the topic with this id: one that is created later
    /// under the same name is another one, which has no leader as far as this appender is concerned.
    pub fn new(
        cluster: Cluster,
        partition: TopicPartition,
        topic_id: TopicId,
        config: AppendConfig,
        request_timeout: Duration,
        wall_clock_ms: fn() -> i64,
    ) -> Self {
        let mut machine = AppendMachine::new(config);
        Self {
            next: machine.start(),
            machine,
            cluster,
            partition,
            topic_id,
            request_timeout,
            wall_clock_ms,
        }
    }

    /// Goes on until the user is needed. Waits as long as the partition has no leader. Cancel safe: what was asked is asked
    /// again.
    pub async fn settle(&mut self) -> Standing {
        loop {
            let next = match &self.next {
                Effect::None | Effect::Acknowledged { .. } => match self.machine.cursor() {
                    Some(cursor) => return Standing::Ready { cursor },
                    None => self.machine.start(),
                },
                Effect::Ready { cursor } => return Standing::Ready { cursor: *cursor },
                Effect::Compare { log_end_offset } => {
                    return Standing::Compare {
                        log_end_offset: *log_end_offset,
                    };
                }
                Effect::Fail(failure) => return Standing::Failed(failure.clone()),
                Effect::Wait { pause, id } => {
                    let id = *id;
                    sleep(*pause).await;
                    self.machine.waited(id)
                }
                Effect::ReadEnd => match self.read_end().await {
                    Some(end) => self.machine.end_read(end),
                    None => self.machine.read_failed(),
                },
                Effect::ReadProducer => match self.read_producer().await {
                    Some(entry) => self.machine.producer_read(entry),
                    None => self.machine.read_failed(),
                },
                // Never asked for here: the state log has no holes to fill.
                Effect::SendFillers { .. } => self.machine.filled(FillAnswer::Lost),
            };
            self.next = next;
        }
    }

    /// What the user found of the log up to the end that [`Standing::Compare`] gave.
    pub fn compared(&mut self, comparison: Comparison) {
        self.next = self.machine.compared(comparison);
    }

    /// Appends records at the cursor; their offsets are given by it. Only when [`LogAppender::settle`] says `Ready`.
    pub async fn append(&mut self, mut records: Vec<Record>) -> Appended {
        let Some(cursor) = self.machine.cursor() else {
            return Appended::Doubt;
        };
        for (offset, record) in (cursor..).zip(&mut records) {
            record.offset = offset;
        }
        // The size is only known once it is built, and the machine wants to know it first; the stamp comes last.
        let plain = match encode_batch(&records, cursor, &BatchOptions::plain(Codec::None)) {
            Ok(batch) => batch,
            Err(error) => return Appended::Impossible(error),
        };
        let span = Span {
            first_offset: cursor,
            end_offset: records.last().map_or(cursor, |last| last.offset + 1),
            max_timestamp: records.iter().map(|r| r.timestamp).max().unwrap_or(-1),
            size_bytes: plain.len(),
        };
        let send = match self.machine.append(&span, (self.wall_clock_ms)()) {
            Ok(send) => send,
            Err(effect) => {
                self.next = effect;
                return Appended::Doubt;
            }
        };
        let options = BatchOptions {
            producer_id: self.machine.producer_id(),
            producer_epoch: send.producer_epoch,
            base_sequence: send.base_sequence.0,
            ..BatchOptions::plain(Codec::None)
        };
        // A Produce counts from 0: the broker gives the offsets.
        for (offset, record) in (0..).zip(&mut records) {
            record.offset = offset;
        }
        let answer = match encode_batch(&records, 0, &options) {
            Ok(batch) => self.produce(batch).await,
            Err(error) => return Appended::Impossible(error),
        };
        self.next = self.machine.answered(cursor, answer);
        match self.next {
            Effect::Acknowledged { .. } => Appended::Yes {
                base_offset: cursor,
            },
            _ => Appended::Doubt,
        }
    }

    async fn produce(&self, batch: Bytes) -> Answer {
        let Some((broker, _)) = self.known_leader() else {
            return Answer::Lost;
        };
        let Ok(connection) = self.cluster.broker(broker, Lane::State).await else {
            self.cluster.request_refresh();
            return Answer::Lost;
        };
        let request = ProduceRequest {
            transactional_id: None,
            acks: -1,
            timeout_ms: super::offsets::broker_timeout_ms(self.request_timeout),
            topic_data: vec![TopicProduceData {
                name: Arc::clone(&self.partition.topic),
                topic_id: self.topic_id,
                partition_data: vec![PartitionProduceData {
                    index: self.partition.partition,
                    records: RecordSlices(vec![batch]),
                }],
            }],
        };
        match connection
            .enqueue_produce(&request, self.request_timeout)
            .await
        {
            Ok(response) => {
                let mut partitions = response
                    .responses
                    .into_iter()
                    .flat_map(|topic| topic.partition_responses);
                let answer = partitions.next();
                let answer = answer.map_or(Answer::Lost, |response| classify(&response));
                if !matches!(answer, Answer::Appended { .. }) {
                    self.cluster.request_refresh();
                }
                answer
            }
            Err(error) => {
                debug!(partition = %self.partition, error = %chain(&error), "append was not answered");
                self.cluster.request_refresh();
                Answer::Lost
            }
        }
    }

    fn known_leader(&self) -> Option<(BrokerId, LeaderEpoch)> {
        let leaders = self.cluster.leaders();
        let same_topic = leaders.topic_id(&self.partition.topic) == self.topic_id;
        leaders.leader(&self.partition).filter(|_| same_topic)
    }

    /// The leader's epoch and the way to it, waiting for one if need be.
    async fn leader(&self) -> Option<(LeaderEpoch, Connection)> {
        let Some((broker, epoch)) = self.known_leader() else {
            self.cluster.request_refresh();
            let mut changes = self.cluster.watch();
            let _none_yet = timeout(LEADER_PAUSE, changes.changed()).await;
            return None;
        };
        match self.cluster.broker(broker, Lane::State).await {
            Ok(connection) => Some((epoch, connection)),
            Err(error) => {
                debug!(partition = %self.partition, %broker, error = %chain(&error), "leader cannot be reached");
                self.cluster.request_refresh();
                None
            }
        }
    }

    async fn read_end(&self) -> Option<EndRead> {
        let (leader_epoch, connection) = self.leader().await?;
        let parts = [(self.partition.clone(), leader_epoch)];
        // Both are queued at once, the log end first: what the watermark then says is not older than the end.
        let (end, mark) = futures::join!(
            list_offsets(
                &connection,
                OffsetKind::LogEnd,
                &parts,
                self.request_timeout
            ),
            list_offsets(
                &connection,
                OffsetKind::HighWatermark,
                &parts,
                self.request_timeout
            ),
        );
        let one = |answer: Result<super::offsets::PerPartition<_>, _>| {
            let (_, found) = answer.ok()?.into_iter().next()?;
            found.ok()
        };
        let found = one(end).zip(one(mark)).map(
            |(end, mark): (super::offsets::ListedOffset, super::offsets::ListedOffset)| EndRead {
                leader_epoch,
                log_end_offset: end.offset,
                high_watermark: mark.offset,
            },
        );
        if found.is_none() {
            self.cluster.request_refresh();
        }
        found
    }

    async fn read_producer(&self) -> Option<Option<ProducerEntry>> {
        let (_, connection) = self.leader().await?;
        let parts = [self.partition.clone()];
        let answer = describe_producers(&connection, &parts, self.request_timeout).await;
        let producers = answer.ok()?.into_iter().next()?.1.ok()?;
        Some(entry_of(&producers, self.machine.producer_id()))
    }
}
