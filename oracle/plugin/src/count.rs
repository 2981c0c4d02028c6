//! The plugin's other use: with `count=FILE` it counts what the CPUs do between two marks of a
//! program, which are long no-ops with displacements of their own, and appends a report to
//! FILE, as a line of JSON, at each second mark. `map` is the kernel's System.map. The kernel
//! must be booted with `nokaslr`, and QEMU must run the CPUs in turns.
//!
//! QEMU passes the number of the CPU for which a block was translated and not of the one
//! that runs the block, so each block looks where the kernel has the CPU's own data. QEMU's
//! own counters go wrong likewise, if not worse: with them, code for several CPUs in turns
//! crashes QEMU 10.0. So a callback counts each instruction.

use crate::guest::Guest;
use crate::{RAX, RDI, RSP, give_up};
use oracle::count::Counter;
use oracle::machine::is_return;
use oracle::model::Answer;
use oracle::replay::L_ANSWER;
use oracle::symbols::Symbols;
use oracle::watch::USER_END;
use qemu_plugin::install::Args;
use qemu_plugin::sys::{
    self, qemu_plugin_cb_flags as Flags, qemu_plugin_id_t, qemu_plugin_insn, qemu_plugin_mem_rw,
    qemu_plugin_meminfo_t, qemu_plugin_tb,
};
use qemu_plugin::{
    Result, qemu_plugin_register_vcpu_init_cb, qemu_plugin_register_vcpu_tb_trans_cb,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a function of the kernel does that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
enum Hook {
    /// It takes the lock that its first argument names, or waits for it.
    Takes,
    Drops,
    /// It may take the lock.
    Tries,
    /// It returns whether it did.
    Tried,
    Fault,
    Admission,
    /// It returns.
    Answered,
    Event,
    Call,
    Wake,
}

/// All of them, in the order of their numbers.
const HOOKS: [Hook; 10] = [
    Hook::Takes,
    Hook::Drops,
    Hook::Tries,
    Hook::Tried,
    Hook::Fault,
    Hook::Admission,
    Hook::Answered,
    Hook::Event,
    Hook::Call,
    Hook::Wake,
];

/// Locks that one CPU at a time holds. Readers do not keep each other out: what they
/// store to the lock's line is counted with the stores.
const FUNCTIONS: [(&str, Hook); 22] = [
    ("_raw_spin_lock", Hook::Takes),
    ("_raw_spin_lock_irqsave", Hook::Takes),
    ("_raw_spin_lock_irq", Hook::Takes),
    ("_raw_spin_lock_irq_disable", Hook::Takes),
    ("_raw_spin_lock_bh", Hook::Takes),
    ("down_write", Hook::Takes),
    ("down_write_killable", Hook::Takes),
    ("mutex_lock", Hook::Takes),
    ("_raw_spin_trylock", Hook::Tries),
    ("down_write_trylock", Hook::Tries),
    ("_raw_spin_unlock", Hook::Drops),
    ("_raw_spin_unlock_irqrestore", Hook::Drops),
    ("_raw_spin_unlock_irq", Hook::Drops),
    ("_raw_spin_unlock_irq_enable", Hook::Drops),
    ("_raw_spin_unlock_bh", Hook::Drops),
    ("up_write", Hook::Drops),
    ("downgrade_write", Hook::Drops),
    ("mutex_unlock", Hook::Drops),
    ("exc_page_fault", Hook::Fault),
    ("sysvec_call_function", Hook::Call),
    ("sysvec_call_function_single", Hook::Call),
    ("sysvec_reschedule_ipi", Hook::Wake),
];

/// An unpatched kernel has no such functions.
const TRACER: [(&str, Hook); 2] = [
    ("vmtrace_rs_admit_locked", Hook::Admission),
    ("vmtrace_rs_event", Hook::Event),
];

/// `nopl disp32(%rax)` with these displacements: "BMVK" and "EMVK". The guest's programs
/// have them as `mark_begin()` and `mark_end()`.
const BEGIN: [u8; 7] = [0x0f, 0x1f, 0x80, b'B', b'M', b'V', b'K'];
const END: [u8; 7] = [0x0f, 0x1f, 0x80, b'E', b'M', b'V', b'K'];

struct Config {
    symbols: Symbols,
    hooks: HashMap<u64, Hook>,
    /// Functions whose `ret` tells something.
    returns: Vec<(Range<u64>, Hook)>,
    out: PathBuf,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// A program is between its marks.
static COUNTING: AtomicBool = AtomicBool::new(false);

/// Instructions of all CPUs while it is.
static TOTAL: AtomicU64 = AtomicU64::new(0);

/// Of these, the instructions of each symbol, by its place.
static RAN: OnceLock<Vec<AtomicU64>> = OnceLock::new();

#[derive(Default)]
struct State {
    guest: Option<Guest>,
    /// Where each CPU has its own data.
    cpus: Vec<u64>,
    /// By CPU: the lock that it tries to take, and where.
    tries: HashMap<usize, (u64, u64)>,
    /// By CPU: the admission that it asks the set for.
    asks: HashMap<usize, u64>,
    running: usize,
    counter: Option<Counter>,
}

// The CPUs take turns, so all callbacks come on one thread.
thread_local! {
    static STATE: RefCell<State> = RefCell::new(State::default());
}

fn with_state(f: impl FnOnce(&mut State, &Config) -> std::result::Result<(), String>) {
    let Some(config) = CONFIG.get() else {
        return;
    };
    if let Err(why) = STATE.with_borrow_mut(|state| f(state, config)) {
        give_up(&why);
    }
}

impl State {
    fn guest(&self) -> std::result::Result<&Guest, String> {
        self.guest.as_ref().ok_or_else(|| "no registers".into())
    }

    /// Which CPU runs, of those that have begun to.
    fn look(&mut self) -> std::result::Result<usize, String> {
        let base = self.guest()?.own_data()?.ok_or("a CPU without data")?;
        let known = self.cpus.iter().position(|known| *known == base);
        Ok(known.unwrap_or_else(|| {
            self.cpus.push(base);
            self.cpus.len() - 1
        }))
    }
}

fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

extern "C" fn run_instruction(_cpu: c_uint, place: *mut c_void) {
    if COUNTING.load(Ordering::Relaxed) {
        // One CPU runs at a time, in one thread.
        let add = |n: &AtomicU64| n.store(n.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        add(&TOTAL);
        if let Some(n) = RAN.get().and_then(|ran| ran.get(place as usize)) {
            add(n);
        }
    }
}

/// What the symbols ran since the last time.
fn ran() -> Vec<u64> {
    let counts = RAN.get().map_or(&[][..], Vec::as_slice);
    counts
        .iter()
        .map(|n| n.swap(0, Ordering::Relaxed))
        .collect()
}

extern "C" fn run_block(_cpu: c_uint, _: *mut c_void) {
    if !COUNTING.load(Ordering::Relaxed) {
        return;
    }
    with_state(|state, _| {
        let cpu = state.look()?;
        state.running = cpu;
        if let Some(counter) = &mut state.counter {
            counter.run(cpu, total());
        }
        Ok(())
    });
}

extern "C" fn run_mark(_cpu: c_uint, begins: *mut c_void) {
    with_state(|state, config| {
        if !begins.is_null() {
            let cpu = state.look()?;
            state.running = cpu;
            state.counter = Some(Counter::new(cpu, total()));
            ran();
            COUNTING.store(true, Ordering::Relaxed);
            return Ok(());
        }
        COUNTING.store(false, Ordering::Relaxed);
        let Some(mut counter) = state.counter.take() else {
            return Err("a program's end has no beginning".into());
        };
        counter.run(state.running, total());
        let ran = ran();
        let write = || -> std::io::Result<()> {
            let mut line = serde_json::to_vec(&counter.report(&config.symbols, &ran))?;
            line.push(b'\n');
            let mut file = File::options();
            let file = file.append(true).create(true);
            file.open(&config.out)?.write_all(&line)
        };
        write().map_err(|e| format!("{} can't be written: {e}", config.out.display()))
    });
}

extern "C" fn run_hook(_cpu: c_uint, hook: *mut c_void) {
    if !COUNTING.load(Ordering::Relaxed) {
        return;
    }
    with_state(|state, _| {
        let hook = HOOKS.get(hook as usize).ok_or("a hook of no kind")?;
        let running = state.running;
        let argument = state.guest()?.general(RDI)?;
        // Functions begin with the return address on the stack.
        let caller = match hook {
            Hook::Takes | Hook::Tries => {
                let guest = state.guest()?;
                guest.word(guest.general(RSP)?)?
            }
            _ => 0,
        };
        match hook {
            Hook::Tries => {
                state.tries.insert(running, (argument, caller));
                return Ok(());
            }
            Hook::Tried if state.guest()?.general(RAX)? & 0xff == 0 => return Ok(()),
            _ => {}
        }
        let answer = match hook {
            Hook::Admission => {
                state.asks.insert(running, argument);
                None
            }
            Hook::Answered => match state.asks.remove(&running) {
                Some(l) => Answer::new(state.guest()?.word(l + L_ANSWER)?),
                None => None,
            },
            _ => None,
        };
        let Some(counter) = &mut state.counter else {
            return Ok(());
        };
        counter.run(running, total());
        match hook {
            Hook::Takes => counter.takes(argument, caller),
            Hook::Tried => {
                if let Some((lock, caller)) = state.tries.remove(&running) {
                    counter.takes(lock, caller);
                }
            }
            Hook::Drops => counter.drops(argument),
            Hook::Answered => counter.cpu().answered(answer),
            Hook::Fault => counter.cpu().faults += 1,
            Hook::Admission => {}
            Hook::Event => counter.cpu().events += 1,
            Hook::Call => counter.cpu().calls += 1,
            Hook::Wake => counter.cpu().wakes += 1,
            Hook::Tries => {}
        }
        Ok(())
    });
}

extern "C" fn run_store(_cpu: c_uint, info: qemu_plugin_meminfo_t, addr: u64, pc: *mut c_void) {
    if !COUNTING.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: The callback's own handle, while it runs.
    let physical = unsafe {
        let at = sys::qemu_plugin_get_hwaddr(info, addr);
        if at.is_null() || sys::qemu_plugin_hwaddr_is_io(at) {
            return;
        }
        sys::qemu_plugin_hwaddr_phys_addr(at)
    };
    with_state(|state, _| {
        if let Some(counter) = &mut state.counter {
            counter.stores(physical, addr, pc as u64);
        }
        Ok(())
    });
}

extern "C" fn translate(_id: qemu_plugin_id_t, tb: *mut qemu_plugin_tb) {
    let Some(config) = CONFIG.get() else {
        return;
    };
    // SAFETY: `tb` is valid while this callback runs.
    let len = unsafe {
        sys::qemu_plugin_register_vcpu_tb_exec_cb(
            tb,
            Some(run_block),
            Flags::QEMU_PLUGIN_CB_R_REGS,
            std::ptr::null_mut(),
        );
        sys::qemu_plugin_tb_n_insns(tb)
    };
    for i in 0..len {
        // SAFETY: As above, and `i` is in range; the instruction lives as long as its
        // block's translation. Callbacks take the program counter as a number.
        unsafe {
            let insn = sys::qemu_plugin_tb_get_insn(tb, i);
            let pc = sys::qemu_plugin_insn_vaddr(insn);
            let none = config.symbols.count();
            let place = config.symbols.place(pc).unwrap_or(none);
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                Some(run_instruction),
                Flags::QEMU_PLUGIN_CB_NO_REGS,
                place as *mut c_void,
            );
            sys::qemu_plugin_register_vcpu_mem_cb(
                insn,
                Some(run_store),
                Flags::QEMU_PLUGIN_CB_NO_REGS,
                qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_W,
                pc as *mut c_void,
            );
            translate_one(config, insn, pc);
        }
    }
}

/// Marks and hooks.
fn translate_one(config: &Config, insn: *mut qemu_plugin_insn, pc: u64) {
    let mut code = [0u8; 7];
    // SAFETY: The instruction is that of the callback that calls this; at most as many bytes
    // as `code` has are written.
    let got = unsafe { sys::qemu_plugin_insn_data(insn, code.as_mut_ptr().cast(), code.len()) };
    let code = code.get(..got).unwrap_or(&[]);
    let call = |callback: extern "C" fn(c_uint, *mut c_void), what: usize| {
        // SAFETY: The callback takes a number.
        unsafe {
            sys::qemu_plugin_register_vcpu_insn_exec_cb(
                insn,
                Some(callback),
                Flags::QEMU_PLUGIN_CB_R_REGS,
                what as *mut c_void,
            );
        }
    };
    if pc < USER_END {
        match code {
            code if code == BEGIN => call(run_mark, 1),
            code if code == END => call(run_mark, 0),
            _ => {}
        }
        return;
    }
    if let Some(hook) = config.hooks.get(&pc) {
        call(run_hook, *hook as usize);
    }
    if is_return(code) {
        let of = config
            .returns
            .iter()
            .filter(|(range, _)| range.contains(&pc));
        of.for_each(|(_, hook)| call(run_hook, *hook as usize));
    }
}

extern "C" fn cpu_init(_id: qemu_plugin_id_t, _cpu: c_uint) {
    with_state(|state, _| {
        state.guest = Some(Guest::find()?);
        Ok(())
    });
}

fn configure(args: &Args) -> std::result::Result<Config, String> {
    let symbols = crate::symbols(args)?;
    let mut hooks = crate::hooks(&symbols, FUNCTIONS)?;
    let mut returns = FUNCTIONS
        .iter()
        .filter(|(_, hook)| *hook == Hook::Tries)
        .map(|(name, _)| Ok((symbols.range(name)?, Hook::Tried)))
        .collect::<std::result::Result<Vec<_>, String>>()?;
    for (function, hook) in TRACER {
        if let Ok(at) = symbols.start(function) {
            hooks.insert(at, hook);
            if hook == Hook::Admission {
                returns.push((symbols.range(function)?, Hook::Answered));
            }
        }
    }
    Ok(Config {
        symbols,
        hooks,
        returns,
        out: crate::file(args, "count")?,
    })
}

/// Whether this is what is asked for.
pub fn is_asked(args: &Args) -> bool {
    args.parsed.contains_key("count")
}

/// Registers what counts.
pub fn register(id: qemu_plugin_id_t, args: &Args) -> Result<()> {
    match configure(args) {
        Ok(config) => {
            let symbols = 0..config.symbols.count();
            let _ = RAN.set(symbols.map(|_| AtomicU64::new(0)).collect());
            let _ = CONFIG.set(config);
        }
        Err(why) => give_up(&why),
    }
    qemu_plugin_register_vcpu_init_cb(id, Some(cpu_init))?;
    qemu_plugin_register_vcpu_tb_trans_cb(id, Some(translate))
}
