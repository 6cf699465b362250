//! The way of a partition to STOPPED: the last records, the last answers, the control record that refuses whatever comes late, and
//! its replication. Must not decide when a partition is to be stopped.

use std::time::Duration;

use futures::FutureExt;
use tracing::{info, warn};

use super::lifecycle::{Course, Stop, WRITE_PAUSE, to};
use super::partition::PartitionKey;
use super::{Alarm, Event, Mirror, reads};
use crate::domain::append::{AppendMachine, Comparison};
use crate::domain::shard::PartitionWrite;
use crate::domain::state::PartitionState;
use crate::domain::state_log::LastMirrorEpochsValue;

/// A stop asks a source that answered lately where its log ends for this long, and copies on to there as long as the source
/// is heard that often.
const SOURCE_PATIENCE: Duration = Duration::from_secs(1);

impl Mirror {
    pub(super) fn begin_stop(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if let Course::Stop(step) = partition.course
            && partition.failure.is_none()
            // STOPPING may have been written although that was not answered.
            && !(step == Stop::Begin && partition.recorded.value.state == PartitionState::Stopping)
        {
            return;
        }
        partition.course = Course::Stop(Stop::Begin);
        if partition.recorded.value.state == PartitionState::Stopping {
            self.stop_begun(key);
        } else {
            self.save(key, to(PartitionState::Stopping));
        }
    }

    pub(super) fn stop_begun(&mut self, key: PartitionKey) {
        let alive = self.parts.source_contact.view().reachable;
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        partition.enter(PartitionState::Stopping);
        let copying = partition.failure.is_none() && partition.machine.cursor().is_some();
        let Some(fetcher) = partition.fetcher.filter(|_| copying && alive) else {
            self.drain(key);
            return;
        };
        partition.course = Course::Stop(Stop::Ask);
        let (name, generation) = (partition.name.clone(), partition.generation);
        let cluster = self.parts.source.clone();
        self.asked.push(
            async move {
                let end = reads::stable_end(&cluster, fetcher.source, name, SOURCE_PATIENCE).await;
                Event::StopTarget {
                    key,
                    generation,
                    end,
                }
            }
            .boxed(),
        );
    }

    /// The source has said where its log ends, or nothing.
    pub(super) fn stop_target(&mut self, key: PartitionKey, generation: u64, end: Option<i64>) {
        let Some(partition) = self
            .partitions
            .get_mut(&key)
            .filter(|p| p.generation == generation && p.course == Course::Stop(Stop::Ask))
        else {
            return;
        };
        match end {
            Some(end) => {
                partition.course = Course::Stop(Stop::CatchUp { end });
                self.stop_caught_up(key);
            }
            None => self.drain(key),
        }
    }

    /// Everything that the source had decided when the stop began may have been copied, or the source may be gone.
    pub(super) fn stop_caught_up(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get(&key) else {
            return;
        };
        let Course::Stop(Stop::CatchUp { end }) = partition.course else {
            return;
        };
        let silent = partition.source_heard_at.elapsed()
            > self
                .parts
                .config
                .fetch
                .max_wait
                .saturating_add(SOURCE_PATIENCE);
        let reached = partition.machine.acknowledged_end() >= end;
        if silent && !reached {
            warn!(
                mirror = %self.name, topic = %partition.name.topic, partition = partition.name.partition,
                source_end_offset = end, mirrored_end_offset = partition.machine.acknowledged_end(),
                "stopped without the last records: the source does not answer any more"
            );
        }
        if reached || silent || partition.failure.is_some() {
            self.drain(key);
        }
    }

