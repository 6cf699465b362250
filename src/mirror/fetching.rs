//! The source side of a mirror: who fetches what, and what becomes of the answers. Must not append.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::time::Instant;

use super::partition::{PartitionKey, Queued, SourceEnds};
use super::{Alarm, Event, Mirror, leaders_of, reads};
use crate::domain::plan::{Action, plan};
use crate::domain::types::{BrokerId, LeaderEpoch, TopicPartition};
use crate::kafka::cluster::Lane;
use crate::kafka::contact::chain;
use crate::kafka::fetch_session::{FetchLimits, Wanted};
use crate::kafka::fetcher::{FetchFault, FetchOutcome, Fetched, Fetcher};
use crate::wire::batch::{BatchError, BatchFault};
use crate::wire::error_code::ErrorCode;

/// A partition that its leader could not serve is asked for again after this.
const DELAY: Duration = Duration::from_millis(200);

/// A fetcher whose answer brought nothing, and too soon, pauses so long.
const EMPTY_PAUSE: Duration = Duration::from_millis(50);

/// The wait of a fetch that had to leave out a partition with a full queue: it may have room again any moment.
const CROWDED_WAIT: Duration = Duration::from_millis(20);

/// Damaged answers in a row before a partition is FAILED.
const DAMAGED_AT_MOST: u32 = 3;

/// The largest part of a broker's share of memory that one Fetch may ask for: one is being appended, one is queued, one is
/// on its way.
const SHARES: usize = 3;

/// Which fetcher. Partitions for different destination brokers are fetched apart, so that a frame that one of them holds
/// on to is charged to that one alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FetcherKey {
    /// The source broker that leads the partitions.
    pub(super) source: BrokerId,
    /// The destination broker that leads their copies.
    pub(super) destination: BrokerId,
    /// Counts up to `fetchers_per_broker`.
    pub(super) number: u16,
}

/// One partition of a Fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) key: PartitionKey,
    offset: i64,
    /// Of the source's leader, as it was known then.
    epoch: LeaderEpoch,
}

/// A fetcher's place, and whose turn it serves.
#[derive(Debug)]
pub(super) struct FetcherSeat {
    lane: Lane,
    members: BTreeSet<PartitionKey>,
    /// `None` while it asks.
    fetcher: Option<Fetcher>,
    asked_at: Instant,
    throttled: Duration,
}

impl Mirror {
    /// Puts every partition to the fetcher of its two leaders.
    pub(super) fn follow_source_leaders(&mut self) {
        let source = self.source_leaders.borrow_and_update().clone();
        let destination = self.parts.destination.leaders();
        let per_broker = self.parts.config.fetch.fetchers_per_broker.max(1);
        let mut members: BTreeMap<FetcherKey, BTreeSet<PartitionKey>> = BTreeMap::new();
        for (key, partition) in &mut self.partitions {
            let leaders = source
                .leader(&partition.name)
                .zip(destination.leader(&partition.name));
            let Some(((source_leader, epoch), (destination_leader, _))) = leaders else {
                partition.fetcher = None;
                continue;
            };
            let index = usize::try_from(partition.name.partition).unwrap_or(0);
            let fetcher = FetcherKey {
                source: source_leader,
                destination: destination_leader,
                number: u16::try_from(index % per_broker).unwrap_or(0),
            };
            if partition.fetcher != Some(fetcher) || partition.source_epoch != epoch {
                if partition.source_epoch != LeaderEpoch::NONE && partition.source_epoch != epoch {
                    partition.fenced_since.get_or_insert_with(Instant::now);
                }
                partition.fetcher = Some(fetcher);
                partition.source_epoch = epoch;
                partition.delayed_until = None;
                self.eager_fetchers.insert(fetcher);
            }
            members.entry(fetcher).or_default().insert(*key);
        }
        self.fetchers
            .retain(|key, seat| members.contains_key(key) || seat.fetcher.is_none());
        for seat in self.fetchers.values_mut() {
            seat.members.clear();
        }
        for (key, members) in members {
            let seat = self.fetchers.entry(key).or_insert_with(|| {
                let lane = Lane::Fetch(self.next_fetch_lane);
                self.next_fetch_lane = self.next_fetch_lane.wrapping_add(1);
                FetcherSeat {
                    lane,
                    members: BTreeSet::new(),
                    fetcher: Some(Fetcher::default()),
                    asked_at: Instant::now(),
                    throttled: Duration::ZERO,
                }
            });
            seat.members = members;
        }
        self.budget
            .set_brokers(leaders_of(&self.parts.destination, self.keys.keys()));
    }

