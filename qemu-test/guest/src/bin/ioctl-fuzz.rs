//! `ioctl-fuzz COUNT SEED [nobody]`: gives /dev/vmtrace COUNT requests: configurations of
//! which some fields are changed, sizes for RESIZE, windows, files for next pieces, filters,
//! counts, rings, STOP, STATUS, and requests that there are not. With `nobody` the descriptor is
//! root's, and the caller has no rights any more.
//! Prints how many succeeded. The last request is STOP.
//! `ioctl-fuzz memory`: the KiB of memory that are available.
//! `ioctl-fuzz time status|stop|start FILE PID`: gives one request, and prints its name, the
//! error or 0, the ms that it took, and how many waits of an eighth of a second another thread
//! had meanwhile. On a busy host, each wait of the guest is longer than it should be.
use kvmtrace_guest::{arg, check, counter, set};
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::{
    VMTRACE_COUNTED, VMTRACE_FILTERED, VMTRACE_PAUSABLE, VMTRACE_PIECE, VMTRACE_UNWRITTEN,
    vmtrace_config, vmtrace_count, vmtrace_counts, vmtrace_filter, vmtrace_filter_test,
    vmtrace_ring, vmtrace_rings, vmtrace_rotate, vmtrace_status,
};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }

    /// A value that code may stumble over.
    fn odd(&mut self) -> u64 {
        let edge = 1u64.wrapping_shl(self.below(64) as u32);
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            2 => edge,
            3 => edge.wrapping_sub(1),
            4 => edge.wrapping_neg(),
            5 => self.below(16),
            6 => u64::from(u32::MAX),
            _ => self.next(),
        }
    }
}

/// One that the kernel takes, and that needs little time and memory.
fn good(out: &File) -> vmtrace_config {
    vmtrace_config {
        size: size_of::<vmtrace_config>() as u32,
        out_fd: out.as_raw_fd(),
        scope: 2,
        pid: 1,
        evms_size: 64,
        nr_buffers: 4,
        buffer_size: 4096,
        stall_ms: 10_000,
        ..Default::default()
    }
}

/// Changes some of its fields, seen as numbers of 32 bits or 64 bits.
fn mutate(c: &mut vmtrace_config, random: &mut Random) {
    const WORDS: usize = (size_of::<vmtrace_config>() - 256) / 4;
    for _ in 0..random.below(4) {
        let at = random.below(WORDS as u64) as usize;
        let value = random.odd();
        // SAFETY: Within the structure, which has numbers only.
        unsafe {
            let word = std::ptr::from_mut(c).cast::<u32>().add(at);
            word.write_unaligned(value as u32);
            if at + 1 < WORDS && random.below(2) == 0 {
                word.add(1).write_unaligned((value >> 32) as u32);
            }
        }
    }
    // Few others are in pieces, or have windows on request.
    match random.below(8) {
        0..3 => c.flags |= VMTRACE_PIECE,
        3 => c.flags |= VMTRACE_PAUSABLE,
        _ => {}
    }
    // Most other batches are too large for the set.
    if random.below(2) == 0 {
        c.batch = random.below(34) as u32;
    }
    // Much memory takes much time, and has a test of its own.
    if u64::from(c.nr_buffers) * u64::from(c.buffer_size) > 8 << 20 && random.below(64) > 0 {
        c.nr_buffers = 4;
    }
    if c.evms_max > 1 << 16 && random.below(64) > 0 {
        c.evms_max = 0;
    }
    if c.evms_size > 1 << 14 && random.below(64) > 0 {
        c.evms_size = 64;
    }
}

/// A filter, and what it points to.
struct Filter {
    tests: Vec<vmtrace_filter_test>,
    texts: Vec<u8>,
    raw: vmtrace_filter,
}

