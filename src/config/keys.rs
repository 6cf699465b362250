//! The keys of the file, table by table, with their defaults and the checks between them. Must not read the file itself.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use tracing_subscriber::EnvFilter;

use super::document::{Section, Text};
use super::{
    Acks, Append, Config, Connection, Destination, Fetch, Group, HostPort, Http, Limits, Listener,
    Log, LogFormat, Mirror, NamePatterns, Policy, Source, State, TopicFilter, Topics,
};
use crate::domain::recreate::OnDivergence;
use crate::domain::retry::RetryPolicy;

const SERVERS_EXAMPLE: &str = "[\"kafka-1.example.org:9092\"]";

/// Kafka's own lists of throttled replicas and what only one cluster can mean.
const CONFIG_EXCLUDE: [&str; 6] = [
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "min.insync.replicas",
    "unclean.leader.election.enable",
    "remote.*",
    "local.retention.*",
];

/// Reads every table. Where a fault was noted the value stands for nothing.
pub(super) fn read(root: Section<'_>) -> Config {
    let destination = read_destination(root.section("destination"));
    let listener = read_listener(root.section("listener"));
    let http = read_http(root.section("http"), &listener);
    let state = read_state(root.section("state"));
    let group = read_group(root.section("group"));
    let limits = root.section("limits");
    let memory_bytes = limits.memory("memory", 48 << 20);
    let connections = limits.integer(
        "connections",
        256,
        2..=65_536,
        "a whole number from 2 to 65536",
    );
    let request_max_bytes = read_request_max_bytes(&limits);
    let log = read_log(root.section("log"));
    let mut mirrors: Vec<Mirror> = Vec::new();
    let sections = root.sections("mirror");
    if !root.has("mirror") || (sections.is_empty() && root.is_empty_list("mirror")) {
        root.fault_at_value(
            "mirror",
            "no mirror is configured; there must be at least one table [[mirror]]",
        );
    }
    let mut largest_fetch_bytes = 0;
    for section in sections {
        let mirror = read_mirror(section, &destination, &mirrors);
        largest_fetch_bytes =
            largest_fetch_bytes.max(usize::try_from(mirror.fetch.max_bytes).unwrap_or(0));
        mirrors.push(mirror);
    }
    if memory_bytes < largest_fetch_bytes {
        let message = format!(
            "{memory_bytes} bytes are less than a mirror.fetch.max_bytes of {largest_fetch_bytes}, allowed: at least that, \
             since one answer must fit"
        );
        limits.fault_at_value("memory", &message);
    }
    limits.finish();
    root.finish();
    Config {
        destination,
        listener,
        http,
        state,
        group,
        limits: Limits {
            memory_bytes,
            connections: usize::try_from(connections).unwrap_or(2),
            request_max_bytes,
        },
        log,
        mirrors,
    }
}

fn read_destination(section: Section<'_>) -> Destination {
    let broker_id = section.integer(
        "broker_id",
        -1,
        0..=i64::from(i32::MAX),
        "the node.id of a broker, a whole number from 0",
    );
    let destination = Destination {
        broker_id: i32::try_from(broker_id).ok().filter(|id| *id >= 0),
        bootstrap_servers: read_servers(&section)
            .into_iter()
            .map(|(server, _)| server)
            .collect(),
        connection: Connection {
            client_id: section.text("client_id", "truemirror").text,
            request_timeout: section.duration("request_timeout", Duration::from_secs(30)),
            connect_timeout: section.duration("connect_timeout", Duration::from_secs(10)),
            socket_buffer_bytes: u32::try_from(section.size("socket_buffer", 1 << 20)).unwrap_or(0),
        },
    };
    section.finish();
    destination
}

/// Between a small call and Kafka's own `socket.request.max.bytes`.
fn read_request_max_bytes(limits: &Section<'_>) -> usize {
    const KEY: &str = "request_max_bytes";
    let found = limits.memory(KEY, 1 << 20);
    if !(16 << 10..=100 << 20).contains(&found) {
        let message = format!("found {found} bytes, allowed: from \"16KiB\" to \"100MiB\"");
        limits.fault_at_value(KEY, &message);
    }
    found
}

fn read_listener(section: Section<'_>) -> Listener {
    let insecure = section.flag("insecure", false);
    let (bind, _) = read_bind(&section, "127.0.0.1:9494", insecure);
    let advertised = section.optional_text("advertised").and_then(|text| {
        let parsed = HostPort::from_str(&text.text);
        parsed
            .map_err(|error| section.fault("advertised", text.at, &error.to_string()))
            .ok()
    });
    section.finish();
    Listener {
        bind,
        advertised,
        insecure,
    }
}

fn read_http(section: Section<'_>, listener: &Listener) -> Http {
    let insecure = section.flag("insecure", false);
    let (bind, at) = read_bind(&section, "127.0.0.1:9495", insecure);
    if bind.port() != 0 && bind == listener.bind {
        let message =
            format!("{bind} is also the address of listener.bind, allowed: one of its own");
        section.fault("bind", at, &message);
    }
    section.finish();
    Http { bind, insecure }
}

