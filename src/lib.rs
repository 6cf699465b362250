//! truemirror: mirrors topics of a source Kafka cluster to a destination cluster with identical offsets.

pub mod domain;
pub mod kafka;
pub mod wire;
