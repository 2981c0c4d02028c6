//! Replacement policies, a file each.

pub mod fifo;
pub mod lru;
