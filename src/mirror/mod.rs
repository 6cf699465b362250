//! The data path: fetch from the source, append to the destination. Must not know HTTP or the command line.
