//! What a replay learns at the kernel's functions.

use crate::guest::Guest;
use crate::{Config, Hook, R8, R9, RAX, RCX, RDI, RDX, REGS_IP, RSI, RSP, fault, leave};
use oracle::model::Page;
use oracle::replay::{L_EPOCH, Op, R_VICTIM_ORDINAL, Replay};

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
    let stack = get(RSP)?;
    match hook {
        Hook::Begin => replay.begin(),
        Hook::Seal => replay.seal(),
        Hook::End => {
            if let Some(log) = replay.end() {
                leave(&log, &config.log)?;
            }
        }
        Hook::SpaceComes => replay.spaces().comes(stack, get(RDI)?, false),
        Hook::SpaceJoins => replay.spaces().comes(stack, get(RDI)?, true),
        Hook::SpaceJoined => replay.spaces().joined(stack),
        Hook::SpaceNumbered => replay.space_numbered(stack),
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
        Hook::Reserve => {
            let (r, epoch) = (get(RDI)?, get(RDX)? as u32);
            replay.enter(stack, Op::Reserve { r, epoch });
        }
        Hook::Hand => {
            let r = get(RDI)?;
            let op = Op::Hand {
                r,
                ordinal: guest.word(r + R_VICTIM_ORDINAL)?,
                may: get(RCX)? & 0xff != 0,
                epoch: get(R9)? as u32,
            };
            replay.enter(stack, op);
        }
        Hook::Switched => replay.switched(cpu),
        Hook::EpochAsked => replay.epoch_asked(stack, get(RDI)?),
        Hook::EpochAnswered => replay.epoch_answered(stack, get(RAX)?),
        Hook::Answered => replay.answered(stack, get(RAX)?),
        Hook::Sweep => {
            let ordinal = get(RDI)?;
            replay.enter(stack, Op::Sweep { ordinal });
        }
        Hook::Aged => {
            let young = get(RDX)? & 0xff != 0;
            let page = page()?;
            replay.enter(stack, Op::Aged { page, young });
        }
        Hook::Evict => {
            let op = Op::Evict {
                ordinal: get(RDI)?,
                why: get(RDX)? as u8,
                now: get(RCX)?,
                end: get(R8)?,
            };
            replay.enter(stack, op);
        }
        Hook::AdmitLocked => {
            let l = get(RDI)?;
            // The word's first half is the count of mmap_lock's writers.
            let epoch = (guest.word(l + L_EPOCH - 4)? >> 32) as u32;
            replay.enter(stack, Op::AdmitLocked { l, epoch });
        }
        Hook::Admit => replay.enter(stack, Op::Admit { a: get(RDI)? }),
        Hook::Admitted => replay.admitted(stack, get(RAX)?),
        Hook::GaveUp => {
            let ordinal = get(RDI)?;
            replay.enter(stack, Op::Abort { ordinal });
        }
        Hook::Closed => {
            let op = Op::Close {
                page: page()?,
                last: get(RDX)?,
                why: get(RCX)? as u8,
            };
            replay.enter(stack, op);
        }
        Hook::Dirtied => {
            let page = page()?;
            replay.enter(stack, Op::Dirtied { page });
        }
        Hook::Dropped => {
            let page = page()?;
            replay.enter(stack, Op::Dropped { page });
        }
        Hook::DropLogged => replay.enter(stack, Op::DropLogged),
        Hook::Shrink => replay.enter(stack, Op::Shrink { n: get(RSI)? }),
        Hook::Resizing => {
            let [from, to] = [get(RDI)? as u32, get(RSI)? as u32].map(u64::from);
            replay.resizing(stack, from, to);
        }
        Hook::Interrupted => replay.interrupted(cpu, guest.word(get(RDI)? + REGS_IP)?),
        Hook::PteSwept => replay.pte_swept(cpu, stack, get(RSI)?),
        Hook::PteTaken => replay.pte_taken(stack, get(RDI)?),
        Hook::PteTook => replay.pte_took(stack, get(RAX)?),
        Hook::Unlock => {
            if config.lock.contains(&get(RDI)?) {
                let mut failed = Ok(());
                replay.unlock(cpu, stack, &mut |at| {
                    guest.word(at).unwrap_or_else(|why| {
                        failed = Err(why);
                        0
                    })
                });
                return failed;
            }
        }
        Hook::FlushDone => replay.flush_done(cpu),
        Hook::SwitchedOut => return Err(format!("{hook:?} is not for a replay")),
    }
    Ok(())
}
