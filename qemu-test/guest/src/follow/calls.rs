//! Which memory of a program a system call is about: x86-64, and the calls that programs make all day.
//!
//! If memory is inaccessible, the kernel does not fault for a call as a program does. The call fails, or,
//! what is worse, does half of its work. So a tracer that takes away rights must know the memory before the
//! call begins. Memory of calls that are not here is found when they fail (EFAULT).

/// When the kernel accesses memory of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// In each call that gets that far.
    Always,
    /// In a call that succeeds.
    Done,
    /// As many bytes from the beginning as the call returns, times so many.
    Result(u64),
    /// Perhaps.
    Maybe,
}

/// Memory that a call is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub at: u64,
    /// How many.
    pub len: u64,
    /// Whether they are accessed.
    pub when: When,
}

/// A call's number and arguments.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Call {
    /// SYS_*.
    pub nr: i64,
    /// As in the registers.
    pub args: [u64; 6],
}

/// A program's memory, for a tracer.
pub trait Memory {
    /// Fills a buffer from an address on. How many bytes are there.
    fn read(&self, at: u64, to: &mut [u8]) -> usize;
}

/// A number of 8 bytes in memory; `None` if they are not all there.
pub fn word_at(memory: &dyn Memory, at: u64) -> Option<u64> {
    let mut word = [0; 8];
    (memory.read(at, &mut word) == 8).then(|| u64::from_le_bytes(word))
}

/// The most strings of a program's arguments, or of its environment, and the most buffers of a call.
const MOST: u64 = 1024;

/// Collects memory.
struct Spans<'m> {
    call: Call,
    memory: &'m dyn Memory,
    all: Vec<Span>,
}

impl Spans<'_> {
    fn add(&mut self, at: u64, len: u64, when: When) {
        if at != 0 && len > 0 {
            self.all.push(Span { at, len, when });
        }
    }

    /// Memory that an argument points to.
    fn arg(&mut self, n: usize, len: u64, when: When) {
        self.add(self.call.args[n], len, when);
    }

    /// The same, and another argument says how long it is.
    fn buffer(&mut self, n: usize, len: usize, when: When) {
        self.arg(n, self.call.args[len], when);
    }

    fn word(&self, at: u64) -> u64 {
        word_at(self.memory, at).unwrap_or(0)
    }

    /// A string with a zero at its end.
    fn string_at(&mut self, at: u64) {
        let mut len = 0;
        let mut some = [0; 256];
        // A path has 4096 bytes at most.
        while at != 0 && len < 4096 {
            let n = self.memory.read(at + len, &mut some);
            if let Some(end) = some[..n].iter().position(|b| *b == 0) {
                len += end as u64 + 1;
                break;
            }
            len += n as u64;
            if n < some.len() {
                break;
            }
        }
        self.add(at, len.max(1), When::Always);
    }

    fn string(&mut self, n: usize) {
        self.string_at(self.call.args[n]);
    }

    /// Strings: pointers to them, and a zero.
    fn strings(&mut self, n: usize) {
        let at = self.call.args[n];
        if at == 0 {
            return;
        }
        let mut count = 0;
        while count < MOST {
            let string = self.word(at + 8 * count);
            if string == 0 {
                break;
            }
            self.string_at(string);
            count += 1;
        }
        self.add(at, 8 * (count + 1), When::Always);
    }

    /// Buffers: addresses and lengths.
    fn vector_at(&mut self, at: u64, count: u64, when: When) {
        let count = count.min(MOST);
        self.add(at, 16 * count, When::Always);
        for i in 0..count {
            let (base, len) = (self.word(at + 16 * i), self.word(at + 16 * i + 8));
            // What a call returns is of all buffers together. It says all about the first one.
            let when = match when {
                When::Result(_) if i > 0 => When::Maybe,
                when => when,
            };
            self.add(base, len, when);
        }
    }

    fn vector(&mut self, n: usize, count: usize, when: When) {
        self.vector_at(self.call.args[n], self.call.args[count], when);
    }

    /// struct msghdr.
    fn message(&mut self, n: usize, when: When) {
        let at = self.call.args[n];
        if at == 0 {
            return;
        }
        self.add(at, 56, When::Always);
        let word = |i: u64| self.word(at + 8 * i);
        let (name, name_len, control, control_len) = (word(0), word(1), word(4), word(5));
        let (vector, count) = (word(2), word(3));
        self.add(name, name_len & 0xffff_ffff, When::Maybe);
        self.add(control, control_len, When::Maybe);
        self.vector_at(vector, count, when);
    }
}

