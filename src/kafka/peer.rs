//! Connections to the listeners of other sidecars, by address, made when they are first wanted and anew when they broke. Must not
//! know what is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::connect::{Address, Connect, ConnectError, TcpConnector};
use super::connection::{Connection, ConnectionOptions, RequestError};
use crate::wire::schema::Request;

/// A listener on the other side of the world has answered a SYN long before.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a listener has no answer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It does not answer.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// Another question to it makes the connection, and takes too long.
    #[error("no connection to {address} within {} s", waited.as_secs_f64())]
    Waited {
        /// Who.
        address: Address,
        /// How long.
        waited: Duration,
    },
}

/// A connection to the listener at `address`, within `patience`; its task is one of `tasks`.
///
/// # Errors
/// If nobody listens there, or somebody who does not speak Kafka's protocol.
pub async fn connect(
    address: &Address,
    client_id: Arc<str>,
    patience: Duration,
    tasks: &TaskTracker,
) -> Result<Connection, ConnectError> {
    let patience = patience.min(CONNECT_TIMEOUT);
    let stream = TcpConnector::new(patience, None).connect(address).await?;
    let options = ConnectionOptions {
        client_id,
        ..ConnectionOptions::default()
    };
    Connection::establish(stream, &address.to_string(), options, tasks, patience)
        .await
        .map_err(|source| ConnectError::Setup {
            address: address.clone(),
            source,
        })
}

type Slot = Arc<tokio::sync::Mutex<Option<Connection>>>;

/// One connection to each listener that has been asked.
#[derive(Debug, Default)]
pub struct Peers {
    slots: Mutex<HashMap<Address, Slot>>,
    tasks: TaskTracker,
}

impl Peers {
    /// Asks the listener at `address`.
    ///
    /// # Errors
    /// See [`PeerError`].
    pub async fn call<R: Request>(
        &self,
        address: &Address,
        request: &R,
        patience: Duration,
    ) -> Result<R::Response, PeerError> {
        let connection = timeout(patience, self.connection(address, patience))
            .await
            .map_err(|_| PeerError::Waited {
                address: address.clone(),
                waited: patience,
            })??;
        Ok(connection.call(request, patience).await?)
    }

    async fn connection(
        &self,
        address: &Address,
        patience: Duration,
    ) -> Result<Connection, ConnectError> {
        let slot = {
            let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(address.clone()).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some(open) = slot.as_ref().filter(|open| open.is_usable()) {
            return Ok(open.clone());
        }
        let made = connect(address, "truemirror-peer".into(), patience, &self.tasks).await?;
        *slot = Some(made.clone());
        Ok(made)
    }
}
