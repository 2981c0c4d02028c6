// SPDX-License-Identifier: GPL-2.0

//! The way out: kvmtraced makes full sub-buffers packets of the output.

use crate::{
    hot::{EVENTS, HOT},
    record::{self, PacketHead},
    ring::{Meta, Packet, Ring, HEAD},
    Store,
};
use kernel::{
    bindings,
    cpu::nr_cpu_ids,
    crc32::crc32c,
    fs::file::{File, LocalFile, Offset},
    kthread::{CurrentKThread, KThread},
    macros::export,
    new_condvar, new_spinlock,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{ordering::Relaxed, Atomic},
        CondVar, SetOnce, SpinLock,
    },
    time::msecs_to_jiffies,
};

/// The file that kvmtraced writes to.
pub(crate) struct Output {
    file: ARef<File>,
    pos: Offset,
    uuid: [u8; 16],
    /// Packets and lost records of each stream: references, events, the end, windows.
    streams: KVVec<Stream>,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    packets: u64,
    lost_io: u64,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised when the subsystem is.
    pub(crate) unsafe(uninit) static OUTPUT: Mutex<Option<Output>> = None;
}

pub(crate) static REFS: Atomic<u64> = Atomic::new(0);
pub(crate) static EVENT_RECORDS: Atomic<u64> = Atomic::new(0);
pub(crate) static PACKETS: Atomic<u64> = Atomic::new(0);
pub(crate) static BYTES: Atomic<u64> = Atomic::new(0);
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

static WORK: SetOnce<Pin<KBox<Work>>> = SetOnce::new();

/// Makes the locks usable.
///
/// # Safety
///
/// Called once, before anything else here.
pub(crate) unsafe fn init() -> Result {
    // SAFETY: By the caller's promise.
    unsafe { OUTPUT.init() };
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
    for counter in [&REFS, &EVENT_RECORDS, &PACKETS, &BYTES, &LOST_IO] {
        counter.store(0, Relaxed);
    }
    WINDOW.store(0, Relaxed);
    ERROR.store(0, Relaxed);
}

pub(crate) fn nr_cpus() -> usize {
    nr_cpu_ids() as usize
}

/// The checksum of headers and packets.
pub(crate) fn crc(data: &[u8]) -> u32 {
    !crc32c(!0, data)
}

impl Output {
    /// Takes the file that user space hands over.
    ///
    /// # Safety
    ///
    /// No call of `fdget_pos()` is active on this thread, as in an ioctl.
    pub(crate) unsafe fn open(fd: i32, uuid: [u8; 16]) -> Result<Output> {
        let file = LocalFile::fget(u32::try_from(fd).map_err(|_| EBADF)?)?;
        if !file.is_writable() {
            return Err(EBADF);
        }
        if !file.is_regular() && !file.is_block_device() {
            return Err(EINVAL);
        }
        let streams = nr_cpus().wrapping_mul(2).wrapping_add(2);
        Ok(Output {
            // SAFETY: By the caller's promise.
            file: unsafe { LocalFile::assume_no_fdget_pos(file) },
            pos: 0,
            uuid,
            streams: KVVec::from_elem(Stream::default(), streams, GFP_KERNEL)?,
        })
    }

