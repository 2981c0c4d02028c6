//! System calls that the standard library has no form of.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use crate::summary::Ended;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Room on the file system of an open file, bytes.
pub fn free_space(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut stat = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `stat` has room for a statvfs.
    checked(unsafe { libc::fstatvfs(file.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: zeroes are a valid statvfs, and so is what the call wrote.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn pipe() -> io::Result<(File, File)> {
    let mut fds = [-1; 2];
    // SAFETY: `fds` has room for two descriptors.
    checked(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: the call has made both, and nothing else owns them.
    Ok(unsafe { (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1])) })
}

/// Makes a child process. In it, 0 is returned.
///
/// # Safety
///
/// If there are other threads, the child does nothing that depends on them.
unsafe fn fork() -> io::Result<libc::pid_t> {
    #[cfg(test)]
    return forks::fork();
    // SAFETY: as promised.
    #[cfg(not(test))]
    checked(unsafe { libc::fork() })
}

/// prctl()'s number (include/uapi/linux/prctl.h).
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Says whether the machine may need this task to get on when memory, or a trace's output,
/// takes nothing any more. Then this task does not wait for it, even if it is traced.
///
/// Only root may say so. For anybody else it makes no difference.
pub fn set_needed(needed: bool) {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, libc::c_ulong::from(needed), 0, 0, 0) };
}

/// Sends `bytes`, and a descriptor beside them if there is one.
fn send(to: &OwnedFd, bytes: &[u8], fd: Option<RawFd>) -> io::Result<()> {
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    let mut room = [0u64; 8];
    // SAFETY: zeroes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        message.msg_control = room.as_mut_ptr().cast();
        // SAFETY: the room has more bytes than a header and a descriptor need, and is
        // aligned for both.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let head = libc::CMSG_FIRSTHDR(&raw const message);
            (*head).cmsg_level = libc::SOL_SOCKET;
            (*head).cmsg_type = libc::SCM_RIGHTS;
            (*head).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd);
        }
    }
    // SAFETY: the message points to what lives until the call returns.
    let sent = unsafe { libc::sendmsg(to.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    checked(sent as libc::c_int).map(drop)
}

/// Receives bytes, and the descriptor beside them if there is one.
fn receive(from: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0; 16384];
    let mut part = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let mut room = [0u64; 8];
    // SAFETY: zeroes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&room) as _;
    // SAFETY: the message points to what lives until the call returns.
    let got = unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    bytes.truncate(checked(got as libc::c_int)? as usize);
    // SAFETY: the kernel has filled in the message; a descriptor that came with it is new,
    // and nothing else owns it.
    let fd = unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (!head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS).then(|| {
            let fd = libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned();
            OwnedFd::from_raw_fd(fd)
        })
    };
    Ok((bytes, fd))
}

/// What children of other tests must not have. Commands have one thread, so whatever a child has
/// got from its parent is of the same command. Tests are threads of one process.
#[cfg(test)]
pub mod forks {
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread::ThreadId;

    use super::*;

    /// Descriptors, and the tests that have them.
    static OWN: Mutex<Vec<(ThreadId, RawFd)>> = Mutex::new(Vec::new());

