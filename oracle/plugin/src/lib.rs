//! The oracle's eyes: a plugin for QEMU's TCG that reports to [`oracle::watch::Watch`]
//! what the guest does, and writes its log when a trace ends.
//!
//! With the argument `count`, the plugin counts what the CPUs do between two marks of a
//! program; `count.rs` describes that use.
//!
//! Arguments: `n`, the set's size; `first`, what its first segment has; `batch`, the pages that
//! one admission evicts at most; `again` and `clock`, on or off; `sets`, what has a set of its own,
//! as the kernel's number of that; `map`, the kernel's System.map;
//! `log`, the file to write: later traces of a run go to files whose names have a number at the
//! end, from 2 on.
//! `stream`, a second one for every reference, compressed by zstd, if it is wanted. The references
//! have times then. A time is the last answer of the kernel's clock and, since then, a nanosecond for
//! each instruction, as with `-icount shift=0`.
//! With `replay`, on or off, the trace is not modelled but replayed; then the guest may
//! have several CPUs, which QEMU must run in one thread. The kernel must be booted with
//! `nokaslr`. Nothing is asked of it: the plugin knows its functions by their addresses
//! and reads their arguments from registers.

use guest::Guest;
use oracle::log::Log;
use oracle::machine::{Entry, Flush, flushes, is_return, loads_table};
use oracle::model::{Answer, Sets, Shape};
use oracle::replay::{C_SCOPE, L_ANSWER, L_MM_ID, Replay};
use oracle::set::View;
use oracle::stream;
use oracle::symbols::Symbols;
use oracle::watch::{Fault, Stream, Target, USER_END, Watch};
use qemu_plugin::install::{Args, Info, Value};
use qemu_plugin::sys::{
    self, qemu_plugin_cb_flags as Flags, qemu_plugin_id_t, qemu_plugin_insn, qemu_plugin_mem_rw,
    qemu_plugin_meminfo_t, qemu_plugin_tb,
};
use qemu_plugin::{
    HasCallbacks, Register, Result, qemu_plugin_register_vcpu_init_cb,
    qemu_plugin_register_vcpu_tb_trans_cb,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, ThreadId};

mod count;
mod guest;
mod replay;

/// A place in the kernel at which something is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum Hook {
    /// `vmtrace_attach()`: a trace begins.
    Begin,
    /// `vmtrace_quiesce()`: no admission is on the way.
    Quiesced,
    /// `vmtrace_detach()`: the set is empty, the trace over.
    End,
    /// `__vmtrace_mm_init(mm)`: it is new.
    SpaceComes,
    /// `vmtrace_snapshot_mm(mm)`: it has lived already.
    SpaceJoins,
    /// `up_write(sem)`: of `mmap_lock`, after the pages of an address space that joins
    /// were disabled; by a task that does no such thing it is of no interest.
    SpaceJoined,
    /// `vmtrace_rs_mm()`: the next number is given to it.
    SpaceNumbered,
    /// `vmtrace_rs_enter(mm, group)`.
    SpaceEntering,
    /// It returns the number of the set.
    SpaceEntered,
    /// `vmtrace_rs_leave(mm)`.
    SpaceLeaving,
    /// `switch_mm_irqs_off(prev, next, task)`.
    Switching,
    /// `exc_page_fault(regs, error_code)`: CR2 is still that of the fault.
    Fault,
    /// `fixup_user_fault(mm, addr, flags, unlocked)`.
    Fixup,
    /// `handle_mm_fault(vma, addr, flags, regs)`.
    Handling,
    /// Its return.
    Handled,
    /// `ptep_set_access_flags(vma, addr, ptep, entry, dirty)`.
    Changing,
    /// `__vmtrace_filter_access(mm, addr, ptep, entry)`, which it calls for an entry that may be a
    /// member's.
    Changed,
    /// `__switch_to_asm(prev, next)`: still on the stack of the task that leaves.
    SwitchedOut,
    /// `vmtrace_rs_close(mm, addr, last, why, entry, owner)`.
    Closed,
    /// `vmtrace_rs_admit_locked(l)`.
    Asking,
    /// `vmtrace_rs_reserve(l)`: the same without the lock of the page's entry.
    AskingApart,
    /// It returns.
    Asked,
    /// `vmtrace_rs_abort(l)`.
    GaveUp,
    /// `vmtrace_rs_pause(pause, scope)`.
    Pause,
    /// `vmtrace_rs_begin_of(n, scope)`: the set is to have this size.
    Resizing,
    /// `vmtrace_rs_drain(c, ptep, why, now, todo, scope)`.
    Drain,
    /// `vmtrace_rs_sized(n, scope)`.
    Resized,
    /// An interrupt's handler, of `regs`.
    Interrupted,
    // Of a replay only.
    /// `vmtrace_rs_clear_way(l)` returns.
    Cleared,
    /// `vmtrace_rs_admit(l)`.
    Admit,
    /// It returns.
    Admitted,
    /// `vmtrace_rs_abort(l)` returns.
    Aborted,
    /// `vmtrace_rs_close()` returns.
    CloseDone,
    /// A function of the set returns that has nothing to tell.
    Done,
    /// `vmtrace_rs_begin_of()` returns.
    BeginsAt,
    /// `vmtrace_rs_aged(owner, addr, young, entry)`.
    Aged,
    /// `vmtrace_rs_dirtied(mm, addr, entry, owner)`.
    Dirtied,
    /// `vmtrace_rs_dropped(mm, addr, entry, owner)`.
    Dropped,
    /// `vmtrace_rs_drop_logged()`.
    DropLogged,
    /// `vmtrace_pte_sweep(ptep, last)`.
    PteSweeps,
    /// It returns.
    PteSwept,
    /// `vmtrace_pte_take(ptep, young)`.
    PteTaken,
    /// It returns.
    PteTook,
    /// `flush_tlb_mm_range()` or `flush_tlb_mm_pages()` returns.
    FlushDone,
    /// `__vmtrace_switch(prev)`.
    Switched,
    /// `vmtrace_epoch_of(cpu)`.
    EpochAsked,
    /// It returns.
    EpochAnswered,
    /// `__vmtrace_touch(mm, address, flags)`, of a fault.
    Touching,
    /// It returns: whether the fault is done.
    Touched,
    /// A clock is read: CLOCK_MONOTONIC, ns.
    Clock,
}

