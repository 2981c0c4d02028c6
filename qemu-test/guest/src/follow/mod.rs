//! Tracers of other programs that need nothing of this project's kernel: `watch-pages` runs an unmodified
//! program under one of them, and writes which page was used when.
//!
//! A tracer follows the program, and all that the program starts, by ptrace. It knows the mappings of each
//! address space, because it sees each call that changes them. So it can take away the right to access a
//! page, and learn of the next access ([`Way`]).
//!
//! The parts: [`maps`] and [`recent`] say what is mapped, and what is accessible. [`calls`] says which memory
//! a system call is about. [`task`] makes a stopped task execute a call for the tracer. [`protect`] and
//! [`rwp`] are the two techniques, and [`follower`] has what both have in common. [`report`] is the file.

pub mod calls;
pub mod follower;
pub mod maps;
pub mod protect;
pub mod recent;
pub mod report;
pub mod rwp;
pub mod task;

use std::io::{Error, Result};

/// How accesses are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// mprotect() takes the right to access a page, and the tracer sees the SIGSEGV of the next access. In
    /// each address space, so many pages are accessible at a time: those that were accessed last.
    Mprotect(usize),
    /// The same with UFFDIO_RWPROTECT, and with the messages of a userfaultfd. It takes memory of no file.
    Rwp(usize),
    /// The kernel lets each access happen. Every so many ns, the tracer looks which pages were accessed, and
    /// takes the right to access them away again. It takes memory of no file, too.
    RwpAsync(u64),
}

impl Way {
    /// What the command line calls `name`, with its number: of pages, or of ms.
    ///
    /// # Errors
    ///
    /// If there is no such way, or the number is none or 0.
    pub fn named(name: &str, number: &str) -> Result<Self> {
        let n: u32 = match number.parse() {
            Ok(n) if n > 0 => n,
            _ => {
                return Err(Error::other(format!(
                    "{number}: give a number of pages or of ms, at least 1"
                )));
            }
        };
        match name {
            "mprotect" => Ok(Way::Mprotect(n as usize)),
            "rwp" => Ok(Way::Rwp(n as usize)),
            "rwp-async" => Ok(Way::RwpAsync(u64::from(n) * 1_000_000)),
            _ => Err(Error::other(format!(
                "{name}: no way to watch pages; there are mprotect, rwp and rwp-async"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Way;

    #[test]
    fn ways_have_names_and_numbers() {
        assert_eq!(Way::named("mprotect", "512").ok(), Some(Way::Mprotect(512)));
        assert_eq!(Way::named("rwp", "16").ok(), Some(Way::Rwp(16)));
        let ms = Way::named("rwp-async", "50").ok();
        assert_eq!(ms, Some(Way::RwpAsync(50_000_000)));
        for (name, number) in [("rwp", "0"), ("rwp", "x"), ("segv", "5")] {
            assert!(Way::named(name, number).is_err(), "{name} {number}");
        }
    }
}
