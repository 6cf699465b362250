//! What this member holds, what it is losing, and how that is told. Must not talk to the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::Lease;
use crate::domain::assign::STATE_TOPIC;
use crate::domain::types::{BrokerId, TopicPartition};
use crate::kafka::connect::Address;
use crate::wire::consumer_protocol::MemberData;

/// One member of the group, as it told the others when it last joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The sidecar's id, the `group.instance.id` of its place in the group. Two processes cannot have the same.
    pub sidecar_id: Arc<str>,
    /// The destination broker that it stands beside, if any.
    pub broker_id: Option<BrokerId>,
    /// Where the other sidecars reach it.
    pub advertised: Address,
    /// The version of its software.
    pub version: Arc<str>,
    /// The fingerprint of its configuration.
    pub config_fingerprint: u64,
}

impl Identity {
    pub(super) fn to_data(&self) -> MemberData {
        MemberData {
            sidecar_id: Arc::clone(&self.sidecar_id),
            broker_id: self.broker_id.unwrap_or(BrokerId(-1)),
            host: Arc::clone(&self.advertised.host),
            port: i32::from(self.advertised.port),
            version: Arc::clone(&self.version),
            config_fingerprint: self.config_fingerprint.cast_signed(),
        }
    }

    pub(super) fn from_data(data: MemberData) -> Self {
        Self {
            sidecar_id: data.sidecar_id,
            broker_id: Some(data.broker_id).filter(|id| id.0 >= 0),
            advertised: Address {
                host: data.host,
                port: u16::try_from(data.port).unwrap_or_default(),
            },
            version: data.version,
            config_fingerprint: data.config_fingerprint.cast_unsigned(),
        }
    }
}

/// What the group wants of this member.
///
/// Work that is in none of the three sets is to be stopped *at once*: another may have it already. Work in `revoking` is to
/// be finished, and then reported with [`GroupHandle::given_up`]; nobody else begins before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// Grows with every value of this process.
    pub round: u64,
    /// The group's generation; -1 before the first.
    pub generation: i32,
    /// True if this member computes the assignment.
    pub leads: bool,
    /// The mirror partitions that are this member's.
    pub mirror: BTreeSet<TopicPartition>,
    /// The partitions of the state topic that are this member's.
    pub state: BTreeSet<i32>,
    /// What was this member's and goes to another, of both kinds.
    pub revoking: BTreeSet<TopicPartition>,
    /// All members, this one included, in the order of their ids.
    pub members: Vec<Identity>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    /// What is to be given up, and since which round.
    revoking: Mutex<BTreeMap<TopicPartition, u64>>,
    /// Something was given up.
    pub(super) given_up: Notify,
    /// The fingerprint of the configuration that is in force here.
    config_fingerprint: AtomicU64,
    /// It is another one than what the others were told.
    pub(super) reconfigured: Notify,
    leave: AtomicBool,
    /// Work that nobody is given, as far as this member knows.
    unowned: AtomicUsize,
}

impl Shared {
    fn revoking(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, u64>> {
        self.revoking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn leaves(&self) -> bool {
        self.leave.load(Ordering::Acquire)
    }

    pub(super) fn config_fingerprint(&self) -> u64 {
        self.config_fingerprint.load(Ordering::Acquire)
    }

    pub(super) fn set_config_fingerprint(&self, fingerprint: u64) {
        self.config_fingerprint
            .store(fingerprint, Ordering::Release);
    }

    pub(super) fn tell_unowned(&self, partitions: usize) {
        self.unowned.store(partitions, Ordering::Relaxed);
    }
}

/// The other side of a [`GroupMember`](super::GroupMember), for those who do the work. Cheap to clone.
#[derive(Clone, Debug)]
pub struct GroupHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) membership: watch::Receiver<Arc<Membership>>,
    pub(super) lease: Lease,
}

impl GroupHandle {
    /// What the group wants, and a wake-up for every change of it.
    pub fn membership(&self) -> watch::Receiver<Arc<Membership>> {
        self.membership.clone()
    }

    /// Whether this process may still decide.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The fingerprint of the configuration that is in force here.
    pub fn config_fingerprint(&self) -> u64 {
        self.shared.config_fingerprint()
    }

