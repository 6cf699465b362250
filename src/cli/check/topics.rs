//! Whether the topics of one mirror can be mirrored: which match, what they are like on both sides, what we may do with
//! them. Must not create or change anything: a creation is only validated.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;

use super::clusters::Reached;
use super::permissions::{
    ALTER, ALTER_CONFIGS, DELETE, DESCRIBE, DESCRIBE_CONFIGS, Operation, READ, WRITE, allowed,
    grant, missing,
};
use super::report::{CheckReport, some};
use crate::config::{Mirror, NamePatterns};
use crate::domain::desired::{Policy, SourceConfigs, Step, creation, may_be_mirrored, next_step};
use crate::domain::recreate::OnDivergence;
use crate::kafka::admin::{
    ConfigSource, Configs, NewTopic, Refusal, create_topic, describe_configs,
};
use crate::kafka::cluster::{Lane, Metadata, TopicMetadata};
use crate::kafka::connection::RequestError;
use crate::kafka::contact::chain;
use crate::wire::error_code::ErrorCode;

/// Topics of one DescribeConfigs.
const DESCRIBED_AT_ONCE: usize = 100;

/// Creations that are validated at most, and at the same time.
const VALIDATED: usize = 50;
const VALIDATED_AT_ONCE: usize = 4;

/// Looks at every topic that the mirror's filter matches.
pub(super) async fn check(
    mirror: &Mirror,
    source: &Reached,
    destination: &Reached,
    report: &mut CheckReport,
) {
    let label = mirror.name.as_str();
    let matched = matching(mirror, &source.metadata, report);
    let names: Vec<Arc<str>> = matched.keys().cloned().collect();
    report.ok(
        "topics",
        label,
        match names.len() {
            0 => "none matches".to_owned(),
            count => format!("{count} match: {}", some(&names)),
        },
    );
    replication(mirror, destination, report);
    if names.is_empty() {
        return;
    }
    permissions(mirror, source, destination, &matched, report).await;
    let configs = match source_configs(source, &names).await {
        Ok(configs) => configs,
        Err(error) => {
            let look = "look at the source broker's log";
            return report.fail("topic configs", label, chain(&error).to_string(), look);
        }
    };
    let mut creatable = Vec::new();
    for (name, topic) in &matched {
        let source_configs = match configs.get(name) {
            Some(Ok(configs)) => configs,
            Some(Err(refusal)) => {
                let command = grant(&source.server, &["DescribeConfigs"], &["--topic", name]);
                report.fail(
                    "topic configs",
                    label,
                    format!("{name}: {refusal}"),
                    command,
                );
                continue;
            }
            None => continue,
        };
        nature(name, source_configs, label, report);
        let partitions = count(topic);
        match next_step(partitions, destination.metadata.topics.get(name).map(count)) {
            Step::Create => creatable.push((Arc::clone(name), partitions, source_configs)),
            Step::Refuse { reason } => {
                report.fail(
                    "partitions",
                    label,
                    format!("{name}: {reason}"),
                    "see there",
                );
            }
            Step::Grow { .. } | Step::Nothing => {}
        }
    }
    validate(mirror, destination, creatable, report).await;
}

fn count(topic: &TopicMetadata) -> i32 {
    i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX)
}

/// The topics that will be mirrored, and a row for everything the filter names in vain.
fn matching(
    mirror: &Mirror,
    source: &Metadata,
    report: &mut CheckReport,
) -> BTreeMap<Arc<str>, TopicMetadata> {
    let label = mirror.name.as_str();
    let filter = &mirror.topics.filter;
    for text in filter.include.texts() {
        let mut pattern = NamePatterns::default();
        let hit =
            pattern.push(text).is_ok() && source.topics.keys().any(|name| pattern.matches(name));
        if !hit {
            report.warn(
                "topics",
                label,
                format!("include {text:?} matches no topic of the source"),
                "nothing if it is created later; else correct the pattern (it must match whole names), or grant Describe",
            );
        }
    }
    let named = source
        .topics
        .iter()
        .filter(|(name, _)| filter.matches(name));
    let mut matched = BTreeMap::new();
    for (name, topic) in named {
        if !may_be_mirrored(name, topic.is_internal) {
            report.warn(
                "topics",
                label,
                format!("{name} is an internal topic and left out"),
                "add it to mirror.topics.exclude to be rid of this line",
            );
        } else if !topic.error.is_none() {
            let look = "look at the topic with kafka-topics.sh --describe";
            report.fail("topics", label, format!("{name}: {}", topic.error), look);
        } else {
            matched.insert(Arc::clone(name), topic.clone());
        }
    }
    matched
}

