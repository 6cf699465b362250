//! The state topic itself: that it is there, with the settings that it needs. Must not read or write its records.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::domain::state_log::{new_configs, unfit_configs};
use crate::domain::types::TopicId;
use crate::kafka::admin::{AdminError, NewTopic, create_topic, describe_configs};
use crate::kafka::cluster::{Cluster, ClusterError, Lane, TopicMetadata, Topics};
use crate::kafka::connect::ConnectError;
use crate::kafka::connection::RequestError;
use crate::wire::error_code::ErrorCode;

/// Between two looks at a topic that seems to be gone: a broker that has just begun to answer has caught up by then.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

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

/// Which topic is the state topic: its name may be given to another one.
#[derive(Debug, Default)]
pub(super) struct TopicIds {
    current: Option<TopicId>,
    /// Those that others came after. A broker that lags may still show them; none of them comes back.
    past: BTreeSet<TopicId>,
}

impl TopicIds {
    /// The topic is there under this id. True if it is another than before, with a log of its own.
    pub(super) fn found(&mut self, id: TopicId) -> bool {
        match self.current.replace(id) {
            // Without ids every topic that is found after a loss is another one.
            Some(before) if before == id && !id.is_zero() => false,
            before => {
                self.past.extend(before.filter(|before| !before.is_zero()));
                true
            }
        }
    }

    /// True if a broker that says this knows that the topic of the current id is gone. No answer about it, an error other than
    /// the one that says so, partitions without a leader: all that says nothing.
    fn lost_by(&self, found: &TopicMetadata) -> bool {
        let another = |current: TopicId| {
            let real = !current.is_zero() && !found.topic_id.is_zero();
            real && found.topic_id != current && !self.past.contains(&found.topic_id)
        };
        match found.error {
            ErrorCode::UNKNOWN_TOPIC_OR_PARTITION => self.current.is_some(),
            ErrorCode::NONE => self.current.is_some_and(another),
            _ => false,
        }
    }
}

/// Returns once the topic is certainly gone: two looks in a row, with a pause between them, at brokers that can be reached. One
/// broker that has just started, an election or a cluster that is away is none of that.
pub(super) async fn until_lost(cluster: &Cluster, name: &Arc<str>, ids: &TopicIds) {
    let mut news = cluster.watch();
    loop {
        let known = Arc::clone(&news.borrow_and_update());
        if !known
            .topics
            .get(name)
            .is_some_and(|topic| ids.lost_by(topic))
        {
            if news.changed().await.is_err() {
                return std::future::pending().await;
            }
            continue;
        }
        let look = async || {
            let answer = cluster.refresh(Topics::Named(vec![Arc::clone(name)])).await;
            answer.is_ok_and(|found| {
                found
                    .topics
                    .get(name)
                    .is_some_and(|topic| ids.lost_by(topic))
            })
        };
        let lost = look().await;
        sleep(LOOK_PAUSE).await;
        if lost && look().await {
            return;
        }
    }
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

/// Creates the state topic if it is not there, and checks it if it is. Its id once its leaders can be asked for; `None` if it
/// has just been created and the brokers do not all know it yet.
///
/// # Errors
/// See [`StateTopicError`].
pub(super) async fn prepare(
    cluster: &Cluster,
    topic: &StateTopic,
    timeout: Duration,
    created_after: &[CancellationToken],
    ids: &TopicIds,
) -> Result<Option<TopicId>, StateTopicError> {
    let names = Topics::Named(vec![Arc::clone(&topic.name)]);
    let metadata = cluster.refresh(names).await?;
    let known = metadata.topics.get(&topic.name);
    let admin = |source| StateTopicError::Admin {
        name: Arc::clone(&topic.name),
        source,
    };
    let connection = cluster.any(Lane::Control).await?;
    let current =
        |known: &&TopicMetadata| known.error.is_none() && !ids.past.contains(&known.topic_id);
    if let Some(known) = known.filter(current) {
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
        return Ok(Some(known.topic_id));
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
            Ok(None)
        }
        // Another sidecar was faster.
        Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => Ok(None),
        Err(error) => Err(admin(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn only_an_answer_that_says_so_means_that_the_topic_is_gone() {
        let (past, current, later) = (TopicId([1; 16]), TopicId([2; 16]), TopicId([3; 16]));
        let zero = TopicId::default();
        let mut ids = TopicIds::default();
        assert!(ids.found(past) && ids.found(current) && !ids.found(current));
        let none = ErrorCode::NONE;
        let unknown = ErrorCode::UNKNOWN_TOPIC_OR_PARTITION;
        // (error, id, what it means while the topic has the current id)
        let table = [
            (none, current, false),
            (none, later, true),
            (none, past, false),
            (none, zero, false),
            (unknown, zero, true),
            (unknown, current, true),
            (ErrorCode::LEADER_NOT_AVAILABLE, current, false),
            (ErrorCode::TOPIC_AUTHORIZATION_FAILED, zero, false),
        ];
        for (error, topic_id, lost) in table {
            let found = TopicMetadata {
                topic_id,
                is_internal: false,
                error,
                partitions: BTreeMap::new(),
            };
            assert_eq!(ids.lost_by(&found), lost, "{error} {topic_id}");
            assert!(!TopicIds::default().lost_by(&found), "{error} {topic_id}");
        }
        // Where brokers know no ids, a topic that is found again is a new one.
        assert!(ids.found(zero) && ids.found(zero) && ids.found(later));
    }
}
