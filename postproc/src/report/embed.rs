//! Bytes as text, for pages that load nothing.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes in base64 (RFC 4648).
pub fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            text.push(if i > three.len() {
                '='
            } else {
                char::from(letter)
            });
        }
    }
    text
}

/// Counts in few bytes: zeros as the length of their run, shifted to the left, plus one; any other
/// count shifted to the left. Seven bits a byte, the lowest first; the highest bit says that another
/// byte follows (LEB128).
pub fn pack(counts: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut put = |mut number: u64| {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    };
    let mut zeros = 0u64;
    for count in counts {
        if count == 0 {
            zeros += 1;
            continue;
        }
        if zeros > 0 {
            put(zeros << 1 | 1);
            zeros = 0;
        }
        put(u64::from(count) << 1);
    }
    if zeros > 0 {
        put(zeros << 1 | 1);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_standard() {
        let pairs = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (bytes, text) in pairs {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn counts_are_packed() {
        assert_eq!(pack([0, 0, 0, 5, 64, 0]), [7, 10, 0x80, 1, 3]);
        assert_eq!(pack([u32::MAX]).len(), 5);
        assert!(pack([]).is_empty());
    }
}