/// What a model and a replay both learn from.
const COMMON: [(&str, Hook); 24] = [
    ("vmtrace_attach", Hook::Begin),
    ("vmtrace_quiesce", Hook::Quiesced),
    ("vmtrace_detach", Hook::End),
    ("__vmtrace_mm_init", Hook::SpaceComes),
    ("vmtrace_snapshot_mm", Hook::SpaceJoins),
    ("up_write", Hook::SpaceJoined),
    ("vmtrace_rs_mm", Hook::SpaceNumbered),
    ("vmtrace_rs_enter", Hook::SpaceEntering),
    ("vmtrace_rs_leave", Hook::SpaceLeaving),
    ("switch_mm_irqs_off", Hook::Switching),
    ("exc_page_fault", Hook::Fault),
    ("fixup_user_fault", Hook::Fixup),
    ("handle_mm_fault", Hook::Handling),
    ("__vmtrace_touch", Hook::Touching),
    ("vmtrace_rs_close", Hook::Closed),
    ("vmtrace_rs_abort", Hook::GaveUp),
    ("vmtrace_rs_admit_locked", Hook::Asking),
    ("vmtrace_rs_reserve", Hook::AskingApart),
    ("vmtrace_rs_pause", Hook::Pause),
    ("vmtrace_rs_begin_of", Hook::Resizing),
    ("vmtrace_rs_drain", Hook::Drain),
    ("vmtrace_rs_sized", Hook::Resized),
    ("common_interrupt", Hook::Interrupted),
    ("sysvec_apic_timer_interrupt", Hook::Interrupted),
];

/// What only the model does.
const MODEL: [(&str, Hook); 3] = [
    ("__switch_to_asm", Hook::SwitchedOut),
    ("ptep_set_access_flags", Hook::Changing),
    ("__vmtrace_filter_access", Hook::Changed),
];

/// What only a replay does.
const REPLAY: [(&str, Hook); 13] = [
    ("__vmtrace_switch", Hook::Switched),
    ("vmtrace_epoch_of", Hook::EpochAsked),
    ("vmtrace_rs_admit", Hook::Admit),
    ("vmtrace_rs_aged", Hook::Aged),
    ("vmtrace_rs_dirtied", Hook::Dirtied),
    ("vmtrace_rs_dropped", Hook::Dropped),
    ("vmtrace_rs_drop_logged", Hook::DropLogged),
    ("sysvec_call_function", Hook::Interrupted),
    ("sysvec_call_function_single", Hook::Interrupted),
    ("sysvec_irq_work", Hook::Interrupted),
    ("sysvec_reschedule_ipi", Hook::Interrupted),
    ("vmtrace_pte_sweep", Hook::PteSweeps),
    ("vmtrace_pte_take", Hook::PteTaken),
];

