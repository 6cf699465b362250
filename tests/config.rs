//! What people see who write a wrong configuration, and that the shipped ones say the truth.
//! Must not need a broker.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of a test fails like the test itself"
)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use truemirror::config::{Acks, Config, LogFormat};
use truemirror::domain::recreate::OnDivergence;

const GOOD: &str = r#"
[destination]
bootstrap_servers = ["d:9092"]

[[mirror]]
name = "m"
[mirror.source]
bootstrap_servers = ["s:9092"]
[mirror.topics]
include = ["t"]
"#;

fn shipped(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    (path, text)
}

fn faults(text: &str) -> Vec<String> {
    let errors = Config::parse("f", text).expect_err("a fault");
    errors.to_string().lines().map(str::to_owned).collect()
}

/// `GOOD` with `from` replaced.
fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from}");
    GOOD.replacen(from, to, 1)
}

#[test]
fn the_minimal_file_has_the_defaults() {
    let (path, _) = shipped("truemirror.minimal.toml");
    let config = Config::load(&path).unwrap();
    assert_eq!(config.destination.connection.client_id, "truemirror");
    assert_eq!(config.destination.connection.socket_buffer_bytes, 1 << 20);
    assert_eq!(config.http.bind.to_string(), "127.0.0.1:9495");
    assert_eq!(config.listener.bind.to_string(), "127.0.0.1:9494");
    assert_eq!(config.listener.advertised, None);
    assert_eq!(config.limits.memory_bytes, 48 << 20);
    assert_eq!(config.limits.connections, 256);
    assert_eq!(config.limits.request_max_bytes, 1 << 20);
    assert_eq!(
        (config.log.level.as_str(), config.log.format),
        ("info", LogFormat::Text)
    );
    let mirror = &config.mirrors[0];
    assert_eq!(mirror.topics.replication_factor, -1);
    assert_eq!(mirror.fetch.max_bytes, 4 << 20);
    assert_eq!(mirror.fetch.max_wait.as_millis(), 500);
    assert_eq!(
        (mirror.append.acks, mirror.append.max_in_flight),
        (Acks::Leader, 5)
    );
    assert_eq!(mirror.policy.on_divergence, OnDivergence::Fail);
    assert_eq!(mirror.retry.max_attempts, 100);
    assert!(!mirror.topics.filter.matches("__consumer_offsets"));
}

#[test]
fn every_default_in_the_example_is_the_codes() {
    let (path, text) = shipped("truemirror.example.toml");
    let mut shown = 0;
    let mut uncommented = String::new();
    for line in text.lines() {
        let key = line.strip_prefix("# ").filter(|rest| {
            let name = rest.split(" = ").next().unwrap_or_default();
            rest.contains(" = ")
                && name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                && !rest.contains("(no default)")
        });
        shown += usize::from(key.is_some());
        uncommented.push_str(key.unwrap_or(line));
        uncommented.push('\n');
    }
    assert_eq!(shown, 33, "the example shows every key that has a default");
    let (minimal, _) = shipped("truemirror.minimal.toml");
    let defaults = Config::load(&minimal).unwrap();
    assert_eq!(
        Config::load(&path).unwrap(),
        defaults,
        "the example as it is"
    );
    assert_eq!(
        Config::parse("uncommented", &uncommented).unwrap(),
        defaults,
        "uncommented"
    );
}

