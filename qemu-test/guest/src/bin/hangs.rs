//! hangs FILE GO: maps a page of FILE and reads it. When the file GO exists, a thread stores
//! to the page, and another one then changes its protection. If FILE's file system is frozen,
//! the first one hangs in its fault, and the second one with the lock of the address space.
use kvmtrace_guest::{PAGE, check};
use std::ffi::CString;
use std::io::{Error, Result};
use std::path::Path;
use std::time::Duration;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, file, go] = args.as_slice() else {
        return Err(Error::other("usage: hangs FILE GO"));
    };
    let name = CString::new(file.as_str())?;
    // SAFETY: A string with its end.
    let fd = check(unsafe { libc::open(name.as_ptr(), libc::O_RDWR) })?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: Asks for new memory.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, rights, libc::MAP_SHARED, fd, 0) };
    if page == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    let at = page as usize;
    // SAFETY: The page is mapped until the end.
    let old = unsafe { (at as *const u8).read_volatile() };
    while !Path::new(go).exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: As above.
    let store = std::thread::spawn(move || unsafe { (at as *mut u8).write_volatile(old + 1) });
    std::thread::sleep(Duration::from_millis(300));
    // SAFETY: As above; the store has been made, or waits for this.
    check(unsafe { libc::mprotect(at as *mut libc::c_void, PAGE, rights | libc::PROT_EXEC) })?;
    store.join().map_err(|_| Error::other("a thread failed"))?;
    // SAFETY: As above.
    println!("stored {}", unsafe { (at as *const u8).read_volatile() });
    Ok(())
}
