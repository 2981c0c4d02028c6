//! `lackey`: the output of Valgrind's tool of that name with `--trace-mem=yes`.
//!
//! After lackey/lk_main.c of Valgrind 3.19: `I  address,size` for an instruction,
//! ` L`, ` S` and ` M` for a load, a store, and both by one instruction (one
//! reference here, a write). Addresses are hexadecimal. An access across a page's
//! end references each of its pages. Lines that begin with `==` or `--` are
//! Valgrind's own. Any other line is an error, so that output of the program is not
//! mistaken for accesses (`--log-file` keeps the two apart).

use super::lines::{ByLine, Lines, Wrong, decimal, hexadecimal, shown};
use super::{Accesses, ImportEntry};

pub(super) const ENTRY: ImportEntry = ImportEntry {
    id: "lackey",
    about: "valgrind --tool=lackey --trace-mem=yes",
    make: |page_shift| ByLine::boxed(Lackey { page_shift }),
};

struct Lackey {
    page_shift: u32,
}

/// Whether it writes, the address and the size.
fn access(line: &[u8]) -> Option<(bool, u64, u64)> {
    let write = match line.get(..3)? {
        b"I  " | b" L " => false,
        b" S " | b" M " => true,
        _ => return None,
    };
    let rest = &line[3..];
    let comma = memchr::memchr(b',', rest)?;
    let size = decimal(&rest[comma + 1..]).filter(|size| (1..=1 << 20).contains(size))?;
    Some((write, hexadecimal(&rest[..comma])?, size))
}

impl Lines for Lackey {
    fn line(&mut self, line: &[u8], to: &mut Accesses) -> Result<(), Wrong> {
        let Some((write, address, size)) = access(line) else {
            if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") {
                return Ok(());
            }
            return Err(format!("expected an access, found {}", shown(line)).into());
        };
        let last = address.saturating_add(size - 1) >> self.page_shift;
        for page in address >> self.page_shift..=last {
            to.number(page, write)?;
        }
        Ok(())
    }
}
