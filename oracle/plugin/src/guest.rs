//! The guest's registers and page tables.

use oracle::machine::Entry;
use oracle::watch::{Target, USER_END};
use qemu_plugin::sys::{
    self, GByteArray, qemu_plugin_reg_descriptor, qemu_plugin_register as Handle,
};
use std::ffi::CStr;

unsafe extern "C" {
    /// GLib's, which QEMU has: an empty array of bytes.
    fn g_byte_array_new() -> *mut GByteArray;
}

const GENERAL: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// CR4: page tables have five levels.
const LA57: u64 = 1 << 12;
/// Where all memory is mapped, for four and five levels, with `nokaslr`.
const DIRECT_MAP: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];

/// What to ask for registers with, and where answers come.
pub struct Guest {
    general: [*mut Handle; 16],
    pub rip: *mut Handle,
    pub cr2: *mut Handle,
    pub cr3: *mut Handle,
    gs: [*mut Handle; 2],
    cr4: *mut Handle,
    answer: *mut GByteArray,
}

impl Guest {
    /// Finds the registers. Called on the CPU's thread, when it begins.
    pub fn find() -> Result<Self, String> {
        // SAFETY: The CPU is initialised. The array is ours; it is small and
        // never freed.
        let all: &[qemu_plugin_reg_descriptor] = unsafe {
            let array = sys::qemu_plugin_get_registers();
            if array.is_null() {
                return Err("QEMU names no registers".into());
            }
            std::slice::from_raw_parts((*array).data.cast(), (*array).len as usize)
        };
        let named = |name: &str| {
            all.iter()
                // SAFETY: Names are strings that live as long as QEMU.
                .find(|r| unsafe { CStr::from_ptr(r.name) }.to_bytes() == name.as_bytes())
                .map(|r| r.handle)
                .ok_or_else(|| format!("QEMU does not name the register {name}"))
        };
        let mut general = [std::ptr::null_mut(); 16];
        for (handle, name) in general.iter_mut().zip(GENERAL) {
            *handle = named(name)?;
        }
        Ok(Guest {
            general,
            rip: named("rip")?,
            cr2: named("cr2")?,
            cr3: named("cr3")?,
            gs: [named("gs_base")?, named("k_gs_base")?],
            cr4: named("cr4")?,
            // SAFETY: No conditions.
            answer: unsafe { g_byte_array_new() },
        })
    }

    /// Where the kernel has the running CPU's own data: in one register in user mode,
    /// in another one in the kernel. `None` as long as there is none.
    pub fn own_data(&self) -> Result<Option<u64>, String> {
        for register in self.gs {
            let base = self.read(register)?;
            if base >= USER_END {
                return Ok(Some(base));
            }
        }
        Ok(None)
    }

    /// A general register by its number in the instruction set's encoding.
    pub fn general(&self, index: usize) -> Result<u64, String> {
        let handle = self.general.get(index).ok_or("no such register")?;
        self.read(*handle)
    }

    /// A register's value. Called in a callback that may read registers.
    pub fn read(&self, register: *mut Handle) -> Result<u64, String> {
        // SAFETY: The handle is QEMU's, the array ours; QEMU appends to it.
        let size = unsafe {
            (*self.answer).len = 0;
            sys::qemu_plugin_read_register(register, self.answer)
        };
        if size < 8 {
            return Err(format!("a register can't be read: {size}"));
        }
        Ok(self.answered())
    }

    /// The first eight bytes of an answer that has as many.
    fn answered(&self) -> u64 {
        // SAFETY: As the callers have seen to.
        unsafe { (*self.answer).data.cast::<u64>().read_unaligned() }
    }

    /// Where an address's page is entered in the page tables.
    pub fn entry(&self, target: &Target) -> Result<Entry, String> {
        let five = usize::from(self.read(self.cr4)? & LA57 != 0);
        let levels = [4, 5][five];
        Entry::find(levels, target, |at| self.word(DIRECT_MAP[five] + at))
    }

    /// Eight bytes of the kernel's memory.
    pub fn word(&self, addr: u64) -> Result<u64, String> {
        // SAFETY: The array is ours and of GLib's making; QEMU sets its size.
        let done = unsafe { sys::qemu_plugin_read_memory_vaddr(addr, self.answer, 8) };
        // SAFETY: As above.
        if !done || unsafe { (*self.answer).len } < 8 {
            return Err(format!("the memory at {addr:#x} can't be read"));
        }
        Ok(self.answered())
    }
}
