//! Numbers as text; the standard formatter costs several times as much.

/// The digits of all numbers of two.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// The longest number in decimal digits.
const DIGITS: usize = 20;

/// Appends the first `len` of `bytes`: all of them, and then the rest is cut off, for a
/// copy of a length that is known is a few moves, and any other is a call.
#[inline]
pub(super) fn first<const N: usize>(to: &mut Vec<u8>, bytes: &[u8; N], len: usize) {
    let end = to.len() + len;
    to.extend_from_slice(bytes);
    to.truncate(end);
}

/// Appends a number in decimal digits.
#[inline]
pub(crate) fn decimal(to: &mut Vec<u8>, mut number: u64) {
    // Digits come from the right; what follows them is cut off.
    let mut digits = [0; 2 * DIGITS];
    let mut at = DIGITS;
    while number >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    // Of an odd number of digits, one is left.
    if number > 0 || at == DIGITS {
        at -= 1;
        digits[at] = b'0' + number as u8;
    }
    if let Some(number) = digits[at..].first_chunk::<DIGITS>() {
        first(to, number, DIGITS - at);
    }
}

/// Appends a number in hexadecimal digits, without a prefix.
#[inline]
pub(super) fn hexadecimal(to: &mut Vec<u8>, number: u64) {
    const VALUES: &[u8; 16] = b"0123456789abcdef";
    let places = (64 - number.leading_zeros()).div_ceil(4).max(1);
    // From the left, the first digit's four bits being the highest.
    let mut left = number << (64 - 4 * places);
    let mut digits = [0; 16];
    for digit in &mut digits {
        *digit = VALUES[(left >> 60) as usize];
        left <<= 4;
    }
    first(to, &digits, places as usize);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_the_formatter_makes_of_them() {
        let powers = (0..20).map(|n| 10u64.pow(n));
        let near = powers.flat_map(|p| [p - 1, p, p + 1, p.saturating_mul(3)]);
        for number in near.chain([7, 16, 255, 256, u64::MAX]) {
            let mut text = Vec::new();
            decimal(&mut text, number);
            assert_eq!(text, number.to_string().as_bytes());
            text.clear();
            hexadecimal(&mut text, number);
            assert_eq!(text, format!("{number:x}").as_bytes());
        }
    }
}
