//! Follows a program and all that it starts: which tasks there are, which address spaces they share, and what
//! is mapped there.

use super::Way;
use super::calls::{Call, memory_of, word_at};
use super::maps::{Area, Maps, whole};
use super::protect::{self, Work};
use super::recent::Recent;
use super::report::{Entry, Used, Writer};
use super::rwp::{self, Descriptor};
use super::task::{self, At, Failure, Remote, Stop, Task};
use crate::{check, now_ns};
use libc::siginfo_t;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io::{Error, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// An address space.
pub struct Space {
    /// A process that has it.
    pub pid: i32,
    /// How many tasks are in it.
    pub tasks: usize,
    /// What the program has mapped.
    pub maps: Maps,
    /// The pages that are accessible, by number.
    pub recent: Recent,
    /// The address of an instruction `syscall` outside of the maps.
    pub gate: u64,
    /// Its content.
    pub memory: Remote,
    /// The userfaultfd of those ways that have one.
    pub descriptor: Option<Descriptor>,
    /// It is the copy of another one, and its task has not begun yet.
    copied: bool,
}

impl Space {
    /// The address space of a program that begins. What is mapped there is not known yet.
    fn new(pid: i32) -> Self {
        Space {
            pid,
            tasks: 1,
            maps: Maps::default(),
            recent: Recent::new(0),
            gate: 0,
            memory: Remote::new(pid),
            descriptor: None,
            copied: false,
        }
    }
}

/// Where reports go.
pub struct Reports {
    out: Writer,
}

impl Reports {
    /// A page is used at this time.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn used_at(&mut self, time: u64, pid: i32, page: u64) -> Result<()> {
        self.add(Entry::Now(Used {
            time,
            pid: pid as u32,
            vpn: page,
        }))
    }

    /// A page is used now.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn used(&mut self, pid: i32, page: u64) -> Result<()> {
        self.used_at(now_ns(), pid, page)
    }

    /// Adds an entry.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn add(&mut self, entry: Entry) -> Result<()> {
        self.out.add(entry)
    }
}

/// All that is followed.
pub struct Follower {
    way: Way,
    /// The program itself.
    first: i32,
    /// Its exit code.
    code: i32,
    pub(super) tasks: BTreeMap<i32, Task>,
    pub(super) spaces: BTreeMap<u32, Space>,
    next_space: u32,
    /// Stops of tasks whose parents have not told of them yet.
    early: BTreeMap<i32, i32>,
    /// Where the vDSO has an instruction `syscall`, from its beginning on. It is the same for all processes.
    gate: Option<u64>,
    pub(super) reports: Reports,
}

/// What is to be done with a task that has stopped.
enum Next {
    /// It goes on, with this signal.
    Go(Option<siginfo_t>),
    /// It stays stopped.
    Listen,
    /// It is gone, or waits for its parent.
    Nothing,
}

/// Runs a program under a tracer. Gives its exit code: 128 + signal if it was killed, 127 if it can't be
/// started.
///
/// # Errors
///
/// If a system call of the tracer fails. Then all that was started is killed.
pub fn run(way: Way, out: &str, argv: &[String]) -> Result<i32> {
    let out = Writer::create(out)?;
    let first = start(argv)?;
    let mut follower = Follower {
        way,
        first,
        code: 0,
        tasks: BTreeMap::new(),
        spaces: BTreeMap::new(),
        next_space: 0,
        early: BTreeMap::new(),
        gate: None,
        reports: Reports { out },
    };
    // The space of the moment before the program begins is the tracer's own copy, and is not watched.
    let space = follower.add_space(Space::new(first));
    let mut task = Task::new(first, first, space);
    task.begun = true;
    follower.tasks.insert(first, task);
    match way {
        Way::Mprotect(_) => follower.all_stops()?,
        Way::Rwp(_) | Way::RwpAsync(_) => rwp::watch(&mut follower)?,
    }
    follower.reports.out.finish()?;
    if !follower.tasks.is_empty() {
        // Without a tracer, they would fail at their next access.
        eprintln!(
            "watch-pages: the program has ended; tasks that it has left behind, and that are killed: {}",
            follower.tasks.len()
        );
    }
    Ok(follower.code)
}

