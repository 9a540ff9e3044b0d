//! The embedded store: FoundationDB's transactions in one process, on one file.

mod atomic;
