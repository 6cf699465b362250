//! One mirrored partition as the data path holds it. Must not do I/O; what it decides itself is only bookkeeping.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::budget::Held;
use super::fetching::FetcherKey;
use super::lifecycle::{Course, Recorded};
use crate::domain::append::{AppendConfig, AppendMachine, Span};
use crate::domain::lag::UpToDate;
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::status::PartitionStatus;
use crate::domain::types::{BrokerId, LeaderEpoch, TopicId, TopicPartition};
use crate::metrics::PartitionMetrics;
use crate::wire::batch::RawBatch;

/// A partition's place in the mirror's table; never used again.
pub(super) type PartitionKey = u64;

/// A batch on its way, with its share of the memory that its frame takes.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) span: Span,
    pub(super) batch: RawBatch,
    _held: Arc<Held>,
}

impl Queued {
    pub(super) fn new(batch: RawBatch, held: Arc<Held>) -> Self {
        let header = batch.header;
        let span = Span {
            first_offset: header.base_offset,
            end_offset: header.end_offset(),
            max_timestamp: header.max_timestamp,
            size_bytes: header.size_bytes,
        };
        Self {
            span,
            batch,
            _held: held,
        }
    }
}

/// Why it stands still, and when it is tried again.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// When this partition is tried again by itself.
    pub(super) retry_at: Option<Instant>,
    /// The topic as a whole is at fault: it is tried again when `sync` says so.
    pub(super) of_topic: bool,
    /// Only a person can change it.
    pub(super) permanent: bool,
    /// The log has it: a state there that is not FAILED came later.
    pub(super) written: bool,
}

/// Offsets of the source as its last answers gave them; -1 before the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceEnds {
    pub(super) log_start_offset: i64,
    pub(super) last_stable_offset: i64,
    pub(super) high_watermark: i64,
}

/// One mirrored partition.
///
/// Memory: about 900 bytes with its metric handles, and its queued batches, which are bounded by `limits.memory`.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) name: TopicPartition,
    pub(super) source_topic_id: TopicId,
    pub(super) destination_topic_id: TopicId,
    pub(super) state: PartitionState,
    /// What the operator wants of its topic.
    pub(super) desired: DesiredState,
    /// Its destination topic with this id is being recreated.
    pub(super) recreating: Option<TopicId>,
    /// What it is doing.
    pub(super) course: Course,
    /// Its state in the log.
    pub(super) recorded: Recorded,
    /// What the log has of it has been looked at.
    pub(super) known: bool,
    pub(super) machine: AppendMachine,
    /// Rises whenever the machine is replaced: results for an earlier one are dropped.
    pub(super) generation: u64,
    /// Rises whenever the machine is ready anew: answers to what an earlier round sent are dropped.
    pub(super) round: u64,
    /// The destination leader that the machine last asked, and its epoch.
    pub(super) leader: Option<(BrokerId, LeaderEpoch)>,
    /// How often the lane to that leader had been lost when the machine last asked.
    pub(super) lane_losses: u64,
    /// Who fetches it; `None` while one side has no leader.
    pub(super) fetcher: Option<FetcherKey>,
    /// The source leader's epoch.
    pub(super) source_epoch: LeaderEpoch,
    /// Since when the source's leader is another that has not said yet whether our end is still part of its log.
    pub(super) fenced_since: Option<Instant>,
    /// Source epoch of the batch before the machine's cursor.
    pub(super) cursor_epoch: LeaderEpoch,
    /// What stands behind the queue and cannot be appended: kind and reason.
    pub(super) blocked: Option<(&'static str, String)>,
    /// The broker's words about the last batch that it refused.
    pub(super) refusal: Option<Arc<str>>,
    /// Next offset to fetch.
    pub(super) fetch_offset: i64,
    /// Source epoch of the batch before it.
    pub(super) last_fetched_epoch: LeaderEpoch,
    /// Not fetched before this time.
    pub(super) delayed_until: Option<Instant>,
    /// Damaged answers in a row.
    pub(super) damaged: u32,
    pub(super) queue: VecDeque<Queued>,
    pub(super) queued_bytes: usize,
    /// Sent and not answered; kept for the counters and for the memory they take.
    pub(super) in_flight: VecDeque<Queued>,
    /// In its lane's list of partitions that may have something to send.
    pub(super) listed: bool,
    /// Since when it cannot append although something is queued.
    pub(super) stalled_since: Option<Instant>,
    pub(super) source: SourceEnds,
    pub(super) destination_high_watermark: i64,
    /// When the source last answered a fetch of it.
    pub(super) source_heard_at: Instant,
    /// Up to when the destination has all that the source had decided.
    up_to_date: UpToDate<Instant>,
    pub(super) failure: Option<Failure>,
    /// The first offset of the destination that was found to differ, of a failure that is about to be told.
    pub(super) diverged_at: Option<i64>,
    /// Why the logs cannot be compared now, while that is so.
    pub(super) incomparable: Option<String>,
    /// Retries since something was last appended.
    pub(super) attempts: u32,
    pub(super) metrics: PartitionMetrics,
}

