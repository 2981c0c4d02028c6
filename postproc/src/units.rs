//! Quantities that must not be mixed up.
//!
//! Raw integers elsewhere carry their unit in the name: `time_ns`, `offset`
//! (bytes into the trace file), `seq` (global sequence number, from 1).

use serde::Serialize;

/// An address space, as the kernel numbers it: never used again in a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct Mm(pub u32);

/// A thread id, in the initial pid namespace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct Tid(pub u32);

/// A virtual page: its address divided by the page size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct VirtPage(pub u64);

/// The identity of a page, independent of the addresses that map it; see [`crate::canon`].
///
/// Numbers begin at 1 and are nearly dense, in the order of first appearance, so that
/// tables can be indexed by them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
pub struct CanonPage(pub u32);

impl CanonPage {
    /// The page's place in a table.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Protections of a mapping: bits of `VMTRACE_PROT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize)]
pub struct Prot(pub u8);

impl Prot {
    /// Reading is allowed.
    pub const READ: u8 = 1;
    /// Writing is allowed.
    pub const WRITE: u8 = 2;
    /// Execution is allowed.
    pub const EXEC: u8 = 4;

    /// Whether an access of this kind is allowed.
    ///
    /// As `access_error()` of arch/x86 does: a read needs any right at all, a
    /// write needs W, an instruction fetch needs X.
    pub fn allows(self, access: Access) -> bool {
        // Processors cannot predict the order of kinds: a branch for each would be slow.
        let any = match access {
            Access::Read | Access::Seen => 7,
            Access::Write => Self::WRITE,
            Access::Exec => Self::EXEC,
        };
        self.0 & any != 0
    }
}

impl std::fmt::Display for Prot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bit = |mask, letter| if self.0 & mask != 0 { letter } else { '-' };
        write!(
            f,
            "{}{}{}",
            bit(Self::READ, 'r'),
            bit(Self::WRITE, 'w'),
            bit(Self::EXEC, 'x')
        )
    }
}

/// The kind of the access that began a stay.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
    /// An access of unknown kind: only the accessed bit shows it.
    Seen,
}

impl Access {
    /// The name used in all output.
    pub fn name(self) -> &'static str {
        match self {
            Access::Read => "read",
            Access::Write => "write",
            Access::Exec => "exec",
            Access::Seen => "seen",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_needs_any_right() {
        for prot in 1..8 {
            assert!(Prot(prot).allows(Access::Read));
        }
        assert!(!Prot(0).allows(Access::Read));
    }

    #[test]
    fn write_and_exec_need_their_own() {
        assert!(!Prot(5).allows(Access::Write));
        assert!(Prot(2).allows(Access::Write));
        assert!(!Prot(3).allows(Access::Exec));
        assert!(Prot(4).allows(Access::Exec));
        assert_eq!(Prot(5).to_string(), "r-x");
    }
}
