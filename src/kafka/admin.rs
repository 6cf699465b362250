//! Calls that create, change and describe topics and their configuration, one request each. Must not retry or choose
//! the broker: configs can be read from a named one, to see what it has in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, RequestError};
use super::offsets::{broker_timeout_ms, broker_words};
use crate::domain::types::TopicId;
use crate::wire::api::configs::{
    AlterConfigsResource, AlterableConfig, DescribeConfigsRequest, DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
};
use crate::wire::api::describe_cluster::{DescribeClusterRequest, DescribeClusterResponse};
use crate::wire::api::group_descriptions::{DescribeGroupsRequest, DescribedGroup};
use crate::wire::api::topics::{
    CreatableTopic, CreatableTopicConfig, CreatePartitionsRequest, CreatePartitionsTopic,
    CreateTopicsRequest, DeleteTopicState, DeleteTopicsRequest,
};
use crate::wire::error_code::ErrorCode;

/// `ConfigResource.Type.TOPIC`.
const TOPIC: i8 = 2;
/// `ConfigResource.Type.BROKER`.
const BROKER: i8 = 4;

/// A broker's no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}{}", broker_words(message.as_deref()))]
pub struct Refusal {
    /// The error.
    pub code: ErrorCode,
    /// The broker's words, if it has any.
    pub message: Option<Arc<str>>,
}

/// An administrative call that did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// No answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The broker refuses.
    #[error("{api} of {subject} was refused")]
    Refused {
        /// The call.
        api: &'static str,
        /// The topic, or what else it was about.
        subject: Arc<str>,
        /// The refusal.
        #[source]
        refusal: Refusal,
    },
    /// The answer is about something else.
    #[error("the answer to {api} leaves {subject} out")]
    LeftOut {
        /// The call.
        api: &'static str,
        /// The topic, or what else it was about.
        subject: Arc<str>,
    },
}

impl AdminError {
    /// The broker's error code, if it answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Refused { refusal, .. } => Some(refusal.code),
            Self::Request(_) | Self::LeftOut { .. } => None,
        }
    }
}

fn granted(
    api: &'static str,
    subject: &str,
    code: ErrorCode,
    message: Option<Arc<str>>,
) -> Result<(), AdminError> {
    code.ok().map_err(|code| AdminError::Refused {
        api,
        subject: subject.into(),
        refusal: Refusal { code, message },
    })
}

fn left_out(api: &'static str, subject: &str) -> AdminError {
    AdminError::LeftOut {
        api,
        subject: subject.into(),
    }
}

/// Where a config value comes from (`DescribeConfigsResponse.ConfigSource`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConfigSource(pub i8);

impl ConfigSource {
    /// Set for this topic: `DYNAMIC_TOPIC_CONFIG`.
    pub const TOPIC: Self = Self(1);
}

/// One config value in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigEntry {
    /// The value; `None` for a secret, or for none.
    pub value: Option<Arc<str>>,
    /// Where it comes from.
    pub source: ConfigSource,
    /// True if it cannot be changed.
    pub read_only: bool,
}

/// The values in force for one resource, by name.
pub type Configs = BTreeMap<Arc<str>, ConfigEntry>;

async fn describe(
    connection: &Connection,
    resource_type: i8,
    names: &[Arc<str>],
    timeout: Duration,
) -> Result<Vec<(Arc<str>, Result<Configs, Refusal>)>, RequestError> {
    let request = DescribeConfigsRequest {
        resources: names
            .iter()
            .map(|name| DescribeConfigsResource {
                resource_type,
                resource_name: Arc::clone(name),
                configuration_keys: None,
            })
            .collect(),
        include_synonyms: false,
        include_documentation: false,
    };
    let response = connection.call(&request, timeout).await?;
    let results = response.results.into_iter().map(|result| {
        let configs = result.configs.into_iter().map(|config| {
            let entry = ConfigEntry {
                value: config.value,
                source: ConfigSource(config.config_source),
                read_only: config.read_only,
            };
            (config.name, entry)
        });
        let message = result.error_message;
        let configs = match result.error_code.ok() {
            Ok(()) => Ok(configs.collect()),
            Err(code) => Err(Refusal { code, message }),
        };
        (result.resource_name, configs)
    });
    Ok(results.collect())
}

