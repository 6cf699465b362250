//! The destination side of a mirror: carries out what the append machines want, and tells them what came of it. Must not
//! fetch.

use std::sync::Arc;

use futures::FutureExt;
use tracing::{debug, info};

use super::appender::{
    LANE_DEPTH, LaneKey, Outcome, REQUEST_BYTES, RequestDraft, Sent, outcomes, remedy,
};
use super::fetching::FetcherKey;
use super::lifecycle::{Course, Stop, to};
use super::markers::Fillers;
use super::partition::PartitionKey;
use super::{Alarm, COMPARED_AT_ONCE, Event, Mirror, alignment, cause_label};
use crate::config::Acks;
use crate::domain::append::{Answer, AppendFailure, AppendMachine, Comparison, Effect, FillAnswer};
use crate::domain::shard::PartitionWrite;
use crate::domain::state::PartitionState;
use crate::domain::types::ProducerId;
use crate::kafka::cluster::Lane;
use crate::kafka::connect::ConnectError;
use crate::kafka::connection::{Connection, RequestError};
use crate::kafka::contact::chain;
use crate::wire::error_code::ErrorCode;

/// With acks=all a connection stands still until the followers have what it carries, so more of them help; with acks=1 one
/// keeps a broker busy.
const LANES_ACKS_ALL: usize = 3;

