//! Traces of random events: what their tests begin with.

use postproc::testing::TraceBuilder;

/// Numbers without an order that anybody can see.
pub struct Random(u64);

impl Random {
    /// Different ones for each seed.
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`, or 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }

    /// A trace without records, of 1 to 3 CPUs, which it also gives. Some traces have virtual time,
    /// some have offsets.
    pub fn trace(&mut self) -> (TraceBuilder, u32) {
        let cpus = 1 + self.below(3) as u32;
        let mut b = TraceBuilder::new(cpus, 4 << self.below(4));
        b.header_mut().buffer_size = 512 << self.below(4);
        if self.below(3) == 0 {
            b.virtual_time(1_000_000);
        }
        if self.below(3) == 0 {
            b.with_offsets();
        }
        (b, cpus)
    }
}
