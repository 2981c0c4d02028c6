//! A value that threads change in a fixed order.

use std::sync::{Condvar, Mutex, PoisonError};

/// A value, and whose turn it is.
pub struct InOrder<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    value: T,
    /// The next turn.
    turn: u64,
    /// Turns that were given up: no later one comes.
    is_broken: bool,
}

impl<T> InOrder<T> {
    /// A value whose first turn is turn 0.
    pub fn new(value: T) -> Self {
        let state = State {
            value,
            turn: 0,
            is_broken: false,
        };
        InOrder {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Changes the value when the turn has come. `None` if a thread before has given up.
    pub fn at<R>(&self, turn: u64, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        let state = self.state.lock().ok()?;
        let waiting = |state: &mut State<T>| state.turn != turn && !state.is_broken;
        let mut state = self.changed.wait_while(state, waiting).ok()?;
        if state.is_broken {
            return None;
        }
        let result = change(&mut state.value);
        state.turn += 1;
        self.changed.notify_all();
        Some(result)
    }

    /// No later turn comes: whoever waits for one is woken.
    pub fn give_up(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_broken = true;
        self.changed.notify_all();
    }
}
