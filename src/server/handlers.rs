//! What the mirror calls do: they ask and change the state of mirrors through the coordinators, and show what this process knows.
//! Must not know sockets, and not decide what `domain::shard` does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::service::Service;
use super::show::of_mirror;
use crate::config::{NamePatterns, TopicFilter};
use crate::coordinator::messages::{read_result, refused, unavailable, write_of, write_result};
use crate::coordinator::{Handle, Unavailable};
use crate::domain::route;
use crate::domain::shard::{PartitionWrite, Refusal, TopicChange};
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{MirrorPartition, PartitionValue};
use crate::domain::status::Status;
use crate::domain::types::TopicPartition;
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::{
    DeleteClusterMirrorRequest, DeleteClusterMirrorResponse, DescribeClusterMirrorsRequest,
    DescribeClusterMirrorsResponse, LastMirrorEpochPartition, LastMirrorEpochResult,
    ListClusterMirrorsRequest, ListClusterMirrorsResponse, ListedMirror, MirrorAnswer,
    MirrorMember, MirrorTopicResult, PauseMirrorTopicsRequest, PauseMirrorTopicsResponse,
    ReadMirrorStatesRequest, ReadMirrorStatesResponse, ReadMirrorStatesTopicResult,
    RecoverMirrorTopicsRequest, RecoverMirrorTopicsResponse, ResumeMirrorTopicsRequest,
    ResumeMirrorTopicsResponse, StartMirrorTopicsRequest, StartMirrorTopicsResponse,
    StopMirrorTopicsRequest, StopMirrorTopicsResponse, WriteMirrorStatesRequest,
    WriteMirrorStatesResponse, WriteMirrorStatesTopicResult,
};
use crate::wire::schema::Request;

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
    pub(super) mirrors: Vec<ConfiguredMirror>,
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

/// A call that fails as a whole.
type Failure = (ErrorCode, Option<Arc<str>>);

fn failure(code: ErrorCode, words: impl fmt::Display) -> Failure {
    (code, Some(words.to_string().into()))
}

fn topic_result(name: Arc<str>, outcome: Result<(), Failure>) -> MirrorTopicResult {
    let (error_code, error_message) = outcome.err().unwrap_or((ErrorCode::NONE, None));
    MirrorTopicResult {
        name,
        error_code,
        error_message,
    }
}

/// What a changing call answers: an error of the whole, and one result per topic. KIP-1279's prototype copies the first error of
/// a topic to the top.
fn sum_up(
    outcome: Result<Vec<MirrorTopicResult>, Failure>,
) -> (ErrorCode, Option<Arc<str>>, Vec<MirrorTopicResult>) {
    match outcome {
        Ok(topics) => {
            let first = topics.iter().find(|topic| !topic.error_code.is_none());
            let (code, words) = first.map_or((ErrorCode::NONE, None), |topic| {
                (topic.error_code, topic.error_message.clone())
            });
            (code, words, topics)
        }
        Err((code, words)) => (code, words, Vec::new()),
    }
}