    /// As long as this is held, no child is made that has not closed what is not its own.
    pub struct Pause(MutexGuard<'static, Vec<(ThreadId, RawFd)>>);

    /// Waits until no child is being made.
    pub fn pause() -> Pause {
        Pause(OWN.lock().unwrap_or_else(PoisonError::into_inner))
    }

    impl Pause {
        /// Children of other tests close the descriptor.
        pub fn own(&mut self, fd: RawFd) {
            self.0.push((std::thread::current().id(), fd));
        }

        /// Lets go of what the descriptor is of. The descriptor itself goes on to exist.
        pub fn give_up(&mut self, fd: RawFd) {
            self.0.retain(|own| own.1 != fd);
            // SAFETY: a string and numbers.
            unsafe {
                let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
                libc::dup3(null, fd, libc::O_CLOEXEC);
                libc::close(null);
            }
        }
    }

    pub(super) fn fork() -> io::Result<libc::pid_t> {
        let (mut told, tell) = pipe()?;
        let thread = std::thread::current().id();
        let pause = pause();
        // SAFETY: as promised to the caller; until it returns, the child makes system calls only.
        let pid = checked(unsafe { libc::fork() })?;
        if pid == 0 {
            for (_, fd) in pause.0.iter().filter(|own| own.0 != thread) {
                // SAFETY: nobody in this process has it.
                unsafe { libc::close(*fd) };
            }
            // SAFETY: a pointer to a byte.
            unsafe { libc::write(tell.as_raw_fd(), c"c".as_ptr().cast(), 1) };
            return Ok(0);
        }
        drop(tell);
        // A child that was killed has closed all.
        let _ = told.read(&mut [0]);
        Ok(pid)
    }
}

/// Exit code of a child that has undone what it had done.
const UNDONE: libc::c_int = 1;

/// Does `work` in a child process, because it may hang where no signal reaches it. Gives what
/// it gives, a text and a descriptor, or `None` if that takes longer than `limit`. Then the
/// child does `undo` when it gets that far.
///
/// The calling process must have one thread only, or `work` must not depend on others.
pub fn apart<T>(
    limit: Duration,
    work: impl FnOnce() -> (Vec<u8>, T),
    fd: impl FnOnce(&T) -> Option<RawFd>,
    undo: impl FnOnce(T),
) -> io::Result<Option<(Vec<u8>, Option<OwnedFd>)>> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for two descriptors.
    checked(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    // SAFETY: the call has made both, and nothing else owns them.
    let [ours, theirs] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: the child works as the caller permits, and never returns.
    let pid = unsafe { fork() }?;
    if pid == 0 {
        drop(ours);
        // What reads our output must not wait for a child that hangs.
        close_stdio();
        let (text, result) = work();
        let taken = send(&theirs, &text, fd(&result))
            .and_then(|()| receive(&theirs))
            .is_ok_and(|(word, _)| !word.is_empty());
        if taken {
            std::mem::forget(result);
        } else {
            undo(result);
        }
        // SAFETY: ends this process.
        unsafe { libc::_exit(if taken { 0 } else { UNDONE }) }
    }
    drop(theirs);
    let deadline = std::time::Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if Ready::wait(&[Some(ours.as_raw_fd())], left)?.is(0) {
            break;
        }
        if left.is_zero() {
            return Ok(None);
        }
    }
    let answer = receive(&ours)?;
    send(&ours, b"taken", None)?;
    let mut status = 0;
    // A signal interrupts the wait, and the answer is taken all the same.
    // SAFETY: a child of ours that nobody else waits for.
    while let Err(e) = checked(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
    // Our word may not have reached the child.
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == UNDONE {
        return Err(io::Error::other("what it had done was undone"));
    }
    Ok(Some(answer))
}

/// Descriptors to wait for.
#[derive(Debug)]
pub struct Ready {
    fds: Vec<libc::pollfd>,
}

impl Ready {
    /// Waits until one of `fds` can be read or has ended, or for `timeout`.
    /// `None` is never ready.
    pub fn wait(fds: &[Option<RawFd>], timeout: Duration) -> io::Result<Self> {
        let mut fds: Vec<_> = fds
            .iter()
            .map(|fd| libc::pollfd {
                fd: fd.unwrap_or(-1),
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        // Rounded up, or the last part of a millisecond would be spent spinning.
        let timeout = timeout.as_micros().div_ceil(1000).min(60_000) as libc::c_int;
        // SAFETY: the pointer and the count are those of the vector.
        let done =
            checked(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) });
        match done {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e),
            _ => Ok(Self { fds }),
        }
    }

    /// Whether the `index`th is ready.
    pub fn is(&self, index: usize) -> bool {
        self.fds.get(index).is_some_and(|fd| fd.revents != 0)
    }
}

/// Columns and lines of the terminal that is the standard output, if it is one and says so.
pub fn terminal_size() -> Option<(usize, usize)> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: `size` has room for a winsize.
    let got = unsafe {
        libc::ioctl(
            libc::STDOUT_FILENO,
            libc::TIOCGWINSZ as libc::Ioctl,
            size.as_mut_ptr(),
        )
    };
    // SAFETY: zeroes are a valid winsize, and so is what the call wrote.
    let size = unsafe { size.assume_init() };
    let (columns, lines) = (size.ws_col.into(), size.ws_row.into());
    // Consoles over a serial line don't know theirs.
    (got == 0 && columns > 0 && lines > 0).then_some((columns, lines))
}

