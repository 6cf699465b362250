//! The states of a mirrored partition, by KIP-1279's names and numbers, and which may follow which. Must not hold what is
//! done in them.
//!
//! The revision is that of the KIP's page of June 2026, whose state names became those of the prototype of July 2026. Later
//! prototypes renamed LOG_TRUNCATION to LOG_ALIGNMENT and gave other numbers; nothing of that is read or written here.

use std::fmt;

/// The state of one mirrored partition (`MirrorPartitionState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartitionState {
    /// -1: nothing is known of the partition, the absence of a state. 16, a default of an earlier schema, is read as this.
    #[default]
    Unknown,
    /// 0: both logs are being compared, nothing is appended yet.
    LogTruncation,
    /// 1: the source's leader epoch changed, and the source has not yet said whether our end is still part of its log.
    EpochFencing,
    /// 2: records are fetched and appended.
    Mirroring,
    /// 3: nothing is fetched any more, answers to the last appends are awaited.
    Pausing,
    /// 4: nothing runs; the partition is still meant to be read only.
    Paused,
    /// 5: the last records are copied and later appends fenced off.
    Stopping,
    /// 6: the partition is an ordinary one that clients may write to.
    Stopped,
    /// 7: the partition stands still, for a reason that is told with it.
    Failed,
}

impl PartitionState {
    /// Every state that a partition can be in, in the order of the numbers; without UNKNOWN, which is the absence of one.
    pub const ALL: [Self; 8] = [
        Self::LogTruncation,
        Self::EpochFencing,
        Self::Mirroring,
        Self::Pausing,
        Self::Paused,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
    ];

    /// The name as KIP-1279 spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::LogTruncation => "LOG_TRUNCATION",
            Self::EpochFencing => "EPOCH_FENCING",
            Self::Mirroring => "MIRRORING",
            Self::Pausing => "PAUSING",
            Self::Paused => "PAUSED",
            Self::Stopping => "STOPPING",
            Self::Stopped => "STOPPED",
            Self::Failed => "FAILED",
        }
    }

    /// KIP-1279's number.
    pub const fn number(self) -> i8 {
        match self {
            Self::Unknown => -1,
            Self::LogTruncation => 0,
            Self::EpochFencing => 1,
            Self::Mirroring => 2,
            Self::Pausing => 3,
            Self::Paused => 4,
            Self::Stopping => 5,
            Self::Stopped => 6,
            Self::Failed => 7,
        }
    }

    /// The state with this number; a number that no state has comes back.
    pub const fn from_number(number: i8) -> Result<Self, i8> {
        Ok(match number {
            -1 | 16 => Self::Unknown,
            0 => Self::LogTruncation,
            1 => Self::EpochFencing,
            2 => Self::Mirroring,
            3 => Self::Pausing,
            4 => Self::Paused,
            5 => Self::Stopping,
            6 => Self::Stopped,
            7 => Self::Failed,
            other => return Err(other),
        })
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .chain([Self::Unknown])
            .find(|state| state.name() == name)
    }

    /// True if a partition in this state may go to `next`: the KIP's table. To stay is always allowed, to become UNKNOWN never.
    pub const fn may_become(self, next: Self) -> bool {
        match next {
            Self::Unknown => matches!(self, Self::Unknown),
            Self::LogTruncation => matches!(
                self,
                Self::LogTruncation | Self::Unknown | Self::Stopped | Self::Failed
            ),
            Self::EpochFencing => matches!(self, Self::EpochFencing | Self::Mirroring),
            Self::Mirroring => matches!(
                self,
                Self::Mirroring
                    | Self::LogTruncation
                    | Self::EpochFencing
                    | Self::Paused
                    | Self::Failed
            ),
            Self::Pausing => matches!(self, Self::Pausing | Self::Mirroring),
            Self::Paused => matches!(self, Self::Paused | Self::Pausing),
            Self::Stopping => matches!(
                self,
                Self::Stopping
                    | Self::LogTruncation
                    | Self::EpochFencing
                    | Self::Mirroring
                    | Self::Pausing
                    | Self::Paused
                    | Self::Failed
            ),
            Self::Stopped => matches!(self, Self::Stopped | Self::Stopping),
            Self::Failed => true,
        }
    }

    /// Where a FAILED partition goes when it is tried again, if this was its state before it failed. A state that cannot
    /// follow FAILED is begun anew from where it is reached: EPOCH_FENCING and PAUSING from MIRRORING.
    pub const fn retried_as(self) -> Self {
        match self {
            Self::Unknown | Self::LogTruncation | Self::Failed | Self::Stopped => {
                Self::LogTruncation
            }
            Self::EpochFencing | Self::Mirroring | Self::Pausing | Self::Paused => Self::Mirroring,
            Self::Stopping => Self::Stopping,
        }
    }
}

