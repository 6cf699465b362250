//! States of mirrored partitions on real Kafka: operators' commands, what survives a restart, and what stands in the state topic.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::checker::{CheckOptions, assert_equal, read_all, wait_for_same_end};
use crate::support::daemon::{Daemon, config, state_topic};
use crate::support::kafka::{ConfigOf, shared_pair, unique};
use crate::support::operate::{delete_when_restored, done, operate, refused, text};
use crate::support::poll_until;
use crate::support::producer::{Load, records};
use crate::support::status::{is_in, partition, reason, wait_failed, wait_mirrored};
use crate::support::steps::{end_of, produce, restart, start, wait_in};
use serde_json::Value;
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn s13_a_paused_topic_stands_still_over_restarts_until_it_is_resumed() {
    let (source, destination) = shared_pair().await;
    let (paused, other) = (unique("paused"), unique("other"));
    for topic in [&paused, &other] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, 100)).await;
    }
    let mut daemon = start(source, destination, &[&paused, &other]);
    for topic in [&paused, &other] {
        wait_mirrored(&mut daemon, topic, 0, SOON).await;
    }
    let said = done(
        &mut daemon,
        &[
            "pause",
            "--mirror",
            "test",
            "--topics",
            &paused,
            "--dry-run",
        ],
    )
    .await;
    assert!(said.contains(&paused), "{said}");
    assert!(is_in(
        &daemon.status().await.unwrap(),
        &paused,
        0,
        "MIRRORING"
    ));
    done(
        &mut daemon,
        &["pause", "--mirror", "test", "--topics", &paused],
    )
    .await;
    wait_in(&mut daemon, &paused, 0, "PAUSED").await;
    // Once more is no fault.
    done(
        &mut daemon,
        &["pause", "--mirror", "test", "--topics", &paused],
    )
    .await;
    restart(&mut daemon).await;
    for topic in [&paused, &other] {
        produce(source, topic, 0, &records(2, 50)).await;
    }
    wait_in(&mut daemon, &paused, 0, "PAUSED").await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[&other], SOON).await;
    assert_eq!(end_of(destination, &paused).await, 100);
    let shown = done(&mut daemon, &["describe", "--mirror", "test", "--json"]).await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let shown = shown.as_array().unwrap();
    let one = shown.iter().find(|p| p["topic"] == *paused).unwrap();
    assert_eq!(one["state"], "PAUSED", "{one}");
    done(
        &mut daemon,
        &["resume", "--mirror", "test", "--topics", &paused],
    )
    .await;
    wait_for_same_end(&from, &to, &[&paused], SOON).await;
    wait_in(&mut daemon, &paused, 0, "MIRRORING").await;
    assert_equal(&from, &to, &[&paused, &other], &CheckOptions::default()).await;
    assert_eq!(
        daemon.metric_sum("truemirror_failures_total", &[]).await,
        0.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_topic_has_everything_is_writable_and_has_its_own_configs_back() {
    let (source, destination) = shared_pair().await;
    let topic = unique("stopped");
    let own = [
        ("retention.ms", "86400000"),
        ("max.message.bytes", "2000000"),
    ];
    source.create_topic(&topic, 1, 1, &own).await;
    produce(source, &topic, 0, &records(1, 100)).await;
    let mut daemon = start(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    let held = destination
        .describe_config(&ConfigOf::Topic(topic.clone()))
        .await;
    assert_eq!(held["retention.ms"], "-1");
    let load = Load::start(&source.bootstrap(), 500, &[(topic.clone(), 0)]);
    poll_until("records flow", SOON, async || match load.delivered() {
        0 => Err("none".into()),
        _ => Ok(()),
    })
    .await;
    let asked = Instant::now();
    let before = load.delivered() + 100;
    let output = operate(
        &mut daemon,
        &["stop", "--mirror", "test", "--topics", &topic],
    )
    .await;
    assert_eq!(
        output.status.code(),
        Some(2),
        "without --yes: {}",
        text(&output.stderr)
    );
    done(
        &mut daemon,
        &["stop", "--mirror", "test", "--topics", &topic, "--yes"],
    )
    .await;
    wait_in(&mut daemon, &topic, 0, "STOPPED").await;
    eprintln!("stopped within {:?} under load", asked.elapsed());
    load.stop().await;
    let end = end_of(destination, &topic).await;
    assert!(
        end > before as i64,
        "{end} is not beyond the {before} records of before"
    );
    // The fence is a control record: nobody sees it, and it is the last offset.
    let visible = read_all(&destination.bootstrap(), &topic, "read_committed").await;
    assert_eq!(visible.len() as i64, end - 1);
    let theirs = read_all(&source.bootstrap(), &topic, "read_committed").await;
    let foreign: Vec<_> = visible
        .iter()
        .filter(|line| !theirs.contains(line))
        .collect();
    assert!(foreign.is_empty(), "{foreign:#?}");
    // What an ordinary topic with these configs has.
    let ordinary = unique("ordinary");
    destination.create_topic(&ordinary, 1, 1, &own).await;
    let wanted = destination
        .describe_config(&ConfigOf::Topic(ordinary))
        .await;
    assert!(own.iter().all(|(key, value)| wanted[*key] == *value));
    poll_until("its configs are its own", SOON, async || {
        let found = destination
            .describe_config(&ConfigOf::Topic(topic.clone()))
            .await;
        (found == wanted)
            .then_some(())
            .ok_or_else(|| format!("{found:?}"))
    })
    .await;
    produce(destination, &topic, 0, &records(3, 10)).await;
    assert_eq!(end_of(destination, &topic).await, end + 10);
    restart(&mut daemon).await;
    wait_in(&mut daemon, &topic, 0, "STOPPED").await;
    refused(
        &mut daemon,
        &["pause", "--mirror", "test", "--topics", &topic],
        "MIRROR_TOPIC_BEING_STOPPED",
    )
    .await;
    assert_eq!(end_of(destination, &topic).await, end + 10);
}

/// Waits until it is written down that the only FAILED partition is so for good, with at least this state epoch; which it is.
async fn failed_at_epoch(daemon: &mut Daemon, least: i64) -> i64 {
    poll_until("it is written down", SOON, async || {
        let shown = done(daemon, &["describe", "--failed", "--json"]).await;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let one = &shown[0];
        let epoch = one["stateEpoch"].as_i64().filter(|epoch| *epoch >= least);
        epoch
            .filter(|_| one["retryAttempt"] == -1)
            .ok_or_else(|| shown.to_string())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_and_its_reason_survive_a_restart_and_recover_brings_the_partition_back() {
    let (source, destination) = shared_pair().await;
    let topic = unique("foreign");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    produce(destination, &topic, 0, &records(9, 1)).await;
    produce(source, &topic, 0, &records(2, 10)).await;
    let why = wait_failed(&mut daemon, &topic, 0, &["another writer"], SOON).await;
    let written = failed_at_epoch(&mut daemon, 3).await;
    restart(&mut daemon).await;
    let status = wait_in(&mut daemon, &topic, 0, "FAILED").await;
    assert_eq!(reason(&status, &topic, 0), why);
    assert_eq!(partition(&status, &topic, 0).unwrap()["permanent"], true);
    // Without its cause gone it fails again, for what it finds now.
    done(
        &mut daemon,
        &["recover", "--mirror", "test", "--topics", &topic],
    )
    .await;
    wait_failed(&mut daemon, &topic, 0, &["offset 10"], SOON).await;
    let written = failed_at_epoch(&mut daemon, written + 2).await;
    destination.delete_topic(&topic).await;
    wait_failed(&mut daemon, &topic, 0, &["was deleted"], SOON).await;
    failed_at_epoch(&mut daemon, written + 1).await;
    done(
        &mut daemon,
        &["recover", "--mirror", "test", "--topics", &topic],
    )
    .await;
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    assert_equal(&from, &to, &[&topic], &CheckOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_is_deleted_only_when_all_is_stopped_and_nothing_is_left_of_it() {
    let (source, destination) = shared_pair().await;
    let topic = unique("deleted");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 10)).await;
    let mut daemon = start(source, destination, &[&topic]);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    let delete = ["delete", "--mirror", "test"];
    refused(&mut daemon, &delete, "CLUSTER_MIRROR_NOT_EMPTY").await;
    refused(
        &mut daemon,
        &["delete", "--mirror", "nobody"],
        "UNKNOWN_CLUSTER_MIRROR",
    )
    .await;
    done(&mut daemon, &["stop", "--mirror", "test", "--all", "--yes"]).await;
    wait_in(&mut daemon, &topic, 0, "STOPPED").await;
    delete_when_restored(&mut daemon).await;
    let state = state_topic(&[&topic]);
    poll_until("only tombstones are left", SOON, async || {
        let lines = read_all(&destination.bootstrap(), &state, "read_committed").await;
        // The last record of a key counts.
        let mut last: BTreeMap<String, (i64, bool)> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.contains(&topic)) {
            let (_, rest) = line.split_once(": offset ").unwrap();
            let (offset, rest) = rest.split_once(',').unwrap();
            let (_, rest) = rest.split_once("key ").unwrap();
            let (key, value) = rest.split_once(", value ").unwrap();
            let found = (offset.parse().unwrap(), value.starts_with("null"));
            let known = last.entry(key.to_owned()).or_insert(found);
            *known = found.max(*known);
        }
        if !last.is_empty() && last.values().all(|(_, removed)| *removed) {
            Ok(())
        } else {
            Err(format!("{last:#?}"))
        }
    })
    .await;
    let end = end_of(destination, &topic).await;
    produce(source, &topic, 0, &records(2, 10)).await;
    restart_without_its_mirror(&mut daemon, &topic).await;
    let listed = done(&mut daemon, &["list"]).await;
    assert!(!listed.contains(&topic), "{listed}");
    assert_eq!(end_of(destination, &topic).await, end);
}

/// Starts it again with another topic in its file, under the same state topic.
async fn restart_without_its_mirror(daemon: &mut Daemon, topic: &str) {
    let file = daemon.config_file();
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace(
            &format!("include = [\"{topic}\"]"),
            "include = [\"nothing\"]",
        ),
    )
    .unwrap();
    restart(daemon).await;
    poll_until("ready", SOON, async || {
        match daemon.get("/readyz").await? {
            (200, _) => Ok(()),
            (code, words) => Err(format!("{code}: {words}")),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_used_for_something_else_is_not_taken_for_the_state_topic() {
    let (source, destination) = shared_pair().await;
    let topic = unique("else");
    source.create_topic(&topic, 1, 1, &[]).await;
    let state = state_topic(&[&topic]);
    let others = [("cleanup.policy", "delete")];
    destination.create_topic(&state, 4, 1, &others).await;
    let mut daemon = start(source, destination, &[&topic]);
    poll_until("it is said", SOON, async || {
        let said =
            daemon.log_lines_with(&["ERROR", "cleanup.policy=delete", "cleanup.policy=compact"]);
        (said.len() == 1)
            .then_some(())
            .ok_or_else(|| format!("{said:?}"))
    })
    .await;
    assert_eq!(daemon.get("/readyz").await.unwrap().0, 503);
    let compact = [("cleanup.policy", Some("compact"))];
    destination
        .alter_config(&ConfigOf::Topic(state), &compact)
        .await;
    wait_in(&mut daemon, &topic, 0, "MIRRORING").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s15_mirrors_in_a_circle_are_refused_and_the_first_goes_on() {
    let (source, destination) = shared_pair().await;
    let topic = unique("circle");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 20)).await;
    let mut first = start(source, destination, &[&topic]);
    wait_mirrored(&mut first, &topic, 0, SOON).await;
    let mut second = start(destination, source, &[&topic]);
    wait_failed(&mut second, &topic, 0, &["mirror loop", "test"], SOON).await;
    produce(source, &topic, 0, &records(2, 20)).await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[&topic], SOON).await;
    assert_eq!(end_of(source, &topic).await, 40);
    wait_in(&mut first, &topic, 0, "MIRRORING").await;
    assert_equal(&from, &to, &[&topic], &CheckOptions::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_two_mirrors_want_is_had_by_one() {
    let (source, destination) = shared_pair().await;
    let topic = unique("wanted");
    source.create_topic(&topic, 1, 1, &[]).await;
    produce(source, &topic, 0, &records(1, 20)).await;
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "");
    let mirror = text.split("[[mirror]]").nth(1).unwrap();
    let twice = format!(
        "{text}\n[[mirror]]{}",
        mirror.replace("\"test\"", "\"zest\"")
    );
    let mut daemon = Daemon::start(&twice);
    wait_mirrored(&mut daemon, &topic, 0, SOON).await;
    daemon
        .wait_until("the other is refused", SOON, |status| {
            let errors = status["mirrors"][1]["topic_errors"].to_string();
            errors.contains("mirror test mirrors this topic")
        })
        .await;
    produce(source, &topic, 0, &records(2, 20)).await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[&topic], SOON).await;
    assert_equal(&from, &to, &[&topic], &CheckOptions::default()).await;
}
