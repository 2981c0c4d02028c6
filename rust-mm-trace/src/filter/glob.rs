//! Patterns for names.

/// Whether all of a text fits a pattern, in which `*` stands for any bytes, `/` among them, and
/// `?` for one byte. `[a-z]` stands for one of these bytes and `[!a-z]` for one of the others. A
/// `\` takes the special meaning from the byte behind it.
///
/// These are the rules of the kernel's `glob_match()` (lib/glob.c), as are those for patterns
/// that look unfinished: a `[` without its `]` stands for itself. It needs no memory, and time
/// proportional to the product of both lengths at most.
pub fn fits(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on if the text does not fit: with one more byte for the last star.
    let mut star: Option<(usize, usize)> = None;
    loop {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                if p == pattern.len() {
                    return true;
                }
                star = Some((p, t));
                continue;
            }
            None if t == text.len() => return true,
            Some(_) => {
                let Some(&byte) = text.get(t) else {
                    return false;
                };
                if let Some(size) = one(&pattern[p..], byte) {
                    p += size;
                    t += 1;
                    continue;
                }
            }
            None => {}
        }
        let Some((behind, from)) = star.filter(|&(_, from)| from < text.len()) else {
            return false;
        };
        star = Some((behind, from + 1));
        (p, t) = (behind, from + 1);
    }
}

/// How many bytes of the pattern stand for this byte of the text, if its beginning does.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match *pattern.first()? {
        b'?' => Some(1),
        b'[' => match class(pattern, byte) {
            Some((size, fits)) => fits.then_some(size),
            None => (byte == b'[').then_some(1),
        },
        b'\\' => match pattern.get(1) {
            Some(&plain) => (plain == byte).then_some(2),
            None => (byte == b'\\').then_some(1),
        },
        plain => (plain == byte).then_some(1),
    }
}

/// The length of the class that a pattern begins with, and whether a byte is in it; `None` if it
/// does not end.
fn class(pattern: &[u8], byte: u8) -> Option<(usize, bool)> {
    let inverted = pattern.get(1) == Some(&b'!');
    let first = 1 + usize::from(inverted);
    let mut at = first;
    let mut found = false;
    loop {
        let low = *pattern.get(at)?;
        // A ] in the first place is one of the bytes.
        if low == b']' && at > first {
            return Some((at + 1, found != inverted));
        }
        let high = match (pattern.get(at + 1), pattern.get(at + 2)) {
            (Some(b'-'), Some(&high)) if high != b']' => {
                at += 3;
                high
            }
            _ => {
                at += 1;
                low
            }
        };
        found |= (low..=high).contains(&byte);
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn patterns_fit_what_they_say() {
        for (pattern, yes, no) in [
            ("", &[""][..], &["a"][..]),
            ("*", &["", "a", "a/b"], &[]),
            (
                "*.so",
                &[".so", "/lib/a.so", "a.so.so"],
                &["a.so.1", "so", ""],
            ),
            (
                "/usr/*/x",
                &["/usr/a/x", "/usr/a/b/x"],
                &["/usr/x", "/usr/a/xy"],
            ),
            ("cc?", &["cc1", "cc "], &["cc", "cc12"]),
            ("a*b*c", &["abc", "aXbbXcc", "abcbc"], &["ab", "acb", "bc"]),
            ("[a-c]x", &["ax", "bx", "cx"], &["dx", "x", "-x"]),
            ("[!a-c]x", &["dx", "-x"], &["ax", "x"]),
            ("[]x]", &["]", "x"], &["[", ""]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[heap", &["[heap"], &["h", "[heap]"]),
            ("\\[heap]", &["[heap]"], &["h"]),
            ("a\\*", &["a*"], &["ab", "a"]),
            ("a\\", &["a\\"], &["a"]),
            ("**", &["", "x"], &[]),
        ] {
            for text in yes {
                assert!(
                    fits(pattern.as_bytes(), text.as_bytes()),
                    "{pattern} {text}"
                );
            }
            for text in no {
                assert!(
                    !fits(pattern.as_bytes(), text.as_bytes()),
                    "{pattern} {text}"
                );
            }
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let (pattern, text) = ("*a".repeat(500) + "b", "a".repeat(4000));
        assert!(!fits(pattern.as_bytes(), text.as_bytes()));
    }
}
