// SPDX-License-Identifier: GPL-2.0

//! KUnit tests of packing. Those in user space (rust-mm-trace/tests) try more content; these show
//! that the kernel's build of it does the same.

use crate::{
    pack::{self, Hint, Tables},
    pack_events, pack_refs,
    record::{self, put, EventHead, Extras, REF_SIZE},
    unpack_refs::unpack,
};
use kernel::prelude::*;

/// References of a loop over 70 pages by a set of 64, FIFO.
fn references() -> Result<KVVec<u8>> {
    let mut content = KVVec::new();
    for i in 0..1000u32 {
        let page = i % 70;
        let mut raw = [0; REF_SIZE];
        let flags = u64::from(page == 7);
        put(
            &mut raw,
            0,
            &(0x7000_0000 | u64::from(page) << 12 | flags).to_le_bytes(),
        );
        put(&mut raw, 8, &i.to_le_bytes());
        put(&mut raw, 12, &(i * 600).to_le_bytes());
        put(&mut raw, 16, &77u32.to_le_bytes());
        put(&mut raw, 20, &3u32.to_le_bytes());
        put(&mut raw, 24, &600u32.to_le_bytes());
        put(&mut raw, 28, &(5000 + page).to_le_bytes());
        content.extend_from_slice(&raw, GFP_KERNEL)?;
    }
    Ok(content)
}

fn tables() -> Result<Tables> {
    let (pages, successors) = Tables::SIZES;
    Tables::new(
        KVVec::from_elem(pack::Page::default(), pages, GFP_KERNEL)?,
        KVVec::from_elem(0, successors, GFP_KERNEL)?,
        KVVec::from_elem(0, Tables::offsets(Extras::OFFSET), GFP_KERNEL)?,
    )
    .ok_or(EINVAL)
}

#[kunit_tests(rust_vmtrace_pack)]
mod tests {
    use super::*;

    #[test]
    fn references_come_back() -> Result {
        let content = references()?;
        let mut tables = tables()?;
        let mut out = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        let hint = Hint { lag: 64, shift: 6 };
        let len =
            pack_refs::pack(&mut tables, Extras::NONE, hint, &content, &mut out).ok_or(EINVAL)?;
        assert!(len < 4500);
        let packed = out.get(..len).ok_or(EINVAL)?;
        let mut back = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        assert!(unpack(&mut tables, Extras::NONE, packed, &mut back));
        assert!(back[..] == content[..]);
        let short = packed.get(1..).ok_or(EINVAL)?;
        assert!(!unpack(&mut tables, Extras::NONE, short, &mut back));
        Ok(())
    }

    /// The same with offsets.
    #[test]
    fn offsets_come_back() -> Result {
        let mut content: KVVec<u8> = KVVec::new();
        for (i, r) in references()?.chunks_exact(REF_SIZE).enumerate() {
            content.extend_from_slice(r, GFP_KERNEL)?;
            let page = (i % 70) as u64;
            let offset = match i {
                500 => crate::stay::NO_OFFSET,
                501 => 0x1f_fff0,
                502 => u64::MAX,
                _ => page * 57 + (i % 11 / 10) as u64,
            };
            content.extend_from_slice(&offset.to_le_bytes(), GFP_KERNEL)?;
        }
        let mut tables = tables()?;
        let mut out = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        let hint = Hint { lag: 64, shift: 6 };
        let extras = Extras::OFFSET;
        let len = pack_refs::pack(&mut tables, extras, hint, &content, &mut out).ok_or(EINVAL)?;
        assert!(len < 5000);
        let packed = out.get(..len).ok_or(EINVAL)?;
        let mut back = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        assert!(unpack(&mut tables, extras, packed, &mut back));
        assert!(back[..] == content[..]);
        Ok(())
    }

    /// So kvmtraced writes the content as it is.
    #[test]
    fn content_that_gets_no_smaller_is_refused() -> Result {
        let mut tables = tables()?;
        let mut content = KVVec::from_elem(0u8, 100 * REF_SIZE, GFP_KERNEL)?;
        let mut random = 1u64;
        for byte in content.iter_mut() {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            *byte = (random >> 56) as u8;
        }
        let mut out = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        let hint = Hint { lag: 64, shift: 6 };
        assert!(pack_refs::pack(&mut tables, Extras::NONE, hint, &content, &mut out).is_none());
        assert!(pack_events::pack(&content, &mut out).is_none());
        Ok(())
    }

    #[test]
    fn events_come_back() -> Result {
        let mut content: KVVec<u8> = KVVec::new();
        for i in 0..50u64 {
            let head = EventHead {
                kind: 2,
                size: 64,
                flags: 0,
                seq: i + 1,
                time: i * 100,
                tid: 5,
                tgid: 5,
                mm: 1,
                cpu: 0,
                vtime: None,
            };
            let mut raw = [0; 64];
            record::put_event(&mut raw, &head, &(i << 12).to_le_bytes(), &[]);
            content.extend_from_slice(&raw, GFP_KERNEL)?;
        }
        let mut out = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        let len = pack_events::pack(&content, &mut out).ok_or(EINVAL)?;
        assert!(len < 700);
        let packed = out.get(..len).ok_or(EINVAL)?;
        let mut back = KVVec::from_elem(0u8, content.len(), GFP_KERNEL)?;
        assert!(pack_events::unpack(packed, &mut back));
        assert!(back[..] == content[..]);
        let short = packed.get(1..).ok_or(EINVAL)?;
        assert!(!pack_events::unpack(short, &mut back));
        Ok(())
    }
}
