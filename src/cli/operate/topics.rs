//! Which topics a command means: names, patterns, all. Must not ask anybody.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::Args;

use crate::config::NamePatterns;
use crate::domain::state::PartitionState;
use crate::wire::mirror_rpc::DescribedMirror;

/// Which topics.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct TopicArgs {
    /// Names or regular expressions for whole names, separated by commas; can be repeated
    ///
    /// What has only the characters of topic names (a-z A-Z 0-9 . _ -) is a name, everything else a regular expression. Of the
    /// topics that an expression matches those are left out for which there is nothing to do.
    #[arg(long, short, value_name = "LIST", value_delimiter = ',', value_parser = name_or_pattern)]
    pub topics: Vec<String>,
    /// All topics of the mirror for which there is something to do
    #[arg(long)]
    pub all: bool,
}

/// Checks one part of `--topics`.
pub(super) fn name_or_pattern(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("an empty name".to_owned());
    }
    if !is_name(text) {
        NamePatterns::default().push(text)?;
    }
    Ok(text.to_owned())
}

/// A dot in a name means a dot: who stops `orders.eu` does not mean `orders-eu`, too.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    text.chars().all(plain)
}

/// What a list of names and patterns means.
#[derive(Clone, Debug, Default)]
pub(super) struct Selection {
    /// Taken as they are, whether such a topic is known or not.
    pub(super) names: Vec<Arc<str>>,
    /// Looked up among the topics that there are.
    pub(super) patterns: NamePatterns,
}

impl Selection {
    pub(super) fn new(topics: &[String], all: bool) -> Self {
        let mut selection = Self::default();
        for text in topics {
            if is_name(text) {
                selection.names.push(Arc::from(text.as_str()));
            } else {
                // Checked by clap already.
                selection.patterns.push(text).ok();
            }
        }
        if all {
            selection.patterns.push(EVERY).ok();
        }
        selection
    }

    /// True if the topics must be known before the selection means any.
    pub(super) fn has_patterns(&self) -> bool {
        self.patterns.texts().next().is_some()
    }

    /// True if the topic `name` is meant.
    pub(super) fn means(&self, name: &str) -> bool {
        self.names.iter().any(|known| **known == *name) || self.patterns.matches(name)
    }

    /// The patterns for a message.
    pub(super) fn texts(&self) -> String {
        let quoted: Vec<String> = self
            .patterns
            .texts()
            .map(|text| format!("{text:?}"))
            .collect();
        quoted.join(", ")
    }
}

/// The pattern that stands for all topics.
const EVERY: &str = ".*";

/// Topics that were found for a selection.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Those that the command is for, sorted, none twice.
    pub(super) topics: Vec<Arc<str>>,
    /// Those that match, but for which there is nothing to do.
    pub(super) left_out: Vec<Arc<str>>,
}

/// The topics of `mirror` that `selection` means; of those that only a pattern means, the ones where `useful` holds for the states
/// of their partitions.
pub(super) fn resolve(
    selection: &Selection,
    mirror: Option<&DescribedMirror>,
    useful: impl Fn(&[PartitionState]) -> bool,
) -> Resolved {
    let mut states: BTreeMap<&Arc<str>, Vec<PartitionState>> = BTreeMap::new();
    for topic in mirror
        .map(|mirror| mirror.topics.as_slice())
        .unwrap_or_default()
    {
        if !selection.patterns.matches(&topic.topic_name) {
            continue;
        }
        let known = topic.partitions.iter();
        states
            .entry(&topic.topic_name)
            .or_default()
            .extend(known.map(|partition| {
                PartitionState::from_name(&partition.state_value).unwrap_or_default()
            }));
    }
    let mut resolved = Resolved {
        topics: selection.names.clone(),
        left_out: Vec::new(),
    };
    for (name, states) in states {
        if useful(&states) {
            resolved.topics.push(Arc::clone(name));
        } else if !selection.names.contains(name) {
            resolved.left_out.push(Arc::clone(name));
        }
    }
    resolved.topics.sort();
    resolved.topics.dedup();
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::mirror_rpc::{DescribedMirrorPartition, DescribedMirrorTopic};

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn names_mean_themselves_and_patterns_whole_names() {
        let selection = Selection::new(&texts(&["a.b", "x-.*"]), false);
        for (name, wanted) in [
            ("a.b", true),
            ("a-b", false),
            ("x-", true),
            ("x-1", true),
            ("yx-1", false),
        ] {
            assert_eq!(selection.means(name), wanted, "{name}");
        }
        assert_eq!(selection.texts(), "\"x-.*\"");
        assert!(Selection::new(&[], true).means("anything"));
        for bad in ["", "(", "a)|(b"] {
            assert!(name_or_pattern(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_matching_topics_the_useless_are_left_out_and_named_ones_never() {
        let topic = |name: &str, states: &[&str]| DescribedMirrorTopic {
            topic_name: name.into(),
            partitions: states
                .iter()
                .map(|state| DescribedMirrorPartition {
                    state_value: (*state).into(),
                    ..DescribedMirrorPartition::default()
                })
                .collect(),
        };
        let mirror = DescribedMirror {
            topics: vec![
                topic("b", &["MIRRORING", "PAUSED"]),
                topic("a", &["MIRRORING"]),
                topic("other", &["PAUSED"]),
                topic("c", &["PAUSED"]),
            ],
            ..DescribedMirror::default()
        };
        let paused = |states: &[PartitionState]| states.contains(&PartitionState::Paused);
        let resolved = |list: &[&str]| {
            let found = resolve(&Selection::new(&texts(list), false), Some(&mirror), paused);
            (found.topics.join(" "), found.left_out.join(" "))
        };
        assert_eq!(resolved(&["[a-z]"]), ("b c".into(), "a".into()));
        assert_eq!(resolved(&["[a-z]", "a"]), ("a b c".into(), String::new()));
        assert_eq!(
            resolved(&["nobody", "b"]),
            ("b nobody".into(), String::new())
        );
        assert_eq!(resolved(&["zz.*"]), (String::new(), String::new()));
    }
}
