//! How long a member may still decide: a clock that does not stop while the machine sleeps, and one number. Must not know
//! how contact is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since the machine was started, the time that it slept included (CLOCK_BOOTTIME): a process that was frozen, or
/// whose machine was suspended, must see that time has gone by.
pub fn boot_time() -> Duration {
    // The system's answer is never negative.
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// No contact, or a membership that is known to have ended.
const CLOSED: u64 = 0;

/// The right to decide, which lasts for two thirds of the session timeout from the *sending* of the last request that the
/// group's coordinator answered well. The coordinator lets a session end one whole timeout after it *received* a request,
/// so whoever counts from sending has stopped, with a third to spare, before another is given its work.
///
/// Cheap to clone and to ask; clones are handles on the same right.
#[derive(Clone, Debug)]
pub struct Lease {
    /// When the last request was sent that was answered well: boot time in nanoseconds.
    contact: Arc<AtomicU64>,
    limit: Duration,
    clock: fn() -> Duration,
}

impl Lease {
    pub(super) fn new(session_timeout: Duration) -> Self {
        Self {
            contact: Arc::new(AtomicU64::new(CLOSED)),
            limit: session_timeout * 2 / 3,
            clock: boot_time,
        }
    }

    /// True while this process may decide: fill, trim, stop, change states. To be asked right before the act, and again
    /// before the next. Copying data needs no permission, it is safe by sequence.
    pub fn may_decide(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the right lasts if nothing is heard any more; zero if there is none.
    pub fn remaining(&self) -> Duration {
        let Some(contact) = self.last_contact() else {
            return Duration::ZERO;
        };
        self.limit
            .saturating_sub((self.clock)().saturating_sub(contact))
    }

    /// When ([`boot_time`]) the last request was sent that was answered well; `None` outside the group.
    pub fn last_contact(&self) -> Option<Duration> {
        match self.contact.load(Ordering::Acquire) {
            CLOSED => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// How long the right lasts after a contact: two thirds of the session timeout.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The coordinator has given us our work in answer to a request sent then.
    pub(super) fn open(&self, sent: Duration) {
        self.contact.fetch_max(nanos(sent), Ordering::AcqRel);
    }

    /// The coordinator still knows us, in answer to a request sent then. Does not open what is closed.
    pub(super) fn renew(&self, sent: Duration) {
        // Only the task of the member writes, so nothing happens between the two.
        if self.contact.load(Ordering::Acquire) != CLOSED {
            self.open(sent);
        }
    }

    /// Our work may be somebody else's.
    pub(super) fn close(&self) {
        self.contact.store(CLOSED, Ordering::Release);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_right_ends_two_thirds_of_the_session_after_sending() {
        static NOW: AtomicU64 = AtomicU64::new(100);
        let lease = Lease {
            clock: || Duration::from_secs(NOW.load(Ordering::SeqCst)),
            ..Lease::new(9 * SECOND)
        };
        let handle = lease.clone();
        assert!(!handle.may_decide(), "before the first contact");
        lease.renew(100 * SECOND);
        assert!(!handle.may_decide(), "a heartbeat alone opens nothing");
        lease.open(100 * SECOND);
        for (now, remaining) in [(100, 6), (103, 3), (105, 1), (106, 0), (1_000, 0)] {
            NOW.store(now, Ordering::SeqCst);
            assert_eq!(handle.remaining(), remaining * SECOND, "at {now}");
            assert_eq!(handle.may_decide(), remaining > 0);
        }
        NOW.store(105, Ordering::SeqCst);
        lease.renew(104 * SECOND);
        assert_eq!(handle.remaining(), 5 * SECOND);
        // An older request whose answer was slow.
        lease.renew(101 * SECOND);
        assert_eq!(handle.last_contact(), Some(104 * SECOND));
        lease.close();
        assert!(!handle.may_decide() && handle.last_contact().is_none());
        lease.renew(105 * SECOND);
        assert!(!handle.may_decide());
    }

    #[test]
    fn boot_time_runs_forward() {
        let before = boot_time();
        assert!(before > Duration::ZERO);
        assert!(boot_time() >= before);
    }
}
