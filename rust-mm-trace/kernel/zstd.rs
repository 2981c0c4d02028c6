// SPDX-License-Identifier: GPL-2.0

//! Compression by Zstandard, as lib/zstd does it, in memory that is allocated once.

use crate::{
    machine::{afford, zeroed},
    Store,
};
use core::ptr::NonNull;
use kernel::{bindings, prelude::*};

/// The level. Packets are small, and a higher one takes much longer for little.
const LEVEL: i32 = 3;

/// Compresses content of up to a certain size.
///
/// # Invariants
///
/// `context` is initialised, and lies in `workspace`, which stays where it is and which nobody else
/// uses.
pub(crate) struct Zstd {
    context: NonNull<bindings::zstd_cctx>,
    params: bindings::zstd_parameters,
    #[expect(dead_code)]
    workspace: Store<u8>,
    /// A frame, before it replaces what was compressed.
    frame: Store<u8>,
}

// SAFETY: It has its memory for itself, and only `&mut self` leads to the context.
unsafe impl Send for Zstd {}

impl Zstd {
    /// For content of up to `size` bytes. ENOMEM rather than to end programs that have memory. It
    /// sleeps.
    pub(crate) fn new(size: usize) -> Result<Zstd> {
        // SAFETY: These two only calculate.
        let (params, bytes) = unsafe {
            let params = bindings::zstd_get_params(LEVEL, size as u64);
            (params, bindings::zstd_cctx_workspace_bound(&params.cParams))
        };
        afford(bytes.saturating_add(size) as u64)?;
        let mut workspace: Store<u8> = zeroed(bytes)?;
        // SAFETY: It has as many bytes, and is aligned as what kvmalloc() returns.
        let context =
            unsafe { bindings::zstd_init_cctx(workspace.as_mut_ptr().cast(), workspace.len()) };
        // INVARIANT: It was initialised just now. The workspace is moved with this, and its memory is
        // not.
        Ok(Zstd {
            context: NonNull::new(context).ok_or(EINVAL)?,
            params,
            workspace,
            frame: zeroed(size)?,
        })
    }

    /// Replaces content by one frame that has it, if that is shorter. Gives the length of the frame.
    pub(crate) fn compress(&mut self, content: &mut [u8]) -> Option<usize> {
        let most = content.len().min(self.frame.len());
        // SAFETY: The context is initialised, by the invariant, and nobody else uses it. Both buffers
        // are valid for as many bytes, and do not overlap.
        let len = unsafe {
            bindings::zstd_compress_cctx(
                self.context.as_ptr(),
                self.frame.as_mut_ptr().cast(),
                most,
                content.as_ptr().cast(),
                content.len(),
                &self.params,
            )
        };
        // An error is a number that no length can be: a frame that would be too long is one.
        if len >= content.len() {
            return None;
        }
        let frame = self.frame.get(..len)?;
        content.get_mut(..len)?.copy_from_slice(frame);
        Some(len)
    }
}
