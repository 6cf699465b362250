//! What is known of a cluster: brokers, topics, partitions and their leaders. Pure values and the rule by which a newer
//! answer replaces an older one. Must not ask anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::connect::Address;
use crate::domain::types::{BrokerId, LeaderEpoch, TopicId, TopicPartition};
use crate::wire::api::metadata::{MetadataResponse, MetadataResponseTopic};
use crate::wire::error_code::ErrorCode;

/// One broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Where it listens for us.
    pub address: Address,
    /// Its rack, if it has one.
    pub rack: Option<Arc<str>>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMetadata {
    /// Who leads it; `None` while nobody does.
    pub leader: Option<BrokerId>,
    /// Since which epoch.
    pub leader_epoch: LeaderEpoch,
    /// Where it has replicas.
    pub replicas: Vec<BrokerId>,
    /// Which of them are in sync.
    pub isr: Vec<BrokerId>,
    /// What the broker says of the partition.
    pub error: ErrorCode,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicMetadata {
    /// Its id; all zero if the broker does not know ids (Metadata before version 10).
    pub topic_id: TopicId,
    /// True for Kafka's own topics.
    pub is_internal: bool,
    /// What the broker says of the topic, UNKNOWN_TOPIC_OR_PARTITION for one that is not there.
    pub error: ErrorCode,
    /// Its partitions by index.
    pub partitions: BTreeMap<i32, PartitionMetadata>,
}

/// One answer to Metadata, as plain values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The brokers that are alive.
    pub brokers: BTreeMap<BrokerId, Node>,
    /// The id of the cluster.
    pub cluster_id: Option<Arc<str>>,
    /// The controller, or the broker that speaks for it.
    pub controller: Option<BrokerId>,
    /// Topics by name.
    pub topics: BTreeMap<Arc<str>, TopicMetadata>,
}

fn broker(id: BrokerId) -> Option<BrokerId> {
    (id.0 >= 0).then_some(id)
}

impl Metadata {
    /// Takes over an answer. Brokers whose port is no port, and topics without a name, are left out.
    pub fn from_response(response: MetadataResponse) -> Self {
        let brokers = response.brokers.into_iter().filter_map(|broker| {
            let address = Address {
                host: broker.host,
                port: u16::try_from(broker.port).ok()?,
            };
            let rack = broker.rack;
            Some((broker.node_id, Node { address, rack }))
        });
        let topics = response.topics.into_iter().filter_map(|topic| {
            let name = topic.name.clone()?;
            Some((name, TopicMetadata::from_response(topic)))
        });
        Self {
            brokers: brokers.collect(),
            cluster_id: response.cluster_id,
            controller: broker(response.controller_id),
            topics: topics.collect(),
        }
    }

    /// The id of a topic; zero for one that the answer does not have, and where brokers know no ids.
    pub fn topic_id(&self, topic: &str) -> TopicId {
        id_of(&self.topics, topic)
    }
}

fn id_of(topics: &BTreeMap<Arc<str>, TopicMetadata>, topic: &str) -> TopicId {
    let found = topics.get(topic);
    found.map(|topic| topic.topic_id).unwrap_or_default()
}

impl TopicMetadata {
    fn from_response(topic: MetadataResponseTopic) -> Self {
        let partitions = topic.partitions.into_iter().map(|partition| {
            let metadata = PartitionMetadata {
                leader: broker(partition.leader_id),
                leader_epoch: partition.leader_epoch,
                replicas: partition.replica_nodes,
                isr: partition.isr_nodes,
                error: partition.error_code,
            };
            (partition.partition_index, metadata)
        });
        Self {
            topic_id: topic.topic_id,
            is_internal: topic.is_internal,
            error: topic.error_code,
            partitions: partitions.collect(),
        }
    }

    /// This answer, but with what `known` has of newer epochs: answers come from different brokers, and one that lags
    /// must not bring an old leader back. A new topic id is another topic and takes nothing over.
    fn newer_of(mut self, known: &Self) -> Self {
        if self.topic_id != known.topic_id && !self.error_only() {
            return self;
        }
        if self.error_only() {
            self.topic_id = known.topic_id;
            self.is_internal = known.is_internal;
            if self.error != ErrorCode::UNKNOWN_TOPIC_OR_PARTITION {
                self.partitions = known.partitions.clone();
            }
            return self;
        }
        for (index, partition) in &mut self.partitions {
            if let Some(known) = known.partitions.get(index)
                && known.leader_epoch > partition.leader_epoch
            {
                *partition = known.clone();
            }
        }
        self
    }

