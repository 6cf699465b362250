//! Reads what a consumer would be shown of a range of one partition, batch by batch, with the batches' producers. Must not
//! decide whether two logs are equal, and not hold more than one answer.
//!
//! Which records a read_committed consumer sees: `CompletedFetch` of Kafka's consumer. An answer for one partition
//! that has no batch is a proof: the broker gives at least one batch of a partition that stands first
//! (KIP-74), and the watermark of the answer is read before the log is (`Partition.fetchRecords`).

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Buf;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tracing::debug;

use super::backoff::Backoff;
use super::cluster::{Cluster, Lane, Topics};
use super::connection::Connection;
use super::offsets::{OffsetKind, list_offsets};
pub use super::read_error::{ReadError, Trouble, may_pass};
pub use super::tail::{Tail, content_bytes, tail};
pub use super::words::{describe, same};
use crate::domain::types::{BatchHeader, LeaderEpoch, ProducerId, TopicId, TopicPartition};
use crate::wire::api::fetch::{
    AbortedTransaction, FetchPartition, FetchRequest, FetchTopic, PartitionData,
};
use crate::wire::batch::{BatchFault, Batches, RawBatch};
use crate::wire::error_code::ErrorCode;
use crate::wire::records::{Record, Records, RecordsError};

/// How long a broker may hold back an answer while the log has not grown far enough.
const LONG_POLL: Duration = Duration::from_millis(500);

/// Answers that bring the reader no further, in a row, before it gives up: damaged, cut off or of other offsets.
const FRUITLESS_ANSWERS: u32 = 4;

/// `ControlRecordType.ABORT`.
const ABORT: i16 = 0;

/// One batch as a consumer would be shown it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisibleBatch {
    /// First offset of the whole batch, also where the range begins inside of it.
    pub base_offset: i64,
    /// The next offset after the whole batch, also where the range ends inside of it.
    pub end_offset: i64,
    /// Who wrote it.
    pub producer_id: ProducerId,
    /// The leader epoch under which it was appended.
    pub leader_epoch: LeaderEpoch,
    /// True if it is part of a transaction, or the control batch that ends one.
    pub transactional: bool,
    /// Bytes of the whole batch in the log.
    pub size_bytes: usize,
    /// The records of the range, in order; none for control batches and, under read_committed, aborted transactions.
    pub records: Vec<Record>,
}

/// How to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Over which connections.
    pub lane: Lane,
    /// Bytes that one answer should have; a larger batch comes as a whole.
    pub fetch_bytes: i32,
    /// How long an answer may take, not counting what the broker is told to wait.
    pub request_timeout: Duration,
    /// How long one batch may take in all, over leader moves, lost connections and waits for the watermark.
    pub patience: Duration,
    /// Up to the last stable offset and without aborted transactions, or up to the high watermark with them.
    pub read_committed: bool,
    /// The largest batch that is taken, in bytes, as stored and decompressed.
    pub max_batch_bytes: usize,
}

impl ReadOptions {
    /// The usual limits.
    pub fn new(lane: Lane, read_committed: bool) -> Self {
        Self {
            lane,
            fetch_bytes: 1 << 20,
            request_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            read_committed,
            max_batch_bytes: 128 << 20,
        }
    }
}

enum Setback {
    Passing(Trouble),
    Final(ReadError),
}

impl<T: Into<Trouble>> From<T> for Setback {
    fn from(trouble: T) -> Self {
        Self::Passing(trouble.into())
    }
}

/// Which transactions of an answer are aborted, as its batches go by.
#[derive(Debug, Default)]
struct Aborted {
    /// Not begun yet, the next one last.
    ahead: Vec<AbortedTransaction>,
    open: HashSet<ProducerId>,
}

impl Aborted {
    fn new(list: Option<Vec<AbortedTransaction>>) -> Self {
        let mut ahead = list.unwrap_or_default();
        ahead.sort_by_key(|aborted| std::cmp::Reverse(aborted.first_offset));
        Self {
            ahead,
            open: HashSet::new(),
        }
    }

    /// True if the batch belongs to an aborted transaction. Every batch must be shown, in order.
    fn hides(&mut self, header: &BatchHeader, abort_marker: bool) -> bool {
        while let Some(next) = self
            .ahead
            .pop_if(|aborted| aborted.first_offset <= header.last_offset())
        {
            self.open.insert(next.producer_id);
        }
        if abort_marker {
            self.open.remove(&header.producer_id);
            return false;
        }
        header.has(BatchHeader::TRANSACTIONAL) && self.open.contains(&header.producer_id)
    }
}

#[derive(Debug)]
struct Answer {
    batches: Batches,
    aborted: Aborted,
    advanced: bool,
}