/// Functions whose `ret` tells something, and whether only to a replay.
const RETURNS: [(&str, Hook, bool); 19] = [
    ("handle_mm_fault", Hook::Handled, false),
    ("__vmtrace_touch", Hook::Touched, false),
    ("vmtrace_rs_enter", Hook::SpaceEntered, false),
    ("vmtrace_rs_admit_locked", Hook::Asked, false),
    ("vmtrace_rs_reserve", Hook::Asked, false),
    ("vmtrace_epoch_of", Hook::EpochAnswered, true),
    ("vmtrace_rs_clear_way", Hook::Cleared, true),
    ("vmtrace_rs_admit", Hook::Admitted, true),
    ("vmtrace_rs_abort", Hook::Aborted, true),
    ("vmtrace_rs_close", Hook::CloseDone, true),
    ("vmtrace_rs_dropped", Hook::Done, true),
    ("vmtrace_rs_drop_logged", Hook::Done, true),
    ("vmtrace_rs_drain", Hook::Done, true),
    ("vmtrace_rs_begin_of", Hook::BeginsAt, true),
    ("vmtrace_rs_sized", Hook::Done, true),
    ("vmtrace_pte_sweep", Hook::PteSwept, true),
    ("vmtrace_pte_take", Hook::PteTook, true),
    ("flush_tlb_mm_range", Hook::FlushDone, true),
    ("flush_tlb_mm_pages", Hook::FlushDone, true),
];

/// Functions that return CLOCK_MONOTONIC. The tracer's times come from the first one. The others are
/// called by the timer's interrupt, and when the CPU was idle.
const CLOCKS: [&str; 3] = [
    "ktime_get_mono_fast_ns",
    "ktime_get",
    "ktime_get_update_offsets_now",
];

/// What the plugin was told, and what it found in System.map.
struct Config {
    shape: Shape,
    log: PathBuf,
    stream: Option<PathBuf>,
    hooks: HashMap<u64, Hook>,
    returns: Vec<(Range<u64>, Hook)>,
    cpus: usize,
    /// The trace is replayed. A replay needs `symbols`, which name the functions of the set, and
    /// the address at which the kernel describes where the set lies.
    replay: bool,
    symbols: Symbols,
    view: u64,
}

/// A model of so many pages, or more, has room for all pages of a guest.
const ROOM_FOR_ALL: usize = 1 << 22;

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Whether accesses are of interest: most of the time it does not, and then an
/// access should cost next to nothing.
static WANTED: AtomicBool = AtomicBool::new(false);

/// The guest's clock, ns, if there is a stream. One thread runs the CPU.
static NOW: AtomicU64 = AtomicU64::new(0);

// In the order of the instruction set's encoding.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;
const R8: usize = 8;

/// Where the instruction's address lies in struct pt_regs.
const REGS_IP: u64 = 16 * 8;

enum Oracle {
    Model(Box<Watch>),
    Replay(Box<Replay>),
}

struct State {
    oracle: Oracle,
    guest: Option<Guest>,
    /// Where each CPU has its own data, in the order in which they came up.
    cpus: Vec<u64>,
}

impl State {
    /// Which CPU runs: the number that callbacks come with is not always that of the
    /// CPU that runs the code. `None` early in its life.
    fn cpu(&mut self) -> std::result::Result<Option<usize>, String> {
        if matches!(self.oracle, Oracle::Model(_)) {
            return Ok(Some(0));
        }
        let guest = self.guest.as_ref().ok_or("no registers")?;
        let Some(base) = guest.own_data()? else {
            return Ok(None);
        };
        let known = self.cpus.iter().position(|known| *known == base);
        Ok(Some(known.unwrap_or_else(|| {
            self.cpus.push(base);
            self.cpus.len() - 1
        })))
    }

    /// After anything that may have changed the answer.
    fn heed(&self) {
        let wanted = match &self.oracle {
            Oracle::Model(watch) => watch.wants_accesses(),
            Oracle::Replay(replay) => replay.wants_accesses(),
        };
        WANTED.store(wanted, Ordering::Relaxed);
    }
}

// All callbacks of a CPU come on its thread.
thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

fn with_state(f: impl FnOnce(&mut State, &Config)) {
    let Some(config) = CONFIG.get() else {
        return;
    };
    STATE.with_borrow_mut(|state| {
        let state = state.get_or_insert_with(|| State {
            oracle: match config.replay {
                true => Oracle::Replay(Box::new(Replay::new(config.shape, config.cpus))),
                false => Oracle::Model(Box::new(Watch::new(config.shape))),
            },
            guest: None,
            cpus: Vec::new(),
        });
        f(state, config);
    });
}

