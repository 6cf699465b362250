//! Whether a cluster answers at all, said once when it stops and once when it is back. Must not ask it anything.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::cluster::Side;

/// What is known of one cluster's health; shared by all who talk to it.
#[derive(Debug)]
pub struct Contact {
    mirror: String,
    side: Side,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    last_answer: Option<Instant>,
    error: Option<String>,
}

/// A snapshot of [`Contact`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContactView {
    /// True if the cluster answered the last time it was asked as a whole.
    pub reachable: bool,
    /// Time since it last answered; `None` before the first answer.
    pub since_last_answer: Option<Duration>,
    /// Why it cannot be reached.
    pub error: Option<String>,
}

impl Contact {
    /// Nothing heard yet. `mirror` is for the log.
    pub fn new(mirror: &str, side: Side) -> Self {
        Self {
            mirror: mirror.to_owned(),
            side,
            seen: Mutex::default(),
        }
    }

    /// Some broker of the cluster answered.
    pub fn answered(&self) {
        let was = {
            let mut seen = self.seen();
            seen.last_answer = Some(Instant::now());
            seen.error.take()
        };
        if was.is_some() {
            info!(mirror = %self.mirror, side = %self.side, "cluster answers again");
        }
    }

    /// No broker of the cluster could be reached. Said once until it answers again.
    pub fn failed(&self, error: &(dyn std::error::Error + 'static)) {
        let words = chain(error).to_string();
        let first = {
            let mut seen = self.seen();
            seen.error.replace(words.clone()).is_none()
        };
        if first {
            warn!(
                mirror = %self.mirror,
                side = %self.side,
                error = %words,
                "cluster cannot be reached, trying until it can"
            );
        }
    }

    /// What is known now.
    pub fn view(&self) -> ContactView {
        let seen = self.seen();
        ContactView {
            reachable: seen.error.is_none() && seen.last_answer.is_some(),
            since_last_answer: seen.last_answer.map(|at| at.elapsed()),
            error: seen.error.clone(),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error with all its sources, for one log field.
pub fn chain<'a>(error: &'a (dyn std::error::Error + 'static)) -> impl fmt::Display + 'a {
    Chain(error)
}

struct Chain<'a>(&'a (dyn std::error::Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}
