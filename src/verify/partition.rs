//! Compares one partition of two clusters, record by record. Must not hold more of it than one answer and one batch per
//! side.

use std::sync::Arc;

use super::compacted::Missing;
use super::ends::{Ends, read_ends};
use super::pass::{Counted, Pass, Unread};
use super::report::{Difference, LogRange, Outcome, PartitionReport};
use super::{Progress, VerifyOptions};
use crate::domain::types::{TopicId, TopicPartition};
use crate::kafka::cluster::{Cluster, Lane, Side};
use crate::kafka::contact::chain;
use crate::kafka::visible::{ReadError, ReadOptions, VisibleReader};
use crate::kafka::words::describe;

/// How often a partition is begun anew because retention took its beginning away.
const RESTARTS: u32 = 5;

/// Both logs of one partition, and how to read them.
#[derive(Clone, Debug)]
pub(super) struct Sides {
    pub(super) source: Cluster,
    pub(super) destination: Cluster,
    pub(super) partition: TopicPartition,
    pub(super) source_id: TopicId,
    pub(super) destination_id: TopicId,
    pub(super) options: VerifyOptions,
    pub(super) progress: Arc<Progress>,
}

/// A partition to compare.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) sides: Sides,
    pub(super) compacted: bool,
    pub(super) source_ends: Ends,
    pub(super) destination_ends: Ends,
}

/// What is compared, and what the ends alone say.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    range: LogRange,
    lag_offsets: i64,
    /// The destination lacks the source's first offsets up to here.
    late_start: Option<i64>,
    /// The destination goes on behind the source's end.
    ahead: Option<LogRange>,
}

/// What both sides have of a partition; the source up to its last stable offset, the destination up to its high watermark.
fn plan(source: LogRange, destination: LogRange, last: Option<i64>) -> Plan {
    let end = source.end.min(destination.end);
    let first = source.start.max(destination.start);
    let start = last
        .map_or(first, |count| first.max(end.saturating_sub(count.max(0))))
        .min(end.max(first));
    // Nothing is said of a beginning that nobody asked for.
    let begins = last.is_none() || start == first;
    Plan {
        range: LogRange {
            start,
            end: end.max(start),
        },
        lag_offsets: source.end.saturating_sub(destination.end).max(0),
        late_start: (begins && destination.start > source.start).then_some(destination.start),
        ahead: (destination.end > source.end).then_some(LogRange {
            start: source.end.max(destination.start),
            end: destination.end,
        }),
    }
}

impl Job {
    fn ranges(&self) -> (LogRange, LogRange) {
        let source = LogRange {
            start: self.source_ends.log_start,
            end: self.source_ends.last_stable,
        };
        let destination = LogRange {
            start: self.destination_ends.log_start,
            end: self.destination_ends.high_watermark,
        };
        (source, destination)
    }

    fn plan(&self) -> Plan {
        let (source, destination) = self.ranges();
        plan(source, destination, self.sides.options.last)
    }

    /// How many offsets are to be compared.
    pub(super) fn offsets(&self) -> u64 {
        let range = self.plan().range;
        u64::try_from(range.end.saturating_sub(range.start)).unwrap_or(0)
    }

    /// Compares the partition. Faults of it are its outcome.
    pub(super) async fn run(mut self) -> PartitionReport {
        let unreadable = |unread: &Unread| Outcome::Unreadable {
            reason: format!("{}: {}", unread.side, chain(&unread.error)),
        };
        let planned = self.offsets();
        let mut restarts = 0;
        let mut report = loop {
            let (source, destination) = self.ranges();
            let mut report = PartitionReport::new(&self.sides.partition, Outcome::Equal);
            report.source = Some(source);
            report.destination = Some(destination);
            let mut counted = Counted::new(&self.sides.progress);
            match self.compare(&mut report, &mut counted).await {
                Ok(()) => {
                    counted.keep(planned);
                    break report;
                }
                Err(unread) if trimmed(&unread) && restarts < RESTARTS => {
                    drop(counted);
                    restarts = restarts.saturating_add(1);
                    if let Err(reason) = self.read_ends_again().await {
                        report.outcome = Outcome::Unreadable { reason };
                        break report;
                    }
                }
                Err(unread) => {
                    counted.keep(planned);
                    report.outcome = unreadable(&unread);
                    break report;
                }
            }
        };
        if restarts > 0 {
            report
                .notes
                .push("begun anew: its first offsets were removed while they were read".to_owned());
        }
        let undecided = self
            .source_ends
            .high_watermark
            .saturating_sub(self.source_ends.last_stable);
        if undecided > 0 {
            report.notes.push(format!(
                "the source has {undecided} offsets from its last stable offset on, where a transaction is open"
            ));
        }
        report
    }

    async fn read_ends_again(&mut self) -> Result<(), String> {
        let sides = &self.sides;
        for (cluster, ends) in [
            (&sides.destination, &mut self.destination_ends),
            (&sides.source, &mut self.source_ends),
        ] {
            *ends = ends_of(cluster, sides).await?;
        }
        Ok(())
    }

