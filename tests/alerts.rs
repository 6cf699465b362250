//! The alert rules that we ship: that Prometheus would read them, that they speak of metrics and labels that there are, and
//! that they fire when they should, and only then. Must not need a broker, nor Prometheus.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code: a broken assumption is a failed test"
)]

#[cfg(test)]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use prometheus::TextEncoder;
use regex::Regex;
use serde::Deserialize;
use support::daemon::{Daemon, config};
use support::{poll_until, process};
use truemirror::domain::state::PartitionState;
use truemirror::domain::types::TopicPartition;
use truemirror::metrics::Metrics;

/// Prometheus' rule file, as strict as Prometheus is about unknown keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    lasting: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

fn rules() -> Vec<Rule> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus/alerts.yml");
    let text = std::fs::read_to_string(path).unwrap();
    let file: RuleFile = serde_saphyr::from_str(&text).unwrap();
    let names: BTreeSet<_> = file.groups.iter().map(|group| &group.name).collect();
    assert_eq!(names.len(), file.groups.len(), "a group is there twice");
    file.groups
        .into_iter()
        .flat_map(|group| group.rules)
        .collect()
}

type Labels = BTreeMap<String, String>;

/// One scrape: name, labels, value of each series.
type Scrape = Vec<(String, Labels, f64)>;

fn scrape(metrics: &Metrics) -> Scrape {
    let text = TextEncoder::new()
        .encode_to_string(&metrics.registry().gather())
        .unwrap();
    parse(&text)
}

/// Reads the text of `/metrics`. Values of labels here hold no quotes.
fn parse(text: &str) -> Scrape {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.strip_suffix('}').unwrap();
            (name.to_owned(), labels_of(labels), value.parse().unwrap())
        })
        .collect()
}

