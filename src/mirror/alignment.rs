//! Compares both logs below the destination's end, before anything is appended there. Must not append, and must not decide
//! what cannot be read from both logs.

use std::time::Duration;

use crate::domain::align::{AlignFailure, Ends, FirstLook, Ownership, first_look};
use crate::domain::types::{LeaderEpoch, ProducerId, TopicId, TopicPartition};
use crate::kafka::cluster::{Cluster, Lane};
use crate::kafka::contact::chain;
use crate::kafka::offsets::{OffsetKind, list_offsets};
use crate::kafka::visible::{ReadOptions, VisibleBatch, VisibleReader, describe, same, tail};
use crate::wire::records::Record;

/// How long one batch may take to be read.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is to be compared.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) source: Cluster,
    pub(super) destination: Cluster,
    pub(super) partition: TopicPartition,
    pub(super) source_topic_id: TopicId,
    pub(super) destination_topic_id: TopicId,
    /// Our producer id on the destination.
    pub(super) ours: ProducerId,
    /// Next offset of the destination, all of it replicated.
    pub(super) destination_log_end_offset: i64,
    pub(super) timeout: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Alignment {
    /// The destination is a prefix of the source, as far as one must look.
    Equal {
        /// Source epoch of the last batch below the destination's end.
        source_epoch: LeaderEpoch,
    },
    /// It is not.
    Stop(AlignFailure),
    /// One side could not be read.
    Unavailable(String),
}

/// One side could not be read, in words.
struct Unreadable(String);

impl Unreadable {
    fn new(error: &(dyn std::error::Error + 'static)) -> Self {
        Self(chain(error).to_string())
    }
}

/// Compares the two logs: the end of the destination's, or all of it if batches stand there that are not ours.
pub(super) async fn align(question: Question) -> Alignment {
    match question.compare().await {
        Ok(Ok(source_epoch)) => Alignment::Equal { source_epoch },
        Ok(Err(failure)) => Alignment::Stop(failure),
        Err(Unreadable(words)) => Alignment::Unavailable(words),
    }
}

/// Who wrote the destination's batch at `offset`; `None` if it cannot be read.
pub(super) async fn writer_at(
    destination: &Cluster,
    partition: &TopicPartition,
    topic_id: TopicId,
    offset: i64,
) -> Option<ProducerId> {
    let options = ReadOptions {
        patience: PATIENCE,
        ..ReadOptions::new(Lane::Compare, false)
    };
    let range = offset..offset.saturating_add(1);
    let mut reader = VisibleReader::new(
        destination.clone(),
        partition.clone(),
        topic_id,
        range,
        options,
    );
    reader.next().await.ok()?.map(|batch| batch.producer_id)
}

impl Question {
    async fn compare(&self) -> Result<Result<LeaderEpoch, AlignFailure>, Unreadable> {
        let ends = self.ends().await?;
        let ahead = ends.destination_log_end_offset > ends.source_log_end_offset;
        let ahead_by = match ahead {
            true => {
                let at = ends
                    .source_log_end_offset
                    .max(ends.destination_log_start_offset);
                writer_at(
                    &self.destination,
                    &self.partition,
                    self.destination_topic_id,
                    at,
                )
                .await
            }
            false => None,
        };
        let from = match first_look(&ends, ahead_by.unwrap_or(ProducerId::NONE)) {
            FirstLook::Empty => return Ok(Ok(LeaderEpoch::NONE)),
            FirstLook::Stop(failure) => return Ok(Err(failure)),
            FirstLook::Compare { from } => from,
        };
        if from >= ends.destination_log_end_offset {
            return Ok(Ok(LeaderEpoch::NONE));
        }
        match self.compare_tail(from).await? {
            Ok(Some(source_epoch)) => Ok(Ok(source_epoch)),
            Ok(None) => self.compare_all(from).await,
            Err(failure) => Ok(Err(failure)),
        }
    }

