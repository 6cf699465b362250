//! The configuration file: every key, every default, every check, all faults at once. Must not open connections or ports.
//!
//! The readers of the other modules get their own part of [`Config`], already parsed and checked; nothing is checked twice.

mod changes;
mod document;
mod filter;
mod keys;

use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

pub use self::changes::Changes;
use self::document::Document;
pub use self::document::{ConfigErrors, Fault};
pub use self::filter::{NamePatterns, TopicFilter};
use crate::domain::recreate::OnDivergence;
use crate::domain::retry::RetryPolicy;

/// The whole configuration of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The cluster that is mirrored to.
    pub destination: Destination,
    /// The endpoint for other processes of this kind and for operators.
    pub listener: Listener,
    /// The endpoint for people and Prometheus.
    pub http: Http,
    /// Where the state of mirrors is kept.
    pub state: State,
    /// How the work is shared with other processes.
    pub group: Group,
    /// What the process may use.
    pub limits: Limits,
    /// What is logged.
    pub log: Log,
    /// At least one mirror, their names all different.
    pub mirrors: Vec<Mirror>,
}

/// `[destination]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where to ask for the cluster's brokers; at least one.
    pub bootstrap_servers: Vec<HostPort>,
    /// The broker that this process stands beside: it gets that broker's partitions first.
    pub broker_id: Option<i32>,
    /// How connections are made, those to sources included.
    pub connection: Connection,
}

/// The keys of `[destination]` that hold for every connection of the process, to the destination and to sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The name that brokers see in logs and quotas.
    pub client_id: String,
    /// How long an answer may take.
    pub request_timeout: Duration,
    /// How long a connection may take until it is usable.
    pub connect_timeout: Duration,
    /// Size of the socket's send and receive buffers, each.
    pub socket_buffer_bytes: u32,
}

/// `[listener]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Where to listen; a loopback address unless `insecure`.
    pub bind: SocketAddr,
    /// Where the others find this process; absent: its broker's host, or that of `bind`, with the port of `bind`.
    pub advertised: Option<HostPort>,
    /// Allows another address than loopback although nobody has to log in.
    pub insecure: bool,
}

/// `[http]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Http {
    /// Where to listen; a loopback address unless `insecure`.
    pub bind: SocketAddr,
    /// Allows another address than loopback although nobody has to log in.
    pub insecure: bool,
}

/// `[state]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The topic on the destination that keeps it.
    pub topic: String,
    /// How many partitions it has; never changes after the first start.
    pub partitions: i32,
    /// How many replicas each has, fewer where the cluster has fewer brokers.
    pub replication_factor: i16,
}

/// `[group]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group on the destination whose members share the work.
    pub id: String,
    /// The name of this process among them; absent: the broker's id, else the host's name.
    pub member_id: Option<String>,
    /// A process that the group does not hear of for so long is replaced.
    pub session_timeout: Duration,
}

/// `[limits]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of records held between fetch and acknowledged append, all mirrors together.
    pub memory_bytes: usize,
    /// Connections to the listener at the same time.
    pub connections: usize,
    /// The largest request to the listener, in bytes.
    pub request_max_bytes: usize,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Directives in the syntax of RUST_LOG.
    pub level: String,
    /// How lines look.
    pub format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[[mirror]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The mirror's name: 1 to 249 of the characters that topic names may have.
    pub name: String,
    /// How often topics, leaders and configs of both clusters are read anew.
    pub metadata_refresh_interval: Duration,
    /// `[mirror.source]`
    pub source: Source,
    /// `[mirror.topics]`
    pub topics: Topics,
    /// `[mirror.fetch]`
    pub fetch: Fetch,
    /// `[mirror.append]`
    pub append: Append,
    /// `[mirror.policy]`
    pub policy: Policy,
    /// `[mirror.retry]`
    pub retry: RetryPolicy,
}

/// `[mirror.source]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where to ask for the cluster's brokers; at least one, none of them the destination's.
    pub bootstrap_servers: Vec<HostPort>,
    /// The id that the source must have; absent: any.
    pub cluster_id: Option<String>,
}

/// `[mirror.topics]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    /// Which topics are mirrored.
    pub filter: TopicFilter,
    /// Topic configs that are not copied.
    pub config_exclude: NamePatterns,
    /// Of topics that are created at the destination; -1: the destination's default.
    pub replication_factor: i16,
}

