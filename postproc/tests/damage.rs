//! Traces that are cut or flipped: never a panic, never «good».

use postproc::canon::PageMode;
use postproc::check::{CheckOptions, Checker};
use postproc::error::Error;
use postproc::export::{self, ExportConsumer};
use postproc::pipeline::{self, Consumer, Unwatched};
use postproc::report::Statistics;
use postproc::sim::{LruCurve, SimulationConsumer};
use postproc::testing::{TraceBuilder, packets_of};
use postproc::trace::wire::HEADER_SIZE;
use postproc::trace::{DamageKind, Trace};
use proptest::prelude::*;

/// Runs everything over a trace; true if it opens and is called good by all
/// rules, or by those that every command applies.
fn called_good(bytes: Vec<u8>) -> bool {
    let Ok(trace) = Trace::from_bytes("memory", bytes) else {
        return false;
    };
    let mut checker = Checker::new(CheckOptions {
        allow_loss: true,
        examples: 5,
    });
    let mut statistics = Statistics::default();
    let mut simulation = SimulationConsumer::default();
    simulation.curve = Some(Box::new(LruCurve::default()));
    let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker, &mut statistics, &mut simulation];
    pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
    let mut integrity = Checker::integrity(CheckOptions::default());
    pipeline::run(
        &trace,
        PageMode::Virtual,
        &mut Unwatched,
        &mut [&mut integrity],
    )
    .unwrap();
    checker.report().good || integrity.report().good
}

#[test]
fn cut_at_every_byte() {
    let bytes = TraceBuilder::sample_of_many_packets().finish();
    assert!(called_good(bytes.clone()));
    for len in 0..bytes.len() {
        assert!(
            !called_good(bytes[..len].to_vec()),
            "cut to {len} of {} bytes",
            bytes.len()
        );
    }
}

#[test]
fn every_bit_matters() {
    let bytes = TraceBuilder::sample().finish();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(!called_good(flipped), "bit {} of byte {at}", at % 8);
    }
}

/// The same of a trace with filters.
#[test]
fn every_byte_of_a_filtered_trace_matters() {
    let bytes = TraceBuilder::sample_of_filtered().finish();
    assert!(called_good(bytes.clone()));
    for at in 0..bytes.len() {
        assert!(!called_good(bytes[..at].to_vec()), "cut to {at}");
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (at % 8);
        assert!(!called_good(flipped), "bit {} of byte {at}", at % 8);
    }
}

/// What the event of a filter says may be nonsense, with checksums that hold.
#[test]
fn nonsense_about_a_filter_is_found() {
    use postproc::filter::Clause;
    use postproc::testing::{check_bytes, mend_checksums};
    let bytes = TraceBuilder::sample_of_filtered().finish();
    let text = b"addr < 0x5000";
    let at = bytes
        .windows(text.len())
        .position(|part| part == text)
        .unwrap();
    let (at_tests, mut good) = (at - 8, 0);
    // The number of tests, the length, and the text.
    for at in at - 8..at + text.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            mend_checksums(&mut changed);
            if !check_bytes(&changed).good {
                continue;
            }
            good += 1;
            // There may be another number of tests, and the references fit some other texts, too.
            let field = &changed[at_tests..at_tests + 8 + text.len()];
            assert!(
                field[..4] <= [0xff, 0, 0, 0][..] && field[0] > 0,
                "{field:?}"
            );
            assert_eq!(field[4], text.len() as u8);
            let expr = std::str::from_utf8(&field[8..]).unwrap();
            assert!(Clause::of_kernel(expr).is_ok(), "{expr}");
        }
    }
    assert!((1..40).contains(&good), "{good}");
}

#[test]
fn what_follows_the_end_does_not_matter() {
    let mut bytes = TraceBuilder::sample().finish();
    let packet = packets_of(&bytes)[0];
    bytes.extend_from_within(packet.0..packet.1);
    bytes.extend_from_slice(&[0xa5; 1000]);
    assert!(called_good(bytes));
}

