//! userfaultfd (include/uapi/linux/userfaultfd.h): requests, whose structures are arrays here.
use crate::check;
use std::io::Result;

/// What can be done: version, features, requests.
pub const API: u64 = 0xc018_aa3f;
/// Address, length, mode, what can be done with it.
pub const REGISTER: u64 = 0xc020_aa00;
/// Address, length.
pub const UNREGISTER: u64 = 0x8010_aa01;
/// Address, length.
pub const WAKE: u64 = 0x8010_aa02;
/// Address, length, mode, bytes filled or a negative error.
pub const ZEROPAGE: u64 = 0xc020_aa04;
/// To, from, length, mode, bytes copied or a negative error.
pub const COPY: u64 = 0xc028_aa03;
/// As [`COPY`].
pub const MOVE: u64 = 0xc028_aa05;
/// Address, length, mode.
pub const WRITEPROTECT: u64 = 0xc018_aa06;
/// As [`WRITEPROTECT`].
pub const RWPROTECT: u64 = 0xc018_aa09;

/// Modes of [`REGISTER`].
pub const MISSING: u64 = 1;
/// Writes to protected pages.
pub const WP: u64 = 2;
/// Any access to protected pages.
pub const RWP: u64 = 8;

/// Makes a request.
///
/// # Errors
///
/// The kernel's.
pub fn ioctl<const N: usize>(fd: i32, request: u64, arg: &mut [u64; N]) -> Result<()> {
    // SAFETY: The request's size is that of the array.
    check(unsafe { libc::ioctl(fd, request, arg.as_mut_ptr()) }).map(drop)
}

/// A descriptor with some features.
///
/// # Errors
///
/// The kernel's, which may not have a feature.
pub fn open(features: u64) -> Result<i32> {
    // SAFETY: No memory is given.
    let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32)?;
    ioctl(fd, API, &mut [0xaa, features, 0])?;
    Ok(fd)
}
