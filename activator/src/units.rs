//! Numbers as people write and read them.

use std::time::Duration;

use rust_mm_trace::amount::{Of, Size, meant_references, references, time};
use rust_mm_trace::uapi::{
    VMTRACE_CHANGE_MAX, VMTRACE_EVMS_MAX, VMTRACE_FLUSH_MAX, VMTRACE_FLUSH_MIN,
    VMTRACE_INTERVAL_MAX, VMTRACE_INTERVAL_MIN, VMTRACE_REGIONS_MAX, VMTRACE_REGIONS_MIN,
    VMTRACE_SAMPLE_MIN, VMTRACE_STALL_MAX, VMTRACE_STALL_MIN,
};

use crate::sampling::Regions;

/// A count of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pages(pub u32);

impl Pages {
    /// The largest EVMS of any machine.
    pub const MAX: Self = Self(VMTRACE_EVMS_MAX);
}

/// N as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// N.
    pub pages: Pages,
    /// How the text was understood, if it could be taken for another number of pages.
    pub hint: Option<String>,
}

/// Smallest and largest sub-buffer, bytes.
const BUFFER_SIZES: std::ops::RangeInclusive<u64> = 4096..=1 << 20;

/// Size of a page, bytes. The kernel side is for x86-64.
const PAGE_SIZE: u64 = 4096;

/// The fewest pages that any machine accepts as N or as a first segment.
const FEWEST: u64 = 16;

/// Why N is no share.
const NO_FOOTPRINT: &str = "a share would be of the footprint, which is known after the trace only";

/// Reads N: pages (`512`) or bytes (`2MiB`), which are rounded down to pages. The lower bound depends on the
/// machine and is checked later.
pub fn parse_pages(text: &str) -> Result<Pages, String> {
    let n = match Size::read(text, Of::Pages(NO_FOOTPRINT))? {
        // Few users mean so little.
        Size::Bytes(bytes) if bytes < FEWEST * PAGE_SIZE => {
            return Err(format!(
                "{text} is a size in bytes, and less than {FEWEST} pages of 4KiB{}",
                other_meaning(text)
            ));
        }
        Size::Bytes(bytes) => bytes / PAGE_SIZE,
        Size::Number(pages) => pages,
        Size::Share(_) => return Err(NO_FOOTPRINT.into()),
    };
    match u32::try_from(n) {
        Ok(n) if n <= Pages::MAX.0 => Ok(Pages(n)),
        _ => Err(format!(
            "N={n} is too large: at most {} ({} of memory in 4 KiB pages)",
            Pages::MAX.0,
            bytes(u64::from(Pages::MAX.0) << 12)
        )),
    }
}

/// What to write instead if the letter of a size was meant as a factor of pages.
fn other_meaning(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match &text[digits.len()..] {
        "k" | "K" => 10,
        "m" | "M" => 20,
        _ => return String::new(),
    };
    let pages = digits
        .parse()
        .ok()
        .and_then(|n: u64| n.checked_mul(1 << power));
    match pages.filter(|pages| *pages <= Pages::MAX.0.into()) {
        Some(pages) => format!(". For {pages} pages, write {pages}"),
        None => String::new(),
    }
}

/// Reads N, as [`parse_pages`] does. Letters without `iB` could be taken for factors of pages, as which
/// earlier versions read them.
pub fn parse_n(text: &str) -> Result<Given, String> {
    let pages = parse_pages(text)?;
    let is_letter = text.ends_with(|c: char| c.is_ascii_alphabetic()) && !text.ends_with("iB");
    let hint = is_letter.then(|| {
        format!(
            "{text} is a size in bytes: {} pages of 4KiB{}",
            count(pages.0.into()),
            other_meaning(text)
        )
    });
    Ok(Given { pages, hint })
}

