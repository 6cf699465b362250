//! Records of the state topic as bytes and back: key = int16 type and fields (classic layout), value = int16 version and
//! fields (flexible layout, with tagged fields for what may come), as Kafka's coordinator records. Must not decide what a
//! record means for a state.

use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;

use super::bounded::{DecodeError, EncodeError, Reader, Writer};
use super::schema::{Field, Layout, wire_struct};
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{
    CoordinatorValue, Divergence, LastMirrorEpochsValue, MirrorPartition, MirrorValue,
    PartitionValue, StateKey, StateRecord, StateValue, TopicValue,
};
use crate::domain::types::{LeaderEpoch, TopicId, TopicPartition};

const COORDINATOR: i16 = 0;
const LAST_MIRROR_EPOCHS: i16 = 1;
const PARTITION: i16 = 2;
const TOPIC: i16 = 3;
const MIRROR: i16 = 4;

/// The version of every value that is written here.
const VERSION: i16 = 0;

const KEY: Layout = Layout {
    version: VERSION,
    flexible: false,
};
const VALUE: Layout = Layout {
    version: VERSION,
    flexible: true,
};

wire_struct! {
    /// Key of the types 1 and 2.
    pub struct PartitionKey {
        /// The mirror.
        mirror_name: Arc<str> [0..],
        /// The topic.
        topic_name: Arc<str> [0..],
        /// The partition's index.
        partition: i32 [0..],
    }
}

wire_struct! {
    /// Key of type 3.
    pub struct TopicKey {
        /// The mirror.
        mirror_name: Arc<str> [0..],
        /// The topic.
        topic_name: Arc<str> [0..],
    }
}

wire_struct! {
    /// Key of type 4.
    pub struct MirrorKey {
        /// The mirror.
        mirror_name: Arc<str> [0..],
    }
}

wire_struct! {
    /// Value of type 0.
    pub struct CoordinatorFields {
        /// The sidecar's id.
        sidecar: Arc<str> [0..],
        /// Which run of it.
        incarnation: Arc<str> [0..],
        /// `host:port`.
        address: Arc<str> [0..],
        /// Milliseconds since 1970.
        time_ms: i64 [0..],
    }
}

wire_struct! {
    /// Value of type 1.
    pub struct LastMirrorEpochsFields {
        /// The source's leader epoch of the last mirrored record.
        last_mirror_epoch: LeaderEpoch [0..] = LeaderEpoch::NONE,
    }
    tagged {
        /// The next offset after the last mirrored record.
        0 => last_mirror_offset: i64 [0..] = -1,
    }
}

wire_struct! {
    /// Value of type 2. The untagged fields are those of KIP-1279's MirrorPartitionStateValue.
    pub struct PartitionFields {
        /// The state's number.
        state: i8 [0..],
        /// The number of the state before; 16 and -1 are both UNKNOWN.
        previous_state: i8 [0..] = 16,
        /// Failures in a row; -1: no retry will help.
        retry_attempt: i16 [0..],
        /// Why it is FAILED.
        error_message: Option<Arc<str>> [0..],
    }
    tagged {
        /// Counts the records of this key.
        0 => state_epoch: i32 [0..],
        /// Records below are adopted.
        1 => adopted_below: i64 [0..] = -1,
        /// Which of our producer ids.
        2 => producer_generation: i32 [0..],
        /// The destination topic that differs; all zero: none.
        3 => diverged_topic_id: TopicId [0..],
        /// The first offset there that differs; -1: another partition's does.
        4 => diverged_at: i64 [0..] = -1,
    }
}

wire_struct! {
    /// Value of type 3.
    pub struct TopicFields {
        /// The number of the state that is wanted.
        desired_state: i8 [0..],
        /// Counts the records of this key.
        state_epoch: i32 [0..],
        /// At the source.
        source_topic_id: TopicId [0..],
        /// At the destination.
        destination_topic_id: TopicId [0..],
        /// To be put in force when it is no longer mirrored.
        restored_configs: Vec<ConfigFields> [0..],
    }
    tagged {
        /// The destination topic that is being recreated; all zero: none.
        0 => recreating: TopicId [0..],
    }
}

wire_struct! {
    /// One config of a topic.
    pub struct ConfigFields {
        /// The key.
        name: Arc<str> [0..],
        /// The value; null for the broker's default.
        value: Option<Arc<str>> [0..],
    }
}

wire_struct! {
    /// Value of type 4.
    pub struct MirrorFields {
        /// The source cluster's id; empty if it had none.
        source_cluster_id: Arc<str> [0..],
        /// The configuration by which the coordinator works.
        fingerprint: i64 [0..],
        /// Counts the records of this key.
        state_epoch: i32 [0..],
    }
    tagged {
        /// The mirror's records are being removed.
        0 => deleting: bool [0..],
    }
}

