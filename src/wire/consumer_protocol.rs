//! What members of our group tell each other through its coordinator, as bytes. Must not decide who gets what.
//!
//! The group's protocol *type* is Kafka's "consumer", with an assignor of our own, [`PROTOCOL`]: `kafka-consumer-groups
//! --describe` refuses groups of any other type, and of this type it shows which sidecar has which partition. So the
//! envelopes are those of consumers, after Kafka 4.4's `ConsumerProtocolSubscription.json` and
//! `ConsumerProtocolAssignment.json`: an int16 version, then the body, never flexible. What only concerns us travels in
//! their user data: an int16 version and a flexible body as well.
//!
//! All of them are read as Kafka reads its own (`ConsumerProtocol.deserializeVersion`): a newer version is read as the
//! newest that is known, and what stands behind that is left alone, because newer versions only add.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use super::bounded::{DecodeError, EncodeError, Reader, Writer};
use super::schema::{Field, Message, wire_struct};
use crate::domain::types::{BrokerId, TopicPartition};

/// The protocol type of the group.
pub const PROTOCOL_TYPE: &str = "consumer";

/// The name of the protocol (Kafka: of the assignor) that all members must support.
pub const PROTOCOL: &str = "truemirror";

wire_struct! {
    /// What a member tells when it joins.
    pub struct ConsumerProtocolSubscription {
        /// The topics that the member wants to consume.
        topics: Vec<Arc<str>> [0..],
        /// User data that will be passed back to the consumer: a [`MemberData`] of ours.
        user_data: Option<Bytes> [0..],
        /// The partitions that the member owns.
        owned_partitions: Vec<TopicPartitions> [1..],
        /// The generation id of the member.
        generation_id: i32 [2..] = -1,
        /// The rack id of the member.
        rack_id: Option<Arc<str>> [3..],
    }
}

wire_struct! {
    /// What a member is given.
    pub struct ConsumerProtocolAssignment {
        /// The list of topics and partitions assigned to this consumer.
        assigned_partitions: Vec<TopicPartitions> [0..],
        /// User data: a [`GroupData`] of ours.
        user_data: Option<Bytes> [0..],
    }
}

wire_struct! {
    /// Partitions of one topic.
    pub struct TopicPartitions {
        /// The topic name.
        topic: Arc<str> [0..],
        /// The partition ids.
        partitions: Vec<i32> [0..],
    }
}

wire_struct! {
    /// Who a member is; the user data of its subscription.
    pub struct MemberData {
        /// The sidecar's id, which is its `group.instance.id`.
        sidecar_id: Arc<str> [0..],
        /// The destination broker that it stands beside, -1 for none.
        broker_id: BrokerId [0..] = BrokerId(-1),
        /// The host at which the other sidecars reach it.
        host: Arc<str> [0..],
        /// The port there.
        port: i32 [0..],
        /// The version of its software.
        version: Arc<str> [0..],
        /// The fingerprint of its configuration, as the bits of an unsigned number.
        config_fingerprint: i64 [0..],
    }
}

wire_struct! {
    /// What everybody should know; the user data of an assignment.
    pub struct GroupData {
        /// The fingerprint of the work and its leaders that the leader of the group went by, 0 if it did not know them. By
        /// it a leader that was restarted knows whether anything is new.
        work_fingerprint: i64 [0..],
        /// True if this member has something to give up, and others wait until it has joined again without. A process
        /// that was restarted meanwhile has nothing to give up, and would not know.
        awaited: bool [0..],
        /// True if somebody has something to give up, so that another generation follows soon.
        moving: bool [0..],
        /// All members.
        members: Vec<MemberData> [0..],
    }
}

macro_rules! versions {
    ($($message:ident $versions:expr, flexible from $flexible:expr;)+) => {$(
        impl Message for $message {
            const VERSIONS: RangeInclusive<i16> = $versions;
            const FIRST_FLEXIBLE: i16 = $flexible;
        }
    )+};
}

versions! {
    ConsumerProtocolSubscription 0..=3, flexible from i16::MAX;
    ConsumerProtocolAssignment 0..=3, flexible from i16::MAX;
    MemberData 0..=0, flexible from 0;
    GroupData 0..=0, flexible from 0;
}

