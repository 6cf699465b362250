//! Tests on real Kafka brokers, in one process: most of them share two clusters and wait most of the time, so a few run at once. Must not
//! hold a test of how soon something is done; those are in `alone`.

#![cfg(test)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::future_not_send,
    reason = "test code: a broken assumption is a failed test, and its figures are printed"
)]

#[path = "../support/mod.rs"]
mod support;

mod copy;
mod data;
mod group;
mod harness;
mod operations;
mod protocol;
mod recreate;
mod reload;
mod state_cases;
mod states;
mod topics;
mod verify;
mod watch;
