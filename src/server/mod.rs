//! The listener for peers and operators: Kafka's protocol with the mirror calls of KIP-1279. Must not know what a call does,
//! which is a [`Service`]'s.
//!
//! It is no Kafka broker. Clients that take it for one see in its first answer that nothing they need is offered, and their next
//! request closes the connection.

mod changes;
mod connection;
mod dispatch;
mod frames;
mod handlers;
mod rejection;
mod service;
mod show;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::connection::Connection;
use self::dispatch::Dispatch;
pub use self::handlers::{
    ConfiguredMirror, MembersSource, MirrorService, MirrorsSource, StatusSource,
};
use self::rejection::{Complaints, Rejection};
pub use self::service::Service;
use crate::config::Limits;
use crate::metrics::Metrics;

/// The bounds of the listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerOptions {
    /// Connections at the same time; one address gets at most half of them. A further one is closed at once.
    pub connections: usize,
    /// The largest request frame in bytes, and the bytes of requests of one connection that are worked on at the same time.
    pub request_max_bytes: usize,
    /// Requests of one connection that are worked on at the same time; further ones are not read.
    pub max_in_flight: usize,
    /// From the first byte of a request to its last, and from the connection to the first request.
    pub frame_timeout: Duration,
    /// Silence between two requests.
    pub idle_timeout: Duration,
    /// From a request to its answer; then the answer is REQUEST_TIMED_OUT.
    pub answer_timeout: Duration,
    /// From an answer to its last byte.
    pub write_timeout: Duration,
    /// How long a connection that we end is read over, and how long answers may take that are worked on at the end of all.
    pub linger: Duration,
}

impl ListenerOptions {
    /// What the configuration says, and the deadlines, which it does not: the silence is Kafka's `connections.max.idle.ms`.
    pub const fn new(limits: &Limits) -> Self {
        Self {
            connections: limits.connections,
            request_max_bytes: limits.request_max_bytes,
            max_in_flight: 32,
            frame_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            answer_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            linger: Duration::from_millis(500),
        }
    }
}

/// Serves `service` on `listener` until `stop`; then requests that are worked on may finish for a moment.
///
/// # Cancel safety
/// Dropping the future closes the listener and all connections at once.
pub async fn serve<S: Service>(
    listener: TcpListener,
    service: S,
    metrics: Metrics,
    options: ListenerOptions,
    stop: CancellationToken,
) {
    match listener.local_addr() {
        Ok(addr) => info!(addr = %addr, "listener ready for peers and operators"),
        Err(error) => warn!(%error, "listener on an unknown address"),
    }
    let options = Arc::new(options);
    let complaints = Arc::new(Complaints::new(metrics.clone()));
    let places = Places::new(options.connections, metrics.clone());
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors, mostly: connections that end give some back.
                warn!(%error, "listener cannot accept a connection");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = sleep(ACCEPT_PAUSE) => continue,
                }
            }
        };
        let place = match places.take(peer.ip()) {
            Ok(place) => place,
            Err(rejection) => {
                complaints.reject(peer, &rejection);
                continue;
            }
        };
        // Answers are whole frames in one write: waiting for more to send gains nothing.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(peer = %peer, %error, "peer is gone before it was served");
            continue;
        }
        let connection = Connection {
            peer,
            dispatch: Dispatch {
                service: service.clone(),
                metrics: metrics.clone(),
                peer,
                answer_timeout: options.answer_timeout,
            },
            options: Arc::clone(&options),
            complaints: Arc::clone(&complaints),
            stop: stop.clone(),
        };
        connections.spawn(async move {
            connection.serve(stream).await;
            drop(place);
        });
    }
    drop(listener);
    let drained = timeout(DRAIN, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        debug!(
            connections = connections.len(),
            "listener connections closed without waiting longer"
        );
    }
}

const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const DRAIN: Duration = Duration::from_secs(2);

/// Which addresses have how many connections.
struct Places {
    limit: usize,
    limit_of_address: usize,
    metrics: Metrics,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Places {
    fn new(limit: usize, metrics: Metrics) -> Self {
        Self {
            limit,
            limit_of_address: limit.div_ceil(2),
            metrics,
            taken: Arc::default(),
        }
    }

    /// A place for one connection from `address`; it is free again when it is dropped.
    fn take(&self, address: IpAddr) -> Result<Place, Rejection> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = taken.values().sum();
        if all >= self.limit {
            return Err(Rejection::Connections { limit: self.limit });
        }
        let of_address = taken.entry(address).or_default();
        if *of_address >= self.limit_of_address {
            let limit = self.limit_of_address;
            return Err(Rejection::ConnectionsOfAddress { limit });
        }
        *of_address = of_address.saturating_add(1);
        self.metrics.listener_connections.inc();
        Ok(Place {
            address,
            metrics: self.metrics.clone(),
            taken: Arc::clone(&self.taken),
        })
    }
}

struct Place {
    address: IpAddr,
    metrics: Metrics,
    taken: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.address).finish()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let left = taken
            .get(&self.address)
            .map_or(0, |count| count.saturating_sub(1));
        if left == 0 {
            taken.remove(&self.address);
        } else {
            taken.insert(self.address, left);
        }
        self.metrics.listener_connections.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_half_of_the_places_to_others() {
        let places = Places::new(5, Metrics::new("0").unwrap());
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut taken: Vec<Place> = (0..3).map(|_| places.take(one).unwrap()).collect();
        assert_eq!(
            places.take(one).unwrap_err().label(),
            "connections_of_address"
        );
        taken.extend((0..2).map(|_| places.take(other).unwrap()));
        assert_eq!(places.take(other).unwrap_err().label(), "connections");
        assert_eq!(places.metrics.listener_connections.get(), 5);
        taken.clear();
        assert!(places.take(one).is_ok());
        assert!(places.taken.lock().unwrap().is_empty());
        assert_eq!(places.metrics.listener_connections.get(), 0);
    }
}
