//! What one listing of both clusters means for each topic of a mirror. Must not ask anybody: steps are only queued.

use std::sync::Arc;

use tracing::debug;

use super::step::{Ready, count};
use super::{Keeper, Topic, Work};
use crate::domain::desired::{Sight, Step, TopicEntry, TopicGate, next_step, sight};
use crate::domain::state::DesiredState;
use crate::domain::types::TopicId;
use crate::kafka::cluster::{Metadata, Side, TopicMetadata};

impl Keeper {
    /// One topic that the source has.
    pub(super) fn compare(
        &mut self,
        name: &Arc<str>,
        found: &TopicMetadata,
        there: Option<&TopicMetadata>,
    ) {
        // A destination that cannot say anything about the topic now is asked again at the next round.
        if there.is_some_and(|there| !there.error.is_none()) {
            self.try_again_soon();
            return;
        }
        let (partitions, source_topic_id) = (count(found), found.topic_id);
        let topic = self.topics.entry(Arc::clone(name)).or_insert_with(|| {
            Topic::new(TopicEntry {
                partitions,
                source_topic_id,
                destination_topic_id: TopicId([0; 16]),
                gate: TopicGate::Unheld,
            })
        });
        if !topic.ready {
            topic.entry.partitions = partitions;
        }
        let missed = std::mem::take(&mut topic.missed_at_source);
        if topic.busy {
            return;
        }
        if self.is_recreated(name) {
            self.compare_recreated(name, partitions, there);
            return;
        }
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        let known = topic.entry.source_topic_id;
        if topic.deleted && source_topic_id == known && !known.is_zero() {
            // Only the right to see it was gone for a while.
            topic.deleted = false;
            topic.ready = false;
            topic.hold_wanted = false;
            topic.entry.gate = TopicGate::Unheld;
        }
        if topic.failed_for_good() {
            return;
        }
        let seen = sight(known, Some(source_topic_id), missed);
        if let Sight::Recreated { known, found } = seen {
            self.fail(name, recreated(Side::Source, known, found), true);
            return;
        }
        if topic.ready {
            let seen = sight(
                topic.entry.destination_topic_id,
                there.map(|there| there.topic_id),
                topic.missed_at_destination,
            );
            match seen {
                Sight::Same => {
                    topic.missed_at_destination = 0;
                    topic.odd_at_destination = false;
                }
                Sight::Missed => {
                    topic.missed_at_destination = 1;
                    self.try_again_soon();
                    return;
                }
                Sight::Deleted => {
                    let reason = "the destination topic was deleted while it was mirrored: truemirror recover mirrors it from \
                                  the beginning, or exclude it";
                    self.fail(name, reason.to_owned(), true);
                    return;
                }
                // Its coordinator may have done so, or a broker that lags shows the one of before.
                Sight::Recreated { .. } if !topic.odd_at_destination => {
                    topic.odd_at_destination = true;
                    self.try_again_soon();
                    return;
                }
                Sight::Recreated { known, found } => {
                    self.fail(name, recreated(Side::Destination, known, found), true);
                    return;
                }
            }
        }
        let circle = self.circle(name).map(|mirror| {
            format!(
                "mirror loop: mirror {mirror} of the source cluster mirrors this topic from this destination; stop it there first"
            )
        });
        if let Some(reason) = circle {
            self.put_off(name, reason);
            return;
        }
        if let Some(mirror) = self.rival(name) {
            self.refuse_rival(name, &mirror);
            return;
        }
        let desired = self.desired(name);
        let coordinates = self.coordinates();
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        // What stands still is not widened or held.
        if desired != DesiredState::Mirroring && topic.ready {
            return;
        }
        match next_step(partitions, there.map(count)) {
            Step::Refuse { reason } => {
                if let Some(topic) = self.topics.get_mut(name) {
                    topic.ready = false;
                    // The data path compares anew once it is well, and asks again.
                    topic.hold_wanted = false;
                }
                self.fail(name, reason, false);
            }
            Step::Nothing if topic.ready => {
                // Its coordinator may have widened it, or a person.
                if topic.entry.partitions != partitions && there.is_some_and(is_led) {
                    topic.entry.partitions = partitions;
                }
                if topic.hold_wanted && !topic.is_held() {
                    self.queue_hold(name);
                }
            }
            Step::Nothing if there.is_some_and(is_led) => {
                let ready = Ready {
                    destination_topic_id: there.map_or(TopicId([0; 16]), |there| there.topic_id),
                    partitions,
                };
                self.prepared(name, Ok(ready));
            }
            // The mirror's coordinator does it; what comes of it is seen at the next round.
            Step::Create | Step::Grow { .. } if !coordinates => self.try_again_soon(),
            step => {
                topic.busy = true;
                self.waiting.push_back(Work::Prepare {
                    topic: Arc::clone(name),
                    partitions,
                    step,
                });
            }
        }
    }

