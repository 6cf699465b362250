//! The Kafka client against brokers of bad will and bad luck. Must not need a real broker.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stop the test like tests do"
)]

#[cfg(test)]
mod support;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use support::fake_broker::{Asked, FakeBroker, Reply, Script, answer_metadata, metadata, serve};
use tokio::io::DuplexStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use truemirror::domain::types::{BrokerId, TopicPartition};
use truemirror::kafka::cluster::{Cluster, ClusterError, ClusterOptions, Lane, Side, Topics};
use truemirror::kafka::connect::{Address, BoxStream, Connect, ConnectError, TcpConnector};
use truemirror::kafka::connection::{Connection, ConnectionOptions, LostReason, RequestError};
use truemirror::wire::api::api_versions::{ApiVersion, ApiVersionsRequest, ApiVersionsResponse};
use truemirror::wire::api::describe_cluster::DescribeClusterRequest;
use truemirror::wire::api::fetch::{
    FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData,
};
use truemirror::wire::api::list_offsets::{ListOffsetsRequest, ListOffsetsResponse};
use truemirror::wire::api::metadata::{MetadataRequest, MetadataResponse};
use truemirror::wire::api::produce::ProduceRequest;
use truemirror::wire::error_code::ErrorCode;

const SECOND: Duration = Duration::from_secs(1);

/// A connection over an in-memory pipe to a broker that answers by `script`.
async fn connected<F>(script: F) -> (Connection, JoinSet<()>)
where
    F: FnMut(&Asked) -> Option<Reply> + Send + 'static,
{
    let (ours, theirs): (DuplexStream, DuplexStream) = tokio::io::duplex(64 * 1024);
    let mut broker = JoinSet::new();
    broker.spawn(serve(theirs, script));
    let options = ConnectionOptions {
        max_in_flight: 8,
        max_frame_bytes: 10_000_000,
        ..Default::default()
    };
    let connection =
        Connection::establish(ours, "test", options, &TaskTracker::new(), SECOND).await;
    (connection.unwrap(), broker)
}