    /// Another configuration is in force here: the others are told.
    pub fn set_config_fingerprint(&self, fingerprint: u64) {
        self.shared.set_config_fingerprint(fingerprint);
        self.shared.reconfigured.notify_one();
    }

    /// How much work the last assignment gives to nobody, if this member leads the group: what is on its way from one to another,
    /// and what came up since. Zero if another leads, or if a process before this one led and decided.
    pub fn unowned_partitions(&self) -> usize {
        self.shared.unowned.load(Ordering::Relaxed)
    }

    /// True while this process may decide about a partition: it is held or being given up, and the right has not run out.
    /// A partition of the state topic is asked for under [`STATE_TOPIC`].
    pub fn may_decide(&self, tp: &TopicPartition) -> bool {
        // In this order: after a gap the right comes back only once it is told what is ours now.
        if !self.lease.may_decide() {
            return false;
        }
        let now = self.membership.borrow();
        let held = if &*tp.topic == STATE_TOPIC {
            now.state.contains(&tp.partition)
        } else {
            now.mirror.contains(tp)
        };
        held || now.revoking.contains(tp)
    }

    /// Nothing is done any more for `partitions`, which were to be given up in the membership of this `round`. What was
    /// assigned anew and revoked anew since then is not meant.
    pub fn given_up<'a>(
        &self,
        round: u64,
        partitions: impl IntoIterator<Item = &'a TopicPartition>,
    ) {
        let mut revoking = self.shared.revoking();
        for tp in partitions {
            if revoking.get(tp).is_some_and(|since| *since <= round) {
                revoking.remove(tp);
            }
        }
        drop(revoking);
        self.shared.given_up.notify_one();
    }

    /// From now on a stop of the member means that it leaves for good: it gives its work up and takes its place out of the
    /// group, so that the others need not wait for the end of its session. Without this it keeps its place for a restart.
    pub fn leave_on_stop(&self) {
        self.shared.leave.store(true, Ordering::Release);
    }
}

/// The member's own view: it alone changes what is held.
#[derive(Debug)]
pub(super) struct Holdings {
    shared: Arc<Shared>,
    published: watch::Sender<Arc<Membership>>,
    held: BTreeSet<TopicPartition>,
    round: u64,
}

impl Holdings {
    pub(super) fn new() -> (Self, Arc<Shared>, watch::Receiver<Arc<Membership>>) {
        let shared = Arc::<Shared>::default();
        let (published, membership) = watch::channel(Arc::default());
        let holdings = Self {
            shared: Arc::clone(&shared),
            published,
            held: BTreeSet::new(),
            round: 0,
        };
        (holdings, shared, membership)
    }

    /// What nobody else may be given yet: held or not given up.
    pub(super) fn claims(&self) -> BTreeSet<TopicPartition> {
        let revoking = self.shared.revoking();
        self.held.iter().chain(revoking.keys()).cloned().collect()
    }

