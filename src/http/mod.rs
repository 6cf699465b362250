//! The HTTP endpoint for people and Prometheus. Must not change anything.
