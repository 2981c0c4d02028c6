//! Amounts as users write them: sizes and times. All tools read them here, so the same text means
//! the same in each option.

/// Parts of one in a share.
pub const ONE: u64 = 1_000_000;
/// Decimals of such a part.
pub const DIGITS: usize = 6;

/// A decimal number, in parts of which `10^digits` are one.
pub fn decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    let has_digits = !whole.is_empty() && (!text.contains('.') || !part.is_empty());
    if !has_digits || !is_number(whole) || !is_number(part) || part.len() > digits {
        return None;
    }
    format!("{whole}{part:0<digits$}").parse().ok()
}

/// A size: `4000`, `16MiB`, `0.1` or `10%`.
///
/// Units are powers of 1024 bytes, as in the files of control groups: `K`, `k` and `KiB` mean the
/// same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// A number without a unit.
    Number(u64),
    /// A number of bytes, at least 1.
    Bytes(u64),
    /// A share of the footprint in millionths, above 0 and not above [`ONE`].
    Share(u64),
}

/// What a size is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// Memory that is simulated: a number is of pages.
    Memory,
    /// Pages, where no footprint exists. The text says why.
    Pages(&'static str),
    /// Bytes.
    Bytes,
}

/// Units with their powers of two.
const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

impl Of {
    /// What is accepted.
    fn expected(self) -> &'static str {
        match self {
            Of::Memory => {
                "expected a number of pages (4000), a number with KiB, MiB, GiB or TiB (16MiB), or \
                 a share of the footprint (0.1 or 10%), which is not above 1.0"
            }
            Of::Pages(_) => {
                "expected a number of pages (4000), or a number with KiB, MiB, GiB or TiB (16MiB)"
            }
            Of::Bytes => {
                "expected a number of bytes (65536), or a number with KiB, MiB, GiB or TiB (16MiB)"
            }
        }
    }
}

impl Size {
    fn is_share(self) -> bool {
        matches!(self, Size::Share(_))
    }

    /// Reads a size.
    ///
    /// # Errors
    ///
    /// What is accepted, and what was meant if the text is similar to a size.
    pub fn read(text: &str, of: Of) -> Result<Self, String> {
        let expected = of.expected();
        match (parse(text), of) {
            (Some(Size::Share(_)), Of::Pages(why)) => Err(format!("{why}: {expected}")),
            (Some(Size::Share(_)), Of::Bytes) | (None, _) => Err(match meant(text, of) {
                Some(meant) => format!("{expected}; {meant}"),
                None => expected.into(),
            }),
            (Some(size), _) => Ok(size),
        }
    }

    /// Reads a number of bytes, which may be 0.
    ///
    /// # Errors
    ///
    /// As those of [`Size::read`].
    pub fn read_bytes(text: &str) -> Result<u64, String> {
        match Size::read(text, Of::Bytes)? {
            Size::Number(bytes) | Size::Bytes(bytes) => Ok(bytes),
            Size::Share(_) => Err(Of::Bytes.expected().into()),
        }
    }
}

fn parse(text: &str) -> Option<Size> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(unit_at.unwrap_or(text.len()));
    let share = |millionths| match millionths {
        1..=ONE => Some(Size::Share(millionths)),
        _ => None,
    };
    match unit {
        "" if number.contains('.') => share(decimal(number, DIGITS)?),
        "" => Some(Size::Number(number.parse().ok()?)),
        "%" => share(decimal(number, DIGITS - 2)?),
        _ => {
            let letter = unit.strip_suffix("iB").unwrap_or(unit);
            let is_named = |name: char| letter.eq_ignore_ascii_case(name.encode_utf8(&mut [0; 4]));
            let (_, power) = UNITS.into_iter().find(|(name, _)| is_named(*name))?;
            let bytes = (u128::from(decimal(number, DIGITS)?) << power) / u128::from(ONE);
            let bytes = u64::try_from(bytes).ok()?;
            (bytes > 0).then_some(Size::Bytes(bytes))
        }
    }
}

/// The text without spaces, and without what sets thousands apart; `None` if a comma is one of decimals.
fn without_spaces(text: &str) -> Option<String> {
    let thousands = text.split(',').skip(1).all(|part| {
        let digits = part.chars().take_while(char::is_ascii_digit).count();
        digits == 3
    });
    thousands.then(|| text.chars().filter(|c| !" ,_'".contains(*c)).collect())
}

