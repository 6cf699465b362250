//! What a mirror looks at without being asked: leaders that move, partitions that stall, watermarks that rise. Must not fetch
//! or append.

use std::collections::HashMap;

use futures::FutureExt;
use tokio::time::Instant;

use super::partition::PartitionKey;
use super::{Alarm, Event, Mirror, OLD_LEADER_GRACE, STALL, reads};
use crate::domain::append::Answer;
use crate::domain::state::PartitionState;
use crate::domain::types::BrokerId;

impl Mirror {
    pub(super) fn follow_destination_leaders(&mut self) {
        let leaders = self.destination_leaders.borrow_and_update().clone();
        let mut moved = Vec::new();
        for (key, partition) in &mut self.partitions {
            let found = leaders.leader(&partition.name);
            if found.is_some() && partition.leader != found {
                let was_known = partition.leader.is_some();
                partition.leader = found;
                moved.push((
                    *key,
                    partition.round,
                    partition.machine.in_flight() > 0 && was_known,
                ));
            }
        }
        for (key, round, awaits) in moved {
            let Some(partition) = self.partitions.get_mut(&key) else {
                continue;
            };
            let effect = partition.machine.leader_moved();
            self.effects.push_back((key, partition.generation, effect));
            if awaits {
                self.wake_in(OLD_LEADER_GRACE, Alarm::GiveUpAnswers(key, round));
            }
        }
        self.follow_source_leaders();
    }

    /// A leader that was deposed and does not say so: what it was sent has an unknown outcome.
    pub(super) fn give_up_answers(&mut self, key: PartitionKey, round: u64) {
        let Some(partition) = self.partitions.get_mut(&key).filter(|p| p.round == round) else {
            return;
        };
        for first_offset in partition.machine.unanswered() {
            let effect = partition.machine.answered(first_offset, Answer::Lost);
            self.effects.push_back((key, partition.generation, effect));
        }
    }

    /// Partitions that cannot append although something is queued give their bytes back.
    pub(super) fn look_for_stalls(&mut self, now: Instant) {
        for partition in self.partitions.values_mut() {
            let waits = !partition.queue.is_empty()
                && (partition.machine.cursor().is_none()
                    || partition.machine.in_flight() > 0
                    || partition.fenced_since.is_some());
            if !waits {
                partition.stalled_since = None;
                continue;
            }
            let since = *partition.stalled_since.get_or_insert(now);
            if now.saturating_duration_since(since) > STALL {
                partition.drop_queue();
            }
        }
    }

    /// Asks for the watermarks of partitions that have more than is known to be replicated.
    pub(super) fn ask_watermarks(&mut self) {
        let mut wanted: HashMap<BrokerId, Vec<_>> = HashMap::new();
        for (key, partition) in &self.partitions {
            if let Some((broker, _)) = partition.leader
                && matches!(
                    partition.state,
                    PartitionState::Mirroring | PartitionState::Pausing | PartitionState::Stopping
                )
                && partition.destination_high_watermark < partition.machine.acknowledged_end()
            {
                wanted
                    .entry(broker)
                    .or_default()
                    .push((*key, partition.name.clone()));
            }
        }
        for (broker, wanted) in wanted {
            if !self.asking_watermarks.insert(broker) {
                continue;
            }
            let (cluster, timeout) = (self.parts.destination.clone(), self.parts.request_timeout);
            self.asked.push(
                async move {
                    let answers = reads::read_watermarks(&cluster, broker, wanted, timeout).await;
                    Event::Watermarks { broker, answers }
                }
                .boxed(),
            );
        }
    }
}
