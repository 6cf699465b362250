//! The whole path on real Kafka: records produced before and during mirroring are found equal at equal offsets. Must not
//! break brokers: they are shared.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "test code: a broken assumption is a failed test"
)]

#[cfg(test)]
mod support;

use std::time::Duration;

use support::checker::{CheckOptions, assert_equal, wait_for_same_end};
use support::daemon::{Daemon, config};
use support::kafka::{shared_pair, unique};
use support::producer::{CODECS, Producer, ProducerOptions, odd_records, records};

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
            support::segments::batch_count(source, topic).await,
            support::segments::batch_count(destination, topic).await,
            "nothing is re-encoded"
        );
    }
    let status = daemon.terminate(Duration::from_secs(10)).await;
    assert_eq!(status.code(), Some(0), "{:#?}", daemon.log());
}
