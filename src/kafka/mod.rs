//! The outbound Kafka client: connections, leaders, calls. Must not decide anything about mirroring.

pub mod admin;
pub mod append;
pub mod backoff;
pub mod cluster;
pub mod connect;
pub mod connection;
pub mod contact;
mod driver;
pub mod fetch_session;
pub mod fetcher;
pub mod group;
pub mod leaders;
pub mod offsets;
pub mod peer;
mod pool;
pub mod read_error;
pub mod request_error;
pub mod tail;
pub mod visible;
pub mod words;
