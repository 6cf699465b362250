//! A destination topic that is not its source's, and may be deleted and mirrored again from nothing: what is to be done next. Must
//! not delete anything, nor know how it is done.
//!
//! ```text
//!  an owner: FAILED, "topic X differs at offset n"
//!      │
//!  coordinator: X is marked ──► every owner: FAILED, "I stand aside for X" ──► X is deleted ──► a new topic Y is created
//!      │                                                                                              │
//!      └─ an operator paused or stopped it: the mark is taken back        coordinator: Y is written down, no mark
//!                                                                                                     │
//!                                       every owner: what my record says is about X: LOG_TRUNCATION ◄─┘
//! ```
//!
//! The mark names the topic by its id and is written before anything is deleted, and only that id is ever deleted: whoever takes
//! over in between goes on from what is there, and can never delete the new topic. Nothing is deleted before every owner stands
//! still, since a broker that does not know the producer takes a batch for whatever topic has the name.

use super::state::{DesiredState, PartitionState};
use super::state_log::{Divergence, PartitionValue};
use super::types::TopicId;

/// What happens to a destination topic that is ahead of its source, or differs from it (`mirror.policy.on_divergence`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDivergence {
    /// Its partitions that do are FAILED until a person has looked.
    #[default]
    Fail,
    /// It is deleted and mirrored again from the beginning.
    Recreate,
}

impl OnDivergence {
    /// What the reason of a partition says of it, behind what was found.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Fail => {
                "delete the destination topic and say truemirror recover, or have both done by on_divergence = \"recreate\""
            }
            Self::Recreate => {
                "the destination topic is to be deleted and mirrored again (on_divergence = \"recreate\")"
            }
        }
    }
}

/// What is known of a topic of a mirror.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// What the configuration of the mirror's coordinator says.
    pub policy: OnDivergence,
    /// What the operator wants.
    pub desired: DesiredState,
    /// The id under which it is marked as being recreated.
    pub marked: Option<TopicId>,
    /// Its id at the destination; `None` if it is not there.
    pub there: Option<TopicId>,
    /// Every partition that has a state: its index and that.
    pub partitions: &'a [(i32, PartitionValue)],
}

/// What its coordinator does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, or nothing before something else has happened.
    Nothing,
    /// Mark it, if that can help.
    Begin {
        /// The id to mark.
        topic_id: TopicId,
        /// A partition that differs.
        partition: i32,
        /// First offset of the destination that does.
        offset: i64,
    },
    /// Take the mark back: the topic stays as it is.
    Withdraw {
        /// The id that is marked.
        topic_id: TopicId,
    },
    /// Delete the topic that has this id.
    Delete {
        /// The id that is marked.
        topic_id: TopicId,
    },
    /// Create it anew.
    Create,
    /// It is there anew: write its id down, without a mark.
    Take {
        /// The new id.
        topic_id: TopicId,
    },
}

/// What is to be done next. Topics without an id are left alone: what was deleted could not be told from what was created.
pub fn next(scene: &Scene<'_>) -> Next {
    let wanted = scene.policy == OnDivergence::Recreate && scene.desired == DesiredState::Mirroring;
    match (scene.marked, scene.there) {
        (None, Some(there)) if wanted && !there.is_zero() => begin(there, scene.partitions),
        (None, _) => Next::Nothing,
        (Some(_), None) => Next::Create,
        (Some(marked), Some(there)) if marked != there => Next::Take { topic_id: there },
        (Some(topic_id), Some(_)) if !wanted => Next::Withdraw { topic_id },
        (Some(topic_id), Some(_)) => {
            let aside = |value: &PartitionValue| {
                divergence(value).is_some_and(|found| found.destination_topic_id == topic_id)
            };
            if scene.partitions.iter().all(|(_, value)| aside(value)) {
                Next::Delete { topic_id }
            } else {
                Next::Nothing
            }
        }
    }
}

