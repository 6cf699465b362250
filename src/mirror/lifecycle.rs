//! What a partition is to do: its state as the log has it, what operators want of its topic, and the way from one to the other.
//! Must not fetch or append; it says who may.
//!
//! A state is written down before what it stands for is done, except FAILED: a partition stands still first, and says so next.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;
use tracing::{debug, info};

use super::partition::{Failure, Partition, PartitionKey};
use super::{Alarm, Event, Mirror};
use crate::coordinator::{Handle, Unavailable, WriteAnswer};
use crate::domain::recreate::{begins_anew, divergence};
use crate::domain::shard::PartitionWrite;
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{Divergence, MirrorPartition, PartitionValue};
use crate::domain::types::TopicPartition;
use crate::kafka::group::Membership;

/// A write that could not be made is made again after this.
pub(super) const WRITE_PAUSE: Duration = Duration::from_millis(200);

/// A change of the source's leader that takes longer is written down as EPOCH_FENCING.
const FENCING_LASTS: Duration = Duration::from_secs(1);

/// States written with one request.
const WRITES_TOGETHER: usize = 2_000;

/// The reason of a partition that waits for another topic because of its neighbours.
const STANDS_ASIDE: &str = "the destination topic is being deleted and created anew, since another partition of it differs from \
                            the source; goes on by itself";

/// What a partition is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Nothing, until its state is known, or because nothing is wanted of it.
    Rest,
    /// It looks at both logs and copies.
    Mirror,
    /// Nothing more is fetched or sent; the last answers are awaited.
    Pause,
    /// The same, and then it is another sidecar's.
    Leave,
    /// The same, and then it says that it stands still: its destination topic is being recreated.
    Aside,
    /// It is being made an ordinary partition.
    Stop(Stop),
}

/// How far a stop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// STOPPING is being written; copying goes on.
    Begin,
    /// The source is asked where its log ends.
    Ask,
    /// Copying goes on up to this source offset, exclusive.
    CatchUp { end: i64 },
    /// Nothing more is fetched or sent; the last answers are awaited.
    Drain,
    /// The control record that refuses whatever comes late is being written.
    Fence,
    /// It is written at the offset before this one, and must be replicated.
    Replicate { end: i64 },
    /// STOPPED is being written.
    End,
}

/// What the log has of a partition's state, as far as this process knows, and what is to be written.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    pub(super) value: PartitionValue,
    wanted: Option<PartitionWrite>,
    writing: bool,
}

impl Recorded {
    /// True if it is to be written down how far the destination's log was adopted.
    pub(super) fn adopts(&self) -> bool {
        self.value.adopted_below < 0 && self.is_settled()
    }

    /// True if nothing of it is being written.
    fn is_settled(&self) -> bool {
        !self.writing && self.wanted.is_none()
    }

    /// What is to be written after something was appended, if failures are still on record.
    pub(super) fn heals(&self) -> Option<PartitionWrite> {
        let heals = self.value.state == PartitionState::Mirroring
            && self.value.retry_attempt != 0
            && self.is_settled();
        heals.then(|| PartitionWrite {
            retry_attempt: Some(0),
            ..to(PartitionState::Mirroring)
        })
    }
}

impl Course {
    /// True if the partition fetches and appends.
    pub(super) fn copies(self) -> bool {
        matches!(
            self,
            Self::Mirror | Self::Stop(Stop::Begin | Stop::Ask | Stop::CatchUp { .. })
        )
    }

    /// True if the end of the destination's log is all that matters: the source may be gone.
    pub(super) fn is_last(self) -> bool {
        matches!(
            self,
            Self::Stop(Stop::Fence | Stop::Replicate { .. } | Stop::End)
        )
    }
}

impl Mirror {
    fn state_key(&self, key: PartitionKey) -> Option<MirrorPartition> {
        let partition = self.partitions.get(&key)?;
        Some(MirrorPartition {
            mirror: Arc::clone(&self.mirror),
            partition: partition.name.clone(),
        })
    }

    // ---- what is wanted

