//! One pass over a range of both logs, record against record, up to the first difference. Must not know what the ends of
//! the logs mean.

use std::vec;

use super::Progress;
use super::compacted::Missing;
use super::partition::Sides;
use super::report::{Difference, LogRange};
use crate::domain::types::ProducerId;
use crate::kafka::cluster::Side;
use crate::kafka::visible::{ReadError, VisibleReader};
use crate::kafka::words::{describe, differing_parts};
use crate::wire::records::Record;

/// A log that could not be read.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) side: Side,
    pub(super) error: ReadError,
}

/// What one attempt has added to the progress; taken back if it is dropped without being kept.
pub(super) struct Counted<'a> {
    progress: &'a Progress,
    offsets: u64,
    records: u64,
}

impl<'a> Counted<'a> {
    pub(super) fn new(progress: &'a Progress) -> Self {
        Self {
            progress,
            offsets: 0,
            records: 0,
        }
    }

    /// `offsets` in all; a second pass over the range does not count.
    pub(super) fn reached(&mut self, offsets: i64, records: u64) {
        let offsets = u64::try_from(offsets).unwrap_or(0);
        let more = offsets.saturating_sub(self.offsets);
        Progress::add(&self.progress.offsets_done, more);
        self.offsets = self.offsets.saturating_add(more);
        let more = records.saturating_sub(self.records);
        Progress::add(&self.progress.records, more);
        self.records = self.records.saturating_add(more);
    }

    /// The partition is settled: all that was planned counts as done.
    pub(super) fn keep(mut self, planned: u64) {
        let rest = planned.saturating_sub(self.offsets);
        Progress::add(&self.progress.offsets_done, rest);
        self.offsets = 0;
        self.records = 0;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        Progress::take_back(&self.progress.offsets_done, self.offsets);
        Progress::take_back(&self.progress.records, self.records);
    }
}

/// One side, record by record.
pub(super) struct Stream {
    side: Side,
    reader: VisibleReader,
    records: vec::IntoIter<Record>,
    producer_id: ProducerId,
    head: Option<Record>,
    ended: bool,
    pub(super) bytes: u64,
    pub(super) transactional: bool,
}

impl Stream {
    fn new(sides: &Sides, side: Side, range: LogRange, read_committed: bool) -> Self {
        Self {
            side,
            reader: sides.reader(side, range, read_committed),
            records: Vec::new().into_iter(),
            producer_id: ProducerId::NONE,
            head: None,
            ended: false,
            bytes: 0,
            transactional: false,
        }
    }

    pub(super) fn position(&self) -> i64 {
        let head = self.head.as_ref().map(|record| record.offset);
        head.unwrap_or_else(|| self.reader.position())
    }

    fn is_filled(&mut self) -> bool {
        if self.head.is_none() {
            self.head = self.records.next();
        }
        self.head.is_some() || self.ended
    }

    /// Until there is a record in front, or none is left.
    async fn fill(&mut self) -> Result<(), Unread> {
        while !self.is_filled() {
            let side = self.side;
            let batch = self.reader.next().await;
            match batch.map_err(|error| Unread { side, error })? {
                Some(batch) => {
                    let size_bytes = u64::try_from(batch.size_bytes).unwrap_or(0);
                    self.bytes = self.bytes.saturating_add(size_bytes);
                    self.transactional |= batch.transactional;
                    self.producer_id = batch.producer_id;
                    self.records = batch.records.into_iter();
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    /// What stands in front, for a person, where it is not what was looked for.
    fn words(&self) -> String {
        match &self.head {
            Some(next) => format!("nothing, the next record is at {}", next.offset),
            None => "nothing up to the end".to_owned(),
        }
    }
}

/// One pass over a range of both logs.
pub(super) struct Pass {
    pub(super) source: Stream,
    pub(super) destination: Stream,
    start: i64,
    pub(super) records: u64,
}

impl Pass {
    /// The destination is read as a read_uncommitted consumer sees it, or as a read_committed one.
    pub(super) fn new(sides: &Sides, range: LogRange, destination_committed: bool) -> Self {
        Self {
            source: Stream::new(sides, Side::Source, range, true),
            destination: Stream::new(sides, Side::Destination, range, destination_committed),
            start: range.start,
            records: 0,
        }
    }

    /// Up to the first difference. With `missing`, records that are on one side only are left to it.
    pub(super) async fn run(
        &mut self,
        mut missing: Option<&mut Missing>,
        counted: &mut Counted<'_>,
    ) -> Result<Option<Difference>, Unread> {
        loop {
            if !self.source.is_filled() || !self.destination.is_filled() {
                tokio::try_join!(self.source.fill(), self.destination.fill())?;
                let position = self.source.position().min(self.destination.position());
                counted.reached(position.saturating_sub(self.start), self.records);
            }
            let (source, destination) = (&mut self.source, &mut self.destination);
            let missing = missing.as_deref_mut();
            let producer_id = destination.producer_id;
            let found = match (source.head.take(), destination.head.take()) {
                (None, None) => {
                    counted.reached(0, self.records);
                    return Ok(None);
                }
                (Some(theirs), Some(ours)) if theirs.offset == ours.offset => {
                    let found = both_have(&theirs, &ours, producer_id, missing);
                    self.records = self.records.saturating_add(u64::from(found.is_none()));
                    found
                }
                (Some(theirs), ours) if comes_first(&theirs, ours.as_ref()) => {
                    destination.head = ours;
                    only_source(&theirs, destination, missing)
                }
                (theirs, Some(ours)) => {
                    source.head = theirs;
                    only_destination(&ours, source, producer_id, missing)
                }
                // Not reachable: a record alone comes first.
                (Some(_), None) => None,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

fn comes_first(record: &Record, other: Option<&Record>) -> bool {
    other.is_none_or(|other| record.offset < other.offset)
}

fn both_have(
    theirs: &Record,
    ours: &Record,
    producer_id: ProducerId,
    missing: Option<&mut Missing>,
) -> Option<Difference> {
    if let Some(parts) = differing_parts(theirs, ours) {
        return Some(Difference {
            offset: Some(theirs.offset),
            reason: format!("the records differ in: {parts}"),
            source: Some(describe(theirs)),
            destination: Some(describe(ours)),
            destination_producer_id: Some(producer_id),
        });
    }
    if let Some(missing) = missing {
        missing.has(Side::Source, theirs);
        missing.has(Side::Destination, ours);
    }
    None
}

fn only_source(
    theirs: &Record,
    destination: &Stream,
    missing: Option<&mut Missing>,
) -> Option<Difference> {
    let Some(missing) = missing else {
        return Some(Difference {
            offset: Some(theirs.offset),
            reason: "the record is missing at the destination".to_owned(),
            source: Some(describe(theirs)),
            destination: Some(destination.words()),
            destination_producer_id: None,
        });
    };
    missing.has(Side::Source, theirs);
    missing.lacks(Side::Destination, theirs);
    None
}

fn only_destination(
    ours: &Record,
    source: &Stream,
    producer_id: ProducerId,
    missing: Option<&mut Missing>,
) -> Option<Difference> {
    let Some(missing) = missing else {
        return Some(Difference {
            offset: Some(ours.offset),
            reason: "only the destination has a record here".to_owned(),
            source: Some(source.words()),
            destination: Some(describe(ours)),
            destination_producer_id: Some(producer_id),
        });
    };
    missing.has(Side::Destination, ours);
    missing.lacks(Side::Source, ours);
    None
}