/// Starts a program that is traced from its beginning on.
fn start(argv: &[String]) -> Result<i32> {
    let argv: std::result::Result<Vec<CString>, _> =
        argv.iter().map(|a| CString::new(a.as_str())).collect();
    let argv = argv?;
    let program = argv
        .first()
        .ok_or_else(|| Error::other("no program to watch"))?;
    let mut pointers: Vec<*const libc::c_char> = argv.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let mut ends = [0; 2];
    // SAFETY: Room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    let [reads, writes] = ends;
    let child = crate::fork_child(|| {
        let mut byte = 0u8;
        // SAFETY: The strings and the array of their addresses live in the copy of the parent's memory. The
        // child makes system calls only.
        unsafe {
            libc::close(writes);
            // Nothing comes if the parent fails.
            if libc::read(reads, (&raw mut byte).cast(), 1) == 1 {
                libc::execvp(program.as_ptr(), pointers.as_ptr());
            }
        }
        127
    })?;
    // SAFETY: A descriptor of ours.
    unsafe { libc::close(reads) };
    let seized = task::seize(child);
    if seized.is_ok() {
        // SAFETY: A byte of ours.
        let written = unsafe { libc::write(writes, [1u8].as_ptr().cast(), 1) };
        check(written as i32)?;
    }
    // SAFETY: A descriptor of ours.
    unsafe { libc::close(writes) };
    seized.map(|()| child)
}

impl Follower {
    pub(super) fn way(&self) -> Way {
        self.way
    }

    fn add_space(&mut self, space: Space) -> u32 {
        self.next_space += 1;
        self.spaces.insert(self.next_space, space);
        self.next_space
    }

    /// Whether the way needs to know of each call.
    fn calls(&self) -> bool {
        !matches!(self.way, Way::RwpAsync(_))
    }

    /// Whether the program itself runs.
    pub(super) fn goes_on(&self) -> bool {
        self.tasks.contains_key(&self.first)
    }

    /// Handles stops until the program has ended.
    fn all_stops(&mut self) -> Result<()> {
        while self.goes_on() {
            let Some((tid, status)) = task::wait(-1, true)? else {
                return Err(Error::other("tasks have ended without telling"));
            };
            self.came(tid, status)?;
        }
        Ok(())
    }

    /// Something came of a task.
    ///
    /// # Errors
    ///
    /// The system's.
    pub(super) fn came(&mut self, tid: i32, status: i32) -> Result<()> {
        let mut status = Some(status);
        while let Some(now) = status.take() {
            if !self.tasks.contains_key(&tid) {
                // A task that ends and is not known was forgotten already, or its parent will tell of it in vain.
                if !matches!(Stop::of(now), Stop::Ended(_)) {
                    self.early.insert(tid, now);
                }
                return Ok(());
            }
            let done = match self.stop(tid, Stop::of(now)) {
                Ok(next) => self.go_on(tid, next),
                Err(failure) => Err(failure),
            };
            match done {
                Ok(()) | Err(Failure::Gone) => {}
                Err(Failure::Other(e)) => return Err(e),
            }
            // What came while the task made a call for the tracer.
            status = self.tasks.get_mut(&tid).and_then(|t| t.came.take());
        }
        Ok(())
    }

    fn go_on(&mut self, tid: i32, next: Next) -> std::result::Result<(), Failure> {
        let calls = self.calls();
        let Some(task) = self.tasks.get_mut(&tid) else {
            return Ok(());
        };
        let mut signal = match next {
            Next::Nothing => return Ok(()),
            Next::Listen => return Ok(task.listen()?),
            Next::Go(signal) => signal,
        };
        if signal.is_none() {
            signal = task.next_deferred();
        }
        if let (Some(_), Way::Mprotect(_)) = (&signal, self.way) {
            if let Some(space) = self.spaces.get_mut(&task.space) {
                protect::before_signal(&mut Work {
                    task,
                    space,
                    reports: &mut self.reports,
                })?;
            }
        }
        let begins = task.executed;
        Ok(task.go(calls || begins, signal)?)
    }

