//! `odd-samplings FILE`: gives /dev/vmtrace starts that sample regions, good ones and such as the kernel
//! is to refuse, and prints what it says to each. Each trace that begins goes to FILE, and ends at once.
use rust_mm_trace::ioctl;
use rust_mm_trace::uapi::{
    VMTRACE_AGAIN, VMTRACE_BY_ACCESSED, VMTRACE_BY_FAULT, VMTRACE_CHANGE_MAX, VMTRACE_COUNTED,
    VMTRACE_FILTERED, VMTRACE_INTERVAL_MAX, VMTRACE_INTERVAL_MIN, VMTRACE_OFFSETS, VMTRACE_PACK,
    VMTRACE_PAUSABLE, VMTRACE_REGIONS, VMTRACE_REGIONS_MAX, VMTRACE_REGIONS_MIN,
    VMTRACE_SAMPLE_MIN, VMTRACE_SCOPE_TREE, VMTRACE_SETS_PROCESS, VMTRACE_VTIME, vmtrace_config,
    vmtrace_sampling, vmtrace_status,
};
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

const MS: u64 = 1_000_000;

/// What makes a start another one.
type Change = fn(&mut vmtrace_config);

/// Starts that the kernel takes.
const GOOD: &[(&str, Change)] = &[
    ("by-accessed", |c| c.sampling.by = VMTRACE_BY_ACCESSED),
    ("by-fault", |c| c.sampling.by = VMTRACE_BY_FAULT),
    ("packed", |c| c.flags |= VMTRACE_PACK),
    ("shortest", |c| {
        c.sampling.sample = u64::from(VMTRACE_SAMPLE_MIN);
        c.sampling.aggregate = u64::from(VMTRACE_SAMPLE_MIN);
        c.sampling.update = u64::from(VMTRACE_SAMPLE_MIN);
    }),
    ("longest", |c| {
        c.sampling.sample = VMTRACE_INTERVAL_MAX;
        c.sampling.aggregate = VMTRACE_INTERVAL_MAX;
        c.sampling.update = VMTRACE_INTERVAL_MAX;
    }),
    ("fewest", |c| {
        c.sampling.min_regions = VMTRACE_REGIONS_MIN;
        c.sampling.max_regions = 2 * VMTRACE_REGIONS_MIN;
    }),
    ("most", |c| {
        c.sampling.min_regions = VMTRACE_REGIONS_MAX / 2;
        c.sampling.max_regions = VMTRACE_REGIONS_MAX;
    }),
    // Windows of references, by a plan and on request, and what is about references.
    ("windows", |c| {
        c.windows = 2;
        c.window_time = 10 * MS;
        c.skip = 10 * MS;
        c.warmup = 10 * MS;
    }),
    ("pausable", |c| c.flags |= VMTRACE_PAUSABLE),
    ("change", |c| {
        c.flags |= VMTRACE_PAUSABLE | VMTRACE_AGAIN | VMTRACE_OFFSETS | VMTRACE_COUNTED;
        c.sampling.change = VMTRACE_CHANGE_MAX;
        c.window_time = 10 * MS;
        c.skip = 10 * MS;
    }),
    // Without regions: what the changes below begin with is good.
    ("references", |c| {
        c.flags = 0;
        c.sampling = vmtrace_sampling::default();
    }),
];

