//! The frames of every mirror call, byte by byte from the tables of KIP-1279 and of `src/wire/mirror_rpc`, against the codec in
//! both directions. Must not be made by the codec that it checks: the bytes are written by hand.
//!
//! A frame is text: hexadecimal bytes, quoted ASCII, and comments behind `#`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "helpers of tests stop the test like tests do"
)]

use std::sync::Arc;

use bytes::{Buf, Bytes};
use truemirror::domain::types::{BrokerId, TopicId};
use truemirror::wire::api::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use truemirror::wire::bounded::Reader;
use truemirror::wire::error_code::ErrorCode;
use truemirror::wire::frame::{
    RequestFrame, RequestHeader, SegmentedFrame, decode_response, encode_response,
    response_correlation_id,
};
use truemirror::wire::mirror_rpc::*;
use truemirror::wire::schema::Request;

/// The bytes that the text means.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in text.lines() {
        let mut inside = false;
        let code = line.split('#').next().unwrap();
        for part in code.split('"') {
            if inside {
                bytes.extend_from_slice(part.as_bytes());
            } else {
                for pair in part.split_whitespace() {
                    bytes.push(u8::from_str_radix(pair, 16).unwrap());
                }
            }
            inside = !inside;
        }
        assert!(inside, "an open quote: {line}");
    }
    bytes
}

fn flat(mut frame: SegmentedFrame) -> Vec<u8> {
    let length = frame.len();
    frame.copy_to_bytes(length).to_vec()
}

/// The body of a frame whose length is the one it says.
fn framed(golden: &[u8]) -> Reader {
    let length = u32::from_be_bytes(golden[..4].try_into().unwrap());
    assert_eq!(usize::try_from(length), Ok(golden.len() - 4), "the length");
    Reader::new(Bytes::copy_from_slice(&golden[4..]))
}

/// `text` is `request` in `version`, with correlation id 7 and client id "cli".
fn request<R: Request + PartialEq + std::fmt::Debug>(version: i16, text: &str, request: R) {
    let golden = bytes(text);
    let ours = RequestFrame::encode(&request, version, "cli").unwrap();
    assert_eq!(flat(ours.number(7).unwrap()), golden, "{} request", R::NAME);
    let mut r = framed(&golden);
    let header = RequestHeader::decode(&mut r).unwrap();
    let wanted = RequestHeader {
        api_key: R::API_KEY,
        version,
        correlation_id: 7,
        client_id: Some("cli".into()),
    };
    assert_eq!(header, wanted);
    assert_eq!(header.decode_body::<R>(&mut r), Ok(request));
}

/// `text` is the answer `response` to an `R` in `version`, with correlation id 7.
fn response<R: Request>(version: i16, text: &str, response: R::Response)
where
    R::Response: PartialEq + std::fmt::Debug,
{
    let golden = bytes(text);
    let ours = encode_response::<R>(&response, version, 7).unwrap();
    assert_eq!(flat(ours), golden, "{} response", R::NAME);
    let mut r = framed(&golden);
    assert_eq!(response_correlation_id(&mut r), Ok(7));
    assert_eq!(decode_response::<R>(version, &mut r), Ok(response));
}

fn names(names: &[&str]) -> Vec<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

fn topics(names: &[&str]) -> Vec<MirrorTopicName> {
    let topic = |name: &&str| MirrorTopicName {
        topic_name: Arc::from(*name),
    };
    names.iter().map(topic).collect()
}