    /// Looks at what the state topic says of every partition, and does what follows.
    pub(super) fn look_at_states(&mut self) {
        let model = self.parts.states.model().clone();
        if !model.is_loaded() || self.expiration.is_none() {
            return;
        }
        // One that was deleted is not begun anew by this process, whatever its file says.
        self.deleted |= model
            .mirror(&self.mirror)
            .is_some_and(|mirror| mirror.deleting);
        if self.deleted {
            return;
        }
        let topics = model.topics(&self.mirror);
        let keys: Vec<_> = self
            .keys
            .iter()
            .map(|(name, key)| (name.clone(), *key))
            .collect();
        for (name, key) in keys {
            let topic = topics.get(&name.topic);
            let desired = topic.map(|topic| topic.desired).unwrap_or_default();
            let recreating = topic.and_then(|topic| topic.recreating);
            let found = model.partition(&MirrorPartition {
                mirror: Arc::clone(&self.mirror),
                partition: name,
            });
            let Some(partition) = self.partitions.get_mut(&key) else {
                continue;
            };
            let mut news = !partition.known
                || partition.desired != desired
                || partition.recreating != recreating;
            partition.known = true;
            partition.desired = desired;
            partition.recreating = recreating;
            if let Some(found) = found
                && !partition.recorded.writing
                && found.state_epoch > partition.recorded.value.state_epoch
            {
                news = true;
                self.take_recorded(key, found);
            }
            if news {
                self.decide(key);
            }
        }
    }

