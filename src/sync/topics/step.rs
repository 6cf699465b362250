//! One step for one topic: create or widen it at the destination, or put its held configs in force. Asks and changes the
//! clusters as `domain::desired` says; must not decide when to try again, or keep anything.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::info;

use crate::config::NamePatterns;
use crate::coordinator::{Handle, Unavailable};
use crate::domain::desired::{
    Policy, SourceConfigs, Step, Values, creation, held_configs, max_message_bytes, missing_holds,
    next_step, restored_configs,
};
use crate::domain::recreate::OnDivergence;
use crate::domain::state_log::TopicValue;
use crate::domain::types::TopicId;
use crate::kafka::admin::{
    AdminError, Change, ConfigSource, Configs, NewTopic, Refusal, create_partitions, create_topic,
    describe_configs, incremental_alter_configs,
};
use crate::kafka::backoff::Backoff;
use crate::kafka::cluster::{Cluster, ClusterError, Lane, Side, TopicMetadata, Topics};
use crate::kafka::connect::ConnectError;
use crate::kafka::connection::RequestError;
use crate::kafka::contact::chain;
use crate::wire::error_code::ErrorCode;

/// How long a created or widened topic may take until metadata shows all of its leaders; then the next round looks again.
const LEADERS_DEADLINE: Duration = Duration::from_secs(15);

/// How long the leaders may take to show configs that were set.
const HOLD_DEADLINE: Duration = Duration::from_secs(30);

/// Pauses between looks at something that brokers do by themselves.
pub(super) const LOOKS: Backoff = Backoff {
    first: Duration::from_millis(50),
    cap: Duration::from_secs(1),
};

/// What every step needs.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) mirror: Arc<str>,
    pub(super) states: Handle,
    pub(super) source: Cluster,
    pub(super) destination: Cluster,
    pub(super) config_exclude: NamePatterns,
    pub(super) replication_factor: i16,
    pub(super) on_divergence: OnDivergence,
    pub(super) request_timeout: Duration,
}

/// A step that was not done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A broker was not reached: nobody's fault and said elsewhere, the step is done again.
    Unreached(String),
    /// An election is under way, or the cluster is slow: the step is done again.
    Waiting(String),
    /// A cluster refuses, for a reason that an operator should read. Done again all the same: what was refused may be
    /// allowed by then.
    Refused(String),
}

impl From<ConnectError> for Trouble {
    fn from(error: ConnectError) -> Self {
        Self::Unreached(chain(&error).to_string())
    }
}

impl From<RequestError> for Trouble {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::UnsupportedVersion(error) => Self::Refused(error.to_string()),
            RequestError::NotSent { .. } | RequestError::Lost { .. } => {
                Self::Unreached(chain(&error).to_string())
            }
            error => Self::Waiting(chain(&error).to_string()),
        }
    }
}

impl From<ClusterError> for Trouble {
    fn from(error: ClusterError) -> Self {
        Self::Unreached(chain(&error).to_string())
    }
}

/// A topic that both sides have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ready {
    pub(super) destination_topic_id: TopicId,
    pub(super) partitions: i32,
}

/// Does `step` for a topic that has `partitions` at the source, and waits until all of its partitions are led.
pub(super) async fn prepare(
    stage: &Stage,
    topic: &Arc<str>,
    partitions: i32,
    step: Step,
) -> Result<Ready, Trouble> {
    match step {
        Step::Create => create(stage, topic, partitions).await?,
        Step::Grow { to } => grow(stage, topic, to).await?,
        Step::Nothing => {}
        Step::Refuse { reason } => return Err(Trouble::Refused(reason)),
    }
    let found = wait_for_leaders(stage, topic, partitions).await?;
    // Somebody else may have created it in between, with another shape.
    match next_step(partitions, Some(count(&found))) {
        Step::Nothing => Ok(Ready {
            destination_topic_id: found.topic_id,
            partitions,
        }),
        Step::Refuse { reason } => Err(Trouble::Refused(reason)),
        Step::Create | Step::Grow { .. } => {
            Err(Trouble::Waiting("the destination is still growing".into()))
        }
    }
}

