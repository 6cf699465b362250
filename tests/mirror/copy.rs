//! The whole path on real Kafka: records produced before and during mirroring are found equal at equal offsets. Must not
//! break brokers: they are shared.

use std::time::Duration;

use crate::support::checker::{CheckOptions, assert_equal, wait_for_same_end};
use crate::support::daemon::{Daemon, config};
use crate::support::kafka::{shared_pair, unique};
use crate::support::poll_until;
use crate::support::producer::{CODECS, Producer, ProducerOptions, odd_records, records};
use crate::support::status::scaled;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn all_codecs_and_odd_records_before_and_during_mirroring() {
    let (source, destination) = shared_pair().await;
    let topics: Vec<String> = (0..3).map(|n| unique(&format!("copy{n}"))).collect();
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    for topic in &names {
        source.create_topic(topic, 4, 1, &[]).await;
    }
    let produce = async |seed: u64| {
        for (n, codec) in CODECS.iter().enumerate() {
            let producer = Producer::new(
                &source.bootstrap(),
                &ProducerOptions::default().codec(codec),
            )
            .await;
            for topic in &names {
                for partition in 0..4 {
                    producer
                        .produce(topic, partition, &records(seed + n as u64, 500))
                        .await;
                    producer
                        .produce(topic, partition, &odd_records(seed + n as u64))
                        .await;
                }
            }
        }
    };
    produce(1).await;
    let mut daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &names,
        "",
    ));
    produce(100).await;
    wait_for_same_end(&source.bootstrap(), &destination.bootstrap(), &names, SOON).await;
    let report = assert_equal(
        &source.bootstrap(),
        &destination.bootstrap(),
        &names,
        &CheckOptions::default(),
    )
    .await;
    assert!(report.records > 2 * 3 * 4 * 5 * 500, "{report:?}");
    for topic in &names {
        assert_eq!(
            crate::support::segments::batch_count(source, topic).await,
            crate::support::segments::batch_count(destination, topic).await,
            "nothing is re-encoded"
        );
    }
    let status = daemon.terminate(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{:#?}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_million_records_before_and_during_mirroring() {
    let (source, destination) = shared_pair().await;
    let topics: Vec<String> = (0..3).map(|n| unique(&format!("million{n}"))).collect();
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    for topic in &names {
        source.create_topic(topic, 4, 1, &[]).await;
    }
    let each = scaled(100_000, 500_000) / 12 + 1;
    let produce = async |seed: u64| {
        for (n, (topic, partition)) in names
            .iter()
            .flat_map(|topic| (0..4).map(move |p| (topic, p)))
            .enumerate()
        {
            let codec = CODECS[n % CODECS.len()];
            let options = ProducerOptions::default().codec(codec).idempotent();
            let producer = Producer::new(&source.bootstrap(), &options).await;
            for (part, chunk) in records(seed + n as u64, each).chunks(20_000).enumerate() {
                let offsets = producer.produce(topic, partition, chunk).await;
                assert_eq!(offsets.len(), chunk.len(), "part {part}");
            }
        }
    };
    produce(1_000).await;
    let mut daemon = Daemon::start(&config(
        &source.bootstrap(),
        &destination.bootstrap(),
        &names,
        "",
    ));
    produce(2_000).await;
    wait_for_same_end(
        &source.bootstrap(),
        &destination.bootstrap(),
        &names,
        Duration::from_secs(120),
    )
    .await;
    let report = assert_equal(
        &source.bootstrap(),
        &destination.bootstrap(),
        &names,
        &CheckOptions::default(),
    )
    .await;
    assert_eq!(report.records, 2 * 12 * each);
    for topic in &names {
        let batches = crate::support::segments::batch_count(source, topic).await;
        assert_eq!(
            batches,
            crate::support::segments::batch_count(destination, topic).await,
            "nothing is re-encoded"
        );
    }
    let failed = daemon.log_lines_with(&["ERROR"]);
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(
        daemon.terminate(Duration::from_secs(10)).await.code(),
        Some(0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_source_is_no_config_fault_but_the_same_cluster_on_both_sides_is() {
    let (source, destination) = shared_pair().await;
    let nobody = format!("127.0.0.1:{}", crate::support::process::free_port());
    let mut daemon = Daemon::start(&config(&nobody, &destination.bootstrap(), &["t"], ""));
    daemon
        .wait_until("the source is said to be lost", SOON, |status| {
            status["mirrors"][0]["source"]["reachable"] == false
                && status["mirrors"][0]["source"]["last_error"].is_string()
        })
        .await;
    let said = daemon.log_lines_with(&["cluster cannot be reached"]);
    assert_eq!(said.len(), 1, "said once: {said:#?}");
    poll_until(
        "a dead source does not make it unready",
        SOON,
        async || match daemon.get("/readyz").await? {
            (200, _) => Ok(()),
            (code, words) => Err(format!("{code}: {words}")),
        },
    )
    .await;
    assert_eq!(
        daemon.terminate(Duration::from_secs(10)).await.code(),
        Some(0)
    );
    // The same cluster on both sides is one: nothing is created.
    let mut daemon = Daemon::start(&config(
        &source.bootstrap(),
        &source.direct_bootstrap(),
        &["t"],
        "",
    ));
    assert_eq!(
        daemon.wait_for_exit(SOON).await.code(),
        Some(78),
        "{:#?}",
        daemon.log()
    );
}
