// SPDX-License-Identifier: GPL-2.0

//! Which references are recorded: lists of tests with jumps, as pure logic. See `struct
//! vmtrace_filter` in include/uapi/linux/vmtrace.h.
//!
//! Each jump is forwards, so a reference is judged in at most as many steps as there are tests.

/// A comparison, and where to go on: `struct vmtrace_filter_test`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Test {
    /// What of the reference is compared.
    pub field: u16,
    /// How.
    pub op: u16,
    /// Where to go on if it holds.
    pub yes: u16,
    /// Where to go on if it does not.
    pub no: u16,
    /// Of a range; or where a text begins.
    pub low: u64,
    /// Of a range; or bytes of a text, without the zero behind it.
    pub high: u64,
}

/// VMTRACE_OP_RANGE
pub const RANGE: u16 = 0;
/// VMTRACE_OP_TEXT
pub const TEXT: u16 = 1;
/// VMTRACE_OP_GLOB
pub const GLOB: u16 = 2;

/// VMTRACE_FILTER_KEEP
pub const KEEP: u16 = 0xffff;
/// VMTRACE_FILTER_LEAVE
pub const LEAVE: u16 = 0xfffe;

/// VMTRACE_FIELD_MAPPING_KIND, the last one.
pub const LAST_FIELD: u16 = 10;
/// VMTRACE_FIELD_COMM
pub const COMM: u16 = 2;
/// VMTRACE_FIELD_MAPPING
pub const MAPPING: u16 = 9;

/// Bits of fields that only the mapping of a page shows.
pub const OF_MAPPING: u32 = 1 << MAPPING | 1 << LAST_FIELD;

/// What tests compare.
pub trait Reference {
    /// The value of a field that is a number.
    fn number(&self, field: u16) -> u64;
    /// Whether a field that is a text is this one, which has no zero byte.
    fn is(&self, field: u16, text: &[u8]) -> bool;
    /// Whether a field that is a text fits a pattern, whose only zero byte is its last one.
    fn fits(&self, field: u16, pattern: &[u8]) -> bool;
}

impl Test {
    /// The text or pattern, with the zero byte behind it.
    fn text<'t>(&self, texts: &'t [u8]) -> Option<&'t [u8]> {
        let from = usize::try_from(self.low).ok()?;
        let len = usize::try_from(self.high).ok()?.checked_add(1)?;
        texts.get(from..)?.get(..len)
    }

    /// Whether a reference has what is demanded.
    fn holds(&self, texts: &[u8], of: &impl Reference) -> bool {
        let text = || self.text(texts).unwrap_or_default();
        match self.op {
            RANGE => (self.low..=self.high).contains(&of.number(self.field)),
            TEXT => text()
                .split_last()
                .is_some_and(|(_, text)| of.is(self.field, text)),
            _ => of.fits(self.field, text()),
        }
    }

    /// Whether this can be the test of number `at` among `many`.
    fn is_good(&self, at: usize, many: usize, texts: &[u8]) -> bool {
        let leads = |next: u16| {
            let next_at = usize::from(next);
            next >= LEAVE || (next_at > at && next_at < many)
        };
        let is_text = self.field == COMM || self.field == MAPPING;
        let fits = match self.op {
            RANGE => !is_text,
            TEXT | GLOB => {
                let text = self.text(texts).and_then(|text| text.split_last());
                is_text && text.is_some_and(|(end, text)| *end == 0 && !text.contains(&0))
            }
            _ => false,
        };
        self.field <= LAST_FIELD && fits && leads(self.yes) && leads(self.no)
    }
}

/// Whether these are tests of a filter, with these texts.
pub fn are_good(tests: &[Test], texts: &[u8]) -> bool {
    let many = tests.len();
    let each = |(at, test): (usize, &Test)| test.is_good(at, many, texts);
    // All of them together take no longer than one of all texts.
    let bytes = tests
        .iter()
        .filter(|test| test.op != RANGE)
        .fold(0, |sum: u64, test| {
            sum.saturating_add(test.high).saturating_add(1)
        });
    many < usize::from(LEAVE) && bytes <= texts.len() as u64 && tests.iter().enumerate().all(each)
}

/// Bits of the fields that tests are about.
pub fn fields(tests: &[Test]) -> u32 {
    tests
        .iter()
        .fold(0, |bits, test| bits | 1 << (test.field & 31))
}

/// Whether a reference is recorded. Without a test, all are.
pub fn keeps(tests: &[Test], texts: &[u8], of: &impl Reference) -> bool {
    let mut next = if tests.is_empty() { KEEP } else { 0 };
    // As many steps as there are tests do, for each jump is forwards.
    for _ in 0..tests.len() {
        let Some(test) = tests.get(usize::from(next)) else {
            break;
        };
        next = match test.holds(texts, of) {
            true => test.yes,
            false => test.no,
        };
    }
    next == KEEP
}