/// How many partitions metadata shows.
pub(super) fn count(topic: &TopicMetadata) -> i32 {
    i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX)
}

pub(super) async fn create(
    stage: &Stage,
    topic: &Arc<str>,
    partitions: i32,
) -> Result<(), Trouble> {
    let source = source_configs(stage, topic).await?;
    let exclude = |key: &str| stage.config_exclude.matches(key);
    let policy = Policy {
        config_exclude: &exclude,
        replication_factor: stage.replication_factor,
    };
    let wanted = creation(partitions, &source, policy);
    let new = NewTopic {
        name: Arc::clone(topic),
        partitions: wanted.partitions,
        replication_factor: wanted.replication_factor,
        configs: wanted.configs.into_iter().collect(),
    };
    let connection = stage.destination.any(Lane::Control).await?;
    match create_topic(&connection, &new, false, stage.request_timeout).await {
        Ok(_) => {
            info!(
                mirror = %stage.mirror,
                topic = %topic,
                partitions,
                replication_factor = new.replication_factor,
                "topic created"
            );
            Ok(())
        }
        Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => Ok(()),
        Err(error) => Err(refused(
            error,
            Side::Destination,
            topic,
            "Create",
            stage.replication_factor,
        )),
    }
}

async fn grow(stage: &Stage, topic: &Arc<str>, to: i32) -> Result<(), Trouble> {
    let connection = stage.destination.any(Lane::Control).await?;
    match create_partitions(&connection, topic, to, stage.request_timeout).await {
        Ok(()) => {
            info!(mirror = %stage.mirror, topic = %topic, partitions = to, "topic grown");
            Ok(())
        }
        // Somebody was faster: the look that follows tells.
        Err(error) if error.code() == Some(ErrorCode::INVALID_PARTITIONS) => Ok(()),
        Err(error) => Err(refused(
            error,
            Side::Destination,
            topic,
            "Alter",
            stage.replication_factor,
        )),
    }
}

/// The topic as the destination shows it once it has at least `partitions`, all of them led.
pub(super) async fn wait_for_leaders(
    stage: &Stage,
    topic: &Arc<str>,
    partitions: i32,
) -> Result<TopicMetadata, Trouble> {
    let deadline = Instant::now() + LEADERS_DEADLINE;
    let mut looks = 0_u32;
    loop {
        let names = Topics::Named(vec![Arc::clone(topic)]);
        let metadata = stage.destination.refresh(names).await?;
        if let Some(found) = metadata.topics.get(topic) {
            let led = found.error.is_none()
                && count(found) >= partitions
                && found.partitions.values().all(|p| p.leader.is_some());
            if led {
                return Ok(found.clone());
            }
        }
        if Instant::now() >= deadline {
            return Err(Trouble::Waiting(format!(
                "the destination shows no leader for some of the {partitions} partitions"
            )));
        }
        looks = looks.saturating_add(1);
        sleep(LOOKS.pause(looks, rand::random())).await;
    }
}

async fn source_configs(stage: &Stage, topic: &Arc<str>) -> Result<SourceConfigs, Trouble> {
    let connection = stage.source.any(Lane::Control).await?;
    let found = describe(&connection, topic, stage.request_timeout).await?;
    let configs = found.map_err(|refusal| {
        let error = AdminError::Refused {
            api: "DescribeConfigs",
            subject: Arc::clone(topic),
            refusal,
        };
        refused(error, Side::Source, topic, "DescribeConfigs", -1)
    })?;
    let own = configs
        .iter()
        .filter(|(_, entry)| entry.source == ConfigSource::TOPIC);
    Ok(SourceConfigs {
        own: own
            .filter_map(|(key, entry)| Some((Arc::clone(key), entry.value.clone()?)))
            .collect(),
        effective: effective(&configs),
    })
}

fn effective(configs: &Configs) -> Values {
    let values = configs.iter();
    values
        .filter_map(|(key, entry)| Some((Arc::clone(key), entry.value.clone()?)))
        .collect()
}

