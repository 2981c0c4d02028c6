// SPDX-License-Identifier: GPL-2.0

//! How full each ring is, and what has become of records for it.
//!
//! A ring's lock is held while its figures are read, and nothing is locked under it. No two rings are
//! read at the same moment.

use crate::{
    drain::nr_cpus,
    events,
    hot::{self, clock, last_seq},
    ring::Ring,
};
use core::mem::size_of;
use kernel::{
    bindings,
    prelude::*,
    transmute::AsBytes,
    uaccess::{UserPtr, UserSlice},
};

/// `struct vmtrace_ring` as user space gets it.
#[repr(transparent)]
struct Figures(bindings::vmtrace_ring);

// SAFETY: Integers without padding.
unsafe impl AsBytes for Figures {}

const _: () = {
    // Without padding: six words of 32 bits, seven of 64 bits.
    assert!(size_of::<Figures>() == 6 * 4 + 7 * 8);
    assert!(size_of::<bindings::vmtrace_rings>() == bindings::VMTRACE_RINGS_SIZE_VER0 as usize);
};

/// Those of a ring, without what became of admissions.
fn figures(kind: u32, ring: &Ring) -> bindings::vmtrace_ring {
    bindings::vmtrace_ring {
        kind,
        buffers: ring.total() as u32,
        buffer_size: ring.size() as u32,
        free: ring.free() as u32,
        full: ring.full() as u32,
        waiting: ring.records(),
        lost_full: ring.had.lost_full,
        lost_atomic: ring.had.lost_atomic,
        ..Default::default()
    }
}

/// Those of a CPU's ring of references, if it has one.
fn of_references(cpu: usize) -> Option<bindings::vmtrace_ring> {
    hot::with(None, |refs| {
        refs.with_ring(cpu, |ring, done| bindings::vmtrace_ring {
            admissions: done.admissions,
            renewed: done.renewed,
            chances: done.chances,
            left_out: done.left_out,
            ..figures(bindings::VMTRACE_STREAM_REF, ring)
        })
    })
}

/// Those of a CPU's ring of events, if it has one.
fn of_events(cpu: usize) -> Option<bindings::vmtrace_ring> {
    events::with_ring(cpu, |ring| {
        (ring.total() > 0).then(|| figures(bindings::VMTRACE_STREAM_EVENT, ring))
    })
    .flatten()
}

/// Gives the figures of all rings to user space, and says in `r` what else it is to get. False if
/// there is no ring.
pub(crate) fn read(r: &mut bindings::vmtrace_rings) -> Result<bool> {
    let mut to = UserSlice::new(
        UserPtr::from_addr(usize::try_from(r.rings).map_err(|_| EFAULT)?),
        (r.nr as usize).saturating_mul(size_of::<Figures>()),
    )
    .writer();
    let room = r.nr;
    r.nr = 0;
    for cpu in 0..nr_cpus() {
        for figures in [of_references(cpu), of_events(cpu)] {
            let Some(mut figures) = figures else {
                continue;
            };
            figures.cpu = cpu as u32;
            if r.nr < room {
                to.write_slice(Figures(figures).as_bytes())?;
            }
            r.nr = r.nr.saturating_add(1);
        }
    }
    r.time = clock();
    r.seq = last_seq();
    Ok(r.nr > 0)
}
