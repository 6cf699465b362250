//! What surrounds the records: topics and their configs. Must not touch record data.

mod topic_step;
pub mod topics;
