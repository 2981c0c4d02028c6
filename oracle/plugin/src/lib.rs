//! The oracle's eyes: a plugin for QEMU's TCG that tells [`oracle::watch::Watch`]
//! what the guest does, and writes its log when a trace ends.
//!
//! Arguments: `n`, the set's size; `first`, what its first segment has; `again` and
//! `clock`, on or off; `map`, the kernel's System.map; `log`, the file to write.
//! The guest must have one CPU and a kernel booted with `nokaslr`. Nothing is asked
//! of the kernel: the plugin knows its functions by their addresses and reads their
//! arguments from registers.

use guest::Guest;
use oracle::machine::{is_return, loads_table};
use oracle::model::Shape;
use oracle::symbols::Symbols;
use oracle::watch::{Fault, Target, USER_END, Watch};
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
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

mod guest;

/// A place in the kernel at which something is learned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum Hook {
    /// `vmtrace_attach()`: a trace begins.
    Begin,
    /// `vmtrace_quiesce()`: no admissions any more.
    Seal,
    /// `vmtrace_detach()`: the set is empty, the trace over.
    End,
    /// `__vmtrace_mm_init(mm)`: it is new.
    SpaceComes,
    /// `vmtrace_snapshot_mm(mm)`: it has lived already.
    SpaceJoins,
    /// `vmtrace_snapshot_task()`: after the pages of its address space.
    SpaceJoined,
    /// `vmtrace_rs_mm()`: the next number is given to it.
    SpaceNumbered,
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
    /// `__switch_to_asm(prev, next)`: still on the stack of the task that leaves.
    SwitchedOut,
    /// `vmtrace_rs_close(mm, addr, dirty, why)`.
    Closed,
    /// `vmtrace_rs_abort(ordinal)`.
    GaveUp,
}

const HOOKS: [(&str, Hook); 14] = [
    ("vmtrace_attach", Hook::Begin),
    ("vmtrace_quiesce", Hook::Seal),
    ("vmtrace_detach", Hook::End),
    ("__vmtrace_mm_init", Hook::SpaceComes),
    ("vmtrace_snapshot_mm", Hook::SpaceJoins),
    ("vmtrace_snapshot_task", Hook::SpaceJoined),
    ("vmtrace_rs_mm", Hook::SpaceNumbered),
    ("switch_mm_irqs_off", Hook::Switching),
    ("exc_page_fault", Hook::Fault),
    ("fixup_user_fault", Hook::Fixup),
    ("handle_mm_fault", Hook::Handling),
    ("__switch_to_asm", Hook::SwitchedOut),
    ("vmtrace_rs_close", Hook::Closed),
    ("vmtrace_rs_abort", Hook::GaveUp),
];

