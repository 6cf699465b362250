//! Two ends of a log, one verdict: may the destination be continued from the source? Must not read either of them.

use thiserror::Error;

use crate::domain::types::ProducerId;

/// How far back from its end a destination log is compared at a resume, in offsets.
pub const COMPARED_OFFSETS: i64 = 1_000;

/// Where both logs begin and end. `_end` offsets are exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// First offset of the source.
    pub source_log_start_offset: i64,
    /// The source leader's log end: what no mirror can be ahead of.
    pub source_log_end_offset: i64,
    /// First offset of the destination.
    pub destination_log_start_offset: i64,
    /// The destination leader's log end, all of it replicated.
    pub destination_log_end_offset: i64,
    /// Below it every transaction of the destination is decided.
    pub destination_last_stable_offset: i64,
}

/// What the ends alone say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstLook {
    /// The destination holds nothing, and the source begins where it would.
    Empty,
    /// The records from this offset on can be compared, up to the destination's log end.
    Compare {
        /// First offset that both logs may hold.
        from: i64,
    },
    /// The destination cannot be continued.
    Stop(AlignFailure),
}

/// Why a destination log cannot be continued from its source.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AlignFailure {
    /// The source lost its beginning before it was mirrored.
    #[error(
        "the source starts at offset {source_start} and the destination ends at {destination_end}: offsets \
         {destination_end} to {} can no longer be copied; exclude the topic",
        source_start.saturating_sub(1)
    )]
    Gap {
        /// First offset of the source.
        source_start: i64,
        /// Next offset of the destination.
        destination_end: i64,
    },
    /// The destination's beginning is missing.
    #[error(
        "the destination starts at offset {destination_start}, the source at {source_start}: records were deleted on the \
         destination"
    )]
    BeginningMissing {
        /// First offset of the source.
        source_start: i64,
        /// First offset of the destination.
        destination_start: i64,
    },
    /// An open transaction at the destination.
    #[error(
        "the destination holds an open transaction from offset {last_stable_offset} on; end it there before mirroring into \
         this topic"
    )]
    Undecided {
        /// The destination's last stable offset.
        last_stable_offset: i64,
    },
    /// The destination holds more than the source.
    #[error(
        "the destination is ahead: the source ends at offset {source_end}, the destination at {destination_end}; offset \
         {source_end} there was written by producer id {producer_id}, not copied from this source"
    )]
    Ahead {
        /// Next offset of the source.
        source_end: i64,
        /// Next offset of the destination.
        destination_end: i64,
        /// Who wrote the first record beyond.
        producer_id: ProducerId,
    },
    /// The records differ.
    #[error(
        "source and destination differ at offset {offset}: source has {source_has}, destination has {destination_has} \
         written by producer id {producer_id}; stop whoever writes there"
    )]
    Differs {
        /// First offset that differs.
        offset: i64,
        /// What the source holds, in words.
        source_has: String,
        /// What the destination holds, in words.
        destination_has: String,
        /// Who wrote the destination's batch; -1 for a producer that is not idempotent.
        producer_id: ProducerId,
    },
    /// Equal records, but not ours, above ours.
    #[error(
        "destination changed by another writer at offset {offset}: its batch there was written by producer id {producer_id}, \
         not by this mirror; stop whoever writes there"
    )]
    ForeignWriter {
        /// First offset of the batch.
        offset: i64,
        /// Who wrote it; -1 for a producer that is not idempotent.
        producer_id: ProducerId,
    },
}

impl AlignFailure {
    /// The first offset of the destination that differs from the source, where the destination could be made anew; `None` for
    /// what lies at the source, or passes.
    pub fn diverged_at(&self) -> Option<i64> {
        match self {
            Self::Ahead { source_end, .. } => Some(*source_end),
            Self::BeginningMissing { source_start, .. } => Some(*source_start),
            Self::Differs { offset, .. } | Self::ForeignWriter { offset, .. } => Some(*offset),
            Self::Gap { .. } | Self::Undecided { .. } => None,
        }
    }
}

/// Looks at the ends alone. `ahead_by` names who wrote the destination's batch at the source's end, if it is ahead.
pub fn first_look(ends: &Ends, ahead_by: ProducerId) -> FirstLook {
    let Ends {
        source_log_start_offset: source_start,
        source_log_end_offset: source_end,
        destination_log_start_offset: destination_start,
        destination_log_end_offset: destination_end,
        destination_last_stable_offset,
    } = *ends;
    if destination_last_stable_offset < destination_end {
        return FirstLook::Stop(AlignFailure::Undecided {
            last_stable_offset: destination_last_stable_offset,
        });
    }
    if destination_end > source_end {
        return FirstLook::Stop(AlignFailure::Ahead {
            source_end,
            destination_end,
            producer_id: ahead_by,
        });
    }
    if source_start > destination_end {
        return FirstLook::Stop(AlignFailure::Gap {
            source_start,
            destination_end,
        });
    }
    if destination_start > source_start {
        return FirstLook::Stop(AlignFailure::BeginningMissing {
            source_start,
            destination_start,
        });
    }
    if destination_start == destination_end {
        return FirstLook::Empty;
    }
    FirstLook::Compare {
        from: destination_start.max(source_start),
    }
}

/// Whose a batch of the destination is, seen in log order. Batches below our first one count as adopted: they were there
/// before the mirror, and only their content matters.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    ours: ProducerId,
    seen_ours: bool,
    foreign: Option<(i64, ProducerId)>,
}