/// Whether nobody can read our standard output any more.
pub fn has_no_reader() -> bool {
    let mut fd = libc::pollfd {
        fd: libc::STDOUT_FILENO,
        events: 0,
        revents: 0,
    };
    // SAFETY: the pointer is to one pollfd.
    let got = unsafe { libc::poll(&raw mut fd, 1, 0) };
    got == 1 && fd.revents & (libc::POLLERR | libc::POLLHUP) != 0
}

/// Stops this process until somebody continues it, as SIGTSTP does that is not held.
pub fn suspend() {
    // SAFETY: no memory is involved.
    unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) };
}

/// CLOCK_MONOTONIC, ns. It neither allocates nor takes a lock.
pub fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// What the activator does not let happen to itself while a command runs.
const SIGNALS: [libc::c_int; 5] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGCHLD,
];

/// Blocks signals and reports them. It lasts until the program ends: what
/// comes later must not disturb the end of the trace.
pub struct Signals {
    file: File,
    before: libc::sigset_t,
    chld: libc::sigaction,
    /// Those that do not ask for the end.
    more: Vec<libc::c_int>,
}

impl Signals {
    /// Begins to hold off SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGCHLD, and `more`.
    pub fn hold(more: &[libc::c_int]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut chld = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the pointers are to what the calls want, which zeroes are a
        // valid value of; the descriptor is new and nothing else owns it.
        // SIGCHLD gets its default back: a parent that ignored it would have
        // our children vanish before we can ask how they ended.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in SIGNALS.iter().chain(more) {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            let mut default = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            default.sa_sigaction = libc::SIG_DFL;
            checked(libc::sigaction(libc::SIGCHLD, &default, chld.as_mut_ptr()))?;
            checked(libc::sigprocmask(
                libc::SIG_BLOCK,
                set.as_ptr(),
                before.as_mut_ptr(),
            ))?;
            let fd = checked(libc::signalfd(
                -1,
                set.as_ptr(),
                libc::SFD_CLOEXEC | libc::SFD_NONBLOCK,
            ))?;
            Ok(Self {
                file: File::from_raw_fd(fd),
                before: before.assume_init(),
                chld: chld.assume_init(),
                more: more.to_vec(),
            })
        }
    }

    /// To wait for.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The next signal, if one came.
    pub fn next(&mut self) -> Option<libc::c_int> {
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        self.file.read_exact(&mut info).ok()?;
        // ssi_signo is the first field.
        let number = info.first_chunk().map(|b| u32::from_ne_bytes(*b))?;
        i32::try_from(number).ok()
    }

    /// The signal that asks for the end, if one came. What else came before it is forgotten.
    pub fn ending(&mut self) -> Option<libc::c_int> {
        while let Some(signal) = self.next() {
            if signal != libc::SIGCHLD && !self.more.contains(&signal) {
                return Some(signal);
            }
        }
        None
    }
}

/// A child of ours.
#[derive(Debug)]
pub struct Child {
    /// Its pid.
    pub pid: libc::pid_t,
    pidfd: OwnedFd,
    exec: Option<File>,
    ended: Option<Ended>,
}

/// What became of the child's execve().
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exec {
    /// The command runs.
    Done,
    /// It could not be executed, for this error number.
    Failed(i32),
}

/// A child that waits before it executes its command. If it is dropped, or we
/// die, the child ends.
#[derive(Debug)]
pub struct Held {
    child: Child,
    go: File,
}

impl Held {
    /// Makes the child that will execute `argv`, with signals as they were
    /// before `signals`. The calling process must have one thread only.
    pub fn new(argv: Vec<std::ffi::OsString>, signals: &Signals) -> io::Result<Self> {
        Self::with_output(argv, signals, &[])
    }