/// An address to listen on and its place in the file.
fn read_bind(section: &Section<'_>, default: &str, insecure: bool) -> (SocketAddr, usize) {
    let text = section.text("bind", default);
    let bind = text.text.parse::<SocketAddr>().unwrap_or_else(|_| {
        let message = format!(
            "found {:?}, allowed: an IP address with a port, such as {default:?}",
            text.text
        );
        section.fault("bind", text.at, &message);
        SocketAddr::from(([127, 0, 0, 1], 0))
    });
    if !bind.ip().is_loopback() && !insecure {
        let message = format!(
            "{bind} can be reached from other machines and nobody has to log in, allowed: a loopback address, or this one \
             together with insecure = true"
        );
        section.fault("bind", text.at, &message);
    }
    (bind, text.at)
}

fn read_state(section: Section<'_>) -> State {
    let topic = section.text("topic", "__mirror_state");
    if !is_topic_name(&topic.text) {
        let message = format!(
            "found {:?}, allowed: a topic name, 1 to 249 of the characters a-z A-Z 0-9 . _ -",
            topic.text
        );
        section.fault("topic", topic.at, &message);
    }
    let state = State {
        topic: topic.text,
        partitions: i32::try_from(section.integer("partitions", 50, 1..=1_000, "1 to 1000"))
            .unwrap_or(50),
        replication_factor: i16::try_from(section.integer(
            "replication_factor",
            3,
            1..=100,
            "1 to 100",
        ))
        .unwrap_or(3),
    };
    section.finish();
    state
}

fn read_group(section: Section<'_>) -> Group {
    let group = Group {
        id: section.text("id", "truemirror").text,
        member_id: section.optional_text("member_id").map(|text| text.text),
        session_timeout: section.duration("session_timeout", Duration::from_secs(10)),
    };
    section.finish();
    group
}

fn read_log(section: Section<'_>) -> Log {
    let level = section.text("level", "info");
    if let Err(reason) = check_level(&level.text) {
        let message = format!(
            "found {:?} ({reason}), allowed: off, error, warn, info, debug or trace, or directives such as \
             \"info,truemirror::kafka=debug\"",
            level.text
        );
        section.fault("level", level.at, &message);
    }
    let choices = [("\"text\"", LogFormat::Text), ("\"json\"", LogFormat::Json)];
    let format = section.choice("format", LogFormat::Text, &choices);
    section.finish();
    Log {
        level: level.text,
        format,
    }
}

/// In the syntax of RUST_LOG a word alone is a module, so that a mistyped level would log all of nothing: refused here.
fn check_level(level: &str) -> Result<(), String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    if !level.contains('[') {
        for word in level
            .split(',')
            .map(str::trim)
            .filter(|word| !word.contains('='))
        {
            if !LEVELS.contains(&word.to_ascii_lowercase().as_str()) {
                return Err(format!("{word:?} is no level"));
            }
        }
    }
    EnvFilter::try_new(level)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn read_mirror(section: Section<'_>, destination: &Destination, earlier: &[Mirror]) -> Mirror {
    let name = section.required_text("name", "\"eu-to-us\"");
    if let Some(name) = &name {
        check_name(&section, name, earlier);
    }
    let mirror = Mirror {
        name: name.map_or_else(String::new, |name| name.text),
        metadata_refresh_interval: section
            .duration("metadata_refresh_interval", Duration::from_secs(30)),
        source: read_source(section.section("source"), destination),
        topics: read_topics(section.section("topics")),
        fetch: read_fetch(
            section.section("fetch"),
            destination.connection.request_timeout,
        ),
        append: read_append(section.section("append")),
        policy: read_policy(section.section("policy")),
        retry: read_retry(section.section("retry")),
    };
    section.finish();
    mirror
}

const LONGEST_NAME: usize = 249;

/// The rule of topic names (Kafka's `Topic.validate`).
fn is_topic_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    (1..=LONGEST_NAME).contains(&text.len())
        && !matches!(text, "." | "..")
        && text.chars().all(plain)
}

/// A mirror's name keeps to the rule of topic names, since it stands in metrics, logs and topic records.
fn check_name(section: &Section<'_>, name: &Text, earlier: &[Mirror]) {
    let text = name.text.as_str();
    if !is_topic_name(text) {
        let message = format!(
            "found {text:?}, allowed: 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 . _ - but not \".\" or \"..\""
        );
        section.fault("name", name.at, &message);
    }
    if earlier.iter().any(|mirror| mirror.name == text) {
        section.fault(
            "name",
            name.at,
            &format!("{text:?} is the name of an earlier mirror, allowed: a name of its own"),
        );
    }
}

fn read_source(section: Section<'_>, destination: &Destination) -> Source {
    let servers = read_servers(&section);
    for (server, at) in &servers {
        if destination.bootstrap_servers.contains(server) {
            let message = format!(
                "{server} is also a bootstrap server of [destination], allowed: another cluster, since a cluster cannot \
                 mirror itself under the same topic names"
            );
            section.fault("bootstrap_servers", *at, &message);
        }
    }
    let source = Source {
        bootstrap_servers: servers.into_iter().map(|(server, _)| server).collect(),
        cluster_id: section.optional_text("cluster_id").map(|found| found.text),
    };
    section.finish();
    source
}

