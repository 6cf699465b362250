//! truemirror: mirrors topics of a source Kafka cluster to a destination cluster with identical offsets.

pub mod app;
pub mod cli;
pub mod config;
pub mod domain;
pub mod http;
pub mod kafka;
pub mod metrics;
pub mod sync;
pub mod wire;
