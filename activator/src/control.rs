//! The kernel's side: `/dev/vmtrace` behind a trait.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

use rust_mm_trace::filter::Request;
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::{
    VMTRACE_AGAIN, VMTRACE_CLASS_FILE, VMTRACE_CLASS_FRAME, VMTRACE_CLASS_GUP, VMTRACE_CLASS_IO,
    VMTRACE_CLASS_SHM, VMTRACE_CLASS_SWAP, VMTRACE_CLASS_SWITCH, VMTRACE_CLASSES,
    VMTRACE_CLASSES_USUAL, VMTRACE_COUNTED, VMTRACE_EARLY, VMTRACE_EVMS_MIN_CPUS, VMTRACE_FILTERED,
    VMTRACE_FIRST_MIN, VMTRACE_FLUSH_MAX, VMTRACE_FLUSH_NEVER, VMTRACE_MODE_BLOCK,
    VMTRACE_MODE_DISCARD, VMTRACE_OFFSETS, VMTRACE_PACK, VMTRACE_PAUSABLE, VMTRACE_PIECE,
    VMTRACE_POLICY_CLOCK, VMTRACE_POLICY_FIFO, VMTRACE_REGIONS, VMTRACE_SCOPE_ALL,
    VMTRACE_SETS_CGROUP, VMTRACE_SETS_ONE, VMTRACE_SETS_PROCESS, VMTRACE_STATUS_SIZE_VER0,
    VMTRACE_UNWRITTEN, VMTRACE_VTIME, VMTRACE_ZSTD, vmtrace_config, vmtrace_count, vmtrace_counts,
    vmtrace_ring, vmtrace_rings, vmtrace_rotate, vmtrace_status,
};

use crate::error::{BAD_TRACE, Errno, Failure};
use crate::filter::Filter;
use crate::sampling::Sampling;
use crate::status::{State, Status};
use crate::units::{Pages, bytes};

pub use crate::scope::Scope;

/// The policy of the second segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// The page that has been in the set for the longest time is evicted.
    #[default]
    Fifo,
    /// The same, but a page that was referenced gets a second chance instead.
    Clock,
}

/// What has a set of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum SetPer {
    /// All traced processes share one set.
    #[default]
    All,
    /// Each address space has a set. Usually, it is that of one process.
    Process,
    /// Each control group of version 2 has a set.
    Cgroup,
}

impl SetPer {
    fn raw(self) -> u32 {
        match self {
            Self::All => VMTRACE_SETS_ONE,
            Self::Process => VMTRACE_SETS_PROCESS,
            Self::Cgroup => VMTRACE_SETS_CGROUP,
        }
    }
}

/// Classes of events that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Class {
    /// The classes that simulations use: file, io, shm and gup.
    Usual,
    /// All classes.
    All,
    /// No class.
    None,
    /// Opens and closes of files.
    File,
    /// Reads and writes by file descriptor.
    Io,
    /// Attachments of System V shared memory.
    Shm,
    /// Pages that the kernel accesses without the page tables of the process.
    Gup,
    /// Pages that are swapped out and in.
    Swap,
    /// Page frames that KSM and migration exchange.
    Frame,
    /// Context switches from and to traced tasks.
    Switch,
}

impl Class {
    fn bits(self) -> u32 {
        match self {
            Class::Usual => VMTRACE_CLASSES_USUAL,
            Class::All => VMTRACE_CLASSES,
            Class::None => 0,
            Class::File => VMTRACE_CLASS_FILE,
            Class::Io => VMTRACE_CLASS_IO,
            Class::Shm => VMTRACE_CLASS_SHM,
            Class::Gup => VMTRACE_CLASS_GUP,
            Class::Swap => VMTRACE_CLASS_SWAP,
            Class::Frame => VMTRACE_CLASS_FRAME,
            Class::Switch => VMTRACE_CLASS_SWITCH,
        }
    }
}

/// What becomes of records that find no room in the kernel's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// The program waits until there is room. No record is lost.
    #[default]
    Block,
    /// The record is dropped and counted. No program waits.
    Discard,
}

impl Mode {
    fn raw(self) -> u16 {
        match self {
            Mode::Block => VMTRACE_MODE_BLOCK as u16,
            Mode::Discard => VMTRACE_MODE_DISCARD as u16,
        }
    }
}

/// How the kernel writes a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writing {
    /// How long the output may take nothing, ms; `None` takes the kernel's default.
    pub stall_limit: Option<u32>,
    /// How long a record stays in the kernel's buffers, ms; `None` takes the kernel's default,
    /// and `Some(0)` is until its buffer is full.
    pub flush: Option<u32>,
    /// How records are packed before they are written.
    pub pack: Pack,
    /// Whether the trace is written in pieces. The output is the first one.
    pub in_pieces: bool,
}

/// How records are packed. Commands pack by `columns`; the kernel, unless it is asked, does not pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Pack {
    /// Not at all: each record as the kernel makes it.
    #[default]
    No,
    /// As differences from what earlier records predict.
    Columns,
    /// As `columns`, and then compressed by Zstandard.
    Zstd,
}

impl Pack {
    fn bits(self) -> u32 {
        match self {
            Pack::No => 0,
            Pack::Columns => VMTRACE_PACK,
            Pack::Zstd => VMTRACE_PACK | VMTRACE_ZSTD,
        }
    }
}

impl Writing {
    /// Sets these in the kernel's form.
    fn put(self, raw: &mut vmtrace_config) {
        raw.stall_ms = self.stall_limit.unwrap_or(0);
        raw.flush_ms = match self.flush {
            None => 0,
            Some(0) => VMTRACE_FLUSH_NEVER as u16,
            Some(ms) => u16::try_from(ms).unwrap_or(VMTRACE_FLUSH_MAX as u16),
        };
        raw.flags |= self.pack.bits();
        if self.in_pieces {
            raw.flags |= VMTRACE_PIECE;
        }
    }
}

/// Windows of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    /// Number of windows; 0: until the end of the trace.
    pub count: u32,
    /// Length, ns; 0: no limit.
    pub time: u64,
    /// Length, references; 0: no limit.
    pub references: u64,
    /// Time before the first window, ns.
    pub warmup: u64,
    /// Time between two windows, ns.
    pub skip: u64,
    /// They begin on request, and end on request or at their limits.
    pub on_request: bool,
}

/// The settings of a trace.
#[derive(Clone, Debug)]
pub struct Config {
    /// The processes that are traced.
    pub scope: Scope,
    /// What has a set of its own.
    pub set_per: SetPer,
    /// N, of each set.
    pub evms_size: Pages,
    /// The largest N that can be set later; `None` takes the kernel's default.
    pub evms_max: Option<Pages>,
    /// All stays end each so many ns; 0: they do not.
    pub interval: u64,
    /// How regions are sampled, if references are not recorded.
    pub sampling: Option<Sampling>,
    /// Pages of each CPU's first segment; `None` takes the kernel's default.
    pub first_segment: Option<Pages>,
    /// The policy of the second segment.
    pub policy: Policy,
    /// Pages that one eviction can take; `None` takes the kernel's default.
    pub batch: Option<u32>,
    /// Whether references in the second segment are recorded.
    pub again: bool,
    /// Whether references carry the offset of the access within the page.
    pub offsets: bool,
    /// The ticks to subtract for each fault, if virtual time is recorded.
    pub virtual_time: Option<u32>,
    /// Classes of events to record, besides the events that are always recorded.
    pub classes: Vec<Class>,
    /// Parts of the run that are traced, if not the whole run.
    pub windows: Option<Windows>,
    /// The references that are recorded, if some may be left out now or later.
    pub filter: Option<Filter>,
    /// Whether references are counted by process and mapping.
    pub counted: bool,
    /// Whether nothing is written. Then there is no output.
    pub unwritten: bool,
    /// Sub-buffers of each stream; `None` takes the kernel's default.
    pub nr_buffers: Option<u32>,
    /// Bytes of a sub-buffer; `None` takes the kernel's default.
    pub buffer_size: Option<u32>,
    /// What becomes of records that find no room.
    pub mode: Mode,
    /// How the trace is written.
    pub writing: Writing,
    /// The name of the output in the status.
    pub output: String,
}