/// `[mirror.fetch]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// Connections that fetch from one source broker.
    pub fetchers_per_broker: usize,
    /// The most bytes one answer should have.
    pub max_bytes: i32,
    /// The most bytes of one partition in it, never above `max_bytes`.
    pub partition_max_bytes: i32,
    /// An answer waits for so many bytes, up to `max_wait`.
    pub min_bytes: i32,
    /// How long an answer may wait for `min_bytes`; below the request timeout.
    pub max_wait: Duration,
}

/// `[mirror.append]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    /// Who must have a batch before the leader acknowledges it.
    pub acks: Acks,
    /// Produce requests in flight per partition, 1 to 5: a broker remembers five batches per producer.
    pub max_in_flight: usize,
}

/// `[mirror.policy]`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What happens to a destination topic that is not its source's.
    pub on_divergence: OnDivergence,
}

/// The acknowledgement that Produce asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// 1: the leader.
    Leader,
    /// -1, written "all": every replica in sync.
    All,
}

impl Acks {
    /// The number in a Produce request.
    pub const fn number(self) -> i16 {
        match self {
            Self::Leader => 1,
            Self::All => -1,
        }
    }
}

/// A host name or address with a port; an IPv6 address is written in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    /// The host, without brackets.
    pub host: String,
    /// The port, never 0.
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A text that is no `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "found {found:?}, allowed: host:port, such as \"kafka-1.example.org:9092\" or \"[::1]:9092\""
)]
pub struct HostPortError {
    /// The text.
    pub found: String,
}

impl FromStr for HostPort {
    type Err = HostPortError;

    fn from_str(text: &str) -> Result<Self, HostPortError> {
        let bad = || HostPortError {
            found: text.to_owned(),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port
            .parse::<u16>()
            .ok()
            .filter(|port| *port > 0)
            .ok_or_else(bad)?;
        let host = match host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            Some(inner) if matches!(inner.parse::<IpAddr>(), Ok(IpAddr::V6(_))) => inner,
            Some(_) => return Err(bad()),
            None => host,
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_name = !host.is_empty() && host.chars().all(plain);
        if is_name
            || host
                .parse::<IpAddr>()
                .is_ok_and(|ip| ip.is_ipv6() && text.starts_with('['))
        {
            Ok(Self {
                host: host.to_ascii_lowercase(),
                port,
            })
        } else {
            Err(bad())
        }
    }
}

impl Mirror {
    /// The same for one mirror, as its record in the state topic has it: never 0, which says that it is not known.
    pub fn fingerprint(&self) -> i64 {
        fingerprint(self).max(1).cast_signed()
    }
}

fn fingerprint(of: &impl fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{of:?}").hash(&mut hasher);
    hasher.finish()
}

impl Config {
    /// A number for what the mirrors are to do: processes that share work should have the same. Holds for one version of the
    /// program.
    pub fn fingerprint(&self) -> u64 {
        fingerprint(&self.mirrors)
    }

    /// Reads and checks the file at `path`. Its errors are every fault of the file at once.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        // No configuration is larger; a wrong path such as /dev/zero must end.
        const LARGEST: u64 = 1 << 20;
        let file = path.display().to_string();
        let mut text = String::new();
        let read =
            File::open(path).and_then(|opened| opened.take(LARGEST + 1).read_to_string(&mut text));
        match read {
            Ok(_) if u64::try_from(text.len()).is_ok_and(|length| length <= LARGEST) => {
                Self::parse(&file, &text)
            }
            Ok(_) => Err(ConfigErrors::whole_file(
                &file,
                "larger than 1 MiB, this is no configuration".to_owned(),
            )),
            Err(error) => Err(ConfigErrors::whole_file(
                &file,
                format!("cannot be read: {error}"),
            )),
        }
    }

    /// Checks `text`; `file` is its name in messages.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigErrors> {
        let (document, table) = Document::parse(file, text)?;
        let config = keys::read(document.root(table.get_ref()));
        let faults = document.into_faults();
        if faults.is_empty() {
            Ok(config)
        } else {
            Err(ConfigErrors { faults })
        }
    }
}