    pub(crate) fn write(&mut self, data: &[u8]) -> Result {
        self.file.write_all(data, &mut self.pos)?;
        BYTES.add(data.len() as u64, Relaxed);
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result {
        self.file.fsync()
    }

    /// Writes a packet; a failure ends the trace and is counted.
    pub(crate) fn packet(&mut self, kind: u32, cpu: usize, packet: &mut Packet) {
        let index = match kind {
            bindings::VMTRACE_STREAM_REF => cpu,
            bindings::VMTRACE_STREAM_EVENT => cpu.wrapping_add(nr_cpus()),
            bindings::VMTRACE_STREAM_END => nr_cpus().wrapping_mul(2),
            _ => nr_cpus().wrapping_mul(2).wrapping_add(1),
        };
        let stream = self.streams.get(index).copied().unwrap_or_default();
        let records = u64::from(packet.meta.records);
        record::put_packet(
            &mut packet.buf,
            &PacketHead {
                magic: bindings::VMTRACE_PACKET_MAGIC,
                uuid: &self.uuid,
                kind,
                cpu: cpu as u32,
                seq: stream.packets,
                lost_io: stream.lost_io,
                window: WINDOW.load(Relaxed),
            },
            &packet.meta,
        );
        let mut ok = false;
        if ERROR.load(Relaxed) == 0 {
            if let Some(data) = packet.buf.get(..packet.meta.used) {
                let sum = crc(data);
                record::put(&mut packet.buf, record::PACKET_CRC_AT, &sum.to_le_bytes());
            }
            if let Some(data) = packet.buf.get(..packet.meta.used) {
                match self.write(data) {
                    Ok(()) => ok = true,
                    Err(e) => fail(e),
                }
            }
        }
        if let Some(s) = self.streams.get_mut(index) {
            if ok {
                s.packets = s.packets.wrapping_add(1);
            } else {
                s.lost_io = s.lost_io.wrapping_add(records);
            }
        }
        if !ok {
            LOST_IO.add(records, Relaxed);
            return;
        }
        match kind {
            bindings::VMTRACE_STREAM_REF => REFS.add(records, Relaxed),
            bindings::VMTRACE_STREAM_EVENT => EVENT_RECORDS.add(records, Relaxed),
            bindings::VMTRACE_STREAM_WINDOW => {}
            // The end is not among what it counts.
            _ => return,
        }
        PACKETS.add(1u64, Relaxed);
    }
}

/// The output failed: stop logging, so that no task waits for it.
pub(crate) fn fail(e: Error) {
    ERROR.store(e.to_errno(), Relaxed);
    if let Some(hot) = HOT.lock().as_mut() {
        hot.sealed = true;
    }
    pr_err!(
        "vmtrace: writing the trace failed: {}; tracing stopped\n",
        e.to_errno()
    );
}

/// Lets the tasks go on that wait for room.
pub(crate) fn uncongest() {
    // SAFETY: Stores a flag and wakes tasks, which any context here may do.
    unsafe { bindings::vmtrace_set_congested(false) };
}

/// Lets waiting tasks go on if there is room for them.
fn relieve() {
    let refs = HOT
        .lock()
        .as_ref()
        .is_none_or(|h| h.sealed || h.rings.iter().all(|r| r.free() > 0));
    let events = EVENTS
        .lock()
        .as_ref()
        .is_none_or(|e| e.rings.iter().all(|r| r.free() > r.total() / 4));
    if refs && events {
        uncongest();
    }
}

/// Writes what is full.
fn drain() {
    let mut guard = OUTPUT.lock();
    let Some(out) = guard.as_mut() else {
        return;
    };
    for cpu in 0..nr_cpus() {
        loop {
            let packet = HOT
                .lock()
                .as_mut()
                .and_then(|h| h.rings.get_mut(cpu).and_then(Ring::take));
            let Some(mut packet) = packet else { break };
            out.packet(bindings::VMTRACE_STREAM_REF, cpu, &mut packet);
            if let Some(r) = HOT.lock().as_mut().and_then(|h| h.rings.get_mut(cpu)) {
                r.give(packet.buf);
            }
            relieve();
        }
        loop {
            let packet = EVENTS
                .lock()
                .as_mut()
                .and_then(|e| e.rings.get_mut(cpu).and_then(Ring::take));
            let Some(mut packet) = packet else { break };
            out.packet(bindings::VMTRACE_STREAM_EVENT, cpu, &mut packet);
            if let Some(r) = EVENTS.lock().as_mut().and_then(|e| e.rings.get_mut(cpu)) {
                r.give(packet.buf);
            }
            relieve();
        }
    }
}

impl Work {
    /// Waits for a kick, for the end, or for a moment.
    fn wait(&self) {
        let mut kicked = self.kicked.lock();
        if !*kicked {
            // Interruptible, which adds nothing to the load and which `KThread::stop` cuts short.
            // The time-out bounds the harm of a wake-up that is missed. Whatever ended the wait,
            // the caller looks for work.
            let _ = self
                .wake
                .wait_interruptible_timeout(&mut kicked, msecs_to_jiffies(100));
        }
        *kicked = false;
    }
}

/// Wakes kvmtraced up, because a sub-buffer is full. Not to be called under the
/// locks of the rings. Page faults call it, so it must not sleep.
pub(crate) fn kick() {
    if let Some(work) = WORK.as_ref() {
        let mut kicked = work.kicked.lock();
        if !*kicked {
            *kicked = true;
            work.wake.notify_one();
        }
    }
}

/// Wakes kvmtraced up.
///
/// # Safety
///
/// None needed; `export` wants the word.
#[export]
pub unsafe extern "C" fn vmtrace_rs_kick() {
    kick();
}

/// kvmtraced: writes full sub-buffers until it is asked to end.
fn kvmtraced(thread: &CurrentKThread) -> Result {
    let work = WORK.as_ref().ok_or(ENODEV)?;
    loop {
        // Tested first, so that every sub-buffer that is full at the end gets
        // written.
        let last = thread.should_stop();
        drain();
        relieve();
        if last {
            return Ok(());
        }
        work.wait();
    }
}

/// Starts kvmtraced, which ends when the result is dropped. It must not be
/// dropped under a lock that [`drain`] takes.
pub(crate) fn start() -> Result<KThread> {
    KThread::spawn(c"kvmtraced", kvmtraced)
}

/// Waits until no packet is being written.
pub(crate) fn settle() {
    drop(OUTPUT.lock());
}

/// Has `write` make a packet of `content`.
pub(crate) fn put_packet(content: &[u8], seq: u64, time: u64, write: impl FnOnce(&mut Packet)) {
    let used = HEAD.saturating_add(content.len());
    let Ok(mut buf) = Store::from_elem(0u8, used, GFP_KERNEL) else {
        fail(ENOMEM);
        return;
    };
    record::put(&mut buf, HEAD, content);
    write(&mut Packet {
        buf,
        meta: Meta {
            first_seq: seq,
            last_seq: seq,
            first_time: time,
            last_time: time,
            records: 1,
            used,
            ..Meta::default()
        },
    });
}

/// Writes the packet that ends a window.
pub(crate) fn end_window(packet: &mut Packet) {
    if let Some(out) = OUTPUT.lock().as_mut() {
        out.packet(bindings::VMTRACE_STREAM_WINDOW, 0, packet);
    }
}

/// Ends a trace's stream: writes the packet in `buf`, and all to the disk.
pub(crate) fn end(packet: &mut Packet) {
    if let Some(out) = OUTPUT.lock().as_mut() {
        if ERROR.load(Relaxed) != 0 {
            return;
        }
        out.packet(bindings::VMTRACE_STREAM_END, 0, packet);
        if let Err(e) = out.sync() {
            fail(e);
        }
    }
}
