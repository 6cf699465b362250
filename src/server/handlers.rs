//! What the mirror calls do: they ask and change the state of mirrors through the coordinators, and show what this process knows.
//! Must not know sockets, and not decide what `domain::shard` does.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::changes::sum_up;
use super::service::Service;
use super::show::of_mirror;
use crate::config::TopicFilter;
use crate::coordinator::messages::{read_result, refused, unavailable, write_of, write_result};
use crate::coordinator::{Handle, Unavailable};
use crate::domain::shard::{Refusal, TopicChange};
use crate::domain::state::DesiredState;
use crate::domain::state_log::MirrorPartition;
use crate::domain::status::Status;
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::{
    DeleteClusterMirrorRequest, DeleteClusterMirrorResponse, DescribeClusterMirrorsRequest,
    DescribeClusterMirrorsResponse, LastMirrorEpochPartition, LastMirrorEpochResult,
    ListClusterMirrorsRequest, ListClusterMirrorsResponse, ListedMirror, MirrorMember,
    PauseMirrorTopicsRequest, PauseMirrorTopicsResponse, ReadMirrorStatesRequest,
    ReadMirrorStatesResponse, ReadMirrorStatesTopicResult, RecoverMirrorTopicsRequest,
    RecoverMirrorTopicsResponse, ResumeMirrorTopicsRequest, ResumeMirrorTopicsResponse,
    StartMirrorTopicsRequest, StartMirrorTopicsResponse, StopMirrorTopicsRequest,
    StopMirrorTopicsResponse, WriteMirrorStatesRequest, WriteMirrorStatesResponse,
    WriteMirrorStatesTopicResult,
};

/// A mirror of this process's file.
#[derive(Clone, Debug)]
pub struct ConfiguredMirror {
    /// Its name.
    pub name: Arc<str>,
    /// Which topics it mirrors.
    pub filter: TopicFilter,
    /// Its source, as configured.
    pub source_bootstrap: Arc<str>,
}

/// The mirrors that this process's file has now.
pub type MirrorsSource = Arc<dyn Fn() -> Vec<ConfiguredMirror> + Send + Sync>;

/// What this process shows of itself.
pub type StatusSource = Arc<dyn Fn() -> Status + Send + Sync>;

/// The other processes of the destination, and this one.
pub type MembersSource = Arc<dyn Fn() -> Vec<MirrorMember> + Send + Sync>;

/// The calls, answered by this process. Cheap to clone.
#[derive(Clone)]
pub struct MirrorService {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) states: Handle,
    pub(super) mirrors: MirrorsSource,
    pub(super) status: StatusSource,
    members: MembersSource,
    pub(super) sidecar: Arc<str>,
}

impl fmt::Debug for MirrorService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorService")
            .field("sidecar", &self.inner.sidecar)
            .finish_non_exhaustive()
    }
}