    /// The same, with other files as some of its standard descriptors: pairs of a descriptor of
    /// ours and the number that it gets in the child.
    pub fn with_output(
        argv: Vec<std::ffi::OsString>,
        signals: &Signals,
        output: &[(RawFd, RawFd)],
    ) -> io::Result<Self> {
        let argv: Vec<CString> = argv
            .into_iter()
            .map(|a| CString::new(a.into_vec()))
            .collect::<Result<_, _>>()?;
        let mut pointers: Vec<_> = argv.iter().map(|a| a.as_ptr()).collect();
        pointers.push(std::ptr::null());
        let (wait, go) = pipe()?;
        let (exec, tell) = pipe()?;
        // SAFETY: the child makes system calls and calls execute(), which
        // allocates nothing and takes no lock, and never returns from it.
        let pid = unsafe { fork() }?;
        if pid == 0 {
            // SAFETY: this is the child of a fork, `pointers` ends in NULL and
            // points to strings that live on; the ends of the pipes that are
            // ours are closed in it, so that our death ends its wait.
            unsafe {
                libc::close(go.as_raw_fd());
                for (from, to) in output {
                    libc::dup2(*from, *to);
                }
                execute(&pointers, signals, wait.as_raw_fd(), tell.as_raw_fd())
            }
        }
        // SAFETY: the system call takes a pid and flags; the child has not
        // been waited for, so the pid is its.
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let pidfd = checked(pidfd as libc::c_int)?;
        Ok(Self {
            child: Child {
                pid,
                // SAFETY: the descriptor is new and nothing else owns it.
                pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
                exec: Some(exec),
                ended: None,
            },
            go,
        })
    }

    /// The child's pid.
    pub fn pid(&self) -> libc::pid_t {
        self.child.pid
    }

    /// Lets the child execute its command.
    pub fn release(mut self) -> Child {
        // A child that is dead already reads nothing; its exit code says why.
        let _ = self.go.write_all(b"g");
        self.child
    }

    /// Ends the child, which has executed nothing.
    pub fn abandon(self) {
        let Self { mut child, go } = self;
        drop(go);
        // Held under tracing it might not read the end of the pipe.
        child.signal(libc::SIGKILL);
        child.reap(true);
    }
}

impl Child {
    /// To wait for: the command's execution, then the child's end. `None` for
    /// what has happened already.
    pub fn fds(&self) -> [Option<RawFd>; 2] {
        [
            self.exec.as_ref().map(|f| f.as_raw_fd()),
            self.ended.is_none().then(|| self.pidfd.as_raw_fd()),
        ]
    }

    /// What became of the execve(); to be asked once, when its descriptor is
    /// ready.
    pub fn exec(&mut self) -> Exec {
        let mut errno = [0; 4];
        match self.exec.take().map(|mut f| f.read_exact(&mut errno)) {
            Some(Ok(())) => Exec::Failed(i32::from_ne_bytes(errno)),
            _ => Exec::Done,
        }
    }

    /// How the child ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Sends the child a signal unless it has ended.
    pub fn signal(&self, signal: libc::c_int) {
        if self.ended.is_none() {
            // SAFETY: no memory is involved; the pid is the child's as long as
            // the child has not been waited for.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Takes note of the child's end, and waits for it if asked to.
    pub fn reap(&mut self, wait: bool) {
        while self.ended.is_none() {
            let mut status = 0;
            let flags = if wait { 0 } else { libc::WNOHANG };
            // SAFETY: `status` is what the call wants.
            match checked(unsafe { libc::waitpid(self.pid, &mut status, flags) }) {
                Ok(0) => return,
                Ok(_) => self.ended = Some(ended(status)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Somebody else took it: not to be waited for for ever.
                Err(_) => self.ended = Some(Ended::Exited(0)),
            }
        }
    }

    /// Takes note of the end of the child and, as their subreaper, of all its
    /// descendants. Returns whether all have ended.
    pub fn reap_all(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: `status` is what the call wants.
            match checked(unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) }) {
                Ok(0) => return false,
                Ok(pid) if pid == self.pid => self.ended = Some(ended(status)),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }
}

fn ended(status: libc::c_int) -> Ended {
    if libc::WIFSIGNALED(status) {
        Ended::Killed(libc::WTERMSIG(status) as u8)
    } else {
        Ended::Exited(libc::WEXITSTATUS(status) as u8)
    }
}

/// Anonymous memory that children have, too, and that is not touched yet.
#[derive(Debug)]
pub struct Memory {
    base: *mut libc::c_void,
    bytes: usize,
}

impl Memory {
    /// So many bytes.
    pub fn new(bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping, which nothing else refers to.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base, bytes })
    }

