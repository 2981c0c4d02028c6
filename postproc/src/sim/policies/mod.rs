//! Replacement policies, a file each.

pub mod lru;
