//! Replacement policies, a file each.

pub mod clock;
pub mod fifo;
pub mod lru;
pub mod sieve;