impl Filter {
    /// One that may be good.
    fn new(random: &mut Random) -> Box<Filter> {
        let expr = random.below(3) as usize * 4;
        let mut texts = b"pid == 0"[..expr].to_vec();
        let many = if expr == 0 { 0 } else { random.below(12) };
        let mut tests = Vec::new();
        for at in 0..many {
            let field = random.below(11) as u16;
            let is_text = field == 2 || field == 9;
            let mut test = vmtrace_filter_test {
                field,
                op: if is_text {
                    1 + random.below(2) as u16
                } else {
                    0
                },
                low: random.odd(),
                high: random.odd(),
                ..Default::default()
            };
            if is_text {
                (test.low, test.high) = (texts.len() as u64, 3);
                texts.extend_from_slice(b"*s?\0");
            }
            for next in [&mut test.yes, &mut test.no] {
                *next = match at + 1 + random.below(many) {
                    next if next < many => next as u16,
                    next => 0xfffe + (next % 2) as u16,
                };
            }
            // Few are wrong.
            match random.below(64) {
                0 => test.field = random.odd() as u16,
                1 => test.op = random.odd() as u16,
                2 => test.yes = random.odd() as u16,
                3 => test.high = random.odd(),
                _ => {}
            }
            tests.push(test);
        }
        let mut filter = Box::new(Filter {
            raw: vmtrace_filter {
                size: size_of::<vmtrace_filter>() as u32,
                nr_tests: many as u32,
                texts_len: texts.len() as u32,
                expr_len: expr as u32,
                tests: tests.as_ptr() as u64,
                texts: texts.as_ptr() as u64,
            },
            tests,
            texts,
        });
        let raw = &mut filter.raw;
        match random.below(32) {
            0 => raw.size = random.odd() as u32,
            1 => raw.nr_tests = random.odd() as u32,
            2 => raw.texts_len = random.odd() as u32,
            3 => raw.expr_len = random.odd() as u32,
            4 => raw.tests = random.odd(),
            5 => raw.texts = random.odd(),
            _ => {}
        }
        filter
    }

    fn address(&self) -> u64 {
        debug_assert!(self.tests.len() <= 12 && self.texts.len() <= 64);
        (&raw const self.raw) as u64
    }
}

/// Gives one request; the errno or 0.
fn request(device: &File, request: u32, argument: *mut u8) -> i32 {
    // SAFETY: The kernel refuses what it can't read or write.
    let ret = unsafe { libc::ioctl(device.as_raw_fd(), request as libc::Ioctl, argument) };
    match ret {
        0.. => 0,
        _ => Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}

/// One request, timed.
fn timed(device: &File) -> Result<()> {
    let word = |n| std::env::args().nth(n).unwrap_or_default();
    let name = word(2);
    let mut status = vmtrace_status::default();
    let status_at = std::ptr::from_mut(&mut status).cast();
    let eighths = Arc::new(AtomicU32::new(0));
    let waits = eighths.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(125));
            waits.fetch_add(1, SeqCst);
        }
    });
    let begin = Instant::now();
    let errno = match &*name {
        "status" => request(device, ioctl::STATUS, status_at),
        "stop" => request(device, ioctl::STOP, status_at),
        "start" => {
            // It is there, so that a frozen file system opens it.
            let out = OpenOptions::new().write(true).open(word(3))?;
            let mut config = good(&out);
            config.pid = arg(4, 1) as i32;
            let config_at = std::ptr::from_mut(&mut config).cast();
            request(device, ioctl::START, config_at)
        }
        _ => return Err(Error::other(format!("no request is called {name:?}"))),
    };
    let eighths = eighths.load(SeqCst);
    let took = begin.elapsed().as_millis();
    let error = match errno {
        0 => "0".into(),
        libc::EINPROGRESS => "EINPROGRESS".into(),
        libc::ENODATA => "ENODATA".into(),
        libc::EIO => "EIO".into(),
        n => format!("error-{n}"),
    };
    println!("{name} {error} {took} {eighths}");
    Ok(())
}

