//! What the leader of the group does: from what the members said when they joined to what each is given. Must not talk to
//! the group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tracing::warn;

use super::{Identity, Wanted};
use crate::domain::assign::{self, Assignment, Member, Shares, Work};
use crate::domain::types::{BrokerId, TopicPartition};
use crate::wire::api::groups::{JoinGroupResponseMember, SyncGroupRequestAssignment};
use crate::wire::bounded::EncodeError;
use crate::wire::consumer_protocol::{
    ConsumerProtocolAssignment, ConsumerProtocolSubscription, GroupData, MemberData, by_topic,
    decode, encode, one_by_one,
};

/// What the leader remembers of the generation that it leads.
#[derive(Debug)]
pub(super) struct Leading {
    /// The fingerprint of the work that the group was last seen to agree with; 0 if that was not known.
    pub(super) work_fingerprint: u64,
    /// What it decided; `None` if a process before it did (a static member that leads keeps that role over a restart,
    /// and is told to leave the assignment as it is, KIP-814).
    plan: Option<Plan>,
}

#[derive(Debug)]
struct Plan {
    generation: i32,
    members: Vec<Member>,
    given: Shares,
    target: Shares,
}

impl Leading {
    /// The leader of a generation whose assignment it does not know.
    pub(super) fn inherited(work_fingerprint: u64) -> Self {
        Self {
            work_fingerprint,
            plan: None,
        }
    }

    /// How much of `work` its assignment gives to nobody; zero if it does not know what was decided.
    pub(super) fn unowned(&self, work: &[Work]) -> usize {
        let Some(plan) = &self.plan else { return 0 };
        let given: BTreeSet<&TopicPartition> = plan.given.values().flatten().collect();
        let unowned = |work: &&Work| !given.contains(&work.partition);
        work.iter().filter(unowned).count()
    }

    /// True if `work` wants another assignment than the one that the group is at or on its way to. If not, it is remembered
    /// as agreed.
    pub(super) fn wants_another(&mut self, work: &[Work]) -> bool {
        let fingerprint = fingerprint(work);
        if fingerprint == self.work_fingerprint {
            return false;
        }
        let Some(plan) = &self.plan else { return true };
        let arrived: Vec<Member> = plan
            .members
            .iter()
            .map(|member| Member {
                owned: plan.target.get(&member.id).cloned().unwrap_or_default(),
                ..member.clone()
            })
            .collect();
        if assign::assign(&arrived, work).target != plan.target {
            return true;
        }
        self.work_fingerprint = fingerprint;
        false
    }
}

/// Never 0, which stands for "not known".
fn fingerprint(work: &[Work]) -> u64 {
    assign::fingerprint(work).max(1)
}

/// Before the first generation, which is 1.
const BEFORE_ALL: i32 = 0;

/// A member as it joined.
struct Joined {
    member_id: Arc<str>,
    data: MemberData,
    member: Member,
}

/// Reads what a member says of itself when `generation` begins. What cannot be read is a member that stands nowhere and has
/// nothing.
fn read(joined: &JoinGroupResponseMember, generation: i32) -> Joined {
    let id = joined
        .group_instance_id
        .as_ref()
        .unwrap_or(&joined.member_id);
    let subscription: ConsumerProtocolSubscription = decode(joined.metadata.clone())
        .unwrap_or_else(|error| {
            warn!(member = %id, %error, "cannot read what a member of the group says, it gets work all the same");
            ConsumerProtocolSubscription::default()
        });
    let data = subscription.user_data.and_then(|data| decode(data).ok());
    let mut data: MemberData = data.unwrap_or_default();
    // The coordinator sees to it that these are unique.
    data.sidecar_id = Arc::clone(id);
    let member = Member {
        id: Arc::clone(id),
        broker_id: Some(data.broker_id).filter(|broker| *broker >= BrokerId(0)),
        // Nobody was told anything in a generation that has not been: that is the word of a process that slept while the
        // group was empty, forgotten and made anew. It is older than any other.
        generation: Some(subscription.generation_id)
            .filter(|told| *told < generation)
            .unwrap_or(BEFORE_ALL),
        owned: one_by_one(&subscription.owned_partitions).collect(),
    };
    Joined {
        member_id: Arc::clone(&joined.member_id),
        data,
        member,
    }
}