#[test]
fn the_example_has_every_key() {
    let (_, text) = shipped("truemirror.example.toml");
    // An unknown key far from every other makes the reader list what it knows.
    for (table, header) in [
        ("", "zzzzzzzz = 1\n[destination]"),
        ("[destination]", "[destination]\nzzzzzzzz = 1"),
        ("[listener]", "[listener]\nzzzzzzzz = 1"),
        ("[http]", "[http]\nzzzzzzzz = 1"),
        ("[state]", "[state]\nzzzzzzzz = 1"),
        ("[group]", "[group]\nzzzzzzzz = 1"),
        ("[limits]", "[limits]\nzzzzzzzz = 1"),
        ("[log]", "[log]\nzzzzzzzz = 1"),
        ("[[mirror]]", "[[mirror]]\nzzzzzzzz = 1"),
        ("[mirror.source]", "[mirror.source]\nzzzzzzzz = 1"),
        ("[mirror.topics]", "[mirror.topics]\nzzzzzzzz = 1"),
        ("[mirror.fetch]", "[mirror.fetch]\nzzzzzzzz = 1"),
        ("[mirror.append]", "[mirror.append]\nzzzzzzzz = 1"),
        ("[mirror.policy]", "[mirror.policy]\nzzzzzzzz = 1"),
        ("[mirror.retry]", "[mirror.retry]\nzzzzzzzz = 1"),
    ] {
        let from = if table.is_empty() {
            "[destination]"
        } else {
            table
        };
        let all = faults(&text.replacen(from, header, 1));
        let (_, keys) = all[0].split_once("allowed here: ").unwrap();
        for key in keys.split(", ") {
            let shown = [
                format!("{key} = "),
                format!("[{key}]"),
                format!("[mirror.{key}]"),
            ];
            assert!(
                shown.iter().any(|text_of| text.contains(text_of)),
                "{table} {key} is not in the example"
            );
        }
    }
}

