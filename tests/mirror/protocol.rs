//! Public faults of other replicators with the protocol, on real Kafka behind proxies: version negotiation, fetch sessions,
//! followers, throttling, moved leaders, idle and mute connections, changed addresses. The clusters belong to this file.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kafka_protocol::messages::AlterClientQuotasRequest;
use kafka_protocol::messages::alter_client_quotas_request::{EntityData, EntryData, OpData};
use kafka_protocol::protocol::StrBytes;
use tokio::time::Instant;

use crate::support::checker::{CheckOptions, assert_equal, wait_for_same_end};
use crate::support::daemon::{Daemon, config};
use crate::support::kafka::{ClusterOptions, KafkaCluster, unique};
use crate::support::pairs::{Pair, Turn, take_turn};
use crate::support::poll_until;
use crate::support::producer::{Load, Producer, ProducerOptions, TestRecord, records};
use crate::support::proxy::{Action, Proxy, Rule};
use crate::support::raw::{API_VERSIONS, FETCH, on_fetch_answer};
use crate::support::status::{Progress, is_in, scaled, wait_mirrored};

const SOON: Duration = Duration::from_secs(60);

/// Two clusters of two brokers each, behind proxies, for one test at a time. Node 1 is also the controller.
async fn proxied_pair() -> Turn {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    let two = |name| {
        let options = ClusterOptions {
            brokers: 2,
            ..ClusterOptions::new(name)
        };
        options.proxied().with("replica.lag.time.max.ms", "3000")
    };
    take_turn(&PAIR, two("protocol-source"), two("protocol-destination")).await
}

/// The same without proxies, so that ports can change; brokers close connections that are idle for 3 s.
async fn plain_pair() -> Turn {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    let idle = ("connections.max.idle.ms", "3000");
    let source = ClusterOptions {
        brokers: 2,
        ..ClusterOptions::new("plain-source")
    };
    take_turn(
        &PAIR,
        source.with(idle.0, idle.1),
        ClusterOptions::new("plain-destination").with(idle.0, idle.1),
    )
    .await
}

fn start(source: &str, destination: &KafkaCluster, topic: &str, request_timeout: &str) -> Daemon {
    let text = config(source, &destination.bootstrap(), &[topic], "");
    let timeout = format!("[destination]\nrequest_timeout = \"{request_timeout}\"\n");
    // Where time goes after an outage is seen at this level only.
    let level = [(
        "RUST_LOG",
        "info,truemirror::mirror=debug,truemirror::kafka=debug",
    )];
    Daemon::start_with(&text.replacen("[destination]\n", &timeout, 1), &level)
}

async fn arrives(source: &KafkaCluster, destination: &KafkaCluster, topic: &str) {
    let (from, to) = (source.direct_bootstrap(), destination.direct_bootstrap());
    wait_for_same_end(&from, &to, &[topic], SOON).await;
    assert_equal(&from, &to, &[topic], &CheckOptions::default()).await;
}

async fn produce(cluster: &KafkaCluster, topic: &str, partition: i32, records: &[TestRecord]) {
    let options = ProducerOptions::default();
    Producer::new(&cluster.direct_bootstrap(), &options)
        .await
        .produce(topic, partition, records)
        .await;
}