/// Every config value in force for the topics, as the broker at the other end knows it; topics that the answer leaves
/// out are left out here.
///
/// # Errors
/// If the request as a whole has no answer.
pub async fn describe_configs(
    connection: &Connection,
    topics: &[Arc<str>],
    timeout: Duration,
) -> Result<Vec<(Arc<str>, Result<Configs, Refusal>)>, RequestError> {
    describe(connection, TOPIC, topics, timeout).await
}

/// Every config value in force for the broker at the other end, which must have this id.
///
/// # Errors
/// See [`AdminError`].
pub async fn describe_broker_configs(
    connection: &Connection,
    broker: crate::domain::types::BrokerId,
    timeout: Duration,
) -> Result<Configs, AdminError> {
    const API: &str = "DescribeConfigs";
    let name: Arc<str> = broker.to_string().into();
    let results = describe(connection, BROKER, &[Arc::clone(&name)], timeout).await?;
    let mut found = results.into_iter().filter(|(found, _)| *found == name);
    let (_, configs) = found.next().ok_or_else(|| left_out(API, &name))?;
    configs.map_err(|refusal| AdminError::Refused {
        api: API,
        subject: name,
        refusal,
    })
}

/// What becomes of one config key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Set for this topic.
    Set(Arc<str>),
    /// Back to the broker's default.
    Delete,
}

/// Changes the keys named and no others.
///
/// # Errors
/// See [`AdminError`].
pub async fn incremental_alter_configs(
    connection: &Connection,
    topic: &str,
    changes: &[(Arc<str>, Change)],
    timeout: Duration,
) -> Result<(), AdminError> {
    const API: &str = "IncrementalAlterConfigs";
    let configs = changes.iter().map(|(name, change)| {
        let (config_operation, value) = match change {
            Change::Set(value) => (0, Some(Arc::clone(value))),
            Change::Delete => (1, None),
        };
        AlterableConfig {
            name: Arc::clone(name),
            config_operation,
            value,
        }
    });
    let request = IncrementalAlterConfigsRequest {
        resources: vec![AlterConfigsResource {
            resource_type: TOPIC,
            resource_name: topic.into(),
            configs: configs.collect(),
        }],
        validate_only: false,
    };
    let response = connection.call(&request, timeout).await?;
    let mut answers = response.responses.into_iter();
    let answer = answers
        .find(|answer| &*answer.resource_name == topic)
        .ok_or_else(|| left_out(API, topic))?;
    granted(API, topic, answer.error_code, answer.error_message)
}

/// A topic to be created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: Arc<str>,
    /// How many partitions.
    pub partitions: i32,
    /// How many replicas of each; -1 for the broker's default.
    pub replication_factor: i16,
    /// Config values of its own.
    pub configs: Vec<(Arc<str>, Arc<str>)>,
}

/// Creates a topic, or only checks whether it could be created. Answers with its id (all zero before Kafka 2.8;
/// after a check, one that no topic will have).
///
/// # Errors
/// See [`AdminError`]; `TOPIC_ALREADY_EXISTS` if it is there.
pub async fn create_topic(
    connection: &Connection,
    topic: &NewTopic,
    validate_only: bool,
    timeout: Duration,
) -> Result<TopicId, AdminError> {
    const API: &str = "CreateTopics";
    let configs = topic
        .configs
        .iter()
        .map(|(name, value)| CreatableTopicConfig {
            name: Arc::clone(name),
            value: Some(Arc::clone(value)),
        });
    let request = CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: Arc::clone(&topic.name),
            num_partitions: topic.partitions,
            replication_factor: topic.replication_factor,
            assignments: Vec::new(),
            configs: configs.collect(),
        }],
        timeout_ms: broker_timeout_ms(timeout),
        validate_only,
    };
    let response = connection.call(&request, timeout).await?;
    let mut answers = response.topics.into_iter();
    let answer = answers
        .find(|answer| answer.name == topic.name)
        .ok_or_else(|| left_out(API, &topic.name))?;
    granted(API, &topic.name, answer.error_code, answer.error_message)?;
    Ok(answer.topic_id)
}

