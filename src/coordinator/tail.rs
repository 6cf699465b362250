//! Follows the whole state topic into the read model. Must not write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::log::decoded;
use super::model::ReadModel;
use crate::domain::types::{BrokerId, LeaderEpoch, TopicId, TopicPartition};
use crate::kafka::cluster::{Cluster, Lane};
use crate::kafka::contact::chain;
use crate::kafka::fetch_session::{FetchLimits, Wanted};
use crate::kafka::fetcher::{FetchFault, FetchOutcome, Fetched, Fetcher};
use crate::wire::error_code::ErrorCode;
use crate::wire::records::Records;

/// Most bytes of one answer.
const ANSWER_BYTES: i32 = 5 * 1024 * 1024;
/// Most bytes of one partition in it, but for a first batch that is larger.
const PARTITION_BYTES: i32 = 1024 * 1024;
/// What a batch may inflate to.
const INFLATED_BYTES: usize = 64 * 1024 * 1024;
/// How long a broker may hold an answer back.
const LONG_POLL: Duration = Duration::from_millis(500);
/// After a fetch that failed, or leaders that are not known.
const PAUSE: Duration = Duration::from_millis(200);

type Answered = (BrokerId, Fetcher, Result<FetchOutcome, FetchFault>);

pub(super) struct Tail {
    pub(super) cluster: Cluster,
    pub(super) topic: Arc<str>,
    /// Which topic of that name; `None` for whichever is there.
    pub(super) topic_id: Option<TopicId>,
    pub(super) partitions: i32,
    pub(super) request_timeout: Duration,
    pub(super) model: ReadModel,
}

impl Tail {
    /// Follows until it is stopped.
    pub(super) async fn run(self, stop: CancellationToken) {
        let read = |partition| (partition, self.model.end(partition));
        let mut positions: BTreeMap<i32, i64> = (0..self.partitions).map(read).collect();
        let mut idle: BTreeMap<BrokerId, Fetcher> = BTreeMap::new();
        let mut busy: BTreeMap<BrokerId, bool> = BTreeMap::new();
        let mut asked: FuturesUnordered<BoxFuture<'static, Answered>> = FuturesUnordered::new();
        let mut leaders = self.cluster.watch();
        loop {
            let wanted = self.wanted(&positions);
            for (broker, wanted) in wanted {
                if busy.get(&broker).copied().unwrap_or(false) {
                    continue;
                }
                let fetcher = idle.remove(&broker).unwrap_or_default();
                busy.insert(broker, true);
                asked.push(self.ask(broker, fetcher, wanted));
            }
            tokio::select! {
                () = stop.cancelled() => return,
                Some((broker, fetcher, outcome)) = asked.next(), if !asked.is_empty() => {
                    busy.insert(broker, false);
                    idle.insert(broker, fetcher);
                    match outcome {
                        Ok(outcome) => {
                            for fetched in outcome.partitions {
                                self.take(fetched, &mut positions);
                            }
                        }
                        Err(error) => {
                            debug!(%broker, error = %chain(&error), "state topic not followed");
                            self.cluster.request_refresh();
                        }
                    }
                }
                Ok(()) = leaders.changed() => {}
                () = sleep(PAUSE), if asked.is_empty() => self.cluster.request_refresh(),
            }
        }
    }

    /// What is to be asked of each leader.
    fn wanted(&self, positions: &BTreeMap<i32, i64>) -> BTreeMap<BrokerId, Vec<Wanted>> {
        let leaders = self.cluster.leaders();
        let topic_id = leaders.topic_id(&self.topic);
        let mut wanted: BTreeMap<BrokerId, Vec<Wanted>> = BTreeMap::new();
        if self.topic_id.is_some_and(|ours| ours != topic_id) {
            return wanted;
        }
        for (partition, position) in positions {
            let partition = TopicPartition {
                topic: Arc::clone(&self.topic),
                partition: *partition,
            };
            let Some((broker, current_leader_epoch)) = leaders.leader(&partition) else {
                continue;
            };
            wanted.entry(broker).or_default().push(Wanted {
                partition,
                topic_id,
                fetch_offset: *position,
                current_leader_epoch,
                last_fetched_epoch: LeaderEpoch::NONE,
                partition_max_bytes: PARTITION_BYTES,
            });
        }
        wanted
    }

    fn ask(
        &self,
        broker: BrokerId,
        fetcher: Fetcher,
        wanted: Vec<Wanted>,
    ) -> BoxFuture<'static, Answered> {
        let limits = FetchLimits {
            max_wait_ms: i32::try_from(LONG_POLL.as_millis()).unwrap_or(i32::MAX),
            min_bytes: 1,
            max_bytes: ANSWER_BYTES,
        };
        let cluster = self.cluster.clone();
        let timeout = self.request_timeout.saturating_add(LONG_POLL);
        async move {
            let (fetcher, outcome) = fetcher
                .fetch(cluster, broker, Lane::StateTail, wanted, limits, timeout)
                .await;
            if outcome.is_err() {
                sleep(PAUSE).await;
            }
            (broker, fetcher, outcome)
        }
        .boxed()
    }

    fn take(&self, fetched: Fetched, positions: &mut BTreeMap<i32, i64>) {
        let index = fetched.partition.partition;
        let Some(position) = positions.get_mut(&index) else {
            return;
        };
        match fetched.error_code {
            ErrorCode::NONE => {}
            ErrorCode::OFFSET_OUT_OF_RANGE => {
                // Trimmed, or cut by an election: what is there is read again, and state epochs tell what is new.
                *position = fetched.log_start_offset.max(0);
                return;
            }
            code => {
                debug!(partition = %fetched.partition, %code, "state partition not followed");
                self.cluster.request_refresh();
                return;
            }
        }
        let mut records = Vec::new();
        for batch in &fetched.batches {
            if batch.header.end_offset() <= *position {
                continue;
            }
            // Markers of whatever once wrote here are nothing to read.
            let content = (!batch.header.has(crate::domain::types::BatchHeader::CONTROL))
                .then(|| Records::new(batch, INFLATED_BYTES));
            match content {
                None => {}
                Some(Err(error)) => {
                    warn!(partition = %fetched.partition, %error, "batch of the state topic left out");
                }
                Some(Ok(content)) => {
                    // Its coordinator counts and says it.
                    records.extend(decoded(content.map_while(Result::ok), |offset, error| {
                        debug!(partition = %fetched.partition, offset, %error, "state record left out");
                    }));
                }
            }
            *position = batch.header.end_offset();
        }
        if let Some(fault) = fetched.fault {
            warn!(partition = %fetched.partition, error = %chain(&fault), "damaged batch in the state topic");
        }
        let caught_up = *position >= fetched.high_watermark;
        if !records.is_empty() || caught_up {
            self.model.take(index, records, *position, caught_up);
        }
    }
}
