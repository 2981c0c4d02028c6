//! Numbers as text; the standard formatter costs several times as much.

/// Appends a number in decimal digits.
pub(crate) fn decimal(to: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    to.extend_from_slice(&digits[at..]);
}

/// Appends a number in hexadecimal digits, without a prefix.
pub(super) fn hexadecimal(to: &mut Vec<u8>, number: u64) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let places = (64 - number.leading_zeros()).div_ceil(4).max(1);
    for place in (0..places).rev() {
        to.push(DIGITS[(number >> (4 * place)) as usize & 15]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_what_the_formatter_makes_of_them() {
        for number in [0, 7, 10, 16, 255, 256, 999, 1_000, u64::MAX] {
            let mut text = Vec::new();
            decimal(&mut text, number);
            assert_eq!(text, number.to_string().as_bytes());
            text.clear();
            hexadecimal(&mut text, number);
            assert_eq!(text, format!("{number:x}").as_bytes());
        }
    }
}
