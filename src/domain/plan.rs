//! What to do with batches that the source holds at the cursor. Must not see record bytes; batches are named by index.

use thiserror::Error;

use crate::domain::types::BatchHeader;

/// What becomes of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Append the batch of this index as it is, with a new header.
    Append {
        /// Position in the list that was planned.
        index: usize,
    },
    /// The batch of this index lies wholly below the cursor: it is there already.
    Skip {
        /// Position in the list that was planned.
        index: usize,
    },
}

/// Why a partition cannot go on with what the source holds. Offsets are the source's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanFailure {
    /// A control batch: the source is transactional.
    #[error(
        "offset {offset} is a transaction marker; truemirror does not mirror transactional topics, \
         exclude the topic"
    )]
    ControlBatch {
        /// Its offset.
        offset: i64,
    },
    /// Records of a transaction.
    #[error(
        "offset {offset} belongs to a transaction; truemirror does not mirror transactional topics, exclude the topic"
    )]
    Transactional {
        /// First offset of the batch.
        offset: i64,
    },
    /// Offsets without records.
    #[error(
        "the source has no records at offsets {from} to {last} (compacted away or aborted); truemirror does not mirror logs \
         with holes, exclude the topic"
    )]
    Hole {
        /// First offset without a record.
        from: i64,
        /// Last offset without a record, or of the batch that has the hole inside.
        last: i64,
    },
    /// The batch was stamped by the source's broker.
    #[error(
        "the batch at offset {offset} carries LogAppendTime; truemirror mirrors CreateTime topics, set \
         message.timestamp.type=CreateTime on the source topic or exclude it"
    )]
    LogAppendTime {
        /// First offset of the batch.
        offset: i64,
    },
    /// A codec that Kafka does not know.
    #[error(
        "the batch at offset {offset} names the unknown codec {codec}; is the source log damaged?"
    )]
    UnknownCodec {
        /// First offset of the batch.
        offset: i64,
        /// The number in the attributes.
        codec: i16,
    },
    /// The destination ends inside a batch of the source.
    #[error(
        "the destination ends at offset {cursor}, inside the source's batch {first_offset} to {last_offset}; delete the \
         destination topic and mirror it again"
    )]
    StartsBelow {
        /// Next offset of the destination.
        cursor: i64,
        /// First offset of the batch.
        first_offset: i64,
        /// Last offset of the batch.
        last_offset: i64,
    },
}

/// Plans what to do with `batches`, in log order, of which `cursor` is the next offset wanted. Stops at the first batch
/// that cannot be kept identical; what comes before it is planned.
pub fn plan<'a>(
    cursor: i64,
    batches: impl IntoIterator<Item = &'a BatchHeader>,
) -> (Vec<Action>, Option<PlanFailure>) {
    let mut next = cursor;
    let mut actions = Vec::new();
    for (index, batch) in batches.into_iter().enumerate() {
        if batch.end_offset() <= next {
            actions.push(Action::Skip { index });
            continue;
        }
        if let Some(failure) = unfaithful(next, batch) {
            return (actions, Some(failure));
        }
        next = batch.end_offset();
        actions.push(Action::Append { index });
    }
    (actions, None)
}

