//! Compare-and-append: *append these bytes only if the log is where I think it is*, as a state machine for one partition
//! of the destination. Must not know sockets, clocks or Kafka's error numbers; it holds no record bytes.
//!
//! The driver calls a method per event and carries out the returned [`Effect`]. While a partition resumes, exactly one
//! effect is outstanding at a time; while it is ready, effects are reports and the driver offers batches.
//!
//! ```text
//!            start / resume                            admits + append
//!  Settling ───────────────► Reading ──► Comparing ──► Ready ◄────────► batches in flight
//!     ▲   (end, wait, end)   (producer,                 │  ▲
//!     │                       end, watermark)           │  │ filled
//!     └── answers in ◄── any doubt ─────────────────────┤  │
//!                                                       ▼  │
//!                                            Filling (silence, fence, rest)
//! ```
//!
//! Why it is safe, in the order in which the rules were paid for (measured on Kafka 4.4.0, 4.0.0 and 3.9.1):
//! - The first sequence of a batch is *last sequence + 1*, and the last sequence was read *before* the log end. An append of
//!   somebody else in between makes the next Produce a refusal (45) or a repetition, never a wrong append.
//! - Both are read under one leader epoch, confirmed before and after: a last sequence of a log whose tail an election then
//!   took away would fit again as soon as a late request had grown the tail anew.
//! - Where the broker does not know our producer, the first sequence is the offset itself (modulo 2^31). Sequences that began
//!   at 0 again would repeat ranges of batches before the producer expired, and a leader that rebuilds its memory from the
//!   log would take the new batch for the old one, forever.
//! - A repetition is told by the log-append time of its answer (on a CreateTime topic -1 means "appended now") and looked at
//!   before the base offset, which is an old one then.
//! - The first batch after a resume goes alone. If a late request slipped in between the two reads, our first batch may have
//!   the sequence range of the late one and be taken for it; a second batch behind it would then be accepted in its place.
//! - A broker that does not know the producer accepts any sequence. So the first batch after "unknown producer" also asks
//!   for acks=all: until it is replicated nothing may build on the broker knowing us.
//! - Producer state expires by *record* time: batches older than half of the expiration go one at a time.
//! - Control batches (fillers) have no sequence. Nothing is in flight while a filler request is; the first one after a doubt
//!   goes alone with the next producer epoch, which fences everything earlier; only the log end says how many were applied.
//! - After a doubt nothing is sent until the high watermark has reached the log end: what is below can no longer be lost.

mod exchange;
mod producer;

use std::collections::VecDeque;
use std::time::Duration;

pub use exchange::{
    Answer, AppendConfig, AppendFailure, Comparison, DRAIN, Effect, EndRead, FillAnswer,
    PRODUCER_EXPIRATION, ProducerEntry, ResumeCause, Send, Span,
};
pub use producer::producer_id;

use crate::domain::types::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};

/// Producer epochs are int16 and rise by one per fence; the id needs a new generation before they run out.
const LAST_PRODUCER_EPOCH: i16 = 32_000;