async fn describe(
    connection: &crate::kafka::connection::Connection,
    topic: &Arc<str>,
    timeout: Duration,
) -> Result<Result<Configs, Refusal>, Trouble> {
    let answers = describe_configs(connection, std::slice::from_ref(topic), timeout).await?;
    let mut answers = answers.into_iter();
    let answer = answers.find(|(name, _)| name == topic);
    let (_, configs) = answer.ok_or_else(|| {
        Trouble::Waiting("the answer to DescribeConfigs leaves the topic out".into())
    })?;
    Ok(configs)
}

/// Puts the held configs in force and waits until every leader shows them. Answers with the destination topic's
/// `max.message.bytes`. What the configs are to be afterwards is written down first: the source may be gone by then.
pub(super) async fn hold(
    stage: &Stage,
    topic: &Arc<str>,
    (source_topic_id, destination_topic_id): (TopicId, TopicId),
) -> Result<usize, Trouble> {
    let source = source_configs(stage, topic).await?;
    let connection = stage.destination.any(Lane::Control).await?;
    let found = describe(&connection, topic, stage.request_timeout).await?;
    let found = found.map_err(|refusal| describe_refused(topic, refusal))?;
    let found = effective(&found);
    let held = held_configs(&source.effective, &found);
    let missing = missing_holds(&held, &found);
    let remembered = TopicValue {
        source_topic_id,
        destination_topic_id,
        restored_configs: restored_configs(&source, &held),
        ..TopicValue::default()
    };
    remember(stage, topic, remembered).await?;
    if !missing.is_empty() {
        let changes: Vec<_> = missing
            .iter()
            .map(|(key, value)| (Arc::clone(key), Change::Set(Arc::clone(value))))
            .collect();
        incremental_alter_configs(&connection, topic, &changes, stage.request_timeout)
            .await
            .map_err(|error| hold_refused(error, topic, &missing))?;
    }

    let held = wait_until_held(stage, topic, &source.effective).await?;
    match held {
        Ok(max_message_bytes) => {
            if !missing.is_empty() {
                let set: Vec<_> = missing.iter().map(|(k, v)| format!("{k}={v}")).collect();
                info!(
                    mirror = %stage.mirror,
                    topic = %topic,
                    set = %set.join(" "),
                    "topic configs held"
                );
            }
            Ok(max_message_bytes)
        }
        Err(doubt) => Err(Trouble::Refused(format!(
            "the configs that a mirrored topic needs are not in force after {} s: {doubt}; something may change them \
             back: look at the topic with kafka-configs.sh --describe --entity-type topics --entity-name {topic}",
            HOLD_DEADLINE.as_secs()
        ))),
    }
}

/// Waits until every leader shows the held configs, which the mirror's coordinator, another sidecar, puts in force. Answers with
/// the destination topic's `max.message.bytes`.
pub(super) async fn wait_for_hold(stage: &Stage, topic: &Arc<str>) -> Result<usize, Trouble> {
    let source = source_configs(stage, topic).await?;
    let held = wait_until_held(stage, topic, &source.effective).await?;
    held.map_err(|doubt| {
        Trouble::Waiting(format!(
            "the mirror's coordinator has not put the configs in force that a mirrored topic needs: {doubt}"
        ))
    })
}

/// Looks until every leader has the held configs in force; after a while, why one has not.
async fn wait_until_held(
    stage: &Stage,
    topic: &Arc<str>,
    source: &Values,
) -> Result<Result<usize, String>, Trouble> {
    let deadline = Instant::now() + HOLD_DEADLINE;
    let mut looks = 0_u32;
    loop {
        let doubt = match leaders_hold(stage, topic, source).await? {
            Shown::All(max_message_bytes) => return Ok(Ok(max_message_bytes)),
            Shown::NotYet(doubt) => doubt,
        };
        if Instant::now() >= deadline {
            return Ok(Err(doubt));
        }
        looks = looks.saturating_add(1);
        sleep(LOOKS.pause(looks, rand::random())).await;
    }
}

