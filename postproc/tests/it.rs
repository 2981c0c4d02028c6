//! Nearly all tests of postproc are one program: it is linked once, and all of them share the threads.
//!
//! A file of tests is a module here. `cargo test -p postproc --test it docs::` runs those of one file.
//! A test whose whole process must be its own is a program of its own, listed in Cargo.toml.

#[path = "support/first_form.rs"]
mod first_form;
#[path = "support/shown.rs"]
mod shown;
mod support;

mod advise;
mod bands;
mod book;
mod command;
mod compare;
mod damage;
mod damon;
mod dataset;
mod docs;
mod exports;
mod fill;
mod filter;
mod fixtures;
mod format_reader;
mod freed;
mod gallery;
mod huge;
mod imports;
mod inputs;
mod left_out;
mod libcachesim;
mod limits;
mod messages;
mod packed;
mod parquet;
mod parts;
mod perfetto;
mod pieces;
mod places;
mod policies;
mod properties;
mod recover;
mod reduce;
mod regions;
mod report;
mod rotated;
mod sampled;
mod sets;
mod shortened;
mod signals;
mod streams;
mod stretches;
mod targets;
mod windows;
