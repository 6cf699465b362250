//! What should be, from what is: topics of the source and the destination, and the policy. Must not carry anything out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::types::TopicId;

/// The topics of one mirror, as far as they are prepared for the data path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicSet {
    /// By name.
    pub topics: BTreeMap<Arc<str>, TopicEntry>,
    /// False until the topics have been looked for once: then nothing can be said of what is not among them.
    pub known: bool,
}

impl TopicSet {
    /// True if the configs of `topic` are held: appending may begin.
    pub fn is_held(&self, topic: &str) -> bool {
        let entry = self.topics.get(topic);
        entry.is_some_and(|entry| matches!(entry.gate, TopicGate::Held { .. }))
    }
}

/// One mirrored topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEntry {
    /// How many partitions are mirrored: those that both sides have. Grows when the source's topic grew and the
    /// destination's followed.
    pub partitions: i32,
    /// Its id on the source; zero where the source knows no ids.
    pub source_topic_id: TopicId,
    /// Its id on the destination; zero where the destination knows no ids, or does not have the topic yet.
    pub destination_topic_id: TopicId,
    /// How far its preparation is.
    pub gate: TopicGate,
}

/// How far a topic is prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicGate {
    /// It is there on both sides and may be compared; nothing may be appended until its configs are held.
    Unheld,
    /// Every leader shows the held configs: appending may begin.
    Held {
        /// The destination topic's `max.message.bytes`.
        max_message_bytes: usize,
    },
    /// It cannot be mirrored for now, or for good. What is not permanent goes back to `Unheld` or `Held` by itself once
    /// the reason is gone.
    Failed {
        /// Why, in words, with what an operator can do.
        reason: String,
        /// True if only a person can change it.
        permanent: bool,
    },
}

/// Config values in force, by key; keys without a value (secrets) are left out.
pub type Values = BTreeMap<Arc<str>, Arc<str>>;

/// Topics of Kafka and of this program, which are never mirrored whatever a filter says: their content is about the
/// cluster they are in.
const NEVER_MIRRORED: [&str; 5] = [
    "__cluster_metadata",
    "__consumer_offsets",
    "__mirror_state",
    "__share_group_state",
    "__transaction_state",
];

/// True if a topic may be mirrored at all; `is_internal` is what the source's metadata says of it.
pub fn may_be_mirrored(topic: &str, is_internal: bool) -> bool {
    !is_internal && !NEVER_MIRRORED.contains(&topic)
}

/// What has to happen to a destination topic so that it has the source's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is not there: [`creation`] says how it should be.
    Create,
    /// The source has more partitions.
    Grow {
        /// So many should be there.
        to: i32,
    },
    /// It is as it should be.
    Nothing,
    /// It can never be made like the source's.
    Refuse {
        /// Why, and what an operator can do.
        reason: String,
    },
}

/// The step for a topic that has `source` partitions at the source and `destination` there, `None` if it is missing.
/// Partitions cannot be taken away (`INVALID_PARTITIONS`), and keys would lie elsewhere than at the source.
pub fn next_step(source: i32, destination: Option<i32>) -> Step {
    match destination {
        None => Step::Create,
        Some(found) if found < source => Step::Grow { to: source },
        Some(found) if found == source => Step::Nothing,
        Some(found) => Step::Refuse {
            reason: format!(
                "the destination topic has {found} partitions, the source's has {source}: delete the destination topic if \
                 its content is not needed, or add partitions to the source's, or exclude the topic"
            ),
        },
    }
}

/// What a topic has of its own at the source, and what is in force there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceConfigs {
    /// Set for this topic.
    pub own: Values,
    /// In force, wherever they come from.
    pub effective: Values,
}

/// How destination topics are made.
#[derive(Clone, Copy)]
pub struct Policy<'a> {
    /// Keys that are not copied.
    pub config_exclude: &'a dyn Fn(&str) -> bool,
    /// Replicas of each partition; -1: the destination's default.
    pub replication_factor: i16,
}

impl std::fmt::Debug for Policy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Policy")
            .field("replication_factor", &self.replication_factor)
            .finish_non_exhaustive()
    }
}

/// A topic to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Creation {
    /// As many as the source has.
    pub partitions: i32,
    /// Replicas of each; -1: the destination's default.
    pub replication_factor: i16,
    /// Config values of its own.
    pub configs: Values,
}