    async fn compare(
        &self,
        report: &mut PartitionReport,
        counted: &mut Counted<'_>,
    ) -> Result<(), Unread> {
        let plan = self.plan();
        let sides = &self.sides;
        let mut missing = self.compacted.then(Missing::default);
        report.lag_offsets = plan.lag_offsets;
        let mut pass = Pass::new(sides, plan.range, false);
        let difference = pass.run(missing.as_mut(), counted).await;
        report.records = pass.records;
        report.bytes = pass.source.bytes;
        report.compared = Some(LogRange {
            start: plan.range.start,
            end: match &difference {
                Ok(Some(Difference {
                    offset: Some(offset),
                    ..
                })) => *offset,
                Ok(_) => plan.range.end,
                Err(_) => pass.source.position().min(pass.destination.position()),
            },
        });
        let transactional = pass.destination.transactional;
        drop(pass);
        let mut difference = difference?;
        if let Some(missing) = &mut missing {
            self.look_ahead(missing, plan.range.end).await?;
            let lacking = self.describe_lacking(missing).await?;
            difference = earlier(difference, lacking);
        }
        if let Some(starts) = plan.late_start {
            difference = Some(Difference {
                offset: report.source.map(|range| range.start),
                reason: format!("the destination's log starts at {starts} only"),
                ..Difference::default()
            });
        }
        if difference.is_none() && self.destination_ends.last_stable < plan.range.end {
            difference = Some(Difference {
                offset: Some(self.destination_ends.last_stable),
                reason: "the destination has an open transaction here: read_committed consumers are shown nothing from here on"
                    .to_owned(),
                ..Difference::default()
            });
        }
        if difference.is_none() && transactional {
            // Nobody but another writer has transactions there, and an aborted one hides records.
            let mut missing = self.compacted.then(Missing::default);
            let mut pass = Pass::new(sides, plan.range, true);
            difference = pass.run(missing.as_mut(), counted).await?;
            if let Some(missing) = &mut missing {
                self.look_ahead(missing, plan.range.end).await?;
                difference = earlier(difference, self.describe_lacking(missing).await?);
            }
            if let Some(difference) = &mut difference {
                difference.reason.push_str(" for read_committed consumers");
            }
        }
        if difference.is_none()
            && let Some(ahead) = plan.ahead
        {
            difference = self.describe_ahead(ahead, report).await?;
        }
        let overflowed = missing.is_some_and(|missing| missing.overflowed());
        report.outcome = match difference {
            Some(difference) => Outcome::Different(difference),
            None if overflowed => Outcome::Uncertain {
                reason: "so many keys of this compacted topic are on one side only that they cannot all be checked"
                    .to_owned(),
            },
            None => Outcome::Equal,
        };
        Ok(())
    }

    /// Later records of missing keys may lie behind the range.
    async fn look_ahead(&self, missing: &mut Missing, from: i64) -> Result<(), Unread> {
        for side in [Side::Source, Side::Destination] {
            if missing.first(side).is_none() {
                continue;
            }
            let cluster = self.sides.cluster(side);
            let Ok(ends) = ends_of(cluster, &self.sides).await else {
                continue;
            };
            let end = match side {
                Side::Source => ends.last_stable,
                Side::Destination => ends.high_watermark,
            };
            let range = LogRange { start: from, end };
            let mut reader = self.sides.reader(side, range, side == Side::Source);
            while missing.first(side).is_some() {
                let read = reader.next().await;
                let Some(batch) = read.map_err(|error| Unread { side, error })? else {
                    break;
                };
                for record in &batch.records {
                    missing.has(side, record);
                }
            }
        }
        Ok(())
    }

    /// The first record that a side lacks for good, looked up again on the other side for its words.
    async fn describe_lacking(&self, missing: &Missing) -> Result<Option<Difference>, Unread> {
        let lacking = [Side::Source, Side::Destination].map(|side| (missing.first(side), side));
        let first = lacking
            .into_iter()
            .filter_map(|(offset, side)| Some((offset?, side)));
        let Some((offset, lacks)) = first.min_by_key(|(offset, _)| *offset) else {
            return Ok(None);
        };
        let has = match lacks {
            Side::Source => Side::Destination,
            Side::Destination => Side::Source,
        };
        let range = LogRange {
            start: offset,
            end: offset.saturating_add(1),
        };
        let mut found = None;
        let mut reader = self.sides.reader(has, range, has == Side::Source);
        while found.is_none() {
            let read = reader.next().await;
            let Some(batch) = read.map_err(|error| Unread { side: has, error })? else {
                break;
            };
            let producer_id = batch.producer_id;
            found = batch
                .records
                .into_iter()
                .next()
                .map(|record| (record, producer_id));
        }
        let nothing = "nothing, and no later record of the key".to_owned();
        let words = found.as_ref().map(|(record, _)| describe(record));
        let producer_id = found.as_ref().map(|(_, producer_id)| *producer_id);
        Ok(Some(match lacks {
            Side::Destination => Difference {
                offset: Some(offset),
                reason: "the record is missing at the destination".to_owned(),
                source: words,
                destination: Some(nothing),
                destination_producer_id: None,
            },
            Side::Source => Difference {
                offset: Some(offset),
                reason: "only the destination has a record here".to_owned(),
                source: Some(nothing),
                destination: words,
                destination_producer_id: producer_id,
            },
        }))
    }

