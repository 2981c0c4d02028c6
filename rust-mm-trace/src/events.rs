//! The names of events, and the classes that they are recorded by: as the header has them.

use crate::uapi;

/// Each event: its number, its name, and the bit of `VMTRACE_CLASS_*` that has it recorded; 0 if it is always
/// recorded, because which page an address refers to depends on it. The name is that of `VMTRACE_EV_*` in lower
/// case.
pub const ALL: &[(u32, &str, u32)] = &uapi::VMTRACE_EVENTS;

/// The class of each number.
const CLASSES: [u32; 128] = {
    let mut classes = [0; 128];
    let mut at = 0;
    while at < ALL.len() {
        let (number, _, class) = ALL[at];
        classes[number as usize] = class;
        at += 1;
    }
    classes
};

/// The class of events of this number, as in [`ALL`]; 0 also if there is no such event.
pub fn class(number: u16) -> u32 {
    CLASSES.get(usize::from(number)).copied().unwrap_or(0)
}

/// The name of events of this number.
pub fn name(number: u16) -> Option<&'static str> {
    let known = ALL.iter().find(|(n, ..)| *n == u32::from(number));
    known.map(|(_, name, _)| *name)
}