#[test]
fn each_fault_is_one_line_with_place_key_found_and_allowed() {
    let cases: &[(String, &[&str])] = &[
        ("a = [".to_owned(), &["f:1:6: not valid TOML: "]),
        (
            with("\"m\"", "\"m\"\nname = \"n\""),
            &["f:7:1: not valid TOML: duplicate key"],
        ),
        (
            with("name", "metadata_refresh_intervall = \"1s\"\nname"),
            &[
                "f:6:1: mirror.metadata_refresh_intervall: unknown key; did you mean metadata_refresh_interval?",
            ],
        ),
        (
            with("[[mirror]]", "[gateway]\n[[mirror]]"),
            &[
                "f:5:2: gateway: unknown key; allowed here: destination, listener, http, state, group, limits, log, mirror",
            ],
        ),
        (
            with("[\"d:9092\"]", "5"),
            &[
                "f:3:21: destination.bootstrap_servers: found 5 (integer), allowed: a list of texts, such as [\"a\", \"b\"]",
            ],
        ),
        (
            with("[\"d:9092\"]", "[]"),
            &[
                "f:3:21: destination.bootstrap_servers: is an empty list, allowed: at least one entry, such as ",
            ],
        ),
        (
            with("[\"d:9092\"]", "[\"d:9092\", 7]"),
            &["f:3:32: destination.bootstrap_servers: found 7 (integer), allowed: a text"],
        ),
        (
            with("d:9092", "d"),
            &["f:3:22: destination.bootstrap_servers: found \"d\", allowed: host:port, such as "],
        ),
        (
            with("d:9092", "d:0"),
            &["found \"d:0\", allowed: host:port"],
        ),
        (
            with("d:9092", "::1:9092"),
            &["found \"::1:9092\", allowed: host:port"],
        ),
        (
            with("d:9092", "http://d:9092"),
            &["found \"http://d:9092\", allowed: host:port"],
        ),
        (
            with("d:9092", "s:9092"),
            &[
                "f:8:22: mirror.source.bootstrap_servers: s:9092 is also a bootstrap server of [destination]",
            ],
        ),
        (
            with("d:9092", "S:9092"),
            &["s:9092 is also a bootstrap server of [destination]"],
        ),
        (
            with(
                "[[mirror]]",
                "[state]\ntopic = \"a/b\"\npartitions = 0\n[[mirror]]",
            ),
            &[
                "f:6:9: state.topic: found \"a/b\", allowed: a topic name",
                "f:7:14: state.partitions: found 0 (integer), allowed: 1 to 1000",
            ],
        ),
        (
            with("[[mirror]]", "[group]\nsession_timeout = 6\n[[mirror]]"),
            &["f:6:19: group.session_timeout: found 6 (integer), allowed: a duration"],
        ),
        (
            with("[destination]", "[destination]\nbroker_id = -2"),
            &[
                "f:3:13: destination.broker_id: found -2 (integer), allowed: the node.id of a broker",
            ],
        ),
        (
            with("[\"t\"]", "[\"a)|(b\"]"),
            &[
                "f:10:12: mirror.topics.include: found \"a)|(b\" (unopened group), allowed: a regular",
            ],
        ),
        (
            with("[\"t\"]", "[]"),
            &["f:10:11: mirror.topics.include: is an empty list"],
        ),
        (
            with("include", "exclude"),
            &["f:9:1: mirror.topics.include: is missing; it must be set, such as include = "],
        ),
        (
            with("name = \"m\"", ""),
            &["f:5:1: mirror.name: is missing; it must be set, such as name = "],
        ),
        (
            with("\"m\"", "\"\""),
            &["f:6:8: mirror.name: found \"\" (string), allowed: a text that is not empty"],
        ),
        (
            with("\"m\"", "\"..\""),
            &["f:6:8: mirror.name: found \"..\", allowed: 1 to 249 of the characters"],
        ),
        (
            with("\"m\"", "\"a b\""),
            &["mirror.name: found \"a b\", allowed: 1 to 249 of the characters"],
        ),
        (
            with("\"m\"", &format!("{:?}", "x".repeat(250))),
            &["allowed: 1 to 249 of the characters"],
        ),
        (
            "[destination]\nbootstrap_servers = [\"d:1\"]".to_owned(),
            &["f:1:1: mirror: no mirror is configured; "],
        ),
        (
            "mirror = []\n[destination]\nbootstrap_servers = [\"d:1\"]".to_owned(),
            &["f:1:10: mirror: no mirror is configured; "],
        ),
        (
            with("[destination]", "[limits]\nmemory = \"0\"\n[destination]"),
            &["f:3:10: limits.memory: found \"0\" (string), allowed: a size"],
        ),
        (
            with(
                "[destination]",
                "[limits]\nmemory = \"-1MiB\"\n[destination]",
            ),
            &["limits.memory: found \"-1MiB\""],
        ),
        (
            with(
                "[destination]",
                "[limits]\nmemory = \"2MiB\"\n[destination]",
            ),
            &[
                "f:3:10: limits.memory: 2097152 bytes are less than a mirror.fetch.max_bytes of 4194304",
            ],
        ),
        (
            with(
                "[destination]",
                "[http]\nbind = \"0.0.0.0:1\"\n[destination]",
            ),
            &["f:3:8: http.bind: 0.0.0.0:1 can be reached from other machines"],
        ),
        (
            with(
                "[destination]",
                "[listener]\nbind = \"10.0.0.1:9494\"\n[destination]",
            ),
            &[
                "f:3:8: listener.bind: 10.0.0.1:9494 can be reached from other machines and nobody has to log in, allowed: a \
                 loopback address, or this one together with insecure = true",
            ],
        ),
        (
            with(
                "[destination]",
                "[listener]\nadvertised = \"here\"\n[destination]",
            ),
            &["f:3:14: listener.advertised: found \"here\", allowed: host:port"],
        ),
        (
            with(
                "[destination]",
                "[listener]\nbind = \"127.0.0.1:9495\"\n[destination]",
            ),
            &["http.bind: 127.0.0.1:9495 is also the address of listener.bind"],
        ),
        (
            with(
                "[destination]",
                "[limits]\nconnections = 1\nrequest_max_bytes = \"1KiB\"\n[destination]",
            ),
            &[
                "f:3:15: limits.connections: found 1 (integer), allowed: a whole number from 2 to 65536",
                "f:4:21: limits.request_max_bytes: found 1024 bytes, allowed: from \"16KiB\" to \"100MiB\"",
            ],
        ),
        (
            with(
                "[destination]",
                "[http]\nbind = \"localhost\"\n[destination]",
            ),
            &["f:3:8: http.bind: found \"localhost\", allowed: an IP address with a port"],
        ),
        (
            with("[destination]", "[http]\ninsecure = \"yes\"\n[destination]"),
            &["f:3:12: http.insecure: found \"yes\" (string), allowed: true or false"],
        ),
        (
            with("[destination]", "[log]\nlevel = \"inof\"\n[destination]"),
            &["f:3:9: log.level: found \"inof\" (\"inof\" is no level), allowed: off"],
        ),
        (
            with("[destination]", "[log]\nformat = \"xml\"\n[destination]"),
            &["f:3:10: log.format: found \"xml\" (string), allowed: \"text\" or \"json\""],
        ),
        (
            with("[destination]", "log = 3\n[destination]"),
            &["f:2:7: log: found 3 (integer), allowed: a table"],
        ),
        (
            with("[[mirror]]", "[mirror]"),
            &[
                "f:5:1: mirror: found [mirror] (table), allowed: a list of tables, each under its own [[mirror]]",
            ],
        ),
        (
            with(
                "[mirror.source]",
                "fetch.max_wait = \"0s\"\n[mirror.source]",
            ),
            &["f:7:18: mirror.fetch.max_wait: found \"0s\" (string), allowed: a duration"],
        ),
        (
            with(
                "[mirror.source]",
                "fetch.max_wait = \"-1s\"\n[mirror.source]",
            ),
            &["mirror.fetch.max_wait: found \"-1s\" (string), allowed: a duration"],
        ),
        (
            with("[mirror.source]", "fetch.max_wait = 500\n[mirror.source]"),
            &["mirror.fetch.max_wait: found 500 (integer), allowed: a duration"],
        ),
        (
            with(
                "[mirror.source]",
                "fetch.max_wait = \"30s\"\n[mirror.source]",
            ),
            &["f:7:18: mirror.fetch.max_wait: 30s is not below destination.request_timeout (30s)"],
        ),
        (
            with(
                "[mirror.source]",
                "fetch.max_bytes = \"2GiB\"\n[mirror.source]",
            ),
            &[
                "mirror.fetch.max_bytes: found \"2GiB\" (string), allowed: a size in quotes from \"1B\" to below \"2GiB\"",
            ],
        ),
        (
            with(
                "[mirror.source]",
                "fetch.partition_max_bytes = \"17MiB\"\n[mirror.source]",
            ),
            &["mirror.fetch.partition_max_bytes: 17825792 bytes are more than max_bytes (4194304)"],
        ),
        (
            with(
                "[mirror.source]",
                "append.max_in_flight = 6\n[mirror.source]",
            ),
            &[
                "f:7:24: mirror.append.max_in_flight: found 6 (integer), allowed: a whole number from 1 to 5",
            ],
        ),
        (
            with(
                "[mirror.source]",
                "append.max_in_flight = 0\n[mirror.source]",
            ),
            &["mirror.append.max_in_flight: found 0 "],
        ),
        (
            with("[mirror.source]", "append.acks = 0\n[mirror.source]"),
            &["mirror.append.acks: found 0 (integer), allowed: 1 or \"all\""],
        ),
        (
            with("[mirror.source]", "append.acks = \"1\"\n[mirror.source]"),
            &["mirror.append.acks: found \"1\" (string), allowed: 1 or \"all\""],
        ),
        (
            with(
                "[mirror.source]",
                "policy.on_divergence = \"truncate\"\n[mirror.source]",
            ),
            &[
                "mirror.policy.on_divergence: found \"truncate\" (string), allowed: \"fail\" or \"recreate\"",
            ],
        ),
        (
            with(
                "[mirror.source]",
                "retry.initial = \"301s\"\n[mirror.source]",
            ),
            &["mirror.retry.max: 5m is below initial (5m 1s), allowed: at least that"],
        ),
        (
            with("include", "replication_factor = 0\ninclude"),
            &["f:10:22: mirror.topics.replication_factor: found 0, allowed: -1 "],
        ),
        (
            with("[mirror.source]", "source = 1\n[mirror.sourc]"),
            &[
                "f:7:10: mirror.source: found 1 (integer), allowed: a table",
                "f:8:9: mirror.sourc: unknown key; did you mean source?",
            ],
        ),
    ];
    for (text, wanted) in cases {
        let found = faults(text);
        assert_eq!(found.len(), wanted.len(), "{text}\n{found:#?}");
        for (line, part) in found.iter().zip(*wanted) {
            assert!(line.contains(part), "{text}\nfound  {line}\nwanted {part}");
        }
    }
}