/// Reads a range of one partition from its leader, in order, one answer at a time.
#[derive(Debug)]
pub struct VisibleReader {
    cluster: Cluster,
    partition: TopicPartition,
    topic_id: TopicId,
    options: ReadOptions,
    position: i64,
    end: i64,
    answer: Option<Answer>,
    fetch_bytes: i32,
    fruitless: u32,
}

impl VisibleReader {
    /// A reader of the offsets of `range`, its end exclusive. Nothing is asked yet.
    pub fn new(
        cluster: Cluster,
        partition: TopicPartition,
        topic_id: TopicId,
        range: Range<i64>,
        options: ReadOptions,
    ) -> Self {
        Self {
            cluster,
            partition,
            topic_id,
            options,
            position: range.start,
            end: range.end,
            answer: None,
            fetch_bytes: options.fetch_bytes,
            fruitless: 0,
        }
    }

    /// The next offset to be read: everything of the range below it has been given out.
    pub fn position(&self) -> i64 {
        self.position
    }

    /// The next batch of the range, also one without visible records; `None` when the range is read. Holes give nothing.
    ///
    /// Cancel safe: a call that is dropped loses nothing. After an error the next call asks anew from where it stands.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn next(&mut self) -> Result<Option<VisibleBatch>, ReadError> {
        let deadline = Instant::now() + self.options.patience;
        while self.position < self.end {
            let Some(answer) = &mut self.answer else {
                match self.fetch(deadline).await? {
                    Some(answer) => self.answer = Some(answer),
                    None => self.position = self.end,
                }
                continue;
            };
            match answer.batches.next() {
                Some(Ok(batch)) => match self.take(&batch) {
                    Ok(None) => {}
                    Ok(Some(visible)) => return Ok(Some(visible)),
                    Err(source) => {
                        self.answer = None;
                        return Err(ReadError::Records {
                            partition: self.partition.clone(),
                            source,
                        });
                    }
                },
                Some(Err(source)) => {
                    self.answer = None;
                    self.fruitless = self.fruitless.saturating_add(1);
                    let damaged = matches!(source.fault, BatchFault::Crc { .. });
                    if !damaged || self.fruitless >= FRUITLESS_ANSWERS {
                        return Err(ReadError::Batch {
                            partition: self.partition.clone(),
                            source,
                        });
                    }
                    debug!(partition = %self.partition, error = %source, "damaged answer, asked again");
                }
                None => self.end_of_answer()?,
            }
        }
        self.answer = None;
        Ok(None)
    }

    /// Grows the next request if the answer had not even one whole batch.
    fn end_of_answer(&mut self) -> Result<(), ReadError> {
        let Some(answer) = self.answer.take() else {
            return Ok(());
        };
        if answer.advanced {
            return Ok(());
        }
        self.fruitless = self.fruitless.saturating_add(1);
        if self.fruitless >= FRUITLESS_ANSWERS {
            return Err(ReadError::NoProgress {
                partition: self.partition.clone(),
                position: self.position,
            });
        }
        if let Some(cut_off) = answer.batches.cut_off() {
            let doubled = self.fetch_bytes.saturating_mul(2);
            let wanted = cut_off
                .wanted_bytes
                .map_or(doubled, |bytes| i32::try_from(bytes).unwrap_or(i32::MAX));
            self.fetch_bytes = self.fetch_bytes.max(wanted);
        }
        Ok(())
    }

    /// What the range has of a batch; nothing if it lies outside.
    fn take(&mut self, batch: &RawBatch) -> Result<Option<VisibleBatch>, RecordsError> {
        let header = batch.header;
        let Some(answer) = &mut self.answer else {
            return Ok(None);
        };
        let limit = self.options.max_batch_bytes;
        let control = header.has(BatchHeader::CONTROL);
        let abort_marker = control && self.options.read_committed && is_abort(batch, limit)?;
        let hidden = answer.aborted.hides(&header, abort_marker);
        if header.end_offset() <= self.position {
            return Ok(None);
        }
        answer.advanced = true;
        let range = self.position..self.end;
        let mut records = Vec::new();
        if !control && !hidden && header.base_offset < self.end {
            for record in Records::new(batch, limit)? {
                let record = record?;
                if range.contains(&record.offset) {
                    records.push(record);
                }
            }
        }
        self.position = header.end_offset().min(self.end);
        self.fetch_bytes = self.options.fetch_bytes;
        self.fruitless = 0;
        if header.base_offset >= self.end {
            return Ok(None);
        }
        Ok(Some(VisibleBatch {
            base_offset: header.base_offset,
            end_offset: header.end_offset(),
            producer_id: header.producer_id,
            leader_epoch: header.partition_leader_epoch,
            transactional: header.has(BatchHeader::TRANSACTIONAL),
            size_bytes: header.size_bytes,
            records,
        }))
    }

    /// An answer with batches, or `None` if the rest of the range has none.
    async fn fetch(&self, deadline: Instant) -> Result<Option<Answer>, ReadError> {
        let backoff = Backoff::default();
        let mut setbacks = 0;
        let mut wait = Duration::ZERO;
        loop {
            let asked_at = Instant::now();
            let trouble = match self.ask(wait, deadline).await {
                Ok(data) => {
                    let watermark = if self.options.read_committed {
                        data.last_stable_offset
                    } else {
                        data.high_watermark
                    };
                    let records = data.records.unwrap_or_default();
                    if !records.is_empty() {
                        let aborted = data
                            .aborted_transactions
                            .filter(|_| self.options.read_committed);
                        return Ok(Some(Answer {
                            batches: Batches::new(records, self.options.max_batch_bytes),
                            aborted: Aborted::new(aborted),
                            advanced: false,
                        }));
                    }
                    if watermark >= self.end {
                        return Ok(None);
                    }
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(ReadError::NotYet {
                            partition: self.partition.clone(),
                            position: self.position,
                            end: self.end,
                            watermark,
                        });
                    }
                    if !wait.is_zero() {
                        // A broker that does not hold the answer back must not be asked in a tight loop.
                        sleep_until((asked_at + backoff.first).min(deadline)).await;
                    }
                    wait = LONG_POLL.min(left);
                    continue;
                }
                Err(Setback::Final(error)) => return Err(error),
                Err(Setback::Passing(trouble)) => trouble,
            };
            let trouble = match trouble {
                Trouble::LeftOut => trouble,
                other => self.refresh(deadline).await?.unwrap_or(other),
            };
            debug!(partition = %self.partition, position = self.position, error = %trouble, "not read yet");
            let pause = backoff.pause(setbacks, rand::random());
            setbacks = setbacks.saturating_add(1);
            if Instant::now() + pause >= deadline {
                return Err(ReadError::Unavailable {
                    partition: self.partition.clone(),
                    position: self.position,
                    after: self.options.patience,
                    last: Box::new(trouble),
                });
            }
            sleep(pause).await;
        }
    }

    /// Asks who leads now; `Some` if that is not to be had.
    async fn refresh(&self, deadline: Instant) -> Result<Option<Trouble>, ReadError> {
        let topics = Topics::Named(vec![Arc::clone(&self.partition.topic)]);
        let metadata = match timeout_at(deadline, self.cluster.refresh(topics)).await {
            Err(_) => return Ok(Some(Trouble::MetadataLate)),
            Ok(Err(error)) => return Ok(Some(error.into())),
            Ok(Ok(metadata)) => metadata,
        };
        let topic_id = metadata.topic_id(&self.partition.topic);
        if !topic_id.is_zero() && topic_id != self.topic_id {
            return Err(ReadError::Recreated {
                partition: self.partition.clone(),
            });
        }
        Ok(None)
    }

    /// One Fetch of this partition alone, without a session.
    async fn ask(&self, wait: Duration, deadline: Instant) -> Result<PartitionData, Setback> {
        let (leader, current_leader_epoch) = self
            .cluster
            .leader(&self.partition)
            .ok_or(Setback::Passing(Trouble::NoLeader))?;
        let connecting = self.cluster.broker(leader, self.options.lane);
        let connection = connecting.await.map_err(Trouble::Connect)?;
        if let Some(until) = connection.throttled_until() {
            sleep_until(until.min(deadline)).await;
        }
        let request = FetchRequest {
            max_wait_ms: i32::try_from(wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: self.fetch_bytes,
            isolation_level: i8::from(self.options.read_committed),
            topics: vec![FetchTopic {
                topic: Arc::clone(&self.partition.topic),
                topic_id: self.topic_id,
                partitions: vec![FetchPartition {
                    partition: self.partition.partition,
                    current_leader_epoch,
                    fetch_offset: self.position,
                    partition_max_bytes: self.fetch_bytes,
                    ..Default::default()
                }],
            }],
            ..Default::default()
        };
        let expected_bytes = usize::try_from(self.fetch_bytes).unwrap_or(0);
        let timeout = self.options.request_timeout.saturating_add(wait);
        let response = connection
            .enqueue_expecting(&request, timeout, expected_bytes)
            .await
            .map_err(Trouble::from)?;
        self.judge(response.error_code)?;
        // Version 12 names the topic, 13 has its id.
        let ours = response.responses.into_iter().filter(|topic| {
            topic.topic == self.partition.topic
                || (!topic.topic_id.is_zero() && topic.topic_id == self.topic_id)
        });
        let data = ours
            .flat_map(|topic| topic.partitions)
            .find(|data| data.partition_index == self.partition.partition)
            .ok_or(Setback::Passing(Trouble::LeftOut))?;
        if data.error_code == ErrorCode::OFFSET_OUT_OF_RANGE {
            return Err(self.out_of_range(&connection, current_leader_epoch).await);
        }
        self.judge(data.error_code)?;
        Ok(data)
    }

    fn judge(&self, code: ErrorCode) -> Result<(), Setback> {
        match code.ok() {
            Ok(()) => Ok(()),
            Err(code) if may_pass(code) => Err(Setback::Passing(Trouble::Refused(code))),
            Err(code) => Err(Setback::Final(ReadError::Refused {
                partition: self.partition.clone(),
                position: self.position,
                code,
            })),
        }
    }

    /// The refusal of an offset does not say what the log has.
    async fn out_of_range(&self, connection: &Connection, epoch: LeaderEpoch) -> Setback {
        let mut ends = [0; 2];
        for (end, kind) in ends
            .iter_mut()
            .zip([OffsetKind::LogStart, OffsetKind::HighWatermark])
        {
            let asked = [(self.partition.clone(), epoch)];
            let listed = list_offsets(connection, kind, &asked, self.options.request_timeout).await;
            match listed.map(|mut answers| answers.pop()) {
                Ok(Some((_, Ok(listed)))) => *end = listed.offset,
                Ok(_) => return Setback::Passing(Trouble::LeftOut),
                Err(error) => return error.into(),
            }
        }
        let [log_start, high_watermark] = ends;
        if (log_start..=high_watermark).contains(&self.position) {
            // It was out of range a moment ago, while leaders changed.
            return Setback::Passing(Trouble::Refused(ErrorCode::OFFSET_OUT_OF_RANGE));
        }
        Setback::Final(ReadError::OutOfRange {
            partition: self.partition.clone(),
            position: self.position,
            log_start,
            high_watermark,
        })
    }
}

