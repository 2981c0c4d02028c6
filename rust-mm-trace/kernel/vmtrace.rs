// SPDX-License-Identifier: GPL-2.0

//! Virtual memory reference tracing: /dev/vmtrace.
//!
//! Documentation/mm/vmtrace.rst says how it works. The files, from the inside out:
//!
//! - Pure logic: `tickets` (the set), `stay`, `ring` (sub-buffers), `record` (layouts), `pte` (the
//!   bits of page table entries), `stall` (time without progress), `patience` (which tasks wait),
//!   `pack`, `pack_refs`, `unpack_refs` and `pack_events` (packed packets), `census` (what packets have), `back` (parts of the
//!   output), `holes` (what fallocate() ends), `regions` (of memory that is sampled).
//! - `queue` has the kernel's wait queues, `tables` locks and entries of page tables, `machine`
//!   memory and CPUs.
//! - `hot` has the references of the present trace, and `scopes` its sets.
//! - `admit` is what page faults call, `stores` what the primitives of page tables call, `members`
//!   what ends many stays, `events` what hooks log, and `files` what files.c asks `holes`.
//! - `policy` is the table of what observes pages: the set, `interval` and `sampling`.
//! - `throttle` lets tasks wait for room. `drain` writes what was logged, packed by `packer`, to a
//!   `sink`. `pieces` has the present piece of the trace, and `rotate` begins the next one.
//!   `progress` and `changes` are for those who wait for that.
//! - `window` and `session` start and stop a trace, and `recall` calls the thread of `window` back.
//! - `audit` compares page tables and set.
//!
//! C finds page tables, and goes through them (pte.c, attach.c, audit.c, sample.c).

use kernel::{
    bindings,
    fs::{File, Kiocb},
    ioctl::{_IOC_SIZE, _IOR, _IOW, _IOWR},
    iov::IovIterSource,
    miscdevice::{MiscDevice, MiscDeviceOptions, MiscDeviceRegistration},
    prelude::*,
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice},
    uapi,
};

// The pure modules are also compiled for user space, where all is reached; what
// is exported is reached from C.
#[allow(unreachable_pub)]
mod admit;
#[allow(unreachable_pub)]
mod audit;
#[allow(unreachable_pub)]
mod back;
#[allow(unreachable_pub)]
mod census;
mod changes;
#[allow(unreachable_pub)]
mod counts;
#[allow(unreachable_pub)]
mod drain;
#[allow(unreachable_pub)]
mod events;
#[allow(unreachable_pub)]
mod files;
#[allow(unreachable_pub)]
mod filter;
#[allow(unreachable_pub)]
mod holes;
#[allow(unreachable_pub)]
mod hot;
mod interval;
#[allow(unreachable_pub)]
mod judge;
#[cfg(CONFIG_VMTRACE_KUNIT_TEST)]
mod kunit;
mod machine;
mod members;
#[allow(unreachable_pub)]
mod pack;
#[allow(unreachable_pub)]
#[cfg_attr(not(CONFIG_VMTRACE_KUNIT_TEST), allow(dead_code))] // Only tests unpack.
mod pack_events;
#[cfg(CONFIG_VMTRACE_KUNIT_TEST)]
mod pack_kunit;
#[allow(unreachable_pub)]
mod pack_refs;
mod packer;
#[allow(unreachable_pub)]
mod patience;
mod permission;
mod pieces;
mod policy;
mod progress;
mod pte;
mod queue;
#[allow(unreachable_pub)]
mod recall;
#[allow(unreachable_pub)]
mod record;
#[allow(unreachable_pub)]
mod regions;
#[cfg(CONFIG_VMTRACE_KUNIT_TEST)]
mod regions_kunit;
mod request;
#[allow(unreachable_pub)]
mod ring;
mod rings;
mod roots;
mod rotate;
#[allow(unreachable_pub)]
mod sampling;
#[allow(unreachable_pub)]
mod scopes;
#[allow(unreachable_pub)]
mod session;
mod sink;
#[allow(unreachable_pub)]
mod stall;
#[allow(unreachable_pub)]
#[cfg_attr(not(CONFIG_VMTRACE_KUNIT_TEST), allow(dead_code))] // Only tests have an empty slot.
mod stay;
#[allow(unreachable_pub)]
mod stores;
mod tables;
#[allow(unreachable_pub)]
mod tally;
#[allow(unreachable_pub)]
mod throttle;
#[allow(unreachable_pub, dead_code)]
mod tickets;
#[cfg(CONFIG_VMTRACE_KUNIT_TEST)]
#[allow(unreachable_pub)]
mod unpack_refs;
#[allow(unreachable_pub)]
mod window;
mod zstd;

/// Memory that is allocated once, when a trace starts.
pub(crate) type Store<T> = KVVec<T>;

const MAGIC: u32 = bindings::VMTRACE_IOC_MAGIC;
const START: u32 = _IOW::<()>(MAGIC, 1);
const STOP: u32 = _IOR::<()>(MAGIC, 2);
const STATUS: u32 = _IOR::<()>(MAGIC, 3);
const RESIZE: u32 = _IOW::<u32>(MAGIC, 4);
const WINDOW: u32 = _IOW::<u32>(MAGIC, 5);
const ROTATE: u32 = _IOW::<()>(MAGIC, 6);
const FILTER: u32 = _IOW::<()>(MAGIC, 7);
const COUNTS: u32 = _IOWR::<()>(MAGIC, 8);
const RINGS: u32 = _IOWR::<()>(MAGIC, 9);

