//! A TOML document that is read by typed questions and remembers every fault with its place.
//! Must not know which keys exist or what their defaults are.
//!
//! serde stops at its first error; a person who repairs a file wants all of them. So a [`Section`] answers each
//! question with a value in any case (the default where the found one is bad) and notes what was wrong.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One thing that is wrong with a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file's path as it was given.
    pub file: String,
    /// Line and column, both from 1, where the fault has a place.
    pub place: Option<(usize, usize)>,
    /// The key with its tables in front of it, such as `mirror.fetch.max_wait`; empty for the file as a whole.
    pub key: String,
    /// What was found and what is allowed.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.place {
            write!(f, ":{line}:{column}")?;
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Everything that is wrong with a configuration file, in the order of the file; never empty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigErrors {
    /// The faults.
    pub faults: Vec<Fault>,
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{fault}")?;
        }
        Ok(())
    }
}

impl ConfigErrors {
    /// A single fault of the file as a whole.
    pub(crate) fn whole_file(file: &str, message: String) -> Self {
        Self {
            faults: vec![Fault {
                file: file.to_owned(),
                place: None,
                key: String::new(),
                message,
            }],
        }
    }
}

/// The text of a file and the faults that were found in it so far.
#[derive(Debug)]
pub(super) struct Document<'t> {
    file: &'t str,
    text: &'t str,
    faults: RefCell<Vec<(usize, Fault)>>,
}

impl<'t> Document<'t> {
    /// The document and its root table; a syntax error comes alone, since nothing behind it can be trusted.
    pub(super) fn parse(
        file: &'t str,
        text: &'t str,
    ) -> Result<(Self, Spanned<DeTable<'t>>), ConfigErrors> {
        let document = Self {
            file,
            text,
            faults: RefCell::new(Vec::new()),
        };
        match DeTable::parse(text) {
            Ok(root) => Ok((document, root)),
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                document.fault(
                    at,
                    String::new(),
                    format!("not valid TOML: {}", one_line(error.message())),
                );
                Err(ConfigErrors {
                    faults: document.into_faults(),
                })
            }
        }
    }

    /// The root table as a section.
    pub(super) fn root<'d>(&'d self, root: &'d DeTable<'d>) -> Section<'d> {
        Section {
            document: self,
            path: String::new(),
            at: 0,
            table: Some(root),
            known: RefCell::default(),
        }
    }

    /// Notes a fault at byte `at`.
    pub(super) fn fault(&self, at: usize, key: String, message: String) {
        let fault = Fault {
            file: self.file.to_owned(),
            place: Some(self.place(at)),
            key,
            message,
        };
        self.faults.borrow_mut().push((at, fault));
    }

    /// All faults in the order of the file.
    pub(super) fn into_faults(self) -> Vec<Fault> {
        let mut faults = self.faults.into_inner();
        faults.sort_by_key(|(at, _)| *at);
        faults.into_iter().map(|(_, fault)| fault).collect()
    }

    fn place(&self, at: usize) -> (usize, usize) {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count().saturating_add(1);
        let column = before
            .rsplit('\n')
            .next()
            .map_or(0, |tail| tail.chars().count())
            .saturating_add(1);
        (line, column)
    }

    /// The text of a value as the file has it, short enough for a message.
    fn quote(&self, value: &Spanned<DeValue<'_>>) -> String {
        const LONGEST: usize = 60;
        let text = self.text.get(value.span()).unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let mut short: String = line.chars().take(LONGEST).collect();
        if short.len() < text.len() {
            short.push_str("...");
        }
        short
    }
}

/// A text of the file and its place.
#[derive(Clone, Debug)]
pub(super) struct Text {
    pub(super) text: String,
    pub(super) at: usize,
}

/// One table of the document, or the absence of one.
#[derive(Debug)]
pub(super) struct Section<'d> {
    document: &'d Document<'d>,
    path: String,
    at: usize,
    table: Option<&'d DeTable<'d>>,
    known: RefCell<Vec<&'static str>>,
}

impl<'d> Section<'d> {
    /// The sub-table `key`; an absent one answers every question with its default.
    pub(super) fn section(&self, key: &'static str) -> Self {
        let empty = |at| Section {
            document: self.document,
            path: self.key(key),
            at,
            table: None,
            known: RefCell::default(),
        };
        let Some(value) = self.value(key) else {
            return empty(self.at);
        };
        match value.get_ref().as_table() {
            Some(table) => Section {
                table: Some(table),
                ..empty(value.span().start)
            },
            None => {
                self.refuse(key, value, "a table");
                // The fault is the type; that its keys are missing follows from it and is not said again.
                let section = empty(value.span().start);
                section.mute();
                section
            }
        }
    }