#[test]
fn start_mirror_topics() {
    request(
        0,
        r##"
        00 00 00 4e                  # length
        00 5f 00 00                  # api key 95, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        02                           # topics: 1
          00 01 02 03 04 05 06 07    # topic id
          08 09 0a 0b 0c 0d 0e 0f
          07 "orders"                # topic name
          00 00 00 03                # partitions: 3
          00                         # no tagged fields
        00 00 00 00 00 00 00 05      # state validation offset 5
        03                           # tagged fields: 3
          00 06                      # tag 0, 6 bytes: include patterns
            02                       # 1
            05 "o.*x"
          01 07                      # tag 1, 7 bytes: exclude patterns
            03                       # 2
            02 "a"
            04 "b.c"
          e8 07 01 01                # tag 1000, 1 byte: dry run
        "##,
        StartMirrorTopicsRequest {
            mirror_name: "east".into(),
            topics: vec![StartMirrorTopic {
                topic_id: TopicId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
                topic_name: "orders".into(),
                num_partitions: 3,
            }],
            state_validation_offset: 5,
            include_patterns: names(&["o.*x"]),
            exclude_patterns: names(&["a", "b.c"]),
            dry_run: true,
        },
    );
    response::<StartMirrorTopicsRequest>(
        0,
        r##"
        00 00 00 23                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        03                           # topics: 2
          07 "orders"                # name
          00 00                      # error code
          00                         # error message: null
          00                         # no tagged fields
          02 "x"                     # name
          00 8b                      # error code 139, TOPIC_NOT_IN_CLUSTER_MIRROR
          05 "word"                  # error message
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        StartMirrorTopicsResponse {
            topics: vec![
                MirrorTopicResult {
                    name: "orders".into(),
                    ..MirrorTopicResult::default()
                },
                MirrorTopicResult {
                    name: "x".into(),
                    error_code: ErrorCode::TOPIC_NOT_IN_CLUSTER_MIRROR,
                    error_message: Some("word".into()),
                },
            ],
            ..StartMirrorTopicsResponse::default()
        },
    );
}

#[test]
fn stop_mirror_topics() {
    request(
        0,
        r##"
        00 00 00 32                  # length
        00 60 00 00                  # api key 96, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        03                           # topics: 2
          07 "orders"                # topic name
          00                         # no tagged fields
          02 "x"                     # topic name
          00                         # no tagged fields
        ff ff ff ff ff ff ff ff      # state validation offset -1
        02                           # tagged fields: 2
          00 04                      # tag 0, 4 bytes: patterns
            02                       # 1
            03 "p*"
          e8 07 01 01                # tag 1000, 1 byte: dry run
        "##,
        StopMirrorTopicsRequest {
            mirror_name: "east".into(),
            topics: topics(&["orders", "x"]),
            patterns: names(&["p*"]),
            dry_run: true,
            state_validation_offset: -1,
        },
    );
    response::<StopMirrorTopicsRequest>(
        0,
        r##"
        00 00 00 23                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        03                           # topics: 2
          07 "orders"                # name
          00 00                      # error code
          00                         # error message: null
          00                         # no tagged fields
          02 "x"                     # name
          00 8b                      # error code 139, TOPIC_NOT_IN_CLUSTER_MIRROR
          05 "word"                  # error message
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        StopMirrorTopicsResponse {
            topics: vec![
                MirrorTopicResult {
                    name: "orders".into(),
                    ..MirrorTopicResult::default()
                },
                MirrorTopicResult {
                    name: "x".into(),
                    error_code: ErrorCode::TOPIC_NOT_IN_CLUSTER_MIRROR,
                    error_message: Some("word".into()),
                },
            ],
            ..StopMirrorTopicsResponse::default()
        },
    );
}

#[test]
fn pause_mirror_topics() {
    request(
        0,
        r##"
        00 00 00 2c                  # length
        00 66 00 00                  # api key 102, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        03                           # topics: 2
          07 "orders"                # topic name
          00                         # no tagged fields
          02 "x"                     # topic name
          00                         # no tagged fields
        00 00 00 00 00 00 00 05      # state validation offset 5
        01                           # tagged fields: 1
          e8 07 01 01                # tag 1000, 1 byte: dry run
        "##,
        PauseMirrorTopicsRequest {
            mirror_name: "east".into(),
            topics: topics(&["orders", "x"]),
            state_validation_offset: 5,
            dry_run: true,
        },
    );
    response::<PauseMirrorTopicsRequest>(
        0,
        r##"
        00 00 00 23                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        03                           # topics: 2
          07 "orders"                # name
          00 00                      # error code
          00                         # error message: null
          00                         # no tagged fields
          02 "x"                     # name
          00 8b                      # error code 139, TOPIC_NOT_IN_CLUSTER_MIRROR
          05 "word"                  # error message
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        PauseMirrorTopicsResponse {
            topics: vec![
                MirrorTopicResult {
                    name: "orders".into(),
                    ..MirrorTopicResult::default()
                },
                MirrorTopicResult {
                    name: "x".into(),
                    error_code: ErrorCode::TOPIC_NOT_IN_CLUSTER_MIRROR,
                    error_message: Some("word".into()),
                },
            ],
            ..PauseMirrorTopicsResponse::default()
        },
    );
}