fn read_servers(section: &Section<'_>) -> Vec<(HostPort, usize)> {
    const KEY: &str = "bootstrap_servers";
    let mut servers = Vec::new();
    for text in section.required_texts(KEY, SERVERS_EXAMPLE) {
        match HostPort::from_str(&text.text) {
            Ok(server) => servers.push((server, text.at)),
            Err(error) => section.fault(KEY, text.at, &error.to_string()),
        }
    }
    servers
}

fn read_topics(section: Section<'_>) -> Topics {
    let include = section.required_texts("include", "[\"orders\", \"payments-.*\"]");
    let topics = Topics {
        filter: TopicFilter {
            include: read_patterns(&section, "include", include),
            exclude: read_patterns(&section, "exclude", section.texts("exclude", &["__.*"])),
        },
        config_exclude: read_patterns(
            &section,
            "config_exclude",
            section.texts("config_exclude", &CONFIG_EXCLUDE),
        ),
        replication_factor: read_replication_factor(&section),
    };
    section.finish();
    topics
}

fn read_replication_factor(section: &Section<'_>) -> i16 {
    const KEY: &str = "replication_factor";
    const ALLOWED: &str = "-1 (the destination's default) or a whole number from 1 to 32767";
    let found = section.integer(KEY, -1, -1..=i64::from(i16::MAX), ALLOWED);
    if found == 0 {
        section.fault_at_value(KEY, &format!("found 0, allowed: {ALLOWED}"));
    }
    i16::try_from(found).unwrap_or(-1)
}

fn read_patterns(section: &Section<'_>, key: &'static str, texts: Vec<Text>) -> NamePatterns {
    let mut patterns = NamePatterns::default();
    for text in texts {
        if let Err(reason) = patterns.push(&text.text) {
            let message = format!(
                "found {:?} ({reason}), allowed: a regular expression for whole names",
                text.text
            );
            section.fault(key, text.at, &message);
        }
    }
    patterns
}

fn read_fetch(section: Section<'_>, request_timeout: Duration) -> Fetch {
    let fetchers = section.integer(
        "fetchers_per_broker",
        1,
        1..=64,
        "a whole number from 1 to 64",
    );
    let fetch = Fetch {
        fetchers_per_broker: usize::try_from(fetchers).unwrap_or(1),
        max_bytes: section.size("max_bytes", 4 << 20),
        partition_max_bytes: section.size("partition_max_bytes", 1 << 20),
        min_bytes: section.size("min_bytes", 1),
        max_wait: section.duration("max_wait", Duration::from_millis(500)),
    };
    for (key, bytes) in [
        ("partition_max_bytes", fetch.partition_max_bytes),
        ("min_bytes", fetch.min_bytes),
    ] {
        if bytes > fetch.max_bytes {
            let message = format!(
                "{bytes} bytes are more than max_bytes ({}), allowed: at most that",
                fetch.max_bytes
            );
            section.fault_at_value(key, &message);
        }
    }
    if fetch.max_wait >= request_timeout {
        let message = format!(
            "{} is not below destination.request_timeout ({}), allowed: less, or an idle source would look dead",
            humantime::format_duration(fetch.max_wait),
            humantime::format_duration(request_timeout)
        );
        section.fault_at_value("max_wait", &message);
    }
    section.finish();
    fetch
}

fn read_append(section: Section<'_>) -> Append {
    let max_in_flight = section.integer("max_in_flight", 5, 1..=5, "a whole number from 1 to 5");
    let append = Append {
        acks: section.choice(
            "acks",
            Acks::Leader,
            &[("1", Acks::Leader), ("\"all\"", Acks::All)],
        ),
        max_in_flight: usize::try_from(max_in_flight).unwrap_or(1),
    };
    section.finish();
    append
}

fn read_policy(section: Section<'_>) -> Policy {
    let policy = Policy {
        on_divergence: section.choice(
            "on_divergence",
            OnDivergence::Fail,
            &[
                ("\"fail\"", OnDivergence::Fail),
                ("\"recreate\"", OnDivergence::Recreate),
            ],
        ),
    };
    section.finish();
    policy
}

fn read_retry(section: Section<'_>) -> RetryPolicy {
    let attempts = section.integer(
        "max_attempts",
        100,
        1..=1_000_000,
        "a whole number from 1 to 1000000",
    );
    let retry = RetryPolicy {
        initial: section.duration("initial", Duration::from_secs(1)),
        max: section.duration("max", Duration::from_secs(300)),
        max_attempts: u32::try_from(attempts).unwrap_or(1),
    };
    if retry.max < retry.initial {
        let message = format!(
            "{} is below initial ({}), allowed: at least that",
            humantime::format_duration(retry.max),
            humantime::format_duration(retry.initial)
        );
        section.fault_at_value("max", &message);
    }
    section.finish();
    retry
}
