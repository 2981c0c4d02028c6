//! What a replay learns at the kernel's functions.

use crate::guest::Guest;
use crate::{Config, Hook, RAX, RCX, RDI, RDX, REGS_IP, RSI, RSP, fault, leave};
use oracle::model::Page;
use oracle::replay::Replay;
use oracle::set::{View, Word};

/// Lets `f` read the kernel's memory; what cannot be read is 0, and the failure is passed on.
pub fn with_words<R>(guest: &Guest, f: impl FnOnce(Word<'_>) -> R) -> Result<R, String> {
    let mut failed = Ok(());
    let done = f(&mut |at| {
        guest.word(at).unwrap_or_else(|why| {
            failed = Err(why);
            0
        })
    });
    failed.map(|()| done)
}

/// Where the kernel's set lies.
fn view(guest: &Guest, at: u64) -> Result<View, String> {
    let mut words = [0; View::WORDS];
    for (word, i) in words.iter_mut().zip(0..) {
        *word = guest.word(at + i * 8)?;
    }
    View::new(words).ok_or_else(|| "a trace begins that has no set".into())
}

/// `cpu` is at a hook.
pub fn on_hook(
    replay: &mut Replay,
    guest: &Guest,
    config: &Config,
    cpu: usize,
    hook: Hook,
) -> Result<(), String> {
    let get = |index: usize| guest.general(index);
    let page = || -> Result<Page, String> {
        Ok(Page {
            mm: get(RDI)? as u32,
            addr: get(RSI)? & !0xfff,
        })
    };
    // The compiler leaves out arguments that a function does not use.
    let whole_page = || -> Result<Page, String> {
        match get(RSI)? {
            addr if addr & 0xfff == 0 => page(),
            addr => Err(format!("{hook:?}: {addr:#x} is not the address of a page")),
        }
    };
    let stack = get(RSP)?;
    match hook {
        Hook::Begin => {
            let view = view(guest, config.view)?;
            with_words(guest, |word| replay.begin(view, word))?;
        }
        Hook::Quiesced => replay.quiesced(),
        Hook::End => {
            if let Some(log) = replay.end() {
                leave(&log, &config.log)?;
            }
        }
        Hook::SpaceComes => replay.spaces().comes(stack, get(RDI)?, false),
        Hook::SpaceJoins => replay.spaces().comes(stack, get(RDI)?, true),
        Hook::SpaceJoined => replay.spaces().joined(stack),
        Hook::SpaceNumbered => replay.space_numbered(stack),
        Hook::SpaceEntering => replay.entering(stack, get(RDI)?, get(RSI)?),
        Hook::SpaceEntered => replay.entered(stack, get(RAX)? as u32),
        Hook::SpaceLeaving => replay.leaving(get(RDI)?),
        Hook::Switching => replay.spaces().switching(cpu, get(RSI)?),
        Hook::Fault => replay.fault(cpu, &fault(guest)?),
        Hook::Fixup => replay.fixup(stack, get(RDI)?, get(RSI)?, get(RDX)?),
        Hook::Handling => replay.handling(cpu, stack, get(RSI)?, get(RDX)?, get(RCX)? != 0),
        Hook::Handled => replay.handled(stack),
        Hook::Touching => replay.handling(cpu, stack, get(RSI)?, get(RDX)?, true),
        Hook::Touched => match get(RAX)? & 0xff {
            0 => replay.untouched(stack),
            _ => replay.handled(stack),
        },
        Hook::Asking | Hook::AskingApart => {
            let (l, near) = (get(RDI)?, hook == Hook::Asking);
            with_words(guest, |word| replay.ask(cpu, stack, l, near, word))?;
        }
        Hook::Asked => with_words(guest, |word| replay.asked(cpu, word))?,
        Hook::Cleared => with_words(guest, |word| replay.cleared(cpu, word))?,
        Hook::Admit | Hook::GaveUp => {
            let admits = hook == Hook::Admit;
            with_words(guest, |word| replay.settles(cpu, admits, word))?;
        }
        Hook::Admitted => {
            let answer = get(RAX)?;
            with_words(guest, |word| replay.settled(cpu, Some(answer), word))?;
        }
        Hook::Aborted => with_words(guest, |word| replay.settled(cpu, None, word))?,
        Hook::Closed => replay.close(cpu, whole_page()?, get(RDX)?, get(RCX)? as u8),
        Hook::CloseDone => replay.closed(cpu),
        Hook::Done => replay.finished(cpu),
        Hook::Aged => replay.aged(cpu, get(RDI)?, get(RSI)?, get(RDX)? & 0xff != 0),
        Hook::Dirtied => replay.dirtied(cpu, page()?),
        Hook::Dropped => {
            // A page table without words has no page that was ever admitted.
            if get(RDX)? != 0 {
                replay.dropped(cpu, whole_page()?);
            }
        }
        Hook::DropLogged => replay.drop_logged(cpu),
        Hook::Pause => {
            let (on, scope) = (get(RDI)? & 0xff != 0, get(RSI)?);
            with_words(guest, |word| replay.pause(on, scope, word))?;
        }
        Hook::Resizing => {
            let (n, scope) = (get(RDI)?, get(RSI)?);
            with_words(guest, |word| replay.resizing(cpu, stack, n, scope, word))?;
        }
        Hook::BeginsAt => replay.begins_at(stack, get(RAX)?),
        Hook::Drain => {
            let (c, why) = (get(RDI)?, get(RDX)? as u8);
            with_words(guest, |word| replay.drain(cpu, c, why, word))?;
        }
        Hook::Resized => {
            let (n, scope) = (get(RDI)?, get(RSI)?);
            with_words(guest, |word| replay.resized(cpu, n, scope, word))?;
        }
        Hook::Switched => replay.switched(cpu),
        Hook::EpochAsked => replay.epoch_asked(cpu, get(RDI)?),
        Hook::EpochAnswered => replay.epoch_answered(cpu, get(RAX)?),
        Hook::Interrupted => replay.interrupted(cpu, guest.word(get(RDI)? + REGS_IP)?),
        Hook::PteSweeps => replay.pte_sweeps(cpu, get(RSI)?),
        Hook::PteSwept => with_words(guest, |word| replay.pte_swept(cpu, word))?,
        Hook::PteTaken => replay.pte_taken(cpu, get(RDI)?),
        Hook::PteTook => replay.pte_took(cpu, get(RAX)?),
        Hook::FlushDone => replay.flush_done(cpu),
        Hook::SwitchedOut | Hook::Changing | Hook::Changed | Hook::Clock => {
            return Err(format!("{hook:?} is not for a replay"));
        }
    }
    Ok(())
}
