//! The Kafka messages that truemirror speaks, one file per family of calls. Must not do I/O.
