//! What `postproc recover` rescues: every packet that is untouched, whatever happened to the rest.

use std::fs;
use std::path::Path;

use crate::support::postproc;
use postproc::pipeline::Unwatched;
use postproc::testing::{TraceBuilder, packets_of};
use postproc::trace::wire::HEADER_SIZE;
use postproc::trace::{Recovered, StreamKind, Trace, recover};
use proptest::prelude::*;

fn recovered(bytes: &[u8]) -> (Vec<u8>, Recovered) {
    let trace = Trace::damaged_from_bytes("memory", bytes.to_vec()).expect("a header");
    let mut out = Vec::new();
    let done = recover(&trace, &mut out, "memory", &mut Unwatched).expect("a copy");
    assert_eq!(done.bytes, out.len() as u64);
    (out, done)
}

/// Traces that a kernel wrote, up to 300 KB, and some that it could have written.
fn traces() -> Vec<Vec<u8>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1");
    let mut all = vec![
        TraceBuilder::sample_of_many_packets().finish(),
        TraceBuilder::sample_of_filtered().finish(),
    ];
    let mut paths: Vec<_> = fs::read_dir(fixtures)
        .expect("fixtures")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "zst"))
        .collect();
    paths.sort();
    for path in paths {
        let bytes = zstd::decode_all(&fs::read(path).expect("fixture")[..]).expect("zstd");
        all.push(bytes);
    }
    all
}

/// The beginning and the end of each packet, the END packet included.
fn all_packets(bytes: &[u8]) -> Vec<(usize, usize)> {
    let trace = Trace::from_bytes("memory", bytes.to_vec()).expect("a trace");
    let end = trace
        .index()
        .end
        .as_ref()
        .map(|e| (e.offset as usize, e.end as usize));
    let mut packets = packets_of(bytes);
    packets.extend(end);
    packets
}

#[test]
fn a_whole_trace_is_copied_as_it_is() {
    for bytes in traces() {
        let stop = all_packets(&bytes).last().map_or(0, |p| p.1);
        let (out, done) = recovered(&bytes);
        assert!(out == bytes[..stop], "the copy differs");
        assert!(done.complete && done.end, "{done:?}");
    }
}

#[test]
fn what_is_missing_is_named() {
    let bytes = TraceBuilder::sample_of_many_packets().finish();
    let packets = packets_of(&bytes);
    let trace = Trace::from_bytes("memory", bytes.clone()).expect("a trace");
    let streams = &trace.index().streams;
    let stream = streams
        .iter()
        .find(|s| s.id.kind == StreamKind::Ref && s.packets.len() > 3)
        .expect("a stream of several packets");
    // Its second and third packets are a hole and older bytes.
    let offsets: Vec<u64> = stream.packets.iter().collect();
    let mut damaged = bytes.clone();
    for (which, byte) in [(1, 0), (2, 0xa5)] {
        let (start, end) = *packets
            .iter()
            .find(|p| p.0 as u64 == offsets[which])
            .expect("a packet");
        damaged[start..end].fill(byte);
    }
    let (out, done) = recovered(&damaged);
    assert!(done.end && !done.complete);
    let [missing] = &done.missing[..] else {
        panic!("{:?}", done.missing);
    };
    assert_eq!(
        (missing.stream, missing.first_packet, missing.last_packet),
        (stream.id, 1, 2)
    );
    assert!(
        missing
            .after_seq
            .is_some_and(|after| after < missing.before_seq)
    );
    assert_eq!(done.packets_written, Some(done.packets + 2));
    // What is left has the same gap, but nothing more to leave out.
    let (again, second) = recovered(&out);
    assert!(again == out && second.skipped.is_empty());
    assert_eq!(second.missing, done.missing);
}