/// Widens a topic to `count` partitions.
///
/// # Errors
/// See [`AdminError`].
pub async fn create_partitions(
    connection: &Connection,
    topic: &str,
    count: i32,
    timeout: Duration,
) -> Result<(), AdminError> {
    const API: &str = "CreatePartitions";
    let request = CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic {
            name: topic.into(),
            count,
            assignments: None,
        }],
        timeout_ms: broker_timeout_ms(timeout),
        validate_only: false,
    };
    let response = connection.call(&request, timeout).await?;
    let mut answers = response.results.into_iter();
    let answer = answers
        .find(|answer| &*answer.name == topic)
        .ok_or_else(|| left_out(API, topic))?;
    granted(API, topic, answer.error_code, answer.error_message)
}

/// Deletes the topic with this id, which had this name; another one of the same name is left alone.
///
/// # Errors
/// See [`AdminError`]; `UNKNOWN_TOPIC_ID` if it is not there any more.
pub async fn delete_topic(
    connection: &Connection,
    topic: &str,
    topic_id: TopicId,
    timeout: Duration,
) -> Result<(), AdminError> {
    const API: &str = "DeleteTopics";
    let request = DeleteTopicsRequest {
        topics: vec![DeleteTopicState {
            name: None,
            topic_id,
        }],
        timeout_ms: broker_timeout_ms(timeout),
    };
    let response = connection.call(&request, timeout).await?;
    let mut answers = response.responses.into_iter();
    let answer = answers
        .find(|answer| answer.topic_id == topic_id)
        .ok_or_else(|| left_out(API, topic))?;
    granted(API, topic, answer.error_code, answer.error_message)
}

/// The cluster's id, its brokers and what we may do with it (a bit per `AclOperation`).
///
/// # Errors
/// See [`AdminError`].
pub async fn describe_cluster(
    connection: &Connection,
    timeout: Duration,
) -> Result<DescribeClusterResponse, AdminError> {
    let request = DescribeClusterRequest {
        include_cluster_authorized_operations: true,
        ..Default::default()
    };
    let response = connection.call(&request, timeout).await?;
    let message = response.error_message.clone();
    granted(
        "DescribeCluster",
        "the cluster",
        response.error_code,
        message,
    )?;
    Ok(response)
}

/// What the broker at the other end says of a group, and what we may do with it (a bit per `AclOperation`). A group that
/// nobody has used yet has the state `Dead` and no members. Unlike FindCoordinator, this never makes brokers create
/// `__consumer_offsets`.
///
/// # Errors
/// See [`AdminError`]; `NOT_COORDINATOR` or `COORDINATOR_NOT_AVAILABLE` from all brokers but the group's coordinator.
pub async fn describe_group(
    connection: &Connection,
    group_id: &Arc<str>,
    timeout: Duration,
) -> Result<DescribedGroup, AdminError> {
    const API: &str = "DescribeGroups";
    let request = DescribeGroupsRequest {
        groups: vec![Arc::clone(group_id)],
        include_authorized_operations: true,
    };
    let response = connection.call(&request, timeout).await?;
    let mut answers = response.groups.into_iter();
    let answer = answers
        .find(|answer| answer.group_id == *group_id)
        .ok_or_else(|| left_out(API, group_id))?;
    granted(API, group_id, answer.error_code, None)?;
    Ok(answer)
}
