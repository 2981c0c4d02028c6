// SPDX-License-Identifier: GPL-2.0

//! The way out: kvmtraced makes full sub-buffers packets of the output.
//!
//! Only kvmtraced uses the output, from the header to the end, because the output may stop
//! answering. Other tasks leave requests, and the wait of each has a limit of its own. So a
//! write that never returns holds up kvmtraced and what kvmtraced has yet to free, and no
//! other task.

use crate::{
    changes::{changed, seen, wait},
    events,
    hot::{self, Refs},
    packer::Packer,
    pieces::Piece,
    progress::progressed,
    record::{self, PacketHead},
    ring::{Meta, Packet, HEAD},
    rotate::{self, Due},
    scopes, session,
    sink::Sink,
    throttle::{relieve, set_waits},
    Store,
};
use kernel::{
    bindings,
    cpu::nr_cpu_ids,
    crc32::crc32c,
    kthread::KThread,
    new_condvar, new_spinlock,
    prelude::*,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        CondVar, SetOnce, SpinLock,
    },
    time::msecs_to_jiffies,
    transmute::AsBytes,
};

/// A second, in jiffies.
pub(crate) const HZ: u64 = bindings::HZ as u64;

/// How long somebody waits for kvmtraced at most while that gets nothing done, ms.
pub(crate) const PATIENCE: u32 = 1000;

/// What kvmtraced writes to.
pub(crate) struct Output {
    pub(crate) sink: Sink,
    uuid: [u8; 16],
    /// Packets about windows.
    windows: u64,
    /// Packs packets, if they are to be packed.
    packer: Option<Packer>,
    /// The piece that is written, if the trace is in pieces.
    pub(crate) piece: Option<Piece>,
    /// Jiffies between two ticks; 0: no ticks.
    every: u64,
    /// When the last tick was.
    last_tick: u64,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    /// A packet to be written after all that is in the rings.
    unsafe(uninit) static MAIL: Mutex<Option<Packet>> = None;
}

/// Flushes of the rings: how many were asked for, and how many of those were done.
static ASKED: Atomic<u64> = Atomic::new(0);
static FLUSHED: Atomic<u64> = Atomic::new(0);

/// Nothing more is recorded: kvmtraced is to write what is left and to end.
static LAST: Atomic<bool> = Atomic::new(false);

/// Records that kvmtraced has taken from the rings and not written yet.
pub(crate) static HELD: Atomic<u64> = Atomic::new(0);

pub(crate) static REFS: Atomic<u64> = Atomic::new(0);
pub(crate) static EVENT_RECORDS: Atomic<u64> = Atomic::new(0);
pub(crate) static PACKETS: Atomic<u64> = Atomic::new(0);
/// Bytes that were written, before their content was packed; and as they were written.
pub(crate) static BYTES: Atomic<u64> = Atomic::new(0);
pub(crate) static STORED: Atomic<u64> = Atomic::new(0);
pub(crate) static LOST_IO: Atomic<u64> = Atomic::new(0);
/// The window whose packets are written. All packets of a window are written
/// before the next window begins.
pub(crate) static WINDOW: Atomic<u32> = Atomic::new(0);
/// The errno, negative, that ended the trace; 0 if nothing failed.
pub(crate) static ERROR: Atomic<i32> = Atomic::new(0);

/// What kvmtraced waits for.
#[pin_data]
struct Work {
    #[pin]
    kicked: SpinLock<bool>,
    #[pin]
    wake: CondVar,
}

/// What [`Work::kicked`] is, to look at without its lock.
static KICKED: Atomic<bool> = Atomic::new(false);

static WORK: SetOnce<Pin<KBox<Work>>> = SetOnce::new();

/// Makes the locks usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: By the caller's promise.
    unsafe { MAIL.init() };
    let work = KBox::pin_init(
        pin_init!(Work {
            kicked <- new_spinlock!(false, "vmtrace::kicked"),
            wake <- new_condvar!("vmtrace::wake"),
        }),
        GFP_KERNEL,
    )?;
    WORK.populate(work);
    Ok(())
}

