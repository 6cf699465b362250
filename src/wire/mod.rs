//! Bytes to values and back. Must not know sockets or tasks, and never sizes an allocation from a number it read.

pub mod api;
pub mod batch;
pub mod bounded;
pub mod consumer_protocol;
pub mod encode;
pub mod error_code;
pub mod frame;
pub mod mirror_rpc;
pub mod records;
pub mod schema;
pub mod state_record;