#[test]
fn resume_mirror_topics() {
    request(
        0,
        r##"
        00 00 00 2c                  # length
        00 67 00 00                  # api key 103, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        03                           # topics: 2
          07 "orders"                # topic name
          00                         # no tagged fields
          02 "x"                     # topic name
          00                         # no tagged fields
        00 00 00 00 00 00 00 05      # state validation offset 5
        01                           # tagged fields: 1
          e8 07 01 01                # tag 1000, 1 byte: dry run
        "##,
        ResumeMirrorTopicsRequest {
            mirror_name: "east".into(),
            topics: topics(&["orders", "x"]),
            state_validation_offset: 5,
            dry_run: true,
        },
    );
    response::<ResumeMirrorTopicsRequest>(
        0,
        r##"
        00 00 00 23                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        03                           # topics: 2
          07 "orders"                # name
          00 00                      # error code
          00                         # error message: null
          00                         # no tagged fields
          02 "x"                     # name
          00 8b                      # error code 139, TOPIC_NOT_IN_CLUSTER_MIRROR
          05 "word"                  # error message
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        ResumeMirrorTopicsResponse {
            topics: vec![
                MirrorTopicResult {
                    name: "orders".into(),
                    ..MirrorTopicResult::default()
                },
                MirrorTopicResult {
                    name: "x".into(),
                    error_code: ErrorCode::TOPIC_NOT_IN_CLUSTER_MIRROR,
                    error_message: Some("word".into()),
                },
            ],
            ..ResumeMirrorTopicsResponse::default()
        },
    );
}

#[test]
fn delete_cluster_mirror() {
    request(
        0,
        r##"
        00 00 00 1c                  # length
        00 68 00 00                  # api key 104, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        ff ff ff ff ff ff ff ff      # state validation offset -1
        00                           # no tagged fields
        "##,
        DeleteClusterMirrorRequest {
            mirror_name: "east".into(),
            state_validation_offset: -1,
            dry_run: false,
        },
    );
    request(
        0,
        r##"
        00 00 00 20                  # length
        00 68 00 00                  # api key 104, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        00 00 00 00 00 00 00 05      # state validation offset 5
        01                           # tagged fields: 1
          e8 07 01 01                # tag 1000, 1 byte: dry run
        "##,
        DeleteClusterMirrorRequest {
            mirror_name: "east".into(),
            state_validation_offset: 5,
            dry_run: true,
        },
    );
    response::<DeleteClusterMirrorRequest>(
        0,
        r##"
        00 00 00 11                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 09                  # throttle time
        00 8f                        # error code 143, CLUSTER_MIRROR_NOT_EMPTY
        05 "busy"                    # error message
        00                           # no tagged fields
        "##,
        DeleteClusterMirrorResponse {
            throttle_time_ms: 9,
            error_code: ErrorCode::CLUSTER_MIRROR_NOT_EMPTY,
            error_message: Some("busy".into()),
        },
    );
}

#[test]
fn recover_mirror_topics() {
    request(
        0,
        r##"
        00 00 00 24                  # length
        00 6a 00 00                  # api key 106, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        03                           # topics: 2
          07 "orders"                # topic name
          00                         # no tagged fields
          02 "x"                     # topic name
          00                         # no tagged fields
        01                           # tagged fields: 1
          e8 07 01 01                # tag 1000, 1 byte: dry run
        "##,
        RecoverMirrorTopicsRequest {
            mirror_name: "east".into(),
            topics: topics(&["orders", "x"]),
            dry_run: true,
        },
    );
    response::<RecoverMirrorTopicsRequest>(
        0,
        r##"
        00 00 00 23                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        03                           # topics: 2
          07 "orders"                # name
          00 00                      # error code
          00                         # error message: null
          00                         # no tagged fields
          02 "x"                     # name
          00 8b                      # error code 139, TOPIC_NOT_IN_CLUSTER_MIRROR
          05 "word"                  # error message
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        RecoverMirrorTopicsResponse {
            topics: vec![
                MirrorTopicResult {
                    name: "orders".into(),
                    ..MirrorTopicResult::default()
                },
                MirrorTopicResult {
                    name: "x".into(),
                    error_code: ErrorCode::TOPIC_NOT_IN_CLUSTER_MIRROR,
                    error_message: Some("word".into()),
                },
            ],
            ..RecoverMirrorTopicsResponse::default()
        },
    );
}