#[test]
fn a_second_mirror_of_the_same_name_is_refused() {
    let second = GOOD.split_once("[[mirror]]").unwrap().1;
    let text = format!("{GOOD}[[mirror]]{second}");
    assert_eq!(
        faults(&text),
        ["f:12:8: mirror.name: \"m\" is the name of an earlier mirror, allowed: a name of its own"]
    );
    assert!(Config::parse("f", &text.replacen("\"m\"", "\"n\"", 1)).is_ok());
}

#[test]
fn addresses_and_levels_that_are_fine() {
    for (from, to) in [
        ("d:9092", "[::1]:9092"),
        ("d:9092", "kafka_1.example-2.org:65535"),
        ("[destination]", "[http]\nbind = \"[::1]:0\"\n[destination]"),
        (
            "[destination]",
            "[http]\nbind = \"0.0.0.0:1\"\ninsecure = true\n[destination]",
        ),
        (
            "[destination]",
            "[log]\nlevel = \"warn,truemirror::kafka=trace\"\n[destination]",
        ),
        (
            "[destination]",
            "[limits]\nmemory = 50331648\n[destination]",
        ),
        ("[mirror.source]", "append.acks = \"all\"\n[mirror.source]"),
    ] {
        let text = with(from, to);
        if let Err(errors) = Config::parse("f", &text) {
            panic!("{text}\n{errors}");
        }
    }
}

