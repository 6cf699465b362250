//! The state topic itself: that it is there, with the settings that it needs. Must not read or write its records.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::domain::state_log::{new_configs, unfit_configs};
use crate::kafka::admin::{AdminError, NewTopic, create_topic, describe_configs};
use crate::kafka::cluster::{Cluster, ClusterError, Lane, Topics};
use crate::kafka::connect::ConnectError;
use crate::kafka::connection::RequestError;
use crate::wire::error_code::ErrorCode;

/// How the state topic is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateTopic {
    /// Its name.
    pub name: Arc<str>,
    /// How many partitions.
    pub partitions: i32,
    /// How many replicas of each, fewer where the cluster has fewer brokers.
    pub replication_factor: i16,
}

/// Why the state topic cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateTopicError {
    /// The cluster cannot be asked.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// No broker can be reached.
    #[error("cannot reach the destination cluster")]
    Connect(#[from] ConnectError),
    /// A broker did not answer.
    #[error("a destination broker did not answer")]
    Request(#[from] RequestError),
    /// The broker refuses to create or to describe it.
    #[error("cannot prepare the state topic {name}")]
    Admin {
        /// Its name.
        name: Arc<str>,
        /// Why.
        #[source]
        source: AdminError,
    },
    /// It has another number of partitions than the configuration says.
    #[error(
        "the state topic {name} has {found} partitions, but state.partitions is {wanted}; the number never changes after the \
         first start: set state.partitions = {found}, or choose another name with state.topic"
    )]
    Partitions {
        /// Its name.
        name: Arc<str>,
        /// What it has.
        found: usize,
        /// What is configured.
        wanted: i32,
    },
    /// A topic of that name exists for something else.
    #[error(
        "topic {name} exists with {key}={found}, but the state topic needs {key}={wanted}; if it is not used for anything else, \
         set that config, else choose another name with state.topic"
    )]
    Config {
        /// Its name.
        name: Arc<str>,
        /// Which config.
        key: &'static str,
        /// What it has.
        found: Arc<str>,
        /// What it must have.
        wanted: &'static str,
    },
}

impl StateTopicError {
    /// True if the same answer will come until a person has acted.
    pub(super) fn needs_a_person(&self) -> bool {
        matches!(self, Self::Partitions { .. } | Self::Config { .. })
    }
}

/// Creates the state topic if it is not there, and checks it if it is. True once its leaders can be asked for; false if it has
/// just been created and the brokers do not all know it yet.
///
/// # Errors
/// See [`StateTopicError`].
pub(super) async fn prepare(
    cluster: &Cluster,
    topic: &StateTopic,
    timeout: Duration,
    created_after: &[CancellationToken],
) -> Result<bool, StateTopicError> {
    let names = Topics::Named(vec![Arc::clone(&topic.name)]);
    let metadata = cluster.refresh(names).await?;
    let known = metadata.topics.get(&topic.name);
    let admin = |source| StateTopicError::Admin {
        name: Arc::clone(&topic.name),
        source,
    };
    let connection = cluster.any(Lane::Control).await?;
    if let Some(known) = known.filter(|known| known.error.is_none()) {
        let found = known.partitions.len();
        if i32::try_from(found) != Ok(topic.partitions) {
            return Err(StateTopicError::Partitions {
                name: Arc::clone(&topic.name),
                found,
                wanted: topic.partitions,
            });
        }
        let described = describe_configs(&connection, &[Arc::clone(&topic.name)], timeout).await?;
        // Where configs may not be read, the topic is taken for what it is: its name and its partitions are right.
        let configs = described.into_iter().find_map(|(_, configs)| configs.ok());
        let value = |key: &str| configs.as_ref()?.get(key)?.value.clone();
        if let Some((key, wanted, found)) = unfit_configs(value).into_iter().next() {
            return Err(StateTopicError::Config {
                name: Arc::clone(&topic.name),
                key,
                found,
                wanted,
            });
        }
        return Ok(true);
    }
    for token in created_after {
        token.cancelled().await;
    }
    let brokers = i16::try_from(metadata.brokers.len()).unwrap_or(i16::MAX);
    let new = NewTopic {
        name: Arc::clone(&topic.name),
        partitions: topic.partitions,
        replication_factor: topic.replication_factor.min(brokers).max(1),
        configs: new_configs(),
    };
    match create_topic(&connection, &new, false, timeout).await {
        Ok(_) => {
            tracing::info!(
                topic = %topic.name, partitions = topic.partitions, replication_factor = new.replication_factor,
                "created the state topic"
            );
            Ok(false)
        }
        // Another sidecar was faster.
        Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => Ok(false),
        Err(error) => Err(admin(error)),
    }
}
