//! How long to wait before another try, as a function of values. Must not wait, or draw its own random numbers.

use std::time::Duration;

/// Doubling pauses between a first and a longest one, each cut by up to half at random so that many callers that failed
/// together do not come back together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub cap: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(50),
            cap: Duration::from_secs(2),
        }
    }
}

impl Backoff {
    /// The pause after `failures` failures in a row; `random` is in [0, 1).
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else {
            return Duration::ZERO;
        };
        let full = 2_u32
            .checked_pow(doublings)
            .and_then(|factor| self.first.checked_mul(factor))
            .map_or(self.cap, |pause| pause.min(self.cap));
        full.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_cap_and_lose_at_most_half() {
        let backoff = Backoff::default();
        for (failures, full_millis) in [
            (0, 0),
            (1, 50),
            (2, 100),
            (3, 200),
            (6, 1600),
            (7, 2000),
            (u32::MAX, 2000),
        ] {
            let full = Duration::from_millis(full_millis);
            assert_eq!(backoff.pause(failures, 0.0), full);
            assert_eq!(backoff.pause(failures, 1.0), full / 2);
        }
    }
}