/// How a missing destination topic is created: with the source's own configs, except those that the policy or
/// [`never_copied`] names, overlaid by those held values that every broker knows. The others follow when it is held.
pub fn creation(partitions: i32, source: &SourceConfigs, policy: Policy<'_>) -> Creation {
    let copied = source.own.iter().filter(|(key, _)| {
        !never_copied(key) && !TIMESTAMP_LIMITS.contains(&&***key) && !(policy.config_exclude)(key)
    });
    let mut configs: Values = copied
        .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
        .collect();
    for (key, rule) in held_configs(&source.effective, &Values::new()) {
        configs.insert(key, rule.value());
    }
    Creation {
        partitions,
        replication_factor: policy.replication_factor,
        configs,
    }
}

/// True for configs that mean something to the source cluster only, or that bind data to tiers we cannot write.
pub fn never_copied(key: &str) -> bool {
    key.starts_with("local.retention.")
        || key.starts_with("remote.")
        // Replica lists of the source's brokers.
        || key.ends_with(".replication.throttled.replicas")
        // Gone since Kafka 4.0, which refuses topics that name it; only v2 is mirrored.
        || key == "message.format.version"
}

/// By how much a record's timestamp may be off; the last one is of brokers before 4.0, the others of 3.6 and later.
const TIMESTAMP_LIMITS: [&str; 3] = [
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.difference.max.ms",
];

/// What a config must be while a topic mirrors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldRule {
    /// Exactly this.
    Is(Arc<str>),
    /// A list of just these items, in any order.
    Items(Arc<str>),
    /// A number that is not smaller.
    AtLeast(i64),
}

impl HeldRule {
    fn is(value: &str) -> Self {
        Self::Is(value.into())
    }

    /// The value to set where the rule is not met.
    pub fn value(&self) -> Arc<str> {
        match self {
            Self::Is(value) | Self::Items(value) => Arc::clone(value),
            Self::AtLeast(least) => least.to_string().into(),
        }
    }

    /// True if `found` will do.
    pub fn is_met_by(&self, found: &str) -> bool {
        match self {
            Self::Is(value) => **value == *found,
            Self::Items(value) => items(value) == items(found),
            Self::AtLeast(least) => found.parse::<i64>().is_ok_and(|found| found >= *least),
        }
    }
}

fn items(list: &str) -> BTreeSet<&str> {
    let items = list.split(',').map(str::trim);
    items.filter(|item| !item.is_empty()).collect()
}

/// The configs that a destination topic must have while it mirrors, so that no faithful record is refused, restamped,
/// recompressed or deleted there. `source` and `destination` are the values in force; keys that only some brokers know
/// are held where the destination shows them.
///
/// Retention is off, since the log start follows the source's by DeleteRecords; that needs `delete` among the policies
/// (`KafkaApis`/`DeleteRecords`: POLICY_VIOLATION for a topic that is only compacted).
pub fn held_configs(source: &Values, destination: &Values) -> BTreeMap<Arc<str>, HeldRule> {
    let compacted = source
        .get("cleanup.policy")
        .is_some_and(|policy| items(policy).contains("compact"));
    let policy = if compacted {
        "compact,delete"
    } else {
        "delete"
    };
    let mut held = BTreeMap::from([
        ("cleanup.policy".into(), HeldRule::Items(policy.into())),
        ("compression.type".into(), HeldRule::is("producer")),
        ("message.timestamp.type".into(), HeldRule::is("CreateTime")),
        ("retention.bytes".into(), HeldRule::is("-1")),
        ("retention.ms".into(), HeldRule::is("-1")),
    ]);
    for key in TIMESTAMP_LIMITS {
        if destination.contains_key(key) {
            held.insert(key.into(), HeldRule::Is(i64::MAX.to_string().into()));
        }
    }
    if let Some(least) = max_message_bytes(source) {
        held.insert(MAX_MESSAGE_BYTES.into(), HeldRule::AtLeast(least));
    }
    held
}