/// Sets the figures of this module to those of a trace that begins.
pub(crate) fn reset() {
    for counter in [&REFS, &EVENT_RECORDS, &PACKETS, &BYTES, &STORED, &LOST_IO] {
        counter.store(0, Relaxed);
    }
    WINDOW.store(0, Relaxed);
    HELD.store(0, Relaxed);
    ERROR.store(0, Relaxed);
    LAST.store(false, Relaxed);
    *MAIL.lock() = None;
}

/// The output that was tried gets nothing more: what was written there is not of the trace. A trace from boot
/// may get another output.
pub(crate) fn forget_output() {
    BYTES.store(0, Relaxed);
    STORED.store(0, Relaxed);
}

pub(crate) fn nr_cpus() -> usize {
    nr_cpu_ids() as usize
}

pub(crate) fn jiffies() -> u64 {
    // SAFETY: An aligned word, which the timer's interrupt stores as a whole. A volatile load is what
    // READ_ONCE() does.
    unsafe { (&raw const bindings::jiffies).read_volatile() as u64 }
}

/// The checksum of headers and packets.
pub(crate) fn crc(data: &[u8]) -> u32 {
    !crc32c(!0, data)
}

impl Output {
    /// An output to a file, with what packs the packets. A record stays in the rings for `flush_ms` at
    /// most, if that is not 0.
    pub(crate) fn new(sink: Sink, uuid: [u8; 16], packer: Option<Packer>, flush_ms: u32) -> Output {
        Output {
            sink,
            uuid,
            windows: 0,
            packer,
            piece: None,
            // A record can be taken after two ticks.
            every: msecs_to_jiffies(flush_ms / 2) as u64,
            last_tick: jiffies(),
        }
    }

    /// Writes data, which were `raw` bytes before their content was packed.
    fn write(&mut self, data: &[u8], raw: usize) -> Result {
        self.sink.write(data)?;
        BYTES.add(raw as u64, Relaxed);
        STORED.add(data.len() as u64, Relaxed);
        if let Some(piece) = &mut self.piece {
            piece.wrote(data);
        }
        Ok(())
    }

    /// Makes what is too old ready to be taken, and asks the disk to take what was written, if it is
    /// time for that.
    fn tick(&mut self) {
        let now = jiffies();
        if self.every == 0 || now.wrapping_sub(self.last_tick) < self.every {
            return;
        }
        self.last_tick = now;
        hot::tick();
        events::tick();
        self.sink.send();
    }

    /// How long to wait for work, in jiffies.
    fn moment(&self) -> u64 {
        let most = msecs_to_jiffies(100) as u64;
        match self.every {
            0 => most,
            every => every.min(most),
        }
    }

    fn close(mut self) {
        if let Some(piece) = &mut self.piece {
            piece.give_up();
        }
        self.sink.close();
    }

    /// Opens the next piece's file, or gives it up, if that was asked for.
    fn rotate(&mut self) {
        if self.piece.is_none() {
            return;
        }
        match rotate::due() {
            Some(Due::Open(sink)) => rotate::opened(self.open_next(sink)),
            Some(Due::GiveUp(e)) => self.give_up(e),
            None => {}
        }
    }

    /// The trace goes on in the present file.
    fn give_up(&mut self, e: Error) {
        if let Some(piece) = &mut self.piece {
            piece.give_up();
        }
        rotate::dropped(e);
    }

    /// Writes a packet of events to the next piece's file, too, if there is one.
    fn copy(&mut self, data: &[u8]) -> Result {
        match &mut self.piece {
            Some(piece) => piece.copy(data),
            None => Ok(()),
        }
    }

