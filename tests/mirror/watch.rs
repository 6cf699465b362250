//! What operators see of a running daemon on real Kafka: the gauges of the group and of the state topic, and the status.

use std::time::Duration;

use crate::support::daemon::{Daemon, beside, config};
use crate::support::kafka::{KafkaCluster, shared_pair, unique};
use crate::support::poll_until;
use crate::support::producer::{Producer, ProducerOptions, records};
use crate::support::status::{partition, wait_mirrored};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

/// A sidecar beside a broker, with lines of its own in its mirror's retry table.
fn sidecar(
    source: &KafkaCluster,
    destination: &KafkaCluster,
    topic: &str,
    broker_id: i32,
    retry: &str,
) -> Daemon {
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[topic], "");
    let text = beside(&text, broker_id);
    Daemon::start(&text.replace("[mirror.retry]\n", &format!("[mirror.retry]\n{retry}\n")))
}

/// A metric without its prefix, its labels, and its value.
type Series<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

/// Waits until all of these series have these values.
async fn wait_for(daemon: &mut Daemon, wanted: &[Series<'_>]) {
    poll_until("the gauges", SOON, async || {
        let mut found = Vec::new();
        for (name, labels, value) in wanted {
            let name = format!("truemirror_{name}");
            found.push((daemon.metric(&name, labels).await, *value));
        }
        if found.iter().all(|(found, wanted)| found == wanted) {
            Ok(())
        } else {
            Err(format!("{found:?} for {wanted:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_group_the_states_and_what_is_wanted() {
    let (source, destination) = shared_pair().await;
    let topic = unique("watched");
    source.create_topic(&topic, 2, 1, &[]).await;
    let producer = Producer::new(&source.bootstrap(), &ProducerOptions::default()).await;
    producer.produce(&topic, 0, &records(1, 10)).await;
    let mut one = sidecar(source, destination, &topic, 1, "");
    wait_mirrored(&mut one, &topic, 0, SOON).await;
    wait_for(
        &mut one,
        &[
            ("group_members", &[], 1.0),
            ("config_differs", &[], 0.0),
            ("unowned_partitions", &[], 0.0),
            ("brokers_without_sidecar", &[], 0.0),
            ("state_partitions", &[("state", "loaded")], 4.0),
            ("state_partitions", &[("state", "loading")], 0.0),
        ],
    )
    .await;
    // Four coordinators, the mirror, its topic, and two partitions.
    wait_for(&mut one, &[("state_keys", &[], 8.0)]).await;
    assert!(one.metric("truemirror_group_generation", &[]).await >= 1.0);
    assert!(one.metric("truemirror_group_contact_seconds", &[]).await < 10.0);
    let written = [("outcome", "written")];
    let written = one.metric("truemirror_state_writes_total", &written).await;
    assert!(written >= 2.0, "{written}");
    let status = one.status().await.unwrap();
    assert_eq!(status["sidecar"], "1");
    assert_eq!(status["group"]["may_decide"], true);
    assert!(status["group"]["generation"].as_i64().unwrap() >= 1);
    assert_eq!(status["mirrors"][0]["desired"], "MIRRORING");
    assert_eq!(status["mirrors"][0]["deleting"], false);
    let shown = partition(&status, &topic, 0).unwrap();
    assert_eq!(shown["desired_state"], "MIRRORING");

    // Another with another file, beside a broker that is not there.
    let mut other = sidecar(source, destination, &topic, 9, "max_attempts = 7");
    for daemon in [&mut one, &mut other] {
        let seen: &[Series<'_>] = &[
            ("group_members", &[], 2.0),
            ("config_differs", &[], 1.0),
            ("unowned_partitions", &[], 0.0),
            ("brokers_without_sidecar", &[], 0.0),
            ("state_partitions", &[("state", "loaded")], 4.0),
        ];
        wait_for(daemon, seen).await;
    }
    let status = other.status().await.unwrap();
    let members = status["group"]["members"].as_array().unwrap();
    let shown = |member: &Value| {
        (
            member["sidecar"].clone(),
            member["broker_id"].clone(),
            member["config_differs"].clone(),
        )
    };
    let shown: Vec<_> = members.iter().map(shown).collect();
    assert_eq!(
        shown,
        [
            (json!("1"), json!(1), json!(true)),
            (json!("9"), json!(9), json!(false)),
        ]
    );

    // Its place is kept for a restart, until its session is over.
    one.kill();
    let alone: &[Series<'_>] = &[
        ("group_members", &[], 1.0),
        ("brokers_without_sidecar", &[], 1.0),
    ];
    wait_for(&mut other, alone).await;
}
