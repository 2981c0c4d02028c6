//! What formats of lines share.

use std::io::BufRead;

use super::{Accesses, Fault, Importer, Note, Parsed};

/// Bytes of a line, at most.
const LONGEST: usize = 1 << 16;

/// Takes a trace line by line.
pub(super) trait Lines {
    /// A line without its end; the error says what is wrong with it.
    fn line(&mut self, line: &[u8], to: &mut Accesses) -> Result<(), Wrong>;
    /// After the last line.
    fn finish(&mut self) -> Result<(), Wrong> {
        Ok(())
    }
    /// See [`Importer::note`].
    fn note(&self) -> Option<&Note> {
        None
    }
}

/// What is wrong with a line.
pub(super) enum Wrong {
    Text(String),
    Fault(Fault),
}

impl From<&str> for Wrong {
    fn from(text: &str) -> Self {
        Wrong::Text(text.into())
    }
}

impl From<String> for Wrong {
    fn from(text: String) -> Self {
        Wrong::Text(text)
    }
}

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Self {
        Wrong::Fault(fault)
    }
}

/// Feeds lines to a format.
pub(super) struct ByLine<L> {
    format: L,
    line: Vec<u8>,
    number: u64,
}

impl<L: Lines + 'static> ByLine<L> {
    pub fn boxed(format: L) -> Box<dyn Importer> {
        Box::new(ByLine {
            format,
            line: Vec::new(),
            number: 0,
        })
    }

    fn fault(&self, wrong: Wrong) -> Fault {
        match wrong {
            Wrong::Text(why) => Fault::Malformed {
                place: format!("line {}", self.number.max(1)),
                why,
            },
            Wrong::Fault(fault) => fault,
        }
    }
}

impl<L: Lines> Importer for ByLine<L>
where
    L: 'static,
{
    fn read(&mut self, input: &mut dyn BufRead, to: &mut Accesses) -> Parsed<bool> {
        // Lines that hold no reference count, too, so that progress is shown.
        for _ in 0..super::BLOCK {
            if to.is_full() {
                break;
            }
            self.line.clear();
            self.number += 1;
            let mut limited = std::io::Read::take(&mut *input, LONGEST as u64 + 1);
            if limited.read_until(b'\n', &mut self.line)? == 0 {
                self.number -= 1;
                self.format.finish().map_err(|wrong| self.fault(wrong))?;
                return Ok(false);
            }
            if self.line.len() > LONGEST {
                return Err(self.fault("longer than 65536 bytes: not text?".into()));
            }
            while self.line.last().is_some_and(u8::is_ascii_whitespace) {
                self.line.pop();
            }
            let done = self.format.line(&self.line, to);
            done.map_err(|wrong| self.fault(wrong))?;
        }
        Ok(true)
    }

    fn note(&self) -> Option<&Note> {
        self.format.note()
    }
}

/// A line as a message shows it.
pub(super) fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(60)]);
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect();
    format!("{clean:?}")
}

/// A decimal number.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &c| {
        let digit = c.is_ascii_digit().then(|| u64::from(c - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// A hexadecimal number without a prefix.
pub(super) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |number, &c| {
        let digit = char::from(c).to_digit(16)?;
        Some(number << 4 | u64::from(digit))
    })
}
