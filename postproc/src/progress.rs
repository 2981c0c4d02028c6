//! Progress on a terminal, silence elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// Makes bars, or none.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    shown: bool,
}

/// One bar; it disappears when it is finished or dropped.
pub struct Bar {
    bar: ProgressBar,
    shown: bool,
    next: std::cell::Cell<u64>,
    step: u64,
}

impl Progress {
    /// Bars if standard error is a terminal.
    pub fn auto() -> Self {
        Self {
            shown: std::io::stderr().is_terminal(),
        }
    }

    /// Never a bar.
    pub fn hidden() -> Self {
        Self { shown: false }
    }

    /// A bar that counts bytes.
    pub fn bytes(&self, what: &'static str, total: u64) -> Bar {
        self.bar(what, total, "{msg:18} {wide_bar} {bytes}/{total_bytes} {eta}")
    }

    /// A bar that counts records.
    pub fn records(&self, what: &'static str, total: u64) -> Bar {
        self.bar(what, total, "{msg:18} {wide_bar} {human_pos}/{human_len} {eta}")
    }

    fn bar(&self, what: &'static str, total: u64, template: &str) -> Bar {
        let bar = if self.shown {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(10))
        } else {
            ProgressBar::hidden()
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        Bar {
            bar,
            shown: self.shown,
            next: std::cell::Cell::new(0),
            step: (total / 1000).max(1),
        }
    }
}

impl Bar {
    /// So much is done.
    #[inline]
    pub fn set(&self, done: u64) {
        if self.shown && done >= self.next.get() {
            self.next.set(done.saturating_add(self.step));
            self.bar.set_position(done);
        }
    }

    /// All is done.
    pub fn finish(self) {}
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
