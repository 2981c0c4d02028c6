//! userfaultfd with read-write protection: the kernel tells of accesses, also of its own, or lets them happen
//! and remembers them.
//!
//! The program makes the userfaultfd, for its own address space, and the tracer takes it. Memory of files can't
//! be registered.

use super::Way;
use super::follower::{Follower, Reports, Space};
use super::maps::{Area, Maps};
use super::recent::{Recent, runs};
use super::report::{Entry, Used};
use super::task::{self, Failure, Task};
use crate::uffd::{API, MISSING, REGISTER, RWP, RWPROTECT, WAKE, ZEROPAGE, ioctl};
use crate::{check, now_ns};
use std::fs::File;
use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The userfaultfd of an address space.
pub struct Descriptor(OwnedFd);

const FEATURE_RWP: u64 = 1 << 17;
const FEATURE_RWP_ASYNC: u64 = 1 << 18;

/// A mode of RWPROTECT: pages become inaccessible. Without it they become accessible, and who waits goes on.
const PROTECT: u64 = 1;

/// An error that says that memory or its owner is gone, or is not what it was.
fn is_late(e: &Error) -> bool {
    let late = [libc::ESRCH, libc::ENOENT, libc::EINVAL, libc::EEXIST];
    e.raw_os_error().is_some_and(|code| late.contains(&code))
}

/// The result of a request about memory that may be gone: whether it is not.
fn unless_late(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if is_late(&e) => Ok(false),
        Err(e) => Err(e),
    }
}

impl Descriptor {
    fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn protect(&self, range: &Range<u64>, mode: u64) -> Result<bool> {
        let mut arg = [range.start, range.end - range.start, mode];
        unless_late(ioctl(self.fd(), RWPROTECT, &mut arg))
    }

    /// A task waits for a page that was not there.
    fn fill(&self, at: u64) -> Result<bool> {
        unless_late(ioctl(self.fd(), ZEROPAGE, &mut [at, 4096, 0, 0]))
    }

    /// Who waits tries again.
    fn wake(&self, at: u64) -> Result<bool> {
        unless_late(ioctl(self.fd(), WAKE, &mut [at, 4096]))
    }
}

/// Opens a descriptor of a number in another process.
fn take(pid: i32, number: i64) -> Result<OwnedFd> {
    // SAFETY: Numbers only.
    let process = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as i32)?;
    // SAFETY: It is new, and nobody else has it.
    let process = unsafe { OwnedFd::from_raw_fd(process) };
    let (process, none) = (process.as_raw_fd(), 0);
    // SAFETY: Numbers only.
    let taken = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, none) };
    // SAFETY: It is new, and nobody else has it.
    check(taken as i32).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Begins to watch the address space of a stopped task.
///
/// # Errors
///
/// If the task is gone, or the kernel has no RWP.
pub fn open(way: Way, task: &mut Task, space: &mut Space) -> std::result::Result<(), Failure> {
    let pid = task.pid;
    let other = |e: Error| {
        Failure::Other(Error::other(format!(
            "userfaultfd in process {pid}: {e}; RWP needs Linux 7.3 with CONFIG_USERFAULTFD_RWP, and the right \
             to trace (CAP_SYS_PTRACE)"
        )))
    };
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let number = task.make(space.gate, libc::SYS_userfaultfd, [flags, 0, 0])?;
    if number < 0 {
        return Err(other(Error::from_raw_os_error(-number as i32)));
    }
    let taken = take(pid, number);
    task.make(space.gate, libc::SYS_close, [number as u64, 0, 0])?;
    let descriptor = Descriptor(taken?);
    let features = match way {
        Way::RwpAsync(_) => FEATURE_RWP | FEATURE_RWP_ASYNC,
        _ => FEATURE_RWP,
    };
    ioctl(descriptor.fd(), API, &mut [0xaa, features, 0]).map_err(other)?;
    space.descriptor = Some(descriptor);
    match way {
        Way::RwpAsync(_) => {
            space.maps = Maps::default();
            look(task.tid, space, |_| Ok(()))?;
        }
        Way::Rwp(size) | Way::Mprotect(size) => {
            space.recent = Recent::new(size);
            for (range, area) in space.maps.all() {
                mapped(space, range, area)?;
            }
        }
    }
    Ok(())
}

/// The program has mapped this. If it is of no file, it is watched from here on.
///
/// # Errors
///
/// The system's, unless the range is gone.
pub fn mapped(space: &Space, range: Range<u64>, area: Area) -> Result<()> {
    register(space, range, area, RWP | MISSING)
}

