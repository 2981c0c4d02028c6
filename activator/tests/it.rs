//! The tests that share a program, which is linked once. A file of tests is a module here. `run`, which has
//! a harness of its own, is another program.

#[path = "../../postproc/tests/support/parsed.rs"]
mod parsed;
#[path = "../../postproc/tests/support/shown.rs"]
mod shown;

mod binary;
mod docs;