/// Writes down what is to be remembered of a topic.
async fn remember(stage: &Stage, topic: &Arc<str>, value: TopicValue) -> Result<(), Trouble> {
    let written = stage
        .states
        .remember_topic(Arc::clone(&stage.mirror), Arc::clone(topic), value);
    written.await.map_err(unavailable)
}

/// Nobody could be asked about a state now.
pub(super) fn unavailable(reason: Unavailable) -> Trouble {
    Trouble::Unreached(reason.to_string())
}

/// Puts in force what a topic that is no longer mirrored is to have, and writes down that this is done.
pub(super) async fn restore(
    stage: &Stage,
    topic: &Arc<str>,
    value: TopicValue,
) -> Result<(), Trouble> {
    let connection = stage.destination.any(Lane::Control).await?;
    let changes: Vec<_> = value
        .restored_configs
        .iter()
        .map(|(key, value)| {
            let change = value.clone().map_or(Change::Delete, Change::Set);
            (Arc::clone(key), change)
        })
        .collect();
    incremental_alter_configs(&connection, topic, &changes, stage.request_timeout)
        .await
        .map_err(|error| refused(error, Side::Destination, topic, "AlterConfigs", -1))?;
    info!(mirror = %stage.mirror, %topic, "topic configs are the source's again");
    let done = TopicValue {
        restored_configs: Vec::new(),
        ..value
    };
    remember(stage, topic, done).await
}

enum Shown {
    All(usize),
    NotYet(String),
}

/// Asks each broker that leads a partition of the topic for what it has in force itself: another broker's answer says
/// nothing about what this one does with a batch.
async fn leaders_hold(stage: &Stage, topic: &Arc<str>, source: &Values) -> Result<Shown, Trouble> {
    let known = stage.destination.leaders();
    let partitions = known.topics.get(topic).map(|topic| &topic.partitions);
    let partitions = partitions.filter(|partitions| !partitions.is_empty());
    let Some(partitions) = partitions else {
        stage.destination.request_refresh();
        return Ok(Shown::NotYet("no leaders are known".into()));
    };
    let leaders: Option<BTreeSet<_>> = partitions.values().map(|p| p.leader).collect();
    let Some(leaders) = leaders else {
        stage.destination.request_refresh();
        return Ok(Shown::NotYet("a partition has no leader".into()));
    };
    let mut smallest = i64::MAX;
    for leader in leaders {
        let connection = match stage.destination.broker(leader, Lane::Control).await {
            Ok(connection) => connection,
            Err(error) => {
                stage.destination.request_refresh();
                return Ok(Shown::NotYet(chain(&error).to_string()));
            }
        };
        let shown = match describe(&connection, topic, stage.request_timeout).await {
            Ok(Ok(configs)) => effective(&configs),
            Ok(Err(refusal)) if refusal.code == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => {
                return Ok(Shown::NotYet(format!("broker {leader}: {refusal}")));
            }
            Ok(Err(refusal)) => return Err(describe_refused(topic, refusal)),
            Err(Trouble::Waiting(reason) | Trouble::Unreached(reason)) => {
                return Ok(Shown::NotYet(format!("broker {leader}: {reason}")));
            }
            Err(refused) => return Err(refused),
        };
        // Brokers of different versions know different keys.
        let missing = missing_holds(&held_configs(source, &shown), &shown);
        if let Some((key, value)) = missing.first() {
            let found = shown.get(key).map_or("nothing", |found| found);
            return Ok(Shown::NotYet(format!(
                "broker {leader} has {key}={found}, needed is {value}"
            )));
        }
        smallest = smallest.min(max_message_bytes(&shown).unwrap_or(i64::MAX));
    }
    Ok(Shown::All(usize::try_from(smallest).unwrap_or(usize::MAX)))
}

fn hold_refused(error: AdminError, topic: &str, missing: &[(Arc<str>, Arc<str>)]) -> Trouble {
    match refused(error, Side::Destination, topic, "AlterConfigs", -1) {
        // Brackets: a list's commas would separate configs.
        Trouble::Refused(reason) => Trouble::Refused(format!(
            "{reason}; or set what is needed by hand: kafka-configs.sh --alter --entity-type topics --entity-name {topic} \
             --add-config '{}'",
            missing
                .iter()
                .map(|(key, value)| format!("{key}=[{value}]"))
                .collect::<Vec<_>>()
                .join(",")
        )),
        waiting => waiting,
    }
}