    async fn ends(&self) -> Result<Ends, Unreadable> {
        let (source_start, source_end) = self
            .two(&self.source, OffsetKind::LogStart, OffsetKind::LogEnd)
            .await?;
        let (start, stable) = self
            .two(
                &self.destination,
                OffsetKind::LogStart,
                OffsetKind::LastStable,
            )
            .await?;
        Ok(Ends {
            source_log_start_offset: source_start,
            source_log_end_offset: source_end,
            destination_log_start_offset: start,
            destination_log_end_offset: self.destination_log_end_offset,
            destination_last_stable_offset: stable,
        })
    }

    async fn two(
        &self,
        cluster: &Cluster,
        one: OffsetKind,
        other: OffsetKind,
    ) -> Result<(i64, i64), Unreadable> {
        let side = cluster.side();
        let Some((broker, epoch)) = cluster.leader(&self.partition) else {
            return Err(Unreadable(format!("the {side} has no leader for it")));
        };
        let connection = cluster
            .broker(broker, Lane::Compare)
            .await
            .map_err(|error| Unreadable::new(&error))?;
        let parts = [(self.partition.clone(), epoch)];
        let (one, other) = futures::join!(
            list_offsets(&connection, one, &parts, self.timeout.min(PATIENCE)),
            list_offsets(&connection, other, &parts, self.timeout.min(PATIENCE)),
        );
        let offset = |answer: Result<
            Vec<(
                TopicPartition,
                Result<crate::kafka::offsets::ListedOffset, _>,
            )>,
            _,
        >| {
            let answers = answer
                .map_err(|error: crate::kafka::connection::RequestError| Unreadable::new(&error))?;
            let found: Result<_, crate::kafka::offsets::PartitionFault> =
                answers.into_iter().next().map_or(
                    Err(crate::kafka::offsets::PartitionFault::LeftOut),
                    |(_, found)| found,
                );
            found
                .map(|listed| listed.offset)
                .map_err(|fault| Unreadable::new(&fault))
        };
        Ok((offset(one)?, offset(other)?))
    }

    /// The usual case: all batches of the window are ours. `None` if not.
    async fn compare_tail(
        &self,
        floor: i64,
    ) -> Result<Result<Option<LeaderEpoch>, AlignFailure>, Unreadable> {
        let end = self.destination_log_end_offset;
        let options = self.options(false);
        let window = tail(
            &self.destination,
            &self.partition,
            self.destination_topic_id,
            floor,
            end,
            options,
        )
        .await
        .map_err(|error| Unreadable::new(&error))?;
        let mut ownership = Ownership::new(self.ours);
        for batch in &window.batches {
            if let Err(failure) = ownership.see(batch.base_offset, batch.producer_id) {
                return Ok(Err(failure));
            }
        }
        if ownership.met_foreign() {
            return Ok(Ok(None));
        }
        let destination = window.batches;
        let mut compared = Compared::default();
        let mut source = self.reader(&self.source, window.from);
        let mut theirs = destination.into_iter();
        while let Some(batch) = source
            .next()
            .await
            .map_err(|error| Unreadable::new(&error))?
        {
            compared.source_epoch = batch.leader_epoch;
            while compared.destination_end < batch.end_offset.min(end) {
                let Some(batch) = theirs.next() else { break };
                compared.take_destination(batch);
            }
            if let Some(failure) = compared.take_source(batch) {
                return Ok(Err(failure));
            }
        }
        theirs.for_each(|batch| compared.take_destination(batch));
        Ok(match compared.finish() {
            Some(failure) => Err(failure),
            None => Ok(Some(compared.source_epoch)),
        })
    }