fn offsets_answer(throttle_time_ms: i32) -> ListOffsetsResponse {
    ListOffsetsResponse {
        throttle_time_ms,
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn requests_leave_in_the_order_of_calls_and_answers_find_their_callers() {
    let (connection, _broker) = connected(|asked| {
        let request: ListOffsetsRequest = asked.is::<ListOffsetsRequest>().then(|| asked.body())?;
        Some(asked.answer::<ListOffsetsRequest>(&offsets_answer(-request.replica_id.0)))
    })
    .await;
    let pending: Vec<_> = (1..=8)
        .map(|number| {
            let request = ListOffsetsRequest {
                replica_id: BrokerId(number),
                ..Default::default()
            };
            connection.enqueue(&request, SECOND)
        })
        .collect();
    let too_many = connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await;
    let too_many = too_many.unwrap_err();
    assert!(matches!(
        too_many,
        RequestError::QueueFull { in_flight: 8, .. }
    ));
    assert!(!too_many.outcome_unknown());
    for (number, pending) in (1..=8).zip(pending) {
        assert_eq!(pending.await.unwrap().throttle_time_ms, -number);
    }
}

#[tokio::test(start_paused = true)]
async fn a_missed_deadline_poisons_the_connection_and_wakes_everybody() {
    let (connection, _broker) = connected(|_| None).await;
    let started = Instant::now();
    let long = connection.enqueue(&ListOffsetsRequest::default(), 60 * SECOND);
    let short = connection.enqueue(&DescribeClusterRequest::default(), 3 * SECOND);
    let (long, short) = tokio::join!(long, short);
    assert_eq!(started.elapsed().as_secs(), 3);
    let (long, short) = (long.unwrap_err(), short.unwrap_err());
    assert!(matches!(short, RequestError::TimedOut { after, .. } if after == 3 * SECOND));
    assert!(
        matches!(&long, RequestError::Lost { reason, .. } if matches!(**reason, LostReason::TimedOut { .. })),
        "{long:?}"
    );
    assert!(long.outcome_unknown() && short.outcome_unknown());
    let later = connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap_err();
    assert!(matches!(later, RequestError::NotSent { .. }) && !later.outcome_unknown());
    assert!(!connection.is_usable());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_leaves_the_connection_whole() {
    let (connection, _broker) = connected(|asked| {
        asked
            .is::<ListOffsetsRequest>()
            .then(|| asked.answer::<ListOffsetsRequest>(&offsets_answer(0)))
    })
    .await;
    for _ in 0..3 {
        drop(connection.enqueue(&ListOffsetsRequest::default(), SECOND));
        connection
            .call(&ListOffsetsRequest::default(), SECOND)
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_belongs_to_no_request_ends_the_connection() {
    let (connection, _broker) = connected(|asked| {
        (!asked.is::<ApiVersionsRequest>())
            .then(|| Reply::Bytes(Bytes::from_static(&[0, 0, 0, 4, 0, 0, 0, 99])))
    })
    .await;
    let error = connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap_err();
    assert!(
        matches!(&error, RequestError::Lost { reason, .. } if matches!(**reason, LostReason::Unexpected { answered: 99, expected: Some(1) })),
        "{error:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_does_not_know_our_api_versions_is_asked_again_on_the_same_connection() {
    let range = |max_version| ApiVersionsResponse {
        error_code: ErrorCode::UNSUPPORTED_VERSION,
        api_keys: vec![ApiVersion {
            api_key: 18,
            min_version: 0,
            max_version,
        }],
        ..Default::default()
    };
    for (with_range, asked_versions) in [(Some(3), vec![4, 3]), (None, vec![4, 0])] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let versions = Arc::clone(&seen);
        let (connection, _broker) = connected(move |asked| {
            let mut seen = versions.lock().unwrap();
            if asked.is::<ApiVersionsRequest>() {
                seen.push(asked.header.version);
            }
            (seen.len() == 1).then(|| match with_range {
                None => asked.answer_raw(&[0, 35]),
                Some(max) => {
                    let mut body = vec![0, 35];
                    body.extend_from_slice(&[0, 0, 0, 1, 0, 18, 0, 0, 0, max]);
                    assert_eq!(range(i16::from(max)).api_keys.len(), 1);
                    asked.answer_raw(&body)
                }
            })
        })
        .await;
        assert_eq!(*seen.lock().unwrap(), asked_versions);
        assert_eq!(connection.version_of::<FetchRequest>(), Ok(13));
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_without_a_common_version_is_an_error_with_both_ranges() {
    let (connection, _broker) = connected(|asked| {
        let api_keys = vec![
            ApiVersion {
                api_key: 1,
                min_version: 14,
                max_version: 18,
            },
            ApiVersion {
                api_key: 0,
                min_version: 0,
                max_version: 11,
            },
        ];
        let answer = ApiVersionsResponse {
            api_keys,
            ..Default::default()
        };
        Some(asked.answer::<ApiVersionsRequest>(&answer))
    })
    .await;
    assert_eq!(connection.version_of::<ProduceRequest>(), Ok(11));
    let fetch = connection.version_of::<FetchRequest>().unwrap_err();
    assert_eq!(
        fetch.to_string(),
        "Fetch: truemirror speaks versions 12 to 13, the broker 14 to 18"
    );
    let offsets = connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap_err();
    assert_eq!(
        offsets.to_string(),
        "ListOffsets: truemirror speaks versions 6 to 6, the broker does not know this API"
    );
}

#[tokio::test(start_paused = true)]
async fn lying_lengths_end_the_connection_without_sizing_anything() {
    for (length, refused_at_once) in [(-1_i32, true), (i32::MAX, true), (9_999_999, false)] {
        let (connection, _broker) = connected(move |asked| {
            (!asked.is::<ApiVersionsRequest>())
                .then(|| Reply::Bytes(Bytes::copy_from_slice(&length.to_be_bytes())))
        })
        .await;
        let error = connection
            .call(&ListOffsetsRequest::default(), SECOND)
            .await
            .unwrap_err();
        let at_once = matches!(&error, RequestError::Lost { reason, .. } if matches!(**reason, LostReason::Length(_)));
        assert_eq!(at_once, refused_at_once, "{error:?}");
        assert!(at_once || matches!(error, RequestError::TimedOut { .. }));
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_read_fails_its_request_only() {
    let answers = AtomicUsize::new(0);
    let (connection, _broker) = connected(move |asked| {
        if asked.is::<ApiVersionsRequest>() {
            return None;
        }
        // Header tags, throttle time, then a topic count of 2^32 - 2.
        let hostile = [0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f];
        Some(match answers.fetch_add(1, Ordering::SeqCst) {
            0 => asked.answer_raw(&hostile),
            1 => asked.answer_raw(&[0, 0, 0, 0, 0, 0, 0]),
            _ => asked.answer::<ListOffsetsRequest>(&offsets_answer(0)),
        })
    })
    .await;
    for null_array in [false, true] {
        let error = connection
            .call(&ListOffsetsRequest::default(), SECOND)
            .await
            .unwrap_err();
        assert!(
            matches!(error, RequestError::Decode { version: 6, .. }),
            "{null_array}: {error:?}"
        );
        assert!(error.outcome_unknown());
    }
    connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn null_records_empty_records_and_large_ones_arrive_as_they_were_sent() {
    let sent = [
        None,
        Some(Bytes::new()),
        Some(Bytes::from(vec![7; 3_000_000])),
    ];
    let partitions: Vec<_> = sent
        .iter()
        .map(|records| PartitionData {
            records: records.clone(),
            ..Default::default()
        })
        .collect();
    let response = FetchResponse {
        responses: vec![FetchableTopicResponse {
            partitions,
            ..Default::default()
        }],
        ..Default::default()
    };
    let (connection, _broker) = connected(move |asked| {
        asked
            .is::<FetchRequest>()
            .then(|| asked.answer::<FetchRequest>(&response))
    })
    .await;
    let answer = connection
        .enqueue_expecting(&FetchRequest::default(), SECOND, 1000)
        .await;
    let partitions = answer.unwrap().responses.remove(0).partitions;
    let got: Vec<_> = partitions
        .into_iter()
        .map(|partition| partition.records)
        .collect();
    assert_eq!(got, sent);
}

#[tokio::test(start_paused = true)]
async fn a_throttle_time_delays_the_next_send_and_is_no_time_out() {
    let times = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&times);
    let (connection, _broker) = connected(move |asked| {
        asked.is::<ListOffsetsRequest>().then(|| {
            let mut seen = seen.lock().unwrap();
            seen.push(Instant::now());
            asked.answer::<ListOffsetsRequest>(&offsets_answer(if seen.len() == 1 {
                5_000
            } else {
                0
            }))
        })
    })
    .await;
    connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap();
    assert!(connection.throttled_until().is_some());
    connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap();
    let times = times.lock().unwrap().clone();
    assert!(times[1] - times[0] >= 5 * SECOND);
    assert_eq!(connection.throttling().count, 1);
    assert_eq!(connection.throttling().total, 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn an_idle_close_is_no_fault_and_a_close_under_way_is_an_unknown_outcome() {
    let (connection, broker) =
        connected(|asked| (!asked.is::<ApiVersionsRequest>()).then_some(Reply::Close)).await;
    let error = connection
        .call(&ListOffsetsRequest::default(), SECOND)
        .await
        .unwrap_err();
    assert!(error.outcome_unknown() && error.connection_lost());
    drop(broker);

    let (connection, broker) = connected(|_| None).await;
    drop(broker);
    while connection.is_usable() {
        tokio::task::yield_now().await;
    }
    assert!(matches!(
        *connection.lost_reason().unwrap(),
        LostReason::ClosedByPeer
    ));
}

#[tokio::test(start_paused = true)]
async fn a_produce_without_an_answer_is_not_sent() {
    let (connection, _broker) = connected(|_| None).await;
    let error = connection
        .enqueue_produce(&ProduceRequest::default(), SECOND)
        .await;
    assert!(matches!(error, Err(RequestError::NoAnswerAsked)));
}

#[tokio::test]
async fn the_last_handle_closes_the_connection() {
    let (connection, mut broker) = connected(|_| None).await;
    drop(connection.clone());
    assert!(connection.is_usable());
    drop(connection);
    // The broker's loop ends when our side is gone.
    tokio::time::timeout(10 * SECOND, broker.join_next())
        .await
        .unwrap();
}

fn options(bootstrap: &[SocketAddr]) -> ClusterOptions {
    let servers = bootstrap.iter().map(ToString::to_string).collect();
    ClusterOptions {
        request_timeout: SECOND,
        connect_timeout: SECOND,
        ..ClusterOptions::new(Side::Source, servers)
    }
}

/// A broker whose Metadata is whatever the test last put there.
async fn scripted(response: &Arc<Mutex<MetadataResponse>>) -> FakeBroker {
    let response = Arc::clone(response);
    let script: Script = Box::new(move |asked| {
        if asked.is::<ListOffsetsRequest>() {
            return Some(asked.answer::<ListOffsetsRequest>(&offsets_answer(0)));
        }
        answer_metadata(asked, &response.lock().unwrap())
    });
    FakeBroker::start(script).await
}

#[tokio::test]
async fn a_mute_broker_costs_its_callers_one_deadline_and_others_nothing() {
    let answer = Arc::new(Mutex::new(MetadataResponse::default()));
    let well = scripted(&answer).await;
    let mute = FakeBroker::start(Box::new(|_| Some(Reply::Silence))).await;
    *answer.lock().unwrap() = metadata("c", &[(1, well.address), (2, mute.address)], "t", &[1, 2]);
    let cluster = Cluster::new(options(&[well.address])).unwrap();
    cluster.refresh(Topics::All).await.unwrap();
    assert_eq!(
        cluster.leader(&TopicPartition::new("t", 1)).unwrap().0,
        BrokerId(2)
    );
    let started = Instant::now();
    let mute_calls = async {
        let lane = Lane::Produce(0);
        let (a, b) = tokio::join!(
            cluster.broker(BrokerId(2), lane),
            cluster.broker(BrokerId(2), lane)
        );
        assert!(matches!(a, Err(ConnectError::Setup { .. })), "{a:?}");
        assert!(b.is_err());
        started.elapsed()
    };
    let well_calls = async {
        let connection = cluster.broker(BrokerId(1), Lane::Produce(0)).await.unwrap();
        for _ in 0..20 {
            connection
                .call(&ListOffsetsRequest::default(), SECOND)
                .await
                .unwrap();
        }
        started.elapsed()
    };
    let (mute_took, well_took) = tokio::join!(mute_calls, well_calls);
    assert!(
        mute_took >= SECOND && mute_took < 2 * SECOND,
        "{mute_took:?}"
    );
    assert!(well_took < SECOND, "{well_took:?}");
    assert_eq!(mute.connections(), 1, "one attempt for both callers");
    cluster.close().await;
}

#[tokio::test]
async fn a_broken_connection_is_replaced_at_the_next_use() {
    let answer = Arc::new(Mutex::new(MetadataResponse::default()));
    let broker = scripted(&answer).await;
    *answer.lock().unwrap() = metadata("c", &[(1, broker.address)], "t", &[1]);
    let cluster = Cluster::new(options(&[broker.address])).unwrap();
    cluster.refresh(Topics::All).await.unwrap();
    let first = cluster.broker(BrokerId(1), Lane::Control).await.unwrap();
    let again = cluster.broker(BrokerId(1), Lane::Control).await.unwrap();
    assert!(first.same_as(&again));
    first.close();
    let second = cluster.broker(BrokerId(1), Lane::Control).await.unwrap();
    assert!(!first.same_as(&second));
    let other_lane = cluster.broker(BrokerId(1), Lane::Fetch(0)).await.unwrap();
    assert!(!second.same_as(&other_lane));
    let unknown = cluster.broker(BrokerId(9), Lane::Control).await;
    assert!(matches!(unknown, Err(ConnectError::UnknownBroker { .. })));
}

#[tokio::test]
async fn a_new_address_of_a_broker_replaces_the_old_connection() {
    let answer = Arc::new(Mutex::new(MetadataResponse::default()));
    let (old, new) = (scripted(&answer).await, scripted(&answer).await);
    *answer.lock().unwrap() = metadata("c", &[(1, old.address)], "t", &[1]);
    let cluster = Cluster::new(options(&[old.address])).unwrap();
    cluster.refresh(Topics::All).await.unwrap();
    let before = cluster.broker(BrokerId(1), Lane::Produce(0)).await.unwrap();
    *answer.lock().unwrap() = metadata("c", &[(1, new.address)], "t", &[1]);
    cluster.refresh(Topics::All).await.unwrap();
    assert!(!before.is_usable());
    let after = cluster.broker(BrokerId(1), Lane::Produce(0)).await.unwrap();
    assert_eq!(after.peer(), new.address.to_string());
}

#[tokio::test]
async fn another_cluster_under_a_known_address_is_refused_and_not_used() {
    let answer = Arc::new(Mutex::new(MetadataResponse::default()));
    let broker = scripted(&answer).await;
    *answer.lock().unwrap() = metadata("first", &[(1, broker.address)], "t", &[1]);
    let cluster = Cluster::new(options(&[broker.address])).unwrap();
    cluster.refresh(Topics::All).await.unwrap();
    let before = cluster.leaders();
    *answer.lock().unwrap() = metadata("second", &[(7, broker.address)], "u", &[7]);
    let error = cluster.refresh(Topics::All).await.unwrap_err();
    match error {
        ClusterError::AnotherCluster {
            expected,
            found,
            address,
            ..
        } => {
            assert_eq!((&*expected, &*found), ("first", "second"));
            assert_eq!(*address, broker.address.to_string());
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(cluster.leaders(), before);
}

#[tokio::test]
async fn when_all_known_addresses_are_dead_the_bootstrap_name_is_resolved_anew() {
    let answer = Arc::new(Mutex::new(MetadataResponse::default()));
    let old = scripted(&answer).await;
    *answer.lock().unwrap() = metadata("c", &[(1, old.address)], "t", &[1]);
    let target = Arc::new(Mutex::new(old.address));
    let resolved = Arc::clone(&target);
    let mut connector = TcpConnector::new(SECOND, Some(64 * 1024));
    connector.resolve = Arc::new(move |host, port| {
        let at = match host.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, port),
            Err(_) => *resolved.lock().unwrap(),
        };
        // A dead address in front: all addresses of a name are tried.
        let dead = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        Box::pin(async move { Ok(vec![dead, at]) })
    });
    let options = ClusterOptions {
        bootstrap_servers: vec!["kafka.example:9092".to_owned()],
        ..options(&[])
    };
    let cluster = Cluster::with_connector(options, Arc::new(connector)).unwrap();
    cluster.refresh(Topics::All).await.unwrap();
    cluster.broker(BrokerId(1), Lane::Control).await.unwrap();
    drop(old);
    let new = scripted(&answer).await;
    *answer.lock().unwrap() = metadata("c", &[(1, new.address)], "t", &[1]);
    *target.lock().unwrap() = new.address;
    let found = cluster.refresh(Topics::All).await.unwrap();
    assert_eq!(
        found.brokers[&BrokerId(1)].address.to_string(),
        new.address.to_string()
    );
}

#[tokio::test]
async fn a_requested_refresh_wakes_those_who_watch_and_asks_for_the_topics_of_interest() {
    let answer = Arc::new(Mutex::new(MetadataResponse::default()));
    let broker = scripted(&answer).await;
    *answer.lock().unwrap() = metadata("c", &[(1, broker.address)], "t", &[1]);
    let cluster = Cluster::new(options(&[broker.address])).unwrap();
    let mut watch = cluster.watch();
    cluster.set_topics(["t".into()]);
    tokio::time::timeout(10 * SECOND, watch.changed())
        .await
        .unwrap()
        .unwrap();
    assert!(
        watch
            .borrow_and_update()
            .leader(&TopicPartition::new("t", 0))
            .is_some()
    );
    let mut moved = metadata("c", &[(1, broker.address)], "t", &[5]);
    moved.topics[0].partitions[0].leader_epoch.0 = 2;
    *answer.lock().unwrap() = moved;
    cluster.request_refresh();
    tokio::time::timeout(10 * SECOND, watch.changed())
        .await
        .unwrap()
        .unwrap();
    let leader = cluster.leader(&TopicPartition::new("t", 0)).unwrap();
    assert_eq!((leader.0, leader.1.0), (BrokerId(5), 2));
    cluster.set_topics([]);
    assert!(cluster.leaders().topics.is_empty());
}

/// Refuses every connection and notes when it was asked for one.
struct Refusing(Arc<Mutex<Vec<Instant>>>);

impl Connect for Refusing {
    fn connect<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<BoxStream, ConnectError>> {
        self.0.lock().unwrap().push(Instant::now());
        let host = Arc::clone(&address.host);
        Box::pin(async move { Err(ConnectError::NoAddress { host }) })
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_on_one_broker_come_with_growing_bounded_pauses() {
    let attempts = Arc::default();
    let connector = Refusing(Arc::clone(&attempts));
    let options = options(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 1))]);
    let cluster = Cluster::with_connector(options, Arc::new(connector)).unwrap();
    for _ in 0..12 {
        cluster.any(Lane::Control).await.unwrap_err();
    }
    let attempts = attempts.lock().unwrap().clone();
    assert_eq!(attempts.len(), 12);
    for (failures, pair) in attempts.windows(2).enumerate() {
        let full = Duration::from_millis((50 << failures).min(2_000));
        let gap = pair[1] - pair[0];
        // Timers tick in whole milliseconds.
        assert!(
            gap >= full / 2 && gap <= full + Duration::from_millis(2),
            "{failures}: {gap:?}"
        );
    }
}

#[tokio::test]
async fn nobody_reachable_is_an_error_that_names_the_last_fault() {
    let dead = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let cluster = Cluster::new(options(&[dead])).unwrap();
    let error = cluster
        .refresh(Topics::Named(Vec::new()))
        .await
        .unwrap_err();
    match error {
        ClusterError::Connect {
            source:
                ConnectError::Nobody {
                    tried: 1,
                    last: Some(last),
                },
            ..
        } => {
            assert!(matches!(*last, ConnectError::Tcp { .. }), "{last:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(Cluster::new(ClusterOptions::new(Side::Source, vec!["nonsense".into()])).is_err());
}

#[tokio::test]
async fn metadata_never_asks_for_topics_to_be_created() {
    let asked_for = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&asked_for);
    let broker = FakeBroker::start(Box::new(move |asked| {
        let request: MetadataRequest = asked.is::<MetadataRequest>().then(|| asked.body())?;
        *seen.lock().unwrap() = Some(request);
        answer_metadata(asked, &MetadataResponse::default())
    }))
    .await;
    let cluster = Cluster::new(options(&[broker.address])).unwrap();
    cluster
        .refresh(Topics::Named(vec!["t".into()]))
        .await
        .unwrap();
    let request = asked_for.lock().unwrap().take().unwrap();
    assert!(!request.allow_auto_topic_creation);
    assert_eq!(request.topics.unwrap()[0].name.as_deref(), Some("t"));
}