#[test]
fn list_cluster_mirrors() {
    request(
        0,
        r##"
        00 00 00 10                  # length
        00 62 00 00                  # api key 98, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        01                           # include topic names
        00                           # no tagged fields
        "##,
        ListClusterMirrorsRequest {
            include_topic_names: true,
        },
    );
    response::<ListClusterMirrorsRequest>(
        0,
        r##"
        00 00 00 2b                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        02                           # mirrors: 1
          05 "east"                  # mirror name
          04 "a:1"                   # source bootstrap
          01                         # source cluster id: empty
          00 00 00 02                # topic count
          03                         # topic names: 2
            07 "orders"
            02 "x"
          01                         # tagged fields: 1
            e8 07 01 04              # tag 1000, 1 byte: desired state PAUSED
        00                           # no tagged fields
        "##,
        ListClusterMirrorsResponse {
            mirrors: vec![ListedMirror {
                mirror_name: "east".into(),
                source_bootstrap: "a:1".into(),
                source_cluster_id: "".into(),
                topic_count: 2,
                topic_names: names(&["orders", "x"]),
                desired_state: 4,
            }],
            ..ListClusterMirrorsResponse::default()
        },
    );
}

#[test]
fn describe_cluster_mirrors() {
    request(
        0,
        r##"
        00 00 00 16                  # length
        00 63 00 00                  # api key 99, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        02                           # mirror names: 1
          05 "east"
        00                           # include authorized operations: no
        00                           # no tagged fields
        "##,
        DescribeClusterMirrorsRequest {
            mirror_names: names(&["east"]),
            ..DescribeClusterMirrorsRequest::default()
        },
    );
    request(
        0,
        r##"
        00 00 00 33                  # length
        00 63 00 00                  # api key 99, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        01                           # mirror names: 0
        01                           # include authorized operations: yes
        02                           # tagged fields: 2
          00 03                      # tag 0, 3 bytes: cluster id
            03 "c1"
          01 1b                      # tag 1, 27 bytes: last mirror epoch lookups
            02                       # 1
              00 01 02 03 04 05 06 07  # topic id
              08 09 0a 0b 0c 0d 0e 0f
              03                     # partitions: 2
                00 00 00 00
                00 00 00 01
              00                     # no tagged fields
        "##,
        DescribeClusterMirrorsRequest {
            mirror_names: Vec::new(),
            include_authorized_operations: true,
            cluster_id: Some("c1".into()),
            last_mirror_epoch_lookups: vec![LastMirrorEpochLookup {
                topic_id: TopicId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
                partitions: vec![0, 1],
            }],
        },
    );
    response::<DescribeClusterMirrorsRequest>(
        0,
        r##"
        00 00 01 09                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        02                           # mirrors: 1
          00 89                      # error code 137, UNKNOWN_CLUSTER_MIRROR
          05 "east"                  # mirror name
          80 00 00 00                # authorized operations: not asked for
          02                         # topics: 1
            07 "orders"              # topic name
            03                       # partitions: 2
              00 00 00 00            # partition index
              00 00 00 00 00 00 01 00  # source offset 256
              00 00 00 00 00 00 00 fe  # destination offset 254
              00 00 00 00 00 00 00 02  # lag 2
              0a "MIRRORING"         # state
              00 00                  # retry attempt
              00                     # error message: null
              06                     # tagged fields: 6
                e8 07 08 00 00 00 00 00 00 03 e8  # tag 1000, 8 bytes: lag in ms, 1000
                e9 07 08 00 00 00 00 00 00 00 04  # tag 1001, 8 bytes: undecided records, 4
                ea 07 08 00 00 00 00 00 00 00 10  # tag 1002, 8 bytes: source log start offset, 16
                eb 07 08 00 00 00 00 00 00 01 f4  # tag 1003, 8 bytes: next retry in ms, 500
                ec 07 03 03 "s1"     # tag 1004, 3 bytes: sidecar
                ed 07 04 00 00 00 0b # tag 1005, 4 bytes: state epoch 11
              00 00 00 01            # partition index
              ff ff ff ff ff ff ff ff  # source offset: not known
              ff ff ff ff ff ff ff ff  # destination offset: not known
              ff ff ff ff ff ff ff ff  # lag: not known
              07 "FAILED"            # state
              ff ff                  # retry attempt -1: not tried again
              04 "why"               # error message
              00                     # no tagged fields
            00                       # no tagged fields
          05                         # tagged fields: 5
            e8 07 01 02              # tag 1000, 1 byte: desired state MIRRORING
            e9 07 04 04 "a:1"        # tag 1001, 4 bytes: source bootstrap
            ea 07 03 03 "c2"         # tag 1002, 3 bytes: source cluster id
            eb 07 01 00              # tag 1003, 1 byte: the source is not reachable
            ec 07 05 05 "gone"       # tag 1004, 5 bytes: error message
        03                           # tagged fields: 3
          00 1c                      # tag 0, 28 bytes: lookup results
            02                       # 1
              00 01 02 03 04 05 06 07  # topic id
              08 09 0a 0b 0c 0d 0e 0f
              02                     # partitions: 1
                00 00 00 01          # partition index
                00 00 00 07          # last mirror epoch
                00                   # no tagged fields
              00                     # no tagged fields
          e8 07 14                   # tag 1000, 20 bytes: members
            02                       # 1
              03 "s1"                # sidecar
              03 "h1"                # host
              00 00 25 16            # port 9494
              00 00 00 03            # broker id
              04 "1.2"               # version
              00                     # no tagged fields
          e9 07 03 03 "s1"           # tag 1001, 3 bytes: who answers
        "##,
        DescribeClusterMirrorsResponse {
            mirrors: vec![DescribedMirror {
                error_code: ErrorCode::UNKNOWN_CLUSTER_MIRROR,
                mirror_name: "east".into(),
                topics: vec![DescribedMirrorTopic {
                    topic_name: "orders".into(),
                    partitions: vec![
                        DescribedMirrorPartition {
                            partition_index: 0,
                            source_offset: 256,
                            destination_offset: 254,
                            lag: 2,
                            state_value: "MIRRORING".into(),
                            retry_attempt: 0,
                            error_message: None,
                            lag_ms: 1_000,
                            undecided_records: 4,
                            source_log_start_offset: 16,
                            next_retry_ms: 500,
                            sidecar: Some("s1".into()),
                            state_epoch: 11,
                        },
                        DescribedMirrorPartition {
                            partition_index: 1,
                            state_value: "FAILED".into(),
                            retry_attempt: -1,
                            error_message: Some("why".into()),
                            ..DescribedMirrorPartition::default()
                        },
                    ],
                }],
                desired_state: 2,
                source_bootstrap: "a:1".into(),
                source_cluster_id: "c2".into(),
                source_reachable: false,
                error_message: Some("gone".into()),
                ..DescribedMirror::default()
            }],
            lookup_results: vec![LastMirrorEpochResult {
                topic_id: TopicId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
                partitions: vec![LastMirrorEpochPartition {
                    partition_index: 1,
                    last_mirror_epoch: 7,
                }],
            }],
            members: vec![MirrorMember {
                sidecar: "s1".into(),
                host: "h1".into(),
                port: 9494,
                broker_id: BrokerId(3),
                version: "1.2".into(),
            }],
            answering: Some("s1".into()),
            ..DescribeClusterMirrorsResponse::default()
        },
    );
}

