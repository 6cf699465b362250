//! Where other configurations come from: the file, when SIGHUP comes or when it has changed. Must not put one in force.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::wall_clock_ms;
use crate::config::{Config, ConfigErrors};
use crate::metrics::Metrics;

/// The file is looked at this often. It is polled, since what is mounted from elsewhere tells nobody of its changes.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// By what a changed file is known. A file that is exchanged through a link, as Kubernetes does it, is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    length: u64,
    modified: Option<SystemTime>,
}

/// The configuration's file, watched.
pub(super) struct Reload {
    pub(super) path: PathBuf,
    pub(super) hangup: Signal,
    pub(super) metrics: Metrics,
    pub(super) configs: mpsc::Sender<Config>,
}

impl Reload {
    /// Sends every other configuration that the file has, until the stop. One with faults is said and counted, and changes nothing.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        self.succeeded();
        let watch = self.watch();
        tokio::select! {
            () = stop.cancelled() => {}
            () = watch => {}
        }
    }

    async fn watch(&mut self) {
        let mut looks = interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = self.stamp().await;
        let mut last = known;
        loop {
            tokio::select! {
                Some(()) = self.hangup.recv() => {
                    info!(signal = "SIGHUP", "reading the configuration again");
                    known = self.stamp().await;
                    last = known;
                }
                _ = looks.tick() => {
                    let now = self.stamp().await;
                    // One that is being written is let alone until it stays as it is.
                    let settled = now == last;
                    last = now;
                    if now == known || !settled {
                        continue;
                    }
                    known = now;
                }
            }
            match self.load().await {
                Ok(config) => {
                    self.succeeded();
                    if self.configs.send(config).await.is_err() {
                        return;
                    }
                }
                Err(faults) => {
                    self.metrics.config_last_reload_successful.set(0);
                    for fault in faults.faults {
                        error!(%fault, "configuration not reloaded, the last one stays in force");
                    }
                }
            }
        }
    }

    #[expect(
        clippy::cast_precision_loss,
        clippy::as_conversions,
        reason = "milliseconds since 1970 have 41 bits"
    )]
    fn succeeded(&self) {
        self.metrics.config_last_reload_successful.set(1);
        self.metrics
            .config_last_reload_success_timestamp_seconds
            .set(wall_clock_ms() as f64 / 1_000.0);
    }

    /// `None` while there is no such file.
    async fn stamp(&self) -> Option<Stamp> {
        let path = self.path.clone();
        let found = spawn_blocking(move || fs::metadata(path))
            .await
            .ok()?
            .ok()?;
        Some(Stamp {
            inode: found.ino(),
            length: found.len(),
            modified: found.modified().ok(),
        })
    }

    async fn load(&self) -> Result<Config, ConfigErrors> {
        let path = self.path.clone();
        spawn_blocking(move || Config::load(&path))
            .await
            .unwrap_or_else(|broken| {
                Err(ConfigErrors::whole_file(
                    &self.path.display().to_string(),
                    format!("cannot be read: {broken}"),
                ))
            })
    }
}