impl MirrorService {
    /// A service on top of these.
    pub fn new(
        states: Handle,
        mirrors: Vec<ConfiguredMirror>,
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

    pub(super) fn configured(&self, mirror: &str) -> Option<&ConfiguredMirror> {
        let mut mirrors = self.inner.mirrors.iter();
        mirrors.find(|configured| *configured.name == *mirror)
    }

    /// The answer of the mirror's coordinator, if that is another sidecar. As a broker of the KIP does, this process writes into the
    /// request up to where it has read the mirror's state; a request that says that has been passed on, and is not again.
    async fn elsewhere<R: ForMirror>(&self, request: &R) -> Option<R::Response>
    where
        R::Response: MirrorAnswer,
    {
        if request.validation_offset() >= 0 {
            return None;
        }
        let seen = self.seen_offset(request.mirror(), -1);
        let passed_on = request.validated_at(seen);
        let answer = self
            .inner
            .states
            .forward(request.mirror(), &passed_on)
            .await?;
        Some(answer.unwrap_or_else(|reason| {
            let (code, words) = unavailable(reason);
            R::Response::refused(code, words)
        }))
    }

    /// A mirror that the file or the state topic knows.
    fn known(&self, mirror: &Arc<str>) -> Result<(), Failure> {
        let model = self.inner.states.model();
        if !model.is_loaded() {
            return Err(unavailable(Unavailable::Loading));
        }
        if self.configured(mirror).is_some() || model.mirror(mirror).is_some() {
            Ok(())
        } else {
            Err(refused(&Refusal::UnknownMirror))
        }
    }

    /// The offset that a change of topics is checked against, if the request names none: what this process has read.
    fn seen_offset(&self, mirror: &str, requested: i64) -> i64 {
        let model = self.inner.states.model();
        if requested >= 0 {
            requested
        } else {
            model.end(route::of_mirror(mirror, model.partitions()))
        }
    }

    async fn change(
        &self,
        mirror: Arc<str>,
        topics: Vec<Arc<str>>,
        change: TopicChange,
        validation_offset: i64,
        dry_run: bool,
    ) -> Result<Vec<MirrorTopicResult>, Failure> {
        self.known(&mirror)?;
        let seen = self.seen_offset(&mirror, validation_offset);
        let answers = self
            .inner
            .states
            .change_topics(mirror, topics.clone(), change, Some(seen), dry_run)
            .await
            .map_err(unavailable)?;
        let outcomes = answers
            .into_iter()
            .map(|answer| answer.map(drop).map_err(|refusal| refused(&refusal)));
        Ok(topics
            .into_iter()
            .zip(outcomes)
            .map(|(name, outcome)| topic_result(name, outcome))
            .collect())
    }

    /// Names that the state topic knows and that a pattern matches.
    fn matching(
        &self,
        mirror: &str,
        names: impl IntoIterator<Item = Arc<str>>,
        patterns: &[Arc<str>],
    ) -> Result<Vec<Arc<str>>, Failure> {
        let mut all: BTreeSet<Arc<str>> = names.into_iter().collect();
        let mut matcher = NamePatterns::default();
        for pattern in patterns {
            matcher
                .push(pattern)
                .map_err(|error| failure(ErrorCode::INVALID_REGULAR_EXPRESSION, error))?;
        }
        if !patterns.is_empty() {
            let known = self.inner.states.model().topics(mirror);
            all.extend(known.into_keys().filter(|name| matcher.matches(name)));
        }
        Ok(all.into_iter().collect())
    }

    async fn start(
        &self,
        request: StartMirrorTopicsRequest,
    ) -> Result<Vec<MirrorTopicResult>, Failure> {
        let mirror = request.mirror_name;
        self.known(&mirror)?;
        if !request.exclude_patterns.is_empty() {
            return Err(failure(
                ErrorCode::INVALID_REQUEST,
                "topics are excluded in the configuration file: mirror.topics.exclude",
            ));
        }
        let names = request.topics.into_iter().map(|topic| topic.topic_name);
        let topics = self.matching(&mirror, names, &request.include_patterns)?;
        let model = self.inner.states.model();
        let mut results = Vec::new();
        let mut to_change = Vec::new();
        for topic in topics {
            let included = self
                .configured(&mirror)
                .is_none_or(|configured| configured.filter.matches(&topic));
            let other = self.mirrored_by_another(&mirror, &topic);
            if !included {
                let words = format!(
                    "topic {topic} is outside mirror.topics of mirror {mirror} in the configuration file; add it there first"
                );
                results.push(topic_result(
                    topic,
                    Err(failure(ErrorCode::INVALID_REQUEST, words)),
                ));
            } else if let Some(other) = other {
                let refusal = Refusal::OtherMirror(other);
                results.push(topic_result(topic, Err(refused(&refusal))));
            } else if model.topic(&mirror, &topic).is_none() {
                // It is taken up as soon as the source has it.
                results.push(topic_result(topic, Ok(())));
            } else {
                to_change.push(topic);
            }
        }
        if !to_change.is_empty() {
            let (offset, dry_run) = (request.state_validation_offset, request.dry_run);
            let changed = self.change(mirror, to_change, TopicChange::Start, offset, dry_run);
            results.extend(changed.await?);
        }
        results.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(results)
    }

    fn mirrored_by_another(&self, mirror: &Arc<str>, topic: &Arc<str>) -> Option<Arc<str>> {
        let model = self.inner.states.model();
        let others = model.mirrors().into_keys().filter(|other| other != mirror);
        others.into_iter().find(|other| {
            let remembered = model.topic(other, topic);
            remembered.is_some_and(|topic| topic.desired != DesiredState::Stopped)
        })
    }

    async fn recover(
        &self,
        request: RecoverMirrorTopicsRequest,
    ) -> Result<Vec<MirrorTopicResult>, Failure> {
        let mirror = request.mirror_name;
        self.known(&mirror)?;
        let model = self.inner.states.model();
        let failed: Vec<(MirrorPartition, PartitionValue)> = model
            .partitions_of(&mirror)
            .into_iter()
            .filter(|(_, value)| value.state == PartitionState::Failed)
            .collect();
        let mut writes = Vec::new();
        let mut results: BTreeMap<Arc<str>, Result<(), Failure>> = BTreeMap::new();
        for topic in request.topics {
            let known = model.topic(&mirror, &topic.topic_name).is_some()
                || failed
                    .iter()
                    .any(|(key, _)| key.partition.topic == topic.topic_name);
            let outcome = if known {
                Ok(())
            } else {
                Err(refused(&Refusal::UnknownTopic))
            };
            results.insert(topic.topic_name, outcome);
        }
        for (key, value) in failed {
            if matches!(results.get(&key.partition.topic), Some(Ok(()))) {
                let write = PartitionWrite {
                    state: Some(value.previous_state.retried_as()),
                    expected_state_epoch: Some(value.state_epoch),
                    retry_attempt: Some(0),
                    ..PartitionWrite::default()
                };
                writes.push((key, write));
            }
        }
        if !request.dry_run {
            let names: Vec<_> = writes
                .iter()
                .map(|(key, _)| Arc::clone(&key.partition.topic))
                .collect();
            let answers = self.inner.states.write(&mirror, writes).await;
            for (topic, answer) in names.into_iter().zip(answers) {
                let outcome = match answer {
                    Ok(Ok(_)) => continue,
                    Ok(Err(refusal)) => Err(refused(&refusal)),
                    Err(reason) => Err(unavailable(reason)),
                };
                results.insert(topic, outcome);
            }
        }
        Ok(results
            .into_iter()
            .map(|(name, outcome)| topic_result(name, outcome))
            .collect())
    }
}

/// A name that may stand in a record, and an index that a partition may have.
fn is_sound(mirror: &str, topic: &str, index: i32) -> bool {
    let sound = |name: &str| (1..=249).contains(&name.len());
    sound(mirror) && sound(topic) && index >= 0
}

/// A request that a mirror's coordinator decides.
trait ForMirror: Request + Clone {
    fn mirror(&self) -> &Arc<str>;
    fn validation_offset(&self) -> i64;
    fn validated_at(&self, offset: i64) -> Self;
}

macro_rules! for_mirror {
    ($($request:ident)+) => {$(
        impl ForMirror for $request {
            fn mirror(&self) -> &Arc<str> {
                &self.mirror_name
            }

            fn validation_offset(&self) -> i64 {
                self.state_validation_offset
            }

            fn validated_at(&self, offset: i64) -> Self {
                Self {
                    state_validation_offset: offset,
                    ..self.clone()
                }
            }
        }
    )+};
}

for_mirror! {
    StartMirrorTopicsRequest StopMirrorTopicsRequest PauseMirrorTopicsRequest ResumeMirrorTopicsRequest
    DeleteClusterMirrorRequest
}

impl Service for MirrorService {
    async fn start_mirror_topics(
        &self,
        request: StartMirrorTopicsRequest,
    ) -> StartMirrorTopicsResponse {
        if let Some(answer) = self.elsewhere(&request).await {
            return answer;
        }
        let (error_code, error_message, topics) = sum_up(self.start(request).await);
        StartMirrorTopicsResponse {
            error_code,
            error_message,
            topics,
            ..StartMirrorTopicsResponse::default()
        }
    }

