//! `txt`: one decimal page number a line.

use std::io::Write;

use super::{Exporter, FormatEntry};
use crate::error::{OutputContext, Result};
use crate::output::Output;
use crate::pipeline::Batch;

pub(super) const ENTRY: FormatEntry = FormatEntry {
    id: "txt",
    about: "one decimal page number a line",
    make: |_| Ok(Box::new(Txt::default())),
};

#[derive(Default)]
struct Txt {
    lines: Vec<u8>,
}

impl Exporter for Txt {
    fn references(&mut self, batch: &Batch<'_>, out: &mut Output) -> Result<()> {
        self.lines.clear();
        for page in batch.pages {
            decimal(&mut self.lines, page.0.into());
            self.lines.push(b'\n');
        }
        out.write_all(&self.lines).writing(out.name())
    }
}

/// Appends a number; the standard formatter costs several times as much.
pub(super) fn decimal(to: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    to.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_is_decimal() {
        for number in [0, 7, 10, 999, 1_000, u64::MAX] {
            let mut text = Vec::new();
            decimal(&mut text, number);
            assert_eq!(text, number.to_string().as_bytes());
        }
    }
}
