//! One task under ptrace: what its stops are, and system calls that it makes for the tracer.
//!
//! A stopped task makes a call in this way: its registers are set so that its next instruction is the
//! `syscall` of the vDSO (the *gate*), with the tracer's call in them, and it makes one step. A step over
//! this instruction ends when the call has returned, before the program goes on. So a call costs one stop. If
//! the task is stopped at the beginning of a call of its own, the kernel is about to make that call. Then
//! the tracer's call takes its place, and the task makes its own one anew afterwards.

use super::calls::{Call, Memory};
use super::protect::InCall;
use crate::check;
use libc::{c_int, c_void, siginfo_t, user_regs_struct};
use std::cell::OnceCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;

/// Why something with a task did not happen.
#[derive(Debug)]
pub enum Failure {
    /// The task was killed, or has ended. The rest of this tells waitpid().
    Gone,
    /// Another error, which ends the tracer.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        match e.raw_os_error() {
            Some(libc::ESRCH) => Failure::Gone,
            _ => Failure::Other(e),
        }
    }
}

/// A stop, or the end, as waitpid() tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The end, with an exit code: 128 + signal if it was killed.
    Ended(i32),
    /// A signal is about to be delivered.
    Signal(i32),
    /// A system call begins or ends.
    Call,
    /// PTRACE_EVENT_*, and the signal that came with it.
    Event(i32, i32),
}

impl Stop {
    /// From waitpid()'s status.
    pub fn of(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            return Stop::Ended(libc::WEXITSTATUS(status));
        }
        if libc::WIFSIGNALED(status) {
            return Stop::Ended(128 + libc::WTERMSIG(status));
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        match (event, signal) {
            (0, signal) if signal == libc::SIGTRAP | 0x80 => Stop::Call,
            (0, signal) => Stop::Signal(signal),
            (event, signal) => Stop::Event(event, signal),
        }
    }
}

/// Where a call is, as PTRACE_GET_SYSCALL_INFO tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// It begins; and the stack pointer.
    Entry(Call, u64),
    /// It has returned this.
    Exit(i64),
    /// The stop is another one.
    Neither,
}

/// PTRACE_GET_SYSCALL_INFO and the length of its structure, in words.
const GET_SYSCALL_INFO: c_int = 0x420e;
const INFO_WORDS: usize = 11;
/// AUDIT_ARCH_X86_64.
const X86_64: u64 = 0xc000_003e;

/// Makes a request about a stopped task, with two numbers.
fn ptrace(request: c_int, tid: i32, addr: usize, data: usize) -> Result<i64> {
    // SAFETY: The requests that come here take numbers, or addresses of memory that is as long as the
    // kernel wants, which the callers of this function have.
    let ret = unsafe { libc::ptrace(request as _, tid, addr as *mut c_void, data as *mut c_void) };
    if ret < 0 {
        return Err(Error::last_os_error());
    }
    Ok(ret)
}

/// What all tasks are asked for: stops at everything that makes or replaces a task or an address space, and
/// the end of all tasks if the tracer is killed.
const OPTIONS: c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_EXITKILL;

/// Traces a task from here on.
///
/// # Errors
///
/// The system's.
pub fn seize(tid: i32) -> Result<()> {
    ptrace(libc::PTRACE_SEIZE as _, tid, 0, OPTIONS as usize).map(drop)
}

/// The number that goes with a PTRACE_EVENT_* stop.
///
/// # Errors
///
/// The system's.
pub fn message(tid: i32) -> Result<u64> {
    let mut message: u64 = 0;
    let at = &raw mut message as usize;
    ptrace(libc::PTRACE_GETEVENTMSG as _, tid, 0, at)?;
    Ok(message)
}

/// Where the stopped task's call is.
///
/// # Errors
///
/// The system's; or if the task makes calls of another architecture.
pub fn where_in_call(tid: i32) -> Result<At> {
    let mut info = [0u64; INFO_WORDS];
    let at = info.as_mut_ptr() as usize;
    ptrace(GET_SYSCALL_INFO, tid, size_of_val(&info), at)?;
    let [head, _ip, sp, first, args @ ..] = &info;
    if head >> 32 != X86_64 {
        return Err(Error::other(
            "watch-pages follows programs of x86-64 only, and one of another architecture has begun",
        ));
    }
    Ok(match head & 0xff {
        1 => {
            let mut call = Call {
                nr: *first as i64,
                args: [0; 6],
            };
            call.args.copy_from_slice(&args[..6]);
            At::Entry(call, *sp)
        }
        2 => At::Exit(*first as i64),
        _ => At::Neither,
    })
}