/// What the held keys are to be once the topic is no longer mirrored: the source's own value, or `None` for the broker's
/// default where the source topic has none of its own.
pub fn restored_configs(
    source: &SourceConfigs,
    held: &BTreeMap<Arc<str>, HeldRule>,
) -> Vec<(Arc<str>, Option<Arc<str>>)> {
    let restored = held
        .keys()
        .map(|key| (Arc::clone(key), source.own.get(key).cloned()));
    restored.collect()
}

const MAX_MESSAGE_BYTES: &str = "max.message.bytes";

/// The largest batch that a topic takes, in bytes, if the values in force say it.
pub fn max_message_bytes(effective: &Values) -> Option<i64> {
    effective.get(MAX_MESSAGE_BYTES)?.parse().ok()
}

/// What still has to be set at the destination: the keys of `held` that its values in force do not meet.
pub fn missing_holds(
    held: &BTreeMap<Arc<str>, HeldRule>,
    destination: &Values,
) -> Vec<(Arc<str>, Arc<str>)> {
    let missing = held.iter().filter(|(key, rule)| {
        destination
            .get(*key)
            .is_none_or(|found| !rule.is_met_by(found))
    });
    missing
        .map(|(key, rule)| (Arc::clone(key), rule.value()))
        .collect()
}

/// What one listing of a cluster shows of a topic that was seen there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// It is the one that is known.
    Same,
    /// It is not there, for the first time in a row: a listing may miss a topic for a moment.
    Missed,
    /// It is not there again.
    Deleted,
    /// Its name belongs to another topic now.
    Recreated {
        /// The id that is known.
        known: TopicId,
        /// The id that was found.
        found: TopicId,
    },
}