impl Config {
    /// A trace that records references only, with the kernel's defaults.
    pub fn plain(scope: Scope, evms_size: Pages, output: &str) -> Self {
        Self {
            scope,
            set_per: SetPer::All,
            evms_size,
            evms_max: None,
            interval: 0,
            sampling: None,
            first_segment: None,
            policy: Policy::Fifo,
            batch: None,
            again: false,
            offsets: false,
            virtual_time: None,
            windows: None,
            filter: None,
            counted: false,
            unwritten: false,
            classes: vec![Class::None],
            nr_buffers: None,
            buffer_size: None,
            mode: Mode::Block,
            writing: Writing::default(),
            output: output.to_owned(),
        }
    }

    /// One for tests.
    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            classes: vec![Class::File, Class::Gup],
            buffer_size: Some(65536),
            ..Self::plain(Scope::Tree(42), Pages(512), "")
        }
    }

    /// The settings in the kernel's form; the trace goes to `out`. The address of the filter is
    /// not among them.
    pub fn raw(&self, out: RawFd) -> vmtrace_config {
        let mut raw = vmtrace_config {
            size: size_of::<vmtrace_config>() as u32,
            out_fd: out,
            sets: self.set_per.raw(),
            evms_size: self.evms_size.0,
            nr_buffers: self.nr_buffers.unwrap_or(0),
            buffer_size: self.buffer_size.unwrap_or(0),
            mode: self.mode.raw(),
            batch: self.batch.unwrap_or(0),
            evms_max: self.evms_max.map_or(0, |n| n.0),
            first_segment: self.first_segment.map_or(0, |n| n.0),
            flags: [
                (self.again, VMTRACE_AGAIN),
                (self.virtual_time.is_some(), VMTRACE_VTIME),
                (self.offsets, VMTRACE_OFFSETS),
                (self.filter.is_some(), VMTRACE_FILTERED),
                (self.counted, VMTRACE_COUNTED),
                (self.unwritten, VMTRACE_UNWRITTEN),
                (self.sampling.is_some(), VMTRACE_REGIONS),
            ]
            .iter()
            .filter(|(wanted, _)| *wanted)
            .fold(0, |flags, (_, flag)| flags | flag),
            vtime_skip: self.virtual_time.unwrap_or(0),
            interval: self.interval,
            sampling: self.sampling.map(Sampling::raw).unwrap_or_default(),
            classes: self.classes.iter().fold(0, |bits, c| bits | c.bits()),
            policy: match self.policy {
                Policy::Fifo => VMTRACE_POLICY_FIFO,
                Policy::Clock => VMTRACE_POLICY_CLOCK,
            },
            ..Default::default()
        };
        self.scope.put(&mut raw);
        let windows = self.windows.unwrap_or_default();
        raw.windows = windows.count;
        raw.window_time = windows.time;
        raw.window_refs = windows.references;
        raw.warmup = windows.warmup;
        raw.skip = windows.skip;
        if windows.on_request {
            raw.flags |= VMTRACE_PAUSABLE;
        }
        self.writing.put(&mut raw);
        name_output(&mut raw.output, &self.output);
        raw
    }

    /// Calls `with` on the settings in the kernel's form, whose addresses are good meanwhile.
    fn with_raw<T>(&self, out: RawFd, with: impl FnOnce(&mut vmtrace_config) -> T) -> T {
        let filter = match &self.filter {
            None | Some(Filter::All) => None,
            Some(filter) => Some(filter.request()),
        };
        let mut raw = self.raw(out);
        raw.filter = filter.as_ref().map_or(0, Request::address);
        with(&mut raw)
    }
}

/// The request that takes the trace from boot into `out`. The kernel command line has decided
/// all settings except how the trace is written.
pub fn raw_take(output: &str, writing: Writing, out: RawFd) -> vmtrace_config {
    let mut raw = vmtrace_config {
        size: size_of::<vmtrace_config>() as u32,
        flags: VMTRACE_EARLY,
        scope: VMTRACE_SCOPE_ALL,
        out_fd: out,
        ..Default::default()
    };
    writing.put(&mut raw);
    name_output(&mut raw.output, output);
    raw
}

/// The request for the next piece, which goes into `out`.
pub fn raw_rotate(output: &str, out: RawFd) -> vmtrace_rotate {
    let mut raw = vmtrace_rotate {
        size: size_of::<vmtrace_rotate>() as u32,
        out_fd: out,
        ..Default::default()
    };
    name_output(&mut raw.output, output);
    raw
}

/// The longest name of an output that the status shows whole, bytes.
pub const LONGEST_NAME: usize = 255;

/// If the path is too long for the status, its end is kept. The last byte stays 0.
fn name_output(name: &mut [libc::c_char; LONGEST_NAME + 1], output: &str) {
    let room = LONGEST_NAME;
    let mut from = output.len().saturating_sub(room);
    while !output.is_char_boundary(from) {
        from += 1;
    }
    for (to, byte) in name[..room].iter_mut().zip(output[from..].bytes()) {
        *to = byte as libc::c_char;
    }
}