fn describe_refused(topic: &Arc<str>, refusal: Refusal) -> Trouble {
    let error = AdminError::Refused {
        api: "DescribeConfigs",
        subject: Arc::clone(topic),
        refusal,
    };
    refused(error, Side::Destination, topic, "DescribeConfigs", -1)
}

/// The broker's no in its words, with what an operator can do about it; `operation` is the ACL operation it takes.
pub(super) fn refused(
    error: AdminError,
    side: Side,
    topic: &str,
    operation: &str,
    replication_factor: i16,
) -> Trouble {
    let code = match &error {
        AdminError::Request(error) => return error.clone().into(),
        AdminError::LeftOut { .. } => return Trouble::Waiting(error.to_string()),
        AdminError::Refused { refusal, .. } => refusal.code,
    };
    let remedy = match code {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_CONTROLLER
        | ErrorCode::REQUEST_TIMED_OUT
        | ErrorCode::COORDINATOR_NOT_AVAILABLE
        | ErrorCode::LEADER_NOT_AVAILABLE => return Trouble::Waiting(chain(&error).to_string()),
        // Not a fault: the connection waits as long as the broker told it to.
        ErrorCode::THROTTLING_QUOTA_EXCEEDED => {
            return Trouble::Waiting(format!(
                "{} (the {side}'s controller_mutation_rate quota)",
                chain(&error)
            ));
        }
        ErrorCode::TOPIC_AUTHORIZATION_FAILED | ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
            format!(
                "grant it at the {side}: kafka-acls.sh --add --allow-principal User:<truemirror's> --operation {operation} \
                 --topic {topic}"
            )
        }
        ErrorCode::INVALID_REPLICATION_FACTOR if replication_factor < 0 => {
            "the destination's default.replication.factor is larger than its number of brokers: start more brokers, or set \
             mirror.topics.replication_factor"
                .to_owned()
        }
        ErrorCode::INVALID_REPLICATION_FACTOR => format!(
            "mirror.topics.replication_factor = {replication_factor} needs as many brokers: start more, or lower it"
        ),
        ErrorCode::POLICY_VIOLATION => format!(
            "a policy of the {side} (create.topic.policy.class.name, alter.config.policy.class.name) forbids it: change the \
             policy, or create the topic by hand with the source's number of partitions"
        ),
        ErrorCode::INVALID_CONFIG => format!(
            "the {side} does not take a config: name its key in mirror.topics.config_exclude, or set it by hand with \
             kafka-configs.sh --alter --entity-type topics --entity-name {topic}"
        ),
        _ => "tried again".to_owned(),
    };
    Trouble::Refused(format!("{}; {remedy}", chain(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do_and_what_passes_by_itself_is_waited_for() {
        let cases = [
            (29, true, "--operation Create --topic t"),
            (31, true, "kafka-acls.sh"),
            (38, true, "replication_factor = 3 needs"),
            (44, true, "policy"),
            (40, true, "config_exclude"),
            (-1, true, "UNKNOWN_SERVER_ERROR (-1): words"),
            (89, false, "controller_mutation_rate"),
            (41, false, "NOT_CONTROLLER"),
            (7, false, "REQUEST_TIMED_OUT"),
        ];
        for (code, is_refusal, part) in cases {
            let error = AdminError::Refused {
                api: "CreateTopics",
                subject: "t".into(),
                refusal: Refusal {
                    code: ErrorCode(code),
                    message: Some("words".into()),
                },
            };
            let trouble = refused(error, Side::Destination, "t", "Create", 3);
            let (found, text) = match trouble {
                Trouble::Refused(text) => (true, text),
                Trouble::Waiting(text) | Trouble::Unreached(text) => (false, text),
            };
            assert_eq!(found, is_refusal, "{code}: {text}");
            assert!(text.contains(part) && text.contains("words"), "{text}");
        }
    }
}
