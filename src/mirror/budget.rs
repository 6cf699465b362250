//! Bytes of records held between fetch and acknowledged append, split by destination broker so that one that stands still
//! starves no other. Must not know what the bytes are.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::domain::types::BrokerId;

/// The share of all destination brokers.
#[derive(Debug)]
pub(super) struct Budget {
    total_bytes: Arc<AtomicUsize>,
    pools: HashMap<BrokerId, Arc<AtomicUsize>>,
}

/// Bytes that count until this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    pool: Arc<AtomicUsize>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pool.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Budget {
    pub(super) fn new(total_bytes: Arc<AtomicUsize>) -> Self {
        Self {
            total_bytes,
            pools: HashMap::new(),
        }
    }

    /// The destination brokers that lead partitions of this mirror now.
    pub(super) fn set_brokers(&mut self, brokers: impl IntoIterator<Item = BrokerId>) {
        let mut pools: HashMap<BrokerId, Arc<AtomicUsize>> = HashMap::new();
        for broker in brokers {
            let pool = self.pools.remove(&broker).unwrap_or_default();
            pools.insert(broker, pool);
        }
        self.pools = pools;
    }

    /// Each broker's share.
    pub(super) fn share_bytes(&self) -> usize {
        self.total_bytes.load(Ordering::Relaxed) / self.pools.len().max(1)
    }

    /// What is free of `broker`'s share.
    pub(super) fn free_bytes(&self, broker: BrokerId) -> usize {
        let held = self
            .pools
            .get(&broker)
            .map_or(0, |pool| pool.load(Ordering::Relaxed));
        self.share_bytes().saturating_sub(held)
    }

    /// Counts `bytes` against `broker`'s share, also beyond it: what has arrived has arrived.
    pub(super) fn hold(&mut self, broker: BrokerId, bytes: usize) -> Held {
        let pool = Arc::clone(self.pools.entry(broker).or_default());
        pool.fetch_add(bytes, Ordering::Relaxed);
        Held { pool, bytes }
    }

    /// All that is held.
    pub(super) fn held_bytes(&self) -> usize {
        self.pools
            .values()
            .map(|pool| pool.load(Ordering::Relaxed))
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_share_leaves_the_others_theirs() {
        let mut budget = Budget::new(Arc::new(90.into()));
        budget.set_brokers([BrokerId(1), BrokerId(2), BrokerId(3)]);
        let held = budget.hold(BrokerId(1), 40);
        assert_eq!(
            (
                budget.free_bytes(BrokerId(1)),
                budget.free_bytes(BrokerId(2))
            ),
            (0, 30)
        );
        assert_eq!(budget.held_bytes(), 40);
        drop(held);
        assert_eq!(budget.free_bytes(BrokerId(1)), 30);
    }

    #[test]
    fn shares_follow_the_brokers() {
        let mut budget = Budget::new(Arc::new(90.into()));
        budget.set_brokers([BrokerId(1)]);
        let held = budget.hold(BrokerId(1), 10);
        budget.set_brokers([BrokerId(1), BrokerId(2)]);
        assert_eq!(
            (
                budget.free_bytes(BrokerId(1)),
                budget.free_bytes(BrokerId(2))
            ),
            (35, 45)
        );
        budget.set_brokers([BrokerId(2)]);
        drop(held);
        assert_eq!(budget.free_bytes(BrokerId(2)), 90);
    }
}