/// The requests to the kernel. Errors are the kernel's error numbers.
pub trait Control {
    /// Starts a trace into `out`, which the kernel keeps open; `None` for a trace of which nothing
    /// is written.
    fn start(&self, config: &Config, out: Option<BorrowedFd<'_>>) -> Result<(), Errno>;
    /// Takes the trace from boot into `out`, which the kernel keeps open; `output` is the name
    /// of `out`. `ENODATA` if there is no such trace, or it was taken already.
    fn take(&self, output: &str, writing: Writing, out: BorrowedFd<'_>) -> Result<(), Errno>;
    /// Ends the trace and gives its counts. `ENODATA` if no trace is on, `EIO` if the
    /// output had failed, `EINPROGRESS` if the output took nothing for a second.
    fn stop(&self) -> Result<Status, Errno>;
    /// Gives the counts of the trace that is on, or else of the last trace.
    fn status(&self) -> Result<Status, Errno>;
    /// Changes N of the trace that is on. `ENODATA` if no trace is on, `EINVAL` if N is too
    /// small, `ENOSPC` if N is above the largest N of the trace.
    fn resize(&self, n: Pages) -> Result<(), Errno>;
    /// Begins a window, or ends it; nothing is done if that is so already. `ENODATA` if no
    /// trace is on or there are to be no more windows, `EOPNOTSUPP` if windows do not begin on
    /// request, `EINPROGRESS` if the output took nothing for a second.
    fn window(&self, begin: bool) -> Result<(), Errno>;
    /// Begins the next piece of the trace in `out`, which the kernel keeps open, and waits until
    /// the former piece is complete; `output` is the name of `out`. `ENODATA` if no trace is on,
    /// `EOPNOTSUPP` if it is not in pieces, `EBUSY` if somebody else does the same at the moment.
    /// `EINPROGRESS` or `EINTR`: the kernel goes on with it.
    fn rotate(&self, output: &str, out: BorrowedFd<'_>) -> Result<(), Errno>;
    /// Changes which references of the trace that is on are recorded. `ENODATA` if no trace is
    /// on, `EOPNOTSUPP` if it was begun without a filter.
    fn filter(&self, filter: &Filter) -> Result<(), Errno>;
    /// Puts the counts of references into `list`, as many as it has room for, and gives the
    /// kernel's answer, whose `nr` is how many there are. `ENODATA` if no trace is on,
    /// `EOPNOTSUPP` if it was begun without counts.
    fn counts(&self, list: &mut [vmtrace_count]) -> Result<vmtrace_counts, Errno>;
    /// Puts the rings of the trace that is on into `list`, as many as it has room for, and gives
    /// the kernel's answer, whose `nr` is how many there are. `ENODATA` if no trace is on,
    /// `ENOTTY` if the kernel does not know this request.
    fn rings(&self, list: &mut [vmtrace_ring]) -> Result<vmtrace_rings, Errno>;
}

impl<T: Control + ?Sized> Control for std::rc::Rc<T> {
    fn start(&self, config: &Config, out: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        (**self).start(config, out)
    }

    fn take(&self, output: &str, writing: Writing, out: BorrowedFd<'_>) -> Result<(), Errno> {
        (**self).take(output, writing, out)
    }

    fn stop(&self) -> Result<Status, Errno> {
        (**self).stop()
    }

    fn status(&self) -> Result<Status, Errno> {
        (**self).status()
    }

    fn resize(&self, n: Pages) -> Result<(), Errno> {
        (**self).resize(n)
    }

    fn window(&self, begin: bool) -> Result<(), Errno> {
        (**self).window(begin)
    }

    fn rotate(&self, output: &str, out: BorrowedFd<'_>) -> Result<(), Errno> {
        (**self).rotate(output, out)
    }

    fn filter(&self, filter: &Filter) -> Result<(), Errno> {
        (**self).filter(filter)
    }

    fn counts(&self, list: &mut [vmtrace_count]) -> Result<vmtrace_counts, Errno> {
        (**self).counts(list)
    }

    fn rings(&self, list: &mut [vmtrace_ring]) -> Result<vmtrace_rings, Errno> {
        (**self).rings(list)
    }
}

/// `/dev/vmtrace`.
#[derive(Debug)]
pub struct Device {
    file: File,
}

impl Device {
    fn call<T>(&self, request: u32, argument: &mut T) -> Result<(), Errno> {
        loop {
            match self.call_once(request, argument) {
                Err(Errno(libc::EINTR)) => {}
                done => return done,
            }
        }
    }

    fn call_once<T>(&self, request: u32, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the kernel reads or writes the bytes of `argument`, because
        // the request number carries the size of T: `ioctl` makes it from the
        // types that the callers below pass. T is plain old data, so any bytes
        // that come back are a valid T. It reads or writes no more than that,
        // but for what addresses in `argument` lead to: the callers borrow
        // that until the call returns, and give its length.
        let result = unsafe {
            libc::ioctl(
                self.file.as_raw_fd(),
                request as libc::Ioctl,
                std::ptr::from_mut(argument),
            )
        };
        if result >= 0 {
            Ok(())
        } else {
            Err(Errno::last())
        }
    }
}

impl Control for Device {
    fn start(&self, config: &Config, out: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        let out = out.map_or(-1, |out| out.as_raw_fd());
        config.with_raw(out, |raw| self.call(ioctl::START, raw))
    }

    fn take(&self, output: &str, writing: Writing, out: BorrowedFd<'_>) -> Result<(), Errno> {
        self.call(
            ioctl::START,
            &mut raw_take(output, writing, out.as_raw_fd()),
        )
    }

    fn stop(&self) -> Result<Status, Errno> {
        let mut raw = vmtrace_status::default();
        self.call(ioctl::STOP, &mut raw)?;
        Ok(Status::from(raw))
    }

    fn status(&self) -> Result<Status, Errno> {
        let mut raw = vmtrace_status::default();
        self.call(ioctl::STATUS, &mut raw)?;
        Ok(Status::from(raw))
    }

    fn resize(&self, n: Pages) -> Result<(), Errno> {
        let mut n = n.0;
        self.call(ioctl::RESIZE, &mut n)
    }

    fn window(&self, begin: bool) -> Result<(), Errno> {
        self.call(ioctl::WINDOW, &mut u32::from(begin))
    }

    fn rotate(&self, output: &str, out: BorrowedFd<'_>) -> Result<(), Errno> {
        // Another call would begin another piece.
        self.call_once(ioctl::ROTATE, &mut raw_rotate(output, out.as_raw_fd()))
    }

    fn filter(&self, filter: &Filter) -> Result<(), Errno> {
        let request = filter.request();
        // A change that was made is not to be made again.
        self.call_once(ioctl::FILTER, &mut { *request.raw() })
    }

    fn counts(&self, list: &mut [vmtrace_count]) -> Result<vmtrace_counts, Errno> {
        let mut raw = vmtrace_counts {
            size: size_of::<vmtrace_counts>() as u32,
            nr: u32::try_from(list.len()).unwrap_or(u32::MAX),
            counts: list.as_mut_ptr() as u64,
            ..Default::default()
        };
        self.call(ioctl::COUNTS, &mut raw)?;
        Ok(raw)
    }

    fn rings(&self, list: &mut [vmtrace_ring]) -> Result<vmtrace_rings, Errno> {
        let mut raw = vmtrace_rings {
            size: size_of::<vmtrace_rings>() as u32,
            nr: u32::try_from(list.len()).unwrap_or(u32::MAX),
            rings: list.as_mut_ptr() as u64,
            ..Default::default()
        };
        self.call(ioctl::RINGS, &mut raw)?;
        Ok(raw)
    }
}

/// Requests for one list, at most.
const TRIES: u32 = 8;

/// What the kernel has in a list, with its answer.
pub struct Listed<T, A> {
    /// The kernel's answer.
    pub answer: A,
    /// The entries.
    pub list: Vec<T>,
    /// Whether all entries of the kernel are in `list`.
    pub is_complete: bool,
}

/// Asks for a list whose length only the kernel knows. `ask` puts entries into what it is given,
/// and gives the kernel's answer and how many entries there are. `room` is how many it is given;
/// it grows up to `most` if there are more.
pub fn listed<T: Clone + Default, A>(
    room: &mut usize,
    most: usize,
    ask: impl Fn(&mut [T]) -> Result<(A, u32), Errno>,
) -> Result<Listed<T, A>, Errno> {
    let mut tries = 0;
    loop {
        let mut list = vec![T::default(); *room];
        let (answer, nr) = ask(&mut list)?;
        let nr = nr as usize;
        tries += 1;
        if nr > list.len() && *room < most && tries < TRIES {
            // There may be more by then.
            *room = nr.saturating_add(nr / 4).min(most);
            continue;
        }
        let is_complete = nr <= list.len();
        list.truncate(nr);
        return Ok(Listed {
            answer,
            list,
            is_complete,
        });
    }
}

/// Opens the control device at `path`.
pub fn connect(path: &Path) -> Result<Box<dyn Control>, Failure> {
    crate::sys::set_needed(true);
    let name = path.display();
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => Ok(Box::new(Device { file })),
        Err(e) => Err(Failure::usage(match e.kind() {
            ErrorKind::NotFound => no_device(&name.to_string(), misc_minor()),
            ErrorKind::PermissionDenied => format!("{name}: permission denied; {AS_ROOT}"),
            _ if matches!(e.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)) => {
                no_device(&name.to_string(), None)
            }
            _ => format!("can't open {name}: {e}"),
        })),
    }
}

const AS_ROOT: &str = "run this as root, e.g. with sudo (tracing needs CAP_SYS_ADMIN, or \
     CAP_PERFMON if vm.vmtrace_paranoid is 0)";

fn no_device(name: &str, minor: Option<u32>) -> String {
    match minor {
        Some(minor) => format!(
            "{name} does not exist, although this kernel has CONFIG_VMTRACE: mount devtmpfs on \
             /dev, or create the device with `mknod -m 600 {name} c 10 {minor}`"
        ),
        None => format!(
            "{name} does not exist: this kernel has no CONFIG_VMTRACE; boot the patched kernel \
             (`make shell` in kVMTrace's source tree boots it in QEMU)"
        ),
    }
}

/// Finds the device's minor number, for systems where nothing creates device nodes.
fn misc_minor() -> Option<u32> {
    let list = fs::read_to_string("/proc/misc").ok()?;
    list.lines().find_map(|line| {
        let (minor, name) = line.trim().split_once(' ')?;
        (name.trim() == "vmtrace").then(|| minor.parse().ok())?
    })
}

/// Explains the kernel's refusal of a request other than START.
pub fn refused(what: &str, errno: Errno) -> Failure {
    Failure::usage(match errno.0 {
        libc::ENOTTY | libc::EINVAL => OTHER_VERSION.to_owned(),
        libc::EPERM | libc::EACCES => format!("the kernel did not permit to {what}; {AS_ROOT}"),
        _ => format!("the kernel could not {what}: {errno}"),
    })
}

/// The message for a kernel interface that this program does not know.
pub const OTHER_VERSION: &str = "the kernel's vmtrace interface is not the one of this program: \
     use the tools that were built with the kernel that runs";

/// The message for a kernel whose page tables belong to another one.
const PARAVIRTUALIZED: &str = "this kernel is a paravirtualized guest of Xen (PV), whose page tables it cannot \
     change by itself: boot it as an HVM or PVH guest, or without Xen";

/// Asks for the status. A kernel that knows fewer figures than this program leaves the others 0. Of a
/// kernel that knows more, this program gets those that it knows. Refuses a kernel that is older than
/// the first version.
pub fn status(control: &dyn Control) -> Result<Status, Failure> {
    let status = control.status().map_err(|e| match e.0 {
        libc::ENODEV => Failure::usage(PARAVIRTUALIZED),
        _ => refused("report the status", e),
    })?;
    if status.raw.size < VMTRACE_STATUS_SIZE_VER0 {
        return Err(Failure::usage(OTHER_VERSION));
    }
    Ok(status)
}

/// The smallest N with first segments of this size.
pub fn least_n(first: u32, cpus: u32) -> u32 {
    first.saturating_mul(cpus.min(VMTRACE_EVMS_MIN_CPUS))
}

/// The sizes of a set, as asked for.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// N.
    pub n: Pages,
    /// Pages of each CPU's first segment.
    pub first: Option<Pages>,
    /// The largest N that can be set later.
    pub max: Option<Pages>,
    /// Pages that one eviction can take.
    pub batch: Option<u32>,
    /// The policy of the second segment.
    pub policy: Policy,
    /// If N comes from a size of memory: that of a page of the set.
    pub memory_per_page: Option<u32>,
}

