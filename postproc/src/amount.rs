//! Amounts as users write them: percentages, and sizes of memory.

use std::fmt;
use std::str::FromStr;

use rust_mm_trace::amount::{DIGITS, ONE, Of, Size, decimal};
use serde::{Serialize, Serializer};

/// A share, exact to a millionth: written `1%`, `0.5%` or `0.01`.
///
/// A number without a point and without `%` is refused, except 0: `5` might mean either.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Percent {
    millionths: u64,
}

impl Percent {
    /// This share of a count, rounded down.
    pub fn of(self, count: u64) -> u64 {
        let part = u128::from(count) * u128::from(self.millionths) / u128::from(ONE);
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The count and this share of it.
    pub fn above(self, count: u64) -> u64 {
        count.saturating_add(self.of(count))
    }

    /// As a fraction of one.
    pub fn fraction(self) -> f64 {
        self.millionths as f64 / ONE as f64
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let millionths = match text.strip_suffix('%') {
            Some(number) => decimal(number.trim_end(), DIGITS - 2),
            None if text.contains('.') || text == "0" => decimal(text, DIGITS),
            None => {
                return Err(format!(
                    "expected a percentage (1%) or a share of one with a point (0.01); if you mean \
                     percent, write {text}%"
                ));
            }
        };
        let millionths = millionths.ok_or(
            "expected a percentage (1%) of at most 4 decimals, or a share of one (0.01) of at most 6",
        )?;
        Ok(Percent { millionths })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The shortest number that is the same.
        write!(f, "{} %", self.millionths as f64 / (ONE / 100) as f64)
    }
}

impl Serialize for Percent {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(self.fraction())
    }
}

/// A size of memory: written `4000` (pages), `16MiB` (bytes), or `0.1` or `10%` (a share of the
/// footprint), as [`Size`] reads it.
///
/// The footprint is the largest number of pages that exist at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemorySize {
    /// A number of pages, at least 1.
    Pages(u64),
    /// A number of bytes, at least 1.
    Bytes(u64),
    /// A share of the footprint, above 0 and not above 1.
    Footprint(Percent),
}

impl MemorySize {
    /// Whether [`MemorySize::pages`] needs the footprint.
    pub fn needs_footprint(self) -> bool {
        matches!(self, MemorySize::Footprint(_))
    }

    /// The size in pages, at least 1. Bytes are rounded down to whole pages, and shares up.
    ///
    /// # Errors
    ///
    /// If the size is less than one page.
    pub fn pages(self, page_size: u64, footprint: u64) -> Result<u64, String> {
        match self {
            MemorySize::Pages(pages) => Ok(pages),
            MemorySize::Bytes(bytes) if bytes < page_size => Err(format!(
                "{bytes} bytes of memory are less than a page of the trace, which has {page_size} \
                 bytes"
            )),
            MemorySize::Bytes(bytes) => Ok(bytes / page_size.max(1)),
            MemorySize::Footprint(share) => {
                let rounded_up = u128::from(footprint) * u128::from(share.millionths);
                let pages = rounded_up.div_ceil(u128::from(ONE));
                Ok(u64::try_from(pages).unwrap_or(u64::MAX).max(1))
            }
        }
    }

    /// Reads a size where there is no footprint. `why` says why.
    ///
    /// # Errors
    ///
    /// What is accepted instead.
    pub fn absolute(text: &str, why: &'static str) -> Result<Self, String> {
        Self::read(text, Of::Pages(why))
    }

    fn read(text: &str, of: Of) -> Result<Self, String> {
        match Size::read(text, of)? {
            Size::Number(0) => Err("give 1 page or more".into()),
            Size::Number(pages) => Ok(MemorySize::Pages(pages)),
            Size::Bytes(bytes) => Ok(MemorySize::Bytes(bytes)),
            Size::Share(millionths) => Ok(MemorySize::Footprint(Percent { millionths })),
        }
    }
}

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text, Of::Memory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(text: &str) -> Result<u64, String> {
        text.parse::<Percent>().map(|p| p.millionths)
    }

    fn size(text: &str) -> Result<MemorySize, String> {
        text.parse()
    }

    #[test]
    fn percentages_are_exact() {
        assert_eq!(percent("1%"), Ok(10_000));
        assert_eq!(percent("1 %"), Ok(10_000));
        assert_eq!(percent("0.0001%"), Ok(1));
        assert_eq!(percent("0.01"), Ok(10_000));
        assert_eq!(percent("1.15"), Ok(1_150_000));
        assert_eq!(percent("250%"), Ok(2_500_000));
        assert_eq!((percent("0"), percent("0%")), (Ok(0), Ok(0)));
        // In floating point, 1.15 * 100 is less than 115.
        assert_eq!("15%".parse::<Percent>().map(|p| p.above(100)), Ok(115));
        assert_eq!("1%".parse::<Percent>().map(|p| p.of(199)), Ok(1));
        let shown = |text: &str| text.parse::<Percent>().expect("good").to_string();
        assert_eq!(
            (shown("1%"), shown("0.0125")),
            ("1 %".into(), "1.25 %".into())
        );
    }

    #[test]
    fn what_is_no_percentage_is_refused() {
        for bad in [
            "", "%", "x%", "-1%", ".5", "5.", "1e3%", "0.00001%", "1%%", "inf",
        ] {
            assert!(percent(bad).is_err(), "{bad}");
        }
        let bare = percent("5").expect_err("ambiguous");
        assert!(bare.contains("write 5%"), "{bare}");
    }

    #[test]
    fn sizes_are_pages_bytes_or_shares() {
        let pages = |text: &str| size(text).and_then(|size| size.pages(4096, 1001));
        assert_eq!(pages("4000"), Ok(4000));
        assert_eq!(pages("16MiB"), Ok(4096));
        assert_eq!(pages("16M"), Ok(4096));
        assert_eq!(pages("1.5GiB"), Ok(3 << 17));
        assert_eq!(pages("9K"), Ok(2));
        assert_eq!(pages("0.1"), Ok(101));
        assert_eq!(pages("10%"), Ok(101));
        assert_eq!(pages("1.0"), Ok(1001));
        assert_eq!(pages("0.000001"), Ok(1));
        // Large pages.
        assert_eq!(size("16MiB").and_then(|s| s.pages(1 << 16, 9)), Ok(256));
        assert!(size("0.5").is_ok_and(MemorySize::needs_footprint));
        assert!(!size("5").is_ok_and(MemorySize::needs_footprint));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in [
            "",
            "0",
            "0.0",
            "1.1",
            "-1",
            "x",
            "MiB",
            "0MiB",
            "4 MiB",
            "4mib",
            "101%",
            "1.2.3",
            "4,000",
            "99999999999999999999",
            "99999999999T",
            "0x10",
        ] {
            assert!(size(bad).is_err(), "{bad}");
        }
        let ambiguous = size("16MB").expect_err("two meanings");
        assert!(ambiguous.contains("MiB"), "{ambiguous}");
        for text in ["0.1", "10%"] {
            let share = MemorySize::absolute(text, "there is no footprint");
            let why = share.expect_err("a share");
            assert!(why.starts_with("there is no footprint: expected"), "{why}");
        }
        assert_eq!(MemorySize::absolute("9", ""), Ok(MemorySize::Pages(9)));
        let small = size("1K").and_then(|size| size.pages(4096, 9));
        assert!(small.is_err_and(|e| e.contains("1024 bytes")));
    }
}