/// Lets `f` ask the page tables; the answer to a question that fails is no, and
/// the failure is passed on.
fn ask(
    guest: &Guest,
    f: impl FnOnce(&mut dyn FnMut(&Target) -> bool),
) -> std::result::Result<(), String> {
    let mut failed = Ok(());
    f(&mut |target| match guest.entry(target) {
        Ok(entry) => entry.answer(target),
        Err(why) => {
            failed = Err(why);
            false
        }
    });
    failed
}

/// Logs that were left.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Writes the log of a trace that is over.
fn leave(log: &Log, first: &Path) -> std::result::Result<(), String> {
    let path = match LEFT.fetch_add(1, Ordering::Relaxed) + 1 {
        1 => first.to_owned(),
        n => first.with_extension(format!("log.{n}")),
    };
    let write = || {
        let mut out = BufWriter::new(File::create(&path)?);
        log.write(&mut out)?;
        out.flush()
    };
    write().map_err(|e| format!("{} can't be written: {e}", path.display()))
}

/// The number of the set that lies at an address: the last word of its view.
fn set_at(guest: &Guest, scope: u64) -> std::result::Result<u32, String> {
    Ok(guest.word(scope + View::NUMBER)? as u32)
}

/// The fault at the entry of `exc_page_fault()`.
fn fault(guest: &Guest) -> std::result::Result<Fault, String> {
    Ok(Fault {
        stack: guest.general(RSP)?,
        addr: guest.read(guest.cr2)?,
        code: guest.general(RSI)?,
        cr3: guest.read(guest.cr3)?,
        ip: guest.word(guest.general(RDI)? + REGS_IP)?,
    })
}

fn on_hook(
    watch: &mut Watch,
    guest: &Guest,
    config: &Config,
    hook: Hook,
) -> std::result::Result<(), String> {
    let get = |index: usize| guest.general(index);
    match hook {
        Hook::Begin => {
            watch.begin();
            let stream = config.stream.as_deref().map(open_stream).transpose()?;
            watch.tell(stream);
        }
        Hook::Quiesced => watch.quiesced(),
        Hook::End => {
            if let Some(stream) = watch.tell(None) {
                let done = stream.finish().and_then(|mut out| out.flush());
                done.map_err(|e| format!("the references can't be written: {e}"))?;
            }
            if let Some(log) = watch.end() {
                leave(&log, &config.log)?;
            }
        }
        Hook::SpaceComes => watch.space_comes(get(RSP)?, get(RDI)?, false),
        Hook::SpaceJoins => watch.space_comes(get(RSP)?, get(RDI)?, true),
        Hook::SpaceJoined => watch.space_joined(get(RSP)?),
        Hook::SpaceNumbered => watch.space_numbered(get(RSP)?),
        Hook::SpaceEntering => watch.entering(get(RSP)?, get(RDI)?, get(RSI)?),
        Hook::SpaceEntered => watch.entered(get(RSP)?, get(RAX)? as u32),
        Hook::SpaceLeaving => watch.leaving(get(RDI)?),
        Hook::Switching => watch.switching(get(RSI)?),
        Hook::Fault => {
            let fault = fault(guest)?;
            return ask(guest, |ask| watch.fault(fault, ask));
        }
        Hook::Fixup => watch.fixup(get(RSP)?, get(RDI)?, get(RSI)?, get(RDX)?),
        Hook::Handling => watch.handling(get(RSP)?, get(RSI)?, get(RCX)? != 0),
        Hook::Handled => {
            let (stack, result) = (get(RSP)?, get(RAX)?);
            return ask(guest, |ask| watch.handled(stack, result, ask));
        }
        Hook::Touching => watch.handling(get(RSP)?, get(RSI)?, true),
        Hook::Touched => {
            let (stack, done) = (get(RSP)?, get(RAX)? & 0xff != 0);
            if !done {
                watch.untouched(stack);
                return Ok(());
            }
            return ask(guest, |ask| watch.handled(stack, 0, ask));
        }
        Hook::Changing => watch.changing(get(R8)? as u32 != 0),
        Hook::Changed => {
            let old = guest.word(get(RDX)?)?;
            let (old, new) = (Entry::new(old), Entry::new(get(RCX)?));
            watch.changed(get(RDI)?, get(RSI)?, old, new);
        }
        Hook::SwitchedOut => {
            let stack = get(RSP)?;
            return ask(guest, |ask| watch.switched_out(stack, ask));
        }
        Hook::Closed => watch.closed(get(RDI)? as u32, get(RSI)?, get(RCX)? as u8),
        Hook::GaveUp => watch.gave_up(guest.word(get(RDI)? + L_MM_ID)? as u32),
        Hook::Asking | Hook::AskingApart => watch.asking(get(RSP)?, get(RDI)?),
        Hook::Asked => {
            let stack = get(RSP)?;
            if let Some(l) = watch.asked(stack) {
                let (mm, answer) = (guest.word(l + L_MM_ID)?, guest.word(l + L_ANSWER)?);
                watch.answered(stack, mm as u32, Answer::new(answer));
            }
        }
        Hook::Pause => watch.pause(get(RDI)? & 0xff != 0),
        // Such a model only gives the pages their names, whatever size the kernel's set has.
        Hook::Resizing | Hook::Drain | Hook::Resized if config.shape.size >= ROOM_FOR_ALL => {}
        Hook::Resizing => watch.resizing(set_at(guest, get(RSI)?)?, get(RDI)?),
        Hook::Drain => {
            let scope = guest.word(get(RDI)? + C_SCOPE)?;
            watch.drain(set_at(guest, scope)?, get(RDX)? as u8);
        }
        Hook::Resized => watch.resized(set_at(guest, get(RSI)?)?, get(RDI)?),
        Hook::Interrupted => {
            let ip = guest.word(get(RDI)? + REGS_IP)?;
            return ask(guest, |ask| watch.interrupted(ip, ask));
        }
        Hook::Clock => NOW.store(get(RAX)?, Ordering::Relaxed),
        _ => return Err(format!("{hook:?} is not for the model")),
    }
    Ok(())
}