fn begin(topic_id: TopicId, partitions: &[(i32, PartitionValue)]) -> Next {
    // A stop that was begun ends first.
    let stopping = |value: &PartitionValue| value.state == PartitionState::Stopping;
    if partitions.iter().any(|(_, value)| stopping(value)) {
        return Next::Nothing;
    }
    let differs = partitions.iter().find_map(|(partition, value)| {
        let found = divergence(value).filter(|found| found.differs_in(topic_id))?;
        Some((*partition, found.offset))
    });
    differs.map_or(Next::Nothing, |(partition, offset)| Next::Begin {
        topic_id,
        partition,
        offset,
    })
}

/// What a FAILED partition's state says of its topic.
pub fn divergence(value: &PartitionValue) -> Option<Divergence> {
    value
        .divergence
        .filter(|_| value.state == PartitionState::Failed)
}

/// True if a partition that failed or stood aside is to begin anew, since its topic is another than the one it did so for, or
/// stays as it is. `destination_topic_id` is the one that the topic has, `remembered` the one that its coordinator wrote down.
pub fn begins_anew(
    value: &PartitionValue,
    destination_topic_id: TopicId,
    remembered: TopicId,
) -> bool {
    divergence(value).is_some_and(|found| {
        let about = found.destination_topic_id;
        let stays = about == destination_topic_id && about == remembered;
        about != destination_topic_id && !destination_topic_id.is_zero()
            || stays && !found.differs_in(about)
    })
}

#[cfg(test)]
mod tests {
    use super::DesiredState::{Mirroring, Paused, Stopped};
    use super::OnDivergence::{Fail, Recreate};
    use super::*;

    const X: TopicId = TopicId([1; 16]);
    const Y: TopicId = TopicId([2; 16]);
    const NONE: TopicId = TopicId([0; 16]);

    fn in_state(state: PartitionState) -> PartitionValue {
        PartitionValue {
            state,
            ..PartitionValue::default()
        }
    }

    fn failed(destination_topic_id: TopicId, offset: i64) -> PartitionValue {
        PartitionValue {
            divergence: Some(Divergence {
                destination_topic_id,
                offset,
            }),
            ..in_state(PartitionState::Failed)
        }
    }

    fn all_of(values: &[PartitionValue]) -> Vec<(i32, PartitionValue)> {
        (0..).zip(values.iter().cloned()).collect()
    }

    #[test]
    fn the_table_of_what_comes_next() {
        let mirroring = || in_state(PartitionState::Mirroring);
        let stopping = || in_state(PartitionState::Stopping);
        let differs = || all_of(&[mirroring(), failed(X, 7)]);
        let aside = || all_of(&[failed(X, -1), failed(X, 7)]);
        let begin = Next::Begin {
            topic_id: X,
            partition: 1,
            offset: 7,
        };
        // (policy, desired, marked, there, partitions, next)
        let table = [
            // Nobody has marked it.
            (Recreate, Mirroring, None, Some(X), differs(), begin),
            (Fail, Mirroring, None, Some(X), differs(), Next::Nothing),
            (Recreate, Paused, None, Some(X), differs(), Next::Nothing),
            (Recreate, Stopped, None, Some(X), differs(), Next::Nothing),
            (Recreate, Mirroring, None, None, differs(), Next::Nothing),
            (Recreate, Mirroring, None, Some(Y), differs(), Next::Nothing),
            (
                Recreate,
                Mirroring,
                None,
                Some(NONE),
                all_of(&[failed(NONE, 7)]),
                Next::Nothing,
            ),
            (
                Recreate,
                Mirroring,
                None,
                Some(X),
                all_of(&[mirroring(), in_state(PartitionState::Failed)]),
                Next::Nothing,
            ),
            (
                Recreate,
                Mirroring,
                None,
                Some(X),
                all_of(&[failed(X, -1)]),
                Next::Nothing,
            ),
            (
                Recreate,
                Mirroring,
                None,
                Some(X),
                all_of(&[stopping(), failed(X, 7)]),
                Next::Nothing,
            ),
            // It is marked and there.
            (
                Recreate,
                Mirroring,
                Some(X),
                Some(X),
                differs(),
                Next::Nothing,
            ),
            (
                Recreate,
                Mirroring,
                Some(X),
                Some(X),
                all_of(&[failed(Y, -1), failed(X, 7)]),
                Next::Nothing,
            ),
            (
                Recreate,
                Mirroring,
                Some(X),
                Some(X),
                aside(),
                Next::Delete { topic_id: X },
            ),
            (
                Recreate,
                Paused,
                Some(X),
                Some(X),
                aside(),
                Next::Withdraw { topic_id: X },
            ),
            (
                Recreate,
                Stopped,
                Some(X),
                Some(X),
                differs(),
                Next::Withdraw { topic_id: X },
            ),
            (
                Fail,
                Mirroring,
                Some(X),
                Some(X),
                aside(),
                Next::Withdraw { topic_id: X },
            ),
            // It has been deleted: what was begun is ended, whatever is wanted by now.
            (Recreate, Mirroring, Some(X), None, aside(), Next::Create),
            (Recreate, Paused, Some(X), None, aside(), Next::Create),
            (Fail, Stopped, Some(X), None, aside(), Next::Create),
            (
                Recreate,
                Mirroring,
                Some(X),
                Some(Y),
                aside(),
                Next::Take { topic_id: Y },
            ),
            (
                Fail,
                Stopped,
                Some(X),
                Some(Y),
                aside(),
                Next::Take { topic_id: Y },
            ),
        ];
        for (policy, desired, marked, there, partitions, wanted) in table {
            let scene = Scene {
                policy,
                desired,
                marked,
                there,
                partitions: &partitions,
            };
            assert_eq!(next(&scene), wanted, "{scene:?}");
        }
    }