/// Checks, before anything is created, whether a trace with these sizes can start.
pub fn check_ready(control: &dyn Control, sizes: &Sizes) -> Result<(), Failure> {
    let Sizes {
        n,
        first,
        max,
        batch,
        policy,
        memory_per_page,
    } = *sizes;
    let status = status(control)?;
    if status.is_on() {
        return Err(already_on(&status));
    }
    let (mut min, cpus) = (status.raw.evms_min, status.raw.nr_cpus);
    if let Some(Pages(first)) = first {
        if first < VMTRACE_FIRST_MIN {
            return Err(Failure::usage(format!(
                "a first segment of {first} pages is too small: one instruction can need more \
                 pages; use --first {VMTRACE_FIRST_MIN} or more"
            )));
        }
        min = least_n(first, cpus);
    }
    if let Some(max) = max.filter(|max| max.0 < n.0) {
        return Err(Failure::usage(format!(
            "--max {} is less than N={}, although it is the largest N that can be set later",
            max.0, n.0
        )));
    }
    if n.0 < min {
        return Err(Failure::usage(format!(
            "N={} is too small: this machine needs at least {min}; use {} or more",
            n.0,
            match memory_per_page {
                Some(pages) => format!("--memory {}", min.saturating_mul(pages)),
                None => format!("-n {min}"),
            }
        )));
    }
    match batch {
        Some(k) if k > 1 && policy == Policy::Clock => Err(Failure::usage(format!(
            "--batch {k} is not possible with --policy clock, which evicts one page at a time: \
             leave out one of the two"
        ))),
        Some(k) if k > n.0 - min + 1 => Err(Failure::usage(format!(
            "--batch {k} is too large for N={}: the set must keep at least {min} pages; use \
             --batch {} or less, or -n {} or more",
            n.0,
            n.0 - min + 1,
            min + k - 1
        ))),
        _ => Ok(()),
    }
}

/// Changes N; explains a refusal.
pub fn resize(control: &dyn Control, n: Pages) -> Result<(), Failure> {
    let Err(errno) = control.resize(n) else {
        return Ok(());
    };
    Err(match errno.0 {
        libc::ENODATA => Failure::usage("no trace is on, so there is no N to change"),
        libc::EINVAL => {
            let raw = status(control)?.raw;
            let min = least_n(raw.first_segment, raw.nr_cpus);
            Failure::usage(format!(
                "N={} is too small: this trace needs at least {min}",
                n.0
            ))
        }
        libc::ENOSPC => {
            let max = status(control)?.raw.evms_max;
            Failure::usage(format!(
                "N={} is too large: this trace has memory for N={max} at most; start a trace with \
                 --max {} to allow this N",
                n.0, n.0
            ))
        }
        libc::ETIMEDOUT => Failure::new(
            BAD_TRACE,
            "N could not be made as small as requested, because the buffers are full and the \
             output accepts no data; `activator status` shows N now",
        ),
        _ => refused("change N", errno),
    })
}

/// Why no trace can start while another one is on.
pub fn already_on(status: &Status) -> Failure {
    if status.state() == State::Early {
        return Failure::usage(
            "a trace from boot is on: `activator on --early` takes it over, `activator off` drops \
             it",
        );
    }
    Failure::usage(format!(
        "tracing is already on: {} into {}, started {} ago; `activator off` ends it",
        status.scope(),
        status.output(),
        crate::units::duration(status.duration_ns()),
    ))
}

/// Checks whether `pid` is a process that can be traced, as far as /proc shows that. The
/// kernel checks the rest.
pub fn check_pid(pid: i32) -> Result<(), Failure> {
    check_pid_in(Path::new("/proc"), pid)
}

