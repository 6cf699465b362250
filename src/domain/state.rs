//! The states of a mirrored partition, by KIP-1279's names and numbers. Must not hold what is done in them.

use std::fmt;

/// The state of one mirrored partition.
///
/// The numbers are KIP-1279's (`MirrorPartitionState`), which also has UNKNOWN -1, EPOCH_FENCING 1, PAUSING 3, PAUSED 4,
/// STOPPING 5 and STOPPED 6: those belong to the commands of an operator and to leader changes that are written down, and
/// their numbers are left free here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PartitionState {
    /// 0: both logs are being compared, nothing is appended yet.
    LogTruncation,
    /// 2: records are fetched and appended.
    Mirroring,
    /// 7: the partition stands still, for a reason that is told with it.
    Failed,
}

impl PartitionState {
    /// Every state, in the order of the numbers.
    pub const ALL: [Self; 3] = [Self::LogTruncation, Self::Mirroring, Self::Failed];

    /// The name as KIP-1279 spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LogTruncation => "LOG_TRUNCATION",
            Self::Mirroring => "MIRRORING",
            Self::Failed => "FAILED",
        }
    }

    /// KIP-1279's number.
    pub const fn number(self) -> i8 {
        match self {
            Self::LogTruncation => 0,
            Self::Mirroring => 2,
            Self::Failed => 7,
        }
    }
}

impl fmt::Display for PartitionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_the_kips() {
        let found = PartitionState::ALL.map(|state| (state.to_string(), state.number()));
        let wanted = [("LOG_TRUNCATION", 0), ("MIRRORING", 2), ("FAILED", 7)];
        assert_eq!(
            found,
            wanted.map(|(name, number)| (name.to_owned(), number))
        );
    }
}
