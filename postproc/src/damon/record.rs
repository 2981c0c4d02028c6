//! The record of a real DAMON.
//!
//! Two kinds of record are read, which are recognised by their content:
//!
//! - those of `damo record` (damo 3.x: `json`, and `json_compressed`, JSON in a zlib
//!   stream);
//! - the text of the tracepoint `damon:damon_aggregated`, as tracefs's `trace` and
//!   `trace_pipe` and `perf script` print it. A guest needs only the kernel for it. The times
//!   are those of the trace clock: `echo mono > trace_clock` selects kVMTrace's clock. A
//!   snapshot begins where the one before it ended.
//!
//! Other events and lines are skipped.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use flate2::read::ZlibDecoder;
use serde_json::Value;

use crate::error::{Error, Result};

/// Pages to which DAMON gives one count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// Sampling intervals in which the page that was looked at had been accessed.
    pub accesses: u32,
}

/// DAMON's record of an aggregation interval.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// When the interval began, in ns.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// In order of address.
    pub regions: Vec<Region>,
}

/// A record of DAMON.
#[derive(Clone, Default, Debug)]
pub struct Record {
    /// By target, in order of time.
    pub targets: BTreeMap<u64, Vec<Snapshot>>,
    /// The sampling interval, if the record has it.
    pub sampling_ns: Option<u64>,
}

const FORMAT: &str = "damon";

fn malformed(path: &Path, place: String, why: impl Into<String>) -> Error {
    Error::Import {
        path: path.into(),
        format: FORMAT,
        place,
        why: why.into(),
    }
}

impl Record {
    /// Reads a record; `aggregation_ns` is how long the first interval of a tracepoint's
    /// text is taken to have been.
    ///
    /// # Errors
    ///
    /// [`Error::Unreadable`], [`Error::Import`].
    pub fn open(path: &Path, aggregation_ns: u64) -> Result<Self> {
        let unreadable = |source| Error::Unreadable {
            path: path.into(),
            source,
        };
        let mut bytes = std::fs::read(path).map_err(unreadable)?;
        // Of a zlib stream the first two bytes are a multiple of 31.
        if let [0x78, second, ..] = bytes[..] {
            if (0x7800 + u32::from(second)) % 31 == 0 {
                let mut plain = Vec::new();
                ZlibDecoder::new(&bytes[..])
                    .read_to_end(&mut plain)
                    .map_err(unreadable)?;
                bytes = plain;
            }
        }
        let text = String::from_utf8_lossy(&bytes);
        let mut record = match text.trim_start().starts_with(['[', '{']) {
            true => {
                let value = serde_json::from_str(&text)
                    .map_err(|e| malformed(path, format!("line {}", e.line()), e.to_string()))?;
                of_json(&value).map_err(|why| malformed(path, "the JSON".into(), why))?
            }
            false => of_text(&text, aggregation_ns)
                .map_err(|(line, why)| malformed(path, format!("line {line}"), why))?,
        };
        record.targets.retain(|_, snapshots| !snapshots.is_empty());
        for snapshots in record.targets.values_mut() {
            snapshots.sort_by_key(|s| (s.start, s.end));
            for snapshot in snapshots {
                snapshot.regions.sort_by_key(|r| r.start);
            }
        }
        if record.targets.is_empty() {
            return Err(malformed(
                path,
                "all of it".into(),
                "no snapshot of DAMON; expected a record of `damo record` in its json or \
                 json_compressed format, or lines of the tracepoint damon_aggregated",
            ));
        }
        Ok(record)
    }
}

/// damo writes numbers, and numbers as words: `5000`, `"5,000"`.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(n) => n.as_u64().or_else(|| n.as_f64().map(|f| f.max(0.0) as u64)),
        Value::String(s) => s.trim().replace(',', "").parse().ok(),
        _ => None,
    }
}

fn of_json(value: &Value) -> std::result::Result<Record, String> {
    let mut record = Record::default();
    let one = std::slice::from_ref(value);
    let parts = value.as_array().map_or(one, Vec::as_slice);
    for part in parts {
        let field = |from: &Value, name: &str| {
            number(&from[name]).ok_or(format!("no number called {name} in {from:.60}"))
        };
        if let Some(sample_us) = number(&part["intervals"]["sample_us"]) {
            record.sampling_ns = Some(sample_us.saturating_mul(1000));
        }
        let target = field(part, "target_id")?;
        let snapshots = part["snapshots"]
            .as_array()
            .ok_or("a record without snapshots")?;
        let to = record.targets.entry(target).or_default();
        for snapshot in snapshots {
            let regions = snapshot["regions"]
                .as_array()
                .ok_or("a snapshot without regions")?;
            to.push(Snapshot {
                start: field(snapshot, "start_time")?,
                end: field(snapshot, "end_time")?,
                regions: regions
                    .iter()
                    .map(|r| {
                        let accesses = number(&r["nr_accesses"]["samples"])
                            .or_else(|| number(&r["nr_accesses"]))
                            .ok_or("a region without nr_accesses")?;
                        Ok(Region {
                            start: field(r, "start")?,
                            end: field(r, "end")?,
                            accesses: u32::try_from(accesses).unwrap_or(u32::MAX),
                        })
                    })
                    .collect::<std::result::Result<_, String>>()?,
            });
        }
    }
    Ok(record)
}

