//! Damaged parts of a trace.

use serde::Serialize;

use super::wire::StreamId;

/// What is wrong with a part of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// A packet whose checksum does not hold.
    Checksum,
    /// Bytes where a packet should begin.
    NotAPacket,
    /// A packet of another trace.
    ForeignUuid,
    /// The file ends inside a packet.
    Truncated,
    /// The checksum is right, but the content is impossible.
    Malformed,
    /// The header of the trace is damaged, and was taken from another file.
    Header,
    /// A piece of the trace is missing, damaged or cut short.
    Piece,
    /// The compressed file or pipe that has the trace is damaged or cut off.
    Compression,
}

/// A part of the file that was skipped.
#[derive(Clone, Debug, Serialize)]
pub struct Damage {
    /// What is wrong.
    pub kind: DamageKind,
    /// First byte that was skipped.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// The stream that lost a packet, as far as the head can be believed.
    pub stream: Option<StreamId>,
    /// Sequence numbers between the stream's neighbouring good packets, both
    /// exclusive: what is missing lies between them.
    pub gap: Option<(u64, u64)>,
    /// More, in words.
    pub detail: String,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bytes {}..{}: {}", self.start, self.end, self.detail)?;
        if let Some(stream) = self.stream {
            write!(f, " (stream {stream})")?;
        }
        match self.gap {
            Some((before, u64::MAX)) => {
                write!(
                    f,
                    "; the stream misses what followed sequence number {before}"
                )
            }
            Some((before, after)) => {
                write!(
                    f,
                    "; the stream misses records between sequence numbers {before} and {after}"
                )
            }
            None => Ok(()),
        }
    }
}