    /// How many partitions are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn is_giving_up(&self) -> bool {
        !self.shared.revoking().is_empty()
    }

    /// Takes a new assignment over. What is lost by it is to be given up; all of it at once if `continuous` is false, since
    /// another may have had it in a generation that we missed.
    pub(super) fn assigned(&mut self, assigned: BTreeSet<TopicPartition>, continuous: bool) {
        self.round += 1;
        let mut revoking = self.shared.revoking();
        if continuous {
            for lost in std::mem::take(&mut self.held) {
                revoking.entry(lost).or_insert(self.round);
            }
            revoking.retain(|tp, _| !assigned.contains(tp));
        } else {
            revoking.clear();
        }
        drop(revoking);
        self.held = assigned;
    }

    /// Whatever is still to be given up counts as given up. Returns it.
    pub(super) fn force(&mut self) -> Vec<TopicPartition> {
        std::mem::take(&mut *self.shared.revoking())
            .into_keys()
            .collect()
    }

    /// Tells what is held now; `change` sets the rest of the membership.
    pub(super) fn publish(&mut self, change: impl FnOnce(&mut Membership)) {
        self.round += 1;
        let mut next = Membership::clone(&self.published.borrow());
        change(&mut next);
        next.round = self.round;
        let (state, mirror): (Vec<_>, Vec<_>) = self
            .held
            .iter()
            .cloned()
            .partition(|tp| &*tp.topic == STATE_TOPIC);
        next.state = state.into_iter().map(|tp| tp.partition).collect();
        next.mirror = mirror.into_iter().collect();
        next.revoking = self.shared.revoking().keys().cloned().collect();
        self.published.send_replace(Arc::new(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tps(numbers: &[i32]) -> BTreeSet<TopicPartition> {
        let tp = |n: &i32| TopicPartition::new("t", *n);
        numbers.iter().map(tp).collect()
    }

    fn handle() -> (Holdings, GroupHandle) {
        let (holdings, shared, membership) = Holdings::new();
        let lease = Lease::new(std::time::Duration::from_secs(9));
        let handle = GroupHandle {
            shared,
            membership,
            lease,
        };
        (holdings, handle)
    }

    #[test]
    fn what_is_lost_is_claimed_until_it_is_given_up() {
        let (mut holdings, handle) = handle();
        holdings.assigned(tps(&[1, 2, 3]), true);
        holdings.publish(|m| m.generation = 1);
        holdings.assigned(tps(&[1]), true);
        holdings.publish(|m| m.generation = 2);
        let first = Arc::clone(&handle.membership().borrow());
        assert_eq!(
            (&first.mirror, &first.revoking),
            (&tps(&[1]), &tps(&[2, 3]))
        );
        assert_eq!(holdings.claims(), tps(&[1, 2, 3]));
        handle.given_up(first.round, &tps(&[2]));
        assert!(holdings.is_giving_up());
        assert_eq!(holdings.claims(), tps(&[1, 3]));
        // 3 comes back and is lost again; the word about the first time does not count for the second.
        holdings.assigned(tps(&[1, 3]), true);
        assert!(!holdings.is_giving_up());
        holdings.assigned(tps(&[1]), true);
        handle.given_up(first.round, &tps(&[3]));
        assert_eq!(holdings.claims(), tps(&[1, 3]));
        holdings.publish(|_| {});
        let second = Arc::clone(&handle.membership().borrow());
        handle.given_up(second.round, &tps(&[3]));
        assert_eq!(holdings.claims(), tps(&[1]));
    }

    #[test]
    fn after_a_gap_what_is_not_ours_is_gone_at_once() {
        let (mut holdings, handle) = handle();
        holdings.assigned(tps(&[1, 2]), true);
        holdings.assigned(tps(&[2]), true);
        holdings.assigned(tps(&[3]), false);
        holdings.publish(|_| {});
        let now = Arc::clone(&handle.membership().borrow());
        assert_eq!((&now.mirror, now.revoking.len()), (&tps(&[3]), 0));
        assert_eq!(holdings.claims(), tps(&[3]));
    }

    #[test]
    fn both_kinds_are_told_apart_and_a_deadline_ends_the_giving_up() {
        let (mut holdings, handle) = handle();
        let mut mixed = tps(&[1]);
        mixed.insert(TopicPartition::new(STATE_TOPIC, 7));
        holdings.assigned(mixed.clone(), true);
        holdings.publish(|m| m.leads = true);
        let now = Arc::clone(&handle.membership().borrow());
        assert_eq!(
            (&now.mirror, &now.state),
            (&tps(&[1]), &BTreeSet::from([7]))
        );
        holdings.assigned(BTreeSet::new(), true);
        assert_eq!(holdings.force().into_iter().collect::<BTreeSet<_>>(), mixed);
        assert!(!holdings.is_giving_up() && holdings.claims().is_empty());
    }

    #[test]
    fn an_identity_survives_the_way_through_the_group() {
        for broker_id in [None, Some(BrokerId(0)), Some(BrokerId(7))] {
            let identity = Identity {
                sidecar_id: "s".into(),
                broker_id,
                advertised: "[::1]:9100".parse().unwrap(),
                version: "1".into(),
                config_fingerprint: u64::MAX - 3,
            };
            assert_eq!(Identity::from_data(identity.to_data()), identity);
        }
    }
}
