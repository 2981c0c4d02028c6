//! stacked: reads, maps and changes a file of an overlay, and tells on standard output
//! which files lie below: "lower DEV INO" and "upper DEV INO", as events name them, and
//! "merged DEV INO", as stat() says.
use kvmtrace_guest::{PAGE, check};
use std::ffi::CString;
use std::fs::{File, OpenOptions, create_dir_all, metadata};
use std::io::Result;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

fn mount(kind: &str, at: &str, options: &str) -> Result<()> {
    let (kind, at, options) = (
        CString::new(kind)?,
        CString::new(at)?,
        CString::new(options)?,
    );
    // SAFETY: Strings with their ends.
    let ret = unsafe {
        libc::mount(
            kind.as_ptr(),
            at.as_ptr(),
            kind.as_ptr(),
            0,
            options.as_ptr().cast(),
        )
    };
    check(ret).map(drop)
}

fn tell(what: &str, path: &str) -> Result<()> {
    let m = metadata(path)?;
    let (major, minor) = (libc::major(m.dev()), libc::minor(m.dev()));
    println!(
        "{what} {} {}",
        u64::from(major) << 20 | u64::from(minor),
        m.ino()
    );
    Ok(())
}

/// The sum of the first bytes of some pages of a file, through a mapping.
fn mapped(file: &File, pages: usize) -> Result<u64> {
    // SAFETY: A new mapping.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            pages * PAGE,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: Inside the mapping, which is as long as the file.
    Ok((0..pages)
        .map(|i| u64::from(unsafe { base.cast::<u8>().add(i * PAGE).read_volatile() }))
        .sum())
}

fn main() -> Result<()> {
    const AT: &str = "/tmp/stacked";
    create_dir_all(AT)?;
    mount("tmpfs", AT, "")?;
    let dir = |name: &str| format!("{AT}/{name}");
    for name in ["lower", "upper", "work", "merged"] {
        create_dir_all(dir(name))?;
    }
    std::fs::write(dir("lower/file"), vec![1u8; 3 * PAGE])?;
    mount(
        "overlay",
        &dir("merged"),
        "lowerdir=/tmp/stacked/lower,upperdir=/tmp/stacked/upper,workdir=/tmp/stacked/work",
    )?;
    let mut bytes = vec![0u8; 5000];
    let file = File::open(dir("merged/file"))?;
    file.read_exact_at(&mut bytes, 100)?;
    let before = mapped(&file, 3)?;
    drop(file);
    // It is copied up as it is opened to be written.
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(dir("merged/file"))?;
    file.write_all_at(&bytes[..300], 8192)?;
    file.read_exact_at(&mut bytes[..70], 10)?;
    println!("{before} {}", mapped(&file, 3)?);
    tell("lower", &dir("lower/file"))?;
    tell("upper", &dir("upper/file"))?;
    tell("merged", &dir("merged/file"))
}