/// Where references go. The frame ends when it is dropped.
fn open_stream(path: &Path) -> std::result::Result<Stream, String> {
    let open = || -> std::io::Result<Box<dyn Write>> {
        let encoder = zstd::Encoder::new(File::create(path)?, 1)?;
        Ok(Box::new(encoder.auto_finish()))
    };
    let out = open().map_err(|e| format!("{} can't be written: {e}", path.display()))?;
    Ok(stream::Writer::new(out))
}

/// Ends the run: without this plugin's log there is nothing to compare.
fn give_up(why: &str) {
    eprintln!("oracle: {why}");
    std::process::exit(3);
}

extern "C" fn run_hook(_cpu: c_uint, hook: *mut c_void) {
    with_state(|state, config| {
        let entries = COMMON.iter().chain(&MODEL).chain(&REPLAY).map(|(_, h)| *h);
        let hook = entries
            .chain(RETURNS.iter().map(|(_, h, _)| *h))
            .chain([Hook::Clock])
            .find(|h| *h as usize == hook as usize);
        let done = state.cpu().and_then(|cpu| {
            let hook = hook.ok_or("a hook of no kind")?;
            let guest = state.guest.as_ref().ok_or("no registers")?;
            match (&mut state.oracle, cpu) {
                (Oracle::Model(watch), _) => on_hook(watch, guest, config, hook),
                (Oracle::Replay(replay), Some(cpu)) => {
                    replay::on_hook(replay, guest, config, cpu, hook)
                }
                (Oracle::Replay(_), None) => Ok(()),
            }
        });
        if let Err(why) = done {
            give_up(&why);
        }
        state.heed();
    });
}

/// `mov %reg, %cr3`, the register's number in `index`.
extern "C" fn run_load_table(_cpu: c_uint, index: *mut c_void) {
    with_state(|state, _| {
        let loaded = state.cpu().and_then(|cpu| {
            let guest = state.guest.as_ref().ok_or("no registers")?;
            Ok((cpu, guest.general(index as usize)?))
        });
        match (loaded, &mut state.oracle) {
            (Ok((_, value)), Oracle::Model(watch)) => watch.table_loaded(value),
            (Ok((Some(cpu), value)), Oracle::Replay(replay)) => {
                replay.spaces().table_loaded(cpu, value);
                replay.flushed(cpu, None);
            }
            (Ok((None, _)), Oracle::Replay(_)) => {}
            (Err(why), _) => give_up(&why),
        }
        state.heed();
    });
}

/// For [`run_flush`]: all, instead of a register's number.
const FLUSH_ALL: usize = 16;

/// An instruction of [`flushes`].
extern "C" fn run_flush(_cpu: c_uint, index: *mut c_void) {
    with_state(|state, _| {
        let flushed = state.cpu().and_then(|cpu| {
            let guest = state.guest.as_ref().ok_or("no registers")?;
            let addr = match index as usize {
                FLUSH_ALL => None,
                index => Some(guest.general(index)?),
            };
            Ok((cpu, addr))
        });
        match (flushed, &mut state.oracle) {
            (Ok((Some(cpu), addr)), Oracle::Replay(replay)) => replay.flushed(cpu, addr),
            (Ok(_), _) => {}
            (Err(why), _) => give_up(&why),
        }
    });
}