/// What the user of a wrong text may have meant.
fn meant(text: &str, of: Of) -> Option<String> {
    let plain = without_spaces(text)?;
    let unit_at = plain.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = plain.split_at(unit_at.unwrap_or(plain.len()));
    let letter = unit.chars().next().map(|c| c.to_ascii_lowercase());
    let letter = letter.filter(|c| UNITS.iter().any(|(name, _)| name == c));
    let unit = match (letter.map(|c| c.to_ascii_uppercase()), unit.get(1..)) {
        (Some(letter), Some(rest)) if rest.eq_ignore_ascii_case("b") => {
            return Some(format!(
                "{unit} has two meanings: write {letter}iB, which is a power of 1024"
            ));
        }
        (Some(letter), Some(rest)) if ["", "i", "ib"].contains(&&*rest.to_ascii_lowercase()) => {
            format!("{letter}iB")
        }
        _ if ["p", "pages", "page"].contains(&unit) && of != Of::Bytes => String::new(),
        _ if ["b", "bytes"].contains(&&*unit.to_ascii_lowercase()) && of == Of::Bytes => {
            String::new()
        }
        _ if unit.is_empty() => String::new(),
        _ => return None,
    };
    let number = match number.strip_prefix('.') {
        Some(part) => format!("0.{part}"),
        None => number.into(),
    };
    let meant = number + &unit;
    let is_one = parse(&meant).is_some_and(|size| of == Of::Memory || !size.is_share());
    (is_one && meant != text).then(|| format!("did you mean {meant}?"))
}

/// Factors of numbers of references, largest first.
const FACTORS: [(char, usize); 2] = [('M', 6), ('k', 3)];

/// Reads a number of references, whose factors are decimal: `300`, `10k`, `2M`.
pub fn references(text: &str) -> Option<u64> {
    let factor = FACTORS.into_iter().find(|(name, _)| text.ends_with(*name));
    let (digits, power) = match factor {
        Some((name, power)) => (text.strip_suffix(name)?, power),
        None => (text, 0),
    };
    match digits.contains('.') {
        true => None,
        false => decimal(digits, 0)?.checked_mul(10u64.pow(power as u32)),
    }
}

/// What the user of a wrong text may have meant, if it is similar to a number of references: `10k` for
/// `10K` or `10KiB`, `1500` for `1.5k`.
pub fn meant_references(text: &str) -> Option<String> {
    let plain = without_spaces(text)?;
    let unit_at = plain.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = plain.split_at(unit_at.unwrap_or(plain.len()));
    let power = match &*unit.to_ascii_lowercase() {
        "" => 0,
        "k" | "ki" | "kb" | "kib" => 3,
        "m" | "mi" | "mb" | "mib" => 6,
        "g" | "gi" | "gb" | "gib" => 9,
        _ => return None,
    };
    let count = decimal(number, power).filter(|count| *count > 0)?;
    let factor = FACTORS
        .into_iter()
        .map(|(name, power)| (name, 10u64.pow(power as u32)));
    let meant = match factor.into_iter().find(|(_, factor)| count % factor == 0) {
        Some((name, factor)) => format!("{}{name}", count / factor),
        None => count.to_string(),
    };
    (meant != text).then_some(meant)
}

/// Units of time, longest first, in ns.
const TIMES: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

