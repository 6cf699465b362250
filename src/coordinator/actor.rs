//! One state partition's coordinator: decide, append, apply, answer. Must not know who asks, nor choose which partitions are
//! its own.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::log::{LogError, StateLog};
use super::model::ReadModel;
use crate::domain::shard::{Draft, Shard};
use crate::domain::state_log::{CoordinatorValue, StateKey, StateRecord, StateValue};
use crate::kafka::backoff::Backoff;
use crate::kafka::contact::chain;
use crate::kafka::group::Lease;

/// The coordinator's record is repeated after this, so that the broker never forgets the producer: it does so by the time of
/// records, a day after the last one by default.
const REPEAT_AFTER: Duration = Duration::from_secs(4 * 60 * 60);

/// Requests that are decided together and appended as one batch.
const TOGETHER: usize = 256;

/// Pauses between loads that fail.
const RETRIES: Backoff = Backoff {
    first: Duration::from_millis(100),
    cap: Duration::from_secs(5),
};

/// Loads that fail in a row before an operator is told: an election takes fewer.
const FAILURES_SAID: u32 = 8;

/// After somebody else has taken over a partition that is still ours by the group's word: they know by then.
const DEPOSED_PAUSE: Duration = Duration::from_secs(5);

/// Called when the records that a request made are in the log; dropped when their outcome is unknown.
pub(super) type Answer = Box<dyn FnOnce() + Send>;

/// One request: what it does to a draft, and how it is answered. Whoever waits for the answer of one that is dropped learns
/// that it was not carried out, as far as is known.
pub(super) struct Job(pub(super) Box<dyn FnOnce(&mut Draft<'_>) -> Answer + Send>);

/// Who coordinates.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) sidecar: Arc<str>,
    pub(super) incarnation: Arc<str>,
    pub(super) address: Arc<str>,
}

pub(super) struct Actor {
    pub(super) index: i32,
    pub(super) identity: Identity,
    pub(super) log: StateLog,
    /// Knows what the log of an earlier topic said.
    pub(super) model: ReadModel,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) wall_clock_ms: fn() -> i64,
    /// The right to decide: without contact to the group it runs out, and somebody else may have it.
    pub(super) lease: Lease,
    /// Told when it has loaded, and when it has to load again.
    pub(super) loaded: Box<dyn Fn(bool) + Send>,
}

impl Actor {
    /// Runs until it is stopped. While it loads, jobs are dropped: their askers are told to come again.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut failures = 0_u32;
        let mut served = false;
        loop {
            let loaded = tokio::select! {
                () = stop.cancelled() => return,
                loaded = load(&mut self.log, &mut self.jobs) => loaded,
            };
            let outcome = match loaded {
                Ok(shard) if served && self.other_coordinator(&shard).is_some() => {
                    served = false;
                    info!(
                        partition = self.index,
                        "another sidecar coordinates this state partition now, standing back"
                    );
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = refuse(&mut self.jobs, DEPOSED_PAUSE) => continue,
                    }
                }
                Ok(mut shard) => {
                    (failures, served) = (0, true);
                    self.serve(&mut shard, &stop).await
                }
                Err(error) => Err(error),
            };
            (self.loaded)(false);
            match outcome {
                Ok(()) => return,
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if failures == FAILURES_SAID {
                        warn!(
                            partition = self.index, error = %chain(&error),
                            "a state partition cannot be loaded, trying until it can; nothing of its mirrors can be changed meanwhile"
                        );
                    }
                    debug!(
                        partition = self.index, failures, error = %chain(&error),
                        "state partition is loaded anew"
                    );
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(RETRIES.pause(failures, rand::random())) => {}
            }
        }
    }

    /// Takes over, then serves until it is stopped or the outcome of an append is not known.
    async fn serve(&mut self, shard: &mut Shard, stop: &CancellationToken) -> Result<(), LogError> {
        if let Some(other) = self.other_coordinator(shard) {
            info!(
                partition = self.index, sidecar = %other.sidecar, address = %other.address,
                "taking over a state partition"
            );
        }
        let mut first = shard.overtaken();
        if !shard.is_taken_over() {
            self.log.confirm_topic().await?;
            let restored = self.model.restored(self.index, shard);
            debug!(
                partition = self.index,
                keys = restored.len(),
                "nobody has coordinated this state partition yet, writing what is remembered of it"
            );
            first.extend(restored);
        }
        // Last: it says that nothing of the above is missing.
        first.extend(self.coordinator_record());
        self.log.append(shard, first).await?;
        debug!(
            partition = self.index,
            keys = shard.len(),
            "state partition loaded"
        );
        (self.loaded)(true);
        let mut repeat_at = Instant::now() + REPEAT_AFTER;
        let mut jobs = Vec::new();
        loop {
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                count = self.jobs.recv_many(&mut jobs, TOGETHER) => {
                    if count == 0 {
                        return Ok(());
                    }
                    Some(std::mem::take(&mut jobs))
                }
                () = sleep_until(repeat_at) => None,
            };
            match outcome {
                // They are dropped: who asked comes again.
                Some(_) if !self.lease.may_decide() => {
                    debug!(
                        partition = self.index,
                        "no contact to the group, nothing is decided"
                    );
                }
                Some(jobs) => {
                    let mut draft = Draft::new(shard);
                    let answers: Vec<Answer> =
                        jobs.into_iter().map(|job| (job.0)(&mut draft)).collect();
                    let records = draft.into_records();
                    if !records.is_empty() {
                        // Not to be dropped halfway: a stop waits for it, at most for its time limit.
                        self.log.append(shard, records).await.inspect_err(|error| {
                            warn!(
                                partition = self.index, error = %chain(error),
                                "state not written for certain; those who asked are told to ask again"
                            );
                        })?;
                    }
                    for answer in answers {
                        answer();
                    }
                }
                None => {
                    let record = self.coordinator_record();
                    self.log.append(shard, record).await?;
                    repeat_at = Instant::now() + REPEAT_AFTER;
                }
            }
        }
    }

    fn other_coordinator<'s>(&self, shard: &'s Shard) -> Option<&'s CoordinatorValue> {
        match shard.get(&StateKey::Coordinator)? {
            StateValue::Coordinator(value) if value.incarnation != self.identity.incarnation => {
                Some(value)
            }
            _ => None,
        }
    }

    fn coordinator_record(&self) -> Vec<StateRecord> {
        vec![StateRecord {
            key: StateKey::Coordinator,
            value: Some(StateValue::Coordinator(CoordinatorValue {
                sidecar: Arc::clone(&self.identity.sidecar),
                incarnation: Arc::clone(&self.identity.incarnation),
                address: Arc::clone(&self.identity.address),
                time_ms: (self.wall_clock_ms)(),
            })),
        }]
    }
}

/// Loads, and meanwhile drops what comes in.
async fn load(log: &mut StateLog, jobs: &mut mpsc::Receiver<Job>) -> Result<Shard, LogError> {
    let loading = log.load();
    tokio::pin!(loading);
    loop {
        tokio::select! {
            biased;
            loaded = &mut loading => return loaded,
            Some(_told_to_come_again) = jobs.recv() => {}
        }
    }
}

/// Drops what comes in, for a while.
async fn refuse(jobs: &mut mpsc::Receiver<Job>, pause: Duration) {
    let until = Instant::now() + pause;
    loop {
        tokio::select! {
            () = sleep_until(until) => return,
            Some(_told_to_come_again) = jobs.recv() => {}
        }
    }
}