/// Starts that it refuses.
const REFUSED: &[(&str, Change)] = &[
    ("nothing", |c| c.sampling = vmtrace_sampling::default()),
    ("no-sample", |c| c.sampling.sample = 0),
    ("sample-short", |c| {
        c.sampling.sample = u64::from(VMTRACE_SAMPLE_MIN) - 1;
    }),
    ("sample-long", |c| {
        c.sampling.sample = VMTRACE_INTERVAL_MAX + 1;
        c.sampling.aggregate = c.sampling.sample;
        c.sampling.update = c.sampling.sample;
    }),
    ("aggregate-short", |c| {
        c.sampling.aggregate = c.sampling.sample - 1;
    }),
    ("aggregate-long", |c| {
        c.sampling.aggregate = VMTRACE_INTERVAL_MAX + 1;
        c.sampling.update = c.sampling.aggregate;
    }),
    ("update-short", |c| {
        c.sampling.update = c.sampling.aggregate - 1;
    }),
    ("update-long", |c| {
        c.sampling.update = VMTRACE_INTERVAL_MAX + 1;
    }),
    ("update-never", |c| c.sampling.update = u64::MAX),
    ("few", |c| c.sampling.min_regions = VMTRACE_REGIONS_MIN - 1),
    ("none", |c| {
        c.sampling.min_regions = 0;
        c.sampling.max_regions = 0;
    }),
    ("many", |c| c.sampling.max_regions = VMTRACE_REGIONS_MAX + 1),
    ("too-many", |c| c.sampling.max_regions = u32::MAX),
    ("near", |c| {
        c.sampling.max_regions = 2 * c.sampling.min_regions - 1;
    }),
    ("fewer", |c| {
        c.sampling.max_regions = c.sampling.min_regions - 1;
    }),
    ("wraps", |c| c.sampling.min_regions = 1 << 31),
    ("by-nothing", |c| c.sampling.by = VMTRACE_BY_FAULT + 1),
    ("by-all", |c| c.sampling.by = u32::MAX),
    ("change", |c| c.sampling.change = 1),
    ("change-plan", |c| {
        c.window_time = 10 * MS;
        c.sampling.change = 1;
    }),
    ("change-more", |c| {
        c.flags |= VMTRACE_PAUSABLE;
        c.sampling.change = VMTRACE_CHANGE_MAX + 1;
    }),
    ("no-flag", |c| c.flags = 0),
    ("no-flag-change", |c| {
        c.flags = 0;
        c.sampling = vmtrace_sampling {
            change: 1,
            ..Default::default()
        };
    }),
    ("window", |c| c.windows = 2),
    ("skip", |c| c.skip = 10 * MS),
    ("warmup", |c| {
        c.flags |= VMTRACE_PAUSABLE;
        c.warmup = 10 * MS;
    }),
    ("sets", |c| {
        c.flags |= VMTRACE_PAUSABLE;
        c.sets = VMTRACE_SETS_PROCESS;
    }),
    ("pausable-interval", |c| {
        c.flags |= VMTRACE_PAUSABLE;
        c.interval = u64::from(VMTRACE_INTERVAL_MIN);
    }),
    ("again", |c| c.flags |= VMTRACE_AGAIN),
    ("virtual-time", |c| c.flags |= VMTRACE_VTIME),
    ("offsets", |c| c.flags |= VMTRACE_OFFSETS),
    ("filtered", |c| c.flags |= VMTRACE_FILTERED),
    ("counted", |c| c.flags |= VMTRACE_COUNTED),
    ("interval", |c| c.interval = u64::from(VMTRACE_INTERVAL_MIN)),
];

fn config(out: &File) -> vmtrace_config {
    vmtrace_config {
        size: size_of::<vmtrace_config>() as u32,
        flags: VMTRACE_REGIONS,
        out_fd: out.as_raw_fd(),
        scope: VMTRACE_SCOPE_TREE,
        pid: 1,
        evms_size: 64,
        sampling: vmtrace_sampling {
            sample: 5 * MS,
            aggregate: 100 * MS,
            update: 1000 * MS,
            min_regions: 10,
            max_regions: 100,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// Gives one request; the errno or 0.
fn call<T>(device: &File, request: u32, argument: *mut T) -> i32 {
    // SAFETY: The argument is what the request takes.
    match unsafe { libc::ioctl(device.as_raw_fd(), request as libc::Ioctl, argument) } {
        0.. => 0,
        _ => Error::last_os_error().raw_os_error().unwrap_or(-1),
    }
}

fn name(errno: i32) -> String {
    match errno {
        0 => "0".into(),
        libc::EINVAL => "EINVAL".into(),
        n => format!("error-{n}"),
    }
}

fn main() -> Result<()> {
    let path = std::env::args().nth(1).unwrap_or_default();
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/vmtrace")?;
    for (what, change) in GOOD.iter().chain(REFUSED) {
        let out = File::create(&path)?;
        let mut c = config(&out);
        change(&mut c);
        let errno = call(&device, ioctl::START, &raw mut c);
        println!("{what} {}", name(errno));
        if errno == 0 {
            let mut status = vmtrace_status::default();
            let errno = call(&device, ioctl::STOP, &raw mut status);
            println!("{what} stop {}", name(errno));
        }
    }
    Ok(())
}