/// Reads the size of a sub-buffer: `65536`, `64KiB`, `1M`.
pub fn parse_buffer_size(text: &str) -> Result<u32, String> {
    let n = Size::read_bytes(text)?;
    if !n.is_power_of_two() || !BUFFER_SIZES.contains(&n) {
        return Err("give a power of two from 4KiB to 1MiB".into());
    }
    u32::try_from(n).map_err(|e| e.to_string())
}

/// The longest time that the kernel takes, ns.
const LONGEST: u64 = (i64::MAX / 2) as u64;

/// Reads a time with its unit, in ns: `200ms`, `1.5s`, `2min`.
pub fn parse_time(text: &str) -> Result<u64, String> {
    time(text)
        .filter(|ns| *ns < LONGEST)
        .ok_or_else(|| "give a time with its unit: 500us, 200ms, 1.5s or 2min".into())
}

/// Reads the stall limit, in ms: a time from 1 s to 1 h.
pub fn parse_stall(text: &str) -> Result<u32, String> {
    let range = VMTRACE_STALL_MIN..=VMTRACE_STALL_MAX;
    parse_time(text)
        .ok()
        .and_then(|ns| u32::try_from(ns / 1_000_000).ok())
        .filter(|ms| range.contains(ms))
        .ok_or_else(|| "give a time from 1s to 60min".into())
}

/// Reads how long a record may stay in the kernel's buffers, in ms: a time from 100 ms to 60 s,
/// or `never`, which is 0.
pub fn parse_flush(text: &str) -> Result<u32, String> {
    if text == "never" {
        return Ok(0);
    }
    let range = VMTRACE_FLUSH_MIN..=VMTRACE_FLUSH_MAX;
    parse_time(text)
        .ok()
        .and_then(|ns| u32::try_from(ns / 1_000_000).ok())
        .filter(|ms| range.contains(ms))
        .ok_or_else(|| "give a time from 100ms to 60s, or `never`".into())
}

/// How long a window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// ns.
    Time(u64),
    /// Number of references.
    References(u64),
}

/// Reads a time with its unit, or a count of references with decimal suffixes: `200ms`,
/// `300`, `10k`, `2M`.
pub fn parse_length(text: &str) -> Result<Length, String> {
    let count = references(text).map(Length::References);
    match count.or_else(|| parse_time(text).ok().map(Length::Time)) {
        Some(Length::Time(0) | Length::References(0)) | None => Err(format!(
            "give a time with its unit, such as 200ms or 1.5s, or a number of references, such as \
             300 or 10M{}",
            instead_of(text)
        )),
        Some(length) => Ok(length),
    }
}

/// Reads a number of references in a second: `300`, `10k`, `2M`.
pub fn parse_rate(text: &str) -> Result<u64, String> {
    references(text).filter(|rate| *rate > 0).ok_or_else(|| {
        format!(
            "give a number of references in a second, such as 300 or 10k{}",
            instead_of(text)
        )
    })
}

/// What to write instead of a text that is similar to a number of references.
fn instead_of(text: &str) -> String {
    match meant_references(text) {
        Some(meant) => format!("; did you mean {meant}? k stands for 1000, and M for 1000000"),
        None => String::new(),
    }
}

/// The smallest piece, bytes: about a sub-buffer.
const LEAST_PIECE: u64 = 64 << 10;
/// The shortest piece.
const SHORTEST_PIECE: Duration = Duration::from_millis(100);

/// Reads a size in bytes: `65536`, `300KiB`, `100M`, `2G`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match Size::read_bytes(text)? {
        0 => Err("give a size that is not 0: 300KiB, 100MiB or 2GiB".into()),
        size => Ok(size),
    }
}

/// When the next piece of a trace begins: whichever comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// The present piece has so many bytes of the trace.
    pub bytes: Option<u64>,
    /// It began so long ago.
    pub time: Option<Duration>,
}

