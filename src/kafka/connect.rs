//! From a host name to a byte stream: names are resolved anew at every attempt and every address is tried. Must not know
//! the Kafka protocol, keep connections or decide when to try again.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::connection::RequestError;
use crate::domain::types::BrokerId;

/// Whatever carries bytes both ways: TCP, TLS over it, an in-memory pipe.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for T {}

/// A stream of a kind that only its connector knows.
pub type BoxStream = Box<dyn ByteStream>;

/// Where a broker listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Host name or literal address.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Text that is not `host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not host:port")]
pub struct BadAddress {
    /// The text.
    pub text: String,
}

impl std::str::FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress {
            text: text.to_owned(),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        let bare = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        // A bare IPv6 address would lose its last group to the port.
        if host.is_empty() || (bare.is_none() && host.contains(':')) {
            return Err(bad());
        }
        Ok(Self {
            host: host.into(),
            port,
        })
    }
}

/// No connection to a broker.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host name has no answer.
    #[error("cannot resolve {host}")]
    Resolve {
        /// The name.
        host: Arc<str>,
        /// What the resolver says.
        #[source]
        source: Arc<io::Error>,
    },
    /// The host name has no addresses.
    #[error("{host} has no addresses")]
    NoAddress {
        /// The name.
        host: Arc<str>,
    },
    /// TCP refused.
    #[error("cannot connect to {address}")]
    Tcp {
        /// Name and address.
        address: String,
        /// What the system says.
        #[source]
        source: Arc<io::Error>,
    },
    /// Nothing came back.
    #[error("{address} did not answer within {after:?}")]
    TimedOut {
        /// Name and address.
        address: String,
        /// The time limit.
        after: Duration,
    },
    /// The stream stands, but the broker did not get as far as naming its versions.
    #[error("{address} accepts connections, but does not answer as a Kafka broker")]
    Setup {
        /// Where.
        address: Address,
        /// The first request's fate.
        #[source]
        source: RequestError,
    },
    /// No metadata names this broker.
    #[error("broker {id} is not among the brokers that the cluster names")]
    UnknownBroker {
        /// The broker.
        id: BrokerId,
    },
    /// Nobody could be reached, neither a known broker nor a bootstrap server.
    #[error("none of {tried} brokers and bootstrap servers could be reached")]
    Nobody {
        /// How many were tried.
        tried: usize,
        /// The last one's fault.
        #[source]
        last: Option<Box<Self>>,
    },
    /// The client was closed.
    #[error("the client of this cluster is closed")]
    Closed,
}

/// Makes streams to addresses. TLS, proxies and tests put their own in.
pub trait Connect: Send + Sync + 'static {
    /// A new stream to `address`, within time limits of its own.
    fn connect<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<BoxStream, ConnectError>>;
}

/// Answers a host name and a port with addresses.
pub type Resolve =
    Arc<dyn Fn(Arc<str>, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Plain TCP.
#[derive(Clone)]
pub struct TcpConnector {
    /// Time for each address of a name, and for the resolver.
    pub connect_timeout: Duration,
    /// Send and receive buffer of the socket in bytes; `None` leaves both to the system, which then adapts them.
    pub socket_buffer_bytes: Option<u32>,
    /// Turns names into addresses.
    pub resolve: Resolve,
}

impl fmt::Debug for TcpConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpConnector")
            .field("connect_timeout", &self.connect_timeout)
            .field("socket_buffer_bytes", &self.socket_buffer_bytes)
            .finish_non_exhaustive()
    }
}

impl TcpConnector {
    /// Asks the system for addresses.
    pub fn new(connect_timeout: Duration, socket_buffer_bytes: Option<u32>) -> Self {
        Self {
            connect_timeout,
            socket_buffer_bytes,
            resolve: Arc::new(|host, port| {
                Box::pin(async move {
                    let found = tokio::net::lookup_host((&*host, port)).await?;
                    Ok(found.collect())
                })
            }),
        }
    }

    async fn tcp(&self, to: SocketAddr) -> io::Result<tokio::net::TcpStream> {
        let socket = if to.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        if let Some(bytes) = self.socket_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
            socket.set_recv_buffer_size(bytes)?;
        }
        let stream = socket.connect(to).await?;
        // Requests are whole frames in one write: waiting for more to send gains nothing.
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Connect for TcpConnector {
    fn connect<'a>(
        &'a self,
        address: &'a Address,
    ) -> BoxFuture<'a, Result<BoxStream, ConnectError>> {
        Box::pin(async move {
            let after = self.connect_timeout;
            let host = &address.host;
            let resolving = (self.resolve)(Arc::clone(host), address.port);
            let found = timeout(after, resolving)
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
                .map_err(|source| ConnectError::Resolve {
                    host: Arc::clone(host),
                    source: Arc::new(source),
                })?;
            let mut last = ConnectError::NoAddress {
                host: Arc::clone(host),
            };
            for to in found {
                let name = || format!("{host} ({to})");
                last = match timeout(after, self.tcp(to)).await {
                    Ok(Ok(stream)) => {
                        let stream: BoxStream = Box::new(stream);
                        return Ok(stream);
                    }
                    Ok(Err(source)) => ConnectError::Tcp {
                        address: name(),
                        source: Arc::new(source),
                    },
                    Err(_) => ConnectError::TimedOut {
                        address: name(),
                        after,
                    },
                };
            }
            Err(last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        let good = [
            ("a:1", "a", 1, "a:1"),
            ("[::1]:9092", "::1", 9092, "[::1]:9092"),
        ];
        for (text, host, port, shown) in good {
            let address: Address = text.parse().unwrap();
            assert_eq!((&*address.host, address.port), (host, port));
            assert_eq!(address.to_string(), shown);
        }
        for text in ["", "a", "a:", ":1", "a:x", "a:65536", "::1:9092"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
