//! Incremental fetch sessions (KIP-227): only what changed since the last request is sent. Must not decide what to fetch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::domain::types::{LeaderEpoch, TopicId, TopicPartition};
use crate::wire::api::fetch::{FetchPartition, FetchRequest, FetchTopic, ForgottenTopic};
use crate::wire::error_code::ErrorCode;

/// One partition that the caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which one.
    pub partition: TopicPartition,
    /// The topic's id, zero if the broker knows none.
    pub topic_id: TopicId,
    /// The next offset wanted.
    pub fetch_offset: i64,
    /// The leader's epoch as far as we know, so that a deposed leader refuses.
    pub current_leader_epoch: LeaderEpoch,
    /// The epoch of the record before `fetch_offset`, so that the leader can tell whether our logs have parted.
    pub last_fetched_epoch: LeaderEpoch,
    /// Most bytes of this partition in one answer, but for a first batch that is larger.
    pub partition_max_bytes: i32,
}

/// Limits of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchLimits {
    /// How long the broker may wait for data, in milliseconds.
    pub max_wait_ms: i32,
    /// How few bytes end that wait.
    pub min_bytes: i32,
    /// Most bytes in one answer, but for a first batch that is larger.
    pub max_bytes: i32,
}

/// One session with one broker over one connection.
///
/// Memory: about 150 bytes per partition.
#[derive(Debug, Default)]
pub struct FetchSession {
    id: i32,
    epoch: i32,
    sent: HashMap<TopicPartition, Wanted>,
    names: HashMap<TopicId, Arc<str>>,
}

impl FetchSession {
    /// The next request: everything if the session is new, else what changed since the last one. No partition is wanted twice.
    pub fn request(&mut self, wanted: &[Wanted], limits: FetchLimits) -> FetchRequest {
        let mut topics: HashMap<Arc<str>, FetchTopic> = HashMap::new();
        for one in wanted {
            if self.sent.get(&one.partition) == Some(one) {
                continue;
            }
            let topic = topics
                .entry(Arc::clone(&one.partition.topic))
                .or_insert_with(|| FetchTopic {
                    topic: Arc::clone(&one.partition.topic),
                    topic_id: one.topic_id,
                    ..FetchTopic::default()
                });
            topic.partitions.push(FetchPartition {
                partition: one.partition.partition,
                current_leader_epoch: one.current_leader_epoch,
                fetch_offset: one.fetch_offset,
                last_fetched_epoch: one.last_fetched_epoch,
                partition_max_bytes: one.partition_max_bytes,
                ..FetchPartition::default()
            });
            self.names
                .insert(one.topic_id, Arc::clone(&one.partition.topic));
            self.sent.insert(one.partition.clone(), one.clone());
        }
        let mut forgotten: HashMap<Arc<str>, ForgottenTopic> = HashMap::new();
        // Where as many are known as are wanted, none is to be forgotten: mostly nothing at all has changed.
        if self.sent.len() > wanted.len() {
            let now: HashSet<&TopicPartition> = wanted.iter().map(|one| &one.partition).collect();
            self.sent.retain(|partition, one| {
                if now.contains(partition) {
                    return true;
                }
                let topic = forgotten
                    .entry(Arc::clone(&partition.topic))
                    .or_insert_with(|| ForgottenTopic {
                        topic: Arc::clone(&partition.topic),
                        topic_id: one.topic_id,
                        ..ForgottenTopic::default()
                    });
                topic.partitions.push(partition.partition);
                false
            });
            let names = wanted.iter();
            self.names = names
                .map(|one| (one.topic_id, Arc::clone(&one.partition.topic)))
                .collect();
        }
        FetchRequest {
            max_wait_ms: limits.max_wait_ms,
            min_bytes: limits.min_bytes,
            max_bytes: limits.max_bytes,
            isolation_level: 1,
            session_id: self.id,
            session_epoch: self.epoch,
            topics: topics.into_values().collect(),
            forgotten_topics_data: forgotten.into_values().collect(),
            ..FetchRequest::default()
        }
    }

    /// Takes note of an answer's session. False if the session is gone: the answer holds nothing, and the next request
    /// begins a new one.
    pub fn answered(&mut self, error_code: ErrorCode, session_id: i32) -> bool {
        if !error_code.is_none() {
            self.reset();
            return false;
        }
        if session_id == 0 {
            // The broker has no room for a session: every request is a full one.
            self.reset();
            return true;
        }
        self.id = session_id;
        self.epoch = self.epoch.checked_add(1).unwrap_or(1);
        true
    }

