//! Replacement policies, each in a file.

pub mod active_inactive;
pub mod arc;
pub mod car;
pub mod clock;
pub mod clock_pro;
pub mod fifo;
pub mod lirs;
pub mod lru;
pub mod mglru;
pub mod opt;
pub mod s3_fifo;
pub mod s4_fifo;
pub mod segq;
pub mod sieve;
pub mod two_q;
pub mod ws_clock;