impl Partition {
    pub(super) fn new(
        name: TopicPartition,
        ids: (TopicId, TopicId),
        config: AppendConfig,
        metrics: PartitionMetrics,
    ) -> Self {
        Self {
            name,
            source_topic_id: ids.0,
            destination_topic_id: ids.1,
            state: PartitionState::Unknown,
            desired: DesiredState::Mirroring,
            recreating: None,
            course: Course::Rest,
            recorded: Recorded::default(),
            known: false,
            machine: AppendMachine::new(config),
            generation: 0,
            round: 0,
            leader: None,
            lane_losses: 0,
            fetcher: None,
            source_epoch: LeaderEpoch::NONE,
            fenced_since: None,
            cursor_epoch: LeaderEpoch::NONE,
            blocked: None,
            refusal: None,
            fetch_offset: 0,
            last_fetched_epoch: LeaderEpoch::NONE,
            delayed_until: None,
            damaged: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            in_flight: VecDeque::new(),
            listed: false,
            stalled_since: None,
            source: SourceEnds {
                log_start_offset: -1,
                last_stable_offset: -1,
                high_watermark: -1,
            },
            destination_high_watermark: -1,
            source_heard_at: Instant::now(),
            up_to_date: UpToDate::new(Instant::now()),
            failure: None,
            diverged_at: None,
            incomparable: None,
            attempts: 0,
            metrics,
        }
    }

    /// Begins anew with a fresh machine.
    pub(super) fn renew(&mut self, config: AppendConfig) {
        self.machine = AppendMachine::new(config);
        self.generation = self.generation.saturating_add(1);
        self.round = self.round.saturating_add(1);
        self.failure = None;
        self.diverged_at = None;
        self.incomparable = None;
        self.blocked = None;
        self.refusal = None;
        self.damaged = 0;
        self.delayed_until = None;
        self.drop_queue();
        self.in_flight.clear();
    }

    /// Gives all queued bytes back; they are fetched again from where the machine stands.
    pub(super) fn drop_queue(&mut self) {
        self.queue.clear();
        self.queued_bytes = 0;
        self.stalled_since = None;
        self.blocked = None;
        if let Some(cursor) = self.machine.cursor() {
            self.rewind(cursor);
        }
    }

    /// The machine is ready at `cursor`. What is queued for it is kept.
    pub(super) fn position(&mut self, cursor: i64) {
        self.round = self.round.saturating_add(1);
        self.in_flight.clear();
        while self
            .queue
            .front()
            .is_some_and(|queued| queued.span.first_offset < cursor)
        {
            self.pop();
        }
        if self
            .queue
            .front()
            .is_none_or(|queued| queued.span.first_offset != cursor)
        {
            self.drop_queue();
        }
    }

    fn rewind(&mut self, cursor: i64) {
        self.fetch_offset = cursor;
        self.last_fetched_epoch = self.cursor_epoch;
    }

    pub(super) fn push(&mut self, queued: Queued) {
        self.fetch_offset = queued.span.end_offset;
        self.last_fetched_epoch = queued.batch.header.partition_leader_epoch;
        self.queued_bytes = self.queued_bytes.saturating_add(queued.span.size_bytes);
        self.queue.push_back(queued);
    }

    /// The first batch leaves the queue for the wire.
    pub(super) fn send(&mut self) {
        if let Some(queued) = self.pop() {
            self.cursor_epoch = queued.batch.header.partition_leader_epoch;
            self.in_flight.push_back(queued);
        }
    }

    fn pop(&mut self) -> Option<Queued> {
        let queued = self.queue.pop_front()?;
        self.queued_bytes = self.queued_bytes.saturating_sub(queued.span.size_bytes);
        Some(queued)
    }