    fn stop(&mut self, tid: i32, stop: Stop) -> std::result::Result<Next, Failure> {
        match stop {
            Stop::Ended(code) => {
                self.ended(tid, code)?;
                Ok(Next::Nothing)
            }
            Stop::Signal(signal) => {
                self.set_stopped(tid, false);
                let info = task::signal_of(tid)?;
                if signal == libc::SIGSEGV {
                    if let Some(mut work) = self.work_of_mprotect(tid) {
                        if protect::fault(&mut work, &info)? {
                            return Ok(Next::Go(None));
                        }
                    }
                }
                Ok(Next::Go(Some(info)))
            }
            Stop::Call => self.call(tid),
            Stop::Event(event, signal) => {
                self.set_stopped(tid, false);
                self.event(tid, event, signal)
            }
        }
    }

    fn set_stopped(&mut self, tid: i32, at_entry: bool) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.stopped(at_entry);
        }
    }

    /// A task and its address space, if mprotect() is the way.
    fn work_of_mprotect(&mut self, tid: i32) -> Option<Work<'_>> {
        let Way::Mprotect(_) = self.way else {
            return None;
        };
        let task = self.tasks.get_mut(&tid)?;
        let space = self.spaces.get_mut(&task.space)?;
        Some(Work {
            task,
            space,
            reports: &mut self.reports,
        })
    }

    fn event(&mut self, tid: i32, event: i32, signal: i32) -> std::result::Result<Next, Failure> {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                let child = task::message(tid)? as i32;
                self.made(tid, child, event)?;
                if let Some(status) = self.early.remove(&child) {
                    self.came(child, status)?;
                }
                Ok(Next::Go(None))
            }
            libc::PTRACE_EVENT_EXEC => {
                let former = task::message(tid)? as i32;
                self.executes(tid, former)?;
                Ok(Next::Go(None))
            }
            libc::PTRACE_EVENT_EXIT => {
                rwp::before_exit(self, tid)?;
                Ok(Next::Go(None))
            }
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => Ok(Next::Listen),
            libc::PTRACE_EVENT_STOP => {
                let fresh = self
                    .tasks
                    .get_mut(&tid)
                    .is_some_and(|task| !std::mem::replace(&mut task.begun, true));
                if fresh {
                    self.begins(tid)?;
                }
                Ok(Next::Go(None))
            }
            _ => Ok(Next::Go(None)),
        }
    }

    /// A task has made another one.
    fn made(&mut self, parent: i32, child: i32, event: i32) -> std::result::Result<(), Failure> {
        let Some(task) = self.tasks.get(&parent) else {
            return Ok(());
        };
        let (pid, space) = (task.pid, task.space);
        let regs = task::registers(parent)?;
        // If the parent's calls are not followed, its call is not known, and its registers tell. clone3() is
        // refused where they are followed; otherwise its flags need not be known.
        let (flags, clears) = match regs.orig_rax as i64 {
            libc::SYS_clone => (regs.rdi, regs.r10),
            libc::SYS_vfork => (libc::CLONE_VM as u64, 0),
            _ => (0, 0),
        };
        let clears = match flags & libc::CLONE_CHILD_CLEARTID as u64 {
            0 => 0,
            _ => clears,
        };
        // The child may have been killed already, and waited for.
        let Ok(of) = task::process_of(child) else {
            return Ok(());
        };
        // C libraries begin programs by vfork() or by clone3() with the same effect.
        let shares =
            flags & libc::CLONE_VM as u64 != 0 || of == pid || event == libc::PTRACE_EVENT_VFORK;
        let space = if shares {
            if let Some(space) = self.spaces.get_mut(&space) {
                space.tasks += 1;
            }
            space
        } else {
            let Some(old) = self.spaces.get(&space) else {
                return Ok(());
            };
            let mut recent = old.recent.clone();
            // Its task is in no call.
            recent.unpin_all();
            let copy = Space {
                maps: old.maps.clone(),
                recent,
                gate: old.gate,
                copied: true,
                ..Space::new(of)
            };
            self.add_space(copy)
        };
        let mut task = Task::new(child, of, space);
        task.clears = clears;
        self.tasks.insert(child, task);
        Ok(())
    }

    /// A task has stopped for the first time. With an address space of its own, it may need something.
    fn begins(&mut self, tid: i32) -> std::result::Result<(), Failure> {
        let Some(task) = self.tasks.get_mut(&tid) else {
            return Ok(());
        };
        let Some(space) = self.spaces.get_mut(&task.space) else {
            return Ok(());
        };
        // Before the first program there is nothing to watch.
        if !std::mem::take(&mut space.copied) || space.gate == 0 {
            return Ok(());
        }
        match self.way {
            Way::Rwp(_) | Way::RwpAsync(_) => rwp::open(self.way, task, space),
            Way::Mprotect(_) => Work {
                task,
                space,
                reports: &mut self.reports,
            }
            .forgets(),
        }
    }

    /// A task has begun another program, in a new address space. Its number was `former`.
    fn executes(&mut self, tid: i32, former: i32) -> std::result::Result<(), Failure> {
        if former != tid {
            self.forget(former);
        }
        // The leader of the threads, whose number the task has now, does not tell of its end.
        self.forget(tid);
        let space = self.add_space(Space::new(tid));
        let mut task = Task::new(tid, tid, space);
        task.begun = true;
        task.executed = true;
        self.tasks.insert(tid, task);
        Ok(())
    }

    /// The new program's memory is there, and its task can make calls.
    fn executed(&mut self, tid: i32) -> std::result::Result<(), Failure> {
        let way = self.way;
        let text = std::fs::read_to_string(format!("/proc/{tid}/maps"))?;
        let (maps, vdso) = Maps::parse(&text);
        let gate = match (self.gate, &vdso) {
            (_, None) => {
                return Err(Failure::Other(Error::other(
                    "the program has no vDSO, by which watch-pages makes system calls: boot without vdso=0",
                )));
            }
            (Some(gate), Some(vdso)) => vdso.start + gate,
            (None, Some(vdso)) => {
                let gate = find_gate(tid, vdso)?;
                self.gate = Some(gate);
                vdso.start + gate
            }
        };
        let Some(task) = self.tasks.get_mut(&tid) else {
            return Ok(());
        };
        task.executed = false;
        let Some(space) = self.spaces.get_mut(&task.space) else {
            return Ok(());
        };
        space.maps = maps;
        space.gate = gate;
        match way {
            Way::Mprotect(size) => {
                space.recent = Recent::new(size);
                let all = space.maps.all();
                let mut work = Work {
                    task,
                    space,
                    reports: &mut self.reports,
                };
                for (range, area) in all {
                    work.mapped(range, area)?;
                }
                Ok(())
            }
            Way::Rwp(size) => {
                space.recent = Recent::new(size);
                rwp::open(way, task, space)
            }
            Way::RwpAsync(_) => rwp::open(way, task, space),
        }
    }

    /// A call begins or has returned.
    fn call(&mut self, tid: i32) -> std::result::Result<Next, Failure> {
        let at = task::where_in_call(tid)?;
        self.set_stopped(tid, matches!(at, At::Entry(..)));
        match at {
            At::Entry(call, sp) => self.enters(tid, call, sp)?,
            At::Exit(result) => {
                if self.tasks.get(&tid).is_some_and(|t| t.executed) {
                    self.executed(tid)?;
                } else {
                    self.returns(tid, result)?;
                }
            }
            At::Neither => {}
        }
        Ok(Next::Go(None))
    }

    fn enters(&mut self, tid: i32, call: Call, sp: u64) -> std::result::Result<(), Failure> {
        let mprotect = matches!(self.way, Way::Mprotect(_));
        let Some(task) = self.tasks.get_mut(&tid) else {
            return Ok(());
        };
        // A C library gets on without these two, as with older kernels. The arguments of clone3() are in
        // memory. For rseq(), the kernel accesses memory whenever the task comes back to user mode.
        if call.nr == libc::SYS_clone3 || (mprotect && call.nr == libc::SYS_rseq) {
            task.call = None;
            return Ok(task.refuse()?);
        }
        task.call = Some(call);
        match call.nr {
            libc::SYS_set_tid_address => task.clears = call.args[0],
            // The stack of signals is inaccessible without mprotect() only for a moment.
            libc::SYS_sigaltstack if mprotect && call.args[0] != 0 => {
                if let Some(space) = self.spaces.get(&task.space) {
                    let word = |at| word_at(&space.memory, call.args[0] + at).unwrap_or(0);
                    task.signal_stack = (word(0), word(16));
                }
            }
            _ => {}
        }
        let Some(mut work) = self.work_of_mprotect(tid) else {
            return Ok(());
        };
        let spans = protect::special(&work, call, sp)
            .or_else(|| memory_of(call, &work.space.memory))
            .unwrap_or_default();
        work.enters(spans)
    }

    fn returns(&mut self, tid: i32, result: i64) -> std::result::Result<(), Failure> {
        let Some(call) = self.tasks.get_mut(&tid).and_then(|t| t.call.take()) else {
            return Ok(());
        };
        if let Some(mut work) = self.work_of_mprotect(tid) {
            if work.returns(call, result)? {
                return Ok(());
            }
        }
        if (-4095..0).contains(&result) {
            return Ok(());
        }
        let Some(task) = self.tasks.get_mut(&tid) else {
            return Ok(());
        };
        let Some(space) = self.spaces.get_mut(&task.space) else {
            return Ok(());
        };
        let changed = changes(&mut space.maps, call, result as u64);
        for range in &changed.gone {
            space.recent.remove(range.start >> 12..range.end >> 12);
        }
        for range in changed.new {
            space.recent.remove(range.start >> 12..range.end >> 12);
            for (range, area) in space.maps.within(range) {
                match self.way {
                    Way::Mprotect(_) => {
                        let mut work = Work {
                            task,
                            space,
                            reports: &mut self.reports,
                        };
                        work.mapped(range, area)?;
                    }
                    Way::Rwp(_) | Way::RwpAsync(_) => rwp::mapped(space, range, area)?,
                }
            }
        }
        Ok(())
    }

    /// A task is no more.
    fn forget(&mut self, tid: i32) {
        let Some(task) = self.tasks.remove(&tid) else {
            return;
        };
        let Some(space) = self.spaces.get_mut(&task.space) else {
            return;
        };
        protect::forget(&task, space);
        space.tasks -= 1;
        if space.tasks == 0 {
            self.spaces.remove(&task.space);
        }
    }

    fn ended(&mut self, tid: i32, code: i32) -> Result<()> {
        if tid == self.first {
            self.code = code;
        }
        self.forget(tid);
        Ok(())
    }
}

