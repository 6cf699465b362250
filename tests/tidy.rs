//! The rules of the house, one test per rule. Must not need a broker.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails like the test itself"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use truemirror::config::Config;

/// Who may import whom, by the first part of a path under `crate::`. Everything not listed may be imported by nobody.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    (
        "app",
        &[
            "cli",
            "config",
            "coordinator",
            "domain",
            "http",
            "kafka",
            "metrics",
            "mirror",
            "server",
            "sync",
            "verify",
            "wire",
        ],
    ),
    ("cli", &["config", "domain", "kafka", "verify", "wire"]),
    ("config", &["domain"]),
    (
        "coordinator",
        &["config", "domain", "kafka", "metrics", "wire"],
    ),
    ("domain", &[]),
    ("http", &["config", "domain", "metrics", "mirror", "wire"]),
    ("kafka", &["config", "domain", "metrics", "wire"]),
    ("metrics", &["domain"]),
    (
        "mirror",
        &[
            "config",
            "coordinator",
            "domain",
            "kafka",
            "metrics",
            "wire",
        ],
    ),
    (
        "sync",
        &[
            "config",
            "coordinator",
            "domain",
            "kafka",
            "metrics",
            "wire",
        ],
    ),
    (
        "server",
        &["config", "coordinator", "domain", "metrics", "wire"],
    ),
    ("verify", &["domain", "kafka", "wire"]),
    ("wire", &["domain"]),
];

/// What the pure modules may not have: sockets, tasks, clocks, randomness, the environment.
const IMPURE: &[&str] = &[
    "tokio",
    "std::net",
    "std::fs",
    "std::env",
    "std::thread",
    "std::process",
    "Instant",
    "SystemTime",
    "rand::",
    "tracing::",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files below `dir` whose names end with `suffix`, build output aside, as (path from the root, text).
fn files(dir: &str, suffix: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![root().join(dir)];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_none_or(|name| name != "target") {
                    open.push(path);
                }
            } else if path.to_str().unwrap().ends_with(suffix) {
                let name = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                found.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no {suffix} below {dir}");
    found.sort();
    found
}

fn sources() -> Vec<(String, String)> {
    let mut all = files("src", ".rs");
    all.extend(files("tests", ".rs"));
    all
}

/// The module of a file in `src`, by the first part of its path.
fn module(name: &str) -> &str {
    let rest = name.strip_prefix("src/").unwrap();
    rest.split('/').next().unwrap().trim_end_matches(".rs")
}

/// The lines of code with their numbers, without comments and without the unit tests at the bottom; none of a file that is
/// a unit test as a whole.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| !["#[cfg(test)]", "#![cfg(test)]"].contains(&line.trim()))
        .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default()))
}

fn report(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// The modules that `line` names behind `crate::`, also inside one level of braces.
fn imports(line: &str) -> Vec<&str> {
    let ident = |text: &str| {
        text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(text.len())
    };
    let mut found = Vec::new();
    for rest in line.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => found.extend(
                list.split(',')
                    .map(|part| part.trim())
                    .map(|part| &part[..ident(part)]),
            ),
            None => found.push(&rest[..ident(rest)]),
        }
    }
    found.retain(|name| name.starts_with(|c: char| c.is_ascii_lowercase()) && *name != "self");
    found
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let mut faults = Vec::new();
    for (name, text) in files("src", ".rs") {
        let importer = module(&name);
        if matches!(importer, "main" | "lib") {
            continue;
        }
        let Some((_, allowed)) = MAY_IMPORT.iter().find(|(module, _)| *module == importer) else {
            faults.push(format!(
                "{name}: module {importer} is not in the table of tests/tidy.rs"
            ));
            continue;
        };
        for (number, line) in code(&text) {
            for imported in imports(line)
                .into_iter()
                .filter(|imported| *imported != importer && !allowed.contains(imported))
            {
                faults.push(format!(
                    "{name}:{number}: {importer} may not import {imported}"
                ));
            }
        }
    }
    report(&faults);
}

