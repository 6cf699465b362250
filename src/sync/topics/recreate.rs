//! A destination topic that is not its source's is deleted and created anew: the step of the mirror's coordinator, and how every
//! sidecar follows it. Does what `domain::recreate` says; must not decide it, and never deletes a topic by its name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use super::step::{
    LOOKS, Ready, Stage, Trouble, count, create, refused, unavailable, wait_for_leaders,
};
use super::{Keeper, RETRIES, Work};
use crate::domain::desired::TopicGate;
use crate::domain::recreate::{Next, OnDivergence, Scene, divergence, next};
use crate::domain::shard::PartitionWrite;
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{MirrorPartition, PartitionValue, TopicValue};
use crate::domain::types::{LeaderEpoch, TopicId, TopicPartition};
use crate::kafka::admin::delete_topic;
use crate::kafka::cluster::{Lane, Side, TopicMetadata, Topics};
use crate::kafka::contact::chain;
use crate::kafka::offsets::{OffsetKind, list_offsets};
use crate::wire::error_code::ErrorCode;

/// Requests of a process that has died, or of a connection that was lost, may arrive for so long after every owner has said
/// that it stands still.
const DRAIN: Duration = Duration::from_secs(1);

/// How long a topic may take to go; then it is looked for again.
const GONE_DEADLINE: Duration = Duration::from_secs(15);

/// Acts in a row; one recreation takes four.
const ACTS: usize = 10;

/// Brings a topic one or more acts nearer to what its source is. Answers with the new topic once it is there, with `None` if
/// nothing is to be done, or nothing before something else has happened.
pub(super) async fn recreate(
    stage: &Stage,
    topic: &Arc<str>,
    source_topic_id: TopicId,
) -> Result<Option<Ready>, Trouble> {
    for _ in 0..ACTS {
        let remembered = remembered(stage, topic).await?;
        let partitions = states(stage, topic).await?;
        let there = there(stage, topic).await?;
        let scene = Scene {
            policy: stage.on_divergence,
            desired: remembered.desired,
            marked: remembered.recreating,
            there: there.as_ref().map(|there| there.topic_id),
            partitions: &partitions,
        };
        let mark =
            |topic_id, recreating| mark(stage, topic, (source_topic_id, topic_id), recreating);
        match next(&scene) {
            Next::Nothing => return Ok(None),
            Next::Begin {
                topic_id,
                partition,
                offset,
            } => {
                let source = source(stage, topic, source_topic_id).await?;
                if let Some(reason) = hindrance(stage, topic, &source).await? {
                    give_up(stage, topic, &partitions, topic_id, &reason).await?;
                    return Ok(None);
                }
                let reason = reason_of(&partitions, partition);
                warn!(
                    mirror = %stage.mirror, %topic, partition, offset, %reason, deleted_topic_id = %topic_id,
                    deleted_partitions = there.as_ref().map_or(0, count),
                    "destination topic differs from its source: deleting it with all of its partitions, and mirroring it again from \
                     the beginning"
                );
                mark(topic_id, true).await?;
            }
            Next::Withdraw { topic_id } => {
                mark(topic_id, false).await?;
                info!(mirror = %stage.mirror, %topic, %topic_id, "destination topic is not recreated, it is not wanted any more");
            }
            Next::Delete { topic_id } => {
                sleep(DRAIN).await;
                let source = source(stage, topic, source_topic_id).await?;
                if let Some(reason) = hindrance(stage, topic, &source).await? {
                    give_up(stage, topic, &partitions, topic_id, &reason).await?;
                    mark(topic_id, false).await?;
                    return Ok(None);
                }
                delete(stage, topic, topic_id, &remembered).await?;
            }
            Next::Create => {
                let source = source(stage, topic, source_topic_id).await?;
                create(stage, topic, count(&source)).await?;
                wait_for_leaders(stage, topic, count(&source)).await?;
            }
            Next::Take { topic_id } => {
                let found = wait_for_leaders(stage, topic, 1).await?;
                if found.topic_id == topic_id {
                    mark(topic_id, false).await?;
                    info!(mirror = %stage.mirror, %topic, %topic_id, "destination topic recreated");
                    return Ok(Some(Ready {
                        destination_topic_id: topic_id,
                        partitions: count(&found),
                    }));
                }
            }
        }
    }
    Err(Trouble::Waiting(
        "the destination topic does not come to rest while it is recreated".into(),
    ))
}

/// What is written down of the topic. That this is answered is the right to act on it.
async fn remembered(stage: &Stage, topic: &Arc<str>) -> Result<TopicValue, Trouble> {
    let (mirror, name) = (Arc::clone(&stage.mirror), Arc::clone(topic));
    let found = stage.states.topic_here(mirror, name).await;
    found.map(Option::unwrap_or_default).map_err(unavailable)
}

async fn mark(
    stage: &Stage,
    topic: &Arc<str>,
    ids: (TopicId, TopicId),
    recreating: bool,
) -> Result<(), Trouble> {
    let (mirror, name) = (Arc::clone(&stage.mirror), Arc::clone(topic));
    let marked = stage.states.mark_topic(mirror, name, ids, recreating).await;
    // Refused if an operator was faster: that is seen at the next look.
    marked.map(|_| ()).map_err(unavailable)
}