/// The version and the body, in the newest version.
///
/// # Errors
/// If a length does not fit the protocol.
pub fn encode<M: Message>(message: &M) -> Result<Bytes, EncodeError> {
    let version = *M::VERSIONS.end();
    let mut w = Writer::new();
    w.put_i16(version);
    message.encode_body(version, &mut w);
    w.into_bytes()
}

/// Reads what [`encode`] wrote, in any version.
///
/// # Errors
/// If it is cut short or reads as something else.
pub fn decode<M: Message>(bytes: Bytes) -> Result<M, DecodeError> {
    let mut r = Reader::new(bytes);
    r.at("version");
    let version = r.i16()?;
    let (min, max) = (*M::VERSIONS.start(), *M::VERSIONS.end());
    if version < min {
        return Err(DecodeError::Version { version, min, max });
    }
    // Unlike a message of the protocol, the body need not end where we stop reading.
    <M as Field>::decode(M::layout(version.min(max)), &mut r)
}

/// Partitions by topic, in order.
pub fn by_topic<'a>(
    partitions: impl IntoIterator<Item = &'a TopicPartition>,
) -> Vec<TopicPartitions> {
    let mut topics: BTreeMap<&Arc<str>, Vec<i32>> = BTreeMap::new();
    for tp in partitions {
        topics.entry(&tp.topic).or_default().push(tp.partition);
    }
    topics
        .into_iter()
        .map(|(topic, partitions)| TopicPartitions {
            topic: Arc::clone(topic),
            partitions,
        })
        .collect()
}

/// The partitions one by one.
pub fn one_by_one(topics: &[TopicPartitions]) -> impl Iterator<Item = TopicPartition> {
    topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| TopicPartition {
            topic: Arc::clone(&topic.topic),
            partition: *partition,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::schema::Seed;

    fn survives<M: Message + Clone + PartialEq + std::fmt::Debug>() {
        let newest = *M::VERSIONS.end();
        for seed in 0..50 {
            let message = M::sample(M::layout(newest), &mut Seed(seed));
            let bytes = encode(&message).unwrap();
            assert_eq!(bytes[..2], newest.to_be_bytes());
            assert_eq!(decode::<M>(bytes.clone()), Ok(message.clone()));
            for cut in 0..bytes.len() {
                assert!(decode::<M>(bytes.slice(..cut)).is_err(), "cut at {cut}");
            }
            let mut newer = bytes.to_vec();
            newer[..2].copy_from_slice(&77_i16.to_be_bytes());
            newer.extend_from_slice(b"what a later version adds");
            assert_eq!(decode::<M>(newer.into()), Ok(message));
            let mut negative = bytes.to_vec();
            negative[0] = 0xff;
            assert!(decode::<M>(negative.into()).is_err());
            for at in 0..bytes.len() {
                let mut hostile = bytes[..at].to_vec();
                hostile.extend_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x0f]);
                // Either is fine; only a panic or a huge allocation is not.
                drop(decode::<M>(hostile.into()));
            }
        }
    }

    #[test]
    fn all_four_survive_the_way_there_and_back_and_newer_versions_are_read() {
        survives::<ConsumerProtocolSubscription>();
        survives::<ConsumerProtocolAssignment>();
        survives::<MemberData>();
        survives::<GroupData>();
    }

    #[test]
    fn a_subscription_of_the_first_version_is_read() {
        // Version 0: one topic "t", null user data.
        let bytes = Bytes::from_static(&[0, 0, 0, 0, 0, 1, 0, 1, b't', 0xff, 0xff, 0xff, 0xff]);
        let read: ConsumerProtocolSubscription = decode(bytes).unwrap();
        assert_eq!(read.topics, ["t".into()]);
        assert_eq!((read.user_data, read.generation_id), (None, -1));
    }

    #[test]
    fn partitions_are_grouped_by_topic_and_come_out_again() {
        let tps = [("b", 2), ("a", 1), ("b", 0)].map(|(t, p)| TopicPartition::new(t, p));
        let topics = by_topic(&tps);
        let names: Vec<_> = topics
            .iter()
            .map(|t| (&*t.topic, t.partitions.len()))
            .collect();
        assert_eq!(names, [("a", 1), ("b", 2)]);
        let mut back: Vec<_> = one_by_one(&topics).collect();
        back.sort();
        let mut tps = tps.to_vec();
        tps.sort();
        assert_eq!(back, tps);
    }
}