    #[test]
    fn a_partition_begins_anew_when_its_topic_is_another_or_stays() {
        // (divergence, the topic's id, as written down, begins anew)
        let table = [
            (failed(X, 7), X, X, false),
            (failed(X, 7), Y, Y, true),
            (failed(X, -1), Y, Y, true),
            (failed(X, -1), X, X, true),
            // The new one is written down, but has not been seen yet.
            (failed(X, -1), X, Y, false),
            (failed(X, 7), X, Y, false),
            (failed(X, 7), NONE, Y, false),
            (in_state(PartitionState::Failed), Y, Y, false),
            (in_state(PartitionState::Mirroring), Y, Y, false),
        ];
        for (value, there, remembered, wanted) in table {
            assert_eq!(
                begins_anew(&value, there, remembered),
                wanted,
                "{value:?} {there} {remembered}"
            );
        }
    }

    /// A coordinator that dies between any two of its acts, and owners that come late: in the end the topic is another one, was
    /// deleted once, and nobody had anything on its way when it was.
    #[test]
    fn whoever_takes_over_ends_what_was_begun() {
        for crash_before in 0..6 {
            let mut partitions = all_of(&[in_state(PartitionState::Mirroring), failed(X, 7)]);
            let (mut marked, mut there, mut deleted) = (None, Some(X), 0);
            let mut seen = Vec::new();
            for step in 0..12 {
                let act = next(&Scene {
                    policy: Recreate,
                    desired: Mirroring,
                    marked,
                    there,
                    partitions: &partitions,
                });
                if step == crash_before {
                    // Whatever was decided is not done; the next one looks anew.
                    continue;
                }
                seen.push(act);
                match act {
                    Next::Begin { topic_id, .. } => marked = Some(topic_id),
                    Next::Delete { topic_id } => {
                        assert_eq!(there, Some(topic_id));
                        (there, deleted) = (None, deleted + 1);
                    }
                    Next::Create => there = Some(Y),
                    Next::Take { topic_id } => {
                        assert_eq!(topic_id, Y);
                        marked = None;
                    }
                    Next::Nothing if marked.is_some() => partitions[0].1 = failed(X, -1),
                    Next::Nothing | Next::Withdraw { .. } => {}
                }
            }
            assert_eq!((marked, there, deleted), (None, Some(Y), 1), "{seen:?}");
            assert!(partitions.iter().all(|(_, value)| begins_anew(value, Y, Y)));
        }
    }
}
