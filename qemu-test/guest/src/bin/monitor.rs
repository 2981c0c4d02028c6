//! `monitor [ROUNDS]`: a virtual machine with one CPU, by the ioctls of /dev/kvm. Its program
//! adds 1 to a word of each of its pages in each round, and then stops at an I/O port. Here,
//! between rounds, pages of its memory are read and written, dropped, protected, and swapped
//! out. Prints the sum of all words and the wrong ones.
use kvmtrace_guest::{PAGE, arg, check, map_at, swap_on};
use std::fs::OpenOptions;
use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// Pages of the machine, and of those the first that its program counts in.
const PAGES: usize = 128;
const FIRST: usize = 2;

/// Real mode: the code segment begins at 0. The word at 0 of each page is counted up.
#[rustfmt::skip]
const CODE: &[u8] = &[
    0xb9, (PAGES - FIRST) as u8, 0, // start: mov cx, PAGES - FIRST
    0xb8, 0x00, 0x02,               // mov ax, 0x200: the segment of page FIRST
    0x8e, 0xc0,                     // next: mov es, ax
    0x26, 0xff, 0x06, 0, 0,         // inc word [es:0]
    0x05, 0x00, 0x01,               // add ax, 0x100
    0xe2, 0xf4,                     // loop next
    0xe6, 0x10,                     // out 0x10, al
    0xeb, 0xea,                     // jmp start
];
/// Where it lies: in the second page.
const CODE_AT: usize = PAGE;

const CREATE_VM: u64 = 0xae01;
const VCPU_MMAP_SIZE: u64 = 0xae04;
const CREATE_VCPU: u64 = 0xae41;
const SET_MEMORY: u64 = 0x4020_ae46;
const RUN: u64 = 0xae80;
const SET_REGS: u64 = 0x4090_ae82;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
/// kvm_run.exit_reason
const EXIT_IO: u32 = 2;

/// struct kvm_userspace_memory_region
#[repr(C)]
struct Memory {
    slot: u32,
    flags: u32,
    guest: u64,
    size: u64,
    host: u64,
}

fn ioctl(fd: i32, request: u64, argument: usize) -> Result<i32> {
    // SAFETY: The callers pass what the request takes.
    let ret = unsafe { libc::ioctl(fd, request as libc::Ioctl, argument) };
    check(ret).map_err(|e| Error::other(format!("ioctl {request:#x}: {e}")))
}

fn main() -> Result<()> {
    let rounds = arg(1, 60);
    swap_on("/dev/swap")?;
    let kvm = OpenOptions::new().read(true).write(true).open("/dev/kvm")?;
    let vm = ioctl(kvm.as_raw_fd(), CREATE_VM, 0)?;
    let memory = map_at(0x1000_0000_0000, PAGES)?;
    // SAFETY: Inside the mapping.
    unsafe { memory.add(CODE_AT).copy_from(CODE.as_ptr(), CODE.len()) };
    let region = Memory {
        slot: 0,
        flags: 0,
        guest: 0,
        size: (PAGES * PAGE) as u64,
        host: memory as u64,
    };
    ioctl(vm, SET_MEMORY, (&raw const region) as usize)?;
    let cpu = ioctl(vm, CREATE_VCPU, 0)?;
    let size = ioctl(kvm.as_raw_fd(), VCPU_MMAP_SIZE, 0)? as usize;
    // SAFETY: A new mapping.
    let run = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            cpu,
            0,
        )
    };
    if run == libc::MAP_FAILED {
        return Err(Error::last_os_error());
    }
    // struct kvm_sregs: cs comes first, its base and its selector at 0 and 12.
    let mut sregs = [0u64; 39];
    ioctl(cpu, GET_SREGS, sregs.as_mut_ptr() as usize)?;
    sregs[0] = 0;
    sregs[1] &= !(0xffff << 32);
    ioctl(cpu, SET_SREGS, sregs.as_mut_ptr() as usize)?;
    // struct kvm_regs: rip and rflags come last.
    let mut regs = [0u64; 18];
    regs[16] = CODE_AT as u64;
    regs[17] = 2;
    ioctl(cpu, SET_REGS, regs.as_ptr() as usize)?;

    let word = |page: usize| memory.wrapping_add(page * PAGE).cast::<u16>();
    let mut expected = [0u16; PAGES];
    let mut wrong = 0;
    let mut seed = 1usize;
    for _ in 0..rounds {
        ioctl(cpu, RUN, 0)?;
        // SAFETY: kvm_run begins with four bytes and as many of padding.
        let reason = unsafe { run.cast::<u32>().add(2).read_volatile() };
        if reason != EXIT_IO {
            return Err(Error::other(format!("exit reason {reason}")));
        }
        for e in &mut expected[FIRST..] {
            *e = e.wrapping_add(1);
        }
        for _ in 0..30 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = FIRST + (seed >> 33) % (PAGES - FIRST);
            // SAFETY: Inside the mapping; the machine stands still.
            unsafe {
                wrong += u32::from(word(page).read_volatile() != expected[page]);
                if seed >> 40 & 1 == 0 {
                    expected[page] = expected[page].wrapping_add(7);
                    word(page).write_volatile(expected[page]);
                }
            }
        }
        let first = FIRST + (seed >> 20) % (PAGES - FIRST - 8);
        let at = memory.wrapping_add(first * PAGE).cast();
        // SAFETY: Eight pages of the mapping.
        unsafe {
            match seed >> 50 & 3 {
                0 => {
                    check(libc::madvise(at, 8 * PAGE, libc::MADV_DONTNEED))?;
                    expected[first..first + 8].fill(0);
                }
                1 => _ = libc::madvise(at, 8 * PAGE, libc::MADV_PAGEOUT),
                2 => {
                    let both = libc::PROT_READ | libc::PROT_WRITE;
                    for prot in [libc::PROT_NONE, libc::PROT_READ, both] {
                        check(libc::mprotect(at, 8 * PAGE, prot))?;
                    }
                }
                _ => {}
            }
        }
    }
    let mut sum = 0u64;
    for (page, expected) in expected.iter().enumerate().skip(FIRST) {
        // SAFETY: As above.
        let got = unsafe { word(page).read_volatile() };
        wrong += u32::from(got != *expected);
        sum += u64::from(got);
    }
    println!("sum {sum} wrong {wrong}");
    Ok(())
}
