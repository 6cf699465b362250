//! Whether the states of mirrors can be kept: the state topic, what we may do with it, and the right to write control
//! records. Must not create or change anything: a creation is only validated.

use std::sync::Arc;

use super::clusters::Reached;
use super::permissions::{
    ALTER, CLUSTER_ACTION, DESCRIBE, DESCRIBE_CONFIGS, READ, WRITE, allowed, grant, missing,
};
use super::report::CheckReport;
use crate::config;
use crate::domain::state_log::{new_configs, unfit_configs};
use crate::kafka::admin::{Configs, NewTopic, create_topic, describe_cluster, describe_configs};
use crate::kafka::contact::chain;
use crate::wire::error_code::ErrorCode;

const TOPIC: &str = "state topic";
const PERMISSIONS: &str = "state topic permissions";
const MARKERS: &str = "right to fence";
const SIDE: &str = "destination";
const LOOK: &str = "look at the destination broker's log";

/// What `stop` does where it may not write control records.
const UNFENCED: &str = "`stop` cannot fence off late appends: it waits for the end of a session instead, and says fenced=false";

/// Looks at the state topic, as it is or as it would be created.
pub(super) async fn topic(state: &config::State, destination: &Reached, report: &mut CheckReport) {
    let name: Arc<str> = state.topic.as_str().into();
    match destination.metadata.topics.get(&name) {
        Some(topic) if topic.error.is_none() => {
            existing(state, &name, topic.partitions.len(), destination, report).await;
        }
        Some(topic) => {
            let look = "look at the topic with kafka-topics.sh --describe";
            report.fail(TOPIC, SIDE, format!("{name}: {}", topic.error), look);
        }
        None => missing_topic(state, &name, destination, report).await,
    }
}

/// A topic of that name is there: is it one that can be used?
async fn existing(
    state: &config::State,
    name: &Arc<str>,
    partitions: usize,
    destination: &Reached,
    report: &mut CheckReport,
) {
    let mut fit = true;
    if i32::try_from(partitions) != Ok(state.partitions) {
        fit = false;
        report.fail(
            TOPIC,
            SIDE,
            format!(
                "{name} has {partitions} partitions, state.partitions is {}",
                state.partitions
            ),
            format!(
                "set state.partitions = {partitions} (the number never changes after the first start), or choose another name \
                 with state.topic"
            ),
        );
    }
    // Where configs may not be read, the row about permissions says so.
    let configs = configs_of(name, destination).await.unwrap_or_default();
    for (key, wanted, found) in unfit_configs(|key| configs.get(key)?.value.clone()) {
        fit = false;
        report.fail(
            TOPIC,
            SIDE,
            format!("{name} has {key}={found}, the state topic needs {key}={wanted}"),
            format!(
                "if it is not used for anything else: kafka-configs.sh --bootstrap-server {} --alter --entity-type topics \
                 --entity-name {name} --add-config {key}={wanted}; else choose another name with state.topic",
                destination.server
            ),
        );
    }
    if fit {
        let policy = configs.get("cleanup.policy");
        let policy = policy.and_then(|policy| policy.value.as_deref());
        let found = match policy {
            Some(policy) => format!("{name}, {partitions} partitions, cleanup.policy={policy}"),
            None => format!("{name}, {partitions} partitions"),
        };
        report.ok(TOPIC, SIDE, found);
    }
    permissions(name, destination, report).await;
}

async fn configs_of(name: &Arc<str>, destination: &Reached) -> Option<Configs> {
    let (_, connection) = destination.brokers.first()?;
    let names = [Arc::clone(name)];
    let described = describe_configs(connection, &names, destination.timeout).await;
    let (_, configs) = described.ok()?.into_iter().next()?;
    configs.ok()
}

/// It would be created at the first start. That is asked for with everything but the deed.
async fn missing_topic(
    state: &config::State,
    name: &Arc<str>,
    destination: &Reached,
    report: &mut CheckReport,
) {
    let Some((_, connection)) = destination.brokers.first() else {
        return;
    };
    let brokers = i16::try_from(destination.metadata.brokers.len()).unwrap_or(i16::MAX);
    let new = NewTopic {
        name: Arc::clone(name),
        partitions: state.partitions,
        replication_factor: state.replication_factor.min(brokers).max(1),
        configs: new_configs(),
    };
    let Err(error) = create_topic(connection, &new, true, destination.timeout).await else {
        report.ok(
            TOPIC,
            SIDE,
            format!(
                "{name} would be created: {} partitions, replication factor {}",
                new.partitions, new.replication_factor
            ),
        );
        return permissions(name, destination, report).await;
    };
    let all = ["Create", "Write", "Read", "Describe", "DescribeConfigs"];
    let (found, remedy) = match error.code() {
        // Brokers leave topics out that we may not know of.
        Some(ErrorCode::TOPIC_ALREADY_EXISTS) => (
            format!("{name} exists, but we may not describe it"),
            grant(
                &destination.server,
                &["Write", "Read", "Describe", "DescribeConfigs"],
                &["--topic", name],
            ),
        ),
        Some(ErrorCode::TOPIC_AUTHORIZATION_FAILED | ErrorCode::CLUSTER_AUTHORIZATION_FAILED) => (
            chain(&error).to_string(),
            grant(&destination.server, &all, &["--topic", name]),
        ),
        Some(ErrorCode::POLICY_VIOLATION) => (
            chain(&error).to_string(),
            "change the destination's create.topic.policy.class.name, or create the topic by hand"
                .to_owned(),
        ),
        _ => (chain(&error).to_string(), LOOK.to_owned()),
    };
    report.fail(TOPIC, SIDE, found, remedy);
}