/// Fillers per request; a request of this many takes the broker about 0.2 s.
const FILLERS_PER_REQUEST: i64 = 5_000;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Before `start`, and after `Fail`.
    Idle,
    /// A doubt arose; answers are still awaited.
    Answers,
    /// A pause before the next attempt.
    Pausing,
    /// Asks who leads, and where the log ends. If requests may have been left behind, the end must stand still.
    Settling {
        last_end: Option<i64>,
        waiting: bool,
    },
    /// DescribeProducers is out; it must be answered under this leader epoch.
    ReadingProducer { leader_epoch: LeaderEpoch },
    /// ListOffsets is out.
    ReadingEnd {
        leader_epoch: LeaderEpoch,
        entry: Option<ProducerEntry>,
    },
    /// Both logs are being compared.
    Comparing {
        entry: Option<ProducerEntry>,
        end: i64,
    },
    /// Batches may be offered.
    Ready,
    /// A hole is being filled up to `hole_end`.
    Filling { hole_end: i64, step: FillStep },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FillStep {
    /// Is the log end where we think? Read before (`false`) and after (`true`) the silence.
    Checking { silent: bool },
    /// Waiting out the silence.
    Silence,
    /// Fillers are out; `fence` if it is the one with the raised epoch.
    Sent { fence: bool },
    /// Reading how far they came.
    Counting { sent: i64, fence: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InFlight {
    span: Span,
    acknowledged: bool,
}

/// Compare-and-append for one destination partition.
///
/// Memory: about 250 bytes and up to five `InFlight` entries of 48 bytes.
#[derive(Clone, Debug)]
pub struct AppendMachine {
    config: AppendConfig,
    phase: Phase,
    /// Why it last left `Ready`.
    cause: ResumeCause,
    /// Requests may have been left behind since the last `Ready`.
    left_behind: bool,
    /// Attempts to resume since something was last appended.
    attempts: u32,
    epoch: ProducerEpoch,
    next_sequence: Sequence,
    /// The broker has an entry for our producer id.
    known: bool,
    /// A batch or a fence of this run came out as expected: sequence and offset belong together.
    confirmed: bool,
    /// A marker of the current epoch was written by this run.
    fenced: bool,
    cursor: i64,
    acknowledged_end: i64,
    in_flight: VecDeque<InFlight>,
    /// Waits asked for so far.
    waits: u64,
    /// A refusal that waits for the other answers.
    refused: Option<AppendFailure>,
}

impl AppendMachine {
    /// A machine at rest. Call [`AppendMachine::start`].
    pub fn new(config: AppendConfig) -> Self {
        Self {
            config,
            phase: Phase::Idle,
            cause: ResumeCause::Started,
            left_behind: false,
            attempts: 0,
            epoch: ProducerEpoch(0),
            next_sequence: Sequence(0),
            known: false,
            confirmed: false,
            fenced: false,
            cursor: 0,
            acknowledged_end: 0,
            in_flight: VecDeque::new(),
            waits: 0,
            refused: None,
        }
    }

    /// Begins: an earlier process may have left requests behind.
    pub fn start(&mut self) -> Effect {
        self.left_behind = true;
        self.resume()
    }

    /// What it was told.
    pub fn config(&self) -> &AppendConfig {
        &self.config
    }

    /// Our producer id on this partition.
    pub fn producer_id(&self) -> ProducerId {
        self.config.producer_id
    }

    /// Next offset to append, if batches or fillers may be offered now.
    pub fn cursor(&self) -> Option<i64> {
        (self.phase == Phase::Ready).then_some(self.cursor)
    }

    /// Next offset after the last acknowledged record.
    pub fn acknowledged_end(&self) -> i64 {
        self.acknowledged_end
    }

    /// Why it looks, or last looked, at the destination's log anew.
    pub fn resume_cause(&self) -> ResumeCause {
        self.cause
    }

    /// First offsets of the batches whose answers are awaited.
    pub fn unanswered(&self) -> Vec<i64> {
        let waiting = self.in_flight.iter().filter(|sent| !sent.acknowledged);
        waiting.map(|sent| sent.span.first_offset).collect()
    }

    /// How many requests are out.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Sets the destination topic's `max.message.bytes`.
    pub fn limit_batch_bytes(&mut self, max_batch_bytes: usize) {
        self.config.max_batch_bytes = max_batch_bytes;
    }

    /// True if `batch` may be appended now. `now_ms` is the wall clock in milliseconds.
    pub fn admits(&self, batch: &Span, now_ms: i64) -> bool {
        if self.phase != Phase::Ready || batch.first_offset != self.cursor {
            return false;
        }
        if self.in_flight.is_empty() {
            return true;
        }
        let alone = !self.confirmed
            || self.is_old(batch, now_ms)
            || self
                .in_flight
                .iter()
                .any(|sent| self.is_old(&sent.span, now_ms));
        !alone && self.in_flight.len() < self.config.max_in_flight
    }

    /// Takes a batch for which [`AppendMachine::admits`] holds: how to send it, or the failure that forbids it.
    ///
    /// # Errors
    /// The effect to carry out instead, if the batch does not fit the destination (or `admits` does not hold).
    pub fn append(&mut self, batch: &Span, now_ms: i64) -> Result<Send, Effect> {
        if !self.admits(batch, now_ms) {
            return Err(Effect::None);
        }
        if batch.size_bytes > self.config.max_batch_bytes {
            self.refused = Some(AppendFailure::TooLarge {
                offset: batch.first_offset,
                size_bytes: batch.size_bytes,
                limit_bytes: self.config.max_batch_bytes,
            });
            self.phase = Phase::Answers;
            return Err(self.answers_in());
        }
        let send = Send {
            producer_epoch: self.epoch,
            base_sequence: self.next_sequence,
            acks_all: !self.known,
        };
        self.next_sequence = self.next_sequence.plus(batch.count());
        self.cursor = batch.end_offset;
        self.in_flight.push_back(InFlight {
            span: *batch,
            acknowledged: false,
        });
        Ok(send)
    }

    /// The answer to the batch that began at `first_offset`.
    pub fn answered(&mut self, first_offset: i64, answer: Answer) -> Effect {
        let Some(at) = self
            .in_flight
            .iter()
            .position(|sent| sent.span.first_offset == first_offset)
        else {
            return Effect::None;
        };
        match answer {
            Answer::Appended {
                base_offset,
                repeated: false,
            } if base_offset != first_offset => self.fail(AppendFailure::ForeignWriter {
                expected: first_offset,
                found: base_offset,
            }),
            Answer::Appended {
                repeated: false, ..
            } => {
                if let Some(sent) = self.in_flight.get_mut(at) {
                    sent.acknowledged = true;
                }
                self.acknowledge()
            }
            Answer::Appended { repeated: true, .. } => self.doubt(at, ResumeCause::Repeated),
            Answer::Transient(code) => self.doubt(at, ResumeCause::Transient(code)),
            Answer::Refused(code) => {
                if self.refused.is_none() {
                    self.refused = Some(AppendFailure::Refused {
                        offset: first_offset,
                        code,
                    });
                }
                self.doubt(at, ResumeCause::Transient(code))
            }
            Answer::Lost => {
                self.left_behind = true;
                self.doubt(at, ResumeCause::Lost)
            }
        }
    }

    /// The partition has another leader, or the connection to its leader was replaced: what was read from the old one
    /// says nothing about the new one.
    pub fn leader_moved(&mut self) -> Effect {
        // Long pauses were for the old one.
        self.attempts = self.attempts.min(1);
        match self.phase {
            Phase::Ready => {
                self.enter_answers(ResumeCause::LeaderMoved);
                self.answers_in()
            }
            // No need to wait out a pause that was for the old leader.
            Phase::Pausing => self.resume(),
            // Every other phase asks the leader next, or waits for answers of the old one.
            Phase::Idle
            | Phase::Answers
            | Phase::Settling { .. }
            | Phase::ReadingProducer { .. }
            | Phase::ReadingEnd { .. }
            | Phase::Comparing { .. }
            | Phase::Filling { .. } => Effect::None,
        }
    }

    /// Fills the hole from the cursor up to `hole_end` with control batches. Only the owner of a partition may.
    /// `None` if it is not the moment: something is in flight, or the partition is not ready.
    pub fn fill(&mut self, hole_end: i64) -> Effect {
        if self.phase != Phase::Ready || !self.in_flight.is_empty() || hole_end <= self.cursor {
            return Effect::None;
        }
        if self.fenced {
            return self.send_fillers(hole_end);
        }
        self.phase = Phase::Filling {
            hole_end,
            step: FillStep::Checking { silent: false },
        };
        Effect::ReadEnd
    }

    /// The answer to [`Effect::SendFillers`].
    pub fn filled(&mut self, answer: FillAnswer) -> Effect {
        let Phase::Filling {
            hole_end,
            step: FillStep::Sent { fence },
        } = self.phase
        else {
            return Effect::None;
        };
        match answer {
            FillAnswer::Written => {
                let sent = if fence {
                    1
                } else {
                    self.filler_count(hole_end)
                };
                self.phase = Phase::Filling {
                    hole_end,
                    step: FillStep::Counting { sent, fence },
                };
                Effect::ReadEnd
            }
            FillAnswer::Denied(code) => self.fail(AppendFailure::FillDenied {
                offset: self.cursor,
                code,
            }),
            FillAnswer::Error(_) | FillAnswer::Lost => {
                self.left_behind = true;
                self.doubt_fill()
            }
        }
    }

    /// The answer to [`Effect::ReadProducer`].
    pub fn producer_read(&mut self, entry: Option<ProducerEntry>) -> Effect {
        let Phase::ReadingProducer { leader_epoch } = self.phase else {
            return Effect::None;
        };
        self.phase = Phase::ReadingEnd {
            leader_epoch,
            entry,
        };
        Effect::ReadEnd
    }

    /// The answer to [`Effect::ReadEnd`].
    pub fn end_read(&mut self, end: EndRead) -> Effect {
        match self.phase.clone() {
            Phase::Settling {
                last_end,
                waiting: false,
            } => {
                if !self.left_behind || last_end == Some(end.log_end_offset) {
                    self.left_behind = false;
                    self.phase = Phase::ReadingProducer {
                        leader_epoch: end.leader_epoch,
                    };
                    return Effect::ReadProducer;
                }
                self.phase = Phase::Settling {
                    last_end: Some(end.log_end_offset),
                    waiting: true,
                };
                self.wait(self.config.drain)
            }
            Phase::ReadingEnd {
                leader_epoch,
                entry,
            } => {
                // Between two leaders, or above the watermark, the entry and the end may belong to different logs.
                if end.leader_epoch != leader_epoch || end.high_watermark < end.log_end_offset {
                    return self.pause();
                }
                self.phase = Phase::Comparing {
                    entry,
                    end: end.log_end_offset,
                };
                Effect::Compare {
                    log_end_offset: end.log_end_offset,
                }
            }
            Phase::Filling { hole_end, step } => self.end_read_while_filling(hole_end, step, end),
            Phase::Idle
            | Phase::Answers
            | Phase::Pausing
            | Phase::Settling { waiting: true, .. }
            | Phase::ReadingProducer { .. }
            | Phase::Comparing { .. }
            | Phase::Ready => Effect::None,
        }
    }

    /// [`Effect::ReadProducer`] or [`Effect::ReadEnd`] could not be carried out.
    pub fn read_failed(&mut self) -> Effect {
        match self.phase {
            Phase::Settling { .. } | Phase::ReadingProducer { .. } | Phase::ReadingEnd { .. } => {
                self.pause()
            }
            Phase::Filling { .. } => {
                self.left_behind = true;
                self.doubt_fill()
            }
            Phase::Idle
            | Phase::Answers
            | Phase::Pausing
            | Phase::Comparing { .. }
            | Phase::Ready => Effect::None,
        }
    }

    /// The time of the [`Effect::Wait`] of this id is over. Nothing happens if it is not the last one, or was cut short.
    pub fn waited(&mut self, id: u64) -> Effect {
        if id != self.waits {
            return Effect::None;
        }
        match self.phase {
            Phase::Pausing => self.resume(),
            Phase::Settling {
                last_end,
                waiting: true,
            } => {
                self.phase = Phase::Settling {
                    last_end,
                    waiting: false,
                };
                Effect::ReadEnd
            }
            Phase::Filling {
                hole_end,
                step: FillStep::Silence,
            } => {
                self.phase = Phase::Filling {
                    hole_end,
                    step: FillStep::Checking { silent: true },
                };
                Effect::ReadEnd
            }
            Phase::Idle
            | Phase::Answers
            | Phase::Settling { .. }
            | Phase::ReadingProducer { .. }
            | Phase::ReadingEnd { .. }
            | Phase::Comparing { .. }
            | Phase::Ready
            | Phase::Filling { .. } => Effect::None,
        }
    }

    /// The answer to [`Effect::Compare`].
    pub fn compared(&mut self, comparison: Comparison) -> Effect {
        let Phase::Comparing { entry, end } = self.phase else {
            return Effect::None;
        };
        match comparison {
            Comparison::Equal => {
                self.known = entry.is_some();
                self.confirmed = false;
                self.epoch = entry.map_or(ProducerEpoch(0), |entry| entry.epoch);
                self.next_sequence = match entry {
                    None => Sequence::of_offset(end),
                    Some(entry) => entry.last_sequence.map_or(Sequence(0), |last| last.plus(1)),
                };
                self.fenced = false;
                self.cursor = end;
                self.acknowledged_end = end;
                self.phase = Phase::Ready;
                Effect::Ready { cursor: end }
            }
            Comparison::Differs(words) => self.fail(AppendFailure::Differs(words)),
            Comparison::Unavailable => self.pause(),
        }
    }

    fn is_old(&self, batch: &Span, now_ms: i64) -> bool {
        let half =
            i64::try_from(self.config.producer_expiration.as_millis() / 2).unwrap_or(i64::MAX);
        now_ms.saturating_sub(batch.max_timestamp) > half
    }

    /// Counts what is acknowledged in order, and goes on with a pending doubt once all answers are in.
    fn acknowledge(&mut self) -> Effect {
        let before = self.acknowledged_end;
        while let Some(first) = self.in_flight.front().filter(|sent| sent.acknowledged) {
            self.acknowledged_end = first.span.end_offset;
            self.in_flight.pop_front();
        }
        if self.phase == Phase::Answers {
            return self.answers_in();
        }
        if self.acknowledged_end == before {
            return Effect::None;
        }
        self.known = true;
        self.confirmed = true;
        self.attempts = 0;
        Effect::Acknowledged {
            end_offset: self.acknowledged_end,
        }
    }

    /// The batch at `at` did not come out as expected.
    fn doubt(&mut self, at: usize, cause: ResumeCause) -> Effect {
        let _ = self.in_flight.remove(at);
        self.enter_answers(cause);
        self.answers_in()
    }

    fn enter_answers(&mut self, cause: ResumeCause) {
        if self.phase == Phase::Ready {
            self.cause = cause;
            self.phase = Phase::Answers;
        }
    }

    /// In `Answers`: goes on when nothing is in flight any more.
    fn answers_in(&mut self) -> Effect {
        if self.phase != Phase::Answers || self.in_flight.iter().any(|sent| !sent.acknowledged) {
            return Effect::None;
        }
        self.in_flight.clear();
        match self.refused.take() {
            // A refused batch may have come behind a lost one: only a look at the log tells, and it will be refused again.
            Some(failure) if !self.left_behind => self.fail(failure),
            Some(_) | None => self.pause(),
        }
    }

    /// Fillers never share the wire with batches, so there is nothing to wait for.
    fn doubt_fill(&mut self) -> Effect {
        self.cause = ResumeCause::FillDoubt;
        self.pause()
    }

    /// A pause that grows with every attempt; none before the first.
    fn pause(&mut self) -> Effect {
        let attempt = self.attempts;
        self.attempts = self.attempts.saturating_add(1);
        if attempt == 0 {
            return self.resume();
        }
        self.phase = Phase::Pausing;
        let doubled = self
            .config
            .first_pause
            .saturating_mul(1 << (attempt - 1).min(16));
        self.wait(doubled.min(self.config.max_pause))
    }

    fn wait(&mut self, pause: Duration) -> Effect {
        self.waits = self.waits.saturating_add(1);
        Effect::Wait {
            pause,
            id: self.waits,
        }
    }

    fn resume(&mut self) -> Effect {
        self.phase = Phase::Settling {
            last_end: None,
            waiting: false,
        };
        Effect::ReadEnd
    }

    fn fail(&mut self, failure: AppendFailure) -> Effect {
        self.phase = Phase::Idle;
        self.in_flight.clear();
        self.refused = None;
        Effect::Fail(failure)
    }

    fn filler_count(&self, hole_end: i64) -> i64 {
        hole_end
            .saturating_sub(self.cursor)
            .min(FILLERS_PER_REQUEST)
    }

    fn send_fillers(&mut self, hole_end: i64) -> Effect {
        self.phase = Phase::Filling {
            hole_end,
            step: FillStep::Sent { fence: false },
        };
        Effect::SendFillers {
            producer_epoch: self.epoch,
            count: self.filler_count(hole_end),
        }
    }

    fn end_read_while_filling(&mut self, hole_end: i64, step: FillStep, end: EndRead) -> Effect {
        let found = end.log_end_offset;
        match step {
            FillStep::Checking { .. } if found != self.cursor => self.doubt_fill(),
            FillStep::Checking { silent: false } => {
                self.phase = Phase::Filling {
                    hole_end,
                    step: FillStep::Silence,
                };
                self.wait(self.config.drain)
            }
            FillStep::Checking { silent: true } => {
                if self.epoch.0 >= LAST_PRODUCER_EPOCH {
                    return self.fail(AppendFailure::EpochsUsedUp(self.epoch.0));
                }
                self.phase = Phase::Filling {
                    hole_end,
                    step: FillStep::Sent { fence: true },
                };
                let raised = ProducerEpoch(self.epoch.0.saturating_add(1));
                Effect::SendFillers {
                    producer_epoch: raised,
                    count: 1,
                }
            }
            // Fewer than sent: some were refused. Beyond the hole: late fillers of an earlier process, for a hole that it may
            // have seen larger. The comparison tells whether the log is still the source's.
            FillStep::Counting { sent, .. }
                if found < self.cursor.saturating_add(sent) || found > hole_end =>
            {
                self.doubt_fill()
            }
            FillStep::Counting { fence, .. } => {
                if fence {
                    self.epoch = ProducerEpoch(self.epoch.0.saturating_add(1));
                    self.next_sequence = Sequence(0);
                    self.known = true;
                    self.confirmed = true;
                    self.fenced = true;
                }
                self.cursor = found;
                self.acknowledged_end = found;
                self.attempts = 0;
                if found < hole_end {
                    return self.send_fillers(hole_end);
                }
                self.phase = Phase::Ready;
                Effect::Acknowledged { end_offset: found }
            }
            FillStep::Silence | FillStep::Sent { .. } => Effect::None,
        }
    }
}

#[cfg(test)]
mod model;