#[test]
fn a_bad_packet_costs_that_packet() {
    let bytes = TraceBuilder::sample_of_many_packets().finish();
    let whole = Trace::from_bytes("memory", bytes.clone()).unwrap();
    let records = |trace: &Trace| {
        let outcome = pipeline::run(trace, PageMode::Canonical, &mut Unwatched, &mut []).unwrap();
        (outcome.world.records + outcome.world.events, outcome.damage)
    };
    let (all, _) = records(&whole);
    for (start, end) in packets_of(&bytes) {
        // The magic, the length, and a byte of the content.
        for at in [start, start + 100, start + 120] {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let (left, damage) = records(&Trace::from_bytes("memory", bad).unwrap());
            assert_eq!(damage.len(), 1, "{damage:?}");
            assert_eq!((damage[0].start, damage[0].end), (start as u64, end as u64));
            assert!(all - left > 0 && all - left <= 8, "{} records", all - left);
        }
    }
}

#[test]
fn a_packet_of_another_trace_is_named() {
    let mut bytes = TraceBuilder::sample_of_many_packets().finish();
    let (start, _) = packets_of(&bytes)[1];
    bytes[start + 8] ^= 0xff;
    let trace = Trace::from_bytes("memory", bytes).unwrap();
    assert_eq!(trace.index().damage[0].kind, DamageKind::ForeignUuid);
}

#[test]
fn each_bad_header_has_its_error() {
    let good = TraceBuilder::sample().finish();
    let open = |bytes: Vec<u8>| Trace::from_bytes("t", bytes).err().unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert!(matches!(open(Vec::new()), Error::Empty { .. }));
    assert!(matches!(
        open(b"PERFILE2....".to_vec()),
        Error::Foreign { .. }
    ));
    assert!(
        open(b"PERFILE2....".to_vec())
            .to_string()
            .contains("perf.data")
    );
    assert!(open(vec![0; 9000]).to_string().contains("all zero"));
    assert!(matches!(
        open(good[..100].to_vec()),
        Error::ShortHeader { len: 100, .. }
    ));
    assert!(matches!(
        open(good[..5].to_vec()),
        Error::ShortHeader { len: 5, .. }
    ));
    assert!(matches!(
        open(changed(8, 9)),
        Error::Version { found: 9, .. }
    ));
    assert!(matches!(open(changed(300, 1)), Error::HeaderCrc { .. }));
    let mut builder = TraceBuilder::sample();
    builder.header_mut().page_shift = 40;
    assert!(matches!(
        open(builder.finish()),
        Error::HeaderField {
            field: "page_shift",
            ..
        }
    ));
    assert!(matches!(
        Trace::open("/nonexistent").err(),
        Some(Error::Unreadable { .. })
    ));
    // A directory may have pieces.
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        Trace::open(directory.path()).err(),
        Some(Error::NoPieces { .. })
    ));
    assert!(matches!(
        Trace::open("/dev/null").err(),
        Some(Error::NotAFile { .. })
    ));
}

