//! Decisions as functions of values. Must not know sockets, tasks, clocks, randomness or globals.

pub mod align;
pub mod append;
pub mod assign;
pub mod desired;
pub mod lag;
pub mod plan;
pub mod recreate;
pub mod retry;
pub mod route;
pub mod shard;
pub mod state;
pub mod state_log;
pub mod status;
pub mod types;