    /// Everything below `end_offset` is acknowledged: counts it and frees its memory.
    pub(super) fn acknowledged(&mut self, end_offset: i64) {
        self.attempts = 0;
        while self
            .in_flight
            .front()
            .is_some_and(|sent| sent.span.end_offset <= end_offset)
        {
            let Some(sent) = self.in_flight.pop_front() else {
                break;
            };
            let records = sent.span.end_offset.saturating_sub(sent.span.first_offset);
            self.metrics
                .records_mirrored
                .inc_by(u64::try_from(records).unwrap_or(0));
            self.metrics
                .bytes_mirrored
                .inc_by(u64::try_from(sent.span.size_bytes).unwrap_or(0));
            self.metrics.batches_mirrored.inc();
        }
    }

    /// Offsets between what is mirrored (the destination's high watermark) and what the source has decided.
    pub(super) fn lag_records(&self) -> Option<i64> {
        (self.source.last_stable_offset >= 0 && self.destination_high_watermark >= 0).then(|| {
            self.source
                .last_stable_offset
                .saturating_sub(self.destination_high_watermark)
                .max(0)
        })
    }

    pub(super) fn undecided_records(&self) -> Option<i64> {
        (self.source.last_stable_offset >= 0).then(|| {
            self.source
                .high_watermark
                .saturating_sub(self.source.last_stable_offset)
                .max(0)
        })
    }

    /// True if it may be fetched.
    pub(super) fn may_fetch(&self) -> bool {
        self.course.copies()
            && matches!(
                self.state,
                PartitionState::Mirroring | PartitionState::EpochFencing | PartitionState::Stopping
            )
    }

    /// True if what was fetched may be appended: not before a new leader of the source has answered.
    pub(super) fn may_append(&self) -> bool {
        self.may_fetch() && self.fenced_since.is_none()
    }

    pub(super) fn enter(&mut self, state: PartitionState) {
        self.state = state;
        self.metrics.set_state(state);
    }

    /// Time since the source held nothing that the destination does not hold by now; zero while that is so. A source that has
    /// said nothing for longer than `long_poll` may hold more than is known.
    pub(super) fn lag(&mut self, now: Instant, long_poll: Duration) -> Duration {
        if self.state == PartitionState::Mirroring && self.lag_records().is_some() {
            let silent = now.saturating_duration_since(self.source_heard_at);
            let heard_at = if silent <= long_poll {
                now
            } else {
                self.source_heard_at
            };
            let (source, destination) = (
                self.source.last_stable_offset,
                self.destination_high_watermark,
            );
            self.up_to_date.look(heard_at, source, destination);
        }
        now.saturating_duration_since(self.up_to_date.at())
    }

    /// Why it is FAILED, or what it waits for.
    fn reason(&self) -> Option<String> {
        let waits = match self.state {
            PartitionState::Unknown => {
                "waits for the state topic, which is being loaded or cannot be read"
            }
            PartitionState::EpochFencing => {
                "waits for the source's new leader to say that it has what was copied"
            }
            _ => {
                let failure = self.failure.as_ref().map(|failure| &failure.reason);
                return failure.or(self.incomparable.as_ref()).cloned();
            }
        };
        Some(waits.to_owned())
    }

    pub(super) fn status(&self, now: Instant) -> PartitionStatus {
        let known = |offset: i64| (offset >= 0).then_some(offset);
        let seconds_to = |at: Instant| at.saturating_duration_since(now).as_secs_f64();
        PartitionStatus {
            state: self.state,
            reason: self.reason(),
            retry_attempt: self.attempts,
            next_retry_seconds: self
                .failure
                .as_ref()
                .and_then(|failure| failure.retry_at)
                .map(seconds_to),
            permanent: self
                .failure
                .as_ref()
                .is_some_and(|failure| failure.permanent),
            source_log_start_offset: known(self.source.log_start_offset),
            source_last_stable_offset: known(self.source.last_stable_offset),
            source_high_watermark: known(self.source.high_watermark),
            destination_log_end_offset: known(self.machine.acknowledged_end())
                .filter(|_| self.destination_high_watermark >= 0),
            destination_high_watermark: known(self.destination_high_watermark),
            lag_records: self.lag_records(),
            undecided_records: self.undecided_records(),
            lag_seconds: Some(
                now.saturating_duration_since(self.up_to_date.at())
                    .as_secs_f64(),
            ),
            ..PartitionStatus::new(
                Arc::clone(&self.name.topic),
                self.name.partition,
                self.state,
            )
        }
    }
}
