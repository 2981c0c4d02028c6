//! What packets are said to have is what was put into them.

use proptest::prelude::*;
use rust_mm_trace::census::{events_from, Kinds};
use rust_mm_trace::record::{event_size, put_event, put_ref, EventHead, OFFSET_SIZE, REF_SIZE};
use rust_mm_trace::ring::Base;
use rust_mm_trace::stay::Slot;
use rust_mm_trace::uapi;

const BASE: Base = Base { seq: 0, time: 0 };

proptest! {
    #[test]
    fn events_are_counted_from_a_number_on(
        events in prop::collection::vec((1u64..4, 0usize..300, any::<bool>()), 0..50),
        from in 0u64..200,
    ) {
        let (mut content, mut seq, mut later) = (Vec::new(), 0, 0);
        for (step, payload, vtime) in events {
            seq += step;
            later += u64::from(seq >= from);
            let size = event_size(vtime, payload, 0).expect("it is small");
            let head = EventHead {
                kind: 1,
                size,
                flags: 0,
                seq,
                time: 5,
                tid: 0,
                tgid: 0,
                mm: 0,
                cpu: 0,
                vtime: vtime.then_some(7),
            };
            let mut event = vec![0; usize::from(size)];
            put_event(&mut event, &head, &vec![0xff; payload], &[]);
            content.extend(event);
        }
        prop_assert_eq!(events_from(&content, from), later);
    }

    #[test]
    fn references_are_counted_by_what_they_begin_with(
        pages in prop::collection::vec(0u64..0x400, 0..100),
        longer in any::<bool>(),
    ) {
        let mut expected = Kinds::default();
        let mut content = Vec::new();
        for flags in pages {
            let cont = flags & u64::from(uapi::VMTRACE_REF_CONT) != 0;
            let kind = flags & u64::from(uapi::VMTRACE_REF_KIND);
            match (cont, kind == u64::from(uapi::VMTRACE_REF_SEEN)) {
                (true, _) => expected.renewed += 1,
                (false, true) => expected.chances += 1,
                (false, false) => expected.admissions += 1,
            }
            let slot = Slot { page: 0x7fff_0000_1000 | flags, ..Slot::EMPTY };
            let mut record = [0; REF_SIZE + OFFSET_SIZE];
            if longer {
                put_ref::<{ REF_SIZE + OFFSET_SIZE }, true>(&mut record, &slot, &BASE);
                content.extend(record);
            } else {
                put_ref::<REF_SIZE, false>(&mut record, &slot, &BASE);
                content.extend(&record[..REF_SIZE]);
            }
        }
        let mut found = Kinds::default();
        found.count(&content, REF_SIZE + if longer { OFFSET_SIZE } else { 0 });
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_bytes_come_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(events_from(&bytes, 0) <= bytes.len() as u64);
        Kinds::default().count(&bytes, 0);
    }
}