/// `a="x",b="y"` as a map.
fn labels_of(text: &str) -> Labels {
    let one = Regex::new(r#"([a-z_]+)="([^"]*)""#).unwrap();
    one.captures_iter(text)
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect()
}

/// One comparison of PromQL.
struct Comparison {
    increase: bool,
    name: String,
    labels: Labels,
    operator: String,
    than: f64,
}

/// Reads the part of PromQL that is used: comparisons of a selector, or of the increase of one, with a number, joined by
/// `and`. Anything else is refused.
fn comparisons(expr: &str) -> Vec<Comparison> {
    let form = Regex::new(
        r#"^(?:(increase)\()?([a-z_]+)(?:\{((?:[a-z_]+="[^"]*",?)*)\})?(?:\[[0-9]+[smh]\]\))? (>|>=|<|<=|==|!=) (-?[0-9.]+)$"#,
    )
    .unwrap();
    expr.split(" and ")
        .map(|part| {
            let found = form.captures(part);
            let found = found.unwrap_or_else(|| panic!("cannot evaluate {part:?}"));
            let increase = found.get(1).is_some();
            assert_eq!(increase, part.contains('['), "{part:?}");
            Comparison {
                increase,
                name: found[2].to_owned(),
                labels: labels_of(found.get(3).map_or("", |labels| labels.as_str())),
                operator: found[4].to_owned(),
                than: found[5].parse().unwrap(),
            }
        })
        .collect()
}

impl Comparison {
    /// The labels of the series for which it is true at the second scrape; an increase is that from the first to the second.
    fn holds_for(&self, before: &Scrape, now: &Scrape) -> BTreeSet<Labels> {
        let selected = |(name, labels, _): &&(String, Labels, f64)| {
            *name == self.name && self.labels.iter().all(|(k, v)| labels.get(k) == Some(v))
        };
        let mut holds = BTreeSet::new();
        for (name, labels, value) in now.iter().filter(selected) {
            let mut value = *value;
            if self.increase {
                // A series needs two samples to have an increase. A counter that fell has begun anew.
                let same = before.iter().find(|one| (&one.0, &one.1) == (name, labels));
                let Some((_, _, first)) = same else { continue };
                value = if value < *first { value } else { value - first };
            }
            let than = self.than;
            let true_of = match self.operator.as_str() {
                ">" => value > than,
                ">=" => value >= than,
                "<" => value < than,
                "<=" => value <= than,
                "==" => value == than,
                _ => value != than,
            };
            if true_of {
                holds.insert(labels.clone());
            }
        }
        holds
    }
}

/// The labels of what an expression finds: `and` keeps those of the left that are on the right as well.
fn evaluate(expr: &str, before: &Scrape, now: &Scrape) -> BTreeSet<Labels> {
    comparisons(expr)
        .iter()
        .map(|comparison| comparison.holds_for(before, now))
        .reduce(|left, right| left.intersection(&right).cloned().collect())
        .unwrap()
}

/// What is measured where all is well.
fn healthy() -> Metrics {
    let metrics = Metrics::new("1").unwrap();
    metrics.count_partitions("m", [PartitionState::Mirroring, PartitionState::Stopped]);
    let partition = |index| metrics.partition("m", &TopicPartition::new("t", index));
    let (mirrored, stopped) = (partition(0), partition(1));
    mirrored.set_state(PartitionState::Mirroring);
    mirrored.lag_seconds.set(60.0);
    stopped.set_state(PartitionState::Stopped);
    stopped.lag_seconds.set(86_400.0);
    let source = &metrics.source_last_contact_seconds;
    source.with_label_values(&["m"]).set(60.0);
    metrics.destination_last_contact_seconds.set(60.0);
    metrics.group_contact_seconds.set(60.0);
    metrics.group_members.set(3);
    metrics.brokers_without_sidecar.set(0);
    metrics.unowned_partitions.set(0);
    metrics.config_differs.set(0);
    metrics.config_last_reload_successful.set(1);
    metrics.show_state_partitions(50, 50);
    metrics.duplicate_answers.inc_by(7);
    metrics
}

/// For each alert, what goes wrong, and the label that tells where, if there is one.
#[expect(clippy::type_complexity, reason = "a table")]
fn faults() -> Vec<(
    &'static str,
    fn(&Metrics),
    Option<(&'static str, &'static str)>,
)> {
    fn lag(metrics: &Metrics, state: PartitionState) {
        let partition = metrics.partition("m", &TopicPartition::new("t", 0));
        partition.set_state(state);
        partition.lag_seconds.set(61.0);
    }
    vec![
        (
            "TruemirrorPartitionFailed",
            |m| m.count_partitions("m", [PartitionState::Failed]),
            Some(("mirror", "m")),
        ),
        (
            "TruemirrorLag",
            |m| lag(m, PartitionState::Mirroring),
            Some(("partition", "0")),
        ),
        (
            "TruemirrorLag",
            |m| lag(m, PartitionState::LogTruncation),
            Some(("topic", "t")),
        ),
        (
            "TruemirrorSourceSilent",
            |m| {
                m.source_last_contact_seconds
                    .with_label_values(&["m"])
                    .set(61.0)
            },
            Some(("mirror", "m")),
        ),
        (
            "TruemirrorDestinationAway",
            |m| m.destination_last_contact_seconds.set(61.0),
            None,
        ),
        (
            "TruemirrorOutsideTheGroup",
            |m| m.group_contact_seconds.set(61.0),
            None,
        ),
        (
            "TruemirrorBrokerWithoutSidecar",
            |m| m.brokers_without_sidecar.set(1),
            None,
        ),
        (
            "TruemirrorPartitionWithoutOwner",
            |m| m.unowned_partitions.set(1),
            None,
        ),
        ("TruemirrorConfigDiffers", |m| m.config_differs.set(1), None),
        (
            "TruemirrorConfigNotReloaded",
            |m| m.config_last_reload_successful.set(0),
            None,
        ),
        (
            "TruemirrorStateNotLoaded",
            |m| m.show_state_partitions(50, 49),
            Some(("state", "loading")),
        ),
        (
            "TruemirrorDuplicateAnswers",
            |m| m.duplicate_answers.inc(),
            None,
        ),
    ]
}

#[test]
fn every_alert_fires_on_its_fault_and_no_other_does() {
    let rules = rules();
    let told: BTreeSet<_> = faults().iter().map(|(alert, _, _)| *alert).collect();
    let written: BTreeSet<_> = rules.iter().map(|rule| rule.alert.as_str()).collect();
    assert_eq!(told, written);
    assert_eq!(written.len(), rules.len(), "an alert is there twice");
    for (alert, fault, place) in faults() {
        let metrics = healthy();
        let before = scrape(&metrics);
        for rule in &rules {
            let fires = evaluate(&rule.expr, &before, &before);
            assert!(fires.is_empty(), "{} fires where all is well", rule.alert);
        }
        fault(&metrics);
        let now = scrape(&metrics);
        for rule in &rules {
            let fires = evaluate(&rule.expr, &before, &now);
            assert_eq!(
                fires.len(),
                usize::from(rule.alert == alert),
                "{} on the fault of {alert}: {fires:?}",
                rule.alert
            );
            if let (Some(labels), Some((label, value))) = (fires.first(), place) {
                assert_eq!(labels[label], value, "{alert}");
            }
        }
    }
}

#[test]
fn alerts_speak_of_metrics_and_labels_that_there_are() {
    // The labels of each metric: those of a series, once each has one.
    let metrics = healthy();
    let labels: BTreeMap<_, _> = scrape(&metrics)
        .into_iter()
        .map(|(name, labels, _)| (name, labels))
        .collect();
    let source = include_str!("../src/metrics.rs");
    let name = Regex::new("truemirror_[a-z_]+").unwrap();
    let label = Regex::new(r"\$labels\.([a-z_]+)").unwrap();
    for rule in rules() {
        let what = &rule.alert;
        let texts: Vec<_> = rule.annotations.values().chain([&rule.expr]).collect();
        for metric in texts.iter().flat_map(|text| name.find_iter(text)) {
            let quoted = format!("\"{}\"", metric.as_str());
            assert!(source.contains(&quoted), "{what}: {quoted}");
        }
        let first = comparisons(&rule.expr).remove(0);
        let known = labels.get(&first.name).unwrap();
        for text in rule.annotations.values() {
            for used in label.captures_iter(text) {
                let scraped = ["instance", "job"].contains(&&used[1]);
                assert!(
                    scraped || known.contains_key(&used[1]),
                    "{what}: {}",
                    &used[0]
                );
            }
        }
    }
}

#[test]
fn alerts_say_how_bad_it_is_and_what_to_do() {
    let duration = Regex::new("^[1-9][0-9]*[smh]$").unwrap();
    let readme = include_str!("../README.md");
    for rule in rules() {
        let what = &rule.alert;
        assert!(duration.is_match(&rule.lasting), "{what}: {}", rule.lasting);
        let severity = rule.labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning")), "{what}");
        let annotations: Vec<_> = rule.annotations.keys().map(String::as_str).collect();
        assert_eq!(annotations, ["description", "summary"], "{what}");
        assert!(rule.annotations["summary"].len() < 120, "{what}");
        assert!(rule.annotations["description"].len() > 100, "{what}");
        assert!(
            readme.contains(&format!("`{what}`")),
            "{what} is not in the README"
        );
    }
}

#[test]
fn the_evaluator_knows_what_it_evaluates() {
    let before = parse("a{x=\"1\"} 5\na{x=\"2\"} 9\nb{x=\"1\"} 0\nc 4\n");
    let now = parse("# TYPE a gauge\na{x=\"1\"} 6\na{x=\"2\"} 9\nb{x=\"1\"} 2\nc 1\nd 1\n");
    for (expr, wanted) in [
        ("a > 5", 2),
        ("a > 6", 1),
        ("a{x=\"1\"} > 5", 1),
        ("a >= 6 and b <= 2", 1),
        ("a > 5 and b > 2", 0),
        ("increase(a[5m]) > 0", 1),
        ("increase(c[5m]) > 0", 1),
        ("increase(d[5m]) >= 0", 0),
        ("missing >= 0", 0),
    ] {
        assert_eq!(evaluate(expr, &before, &now).len(), wanted, "{expr}");
    }
    for unknown in ["rate(a[5m]) > 0", "a > b", "a + 1 > 0", "a > 0 or b > 0"] {
        assert!(
            std::panic::catch_unwind(|| comparisons(unknown)).is_err(),
            "{unknown}"
        );
    }
}

#[tokio::test]
async fn a_daemon_that_reaches_nothing_is_not_loaded_and_alerts_fire_on_what_it_says() {
    let nowhere = || format!("127.0.0.1:{}", process::free_port());
    let mut daemon = Daemon::start(&config(&nowhere(), &nowhere(), &["t"], ""));
    let first = parse(&daemon.metrics().await.unwrap());
    let rules = rules();
    let fires = |alert: &str, now: &Scrape| {
        let rule = rules.iter().find(|rule| rule.alert == alert).unwrap();
        !evaluate(&rule.expr, &first, now).is_empty()
    };
    assert!(fires("TruemirrorStateNotLoaded", &first));
    assert!(!fires("TruemirrorPartitionFailed", &first));
    // Whoever has not been heard of grows older from the start.
    let contact = |scrape: &Scrape| {
        let ages = [
            "group_contact",
            "destination_last_contact",
            "source_last_contact",
        ];
        ages.map(|name| {
            let name = format!("truemirror_{name}_seconds");
            scrape
                .iter()
                .find(|(found, _, _)| *found == name)
                .unwrap()
                .2
        })
    };
    let start = contact(&first);
    poll_until("the ages grow", Duration::from_secs(20), async || {
        let now = contact(&parse(&daemon.metrics().await?));
        if now.iter().zip(&start).all(|(now, start)| now > start) {
            Ok(())
        } else {
            Err(format!("{now:?}"))
        }
    })
    .await;
}