/// Finds what every member of `generation` is given. `before` is what this member decided in the generation before, if it
/// led that one too.
///
/// # Errors
/// If an assignment is too large for the protocol.
pub(super) fn lead(
    generation: i32,
    joined: &[JoinGroupResponseMember],
    wanted: &Wanted,
    before: Option<&Leading>,
) -> Result<(Leading, Vec<SyncGroupRequestAssignment>), EncodeError> {
    let mut all: Vec<Joined> = joined.iter().map(|one| read(one, generation)).collect();
    let assignment = decide(
        &mut all,
        wanted,
        before.and_then(|leading| leading.plan.as_ref()),
    );
    let work_fingerprint = wanted.as_ref().map_or(0, |work| fingerprint(work));
    let given: BTreeSet<&TopicPartition> = assignment.now.values().flatten().collect();
    let planned: BTreeSet<&TopicPartition> = assignment.target.values().flatten().collect();
    let mut data: Vec<MemberData> = all.iter().map(|one| one.data.clone()).collect();
    data.sort_by(|a, b| a.sidecar_id.cmp(&b.sidecar_id));
    let mut assignments = Vec::with_capacity(all.len());
    for one in &all {
        let share = assignment.now.get(&one.member.id);
        let awaits = |tp: &TopicPartition| planned.contains(tp) && !given.contains(tp);
        let group = GroupData {
            work_fingerprint: work_fingerprint.cast_signed(),
            awaited: one.member.owned.iter().any(awaits),
            moving: given.len() < planned.len(),
            members: data.clone(),
        };
        let envelope = ConsumerProtocolAssignment {
            assigned_partitions: by_topic(share.into_iter().flatten()),
            user_data: Some(encode(&group)?),
        };
        assignments.push(SyncGroupRequestAssignment {
            member_id: Arc::clone(&one.member_id),
            assignment: encode(&envelope)?,
        });
    }
    let plan = Plan {
        generation,
        members: all.into_iter().map(|one| one.member).collect(),
        given: assignment.now,
        target: assignment.target,
    };
    let leading = Leading {
        work_fingerprint,
        plan: Some(plan),
    };
    Ok((leading, assignments))
}

/// The assignment for those who joined, with what is remembered about those whose word is older than the last assignment.
fn decide(all: &mut [Joined], wanted: &Wanted, before: Option<&Plan>) -> Assignment {
    let mut restarted: BTreeMap<Arc<str>, BTreeSet<TopicPartition>> = BTreeMap::new();
    for one in all.iter_mut() {
        let Some(plan) = before else { break };
        let given = plan.given.get(&one.member.id);
        let Some(given) = given.filter(|_| one.member.generation < plan.generation) else {
            continue;
        };
        if one.member.generation < 0 {
            // A new process: it has nothing, and would like to have what the one before it had.
            restarted.insert(Arc::clone(&one.member.id), given.iter().cloned().collect());
        }
        // Otherwise it has not joined this time, and the coordinator repeats its old words: what it was given since is its
        // own until the coordinator drops it.
        one.member.generation = plan.generation;
        one.member.owned.extend(given.iter().cloned());
    }
    let members =
        |all: &[Joined]| -> Vec<Member> { all.iter().map(|one| one.member.clone()).collect() };
    let found = match wanted {
        Some(work) => assign::assign(&members(all), work),
        None => assign::keep(&members(all)),
    };
    let Some(work) = wanted.as_ref().filter(|_| !restarted.is_empty()) else {
        return found;
    };
    // Nobody has what a new process does not get back: it need not wait.
    for one in all.iter_mut() {
        if let Some(had) = restarted.get(&one.member.id) {
            let target = found.target.get(&one.member.id);
            let back = target.into_iter().flatten().filter(|tp| had.contains(tp));
            one.member.owned = back.cloned().collect();
        }
    }
    assign::assign(&members(all), work)
}

/// What a member reads out of its assignment.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) partitions: BTreeSet<TopicPartition>,
    pub(super) work_fingerprint: u64,
    pub(super) awaited: bool,
    pub(super) moving: bool,
    pub(super) members: Vec<Identity>,
}

