//! The configuration of a running daemon changes: what is the same goes on untouched, what is wrong changes nothing. Must not restart the
//! daemon.

use std::fs;
use std::time::Duration;

use crate::support::daemon::{Daemon, another_mirror, config, member};
use crate::support::kafka::{KafkaCluster, shared_pair, unique};
use crate::support::poll_until;
use crate::support::process::signal;
use crate::support::producer::records;
use crate::support::steps::{arrives, end, end_of, produce};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

fn second_mirror(source: &KafkaCluster, topic: &str) -> String {
    another_mirror("second", &source.bootstrap(), &[topic])
}

/// Exchanges the file as an editor does, at once.
fn write(daemon: &Daemon, text: &str) {
    let file = daemon.config_file();
    let beside = file.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(&beside, &file).unwrap();
}

fn hang_up(daemon: &Daemon) {
    signal(daemon.pid().unwrap(), "HUP");
}

fn mirror<'s>(status: &'s Value, name: &str) -> Option<&'s Value> {
    let mirrors = status["mirrors"].as_array().unwrap();
    mirrors.iter().find(|mirror| mirror["name"] == name)
}

/// Waits until a mirror, and no other, has these topics, all of their partitions MIRRORING; `None` until it is gone.
async fn wait_has(daemon: &mut Daemon, name: &str, topics: Option<&[&str]>) {
    let what = format!("{name} has {topics:?}");
    daemon
        .wait_until(&what, SOON, |status| {
            let found = mirror(status, name).map(|mirror| {
                let partitions = mirror["partitions"].as_array().unwrap();
                let right = partitions.iter().filter(|one| one["state"] == "MIRRORING");
                let named = right.map(|one| one["topic"].as_str().unwrap());
                let mut named: Vec<&str> = named.collect();
                named.sort_unstable();
                (named, partitions.len())
            });
            let mut topics = topics.map(<[&str]>::to_vec);
            topics.iter_mut().for_each(|topics| topics.sort_unstable());
            found == topics.map(|topics| (topics.clone(), topics.len()))
        })
        .await;
}