impl fmt::Display for PartitionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an operator wants of a topic, or of a whole mirror. Its numbers are those of [`PartitionState`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DesiredState {
    /// To be mirrored: what the configuration says until somebody says otherwise.
    #[default]
    Mirroring,
    /// To stand still, and to be taken up again.
    Paused,
    /// To become an ordinary topic.
    Stopped,
}

impl DesiredState {
    /// The state that stands for it in records and messages.
    pub const fn as_state(self) -> PartitionState {
        match self {
            Self::Mirroring => PartitionState::Mirroring,
            Self::Paused => PartitionState::Paused,
            Self::Stopped => PartitionState::Stopped,
        }
    }

    /// The desired state that this state stands for, if it stands for one.
    pub const fn from_state(state: PartitionState) -> Option<Self> {
        Some(match state {
            PartitionState::Mirroring => Self::Mirroring,
            PartitionState::Paused => Self::Paused,
            PartitionState::Stopped => Self::Stopped,
            _ => return None,
        })
    }
}

impl fmt::Display for DesiredState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_state().name())
    }
}

#[cfg(test)]
mod tests {
    use super::PartitionState::{
        EpochFencing, Failed, LogTruncation, Mirroring, Paused, Pausing, Stopped, Stopping, Unknown,
    };
    use super::*;

    #[test]
    fn names_and_numbers_are_the_kips() {
        let wanted = [
            ("UNKNOWN", -1),
            ("LOG_TRUNCATION", 0),
            ("EPOCH_FENCING", 1),
            ("MIRRORING", 2),
            ("PAUSING", 3),
            ("PAUSED", 4),
            ("STOPPING", 5),
            ("STOPPED", 6),
            ("FAILED", 7),
        ];
        let every = [Unknown].into_iter().chain(PartitionState::ALL);
        for (state, (name, number)) in every.zip(wanted) {
            assert_eq!((state.name(), state.number()), (name, number));
            assert_eq!(PartitionState::from_name(name), Some(state));
            assert_eq!(PartitionState::from_number(number), Ok(state));
        }
        assert_eq!(PartitionState::from_number(16), Ok(Unknown));
        for number in [-2, 8, 9, 15, 17, i8::MAX, i8::MIN] {
            assert_eq!(PartitionState::from_number(number), Err(number));
        }
        assert_eq!(PartitionState::from_name("LOG_ALIGNMENT"), None);
    }

    #[test]
    fn the_table_of_transitions_is_the_kips() {
        let table: [(PartitionState, &[PartitionState]); 9] = [
            (Unknown, &[]),
            (LogTruncation, &[Unknown, Stopped, Failed]),
            (EpochFencing, &[Mirroring]),
            (Mirroring, &[LogTruncation, EpochFencing, Paused, Failed]),
            (Pausing, &[Mirroring]),
            (Paused, &[Pausing]),
            (
                Stopping,
                &[
                    LogTruncation,
                    EpochFencing,
                    Mirroring,
                    Pausing,
                    Paused,
                    Failed,
                ],
            ),
            (Stopped, &[Stopping]),
            (
                Failed,
                &[
                    Unknown,
                    LogTruncation,
                    EpochFencing,
                    Mirroring,
                    Pausing,
                    Paused,
                    Stopping,
                    Stopped,
                ],
            ),
        ];
        for (next, sources) in table {
            for from in [Unknown].into_iter().chain(PartitionState::ALL) {
                let wanted = from == next || sources.contains(&from);
                assert_eq!(from.may_become(next), wanted, "{from} to {next}");
            }
        }
    }

    #[test]
    fn a_retry_goes_where_failed_may_go() {
        for previous in [Unknown].into_iter().chain(PartitionState::ALL) {
            assert!(
                Failed.may_become(previous.retried_as()),
                "{previous} is retried as {}",
                previous.retried_as()
            );
        }
    }
}
