//! Why a connection is closed by us, counted and said in one line, and not in a thousand. Must not close anything.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::metrics::Metrics;
use crate::wire::bounded::DecodeError;
use crate::wire::frame::FrameLengthError;

/// What a peer did that its connection does not outlive.
#[derive(Debug, thiserror::Error)]
pub(super) enum Rejection {
    /// A frame length below zero.
    #[error("a frame length of {length} is no length")]
    NegativeLength {
        /// What the peer said.
        length: i32,
    },
    /// A frame length above the limit.
    #[error(transparent)]
    Oversized(#[from] FrameLengthError),
    /// A TLS handshake.
    #[error(
        "this looks like TLS, and the listener speaks the Kafka protocol without it; set security.protocol=PLAINTEXT at the client"
    )]
    Tls,
    /// An HTTP request.
    #[error(
        "this looks like HTTP, and the listener speaks the Kafka protocol; metrics and status are at the address of http.bind"
    )]
    Http,
    /// A header that is none.
    #[error("the request header does not read: {0}")]
    Header(DecodeError),
    /// A call that is not offered.
    #[error(
        "api key {api_key} in version {version} is not offered here; this is no Kafka broker, clients belong to the clusters themselves"
    )]
    UnknownApi {
        /// The key.
        api_key: i16,
        /// The version.
        version: i16,
    },
    /// A version that is not offered.
    #[error("{api} ({api_key}) is not offered in version {version}")]
    UnsupportedVersion {
        /// The call.
        api: &'static str,
        /// Its key.
        api_key: i16,
        /// The version.
        version: i16,
    },
    /// A body that is none.
    #[error("the body of {api} ({api_key}) version {version} does not read: {source}")]
    Body {
        /// The call.
        api: &'static str,
        /// Its key.
        api_key: i16,
        /// The version.
        version: i16,
        /// Why.
        source: DecodeError,
    },
    /// A frame that takes too long to arrive.
    #[error("a request was not there within {after:?}, {got} bytes had come")]
    SlowSender {
        /// The limit.
        after: Duration,
        /// Bytes that came.
        got: usize,
    },
    /// An answer that takes too long to be taken.
    #[error("an answer was not read within {after:?}")]
    SlowReader {
        /// The limit.
        after: Duration,
    },
    /// More connections than limits.connections.
    #[error("there are {limit} connections already (limits.connections)")]
    Connections {
        /// The limit.
        limit: usize,
    },
    /// More connections than one address may have.
    #[error(
        "this address has {limit} connections already, half of limits.connections is left to others"
    )]
    ConnectionsOfAddress {
        /// The limit.
        limit: usize,
    },
}

impl Rejection {
    /// The value of the label `reason`.
    pub(super) const fn label(&self) -> &'static str {
        match self {
            Self::NegativeLength { .. } => "negative_length",
            Self::Oversized(_) => "oversized",
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Header(_) => "header",
            Self::UnknownApi { .. } => "unknown_api",
            Self::UnsupportedVersion { .. } => "unsupported_version",
            Self::Body { .. } => "body",
            Self::SlowSender { .. } => "slow_sender",
            Self::SlowReader { .. } => "slow_reader",
            Self::Connections { .. } => "connections",
            Self::ConnectionsOfAddress { .. } => "connections_of_address",
        }
    }

    /// Key and version of the call, where it came so far.
    const fn call(&self) -> Option<(i16, i16)> {
        match self {
            Self::UnknownApi { api_key, version }
            | Self::UnsupportedVersion {
                api_key, version, ..
            }
            | Self::Body {
                api_key, version, ..
            } => Some((*api_key, *version)),
            _ => None,
        }
    }

    /// What a length field above the limit really is.
    pub(super) fn of_length(prefix: [u8; 4], error: FrameLengthError) -> Self {
        const METHODS: [&[u8; 4]; 8] = [
            b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI ",
        ];
        match prefix {
            // Record type handshake, major version 3 (RFC 8446, 5.1).
            [0x16, 0x03, 0..=4, _] => Self::Tls,
            _ if METHODS.contains(&&prefix) => Self::Http,
            _ if error.length < 0 => Self::NegativeLength {
                length: error.length,
            },
            _ => Self::Oversized(error),
        }
    }
}