/// Why this batch cannot be appended at `next` as it is.
fn unfaithful(next: i64, batch: &BatchHeader) -> Option<PlanFailure> {
    let offset = batch.base_offset;
    if offset > next {
        return Some(PlanFailure::Hole {
            from: next,
            last: offset.saturating_sub(1),
        });
    }
    if batch.has(BatchHeader::CONTROL) {
        return Some(PlanFailure::ControlBatch { offset });
    }
    if batch.has(BatchHeader::TRANSACTIONAL) {
        return Some(PlanFailure::Transactional { offset });
    }
    if i64::from(batch.record_count) != i64::from(batch.last_offset_delta).saturating_add(1) {
        return Some(PlanFailure::Hole {
            from: offset,
            last: batch.last_offset(),
        });
    }
    if batch.has(BatchHeader::LOG_APPEND_TIME) {
        return Some(PlanFailure::LogAppendTime { offset });
    }
    if let Err(codec) = batch.codec() {
        return Some(PlanFailure::UnknownCodec { offset, codec });
    }
    (offset < next).then_some(PlanFailure::StartsBelow {
        cursor: next,
        first_offset: offset,
        last_offset: batch.last_offset(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::types::{LeaderEpoch, ProducerEpoch, ProducerId};

    fn batch(base_offset: i64, count: i32) -> BatchHeader {
        BatchHeader {
            base_offset,
            partition_leader_epoch: LeaderEpoch(0),
            attributes: 0,
            last_offset_delta: count - 1,
            base_timestamp: 0,
            max_timestamp: 0,
            producer_id: ProducerId::NONE,
            producer_epoch: ProducerEpoch(-1),
            base_sequence: -1,
            record_count: count,
            size_bytes: 100,
        }
    }

    fn flagged(base_offset: i64, count: i32, attributes: i16) -> BatchHeader {
        BatchHeader {
            attributes,
            ..batch(base_offset, count)
        }
    }

    /// Indexes to append, and what stopped the plan.
    fn check(cursor: i64, batches: &[BatchHeader], append: &[usize], failure: Option<PlanFailure>) {
        let (actions, found) = plan(cursor, batches);
        let indexes: Vec<usize> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Append { index } => Some(*index),
                Action::Skip { .. } => None,
            })
            .collect();
        assert_eq!(
            (indexes.as_slice(), found),
            (append, failure),
            "{batches:?}"
        );
    }

    #[test]
    fn contiguous_batches_are_appended() {
        check(0, &[], &[], None);
        check(
            0,
            &[batch(0, 5), batch(5, 1), batch(6, 4)],
            &[0, 1, 2],
            None,
        );
        check(7, &[batch(7, 1)], &[0], None);
    }

    #[test]
    fn what_is_there_already_is_skipped() {
        check(5, &[batch(0, 5), batch(5, 5)], &[1], None);
        check(5, &[batch(0, 3)], &[], None);
    }

    #[test]
    fn every_kind_that_cannot_be_kept_identical_stops_with_its_offset() {
        let holed = BatchHeader {
            record_count: 3,
            ..batch(4, 5)
        };
        let empty = BatchHeader {
            record_count: 0,
            ..batch(4, 5)
        };
        let inside = BatchHeader {
            base_offset: 2,
            ..batch(2, 5)
        };
        for (bad, failure) in [
            (batch(6, 1), PlanFailure::Hole { from: 4, last: 5 }),
            (holed, PlanFailure::Hole { from: 4, last: 8 }),
            (empty, PlanFailure::Hole { from: 4, last: 8 }),
            (
                flagged(4, 1, BatchHeader::CONTROL | BatchHeader::TRANSACTIONAL),
                PlanFailure::ControlBatch { offset: 4 },
            ),
            (
                flagged(4, 2, BatchHeader::TRANSACTIONAL),
                PlanFailure::Transactional { offset: 4 },
            ),
            (
                flagged(4, 2, BatchHeader::LOG_APPEND_TIME),
                PlanFailure::LogAppendTime { offset: 4 },
            ),
            (
                flagged(4, 2, 7),
                PlanFailure::UnknownCodec {
                    offset: 4,
                    codec: 7,
                },
            ),
            (
                inside,
                PlanFailure::StartsBelow {
                    cursor: 4,
                    first_offset: 2,
                    last_offset: 6,
                },
            ),
        ] {
            check(0, &[batch(0, 4), bad, batch(20, 1)], &[0], Some(failure));
        }
    }

    #[test]
    fn a_plan_never_appends_below_or_beyond_its_cursor() {
        // Every short combination of lengths, gaps and flags.
        for code in 0..4_096_i32 {
            let mut base = 0;
            let batches: Vec<BatchHeader> = (0..4)
                .map(|place| {
                    let digit = (code >> (place * 3)) & 7;
                    base += i64::from(digit & 1);
                    let found =
                        flagged(base, 1 + (digit >> 1 & 1), if digit > 5 { 0x30 } else { 0 });
                    base = found.end_offset();
                    found
                })
                .collect();
            for cursor in 0..3 {
                let (actions, failure) = plan(cursor, &batches);
                let mut next = cursor;
                for action in &actions {
                    if let Action::Append { index } = action {
                        assert_eq!(batches[*index].base_offset, next);
                        next = batches[*index].end_offset();
                    }
                }
                assert_eq!(actions.len() == batches.len(), failure.is_none());
            }
        }
    }
}