/// Why a record is not taken. None of them stops a coordinator: what it does not know, it leaves where it is.
#[derive(Debug, Error)]
pub enum StateRecordError {
    /// A kind of record of a later program.
    #[error("record of type {0}, which this version does not know")]
    UnknownType(i16),
    /// A value of a later program.
    #[error("record of type {type_id} with a value of version {version}, newer than {VERSION}")]
    NewerVersion {
        /// The type.
        type_id: i16,
        /// Its version.
        version: i16,
    },
    /// A state's number that no state has.
    #[error("record with the state number {0}, which no state has")]
    State(i8),
    /// There is no key: nothing that was ever written here.
    #[error("record without a key")]
    NoKey,
    /// The bytes do not follow the layout.
    #[error("record that cannot be read")]
    Malformed(#[from] DecodeError),
}

/// Key and value of a record; no value for a tombstone.
///
/// # Errors
/// If a name is too long for the protocol's strings.
pub fn encode(record: &StateRecord) -> Result<(Bytes, Option<Bytes>), EncodeError> {
    let mut key = Writer::new();
    match &record.key {
        StateKey::Coordinator => key.put_i16(COORDINATOR),
        StateKey::LastMirrorEpochs(one) => {
            put_key(&mut key, LAST_MIRROR_EPOCHS, &partition_key(one))
        }
        StateKey::Partition(one) => put_key(&mut key, PARTITION, &partition_key(one)),
        StateKey::Topic { mirror, topic } => {
            let fields = TopicKey {
                mirror_name: Arc::clone(mirror),
                topic_name: Arc::clone(topic),
            };
            put_key(&mut key, TOPIC, &fields);
        }
        StateKey::Mirror { mirror } => {
            let fields = MirrorKey {
                mirror_name: Arc::clone(mirror),
            };
            put_key(&mut key, MIRROR, &fields);
        }
    }
    let value = record.value.as_ref().map(encode_value).transpose()?;
    Ok((key.into_bytes()?, value))
}

fn put_key(w: &mut Writer, type_id: i16, fields: &impl Field) {
    w.put_i16(type_id);
    fields.encode(KEY, w);
}

fn partition_key(one: &MirrorPartition) -> PartitionKey {
    PartitionKey {
        mirror_name: Arc::clone(&one.mirror),
        topic_name: Arc::clone(&one.partition.topic),
        partition: one.partition.partition,
    }
}

fn encode_value(value: &StateValue) -> Result<Bytes, EncodeError> {
    let mut w = Writer::new();
    w.put_i16(VERSION);
    match value {
        StateValue::Coordinator(value) => CoordinatorFields {
            sidecar: Arc::clone(&value.sidecar),
            incarnation: Arc::clone(&value.incarnation),
            address: Arc::clone(&value.address),
            time_ms: value.time_ms,
        }
        .encode(VALUE, &mut w),
        StateValue::LastMirrorEpochs(value) => LastMirrorEpochsFields {
            last_mirror_epoch: value.last_mirror_epoch,
            last_mirror_offset: value.last_mirror_offset,
        }
        .encode(VALUE, &mut w),
        StateValue::Partition(value) => PartitionFields {
            state: value.state.number(),
            previous_state: value.previous_state.number(),
            retry_attempt: value.retry_attempt,
            error_message: value.error_message.clone(),
            state_epoch: value.state_epoch,
            adopted_below: value.adopted_below,
            producer_generation: value.producer_generation,
            diverged_topic_id: value
                .divergence
                .map(|found| found.destination_topic_id)
                .unwrap_or_default(),
            diverged_at: value.divergence.map_or(-1, |found| found.offset),
        }
        .encode(VALUE, &mut w),
        StateValue::Topic(value) => TopicFields {
            desired_state: value.desired.as_state().number(),
            state_epoch: value.state_epoch,
            source_topic_id: value.source_topic_id,
            destination_topic_id: value.destination_topic_id,
            restored_configs: value
                .restored_configs
                .iter()
                .map(|(name, value)| ConfigFields {
                    name: Arc::clone(name),
                    value: value.clone(),
                })
                .collect(),
            recreating: value.recreating.unwrap_or_default(),
        }
        .encode(VALUE, &mut w),
        StateValue::Mirror(value) => MirrorFields {
            source_cluster_id: Arc::clone(&value.source_cluster_id),
            fingerprint: value.fingerprint,
            state_epoch: value.state_epoch,
            deleting: value.deleting,
        }
        .encode(VALUE, &mut w),
    }
    w.into_bytes()
}

/// The record that these bytes say.
///
/// # Errors
/// See [`StateRecordError`].
pub fn decode(key: Option<&Bytes>, value: Option<&Bytes>) -> Result<StateRecord, StateRecordError> {
    let mut r = Reader::new(key.cloned().ok_or(StateRecordError::NoKey)?);
    r.at("record type");
    let type_id = r.i16()?;
    let key = match type_id {
        COORDINATOR => StateKey::Coordinator,
        LAST_MIRROR_EPOCHS => StateKey::LastMirrorEpochs(mirror_partition(&mut r)?),
        PARTITION => StateKey::Partition(mirror_partition(&mut r)?),
        TOPIC => {
            let fields = TopicKey::decode(KEY, &mut r)?;
            StateKey::Topic {
                mirror: fields.mirror_name,
                topic: fields.topic_name,
            }
        }
        MIRROR => StateKey::Mirror {
            mirror: MirrorKey::decode(KEY, &mut r)?.mirror_name,
        },
        other => return Err(StateRecordError::UnknownType(other)),
    };
    r.finish()?;
    let value = value
        .map(|bytes| decode_value(type_id, bytes.clone()))
        .transpose()?;
    Ok(StateRecord { key, value })
}

fn mirror_partition(r: &mut Reader) -> Result<MirrorPartition, DecodeError> {
    let fields = PartitionKey::decode(KEY, r)?;
    Ok(MirrorPartition {
        mirror: fields.mirror_name,
        partition: TopicPartition {
            topic: fields.topic_name,
            partition: fields.partition,
        },
    })
}

fn decode_value(type_id: i16, bytes: Bytes) -> Result<StateValue, StateRecordError> {
    let mut r = Reader::new(bytes);
    r.at("value version");
    let version = r.i16()?;
    if version != VERSION {
        return Err(StateRecordError::NewerVersion { type_id, version });
    }
    let state = |number| PartitionState::from_number(number).map_err(StateRecordError::State);
    let value = match type_id {
        COORDINATOR => {
            let fields = CoordinatorFields::decode(VALUE, &mut r)?;
            StateValue::Coordinator(CoordinatorValue {
                sidecar: fields.sidecar,
                incarnation: fields.incarnation,
                address: fields.address,
                time_ms: fields.time_ms,
            })
        }
        LAST_MIRROR_EPOCHS => {
            let fields = LastMirrorEpochsFields::decode(VALUE, &mut r)?;
            StateValue::LastMirrorEpochs(LastMirrorEpochsValue {
                last_mirror_epoch: fields.last_mirror_epoch,
                last_mirror_offset: fields.last_mirror_offset,
            })
        }
        PARTITION => {
            let fields = PartitionFields::decode(VALUE, &mut r)?;
            StateValue::Partition(PartitionValue {
                state: state(fields.state)?,
                previous_state: state(fields.previous_state)?,
                retry_attempt: fields.retry_attempt,
                error_message: fields.error_message,
                state_epoch: fields.state_epoch,
                adopted_below: fields.adopted_below,
                producer_generation: fields.producer_generation,
                divergence: divergence(fields.diverged_topic_id, fields.diverged_at),
            })
        }
        TOPIC => {
            let fields = TopicFields::decode(VALUE, &mut r)?;
            let desired = DesiredState::from_state(state(fields.desired_state)?)
                .ok_or(StateRecordError::State(fields.desired_state))?;
            StateValue::Topic(TopicValue {
                desired,
                state_epoch: fields.state_epoch,
                source_topic_id: fields.source_topic_id,
                destination_topic_id: fields.destination_topic_id,
                restored_configs: fields
                    .restored_configs
                    .into_iter()
                    .map(|config| (config.name, config.value))
                    .collect(),
                recreating: known(fields.recreating),
            })
        }
        _ => {
            let fields = MirrorFields::decode(VALUE, &mut r)?;
            StateValue::Mirror(MirrorValue {
                source_cluster_id: fields.source_cluster_id,
                fingerprint: fields.fingerprint,
                state_epoch: fields.state_epoch,
                deleting: fields.deleting,
            })
        }
    };
    r.finish()?;
    Ok(value)
}

/// The id, if it is one.
fn known(topic_id: TopicId) -> Option<TopicId> {
    (!topic_id.is_zero()).then_some(topic_id)
}

/// What records and messages say of a destination topic that differs, in two fields.
pub fn divergence(topic_id: TopicId, offset: i64) -> Option<Divergence> {
    known(topic_id).map(|destination_topic_id| Divergence {
        destination_topic_id,
        offset: offset.max(-1),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(index: i32) -> MirrorPartition {
        MirrorPartition {
            mirror: "m".into(),
            partition: TopicPartition::new("to", index),
        }
    }

    fn samples() -> Vec<StateRecord> {
        let topic = StateKey::Topic {
            mirror: "m".into(),
            topic: "to".into(),
        };
        vec![
            StateRecord {
                key: StateKey::Coordinator,
                value: Some(StateValue::Coordinator(CoordinatorValue {
                    sidecar: "1".into(),
                    incarnation: "a-b".into(),
                    address: "host:9494".into(),
                    time_ms: 1_700_000_000_000,
                })),
            },
            StateRecord {
                key: StateKey::LastMirrorEpochs(key(3)),
                value: Some(StateValue::LastMirrorEpochs(LastMirrorEpochsValue {
                    last_mirror_epoch: LeaderEpoch(7),
                    last_mirror_offset: 1 << 40,
                })),
            },
            StateRecord {
                key: StateKey::Partition(key(3)),
                value: Some(StateValue::Partition(PartitionValue {
                    state: PartitionState::Failed,
                    previous_state: PartitionState::Mirroring,
                    retry_attempt: -1,
                    error_message: Some("why".into()),
                    state_epoch: 9,
                    adopted_below: 100,
                    producer_generation: 2,
                    divergence: divergence(TopicId([3; 16]), 70),
                })),
            },
            StateRecord {
                key: topic.clone(),
                value: Some(StateValue::Topic(TopicValue {
                    desired: DesiredState::Paused,
                    state_epoch: 3,
                    source_topic_id: TopicId([1; 16]),
                    destination_topic_id: TopicId([2; 16]),
                    restored_configs: vec![("a".into(), Some("1".into())), ("b".into(), None)],
                    recreating: Some(TopicId([2; 16])),
                })),
            },
            StateRecord {
                key: StateKey::Mirror { mirror: "m".into() },
                value: Some(StateValue::Mirror(MirrorValue {
                    source_cluster_id: "id".into(),
                    fingerprint: -5,
                    state_epoch: 1,
                    deleting: true,
                })),
            },
            StateRecord {
                key: topic,
                value: None,
            },
        ]
    }

    #[test]
    fn every_record_comes_back() {
        for record in samples() {
            let (key, value) = encode(&record).unwrap();
            assert_eq!(decode(Some(&key), value.as_ref()).unwrap(), record);
        }
    }

    #[test]
    fn the_bytes_of_a_partitions_state_are_these() {
        let record = StateRecord {
            key: StateKey::Partition(key(3)),
            value: Some(StateValue::Partition(PartitionValue {
                state: PartitionState::Mirroring,
                previous_state: PartitionState::LogTruncation,
                state_epoch: 2,
                ..PartitionValue::default()
            })),
        };
        let (key, value) = encode(&record).unwrap();
        // int16 type 2, string "m", string "to", int32 3
        assert_eq!(&key[..], b"\x00\x02\x00\x01m\x00\x02to\x00\x00\x00\x03");
        // int16 version 0, state 2, previous state 0, int16 attempt 0, null message, one tagged field: tag 0, 4 bytes, 2
        assert_eq!(
            &value.unwrap()[..],
            b"\x00\x00\x02\x00\x00\x00\x00\x01\x00\x04\x00\x00\x00\x02"
        );
    }

    #[test]
    fn what_a_later_version_writes_is_named_and_not_taken() {
        let (key, value) = encode(&samples()[2]).unwrap();
        let mut newer = value.clone().unwrap().to_vec();
        newer[1] = 99;
        for (key, value, wanted) in [
            (
                Some(Bytes::from_static(b"\x00\x63rest")),
                value.clone(),
                "record of type 99, which this version does not know",
            ),
            (
                Some(key),
                Some(newer.into()),
                "record of type 2 with a value of version 99, newer than 0",
            ),
            (None, value, "record without a key"),
        ] {
            let error = decode(key.as_ref(), value.as_ref()).unwrap_err();
            assert_eq!(error.to_string(), wanted);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(
            type_id in -1_i16..6,
            key in prop::collection::vec(any::<u8>(), 0..60),
            value in prop::option::of(prop::collection::vec(any::<u8>(), 0..60)),
        ) {
            let key: Bytes = type_id.to_be_bytes().into_iter().chain(key).collect();
            let value = value.map(Bytes::from);
            if let Ok(record) = decode(Some(&key), value.as_ref()) {
                let (key, value) = encode(&record).unwrap();
                prop_assert_eq!(decode(Some(&key), value.as_ref()).unwrap(), record);
            }
        }
    }
}
