//! Several sidecars share the work of one destination: they take over from each other, answer for each other, and one that was
//! frozen does no harm. Must not share its machine: it measures how soon records flow again.

use std::time::Duration;

use crate::support::checker::{CheckOptions, assert_equal, wait_for_same_end};
use crate::support::daemon::{Daemon, SHORT_SESSION, config, member, state_topic};
use crate::support::kafka::{KafkaCluster, shared_pair, unique};
use crate::support::operate::{described, done};
use crate::support::poll_until;
use crate::support::process::signal;
use crate::support::producer::{Load, every_partition};
use crate::support::status::{count, partitions};
use crate::support::steps::{all_ends, all_flow, end};

const PARTITIONS: i32 = 12;
const SOON: Duration = Duration::from_secs(60);
/// The shortest that brokers allow by default (`group.min.session.timeout.ms`).
const SESSION: Duration = Duration::from_secs(6);

fn sidecar(source: &KafkaCluster, destination: &KafkaCluster, topic: &str, name: &str) -> Daemon {
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[topic], "");
    Daemon::start(&member(&text, name, SHORT_SESSION))
}

fn load(source: &KafkaCluster, topic: &str) -> Load {
    let partitions = every_partition(topic, PARTITIONS);
    Load::start(&source.bootstrap(), 1_200, &partitions)
}

/// How many partitions a sidecar has, and in which of them it mirrors.
async fn shares(daemon: &mut Daemon) -> (usize, usize) {
    let status = daemon.status().await.unwrap();
    (partitions(&status).len(), count(&status, "MIRRORING"))
}

