//! The rule for compacted topics: a record may be gone on one side if that side holds a later record of its key, or if it
//! is a tombstone. Must not read logs, and not remember more keys than its limit.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::kafka::cluster::Side;
use crate::wire::records::Record;

/// Keys that are remembered, both sides together: about 50 MB.
const KEYS: usize = 1_000_000;

/// Records that one side lacks, until it shows a later record of their keys. Records must come in order of their offsets.
#[derive(Debug)]
pub(super) struct Missing {
    source: HashMap<u128, i64>,
    destination: HashMap<u128, i64>,
    limit: usize,
    overflowed: bool,
}

impl Default for Missing {
    fn default() -> Self {
        Self::with_limit(KEYS)
    }
}

impl Missing {
    fn with_limit(limit: usize) -> Self {
        Self {
            source: HashMap::new(),
            destination: HashMap::new(),
            limit,
            overflowed: false,
        }
    }

    fn of(&mut self, side: Side) -> &mut HashMap<u128, i64> {
        match side {
            Side::Source => &mut self.source,
            Side::Destination => &mut self.destination,
        }
    }

    /// `side` does not have the record.
    pub(super) fn lacks(&mut self, side: Side, record: &Record) {
        // The cleaner also drops records without a key, which can only be older than the policy.
        let (Some(key), Some(_)) = (&record.key, &record.value) else {
            return;
        };
        let digest = digest(key);
        let known = self.of(side).contains_key(&digest);
        if !known && self.source.len().saturating_add(self.destination.len()) >= self.limit {
            self.overflowed = true;
            return;
        }
        self.of(side).entry(digest).or_insert(record.offset);
    }

    /// `side` has the record.
    pub(super) fn has(&mut self, side: Side, record: &Record) {
        if self.of(side).is_empty() {
            return;
        }
        if let Some(key) = &record.key {
            self.of(side).remove(&digest(key));
        }
    }

    /// The first record that `side` lacks without having a later one of its key.
    pub(super) fn first(&self, side: Side) -> Option<i64> {
        let lacking = match side {
            Side::Source => &self.source,
            Side::Destination => &self.destination,
        };
        lacking.values().min().copied()
    }

    /// True if there were more keys than can be remembered.
    pub(super) fn overflowed(&self) -> bool {
        self.overflowed
    }
}

/// Two hashes of 64 bits: among a million keys two are alike once in 10^26 runs.
fn digest(key: &[u8]) -> u128 {
    let half = |seed: u64| {
        let mut hasher = DefaultHasher::new();
        (seed, key).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn record(offset: i64, key: Option<&'static str>, value: Option<&'static str>) -> Record {
        Record {
            offset,
            timestamp: 0,
            key: key.map(Bytes::from),
            value: value.map(Bytes::from),
            headers: Vec::new(),
        }
    }

    #[test]
    fn a_later_record_of_the_key_on_the_same_side_excuses_a_missing_one() {
        let mut missing = Missing::default();
        missing.lacks(Side::Destination, &record(1, Some("a"), Some("1")));
        missing.lacks(Side::Source, &record(2, Some("b"), Some("1")));
        missing.lacks(Side::Destination, &record(3, Some("c"), None));
        missing.lacks(Side::Destination, &record(4, None, Some("1")));
        missing.has(Side::Source, &record(5, Some("a"), Some("2")));
        assert_eq!(missing.first(Side::Destination), Some(1), "the other side");
        missing.has(Side::Destination, &record(5, Some("a"), Some("2")));
        assert_eq!(missing.first(Side::Destination), None);
        missing.lacks(Side::Destination, &record(6, Some("a"), Some("3")));
        assert_eq!(
            missing.first(Side::Destination),
            Some(6),
            "after the later one"
        );
        assert_eq!(missing.first(Side::Source), Some(2));
        missing.has(Side::Source, &record(9, Some("b"), None));
        assert_eq!(
            missing.first(Side::Source),
            None,
            "a tombstone is a later record"
        );
    }

    #[test]
    fn too_many_keys_are_said_and_not_remembered() {
        let mut missing = Missing::with_limit(2);
        for (offset, key) in [(1, "a"), (2, "a"), (3, "b")] {
            missing.lacks(Side::Destination, &record(offset, Some(key), Some("1")));
        }
        assert!(!missing.overflowed());
        missing.lacks(Side::Source, &record(4, Some("c"), Some("1")));
        assert!(missing.overflowed());
        assert_eq!(missing.first(Side::Source), None);
    }
}
