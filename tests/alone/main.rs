//! Tests on real Kafka brokers that measure how soon records flow again, or load the machine: one at a time. Must not share clusters.

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

mod hosts;
mod isolation;
mod kills;
mod sidecars;
mod stops;
mod storm;
