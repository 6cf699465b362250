//! Every message and version against another implementation (the crate kafka-protocol), both ways, and against bytes
//! of bad will. Must not be needed outside tests.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable};
use regex::Regex;

use super::{
    api_versions::*, configs::*, delete_records::*, describe_cluster::*, fetch::*,
    group_descriptions::*, groups::*, leader_epoch::*, list_offsets::*, metadata::*, produce::*,
    producers::*, topics::*, txn_markers::*,
};
use crate::wire::bounded::{Reader, Writer};
use crate::wire::consumer_protocol::{ConsumerProtocolAssignment, ConsumerProtocolSubscription};
use crate::wire::mirror_rpc::*;
use crate::wire::schema::{Message, Seed};

/// Runs `$check::<ours>`, or `$check::<ours, theirs>`, for every message.
macro_rules! for_every_message {
    ($check:ident $($theirs:ident)?) => {
        for_every_message!(@ $check ($($theirs)?):
            ApiVersionsRequest ApiVersionsResponse MetadataRequest MetadataResponse FetchRequest FetchResponse
            ListOffsetsRequest ListOffsetsResponse ProduceRequest ProduceResponse DescribeProducersRequest
            DescribeProducersResponse InitProducerIdRequest InitProducerIdResponse WriteTxnMarkersRequest
            WriteTxnMarkersResponse OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse CreateTopicsRequest
            CreateTopicsResponse CreatePartitionsRequest CreatePartitionsResponse DeleteTopicsRequest
            DeleteTopicsResponse DescribeConfigsRequest DescribeConfigsResponse IncrementalAlterConfigsRequest
            IncrementalAlterConfigsResponse DescribeClusterRequest DescribeClusterResponse DeleteRecordsRequest
            DeleteRecordsResponse FindCoordinatorRequest FindCoordinatorResponse JoinGroupRequest JoinGroupResponse
            HeartbeatRequest HeartbeatResponse LeaveGroupRequest LeaveGroupResponse SyncGroupRequest SyncGroupResponse
            DescribeGroupsRequest DescribeGroupsResponse ConsumerProtocolSubscription ConsumerProtocolAssignment)
    };
    (@ $check:ident $theirs:tt: $($message:ident)+) => {
        $( for_every_message!(@@ $check $theirs $message); )+
    };
    (@@ $check:ident () $message:ident) => {
        $check::<$message>(stringify!($message));
    };
    (@@ $check:ident (theirs) $message:ident) => {
        $check::<$message, theirs::$message>(stringify!($message));
    };
}

/// Runs `$check::<ours>` for every message of KIP-1279, which no other implementation has: `tests/golden.rs` has their bytes.
macro_rules! for_every_mirror_message {
    ($check:ident) => {
        for_every_message!(@ $check ():
            StartMirrorTopicsRequest StartMirrorTopicsResponse StopMirrorTopicsRequest StopMirrorTopicsResponse
            ListClusterMirrorsRequest ListClusterMirrorsResponse DescribeClusterMirrorsRequest
            DescribeClusterMirrorsResponse ReadMirrorStatesRequest ReadMirrorStatesResponse
            WriteMirrorStatesRequest WriteMirrorStatesResponse PauseMirrorTopicsRequest PauseMirrorTopicsResponse
            ResumeMirrorTopicsRequest ResumeMirrorTopicsResponse DeleteClusterMirrorRequest
            DeleteClusterMirrorResponse RecoverMirrorTopicsRequest RecoverMirrorTopicsResponse)
    };
}

fn bytes_of<M: Message>(message: &M, version: i16) -> Bytes {
    let mut writer = Writer::new();
    message.encode_body(version, &mut writer);
    writer.into_bytes().unwrap()
}

/// Every scalar field as "name: value" from a debug text: what is left once newtypes, options, struct names and
/// the order of tagged fields (declared elsewhere in the other implementation) are taken away.
fn facts(debug: &str) -> Vec<String> {
    static PATTERNS: LazyLock<[Regex; 7]> = LazyLock::new(|| {
        [
            r#"b"((?:[^"\\]|\\.)*)""#,
            r"(?:[A-Z_]{4,}|unknown error) \((-?\d+)\)",
            r"TopicId\(\[([\d, ]+)\]\)",
            r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})",
            r"RecordSlices\(\[(\w*)\]\)",
            r"((?:[A-Z]\w*)?\(|\))",
            r#"(\w+: (?:\[[-\w", ]*\]|None|[-a-z0-9"][-\w"]*))"#,
        ]
        .map(|pattern| Regex::new(pattern).unwrap())
    });
    let [bytes, code, topic_id, uuid, slices, wrapper, scalar] = &*PATTERNS;
    let replaced = |text: &str, pattern: &Regex, by: fn(&str) -> String| {
        let by = |found: &regex::Captures<'_>| by(&found[1]);
        pattern.replace_all(text, by).into_owned()
    };
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let text = replaced(debug, bytes, hex);
    let text = replaced(&text, code, str::to_owned);
    let text = replaced(&text, topic_id, |list| {
        let bytes = list.split(", ").map(|byte| byte.parse().unwrap());
        bytes.map(|byte: u8| format!("{byte:02x}")).collect()
    });
    let text = replaced(&text, uuid, |uuid| uuid.replace('-', ""));
    let text = replaced(&text, slices, str::to_owned);
    let text = replaced(&text, wrapper, |_| String::new());
    let facts = scalar.find_iter(&text);
    facts.map(|fact| fact.as_str().to_owned()).collect()
}

