//! The commands. Must not hold logic that the daemon needs.
