//! What should be, from what is: topics of the source and the destination, and the policy. Must not carry anything out.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::types::TopicId;

/// The topics of one mirror, as far as they are prepared for the data path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSet {
    /// By name.
    pub topics: BTreeMap<Arc<str>, TopicEntry>,
}

/// One mirrored topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEntry {
    /// How many partitions the source has; the destination has as many unless the gate says otherwise.
    pub partitions: i32,
    /// Its id on the source; zero where the source knows no ids.
    pub source_topic_id: TopicId,
    /// Its id on the destination; zero where the destination knows no ids.
    pub destination_topic_id: TopicId,
    /// How far its preparation is.
    pub gate: TopicGate,
}

/// How far a topic is prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicGate {
    /// It is there on both sides and may be compared; nothing may be appended until its configs are held.
    Unheld,
    /// Every leader shows the held configs: appending may begin.
    Held {
        /// The destination topic's `max.message.bytes`.
        max_message_bytes: usize,
    },
    /// It cannot be mirrored for now, or for good.
    Failed {
        /// Why, in words, with what an operator can do.
        reason: String,
        /// True if only a person can change it.
        permanent: bool,
    },
}
