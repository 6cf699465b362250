//! What operators change: desired states of topics, FAILED partitions. Must not decide what `domain::shard` does; what another
//! sidecar coordinates is passed on to it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::handlers::MirrorService;
use crate::config::NamePatterns;
use crate::coordinator::Unavailable;
use crate::coordinator::messages::{refused, unavailable};
use crate::domain::route;
use crate::domain::shard::{PartitionWrite, Refusal, TopicChange};
use crate::domain::state::{DesiredState, PartitionState};
use crate::domain::state_log::{MirrorPartition, PartitionValue};
use crate::wire::error_code::ErrorCode;
use crate::wire::mirror_rpc::{
    DeleteClusterMirrorRequest, MirrorAnswer, MirrorTopicName, MirrorTopicResult,
    PauseMirrorTopicsRequest, RecoverMirrorTopicsRequest, ResumeMirrorTopicsRequest,
    StartMirrorTopicsRequest, StopMirrorTopicsRequest, TopicAnswer,
};
use crate::wire::schema::Request;

/// A call that fails as a whole.
pub(super) type Failure = (ErrorCode, Option<Arc<str>>);

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
pub(super) fn sum_up<A: TopicAnswer>(outcome: Result<Vec<MirrorTopicResult>, Failure>) -> A {
    match outcome {
        Ok(topics) => {
            let first = topics.iter().find(|topic| !topic.error_code.is_none());
            let (code, words) = first.map_or((ErrorCode::NONE, None), |topic| {
                (topic.error_code, topic.error_message.clone())
            });
            A::of_topics(code, words, topics)
        }
        Err((code, words)) => A::refused(code, words),
    }
}

fn names(topics: &[MirrorTopicName]) -> Vec<Arc<str>> {
    let names = topics.iter().map(|topic| Arc::clone(&topic.topic_name));
    names.collect()
}

/// A request that a mirror's coordinator decides.
pub(super) trait ForMirror: Request + Clone {
    fn mirror(&self) -> &Arc<str>;
    fn validation_offset(&self) -> i64;
    fn dry_run(&self) -> bool;
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

            fn dry_run(&self) -> bool {
                self.dry_run
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

impl MirrorService {
    /// The answer of the mirror's coordinator, if that is another sidecar. As a broker of the KIP does, this process writes into the
    /// request up to where it has read the mirror's state; a request that says that has been passed on, and is not again.
    pub(super) async fn elsewhere<R: ForMirror>(&self, request: &R) -> Option<R::Response>
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

    /// Changes the desired state of those topics of the request's mirror.
    async fn change<R: ForMirror>(
        &self,
        request: &R,
        topics: Vec<Arc<str>>,
        change: TopicChange,
    ) -> Result<Vec<MirrorTopicResult>, Failure> {
        let mirror = Arc::clone(request.mirror());
        self.known(&mirror)?;
        let seen = self.seen_offset(&mirror, request.validation_offset());
        let dry_run = request.dry_run();
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

    /// What a request asks for that names its topics one by one.
    pub(super) async fn change_named<R: ForMirror>(
        &self,
        request: &R,
        topics: &[MirrorTopicName],
        change: TopicChange,
    ) -> R::Response
    where
        R::Response: TopicAnswer,
    {
        match self.elsewhere(request).await {
            Some(answer) => answer,
            None => sum_up(self.change(request, names(topics), change).await),
        }
    }

    /// The names, and those that the state topic knows and that a pattern matches.
    fn matching(
        &self,
        mirror: &Arc<str>,
        names: Vec<Arc<str>>,
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

    pub(super) async fn start(
        &self,
        request: StartMirrorTopicsRequest,
    ) -> Result<Vec<MirrorTopicResult>, Failure> {
        let mirror = Arc::clone(&request.mirror_name);
        self.known(&mirror)?;
        if !request.exclude_patterns.is_empty() {
            return Err(failure(
                ErrorCode::INVALID_REQUEST,
                "topics are excluded in the configuration file: mirror.topics.exclude",
            ));
        }
        let names = request
            .topics
            .iter()
            .map(|topic| Arc::clone(&topic.topic_name));
        let topics = self.matching(&mirror, names.collect(), &request.include_patterns)?;
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
            results.extend(self.change(&request, to_change, TopicChange::Start).await?);
        }
        results.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(results)
    }

    pub(super) async fn stop(
        &self,
        request: StopMirrorTopicsRequest,
    ) -> Result<Vec<MirrorTopicResult>, Failure> {
        let (mirror, named) = (&request.mirror_name, names(&request.topics));
        let topics = self.matching(mirror, named, &request.patterns)?;
        self.change(&request, topics, TopicChange::Stop).await
    }

    fn mirrored_by_another(&self, mirror: &Arc<str>, topic: &Arc<str>) -> Option<Arc<str>> {
        let model = self.inner.states.model();
        let others = model.mirrors().into_keys().filter(|other| other != mirror);
        others.into_iter().find(|other| {
            let remembered = model.topic(other, topic);
            remembered.is_some_and(|topic| topic.desired != DesiredState::Stopped)
        })
    }

    pub(super) async fn recover(
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