/// The memory of a call; `None` of a call that is not known.
pub fn memory_of(call: Call, memory: &dyn Memory) -> Option<Vec<Span>> {
    use When::{Always, Done, Maybe, Result};
    let mut s = Spans {
        call,
        memory,
        all: Vec::new(),
    };
    let a = call.args;
    match call.nr {
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_getdents64 | libc::SYS_getdents => {
            s.buffer(1, 2, Result(1));
        }
        libc::SYS_write | libc::SYS_pwrite64 => s.buffer(1, 2, Always),
        libc::SYS_readv | libc::SYS_preadv | libc::SYS_preadv2 => s.vector(1, 2, Result(1)),
        libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 => s.vector(1, 2, Always),
        libc::SYS_open
        | libc::SYS_creat
        | libc::SYS_access
        | libc::SYS_chdir
        | libc::SYS_mkdir
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_truncate
        | libc::SYS_memfd_create => s.string(0),
        libc::SYS_openat
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_mkdirat
        | libc::SYS_unlinkat
        | libc::SYS_fchmodat
        | libc::SYS_fchownat => s.string(1),
        libc::SYS_openat2 => {
            s.string(1);
            s.buffer(2, 3, Always);
        }
        libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => {
            s.string(0);
            s.string(1);
        }
        libc::SYS_renameat | libc::SYS_renameat2 | libc::SYS_linkat => {
            s.string(1);
            s.string(3);
        }
        libc::SYS_symlinkat => {
            s.string(0);
            s.string(2);
        }
        libc::SYS_stat | libc::SYS_lstat => {
            s.string(0);
            s.arg(1, 144, Done);
        }
        libc::SYS_fstat => s.arg(1, 144, Done),
        libc::SYS_newfstatat => {
            s.string(1);
            s.arg(2, 144, Done);
        }
        libc::SYS_statx => {
            s.string(1);
            s.arg(4, 256, Done);
        }
        libc::SYS_statfs => {
            s.string(0);
            s.arg(1, 120, Done);
        }
        libc::SYS_fstatfs => s.arg(1, 120, Done),
        libc::SYS_readlink => {
            s.string(0);
            s.buffer(1, 2, Result(1));
        }
        libc::SYS_readlinkat => {
            s.string(1);
            s.buffer(2, 3, Result(1));
        }
        libc::SYS_getcwd | libc::SYS_getrandom => s.buffer(0, 1, Result(1)),
        libc::SYS_utimensat => {
            if a[1] != 0 {
                s.string(1);
            }
            s.arg(2, 32, Always);
        }
        libc::SYS_execve => {
            s.string(0);
            s.strings(1);
            s.strings(2);
        }
        libc::SYS_execveat => {
            s.string(1);
            s.strings(2);
            s.strings(3);
        }
        libc::SYS_pipe | libc::SYS_pipe2 => s.arg(0, 8, Done),
        libc::SYS_socketpair => s.arg(3, 8, Done),
        libc::SYS_poll => s.arg(0, 8 * (a[1] & 0xffff_ffff), Always),
        libc::SYS_ppoll => {
            s.arg(0, 8 * (a[1] & 0xffff_ffff), Always);
            s.arg(2, 16, Always);
            s.arg(3, 8, Always);
        }
        libc::SYS_select | libc::SYS_pselect6 => {
            let bytes = (a[0] & 0xffff_ffff).div_ceil(64) * 8;
            for n in 1..4 {
                s.arg(n, bytes, Always);
            }
            s.arg(4, 16, Always);
            if call.nr == libc::SYS_pselect6 && a[5] != 0 {
                s.arg(5, 16, Always);
                let mask = s.word(a[5]);
                s.add(mask, 8, Always);
            }
        }
        libc::SYS_epoll_wait => s.arg(1, 12 * (a[2] & 0xffff_ffff), Result(12)),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => {
            s.arg(1, 12 * (a[2] & 0xffff_ffff), Result(12));
            s.arg(4, 8, Always);
            if call.nr == libc::SYS_epoll_pwait2 {
                s.arg(3, 16, Always);
            }
        }
        libc::SYS_epoll_ctl => s.arg(3, 12, Always),
        libc::SYS_clock_gettime | libc::SYS_clock_getres => s.arg(1, 16, Done),
        libc::SYS_gettimeofday => {
            s.arg(0, 16, Done);
            s.arg(1, 8, Done);
        }
        libc::SYS_time => s.arg(0, 8, Done),
        libc::SYS_times => s.arg(0, 32, Done),
        libc::SYS_nanosleep => {
            s.arg(0, 16, Always);
            s.arg(1, 16, Maybe);
        }
        libc::SYS_clock_nanosleep => {
            s.arg(2, 16, Always);
            s.arg(3, 16, Maybe);
        }
        libc::SYS_setitimer => {
            s.arg(1, 32, Always);
            s.arg(2, 32, Done);
        }
        libc::SYS_getitimer => s.arg(1, 32, Done),
        libc::SYS_timerfd_settime => {
            s.arg(2, 32, Always);
            s.arg(3, 32, Done);
        }
        libc::SYS_rt_sigaction => {
            s.arg(1, 32, Always);
            s.arg(2, 32, Done);
        }
        libc::SYS_rt_sigprocmask => {
            s.arg(1, 8, Always);
            s.arg(2, 8, Done);
        }
        libc::SYS_rt_sigpending => s.arg(0, 8, Done),
        libc::SYS_rt_sigsuspend => s.arg(0, 8, Always),
        libc::SYS_rt_sigtimedwait => {
            s.arg(0, 8, Always);
            s.arg(1, 128, Done);
            s.arg(2, 16, Always);
        }
        libc::SYS_sigaltstack => {
            s.arg(0, 24, Always);
            s.arg(1, 24, Done);
        }
        libc::SYS_futex => {
            /// FUTEX_CMD_MASK leaves these: wait, lock_pi, wait_bitset, wait_requeue_pi have a timeout.
            const TIMED: [u64; 4] = [0, 6, 9, 11];
            s.arg(0, 4, Always);
            let op = a[1] & 0x7f;
            if TIMED.contains(&op) {
                s.arg(3, 16, Always);
            }
            if !matches!(op, 0 | 1 | 6 | 7 | 9 | 10) {
                s.arg(4, 4, Always);
            }
        }
        libc::SYS_wait4 => {
            s.arg(1, 4, Result(4));
            s.arg(3, 144, Done);
        }
        libc::SYS_waitid => {
            s.arg(2, 128, Done);
            s.arg(4, 144, Done);
        }
        libc::SYS_getrlimit | libc::SYS_getrusage => s.arg(1, 144, Done),
        libc::SYS_setrlimit => s.arg(1, 16, Always),
        libc::SYS_prlimit64 => {
            s.arg(2, 16, Always);
            s.arg(3, 16, Done);
        }
        libc::SYS_sysinfo => s.arg(0, 112, Done),
        libc::SYS_uname => s.arg(0, 390, Done),
        libc::SYS_sched_getaffinity => s.buffer(2, 1, Result(1)),
        libc::SYS_sched_setaffinity => s.buffer(2, 1, Always),
        // The child's number is written by the kernel, in the parent's memory and in the child's.
        libc::SYS_clone => {
            s.arg(2, 4, Maybe);
            s.arg(3, 4, Maybe);
        }
        libc::SYS_bind | libc::SYS_connect => s.buffer(1, 2, Always),
        libc::SYS_accept | libc::SYS_accept4 | libc::SYS_getsockname | libc::SYS_getpeername => {
            s.arg(1, 128, Maybe);
            s.arg(2, 4, Done);
        }
        libc::SYS_setsockopt => s.buffer(3, 4, Always),
        libc::SYS_getsockopt => {
            s.arg(3, 16, Done);
            s.arg(4, 4, Done);
        }
        libc::SYS_sendto => {
            s.buffer(1, 2, Always);
            s.buffer(4, 5, Always);
        }
        libc::SYS_recvfrom => {
            s.buffer(1, 2, Result(1));
            s.arg(4, 128, Maybe);
            s.arg(5, 4, Maybe);
        }
        libc::SYS_sendmsg => s.message(1, Always),
        libc::SYS_recvmsg => s.message(1, Result(1)),
        libc::SYS_ioctl => {
            // Newer requests have the size of what they are about in them.
            let size = a[1] >> 16 & 0x3fff;
            s.arg(2, if size == 0 { 64 } else { size }, Maybe);
        }
        // F_GETLK to F_SETLKW, and those of open files.
        libc::SYS_fcntl if matches!(a[1], 5..=7 | 36..=38) => s.arg(2, 32, Always),
        libc::SYS_sendfile => s.arg(2, 8, Done),
        libc::SYS_copy_file_range | libc::SYS_splice => {
            s.arg(1, 8, Done);
            s.arg(3, 8, Done);
        }
        // PR_SET_NAME and PR_GET_NAME.
        libc::SYS_prctl if matches!(a[0], 15 | 16) => s.arg(1, 16, Always),
        libc::SYS_mincore => s.arg(2, a[1].div_ceil(4096), Done),
        // Numbers only.
        libc::SYS_close
        | libc::SYS_lseek
        | libc::SYS_mmap
        | libc::SYS_mprotect
        | libc::SYS_munmap
        | libc::SYS_brk
        | libc::SYS_mremap
        | libc::SYS_madvise
        | libc::SYS_fcntl
        | libc::SYS_dup
        | libc::SYS_dup2
        | libc::SYS_dup3
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fadvise64
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_flock
        | libc::SYS_umask
        | libc::SYS_fchdir
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_socket
        | libc::SYS_listen
        | libc::SYS_shutdown
        | libc::SYS_epoll_create1
        | libc::SYS_eventfd2
        | libc::SYS_timerfd_create
        | libc::SYS_getpid
        | libc::SYS_gettid
        | libc::SYS_getppid
        | libc::SYS_getuid
        | libc::SYS_geteuid
        | libc::SYS_getgid
        | libc::SYS_getegid
        | libc::SYS_getpgrp
        | libc::SYS_getpgid
        | libc::SYS_setpgid
        | libc::SYS_setsid
        | libc::SYS_kill
        | libc::SYS_tgkill
        | libc::SYS_alarm
        | libc::SYS_pause
        | libc::SYS_sched_yield
        | libc::SYS_fork
        | libc::SYS_vfork
        | libc::SYS_exit_group
        | libc::SYS_set_tid_address
        | libc::SYS_set_robust_list => {}
        _ => return None,
    }
    Some(s.all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use When::{Always, Done, Maybe, Result};

    /// Memory that begins at 0x1000.
    struct Bytes(Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, at: u64, to: &mut [u8]) -> usize {
            let from = at.checked_sub(0x1000).map_or(self.0.len(), |n| n as usize);
            let some = self.0.get(from..).unwrap_or_default();
            let n = some.len().min(to.len());
            to[..n].copy_from_slice(&some[..n]);
            n
        }
    }

    fn of(nr: i64, args: &[u64], memory: &[u8]) -> Option<Vec<(u64, u64, When)>> {
        let mut call = Call { nr, args: [0; 6] };
        call.args[..args.len()].copy_from_slice(args);
        let spans = memory_of(call, &Bytes(memory.to_vec()))?;
        Some(spans.iter().map(|s| (s.at, s.len, s.when)).collect())
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn buffers_have_the_length_of_an_argument() {
        let read = of(libc::SYS_read, &[3, 0x5000, 100], &[]);
        assert_eq!(read, Some(vec![(0x5000, 100, Result(1))]));
        let write = of(libc::SYS_write, &[3, 0x5000, 0], &[]);
        assert_eq!(write, Some(vec![]));
        let wait = of(libc::SYS_epoll_wait, &[3, 0x5000, 10, 0], &[]);
        assert_eq!(wait, Some(vec![(0x5000, 120, Result(12))]));
        assert_eq!(of(libc::SYS_close, &[3], &[]), Some(vec![]));
        assert_eq!(of(libc::SYS_bpf, &[0, 0x5000, 100], &[]), None);
        let lock = of(libc::SYS_fcntl, &[3, 6, 0x5000], &[]);
        assert_eq!(lock, Some(vec![(0x5000, 32, Always)]));
        assert_eq!(of(libc::SYS_fcntl, &[3, 3, 0x5000], &[]), Some(vec![]));
    }

    #[test]
    fn strings_end_with_a_zero() {
        let open = of(libc::SYS_openat, &[0, 0x1001], b"x/tmp/f\0rest");
        assert_eq!(open, Some(vec![(0x1001, 7, Always)]));
        // It ends where memory ends.
        let open = of(libc::SYS_open, &[0x1000], b"/tmp");
        assert_eq!(open, Some(vec![(0x1000, 4, Always)]));
        let long = vec![b'x'; 9000];
        let open = of(libc::SYS_open, &[0x1000], &long);
        assert_eq!(open, Some(vec![(0x1000, 4096, Always)]));
        let none = of(libc::SYS_utimensat, &[3, 0, 0], &[]);
        assert_eq!(none, Some(vec![]));
    }

    #[test]
    fn programs_get_arguments() {
        let mut memory = words(&[0x1020, 0x1022, 0]);
        memory.resize(0x20, 0);
        memory.extend(b"a\0bc\0");
        let exec = of(libc::SYS_execve, &[0x1020, 0x1000, 0], &memory).unwrap_or_default();
        let strings = [
            (0x1020, 2, Always),
            (0x1020, 2, Always),
            (0x1022, 3, Always),
        ];
        assert_eq!(exec[..3], strings);
        assert_eq!(exec[3..], [(0x1000, 24, Always)]);
    }

    #[test]
    fn vectors_have_buffers() {
        let memory = words(&[0x5000, 10, 0x6000, 20]);
        let read = of(libc::SYS_readv, &[3, 0x1000, 2], &memory);
        let buffers = [(0x5000, 10, Result(1)), (0x6000, 20, Maybe)];
        assert_eq!(read, Some([&[(0x1000, 32, Always)], &buffers[..]].concat()));
        let mut message = words(&[0, 0, 0x1038, 1, 0x7000, 5, 0]);
        message.extend(words(&[0x5000, 10]));
        let send = of(libc::SYS_sendmsg, &[3, 0x1000], &message);
        let all = [
            (0x1000, 56, Always),
            (0x7000, 5, Maybe),
            (0x1038, 16, Always),
            (0x5000, 10, Always),
        ];
        assert_eq!(send, Some(all.to_vec()));
    }

    #[test]
    fn what_the_kernel_writes_is_written_by_calls_that_succeed() {
        let stat = of(libc::SYS_fstat, &[3, 0x5000], &[]);
        assert_eq!(stat, Some(vec![(0x5000, 144, Done)]));
        // A child that has not ended writes no status.
        let wait = of(libc::SYS_wait4, &[5, 0x5000, 0, 0], &[]);
        assert_eq!(wait, Some(vec![(0x5000, 4, Result(4))]));
    }
}