    fn take_recorded(&mut self, key: PartitionKey, value: PartitionValue) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.attempts = u32::try_from(value.retry_attempt).unwrap_or(0);
            partition.recorded.value = value;
        }
    }

    /// What is to be done next with a partition, by what is wanted and what the log says of it.
    pub(super) fn decide(&mut self, key: PartitionKey) {
        use PartitionState as S;
        let Some(partition) = self.partitions.get(&key) else {
            return;
        };
        // What is to be done is its next owner's to decide.
        if partition.course == Course::Leave {
            return;
        }
        if partition.recreating.is_some() {
            self.stand_aside(key);
            return;
        }
        let state = partition.recorded.value.state;
        match (partition.desired, state) {
            (DesiredState::Stopped, S::Stopped) => self.rest(key),
            // Only what has been worked on can be stopped.
            (DesiredState::Stopped, S::Unknown) => self.save(key, to(S::LogTruncation)),
            (DesiredState::Stopped, _) | (_, S::Stopping) => self.begin_stop(key),
            (DesiredState::Paused, S::Mirroring | S::Pausing)
            | (DesiredState::Mirroring, S::Pausing) => self.begin_pause(key),
            (DesiredState::Paused, S::EpochFencing) => self.save(key, to(S::Mirroring)),
            (DesiredState::Paused, _) => self.rest(key),
            (DesiredState::Mirroring, S::Failed) if self.topic_is_another(partition) => {
                self.begin_anew(key);
            }
            (DesiredState::Mirroring, S::Failed) => self.take_up_failed(key),
            (DesiredState::Mirroring, S::Paused) => self.save(key, to(S::Mirroring)),
            (DesiredState::Mirroring, S::Unknown | S::Stopped) => {
                self.save(key, to(S::LogTruncation));
            }
            (DesiredState::Mirroring, S::LogTruncation | S::EpochFencing | S::Mirroring) => {
                match &partition.failure {
                    None if partition.course == Course::Mirror => {}
                    // What the log has is older: the failure was found before that was read.
                    Some(failure) if failure.of_topic && failure.permanent && !failure.written => {
                        let write = failed(&failure.reason, None);
                        self.save(key, write);
                    }
                    _ => self.start(key),
                }
            }
        }
    }

    /// Nothing runs.
    fn rest(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let config = partition.machine.config().clone();
        let failure = partition.failure.take();
        let was = partition.state;
        partition.renew(config);
        partition.course = Course::Rest;
        let state = partition.recorded.value.state;
        partition.enter(state);
        if state == PartitionState::Failed {
            partition.failure = failure.map(|failure| Failure {
                retry_at: None,
                ..failure
            });
        }
        if was != partition.state {
            let (name, state) = (&partition.name, partition.state);
            info!(mirror = %self.name, topic = %name.topic, partition = name.partition, %state, "at rest");
        }
    }

    /// A partition that failed, here or under an earlier owner: it is tried again as its attempts allow.
    fn take_up_failed(&mut self, key: PartitionKey) {
        let policy = self.parts.config.retry;
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let value = &partition.recorded.value;
        // Its retry is planned already, unless it was laid to rest since.
        if let Some(failure) = &mut partition.failure
            && partition.course != Course::Rest
        {
            // The mirror's coordinator may have said more of it.
            if let Some(words) = &value.error_message
                && partition.recorded.is_settled()
            {
                failure.reason = words.to_string();
            }
            return;
        }
        let attempt = u32::try_from(value.retry_attempt).ok();
        // The attempt that is recorded has been made; its number counts from 1.
        let pause = attempt
            .filter(|attempt| !policy.exhausted(*attempt))
            .map(|attempt| policy.delay(attempt.saturating_sub(1), rand::random()));
        partition.failure = Some(Failure {
            reason: value
                .error_message
                .as_deref()
                .unwrap_or("it failed under an earlier owner")
                .to_owned(),
            retry_at: pause.map(|pause| Instant::now() + pause),
            of_topic: false,
            permanent: pause.is_none(),
            written: true,
        });
        partition.course = Course::Mirror;
        partition.enter(PartitionState::Failed);
        let generation = partition.generation;
        if let Some(pause) = pause {
            self.wake_in(pause, Alarm::Retry(key, generation));
        }
    }

    // ---- writing it down

    /// Has a state written; what it stands for is done once it is. A later one takes the place of one that is not on its way.
    pub(super) fn save(&mut self, key: PartitionKey, write: PartitionWrite) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.recorded.wanted = Some(write);
            self.unsaved.insert(key);
        }
    }

    pub(super) fn save_all(&mut self) {
        let mut writes = Vec::new();
        let mut keys = Vec::new();
        for key in std::mem::take(&mut self.unsaved) {
            let Some(name) = self.state_key(key) else {
                continue;
            };
            let Some(partition) = self.partitions.get_mut(&key) else {
                continue;
            };
            if partition.recorded.writing {
                continue;
            }
            if writes.len() >= WRITES_TOGETHER {
                self.unsaved.insert(key);
                continue;
            }
            let Some(mut write) = partition.recorded.wanted.take() else {
                continue;
            };
            write.expected_state_epoch = Some(partition.recorded.value.state_epoch);
            partition.recorded.writing = true;
            keys.push((key, write.clone()));
            writes.push((name, write));
        }
        if writes.is_empty() {
            return;
        }
        let (states, mirror) = (self.parts.states.clone(), Arc::clone(&self.mirror));
        self.asked.push(
            async move {
                let answers = states.write(&mirror, writes).await;
                Event::Saved(
                    keys.into_iter()
                        .zip(answers)
                        .map(|((key, write), answer)| (key, write, answer))
                        .collect(),
                )
            }
            .boxed(),
        );
    }

    pub(super) fn saved(&mut self, key: PartitionKey, write: PartitionWrite, answer: WriteAnswer) {
        let Some(name) = self.state_key(key) else {
            return;
        };
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        match answer {
            Ok(Ok(state_epoch)) => {
                partition.recorded.writing = false;
                if let Ok(value) = partition.recorded.value.after(&write) {
                    partition.recorded.value = PartitionValue {
                        state_epoch,
                        ..value
                    };
                }
                let more = partition.recorded.wanted.is_some();
                if more {
                    self.unsaved.insert(key);
                }
                self.written(key);
            }
            Ok(Err(refusal)) => {
                debug!(mirror = %self.name, partition = %name.partition, %refusal, "state not written, looking at it anew");
                partition.recorded.wanted = None;
                let states = self.parts.states.clone();
                self.asked.push(
                    async move { Event::StateRead(key, read_one(&states, name).await) }.boxed(),
                );
            }
            Err(unavailable) => {
                debug!(mirror = %self.name, partition = %name.partition, %unavailable, "state not written yet");
                partition.recorded.writing = false;
                if partition.recorded.wanted.is_none() {
                    partition.recorded.wanted = Some(write);
                }
                self.wake_in(WRITE_PAUSE, Alarm::Save(key));
            }
        }
    }

    /// The state as its coordinator has it, after a write was refused.
    pub(super) fn state_read(
        &mut self,
        key: PartitionKey,
        found: Result<Option<PartitionValue>, Unavailable>,
    ) {
        let Some(name) = self.state_key(key) else {
            return;
        };
        match found {
            Ok(found) => {
                if let Some(partition) = self.partitions.get_mut(&key) {
                    partition.recorded.writing = false;
                }
                self.take_recorded(key, found.unwrap_or_default());
                self.decide(key);
            }
            Err(_) => {
                let states = self.parts.states.clone();
                self.asked.push(
                    async move {
                        tokio::time::sleep(WRITE_PAUSE).await;
                        Event::StateRead(key, read_one(&states, name).await)
                    }
                    .boxed(),
                );
            }
        }
    }

    /// A state stands in the log: now for what it stands for.
    fn written(&mut self, key: PartitionKey) {
        use PartitionState as S;
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if let Some(failure) = &mut partition.failure {
            failure.written |= partition.recorded.value.state == S::Failed;
        }
        match (partition.recorded.value.state, partition.course) {
            (S::Stopping, Course::Stop(Stop::Begin)) => self.stop_begun(key),
            // Told already, and told again when it is tried again.
            (S::Failed, _) if partition.failure.is_some() => {}
            (S::Mirroring, Course::Mirror) if partition.desired == DesiredState::Mirroring => {
                self.begin_mirroring(key);
                self.decide(key);
            }
            _ => self.decide(key),
        }
    }

    // ---- the source's leader is another

    /// A fencing that lasts is written down.
    pub(super) fn note_fencing(&mut self, now: Instant) {
        let lasting: Vec<PartitionKey> = self
            .partitions
            .iter()
            .filter(|(_, partition)| {
                let since = partition.fenced_since;
                partition.course == Course::Mirror
                    && partition.state == PartitionState::Mirroring
                    && partition.recorded.value.state == PartitionState::Mirroring
                    && since
                        .is_some_and(|since| now.saturating_duration_since(since) > FENCING_LASTS)
            })
            .map(|(key, _)| *key)
            .collect();
        for key in lasting {
            if let Some(partition) = self.partitions.get_mut(&key) {
                partition.enter(PartitionState::EpochFencing);
            }
            self.save(key, to(PartitionState::EpochFencing));
        }
    }

    /// The source's new leader has what was copied from the old one.
    pub(super) fn source_agrees(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get(&key) else {
            return;
        };
        if partition.state == PartitionState::EpochFencing {
            self.save(key, to(PartitionState::Mirroring));
        }
        self.list(key);
    }

    // ---- pause

    fn begin_pause(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        match partition.recorded.value.state {
            PartitionState::Mirroring => self.save(key, to(PartitionState::Pausing)),
            _ => {
                partition.course = Course::Pause;
                partition.enter(PartitionState::Pausing);
                partition.drop_queue();
                self.go_on_when_silent(key);
            }
        }
    }

    /// The last answer may have come.
    pub(super) fn go_on_when_silent(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if partition.machine.in_flight() > 0 {
            return;
        }
        match partition.course {
            Course::Pause if partition.recorded.value.state == PartitionState::Pausing => {
                self.save(key, to(PartitionState::Paused));
            }
            Course::Stop(Stop::Drain) => self.fence(key),
            Course::Aside => self.stands_aside(key),
            Course::Leave => {
                let name = partition.name.clone();
                self.forget(&name, "now another sidecar's");
                let now = Arc::clone(&self.membership.borrow());
                self.give_up(&now);
            }
            Course::Rest | Course::Mirror | Course::Pause | Course::Stop(_) => {}
        }
    }

    // ---- the destination topic is another

    /// The destination topic is being recreated: nothing more is sent to it.
    fn stand_aside(&mut self, key: PartitionKey) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.course = Course::Aside;
            partition.drop_queue();
            self.go_on_when_silent(key);
        }
    }

    /// Every answer is in: the topic may be deleted, as far as this partition is concerned.
    fn stands_aside(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let Some(destination_topic_id) = partition.recreating else {
            return;
        };
        let told = divergence(&partition.recorded.value)
            .is_some_and(|found| found.destination_topic_id == destination_topic_id);
        let words = partition.recorded.value.error_message.as_deref();
        let reason = words.filter(|_| told).unwrap_or(STANDS_ASIDE).to_owned();
        let write = (!told).then(|| PartitionWrite {
            divergence: Some(Divergence {
                destination_topic_id,
                offset: -1,
            }),
            ..failed(&reason, None)
        });
        let config = partition.machine.config().clone();
        partition.renew(config);
        partition.failure = Some(Failure {
            reason,
            retry_at: None,
            of_topic: false,
            permanent: true,
            written: told,
        });
        partition.enter(PartitionState::Failed);
        if let Some(write) = write {
            self.save(key, write);
        }
    }

    /// True if what the log has of a FAILED partition is about a destination topic that it has no more.
    fn topic_is_another(&self, partition: &Partition) -> bool {
        let topic = &partition.name.topic;
        let remembered = self.parts.states.model().topic(&self.mirror, topic);
        let remembered = remembered.unwrap_or_default().destination_topic_id;
        let (value, there) = (&partition.recorded.value, partition.destination_topic_id);
        begins_anew(value, there, remembered)
    }

    fn begin_anew(&mut self, key: PartitionKey) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.attempts = 0;
        }
        let write = PartitionWrite {
            retry_attempt: Some(0),
            ..to(PartitionState::LogTruncation)
        };
        self.save(key, write);
    }

    // ---- sharing work

    /// A partition goes to another sidecar: what is on its way is awaited first.
    pub(super) fn begin_leaving(&mut self, name: &TopicPartition) {
        let Some(key) = self.keys.get(name).copied() else {
            return;
        };
        if let Some(partition) = self.partitions.get_mut(&key)
            && partition.course != Course::Leave
        {
            partition.course = Course::Leave;
            partition.drop_queue();
            self.go_on_when_silent(key);
        }
    }

    /// A partition is not ours any more.
    pub(super) fn forget(&mut self, name: &TopicPartition, why: &str) {
        if let Some(key) = self.keys.remove(name) {
            self.partitions.remove(&key);
            self.unsaved.remove(&key);
            self.parts.metrics.remove_partition(&self.name, name);
            info!(mirror = %self.name, topic = %name.topic, partition = name.partition, "{why}");
        }
    }

    /// Says of the mirror's partitions that go to another that nothing is done for them here any more.
    pub(super) fn give_up(&self, now: &Membership) {
        let filter = &self.parts.config.topics.filter;
        let silent = now
            .revoking
            .iter()
            .filter(|name| filter.matches(&name.topic) && !self.keys.contains_key(*name));
        self.parts.group.given_up(now.round, silent);
    }
}

/// The state of one partition as its coordinator has it.
async fn read_one(
    states: &Handle,
    key: MirrorPartition,
) -> Result<Option<PartitionValue>, Unavailable> {
    let mirror = Arc::clone(&key.mirror);
    let answer = states.read(&mirror, vec![key]).await.pop();
    answer
        .unwrap_or(Err(Unavailable::NoCoordinator))
        .map(|(state, _)| state)
}

/// The write of FAILED with how often a partition was tried; `None` for one that only a person can help.
pub(super) fn failed(reason: &str, attempts: Option<u32>) -> PartitionWrite {
    let counted = |attempts| i16::try_from(attempts).unwrap_or(i16::MAX);
    PartitionWrite {
        error_message: Some(reason.into()),
        retry_attempt: Some(attempts.map_or(-1, counted)),
        ..to(PartitionState::Failed)
    }
}

/// A write that only changes the state.
pub(super) fn to(state: PartitionState) -> PartitionWrite {
    PartitionWrite {
        state: Some(state),
        ..PartitionWrite::default()
    }
}