impl MirrorService {
    /// A service on top of these.
    pub fn new(
        states: Handle,
        mirrors: MirrorsSource,
        status: StatusSource,
        members: MembersSource,
        sidecar: Arc<str>,
    ) -> Self {
        let inner = Inner {
            states,
            mirrors,
            status,
            members,
            sidecar,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    pub(super) fn configured(&self, mirror: &str) -> Option<ConfiguredMirror> {
        let mut mirrors = (self.inner.mirrors)().into_iter();
        mirrors.find(|configured| *configured.name == *mirror)
    }
}

/// A name that may stand in a record, and an index that a partition may have.
fn is_sound(mirror: &str, topic: &str, index: i32) -> bool {
    let sound = |name: &str| (1..=249).contains(&name.len());
    sound(mirror) && sound(topic) && index >= 0
}

impl Service for MirrorService {
    async fn start_mirror_topics(
        &self,
        request: StartMirrorTopicsRequest,
    ) -> StartMirrorTopicsResponse {
        match self.elsewhere(&request).await {
            Some(answer) => answer,
            None => sum_up(self.start(request).await),
        }
    }

    async fn stop_mirror_topics(
        &self,
        request: StopMirrorTopicsRequest,
    ) -> StopMirrorTopicsResponse {
        match self.elsewhere(&request).await {
            Some(answer) => answer,
            None => sum_up(self.stop(request).await),
        }
    }

    async fn pause_mirror_topics(
        &self,
        request: PauseMirrorTopicsRequest,
    ) -> PauseMirrorTopicsResponse {
        let paused = self.change_named(&request, &request.topics, TopicChange::Pause);
        paused.await
    }

    async fn resume_mirror_topics(
        &self,
        request: ResumeMirrorTopicsRequest,
    ) -> ResumeMirrorTopicsResponse {
        let resumed = self.change_named(&request, &request.topics, TopicChange::Resume);
        resumed.await
    }

    async fn recover_mirror_topics(
        &self,
        request: RecoverMirrorTopicsRequest,
    ) -> RecoverMirrorTopicsResponse {
        sum_up(self.recover(request).await)
    }

    async fn delete_cluster_mirror(
        &self,
        request: DeleteClusterMirrorRequest,
    ) -> DeleteClusterMirrorResponse {
        if let Some(answer) = self.elsewhere(&request).await {
            return answer;
        }
        let mirror = request.mirror_name;
        let outcome = match self.inner.states.model().mirror(&mirror) {
            None if self.inner.states.model().is_loaded() => Err(refused(&Refusal::UnknownMirror)),
            None => Err(unavailable(Unavailable::Loading)),
            Some(_) => match self
                .inner
                .states
                .delete_mirror(mirror, request.dry_run)
                .await
            {
                Ok(Ok(())) => Ok(()),
                Ok(Err(refusal)) => Err(refused(&refusal)),
                Err(reason) => Err(unavailable(reason)),
            },
        };
        let (error_code, error_message) = outcome.err().unwrap_or((ErrorCode::NONE, None));
        DeleteClusterMirrorResponse {
            error_code,
            error_message,
            ..DeleteClusterMirrorResponse::default()
        }
    }

    async fn list_cluster_mirrors(
        &self,
        request: ListClusterMirrorsRequest,
    ) -> ListClusterMirrorsResponse {
        let model = self.inner.states.model();
        let remembered = model.mirrors();
        let mut names: BTreeSet<Arc<str>> = remembered.keys().cloned().collect();
        names.extend((self.inner.mirrors)().into_iter().map(|mirror| mirror.name));
        let mirrors = names.into_iter().map(|name| {
            let topics = model.topics(&name);
            let active = topics
                .values()
                .filter(|topic| topic.desired == DesiredState::Mirroring)
                .count();
            let shown = topics
                .iter()
                .filter(|(_, topic)| topic.desired != DesiredState::Stopped)
                .map(|(name, _)| Arc::clone(name));
            ListedMirror {
                source_bootstrap: self
                    .configured(&name)
                    .map_or_else(|| "".into(), |mirror| mirror.source_bootstrap),
                source_cluster_id: remembered
                    .get(&name)
                    .map_or_else(|| "".into(), |mirror| Arc::clone(&mirror.source_cluster_id)),
                topic_count: i32::try_from(active).unwrap_or(i32::MAX),
                topic_names: if request.include_topic_names {
                    shown.collect()
                } else {
                    Vec::new()
                },
                desired_state: of_mirror(&topics),
                mirror_name: name,
            }
        });
        ListClusterMirrorsResponse {
            mirrors: mirrors.collect(),
            ..ListClusterMirrorsResponse::default()
        }
    }

    async fn describe_cluster_mirrors(
        &self,
        request: DescribeClusterMirrorsRequest,
    ) -> DescribeClusterMirrorsResponse {
        let model = self.inner.states.model();
        let mut lookups = Vec::new();
        if let Some(cluster_id) = &request.cluster_id {
            let mirrors = model.mirrors();
            let from = mirrors
                .iter()
                .filter(|(_, mirror)| mirror.source_cluster_id == *cluster_id);
            let topics: Vec<_> = from
                .flat_map(|(mirror, _)| {
                    let topics = model.topics(mirror).into_iter();
                    topics.map(|(name, topic)| (Arc::clone(mirror), name, topic))
                })
                .collect();
            for lookup in &request.last_mirror_epoch_lookups {
                let partitions = lookup.partitions.iter().map(|index| {
                    let found = topics
                        .iter()
                        .filter(|(_, _, topic)| topic.source_topic_id == lookup.topic_id)
                        .filter_map(|(mirror, name, _)| {
                            let key = MirrorPartition::new(mirror, name, *index);
                            Some(model.last_mirror(&key)?.last_mirror_epoch.0)
                        })
                        .max();
                    LastMirrorEpochPartition {
                        partition_index: *index,
                        last_mirror_epoch: found.unwrap_or(-1),
                    }
                });
                lookups.push(LastMirrorEpochResult {
                    topic_id: lookup.topic_id,
                    partitions: partitions.collect(),
                });
            }
        }
        DescribeClusterMirrorsResponse {
            mirrors: self.describe(&request),
            lookup_results: lookups,
            members: (self.inner.members)(),
            answering: Some(Arc::clone(&self.inner.sidecar)),
            ..DescribeClusterMirrorsResponse::default()
        }
    }

    async fn read_mirror_states(
        &self,
        request: ReadMirrorStatesRequest,
    ) -> ReadMirrorStatesResponse {
        let mirror = request.mirror_name;
        let mut topics = Vec::new();
        for topic in request.topics {
            let name = topic.name;
            let indexes: Vec<i32> = topic
                .partitions
                .iter()
                .map(|partition| partition.partition_index)
                .collect();
            if !indexes.iter().all(|index| is_sound(&mirror, &name, *index)) {
                return ReadMirrorStatesResponse {
                    error_code: ErrorCode::INVALID_REQUEST,
                    error_message: Some(UNSOUND.into()),
                    ..ReadMirrorStatesResponse::default()
                };
            }
            let keys = indexes
                .iter()
                .map(|index| MirrorPartition::new(&mirror, &name, *index))
                .collect();
            let answers = self.inner.states.read_here(keys).await;
            topics.push(ReadMirrorStatesTopicResult {
                name,
                partitions: indexes
                    .into_iter()
                    .zip(answers)
                    .map(|(index, answer)| read_result(index, answer))
                    .collect(),
            });
        }
        ReadMirrorStatesResponse {
            topics,
            ..ReadMirrorStatesResponse::default()
        }
    }

    async fn write_mirror_states(
        &self,
        request: WriteMirrorStatesRequest,
    ) -> WriteMirrorStatesResponse {
        let mirror = request.mirror_name;
        let mut topics = Vec::new();
        for topic in request.topics {
            let name = topic.name;
            let writes: Option<Vec<_>> = topic
                .partitions
                .iter()
                .map(|partition| {
                    let index = partition.partition_index;
                    let sound = is_sound(&mirror, &name, index);
                    let write = write_of(partition).filter(|_| sound)?;
                    Some((MirrorPartition::new(&mirror, &name, index), write))
                })
                .collect();
            let Some(writes) = writes else {
                return WriteMirrorStatesResponse {
                    error_code: ErrorCode::INVALID_REQUEST,
                    error_message: Some(UNSOUND.into()),
                    ..WriteMirrorStatesResponse::default()
                };
            };
            let answers = self.inner.states.write_here(writes).await;
            topics.push(WriteMirrorStatesTopicResult {
                partitions: topic
                    .partitions
                    .iter()
                    .zip(answers)
                    .map(|(partition, answer)| write_result(partition.partition_index, answer))
                    .collect(),
                name,
            });
        }
        WriteMirrorStatesResponse {
            topics,
            ..WriteMirrorStatesResponse::default()
        }
    }
}

/// Why a request is not even looked at.
const UNSOUND: &str = "names must have 1 to 249 characters, partitions must not be negative, and states must be known";