/// A block of so many instructions is run.
extern "C" fn run_time(_cpu: c_uint, instructions: *mut c_void) {
    let now = NOW.load(Ordering::Relaxed);
    NOW.store(now + instructions as u64, Ordering::Relaxed);
}

/// A block of so many bytes is run. Its address is asked of the CPU: QEMU uses
/// one translation for a frame wherever it is mapped, so the address at which
/// it was translated may be another program's.
extern "C" fn run_block(_cpu: c_uint, bytes: *mut c_void) {
    if !WANTED.load(Ordering::Relaxed) {
        return;
    }
    with_state(|state, _| {
        let entered = state.cpu().and_then(|cpu| {
            let guest = state.guest.as_ref().ok_or("no registers")?;
            Ok((cpu, guest.read(guest.rip)?))
        });
        if let Oracle::Model(watch) = &mut state.oracle {
            watch.at(NOW.load(Ordering::Relaxed));
        }
        match entered {
            Ok((cpu, first)) => {
                let mut fetch = |addr| match (&mut state.oracle, cpu) {
                    (Oracle::Model(watch), _) => watch.fetch(addr),
                    (Oracle::Replay(replay), Some(cpu)) => replay.fetch(cpu, addr),
                    (Oracle::Replay(_), None) => {}
                };
                fetch(first);
                let last = first + bytes as u64 - 1;
                if (last ^ first) >> 12 != 0 {
                    fetch(last);
                }
            }
            Err(why) => give_up(&why),
        }
    });
}

fn accessed(info: qemu_plugin_meminfo_t, addr: u64, pc: u64, store: bool) {
    if !WANTED.load(Ordering::Relaxed) || addr >= USER_END {
        return;
    }
    // SAFETY: The callback's own handle, while it runs.
    let size = 1u64 << unsafe { sys::qemu_plugin_mem_size_shift(info) };
    with_state(|state, _| match (state.cpu(), &mut state.oracle) {
        (Ok(_), Oracle::Model(watch)) => {
            watch.at(NOW.load(Ordering::Relaxed));
            watch.access(pc, addr, size, store);
        }
        (Ok(Some(cpu)), Oracle::Replay(replay)) => replay.access(cpu, pc, addr, size, store),
        (Ok(None), _) => {}
        (Err(why), _) => give_up(&why),
    });
}

extern "C" fn run_load(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, pc: *mut c_void) {
    accessed(info, addr, pc as u64, false);
}

extern "C" fn run_store(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, pc: *mut c_void) {
    accessed(info, addr, pc as u64, true);
}

/// A function of the set loads or stores a word.
fn set_accessed(info: qemu_plugin_meminfo_t, addr: u64, store: bool) {
    let mut watched = false;
    with_state(|state, _| {
        watched = matches!(&state.oracle, Oracle::Replay(replay) if replay.watches(addr));
    });
    if !watched {
        return;
    }
    // SAFETY: The callback's own handle, while it runs. A value of 64 bits is there as such.
    let value = unsafe {
        let value = sys::qemu_plugin_mem_get_value(info);
        if value.type_ != sys::qemu_plugin_mem_value_type::QEMU_PLUGIN_MEM_VALUE_U64 {
            return;
        }
        value.data.u64_
    };
    with_state(|state, _| match (state.cpu(), &mut state.oracle) {
        (Ok(Some(cpu)), Oracle::Replay(replay)) if store => {
            let Some(guest) = &state.guest else {
                return;
            };
            let done = replay::with_words(guest, |word| replay.stored(cpu, addr, value, word));
            if let Err(why) = done {
                give_up(&why);
            }
        }
        (Ok(Some(cpu)), Oracle::Replay(replay)) => replay.loaded(cpu, addr, value),
        (Ok(_), _) => {}
        (Err(why), _) => give_up(&why),
    });
}

extern "C" fn run_set_load(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, _: *mut c_void) {
    set_accessed(info, addr, false);
}

extern "C" fn run_set_store(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, _: *mut c_void) {
    set_accessed(info, addr, true);
}

/// Whether a symbol is a function that may touch the set.
fn is_of_set(name: &str) -> bool {
    name.starts_with("vmtrace_rs_") || name.contains("7vmtrace")
}