    /// One whose destination topic is being recreated: nobody else creates, widens or holds it. Its partitions are worked on as
    /// long as the old one is there, so that their owners can say that they stand still.
    fn compare_recreated(
        &mut self,
        name: &Arc<str>,
        partitions: i32,
        there: Option<&TopicMetadata>,
    ) {
        let known = self.topics.get(name);
        if let Some(there) = there
            && known.is_some_and(|topic| !topic.ready)
        {
            let ready = Ready {
                destination_topic_id: there.topic_id,
                partitions,
            };
            self.prepared(name, Ok(ready));
        }
    }

    /// Another mirror has the topic.
    pub(super) fn refuse_rival(&mut self, name: &Arc<str>, mirror: &str) {
        let reason = format!(
            "mirror {mirror} mirrors this topic; exclude it from one of the two (mirror.topics.exclude), or stop it there"
        );
        self.put_off(name, reason);
    }

    /// A topic that cannot be begun with, and is prepared anew when that has changed.
    fn put_off(&mut self, name: &Arc<str>, reason: String) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.ready = false;
            topic.hold_wanted = false;
        }
        self.fail(name, reason, false);
    }

    /// Another mirror that has the topic: it was first, or both were at once and its name comes first.
    pub(super) fn rival(&self, topic: &Arc<str>) -> Option<Arc<str>> {
        let model = self.stage.states.model();
        let ours = model.topic(&self.stage.mirror, topic).is_some();
        let others = model.mirrors().into_keys();
        others
            .filter(|other| *other != self.stage.mirror)
            .filter(|other| !ours || *other < self.stage.mirror)
            .find(|other| {
                let theirs = model.topic(other, topic);
                theirs.is_some_and(|theirs| theirs.desired != DesiredState::Stopped)
            })
    }

    /// Known topics that the source's listing does not have.
    pub(super) fn miss(&mut self, source: &Metadata) {
        let missed: Vec<_> = self
            .topics
            .keys()
            .filter(|name| !source.topics.contains_key(*name))
            .cloned()
            .collect();
        for name in missed {
            let Some(topic) = self.topics.get_mut(&name) else {
                continue;
            };
            let seen = sight(topic.entry.source_topic_id, None, topic.missed_at_source);
            topic.missed_at_source = topic.missed_at_source.saturating_add(1);
            if topic.failed_for_good() {
                continue;
            }
            if seen == Sight::Deleted {
                topic.deleted = true;
                let reason = "the source topic was deleted; its copy is kept";
                self.fail(&name, reason.to_owned(), true);
            } else {
                debug!(mirror = %self.stage.mirror, topic = %name, "topic missing in the source's listing");
                self.try_again_soon();
            }
        }
    }
}

fn is_led(topic: &TopicMetadata) -> bool {
    topic.partitions.values().all(|p| p.leader.is_some())
}

fn recreated(side: Side, known: TopicId, found: TopicId) -> String {
    format!(
        "the topic was deleted and created again on the {side}: topic id changed from {known} to {found}; delete the \
         destination topic if the new content is wanted there, then truemirror recover"
    )
}