/// What the signal that is about to be delivered says of itself.
///
/// # Errors
///
/// The system's.
pub fn signal_of(tid: i32) -> Result<siginfo_t> {
    // SAFETY: Zeros are a siginfo, which the kernel fills in.
    let mut info: siginfo_t = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETSIGINFO as _, tid, 0, &raw mut info as usize)?;
    Ok(info)
}

/// The registers of a stopped task.
///
/// # Errors
///
/// The system's.
pub fn registers(tid: i32) -> Result<user_regs_struct> {
    // SAFETY: Zeros are registers, which the kernel fills in.
    let mut regs: user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS as _, tid, 0, &raw mut regs as usize)?;
    Ok(regs)
}

fn set_registers(tid: i32, regs: &user_regs_struct) -> Result<()> {
    let at = &raw const *regs as usize;
    ptrace(libc::PTRACE_SETREGS as _, tid, 0, at).map(drop)
}

/// Waits for a stop or the end of a task; of any task, with -1. `None`, if nobody is left, or nothing is
/// there yet and `block` is not set.
///
/// # Errors
///
/// The system's.
pub fn wait(tid: i32, block: bool) -> Result<Option<(i32, i32)>> {
    let mut status = 0;
    let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: Room for a status.
        match check(unsafe { libc::waitpid(tid, &mut status, flags) }) {
            Ok(0) => return Ok(None),
            Ok(tid) => return Ok(Some((tid, status))),
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

/// A task that is followed.
pub struct Task {
    /// Its number.
    pub tid: i32,
    /// That of its process.
    pub pid: i32,
    /// Its address space, by a number of the tracer's.
    pub space: u32,
    /// The call that it is in.
    pub call: Option<Call>,
    /// What the call needs, if mprotect() is the way.
    pub needs: InCall,
    /// Faults in a row on a page that should be accessible, and the page.
    pub again: (u64, u32),
    /// It is about to end.
    pub exits: bool,
    /// Where the kernel writes a zero when the task ends; 0 if nowhere.
    pub clears: u64,
    /// Its stack for signals: address and length.
    pub signal_stack: (u64, u64),
    /// It has begun a program, and has not returned to user mode since.
    pub executed: bool,
    /// Its first stop has come.
    pub begun: bool,
    /// What came of it while the tracer waited for the end of a step.
    pub came: Option<i32>,
    /// The registers that the program has, while others are set.
    saved: Option<user_regs_struct>,
    /// The stop is at the beginning of a call.
    at_entry: bool,
    /// The task must make its own call anew.
    anew: bool,
    /// Signals that came meanwhile.
    deferred: VecDeque<siginfo_t>,
}

impl Task {
    /// A new task.
    pub fn new(tid: i32, pid: i32, space: u32) -> Self {
        Task {
            tid,
            pid,
            space,
            call: None,
            needs: InCall::default(),
            again: (0, 0),
            exits: false,
            clears: 0,
            signal_stack: (0, 0),
            executed: false,
            begun: false,
            came: None,
            saved: None,
            at_entry: false,
            anew: false,
            deferred: VecDeque::new(),
        }
    }

    /// It has stopped, at the beginning of a call or elsewhere.
    pub fn stopped(&mut self, at_entry: bool) {
        self.at_entry = at_entry;
    }

    /// The registers as the program has them.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn registers(&self) -> Result<user_regs_struct> {
        match self.saved {
            Some(regs) => Ok(regs),
            None => registers(self.tid),
        }
    }

    /// Has the stopped task make a call, of at most three arguments. Gives what the call returns.
    ///
    /// # Errors
    ///
    /// If the task is gone, or the system's error.
    pub fn make(
        &mut self,
        gate: u64,
        nr: i64,
        args: [u64; 3],
    ) -> std::result::Result<i64, Failure> {
        let saved = self.registers()?;
        self.saved = Some(saved);
        let mut regs = saved;
        [regs.rdi, regs.rsi, regs.rdx] = args;
        let instead = std::mem::take(&mut self.at_entry);
        if instead {
            regs.orig_rax = nr as u64;
            self.anew = true;
        } else {
            regs.rip = gate;
            regs.rax = nr as u64;
            // The kernel restarts no call that a signal has interrupted.
            regs.orig_rax = u64::MAX;
        }
        set_registers(self.tid, &regs)?;
        loop {
            ptrace(libc::PTRACE_SINGLESTEP as _, self.tid, 0, 0)?;
            let Some((_, status)) = wait(self.tid, true)? else {
                return Err(Failure::Gone);
            };
            match Stop::of(status) {
                Stop::Signal(libc::SIGTRAP) => {
                    let regs = registers(self.tid)?;
                    // If the stop before was inside of a call, the step may have ended with that one.
                    if instead || regs.rip != gate {
                        return Ok(regs.rax as i64);
                    }
                }
                Stop::Signal(_) => self.deferred.push_back(signal_of(self.tid)?),
                Stop::Event(libc::PTRACE_EVENT_STOP, _) => {}
                _ => {
                    self.came = Some(status);
                    return Err(Failure::Gone);
                }
            }
        }
    }

    /// Lets the call that begins fail as one that the kernel does not know.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn refuse(&mut self) -> Result<()> {
        let mut regs = registers(self.tid)?;
        regs.orig_rax = u64::MAX;
        set_registers(self.tid, &regs)
    }

    /// The call that has ended is to be made anew.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn make_anew(&mut self) -> Result<()> {
        self.saved = Some(self.registers()?);
        self.anew = true;
        Ok(())
    }

    /// A signal that came while the task made calls for the tracer, and that must be delivered now. There
    /// is none unless the task has made one, so that a signal can be delivered.
    pub fn next_deferred(&mut self) -> Option<siginfo_t> {
        self.saved.and_then(|_| self.deferred.pop_front())
    }

    /// The task goes on, until its next call if `calls`, with this signal.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn go(&mut self, calls: bool, signal: Option<siginfo_t>) -> Result<()> {
        self.at_entry = false;
        if let Some(mut regs) = self.saved.take() {
            if std::mem::take(&mut self.anew) {
                /// Bytes of the instruction `syscall`.
                const SYSCALL: u64 = 2;
                regs.rip -= SYSCALL;
                regs.rax = regs.orig_rax;
                regs.orig_rax = u64::MAX;
            }
            set_registers(self.tid, &regs)?;
            // The stop is that of a step, and takes any signal in its place.
            if let Some(info) = &signal {
                let at = &raw const *info as usize;
                ptrace(libc::PTRACE_SETSIGINFO as _, self.tid, 0, at)?;
            }
            // Only one signal can be delivered here. The others lose what they say of themselves.
            for info in self.deferred.drain(..) {
                // SAFETY: Numbers only.
                let sent =
                    unsafe { libc::syscall(libc::SYS_tgkill, self.pid, self.tid, info.si_signo) };
                check(sent as i32)?;
            }
        }
        let request = match calls {
            true => libc::PTRACE_SYSCALL,
            false => libc::PTRACE_CONT,
        };
        let number = signal.map_or(0, |info| info.si_signo);
        ptrace(request as _, self.tid, 0, number as usize).map(drop)
    }

    /// It stays stopped as by SIGSTOP, until a SIGCONT.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn listen(&self) -> Result<()> {
        ptrace(libc::PTRACE_LISTEN as _, self.tid, 0, 0).map(drop)
    }
}