    async fn stop_mirror_topics(
        &self,
        request: StopMirrorTopicsRequest,
    ) -> StopMirrorTopicsResponse {
        if let Some(answer) = self.elsewhere(&request).await {
            return answer;
        }
        let names = request.topics.into_iter().map(|topic| topic.topic_name);
        let outcome = match self.matching(&request.mirror_name, names, &request.patterns) {
            Ok(topics) => {
                let (offset, dry_run) = (request.state_validation_offset, request.dry_run);
                self.change(
                    request.mirror_name,
                    topics,
                    TopicChange::Stop,
                    offset,
                    dry_run,
                )
                .await
            }
            Err(failure) => Err(failure),
        };
        let (error_code, error_message, topics) = sum_up(outcome);
        StopMirrorTopicsResponse {
            error_code,
            error_message,
            topics,
            ..StopMirrorTopicsResponse::default()
        }
    }

    async fn pause_mirror_topics(
        &self,
        request: PauseMirrorTopicsRequest,
    ) -> PauseMirrorTopicsResponse {
        if let Some(answer) = self.elsewhere(&request).await {
            return answer;
        }
        let topics = request.topics.into_iter().map(|topic| topic.topic_name);
        let (offset, dry_run) = (request.state_validation_offset, request.dry_run);
        let (topics, change) = (topics.collect(), TopicChange::Pause);
        let outcome = self.change(request.mirror_name, topics, change, offset, dry_run);
        let (error_code, error_message, topics) = sum_up(outcome.await);
        PauseMirrorTopicsResponse {
            error_code,
            error_message,
            topics,
            ..PauseMirrorTopicsResponse::default()
        }
    }