module! {
    type: Vmtrace,
    name: "vmtrace",
    authors: ["kVMTrace developers"],
    description: "Virtual memory reference tracing",
    license: "GPL",
}

#[pin_data]
struct Vmtrace {
    #[pin]
    _device: MiscDeviceRegistration<Device>,
}

impl kernel::InPlaceModule for Vmtrace {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        // SAFETY: Called once, before the device exists.
        let ready = unsafe { session::init() };
        let options = MiscDeviceOptions { name: c"vmtrace" };
        try_pin_init!(Self {
            _: { ready? },
            _device <- MiscDeviceRegistration::register(options),
        })
    }
}

/// What can be written to the device, and whether that begins a window.
const WORDS: [(&[u8], bool); 2] = [(b"resume", true), (b"pause", false)];

/// Reads the argument of an ioctl.
fn word(at: UserPtr) -> Result<u32> {
    UserSlice::new(at, core::mem::size_of::<u32>())
        .reader()
        .read()
}

/// Reads a structure of which user space has `size` bytes. It begins with its size. The first version
/// had `least` bytes. What user space does not know is 0, and what the kernel does not know must be.
fn read_struct<T: FromBytes>(at: UserPtr, size: usize, least: u32) -> Result<T> {
    if size < least as usize {
        return Err(EINVAL);
    }
    let known = core::mem::size_of::<T>();
    let mut bytes = KVec::from_elem(0u8, size.max(known), GFP_KERNEL)?;
    let given = bytes.get_mut(..size).ok_or(EINVAL)?;
    UserSlice::new(at, size).reader().read_slice(given)?;
    let says = given.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b));
    if says != u32::try_from(size).ok() {
        return Err(EINVAL);
    }
    let (config, more) = bytes.split_at_checked(known).ok_or(EINVAL)?;
    if more.iter().any(|b| *b != 0) {
        return Err(E2BIG);
    }
    T::from_bytes_copy(config).ok_or(EINVAL)
}

/// Writes what user space knows of a structure of which it has `size` bytes.
fn write<T: AsBytes>(at: UserPtr, size: usize, what: &T) -> Result {
    let bytes = what.as_bytes();
    let size = size.min(bytes.len());
    let bytes = bytes.get(..size).ok_or(EINVAL)?;
    UserSlice::new(at, size).writer().write_slice(bytes)
}

/// An open /dev/vmtrace: nothing is kept per file, so that a trace goes on
/// whatever becomes of who started it.
struct Device;

#[vtable]
impl MiscDevice for Device {
    type Ptr = KBox<Device>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<KBox<Device>> {
        Ok(KBox::new(Device, GFP_KERNEL)?)
    }

    /// One of [`WORDS`], with or without the end of a line.
    fn write_iter(_kiocb: Kiocb<'_, KBox<Device>>, iov: &mut IovIterSource<'_>) -> Result<usize> {
        let mut text = [0u8; 16];
        if iov.len() > text.len() {
            return Err(EINVAL);
        }
        let len = iov.copy_from_iter(&mut text);
        if !iov.is_empty() {
            return Err(EFAULT);
        }
        let text = text.get(..len).unwrap_or_default().trim_ascii_end();
        let known = WORDS.iter().find(|(word, _)| *word == text);
        request::request(known.ok_or(EINVAL)?.1)?;
        Ok(len)
    }

    fn ioctl(_me: &Device, _file: &File, cmd: u32, arg: usize) -> Result<isize> {
        let arg = UserPtr::from_addr(arg);
        let size = _IOC_SIZE(cmd);
        // The size of a structure says which version user space has.
        match cmd & !(uapi::_IOC_SIZEMASK << uapi::_IOC_SIZESHIFT) {
            START => {
                let config = read_struct(arg, size, bindings::VMTRACE_CONFIG_SIZE_VER0)?;
                // SAFETY: ioctls are not called under `fdget_pos()`.
                unsafe { session::start(&config) }?;
                return Ok(0);
            }
            STOP => {
                let status = session::stop()?;
                write(arg, size, &status)?;
                return Ok(0);
            }
            STATUS => {
                let status = session::status()?;
                write(arg, size, &status)?;
                return Ok(0);
            }
            ROTATE => {
                let rotate = read_struct(arg, size, bindings::VMTRACE_ROTATE_SIZE_VER0)?;
                // SAFETY: ioctls are not called under `fdget_pos()`.
                unsafe { session::rotate(&rotate) }?;
                return Ok(0);
            }
            FILTER => {
                let filter = read_struct(arg, size, bindings::VMTRACE_FILTER_SIZE_VER0)?;
                session::filter(&filter)?;
                return Ok(0);
            }
            COUNTS => {
                let counts = read_struct(arg, size, bindings::VMTRACE_COUNTS_SIZE_VER0)?;
                write(arg, size, &session::counts(counts)?)?;
                return Ok(0);
            }
            RINGS => {
                let rings = read_struct(arg, size, bindings::VMTRACE_RINGS_SIZE_VER0)?;
                write(arg, size, &session::ring_figures(rings)?)?;
                return Ok(0);
            }
            _ => {}
        }
        match cmd {
            RESIZE => {
                session::resize(word(arg)?)?;
            }
            WINDOW => match word(arg)? {
                begin @ (0 | 1) => request::request(begin == 1)?,
                _ => return Err(EINVAL),
            },
            _ => return Err(ENOTTY),
        }
        Ok(0)
    }
}