#[test]
fn read_mirror_states() {
    request(
        0,
        r##"
        00 00 00 28                  # length
        00 64 00 00                  # api key 100, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        02                           # topics: 1
          07 "orders"                # name
          03                         # partitions: 2
            00 00 00 00              # partition index
            00                       # no tagged fields
            00 00 00 05              # partition index
            00                       # no tagged fields
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        ReadMirrorStatesRequest {
            mirror_name: "east".into(),
            topics: vec![ReadMirrorStatesTopic {
                name: "orders".into(),
                partitions: vec![
                    ReadMirrorStatesPartition { partition_index: 0 },
                    ReadMirrorStatesPartition { partition_index: 5 },
                ],
            }],
        },
    );
    response::<ReadMirrorStatesRequest>(
        0,
        r##"
        00 00 00 8b                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 00                        # error code
        00                           # error message: null
        02                           # topics: 1
          07 "orders"                # name
          04                         # partitions: 3
            00 00 00 00              # partition index
            ff ff ff ff              # last mirror epoch -1
            02                       # state MIRRORING
            00 00                    # error code
            00                       # no tagged fields
            00 00 00 05              # partition index
            00 00 00 09              # last mirror epoch
            07                       # state FAILED
            00 00                    # error code
            09                       # tagged fields: 9
              00 01 02               # tag 0, 1 byte: previous state MIRRORING
              01 02 00 03            # tag 1, 2 bytes: retry attempt 3
              e8 07 04 00 00 00 11   # tag 1000, 4 bytes: state epoch 17
              e9 07 04 04 "why"      # tag 1001, 4 bytes: error message
              ea 07 08 00 00 00 00 00 00 01 00  # tag 1002, 8 bytes: last mirror offset 256
              eb 07 08 00 00 00 00 00 00 00 0a  # tag 1003, 8 bytes: adopted below 10
              ec 07 04 00 00 00 01   # tag 1004, 4 bytes: producer generation 1
              ee 07 10 ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab  # tag 1006, 16 bytes: diverged topic id
              ef 07 08 00 00 00 00 00 00 01 00  # tag 1007, 8 bytes: diverged at 256
            00 00 00 06              # partition index
            ff ff ff ff              # last mirror epoch -1
            ff                       # state UNKNOWN
            00 10                    # error code 16, NOT_COORDINATOR
            00                       # no tagged fields
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        ReadMirrorStatesResponse {
            topics: vec![ReadMirrorStatesTopicResult {
                name: "orders".into(),
                partitions: vec![
                    ReadMirrorStatesPartitionResult {
                        partition_index: 0,
                        last_mirror_epoch: -1,
                        state: 2,
                        error_code: ErrorCode::NONE,
                        previous_state: 16,
                        retry_attempt: 0,
                        state_epoch: -1,
                        error_message: None,
                        last_mirror_offset: -1,
                        adopted_below: -1,
                        producer_generation: 0,
                        diverged_topic_id: TopicId([0; 16]),
                        diverged_at: -1,
                    },
                    ReadMirrorStatesPartitionResult {
                        partition_index: 5,
                        last_mirror_epoch: 9,
                        state: 7,
                        error_code: ErrorCode::NONE,
                        previous_state: 2,
                        retry_attempt: 3,
                        state_epoch: 17,
                        error_message: Some("why".into()),
                        last_mirror_offset: 256,
                        adopted_below: 10,
                        producer_generation: 1,
                        diverged_topic_id: TopicId([0xab; 16]),
                        diverged_at: 256,
                    },
                    ReadMirrorStatesPartitionResult {
                        partition_index: 6,
                        state: -1,
                        error_code: ErrorCode::NOT_COORDINATOR,
                        ..ReadMirrorStatesPartitionResult::default()
                    },
                ],
            }],
            ..ReadMirrorStatesResponse::default()
        },
    );
}

