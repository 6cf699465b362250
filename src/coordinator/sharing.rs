//! Gathers what there is to be shared out among the sidecars: every mirrored partition and every state partition, with its
//! leader. Must not share it out: the leader of the group does, with `domain::assign`.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{ReadModel, StateTopic};
use crate::domain::assign::{STATE_TOPIC, Work};
use crate::domain::desired::TopicSet;
use crate::domain::types::{BrokerId, TopicPartition};
use crate::kafka::cluster::Cluster;
use crate::kafka::group::Wanted;

/// Changes come in bursts: topics that are created, leaders that move.
const BURST: Duration = Duration::from_millis(100);

/// The topics of one mirror, and the destination as that mirror sees it.
#[derive(Debug)]
pub struct MirrorWork {
    /// Its topics.
    pub topics: watch::Receiver<Arc<TopicSet>>,
    /// Who leads them.
    pub destination: Cluster,
}

/// What is gathered, and where from.
#[derive(Debug)]
pub struct Sharing {
    /// Every mirror, and a wake-up when there are others.
    pub mirrors: watch::Receiver<Arc<[MirrorWork]>>,
    /// The destination as the coordinators see it.
    pub cluster: Cluster,
    /// The state topic.
    pub topic: StateTopic,
    /// Tells that the state topic is there.
    pub model: ReadModel,
    /// Where it goes.
    pub wanted: watch::Sender<Wanted>,
}

impl Sharing {
    /// Gathers until it is stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => stop.cancelled().await,
        }
    }

    /// Ends when nobody can tell of other mirrors any more.
    async fn follow(&mut self) {
        // Where nobody leads for a moment, the last leader keeps the work where it is.
        let mut last_leaders: BTreeMap<TopicPartition, BrokerId> = BTreeMap::new();
        loop {
            let mirrors = Arc::clone(&self.mirrors.borrow_and_update());
            let mut others = self.mirrors.clone();
            tokio::select! {
                () = self.follow_these(&mirrors, &mut last_leaders) => {}
                changed = others.changed() => if changed.is_err() {
                    return;
                }
            }
        }
    }

    /// Gathers the work of these mirrors, for ever.
    async fn follow_these(
        &self,
        mirrors: &[MirrorWork],
        last_leaders: &mut BTreeMap<TopicPartition, BrokerId>,
    ) {
        let mut topics: Vec<_> = mirrors.iter().map(|m| m.topics.clone()).collect();
        let mut leaders: Vec<_> = mirrors
            .iter()
            .map(|mirror| mirror.destination.watch())
            .collect();
        leaders.push(self.cluster.watch());
        let mut version = self.model.watch();
        loop {
            if let Some(work) = self.gather(mirrors, last_leaders) {
                self.wanted.send_if_modified(|wanted| {
                    let changed = wanted.as_deref() != Some(&work[..]);
                    if changed {
                        *wanted = Some(work.into());
                    }
                    changed
                });
            }
            let prepared = self.model.partitions() > 0;
            let news = topics
                .iter_mut()
                .map(|topics| async { topics.changed().await.is_ok() }.boxed())
                .chain(
                    leaders
                        .iter_mut()
                        .map(|leaders| async { leaders.changed().await.is_ok() }.boxed()),
                );
            let news = select_all(news);
            tokio::select! {
                (open, _, _) = news => {
                    if !open {
                        // A mirror has ended: there will be others, or a stop.
                        pending::<()>().await;
                    }
                }
                Ok(()) = version.changed(), if !prepared => {}
            }
            sleep(BURST).await;
        }
    }

    /// Everything, in order; `None` while it is not known of every mirror which topics it has.
    fn gather(
        &self,
        mirrors: &[MirrorWork],
        last_leaders: &mut BTreeMap<TopicPartition, BrokerId>,
    ) -> Option<Vec<Work>> {
        let count = self.model.partitions();
        if count == 0 {
            return None;
        }
        let mut work = Vec::new();
        let state = self.cluster.leaders();
        for partition in 0..count {
            let at = TopicPartition {
                topic: Arc::clone(&self.topic.name),
                partition,
            };
            let leader = state.leader(&at).map(|(broker, _)| broker);
            work.push((TopicPartition::new(STATE_TOPIC, partition), leader));
        }
        for mirror in mirrors {
            let set = Arc::clone(&mirror.topics.borrow());
            if !set.known {
                return None;
            }
            let leaders = mirror.destination.leaders();
            for (topic, entry) in &set.topics {
                for partition in 0..entry.partitions {
                    let partition = TopicPartition {
                        topic: Arc::clone(topic),
                        partition,
                    };
                    let leader = leaders.leader(&partition).map(|(broker, _)| broker);
                    work.push((partition, leader));
                }
            }
        }
        let mut known = BTreeMap::new();
        let mut work: Vec<Work> = work
            .into_iter()
            .map(|(partition, leader)| {
                let leader = leader.or_else(|| last_leaders.get(&partition).copied());
                if let Some(leader) = leader {
                    known.insert(partition.clone(), leader);
                }
                Work { partition, leader }
            })
            .collect();
        *last_leaders = known;
        work.sort_unstable();
        work.dedup_by(|one, other| one.partition == other.partition);
        Some(work)
    }
}