/// The states of all partitions that have one, as their coordinators know them.
async fn states(stage: &Stage, topic: &Arc<str>) -> Result<Vec<(i32, PartitionValue)>, Trouble> {
    let known = stage.states.model().partitions_of(&stage.mirror);
    let keys: Vec<MirrorPartition> = known
        .into_keys()
        .filter(|key| key.partition.topic == *topic)
        .collect();
    let answers = stage.states.read(&stage.mirror, keys.clone()).await;
    let mut found = Vec::with_capacity(keys.len());
    for (key, answer) in keys.into_iter().zip(answers) {
        let (value, _) = answer.map_err(unavailable)?;
        found.extend(value.map(|value| (key.partition.partition, value)));
    }
    Ok(found)
}

/// The topic as the destination has it.
async fn there(stage: &Stage, topic: &Arc<str>) -> Result<Option<TopicMetadata>, Trouble> {
    let names = Topics::Named(vec![Arc::clone(topic)]);
    let metadata = stage.destination.refresh(names).await?;
    match metadata.topics.get(topic) {
        None => Ok(None),
        Some(found) if found.error == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => Ok(None),
        Some(found) if found.error.is_none() => Ok(Some(found.clone())),
        Some(found) => Err(Trouble::Waiting(format!(
            "the destination says {} of the topic",
            found.error
        ))),
    }
}

/// The topic as the source has it, if it is the one that is mirrored.
async fn source(
    stage: &Stage,
    topic: &Arc<str>,
    topic_id: TopicId,
) -> Result<TopicMetadata, Trouble> {
    let names = Topics::Named(vec![Arc::clone(topic)]);
    let metadata = stage.source.refresh(names).await?;
    let found = metadata.topics.get(topic).filter(|found| {
        let same = found.topic_id == topic_id || topic_id.is_zero();
        found.error.is_none() && !found.partitions.is_empty() && same
    });
    found.cloned().ok_or_else(|| {
        Trouble::Waiting("the source does not have the topic that is mirrored".into())
    })
}

/// Why the topic could not be mirrored from nothing, if that is so.
async fn hindrance(
    stage: &Stage,
    topic: &Arc<str>,
    source: &TopicMetadata,
) -> Result<Option<String>, Trouble> {
    for (index, partition) in &source.partitions {
        let led = partition.leader.ok_or_else(|| {
            stage.source.request_refresh();
            Trouble::Waiting(format!("partition {index} has no leader at the source"))
        })?;
        let connection = stage.source.broker(led, Lane::Control).await?;
        let asked = TopicPartition {
            topic: Arc::clone(topic),
            partition: *index,
        };
        let asked = [(asked, LeaderEpoch::NONE)];
        let timeout = stage.request_timeout;
        let answers = list_offsets(&connection, OffsetKind::LogStart, &asked, timeout).await?;
        for (_, answer) in answers {
            let start = answer.map_err(|fault| Trouble::Waiting(chain(&fault).to_string()))?;
            if start.offset > 0 {
                return Ok(Some(format!(
                    "partition {index} of the source starts at offset {}, and a topic whose beginning is gone cannot be mirrored \
                     from nothing; nothing was deleted",
                    start.offset
                )));
            }
        }
    }
    Ok(None)
}

fn reason_of(partitions: &[(i32, PartitionValue)], partition: i32) -> Arc<str> {
    let found = partitions.iter().find(|(index, _)| *index == partition);
    let words = found.and_then(|(_, value)| value.error_message.clone());
    words.unwrap_or_else(|| "".into())
}

/// The topic stays as it is: its partitions that differ are FAILED for good, and say why.
async fn give_up(
    stage: &Stage,
    topic: &Arc<str>,
    partitions: &[(i32, PartitionValue)],
    topic_id: TopicId,
    reason: &str,
) -> Result<(), Trouble> {
    let differing = partitions
        .iter()
        .filter(|(_, value)| divergence(value).is_some_and(|found| found.differs_in(topic_id)));
    let writes = differing.map(|(index, value)| {
        let key = MirrorPartition::new(&stage.mirror, topic, *index);
        let words = value.error_message.as_deref().unwrap_or_default();
        let write = PartitionWrite {
            state: Some(PartitionState::Failed),
            expected_state_epoch: Some(value.state_epoch),
            error_message: Some(format!("{words}, which cannot be done: {reason}").into()),
            retry_attempt: Some(-1),
            ..PartitionWrite::default()
        };
        (key, write)
    });
    let answers = stage.states.write(&stage.mirror, writes.collect()).await;
    // One that was refused has another state by now, which is looked at anew.
    if let Some(reason) = answers.into_iter().find_map(Result::err) {
        return Err(unavailable(reason));
    }
    error!(mirror = %stage.mirror, %topic, %reason, "destination topic differs from its source and cannot be recreated");
    Ok(())
}