impl Ownership {
    /// Nothing seen yet.
    pub fn new(ours: ProducerId) -> Self {
        Self {
            ours,
            seen_ours: false,
            foreign: None,
        }
    }

    /// One more batch.
    ///
    /// # Errors
    /// If it is not ours but stands above one of ours.
    pub fn see(&mut self, base_offset: i64, producer_id: ProducerId) -> Result<(), AlignFailure> {
        if producer_id == self.ours {
            self.seen_ours = true;
            return Ok(());
        }
        if self.foreign.is_none() {
            self.foreign = Some((base_offset, producer_id));
        }
        if self.seen_ours {
            return Err(AlignFailure::ForeignWriter {
                offset: base_offset,
                producer_id,
            });
        }
        Ok(())
    }

    /// True if a batch that is not ours was seen: only a look from the log's start tells whether it was adopted.
    pub fn met_foreign(&self) -> bool {
        self.foreign.is_some()
    }
}

/// The first offset at which two lists of visible records, in log order, differ: its position in each of them.
pub fn first_difference<R>(
    source: &[R],
    destination: &[R],
    same: impl Fn(&R, &R) -> bool,
) -> Option<usize> {
    let shorter = source.len().min(destination.len());
    let differing = source
        .iter()
        .zip(destination)
        .position(|(ours, theirs)| !same(ours, theirs));
    differing.or_else(|| (source.len() != destination.len()).then_some(shorter))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: ProducerId = ProducerId(7);
    const THEIRS: ProducerId = ProducerId(-1);

    fn ends(source: (i64, i64), destination: (i64, i64)) -> Ends {
        Ends {
            source_log_start_offset: source.0,
            source_log_end_offset: source.1,
            destination_log_start_offset: destination.0,
            destination_log_end_offset: destination.1,
            destination_last_stable_offset: destination.1,
        }
    }

    #[test]
    fn ends_decide_what_they_can() {
        use AlignFailure::{Ahead, BeginningMissing, Gap};
        use FirstLook::{Compare, Empty, Stop};
        for (source, destination, verdict) in [
            ((0, 0), (0, 0), Empty),
            ((0, 100), (0, 0), Empty),
            ((0, 100), (0, 100), Compare { from: 0 }),
            ((0, 100), (0, 40), Compare { from: 0 }),
            ((30, 100), (0, 40), Compare { from: 30 }),
            ((40, 100), (0, 40), Compare { from: 40 }),
            ((30, 100), (30, 40), Compare { from: 30 }),
            ((30, 100), (30, 30), Empty),
            (
                (0, 10),
                (0, 30),
                Stop(Ahead {
                    source_end: 10,
                    destination_end: 30,
                    producer_id: THEIRS,
                }),
            ),
            (
                (50, 100),
                (0, 40),
                Stop(Gap {
                    source_start: 50,
                    destination_end: 40,
                }),
            ),
            (
                (50, 100),
                (0, 0),
                Stop(Gap {
                    source_start: 50,
                    destination_end: 0,
                }),
            ),
            (
                (0, 100),
                (20, 40),
                Stop(BeginningMissing {
                    source_start: 0,
                    destination_start: 20,
                }),
            ),
            (
                (0, 100),
                (40, 40),
                Stop(BeginningMissing {
                    source_start: 0,
                    destination_start: 40,
                }),
            ),
        ] {
            assert_eq!(
                first_look(&ends(source, destination), THEIRS),
                verdict,
                "{source:?} {destination:?}"
            );
        }
    }

    #[test]
    fn an_open_transaction_stops_first() {
        let open = Ends {
            destination_last_stable_offset: 5,
            ..ends((0, 3), (0, 9))
        };
        let undecided = AlignFailure::Undecided {
            last_stable_offset: 5,
        };
        assert_eq!(first_look(&open, THEIRS), FirstLook::Stop(undecided));
    }

    #[test]
    fn only_what_lies_below_our_first_batch_is_adopted() {
        let seen = |batches: &[ProducerId]| {
            let mut ownership = Ownership::new(OURS);
            let verdict = batches
                .iter()
                .zip(0..)
                .try_for_each(|(id, offset)| ownership.see(offset, *id));
            (verdict, ownership.met_foreign())
        };
        let foreign = |offset| {
            Err(AlignFailure::ForeignWriter {
                offset,
                producer_id: THEIRS,
            })
        };
        assert_eq!(seen(&[OURS, OURS]), (Ok(()), false));
        assert_eq!(seen(&[THEIRS, THEIRS]), (Ok(()), true));
        assert_eq!(seen(&[THEIRS, OURS, OURS]), (Ok(()), true));
        assert_eq!(seen(&[OURS, THEIRS]), (foreign(1), true));
        assert_eq!(seen(&[THEIRS, OURS, THEIRS, OURS]), (foreign(2), true));
    }

    #[test]
    fn the_first_difference_is_found() {
        for (source, destination, at) in [
            (vec![1, 2, 3], vec![1, 2, 3], None),
            (vec![1, 2, 3], vec![1, 9, 3], Some(1)),
            (vec![1, 2, 3], vec![1, 2], Some(2)),
            (vec![], vec![1], Some(0)),
        ] {
            assert_eq!(first_difference(&source, &destination, |a, b| a == b), at);
        }
    }
}