#[test]
fn the_command_says_what_it_did() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let run = |args: &[&str]| {
        let output = postproc(args, directory.path());
        let text = [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
        (output.status.code(), text.concat())
    };
    let good = TraceBuilder::sample_of_many_packets().finish();
    let cut = &good[..good.len() - 700];
    fs::write(at("good"), &good).unwrap();
    fs::write(at("cut"), cut).unwrap();
    let (code, text) = run(&["recover", "good", "-o", "out"]);
    assert!(code == Some(0) && text.ends_with("\ncomplete\n"), "{text}");
    assert_eq!(fs::read(at("out")).unwrap(), good);
    let (code, text) = run(&["recover", "cut", "-o", "out"]);
    assert!(
        code == Some(1) && text.contains("there is no END packet"),
        "{text}"
    );
    let (_, json) = run(&["recover", "cut", "-o", "out", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["end"], &json["complete"]),
        (&false.into(), &false.into())
    );
    // Other commands use what is left, and say that it is not whole.
    for args in [
        &["check", "out"][..],
        &["simulate", "out", "--policy", "lru", "--size", "8"],
        &["info", "out"],
    ] {
        let (code, text) = run(args);
        assert!(
            code == Some(1) && text.contains("END packet"),
            "{args:?}: {text}"
        );
    }
    // The header is lost.
    let mut headless = good.clone();
    headless[..3000].fill(0);
    fs::write(at("headless"), &headless).unwrap();
    let (code, text) = run(&["recover", "headless", "-o", "out2"]);
    assert!(
        code == Some(2) && text.contains("--header-of") && !at("out2").exists(),
        "{text}"
    );
    let (code, text) = run(&["recover", "headless", "--header-of", "cut", "-o", "out2"]);
    assert!(
        code == Some(1) && text.contains("the header is damaged"),
        "{text}"
    );
    assert_eq!(fs::read(at("out2")).unwrap(), good);
    let mut other = TraceBuilder::sample();
    other.header_mut().uuid = [9; 16];
    fs::write(at("other"), other.finish()).unwrap();
    for trace in ["headless", "good"] {
        let (code, text) = run(&["recover", trace, "--header-of", "other", "-o", "out3"]);
        assert!(
            code == Some(2) && text.contains("the header of trace"),
            "{text}"
        );
    }
    fs::write(at("nothing"), vec![0; 9000]).unwrap();
    let (code, text) = run(&["recover", "nothing", "-o", "out3"]);
    assert!(
        code == Some(2) && text.contains("not a kVMTrace trace"),
        "{text}"
    );
}

/// What happened to a part of a file.
#[derive(Clone, Debug)]
enum Harm {
    Zeros,
    Bytes(u64),
    /// Bytes of another place of the same file.
    Stale(prop::sample::Index),
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        Just(Harm::Zeros),
        any::<u64>().prop_map(Harm::Bytes),
        any::<prop::sample::Index>().prop_map(Harm::Stale),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whichever bytes are destroyed, each packet that is untouched is in the output.
    #[test]
    fn every_untouched_packet_is_rescued(
        which in any::<prop::sample::Index>(),
        cut in prop::option::of(any::<prop::sample::Index>()),
        harms in prop::collection::vec((any::<prop::sample::Index>(), 1usize..6000, harm()), 0..8),
    ) {
        let all = traces();
        let whole = &all[which.index(all.len())];
        let mut bytes = whole.clone();
        if let Some(cut) = cut {
            bytes.truncate(HEADER_SIZE + cut.index(whole.len() - HEADER_SIZE));
        }
        for (at, len, harm) in harms {
            if bytes.len() <= HEADER_SIZE {
                break;
            }
            let start = HEADER_SIZE + at.index(bytes.len() - HEADER_SIZE);
            let end = bytes.len().min(start + len);
            match harm {
                Harm::Zeros => bytes[start..end].fill(0),
                Harm::Bytes(mut x) => for byte in &mut bytes[start..end] {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    *byte = (x >> 56) as u8;
                },
                Harm::Stale(from) => {
                    let from = from.index(whole.len() - (end - start));
                    bytes[start..end].copy_from_slice(&whole[from..from + end - start]);
                }
            }
        }
        let (out, done) = recovered(&bytes);
        let mut rest = &out[HEADER_SIZE..];
        // Nothing is read after an END packet, not even if it is a stale copy.
        let packets = all_packets(whole);
        let last = packets.last().map(|&(start, end)| &whole[start..end]);
        let stop = last.and_then(|end| memchr::memmem::find(&bytes, end));
        let mut complete = true;
        for (start, end) in packets {
            let untouched = bytes.get(start..end) == Some(&whole[start..end]);
            complete &= untouched;
            if !untouched || stop.is_some_and(|stop| start > stop) {
                continue;
            }
            let packet = &whole[start..end];
            let place = memchr::memmem::find(rest, packet);
            let Some(place) = place else {
                return Err(TestCaseError::fail(format!("the packet at {start} is lost")));
            };
            rest = &rest[place + packet.len()..];
        }
        prop_assert_eq!(done.complete, complete);
    }
}