    /// Something stands in the way of the last records.
    pub(super) fn stop_without_the_rest(&mut self, key: PartitionKey, reason: &str) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        warn!(
            mirror = %self.name, topic = %partition.name.topic, partition = partition.name.partition,
            mirrored_end_offset = partition.machine.acknowledged_end(), %reason, "stopping without the last records"
        );
        let config = partition.machine.config().clone();
        partition.renew(config);
        self.drain(key);
    }

    pub(super) fn drain(&mut self, key: PartitionKey) {
        if let Some(partition) = self.partitions.get_mut(&key) {
            partition.course = Course::Stop(Stop::Drain);
            partition.drop_queue();
            self.go_on_when_silent(key);
        }
    }

    /// Writes the control record behind which late appends are refused. What the source holds does not matter any more.
    pub(super) fn fence(&mut self, key: PartitionKey) {
        let config = match self.partitions.get(&key) {
            Some(partition) => self.append_config(&partition.name),
            None => return,
        };
        // A control record has no sequence: who is no longer the owner for certain must not write one.
        if !self.parts.group.lease().may_decide() {
            self.wake_in(WRITE_PAUSE, Alarm::Fence(key));
            return;
        }
        let leader = {
            let Some(partition) = self.partitions.get(&key) else {
                return;
            };
            self.parts.destination.leader(&partition.name)
        };
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        partition.course = Course::Stop(Stop::Fence);
        match partition.machine.cursor() {
            Some(cursor) => {
                let effect = partition.machine.fill(cursor.saturating_add(1));
                self.effects.push_back((key, partition.generation, effect));
            }
            None => {
                partition.renew(config);
                partition.leader = leader;
                let effect = partition.machine.start();
                self.effects.push_back((key, partition.generation, effect));
            }
        }
    }

    /// While a partition is fenced, its log is not compared: whatever stands there stays.
    pub(super) fn skip_comparison(&mut self, key: PartitionKey, generation: u64) {
        self.tell(key, generation, |machine: &mut AppendMachine| {
            machine.compared(Comparison::Equal)
        });
    }

    /// The machine is ready to write the fence, or has written it.
    pub(super) fn fence_ready(&mut self, key: PartitionKey, written: Option<i64>) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        match (partition.course, written) {
            (Course::Stop(Stop::Fence), None) => self.fence(key),
            (Course::Stop(Stop::Fence), Some(end)) => {
                partition.course = Course::Stop(Stop::Replicate { end });
                self.fence_replicated(key);
            }
            _ => {}
        }
    }

    /// The destination's high watermark may have passed the fence.
    pub(super) fn fence_replicated(&mut self, key: PartitionKey) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        if let Course::Stop(Stop::Replicate { end }) = partition.course
            && partition.destination_high_watermark >= end
        {
            self.stopped(key, true, end);
        }
    }

    /// The fence cannot be written: what came late can still land, so it is waited out.
    pub(super) fn fence_denied(&mut self, key: PartitionKey, words: &str) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        let name = partition.name.clone();
        let generation = partition.generation;
        let pause = self.parts.unfenced_wait;
        warn!(
            mirror = %self.name, topic = %name.topic, partition = name.partition, fenced = false, wait = ?pause, reason = words,
            "stopping without a fence: a frozen process of ours could still append until it looks at the state topic"
        );
        self.wake_in(pause, Alarm::Unfenced(key, generation));
    }

    /// The wait that stands for a fence is over.
    pub(super) fn waited_unfenced(&mut self, key: PartitionKey, generation: u64) {
        let Some(partition) = self.partitions.get(&key) else {
            return;
        };
        if partition.generation == generation && partition.course == Course::Stop(Stop::Fence) {
            let end = partition.machine.acknowledged_end();
            self.stopped(key, false, end);
        }
    }

    pub(super) fn stopped(&mut self, key: PartitionKey, fenced: bool, end: i64) {
        let Some(partition) = self.partitions.get_mut(&key) else {
            return;
        };
        partition.course = Course::Stop(Stop::End);
        let write = PartitionWrite {
            last_mirror: Some(LastMirrorEpochsValue {
                last_mirror_epoch: partition.cursor_epoch,
                last_mirror_offset: end,
            }),
            ..to(PartitionState::Stopped)
        };
        info!(
            mirror = %self.name, topic = %partition.name.topic, partition = partition.name.partition,
            end_offset = end, fenced, "stopped"
        );
        self.save(key, write);
    }

    /// The right to write control records may be back.
    pub(super) fn fence_again(&mut self, key: PartitionKey) {
        let drained = self
            .partitions
            .get(&key)
            .is_some_and(|p| p.course == Course::Stop(Stop::Drain));
        if drained {
            self.go_on_when_silent(key);
        } else {
            self.fence_ready(key, None);
        }
    }
}