fn replication(mirror: &Mirror, destination: &Reached, report: &mut CheckReport) {
    const CHECK: &str = "replication factor";
    let label = mirror.name.as_str();
    let wanted = mirror.topics.replication_factor;
    let brokers = destination.metadata.brokers.len();
    if wanted < 0 {
        return report.ok(
            CHECK,
            label,
            format!("the destination's default, {brokers} brokers"),
        );
    }
    if usize::try_from(wanted).is_ok_and(|wanted| wanted > brokers) {
        return report.fail(
            CHECK,
            label,
            format!("{wanted} wanted, the destination has {brokers} brokers"),
            "start more brokers, or lower mirror.topics.replication_factor",
        );
    }
    report.ok(CHECK, label, format!("{wanted} of {brokers} brokers"));
}

async fn permissions(
    mirror: &Mirror,
    source: &Reached,
    destination: &Reached,
    matched: &BTreeMap<Arc<str>, TopicMetadata>,
    report: &mut CheckReport,
) {
    let label = mirror.name.as_str();
    let all: Vec<Arc<str>> = matched.keys().cloned().collect();
    let to_read = [READ, DESCRIBE, DESCRIBE_CONFIGS];
    may(source, "source permissions", label, &all, &to_read, report).await;

    let there = |name: &Arc<str>| destination.metadata.topics.get(name);
    let (growing, settled): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|name| there(name).is_some())
        .partition(|name| {
            let wanted = matched.get(name).map_or(0, count);
            let step = next_step(wanted, there(name).map(count));
            matches!(step, Step::Grow { .. })
        });
    let mut to_write = vec![WRITE, READ, DESCRIBE, ALTER_CONFIGS, DESCRIBE_CONFIGS];
    if mirror.policy.on_divergence == OnDivergence::Recreate {
        to_write.push(DELETE);
    }
    let to_grow = [to_write.as_slice(), &[ALTER]].concat();
    const CHECK: &str = "destination permissions";
    may(destination, CHECK, label, &settled, &to_write, report).await;
    may(destination, CHECK, label, &growing, &to_grow, report).await;
}

/// Whether `needed` is allowed for `topics`; those that lack the same share a row.
async fn may(
    cluster: &Reached,
    check: &str,
    label: &str,
    topics: &[Arc<str>],
    needed: &[Operation],
    report: &mut CheckReport,
) {
    if topics.is_empty() {
        return;
    }
    let look = "look at the broker's log";
    let connection = match cluster.cluster.any(Lane::Control).await {
        Ok(connection) => connection,
        Err(error) => return report.fail(check, label, chain(&error).to_string(), look),
    };
    let allowed = match allowed(&connection, topics, cluster.timeout).await {
        Ok(allowed) => allowed,
        Err(error) => return report.fail(check, label, chain(&error).to_string(), look),
    };
    let mut lacking: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
    for topic in topics {
        let lacks = allowed
            .get(topic)
            .map(|bits| missing(*bits, needed))
            .filter(|lacks| !lacks.is_empty());
        if let Some(lacks) = lacks {
            lacking.entry(lacks).or_default().push(topic);
        }
    }
    if lacking.is_empty() {
        let names: Vec<&str> = needed.iter().map(|(name, _)| *name).collect();
        let found = format!("{}; topics: {}", names.join(", "), topics.len());
        return report.ok(check, label, found);
    }
    for (operations, topics) in lacking {
        let resources: Vec<&str> = topics.iter().flat_map(|topic| ["--topic", topic]).collect();
        report.fail(
            check,
            label,
            format!("{} is missing for {}", operations.join(", "), some(&topics)),
            grant(&cluster.server, &operations, &resources),
        );
    }
}

async fn source_configs(
    source: &Reached,
    names: &[Arc<str>],
) -> Result<BTreeMap<Arc<str>, Result<Configs, Refusal>>, RequestError> {
    let mut found = BTreeMap::new();
    let Some((_, connection)) = source.brokers.first() else {
        return Ok(found);
    };
    for some in names.chunks(DESCRIBED_AT_ONCE) {
        found.extend(describe_configs(connection, some, source.timeout).await?);
    }
    Ok(found)
}

