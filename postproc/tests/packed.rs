//! Packed traces: the same records, and the same bytes when they are unpacked again.

use std::fs;
use std::mem::offset_of;
use std::path::Path;

use crate::first_form::in_first_form;
use crate::support::postproc;
use postproc::pipeline::Unwatched;
use postproc::testing::{TraceBuilder, check_bytes, mend_checksums, packets_of};
use postproc::trace::wire::{HEAD_SIZE, HEADER_SIZE};
use postproc::trace::{Form, Merge, Ref, Repacked, Step, Trace, repack};
use postproc::units::Prot;
use rust_mm_trace::uapi;

/// Each form but the one that stores records as they are.
const PACKED: [Form; 2] = [Form::Packed(None), Form::Packed(Some(1))];

fn copied(bytes: &[u8], form: Form) -> (Vec<u8>, Repacked) {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).expect("a trace");
    let mut out = Vec::new();
    let done = repack(&trace, form, &mut out, "memory", &mut Unwatched).expect("a copy");
    assert_eq!(done.bytes.1, out.len() as u64);
    (out, done)
}

/// All records in order, without their places in the file; and the damage that was found.
fn records(bytes: &[u8]) -> (Vec<String>, Vec<String>) {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).expect("a trace");
    let mut merge = Merge::new(&trace);
    let mut all = Vec::new();
    let mut batch = Vec::new();
    loop {
        batch.clear();
        let step = merge.fill(&mut batch, 100).expect("reading");
        all.extend(
            batch
                .iter()
                .map(|r| format!("{:?}", Ref { offset: 0, ..*r })),
        );
        match step {
            Step::Full => {}
            Step::Event(e) => all.push(format!("{} {} {} {:?}", e.seq, e.time_ns, e.mm.0, e.body)),
            Step::End => break,
        }
    }
    let found = trace
        .index()
        .damage
        .iter()
        .cloned()
        .chain(merge.take_damage());
    (all, found.map(|d| d.to_string()).collect())
}

/// Traces of this version that a kernel wrote, and some that it could have written.
fn traces() -> Vec<(String, Vec<u8>)> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let mut all = Vec::new();
    for entry in fs::read_dir(fixtures).expect("fixtures") {
        let path = entry.expect("entry").path();
        if path.extension().is_some_and(|e| e == "zst") {
            let packed = fs::read(&path).expect("fixture");
            let bytes = zstd::decode_all(&packed[..]).expect("zstd");
            all.push((path.display().to_string(), bytes));
        }
    }
    all.push(("sample".into(), TraceBuilder::sample().finish()));
    let mut b = TraceBuilder::new(2, 64);
    b.several_sets();
    b.header_mut().buffer_size = 4096;
    for mm in 1..=3 {
        b.set(0, 10 * mm, mm, mm);
        b.task(0, 10 * mm, 10 * mm, mm, "program");
        b.map_anon(0, 10 * mm, mm, 0x10_0000, 0x90_0000, Prot(3));
    }
    for i in 0..5000u64 {
        b.read_early(i % 7 * 10);
        let mm = 1 + (i / 40 % 3) as u32;
        b.touch((i & 1) as u32, 10 * mm, mm, 0x10_0000 + ((i % 700) << 12));
    }
    all.push(("sets".into(), b.finish()));
    all
}

#[test]
fn a_packed_trace_has_the_same_records_and_is_restored_byte_for_byte() {
    let mut smaller = 0;
    for (name, bytes) in traces() {
        let plain = records(&bytes);
        let good = check_bytes(&bytes).good;
        for form in PACKED {
            let (packed, done) = copied(&bytes, form);
            assert_eq!(records(&packed), plain, "{name} {form:?}");
            assert_eq!(check_bytes(&packed).good, good, "{name} {form:?}");
            smaller += u64::from(packed.len() * 2 < bytes.len());
            assert!(done.packed > 0, "{name} {form:?}");
            assert_eq!((done.damaged, done.packets >= done.packed), (0, true));
            let (restored, undone) = copied(&packed, Form::Unpacked);
            assert!(restored == bytes, "{name} {form:?}: other bytes came back");
            assert_eq!(undone.packed, 0);
            // Whatever form it had.
            assert!(copied(&packed, form).0 == packed, "{name} {form:?}");
            let (other, _) = copied(&packed, Form::Packed(Some(7)));
            assert_eq!(records(&other), plain, "{name}");
        }
        assert!(copied(&bytes, Form::Unpacked).0 == bytes, "{name}");
    }
    assert!(smaller > 20, "{smaller} copies are much smaller");
}