async fn wait_said(daemon: &Daemon, words: &[&str], times: usize) {
    poll_until(&format!("the log has {words:?}"), SOON, async || {
        let found = daemon.log_lines_with(words);
        (found.len() == times)
            .then_some(())
            .ok_or_else(|| format!("{found:#?}"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_come_change_and_go_while_the_others_work_on() {
    let (source, destination) = shared_pair().await;
    let [kept, added, wider] =
        ["kept", "added", "wider"].map(|name| unique(&format!("reload-{name}")));
    for topic in [&kept, &added, &wider] {
        source.create_topic(topic, 1, 1, &[]).await;
        produce(source, topic, 0, &records(1, 20)).await;
    }
    let first = config(&source.bootstrap(), &destination.bootstrap(), &[&kept], "");
    let mut daemon = Daemon::start(&first);
    wait_has(&mut daemon, "test", Some(&[&kept])).await;
    let reloaded = "truemirror_config_last_reload_successful";
    let at = "truemirror_config_last_reload_success_timestamp_seconds";
    assert_eq!(daemon.metric(reloaded, &[]).await, 1.0);
    let started = daemon.metric(at, &[]).await;
    assert!(started > 1_700_000_000.0, "{started}");

    // One more, at SIGHUP.
    let two = first.clone() + &second_mirror(source, &added);
    write(&daemon, &two);
    hang_up(&daemon);
    wait_has(&mut daemon, "second", Some(&[&added])).await;
    wait_said(&daemon, &["INFO", "configuration reloaded", "second"], 1).await;
    assert!(daemon.metric(at, &[]).await >= started);
    arrives(source, destination, &[&added]).await;

    // It gets other topics, as soon as the file has changed.
    write(
        &daemon,
        &(first.clone() + &second_mirror(source, &format!("{added}|{wider}"))),
    );
    wait_has(&mut daemon, "second", Some(&[&added, &wider])).await;
    produce(source, &added, 0, &records(2, 20)).await;
    arrives(source, destination, &[&added, &wider]).await;

    // It goes, and what it copied stays. Its series go with it.
    write(&daemon, &first);
    hang_up(&daemon);
    wait_has(&mut daemon, "second", None).await;
    produce(source, &added, 0, &records(3, 20)).await;
    produce(source, &kept, 0, &records(3, 20)).await;
    arrives(source, destination, &[&kept]).await;
    assert_eq!(end_of(destination, &added).await, 40);
    let text = daemon.metrics().await.unwrap();
    assert!(!text.contains("mirror=\"second\""), "{text}");

    // It comes back, and goes on where it was.
    write(&daemon, &two);
    hang_up(&daemon);
    wait_has(&mut daemon, "second", Some(&[&added])).await;
    arrives(source, destination, &[&added]).await;

    // The first never noticed: it looked at its log once, at the start.
    let resumes = daemon.metric_sum("truemirror_resumes_total", &[("mirror", "test")]);
    assert_eq!(resumes.await, 1.0);
    assert_eq!(
        daemon.log_lines_with(&["mirroring", "mirror=test"]).len(),
        1
    );
    let warned = daemon.log_lines_with(&["WARN"]);
    assert!(warned.is_empty(), "{warned:#?}");
    end(&mut daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_with_faults_changes_nothing_and_what_needs_a_restart_is_named() {
    let (source, destination) = shared_pair().await;
    let topic = unique("reload-bad");
    source.create_topic(&topic, 1, 1, &[]).await;
    let good = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "");
    let mut daemon = Daemon::start(&good);
    wait_has(&mut daemon, "test", Some(&[&topic])).await;
    let reloaded = "truemirror_config_last_reload_successful";

    write(
        &daemon,
        &good.replace(
            "[mirror.retry]",
            "[mirror.retry]\nmax_attempts = -1\nmx = 1",
        ),
    );
    hang_up(&daemon);
    wait_said(&daemon, &["ERROR", "not reloaded", "found -1"], 1).await;
    wait_said(&daemon, &["ERROR", "not reloaded", "mirror.retry.mx"], 1).await;
    assert_eq!(daemon.metric(reloaded, &[]).await, 0.0);
    fs::remove_file(daemon.config_file()).unwrap();
    hang_up(&daemon);
    wait_said(&daemon, &["ERROR", "not reloaded", "No such file"], 1).await;
    produce(source, &topic, 0, &records(1, 20)).await;
    arrives(source, destination, &[&topic]).await;

    // A mirror of the destination to itself under another name ends alone.
    let itself = second_mirror(destination, &topic).replace("127.0.0.1", "localhost");
    write(&daemon, &(good.clone() + &itself));
    hang_up(&daemon);
    wait_said(&daemon, &["ERROR", "second", "the same cluster"], 1).await;
    wait_has(&mut daemon, "second", None).await;
    assert_eq!(daemon.metric(reloaded, &[]).await, 1.0);

    write(
        &daemon,
        &(good.clone() + "\n[limits]\nmemory = \"64MiB\"\n"),
    );
    hang_up(&daemon);
    wait_said(&daemon, &["WARN", "restart", "[limits]"], 1).await;
    produce(source, &topic, 0, &records(2, 20)).await;
    arrives(source, destination, &[&topic]).await;
    let resumes = daemon.metric_sum("truemirror_resumes_total", &[("mirror", "test")]);
    assert_eq!(resumes.await, 1.0);
    end(&mut daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_whose_files_differ_for_a_while_see_it_and_lose_nothing() {
    let (source, destination) = shared_pair().await;
    let [topic, later] = ["both", "later"].map(|name| unique(&format!("reload-{name}")));
    for topic in [&topic, &later] {
        source.create_topic(topic, 4, 1, &[]).await;
        for partition in 0..4 {
            produce(source, topic, partition, &records(1, 20)).await;
        }
    }
    let text = config(&source.bootstrap(), &destination.bootstrap(), &[&topic], "");
    let named = |name: &str, text: &str| member(text, name, "");
    let wider = text.clone() + &second_mirror(source, &later);
    let mut one = Daemon::start(&named("one", &text));
    let mut other = Daemon::start(&named("other", &text));
    let wait_differs = async |daemon: &mut Daemon, members: f64, differ: f64| {
        poll_until("the group is seen", SOON, async || {
            let members = (
                daemon.metric("truemirror_group_members", &[]).await,
                members,
            );
            let differs = (
                daemon.metric("truemirror_config_differs", &[]).await,
                differ,
            );
            let right = members.0 == members.1 && differs.0 == differs.1;
            right
                .then_some(())
                .ok_or_else(|| format!("{members:?} {differs:?}"))
        })
        .await;
    };
    for daemon in [&mut one, &mut other] {
        wait_differs(daemon, 2.0, 0.0).await;
    }
    write(&one, &named("one", &wider));
    hang_up(&one);
    for daemon in [&mut one, &mut other] {
        wait_differs(daemon, 2.0, 1.0).await;
    }
    write(&other, &named("other", &wider));
    hang_up(&other);
    for daemon in [&mut one, &mut other] {
        wait_differs(daemon, 2.0, 0.0).await;
    }
    for partition in 0..4 {
        for topic in [&topic, &later] {
            produce(source, topic, partition, &records(2, 20)).await;
        }
    }
    arrives(source, destination, &[&topic, &later]).await;

    // And back: what nobody mirrors any more is given up by both, without a wait.
    for (daemon, name) in [(&one, "one"), (&other, "other")] {
        write(daemon, &named(name, &text));
        hang_up(daemon);
    }
    for daemon in [&mut one, &mut other] {
        wait_differs(daemon, 2.0, 0.0).await;
        wait_has(daemon, "second", None).await;
    }
    for daemon in [&mut one, &mut other] {
        let forced = daemon.log_lines_with(&["WARN"]);
        assert!(forced.is_empty(), "{forced:#?}");
        end(daemon).await;
    }
}