/// The memory of a process, also where the process itself has no right to read.
pub struct Remote {
    pid: i32,
    /// Opened when it is needed first. None if that fails, because the process ends.
    file: OnceCell<Option<File>>,
}

impl Remote {
    /// Of this process, in the address space that it has when its memory is read first.
    pub fn new(pid: i32) -> Self {
        Remote {
            pid,
            file: OnceCell::new(),
        }
    }
}

impl Memory for Remote {
    fn read(&self, at: u64, to: &mut [u8]) -> usize {
        let open = || File::open(format!("/proc/{}/mem", self.pid)).ok();
        let file = self.file.get_or_init(open);
        file.as_ref().map_or(0, |f| f.read_at(to, at).unwrap_or(0))
    }
}

/// The process of a task.
///
/// # Errors
///
/// If there is no such task.
pub fn process_of(tid: i32) -> Result<i32> {
    let path = format!("/proc/{tid}/status");
    match crate::counter(&path, "Tgid") {
        0 => Err(Error::other(format!("{path}: no task"))),
        pid => Ok(pid as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;

    #[test]
    fn stops_are_told_apart() {
        assert_eq!(Stop::of(3 << 8), Stop::Ended(3));
        assert_eq!(Stop::of(libc::SIGKILL), Stop::Ended(128 + libc::SIGKILL));
        let stopped = |signal: i32, event: i32| Stop::of(event << 16 | signal << 8 | 0x7f);
        assert_eq!(stopped(libc::SIGTRAP | 0x80, 0), Stop::Call);
        assert_eq!(stopped(libc::SIGTRAP, 0), Stop::Signal(libc::SIGTRAP));
        assert_eq!(
            stopped(libc::SIGTRAP, libc::PTRACE_EVENT_EXEC),
            Stop::Event(libc::PTRACE_EVENT_EXEC, libc::SIGTRAP)
        );
    }
}
