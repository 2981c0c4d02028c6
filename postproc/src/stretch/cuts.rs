//! Where a trace is cut into stretches.

use std::ops::Range;

use crate::error::Result;
use crate::trace::{PacketHead, StreamKind, Trace};

/// The most places at which records are counted. They take 16 bytes of memory each.
const MOST_PLACES: usize = 1 << 20;

/// The most places in one packet.
const MOST_IN_PACKET: usize = 64;

/// Divides a trace into at most `count` stretches that have about as many records of references each.
///
/// Stretches are ranges of sequence numbers, in order. They cover all numbers: the first begins at 0, each
/// ends where the next one begins, and the last ends at [`u64::MAX`]. Only heads of packets
/// are read, and records are taken as evenly spread over the numbers of their packet. Of more than
/// a million packets, some stand for all.
///
/// # Errors
///
/// Reading failed.
pub fn cut(trace: &Trace, count: usize) -> Result<Vec<Range<u64>>> {
    let streams = trace.index().streams.iter();
    let streams = streams.filter(|s| s.id.kind == StreamKind::Ref);
    let packets: usize = streams.map(|s| s.packets.len()).sum();
    let step = packets.div_ceil(MOST_PLACES).max(1);
    let each = (MOST_PLACES / packets.max(1)).clamp(1, MOST_IN_PACKET);
    let mut places = Vec::new();
    trace.heads_of_references(step, |head| spread(head, each as u64, &mut places))?;
    places.sort_unstable();
    Ok(divide(&places, count as u64))
}

/// Takes the records of a packet as standing at up to so many places: numbers, and how many records
/// stand there.
fn spread(head: &PacketHead, most: u64, places: &mut Vec<(u64, u64)>) {
    let records = u64::from(head.records);
    let count = records.min(most);
    let span = head.last_seq.saturating_sub(head.first_seq);
    // Below 2^63, and of few parts.
    let part = |i: u64, whole: u64| (u128::from(whole) * u128::from(i) / u128::from(count)) as u64;
    places.extend((0..count).map(|i| {
        let here = part(i + 1, records) - part(i, records);
        (head.first_seq.saturating_add(part(i, span)), here)
    }));
}

/// The stretches between places behind which equal parts of the records begin.
fn divide(places: &[(u64, u64)], count: u64) -> Vec<Range<u64>> {
    // More stretches would have no place.
    let count = count.min(places.len() as u64);
    let total: u128 = places.iter().map(|&(_, records)| u128::from(records)).sum();
    let mut stretches = Vec::new();
    let (mut start, mut before) = (0, 0);
    // Begun so far, whether or not they have a number.
    let mut begun = 1;
    for &(seq, records) in places {
        while begun < count && before >= total * u128::from(begun) / u128::from(count) {
            if seq > start {
                stretches.push(start..seq);
                start = seq;
            }
            begun += 1;
        }
        before += u128::from(records);
    }
    stretches.push(start..u64::MAX);
    stretches
}

#[cfg(test)]
mod tests {
    use super::{cut, divide};
    use crate::testing::TraceBuilder;
    use crate::trace::Trace;

    #[test]
    fn equal_parts() {
        let places: Vec<(u64, u64)> = (1..=90).map(|i| (10 * i, 3)).collect();
        let all = u64::MAX;
        let whole: Vec<_> = std::iter::once(0..all).collect();
        assert_eq!(divide(&places, 1), whole);
        assert_eq!(divide(&places, 0), whole);
        assert_eq!(divide(&places, 3), [0..310, 310..610, 610..all]);
        assert_eq!(divide(&places, 1_000).len(), 90);
        assert_eq!(divide(&[], 7), whole);
        // What stands at one place cannot be divided.
        assert_eq!(
            divide(&[(4, 100), (4, 100), (9, 1)], 3),
            [0..4, 4..9, 9..all]
        );
    }

    #[test]
    fn parts_of_a_trace_on_several_cpus() {
        let mut b = TraceBuilder::new(3, 4);
        b.header_mut().buffer_size = 1024;
        b.program();
        for i in 0..9_000 {
            // One CPU is busy, the others rarely so.
            let cpu = if i % 50 == 0 { 1 + i as u32 % 2 } else { 0 };
            b.touch(cpu, 10, 1, 0x1000 + i % 8 * 0x1000);
        }
        let last = b.last_seq();
        let trace = Trace::from_bytes("memory", b.finish()).expect("a trace");
        let stretches = cut(&trace, 9).expect("heads are there");
        assert_eq!(stretches.len(), 9);
        assert_eq!((stretches[0].start, stretches[8].end), (0, u64::MAX));
        assert!(stretches.windows(2).all(|two| two[0].end == two[1].start));
        for stretch in &stretches {
            let numbers = stretch.end.min(last) - stretch.start;
            assert!((900..1_100).contains(&numbers), "{stretch:?}");
        }
    }
}
