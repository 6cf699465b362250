//! Tests on real Kafka brokers, in one process: most of them share two clusters and wait most of the time, so a few run at once. Must not
//! hold a test of how soon something is done; those are in `alone`.

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

#[cfg(test)]
#[path = "../support/mod.rs"]
mod support;

#[cfg(test)]
mod copy;
#[cfg(test)]
mod data;
#[cfg(test)]
mod group;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod operations;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod recreate;
#[cfg(test)]
mod reload;
#[cfg(test)]
mod state_cases;
#[cfg(test)]
mod states;
#[cfg(test)]
mod topics;
#[cfg(test)]
mod verify;
#[cfg(test)]
mod watch;