    fn error_only(&self) -> bool {
        !self.error.is_none() && self.partitions.is_empty()
    }
}

/// The newest that is known of every topic somebody is interested in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leaders {
    /// The brokers of the newest answer.
    pub brokers: BTreeMap<BrokerId, Node>,
    /// Topics by name.
    pub topics: BTreeMap<Arc<str>, TopicMetadata>,
}

impl Leaders {
    /// The partition, if it is known.
    pub fn partition(&self, tp: &TopicPartition) -> Option<&PartitionMetadata> {
        self.topics.get(&tp.topic)?.partitions.get(&tp.partition)
    }

    /// The id of a topic; zero for one that is not known, and where brokers know no ids.
    pub fn topic_id(&self, topic: &str) -> TopicId {
        id_of(&self.topics, topic)
    }

    /// The partition's leader and its epoch, if there is one.
    pub fn leader(&self, tp: &TopicPartition) -> Option<(BrokerId, LeaderEpoch)> {
        let partition = self.partition(tp)?;
        Some((partition.leader?, partition.leader_epoch))
    }

    /// Takes an answer in. `everything` if it was asked for all topics: then those it does not name are gone.
    pub fn absorb(&mut self, metadata: &Metadata, everything: bool) {
        self.brokers = metadata.brokers.clone();
        if everything {
            self.topics
                .retain(|name, _| metadata.topics.contains_key(name));
        }
        for (name, answer) in &metadata.topics {
            let newest = match self.topics.get(name) {
                Some(known) => answer.clone().newer_of(known),
                None => answer.clone(),
            };
            self.topics.insert(Arc::clone(name), newest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(topic_id: u8, error: ErrorCode, leaders: &[(i32, i32)]) -> Metadata {
        let partitions = leaders.iter().enumerate().map(|(index, (leader, epoch))| {
            let metadata = PartitionMetadata {
                leader: broker(BrokerId(*leader)),
                leader_epoch: LeaderEpoch(*epoch),
                replicas: Vec::new(),
                isr: Vec::new(),
                error: ErrorCode::NONE,
            };
            (i32::try_from(index).unwrap(), metadata)
        });
        let topic = TopicMetadata {
            topic_id: TopicId([topic_id; 16]),
            is_internal: false,
            error,
            partitions: partitions.collect(),
        };
        Metadata {
            topics: BTreeMap::from([("t".into(), topic)]),
            ..Metadata::default()
        }
    }

    #[test]
    fn an_older_epoch_never_replaces_a_newer_one_unless_the_topic_is_another() {
        let none = ErrorCode::NONE;
        let gone = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        let tp = TopicPartition::new("t", 0);
        let cases = [
            (answer(1, none, &[(2, 6)]), Some((2, 6)), "newer"),
            (answer(1, none, &[(3, 5)]), Some((3, 5)), "the same epoch"),
            (answer(1, none, &[(2, 4)]), Some((1, 5)), "older"),
            (answer(1, none, &[(-1, 6)]), None, "newer, without a leader"),
            (answer(2, none, &[(9, 0)]), Some((9, 0)), "recreated"),
            (answer(0, gone, &[]), None, "deleted"),
            (
                answer(0, ErrorCode::TOPIC_AUTHORIZATION_FAILED, &[]),
                Some((1, 5)),
                "not allowed",
            ),
        ];
        for (next, leader, why) in cases {
            let mut leaders = Leaders::default();
            leaders.absorb(&answer(1, none, &[(1, 5)]), true);
            leaders.absorb(&next, false);
            let leader = leader.map(|(id, epoch)| (BrokerId(id), LeaderEpoch(epoch)));
            assert_eq!(leaders.leader(&tp), leader, "{why}");
        }
    }

    #[test]
    fn an_answer_for_all_topics_removes_those_that_are_gone() {
        let mut leaders = Leaders::default();
        leaders.absorb(&answer(1, ErrorCode::NONE, &[(1, 5)]), true);
        leaders.absorb(&Metadata::default(), false);
        assert_eq!(leaders.topics.len(), 1);
        leaders.absorb(&Metadata::default(), true);
        assert!(leaders.topics.is_empty());
    }
}
