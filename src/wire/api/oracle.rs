//! Every message and version against another implementation (the crate kafka-protocol), both ways, and against bytes
//! of bad will. Must not be needed outside tests.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages as theirs;
use kafka_protocol::protocol::{Decodable, Encodable};

use super::{
    api_versions::*, configs::*, delete_records::*, describe_cluster::*, fetch::*, leader_epoch::*,
    list_offsets::*, metadata::*, produce::*, producers::*, topics::*, txn_markers::*,
};
use crate::wire::bounded::{Reader, Writer};
use crate::wire::schema::{Message, Seed};

/// Runs `$check::<ours, theirs>` for every message.
macro_rules! for_every_message {
    ($check:ident) => {
        for_every_message!(@ $check:
            ApiVersionsRequest ApiVersionsResponse MetadataRequest MetadataResponse FetchRequest FetchResponse
            ListOffsetsRequest ListOffsetsResponse ProduceRequest ProduceResponse DescribeProducersRequest
            DescribeProducersResponse InitProducerIdRequest InitProducerIdResponse WriteTxnMarkersRequest
            WriteTxnMarkersResponse OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse CreateTopicsRequest
            CreateTopicsResponse CreatePartitionsRequest CreatePartitionsResponse DeleteTopicsRequest
            DeleteTopicsResponse DescribeConfigsRequest DescribeConfigsResponse IncrementalAlterConfigsRequest
            IncrementalAlterConfigsResponse DescribeClusterRequest DescribeClusterResponse DeleteRecordsRequest
            DeleteRecordsResponse)
    };
    (@ $check:ident: $($message:ident)+) => {
        $( $check::<$message, theirs::$message>(stringify!($message)); )+
    };
}

fn bytes_of<M: Message>(message: &M, version: i16) -> Bytes {
    let mut writer = Writer::new();
    message.encode_body(version, &mut writer);
    writer.into_bytes().unwrap()
}

/// Every scalar field as "name: value" from a debug text, sorted: what is left once newtypes, options, struct names and
/// the order of tagged fields (declared elsewhere in the other implementation) are taken away.
fn facts(debug: &str) -> Vec<String> {
    let replaced = |text: &str, pattern: &str, by: fn(&str) -> String| {
        let pattern = regex::Regex::new(pattern).unwrap();
        pattern
            .replace_all(text, |found: &regex::Captures<'_>| by(&found[1]))
            .into_owned()
    };
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect();
    let text = replaced(debug, r#"b"((?:[^"\\]|\\.)*)""#, hex);
    let text = replaced(
        &text,
        r"(?:[A-Z_]{4,}|unknown error) \((-?\d+)\)",
        str::to_owned,
    );
    let text = replaced(&text, r"TopicId\(\[([\d, ]+)\]\)", |list| {
        let bytes = list.split(", ").map(|byte| byte.parse().unwrap());
        bytes.map(|byte: u8| format!("{byte:02x}")).collect()
    });
    let uuid = r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})";
    let text = replaced(&text, uuid, |uuid| uuid.replace('-', ""));
    let text = replaced(&text, r"RecordSlices\(\[(\w*)\]\)", str::to_owned);
    let text = replaced(&text, r"((?:[A-Z]\w*)?\(|\))", |_| String::new());
    let scalar = regex::Regex::new(r#"\w+: (?:\[[-\w", ]*\]|None|[-a-z0-9"][-\w"]*)"#).unwrap();
    let mut facts: Vec<String> = scalar
        .find_iter(&text)
        .map(|fact| fact.as_str().to_owned())
        .collect();
    facts.sort();
    facts
}

fn same_both_ways<O, T>(name: &str)
where
    O: Message + std::fmt::Debug + PartialEq,
    T: Encodable + Decodable + std::fmt::Debug,
{
    for version in O::VERSIONS {
        for seed in 0..200 {
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
            assert_eq!(
                facts(&ours),
                facts(&theirs),
                "{name} v{version} seed {seed}"
            );
        }
    }
}

#[test]
fn every_message_reads_and_writes_like_another_implementation() {
    for_every_message!(same_both_ways);
}

fn bad_bytes_are_errors<O: Message, T>(name: &str) {
    for version in O::VERSIONS {
        let mut seed = Seed(17);
        for _ in 0..300 {
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
}

/// Writes the largest count at every position of a good message. Wherever an array or a length stands, it is hit.
fn hostile_counts_are_errors<O: Message, T>(name: &str) {
    const COMPACT: &[u8] = &[0xff, 0xff, 0xff, 0xff, 0x0f];
    const CLASSIC: &[u8] = &[0x7f, 0xff, 0xff, 0xff];
    let mut refused = 0;
    for version in O::VERSIONS {
        let mut seed = Seed(5);
        for _ in 0..20 {
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
}
