//! Copies of a damaged trace what can be verified, and says what is missing.

use std::io::Write;

use serde::Serialize;

use super::damage::DamageKind;
use super::index::head_at;
use super::source::Trace;
use super::wire::{HEADER_SIZE, StreamId};
use crate::error::{Error, OutputContext, Result};
use crate::pipeline::Observer;

/// Packets that a stream lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The stream.
    #[serde(flatten)]
    pub stream: StreamId,
    /// The number of the first packet that is missing.
    pub first_packet: u64,
    /// The number of the last packet that is missing.
    pub last_packet: u64,
    /// The last record number of the packet before them; `None` if they are the first.
    pub after_seq: Option<u64>,
    /// The first record number of the packet after them.
    pub before_seq: u64,
}

/// Bytes that were left out.
#[derive(Clone, Debug, Serialize)]
pub struct Skipped {
    /// The first byte.
    pub start: u64,
    /// The first byte after them.
    pub end: u64,
    /// What is wrong with them.
    pub kind: DamageKind,
    /// The same in words.
    pub detail: String,
}

/// What was copied, and what is missing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Recovered {
    /// Whether nothing is missing.
    pub complete: bool,
    /// Packets that were copied, without the END packet.
    pub packets: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Whether there is an END packet. Without it, nobody knows what is missing at the end.
    pub end: bool,
    /// Packets before the END packet that the kernel wrote, as its account says.
    pub packets_written: Option<u64>,
    /// Time of the latest record that was copied, in ns since the trace began.
    pub last_time_ns: Option<u64>,
    /// Packets with the number of an earlier one of their stream, which were copied too.
    pub repeated: u64,
    /// What the streams lack between and before their packets.
    pub missing: Vec<Missing>,
    /// What was left out of the file.
    pub skipped: Vec<Skipped>,
    /// Bytes that were left out.
    pub skipped_bytes: u64,
}

/// Bytes that are copied at a time.
const PART: u64 = 1 << 20;

/// Copies the header and each packet whose checksum holds to `out`, which messages call `name`, in
/// the order of the file. The trace was opened by [`Trace::open_damaged`].
///
/// # Errors
///
/// Reading or writing failed, or [`Error::Interrupted`].
pub fn recover(
    trace: &Trace,
    mut out: impl Write,
    name: &str,
    observer: &mut dyn Observer,
) -> Result<Recovered> {
    let index = trace.index();
    let mut done = Recovered::default();
    let mut write = |bytes: &[u8]| {
        done.bytes += bytes.len() as u64;
        out.write_all(bytes).writing(name)
    };
    write(trace.raw_header())?;
    // What is not damaged are packets.
    let mut at = HEADER_SIZE as u64;
    let damage = index.damage.iter().map(|d| (d.start, d.end));
    let mut part = Vec::new();
    for (start, next) in damage.chain([(index.stop, index.stop)]) {
        while at < start.min(index.stop) {
            if !observer.progress(at, index.stop) {
                return Err(Error::Interrupted);
            }
            part.resize((start.min(index.stop) - at).min(PART) as usize, 0);
            let read = trace.bytes().read(at, &mut part);
            read.map_err(|source| trace.unreadable(source))?;
            write(&part)?;
            at += part.len() as u64;
        }
        at = at.max(next);
    }
    out.flush().writing(name)?;
    done.packets = index.packets();
    done.records = index.streams.iter().map(|s| s.records).sum();
    done.end = index.end.is_some();
    done.packets_written = index.end.as_ref().map(|end| end.status.packets);
    let start = trace.header().start_time_ns;
    done.last_time_ns = index
        .time_span()
        .map(|(_, last)| last.saturating_sub(start));
    for stream in &index.streams {
        // A piece may begin with any packet of a stream of the trace.
        let begins_anywhere = trace.header().is_piece() && !stream.id.kind.is_of_piece();
        let (mut expected, mut after_seq) = (0, None);
        for (i, at) in stream.packets.iter().enumerate() {
            let head = head_at(trace.bytes(), at).map_err(|e| trace.unreadable(e))?;
            // The file may have changed.
            let Some(head) = head else { continue };
            if begins_anywhere && i == 0 {
                expected = head.seq;
            }
            if head.seq > expected {
                done.missing.push(Missing {
                    stream: stream.id,
                    first_packet: expected,
                    last_packet: head.seq - 1,
                    after_seq,
                    before_seq: head.first_seq,
                });
            }
            if head.seq < expected {
                done.repeated += 1;
                continue;
            }
            expected = head.seq.saturating_add(1);
            after_seq = Some(head.last_seq);
        }
    }
    let skipped = index.damage.iter().map(|d| Skipped {
        start: d.start,
        end: d.end,
        kind: d.kind,
        detail: d.detail.clone(),
    });
    done.skipped = skipped.collect();
    done.skipped_bytes = done.skipped.iter().map(|s| s.end - s.start).sum();
    let all_there = done.packets_written.is_some_and(|n| n <= done.packets);
    done.complete =
        all_there && done.repeated == 0 && done.missing.is_empty() && done.skipped.is_empty();
    Ok(done)
}