/// Waits until these sidecars have so many partitions, all of them MIRRORING.
async fn wait_shared(sidecars: &mut [(&mut Daemon, usize)]) {
    poll_until("the work is shared", SOON, async || {
        let mut found = Vec::new();
        for (daemon, wanted) in sidecars.iter_mut() {
            found.push((shares(daemon).await, *wanted));
        }
        let right = found
            .iter()
            .all(|((have, mirroring), wanted)| have == wanted && mirroring == wanted);
        if right {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

/// The states of all partitions, as one sidecar describes them for all.
async fn states(daemon: &mut Daemon) -> Vec<String> {
    let shown = described(daemon).await;
    shown
        .iter()
        .map(|partition| partition["state"].as_str().unwrap_or_default().to_owned())
        .collect()
}

async fn wait_described(daemon: &mut Daemon, state: &str) {
    poll_until(&format!("all {state}"), SOON, async || {
        let states = states(daemon).await;
        let all = states.len() == PARTITIONS as usize && states.iter().all(|found| found == state);
        if all {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_share_the_work_take_over_from_each_other_and_answer_for_each_other() {
    let (source, destination) = shared_pair().await;
    let topic = unique("shared");
    source.create_topic(&topic, PARTITIONS, 1, &[]).await;
    let load = load(source, &topic);
    let mut one = sidecar(source, destination, &topic, "one");
    wait_shared(&mut [(&mut one, 12)]).await;
    let mut other = sidecar(source, destination, &topic, "other");
    wait_shared(&mut [(&mut one, 6), (&mut other, 6)]).await;
    all_flow(destination, &topic).await;
    wait_described(&mut one, "MIRRORING").await;
    wait_described(&mut other, "MIRRORING").await;

    // Half of the partitions are another's, and so is most of their coordination, whoever is asked.
    done(&mut one, &["pause", "--mirror", "test", "--topics", &topic]).await;
    wait_described(&mut other, "PAUSED").await;
    done(
        &mut other,
        &["resume", "--mirror", "test", "--topics", &topic],
    )
    .await;
    wait_described(&mut one, "MIRRORING").await;

    one.kill();
    let taken_over = all_flow(destination, &topic).await;
    eprintln!("a killed sidecar's partitions flow again after {taken_over:?}");
    assert!(
        taken_over < SESSION + Duration::from_secs(5),
        "{taken_over:?}"
    );
    wait_shared(&mut [(&mut other, 12)]).await;
    one.start_again();
    wait_shared(&mut [(&mut one, 6), (&mut other, 6)]).await;

    // A restart within the session: nothing goes to anybody else.
    let ended = other.terminate(Duration::from_secs(10)).await;
    assert_eq!(ended.code(), Some(0));
    other.start_again();
    let back = all_flow(destination, &topic).await;
    eprintln!("a restarted sidecar's partitions flow again after {back:?}");
    assert!(back < Duration::from_secs(4), "{back:?}");
    wait_shared(&mut [(&mut one, 6), (&mut other, 6)]).await;

    load.stop().await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[&topic], SOON).await;
    assert_equal(&from, &to, &[&topic], &CheckOptions::default()).await;
    for daemon in [&one, &other] {
        let failed = daemon.log_lines_with(&["partition FAILED"]);
        assert!(failed.is_empty(), "{failed:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_frozen_before_a_stop_and_continued_after_it_appends_nothing() {
    let (source, destination) = shared_pair().await;
    let topic = unique("zombie");
    source.create_topic(&topic, PARTITIONS, 1, &[]).await;
    let load = load(source, &topic);
    let mut zombie = sidecar(source, destination, &topic, "zombie");
    wait_shared(&mut [(&mut zombie, 12)]).await;
    let mut other = sidecar(source, destination, &topic, "other");
    wait_shared(&mut [(&mut zombie, 6), (&mut other, 6)]).await;
    all_flow(destination, &topic).await;
    signal(zombie.pid().unwrap(), "STOP");
    wait_shared(&mut [(&mut other, 12)]).await;
    done(&mut other, &["stop", "--mirror", "test", "--all", "--yes"]).await;
    other
        .wait_until("all STOPPED", SOON, |status| count(status, "STOPPED") == 12)
        .await;
    let stopped = all_ends(destination, &topic).await;
    signal(zombie.pid().unwrap(), "CONT");
    // It has had its chance once it knows that nothing is to be mirrored.
    zombie
        .wait_until("the frozen one knows", SOON, |status| {
            count(status, "MIRRORING") == 0 && count(status, "STOPPED") == partitions(status).len()
        })
        .await;
    assert_eq!(all_ends(destination, &topic).await, stopped);
    let counts = load.stop().await;
    assert!(
        counts
            .last_offset
            .values()
            .zip(stopped.values())
            .any(|(last, end)| last > end),
        "there was more to append"
    );
    assert_eq!(all_ends(destination, &topic).await, stopped);
}

/// Waits until each of them has said once per id that the state topic was deleted, and everybody has the states again.
async fn wait_restored(sidecars: &mut [&mut Daemon], deletions: usize) {
    poll_until("the states are written anew", SOON, async || {
        for daemon in sidecars.iter_mut() {
            let said = daemon.log_lines_with(&["ERROR", "state topic was deleted"]);
            assert!(said.len() <= deletions, "{said:#?}");
            let (ready, words) = daemon.get("/readyz").await?;
            if said.len() < deletions || ready != 200 {
                return Err(format!("{ready} {words} {said:#?}"));
            }
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_topic_that_is_deleted_or_replaced_is_filled_by_those_who_know_what_it_said() {
    let (source, destination) = shared_pair().await;
    let topic = unique("stateless");
    source.create_topic(&topic, PARTITIONS, 1, &[]).await;
    let load = load(source, &topic);
    let mut one = sidecar(source, destination, &topic, "one");
    let mut other = sidecar(source, destination, &topic, "other");
    wait_shared(&mut [(&mut one, 6), (&mut other, 6)]).await;
    all_flow(destination, &topic).await;
    let state = state_topic(&[&topic]);

    // Whoever notices it second finds the topic there already.
    destination.delete_topic(&state).await;
    let flowing = all_flow(destination, &topic).await;
    eprintln!("records flow {flowing:?} after the state topic was deleted");
    wait_restored(&mut [&mut one, &mut other], 1).await;
    wait_described(&mut one, "MIRRORING").await;
    wait_described(&mut other, "MIRRORING").await;

    // Somebody else makes it anew, so fast that nobody sees that it was gone.
    done(&mut one, &["pause", "--mirror", "test", "--topics", &topic]).await;
    wait_described(&mut other, "PAUSED").await;
    let paused_at = all_ends(destination, &topic).await;
    destination.delete_topic(&state).await;
    let configs = [
        ("cleanup.policy", "compact"),
        ("message.timestamp.type", "CreateTime"),
    ];
    destination.create_topic(&state, 4, 1, &configs).await;
    wait_restored(&mut [&mut one, &mut other], 2).await;
    for daemon in [&mut one, &mut other] {
        end(daemon).await;
        daemon.start_again();
    }
    wait_described(&mut one, "PAUSED").await;
    assert_eq!(all_ends(destination, &topic).await, paused_at);
    done(
        &mut other,
        &["resume", "--mirror", "test", "--topics", &topic],
    )
    .await;
    wait_described(&mut one, "MIRRORING").await;
    all_flow(destination, &topic).await;

    load.stop().await;
    let (from, to) = (source.bootstrap(), destination.bootstrap());
    wait_for_same_end(&from, &to, &[&topic], SOON).await;
    assert_equal(&from, &to, &[&topic], &CheckOptions::default()).await;
    for daemon in [&one, &other] {
        let failed = daemon.log_lines_with(&["partition FAILED"]);
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