    /// Batches that are not ours count as adopted if they lie below our first one and hold the source's records.
    async fn compare_all(
        &self,
        from: i64,
    ) -> Result<Result<LeaderEpoch, AlignFailure>, Unreadable> {
        let end = self.destination_log_end_offset;
        let mut source = self.reader(&self.source, from);
        let mut destination = self.reader(&self.destination, from);
        let mut ownership = Ownership::new(self.ours);
        let mut compared = Compared::default();
        let mut next = destination
            .next()
            .await
            .map_err(|error| Unreadable::new(&error))?;
        while let Some(batch) = source
            .next()
            .await
            .map_err(|error| Unreadable::new(&error))?
        {
            compared.source_epoch = batch.leader_epoch;
            while let Some(theirs) =
                next.take_if(|_| compared.destination_end < batch.end_offset.min(end))
            {
                if let Err(failure) = ownership.see(theirs.base_offset, theirs.producer_id) {
                    return Ok(Err(failure));
                }
                compared.take_destination(theirs);
                next = destination
                    .next()
                    .await
                    .map_err(|error| Unreadable::new(&error))?;
            }
            if let Some(failure) = compared.take_source(batch) {
                return Ok(Err(failure));
            }
        }
        while let Some(theirs) = next {
            if let Err(failure) = ownership.see(theirs.base_offset, theirs.producer_id) {
                return Ok(Err(failure));
            }
            compared.take_destination(theirs);
            next = destination
                .next()
                .await
                .map_err(|error| Unreadable::new(&error))?;
        }
        Ok(match compared.finish() {
            Some(failure) => Err(failure),
            None => Ok(compared.source_epoch),
        })
    }

    /// A comparison that a broker holds up gives its place to others, and comes back later.
    fn options(&self, read_committed: bool) -> ReadOptions {
        ReadOptions {
            request_timeout: self.timeout.min(PATIENCE),
            patience: PATIENCE,
            ..ReadOptions::new(Lane::Compare, read_committed)
        }
    }

    fn reader(&self, cluster: &Cluster, from: i64) -> VisibleReader {
        let source = cluster.side() == crate::kafka::cluster::Side::Source;
        let topic_id = if source {
            self.source_topic_id
        } else {
            self.destination_topic_id
        };
        let options = self.options(source);
        let range = from..self.destination_log_end_offset;
        VisibleReader::new(
            cluster.clone(),
            self.partition.clone(),
            topic_id,
            range,
            options,
        )
    }
}

/// Records of both sides that have no counterpart yet, in log order.
#[derive(Debug)]
struct Compared {
    destination: std::collections::VecDeque<(Record, ProducerId)>,
    /// Next offset of the destination that was not taken in.
    destination_end: i64,
    source_epoch: LeaderEpoch,
}

impl Default for Compared {
    fn default() -> Self {
        Self {
            destination: std::collections::VecDeque::new(),
            destination_end: i64::MIN,
            source_epoch: LeaderEpoch::NONE,
        }
    }
}

impl Compared {
    fn take_destination(&mut self, batch: VisibleBatch) {
        self.destination_end = batch.end_offset;
        let producer_id = batch.producer_id;
        self.destination.extend(
            batch
                .records
                .into_iter()
                .map(|record| (record, producer_id)),
        );
    }

    /// Takes in a batch of the source, to whose end the destination was taken in before.
    fn take_source(&mut self, batch: VisibleBatch) -> Option<AlignFailure> {
        for record in batch.records {
            match self.destination.pop_front() {
                Some((theirs, _)) if same(&record, &theirs) => {}
                Some((theirs, producer_id)) if theirs.offset < record.offset => {
                    return Some(surplus(&theirs, producer_id));
                }
                Some((theirs, producer_id)) => {
                    let destination_has = if theirs.offset == record.offset {
                        describe(&theirs)
                    } else {
                        "no record".to_owned()
                    };
                    return Some(AlignFailure::Differs {
                        offset: record.offset,
                        source_has: describe(&record),
                        destination_has,
                        producer_id,
                    });
                }
                None => {
                    return Some(AlignFailure::Differs {
                        offset: record.offset,
                        source_has: describe(&record),
                        destination_has: "no record".to_owned(),
                        producer_id: ProducerId::NONE,
                    });
                }
            }
        }
        None
    }

    /// What the destination holds beyond the source's last record.
    fn finish(&mut self) -> Option<AlignFailure> {
        let (theirs, producer_id) = self.destination.pop_front()?;
        Some(surplus(&theirs, producer_id))
    }
}

fn surplus(theirs: &Record, producer_id: ProducerId) -> AlignFailure {
    AlignFailure::Differs {
        offset: theirs.offset,
        source_has: "no record".to_owned(),
        destination_has: describe(theirs),
        producer_id,
    }
}