/// What is written is fixed: the packed traces of fixtures, by their sizes and checksums.
#[test]
fn packed_fixtures_are_the_same_bytes_as_ever() {
    let golden: [(&str, usize, u32); 5] = [
        ("fifo.vmt.zst", 20_507, 523_515_208),
        ("two-cpus.vmt.zst", 100_158, 972_234_981),
        ("clock.vmt.zst", 17_105, 1_113_980_528),
        ("virtual-time.vmt.zst", 11_775, 326_432_548),
        ("resize.vmt.zst", 91_716, 149_083_579),
    ];
    let traces = traces();
    let packed = golden.map(|(name, ..)| {
        let trace = traces.iter().find(|(path, _)| path.ends_with(name));
        let (packed, _) = copied(&trace.expect("a fixture").1, Form::Packed(None));
        (name, packed.len(), crc32c::crc32c(&packed))
    });
    assert_eq!(packed, golden);
}

#[test]
fn a_trace_in_the_first_form_is_read_and_packed_anew() {
    for (name, bytes) in traces() {
        let first = in_first_form(&bytes);
        assert!(first.len() < bytes.len(), "{name}");
        assert_eq!(records(&first), records(&bytes), "{name}");
        let (restored, _) = copied(&first, Form::Unpacked);
        assert!(restored == bytes, "{name}");
        let (packed, _) = copied(&bytes, Form::Packed(None));
        assert!(copied(&first, Form::Packed(None)).0 == packed, "{name}");
    }
}

/// No packet is packed in both forms, and no events in the second one.
#[test]
fn codecs_that_are_impossible_are_refused() {
    type P = uapi::vmtrace_packet;
    let (_, bytes) = traces().pop().expect("several");
    let (packed, _) = copied(&bytes, Form::Packed(None));
    let both = (uapi::VMTRACE_CODEC_PACK | uapi::VMTRACE_CODEC_PACK2) as u8;
    let mut kinds = [0; 2];
    for (start, _) in packets_of(&packed) {
        let mut wrong = packed.clone();
        let is_ref = u32::from(wrong[start + offset_of!(P, kind)]) == uapi::VMTRACE_STREAM_REF;
        let codec = &mut wrong[start + offset_of!(P, codec)];
        if *codec == 0 {
            continue;
        }
        *codec = match is_ref {
            true => both,
            false => uapi::VMTRACE_CODEC_PACK2 as u8,
        };
        mend_checksums(&mut wrong);
        let (_, damage) = records(&wrong);
        assert!(
            damage.iter().any(|d| d.contains("an unknown way")),
            "{damage:?}"
        );
        kinds[usize::from(is_ref)] += 1;
    }
    assert!(kinds[0] > 0 && kinds[1] > 10, "{kinds:?}");
}

#[test]
fn damage_costs_one_packet_and_is_kept_in_copies() {
    let (_, bytes) = traces().pop().expect("several");
    let (packed, _) = copied(&bytes, Form::Packed(None));
    let whole = records(&packed).0.len();
    let packets = packets_of(&packed);
    assert!(packets.len() > 20);
    for (start, end) in packets.iter().copied().step_by(5) {
        let mut spoiled = packed.clone();
        spoiled[(start + end) / 2 + HEAD_SIZE / 2] ^= 4;
        let (left, damage) = records(&spoiled);
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert!(left.len() < whole && left.len() + 400 > whole);
        let (copy, done) = copied(&spoiled, Form::Unpacked);
        assert_eq!(done.damaged, 1);
        let (same, found) = records(&copy);
        assert_eq!(same, left);
        // The same packet of the same stream, at another place.
        let what = |damage: &str| damage.split(": ").last().map(str::to_owned);
        assert_eq!(
            (found.len(), what(&found[0])),
            (1, what(&damage[0])),
            "{found:?} {damage:?}"
        );
        // Bytes that are no packet.
        let mut cut = packed[..start + 20].to_vec();
        cut.extend_from_slice(&[7; 1000]);
        cut.extend_from_slice(&packed[end..]);
        let (left, _) = records(&cut);
        assert_eq!(records(&copied(&cut, Form::Packed(Some(1))).0).0, left);
        // A trace without an end.
        let cut = &packed[..end - 3];
        assert_eq!(records(&copied(cut, Form::Unpacked).0).0, records(cut).0);
    }
}