/// Has loads and stores by an instruction reported. `load` and `store` take what `what` is.
fn watch_memory(insn: *mut qemu_plugin_insn, load: OnMemory, store: OnMemory, what: u64) {
    for (rw, callback) in [
        (qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_R, load),
        (qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_W, store),
    ] {
        // SAFETY: The callback takes a number.
        unsafe {
            sys::qemu_plugin_register_vcpu_mem_cb(
                insn,
                Some(callback),
                Flags::QEMU_PLUGIN_CB_NO_REGS,
                rw,
                what as *mut c_void,
            );
        }
    }
}

type OnMemory = extern "C" fn(c_uint, qemu_plugin_meminfo_t, u64, *mut c_void);

extern "C" fn translate(_id: qemu_plugin_id_t, tb: *mut qemu_plugin_tb) {
    let Some(config) = CONFIG.get() else {
        return;
    };
    // SAFETY: `tb` is valid while this callback runs.
    let len = unsafe { sys::qemu_plugin_tb_n_insns(tb) };
    if config.stream.is_some() {
        // SAFETY: The callback takes the number of instructions.
        unsafe {
            sys::qemu_plugin_register_vcpu_tb_exec_cb(
                tb,
                Some(run_time),
                Flags::QEMU_PLUGIN_CB_NO_REGS,
                len as *mut c_void,
            );
        }
    }
    let (mut start, mut end) = (0, 0);
    for i in 0..len {
        // SAFETY: As above, and `i` is in range.
        let insn = unsafe { sys::qemu_plugin_tb_get_insn(tb, i) };
        // SAFETY: The instruction lives as long as its block's translation.
        let (pc, size) = unsafe {
            (
                sys::qemu_plugin_insn_vaddr(insn),
                sys::qemu_plugin_insn_size(insn) as u64,
            )
        };
        if i == 0 {
            start = pc;
        }
        watch_memory(insn, run_load, run_store, pc);
        if pc < USER_END {
            end = pc + size;
        } else {
            translate_kernel(config, insn, pc, size as usize);
        }
    }
    if end != 0 {
        // A block is entered at its first instruction, and what it enters it
        // runs through; QEMU ends it with a page, unless its only instruction
        // lies on two. So one look at each run tells all fetches.
        // SAFETY: The callback takes the length as a number.
        unsafe {
            sys::qemu_plugin_register_vcpu_tb_exec_cb(
                tb,
                Some(run_block),
                Flags::QEMU_PLUGIN_CB_R_REGS,
                (end - start) as *mut c_void,
            );
        }
    }
}

fn translate_kernel(config: &Config, insn: *mut qemu_plugin_insn, pc: u64, size: usize) {
    let hook = |hook: Hook| {
        // SAFETY: The callback takes the hook as a number.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                Some(run_hook),
                Flags::QEMU_PLUGIN_CB_R_REGS,
                hook as usize as *mut c_void,
            );
        }
    };
    if let Some(h) = config.hooks.get(&pc) {
        hook(*h);
    }
    if config.replay && config.symbols.name(pc).is_some_and(is_of_set) {
        watch_memory(insn, run_set_load, run_set_store, 0);
    }
    if size > 4 {
        return;
    }
    let mut code = [0u8; 4];
    // SAFETY: At most as many bytes as `code` has.
    let got = unsafe { sys::qemu_plugin_insn_data(insn, code.as_mut_ptr().cast(), size) };
    let code = code.get(..got).unwrap_or(&[]);
    if is_return(code) {
        let of = config
            .returns
            .iter()
            .filter(|(range, _)| range.contains(&pc));
        of.for_each(|(_, h)| hook(*h));
    }
    let with_register = |callback: extern "C" fn(c_uint, *mut c_void), index: usize| {
        // SAFETY: The callback takes the register's number.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                Some(callback),
                Flags::QEMU_PLUGIN_CB_R_REGS,
                index as *mut c_void,
            );
        }
    };
    if let Some(index) = loads_table(code) {
        with_register(run_load_table, index);
    }
    match flushes(code).filter(|_| config.replay) {
        Some(Flush::All) => with_register(run_flush, FLUSH_ALL),
        Some(Flush::Page(index)) => with_register(run_flush, index),
        None => {}
    }
}

/// The thread that runs the CPUs.
static THREAD: OnceLock<ThreadId> = OnceLock::new();

extern "C" fn cpu_init(_id: qemu_plugin_id_t, _cpu: c_uint) {
    if *THREAD.get_or_init(|| thread::current().id()) != thread::current().id() {
        give_up("the CPUs have threads of their own: -icount, or -accel tcg,thread=single");
    }
    with_state(|state, _| match Guest::find() {
        Ok(guest) => state.guest = Some(guest),
        Err(why) => give_up(&why),
    });
}

