//! Questions to the daemon's status JSON, and how large a test is to be.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::daemon::{Daemon, series};
use super::producer::Load;

/// The small number, or the full one with `TRUEMIRROR_TEST_SCALE=full`.
pub fn scaled<T>(small: T, full: T) -> T {
    if std::env::var("TRUEMIRROR_TEST_SCALE").is_ok_and(|scale| scale == "full") {
        full
    } else {
        small
    }
}

/// All partitions of the first mirror.
pub fn partitions(status: &Value) -> &[Value] {
    status["mirrors"][0]["partitions"]
        .as_array()
        .map_or(&[], Vec::as_slice)
}

/// One partition of the first mirror.
pub fn partition<'v>(status: &'v Value, topic: &str, partition: i32) -> Option<&'v Value> {
    partitions(status)
        .iter()
        .find(|p| p["topic"] == topic && p["partition"] == partition)
}

/// True if the partition is in this state.
pub fn is_in(status: &Value, topic: &str, index: i32, state: &str) -> bool {
    partition(status, topic, index).is_some_and(|p| p["state"] == state)
}

/// The reason that a partition gives, empty if none.
pub fn reason(status: &Value, topic: &str, index: i32) -> String {
    partition(status, topic, index)
        .and_then(|p| p["reason"].as_str())
        .unwrap_or_default()
        .to_owned()
}

/// How many partitions are in this state.
pub fn count(status: &Value, state: &str) -> usize {
    partitions(status)
        .iter()
        .filter(|p| p["state"] == state)
        .count()
}

/// Waits until a partition is FAILED for a reason that holds all of `words`, and returns the reason.
pub async fn wait_failed(
    daemon: &mut Daemon,
    topic: &str,
    index: i32,
    words: &[&str],
    deadline: Duration,
) -> String {
    let what = format!("{topic}-{index} FAILED with {words:?}");
    let status = daemon
        .wait_until(&what, deadline, |status| {
            let reason = reason(status, topic, index);
            is_in(status, topic, index, "FAILED") && words.iter().all(|word| reason.contains(word))
        })
        .await;
    reason(&status, topic, index)
}

/// Waits until a partition is MIRRORING and has no lag.
pub async fn wait_mirrored(daemon: &mut Daemon, topic: &str, index: i32, deadline: Duration) {
    let what = format!("{topic}-{index} MIRRORING without lag");
    daemon
        .wait_until(&what, deadline, |status| {
            is_in(status, topic, index, "MIRRORING")
                && partition(status, topic, index).is_some_and(|p| p["lag_records"] == 0)
        })
        .await;
}

/// How long partitions of one topic stood still while records came in.
#[derive(Debug, Clone)]
pub struct Progress {
    topic: String,
    delivered: u64,
    last: BTreeMap<i32, (f64, u32)>,
    /// The longest pause of each partition so far.
    pub longest: BTreeMap<i32, Duration>,
}

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(200);

impl Progress {
    /// Begins with partitions `0..partitions`.
    pub fn of(topic: &str, partitions: i32) -> Self {
        Self {
            topic: topic.into(),
            delivered: 0,
            last: (0..partitions).map(|p| (p, (-1.0, 0))).collect(),
            longest: (0..partitions).map(|p| (p, Duration::ZERO)).collect(),
        }
    }

    /// Looks five times a second until it is dropped. A look counts only if the load went on since the one before, and a
    /// pause is as long as the looks in it: a machine that is short of processors slows all of them down, and is not what
    /// is tested.
    pub async fn watch(&mut self, daemon: &mut Daemon, load: &Load) {
        loop {
            let text = daemon.metrics().await.unwrap();
            let delivered = load.delivered();
            let counts = delivered > self.delivered;
            self.delivered = delivered;
            for (partition, (value, looks)) in &mut self.last {
                let number = partition.to_string();
                let labels = [("topic", self.topic.as_str()), ("partition", &number)];
                let found = series(&text, "truemirror_records_mirrored_total", &labels);
                if found.first().is_some_and(|found| found > value) {
                    (*value, *looks) = (found[0], 0);
                } else if counts {
                    *looks += 1;
                }
                let pause = self.longest.get_mut(partition).unwrap();
                *pause = (*pause).max(LOOK * *looks);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}