/// A packed packet that is damaged, with a checksum that fits: it is refused as a whole, or
/// gives records; there is no panic.
#[test]
fn lies_in_packed_packets_do_no_harm() {
    type P = uapi::vmtrace_packet;
    let (_, bytes) = traces().pop().expect("several");
    let mut refused = 0;
    for form in PACKED {
        let (packed, _) = copied(&bytes, form);
        for (i, (start, end)) in packets_of(&packed).into_iter().enumerate() {
            for (at, value) in [
                (offset_of!(P, raw_size), 1 << 31),
                (offset_of!(P, raw_size), 0),
                (offset_of!(P, raw_size), 4096 + 64),
                (offset_of!(P, codec), 1 << 15),
                (offset_of!(P, codec), 0),
                (HEAD_SIZE, u32::MAX),
                (HEAD_SIZE + 12, u32::MAX),
                (HEAD_SIZE + 16 + i, 0x5050_5050),
            ] {
                let mut lying = packed.clone();
                let field = &mut lying[start..end];
                match at {
                    at if at == offset_of!(P, codec) => {
                        field[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
                    }
                    at => field[at..at + 4].copy_from_slice(&value.to_le_bytes()),
                }
                mend_checksums(&mut lying);
                let (_, damage) = records(&lying);
                refused += u64::from(!damage.is_empty());
            }
        }
    }
    assert!(refused > 200, "{refused} were refused");
}

/// A head says by itself that its packet is packed. In a trace that was unpacked, damaged packets are
/// left packed.
#[test]
fn packed_packets_are_read_whatever_the_header_says() {
    type H = uapi::vmtrace_header;
    let (_, bytes) = traces().pop().expect("several");
    let (mut packed, _) = copied(&bytes, Form::Packed(None));
    packed[offset_of!(H, features)] &= !(uapi::VMTRACE_PACK as u8);
    let crc = offset_of!(H, crc);
    let sum = crc32c::crc32c(&packed[..crc]);
    packed[crc..HEADER_SIZE].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(records(&packed), records(&bytes));
    // Not where it can't be: what ends the trace is never packed.
    type P = uapi::vmtrace_packet;
    let end = packets_of(&packed).last().expect("packets").1;
    packed[end + offset_of!(P, codec)] = 1;
    mend_checksums(&mut packed);
    let trace = Trace::from_bytes("memory", packed).expect("a trace");
    let damage = &trace.index().damage;
    assert!(
        damage.len() == 1 && damage[0].detail.contains("where none can be"),
        "{damage:?}"
    );
    assert!(trace.index().end.is_none());
}

#[test]
fn the_commands_say_what_they_did() {
    let dir = tempfile::tempdir().expect("a directory");
    let (_, bytes) = traces().pop().expect("several");
    fs::write(dir.path().join("t"), &bytes).expect("written");
    let run = |args: &[&str]| {
        let out = postproc(args, dir.path());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let (code, out, said) = run(&["pack", "t", "-o", "p"]);
    assert_eq!((code, out.as_str()), (Some(0), ""));
    assert!(said.contains("bytes each, instead of"), "{said}");
    let (code, out, _) = run(&["pack", "t", "--zstd=5", "--json", "-o", "z"]);
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(code, Some(0));
    let (before, after) = (&json["bytes"][0], &json["bytes"][1]);
    assert_eq!(before.as_u64(), Some(bytes.len() as u64));
    let size = fs::metadata(dir.path().join("z")).expect("there").len();
    assert_eq!(after.as_u64(), Some(size));
    for packed in ["p", "z"] {
        assert_eq!(run(&["unpack", packed, "-o", "back"]).0, Some(0));
        assert!(fs::read(dir.path().join("back")).expect("there") == bytes);
        assert_eq!(run(&["check", packed]).0, run(&["check", "t"]).0);
        assert_eq!(run(&["info", packed]).0, Some(0));
    }
    let (code, _, said) = run(&["pack", "t", "--json", "-o", "-"]);
    assert_eq!(code, Some(2), "{said}");
    assert_eq!(run(&["pack", "t", "--zstd=99", "-o", "x"]).0, Some(2));
    assert_eq!(run(&["pack", "none", "-o", "x"]).0, Some(2));
    assert!(!dir.path().join("x").exists());
}
