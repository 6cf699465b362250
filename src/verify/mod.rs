//! Compares two clusters record by record. Must not change anything on either.
