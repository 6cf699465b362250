//! Compares two clusters record by record, as their consumers see them. Must not change anything on either.
//!
//! The ends of the destination are read before those of the source: a mirror at work is then never ahead.

mod compacted;
mod ends;
mod partition;
mod pass;
mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use self::ends::{Ends, read_ends};
use self::partition::{Job, Sides};
pub use self::report::{Difference, LogRange, Outcome, PartitionReport, VerifyReport};
use crate::domain::types::TopicPartition;
use crate::kafka::admin::{AdminError, describe_configs};
use crate::kafka::cluster::{Cluster, ClusterError, Lane, Metadata, TopicMetadata, Topics};
use crate::kafka::connect::ConnectError;
use crate::kafka::contact::chain;

/// Topics whose configs one request asks for.
const CONFIGS_AT_ONCE: usize = 200;

/// How to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Only so many offsets at the end of what both sides have.
    pub last: Option<i64>,
    /// Partitions that are compared at the same time.
    pub parallel: usize,
    /// Bytes that one answer should have.
    pub fetch_bytes: i32,
    /// How long one answer may take.
    pub request_timeout: Duration,
    /// How long a partition may stand still, over leader moves and lost connections.
    pub patience: Duration,
    /// The largest batch that is taken, in bytes, as stored and decompressed.
    pub max_batch_bytes: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self {
            last: None,
            parallel: 3,
            fetch_bytes: 1 << 20,
            request_timeout: Duration::from_secs(10),
            patience: Duration::from_secs(30),
            max_batch_bytes: 128 << 20,
        }
    }
}

/// How far a comparison is, to be read while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    partitions: AtomicU64,
    partitions_done: AtomicU64,
    offsets: AtomicU64,
    offsets_done: AtomicU64,
    records: AtomicU64,
}

/// [`Progress`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressView {
    /// Partitions to compare; 0 until that is known.
    pub partitions: u64,
    /// Those that are done.
    pub partitions_done: u64,
    /// Offsets to compare, all partitions together.
    pub offsets: u64,
    /// Those that are done; can step back where a range is read again.
    pub offsets_done: u64,
    /// Records compared.
    pub records: u64,
}

impl Progress {
    /// Where it stands now.
    pub fn view(&self) -> ProgressView {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        ProgressView {
            partitions: read(&self.partitions),
            partitions_done: read(&self.partitions_done),
            offsets: read(&self.offsets),
            offsets_done: read(&self.offsets_done),
            records: read(&self.records),
        }
    }

    fn add(number: &AtomicU64, count: u64) {
        number.fetch_add(count, Ordering::Relaxed);
    }

    fn take_back(number: &AtomicU64, count: u64) {
        number.fetch_sub(count, Ordering::Relaxed);
    }
}

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// A cluster does not say which topics it has.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A part of the comparison panicked.
    #[error("a part of the comparison broke")]
    Part(#[from] JoinError),
}

/// Compares every topic for which `wanted` is true, up to the ends that both sides have at the start. Internal topics are
/// left out.
///
/// # Errors
/// If one of the clusters cannot be asked for its topics; what befalls a partition stands in its report.
pub async fn verify(
    source: &Cluster,
    destination: &Cluster,
    wanted: &(dyn Fn(&str) -> bool + Send + Sync),
    options: &VerifyOptions,
    progress: &Arc<Progress>,
) -> Result<VerifyReport, VerifyError> {
    let started = Instant::now();
    let (theirs, ours) = tokio::try_join!(
        source.refresh(Topics::All),
        destination.refresh(Topics::All)
    )?;
    let theirs = wanted_topics(&theirs, wanted);
    let ours = wanted_topics(&ours, wanted);
    let both: Vec<Arc<str>> = theirs
        .keys()
        .filter(|name| ours.contains_key(*name))
        .map(Arc::clone)
        .collect();
    let mut report = VerifyReport {
        missing_topics: only_in(&theirs, &ours),
        only_at_destination: only_in(&ours, &theirs),
        ..VerifyReport::default()
    };
    let (compacted, notes) = compacted_topics(source, destination, &both, options).await;
    report.notes = notes;

    let ours_of_both = partitions_of(&ours, &both);
    let theirs_of_both = partitions_of(&theirs, &both);
    let our_ends = read_ends(destination, &ours_of_both, options).await;
    let their_ends = read_ends(source, &theirs_of_both, options).await;

    let mut jobs = VecDeque::new();
    let all: BTreeSet<&TopicPartition> = ours_of_both.iter().chain(&theirs_of_both).collect();
    for tp in all {
        match both_ends(tp, &their_ends, &our_ends) {
            Ok((source_ends, destination_ends)) => {
                let id = |topics: &Named<'_>| topics.get(&tp.topic).map(|topic| topic.topic_id);
                let (Some(source_id), Some(destination_id)) = (id(&theirs), id(&ours)) else {
                    continue;
                };
                let job = Job {
                    sides: Sides {
                        source: source.clone(),
                        destination: destination.clone(),
                        partition: tp.clone(),
                        source_id,
                        destination_id,
                        options: *options,
                        progress: Arc::clone(progress),
                    },
                    compacted: compacted.contains(&tp.topic),
                    source_ends,
                    destination_ends,
                };
                Progress::add(&progress.offsets, job.offsets());
                jobs.push_back(job);
            }
            Err(settled) => report.partitions.push(*settled),
        }
    }
    let count = u64::try_from(jobs.len()).unwrap_or(u64::MAX);
    Progress::add(&progress.partitions, count);
    // Ended with this function: a set that is dropped aborts its tasks.
    let mut running = JoinSet::new();
    loop {
        while running.len() < options.parallel.max(1)
            && let Some(job) = jobs.pop_front()
        {
            running.spawn(job.run());
        }
        let Some(done) = running.join_next().await else {
            break;
        };
        report.partitions.push(done?);
        Progress::add(&progress.partitions_done, 1);
    }
    report
        .partitions
        .sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
    report.duration = started.elapsed();
    Ok(report)
}