impl Given {
    /// Reads an assignment. Empty bytes are a member that the leader did not know of.
    pub(super) fn read(
        assignment: bytes::Bytes,
    ) -> Result<Self, crate::wire::bounded::DecodeError> {
        if assignment.is_empty() {
            return Ok(Self::default());
        }
        let envelope: ConsumerProtocolAssignment = decode(assignment)?;
        let group = envelope.user_data.map(decode::<GroupData>).transpose()?;
        let group = group.unwrap_or_default();
        Ok(Self {
            partitions: one_by_one(&envelope.assigned_partitions).collect(),
            work_fingerprint: group.work_fingerprint.cast_unsigned(),
            awaited: group.awaited,
            moving: group.moving,
            members: group.members.into_iter().map(Identity::from_data).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(count: i32) -> Wanted {
        let piece = |n| Work {
            partition: TopicPartition::new("t", n),
            leader: None,
        };
        Some((0..count).map(piece).collect())
    }

    fn joins(id: &str, generation: i32, owned: &[i32]) -> JoinGroupResponseMember {
        let owned: Vec<_> = owned.iter().map(|n| TopicPartition::new("t", *n)).collect();
        let data = MemberData {
            sidecar_id: id.into(),
            host: "h".into(),
            port: 9,
            ..Default::default()
        };
        let subscription = ConsumerProtocolSubscription {
            user_data: Some(encode(&data).unwrap()),
            owned_partitions: by_topic(&owned),
            generation_id: generation,
            ..Default::default()
        };
        JoinGroupResponseMember {
            member_id: format!("{id}-1234").into(),
            group_instance_id: Some(id.into()),
            metadata: encode(&subscription).unwrap(),
        }
    }

    fn given(assignments: &[SyncGroupRequestAssignment]) -> Vec<(Vec<i32>, bool)> {
        assignments
            .iter()
            .map(|one| {
                let given = Given::read(one.assignment.clone()).unwrap();
                let numbers = given.partitions.iter().map(|tp| tp.partition);
                (numbers.collect(), given.awaited)
            })
            .collect()
    }

    #[test]
    fn a_move_takes_two_generations_and_its_owner_is_told_that_it_is_waited_for() {
        let (first, out) = lead(1, &[joins("a", -1, &[])], &work(4), None).unwrap();
        assert_eq!(given(&out), [(vec![0, 1, 2, 3], false)]);
        let both = [joins("a", 1, &[0, 1, 2, 3]), joins("b", -1, &[])];
        let (second, out) = lead(2, &both, &work(4), Some(&first)).unwrap();
        let shares = given(&out);
        assert_eq!((shares[0].0.len(), shares[0].1), (2, true));
        assert_eq!(shares[1], (vec![], false));
        let kept = shares[0].0.clone();
        let moving = |out: &[SyncGroupRequestAssignment]| {
            let read = |one: &SyncGroupRequestAssignment| Given::read(one.assignment.clone());
            out.iter().all(|one| read(one).unwrap().moving)
        };
        assert!(
            moving(&out),
            "everybody is told that another generation follows"
        );
        let both = [joins("a", 2, &kept), joins("b", 2, &[])];
        let (_, out) = lead(3, &both, &work(4), Some(&second)).unwrap();
        let shares = given(&out);
        assert_eq!(shares[0], (kept, false));
        assert_eq!((shares[1].0.len(), shares[1].1), (2, false));
        assert!(!moving(&out));
        let read = Given::read(out[0].assignment.clone()).unwrap();
        let ids: Vec<_> = read.members.iter().map(|m| &*m.sidecar_id).collect();
        assert_eq!(ids, ["a", "b"]);
        assert_eq!(read.members[0].advertised.to_string(), "h:9");
    }

    #[test]
    fn the_leader_knows_what_nobody_has() {
        let (first, _) = lead(1, &[joins("a", -1, &[])], &work(4), None).unwrap();
        assert_eq!(first.unowned(&work(4).unwrap()), 0);
        assert_eq!(first.unowned(&work(6).unwrap()), 2, "came up since");
        let both = [joins("a", 1, &[0, 1, 2, 3]), joins("b", -1, &[])];
        let (second, _) = lead(2, &both, &work(4), Some(&first)).unwrap();
        assert_eq!(second.unowned(&work(4).unwrap()), 2, "on their way");
        assert_eq!(Leading::inherited(1).unowned(&work(4).unwrap()), 0);
    }

    #[test]
    fn a_process_that_was_restarted_gets_its_work_back_also_while_others_join() {
        let both = [joins("a", 1, &[0, 1]), joins("b", 1, &[2, 3])];
        let (first, _) = lead(2, &both, &work(4), None).unwrap();
        let both = [joins("a", 2, &[0, 1]), joins("b", -1, &[])];
        let (second, out) = lead(3, &both, &work(4), Some(&first)).unwrap();
        assert_eq!(given(&out), [(vec![0, 1], false), (vec![2, 3], false)]);
        // What a third one gets of its former work need not be waited for: the new process never had it.
        let three = [
            joins("a", 3, &[0, 1]),
            joins("b", -1, &[]),
            joins("c", -1, &[]),
        ];
        let (_, out) = lead(4, &three, &work(4), Some(&second)).unwrap();
        let shares = given(&out);
        assert_eq!(shares[0], (vec![0, 1], false));
        for (share, awaited) in &shares[1..] {
            assert!(share.len() == 1 && !awaited, "{shares:?}");
        }
    }

    #[test]
    fn who_did_not_join_keeps_what_it_was_given_since_its_last_word() {
        let (first, out) = lead(
            5,
            &[joins("a", 4, &[0]), joins("b", 4, &[1])],
            &work(4),
            None,
        )
        .unwrap();
        let shares = given(&out);
        assert_eq!(shares[0].0.len(), 2);
        // The coordinator repeats the words of "a" from the generation before.
        let again = [joins("a", 4, &[0]), joins("b", 5, &shares[1].0)];
        let (_, out) = lead(6, &again, &work(4), Some(&first)).unwrap();
        assert_eq!(given(&out), shares);
    }

    #[test]
    fn the_word_of_a_generation_that_has_not_been_counts_less_than_any_other() {
        let both = [joins("a", 50, &[0, 1, 2]), joins("b", 2, &[0, 1])];
        let (_, out) = lead(3, &both, &work(3), None).unwrap();
        let shares = given(&out);
        assert!(shares[1].0.iter().all(|n| *n < 2), "{shares:?}");
        assert!(
            !shares[0].0.contains(&0) && !shares[0].0.contains(&1),
            "{shares:?}"
        );
    }

    #[test]
    fn the_leader_acts_on_new_work_only_if_it_changes_the_target() {
        let (mut leading, _) = lead(1, &[joins("a", -1, &[])], &work(4), None).unwrap();
        assert!(!leading.wants_another(&work(4).unwrap()));
        let mut elsewhere = work(4).unwrap().to_vec();
        elsewhere[0].leader = Some(BrokerId(3));
        assert!(
            !leading.wants_another(&elsewhere),
            "nobody stands beside broker 3"
        );
        assert!(leading.wants_another(&work(5).unwrap()));
        assert!(leading.wants_another(&work(3).unwrap()));
        // Until the work is known, all stays; then it is new.
        let (mut leading, out) = lead(2, &[joins("a", 1, &[0, 1])], &None, None).unwrap();
        assert_eq!(given(&out), [(vec![0, 1], false)]);
        assert!(leading.wants_another(&work(4).unwrap()));
        assert!(!leading.wants_another(&work(2).unwrap()));
        // One that leads by inheritance knows only whether the work is the same.
        let mut inherited = Leading::inherited(fingerprint(&work(4).unwrap()));
        assert!(!inherited.wants_another(&work(4).unwrap()));
        assert!(inherited.wants_another(&elsewhere));
    }

    #[test]
    fn a_member_that_cannot_be_read_gets_work_all_the_same() {
        let mut odd = joins("b", -1, &[]);
        odd.metadata = bytes::Bytes::from_static(&[0xff]);
        let (_, out) = lead(1, &[joins("a", -1, &[]), odd], &work(4), None).unwrap();
        assert!(given(&out).iter().all(|(share, _)| share.len() == 2));
        assert!(
            Given::read(bytes::Bytes::new())
                .unwrap()
                .partitions
                .is_empty()
        );
        assert!(Given::read(bytes::Bytes::from_static(&[0, 0, 9])).is_err());
    }
}