fn register(space: &Space, range: Range<u64>, area: Area, mode: u64) -> Result<()> {
    let Some(descriptor) = space.descriptor.as_ref().filter(|_| area.anonymous) else {
        return Ok(());
    };
    // What has no right is refused, and registered when it gets one.
    let mut arg = [range.start, range.end - range.start, mode, 0];
    if area.rights != 0 && unless_late(ioctl(descriptor.fd(), REGISTER, &mut arg))? {
        descriptor.protect(&range, PROTECT)?;
    }
    Ok(())
}

/// A task is about to end. The kernel then writes to its memory without asking; and asks for nothing more
/// about the memory, if this is the last task.
///
/// # Errors
///
/// The system's.
pub fn before_exit(follower: &mut Follower, tid: i32) -> Result<()> {
    let way = follower.way();
    let Some(task) = follower.tasks.get_mut(&tid) else {
        return Ok(());
    };
    task.exits = true;
    let (pid, id, clears) = (task.pid, task.space, task.clears);
    let others = follower.tasks.values();
    let alone = !others.into_iter().any(|t| t.space == id && !t.exits);
    let Some(space) = follower.spaces.get_mut(&id) else {
        return Ok(());
    };
    let Some(descriptor) = &space.descriptor else {
        return Ok(());
    };
    match way {
        Way::Rwp(_) if clears != 0 && !alone && !space.recent.has(clears >> 12) => {
            let page = clears >> 12;
            follower.reports.used(pid, page)?;
            descriptor.protect(&(page << 12..(page + 1) << 12), 0)?;
            space.recent.add(page);
        }
        Way::RwpAsync(_) if alone => scan(tid, space, &mut follower.reports)?,
        _ => {}
    }
    Ok(())
}

/// Follows all tasks until the program has ended, and answers the messages of their userfaultfds.
///
/// # Errors
///
/// The system's.
pub fn watch(follower: &mut Follower) -> Result<()> {
    let children = children()?;
    let interval = match follower.way() {
        Way::RwpAsync(interval) => Some(interval),
        _ => None,
    };
    let mut due = interval.map(|ns| now_ns() + ns);
    while follower.goes_on() {
        while let Some((tid, status)) = task::wait(-1, false)? {
            follower.came(tid, status)?;
        }
        if !follower.goes_on() {
            break;
        }
        let Follower {
            spaces, reports, ..
        } = follower;
        if interval.is_none() {
            for space in spaces.values_mut() {
                answer(space, reports)?;
            }
        }
        if let (Some(ns), Some(at)) = (interval, due) {
            let now = now_ns();
            if now >= at {
                ended(follower, now)?;
                due = Some(now + ns);
            }
        }
        let wait = due.map(|at| at.saturating_sub(now_ns()));
        sleep(follower, &children, wait)?;
    }
    Ok(())
}

/// A descriptor that can be read when something came of a task.
fn children() -> Result<OwnedFd> {
    // SAFETY: Zeros are a set of signals, which is filled in before it is used. The descriptor is new.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        check(libc::sigemptyset(&mut set))?;
        check(libc::sigaddset(&mut set, libc::SIGCHLD))?;
        check(libc::sigprocmask(
            libc::SIG_BLOCK,
            &set,
            std::ptr::null_mut(),
        ))?;
        let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
        Ok(OwnedFd::from_raw_fd(check(libc::signalfd(
            -1, &set, flags,
        ))?))
    }
}

/// Waits until there is something to do, or for so many ns.
fn sleep(follower: &Follower, children: &OwnedFd, ns: Option<u64>) -> Result<()> {
    let poll = |fd: i32| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = vec![poll(children.as_raw_fd())];
    if !matches!(follower.way(), Way::RwpAsync(_)) {
        let descriptors = follower.spaces.values();
        let descriptors = descriptors.filter_map(|s| s.descriptor.as_ref());
        fds.extend(descriptors.map(|d| poll(d.fd())));
    }
    let time = ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let time = time.as_ref().map_or(std::ptr::null(), |t| &raw const *t);
    // SAFETY: So many descriptors, and a time or none; the signals that are blocked stay so.
    let ready = unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            time,
            std::ptr::null(),
        )
    };
    match check(ready) {
        Err(e) if e.raw_os_error() != Some(libc::EINTR) => return Err(e),
        _ => {}
    }
    // Whatever the signals say, waitpid() says more.
    let mut some = [0u8; 1024];
    // SAFETY: Room for some signals.
    unsafe { libc::read(children.as_raw_fd(), some.as_mut_ptr().cast(), some.len()) };
    Ok(())
}