/// Reads a time with its unit, in ns: `200ms`, `1.5s`, `2min`; `None` if it is none, or is not 0 but
/// less than a nanosecond.
pub fn time(text: &str) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let (_, scale) = TIMES.into_iter().find(|(name, _)| *name == unit)?;
    // Billionths, so that each decimal of a second counts.
    const BILLION: u128 = 1_000_000_000;
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 9 || whole.len() > 20 {
        return None;
    }
    let billionths: u128 = format!("{whole}{part:0<9}").parse().ok()?;
    let ns = billionths.checked_mul(u128::from(scale))? / BILLION;
    let is_lost = ns == 0 && billionths > 0;
    u64::try_from(ns).ok().filter(|_| !is_lost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: Of = Of::Pages("there is no footprint");

    fn refused(text: &str, of: Of) -> String {
        Size::read(text, of).expect_err(text)
    }

    #[test]
    fn one_text_means_the_same_everywhere() {
        for of in [Of::Memory, NONE, Of::Bytes] {
            let read = |text: &str| Size::read(text, of);
            assert_eq!(read("4000"), Ok(Size::Number(4000)));
            assert_eq!(read("0"), Ok(Size::Number(0)));
            for text in [
                "16MiB", "16miB", "16M", "16m", "16384K", "16384k", "16384KiB",
            ] {
                assert_eq!(read(text), Ok(Size::Bytes(16 << 20)), "{text}");
            }
            assert_eq!(read("1.5GiB"), Ok(Size::Bytes(3 << 29)));
            assert_eq!(read("1g"), Ok(Size::Bytes(1 << 30)));
            assert_eq!(read("2T"), Ok(Size::Bytes(2 << 40)));
            assert_eq!(read("0.5K"), Ok(Size::Bytes(512)));
        }
    }

    #[test]
    fn shares_are_of_a_footprint() {
        for (text, millionths) in [
            ("0.1", 100_000),
            ("10%", 100_000),
            ("0.5%", 5000),
            ("100%", ONE),
            ("1.0", ONE),
            ("0.000001", 1),
        ] {
            assert_eq!(Size::read(text, Of::Memory), Ok(Size::Share(millionths)));
            let why = refused(text, NONE);
            assert!(
                why.starts_with("there is no footprint: expected a"),
                "{why}"
            );
            assert!(refused(text, Of::Bytes).starts_with("expected a number of bytes"));
        }
        for bad in ["0.0", "1.1", "101%", "0%", "0.0000001"] {
            for of in [Of::Memory, NONE, Of::Bytes] {
                assert!(refused(bad, of).starts_with("expected a number"), "{bad}");
            }
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in [
            "",
            "-1",
            "+1",
            "x",
            "MiB",
            "0MiB",
            "1.2.3",
            "99999999999999999999",
            "99999999999T",
            "0x10",
            "5kk",
            "٣",
            "1.MiB",
            "16µ",
            "k",
        ] {
            for of in [Of::Memory, NONE, Of::Bytes] {
                let why = refused(bad, of);
                assert!(why.starts_with("expected a number"), "{bad}: {why}");
                assert!(!why.contains("did you mean"), "{bad}: {why}");
            }
        }
    }

    #[test]
    fn what_was_meant_is_named() {
        for (text, meant) in [
            ("16 MiB", "did you mean 16MiB?"),
            ("4mib", "did you mean 4MiB?"),
            ("4Mi", "did you mean 4MiB?"),
            ("4,000", "did you mean 4000?"),
            ("4_000", "did you mean 4000?"),
            ("16MB", "MB has two meanings: write MiB"),
            ("16kb", "kb has two meanings: write KiB"),
        ] {
            for of in [Of::Memory, NONE, Of::Bytes] {
                let why = refused(text, of);
                assert!(why.contains(meant), "{text}: {why}");
            }
        }
        assert!(refused("64 pages", NONE).ends_with("did you mean 64?"));
        assert!(refused("64B", Of::Bytes).ends_with("did you mean 64?"));
        assert!(refused(".5", Of::Memory).ends_with("did you mean 0.5?"));
        assert!(!refused(".5", Of::Bytes).contains("did you mean"));
        // A comma of decimals.
        assert!(!refused("1,5GiB", NONE).contains("did you mean"));
    }

    #[test]
    fn references_have_decimal_factors() {
        for (text, count) in [("300", 300), ("10k", 10_000), ("2M", 2_000_000), ("0", 0)] {
            assert_eq!(references(text), Some(count));
            assert_eq!(meant_references(text), None);
        }
        for (text, meant) in [
            ("10K", Some("10k")),
            ("10Ki", Some("10k")),
            ("10KiB", Some("10k")),
            ("1.5k", Some("1500")),
            ("1.5M", Some("1500k")),
            ("2m", Some("2M")),
            ("1G", Some("1000M")),
            ("10,000", Some("10k")),
            ("1 000 001", Some("1000001")),
            ("10 k", Some("10k")),
            ("1,5k", None),
            ("1.2345k", None),
            ("0K", None),
            ("-3", None),
            ("+3", None),
            ("1.5", None),
            ("k", None),
            ("", None),
            ("5s", None),
            ("18446744073709551615M", None),
        ] {
            assert_eq!(references(text), None, "{text}");
            assert_eq!(meant_references(text).as_deref(), meant, "{text}");
        }
    }

    #[test]
    fn times_are_exact() {
        assert_eq!(time("200ms"), Some(200_000_000));
        assert_eq!(time("1.5ms"), Some(1_500_000));
        assert_eq!(time("1.000000001s"), Some(1_000_000_001));
        assert_eq!((time("0s"), time("7ns")), (Some(0), Some(7)));
        assert_eq!(time("2min"), Some(120_000_000_000));
        assert_eq!(time("1.5h"), Some(5_400_000_000_000));
        for bad in [
            "",
            "5",
            "s",
            "-1s",
            ".5s",
            "1.s",
            "1e3s",
            "0.1ns",
            "1 s",
            "nans",
            "1S",
            "1m",
            "99999999999999999999h",
            "1.0000000001s",
        ] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn a_unit_is_a_factor(n in 1u64..1 << 30, unit in 0..4usize, long in any::<bool>()) {
            let (letter, power) = UNITS[unit];
            let text = format!("{n}{letter}{}", if long { "iB" } else { "" });
            let want = u64::try_from(u128::from(n) << power).ok();
            prop_assert_eq!(Size::read_bytes(&text).ok(), want);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            for of in [Of::Memory, NONE, Of::Bytes] {
                if Size::read(&text, of).is_ok() {
                    prop_assert!(text.starts_with(|c: char| c.is_ascii_digit()));
                }
            }
            let _ = time(&text);
        }
    }
}
