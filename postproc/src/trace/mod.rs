//! The trace file: opening, finding its packets, reading records in order.
//!
//! A [`Trace`] is opened in one cheap pass over the heads of its packets, which
//! gives a [`PacketIndex`]: eight bytes a packet, in a temporary file if there are
//! many. [`Merge`] then walks all streams at once and gives records in the order
//! of their sequence numbers, verifying each packet's checksum as it comes to it.
//! Damage costs the packet it hit and is listed as [`Damage`]; reading goes on
//! behind it.

mod damage;
mod fields;
mod index;
mod merge;
mod offsets;
mod source;
pub mod wire;

pub use damage::{Damage, DamageKind};
pub use fields::Fields;
pub use index::{EndPacket, PacketIndex, StreamIndex, WindowPacket};
pub use merge::{Merge, PacketSeen, Ready, Step};
pub use offsets::Offsets;
pub use source::Trace;
pub use wire::{
    Body, Event, FileBody, FileId, FileKind, FrameBody, Header, IoBody, MapBody, MapKind,
    PacketHead, Ref, RefFlags, ShmBody, Status, StreamId, StreamKind, Uuid, Why, WindowAccount,
    WindowEnd, WindowPlan, event_name,
};
