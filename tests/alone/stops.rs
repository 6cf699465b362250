//! How soon hundreds of partitions are ordinary ones: the source lives, is dead, or has been since before a restart.

use std::time::Duration;

use serde_json::Value;

use crate::support::daemon::{Daemon, config};
use crate::support::kafka::{ClusterOptions, KafkaCluster, unique};
use crate::support::poll_until;
use crate::support::producer::{Load, records};
use crate::support::proxy::Mode;
use crate::support::status::{partitions, scaled};
use crate::support::steps::{all_ends, produce, restart, stop_and_time};

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn stops_under_load_are_quick_with_a_live_source_and_with_a_dead_one() {
    const QUICK: Duration = Duration::from_secs(3);
    let width: i32 = scaled(40, 200);
    let source = &KafkaCluster::start(ClusterOptions::new("source").proxied()).await;
    let destination = &KafkaCluster::start(ClusterOptions::new("destination")).await;
    let topics: Vec<String> = ["live", "dead", "restarted"]
        .iter()
        .map(|name| unique(name))
        .collect();
    let names: Vec<&str> = topics.iter().map(String::as_str).collect();
    for topic in &names {
        source.create_topic(topic, width, 1, &[]).await;
    }
    let all: Vec<(String, i32)> = topics
        .iter()
        .flat_map(|topic| (0..width).map(move |p| (topic.clone(), p)))
        .collect();
    let load = Load::start(&source.direct_bootstrap(), 1_000, &all);
    let (from, to) = (source.bootstrap(), destination.direct_bootstrap());
    let mut daemon = Daemon::start(&config(&from, &to, &names, ""));
    // And in step with the load: how long a first copy takes is not the question.
    daemon
        .wait_until("all are MIRRORING", SOON, |status| {
            let in_step = |one: &&Value| {
                one["state"] == "MIRRORING" && one["lag_records"].as_i64().is_some_and(|n| n < 10)
            };
            partitions(status).iter().filter(in_step).count() == all.len()
        })
        .await;
    let [live, dead, restarted] = &*names else {
        panic!("three topics");
    };
    let count = width as usize;
    let mut took = vec![stop_and_time(&mut daemon, live, count).await];
    source.proxy().set_mode_of_all(Mode::Refuse);
    took.push(stop_and_time(&mut daemon, dead, count).await);
    restart(&mut daemon).await;
    poll_until("ready", SOON, async || {
        match daemon.get("/readyz").await? {
            (200, _) => Ok(()),
            (code, words) => Err(format!("{code}: {words}")),
        }
    })
    .await;
    took.push(stop_and_time(&mut daemon, restarted, count).await);
    eprintln!(
        "{width} partitions STOPPED under load: source alive {:?}, dead {:?}, dead and restarted {:?}",
        took[0], took[1], took[2]
    );
    load.stop().await;
    let fenced = daemon.log_lines_with(&[" stopped ", "fenced=true"]);
    assert_eq!(fenced.len(), all.len());
    assert!(took.iter().all(|took| *took < QUICK), "{took:?}");
    for topic in &names {
        let ended = all_ends(destination, topic).await;
        produce(destination, topic, 0, &records(5, 1)).await;
        let mut now = all_ends(destination, topic).await;
        *now.get_mut(&0).unwrap() -= 1;
        assert_eq!(now, ended, "writable, and nothing else comes");
    }
}