/// What kind of topic it is, as far as that matters.
fn nature(name: &str, configs: &Configs, label: &str, report: &mut CheckReport) {
    let value = |key: &str| configs.get(key).and_then(|entry| entry.value.as_deref());
    if value("message.timestamp.type") == Some("LogAppendTime") {
        report.fail(
            "timestamps",
            label,
            format!("{name} has message.timestamp.type=LogAppendTime; only CreateTime topics are mirrored"),
            "set CreateTime at the source and let old records expire, or exclude the topic",
        );
    }
    if value("cleanup.policy").is_some_and(|policy| policy.contains("compact")) {
        report.warn(
            "compaction",
            label,
            format!("{name} is compacted: a log with holes is not mirrored"),
            "exclude the topic if its log was cleaned already",
        );
    }
    if value("remote.storage.enable") == Some("true") {
        report.warn(
            "tiered storage",
            label,
            format!("{name} has remote.storage.enable=true; the copy is not tiered"),
            "plan the destination's disks for the whole topic",
        );
    }
}

/// Asks the destination whether it would create the topics: rights, replication factor, configs and policies at once.
async fn validate(
    mirror: &Mirror,
    destination: &Reached,
    topics: Vec<(Arc<str>, i32, &Configs)>,
    report: &mut CheckReport,
) {
    const CHECK: &str = "topic creation";
    let label = mirror.name.as_str();
    let Some((_, connection)) = destination.brokers.first() else {
        return;
    };
    if topics.is_empty() {
        return;
    }
    let total = topics.len();
    let exclude = |key: &str| mirror.topics.config_exclude.matches(key);
    let mut wanted = Vec::new();
    for (name, partitions, configs) in topics.into_iter().take(VALIDATED) {
        let policy = Policy {
            config_exclude: &exclude,
            replication_factor: mirror.topics.replication_factor,
        };
        let creation = creation(partitions, &plain(configs), policy);
        wanted.push(NewTopic {
            name,
            partitions: creation.partitions,
            replication_factor: creation.replication_factor,
            configs: creation.configs.into_iter().collect(),
        });
    }
    let tried = wanted.len();
    let mut answers = stream::iter(wanted)
        .map(|topic| async move {
            let answer = create_topic(connection, &topic, true, destination.timeout).await;
            (topic.name, answer)
        })
        .buffered(VALIDATED_AT_ONCE);
    let mut good = 0_usize;
    while let Some((name, answer)) = answers.next().await {
        let Err(error) = answer else {
            good = good.saturating_add(1);
            continue;
        };
        let remedy = match error.code() {
            Some(
                ErrorCode::TOPIC_AUTHORIZATION_FAILED | ErrorCode::CLUSTER_AUTHORIZATION_FAILED,
            ) => {
                let operations = [
                    "Create", "Write", "Read", "Describe", "AlterConfigs", "DescribeConfigs",
                ];
                grant(&destination.server, &operations, &["--topic", &name])
            }
            Some(ErrorCode::INVALID_CONFIG) => {
                "name the key in mirror.topics.config_exclude".to_owned()
            }
            Some(ErrorCode::INVALID_REPLICATION_FACTOR) => {
                "start more brokers, or set mirror.topics.replication_factor".to_owned()
            }
            Some(ErrorCode::POLICY_VIOLATION) => {
                "change the destination's create.topic.policy.class.name, or create the topic by hand".to_owned()
            }
            _ => "look at the destination broker's log".to_owned(),
        };
        report.fail(CHECK, label, chain(&error).to_string(), remedy);
    }
    if good > 0 {
        let untried = total.saturating_sub(tried);
        let more = if untried == 0 {
            String::new()
        } else {
            format!(" ({untried} more were not tried)")
        };
        report.ok(
            CHECK,
            label,
            format!("the destination would create {good} of {total} missing topics{more}"),
        );
    }
}

fn plain(configs: &Configs) -> SourceConfigs {
    let mut plain = SourceConfigs::default();
    for (key, entry) in configs {
        let Some(value) = &entry.value else {
            continue;
        };
        if entry.source == ConfigSource::TOPIC {
            plain.own.insert(Arc::clone(key), Arc::clone(value));
        }
        plain.effective.insert(Arc::clone(key), Arc::clone(value));
    }
    plain
}