/// Compares what is known with what a listing shows. `missed` listings before this one in a row did not have the topic.
/// Where a cluster gives no ids, a topic that was deleted and created again between two listings cannot be told from
/// the old one.
pub fn sight(known: TopicId, found: Option<TopicId>, missed: u32) -> Sight {
    match found {
        None if missed == 0 => Sight::Missed,
        None => Sight::Deleted,
        Some(found) if found == known || found.is_zero() || known.is_zero() => Sight::Same,
        Some(found) => Sight::Recreated { known, found },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect()
    }

    fn source_of(own: &[(&str, &str)]) -> SourceConfigs {
        let mut effective = values(&[
            ("cleanup.policy", "delete"),
            ("max.message.bytes", "1048588"),
        ]);
        effective.extend(values(own));
        SourceConfigs {
            own: values(own),
            effective,
        }
    }

    #[test]
    fn partitions_are_only_ever_added() {
        for (source, destination, wanted) in [
            (3, None, Step::Create),
            (3, Some(3), Step::Nothing),
            (6, Some(3), Step::Grow { to: 6 }),
        ] {
            assert_eq!(next_step(source, destination), wanted);
        }
        let Step::Refuse { reason } = next_step(3, Some(5)) else {
            panic!("five are not three");
        };
        for part in ["has 5 partitions", "has 3", "delete the destination topic"] {
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn a_created_topic_has_the_sources_own_configs_and_the_held_ones() {
        let held = values(&[
            ("cleanup.policy", "delete"),
            ("compression.type", "producer"),
            ("max.message.bytes", "1048588"),
            ("message.timestamp.type", "CreateTime"),
            ("retention.bytes", "-1"),
            ("retention.ms", "-1"),
        ]);
        type Pairs = &'static [(&'static str, &'static str)];
        let cases: [(Pairs, Pairs, &str); 8] = [
            (&[], &[], "nothing of its own"),
            (
                &[("segment.ms", "60000")],
                &[("segment.ms", "60000")],
                "copied",
            ),
            (&[("min.insync.replicas", "2")], &[], "excluded"),
            (&[("retention.ms", "1000")], &[], "held wins"),
            (
                &[("cleanup.policy", "compact")],
                &[("cleanup.policy", "compact,delete")],
                "compacted",
            ),
            (
                &[("max.message.bytes", "5000000")],
                &[("max.message.bytes", "5000000")],
                "large batches",
            ),
            (
                &[
                    ("remote.storage.enable", "true"),
                    ("local.retention.ms", "5"),
                ],
                &[],
                "tiers",
            ),
            (
                &[
                    ("message.timestamp.before.max.ms", "5"),
                    ("message.format.version", "2.8-IV1"),
                    ("leader.replication.throttled.replicas", "0:1"),
                ],
                &[],
                "of another time or cluster",
            ),
        ];
        let exclude = |key: &str| key == "min.insync.replicas";
        let policy = Policy {
            config_exclude: &exclude,
            replication_factor: 3,
        };
        for (own, differs, why) in cases {
            let created = creation(7, &source_of(own), policy);
            assert_eq!((created.partitions, created.replication_factor), (7, 3));
            let mut wanted = held.clone();
            wanted.extend(values(differs));
            assert_eq!(created.configs, wanted, "{why}");
        }
    }

    #[test]
    fn only_what_would_harm_records_is_changed() {
        let good = [
            ("cleanup.policy", "delete"),
            ("compression.type", "producer"),
            ("max.message.bytes", "1048588"),
            ("message.timestamp.type", "CreateTime"),
            ("message.timestamp.before.max.ms", "9223372036854775807"),
            ("message.timestamp.after.max.ms", "9223372036854775807"),
            ("retention.bytes", "-1"),
            ("retention.ms", "-1"),
            ("segment.ms", "1"),
        ];
        type Change = (&'static str, Option<&'static str>);
        type Pairs<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Pairs<'_>, Change, Pairs<'_>); 10] = [
            (&[], ("segment.ms", Some("2")), &[]),
            (
                &[],
                ("retention.ms", Some("604800000")),
                &[("retention.ms", "-1")],
            ),
            (
                &[],
                ("message.timestamp.after.max.ms", Some("3600000")),
                &[("message.timestamp.after.max.ms", "9223372036854775807")],
            ),
            // Brokers before 3.6 do not know the key and would refuse it.
            (&[], ("message.timestamp.after.max.ms", None), &[]),
            (
                &[],
                ("message.timestamp.difference.max.ms", Some("1")),
                &[("message.timestamp.difference.max.ms", "9223372036854775807")],
            ),
            (&[], ("max.message.bytes", Some("2000000")), &[]),
            (
                &[("max.message.bytes", "3000000")],
                ("max.message.bytes", Some("2000000")),
                &[("max.message.bytes", "3000000")],
            ),
            (
                &[("cleanup.policy", "compact")],
                ("cleanup.policy", Some("compact")),
                &[("cleanup.policy", "compact,delete")],
            ),
            (
                &[("cleanup.policy", "compact,delete")],
                ("cleanup.policy", Some("delete, compact")),
                &[],
            ),
            (
                &[],
                ("cleanup.policy", Some("compact")),
                &[("cleanup.policy", "delete")],
            ),
        ];
        for (source, (key, value), wanted) in cases {
            let mut destination = values(&good);
            destination.remove(key);
            destination.extend(value.map(|value| (key.into(), value.into())));
            let held = held_configs(&source_of(source).effective, &destination);
            let missing: Values = missing_holds(&held, &destination).into_iter().collect();
            assert_eq!(missing, values(wanted), "{key}={value:?}");
            destination.extend(missing);
            assert_eq!(missing_holds(&held, &destination), [], "set once is enough");
        }
    }

    #[test]
    fn a_topic_is_lost_when_it_is_missed_twice_or_is_another() {
        let (none, one, two) = (TopicId([0; 16]), TopicId([1; 16]), TopicId([2; 16]));
        let recreated = Sight::Recreated {
            known: one,
            found: two,
        };
        for (known, found, missed, wanted) in [
            (one, Some(one), 0, Sight::Same),
            (one, Some(one), 1, Sight::Same),
            (one, None, 0, Sight::Missed),
            (one, None, 1, Sight::Deleted),
            (one, None, 2, Sight::Deleted),
            (one, Some(two), 0, recreated),
            (none, Some(two), 0, Sight::Same),
            (one, Some(none), 0, Sight::Same),
        ] {
            assert_eq!(sight(known, found, missed), wanted);
        }
    }

    #[test]
    fn internal_topics_are_never_mirrored() {
        for (topic, is_internal, wanted) in [
            ("orders", false, true),
            ("__mine", false, true),
            ("orders", true, false),
            ("__consumer_offsets", false, false),
            ("__mirror_state", false, false),
        ] {
            assert_eq!(may_be_mirrored(topic, is_internal), wanted, "{topic}");
        }
    }
}