    async fn resume_mirror_topics(
        &self,
        request: ResumeMirrorTopicsRequest,
    ) -> ResumeMirrorTopicsResponse {
        if let Some(answer) = self.elsewhere(&request).await {
            return answer;
        }
        let topics = request.topics.into_iter().map(|topic| topic.topic_name);
        let (offset, dry_run) = (request.state_validation_offset, request.dry_run);
        let (topics, change) = (topics.collect(), TopicChange::Resume);
        let outcome = self.change(request.mirror_name, topics, change, offset, dry_run);
        let (error_code, error_message, topics) = sum_up(outcome.await);
        ResumeMirrorTopicsResponse {
            error_code,
            error_message,
            topics,
            ..ResumeMirrorTopicsResponse::default()
        }
    }

    async fn recover_mirror_topics(
        &self,
        request: RecoverMirrorTopicsRequest,
    ) -> RecoverMirrorTopicsResponse {
        let (error_code, error_message, topics) = sum_up(self.recover(request).await);
        RecoverMirrorTopicsResponse {
            error_code,
            error_message,
            topics,
            ..RecoverMirrorTopicsResponse::default()
        }
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
        names.extend(
            self.inner
                .mirrors
                .iter()
                .map(|mirror| Arc::clone(&mirror.name)),
        );
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
                    .map_or_else(|| "".into(), |mirror| Arc::clone(&mirror.source_bootstrap)),
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
                            let key = MirrorPartition {
                                mirror: Arc::clone(mirror),
                                partition: TopicPartition {
                                    topic: Arc::clone(name),
                                    partition: *index,
                                },
                            };
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
                .map(|index| key_of(&mirror, &name, *index))
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
                    Some((key_of(&mirror, &name, index), write))
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

fn key_of(mirror: &Arc<str>, topic: &Arc<str>, partition: i32) -> MirrorPartition {
    MirrorPartition {
        mirror: Arc::clone(mirror),
        partition: TopicPartition {
            topic: Arc::clone(topic),
            partition,
        },
    }
}
