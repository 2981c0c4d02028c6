//! `gfs2-extents make DIR`, or `in DIR [THREADS]`: a file on gfs2 of many extents, and a small one;
//! and their extents, into buffers of many pages, by FS_IOC_FIEMAP. A line for each call: the
//! extents, the sum of all their fields, the flags of the last one. THREADS others touch cold
//! pages meanwhile. Buffers are at 0x1000_0000_0000.
use kvmtrace_guest::{PAGE, check, map_at, write};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

const BASE: usize = 0x1000_0000_0000;
/// Where the threads have their pages.
const COLD: usize = 0x0800_0000_0000;
const COLD_PAGES: usize = 500;

/// include/uapi/linux/fs.h, include/uapi/linux/fiemap.h
const FS_IOC_FIEMAP: u64 = 0xc020_660b;
const SYNC: u32 = 1;
const XATTR: u32 = 2;
const LAST: u32 = 1;

/// Extents of the large file: each second block is a hole.
const EXTENTS: u32 = 12_000;
const STRIDE: u64 = 2 * PAGE as u64;

#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    max: u32,
    unused: u32,
}

/// Its words: logical and physical offset, length, two unused, flags and one unused, one unused.
type Extent = [u64; 7];

/// For at most `max` extents of the whole file.
fn whole(max: u32) -> Head {
    Head {
        start: 0,
        len: u64::MAX,
        flags: 0,
        mapped: 0,
        max,
        unused: 0,
    }
}

/// A buffer that does not begin with a page.
struct Buffer {
    at: *mut u8,
    extents: u32,
}

impl Buffer {
    /// The `i`th one, with pages for no more than these extents.
    fn new(i: usize, extents: u32) -> Result<Self> {
        let bytes = PAGE / 2 + size_of::<Head>() + extents as usize * size_of::<Extent>();
        let at = map_at(BASE * (1 + i), bytes.div_ceil(PAGE))?;
        Ok(Buffer {
            at: at.wrapping_add(PAGE / 2),
            extents,
        })
    }

    /// Extents that fit into its pages, which this one touches.
    fn touched(i: usize, pages: usize) -> Result<Self> {
        let at = map_at(BASE * (1 + i), pages)?;
        (0..pages).for_each(|page| write(at, page, 1));
        let bytes = pages * PAGE - PAGE / 2 - size_of::<Head>();
        Ok(Buffer {
            at: at.wrapping_add(PAGE / 2),
            extents: (bytes / size_of::<Extent>()) as u32,
        })
    }

    /// The system's answer, and what the kernel leaves.
    fn call(&self, file: &File, head: Head) -> (Result<i32>, Head) {
        // SAFETY: The head is inside the mapping, which the kernel knows the bounds of.
        unsafe {
            self.at.cast::<Head>().write_unaligned(head);
            let ret = check(libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, self.at));
            (ret, self.at.cast::<Head>().read_unaligned())
        }
    }

    fn extent(&self, i: u32) -> Extent {
        let at = size_of::<Head>() + i as usize * size_of::<Extent>();
        // SAFETY: The callers ask for extents that fit.
        unsafe { self.at.add(at).cast::<Extent>().read_unaligned() }
    }

    /// Calls, and says what it gave.
    fn show(&self, file: &File, name: &str, head: Head) -> Result<()> {
        let (ret, head) = self.call(file, head);
        let n = head.mapped.min(self.extents).min(head.max);
        let mut sum = 0xcbf2_9ce4_8422_2325u64;
        let mut end = (0, 0);
        for i in 0..n {
            let extent = self.extent(i);
            for word in extent {
                sum = (sum ^ word).wrapping_mul(0x100_0000_01b3);
            }
            if extent[0] < end.0 {
                return Err(Error::other(format!("{name}: extent {i}: {extent:?}")));
            }
            let flags = extent[5] as u32;
            if flags & LAST != 0 && i + 1 != n {
                return Err(Error::other(format!("{name}: {i} of {n} is the last")));
            }
            end = (extent[0] + extent[2], flags);
        }
        let ret = ret.map_err(|e| e.raw_os_error());
        println!(
            "{name}: {ret:?}, {} extents up to {}, flags {:x}, sum {sum:x}",
            head.mapped, end.0, end.1
        );
        Ok(())
    }
}