/// Reads a size, a time with its unit, or both with a comma between them: `100MiB`, `10min`,
/// `1G,1h`.
pub fn parse_when(text: &str) -> Result<When, String> {
    let mut when = When::default();
    for part in text.split(',') {
        let wrong = |why: &str| Err(format!("{part:?}: {why}"));
        let number = part.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        if &part[number.len()..] == "m" {
            return wrong("write MiB for mebibytes, or min for minutes");
        }
        match (time(part), Size::read_bytes(part)) {
            (Some(ns), _) => {
                let time = Duration::from_nanos(ns);
                if time < SHORTEST_PIECE {
                    return wrong("a piece must be 100ms or longer");
                }
                if when.time.replace(time).is_some() {
                    return wrong("a second time");
                }
            }
            (None, Ok(bytes)) => {
                if bytes < LEAST_PIECE {
                    return wrong("a piece must have 64KiB or more");
                }
                if when.bytes.replace(bytes).is_some() {
                    return wrong("a second size");
                }
            }
            (None, Err(why)) => {
                let meant = why.split_once("; ").map(|(_, meant)| format!("; {meant}"));
                return wrong(&format!(
                    "give a size (300KiB, 100MiB, 2GiB), a time (30s, 10min, 1h), or both{}",
                    meant.unwrap_or_default()
                ));
            }
        }
    }
    Ok(when)
}

/// Ticks that virtual time excludes for each fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ticks {
    /// As many as are measured.
    Measured,
    /// This number.
    Given(u32),
}

/// Reads a count of ticks, or `measured`.
pub fn parse_ticks(text: &str) -> Result<Ticks, String> {
    const MOST: u32 = 1_000_000;
    if text == "measured" {
        return Ok(Ticks::Measured);
    }
    match text.parse() {
        Ok(n) if n <= MOST && !text.starts_with('+') => Ok(Ticks::Given(n)),
        _ => Err(format!(
            "give a number of ticks, at most {MOST}, or no number to have the ticks measured"
        )),
    }
}

/// Reads a time in seconds: `1`, `0.2`.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|s| (0.01..=86400.0).contains(s))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "give a number of seconds from 0.01 to 86400".into())
}

/// Reads the length of an interval after which all stays end, as ns: `50ms`.
pub fn parse_interval(text: &str) -> Result<u64, String> {
    let ns = parse_time(text)?;
    match (u64::from(VMTRACE_INTERVAL_MIN)..=VMTRACE_INTERVAL_MAX).contains(&ns) {
        true => Ok(ns),
        false => Err("give a time from 1ms to 1h".into()),
    }
}

/// Reads a time of sampling, as ns: `5ms`.
pub fn parse_sample(text: &str) -> Result<u64, String> {
    let ns = parse_time(text)?;
    match (u64::from(VMTRACE_SAMPLE_MIN)..=VMTRACE_INTERVAL_MAX).contains(&ns) {
        true => Ok(ns),
        false => Err("give a time from 100us to 60min".into()),
    }
}

/// Reads how many regions there are at least and at most: `10..1000`.
pub fn parse_regions(text: &str) -> Result<Regions, String> {
    let parsed = text
        .split_once("..")
        .and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    let Some((min, max)) = parsed else {
        return Err("give the least and the most, such as 10..1000".into());
    };
    let range = VMTRACE_REGIONS_MIN..=VMTRACE_REGIONS_MAX;
    if !range.contains(&min) || !range.contains(&max) {
        return Err(format!(
            "give two numbers from {} to {}",
            range.start(),
            range.end()
        ));
    }
    match min <= max / 2 {
        true => Ok(Regions { min, max }),
        false => Err("the second number must be at least twice the first".into()),
    }
}

/// Reads a share of what changes, as thousandths: `30%`.
pub fn parse_change(text: &str) -> Result<u32, String> {
    let percent = text
        .strip_suffix('%')
        .and_then(|n| n.trim().parse::<f64>().ok());
    match percent.map(|percent| percent * 10.0) {
        Some(share) if (1.0..=f64::from(VMTRACE_CHANGE_MAX)).contains(&share) => {
            Ok(share.round() as u32)
        }
        _ => Err("give a share from 0.1% to 100%".into()),
    }
}