fn check_pid_in(proc: &Path, pid: i32) -> Result<(), Failure> {
    if !proc.join("self").exists() {
        return Ok(());
    }
    let dir: PathBuf = proc.join(pid.to_string());
    let Ok(status) = fs::read_to_string(dir.join("status")) else {
        return Err(no_process(pid));
    };
    let field = |name: &str| {
        status
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let name = field("Name").unwrap_or("?");
    let message = if field("Kthread") == Some("1") {
        format!("pid {pid} ({name}) is a kernel thread: it has no memory of its own to trace")
    } else if let Some(tgid) = field("Tgid").filter(|t| *t != pid.to_string()) {
        format!("{pid} is a thread of process {tgid} ({name}): use --pid {tgid}")
    } else if field("State").is_some_and(|s| s.starts_with(['Z', 'X'])) {
        format!("process {pid} ({name}) has ended and is a zombie")
    } else {
        return Ok(());
    };
    Err(Failure::usage(message))
}

fn no_process(pid: i32) -> Failure {
    Failure::usage(format!(
        "there is no process {pid}; `ps -e` lists the processes"
    ))
}

/// Begins a window of the trace that is on, or ends it; explains a refusal.
pub fn window(control: &dyn Control, begin: bool) -> Result<(), Failure> {
    control.window(begin).map_err(|errno| match errno.0 {
        libc::ENODATA => Failure::usage(
            "no trace is on that can have another window; `activator status` shows the last trace",
        ),
        libc::EOPNOTSUPP => Failure::usage(
            "the windows of this trace do not begin on request: start it with --pausable",
        ),
        libc::EINPROGRESS => Failure::new(
            BAD_TRACE,
            "the output takes no data; this will be done when it has taken the last window",
        ),
        _ => refused("begin or end a window", errno),
    })
}

/// Why a request for the next piece, in the file `output`, was refused.
pub fn no_rotation(output: &str, errno: Errno) -> Failure {
    match errno.0 {
        libc::ENODATA => Failure::usage("no trace is on: `activator on --rotate` starts one"),
        libc::EOPNOTSUPP => {
            Failure::usage("this trace is not written in pieces: start it with --rotate")
        }
        libc::EAGAIN => Failure::usage(
            "a program was being started for too long, and no piece can begin meanwhile: try again",
        ),
        libc::ETIMEDOUT => Failure::usage(format!(
            "{output} can't be created: its file system may be frozen, or its disk hangs"
        )),
        libc::EBADF => Failure::usage(format!("the kernel can't write a piece to {output}")),
        libc::ENOSPC | libc::EDQUOT => {
            Failure::usage(format!("no room for {output}: free some space"))
        }
        libc::EROFS => Failure::usage(format!("{output} is on a read-only file system")),
        libc::ENOENT => Failure::usage(format!(
            "{output} can't be created: there is no such directory any more"
        )),
        _ => refused(&format!("begin a piece in {output}"), errno),
    }
}

/// Changes which references are recorded; explains a refusal.
pub fn filter(control: &dyn Control, filter: &Filter) -> Result<(), Failure> {
    control.filter(filter).map_err(|errno| match errno.0 {
        libc::ENODATA => Failure::usage("no trace is on, so there is no filter to change"),
        libc::EOPNOTSUPP => Failure::usage(
            "the trace was begun without --filter; begin it with --filter '' to set filters later",
        ),
        libc::EINVAL => Failure::usage(UNKNOWN_FILTER),
        libc::E2BIG => Failure::usage(LONG_FILTER),
        libc::EINTR => Failure::usage(
            "the request was interrupted, so the filter may be the old one or the new one: set it \
             again",
        ),
        _ => refused("change the filter", errno),
    })
}

/// The message for a filter that a kernel does not take.
const UNKNOWN_FILTER: &str = "the kernel does not know this filter: use the tools that were built \
     with the kernel that runs";

/// The message for a filter that a kernel has no room for.
const LONG_FILTER: &str = "the filter is too long for this kernel: shorten it, or leave it out and \
     use `postproc ... --where` when you read the trace";

/// The message for a directory of pieces that hangs.
pub fn takes_no_piece(directory: &str) -> Failure {
    Failure::new(
        BAD_TRACE,
        format!("{directory} takes no data; the next piece begins when it does"),
    )
}

/// Checks whether there is a trace from boot to take over.
pub fn check_early(control: &dyn Control) -> Result<(), Failure> {
    let status = status(control)?;
    match status.state() {
        State::Early => Ok(()),
        State::On => Err(already_on(&status)),
        _ => Err(no_early()),
    }
}

fn no_early() -> Failure {
    Failure::usage(
        "there is no trace from boot to take over: vmtrace=early on the kernel command line \
         begins one",
    )
}

/// Takes the trace from boot; explains a refusal.
pub fn take(
    control: &dyn Control,
    output: &str,
    writing: Writing,
    out: BorrowedFd<'_>,
) -> Result<(), Failure> {
    control
        .take(output, writing, out)
        .map_err(|errno| match errno.0 {
            libc::ENODATA => no_early(),
            libc::ETIMEDOUT => takes_nothing(output),
            libc::EBUSY => Failure::usage(
                "the output of an earlier attempt takes no data yet: try again when it does",
            ),
            libc::ENOMEM => Failure::usage(
                "there is no memory to take the trace over now: end programs that take memory, and \
                 try again; the kernel keeps the trace until then",
            ),
            libc::EINVAL if writing.in_pieces => Failure::usage(NO_PIECES_FROM_BOOT),
            _ => cant_write(output, errno).unwrap_or_else(|| refused("take the trace", errno)),
        })
}

/// The message for a kernel that writes a trace from boot to one file only.
const NO_PIECES_FROM_BOOT: &str = "the kernel did not take the trace over in pieces: use the tools that \
     were built with the kernel that runs, or leave out --rotate and use `postproc split` later";

/// The message for an output that hangs before there is a trace.
pub fn takes_nothing(output: &str) -> Failure {
    Failure::new(
        BAD_TRACE,
        format!(
            "{output} takes no data: its file system may be frozen, or its disk hangs; no trace \
             was started; give -o a path on another file system"
        ),
    )
}

/// Explains a refusal of the output, if the error is one.
fn cant_write(output: &str, errno: Errno) -> Option<Failure> {
    let why = match errno.0 {
        libc::EBADF => format!(
            "the kernel can't write a trace to {output}: give -o a regular file or a block device"
        ),
        libc::EROFS => {
            format!("{output} is read-only: give -o a path on a file system that can be written")
        }
        libc::ENOSPC | libc::EDQUOT => {
            format!(
                "no room for {output}: free some space, or give -o a path on another file system"
            )
        }
        _ => return None,
    };
    Some(Failure::usage(why))
}

/// Memory that can be had without harm to other programs, as the kernel sees it.
fn affordable() -> Option<u64> {
    let list = fs::read_to_string("/proc/meminfo").ok()?;
    let kib = list
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix(" kB"))?;
    let bytes = kib.trim().parse::<u64>().ok()?.checked_mul(1024)?;
    Some(bytes - bytes / 8)
}

/// Explains that the set and the buffers don't fit, and names what would.
fn no_memory(control: &dyn Control, config: &Config) -> String {
    let cpus = control.status().map_or(1, |s| s.raw.nr_cpus.max(1));
    let room = affordable().unwrap_or(0);
    explain_memory(config, u64::from(cpus), room)
}

/// The same for a machine with as many CPUs and as much memory.
fn explain_memory(config: &Config, cpus: u64, room: u64) -> String {
    /// The kernel's defaults, the least number of buffers, and the bytes that the set needs
    /// for each page at most.
    const BUFFERS: u64 = 32;
    const SIZE: u64 = 64 << 10;
    const LEAST: u64 = 4;
    const PAGE: u64 = 176;
    let n = u64::from(config.evms_size.0);
    let max = match (config.evms_max, config.set_per) {
        (Some(max), _) => u64::from(max.0),
        (None, SetPer::All) => n.saturating_mul(4),
        (None, SetPer::Process | SetPer::Cgroup) => n,
    };
    let size = config.buffer_size.map_or(SIZE, u64::from);
    let buffers = config.nr_buffers.map_or(BUFFERS, u64::from);
    // References and events of each CPU.
    let streams = cpus.saturating_mul(2);
    let set = max.saturating_mul(PAGE);
    let all = buffers.saturating_mul(size).saturating_mul(streams);
    // Other programs need some of it meanwhile.
    let left = (room - room / 8).saturating_sub(set);
    let fits = left / size.saturating_mul(streams).max(1);
    let needs = format!(
        "the buffers need {} ({buffers} of {} in each of {streams} streams) and N up to {max} \
         {} at most, and a trace may take {} of this machine's memory now",
        bytes(all),
        bytes(size),
        bytes(set),
        bytes(room),
    );
    if fits >= buffers {
        // What is free now may not have been so a moment ago, or not in large enough pieces.
        format!(
            "{needs}; the kernel found none at this moment: try again, or use a smaller -n or --max"
        )
    } else if fits < LEAST {
        format!("{needs}: use a smaller -n, --max or --buffer-size")
    } else {
        format!("{needs}: --buffers {fits} would fit")
    }
}

/// Starts the trace; explains a refusal.
pub fn start(control: &dyn Control, config: &Config, out: BorrowedFd<'_>) -> Result<(), Failure> {
    let started = control.start(config, Some(out));
    started.map_err(|errno| not_started(control, config, errno))
}

/// Starts a trace of which nothing is written, and which counts references; explains a refusal.
pub fn start_counts(control: &dyn Control, config: &Config) -> Result<(), Failure> {
    let Err(errno) = control.start(config, None) else {
        return Ok(());
    };
    let n = config.evms_size.0;
    let refused = match config.scope.name() {
        Some(scope) => format!("N={n} or {scope}"),
        None => format!("N={n}"),
    };
    Err(match errno.0 {
        // A kernel that knows less than we finds flags or fields that it does not know.
        libc::EINVAL | libc::E2BIG | libc::EBADF => Failure::usage(format!(
            "the kernel refused {refused}, or it is too old to count references: give the pid of a \
             process, not of a kernel thread, or boot the kernel that was built with this program"
        )),
        libc::ENOMEM => Failure::usage(format!(
            "there is no memory for N={n} now: use a smaller N, or end programs that take memory"
        )),
        _ => not_started(control, config, errno),
    })
}