/// What we may do with it.
async fn permissions(name: &Arc<str>, destination: &Reached, report: &mut CheckReport) {
    let Some((_, connection)) = destination.brokers.first() else {
        return;
    };
    let names = [Arc::clone(name)];
    let allowed = match allowed(connection, &names, destination.timeout).await {
        Ok(allowed) => allowed,
        Err(error) => return report.fail(PERMISSIONS, SIDE, chain(&error).to_string(), LOOK),
    };
    // Of a topic that it may not describe, a broker says nothing.
    let bits = allowed.get(name).copied().unwrap_or_default();
    let command = |operations: &[&str]| grant(&destination.server, operations, &["--topic", name]);
    let lacks = missing(bits, &[WRITE, READ, DESCRIBE]);
    let configs = missing(bits, &[DESCRIBE_CONFIGS]);
    if !lacks.is_empty() {
        let all: Vec<&str> = lacks.into_iter().chain(configs).collect();
        let found = format!("{} is missing for {name}", all.join(", "));
        return report.fail(PERMISSIONS, SIDE, found, command(&all));
    }
    if !configs.is_empty() {
        let found = format!(
            "DescribeConfigs is missing for {name}: that it is compacted cannot be made sure of"
        );
        return report.warn(PERMISSIONS, SIDE, found, command(&configs));
    }
    report.ok(PERMISSIONS, SIDE, "Write, Read, Describe, DescribeConfigs");
}

/// Whether we may write the control records with which `stop` fences off late appends. WriteTxnMarkers asks for ClusterAction,
/// or from Kafka 3.8 on for Alter (KIP-1037), of the cluster.
pub(super) async fn markers(destination: &Reached, report: &mut CheckReport) {
    let Some((_, connection)) = destination.brokers.first() else {
        return;
    };
    // Alter implies Describe, without which a broker does not say what is allowed.
    let command = grant(&destination.server, &["Alter"], &["--cluster"]);
    let remedy = format!("{command} (brokers before Kafka 3.8: ClusterAction)");
    match describe_cluster(connection, destination.timeout).await {
        Ok(answer) => match hindrance(answer.cluster_authorized_operations) {
            None => report.ok(MARKERS, SIDE, "Alter or ClusterAction of the cluster"),
            Some(found) => report.warn(MARKERS, SIDE, found, remedy),
        },
        Err(error) => report.warn(
            MARKERS,
            SIDE,
            format!("{}; without it, {UNFENCED}", chain(&error)),
            remedy,
        ),
    }
}

/// Why we may not write control records, as far as the operations that are allowed tell.
fn hindrance(allowed: i32) -> Option<String> {
    if allowed == i32::MIN || !missing(allowed, &[DESCRIBE]).is_empty() {
        return Some(format!(
            "without Describe of the cluster it is not known whether control records may be written; if not, {UNFENCED}"
        ));
    }
    let neither = missing(allowed, &[ALTER, CLUSTER_ACTION]).len() == 2;
    neither.then(|| format!("neither Alter nor ClusterAction of the cluster: {UNFENCED}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_of_two_rights_is_enough_to_fence_and_silence_is_not_a_right() {
        const DESCRIBED: i32 = 1 << 8;
        for (allowed, words) in [
            (DESCRIBED | 1 << 7, None),
            (DESCRIBED | 1 << 9, None),
            (DESCRIBED, Some("neither Alter")),
            (1 << 9, Some("is not known")),
            (0, Some("is not known")),
            (i32::MIN, Some("is not known")),
        ] {
            let found = hindrance(allowed);
            assert_eq!(found.is_some(), words.is_some(), "{allowed:b}: {found:?}");
            if let (Some(found), Some(words)) = (found, words) {
                assert!(
                    found.contains(words) && found.contains("fenced=false"),
                    "{found}"
                );
            }
        }
    }
}