#[test]
fn domain_and_wire_are_pure() {
    let mut faults = Vec::new();
    for (name, text) in files("src", ".rs") {
        if !matches!(module(&name), "domain" | "wire") {
            continue;
        }
        for (number, line) in code(&text) {
            for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                faults.push(format!(
                    "{name}:{number}: {word} has no place in a pure module"
                ));
            }
            let outside = line
                .trim()
                .strip_prefix("use ")
                .and_then(|path| path.split("::").next());
            if module(&name) == "domain"
                && outside.is_some_and(|first| {
                    !matches!(
                        first,
                        "std" | "core" | "thiserror" | "crate" | "super" | "self"
                    )
                })
            {
                faults.push(format!(
                    "{name}:{number}: domain uses std and thiserror only: {line}"
                ));
            }
        }
    }
    report(&faults);
}

#[test]
fn every_source_file_opens_with_its_duty() {
    let faults: Vec<_> = sources()
        .into_iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(name, _)| format!("{name}: does not open with //!"))
        .collect();
    report(&faults);
}

#[test]
fn nothing_is_left_for_later() {
    // Built from parts, so that this file does not find itself.
    let words = [
        ["TO", "DO"],
        ["FIX", "ME"],
        ["X", "XX"],
        ["to", "do!"],
        ["unimple", "mented!"],
        ["#[ig", "nore"],
        ["(to be ", "written"],
    ];
    let mut faults = Vec::new();
    for (name, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            for word in words
                .iter()
                .map(|parts| parts.concat())
                .filter(|word| line.contains(word.as_str()))
            {
                faults.push(format!("{name}:{}: {word}", number + 1));
            }
        }
    }
    report(&faults);
}

#[test]
fn no_line_ends_with_a_space() {
    let mut all = sources();
    for (dir, suffix) in [("config", ".toml"), ("tests", ".sh")] {
        if root().join(dir).is_dir() && suffix == ".toml" {
            all.extend(files(dir, suffix));
        }
    }
    for name in ["README.md", "Cargo.toml", ".ci/run", "tests/run"] {
        all.push((
            name.to_owned(),
            fs::read_to_string(root().join(name)).unwrap(),
        ));
    }
    let mut faults = Vec::new();
    for (name, text) in all {
        for (number, line) in text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.ends_with([' ', '\t']))
        {
            faults.push(format!("{name}:{}: {line:?}", number + 1));
        }
        if !text.ends_with('\n') {
            faults.push(format!("{name}: does not end with a line break"));
        }
    }
    report(&faults);
}

#[test]
fn no_source_file_has_two_duties() {
    const LONGEST: usize = 700;
    let mut faults = Vec::new();
    for (name, text) in files("src", ".rs") {
        let lines = code(&text).count();
        if lines > LONGEST {
            faults.push(format!(
                "{name}: {lines} lines without tests, more than {LONGEST}: split it"
            ));
        }
    }
    report(&faults);
}

#[test]
fn shipped_configurations_parse() {
    for (name, _) in files("config", ".toml") {
        if let Err(errors) = Config::load(&root().join(&name)) {
            panic!("{errors}");
        }
    }
}

#[test]
fn links_in_the_readme_lead_somewhere() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    let mut faults = Vec::new();
    for target in text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
    {
        let path = target.split('#').next().unwrap_or_default();
        if !path.is_empty() && !path.contains("://") && !Path::exists(&root().join(path)) {
            faults.push(format!("README.md: {target} does not exist"));
        }
    }
    report(&faults);
}

/// The words of `text` that look like a metric's name.
fn metric_names(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_')
        .filter(|word| word.starts_with("truemirror_") && word.len() > "truemirror_".len())
        .collect()
}

#[test]
fn the_readme_names_every_metric_and_no_other() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let source = fs::read_to_string(root().join("src/metrics.rs")).unwrap();
    // Names end at the quote; the prefix alone, in the comment on top, is none.
    let known: BTreeSet<_> = source
        .split("#[cfg(test)]")
        .next()
        .unwrap()
        .split('"')
        .filter(|text| metric_names(text).contains(*text))
        .collect();
    assert!(known.len() > 20, "{known:?}");
    assert_eq!(metric_names(&readme), known);
}

#[test]
fn the_reader_of_imports_reads_them() {
    for (line, wanted) in [
        ("use crate::domain::types::X;", vec!["domain"]),
        ("use crate::{kafka, wire::batch};", vec!["kafka", "wire"]),
        (
            "let x = crate::http::serve(crate::config::load());",
            vec!["http", "config"],
        ),
        ("pub(crate) fn x() {}", vec![]),
        ("use std::crate_name;", vec![]),
    ] {
        assert_eq!(imports(line), wanted, "{line}");
    }
}