/// Answers the messages that are there (struct uffd_msg).
fn answer(space: &mut Space, reports: &mut Reports) -> Result<()> {
    /// Event of a fault, and flag of one on a protected page.
    const FAULT: u64 = 0x12;
    const FLAG_RWP: u64 = 8;
    let Some(descriptor) = &space.descriptor else {
        return Ok(());
    };
    loop {
        let mut message = [0u64; 4];
        // SAFETY: Room for a message.
        let n = unsafe {
            libc::read(
                descriptor.fd(),
                message.as_mut_ptr().cast(),
                size_of_val(&message),
            )
        };
        if n != size_of_val(&message) as isize {
            // No more; or the address space is gone, which its tasks tell.
            return Ok(());
        }
        let [event, flags, addr, _] = message;
        if event & 0xff != FAULT {
            return Err(Error::other(format!(
                "the userfaultfd of process {} sends {event:#x}, which nobody has asked for",
                space.pid
            )));
        }
        let page = addr >> 12;
        reports.used(space.pid, page)?;
        space.recent.add(page);
        let at = page << 12;
        let done = match flags & FLAG_RWP {
            0 => descriptor.fill(at)?,
            _ => descriptor.protect(&(at..at + 4096), 0)?,
        };
        if !done {
            descriptor.wake(at)?;
        }
        for run in runs(space.recent.evict()) {
            descriptor.protect(&(run.start << 12..run.end << 12), PROTECT)?;
        }
    }
}

/// An interval has ended: which pages were accessed?
fn ended(follower: &mut Follower, now: u64) -> Result<()> {
    for (id, space) in &mut follower.spaces {
        let mut tasks = follower.tasks.values();
        if let Some(task) = tasks.find(|t| t.space == *id && !t.exits) {
            scan(task.tid, space, &mut follower.reports)?;
        }
    }
    follower.reports.add(Entry::End(now))
}

/// Reports all pages of an address space that were accessed since the last scan.
fn scan(tid: i32, space: &mut Space, reports: &mut Reports) -> Result<()> {
    let (time, pid) = (now_ns(), space.pid as u32);
    look(tid, space, |vpn| {
        reports.add(Entry::Within(Used { time, pid, vpn }))
    })
}

/// Reads what a task has mapped, registers what is new, and gives each page that was accessed since the last
/// look. Pages of new memory were.
fn look(tid: i32, space: &mut Space, mut page: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let Ok(text) = std::fs::read_to_string(format!("/proc/{tid}/maps")) else {
        return Ok(());
    };
    let (maps, _) = Maps::parse(&text);
    let known = std::mem::replace(&mut space.maps, maps);
    let known = known.all();
    let Ok(pagemap) = File::open(format!("/proc/{tid}/pagemap")) else {
        return Ok(());
    };
    let first = known.is_empty();
    for (range, area) in space.maps.all() {
        if !area.anonymous || area.rights == 0 {
            continue;
        }
        let Some(descriptor) = &space.descriptor else {
            break;
        };
        let is_known = known.binary_search_by_key(&range.start, |(r, _)| r.start);
        if !is_known.is_ok_and(|at| known[at] == (range.clone(), area)) {
            let mut arg = [range.start, range.end - range.start, RWP, 0];
            if !unless_late(ioctl(descriptor.fd(), REGISTER, &mut arg))? {
                continue;
            }
        }
        // What is there when a program begins, or a copy of one, was not accessed by it.
        if !first {
            accessed(&pagemap, &range, &mut page)?;
        }
        descriptor.protect(&range, PROTECT)?;
    }
    Ok(())
}

/// Gives the pages of a range that PAGEMAP_SCAN calls accessed.
fn accessed(
    pagemap: &File,
    range: &Range<u64>,
    page: &mut impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    /// Of include/uapi/linux/fs.h: the request, the length of its structure, a category of pages.
    const SCAN: u64 = 0xc060_6610;
    const LENGTH: u64 = 96;
    const IS_ACCESSED: u64 = 1 << 9;
    /// Ranges that the kernel gives at a time.
    const MOST: usize = 512;
    let mut ranges = [[0u64; 3]; MOST];
    let mut from = range.start;
    while from < range.end {
        let mut scan = [
            LENGTH,
            0,
            from,
            range.end,
            0,
            ranges.as_mut_ptr() as u64,
            MOST as u64,
            0,
            0,
            IS_ACCESSED,
            0,
            IS_ACCESSED,
        ];
        // SAFETY: The structure that the kernel wants, and room for so many ranges.
        let n = check(unsafe { libc::ioctl(pagemap.as_raw_fd(), SCAN, scan.as_mut_ptr()) })?;
        for [start, end, _] in ranges.iter().take(n as usize) {
            for vpn in start >> 12..end >> 12 {
                page(vpn)?;
            }
        }
        let walked = scan[4];
        if walked <= from {
            break;
        }
        from = walked;
    }
    Ok(())
}