fn main() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("memory") {
        set("/proc/sys/vm/drop_caches", "3")?;
        println!("{}", counter("/proc/meminfo", "MemAvailable"));
        return Ok(());
    }
    let (count, seed) = (arg(1, 1000), arg(2, 1));
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/vmtrace")?;
    if std::env::args().nth(1).as_deref() == Some("time") {
        return timed(&device);
    }
    let out = File::create("/tmp/fuzz.vmt")?;
    let nexts = [File::create("/tmp/fuzz.1")?, File::create("/tmp/fuzz.2")?];
    if std::env::args().nth(3).as_deref() == Some("nobody") {
        // SAFETY: No memory is involved.
        check(unsafe { libc::setuid(65534) })?;
    }
    let call = |number: u32, argument: *mut u8| request(&device, number, argument);
    let mut random = Random(seed as u64 * 2 + 1);
    let (mut good_ones, mut starts, mut filters) = (0, 0, 0);
    for _ in 0..count {
        let mut config = good(&out);
        let mut status = vmtrace_status::default();
        let mut n = (16 + random.below(4096)) as u32;
        if random.below(4) == 0 {
            n = random.odd() as u32;
        }
        let config_at = std::ptr::from_mut(&mut config).cast();
        let status_at = std::ptr::from_mut(&mut status).cast();
        let n_at = std::ptr::from_mut(&mut n).cast();
        let ret = match random.below(100) {
            0..40 => {
                mutate(&mut config, &mut random);
                let filter = Filter::new(&mut random);
                match random.below(8) {
                    0..3 => {
                        config.flags |= VMTRACE_FILTERED;
                        config.filter = filter.address();
                    }
                    3 => config.flags |= VMTRACE_FILTERED | VMTRACE_COUNTED,
                    4 => {
                        config.flags |= VMTRACE_UNWRITTEN | VMTRACE_COUNTED;
                        config.out_fd = -1;
                    }
                    5 => config.filter = random.odd(),
                    _ => {}
                }
                let ret = call(ioctl::START, config_at);
                starts += usize::from(ret == 0);
                ret
            }
            40..52 => call(ioctl::STOP, status_at),
            52..58 => {
                let filter = Filter::new(&mut random);
                let ret = call(ioctl::FILTER, filter.address() as *mut u8);
                filters += usize::from(ret == 0);
                ret
            }
            58..62 => {
                let mut room = vec![vmtrace_count::default(); random.below(600) as usize];
                let mut counts = vmtrace_counts {
                    size: size_of::<vmtrace_counts>() as u32,
                    nr: room.len() as u32,
                    counts: room.as_mut_ptr() as u64,
                    ..Default::default()
                };
                match random.below(8) {
                    0 => counts.size = random.odd() as u32,
                    1 => counts.counts = random.odd() & !0x7fff_ffff_ffff,
                    _ => {}
                }
                call(ioctl::COUNTS, std::ptr::from_mut(&mut counts).cast())
            }
            62..66 => {
                let mut room = vec![vmtrace_ring::default(); random.below(8) as usize];
                let mut rings = vmtrace_rings {
                    size: size_of::<vmtrace_rings>() as u32,
                    nr: room.len() as u32,
                    rings: room.as_mut_ptr() as u64,
                    ..Default::default()
                };
                match random.below(8) {
                    0 => rings.size = random.odd() as u32,
                    1 => rings.rings = random.odd() & !0x7fff_ffff_ffff,
                    _ => {}
                }
                call(ioctl::RINGS, std::ptr::from_mut(&mut rings).cast())
            }
            66..75 => call(ioctl::STATUS, status_at),
            75..80 => call(ioctl::RESIZE, n_at),
            80..83 => {
                let mut begin = random.below(3) as u32;
                call(ioctl::WINDOW, std::ptr::from_mut(&mut begin).cast())
            }
            83..90 => {
                let mut next = vmtrace_rotate {
                    size: size_of::<vmtrace_rotate>() as u32,
                    out_fd: nexts[random.below(2) as usize].as_raw_fd(),
                    ..Default::default()
                };
                match random.below(8) {
                    0 => next.size = random.odd() as u32,
                    1 => next.out_fd = random.odd() as i32,
                    2 => next.output.fill(random.odd() as libc::c_char),
                    3 => next.out_fd = device.as_raw_fd(),
                    _ => {}
                }
                call(ioctl::ROTATE, std::ptr::from_mut(&mut next).cast())
            }
            // Addresses that are none.
            90..95 => {
                let requests = [
                    ioctl::START,
                    ioctl::STOP,
                    ioctl::STATUS,
                    ioctl::RESIZE,
                    ioctl::WINDOW,
                    ioctl::ROTATE,
                    ioctl::FILTER,
                    ioctl::COUNTS,
                    ioctl::RINGS,
                ];
                let request = requests[random.below(requests.len() as u64) as usize];
                call(request, random.odd() as *mut u8)
            }
            // Requests that there are not, some with the device's letter.
            _ => {
                let mut request = random.odd() as u32;
                if random.below(2) == 0 {
                    let known = [
                        ioctl::START,
                        ioctl::ROTATE,
                        ioctl::FILTER,
                        ioctl::COUNTS,
                        ioctl::RINGS,
                    ];
                    request =
                        known[random.below(known.len() as u64) as usize] ^ (1 << random.below(32));
                }
                call(request, config_at)
            }
        };
        good_ones += usize::from(ret == 0);
    }
    let mut status = vmtrace_status::default();
    while call(ioctl::STOP, std::ptr::from_mut(&mut status).cast()) == libc::EINPROGRESS {}
    drop((out, nexts));
    for name in ["/tmp/fuzz.vmt", "/tmp/fuzz.1", "/tmp/fuzz.2"] {
        // Not ours to remove as nobody.
        let _ = std::fs::remove_file(name);
    }
    println!("{good_ones} of {count} succeeded, {starts} starts, {filters} filters");
    Ok(())
}