/// Says what was rejected, and remembers what was said.
#[derive(Debug)]
pub(super) struct Complaints {
    metrics: Metrics,
    told: Mutex<HashMap<Kind, Told>>,
}

/// Rejections with the same kind are identical to a reader of logs.
type Kind = (IpAddr, &'static str, Option<i16>);

#[derive(Debug)]
struct Told {
    at: Instant,
    untold: u64,
}

impl Complaints {
    /// Identical rejections are told once in this time.
    const PAUSE: Duration = Duration::from_secs(60);

    /// Different ones are told at most so often in that time, whoever invents addresses and api keys.
    const MOST: usize = 256;

    pub(super) fn new(metrics: Metrics) -> Self {
        Self {
            metrics,
            told: Mutex::default(),
        }
    }

    /// Counts, and says it if the same was not said just before.
    pub(super) fn reject(&self, peer: SocketAddr, rejection: &Rejection) {
        let reason = rejection.label();
        self.metrics
            .listener_rejected
            .with_label_values(&[reason])
            .inc();
        let call = rejection.call();
        let kind = (peer.ip(), reason, call.map(|(api_key, _)| api_key));
        let Some(before) = self.tell(kind, Instant::now()) else {
            return;
        };
        warn!(
            peer = %peer,
            reason,
            api_key = call.map(|(api_key, _)| api_key),
            version = call.map(|(_, version)| version),
            untold = before,
            "listener closed a connection: {rejection}"
        );
    }

    /// How many were not told since the last time, if this one should be told.
    fn tell(&self, kind: Kind, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = |told: &Told| now.duration_since(told.at) < Self::PAUSE;
        if let Some(last) = told.get_mut(&kind) {
            if fresh(last) {
                last.untold = last.untold.saturating_add(1);
                return None;
            }
            last.at = now;
            return Some(std::mem::take(&mut last.untold));
        }
        if told.len() >= Self::MOST {
            told.retain(|_, told| fresh(told));
            if told.len() >= Self::MOST {
                return None;
            }
        }
        told.insert(kind, Told { at: now, untold: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(address: u32, key: i16) -> Kind {
        (IpAddr::V4(address.into()), "unknown_api", Some(key))
    }

    #[test]
    fn the_same_is_told_once_a_minute_and_counted_meanwhile() {
        let complaints = Complaints::new(Metrics::new("0").unwrap());
        let start = Instant::now();
        assert_eq!(complaints.tell(kind(1, 3), start), Some(0));
        for _ in 0..5 {
            assert_eq!(complaints.tell(kind(1, 3), start), None);
        }
        assert_eq!(complaints.tell(kind(1, 4), start), Some(0));
        assert_eq!(complaints.tell(kind(2, 3), start), Some(0));
        let later = start + Complaints::PAUSE;
        assert_eq!(complaints.tell(kind(1, 3), later), Some(5));
        assert_eq!(complaints.tell(kind(1, 3), later), None);
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let complaints = Complaints::new(Metrics::new("0").unwrap());
        let start = Instant::now();
        let told = |now| {
            let tell = |address| complaints.tell(kind(address, 3), now);
            (0..10_000).filter_map(tell).count()
        };
        assert_eq!(told(start), Complaints::MOST);
        let later = start + Complaints::PAUSE;
        assert_eq!(told(later), Complaints::MOST);
        assert!(complaints.told.lock().unwrap().len() <= Complaints::MOST);
    }

    #[test]
    fn lengths_that_are_something_else_are_recognised() {
        for (prefix, label) in [
            ([0xff, 0xff, 0xff, 0xff], "negative_length"),
            ([0x7f, 0xff, 0xff, 0xff], "oversized"),
            ([0x16, 0x03, 0x01, 0x00], "tls"),
            ([0x16, 0x09, 0x01, 0x00], "oversized"),
            (*b"GET ", "http"),
            (*b"POST", "http"),
            (*b"PRI ", "http"),
        ] {
            let length = i32::from_be_bytes(prefix);
            let error = FrameLengthError { length, max: 10 };
            assert_eq!(
                Rejection::of_length(prefix, error).label(),
                label,
                "{prefix:?}"
            );
        }
    }
}