fn make(dir: &str) -> Result<()> {
    let file = File::create(format!("{dir}/large"))?;
    for i in 0..EXTENTS {
        file.write_all_at(&[i as u8; PAGE], u64::from(i) * STRIDE)?;
    }
    file.sync_all()?;
    std::fs::write(format!("{dir}/small"), "small")
}

fn ask(dir: &str) -> Result<()> {
    let file = File::open(format!("{dir}/large"))?;
    Buffer::new(0, EXTENTS)?.show(&file, "all", whole(EXTENTS))?;
    Buffer::new(1, 20_000)?.show(&file, "all into more", whole(20_000))?;
    let again = Buffer::new(2, EXTENTS)?;
    for name in ["first", "again"] {
        let head = Head {
            flags: SYNC,
            ..whole(EXTENTS)
        };
        again.show(&file, name, head)?;
    }
    // Into a part of the buffer, of a part of the file, from a hole and from an extent.
    again.show(&file, "at most 5000", whole(5000))?;
    let at = 1000 * STRIDE;
    for (name, start, len) in [
        ("from an extent", at + 100, 5000 * STRIDE),
        ("from a hole", at + 4096 + 100, 5000 * STRIDE + 123),
        ("to an extent's end", at, 5000 * STRIDE + 4096),
        ("to an extent's first byte", at, 5000 * STRIDE + 1),
        ("up to the end", at, u64::MAX - at),
        ("a hole", at + 4096, 4096),
        ("a byte", at, 1),
        ("behind the end", u64::from(EXTENTS) * STRIDE + 1, u64::MAX),
    ] {
        let head = Head {
            start,
            len,
            ..whole(EXTENTS)
        };
        again.show(&file, name, head)?;
    }
    again.show(&file, "none, only counted", whole(0))?;
    // Calls that fail at once.
    for (name, head) in [
        ("no length", Head { len: 0, ..whole(9) }),
        (
            "too far",
            Head {
                start: u64::MAX,
                ..whole(9)
            },
        ),
        (
            "attributes",
            Head {
                flags: XATTR,
                ..whole(9)
            },
        ),
        ("too many", whole(u32::MAX)),
    ] {
        again.show(&file, name, head)?;
    }
    // Pages behind the buffer's are not mapped, and are needed or not.
    let short = Buffer::touched(3, 100)?;
    short.show(&file, "too short", whole(EXTENTS))?;
    let part = Head {
        len: 5000 * STRIDE,
        ..whole(EXTENTS)
    };
    short.show(&file, "too short, not needed", part)?;
    let fresh = Buffer::new(4, 100)?.call(&file, whole(EXTENTS)).0;
    println!("too short, new: {:?}", fresh.map_err(|e| e.raw_os_error()));
    // A page within the buffer can't be written to.
    let at = (BASE * 4 + 50 * PAGE) as *mut libc::c_void;
    // SAFETY: A page of the buffer.
    check(unsafe { libc::mprotect(at, PAGE, libc::PROT_READ) })?;
    short.show(&file, "protected", whole(short.extents))?;
    let small = File::open(format!("{dir}/small"))?;
    Buffer::new(5, 10_000)?.show(&small, "small", whole(10_000))
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let (what, dir) = (args.next(), args.next());
    let threads = args.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    match (what.as_deref(), dir) {
        (Some("make"), Some(dir)) => make(&dir),
        (Some("in"), Some(dir)) => {
            let stop = AtomicBool::new(false);
            std::thread::scope(|s| {
                for i in 0..threads {
                    let at = map_at(COLD + i * COLD_PAGES * PAGE, COLD_PAGES)? as usize;
                    let stop = &stop;
                    s.spawn(move || {
                        for page in (0..COLD_PAGES).cycle() {
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            write(at as *mut u8, page, 1);
                        }
                    });
                }
                let done = ask(&dir);
                stop.store(true, Ordering::Relaxed);
                done
            })
        }
        _ => Err(Error::other("make DIR or in DIR [THREADS]")),
    }
}