/// A file that an argument names.
fn file(args: &Args, name: &str) -> std::result::Result<PathBuf, String> {
    match args.parsed.get(name) {
        Some(Value::String(s)) => Ok(PathBuf::from(s)),
        _ => Err(format!("{name}=FILE is missing")),
    }
}

/// Those of the kernel's System.map.
fn symbols(args: &Args) -> std::result::Result<Symbols, String> {
    let map = file(args, "map")?;
    std::fs::read_to_string(&map)
        .map_err(|e| e.to_string())
        .and_then(|t| Symbols::parse(&t))
        .map_err(|e| format!("{}: {e}", map.display()))
}

/// By address: what is to be done where a function of the kernel begins.
fn hooks<H>(
    symbols: &Symbols,
    functions: impl IntoIterator<Item = (&'static str, H)>,
) -> std::result::Result<HashMap<u64, H>, String> {
    let mut hooks = HashMap::new();
    for (name, hook) in functions {
        if hooks.insert(symbols.start(name)?, hook).is_some() {
            return Err(format!("{name} lies where another hook does"));
        }
    }
    Ok(hooks)
}

fn configure(args: &Args, info: &Info) -> std::result::Result<Config, String> {
    if info.target_name != "x86_64" {
        return Err(format!("the guest is a {}", info.target_name));
    }
    let cpus = info.system.as_ref().map_or(0, |s| s.max_vcpus);
    let cpus = usize::try_from(cpus).map_err(|e| format!("{cpus} CPUs: {e}"))?;
    let pages = |name: &str| match args.parsed.get(name) {
        Some(Value::Integer(n)) => usize::try_from(*n).map_err(|e| format!("{name}: {e}")),
        _ => Err(format!("{name}=PAGES is missing")),
    };
    let asked = |name: &str| match args.parsed.get(name) {
        Some(Value::Bool(on)) => Ok(*on),
        _ => Err(format!("{name}=on|off is missing")),
    };
    let shape = Shape {
        size: pages("n")?,
        first: pages("first")?,
        batch: pages("batch")?,
        again: asked("again")?,
        clock: asked("clock")?,
        sets: u32::try_from(pages("sets")?)
            .ok()
            .and_then(Sets::new)
            .ok_or("sets=0|1|2")?,
    };
    if shape.first == 0
        || shape.first.saturating_mul(cpus.min(2)) > shape.size
        || shape.batch == 0
        || shape.batch != shape.batch_of(shape.size, cpus)
        || shape.clock && shape.batch > 1
    {
        return Err(format!("there is no {shape} for {cpus} CPUs"));
    }
    let replay = asked("replay")?;
    let stream = args.parsed.contains_key("stream");
    let stream = stream.then(|| file(args, "stream")).transpose()?;
    // A replay writes no stream, and its CPUs share no clock of instructions.
    let timed = stream.is_some() && !replay;
    if !replay && cpus != 1 {
        return Err(format!("the guest has {cpus} CPUs; the model is for one"));
    }
    let symbols = symbols(args)?;
    let more = if replay { &REPLAY[..] } else { &MODEL };
    let hooks = hooks(&symbols, COMMON.iter().chain(more).copied())?;
    Ok(Config {
        shape,
        log: file(args, "log")?,
        hooks,
        returns: RETURNS
            .iter()
            .filter(|(.., only)| replay || !only)
            .map(|(name, hook, _)| (*name, *hook))
            .chain(
                CLOCKS
                    .iter()
                    .filter(|_| timed)
                    .map(|name| (*name, Hook::Clock)),
            )
            .map(|(name, hook)| Ok((symbols.range(name)?, hook)))
            .collect::<std::result::Result<_, String>>()?,
        stream,
        cpus,
        replay,
        view: symbols.start("vmtrace_view")?,
        symbols,
    })
}

struct Plugin;

impl HasCallbacks for Plugin {}

impl Register for Plugin {
    // The crate's own handlers box a closure for every instruction translated
    // and lock a mutex for every call; these do neither.
    fn register_default(&mut self, id: qemu_plugin_id_t, args: &Args, info: &Info) -> Result<()> {
        if count::is_asked(args) {
            return count::register(id, args);
        }
        match configure(args, info) {
            Ok(config) => {
                let _ = CONFIG.set(config);
            }
            Err(why) => give_up(&why),
        }
        qemu_plugin_register_vcpu_init_cb(id, Some(cpu_init))?;
        qemu_plugin_register_vcpu_tb_trans_cb(id, Some(translate))
    }
}

qemu_plugin::register!(Plugin);
