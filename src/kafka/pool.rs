//! Connections by broker and lane, made when they are first wanted and made again when they broke, with growing pauses.
//! Must not know metadata or which broker is worth asking.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;
use tracing::debug;

use super::backoff::Backoff;
use super::connect::{Address, Connect, ConnectError};
use super::connection::{Connection, ConnectionOptions};
use crate::domain::types::BrokerId;

/// What a connection is for. A broker works off one connection in order, so a long poll or a Produce that waits for
/// replicas holds up whatever is behind it: different work goes over different connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Metadata, configs, offsets.
    Control,
    /// The long polls of one fetcher.
    Fetch(u16),
    /// Appends of one lane of the data path.
    Produce(u16),
    /// Control batches, and the end offsets that belong to them.
    Markers,
    /// Reads that compare logs.
    Compare,
    /// Appends to the state log, and the questions that belong to them.
    State,
    /// The long poll that follows the state log.
    StateTail,
    /// Joining a group, which waits for its other members.
    Group,
    /// Showing the coordinator of a group that we live, also while we join.
    Heartbeat,
}

/// Whose connection it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// A broker that metadata names.
    Broker(BrokerId, Lane),
    /// The bootstrap server of this position.
    Bootstrap(usize, Lane),
}

#[derive(Debug)]
pub(super) struct PoolOptions {
    pub(super) connection: ConnectionOptions,
    pub(super) setup_timeout: Duration,
    pub(super) backoff: Backoff,
}

/// One place for one connection.
#[derive(Default)]
struct Slot {
    open: Mutex<Option<(Address, Connection)>>,
    /// Attempts that ended; a caller that waited for another's attempt takes its result.
    attempts: AtomicU64,
    /// Whoever holds it makes the attempt.
    dialing: tokio::sync::Mutex<Dialing>,
}

#[derive(Default)]
struct Dialing {
    address: Option<Address>,
    failures: u32,
    not_before: Option<Instant>,
    last: Option<ConnectError>,
}

impl Slot {
    fn open(&self) -> MutexGuard<'_, Option<(Address, Connection)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, if it can be used.
    fn usable(&self) -> Option<Connection> {
        let open = self.open();
        let (_, connection) = open.as_ref()?;
        connection.is_usable().then(|| connection.clone())
    }

    /// Closes a connection that leads somewhere else than `address`.
    fn close_unless_at(&self, address: &Address) {
        if let Some((_, connection)) = self.open().take_if(|(at, _)| at != address) {
            debug!(peer = connection.peer(), %address, "broker has moved, connection closed");
            connection.close();
        }
    }
}

pub(super) struct Pool {
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
    connector: Arc<dyn Connect>,
    options: PoolOptions,
    tasks: TaskTracker,
}

impl Pool {
    pub(super) fn new(
        connector: Arc<dyn Connect>,
        options: PoolOptions,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            slots: Mutex::default(),
            connector,
            options,
            tasks,
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<Key, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of `key`, if it stands.
    pub(super) fn open(&self, key: Key) -> Option<Connection> {
        let slot = self.slots().get(&key).map(Arc::clone)?;
        slot.usable()
    }

    /// The connection of `key`, made if need be. Callers at the same time share one attempt; a caller that comes after
    /// a failure first waits out the pause.
    pub(super) async fn connection(
        &self,
        key: Key,
        address: &Address,
    ) -> Result<Connection, ConnectError> {
        let slot = Arc::clone(self.slots().entry(key).or_default());
        slot.close_unless_at(address);
        if let Some(connection) = slot.usable() {
            return Ok(connection);
        }
        let seen = slot.attempts.load(Ordering::Acquire);
        let mut dialing = slot.dialing.lock().await;
        if let Some(connection) = slot.usable() {
            return Ok(connection);
        }
        if dialing.address.as_ref() != Some(address) {
            *dialing = Dialing {
                address: Some(address.clone()),
                ..Dialing::default()
            };
        }
        if slot.attempts.load(Ordering::Acquire) != seen
            && let Some(last) = &dialing.last
        {
            return Err(last.clone());
        }
        if let Some(not_before) = dialing.not_before {
            sleep_until(not_before).await;
        }
        let dialed = self.dial(address).await;
        match &dialed {
            Ok(connection) => {
                *slot.open() = Some((address.clone(), connection.clone()));
                dialing.failures = 0;
                dialing.not_before = None;
                dialing.last = None;
            }
            Err(error) => {
                dialing.failures = dialing.failures.saturating_add(1);
                let pause = self.options.backoff.pause(dialing.failures, rand::random());
                dialing.not_before = Some(Instant::now() + pause);
                dialing.last = Some(error.clone());
                debug!(%address, failures = dialing.failures, ?pause, %error, "cannot connect");
            }
        }
        slot.attempts.fetch_add(1, Ordering::Release);
        dialed
    }

    async fn dial(&self, address: &Address) -> Result<Connection, ConnectError> {
        if self.tasks.is_closed() {
            return Err(ConnectError::Closed);
        }
        let stream = self.connector.connect(address).await?;
        Connection::establish(
            stream,
            &address.to_string(),
            self.options.connection.clone(),
            &self.tasks,
            self.options.setup_timeout,
        )
        .await
        .map_err(|source| ConnectError::Setup {
            address: address.clone(),
            source,
        })
    }

    /// Closes connections to brokers that listen somewhere else by now: what listens at the old address may be another
    /// broker.
    pub(super) fn close_moved(&self, address_of: impl Fn(BrokerId) -> Option<Address>) {
        for (key, slot) in self.slots().iter() {
            if let Key::Broker(id, _) = key
                && let Some(address) = address_of(*id)
            {
                slot.close_unless_at(&address);
            }
        }
    }

    /// Closes every connection.
    pub(super) fn close(&self) {
        for (_, slot) in self.slots().drain() {
            if let Some((_, connection)) = slot.open().take() {
                connection.close();
            }
        }
    }
}
