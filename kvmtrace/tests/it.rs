//! All tests are one program, which is linked once. A file of tests is a module here.

#[path = "../../postproc/tests/support/parsed.rs"]
mod parsed;
#[path = "../../postproc/tests/support/shown.rs"]
mod shown;

mod commands;
mod docs;