    /// Writes the packets of a sub-buffer; a failure ends the trace and is counted.
    pub(crate) fn packet(&mut self, kind: u32, cpu: usize, packet: &mut Packet) {
        let records = packet.records();
        HELD.store(records, Relaxed);
        let mut ok = false;
        if ERROR.load(Relaxed) == 0 {
            let mut packer = self.packer.take_if(|_| is_of_records(kind));
            let packets = self.seal(kind, cpu, packet, packer.as_mut());
            let raw = packet.bytes();
            let data = packer.as_ref().map_or(Ok(raw), Packer::packed);
            match data.and_then(|data| self.write(data, raw.len()).map(|()| data)) {
                Ok(data) => {
                    ok = true;
                    if kind == bindings::VMTRACE_STREAM_EVENT {
                        if let Err(e) = self.copy(data) {
                            self.give_up(e);
                        }
                    }
                    // The end is not among what it counts.
                    if kind != bindings::VMTRACE_STREAM_END {
                        PACKETS.add(packets, Relaxed);
                    }
                }
                Err(e) => fail(e),
            }
            self.packer = self.packer.take().or(packer);
        }
        progressed();
        HELD.store(0, Relaxed);
        match kind {
            _ if !ok => LOST_IO.add(records, Relaxed),
            bindings::VMTRACE_STREAM_REF => REFS.add(records, Relaxed),
            bindings::VMTRACE_STREAM_EVENT => EVENT_RECORDS.add(records, Relaxed),
            _ => {}
        }
    }

    /// Writes the heads of the packets of a sub-buffer. If there is a packer, it gets the packets
    /// as they are to be written. Gives how many there are.
    pub(crate) fn seal(
        &mut self,
        kind: u32,
        cpu: usize,
        packet: &mut Packet,
        mut packer: Option<&mut Packer>,
    ) -> u64 {
        let mut packets = 0u64;
        if let Some(packer) = &mut packer {
            packer.begin();
        }
        packet.each(|bytes, meta| {
            packets = packets.wrapping_add(1);
            let mut meta = *meta;
            if kind == bindings::VMTRACE_STREAM_WINDOW {
                meta.before.packets = self.windows;
                self.windows = self.windows.wrapping_add(1);
            }
            if let Some(piece) = self.piece.as_mut().filter(|_| is_of_pieces(kind)) {
                let cut = match kind == bindings::VMTRACE_STREAM_EVENT && piece.has_next() {
                    true => rotate::next_seq_of_events(),
                    false => 0,
                };
                piece.count(kind, bytes, &meta, cut);
            }
            let packed = packer.as_mut().and_then(|p| p.pack(kind, bytes));
            let head = PacketHead {
                magic: bindings::VMTRACE_PACKET_MAGIC,
                uuid: &self.uuid,
                kind,
                cpu: cpu as u32,
                window: WINDOW.load(Relaxed),
                packed,
            };
            let seal = |bytes: &mut [u8]| {
                record::put_packet(bytes, &head, &meta);
                let sum = crc(bytes);
                record::put(bytes, record::PACKET_CRC_AT, &sum.to_le_bytes());
            };
            match &mut packer {
                Some(packer) => packer.seal(bytes, packed, seal),
                None => seal(bytes),
            }
        });
        packets
    }
}

fn is_of_records(kind: u32) -> bool {
    kind == bindings::VMTRACE_STREAM_REF || kind == bindings::VMTRACE_STREAM_EVENT
}

/// Whether the account of a piece counts such packets.
fn is_of_pieces(kind: u32) -> bool {
    is_of_records(kind) || kind == bindings::VMTRACE_STREAM_WINDOW
}

/// The trace failed: stop logging, so that no task waits for it. The first failure counts.
pub(crate) fn fail(e: Error) {
    if ERROR.cmpxchg(0, e.to_errno(), Relaxed).is_err() {
        return;
    }
    hot::with((), Refs::seal);
    let_go();
    if e == ETIMEDOUT {
        pr_err!("vmtrace: the output takes nothing any more; tracing stopped\n");
    } else {
        pr_err!(
            "vmtrace: writing the trace failed: {}; tracing stopped\n",
            e.to_errno()
        );
    }
    changed();
}

/// Nobody waits for room from here on.
pub(crate) fn let_go() {
    set_waits(false);
}