/// What the plugin was told, and what it found in System.map.
struct Config {
    shape: Shape,
    log: PathBuf,
    hooks: HashMap<u64, Hook>,
    /// Whose `ret` is [`Hook::Handled`].
    handler: Range<u64>,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// Whether [`Watch::wants_accesses`]: most of the time it does not, and then an
/// access should cost next to nothing.
static WANTED: AtomicBool = AtomicBool::new(false);

// In the order of the instruction set's encoding.
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

/// Where the instruction's address lies in struct pt_regs.
const REGS_IP: u64 = 16 * 8;

struct State {
    watch: Watch,
    guest: Option<Guest>,
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
            watch: Watch::new(config.shape),
            guest: None,
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

fn on_hook(state: &mut State, config: &Config, hook: Hook) -> std::result::Result<(), String> {
    let guest = state.guest.as_ref().ok_or("no registers")?;
    let get = |index: usize| guest.general(index);
    let watch = &mut state.watch;
    match hook {
        Hook::Begin => watch.begin(),
        Hook::Seal => watch.seal(),
        Hook::End => {
            if let Some(log) = watch.end() {
                let write = || {
                    let mut out = BufWriter::new(File::create(&config.log)?);
                    log.write(&mut out)?;
                    out.flush()
                };
                write().map_err(|e| format!("{} can't be written: {e}", config.log.display()))?;
            }
        }
        Hook::SpaceComes => watch.space_comes(get(RSP)?, get(RDI)?, false),
        Hook::SpaceJoins => watch.space_comes(get(RSP)?, get(RDI)?, true),
        Hook::SpaceJoined => watch.space_joined(),
        Hook::SpaceNumbered => watch.space_numbered(get(RSP)?),
        Hook::Switching => watch.switching(get(RSI)?),
        Hook::Fault => {
            let fault = Fault {
                stack: get(RSP)?,
                addr: guest.read(guest.cr2)?,
                code: get(RSI)?,
                cr3: guest.read(guest.cr3)?,
                ip: guest.word(get(RDI)? + REGS_IP)?,
            };
            return ask(guest, |ask| watch.fault(fault, ask));
        }
        Hook::Fixup => watch.fixup(get(RSP)?, get(RDI)?, get(RSI)?, get(RDX)?),
        Hook::Handling => watch.handling(get(RSP)?, get(RSI)?, get(RDX)?, get(RCX)? != 0),
        Hook::Handled => {
            let (stack, result) = (get(RSP)?, get(RAX)?);
            return ask(guest, |ask| watch.handled(stack, result, ask));
        }
        Hook::SwitchedOut => {
            let stack = get(RSP)?;
            return ask(guest, |ask| watch.switched_out(stack, ask));
        }
        Hook::Closed => watch.closed(get(RDI)? as u32, get(RSI)?, get(RCX)? as u8),
        Hook::GaveUp => watch.gave_up(),
    }
    Ok(())
}

/// Ends the run: without this plugin's log there is nothing to compare.
fn give_up(why: &str) {
    eprintln!("oracle: {why}");
    std::process::exit(3);
}

extern "C" fn run_hook(_cpu: c_uint, hook: *mut c_void) {
    with_state(|state, config| {
        let hook = HOOKS
            .iter()
            .map(|(_, h)| *h)
            .chain([Hook::Handled])
            .find(|h| *h as usize == hook as usize);
        let done = match hook {
            Some(hook) => on_hook(state, config, hook),
            None => Err("a hook of no kind".into()),
        };
        if let Err(why) = done {
            give_up(&why);
        }
        WANTED.store(state.watch.wants_accesses(), Ordering::Relaxed);
    });
}

/// `mov %reg, %cr3`, the register's number in `index`.
extern "C" fn run_load_table(_cpu: c_uint, index: *mut c_void) {
    with_state(|state, _| {
        let value = state
            .guest
            .as_ref()
            .ok_or_else(|| "no registers".to_owned())
            .and_then(|guest| guest.general(index as usize));
        match value {
            Ok(value) => state.watch.table_loaded(value),
            Err(why) => give_up(&why),
        }
        WANTED.store(state.watch.wants_accesses(), Ordering::Relaxed);
    });
}

/// A block of so many bytes is run. Its address is asked of the CPU: QEMU uses
/// one translation for a frame wherever it is mapped, so the address at which
/// it was translated may be another program's.
extern "C" fn run_block(_cpu: c_uint, bytes: *mut c_void) {
    if !WANTED.load(Ordering::Relaxed) {
        return;
    }
    with_state(|state, _| {
        let guest = state
            .guest
            .as_ref()
            .ok_or_else(|| "no registers".to_owned());
        match guest.and_then(|guest| guest.read(guest.rip)) {
            Ok(first) => {
                state.watch.fetch(first);
                let last = first + bytes as u64 - 1;
                if (last ^ first) >> 12 != 0 {
                    state.watch.fetch(last);
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
    with_state(|state, _| {
        state.watch.access(pc, addr, size, store);
    });
}

extern "C" fn run_load(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, pc: *mut c_void) {
    accessed(info, addr, pc as u64, false);
}

extern "C" fn run_store(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, pc: *mut c_void) {
    accessed(info, addr, pc as u64, true);
}

extern "C" fn translate(_id: qemu_plugin_id_t, tb: *mut qemu_plugin_tb) {
    let Some(config) = CONFIG.get() else {
        return;
    };
    // SAFETY: `tb` is valid while this callback runs.
    let len = unsafe { sys::qemu_plugin_tb_n_insns(tb) };
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
        for (rw, callback) in [
            (
                qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_R,
                run_load as extern "C" fn(_, _, _, _),
            ),
            (qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_W, run_store),
        ] {
            // SAFETY: The callback takes the program counter as a number.
            unsafe {
                sys::qemu_plugin_register_vcpu_mem_cb(
                    insn,
                    Some(callback),
                    Flags::QEMU_PLUGIN_CB_NO_REGS,
                    rw,
                    pc as *mut c_void,
                );
            }
        }
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
    if size > 4 {
        return;
    }
    let mut code = [0u8; 4];
    // SAFETY: At most as many bytes as `code` has.
    let got = unsafe { sys::qemu_plugin_insn_data(insn, code.as_mut_ptr().cast(), size) };
    let code = code.get(..got).unwrap_or(&[]);
    if config.handler.contains(&pc) && is_return(code) {
        hook(Hook::Handled);
    }
    if let Some(index) = loads_table(code) {
        // SAFETY: The callback takes the register's number.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                Some(run_load_table),
                Flags::QEMU_PLUGIN_CB_R_REGS,
                index as *mut c_void,
            );
        }
    }
}

extern "C" fn cpu_init(_id: qemu_plugin_id_t, _cpu: c_uint) {
    with_state(|state, _| match Guest::find() {
        Ok(guest) => state.guest = Some(guest),
        Err(why) => give_up(&why),
    });
}

fn configure(args: &Args, info: &Info) -> std::result::Result<Config, String> {
    if info.target_name != "x86_64" {
        return Err(format!("the guest is a {}", info.target_name));
    }
    let cpus = info.system.as_ref().map_or(0, |s| s.max_vcpus);
    if cpus != 1 {
        return Err(format!("the guest has {cpus} CPUs; the model is for one"));
    }
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
        again: asked("again")?,
        clock: asked("clock")?,
    };
    if shape.first == 0 || shape.first > shape.size {
        return Err(format!("there is no {shape}"));
    }
    let text = |name: &str| match args.parsed.get(name) {
        Some(Value::String(s)) => Ok(PathBuf::from(s)),
        _ => Err(format!("{name}=FILE is missing")),
    };
    let map = text("map")?;
    let symbols = std::fs::read_to_string(&map)
        .map_err(|e| e.to_string())
        .and_then(|t| Symbols::parse(&t))
        .map_err(|e| format!("{}: {e}", map.display()))?;
    let mut hooks = HashMap::new();
    for (name, hook) in HOOKS {
        if hooks.insert(symbols.start(name)?, hook).is_some() {
            return Err(format!("{name} lies where another hook does"));
        }
    }
    Ok(Config {
        shape,
        log: text("log")?,
        hooks,
        handler: symbols.range("handle_mm_fault")?,
    })
}

struct Oracle;

impl HasCallbacks for Oracle {}

impl Register for Oracle {
    // The crate's own handlers box a closure for every instruction translated
    // and lock a mutex for every call; these do neither.
    fn register_default(&mut self, id: qemu_plugin_id_t, args: &Args, info: &Info) -> Result<()> {
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

qemu_plugin::register!(Oracle);