    /// The tables of the list `[[key]]`; each carries its place.
    pub(super) fn sections(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let wanted = format!("a list of tables, each under its own [[{key}]]");
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(key, value, &wanted);
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_table() {
                Some(table) => sections.push(Section {
                    document: self.document,
                    path: self.key(key),
                    at: item.span().start,
                    table: Some(table),
                    known: RefCell::default(),
                }),
                None => self.refuse(key, item, &wanted),
            }
        }
        sections
    }

    /// True if the file has this table or key in it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.lookup(key).is_some()
    }

    /// True if `key` is a list without entries.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.lookup(key)
            .and_then(|value| value.get_ref().as_array())
            .is_some_and(|array| array.is_empty())
    }

    /// The text of `key`, or `default`.
    pub(super) fn text(&self, key: &'static str, default: &str) -> Text {
        self.optional_text(key).unwrap_or_else(|| Text {
            text: default.to_owned(),
            at: self.at,
        })
    }

    /// The text of `key`, if it is there.
    pub(super) fn optional_text(&self, key: &'static str) -> Option<Text> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some("") => self.refuse(key, value, "a text that is not empty"),
            Some(text) => {
                return Some(Text {
                    text: text.to_owned(),
                    at: value.span().start,
                });
            }
            None => self.refuse(key, value, "a text in quotes"),
        }
        None
    }

    /// The text of `key`, which must be there.
    pub(super) fn required_text(&self, key: &'static str, example: &str) -> Option<Text> {
        if !self.has(key) {
            self.missing(key, example);
        }
        self.optional_text(key)
    }

    /// The list of texts `key`, or `default`.
    pub(super) fn texts(&self, key: &'static str, default: &[&str]) -> Vec<Text> {
        let Some(value) = self.value(key) else {
            return default
                .iter()
                .map(|text| Text {
                    text: (*text).to_owned(),
                    at: self.at,
                })
                .collect();
        };
        let Some(array) = value.get_ref().as_array() else {
            self.refuse(key, value, "a list of texts, such as [\"a\", \"b\"]");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in array.iter() {
            match item.get_ref().as_str() {
                Some(text) => texts.push(Text {
                    text: text.to_owned(),
                    at: item.span().start,
                }),
                None => self.refuse(key, item, "a text in quotes"),
            }
        }
        texts
    }

    /// The list of texts `key`, which must be there and must not be empty.
    pub(super) fn required_texts(&self, key: &'static str, example: &str) -> Vec<Text> {
        if !self.has(key) {
            self.missing(key, example);
            return self.texts(key, &[]);
        }
        if self.is_empty_list(key) {
            self.fault_at_value(
                key,
                &format!("is an empty list, allowed: at least one entry, such as {example}"),
            );
        }
        self.texts(key, &[])
    }

    /// True or false, or `default`.
    pub(super) fn flag(&self, key: &'static str, default: bool) -> bool {
        let Some(value) = self.value(key) else {
            return default;
        };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.refuse(key, value, "true or false");
            default
        })
    }

    /// A whole number within `range`, or `default`. `allowed` says the range in words.
    pub(super) fn integer(
        &self,
        key: &'static str,
        default: i64,
        range: RangeInclusive<i64>,
        allowed: &str,
    ) -> i64 {
        let Some(value) = self.value(key) else {
            return default;
        };
        match integer(value.get_ref()) {
            Some(number) if range.contains(&number) => number,
            _ => {
                self.refuse(key, value, allowed);
                default
            }
        }
    }

    /// A duration from one millisecond to about 24 days (what a Kafka request can carry), or `default`.
    pub(super) fn duration(&self, key: &'static str, default: Duration) -> Duration {
        const ALLOWED: &str =
            "a duration in quotes from \"1ms\" to \"24days\", such as \"30s\" or \"500ms\"";
        let Some(value) = self.value(key) else {
            return default;
        };
        match value.get_ref().as_str().map(humantime::parse_duration) {
            Some(Ok(found)) if (SHORTEST..=LONGEST).contains(&found) => found,
            _ => {
                self.refuse(key, value, ALLOWED);
                default
            }
        }
    }

    /// A number of bytes from 1 to 2 GiB - 1 (what a Kafka request can carry), or `default`. Text with a unit, or a bare number.
    pub(super) fn size(&self, key: &'static str, default: i32) -> i32 {
        let Some(value) = self.value(key) else {
            return default;
        };
        match size_bytes(value.get_ref()).and_then(|bytes| i32::try_from(bytes).ok()) {
            Some(bytes) if bytes > 0 => bytes,
            _ => {
                self.refuse(
                    key,
                    value,
                    "a size in quotes from \"1B\" to below \"2GiB\", such as \"16MiB\"",
                );
                default
            }
        }
    }

    /// A number of bytes above zero, or `default`; for memory of this process.
    pub(super) fn memory(&self, key: &'static str, default: usize) -> usize {
        let Some(value) = self.value(key) else {
            return default;
        };
        // A limit beyond 1 PiB is a slip of the pen, and saturated products of the parser end up there too.
        match size_bytes(value.get_ref()).and_then(|bytes| usize::try_from(bytes).ok()) {
            Some(bytes) if (1..=1 << 50).contains(&bytes) => bytes,
            _ => {
                self.refuse(
                    key,
                    value,
                    "a size in quotes from \"1B\" to \"1PiB\", such as \"48MiB\"",
                );
                default
            }
        }
    }

    /// One of a few named choices, or `default`.
    pub(super) fn choice<T: Clone>(
        &self,
        key: &'static str,
        default: T,
        choices: &[(&str, T)],
    ) -> T {
        let Some(value) = self.value(key) else {
            return default;
        };
        let found = bare(value.get_ref());
        let hit = choices
            .iter()
            .find(|(name, _)| found.as_deref() == Some(*name));
        hit.map(|(_, choice)| choice.clone()).unwrap_or_else(|| {
            let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
            self.refuse(key, value, &names.join(" or "));
            default
        })
    }

    /// Notes a fault of `key` at byte `at`.
    pub(super) fn fault(&self, key: &str, at: usize, message: &str) {
        self.document.fault(at, self.key(key), message.to_owned());
    }

    /// Notes a fault of `key` at its value, or at the table where the default did it.
    pub(super) fn fault_at_value(&self, key: &str, message: &str) {
        self.fault(
            key,
            self.lookup(key).map_or(self.at, |value| value.span().start),
            message,
        );
    }

    /// Refuses the keys that nobody asked for. To be called once all questions are asked.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        let Some(table) = self.table else { return };
        for (name, _) in table.iter() {
            let found: &str = name.get_ref();
            if known.contains(&found) {
                continue;
            }
            let message = match nearest(found, &known) {
                Some(near) => format!("unknown key; did you mean {near}?"),
                None => format!("unknown key; allowed here: {}", known.join(", ")),
            };
            self.fault(found, name.span().start, &message);
        }
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    fn lookup(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.table?
            .iter()
            .find(|(name, _)| name.get_ref() == key)
            .map(|(_, value)| value)
    }

    fn value(&self, key: &'static str) -> Option<&'d Spanned<DeValue<'d>>> {
        let mut known = self.known.borrow_mut();
        if !known.contains(&key) {
            known.push(key);
        }
        self.lookup(key)
    }

    fn refuse(&self, key: &str, value: &Spanned<DeValue<'_>>, allowed: &str) {
        let found = self.document.quote(value);
        let kind = value.get_ref().type_str();
        let message = format!("found {found} ({kind}), allowed: {allowed}");
        self.fault(key, value.span().start, &message);
    }

    fn missing(&self, key: &str, example: &str) {
        if !self.is_mute() {
            self.fault(
                key,
                self.at,
                &format!("is missing; it must be set, such as {key} = {example}"),
            );
        }
    }

    fn mute(&self) {
        self.known.borrow_mut().push(MUTE);
    }

    fn is_mute(&self) -> bool {
        self.known.borrow().contains(&MUTE)
    }
}