/// Who finds no room waits from here on, unless the trace has failed.
pub(crate) fn hold_back() {
    set_waits(true);
    if ERROR.load(Relaxed) != 0 {
        let_go();
    }
}

/// One round: writes at most one packet of references of each CPU, and then all events that are
/// full. So no CPU that goes on logging keeps another one from room. False if there was nothing.
/// References come after the events before them, so that a trace that is cut off, whenever that
/// is, explains all of its references.
fn drain(out: &mut Output) -> bool {
    let mut any = false;
    for cpu in 0..nr_cpus() {
        let Some(packet) = hot::take(cpu) else {
            continue;
        };
        any = true;
        write_refs(out, cpu, packet);
    }
    drain_events(out, None) || any
}

/// Writes a sub-buffer of references of a CPU, and before that what it refers to.
fn write_refs(out: &mut Output, cpu: usize, mut packet: Packet) {
    turn(out, packet.first_seq());
    drain_events(out, Some(packet.last_seq()));
    out.packet(bindings::VMTRACE_STREAM_REF, cpu, &mut packet);
    // Freed without a lock, for that may sleep.
    drop(hot::give(cpu, packet.buf));
    relieve();
}

/// What comes next has numbers from `seq` on: if these are of the next piece, all that is left of
/// the present one is written before, and the next one begins.
fn turn(out: &mut Output, seq: u64) {
    let next = rotate::next_seq();
    if next == 0 || seq < next {
        return;
    }
    for cpu in 0..nr_cpus() {
        // Their numbers are all below that, so this does not come here again.
        while let Some(packet) = hot::take_before(cpu, next) {
            write_refs(out, cpu, packet);
        }
    }
    drain_events(out, Some(next));
    let Some(cut) = rotate::cut() else {
        // It was given up meanwhile.
        return;
    };
    match ERROR.load(Relaxed) {
        0 => match out.turn(&cut) {
            Ok(()) => rotate::turned(),
            Err(e) => {
                fail(e);
                rotate::dropped(e);
            }
        },
        _ => out.give_up(EIO),
    }
}

/// Writes the events that have smaller numbers than `before`, or else all that is full now. False
/// if there was nothing.
fn drain_events(out: &mut Output, before: Option<u64>) -> bool {
    let mut any = false;
    for cpu in 0..nr_cpus() {
        // A sub-buffer that becomes full after this look has only greater numbers.
        for _ in 0..events::full(cpu, before) {
            let Some(mut packet) = events::take(cpu) else {
                break;
            };
            any = true;
            turn(out, packet.first_seq());
            out.packet(bindings::VMTRACE_STREAM_EVENT, cpu, &mut packet);
            drop(events::give(cpu, packet.buf));
            relieve();
        }
    }
    any
}

/// Moves all records into sub-buffers that can be taken. True if all are there, and none
/// is left to be taken.
fn collect() -> bool {
    let refs = hot::collect();
    events::collect() && refs
}

/// Writes all that there is. No page is enabled any more, and nothing is being recorded.
fn flush(out: &mut Output) {
    while !collect() {
        drain(out);
    }
    let mail = MAIL.lock().take();
    if let Some(mut packet) = mail {
        out.packet(bindings::VMTRACE_STREAM_WINDOW, 0, &mut packet);
    }
}

impl Work {
    /// Waits for a kick, for the end, or for so many jiffies.
    fn wait(&self, moment: u64) {
        let mut kicked = self.kicked.lock();
        if !*kicked {
            // Interruptible, which adds nothing to the load and which `KThread::stop` cuts short.
            // The time-out bounds the harm of a wake-up that is missed. Whatever ended the wait,
            // the caller looks for work.
            let _ = self
                .wake
                .wait_interruptible_timeout(&mut kicked, moment as usize);
        }
        *kicked = false;
        KICKED.store(false, Relaxed);
    }
}