#[test]
fn write_mirror_states() {
    request(
        0,
        r##"
        00 00 00 8a                  # length
        00 65 00 00                  # api key 101, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        05 "east"                    # mirror name
        02                           # topics: 1
          07 "orders"                # name
          03                         # partitions: 2
            00 00 00 00              # partition index
            ff ff ff ff              # last mirror epoch -1: leave it
            02                       # state MIRRORING
            00                       # no tagged fields
            00 00 00 05              # partition index
            00 00 00 09              # last mirror epoch
            07                       # state FAILED
            08                       # tagged fields: 8
              e8 07 04 00 00 00 11   # tag 1000, 4 bytes: state epoch 17
              e9 07 04 04 "why"      # tag 1001, 4 bytes: error message
              ea 07 08 00 00 00 00 00 00 01 00  # tag 1002, 8 bytes: last mirror offset 256
              eb 07 08 00 00 00 00 00 00 00 0a  # tag 1003, 8 bytes: adopted below 10
              ec 07 04 00 00 00 01   # tag 1004, 4 bytes: producer generation 1
              ed 07 02 ff ff         # tag 1005, 2 bytes: retry attempt -1
              ee 07 10 ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab ab  # tag 1006, 16 bytes: diverged topic id
              ef 07 08 00 00 00 00 00 00 01 00  # tag 1007, 8 bytes: diverged at 256
          00                         # no tagged fields
        02                           # stopped topics: 1
          02 "x"
        01                           # tagged fields: 1
          e8 07 04 04 "inc"          # tag 1000, 4 bytes: incarnation
        "##,
        WriteMirrorStatesRequest {
            mirror_name: "east".into(),
            topics: vec![WriteMirrorStatesTopic {
                name: "orders".into(),
                partitions: vec![
                    WriteMirrorStatesPartition {
                        partition_index: 0,
                        last_mirror_epoch: -1,
                        state: 2,
                        state_epoch: -1,
                        error_message: None,
                        last_mirror_offset: -1,
                        adopted_below: -1,
                        producer_generation: -1,
                        retry_attempt: -2,
                        diverged_topic_id: TopicId([0; 16]),
                        diverged_at: -1,
                    },
                    WriteMirrorStatesPartition {
                        partition_index: 5,
                        last_mirror_epoch: 9,
                        state: 7,
                        state_epoch: 17,
                        error_message: Some("why".into()),
                        last_mirror_offset: 256,
                        adopted_below: 10,
                        producer_generation: 1,
                        retry_attempt: -1,
                        diverged_topic_id: TopicId([0xab; 16]),
                        diverged_at: 256,
                    },
                ],
            }],
            stopped_topics: names(&["x"]),
            incarnation: "inc".into(),
        },
    );
    response::<WriteMirrorStatesRequest>(
        0,
        r##"
        00 00 00 39                  # length
        00 00 00 07                  # correlation id
        00                           # header: no tagged fields
        00 00 00 00                  # throttle time
        00 0e                        # error code 14, COORDINATOR_LOAD_IN_PROGRESS
        05 "soon"                    # error message
        02                           # topics: 1
          07 "orders"                # name
          03                         # partitions: 2
            00 00 00 00              # partition index
            00 00                    # error code
            00                       # no tagged fields
            00 00 00 05              # partition index
            00 7c                    # error code 124, FENCED_STATE_EPOCH
            02                       # tagged fields: 2
              e8 07 04 00 00 00 12   # tag 1000, 4 bytes: state epoch 18
              e9 07 06 06 "later"    # tag 1001, 6 bytes: error message
          00                         # no tagged fields
        00                           # no tagged fields
        "##,
        WriteMirrorStatesResponse {
            throttle_time_ms: 0,
            error_code: ErrorCode::COORDINATOR_LOAD_IN_PROGRESS,
            error_message: Some("soon".into()),
            topics: vec![WriteMirrorStatesTopicResult {
                name: "orders".into(),
                partitions: vec![
                    WriteMirrorStatesPartitionResult {
                        partition_index: 0,
                        error_code: ErrorCode::NONE,
                        state_epoch: -1,
                        error_message: None,
                    },
                    WriteMirrorStatesPartitionResult {
                        partition_index: 5,
                        error_code: ErrorCode::FENCED_STATE_EPOCH,
                        state_epoch: 18,
                        error_message: Some("later".into()),
                    },
                ],
            }],
        },
    );
}