async fn assert_never_failed(daemon: &mut Daemon) {
    let failures = daemon.metric_sum("truemirror_failures_total", &[]).await;
    assert_eq!(failures, 0.0, "{:#?}", daemon.log_lines_with(&["FAILED"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn p01_a_broker_that_answers_api_versions_in_version_0_is_asked_again() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p01");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let before = [source, destination].map(|cluster| {
        let proxy = cluster.proxy();
        proxy.reset_counts();
        let old = Action::AnswerItself(Arc::new(|request| {
            let mut answer = request[4..8].to_vec();
            // UNSUPPORTED_VERSION, and one api: ApiVersions 0 to 3.
            answer.extend([0, 35, 0, 0, 0, 1, 0, 18, 0, 0, 0, 3]);
            Some(answer)
        }));
        proxy.add(Rule::on(API_VERSIONS, old).once());
        proxy.applied()
    });
    let mut daemon = start(&source.bootstrap(), destination, &topic, "30s");
    wait_mirrored(&mut daemon, &topic, 0, Duration::from_secs(20)).await;
    arrives(source, destination, &topic).await;
    for (cluster, before) in [source, destination].into_iter().zip(before) {
        let proxy = cluster.proxy();
        assert_eq!(proxy.applied(), before + 1);
        poll_until("one question more than connections", SOON, async || {
            let (asked, made) = (proxy.requests(API_VERSIONS), proxy.connections());
            (asked == made + 1)
                .then_some(())
                .ok_or_else(|| format!("{asked} questions on {made} connections"))
        })
        .await;
    }
    assert_never_failed(&mut daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p03_a_lost_fetch_session_is_made_anew() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p03");
    source.create_topic(&topic, 2, 1, &[]).await;
    // Both on the broker that is restarted; the other one has the controller.
    for partition in 0..2 {
        source.reassign(&topic, partition, &[2]).await;
    }
    let partitions = [(topic.clone(), 0), (topic.clone(), 1)];
    let load = Load::start(&source.direct_bootstrap(), 200, &partitions);
    let mut daemon = start(&source.bootstrap(), destination, &topic, "30s");
    wait_mirroring(&mut daemon, &topic, 2).await;
    let proxy = source.proxy();
    for code in [70, 71] {
        let refuse = on_fetch_answer(move |answer| {
            answer.error_code = code;
            answer.session_id = 0;
            answer.responses.clear();
        });
        proxy
            .add_and_meet(Rule::on(FETCH, Action::ReplaceAnswer(refuse)).once())
            .await;
        let delivered = load.delivered();
        mirrored_beyond(&mut daemon, &topic, delivered).await;
    }
    source.kill(2);
    source.start_again(2);
    source.wait_ready().await;
    let delivered = load.delivered();
    mirrored_beyond(&mut daemon, &topic, delivered + 100).await;
    load.stop().await;
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
    let errors = daemon.log_lines_with(&["ERROR"]);
    assert!(errors.is_empty(), "{errors:#?}");
}

async fn wait_mirroring(daemon: &mut Daemon, topic: &str, partitions: i32) {
    daemon
        .wait_until("all mirroring", SOON, |status| {
            (0..partitions).all(|p| is_in(status, topic, p, "MIRRORING"))
        })
        .await;
}

/// Waits until so many records of a topic were mirrored by this start of the daemon.
async fn mirrored_beyond(daemon: &mut Daemon, topic: &str, count: u64) {
    poll_until("records mirrored", SOON, async || {
        let labels = [("topic", topic)];
        let mirrored = daemon
            .metric_sum("truemirror_records_mirrored_total", &labels)
            .await;
        (mirrored >= count as f64)
            .then_some(())
            .ok_or_else(|| format!("{mirrored} of {count}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p04_a_lagging_follower_and_an_answer_that_names_another_replica_do_not_mislead() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p04");
    source.create_topic(&topic, 1, 2, &[]).await;
    source.move_leader(&topic, 0, 1).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(&source.bootstrap(), destination, &topic, "30s");
    arrives(source, destination, &topic).await;
    let elsewhere = on_fetch_answer(|answer| {
        let partitions = answer
            .responses
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions);
        for partition in partitions {
            partition.preferred_read_replica = kafka_protocol::messages::BrokerId(2);
            partition.records = None;
        }
    });
    source
        .proxy()
        .add_and_meet(Rule::on(FETCH, Action::ReplaceAnswer(elsewhere)).times(4))
        .await;
    produce(source, &topic, 0, &records(2, 10)).await;
    arrives(source, destination, &topic).await;
    source.pause(2);
    let options = ProducerOptions {
        extra: vec![("acks".into(), "1".into())],
        ..ProducerOptions::default()
    };
    // Only the broker that runs: the other one accepts and never answers.
    let alive = source.internal_address(1).to_string();
    let producer = Producer::new(&alive, &options).await;
    producer.produce(&topic, 0, &records(3, 100)).await;
    source.resume(2);
    source.wait_in_sync(&topic).await;
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
    let resumes = daemon
        .metric_sum("truemirror_resumes_total", &[("cause", "repeated")])
        .await;
    assert_eq!(resumes, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p05_throttling_is_waited_for_and_shown() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p05");
    source.create_topic(&topic, 1, 1, &[]).await;
    let (quota, bytes) = scaled((250_000.0, 3_000_000), (50_000.0, 5_000_000));
    let timeout = scaled("3s", "10s");
    let content: Vec<TestRecord> = (0..bytes / 10_000)
        .map(|n| TestRecord {
            value: Some((0..10_000).map(|_| rand::random()).collect()),
            ..TestRecord::new(&n.to_string(), "")
        })
        .collect();
    // A broker never hands out a batch that is larger than the quota of its whole window of ten seconds.
    let options = ProducerOptions::default().batches_of(10);
    let producer = Producer::new(&source.direct_bootstrap(), &options).await;
    producer.produce(&topic, 0, &content).await;
    set_quota(source, Some(quota)).await;
    let begin = Instant::now();
    let proxy = source.proxy();
    proxy.reset_counts();
    let extra = "[mirror.fetch]\nmax_bytes = \"1MiB\"\npartition_max_bytes = \"256KiB\"";
    let text = config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &[&topic],
        extra,
    );
    let timeout = format!("[destination]\nrequest_timeout = \"{timeout}\"\n");
    let mut daemon = Daemon::start(&text.replacen("[destination]\n", &timeout, 1));
    wait_mirroring(&mut daemon, &topic, 1).await;
    poll_until("throttled", SOON, async || {
        let labels = [("side", "source")];
        match daemon
            .metric_sum("truemirror_throttle_seconds_total", &labels)
            .await
        {
            0.0 => Err("not yet".into()),
            _ => Ok(()),
        }
    })
    .await;
    let connections = proxy.connections();
    let whole = Duration::from_secs_f64(f64::from(bytes) / quota * 3.0);
    let (from, to) = (source.direct_bootstrap(), destination.direct_bootstrap());
    wait_for_same_end(&from, &to, &[&topic], whole).await;
    let took = begin.elapsed();
    set_quota(source, None).await;
    assert_equal(&from, &to, &[&topic], &CheckOptions::default()).await;
    assert_eq!(proxy.connections(), connections, "no reconnects");
    let least = Duration::from_secs_f64(f64::from(bytes) / quota * 0.3);
    assert!(took > least, "{took:?} is faster than the quota");
    assert_never_failed(&mut daemon).await;
}

/// Sets or removes the quota on bytes fetched by the daemon's client id.
async fn set_quota(cluster: &KafkaCluster, bytes_per_second: Option<f64>) {
    let text = StrBytes::from_static_str;
    let entity = EntityData::default()
        .with_entity_type(text("client-id"))
        .with_entity_name(Some(text("truemirror")));
    let op = OpData::default()
        .with_key(text("consumer_byte_rate"))
        .with_value(bytes_per_second.unwrap_or(0.0))
        .with_remove(bytes_per_second.is_none());
    let entry = EntryData::default()
        .with_entity(vec![entity])
        .with_ops(vec![op]);
    let request = AlterClientQuotasRequest::default().with_entries(vec![entry]);
    let answer = cluster.admin(1, &request).await;
    assert_eq!(answer.entries[0].error_code, 0, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p06_null_records_are_no_data() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p06");
    source.create_topic(&topic, 1, 1, &[]).await;
    let nulls = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&nulls);
    let null = on_fetch_answer(move |answer| {
        let partitions = answer
            .responses
            .iter_mut()
            .flat_map(|topic| &mut topic.partitions);
        for partition in partitions.filter(|p| p.records.as_ref().is_none_or(|r| r.is_empty())) {
            partition.records = None;
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    source
        .proxy()
        .add(Rule::on(FETCH, Action::ReplaceAnswer(null)));
    let mut daemon = start(&source.bootstrap(), destination, &topic, "30s");
    poll_until("null records answered", SOON, async || {
        match nulls.load(Ordering::Relaxed) {
            0 => Err("none".into()),
            _ => Ok(()),
        }
    })
    .await;
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
    let errors = daemon
        .metric_sum("truemirror_fetch_errors_total", &[])
        .await;
    assert_eq!(errors, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn p10_leaders_that_move_all_the_time_are_followed_on_both_sides() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p10");
    source.create_topic(&topic, 4, 2, &[]).await;
    destination.create_topic(&topic, 4, 2, &[]).await;
    let partitions: Vec<_> = (0..4).map(|p| (topic.clone(), p)).collect();
    let load = Load::start(&source.direct_bootstrap(), 500, &partitions);
    let mut daemon = start(&source.bootstrap(), destination, &topic, "30s");
    wait_mirroring(&mut daemon, &topic, 4).await;
    let (every, rounds) = scaled((Duration::from_secs(3), 4), (Duration::from_secs(10), 12));
    let mut progress = Progress::of(&topic, 4);
    for cluster in [source, destination] {
        let moves = async {
            for round in 0..rounds {
                let next = Instant::now() + every;
                for partition in 0..4 {
                    let to = 1 + (round + partition) % 2;
                    cluster.move_leader(&topic, partition, to).await;
                }
                tokio::time::sleep_until(next).await;
            }
        };
        tokio::select! {
            () = moves => {}
            () = progress.watch(&mut daemon, &load) => {}
        }
    }
    let counts = load.stop().await;
    assert_eq!(counts.failed, 0);
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
    let longest = progress.longest.values().max().unwrap();
    assert!(*longest < Duration::from_secs(5), "{progress:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p11_connections_that_brokers_close_for_idleness_are_made_again_without_noise() {
    let turn = plain_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p11");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "").replace(
        "metadata_refresh_interval = \"1s\"",
        "metadata_refresh_interval = \"1h\"",
    );
    let mut daemon = Daemon::start(&text);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    tokio::time::sleep(scaled(Duration::from_secs(10), Duration::from_secs(60))).await;
    produce(source, &topic, 0, &records(2, 1)).await;
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
    for level in ["ERROR", "WARN"] {
        let lines = daemon.log_lines_with(&[level]);
        assert!(lines.is_empty(), "{lines:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p12_a_cluster_that_accepts_and_never_answers_is_timed_out_shown_and_resumed() {
    let turn = proxied_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p12");
    source.create_topic(&topic, 2, 2, &[]).await;
    destination.create_topic(&topic, 2, 2, &[]).await;
    produce(source, &topic, 0, &records(1, 100)).await;
    let mut daemon = start(
        &source.bootstrap(),
        destination,
        &topic,
        scaled("5s", "30s"),
    );
    arrives(source, destination, &topic).await;
    let frozen_for = scaled(Duration::from_secs(12), Duration::from_secs(60));
    for (number, cluster) in [source, destination].into_iter().enumerate() {
        let begin = Instant::now();
        for id in cluster.broker_ids() {
            cluster.pause(id);
        }
        if number == 1 {
            produce(source, &topic, 0, &records(2, 100)).await;
        }
        let side = if number == 0 {
            "truemirror_source_last_contact_seconds"
        } else {
            "truemirror_destination_last_contact_seconds"
        };
        poll_until("silence and lag are shown", frozen_for, async || {
            let silence = daemon.metric(side, &[]).await;
            let labels = [("topic", topic.as_str()), ("partition", "0")];
            let lag = daemon.metric("truemirror_lag_seconds", &labels).await;
            (silence > 3.0 && lag > 3.0)
                .then_some(())
                .ok_or_else(|| format!("silent for {silence} s, lag {lag} s"))
        })
        .await;
        tokio::time::sleep_until(begin + frozen_for).await;
        for id in cluster.broker_ids() {
            cluster.resume(id);
        }
        cluster.wait_in_sync(&topic).await;
        let content = records(3 + number as u64, 100);
        produce(source, &topic, 1, &content).await;
        let (from, to) = (source.direct_bootstrap(), destination.direct_bootstrap());
        wait_for_same_end(&from, &to, &[&topic], Duration::from_secs(10)).await;
        arrives(source, destination, &topic).await;
    }
    assert_never_failed(&mut daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn p13_when_all_known_addresses_are_dead_the_bootstrap_server_is_asked_again() {
    let turn = plain_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p13");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    // The name stays and leads to another port: what a load balancer or a changed name record does.
    let bootstrap = Proxy::start(BTreeMap::from([(1, port_of_broker_1(source))]));
    let name = format!("localhost:{}", bootstrap.port(1));
    let mut daemon = start(&name, destination, &topic, "5s");
    arrives(source, destination, &topic).await;
    source.kill(2);
    source.kill(1);
    source.start_again_on_new_port(1);
    source.start_again_on_new_port(2);
    source.wait_ready().await;
    bootstrap.handle().set_upstream(1, port_of_broker_1(source));
    produce(source, &topic, 0, &records(2, 10)).await;
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
}

fn port_of_broker_1(cluster: &KafkaCluster) -> u16 {
    let servers = cluster.bootstrap();
    let first = servers.split(',').next().unwrap();
    first.rsplit(':').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn p14_a_broker_that_comes_back_on_another_port_is_found_there() {
    let turn = plain_pair().await;
    let (source, destination) = (turn.source, turn.destination);
    let topic = unique("p14");
    source.create_topic(&topic, 1, 1, &[]).await;
    source.reassign(&topic, 0, &[2]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(&source.bootstrap(), destination, &topic, "5s");
    arrives(source, destination, &topic).await;
    source.kill(2);
    source.start_again_on_new_port(2);
    source.wait_ready().await;
    assert_eq!(source.leader_of(&topic, 0).await, 2);
    produce(source, &topic, 0, &records(2, 10)).await;
    arrives(source, destination, &topic).await;
    assert_never_failed(&mut daemon).await;
}
