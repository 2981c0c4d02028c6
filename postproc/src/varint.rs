//! Numbers in as few bytes as they need: seven bits in each byte, the lowest first. All bytes but the last
//! one have the highest bit set (LEB128).

/// Appends a number.
pub(crate) fn put(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Appends a number with a sign: small ones are short, whatever their sign.
pub(crate) fn put_signed(value: i64, to: &mut Vec<u8>) {
    put((value << 1 ^ value >> 63) as u64, to);
}

/// Takes a number from the front. `None` if there is none, or one of more than 64 bits.
pub(crate) fn take(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first()?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        value |= bits << shift;
        if bits << shift >> shift != bits {
            return None;
        }
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Takes a number with a sign from the front.
pub(crate) fn take_signed(from: &mut &[u8]) -> Option<i64> {
    let value = take(from)?;
    Some((value >> 1) as i64 ^ -((value & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let mut bytes = Vec::new();
        let powers = (0..64).map(|bit| 1u64 << bit);
        let values: Vec<u64> = powers
            .flat_map(|p| [p - 1, p, p + 1])
            .chain([u64::MAX])
            .collect();
        for &value in &values {
            put(value, &mut bytes);
            put_signed(value as i64, &mut bytes);
        }
        let mut rest = &bytes[..];
        for &value in &values {
            assert_eq!(take(&mut rest), Some(value));
            assert_eq!(take_signed(&mut rest), Some(value as i64));
        }
        assert_eq!((rest, take(&mut rest)), (&[][..], None));
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bytes in [&[0x80][..], &[0xff; 9], &[0xff; 10], &[0x80; 20]] {
            assert_eq!(take(&mut &*bytes), None, "{bytes:?}");
        }
        let mut most = [0xff; 10];
        most[9] = 1;
        assert_eq!(take(&mut &most[..]), Some(u64::MAX));
        most[9] = 2;
        assert_eq!(take(&mut &most[..]), None);
    }
}