type Named<'a> = BTreeMap<Arc<str>, &'a TopicMetadata>;

fn wanted_topics<'a>(
    metadata: &'a Metadata,
    wanted: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Named<'a> {
    let topics = metadata.topics.iter();
    topics
        .filter(|(name, topic)| !topic.is_internal && wanted(name))
        .map(|(name, topic)| (Arc::clone(name), topic))
        .collect()
}

fn only_in(here: &Named<'_>, there: &Named<'_>) -> Vec<Arc<str>> {
    let names = here.keys().filter(|name| !there.contains_key(*name));
    names.map(Arc::clone).collect()
}

fn partitions_of(topics: &Named<'_>, names: &[Arc<str>]) -> Vec<TopicPartition> {
    let with_partitions = |name: &Arc<str>| {
        let topic = Arc::clone(name);
        let partitions = topics.get(name).map(|topic| topic.partitions.keys());
        partitions
            .into_iter()
            .flatten()
            .map(move |partition| TopicPartition {
                topic: Arc::clone(&topic),
                partition: *partition,
            })
    };
    names.iter().flat_map(with_partitions).collect()
}

type EndsByPartition = HashMap<TopicPartition, Result<Ends, String>>;

/// Both logs' ends, or the report of a partition that cannot be compared.
fn both_ends(
    tp: &TopicPartition,
    source: &EndsByPartition,
    destination: &EndsByPartition,
) -> Result<(Ends, Ends), Box<PartitionReport>> {
    let report = |outcome| Box::new(PartitionReport::new(tp, outcome));
    let different = |reason: &str| {
        report(Outcome::Different(Difference {
            reason: reason.to_owned(),
            ..Difference::default()
        }))
    };
    match (source.get(tp), destination.get(tp)) {
        (Some(Ok(theirs)), Some(Ok(ours))) => Ok((*theirs, *ours)),
        (Some(_), None) => Err(different("the destination does not have the partition")),
        (None, _) => Err(different("only the destination has the partition")),
        (Some(Err(reason)), _) => Err(report(Outcome::Unreadable {
            reason: format!("source: {reason}"),
        })),
        (_, Some(Err(reason))) => Err(report(Outcome::Unreadable {
            reason: format!("destination: {reason}"),
        })),
    }
}

/// Topics that one of the clusters compacts, and what had to be assumed.
async fn compacted_topics(
    source: &Cluster,
    destination: &Cluster,
    topics: &[Arc<str>],
    options: &VerifyOptions,
) -> (BTreeSet<Arc<str>>, Vec<String>) {
    let mut compacted = BTreeSet::new();
    let mut notes = Vec::new();
    for cluster in [source, destination] {
        for names in topics.chunks(CONFIGS_AT_ONCE) {
            if let Err(error) = add_compacted(cluster, names, options, &mut compacted).await {
                notes.push(format!(
                    "the {} does not show topic configs, {} topics are taken as not compacted unless the other side says so: {}",
                    cluster.side(),
                    names.len(),
                    chain(&error)
                ));
            }
        }
    }
    (compacted, notes)
}

#[derive(Debug, thiserror::Error)]
enum ConfigsError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error("{topic}: {reason}")]
    Refused { topic: Arc<str>, reason: String },
}

async fn add_compacted(
    cluster: &Cluster,
    names: &[Arc<str>],
    options: &VerifyOptions,
    compacted: &mut BTreeSet<Arc<str>>,
) -> Result<(), ConfigsError> {
    let connection = cluster.any(Lane::Control).await?;
    let answers = describe_configs(&connection, names, options.request_timeout)
        .await
        .map_err(AdminError::from)?;
    let mut refused = None;
    for (topic, configs) in answers {
        match configs {
            Ok(configs) => {
                let policy = configs.get("cleanup.policy");
                let policy = policy.and_then(|entry| entry.value.as_deref());
                if policy.is_some_and(|policy| policy.contains("compact")) {
                    compacted.insert(topic);
                }
            }
            Err(refusal) => {
                refused = Some(ConfigsError::Refused {
                    topic,
                    reason: refusal.to_string(),
                });
            }
        }
    }
    refused.map_or(Ok(()), Err)
}