/// True for the control batch that ends a transaction by aborting it (`ControlRecordType`: version, then type).
fn is_abort(batch: &RawBatch, limit: usize) -> Result<bool, RecordsError> {
    let first = Records::new(batch, limit)?.next().transpose()?;
    let Some(mut key) = first.and_then(|record| record.key) else {
        return Ok(false);
    };
    let _version = key.try_get_i16();
    Ok(key.try_get_i16().is_ok_and(|kind| kind == ABORT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::types::ProducerEpoch;

    fn header(offsets: std::ops::RangeInclusive<i64>, producer_id: i64, flags: i16) -> BatchHeader {
        let last_offset_delta = i32::try_from(offsets.end() - offsets.start()).unwrap();
        BatchHeader {
            base_offset: *offsets.start(),
            partition_leader_epoch: LeaderEpoch(0),
            attributes: flags,
            last_offset_delta,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id: ProducerId(producer_id),
            producer_epoch: ProducerEpoch(0),
            base_sequence: 0,
            record_count: last_offset_delta + 1,
            size_bytes: 61,
        }
    }

    #[test]
    fn aborted_transactions_are_hidden_as_a_consumer_hides_them() {
        const DATA: i16 = BatchHeader::TRANSACTIONAL;
        const MARKER: i16 = BatchHeader::TRANSACTIONAL | BatchHeader::CONTROL;
        let aborted = |producer_id, first_offset| AbortedTransaction {
            producer_id: ProducerId(producer_id),
            first_offset,
        };
        // Not in order, and 9 began before this answer.
        let list = vec![aborted(7, 20), aborted(9, 2), aborted(7, 10)];
        let mut state = Aborted::new(Some(list));
        let steps = [
            (header(5..=6, 9, DATA), false, true, "began earlier"),
            (
                header(7..=9, 7, DATA),
                false,
                false,
                "before its first offset",
            ),
            (
                header(10..=12, 7, DATA),
                false,
                true,
                "from its first offset",
            ),
            (header(13..=13, 8, DATA), false, false, "another producer"),
            (
                header(14..=14, 7, 0),
                false,
                false,
                "outside of transactions",
            ),
            (header(15..=15, 9, MARKER), true, false, "the end of 9"),
            (header(16..=16, 9, DATA), false, false, "9 after its end"),
            (header(17..=17, 7, MARKER), true, false, "the end of 7"),
            (header(18..=19, 7, DATA), false, false, "between its two"),
            (header(18..=21, 7, DATA), false, true, "the second of 7"),
        ];
        for (header, abort_marker, hidden, why) in steps {
            assert_eq!(state.hides(&header, abort_marker), hidden, "{why}");
        }
    }
}
