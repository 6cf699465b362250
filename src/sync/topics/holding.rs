//! When the configs of a topic are held, and by which mirror: a topic has one. Must not hold them itself.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tracing::debug;

use super::step::Trouble;
use super::{Keeper, Outcome, Work};
use crate::domain::desired::TopicGate;
use crate::domain::state::DesiredState;

/// Two mirrors that begin with the same topic at once write so into different partitions of the state topic: each waits this long
/// before it believes that it is alone.
const CLAIM_PAUSE: Duration = Duration::from_secs(1);

impl Keeper {
    pub(super) fn want_hold(&mut self, name: &Arc<str>) {
        let Some(topic) = self.topics.get_mut(name) else {
            debug!(mirror = %self.stage.mirror, topic = %name, "hold of a topic that is not mirrored");
            return;
        };
        topic.hold_wanted = true;
        let wanted = !self.deleted
            && self.desired(name) == DesiredState::Mirroring
            && !self.is_recreated(name);
        let Some(topic) = self.topics.get_mut(name).filter(|_| wanted) else {
            return;
        };
        if topic.ready && !topic.busy && !topic.failed_for_good() {
            self.queue_hold(name);
        }
    }

    /// Has a topic held, for which no other step waits or runs.
    pub(super) fn queue_hold(&mut self, name: &Arc<str>) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.busy = true;
            self.waiting.push_back(Work::Hold(Arc::clone(name)));
        }
    }

    pub(super) fn held(&mut self, name: &Arc<str>, result: Result<usize, Trouble>) {
        let Some(topic) = self.step_ended(name) else {
            return;
        };
        let new_claim = topic.new_claim;
        match result {
            Ok(max_message_bytes) => {
                let model = self.stage.states.model();
                if model.topic(&self.stage.mirror, name).is_none() {
                    // What was written is not read back yet.
                    self.queue_hold(name);
                } else if new_claim && model.mirrors().len() > 1 {
                    if let Some(topic) = self.topics.get_mut(name) {
                        topic.busy = true;
                    }
                    let name = Arc::clone(name);
                    self.running.push(Box::pin(async move {
                        sleep(CLAIM_PAUSE).await;
                        Outcome::Claimed(name, max_message_bytes)
                    }));
                } else {
                    self.claimed(name, max_message_bytes);
                }
            }
            Err(trouble) => self.trouble(name, trouble),
        }
    }

    pub(super) fn claimed(&mut self, name: &Arc<str>, max_message_bytes: usize) {
        let rival = self.rival(name);
        let Some(topic) = self.step_ended(name) else {
            return;
        };
        topic.new_claim = false;
        if let Some(mirror) = rival {
            self.refuse_rival(name, &mirror);
        } else {
            topic.entry.gate = TopicGate::Held { max_message_bytes };
            topic.said = None;
        }
    }
}