/// Deletes the topic that has this id, if everything is still as it was, and waits until it is not shown any more.
async fn delete(
    stage: &Stage,
    topic: &Arc<str>,
    topic_id: TopicId,
    as_of: &TopicValue,
) -> Result<(), Trouble> {
    let connection = stage.destination.any(Lane::Control).await?;
    if remembered(stage, topic).await? != *as_of {
        return Ok(());
    }
    match delete_topic(&connection, topic, topic_id, stage.request_timeout).await {
        Ok(()) => {
            info!(mirror = %stage.mirror, %topic, %topic_id, "destination topic deleted");
        }
        Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_ID) => {}
        Err(error) => return Err(refused(error, Side::Destination, topic, "Delete", -1)),
    }
    let deadline = Instant::now() + GONE_DEADLINE;
    let mut looks = 0_u32;
    while there(stage, topic)
        .await?
        .is_some_and(|found| found.topic_id == topic_id)
    {
        if Instant::now() >= deadline {
            return Err(Trouble::Waiting(
                "the destination still shows the topic that was deleted".into(),
            ));
        }
        looks = looks.saturating_add(1);
        sleep(LOOKS.pause(looks, rand::random())).await;
    }
    Ok(())
}

impl Keeper {
    /// True if the topic's coordinator has marked it.
    pub(super) fn is_recreated(&self, name: &Arc<str>) -> bool {
        let remembered = self.stage.states.model().topic(&self.stage.mirror, name);
        remembered.is_some_and(|topic| topic.recreating.is_some())
    }

    /// Topics that are another one at the destination, by what their coordinator has written down. True if there are any.
    pub(super) fn follow_recreated(&mut self) -> bool {
        let mut renewed = Vec::new();
        for (name, value) in self.stage.states.model().topics(&self.stage.mirror) {
            let Some(topic) = self.topics.get_mut(&name) else {
                continue;
            };
            if value.recreating.is_some() {
                topic.recreating = true;
                topic.missed_at_destination = 0;
            } else if topic.recreating && !topic.busy {
                topic.recreating = false;
                if value.destination_topic_id != topic.entry.destination_topic_id {
                    let ready = Ready {
                        destination_topic_id: value.destination_topic_id,
                        partitions: topic.entry.partitions,
                    };
                    renewed.push((name, ready));
                }
            }
        }
        let any = !renewed.is_empty();
        for (name, ready) in renewed {
            self.renewed(&name, ready);
        }
        any
    }

    /// Topics that this process, the mirror's coordinator, is to recreate, or goes on to.
    pub(super) fn recreate_diverged(&mut self, states: &BTreeMap<MirrorPartition, PartitionValue>) {
        let model = self.stage.states.model();
        let remembered = model.topics(&self.stage.mirror);
        let marked = remembered
            .iter()
            .filter(|(_, value)| value.recreating.is_some())
            .map(|(name, _)| Arc::clone(name));
        let differing = states
            .iter()
            .filter(|(key, value)| {
                let topic = self.topics.get(&key.partition.topic);
                let topic_id = topic.map(|topic| topic.entry.destination_topic_id);
                self.stage.on_divergence == OnDivergence::Recreate
                    && topic_id.is_some_and(|id| {
                        divergence(value).is_some_and(|found| found.differs_in(id))
                    })
                    && self.desired(&key.partition.topic) == DesiredState::Mirroring
            })
            .map(|(key, _)| Arc::clone(&key.partition.topic));
        let names: BTreeSet<Arc<str>> = marked.chain(differing).collect();
        for name in names {
            let waits = self.another_source.is_none();
            let Some(topic) = self.topics.get_mut(&name).filter(|_| waits) else {
                continue;
            };
            if !topic.busy && !topic.failed_for_good() {
                topic.busy = true;
                self.waiting.push_back(Work::Recreate(name));
            }
        }
    }

    pub(super) fn recreated(&mut self, name: &Arc<str>, result: Result<Option<Ready>, Trouble>) {
        if let Some(topic) = self.topics.get_mut(name) {
            topic.busy = false;
        }
        match result {
            Ok(Some(ready)) => self.renewed(name, ready),
            Ok(None) => {}
            Err(trouble) => {
                self.look_at_stopped = Some(Instant::now() + RETRIES.cap);
                match trouble {
                    // The partitions say why they stand still.
                    Trouble::Refused(reason) => self.complain(name, &reason, false),
                    trouble => self.trouble(name, trouble),
                }
            }
        }
    }

    /// The topic is another one at the destination, as it is to be. It is ours from its first record on: its configs are held at
    /// once.
    pub(super) fn renewed(&mut self, name: &Arc<str>, ready: Ready) {
        let wanted = self.desired(name) == DesiredState::Mirroring;
        let Some(topic) = self.topics.get_mut(name) else {
            return;
        };
        topic.entry.destination_topic_id = ready.destination_topic_id;
        topic.entry.partitions = ready.partitions;
        topic.entry.gate = TopicGate::Unheld;
        topic.ready = true;
        topic.recreating = false;
        topic.odd_at_destination = false;
        topic.missed_at_destination = 0;
        topic.said = None;
        topic.hold_wanted = true;
        if wanted && !topic.busy {
            self.queue_hold(name);
        }
    }
}
