//! The Kafka messages that truemirror speaks, one file per family of calls. Must not do I/O.

pub mod api_versions;
pub mod configs;
pub mod delete_records;
pub mod describe_cluster;
pub mod fetch;
pub mod group_descriptions;
pub mod groups;
pub mod leader_epoch;
pub mod list_offsets;
pub mod metadata;
pub mod produce;
pub mod producers;
pub mod topics;
pub mod txn_markers;

#[cfg(test)]
mod oracle;
