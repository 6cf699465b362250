//! When to try again, and when to give up. Must not wait or draw random numbers itself.

use std::time::Duration;

/// How often and how fast an error of a partition itself is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The wait before the first retry.
    pub initial: Duration,
    /// No wait is longer, before jitter.
    pub max: Duration,
    /// After so many attempts in a row the partition stays FAILED until somebody acts.
    pub max_attempts: u32,
}

impl RetryPolicy {
    /// The wait before retry number `attempt` (from 0): `initial` doubled each time up to `max`, then spread by 20 % to both
    /// sides so that partitions that failed together do not come back together. `jitter` runs from 0 (shortest) to 1.
    pub fn delay(&self, attempt: u32, jitter: f64) -> Duration {
        let factor = 1_u32.checked_shl(attempt.min(31)).unwrap_or(u32::MAX);
        let wait = self.initial.saturating_mul(factor).min(self.max);
        let jitter = if jitter.is_finite() {
            jitter.clamp(0.0, 1.0)
        } else {
            0.5
        };
        Duration::try_from_secs_f64(wait.as_secs_f64() * (0.8 + 0.4 * jitter)).unwrap_or(wait)
    }

    /// True if `attempt` retries (the next one's number, from 0) were all there are.
    pub fn exhausted(&self, attempt: u32) -> bool {
        attempt >= self.max_attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        initial: Duration::from_secs(1),
        max: Duration::from_secs(300),
        max_attempts: 100,
    };

    #[test]
    fn waits_double_up_to_the_maximum() {
        for (attempt, seconds) in [
            (0, 1),
            (1, 2),
            (2, 4),
            (8, 256),
            (9, 300),
            (31, 300),
            (32, 300),
            (u32::MAX, 300),
        ] {
            assert_eq!(
                POLICY.delay(attempt, 0.5),
                Duration::from_secs(seconds),
                "attempt {attempt}"
            );
        }
    }

    #[test]
    fn jitter_spreads_by_a_fifth_and_never_further() {
        for (jitter, millis) in [
            (0.0, 800),
            (1.0, 1200),
            (-7.0, 800),
            (9.0, 1200),
            (f64::NAN, 1000),
            (f64::INFINITY, 1000),
        ] {
            assert_eq!(
                POLICY.delay(0, jitter),
                Duration::from_millis(millis),
                "jitter {jitter}"
            );
        }
    }

    #[test]
    fn huge_values_do_not_overflow() {
        let policy = RetryPolicy {
            initial: Duration::MAX,
            max: Duration::MAX,
            max_attempts: 1,
        };
        assert!(policy.delay(u32::MAX, 1.0) >= Duration::from_secs(u64::MAX / 2));
    }

    #[test]
    fn attempts_run_out() {
        assert!(!POLICY.exhausted(99));
        assert!(POLICY.exhausted(100));
        assert!(
            RetryPolicy {
                max_attempts: 0,
                ..POLICY
            }
            .exhausted(0)
        );
    }
}
