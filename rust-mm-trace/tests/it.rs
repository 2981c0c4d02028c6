//! The tests are one program: it is linked once, and all of them share the threads. A file of tests is
//! a module here: `cargo test -p rust-mm-trace --test it evms::` runs those of one file.

mod census;
mod evms;
mod filter;
mod holes;
mod in_flight;
mod pack;
mod regions;
mod ring;
mod tally;
mod tickets;
mod tickets_alone;
mod tickets_loom;
mod tickets_random;
mod waits;
