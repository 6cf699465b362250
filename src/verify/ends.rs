//! Where the logs of many partitions start and end, each asked at its leader. Must not compare them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::time::{Instant, sleep};

use super::VerifyOptions;
use crate::domain::types::{BrokerId, LeaderEpoch, TopicPartition};
use crate::kafka::backoff::Backoff;
use crate::kafka::cluster::{Cluster, Lane, Topics};
use crate::kafka::contact::chain;
use crate::kafka::offsets::{OffsetKind, PartitionFault, list_offsets};
use crate::kafka::visible::may_pass;

/// The ends of one log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// Its first offset.
    pub(super) log_start: i64,
    /// Exclusive end of what is replicated.
    pub(super) high_watermark: i64,
    /// Exclusive end of what a read_committed consumer is shown.
    pub(super) last_stable: i64,
}

/// The ends of every partition, or in words why they are not known. Asks again while that may help.
pub(super) async fn read_ends(
    cluster: &Cluster,
    partitions: &[TopicPartition],
    options: &VerifyOptions,
) -> HashMap<TopicPartition, Result<Ends, String>> {
    let deadline = Instant::now() + options.patience;
    let backoff = Backoff::default();
    let mut settled = HashMap::new();
    let mut open: Vec<TopicPartition> = partitions.to_vec();
    let mut rounds = 0;
    loop {
        let mut by_leader: BTreeMap<BrokerId, Vec<(TopicPartition, LeaderEpoch)>> = BTreeMap::new();
        let mut failed = Vec::new();
        for tp in open {
            match cluster.leader(&tp) {
                Some((leader, epoch)) => by_leader.entry(leader).or_default().push((tp, epoch)),
                None => failed.push((tp, "the partition has no leader".to_owned())),
            }
        }
        for (leader, asked) in by_leader {
            for (tp, answer) in ask_leader(cluster, leader, asked, options).await {
                match answer {
                    Ok(ends) => {
                        settled.insert(tp, Ok(ends));
                    }
                    Err(Refused { words, passes }) if passes => failed.push((tp, words)),
                    Err(Refused { words, .. }) => {
                        settled.insert(tp, Err(words));
                    }
                }
            }
        }
        let pause = backoff.pause(rounds, rand::random());
        rounds = rounds.saturating_add(1);
        if failed.is_empty() || Instant::now() + pause >= deadline {
            settled.extend(failed.into_iter().map(|(tp, words)| (tp, Err(words))));
            return settled;
        }
        sleep(pause).await;
        let topics = failed.iter().map(|(tp, _)| Arc::clone(&tp.topic)).collect();
        if let Err(error) = cluster.refresh(Topics::Named(topics)).await {
            let words = chain(&error).to_string();
            for (_, reason) in &mut failed {
                reason.clone_from(&words);
            }
        }
        open = failed.into_iter().map(|(tp, _)| tp).collect();
    }
}

struct Refused {
    words: String,
    passes: bool,
}

type Answers = Vec<(TopicPartition, Result<Ends, Refused>)>;

async fn ask_leader(
    cluster: &Cluster,
    leader: BrokerId,
    asked: Vec<(TopicPartition, LeaderEpoch)>,
    options: &VerifyOptions,
) -> Answers {
    let all_failed = |asked: Vec<(TopicPartition, LeaderEpoch)>, words: String| {
        let refused = asked.into_iter().map(|(tp, _)| {
            let words = words.clone();
            (
                tp,
                Err(Refused {
                    words,
                    passes: true,
                }),
            )
        });
        refused.collect()
    };
    let connection = match cluster.broker(leader, Lane::Control).await {
        Ok(connection) => connection,
        Err(error) => return all_failed(asked, chain(&error).to_string()),
    };
    let mut ends: HashMap<TopicPartition, Result<Ends, Refused>> = HashMap::new();
    for kind in [
        OffsetKind::LogStart,
        OffsetKind::HighWatermark,
        OffsetKind::LastStable,
    ] {
        let answers = list_offsets(&connection, kind, &asked, options.request_timeout).await;
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return all_failed(asked, chain(&error).to_string()),
        };
        for (tp, answer) in answers {
            let entry = ends.entry(tp).or_insert_with(|| Ok(Ends::default()));
            match (&mut *entry, answer) {
                (Ok(ends), Ok(listed)) => {
                    let field = match kind {
                        OffsetKind::LogStart => &mut ends.log_start,
                        OffsetKind::HighWatermark | OffsetKind::LogEnd => &mut ends.high_watermark,
                        OffsetKind::LastStable => &mut ends.last_stable,
                    };
                    *field = listed.offset;
                }
                (Ok(_), Err(fault)) => {
                    let passes = match &fault {
                        PartitionFault::Refused { code, .. } => may_pass(*code),
                        PartitionFault::LeftOut => true,
                    };
                    let words = fault.to_string();
                    *entry = Err(Refused { words, passes });
                }
                (Err(_), _) => {}
            }
        }
    }
    ends.into_iter().collect()
}