/// A feature may change what a record looks like, as virtual time does.
#[test]
fn unknown_features_are_refused_by_their_bits() {
    let of = |features: u64| {
        let mut builder = TraceBuilder::sample();
        builder.header_mut().features |= features;
        Trace::from_bytes("t", builder.finish()).err()
    };
    for bit in 0..64 {
        let refused = of(1 << bit);
        match bit {
            // AGAIN, EARLY, PACK, ZSTD, PAUSABLE and FILTERED change no record, nor does REGIONS, and PIECE and
            // that of parts say that there are other packets; VTIME without a clock is another error. The
            // records are not those that OFFSETS would make.
            0 | 2 | 3 | 5 | 6 | 7 | 10 | 16 | 32 => assert!(refused.is_none(), "{refused:?}"),
            4 => assert!(
                !matches!(refused, Some(Error::Features { .. })),
                "{refused:?}"
            ),
            1 => assert!(matches!(refused, Some(Error::HeaderField { .. }))),
            _ => assert!(
                matches!(&refused, Some(Error::Features { unknown, .. }) if *unknown == 1 << bit),
                "{refused:?}"
            ),
        }
    }
    assert_eq!(
        of(1 << 40 | 1 << 8 | 1).unwrap().to_string(),
        "t: the trace has features that this program does not know: bits 8, 40 of the feature bits \
         0x10000000101 at byte 48. Such a feature may change the size of records: use the tools \
         that came with the kernel that wrote the trace, or newer ones"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Bits flipped anywhere, several at once.
    #[test]
    fn flipped_bits(flips in prop::collection::vec((any::<prop::sample::Index>(), 0..8u32), 1..6)) {
        let bytes = TraceBuilder::sample_of_many_packets().finish();
        let mut flipped = bytes.clone();
        for (at, bit) in flips {
            flipped[at.index(bytes.len())] ^= 1 << bit;
        }
        prop_assume!(flipped != bytes);
        prop_assert!(!called_good(flipped));
    }

    /// Anything behind a good header.
    #[test]
    fn noise(noise in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut bytes = TraceBuilder::sample().finish();
        bytes.truncate(HEADER_SIZE);
        bytes.extend_from_slice(&noise);
        prop_assert!(!called_good(bytes));
    }
}

/// What rules find in a trace whose bytes are nonsense here and there while all checksums
/// hold: the writer, not the disk, is at fault.
#[derive(Debug, Default, PartialEq)]
struct Found {
    /// Traces in which no packet is damaged: the nonsense was read.
    read: u32,
    /// Of these, traces that are called good.
    good: u32,
    /// Of the good ones, traces with other numbers of references or events.
    other: u32,
}

/// Changes a byte of a trace, mends the checksums, and checks the trace, for each of many
/// bytes of every packet.
fn nonsense(mend: fn(&mut [u8]), checker: fn(CheckOptions) -> Checker) -> Found {
    let bytes = TraceBuilder::sample_of_many_packets().finish();
    let run = |bytes: Vec<u8>| {
        let trace = Trace::from_bytes("memory", bytes).ok()?;
        let mut checker = checker(CheckOptions::default());
        let consumers: &mut [&mut dyn Consumer] = &mut [&mut checker];
        let outcome =
            pipeline::run(&trace, PageMode::Canonical, &mut Unwatched, consumers).unwrap();
        let counts = (outcome.world.records, outcome.world.events);
        Some((outcome.damage.is_empty(), checker.report().good, counts))
    };
    let (.., whole) = run(bytes.clone()).unwrap();
    let mut found = Found::default();
    for (start, end) in packets_of(&bytes) {
        for at in (start..end).step_by(11) {
            let mut changed = bytes.clone();
            changed[at] ^= [0x01, 0x80, 0xff][at % 3];
            mend(&mut changed);
            if let Some((true, good, counts)) = run(changed) {
                found.read += 1;
                found.good += u32::from(good);
                found.other += u32::from(good && counts != whole);
            }
        }
    }
    found
}

#[test]
fn nonsense_with_good_checksums() {
    let found = nonsense(postproc::testing::mend_checksums, Checker::new);
    assert!(found.read > 500 && found.other == 0, "{found:?}");
    // Of a byte in three nothing says what it must be: of names, times, frames.
    let notices = |found: &Found| found.good * 5 < found.read * 2;
    assert!(notices(&found), "{found:?}");
    // It is by their rules that records are judged, and by sums that hold that they are read.
    let by_form = nonsense(postproc::testing::mend_checksums, Checker::integrity);
    assert!(!notices(&by_form), "{by_form:?}");
    assert_eq!(nonsense(|_| {}, Checker::new).read, 0);
}

#[test]
fn an_export_of_a_bad_trace_does_not_panic() {
    let mut bytes = TraceBuilder::sample_of_many_packets().finish();
    bytes[HEADER_SIZE + 130] ^= 1;
    let trace = Trace::from_bytes("memory", bytes).unwrap();
    let directory = tempfile::tempdir().unwrap();
    for format in export::registry() {
        let path = directory.path().join(format.id);
        let mut export =
            ExportConsumer::create(format, &path, Default::default(), Default::default()).unwrap();
        pipeline::run(
            &trace,
            PageMode::Canonical,
            &mut Unwatched,
            &mut [&mut export],
        )
        .unwrap();
        export.commit().unwrap();
    }
}
