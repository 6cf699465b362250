//! Which names a configuration means: whole-name regular expressions. Must not know where the names come from.

use std::fmt;

use regex::Regex;

/// A list of regular expressions, each of which must match a whole name.
#[derive(Clone, Default)]
pub struct NamePatterns {
    patterns: Vec<(String, Regex)>,
}

impl NamePatterns {
    /// Adds one pattern; the error says in one line what is wrong with it.
    pub fn push(&mut self, pattern: &str) -> Result<(), String> {
        // Alone first: `a)|(b` is broken but would be accepted, with another meaning, between the parentheses below.
        Regex::new(pattern).map_err(|error| reason(&error))?;
        let whole = Regex::new(&format!("^(?:{pattern})$")).map_err(|error| reason(&error))?;
        self.patterns.push((pattern.to_owned(), whole));
        Ok(())
    }

    /// True if one of the patterns matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.patterns.iter().any(|(_, regex)| regex.is_match(name))
    }

    /// The patterns as they were written.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().map(|(text, _)| text.as_str())
    }
}

impl fmt::Debug for NamePatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.texts()).finish()
    }
}

impl PartialEq for NamePatterns {
    fn eq(&self, other: &Self) -> bool {
        self.texts().eq(other.texts())
    }
}

impl Eq for NamePatterns {}

/// The topics of a mirror: those that `include` names and `exclude` does not.
///
/// Internal topics of a cluster (as its metadata says) are left out by whoever lists topics, whatever stands here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicFilter {
    /// What is wanted.
    pub include: NamePatterns,
    /// What is not, also where `include` names it.
    pub exclude: NamePatterns,
}

impl TopicFilter {
    /// True if the topic `name` is to be mirrored.
    pub fn matches(&self, name: &str) -> bool {
        self.include.matches(name) && !self.exclude.matches(name)
    }
}

/// The last line of a regex error is its reason; the lines before it draw the place.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> NamePatterns {
        let mut patterns = NamePatterns::default();
        for text in texts {
            patterns.push(text).unwrap();
        }
        patterns
    }

    #[test]
    fn a_pattern_means_the_whole_name() {
        for (pattern, name, wanted) in [
            ("orders", "orders", true),
            ("orders", "orders2", false),
            ("orders", "my-orders", false),
            ("a|b", "b", true),
            ("a|b", "ab", false),
            ("a|b", "xb", false),
            ("payments-.*", "payments-", true),
            ("payments-.*", "payments-eu\n", false),
            ("(?i)orders", "ORDERS", true),
        ] {
            assert_eq!(
                patterns(&[pattern]).matches(name),
                wanted,
                "{pattern} against {name:?}"
            );
        }
    }

    #[test]
    fn broken_patterns_are_refused_in_one_line() {
        for pattern in ["(", "a)|(b", "*", "[z-a]", "(?x)a # b"] {
            let mut patterns = NamePatterns::default();
            let error = patterns.push(pattern).unwrap_err();
            assert!(
                !error.is_empty() && !error.contains('\n'),
                "{pattern}: {error:?}"
            );
        }
    }

    #[test]
    fn exclude_wins() {
        let filter = TopicFilter {
            include: patterns(&["orders.*", "__x"]),
            exclude: patterns(&["__.*", "orders-tmp"]),
        };
        for (name, wanted) in [
            ("orders", true),
            ("orders-tmp", false),
            ("__x", false),
            ("other", false),
        ] {
            assert_eq!(filter.matches(name), wanted, "{name}");
        }
    }
}
