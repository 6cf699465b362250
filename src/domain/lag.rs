//! How long the destination has been behind its source, also while records flow without a pause. Must not read a clock.
//!
//! A destination that follows a busy source is hardly ever equal to it at the moment when both are looked at. So what the source had
//! at one look is remembered, and once the destination has that much, it was up to date at the time of that look.

/// The last time at which the source held nothing that the destination does not hold by now. `T` is a point in time.
///
/// Memory: a time, and an offset with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpToDate<T> {
    at: T,
    /// What the source had decided, exclusive, and when.
    waits_for: Option<(i64, T)>,
}

impl<T: Copy + Ord> UpToDate<T> {
    /// Nothing is known before `now`.
    pub fn new(now: T) -> Self {
        Self {
            at: now,
            waits_for: None,
        }
    }

    /// The answer so far. A lag counted from it is never too short; it is too long by the time between two looks at most.
    pub fn at(&self) -> T {
        self.at
    }

    /// Looks at both: the source was known to have decided everything below `source_last_stable_offset` at `heard_at`, and the
    /// destination has everything below `destination_high_watermark` now.
    pub fn look(
        &mut self,
        heard_at: T,
        source_last_stable_offset: i64,
        destination_high_watermark: i64,
    ) {
        let has = |offset: i64| destination_high_watermark >= offset;
        if has(source_last_stable_offset) {
            self.at = self.at.max(heard_at);
            self.waits_for = None;
            return;
        }
        match self.waits_for {
            Some((offset, _)) if !has(offset) => {}
            arrived => {
                if let Some((_, heard_at)) = arrived {
                    self.at = self.at.max(heard_at);
                }
                self.waits_for = Some((source_last_stable_offset, heard_at));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_is_as_old_as_what_has_not_arrived() {
        // When, the source's last stable offset, the destination's high watermark, and since when it is not up to date.
        let looks = [
            (1, 10, 10, 1),
            // Idle.
            (2, 10, 10, 2),
            // It flows, never equal, one second behind.
            (3, 20, 15, 2),
            (4, 30, 25, 3),
            (5, 40, 35, 4),
            // The destination stands still: what came at 5 is missing.
            (6, 50, 39, 4),
            (9, 90, 39, 4),
            // It has what was there at 5, not yet what was there at 10.
            (10, 95, 70, 5),
            (11, 99, 94, 5),
            (12, 99, 95, 10),
            (13, 99, 99, 13),
            // Nothing was heard of the source since.
            (13, 99, 99, 13),
            // It came back with less: what it has now counts.
            (14, 120, 99, 13),
            (15, 99, 99, 15),
        ];
        let mut lag = UpToDate::new(0);
        for (now, source, destination, since) in looks {
            lag.look(now, source, destination);
            assert_eq!(lag.at(), since, "at {now}");
        }
    }

    #[test]
    fn news_that_are_old_do_not_make_it_younger() {
        let mut lag = UpToDate::new(5);
        lag.look(3, 10, 10);
        assert_eq!(lag.at(), 5);
    }

    proptest::proptest! {
        #[test]
        fn it_is_never_too_short(steps in proptest::collection::vec((0_i64..20, 0_i64..20), 1..60)) {
            let mut lag = UpToDate::new(0_usize);
            // What the source had at each time.
            let mut had = vec![0_i64];
            let (mut source, mut destination) = (0_i64, 0_i64);
            for (step, (grows, copied)) in steps.into_iter().enumerate() {
                source += grows;
                destination = source.min(destination + copied);
                had.push(source);
                lag.look(step + 1, source, destination);
                proptest::prop_assert!(had[lag.at()] <= destination);
            }
        }
    }
}
