// SPDX-License-Identifier: GPL-2.0

//! A file that kvmtraced writes to, from its beginning on; or none, and nothing is written.

use crate::{
    back::Rest,
    drain::{jiffies, HZ},
    progress::progressed,
};
use kernel::{
    bindings,
    error::to_result,
    fs::file::{flags, File, LocalFile, Offset},
    prelude::*,
    sync::aref::ARef,
};

/// Bytes of one write: after each it can be seen that the output takes something.
const WRITE: usize = 64 << 10;

/// A file, how much of it was written, and how far the disk was asked to take that.
pub(crate) struct Sink {
    file: Option<ARef<File>>,
    pos: Offset,
    sent: Offset,
}

impl Sink {
    /// Takes the file that user space hands over.
    ///
    /// # Safety
    ///
    /// No call of `fdget_pos()` is active on this thread, as in an ioctl.
    pub(crate) unsafe fn open(fd: i32) -> Result<Sink> {
        let file = LocalFile::fget(u32::try_from(fd).map_err(|_| EBADF)?)?;
        if !file.is_writable() {
            return Err(EBADF);
        }
        if !file.is_regular() && !file.is_block_device() {
            return Err(EINVAL);
        }
        Ok(Sink {
            // SAFETY: By the caller's promise.
            file: Some(unsafe { LocalFile::assume_no_fdget_pos(file) }),
            pos: 0,
            sent: 0,
        })
    }

    /// Takes all, and keeps nothing.
    pub(crate) fn nowhere() -> Sink {
        Sink {
            file: None,
            pos: 0,
            sent: 0,
        }
    }

    /// Whether it is a file without content in which writes go where they are to go, and not to its
    /// end.
    pub(crate) fn is_new(&self) -> bool {
        let Some(file) = &self.file else {
            return false;
        };
        // SAFETY: This keeps the file open. So its inode is there, and is not changed. The size is read
        // as a whole.
        let size = unsafe { (&raw const (*(*file.as_ptr()).f_inode).i_size).read_volatile() };
        file.is_regular() && size == 0 && file.flags() & flags::O_APPEND == 0
    }

    /// Whether it is a file, which ends where that what was written does.
    pub(crate) fn is_regular(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.is_regular())
    }

    /// Writes behind what was written.
    pub(crate) fn write(&mut self, data: &[u8]) -> Result {
        for part in data.chunks(WRITE) {
            if let Some(file) = &self.file {
                file.write_all(part, &mut self.pos)?;
            }
            progressed();
        }
        Ok(())
    }

    /// Writes over what was written.
    pub(crate) fn write_over(&mut self, at: usize, data: &[u8]) -> Result {
        let mut at = Offset::try_from(at)?;
        if let Some(file) = &self.file {
            file.write_all(data, &mut at)?;
        }
        // The disk is to take it again.
        self.sent = 0;
        progressed();
        Ok(())
    }

    /// Writes all to the disk.
    pub(crate) fn sync(&self) -> Result {
        self.write_back()?;
        self.file.as_ref().map_or(Ok(()), |file| file.fsync())
    }

    /// Writes back what was written, so that it can be seen that this goes on. The metadata are
    /// left to what follows.
    fn write_back(&self) -> Result {
        let Some(file) = &self.file else {
            return Ok(());
        };
        // SAFETY: This keeps the file open. So its mapping is there, and is not changed.
        let mapping = unsafe { (*file.as_ptr()).f_mapping };
        let mut rest = Rest::new(u64::try_from(self.pos).unwrap_or(0));
        while let Some(part) = rest.part() {
            let start = jiffies();
            let mut result = 0;
            if let Some((from, last)) = part.send {
                let (from, last) = (from as Offset, last as Offset);
                // SAFETY: The mapping is there, and kvmtraced may sleep.
                result = unsafe { bindings::filemap_fdatawrite_range(mapping, from, last) };
            }
            if result == 0 {
                let (from, last) = (part.wait.0 as Offset, part.wait.1 as Offset);
                // SAFETY: As above.
                result = unsafe { bindings::filemap_fdatawait_range(mapping, from, last) };
            }
            progressed();
            to_result(result)?;
            rest.took(jiffies().wrapping_sub(start), HZ / 32, HZ / 8);
        }
        Ok(())
    }

    /// Asks the disk to take what was written, and does not wait for that. The last page is written
    /// again when it has more.
    pub(crate) fn send(&mut self) {
        let Some(file) = self.file.as_ref().filter(|_| self.pos != self.sent) else {
            return;
        };
        // SAFETY: This keeps the file open. So its mapping is there, and is not changed.
        let mapping = unsafe { (*file.as_ptr()).f_mapping };
        // A failure is seen by write_back() at the end.
        // SAFETY: The mapping is there, and kvmtraced may sleep.
        let _ = unsafe { bindings::filemap_flush_range(mapping, self.sent, self.pos) };
        self.sent = self.pos;
    }

    /// Closes the file before this returns, which a thread of the kernel would otherwise leave to
    /// another one: whoever waits for the end of the trace may need the file's device.
    pub(crate) fn close(self) {
        let Some(file) = self.file else {
            return;
        };
        let file = ARef::into_raw(file);
        // SAFETY: This is a reference that nobody else gives up, and this is a kernel thread.
        unsafe { bindings::__fput_sync(file.as_ref().as_ptr()) };
    }
}