    /// A partition may be fetched again.
    pub(super) fn want_fetch(&mut self, key: PartitionKey) {
        if let Some(fetcher) = self
            .partitions
            .get(&key)
            .and_then(|partition| partition.fetcher)
        {
            self.eager_fetchers.insert(fetcher);
        }
    }

    pub(super) fn fetch_all(&mut self) {
        if self.stopping {
            return;
        }
        for key in std::mem::take(&mut self.eager_fetchers) {
            self.fetch(key);
        }
    }

    fn fetch(&mut self, key: FetcherKey) {
        let config = self.parts.config.fetch;
        let Some(seat) = self
            .fetchers
            .get(&key)
            .filter(|seat| seat.fetcher.is_some())
        else {
            return;
        };
        let share = self.budget.share_bytes() / SHARES;
        let max_bytes = usize::try_from(config.max_bytes)
            .unwrap_or(usize::MAX)
            .min(share);
        if self.budget.free_bytes(key.destination) < max_bytes {
            // Its partitions' next acknowledgements wake it.
            return;
        }
        let partition_max_bytes = config
            .partition_max_bytes
            .min(i32::try_from(max_bytes).unwrap_or(i32::MAX));
        let room = usize::try_from(partition_max_bytes).unwrap_or(usize::MAX);
        let mut crowded = false;
        let mut wanted = Vec::new();
        let mut asked = Vec::new();
        for member in &seat.members {
            let Some(partition) = self.partitions.get(member) else {
                continue;
            };
            let mirrors =
                partition.machine.cursor().is_some() && self.topics.is_held(&partition.name.topic);
            if !mirrors
                || !partition.may_fetch()
                || partition.delayed_until.is_some()
                || partition.blocked.is_some()
            {
                continue;
            }
            if partition.queued_bytes >= room {
                crowded = true;
                continue;
            }
            asked.push(Asked {
                key: *member,
                offset: partition.fetch_offset,
                epoch: partition.source_epoch,
            });
            wanted.push(Wanted {
                partition: partition.name.clone(),
                topic_id: partition.source_topic_id,
                fetch_offset: partition.fetch_offset,
                current_leader_epoch: partition.source_epoch,
                last_fetched_epoch: partition.last_fetched_epoch,
                partition_max_bytes,
            });
        }
        if wanted.is_empty() {
            return;
        }
        let max_wait = if crowded {
            config.max_wait.min(CROWDED_WAIT)
        } else {
            config.max_wait
        };
        let limits = FetchLimits {
            max_wait_ms: i32::try_from(max_wait.as_millis()).unwrap_or(i32::MAX),
            min_bytes: config.min_bytes,
            max_bytes: i32::try_from(max_bytes).unwrap_or(i32::MAX),
        };
        let Some(seat) = self.fetchers.get_mut(&key) else {
            return;
        };
        let Some(fetcher) = seat.fetcher.take() else {
            return;
        };
        seat.asked_at = Instant::now();
        let lane = seat.lane;
        let reserved = self.budget.hold(key.destination, max_bytes);
        let cluster = self.parts.source.clone();
        let timeout = self.parts.request_timeout.saturating_add(max_wait);
        self.asked.push(
            async move {
                let (fetcher, outcome) = fetcher
                    .fetch(cluster, key.source, lane, wanted, limits, timeout)
                    .await;
                drop(reserved);
                Event::Fetched {
                    key,
                    fetcher,
                    outcome,
                    wanted: asked,
                }
            }
            .boxed(),
        );
    }

