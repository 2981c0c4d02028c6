//! The trace file: opening, finding its packets, reading records in order.
//!
//! A [`Trace`] is opened in one cheap pass over the heads of its packets, which
//! gives a [`PacketIndex`]: eight bytes a packet, in a temporary file if there are
//! many. [`Merge`] then walks all streams at once and gives records in the order
//! of their sequence numbers. It verifies each packet's checksum when it reads the packet.
//! Damage costs only the packet that it hits, and is listed as [`Damage`]; reading goes on
//! after that packet.

pub(crate) mod codec;
mod damage;
mod describe;
mod fields;
mod index;
mod input;
mod known;
pub(crate) mod merge;
mod offsets;
pub(crate) mod part;
mod parts;
pub(crate) mod piece;
mod pieces;
mod recover;
mod repack;
mod source;
mod split;
mod unite;
pub mod wire;

pub use damage::{Damage, DamageKind};
pub use fields::{Fields, Members};
pub use index::{EndPacket, PacketIndex, StreamIndex, WindowPacket};
pub use input::UNKNOWN;
pub use merge::{Merge, PacketSeen, Ready, Step};
pub use offsets::Offsets;
pub use part::{DividedTrace, FRAME_NAME, MadePart, Part, Reunited, are_parts};
pub use parts::divide;
pub use piece::{Piece, PieceEnd};
pub use pieces::{Joined, LaterPiece, join};
pub use recover::{Missing, Recovered, Skipped, recover};
pub use repack::{Form, Repacked, repack};
pub use source::Trace;
pub use split::{By, MadePiece, Plan, SplitTrace, plan, split};
pub use unite::unite;
pub use wire::{
    Body, Event, FileBody, FileId, FileKind, FrameBody, Header, IoBody, MapBody, MapKind, NoNews,
    PacketHead, Place, Ref, RefFlags, RegionBody, SampledBy, Sampling, Sets, ShmBody, Status,
    StreamId, StreamKind, Uuid, Why, WindowAccount, WindowEnd, WindowPlan, event_name,
    mend_checksums,
};