fn run(config: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_truemirror"))
        .args(["run", "--config"])
        .arg(config)
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

#[test]
fn the_binary_lists_all_faults_at_once_and_exits_with_78() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(
        b"[destination]
bootstrap_servers = [\"one\", \"s:9092\"]
client = \"x\"
request_timeout = \"0s\"
[http]
bind = \"10.0.0.1:80\"
[limits]
memory = \"lots\"
[[mirror]]
name = \"a/b\"
append.max_in_flight = 9
[mirror.source]
bootstrap_servers = [\"s:9092\"]
[mirror.topics]
include = [\"(\"]
",
    )
    .unwrap();
    let output = run(file.path());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78), "{stderr}");
    let keys: Vec<_> = stderr
        .lines()
        .map(|line| {
            let rest = line
                .strip_prefix(file.path().to_str().unwrap())
                .expect("the file's name");
            let mut parts = rest.splitn(5, ':');
            (
                parts.nth(1).unwrap().parse::<usize>().unwrap(),
                parts.nth(1).unwrap().trim().to_owned(),
            )
        })
        .collect();
    let wanted = [
        (2, "destination.bootstrap_servers"),
        (3, "destination.client"),
        (4, "destination.request_timeout"),
        (6, "http.bind"),
        (8, "limits.memory"),
        (10, "mirror.name"),
        (11, "mirror.append.max_in_flight"),
        (13, "mirror.source.bootstrap_servers"),
        (15, "mirror.topics.include"),
    ];
    assert_eq!(
        keys,
        wanted.map(|(line, key)| (line, key.to_owned())),
        "{stderr}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn a_file_that_cannot_be_read_is_a_bad_configuration() {
    let dir = tempfile::tempdir().unwrap();
    for (path, part) in [
        (
            dir.path().join("absent.toml"),
            "cannot be read: No such file",
        ),
        (dir.path().to_owned(), "cannot be read: Is a directory"),
        (PathBuf::from("/dev/zero"), "larger than 1 MiB"),
    ] {
        let output = run(&path);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{stderr}");
        assert!(
            stderr.contains(path.to_str().unwrap()) && stderr.contains(part),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