    /// Where it begins.
    pub fn address(&self) -> usize {
        self.base as usize
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.base, self.bytes) };
    }
}

/// A file in memory.
pub fn memory_file(name: &std::ffi::CStr) -> io::Result<File> {
    // SAFETY: the name is a string.
    let fd = checked(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the call has made it, and nothing else owns it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// A child that does `work` on request, and returns the result. If it is
/// dropped, or we die, it ends.
#[derive(Debug)]
pub struct Probe {
    pid: libc::pid_t,
    go: Option<File>,
    told: File,
}

impl Probe {
    /// `work` must neither allocate nor take a lock. The calling process must have one
    /// thread only, or `work` and what it needs must not depend on others.
    pub fn new(work: impl FnOnce() -> u64) -> io::Result<Self> {
        let (wait, go) = pipe()?;
        let (told, tell) = pipe()?;
        // SAFETY: the child makes system calls, does what the caller promises to be
        // harmless, and never returns.
        let pid = unsafe { fork() }?;
        if pid == 0 {
            // SAFETY: system calls with pointers to what they want.
            unsafe {
                libc::close(go.as_raw_fd());
                let mut word = 0u8;
                if libc::read(wait.as_raw_fd(), (&raw mut word).cast(), 1) == 1 {
                    set_needed(false);
                    let result = work();
                    libc::write(tell.as_raw_fd(), (&raw const result).cast(), 8);
                }
                libc::_exit(0)
            }
        }
        Ok(Self {
            pid,
            go: Some(go),
            told,
        })
    }

    /// The child's pid.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// Has it do its work, and waits for that.
    pub fn run(mut self) -> io::Result<u64> {
        if let Some(mut go) = self.go.take() {
            go.write_all(b"g")?;
        }
        let mut result = [0; 8];
        self.told.read_exact(&mut result)?;
        Ok(u64::from_ne_bytes(result))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // Without a word it ends at once.
        self.go = None;
        // SAFETY: a child of ours that nobody else waits for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

/// What a child process makes, which goes on beside this one.
#[derive(Debug)]
pub struct Beside {
    pid: libc::pid_t,
    told: File,
    text: Vec<u8>,
}

/// Connects the standard descriptors with nothing.
fn close_stdio() {
    // SAFETY: a string and numbers.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        (0..3).for_each(|fd| {
            libc::dup2(null, fd);
        });
    }
}

impl Beside {
    /// Begins `work`, which gives a text. The calling process must have one thread only, or `work`
    /// must not depend on others.
    pub fn new(work: impl FnOnce() -> Vec<u8>) -> io::Result<Self> {
        let (told, mut tell) = pipe()?;
        // SAFETY: the child works as the caller permits, and never returns.
        let pid = unsafe { fork() }?;
        if pid == 0 {
            drop(told);
            // What reads our output must not wait for the child.
            close_stdio();
            let text = work();
            let _ = tell.write_all(&text);
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        drop(tell);
        Ok(Self {
            pid,
            told,
            text: Vec::new(),
        })
    }

    /// To wait for.
    pub fn fd(&self) -> RawFd {
        self.told.as_raw_fd()
    }

    /// The child's pid.
    pub fn pid(&self) -> libc::pid_t {
        self.pid
    }

    /// The text, when the child has ended. If its descriptor is not ready, this waits.
    pub fn next(&mut self) -> Option<Vec<u8>> {
        let mut part = [0; 4096];
        match self.told.read(&mut part) {
            Ok(0) => {}
            Ok(n) => {
                self.text.extend_from_slice(&part[..n]);
                return None;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return None,
            Err(_) => {}
        }
        self.reap();
        Some(std::mem::take(&mut self.text))
    }

    fn reap(&self) {
        // SAFETY: a child of ours. Somebody who waits for all may have waited for it.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }

    /// Ends the child.
    pub fn kill(&self) {
        // SAFETY: no memory is involved. Nobody has read the end of its text, so it was not
        // waited for.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.reap();
    }
}

/// The two processes of [`split`].
#[derive(Debug)]
pub enum Side {
    /// The one that was there before.
    Parent(Background),
    /// The one that goes on in the background.
    Child(Tell),
}

/// The process in the background, for its parent.
#[derive(Debug)]
pub struct Background {
    pid: libc::pid_t,
    told: File,
}

/// How the process in the background tells its parent that it may end.
#[derive(Debug)]
pub struct Tell(File);

/// Makes a process that goes on when its parent has ended. The calling process must have one
/// thread only.
pub fn split() -> io::Result<Side> {
    let (told, tell) = pipe()?;
    // SAFETY: there is one thread, so the child may do what this process may.
    match unsafe { fork() }? {
        0 => Ok(Side::Child(Tell(tell))),
        pid => Ok(Side::Parent(Background { pid, told })),
    }
}

impl Tell {
    /// Lets the parent end with `code`, and leaves its session, its descriptors and its directory.
    pub fn detach(mut self, code: u8) {
        // A parent that was killed hears nothing.
        let _ = self.0.write_all(&[code]);
        close_stdio();
        // SAFETY: no memory is involved.
        unsafe { libc::setsid() };
        let _ = std::env::set_current_dir("/");
    }
}

impl Background {
    /// Waits for the word of the child, or for its end; passes signals on. Gives the exit code.
    pub fn wait(mut self, signals: &mut Signals) -> io::Result<u8> {
        loop {
            let fds = [Some(self.told.as_raw_fd()), Some(signals.fd())];
            let ready = Ready::wait(&fds, Duration::from_secs(60))?;
            while let Some(signal) = signals.next() {
                if signal != libc::SIGCHLD {
                    // SAFETY: a child of ours that was not waited for.
                    unsafe { libc::kill(self.pid, signal) };
                }
            }
            if ready.is(0) {
                break;
            }
        }
        let mut code = [0];
        if self.told.read(&mut code)? == 1 {
            return Ok(code[0]);
        }
        let mut status = 0;
        // SAFETY: `status` is what the call wants.
        while let Err(e) = checked(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }) {
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(e);
            }
        }
        Ok(ended(status).code())
    }
}

/// A process that is not a child of ours, whose end is waited for.
#[derive(Debug)]
pub struct Watched {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

/// `struct pidfd_info` (include/uapi/linux/pidfd.h), as it was at first.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<PidfdInfo>() == 64);

const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// `_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)`
const PIDFD_GET_INFO: u32 = 3 << 30 | (size_of::<PidfdInfo>() as u32) << 16 | 0xff << 8 | 11;

impl Watched {
    /// Begins to watch a process.
    pub fn new(pid: libc::pid_t) -> io::Result<Self> {
        // SAFETY: the system call takes a pid and flags.
        let pidfd = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as libc::c_int)?;
        Ok(Self {
            pid,
            // SAFETY: the descriptor is new and nothing else owns it.
            pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) },
        })
    }

    /// To wait for: the process ends.
    pub fn fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }

    /// How the process ended, if it has and the kernel says so: as long as it is a zombie, in
    /// /proc, and afterwards by its descriptor.
    pub fn ended(&self) -> Option<Ended> {
        let mut info = PidfdInfo {
            mask: PIDFD_INFO_EXIT,
            ..PidfdInfo::default()
        };
        // SAFETY: the kernel writes no more bytes than the number of the request says.
        let got = unsafe {
            libc::ioctl(
                self.pidfd.as_raw_fd(),
                PIDFD_GET_INFO as libc::Ioctl,
                &raw mut info,
            )
        };
        if got == 0 && info.mask & PIDFD_INFO_EXIT != 0 {
            return Some(ended(info.exit_code));
        }
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        ended_in(&stat)
    }
}

