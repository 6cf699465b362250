//! What integration tests stand on: real Kafka clusters, a proxy that spoils connections, producers, an independent
//! checker, and the daemon as a process. Nothing here uses the product's own code: a fault in it must not hide itself.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stderr,
    clippy::future_not_send,
    reason = "test code, of which each test binary uses a part: a broken assumption is a failed test"
)]

pub mod checker;
pub mod client;
pub mod daemon;
pub mod fake_broker;
pub mod kafka;
pub mod nodes;
pub mod operate;
pub mod pairs;
pub mod process;
pub mod producer;
pub mod proxy;
pub mod raw;
pub mod segments;
pub mod status;
pub mod steps;
pub mod stillness;

use std::time::Duration;

use tokio::time::Instant;

/// Asks `question` every 50 ms until it answers `Some`; panics with `what` and the last refusal when `deadline` has
/// passed. Only for outside processes, which cannot tell us when they are ready.
pub async fn poll_until<T, F>(what: &str, deadline: Duration, mut question: F) -> T
where
    F: AsyncFnMut() -> Result<T, String>,
{
    let end = Instant::now() + deadline;
    loop {
        match question().await {
            Ok(answer) => return answer,
            Err(refusal) if Instant::now() >= end => {
                panic!("{what}: not within {deadline:?}; last: {refusal}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