/// Why a trace did not start.
fn not_started(control: &dyn Control, config: &Config, errno: Errno) -> Failure {
    let output = &config.output;
    let n = config.evms_size.0;
    let groups = match config.set_per {
        SetPer::Cgroup => "; --set-per cgroup needs a kernel with control groups",
        SetPer::All | SetPer::Process => "",
    };
    let filtered = match config.filter {
        Some(_) => "; --filter needs a kernel that knows filters",
        None => "",
    };
    let filtered = match config.counted {
        true => format!("{filtered}; --count needs a kernel that counts references"),
        false => filtered.to_owned(),
    };
    match (errno.0, &config.scope) {
        (libc::EBUSY, _) => match control.status() {
            Ok(status) if status.is_on() => already_on(&status),
            Ok(status) if status.state() == State::Ending || status.is_abandoned() => {
                Failure::usage(format!(
                    "the last trace, into {}, ends when that takes data again; a new trace can \
                     start then",
                    status.output()
                ))
            }
            Ok(status) if status.failure().is_some() => Failure::usage(format!(
                "the trace into {} failed ({}) and has not been ended; `activator off` ends it",
                status.output(),
                status.failure().unwrap_or_default()
            )),
            _ => Failure::usage("another trace has not ended yet; `activator off` ends it"),
        },
        (libc::ESRCH, Scope::Tree(pid)) => no_process(*pid),
        // A kernel that knows less than we finds a flag or a field that it does not know.
        (libc::EINVAL | libc::E2BIG, _) if config.sampling.is_some() => Failure::usage(
            "the kernel refused to sample regions: boot the kernel that was built with this program; if it \
             is running, leave out --buffers and --buffer-size, and check which processes are selected",
        ),
        (libc::EINVAL, Scope::Tree(pid)) => Failure::usage(format!(
            "the kernel refused N={n} or pid {pid}: give the pid of a process, not of a kernel \
             thread, and leave out --buffers and --buffer-size{groups}{filtered}"
        )),
        (libc::EINVAL, Scope::All) => Failure::usage(format!(
            "the kernel refused N={n} or the buffers: leave out --buffers and \
             --buffer-size{groups}{filtered}"
        )),
        (libc::EINVAL | libc::E2BIG, Scope::Group(_) | Scope::Comm(_)) => Failure::usage(format!(
            "the kernel refused N={n}, the buffers, or {}: leave out --buffers and --buffer-size, \
             or boot the kernel that was built with this program{groups}{filtered}",
            config.scope.name().unwrap_or_default()
        )),
        (libc::EBADF, Scope::Group(_)) => Failure::usage(format!(
            "the kernel does not take {}: it is not one of version 2",
            config.scope.name().unwrap_or_default()
        )),
        (libc::EOPNOTSUPP, Scope::Group(_)) if config.virtual_time.is_none() => {
            Failure::usage("this kernel has no control groups of version 2: leave out --cgroup")
        }
        (libc::ENOMEM, _) => Failure::usage(no_memory(control, config)),
        (libc::E2BIG, _) if config.filter.is_some() => Failure::usage(LONG_FILTER),
        (libc::ENODATA, _) => Failure::usage(
            "the trace ended while it began, because another process asked for its end, as \
             `activator off` does",
        ),
        (libc::EOPNOTSUPP, _)
            if config.set_per == SetPer::Cgroup && config.virtual_time.is_none() =>
        {
            Failure::usage(
                "this kernel has no control groups of version 2: use --set-per process, or leave \
                 out --set-per",
            )
        }
        (libc::EOPNOTSUPP, _) => Failure::usage(
            "this machine has no time stamp counter that is fit for virtual time: leave out \
             --virtual-time",
        ),
        (libc::ENOTTY, _) => Failure::usage(OTHER_VERSION),
        // An output may be without a device, too.
        (libc::ENODEV, _) if control.status().is_err_and(|e| e == errno) => {
            Failure::usage(PARAVIRTUALIZED)
        }
        (libc::ETIMEDOUT, _) => takes_nothing(output),
        _ => cant_write(output, errno).unwrap_or_else(|| refused("start the trace", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use rust_mm_trace::uapi::vmtrace_filter;
    use std::ffi::CStr;

    fn config(output: &str) -> Config {
        Config {
            output: output.into(),
            ..Config::example()
        }
    }

    #[test]
    fn memory_that_is_not_there() {
        let mut config = config("/t.vmt");
        config.nr_buffers = Some(65536);
        config.buffer_size = Some(1 << 20);
        let text = explain_memory(&config, 2, 800 << 20);
        assert!(text.ends_with(": --buffers 174 would fit"), "{text}");
        assert!(text.contains("the buffers need 256.0 GiB"), "{text}");
        config.evms_max = Some(Pages(4 << 20));
        let text = explain_memory(&config, 2, 800 << 20);
        assert!(text.ends_with("or --buffer-size"), "{text}");
        // One of several sets can't grow, unless --max is given.
        config.evms_max = None;
        for (set_per, want) in [
            (SetPer::All, "N up to 2048 352.0 KiB"),
            (SetPer::Process, "N up to 512 88.0 KiB"),
            (SetPer::Cgroup, "N up to 512 88.0 KiB"),
        ] {
            config.set_per = set_per;
            let text = explain_memory(&config, 2, 800 << 20);
            assert!(text.contains(want), "{text}");
        }
        // There is room: other programs had it when the kernel asked.
        (config.nr_buffers, config.evms_max) = (None, None);
        config.buffer_size = None;
        let text = explain_memory(&config, 2, 800 << 20);
        assert!(text.contains("at this moment: try again"), "{text}");
    }

    fn name_of(config: &Config) -> String {
        let raw = config.raw(7);
        let bytes: Vec<u8> = raw.output.iter().map(|c| *c as u8).collect();
        let name = CStr::from_bytes_until_nul(&bytes).expect("terminated");
        name.to_str().expect("whole characters").to_owned()
    }

    #[test]
    fn config_for_the_kernel() {
        let raw = config("/t.vmt").raw(7);
        assert_eq!((raw.size, raw.flags, raw.out_fd), (480, 0, 7));
        assert_eq!(raw.filter, 0);
        assert_eq!((raw.scope, raw.pid, raw.evms_size), (2, 42, 512));
        assert_eq!((raw.nr_buffers, raw.buffer_size), (0, 65536));
        assert_eq!(raw.classes, VMTRACE_CLASS_FILE | VMTRACE_CLASS_GUP);
        let all = Config {
            scope: Scope::All,
            ..config("")
        }
        .raw(7);
        assert_eq!((all.scope, all.pid), (1, 0));
        let timed = Config {
            virtual_time: Some(60),
            writing: Writing {
                stall_limit: Some(2000),
                ..Writing::default()
            },
            windows: Some(Windows {
                count: 3,
                time: 4,
                references: 5,
                warmup: 6,
                skip: 7,
                on_request: true,
            }),
            ..config("")
        }
        .raw(7);
        assert_eq!(
            (timed.flags, timed.vtime_skip),
            (VMTRACE_VTIME | VMTRACE_PAUSABLE, 60)
        );
        assert_eq!((raw.stall_ms, timed.stall_ms), (0, 2000));
        for (pack, flags) in [
            (Pack::No, 0),
            (Pack::Columns, VMTRACE_PACK),
            (Pack::Zstd, VMTRACE_PACK | VMTRACE_ZSTD),
        ] {
            let packed = Config {
                writing: Writing {
                    pack,
                    ..Writing::default()
                },
                ..config("")
            };
            assert_eq!(packed.raw(7).flags, flags);
            let offsets = Config {
                offsets: true,
                ..packed
            };
            assert_eq!(offsets.raw(7).flags, flags | VMTRACE_OFFSETS);
        }
        let flushed = |flush| {
            let writing = Writing {
                flush,
                ..Writing::default()
            };
            let taken = raw_take("", writing, 7);
            let begun = Config {
                writing,
                ..config("")
            };
            assert_eq!(taken.flush_ms, begun.raw(7).flush_ms);
            taken.flush_ms
        };
        assert_eq!(flushed(None), 0);
        assert_eq!(flushed(Some(250)), 250);
        assert_eq!(flushed(Some(0)), 0xffff);
        let in_pieces = Writing {
            in_pieces: true,
            ..Writing::default()
        };
        let pieces = Config {
            writing: in_pieces,
            ..config("")
        };
        assert_eq!(pieces.raw(7).flags, VMTRACE_PIECE);
        let pieces = raw_take("/p/00000.vmtrace", in_pieces, 7).flags;
        assert_eq!(pieces, VMTRACE_EARLY | VMTRACE_PIECE);
        let next = raw_rotate("/p/00001.vmtrace", 9);
        assert_eq!((next.size, next.out_fd), (264, 9));
        assert_eq!((next.output[1], next.output[16]), (b'p' as libc::c_char, 0));
        let discards = Config {
            mode: Mode::Discard,
            ..config("")
        };
        assert_eq!((raw.mode, discards.raw(7).mode), (0, 1));
        let batches = Config {
            batch: Some(8),
            ..config("")
        };
        assert_eq!((raw.batch, batches.raw(7).batch), (0, 8));
        let sets = |set_per| {
            let config = Config {
                set_per,
                ..config("")
            };
            config.raw(7).sets
        };
        assert_eq!(sets(SetPer::All), VMTRACE_SETS_ONE);
        assert_eq!(sets(SetPer::Process), VMTRACE_SETS_PROCESS);
        assert_eq!(sets(SetPer::Cgroup), VMTRACE_SETS_CGROUP);
        // The kernel command line has decided this.
        assert_eq!(raw_take("/t.vmt", Writing::default(), 7).sets, 0);
        assert_eq!(
            raw_take("/t.vmt", Writing::default(), 7).flags,
            VMTRACE_EARLY
        );
        let packed = Writing {
            pack: Pack::Columns,
            ..Writing::default()
        };
        let packed = raw_take("/t.vmt", packed, 7).flags;
        assert_eq!(packed, VMTRACE_EARLY | VMTRACE_PACK);
        assert_eq!((timed.windows, timed.window_time), (3, 4));
        assert_eq!((timed.window_refs, timed.warmup, timed.skip), (5, 6, 7));
        assert_eq!(name_of(&config("/t.vmt")), "/t.vmt");
    }

    #[test]
    fn counts_for_the_kernel() {
        let counted = Config {
            counted: true,
            ..config("/t.vmt")
        };
        let raw = counted.raw(7);
        assert_eq!((raw.flags, raw.out_fd), (VMTRACE_COUNTED, 7));
        let unwritten = Config {
            unwritten: true,
            filter: Filter::nothing().ok(),
            classes: vec![Class::None],
            ..counted
        };
        let (flags, has_filter, classes) =
            unwritten.with_raw(-1, |raw| (raw.flags, raw.filter != 0, raw.classes));
        let all = VMTRACE_COUNTED | VMTRACE_UNWRITTEN | VMTRACE_FILTERED;
        assert_eq!((flags, has_filter, classes), (all, true, 0));
    }

    #[test]
    fn refusals_of_counts() {
        let out = File::open("/dev/null").expect("null");
        let counted = Config {
            counted: true,
            ..config("/t.vmt")
        };
        let unwritten = Config {
            unwritten: true,
            ..counted.clone()
        };
        for (errno, want) in [
            (libc::EINVAL, "too old to count references"),
            (libc::E2BIG, "too old to count references"),
            (
                libc::ENOMEM,
                "there is no memory for N=512 now: use a smaller N",
            ),
            (libc::EPERM, "run this as root"),
            (libc::ESRCH, "there is no process 42"),
            (libc::ENOTTY, "use the tools that were built with"),
        ] {
            let fake = Fake::default();
            fake.refuse_start(errno);
            let failure = start_counts(&fake, &unwritten).expect_err("refused");
            assert!(failure.message.contains(want), "{failure}");
        }
        let fake = Fake::default();
        fake.refuse_start(libc::EINVAL);
        let told = |config| {
            let failure = start(&fake, config, std::os::fd::AsFd::as_fd(&out));
            failure.expect_err("refused").message
        };
        let needs = "; --count needs a kernel that counts references";
        assert!(told(&counted).ends_with(needs));
        assert!(!told(&config("/t.vmt")).contains("--count"));
    }

    #[test]
    fn filters_for_the_kernel() {
        let given = |filter: Option<&str>| {
            let filter = filter.map(|text| Filter::parse(text).expect("a filter"));
            let config = Config {
                filter,
                ..config("/t.vmt")
            };
            config.with_raw(7, |raw| (raw.flags, raw.filter != 0, raw.size))
        };
        assert_eq!(given(None), (0, false, 480));
        // All references for now.
        assert_eq!(given(Some("")), (VMTRACE_FILTERED, false, 480));
        assert_eq!(given(Some("cpu == 1")), (VMTRACE_FILTERED, true, 480));
        // What the kernel finds at the addresses.
        let config = Config {
            filter: Some(Filter::parse("comm == \"a\"").expect("a filter")),
            ..config("/t.vmt")
        };
        let texts = config.with_raw(7, |raw| {
            // SAFETY: The address is that of such a structure while this is called.
            let filter = unsafe { &*(raw.filter as *const vmtrace_filter) };
            assert_eq!((filter.size, filter.nr_tests, filter.expr_len), (32, 1, 11));
            // SAFETY: As above: there are that many bytes.
            let texts = unsafe {
                std::slice::from_raw_parts(filter.texts as *const u8, filter.texts_len as usize)
            };
            texts.to_vec()
        });
        assert_eq!(texts, b"comm == \"a\"a\0");
        let early = raw_take("/t.vmt", Writing::default(), 7);
        assert_eq!((early.flags, early.filter), (VMTRACE_EARLY, 0));
    }

    #[test]
    fn refusals_of_filters() {
        let out = File::open("/dev/null").expect("null");
        for (errno, want) in [
            (libc::EINVAL, "; --filter needs a kernel that knows filters"),
            (libc::E2BIG, "too long for this kernel"),
        ] {
            let fake = Fake::default();
            fake.refuse_start(errno);
            let told = |filter| {
                let config = Config {
                    filter,
                    ..config("/t.vmt")
                };
                let failure = start(&fake, &config, std::os::fd::AsFd::as_fd(&out));
                failure.expect_err("refused").message
            };
            assert!(told(Some(Filter::All)).contains(want), "{errno}");
            assert!(!told(None).contains(want), "{errno}");
        }
    }

    #[test]
    fn long_name_keeps_its_end() {
        let long = format!("/{}/end.vmt", "é".repeat(200));
        let kept = name_of(&config(&long));
        assert!(kept.len() <= 255 && kept.len() > 250, "{}", kept.len());
        assert!(kept.ends_with("/end.vmt") && long.ends_with(&kept));
    }

    fn sizes(n: u32) -> Sizes {
        Sizes {
            n: Pages(n),
            first: None,
            max: None,
            batch: None,
            memory_per_page: None,
            policy: Policy::Fifo,
        }
    }

    #[test]
    fn batches() {
        let check = |n, first, k, policy| {
            let asked = Sizes {
                first,
                batch: Some(k),
                policy,
                ..sizes(n)
            };
            check_ready(&Fake::default(), &asked).map_err(|e| e.message)
        };
        let fifo = |n, k| check(n, None, k, Policy::Fifo);
        assert_eq!(
            (fifo(32, 1), fifo(64, 33), fifo(512, 64)),
            (Ok(()), Ok(()), Ok(()))
        );
        assert_eq!(
            fifo(64, 34).expect_err("too large"),
            "--batch 34 is too large for N=64: the set must keep at least 32 pages; use --batch \
             33 or less, or -n 65 or more"
        );
        assert!(fifo(32, 2).is_err());
        // A larger first segment leaves less.
        assert_eq!(check(64, Some(Pages(24)), 17, Policy::Fifo), Ok(()));
        assert!(check(64, Some(Pages(24)), 18, Policy::Fifo).is_err());
        assert_eq!(check(512, None, 1, Policy::Clock), Ok(()));
        assert_eq!(
            check(512, None, 2, Policy::Clock).expect_err("refused"),
            "--batch 2 is not possible with --policy clock, which evicts one page at a time: \
             leave out one of the two"
        );
    }

    #[test]
    fn minimum_of_n() {
        let fake = Fake::default();
        let message = |n| {
            check_ready(&fake, &sizes(n))
                .expect_err("too small")
                .message
        };
        assert_eq!(
            message(4),
            "N=4 is too small: this machine needs at least 32; use -n 32 or more"
        );
        message(31);
        assert_eq!(check_ready(&fake, &sizes(32)), Ok(()));
        fake.change(|s| (s.nr_cpus, s.evms_min) = (1, 16));
        assert_eq!(
            message(4),
            "N=4 is too small: this machine needs at least 16; use -n 16 or more"
        );
        // However many CPUs there are, two first segments are enough.
        fake.change(|s| (s.nr_cpus, s.evms_min) = (1024, 32));
        for (n, first, want) in [(63, 32, Some("at least 64")), (64, 32, None)] {
            let asked = Sizes {
                first: Some(Pages(first)),
                ..sizes(n)
            };
            let got = check_ready(&fake, &asked);
            assert_eq!(got.is_err(), want.is_some(), "N={n}");
            if let (Err(e), Some(want)) = (got, want) {
                assert!(e.message.contains(want), "{}", e.message);
            }
        }
    }

    #[test]
    fn other_version() {
        let fake = Fake::default();
        for (size, fits) in [
            (300, false),
            (VMTRACE_STATUS_SIZE_VER0 - 8, false),
            (VMTRACE_STATUS_SIZE_VER0, true),
            // What a later kernel has more, and does not give to this program.
            (size_of::<vmtrace_status>() as u32 + 64, true),
        ] {
            fake.change(|s| s.size = size);
            let found = status(&fake).map(drop);
            assert_eq!(found.is_ok(), fits, "{size}");
            assert!(fits || found == Err(Failure::usage(OTHER_VERSION)));
        }
        for errno in [libc::ENOTTY, libc::EINVAL] {
            assert_eq!(refused("x", Errno(errno)), Failure::usage(OTHER_VERSION));
        }
    }

    #[test]
    fn refusals_of_start() {
        let out = File::open("/dev/null").expect("null");
        for (errno, want) in [
            (
                libc::EBUSY,
                "another trace has not ended yet; `activator off` ends it",
            ),
            (libc::ESRCH, "there is no process 42"),
            (libc::EINVAL, "not of a kernel thread"),
            (libc::EBADF, "give -o a regular file or a block device"),
            (libc::EROFS, "/t.vmt is read-only"),
            (libc::ENOSPC, "no room for /t.vmt"),
            (libc::ENOMEM, "of this machine's memory now"),
            (libc::ENODATA, "the trace ended while it began"),
            (libc::ETIMEDOUT, "/t.vmt takes no data"),
            (
                libc::ENOTTY,
                "use the tools that were built with the kernel",
            ),
            (libc::EPERM, "run this as root"),
            (
                libc::EIO,
                "the kernel could not start the trace: Input/output error",
            ),
        ] {
            let fake = Fake::default();
            fake.refuse_start(errno);
            let failure = start(&fake, &config("/t.vmt"), std::os::fd::AsFd::as_fd(&out))
                .expect_err("refused");
            assert!(failure.message.contains(want), "{errno}: {failure}");
            let code = if errno == libc::ETIMEDOUT { 1 } else { 2 };
            assert_eq!(failure.code, code);
        }
    }

    #[test]
    fn a_machine_that_cannot_be_traced() {
        let out = File::open("/dev/null").expect("null");
        let fake = Fake::default();
        fake.refuse_start(libc::ENODEV);
        let begin = || {
            start(&fake, &config("/t.vmt"), std::os::fd::AsFd::as_fd(&out)).expect_err("refused")
        };
        // Of the output.
        assert!(!begin().message.contains("Xen"));
        fake.is_unfit.set(true);
        assert!(begin().message.contains("a paravirtualized guest of Xen"));
        let failure = status(&fake).map(drop).expect_err("refused");
        assert_eq!(failure, begin());
    }

    #[test]
    fn refusals_of_sets() {
        let out = File::open("/dev/null").expect("null");
        let told = |set_per, errno, virtual_time| {
            let fake = Fake::default();
            fake.refuse_start(errno);
            let config = Config {
                set_per,
                virtual_time,
                ..config("/t.vmt")
            };
            start(&fake, &config, std::os::fd::AsFd::as_fd(&out))
                .expect_err("refused")
                .message
        };
        let groups = "needs a kernel with control groups";
        assert!(told(SetPer::Cgroup, libc::EINVAL, None).ends_with(groups));
        for set_per in [SetPer::All, SetPer::Process] {
            assert!(!told(set_per, libc::EINVAL, None).contains("control groups"));
            assert!(told(set_per, libc::EOPNOTSUPP, Some(1)).contains("--virtual-time"));
        }
        let text = told(SetPer::Cgroup, libc::EOPNOTSUPP, None);
        assert!(text.contains("use --set-per process"), "{text}");
    }

    #[test]
    fn failed_trace_that_was_not_ended() {
        let out = File::open("/dev/null").expect("null");
        let fake = Fake::default();
        fake.refuse_start(libc::EBUSY);
        fake.change(|s| {
            (s.state, s.error) = (2, libc::ENOSPC);
            s.output[0] = b't' as libc::c_char;
        });
        assert_eq!(
            start(&fake, &config("/u.vmt"), std::os::fd::AsFd::as_fd(&out)),
            Err(Failure::usage(
                "the trace into t failed (No space left on device) and has not been ended; \
                 `activator off` ends it"
            ))
        );
    }

    #[test]
    fn missing_device() {
        assert_eq!(
            no_device("/dev/vmtrace", None),
            "/dev/vmtrace does not exist: this kernel has no CONFIG_VMTRACE; boot the patched \
             kernel (`make shell` in kVMTrace's source tree boots it in QEMU)"
        );
        assert!(no_device("/dev/vmtrace", Some(61)).contains("mknod -m 600 /dev/vmtrace c 10 61"));
    }

    #[test]
    fn pids() {
        let proc = tempfile::tempdir().expect("tempdir");
        let add = |pid: &str, status: &str| {
            fs::create_dir(proc.path().join(pid)).expect("mkdir");
            fs::write(proc.path().join(pid).join("status"), status).expect("write");
        };
        let check = |pid| check_pid_in(proc.path(), pid).map_err(|f| f.message);
        assert_eq!(check(1), Ok(()), "without /proc the kernel decides");
        fs::create_dir(proc.path().join("self")).expect("mkdir");
        add(
            "10",
            "Name:\tsh\nState:\tS (sleeping)\nTgid:\t10\nKthread:\t0\n",
        );
        add(
            "2",
            "Name:\tkthreadd\nState:\tS (sleeping)\nTgid:\t2\nKthread:\t1\n",
        );
        add(
            "11",
            "Name:\tdb\nState:\tS (sleeping)\nTgid:\t10\nKthread:\t0\n",
        );
        add(
            "12",
            "Name:\tcc\nState:\tZ (zombie)\nTgid:\t12\nKthread:\t0\n",
        );
        assert_eq!(check(10), Ok(()));
        let refused = |pid| check(pid).expect_err("refused");
        assert_eq!(
            refused(1),
            "there is no process 1; `ps -e` lists the processes"
        );
        assert_eq!(
            refused(2),
            "pid 2 (kthreadd) is a kernel thread: it has no memory of its own to trace"
        );
        assert_eq!(
            refused(11),
            "11 is a thread of process 10 (db): use --pid 10"
        );
        assert_eq!(refused(12), "process 12 (cc) has ended and is a zombie");
    }
}