/// Wakes kvmtraced up, because a sub-buffer is full. Not to be called under the
/// locks of the rings. Page faults call it, so it must not sleep.
pub(crate) fn kick() {
    // All CPUs come by here, so this lock is left alone if possible. KICKED is cleared before
    // kvmtraced looks at the rings. Who has put a record into a ring after that look has had the
    // ring's lock after kvmtraced, and finds it cleared.
    if KICKED.load(Relaxed) {
        return;
    }
    if let Some(work) = WORK.as_ref() {
        let mut kicked = work.kicked.lock();
        if !*kicked {
            *kicked = true;
            KICKED.store(true, Relaxed);
            work.wake.notify_one();
        }
    }
}

/// kvmtraced: writes the header, then full sub-buffers until the trace ends, then its end.
/// Whatever becomes of the output, what it holds is freed when this is done.
fn kvmtraced(mut out: Output, header: &[u8]) -> Result {
    let work = WORK.as_ref().ok_or(ENODEV)?;
    let written = out
        .write(header, header.len())
        .and_then(|()| out.begin_pieces(header));
    if written.is_err() {
        out.close();
        session::begun(written);
        return Ok(());
    }
    if !session::begun(written) {
        out.close();
        return Ok(());
    }
    loop {
        let last = LAST.load(Acquire);
        let asked = ASKED.load(Acquire);
        if last {
            break;
        }
        scopes::bury();
        out.tick();
        out.rotate();
        turn(&mut out, u64::MAX);
        let busy = drain(&mut out);
        relieve();
        if asked != FLUSHED.load(Relaxed) {
            flush(&mut out);
            FLUSHED.store(asked, Release);
            changed();
        }
        if !busy {
            work.wait(out.moment());
        }
    }
    turn(&mut out, u64::MAX);
    flush(&mut out);
    session::ended(|packet| {
        if ERROR.load(Relaxed) == 0 {
            out.packet(bindings::VMTRACE_STREAM_END, 0, packet);
        }
        if ERROR.load(Relaxed) == 0 {
            if let Err(e) = out.end_pieces().and_then(|()| out.sink.sync()) {
                fail(e);
            }
        }
    });
    out.close();
    rotate::over();
    session::gone();
    Ok(())
}

/// Starts kvmtraced, which ends by itself: first of all it writes `header` to `out`.
pub(crate) fn start<H>(out: Output, header: KBox<H>) -> Result<KThread>
where
    H: AsBytes + Send + 'static,
{
    KThread::spawn(c"kvmtraced", move |_| kvmtraced(out, header.as_bytes()))
}

/// Asks kvmtraced to write all that there is, and then `packet`.
fn ask(packet: Option<Packet>) {
    if packet.is_some() {
        *MAIL.lock() = packet;
    }
    ASKED.fetch_add(1u64, Release);
    kick();
}

/// Has all that there is written, and then `packet`; no page is enabled any more, and
/// nothing is being recorded. Waits for that, however long it takes: whoever calls this
/// must be a thread that nobody waits for.
pub(crate) fn flushed(packet: Option<Packet>) {
    ask(packet);
    loop {
        let seen = seen();
        if FLUSHED.load(Acquire) == ASKED.load(Relaxed) {
            return;
        }
        // A kernel thread is neither killed nor, for ever, timed out.
        let _ = wait(seen, 0);
    }
}

/// Nothing more is recorded: kvmtraced is to come to its end.
pub(crate) fn last() {
    LAST.store(true, Release);
    kick();
}

/// A packet of `content`.
pub(crate) fn packet(content: &[u8], seq: u64, time: u64) -> Option<Packet> {
    let used = HEAD.saturating_add(content.len());
    let Ok(mut buf) = Store::from_elem(0u8, used, GFP_KERNEL) else {
        fail(ENOMEM);
        return None;
    };
    record::put(&mut buf, HEAD, content);
    let meta = Meta {
        first_seq: seq,
        last_seq: seq,
        first_time: time,
        last_time: time,
        records: 1,
        used,
        ..Meta::default()
    };
    Some(Packet::new(buf, meta))
}
