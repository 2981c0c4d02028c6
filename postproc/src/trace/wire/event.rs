//! Events: what changed an address space, and what else happened.

use std::mem::offset_of;

use byteorder::{ByteOrder, LittleEndian as LE};
use rust_mm_trace::events;
use rust_mm_trace::uapi;

use super::{Body, EVENT_SIZE, Header, MOST, read};
use crate::trace::fields::Fields;
use crate::units::{Mm, Tid};

/// An event record.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// Where the record lies in the file.
    pub offset: u64,
    /// `VMTRACE_EV_*`.
    pub number: u16,
    /// `VMTRACE_EVF_*`.
    pub flags: u32,
    /// Global sequence number.
    pub seq: u64,
    /// When it happened.
    pub time_ns: u64,
    /// The thread that caused it.
    pub tid: Tid,
    /// Its process.
    pub tgid: Tid,
    /// The address space that it is about, 0 if none.
    pub mm: Mm,
    /// Where it happened.
    pub cpu: u32,
    /// The thread's virtual time, in ticks, if the trace has it.
    pub vtime: Option<u64>,
    /// The rest.
    pub body: Body<'a>,
    /// Why the event is no news, if it is none. Then [`Event::body`] is [`Body::Aside`], so that nobody
    /// follows what it says, and [`Event::said`] is that.
    pub aside: Option<NoNews>,
    /// Its own fields, as they are in the trace.
    pub payload: &'a [u8],
    /// All of it, as it is in the trace.
    pub(crate) raw: &'a [u8],
}

/// Why an event is no news.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoNews {
    /// It is of a checkpoint: it describes what earlier events have recorded.
    Repeats,
    /// It is about an address space that was ending when the piece began, so no description has that
    /// address space.
    Undescribed,
}

impl<'a> Event<'a> {
    /// Whether the event describes something that existed before tracing began.
    pub fn is_snapshot(&self) -> bool {
        self.flags & uapi::VMTRACE_EVF_SNAPSHOT != 0
    }

    /// What the event says, also if that is no news.
    pub fn said(&self) -> Body<'a> {
        match self.aside {
            None => self.body,
            // It could be decoded before.
            Some(_) => Body::decode(self.number, self.payload).unwrap_or(Body::Unknown),
        }
    }

    /// The same event, as one that is no news.
    pub(in crate::trace) fn set_aside(self, why: NoNews) -> Self {
        Event {
            body: Body::Aside,
            aside: Some(why),
            ..self
        }
    }

    /// Whether it is of the description of a piece. It has no sequence number of its own then.
    pub fn is_state(&self) -> bool {
        self.flags & uapi::VMTRACE_EVF_STATE != 0
    }

    /// The event's name, as in `VMTRACE_EV_*`.
    pub fn name(&self) -> &'static str {
        event_name(self.number)
    }
}

/// The name of an event's number, as in `VMTRACE_EV_*`.
pub fn event_name(number: u16) -> &'static str {
    events::name(number).unwrap_or("unknown")
}

/// All names that [`event_name`] gives.
pub fn event_names() -> Vec<&'static str> {
    events::ALL.iter().map(|(_, name, _)| *name).collect()
}

/// More bytes than the own fields of any type of event have, apart from names.
const MOST_FIELDS: usize = 256;

/// Gives the own fields of events of this name, all of them zero or empty: so a table of events can
/// be made before there is an event. An unknown name has none.
pub fn event_fields(name: &str, to: &mut dyn Fields) {
    let number = events::ALL.iter().find(|(_, known, _)| *known == name);
    let number = number.and_then(|(number, ..)| u16::try_from(*number).ok());
    if let Some(Ok(body)) = number.map(|number| Body::decode(number, &[0; MOST_FIELDS])) {
        body.fields(to);
    }
}

/// Why an event record cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(pub &'static str);

/// Marks an event without virtual time; bindgen makes it a signed number.
pub(crate) const NO_VTIME: u64 = uapi::VMTRACE_VTIME_NONE as u64;

/// The sequence number of the event at the start of `b`.
pub(crate) fn peek_event_seq(b: &[u8]) -> Option<u64> {
    (b.len() >= EVENT_SIZE).then(|| get!(b, uapi::vmtrace_event, seq, u64))
}

/// The time of the event at the start of `b`.
pub(crate) fn peek_event_time(b: &[u8]) -> Option<u64> {
    (b.len() >= EVENT_SIZE).then(|| get!(b, uapi::vmtrace_event, time, u64))
}

/// Decodes the event at the start of `b`, in a trace with this header. Also returns the size
/// of the event.
pub(crate) fn decode_event<'b>(
    b: &'b [u8],
    offset: u64,
    header: &Header,
) -> Result<(Event<'b>, usize), Malformed> {
    let head_size = header.event_head_size();
    let head = read::<uapi::vmtrace_event>(b).filter(|_| b.len() >= head_size);
    let Some(head) = head else {
        return Err(Malformed("the content ends inside an event's head"));
    };
    let size = usize::from(head.size);
    if size < head_size || size % 8 != 0 {
        return Err(Malformed("an event's size is impossible"));
    }
    if size > b.len() {
        return Err(Malformed("an event is longer than the rest of its packet"));
    }
    let (number, seq, time_ns, cpu) = (head.type_, head.seq, head.time, head.cpu);
    if seq > MOST || time_ns > MOST || cpu >= header.nr_cpus {
        return Err(Malformed(
            "an event with an impossible sequence number, time or CPU",
        ));
    }
    let vtime = b[EVENT_SIZE..head_size]
        .first_chunk()
        .map(|raw| u64::from_le_bytes(*raw));
    let payload = &b[head_size..size];
    let body = Body::decode(number, payload)?;
    let event = Event {
        offset,
        number,
        flags: head.flags,
        seq,
        time_ns,
        tid: Tid(head.tid),
        tgid: Tid(head.tgid),
        mm: Mm(head.mm),
        cpu,
        vtime: vtime.filter(|&ticks| ticks != NO_VTIME),
        body,
        aside: None,
        payload,
        raw: &b[..size],
    };
    let repeats = event.flags & uapi::VMTRACE_EVF_CHECKPOINT != 0
        && !matches!(body, Body::Checkpoint { .. } | Body::CheckpointEnd);
    let event = match repeats {
        true => event.set_aside(NoNews::Repeats),
        false => event,
    };
    Ok((event, size))
}