    /// Whether consumers are shown anything behind the source's end. Control batches there (the fence of a stopped mirror
    /// is one) are no difference.
    async fn describe_ahead(
        &self,
        ahead: LogRange,
        report: &mut PartitionReport,
    ) -> Result<Option<Difference>, Unread> {
        let side = Side::Destination;
        let mut reader = self.sides.reader(side, ahead, false);
        loop {
            let read = reader.next().await;
            let Some(batch) = read.map_err(|error| Unread { side, error })? else {
                break;
            };
            if let Some(record) = batch.records.first() {
                return Ok(Some(Difference {
                    offset: Some(record.offset),
                    reason: format!(
                        "the destination ends at {}, beyond the source's end",
                        ahead.end
                    ),
                    source: Some(format!("nothing, it ends at {}", ahead.start)),
                    destination: Some(describe(record)),
                    destination_producer_id: Some(batch.producer_id),
                }));
            }
        }
        report.notes.push(format!(
            "the destination ends at {}, {} offsets beyond the source's end; consumers are shown nothing there",
            ahead.end,
            ahead.end.saturating_sub(ahead.start)
        ));
        Ok(None)
    }
}

impl Sides {
    fn cluster(&self, side: Side) -> &Cluster {
        match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        }
    }

    pub(super) fn reader(
        &self,
        side: Side,
        range: LogRange,
        read_committed: bool,
    ) -> VisibleReader {
        let topic_id = match side {
            Side::Source => self.source_id,
            Side::Destination => self.destination_id,
        };
        let options = ReadOptions {
            lane: Lane::Compare,
            fetch_bytes: self.options.fetch_bytes,
            request_timeout: self.options.request_timeout,
            patience: self.options.patience,
            read_committed,
            max_batch_bytes: self.options.max_batch_bytes,
        };
        VisibleReader::new(
            self.cluster(side).clone(),
            self.partition.clone(),
            topic_id,
            range.start..range.end,
            options,
        )
    }
}

async fn ends_of(cluster: &Cluster, sides: &Sides) -> Result<Ends, String> {
    let asked = [sides.partition.clone()];
    let mut found = read_ends(cluster, &asked, &sides.options).await;
    let answer = found.remove(&sides.partition);
    answer
        .unwrap_or_else(|| Err("no answer".to_owned()))
        .map_err(|reason| format!("{}: {reason}", cluster.side()))
}

/// True if the log begins above the offset by now.
fn trimmed(unread: &Unread) -> bool {
    matches!(
        unread.error,
        ReadError::OutOfRange { position, log_start, .. } if log_start > position
    )
}

fn earlier(a: Option<Difference>, b: Option<Difference>) -> Option<Difference> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if b.offset < a.offset { b } else { a }),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_say_what_can_be_compared() {
        let range = |start, end| LogRange { start, end };
        // Source, destination, last; range, lag, late start, ahead.
        for (source, destination, last, wanted) in [
            ((0, 10), (0, 10), None, ((0, 10), 0, None, None)),
            ((0, 10), (0, 7), None, ((0, 7), 3, None, None)),
            ((0, 10), (0, 0), None, ((0, 0), 10, None, None)),
            ((5, 10), (0, 10), None, ((5, 10), 0, None, None)),
            ((0, 10), (5, 10), None, ((5, 10), 0, Some(5), None)),
            ((0, 10), (0, 12), None, ((0, 10), 0, None, Some((10, 12)))),
            ((100, 200), (0, 0), None, ((100, 100), 200, None, None)),
            ((0, 10), (0, 10), Some(3), ((7, 10), 0, None, None)),
            ((0, 10), (0, 7), Some(3), ((4, 7), 3, None, None)),
            ((0, 10), (8, 10), Some(5), ((8, 10), 0, Some(8), None)),
            ((0, 10), (2, 10), Some(5), ((5, 10), 0, None, None)),
            ((0, 10), (0, 10), Some(-1), ((10, 10), 0, None, None)),
            ((0, 3), (5, 9), None, ((5, 5), 0, Some(5), Some((5, 9)))),
        ] {
            let found = plan(
                range(source.0, source.1),
                range(destination.0, destination.1),
                last,
            );
            let (compared, lag_offsets, late_start, ahead) = wanted;
            let wanted = Plan {
                range: range(compared.0, compared.1),
                lag_offsets,
                late_start,
                ahead: ahead.map(|(start, end)| range(start, end)),
            };
            assert_eq!(found, wanted, "{source:?} {destination:?} {last:?}");
        }
    }
}