/// Reads how many times as long programs may take: `1.1`.
pub fn parse_slowdown(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|factor| (1.01..=100.0).contains(factor))
        .ok_or_else(|| {
            "give a factor from 1.01 to 100: 1.1 lets programs take 1.1 times as long".into()
        })
}

/// Reads the time of a reference, ns: `850`, `1.5`.
pub fn parse_cost(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|ns| (0.0..=1e9).contains(ns))
        .ok_or_else(|| "give a number of nanoseconds from 0 to 1000000000".into())
}

/// Writes a count with thousands apart: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Writes a size: `0 B`, `4.0 KiB`, `12.3 MiB`.
pub fn bytes(n: u64) -> String {
    if n < 1 << 10 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = "KiB";
    for larger in ["MiB", "GiB", "TiB", "PiB"] {
        // 1023.96 would be written as 1024.0.
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    format!("{value:.1} {unit}")
}

/// Writes a time: `0.25 s`, `12.5 s`, `3 min 5 s`, `2 h 10 min`.
pub fn duration(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..10 => format!("{:.2} s", ns as f64 / 1e9),
        10..60 => format!("{:.1} s", ns as f64 / 1e9),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_of_a_fault() {
        assert_eq!(parse_ticks("measured"), Ok(Ticks::Measured));
        assert_eq!(parse_ticks("286"), Ok(Ticks::Given(286)));
        assert_eq!(parse_ticks("1000000"), Ok(Ticks::Given(1_000_000)));
        for bad in ["", "1000001", "-1", "+1", "many"] {
            assert!(parse_ticks(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_and_lengths() {
        assert_eq!(parse_time("200ms"), Ok(200_000_000));
        assert_eq!(parse_time("1.5s"), Ok(1_500_000_000));
        assert_eq!(parse_time("0s"), Ok(0));
        assert_eq!(parse_time("2min"), Ok(120_000_000_000));
        assert_eq!(parse_time("1h"), Ok(3_600_000_000_000));
        assert_eq!(parse_interval("1h"), Ok(3_600_000_000_000));
        for bad in [
            "", "5", "s", "-1s", "0.1ns", "1e300s", "nans", "infs", "1 s", "9999999h",
        ] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_length("300"), Ok(Length::References(300)));
        assert_eq!(parse_length("10k"), Ok(Length::References(10_000)));
        assert_eq!(parse_length("2M"), Ok(Length::References(2_000_000)));
        assert_eq!(parse_length("500us"), Ok(Length::Time(500_000)));
        for bad in ["0", "0s", "+3", "-3", "10K", "18446744073709551615M", "k"] {
            assert!(parse_length(bad).is_err(), "{bad}");
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        for (bad, instead) in [("10K", "10k"), ("10Ki", "10k"), ("1.5k", "1500")] {
            let want = format!("; did you mean {instead}? k stands for 1000, and M for 1000000");
            for why in [parse_length(bad).err(), parse_rate(bad).err()] {
                assert!(why.is_some_and(|why| why.ends_with(&want)), "{bad}");
            }
        }
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("300k"), Ok(300 << 10));
        assert_eq!(parse_size("300KiB"), Ok(300 << 10));
        assert_eq!(parse_size("100M"), Ok(100 << 20));
        assert_eq!(parse_size("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_size("2G"), Ok(2 << 30));
        assert_eq!(parse_size("1"), Ok(1));
        for bad in [
            "",
            "0",
            "0G",
            "G",
            "-1G",
            "17179869184G",
            "1s",
            "1GB",
            "0.1",
            "10%",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn when_a_piece_begins() {
        let when = |bytes, time: Option<u64>| {
            let time = time.map(Duration::from_millis);
            Ok(When { bytes, time })
        };
        assert_eq!(parse_when("100M"), when(Some(100 << 20), None));
        assert_eq!(parse_when("100MiB"), when(Some(100 << 20), None));
        assert_eq!(parse_when("65536"), when(Some(65536), None));
        assert_eq!(parse_when("100ms"), when(None, Some(100)));
        assert_eq!(parse_when("10min"), when(None, Some(600_000)));
        assert_eq!(parse_when("1.5h"), when(None, Some(5_400_000)));
        assert_eq!(parse_when("1G,1h"), when(Some(1 << 30), Some(3_600_000)));
        assert_eq!(parse_when("2s,300k"), when(Some(300 << 10), Some(2000)));
        for (bad, why) in [
            ("", "give a size"),
            ("many", "\"many\": give a size"),
            (
                "10m",
                "\"10m\": write MiB for mebibytes, or min for minutes",
            ),
            ("1G,", "\"\": give"),
            ("1G,2m", "\"2m\": write MiB"),
            ("1G,2G", "\"2G\": a second size"),
            ("1s,2s", "\"2s\": a second time"),
            ("4k", "64KiB or more"),
            ("0", "64KiB or more"),
            ("99ms", "100ms or longer"),
            ("0s", "100ms or longer"),
            ("-1s", "give a size"),
            ("h", "give a size"),
            ("1GB", "give a size"),
            ("1GB", "write GiB"),
            ("1 GiB", "did you mean 1GiB?"),
        ] {
            let told = parse_when(bad).expect_err(bad);
            assert!(told.contains(why), "{bad}: {told}");
        }
    }

    #[test]
    fn flushes() {
        assert_eq!(parse_flush("100ms"), Ok(100));
        assert_eq!(parse_flush("1min"), Ok(60_000));
        assert_eq!(parse_flush("never"), Ok(0));
        for bad in ["", "0", "0ms", "99ms", "61s", "1", "Never"] {
            assert!(parse_flush(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stall_limits() {
        assert_eq!(parse_stall("1s"), Ok(1000));
        assert_eq!(parse_stall("1500ms"), Ok(1500));
        assert_eq!(parse_stall("60min"), Ok(3_600_000));
        for bad in ["", "0s", "999ms", "61min", "10", "-1s", "99999999min"] {
            assert!(parse_stall(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_as_bytes() {
        assert_eq!(parse_pages("2MiB"), Ok(Pages(512)));
        assert_eq!(parse_pages("2M"), Ok(Pages(512)));
        assert_eq!(parse_pages("2m"), Ok(Pages(512)));
        assert_eq!(parse_pages("256k"), Ok(Pages(64)));
        assert_eq!(parse_pages("1.5GiB"), Ok(Pages(3 << 17)));
        assert_eq!(parse_pages("137KiB"), Ok(Pages(34)));
        assert_eq!(parse_pages("16G"), Ok(Pages::MAX));
        for (bad, why) in [
            ("0.1", "a share would be of the footprint"),
            ("10%", "a share would be of the footprint"),
            ("MiB", "expected a number"),
            ("1.MiB", "expected a number"),
            ("-1MiB", "expected a number"),
            ("2KiB", "less than 16 pages"),
            (
                "4k",
                "less than 16 pages of 4KiB. For 4096 pages, write 4096",
            ),
            ("17GiB", "too large"),
            ("999999999TiB", "expected a number"),
            ("2MB", "write MiB"),
        ] {
            let error = parse_pages(bad).expect_err(bad);
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn a_letter_without_a_unit_is_explained() {
        for (text, hint) in [
            (
                "128k",
                "128k is a size in bytes: 32 pages of 4KiB. For 131072 pages, write 131072",
            ),
            (
                "2M",
                "2M is a size in bytes: 512 pages of 4KiB. For 2097152 pages, write 2097152",
            ),
            // No machine takes so many pages, or a part of one.
            ("16m", "16m is a size in bytes: 4,096 pages of 4KiB"),
            ("1G", "1G is a size in bytes: 262,144 pages of 4KiB"),
            ("1.5M", "1.5M is a size in bytes: 384 pages of 4KiB"),
        ] {
            let given = parse_n(text).expect(text);
            assert_eq!(given.hint.as_deref(), Some(hint));
            assert_eq!(Ok(given.pages), parse_pages(text));
        }
        for text in ["512", "128KiB", "2MiB", "0"] {
            let pages = parse_pages(text).expect(text);
            assert_eq!(parse_n(text), Ok(Given { pages, hint: None }));
        }
        assert_eq!(
            parse_n("4k"),
            parse_pages("4k").map(|pages| Given { pages, hint: None })
        );
    }

    #[test]
    fn pages_as_numbers() {
        assert_eq!(parse_pages("0"), Ok(Pages(0)));
        assert_eq!(parse_pages("512"), Ok(Pages(512)));
        assert_eq!(parse_pages("4194304"), Ok(Pages::MAX));
        for bad in [
            "",
            "-5",
            "+5",
            "5 ",
            "0x10",
            "5kk",
            "٣",
            "99999999999999999999",
        ] {
            let error = parse_pages(bad).expect_err(bad);
            assert!(error.starts_with("expected a number"), "{bad}: {error}");
        }
        assert_eq!(
            parse_pages("4194305").expect_err("above the limit"),
            "N=4194305 is too large: at most 4194304 (16.0 GiB of memory in 4 KiB pages)"
        );
    }

    proptest! {
        #[test]
        fn pages_read_back(n in 0..=Pages::MAX.0) {
            prop_assert_eq!(parse_pages(&n.to_string()), Ok(Pages(n)));
        }

        #[test]
        fn units_are_of_bytes(n in 64u64..1 << 26, m in any::<bool>()) {
            let (suffix, power) = if m { ("M", 20) } else { ("k", 10) };
            let pages = (n << power) >> 12;
            let read = parse_pages(&format!("{n}{suffix}")).ok().map(|p| u64::from(p.0));
            prop_assert_eq!(read, (pages <= u64::from(Pages::MAX.0)).then_some(pages));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC*") {
            if let Ok(pages) = parse_pages(&text) {
                prop_assert!(pages <= Pages::MAX);
                prop_assert!(text.starts_with(|c: char| c.is_ascii_digit()));
            }
        }

        #[test]
        fn thousands_keep_the_digits(n in any::<u64>()) {
            prop_assert_eq!(count(n).replace(',', ""), n.to_string());
        }
    }

    #[test]
    fn buffer_sizes() {
        assert_eq!(parse_buffer_size("4096"), Ok(4096));
        assert_eq!(parse_buffer_size("64k"), Ok(65536));
        assert_eq!(parse_buffer_size("1M"), Ok(1 << 20));
        for bad in ["0", "2048", "5000", "2M"] {
            parse_buffer_size(bad).expect_err(bad);
        }
    }

    #[test]
    fn seconds() {
        assert_eq!(parse_seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["0", "-1", "NaN", "inf", "x"] {
            parse_seconds(bad).expect_err(bad);
        }
    }

    #[test]
    fn costs() {
        assert_eq!(parse_cost("850.5"), Ok(850.5));
        assert_eq!(parse_cost("0"), Ok(0.0));
        for bad in ["", "-1", "NaN", "inf", "1e10", "1us"] {
            parse_cost(bad).expect_err(bad);
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1000), "1,000");
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(4096), "4.0 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(12_897_485), "12.3 MiB");
        assert_eq!(bytes(u64::MAX), "16384.0 PiB");
        assert_eq!(duration(250_000_000), "0.25 s");
        assert_eq!(duration(12_540_000_000), "12.5 s");
        assert_eq!(duration(185_000_000_000), "3 min 5 s");
        assert_eq!(duration(7_800_000_000_000), "2 h 10 min");
    }
}
