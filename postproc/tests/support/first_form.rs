//! Traces whose references are packed in the first form, which nothing writes any more.

use std::mem::offset_of;

use postproc::testing::{mend_checksums, packets_of};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE};
use rust_mm_trace::record::Extras;
use rust_mm_trace::{pack_first, uapi};

/// A trace whose references are packed as kernels packed them before.
pub fn in_first_form(bytes: &[u8]) -> Vec<u8> {
    type H = uapi::vmtrace_header;
    type P = uapi::vmtrace_packet;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
    let features = word(offset_of!(H, features));
    let has = |feature| features & feature != 0;
    let extras = Extras::new(has(uapi::VMTRACE_VTIME), has(uapi::VMTRACE_OFFSETS));
    let hint = pack_first::Hint {
        lag: word(offset_of!(H, evms_size)),
        shift: word(offset_of!(H, stay_shift)),
    };
    let (pages, ages, successors, ends) = pack_first::Tables::SIZES;
    let tables = pack_first::Tables::new(
        vec![Default::default(); pages],
        vec![0; ages],
        vec![0; successors],
        vec![0; ends],
        vec![0; pack_first::Tables::offsets(Extras::BOTH)],
    );
    let mut tables = tables.expect("all of the memory");
    let mut all = bytes[..HEADER_SIZE].to_vec();
    let mut at = HEADER_SIZE;
    for (start, end) in packets_of(bytes) {
        let (head, content) = bytes[start..end].split_at(HEAD_SIZE);
        at = end;
        let mut out = vec![0; content.len()];
        let is_ref = u32::from(head[offset_of!(P, kind)]) == uapi::VMTRACE_STREAM_REF;
        let len = is_ref.then(|| pack_first::pack(&mut tables, extras, hint, content, &mut out));
        let Some(len) = len.flatten() else {
            all.extend_from_slice(&bytes[start..end]);
            continue;
        };
        let mut head = head.to_vec();
        head[offset_of!(P, codec)] = uapi::VMTRACE_CODEC_PACK as u8;
        let raw = offset_of!(P, raw_size);
        head[raw..raw + 4].copy_from_slice(&(content.len() as u32).to_le_bytes());
        let size = offset_of!(P, content_size);
        head[size..size + 4].copy_from_slice(&(len as u32).to_le_bytes());
        all.extend(head);
        all.extend_from_slice(&out[..len]);
    }
    all.extend_from_slice(&bytes[at..]);
    mend_checksums(&mut all);
    all
}