/// No TOML key that anybody asks for: marks a section whose own type was already refused.
const MUTE: &str = "";
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(24 * 86_400);

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let found = value.as_integer()?;
    i64::from_str_radix(found.as_str(), found.radix()).ok()
}

fn size_bytes(value: &DeValue<'_>) -> Option<u64> {
    match value.as_str() {
        Some(text) => text
            .trim()
            .parse::<bytesize::ByteSize>()
            .ok()
            .map(|size| size.as_u64()),
        None => integer(value).and_then(|number| u64::try_from(number).ok()),
    }
}

/// A text with its quotes, a number as it stands: so that `1` and `"1"` stay different choices.
fn bare(value: &DeValue<'_>) -> Option<String> {
    match value.as_str() {
        Some(text) => Some(format!("\"{text}\"")),
        None => integer(value).map(|number| number.to_string()),
    }
}

/// The known key that `found` was most likely meant to be.
fn nearest<'k>(found: &str, known: &[&'k str]) -> Option<&'k str> {
    const ALIKE: f64 = 0.8;
    known
        .iter()
        .map(|name| {
            (
                strsim::normalized_damerau_levenshtein(found, name)
                    .max(strsim::jaro_winkler(found, name) - 0.1),
                *name,
            )
        })
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name)
}

fn one_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}
