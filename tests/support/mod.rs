//! What tests share. Must not hold assertions of single tests.

pub(crate) mod fake_broker;
