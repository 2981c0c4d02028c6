// SPDX-License-Identifier: GPL-2.0

//! Which tasks wait for room in the log, and when they give up.
//!
//! All times are in jiffies.

use crate::stall::{Stall, FOREVER};

/// What a task is, as far as its waits depend on that.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kind {
    /// It exits. No signal reaches it, and its faults must succeed: others wait for what it writes
    /// then.
    pub exits: bool,
    /// It is a kernel thread, which may use an address space.
    pub kernel: bool,
    /// It is a thread that the kernel has made for a program. Such a thread never returns to user
    /// mode.
    pub worker: bool,
    /// It has asked for what kernel threads that write memory back have: PR_SET_IO_FLUSHER.
    pub flusher: bool,
}

impl Kind {
    /// Whether it returns to user mode, and so can wait for room then.
    pub fn returns(self) -> bool {
        !(self.exits || self.kernel || self.worker)
    }

    /// Whether the output may need it to get on, or it may be what gets the output out of trouble.
    /// Then it does not wait as long as there is room in reserve. Nor does a task that exits, if
    /// one of them `gave_up` and kvmtraced got nothing done since.
    pub fn is_needed(self, gave_up: bool) -> bool {
        self.kernel || self.flusher || (self.exits && gave_up)
    }
}

/// What is to be done when a part of the limit has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Wait for another part.
    Wait,
    /// Go on without room.
    GoOn,
    /// The output has taken nothing for as long as the stall limit: the log has failed.
    Failed,
}

/// A wait for room.
///
/// If kvmtraced gets nothing done for as long as the limit says, the log has failed: no more is
/// recorded, and everybody goes on. Any of those who wait may find that.
///
/// A task that exits waits no longer than a limit of its own, whatever the stall limit is. Before
/// its wait would get too long for others, it goes on: its faults find room in reserve, its events
/// find room or are lost. Without a reserve the log has failed.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    stall: Stall,
    /// How long to wait before the next look.
    part: u64,
    /// It ends before the stall limit has passed.
    gives_up: bool,
}

impl Patience {
    /// That of a task of this kind. A `limit` of 0 is none. A task that exits waits for `exit` at
    /// most. `now` is the progress.
    pub fn new(kind: Kind, limit: u64, exit: u64, now: u64) -> Patience {
        let limit = if limit == 0 { FOREVER } else { limit };
        let gives_up = kind.exits && limit > exit;
        Patience {
            stall: Stall::new(now),
            part: Stall::part(if gives_up { exit } else { limit }),
            gives_up,
        }
    }

    /// How long to wait before the next look.
    pub fn part(&self) -> u64 {
        self.part
    }

    /// One more part has passed without room, and progress is `now`. `spare` gives whether there
    /// is room in reserve.
    pub fn passed(&mut self, now: u64, spare: impl FnOnce() -> bool) -> Verdict {
        if !self.stall.passed(now) {
            Verdict::Wait
        } else if self.gives_up && spare() {
            Verdict::GoOn
        } else {
            Verdict::Failed
        }
    }

    /// The progress that was seen last.
    pub fn seen(&self) -> u64 {
        self.stall.seen()
    }
}