/// `kdamond.0-61 [000] ..... 12.345678: damon_aggregated: target_id=0 nr_regions=10
/// 93824-93828: 5 3`; perf puts `damon:` before the name.
fn of_text(text: &str, aggregation_ns: u64) -> std::result::Result<Record, (usize, &'static str)> {
    let mut record = Record::default();
    // By target: regions that the snapshot under way still lacks.
    let mut missing: BTreeMap<u64, u64> = BTreeMap::new();
    for (i, line) in text.lines().enumerate() {
        let Some((before, after)) = line.split_once("damon_aggregated: ") else {
            continue;
        };
        let fault = |why| (i + 1, why);
        let time = before
            .trim_end_matches("damon:")
            .trim_end()
            .trim_end_matches(':');
        let time = time.rsplit(' ').next().and_then(seconds);
        let time = time.ok_or(fault("no time in seconds before the event's name"))?;
        let mut words = after.split_whitespace();
        let mut named = |name: &str| {
            let value = words.next()?.strip_prefix(name)?;
            value.parse::<u64>().ok()
        };
        let target = named("target_id=").ok_or(fault("no target_id"))?;
        let count = named("nr_regions=").ok_or(fault("no nr_regions"))?;
        let range = words.next().and_then(|w| w.strip_suffix(':'));
        let range = range.and_then(|w| w.split_once('-'));
        let region = range.and_then(|(start, end)| {
            Some(Region {
                start: start.parse().ok()?,
                end: end.parse().ok()?,
                accesses: words.next()?.parse().ok()?,
            })
        });
        let region = region.ok_or(fault("no region of the form `start-end: nr_accesses age`"))?;
        let snapshots = record.targets.entry(target).or_default();
        let missing = missing.entry(target).or_default();
        if *missing == 0 {
            let start = snapshots
                .last()
                .map_or(time.saturating_sub(aggregation_ns), |s: &Snapshot| s.end);
            snapshots.push(Snapshot {
                start,
                end: time,
                regions: Vec::new(),
            });
            *missing = count;
        }
        *missing = missing.saturating_sub(1);
        if let Some(snapshot) = snapshots.last_mut() {
            snapshot.regions.push(region);
        }
    }
    Ok(record)
}

/// `12.345678` in nanoseconds, exactly.
fn seconds(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.')?;
    if part.is_empty() || part.len() > 9 || !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    let part: u64 = format!("{part:0<9}").parse().ok()?;
    whole.checked_mul(1_000_000_000)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8]) -> Result<Record> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        Record::open(file.path(), 100_000_000)
    }

    #[test]
    fn a_tracepoints_text() {
        let text = "# tracer: nop\n\
            kdamond.0-61  [000] .....    12.000000: damon_aggregated: target_id=0 nr_regions=2 4096-8192: 5 3\n\
            kdamond.0-61  [000] .....    12.000001: sched_switch: x\n\
            kdamond.0-61  [000] .....    12.000001: damon_aggregated: target_id=0 nr_regions=2 8192-20480: 0 3\n\
            kdamond.0-61  [000] .....    12.100000: damon:damon_aggregated: target_id=0 nr_regions=1 4096-20480: 2 0\n";
        let record = read(text.as_bytes()).unwrap();
        let snapshots = &record.targets[&0];
        assert_eq!(snapshots.len(), 2);
        assert_eq!(
            (snapshots[0].start, snapshots[0].end),
            (11_900_000_000, 12_000_000_000)
        );
        assert_eq!(
            (snapshots[1].start, snapshots[1].end),
            (12_000_000_000, 12_100_000_000)
        );
        assert_eq!(snapshots[0].regions[1].end, 20480);
        assert_eq!(snapshots[1].regions[0].accesses, 2);
        assert_eq!(record.sampling_ns, None);
    }

    #[test]
    fn damos_json_plain_and_packed() {
        let json = r#"[{"target_id":"7","intervals":{"sample_us":"5,000","aggr_us":"100,000"},
            "snapshots":[{"start_time":"1,000","end_time":2000,"regions":[
            {"start":"4,096","end":8192,"nr_accesses":{"samples":3,"percent":null},"age":{}}]}]}]"#;
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        std::io::Write::write_all(&mut zlib, json.as_bytes()).unwrap();
        for bytes in [json.as_bytes().to_vec(), zlib.finish().unwrap()] {
            let record = read(&bytes).unwrap();
            assert_eq!(record.sampling_ns, Some(5_000_000));
            let region = Region {
                start: 4096,
                end: 8192,
                accesses: 3,
            };
            assert_eq!(record.targets[&7][0].regions, [region]);
            assert_eq!(record.targets[&7][0].start, 1000);
        }
    }

    #[test]
    fn what_is_no_record_is_told() {
        for (bytes, why) in [
            (&b"hello\n"[..], "no snapshot of DAMON"),
            (b"[{]", "line 1"),
            (b"[{\"snapshots\":[]}]", "target_id"),
            (b" x damon_aggregated: target_id=0", "no time"),
            (
                b" 1.5: damon_aggregated: target_id=0 nr_regions=1 5: 3",
                "no region",
            ),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
