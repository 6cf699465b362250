//! What surrounds the records: topics and their configs. Must not touch record data.

pub mod topics;
