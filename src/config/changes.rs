//! What differs between two configurations, and what of it a running process can take over. Must not do it.

use std::collections::BTreeMap;

use super::{Config, Mirror};

/// The difference between the configuration that is in force and another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Mirrors that are new, by name.
    pub added: Vec<String>,
    /// Mirrors that are in both, with other settings.
    pub changed: Vec<String>,
    /// Mirrors that are gone.
    pub removed: Vec<String>,
    /// Tables with other settings that only a restart of the process puts in force.
    pub at_restart: Vec<&'static str>,
}

impl Changes {
    /// True if a running process has anything to do.
    pub fn touch_mirrors(&self) -> bool {
        !(self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty())
    }
}

impl Config {
    /// What is other in `new`.
    pub fn changes_to(&self, new: &Self) -> Changes {
        let old_mirrors = by_name(self);
        let new_mirrors = by_name(new);
        let mut changes = Changes::default();
        for (name, mirror) in &new_mirrors {
            match old_mirrors.get(name) {
                None => changes.added.push((*name).to_owned()),
                Some(old) if old != mirror => changes.changed.push((*name).to_owned()),
                Some(_) => {}
            }
        }
        let gone = old_mirrors
            .keys()
            .filter(|name| !new_mirrors.contains_key(*name));
        changes.removed = gone.map(|name| (*name).to_owned()).collect();
        let Self {
            destination,
            listener,
            http,
            state,
            group,
            limits,
            log,
            mirrors: _,
        } = self;
        let tables = [
            ("[destination]", *destination != new.destination),
            ("[listener]", *listener != new.listener),
            ("[http]", *http != new.http),
            ("[state]", *state != new.state),
            ("[group]", *group != new.group),
            ("[limits]", *limits != new.limits),
            ("[log]", *log != new.log),
        ];
        let other = tables.into_iter().filter(|(_, other)| *other);
        changes.at_restart = other.map(|(table, _)| table).collect();
        changes
    }
}

fn by_name(config: &Config) -> BTreeMap<&str, &Mirror> {
    let mirrors = config.mirrors.iter();
    mirrors
        .map(|mirror| (mirror.name.as_str(), mirror))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[destination]\nbootstrap_servers = [\"here:9092\"]\n";

    fn mirror(name: &str, topics: &str) -> String {
        format!(
            "[[mirror]]\nname = \"{name}\"\n[mirror.source]\nbootstrap_servers = [\"{name}:9092\"]\n\
             [mirror.topics]\ninclude = [\"{topics}\"]\n"
        )
    }

    fn parse(parts: &[String]) -> Config {
        Config::parse("t", &parts.concat()).unwrap()
    }

    #[test]
    fn every_kind_of_change_is_named_where_it_belongs() {
        let old = parse(&[HEAD.to_owned(), mirror("a", "x"), mirror("b", "x")]);
        assert_eq!(old.changes_to(&old), Changes::default());
        assert!(!old.changes_to(&old).touch_mirrors());

        // Only their order differs.
        let turned = parse(&[HEAD.to_owned(), mirror("b", "x"), mirror("a", "x")]);
        assert_eq!(old.changes_to(&turned), Changes::default());

        let new = parse(&[
            HEAD.to_owned(),
            "[limits]\nmemory = \"65MiB\"\n[log]\nlevel = \"debug\"\n".to_owned(),
            mirror("b", "y"),
            mirror("c", "x"),
        ]);
        let changes = old.changes_to(&new);
        assert_eq!(
            changes,
            Changes {
                added: vec!["c".to_owned()],
                changed: vec!["b".to_owned()],
                removed: vec!["a".to_owned()],
                at_restart: vec!["[limits]", "[log]"],
            }
        );
        assert!(changes.touch_mirrors());
    }
}