fn same_both_ways<O, T>(name: &str)
where
    O: Message + std::fmt::Debug + PartialEq,
    T: Encodable + Decodable + std::fmt::Debug,
{
    for version in O::VERSIONS {
        for seed in 0..100 {
            let ours = O::sample(O::layout(version), &mut Seed(seed));
            let bytes = bytes_of(&ours, version);
            let mut left = bytes.clone();
            let theirs = T::decode(&mut left, version).unwrap_or_else(|error| {
                panic!("{name} v{version} seed {seed}: {error}\n{ours:#?}")
            });
            assert!(
                left.is_empty(),
                "{name} v{version} seed {seed}: bytes left over"
            );
            let mut again = BytesMut::new();
            theirs.encode(&mut again, version).unwrap();
            let back =
                O::decode_body(version, &mut Reader::new(again.freeze())).unwrap_or_else(|error| {
                    panic!("{name} v{version} seed {seed}: {error}\n{ours:#?}")
                });
            assert_eq!(back, ours, "{name} v{version} seed {seed}");
            // Slow, and the same seeds say the same: field names and values need no more than these.
            if seed >= 12 {
                continue;
            }
            let (ours, theirs) = (format!("{ours:?}"), format!("{theirs:?}"));
            let mut only_theirs = facts(&theirs);
            for fact in facts(&ours) {
                let at = only_theirs.iter().position(|theirs| *theirs == fact);
                let at = at.unwrap_or_else(|| panic!("{name} v{version} seed {seed}: {fact}"));
                only_theirs.remove(at);
            }
            // They also have the fields of versions that we do not speak: those must be untouched.
            for fact in only_theirs {
                let untouched = [
                    "0",
                    "-1",
                    "None",
                    "false",
                    "[]",
                    "\"\"",
                    "00000000000000000000000000000000",
                    "9223372036854775807",
                ];
                let value = fact.split_once(": ").unwrap().1;
                assert!(
                    untouched.contains(&value),
                    "{name} v{version} seed {seed}: {fact}"
                );
            }
        }
    }
}

#[test]
fn every_message_reads_and_writes_like_another_implementation() {
    for_every_message!(same_both_ways theirs);
}

fn reads_what_it_wrote<O>(name: &str)
where
    O: Message + std::fmt::Debug + PartialEq,
{
    for version in O::VERSIONS {
        for seed in 0..100 {
            let ours = O::sample(O::layout(version), &mut Seed(seed));
            let mut bytes = Reader::new(bytes_of(&ours, version));
            let back = O::decode_body(version, &mut bytes);
            assert_eq!(back, Ok(ours), "{name} v{version} seed {seed}");
        }
    }
}

#[test]
fn every_mirror_message_reads_what_it_wrote() {
    for_every_mirror_message!(reads_what_it_wrote);
}

fn bad_bytes_are_errors<O: Message>(name: &str) {
    for version in O::VERSIONS {
        let mut seed = Seed(17);
        for _ in 0..40 {
            let good = bytes_of(&O::sample(O::layout(version), &mut seed), version);
            for cut in 0..good.len() {
                let read = O::decode_body(version, &mut Reader::new(good.slice(..cut)));
                assert!(read.is_err(), "{name} v{version}: cut at {cut} was taken");
            }
            let mut longer = good.to_vec();
            longer.push(0);
            assert!(O::decode_body(version, &mut Reader::new(longer.into())).is_err());
            let mut mutated = good.to_vec();
            for _ in 0..=seed.next_bits() % 4 {
                let bits = seed.next_bits().to_le_bytes();
                let at = usize::from(u16::from_le_bytes([bits[0], bits[1]])) % mutated.len().max(1);
                if let Some(byte) = mutated.get_mut(at) {
                    *byte = bits[2];
                }
            }
            // Either is fine; only a panic, an abort or a wait is not.
            drop(O::decode_body(version, &mut Reader::new(mutated.into())));
            let noise: Vec<u8> = (0..seed.next_bits() % 200)
                .map(|_| seed.next_bits().to_le_bytes()[0])
                .collect();
            drop(O::decode_body(version, &mut Reader::new(noise.into())));
        }
    }
}

#[test]
fn cut_mutated_and_random_bytes_never_panic() {
    for_every_message!(bad_bytes_are_errors);
    for_every_mirror_message!(bad_bytes_are_errors);
}

/// Writes the largest count at every position of a good message. Wherever an array or a length stands, it is hit.
fn hostile_counts_are_errors<O: Message>(name: &str) {
    const COMPACT: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0x0f];
    const CLASSIC: &[u8] = &[0x7f, 0xff, 0xff, 0xff];
    let mut refused = 0;
    for version in O::VERSIONS {
        let mut seed = Seed(5);
        for _ in 0..4 {
            let good = bytes_of(&O::sample(O::layout(version), &mut seed), version);
            for at in 0..good.len() {
                for count in [COMPACT, CLASSIC] {
                    // In place of one byte, and over the bytes that are there.
                    for skip in [1, count.len()] {
                        let mut bytes = good[..at].to_vec();
                        bytes.extend_from_slice(count);
                        bytes.extend_from_slice(good.get(at + skip..).unwrap_or_default());
                        if O::decode_body(version, &mut Reader::new(bytes.into())).is_err() {
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(refused > 0, "{name}: nothing was refused");
}

#[test]
fn hostile_counts_at_every_position_never_size_an_allocation() {
    for_every_message!(hostile_counts_are_errors);
    for_every_mirror_message!(hostile_counts_are_errors);
}