impl Mirror {
    /// Carries out one effect of a partition's machine.
    pub(super) fn carry_out(&mut self, key: PartitionKey, effect: Effect) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let (name, generation) = (partition.name.clone(), partition.generation);
        match effect {
            Effect::None => {}
            Effect::ReadProducer | Effect::ReadEnd => {
                partition.leader = self.parts.destination.leader(&name);
                let Some((broker, leader_epoch)) = partition.leader else {
                    self.parts.destination.request_refresh();
                    self.tell(key, generation, AppendMachine::read_failed);
                    return;
                };
                if effect == Effect::ReadEnd {
                    self.reads
                        .want_end(broker, leader_epoch, key, generation, name);
                } else {
                    let producer_id = partition.machine.producer_id();
                    self.reads
                        .want_producer(broker, producer_id, key, generation, name);
                    let lane = self.lane_of(key);
                    let losses = lane
                        .and_then(|lane| self.lanes.get(&lane))
                        .map_or(0, |lane| lane.losses);
                    if let Some(partition) = self.partitions.get_mut(&key) {
                        partition.lane_losses = losses;
                    }
                }
            }
            Effect::Wait { pause, id } => {
                self.wake_in(pause, Alarm::Waited(key, generation, id));
            }
            Effect::Compare { .. } if partition.course.is_last() => {
                self.skip_comparison(key, generation);
            }
            Effect::Compare { log_end_offset } => match partition.fetcher {
                Some(pair) => {
                    let waiting = &mut self.to_compare.entry(pair).or_default().waiting;
                    waiting.push_back((key, generation, log_end_offset));
                }
                None => {
                    self.parts.source.request_refresh();
                    self.tell(key, generation, |machine| {
                        machine.compared(Comparison::Unavailable)
                    });
                }
            },
            Effect::Ready { cursor } => {
                partition.position(cursor);
                let cause = cause_label(partition.machine.resume_cause());
                self.parts
                    .metrics
                    .resumes
                    .with_label_values(&[self.name.as_str(), cause])
                    .inc();
                debug!(mirror = %self.name, topic = %name.topic, partition = name.partition, cursor, cause, "resumed");
                self.fence_ready(key, None);
                self.begin_mirroring(key);
            }
            Effect::Acknowledged { end_offset } => {
                partition.acknowledged(end_offset);
                let healed = partition.recorded.heals();
                if let Some(write) = healed {
                    self.save(key, write);
                }
                self.fence_ready(key, Some(end_offset));
                self.stop_caught_up(key);
                self.fail_if_blocked(key);
                self.list(key);
            }
            Effect::SendFillers {
                producer_epoch,
                count,
            } => {
                let Some((broker, _)) = partition.leader else {
                    self.tell(key, generation, |machine| machine.filled(FillAnswer::Lost));
                    return;
                };
                let fillers = Fillers {
                    key,
                    generation,
                    partition: name,
                    producer_id: partition.machine.producer_id(),
                    producer_epoch,
                    count,
                };
                self.markers.want(broker, fillers);
            }
            Effect::Fail(failure) => self.append_failed(key, failure),
        }
    }

    /// Sends the control batches that wait. They have no sequence: a partition that begins anew, or whose owner this process is no
    /// longer for certain, must not have one written that it wanted a moment ago.
    pub(super) fn send_markers(&mut self) {
        if self.markers.is_idle() {
            return;
        }
        let partitions = &self.partitions;
        self.markers.retain(|one| {
            let partition = partitions.get(&one.key);
            partition.is_some_and(|partition| partition.generation == one.generation)
        });
        if !self.parts.group.lease().may_decide() {
            for one in self.markers.take_back() {
                self.tell(one.key, one.generation, |machine| {
                    machine.filled(FillAnswer::Lost)
                });
            }
        }
        let requests = self
            .markers
            .ask(&self.parts.destination, self.parts.request_timeout);
        self.asked.extend(requests);
    }

    /// The logs agree up to the cursor. Appending waits until the topic's configs are held.
    pub(super) fn begin_mirroring(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let Some(cursor) = partition.machine.cursor() else {
            return;
        };
        if !partition.course.copies() {
            return;
        }
        let name = partition.name.clone();
        if self.topics.is_held(&name.topic) {
            if partition.course == Course::Mirror
                && partition.recorded.value.state != PartitionState::Mirroring
            {
                self.save(key, to(PartitionState::Mirroring));
                return;
            }
            if partition.course == Course::Mirror && partition.state != PartitionState::Mirroring {
                partition.enter(PartitionState::Mirroring);
                info!(mirror = %self.name, topic = %name.topic, partition = name.partition, offset = cursor, "mirroring");
            }
            self.want_fetch(key);
            self.list(key);
            return;
        }
        // Whoever coordinates the mirror sees from this that the topic is the source's, and holds its configs.
        if partition.recorded.adopts() {
            let write = PartitionWrite {
                adopted_below: Some(cursor),
                ..PartitionWrite::default()
            };
            self.save(key, write);
        }
        if self.hold_asked.insert(Arc::clone(&name.topic))
            && self.parts.hold.try_send(Arc::clone(&name.topic)).is_err()
        {
            // The queue is full of other topics: the next partition, or the next look at the topics, asks again.
            self.hold_asked.remove(&name.topic);
        }
    }

    fn append_failed(&mut self, key: PartitionKey, failure: AppendFailure) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let permanent = failure.is_permanent();
        if partition.course == Course::Stop(Stop::Fence) {
            self.fence_denied(key, &failure.to_string());
            return;
        }
        match &failure {
            AppendFailure::ForeignWriter { expected, .. } => {
                // Who it was stands in the batch that is where ours belonged.
                let (name, generation) = (partition.name.clone(), partition.generation);
                let topic_id = partition.destination_topic_id;
                let (cluster, expected, reason) = (
                    self.parts.destination.clone(),
                    *expected,
                    failure.to_string(),
                );
                self.asked.push(
                    async move {
                        let producer_id =
                            alignment::writer_at(&cluster, &name, topic_id, expected).await;
                        Event::Identified {
                            key,
                            generation,
                            expected,
                            reason,
                            producer_id,
                        }
                    }
                    .boxed(),
                );
            }
            AppendFailure::Refused { offset, code } => {
                let code = ErrorCode(*code);
                let words = partition
                    .refusal
                    .take()
                    .map(|words| format!(" ({words})"))
                    .unwrap_or_default();
                let reason = format!(
                    "the destination refuses the batch at offset {offset}: {code}{words}; {}",
                    remedy(code)
                );
                self.fail(key, "refused", reason, permanent, true);
            }
            AppendFailure::TooLarge { .. } => {
                self.fail(key, "refused", failure.to_string(), permanent, true)
            }
            AppendFailure::Differs(_) => {
                self.fail(key, "diverged", failure.to_string(), permanent, true)
            }
            AppendFailure::FillDenied { .. } | AppendFailure::EpochsUsedUp(_) => {
                self.fail(key, "fill", failure.to_string(), permanent, true);
            }
        }
    }

    pub(super) fn identified(
        &mut self,
        key: PartitionKey,
        generation: u64,
        expected: i64,
        reason: String,
        producer_id: Option<ProducerId>,
    ) {
        let Some(partition) = self
            .partitions
            .get_mut(&key)
            .filter(|partition| partition.generation == generation)
        else {
            return;
        };
        partition.diverged_at = Some(expected);
        let who = match producer_id {
            Some(ProducerId::NONE) => {
                "the record there was written by producer id -1 (a producer that is not idempotent)"
                    .into()
            }
            Some(id) => format!("the record there was written by producer id {id}"),
            None => "who wrote the record there could not be read".to_owned(),
        };
        self.fail(
            key,
            "foreign_writer",
            format!("{reason} ({who})"),
            true,
            true,
        );
    }

    // ---- reads and comparisons

    pub(super) fn send_reads(&mut self) {
        for question in self
            .reads
            .ask(&self.parts.destination, self.parts.request_timeout)
        {
            self.asked.push(question);
        }
    }

    pub(super) fn compare_next(&mut self) {
        for (pair, comparisons) in &mut self.to_compare {
            while comparisons.running < COMPARED_AT_ONCE {
                let Some((key, generation, end)) = comparisons.waiting.pop_front() else {
                    break;
                };
                let partition = self
                    .partitions
                    .get(&key)
                    .filter(|p| p.generation == generation);
                let Some(partition) = partition else { continue };
                comparisons.running = comparisons.running.saturating_add(1);
                let question = alignment::Question {
                    source: self.parts.source.clone(),
                    destination: self.parts.destination.clone(),
                    partition: partition.name.clone(),
                    source_topic_id: partition.source_topic_id,
                    destination_topic_id: partition.destination_topic_id,
                    ours: partition.machine.producer_id(),
                    destination_log_end_offset: end,
                    timeout: self.parts.request_timeout,
                };
                let pair = *pair;
                self.asked.push(
                    async move {
                        let alignment = alignment::align(question).await;
                        Event::Aligned {
                            pair,
                            key,
                            generation,
                            alignment,
                        }
                    }
                    .boxed(),
                );
            }
        }
    }

    pub(super) fn aligned(
        &mut self,
        pair: FetcherKey,
        key: PartitionKey,
        generation: u64,
        alignment: alignment::Alignment,
    ) {
        if let Some(comparisons) = self.to_compare.get_mut(&pair) {
            comparisons.running = comparisons.running.saturating_sub(1);
            if comparisons.running == 0 && comparisons.waiting.is_empty() {
                self.to_compare.remove(&pair);
            }
        }
        let comparison = match alignment {
            alignment::Alignment::Equal { source_epoch } => {
                if let Some(partition) = self
                    .partitions
                    .get_mut(&key)
                    .filter(|p| p.generation == generation)
                {
                    partition.cursor_epoch = source_epoch;
                    partition.incomparable = None;
                }
                Comparison::Equal
            }
            alignment::Alignment::Stop(failure) => {
                if let Some(partition) = self
                    .partitions
                    .get_mut(&key)
                    .filter(|p| p.generation == generation)
                {
                    partition.diverged_at = failure.diverged_at();
                }
                Comparison::Differs(failure.to_string())
            }
            alignment::Alignment::Unavailable(words) => {
                if let Some(partition) = self
                    .partitions
                    .get_mut(&key)
                    .filter(|p| p.generation == generation)
                {
                    partition.incomparable = Some(format!("cannot compare both logs yet: {words}"));
                    let name = &partition.name;
                    debug!(mirror = %self.name, topic = %name.topic, partition = name.partition, %words, "cannot compare yet");
                }
                self.parts.source.request_refresh();
                self.parts.destination.request_refresh();
                Comparison::Unavailable
            }
        };
        self.tell(key, generation, |machine| machine.compared(comparison));
    }

    // ---- appends

    fn lane_of(&self, key: PartitionKey) -> Option<LaneKey> {
        let partition = self.partitions.get(&key)?;
        let (broker, _) = partition.leader?;
        let lanes = match self.parts.config.append.acks {
            Acks::Leader => 1,
            Acks::All => LANES_ACKS_ALL,
        };
        let number = usize::try_from(partition.name.partition).unwrap_or(0) % lanes;
        Some(LaneKey {
            broker,
            number: u16::try_from(number).unwrap_or(0),
        })
    }

    /// Notes that a partition may have something to send.
    pub(super) fn list(&mut self, key: PartitionKey) {
        let Some(lane) = self.lane_of(key) else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if partition.listed || partition.queue.is_empty() || partition.machine.cursor().is_none() {
            return;
        }
        partition.listed = true;
        self.lanes.entry(lane).or_default().listed.push_back(key);
        self.eager_lanes.insert(lane);
    }

    pub(super) fn append_all(&mut self) {
        for lane in std::mem::take(&mut self.eager_lanes) {
            self.append(lane);
        }
    }

    fn append(&mut self, lane_key: LaneKey) {
        self.notice_loss(lane_key);
        let Some(lane) = self.lanes.get_mut(&lane_key) else {
            return;
        };
        if lane.listed.is_empty() {
            return;
        }
        let Some(connection) = lane.connection.clone() else {
            if !lane.connecting {
                lane.connecting = true;
                let cluster = self.parts.destination.clone();
                let lane_of_cluster = Lane::Produce(lane_key.number);
                self.asked.push(
                    async move {
                        let connection = cluster.broker(lane_key.broker, lane_of_cluster).await;
                        Event::Connected {
                            lane: lane_key,
                            connection,
                        }
                    }
                    .boxed(),
                );
            }
            return;
        };
        while self
            .lanes
            .get(&lane_key)
            .is_some_and(|lane| lane.in_flight < LANE_DEPTH)
        {
            let (normal, replicated) = self.draft(lane_key);
            if normal.is_empty() && replicated.is_empty() {
                return;
            }
            self.send(
                lane_key,
                &connection,
                normal,
                self.parts.config.append.acks.number(),
            );
            self.send(lane_key, &connection, replicated, Acks::All.number());
        }
    }

    /// Takes the next batch of every listed partition that may send one: those for the usual acks, and those that must be
    /// replicated before the answer.
    fn draft(&mut self, lane_key: LaneKey) -> (RequestDraft, RequestDraft) {
        let (mut normal, mut replicated) = (RequestDraft::default(), RequestDraft::default());
        let now_ms = (self.parts.wall_clock_ms)();
        let Some(lane) = self.lanes.get_mut(&lane_key) else {
            return (normal, replicated);
        };
        for _ in 0..lane.listed.len() {
            if normal.bytes.saturating_add(replicated.bytes) >= REQUEST_BYTES {
                break;
            }
            let Some(key) = lane.listed.pop_front() else {
                break;
            };
            let Some(partition) = self.partitions.get_mut(&key) else {
                continue;
            };
            partition.listed = false;
            let held = self.topics.is_held(&partition.name.topic);
            if !held
                || !partition.may_append()
                || self.stopping
                || partition
                    .leader
                    .is_none_or(|(broker, _)| broker != lane_key.broker)
            {
                continue;
            }
            if partition.lane_losses != lane.losses {
                // What the machine read came over, or before, a connection that is gone.
                let effect = partition.machine.leader_moved();
                self.effects.push_back((key, partition.generation, effect));
                continue;
            }
            let Some(queued) = partition.queue.front() else {
                continue;
            };
            if !partition.machine.admits(&queued.span, now_ms) {
                continue;
            }
            match partition.machine.append(&queued.span, now_ms) {
                Ok(send) => {
                    let draft = if send.acks_all {
                        &mut replicated
                    } else {
                        &mut normal
                    };
                    draft.add(key, partition, send);
                    partition.send();
                    partition.stalled_since = None;
                    if partition
                        .queue
                        .front()
                        .is_some_and(|next| partition.machine.admits(&next.span, now_ms))
                    {
                        partition.listed = true;
                        lane.listed.push_back(key);
                    }
                }
                Err(effect) => self.effects.push_back((key, partition.generation, effect)),
            }
        }
        (normal, replicated)
    }

    fn send(&mut self, lane_key: LaneKey, connection: &Connection, draft: RequestDraft, acks: i16) {
        if draft.is_empty() {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&lane_key) else {
            return;
        };
        lane.in_flight = lane.in_flight.saturating_add(1);
        let timeout = self.parts.request_timeout;
        let (request, sent) = draft.finish(acks, timeout);
        let pending = connection.enqueue_produce(&request, timeout);
        self.asked.push(
            async move {
                match pending.await {
                    Ok(response) => {
                        let outcomes = outcomes(&sent, response);
                        Event::Produced { lane: lane_key, outcomes: sent.into_iter().zip(outcomes).collect(), lost: None }
                    }
                    Err(error) => {
                        debug!(broker = %lane_key.broker, error = %chain(&error), "append was not answered");
                        let lost = match error {
                            RequestError::TimedOut { .. } => "timeout",
                            _ => "connection",
                        };
                        let unknown = Outcome { answer: Answer::Lost, code: ErrorCode::NONE, words: None };
                        let outcomes = sent.into_iter().map(|one| (one, unknown.clone())).collect();
                        Event::Produced { lane: lane_key, outcomes, lost: Some(lost) }
                    }
                }
            }
            .boxed(),
        );
    }

    pub(super) fn produced(
        &mut self,
        lane_key: LaneKey,
        outcomes: Vec<(Sent, Outcome)>,
        lost: Option<&'static str>,
    ) {
        if let Some(lane) = self.lanes.get_mut(&lane_key) {
            lane.in_flight = lane.in_flight.saturating_sub(1);
        }
        if let Some(cause) = lost {
            self.parts
                .metrics
                .append_errors
                .with_label_values(&[self.name.as_str(), cause])
                .inc();
            self.parts.destination.request_refresh();
        } else {
            self.parts.metrics.append_requests.inc();
        }
        self.notice_loss(lane_key);
        for (sent, outcome) in outcomes {
            let Some(partition) = self
                .partitions
                .get_mut(&sent.key)
                .filter(|p| p.round == sent.round)
            else {
                continue;
            };
            match outcome.answer {
                Answer::Transient(_) | Answer::Refused(_) => {
                    let label = outcome.code.name().unwrap_or("unknown");
                    self.parts
                        .metrics
                        .append_errors
                        .with_label_values(&[self.name.as_str(), label])
                        .inc();
                    partition.refusal = outcome.words;
                    self.parts.destination.request_refresh();
                }
                Answer::Appended { repeated: true, .. } => {
                    self.parts.metrics.duplicate_answers.inc()
                }
                Answer::Appended {
                    repeated: false, ..
                }
                | Answer::Lost => {}
            }
            let effect = partition
                .machine
                .answered(sent.first_offset, outcome.answer);
            self.carry_out(sent.key, effect);
            self.go_on_when_silent(sent.key);
            self.list(sent.key);
        }
        self.eager_lanes.insert(lane_key);
        // Memory came free.
        let waiting = self
            .fetchers
            .keys()
            .filter(|key| key.destination == lane_key.broker);
        self.eager_fetchers.extend(waiting.copied());
    }

    pub(super) fn connected(
        &mut self,
        lane_key: LaneKey,
        connection: Result<Connection, ConnectError>,
    ) {
        let Some(lane) = self.lanes.get_mut(&lane_key) else {
            return;
        };
        lane.connecting = false;
        match connection {
            Ok(connection) => {
                if lane.losses > 0 {
                    self.parts
                        .metrics
                        .reconnects
                        .with_label_values(&[self.name.as_str(), "destination"])
                        .inc();
                }
                lane.connection = Some(connection);
            }
            Err(error) => {
                debug!(mirror = %self.name, broker = %lane_key.broker, error = %chain(&error), "no connection to append");
                self.parts.destination.request_refresh();
                // What waits here looks for its leader anew.
                for key in std::mem::take(&mut lane.listed) {
                    if let Some(partition) = self.partitions.get_mut(&key) {
                        partition.listed = false;
                        let effect = partition.machine.leader_moved();
                        self.effects.push_back((key, partition.generation, effect));
                    }
                }
            }
        }
        self.eager_lanes.insert(lane_key);
    }

    /// Takes note of a lane's connection that broke, idle or not: partitions resume before they send anything again.
    fn notice_loss(&mut self, lane_key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&lane_key) else {
            return;
        };
        if lane
            .connection
            .as_ref()
            .is_some_and(|connection| !connection.is_usable())
        {
            lane.connection = None;
            lane.losses = lane.losses.saturating_add(1);
        }
    }
}
