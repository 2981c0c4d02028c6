// SPDX-License-Identifier: GPL-2.0

//! What packets have: references by what they begin with, and events from a number on. Read from the
//! layouts of include/uapi/linux/vmtrace.h, as pure logic.

use crate::stay::{CONT, KIND, SEEN};

/// Where an event has its size and its number.
const SIZE_AT: usize = 2;
const SEQ_AT: usize = 8;

/// References by what they begin with.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// They begin a stay.
    pub admissions: u64,
    /// They continue one.
    pub renewed: u64,
    /// They are second chances.
    pub chances: u64,
}

impl Kinds {
    /// Adds the references of a packet, each of which has `size` bytes.
    pub fn count(&mut self, content: &[u8], size: usize) {
        let (mut all, mut renewed, mut chances) = (0u64, 0u64, 0u64);
        for record in content.chunks_exact(size.max(1)) {
            let page = record
                .first_chunk::<8>()
                .map_or(0, |b| u64::from_le_bytes(*b));
            let cont = page & CONT != 0;
            all = all.wrapping_add(1);
            renewed = renewed.wrapping_add(u64::from(cont));
            chances = chances.wrapping_add(u64::from(!cont && page & KIND == SEEN));
        }
        let begun = all.wrapping_sub(renewed).wrapping_sub(chances);
        self.admissions = self.admissions.wrapping_add(begun);
        self.renewed = self.renewed.wrapping_add(renewed);
        self.chances = self.chances.wrapping_add(chances);
    }
}

/// How many events of a packet have the number `seq` or a greater one.
pub fn events_from(mut content: &[u8], seq: u64) -> u64 {
    let mut many = 0u64;
    loop {
        let size = content.get(SIZE_AT..).and_then(|b| b.first_chunk::<2>());
        let number = content.get(SEQ_AT..).and_then(|b| b.first_chunk::<8>());
        let (Some(size), Some(number)) = (size, number) else {
            return many;
        };
        many = many.wrapping_add(u64::from(u64::from_le_bytes(*number) >= seq));
        let size = usize::from(u16::from_le_bytes(*size)).max(1);
        content = content.get(size..).unwrap_or_default();
    }
}