/// Where the vDSO has an instruction `syscall`, from its beginning on.
fn find_gate(tid: i32, vdso: &Range<u64>) -> Result<u64> {
    let mut code = vec![0; (vdso.end - vdso.start) as usize];
    std::fs::File::open(format!("/proc/{tid}/mem"))?.read_exact_at(&mut code, vdso.start)?;
    let at = code.windows(2).position(|two| two == [0x0f, 0x05]);
    let at = at.ok_or_else(|| Error::other("the vDSO has no instruction syscall"))?;
    Ok(at as u64)
}

/// What a call has changed.
#[derive(Default, PartialEq, Eq, Debug)]
struct Changed {
    /// Nothing is mapped there now.
    gone: Vec<Range<u64>>,
    /// Something else may be mapped there, or with other rights.
    new: Vec<Range<u64>>,
}

/// What a call that has returned `result` has changed.
fn changes(maps: &mut Maps, call: Call, result: u64) -> Changed {
    let mut changed = Changed::default();
    let [first, second, third, fourth, ..] = call.args;
    match call.nr {
        libc::SYS_mmap => {
            let range = whole(result, second);
            let area = Area {
                rights: third as u8 & 7,
                anonymous: fourth & libc::MAP_ANONYMOUS as u64 != 0,
                stack: fourth & libc::MAP_GROWSDOWN as u64 != 0,
            };
            maps.map(range.clone(), area);
            changed.new.push(range);
        }
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            let range = whole(first, second);
            maps.protect(range.clone(), third as u8 & 7);
            changed.new.push(range);
        }
        libc::SYS_munmap => {
            let range = whole(first, second);
            maps.unmap(range.clone());
            changed.gone.push(range);
        }
        libc::SYS_mremap => {
            let (old, new) = (whole(first, second), whole(result, third));
            maps.moved(old.clone(), new.clone());
            changed.gone.push(old);
            changed.new.push(new);
        }
        libc::SYS_brk => {
            let [gone, new] = maps.broke(result);
            changed.gone.push(gone);
            changed.new.push(new);
        }
        _ => {}
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(nr: i64, args: &[u64]) -> Call {
        let mut call = Call { nr, args: [0; 6] };
        call.args[..args.len()].copy_from_slice(args);
        call
    }

    fn only(range: Range<u64>) -> Vec<Range<u64>> {
        vec![range]
    }

    #[test]
    fn calls_change_mappings() {
        let mut maps = Maps::default();
        let anonymous = (libc::MAP_ANONYMOUS | libc::MAP_PRIVATE) as u64;
        let mmap = call(libc::SYS_mmap, &[0, 0x2800, 3, anonymous]);
        let changed = changes(&mut maps, mmap, 0x10_0000);
        assert_eq!(changed.new, only(0x10_0000..0x10_3000));
        let area = maps.at(0x10_2fff);
        assert!(area.is_some_and(|a| a.anonymous && a.rights == 3));
        let mprotect = call(libc::SYS_mprotect, &[0x10_0000, 1, 1]);
        assert_eq!(
            changes(&mut maps, mprotect, 0).new,
            only(0x10_0000..0x10_1000)
        );
        assert_eq!(maps.at(0x10_0000).map(|a| a.rights), Some(1));
        let mremap = call(libc::SYS_mremap, &[0x10_0000, 0x3000, 0x4000, 1]);
        let changed = changes(&mut maps, mremap, 0x20_0000);
        assert_eq!(changed.gone, only(0x10_0000..0x10_3000));
        assert_eq!(changed.new, only(0x20_0000..0x20_4000));
        assert!(maps.at(0x10_0000).is_none() && maps.at(0x20_3000).is_some());
        changes(&mut maps, call(libc::SYS_brk, &[]), 0x50_0000);
        let brk = call(libc::SYS_brk, &[0x50_2000]);
        assert_eq!(
            changes(&mut maps, brk, 0x50_2000).new,
            only(0x50_0000..0x50_2000)
        );
        assert_eq!(
            changes(&mut maps, brk, 0x50_0000).gone,
            only(0x50_0000..0x50_2000)
        );
        let munmap = call(libc::SYS_munmap, &[0x20_0000, 0x4000]);
        assert_eq!(
            changes(&mut maps, munmap, 0).gone,
            only(0x20_0000..0x20_4000)
        );
        assert!(maps.all().is_empty());
        let read = call(libc::SYS_read, &[0, 0x1000, 5]);
        assert_eq!(changes(&mut maps, read, 5), Changed::default());
    }
}