/// How a process ended, of its line in /proc, if it is a zombie.
fn ended_in(stat: &str) -> Option<Ended> {
    // The name in parentheses may have any characters.
    let words: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // exit_code is field 52 (proc_pid_stat(5)); the state is the third one.
    let code = words.get(49)?.parse().ok()?;
    (words.first() == Some(&"Z")).then(|| ended(code))
}

/// Makes this process the one that orphaned descendants fall to.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: no memory is involved.
    checked(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Whether this process may execute `path`.
pub fn may_execute(path: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: `path` is a string.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// The child's part: waits for the word, then becomes the command.
///
/// # Safety
///
/// Only in the child of a fork; `argv` ends in NULL, the others point to
/// strings.
unsafe fn execute(argv: &[*const libc::c_char], signals: &Signals, wait: RawFd, tell: RawFd) -> ! {
    // SAFETY: system calls with pointers to what they want. Nothing here
    // allocates or panics.
    unsafe {
        let mut word = 0u8;
        let got = loop {
            let got = libc::read(wait, (&raw mut word).cast(), 1);
            if got >= 0 || *libc::__errno_location() != libc::EINTR {
                break got;
            }
        };
        if got != 1 {
            libc::_exit(0);
        }
        set_needed(false);
        // The Rust runtime ignores SIGPIPE, which commands do not expect.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::sigaction(libc::SIGCHLD, &signals.chld, std::ptr::null_mut());
        libc::sigprocmask(libc::SIG_SETMASK, &signals.before, std::ptr::null_mut());
        libc::execvp(argv[0], argv.as_ptr());
        let errno = *libc::__errno_location();
        libc::write(tell, (&raw const errno).cast(), size_of_val(&errno));
        libc::_exit(127);
    }
}

#[cfg(test)]
mod watched_tests {
    use super::*;

    #[test]
    fn the_end_of_a_process() {
        let pause = forks::pause();
        let mut child = std::process::Command::new("sh")
            .args(["-c", "read line; exit 7"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sh");
        drop(pause);
        let watched = Watched::new(child.id() as libc::pid_t).expect("watched");
        assert_eq!(watched.ended(), None);
        drop(child.stdin.take());
        while !Ready::wait(&[Some(watched.fd())], Duration::from_secs(20))
            .expect("poll")
            .is(0)
        {}
        // It is a zombie.
        assert_eq!(watched.ended(), Some(Ended::Exited(7)));
        child.wait().expect("wait");
        // Older kernels don't say it any more.
        assert!(matches!(watched.ended(), None | Some(Ended::Exited(7))));
        let stat = "5 (a) Z) Z 1 5 5 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 9 0 0 1 0 0 0 0 0 0 0 0 0 0 0 0 \
                    17 0 0 0 0 0 0 0 0 0 0 0 0 0 139";
        assert_eq!(ended_in(stat), Some(Ended::Killed(11)));
        assert_eq!(ended_in(&stat.replacen(") Z ", ") S ", 1)), None);
    }

    #[test]
    fn a_text_of_a_child() {
        let mut beside = Beside::new(|| b"text".to_vec()).expect("fork");
        let text = loop {
            if let Some(text) = beside.next() {
                break text;
            }
        };
        assert_eq!(text, b"text");
    }
}

#[cfg(test)]
mod apart_tests {
    use super::*;

    /// The child does not wait for its parent's answer, although the parent sends it.
    /// Either both take what was made for taken, or neither does.
    #[test]
    fn what_the_child_undoes_is_not_taken() {
        let marker = std::env::temp_dir().join(format!("kvmtrace-apart-{}", std::process::id()));
        let mut undone = 0;
        // Other tests open files meanwhile, and the parent may be the faster one, so it takes
        // some rounds.
        for round in 0..400 {
            if round >= 20 && undone > 0 {
                break;
            }
            let first = std::fs::File::open("/dev/null").expect("open").as_raw_fd();
            let impatient = || {
                // SAFETY: numbers only. The parent has closed its descriptors of this end.
                unsafe {
                    for fd in first..first + 8 {
                        libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK);
                    }
                }
                (b"text".to_vec(), ())
            };
            let _ = std::fs::remove_file(&marker);
            let undo = |()| {
                let _ = std::fs::write(&marker, "");
                std::thread::sleep(Duration::from_millis(50));
            };
            let taken = apart(Duration::from_secs(20), impatient, |()| None, undo);
            std::thread::sleep(Duration::from_millis(60));
            undone += u32::from(marker.exists());
            assert_eq!(taken.is_ok(), !marker.exists());
        }
        let _ = std::fs::remove_file(&marker);
        assert!(undone > 0, "the child was never too impatient");
    }
}