    pub(super) fn fetched(
        &mut self,
        key: FetcherKey,
        fetcher: Fetcher,
        outcome: Result<FetchOutcome, FetchFault>,
        wanted: &[Asked],
    ) {
        let took = self.fetchers.get_mut(&key).map(|seat| {
            let throttled = fetcher.throttled();
            if throttled > seat.throttled {
                let more = throttled.saturating_sub(seat.throttled).as_secs_f64();
                self.parts
                    .metrics
                    .throttle_seconds
                    .with_label_values(&[self.name.as_str(), "source"])
                    .inc_by(more);
            }
            seat.throttled = throttled;
            seat.fetcher = Some(fetcher);
            seat.asked_at.elapsed()
        });
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(fault) => {
                let label = fault.label();
                self.parts
                    .metrics
                    .fetch_errors
                    .with_label_values(&[self.name.as_str(), label])
                    .inc();
                tracing::debug!(mirror = %self.name, broker = %key.source, error = %chain(&fault), "fetch failed");
                self.parts.source.request_refresh();
                self.wake_in(DELAY, Alarm::Fetch(key));
                return;
            }
        };
        // A broker that knows nothing of what was asked may be of another cluster: that is no sign of life of the source.
        let refused = outcome
            .partitions
            .iter()
            .filter(|p| !p.error_code.is_none());
        if refused.count() < wanted.len() {
            self.parts.source_contact.answered();
        }
        self.parts
            .metrics
            .fetch_requests
            .with_label_values(&[self.name.as_str()])
            .inc();
        self.hear_source(&outcome, wanted);
        let held = Arc::new(self.budget.hold(key.destination, outcome.record_bytes));
        let mut useful = false;
        for fetched in outcome.partitions {
            let Some(member) = self.keys.get(&fetched.partition).copied() else {
                continue;
            };
            let Some(asked) = wanted.iter().find(|asked| asked.key == member) else {
                continue;
            };
            useful |= self.take_fetched(*asked, fetched, &held);
        }
        if useful || took.is_none_or(|took| took >= self.parts.config.fetch.max_wait / 2) {
            self.eager_fetchers.insert(key);
        } else {
            self.wake_in(EMPTY_PAUSE, Alarm::Fetch(key));
        }
    }

    /// Notes that the source has spoken about what was asked. A session's answer leaves out partitions with nothing new.
    fn hear_source(&mut self, outcome: &FetchOutcome, wanted: &[Asked]) {
        let now = Instant::now();
        let refused: BTreeSet<&TopicPartition> = outcome
            .partitions
            .iter()
            .filter(|fetched| !fetched.error_code.is_none())
            .map(|fetched| &fetched.partition)
            .collect();
        let diverged: BTreeSet<&TopicPartition> = outcome
            .partitions
            .iter()
            .filter(|fetched| fetched.diverging.is_some())
            .map(|fetched| &fetched.partition)
            .collect();
        let mut agreed = Vec::new();
        for asked in wanted {
            if let Some(partition) = self.partitions.get_mut(&asked.key)
                && !refused.contains(&partition.name)
            {
                partition.source_heard_at = now;
                // It was asked with the epoch of our last record: a leader without that record would have said so.
                if asked.epoch == partition.source_epoch
                    && !diverged.contains(&partition.name)
                    && partition.fenced_since.take().is_some()
                {
                    agreed.push(asked.key);
                }
            }
        }
        for key in agreed {
            self.source_agrees(key);
        }
    }

    /// True if it brought the partition forward.
    fn take_fetched(
        &mut self,
        Asked { key, offset, .. }: Asked,
        fetched: Fetched,
        held: &Arc<super::budget::Held>,
    ) -> bool {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return false;
        };
        if !fetched.error_code.is_none() {
            self.fetch_refused(key, offset, fetched.error_code);
            return false;
        }
        partition.source = SourceEnds {
            log_start_offset: fetched.log_start_offset,
            last_stable_offset: fetched.last_stable_offset,
            high_watermark: fetched.high_watermark,
        };
        // It was rewound, or is looking at the destination's log, since it was asked for.
        if partition.machine.cursor().is_none()
            || partition.fetch_offset != offset
            || partition.blocked.is_some()
        {
            return false;
        }
        if let Some((epoch, end)) = fetched.diverging {
            let reason = format!(
                "the source's log was replaced: its epoch {epoch} ends at offset {end}, but records up to offset {offset} were \
                 copied under epoch {}; delete the destination topic and mirror it again",
                partition.last_fetched_epoch
            );
            self.fail(key, "diverged", reason, true, true);
            return false;
        }
        let (actions, failure) = plan(offset, fetched.batches.iter().map(|batch| &batch.header));
        let mut batches = fetched.batches.into_iter().map(Some).collect::<Vec<_>>();
        let mut useful = false;
        for action in actions {
            let Action::Append { index } = action else {
                continue;
            };
            let Some(batch) = batches.get_mut(index).and_then(Option::take) else {
                continue;
            };
            partition.damaged = 0;
            partition.push(Queued::new(batch, Arc::clone(held)));
            useful = true;
        }
        if let Some(failure) = failure {
            partition.blocked = Some(("unfaithful", failure.to_string()));
        } else if let Some(fault) = fetched.fault {
            self.take_damage(key, &fault);
        }
        self.fail_if_blocked(key);
        self.list(key);
        useful
    }

    /// Something in the answer is no batch.
    fn take_damage(&mut self, key: PartitionKey, error: &BatchError) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let (topic, index) = (Arc::clone(&partition.name.topic), partition.name.partition);
        let heals = matches!(error.fault, BatchFault::Crc { .. });
        if !matches!(error.fault, BatchFault::LegacyFormat { .. }) {
            partition.metrics.corrupt_batches.inc();
            partition.damaged = partition.damaged.saturating_add(1);
        }
        if heals && partition.damaged <= DAMAGED_AT_MOST {
            tracing::warn!(
                mirror = %self.name, topic = %topic, partition = index, offset = partition.fetch_offset,
                error = %chain(error), "damaged batch from the source, nothing of it is appended, fetching it again"
            );
            self.delay(key);
            return;
        }
        let offset = partition.fetch_offset;
        let advice = match error.fault {
            BatchFault::LegacyFormat { .. } => {
                "truemirror mirrors format 2 (Kafka 0.11 and later); exclude the topic"
            }
            _ => "check the source broker's disk and memory, and the network between",
        };
        partition.blocked = Some((
            "corrupt",
            format!(
                "at source offset {offset} there is no whole batch: {}; {advice}",
                chain(error)
            ),
        ));
    }

    /// What stands before the obstacle is appended first.
    pub(super) fn fail_if_blocked(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if partition.queue.is_empty()
            && partition.machine.in_flight() == 0
            && let Some((kind, reason)) = partition.blocked.take()
        {
            self.fail(key, kind, reason, false, true);
        }
    }

    fn fetch_refused(&mut self, key: PartitionKey, offset: i64, code: ErrorCode) {
        let label = code.name().unwrap_or("unknown");
        self.parts
            .metrics
            .fetch_errors
            .with_label_values(&[self.name.as_str(), label])
            .inc();
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        tracing::debug!(
            mirror = %self.name, topic = %partition.name.topic, partition = partition.name.partition, offset, %code,
            "source refuses a fetch"
        );
        match code {
            ErrorCode::OFFSET_OUT_OF_RANGE => {
                let (name, generation) = (partition.name.clone(), partition.generation);
                let Some(fetcher) = partition.fetcher else {
                    return;
                };
                let (cluster, timeout) = (self.parts.source.clone(), self.parts.request_timeout);
                self.delay(key);
                self.asked.push(
                    async move {
                        let ends = reads::locate(&cluster, fetcher.source, name, timeout).await;
                        Event::Located {
                            key,
                            generation,
                            ends,
                        }
                    }
                    .boxed(),
                );
            }
            ErrorCode::TOPIC_AUTHORIZATION_FAILED => {
                let reason = format!(
                    "the source refuses Fetch with {code}; grant READ on the topic to our principal there"
                );
                self.fail(key, "refused", reason, false, true);
            }
            _ => {
                self.parts.source.request_refresh();
                self.delay(key);
            }
        }
    }

    /// The source does not have the offset that comes next.
    pub(super) fn located(&mut self, key: PartitionKey, generation: u64, ends: Option<(i64, i64)>) {
        let Some(partition) = self
            .partitions
            .get_mut(&key)
            .filter(|p| p.generation == generation)
        else {
            return;
        };
        let (Some((start, end)), offset) = (ends, partition.fetch_offset) else {
            return;
        };
        partition.source.log_start_offset = start;
        if start > offset {
            let reason = format!(
                "the source removed offsets {offset} to {} before they were copied (its log starts at {start}); delete the \
                 destination topic and mirror it again",
                start.saturating_sub(1)
            );
            self.fail(key, "gap", reason, true, true);
        } else if end < offset {
            let reason = format!(
                "the source's log ends at offset {end}, but records up to offset {offset} were copied from it: it was \
                 replaced or lost its tail; delete the destination topic and mirror it again"
            );
            self.fail(key, "diverged", reason, true, true);
        }
    }

    /// Leaves a partition out for a moment.
    fn delay(&mut self, key: PartitionKey) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.delayed_until = Some(Instant::now() + DELAY);
            self.wake_in(DELAY, Alarm::Undelay(key));
        }
    }
}