#[test]
fn api_versions() {
    request(
        0,
        r##"
        00 00 00 0d                  # length
        00 12 00 00                  # api key 18, version 0
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        "##,
        ApiVersionsRequest::default(),
    );
    request(
        3,
        r##"
        00 00 00 17                  # length
        00 12 00 03                  # api key 18, version 3
        00 00 00 07                  # correlation id
        00 03 "cli"                  # client id, with a classic length
        00                           # header: no tagged fields
        04 "lib"                     # client software name
        04 "1.0"                     # client software version
        00                           # no tagged fields
        "##,
        ApiVersionsRequest {
            client_software_name: "lib".into(),
            client_software_version: "1.0".into(),
        },
    );
    response::<ApiVersionsRequest>(
        0,
        r##"
        00 00 00 10                  # length
        00 00 00 07                  # correlation id; the header is version 0 in every version
        00 00                        # error code
        00 00 00 01                  # api keys: 1
          00 64 00 00 00 00          # api key 100, versions 0 to 0
        "##,
        ApiVersionsResponse {
            api_keys: vec![ApiVersion {
                api_key: 100,
                min_version: 0,
                max_version: 0,
            }],
            ..ApiVersionsResponse::default()
        },
    );
    response::<ApiVersionsRequest>(
        3,
        r##"
        00 00 00 13                  # length
        00 00 00 07                  # correlation id; the header is version 0 in every version
        00 00                        # error code
        02                           # api keys: 1
          00 64 00 00 00 00          # api key 100, versions 0 to 0
          00                         # no tagged fields
        00 00 00 00                  # throttle time
        00                           # no tagged fields
        "##,
        ApiVersionsResponse {
            api_keys: vec![ApiVersion {
                api_key: 100,
                min_version: 0,
                max_version: 0,
            }],
            ..ApiVersionsResponse::default()
        },
    );
}