    /// Forgets the session; the next request is a full one.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// The partition of an answer, which names its topic by name (before version 13) or by id; `None` if it was not asked.
    pub fn partition_of(
        &self,
        name: &Arc<str>,
        topic_id: TopicId,
        partition: i32,
    ) -> Option<TopicPartition> {
        let topic = if name.is_empty() {
            self.names.get(&topic_id)?
        } else {
            name
        };
        let found = TopicPartition {
            topic: Arc::clone(topic),
            partition,
        };
        self.sent.contains_key(&found).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FetchLimits = FetchLimits {
        max_wait_ms: 500,
        min_bytes: 1,
        max_bytes: 1000,
    };

    fn wanted(partition: i32, fetch_offset: i64) -> Wanted {
        Wanted {
            partition: TopicPartition::new("t", partition),
            topic_id: TopicId([7; 16]),
            fetch_offset,
            current_leader_epoch: LeaderEpoch(3),
            last_fetched_epoch: LeaderEpoch(2),
            partition_max_bytes: 100,
        }
    }

    /// Session id and epoch, partitions asked with their offsets, partitions forgotten.
    fn check(request: &FetchRequest, session: (i32, i32), asked: &[(i32, i64)], forgotten: &[i32]) {
        let mut found: Vec<(i32, i64)> = request
            .topics
            .iter()
            .flat_map(|t| &t.partitions)
            .map(|p| (p.partition, p.fetch_offset))
            .collect();
        found.sort_unstable();
        let mut gone: Vec<i32> = request
            .forgotten_topics_data
            .iter()
            .flat_map(|t| t.partitions.iter().copied())
            .collect();
        gone.sort_unstable();
        assert_eq!((request.session_id, request.session_epoch), session);
        assert_eq!((found.as_slice(), gone.as_slice()), (asked, forgotten));
    }

    #[test]
    fn a_session_sends_what_changed() {
        let mut session = FetchSession::default();
        check(
            &session.request(&[wanted(0, 5), wanted(1, 9)], LIMITS),
            (0, 0),
            &[(0, 5), (1, 9)],
            &[],
        );
        assert!(session.answered(ErrorCode::NONE, 77));
        check(
            &session.request(&[wanted(0, 5), wanted(1, 9)], LIMITS),
            (77, 1),
            &[],
            &[],
        );
        assert!(session.answered(ErrorCode::NONE, 77));
        check(
            &session.request(&[wanted(0, 6), wanted(2, 1)], LIMITS),
            (77, 2),
            &[(0, 6), (2, 1)],
            &[1],
        );
    }

    #[test]
    fn a_lost_session_begins_anew() {
        for code in [
            ErrorCode::FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode::INVALID_FETCH_SESSION_EPOCH,
        ] {
            let mut session = FetchSession::default();
            session.request(&[wanted(0, 5)], LIMITS);
            session.answered(ErrorCode::NONE, 77);
            assert!(!session.answered(code, 0));
            check(
                &session.request(&[wanted(0, 5)], LIMITS),
                (0, 0),
                &[(0, 5)],
                &[],
            );
        }
    }

    #[test]
    fn a_broker_without_room_for_sessions_is_asked_in_full() {
        let mut session = FetchSession::default();
        session.request(&[wanted(0, 5)], LIMITS);
        assert!(session.answered(ErrorCode::NONE, 0));
        check(
            &session.request(&[wanted(0, 5)], LIMITS),
            (0, 0),
            &[(0, 5)],
            &[],
        );
    }

    #[test]
    fn the_epoch_goes_round_past_zero() {
        let mut session = FetchSession {
            id: 7,
            epoch: i32::MAX,
            ..FetchSession::default()
        };
        session.answered(ErrorCode::NONE, 7);
        assert_eq!(session.epoch, 1);
    }

    #[test]
    fn answers_name_topics_by_name_or_by_id() {
        let mut session = FetchSession::default();
        session.request(&[wanted(0, 5)], LIMITS);
        let found = Some(TopicPartition::new("t", 0));
        assert_eq!(session.partition_of(&"".into(), TopicId([7; 16]), 0), found);
        assert_eq!(
            session.partition_of(&"t".into(), TopicId::default(), 0),
            found
        );
        assert_eq!(session.partition_of(&"".into(), TopicId([8; 16]), 0), None);
        assert_eq!(
            session.partition_of(&"t".into(), TopicId::default(), 1),
            None
        );
    }
}
