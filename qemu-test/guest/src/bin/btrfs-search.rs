//! btrfs-search make DIR | in DIR: files on btrfs whose trees have many items, and large ones;
//! and all items of these trees, into buffers of many pages, by BTRFS_IOC_TREE_SEARCH. A line
//! for each search: items, bytes, their sum. Buffers are at 0x1000_0000_0000.
use kvmtrace_guest::{PAGE, check, map_at};
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Result, Write};
use std::os::fd::AsRawFd;

const BASE: usize = 0x1000_0000_0000;

/// include/uapi/linux/btrfs.h
const BTRFS_IOC_TREE_SEARCH: u64 = 0xd000_9411;
const BTRFS_IOC_TREE_SEARCH_V2: u64 = 0xc070_9411;
/// The tree that the file is in.
const OWN: u64 = 0;
const CHECKSUMS: u64 = 7;
/// Where the buffers of the first version lie in their arguments, and of the second.
const KEY: usize = 104;
const BUF: usize = KEY + 8;
const HEADER: usize = 32;

#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transaction: u64,
    max_transaction: u64,
    min_type: u32,
    max_type: u32,
    items: u32,
    unused: u32,
    unused_more: [u64; 4],
}

/// All items of a tree.
fn all(tree: u64) -> Key {
    Key {
        tree,
        min_object: 0,
        max_object: u64::MAX,
        min_offset: 0,
        max_offset: u64::MAX,
        min_transaction: 0,
        max_transaction: u64::MAX,
        min_type: 0,
        max_type: u32::MAX,
        items: u32::MAX,
        unused: 0,
        unused_more: [0; 4],
    }
}

/// Arguments for a buffer of `size` bytes, that does not begin with a page.
struct Args {
    at: *mut u8,
    buf: usize,
    request: u64,
    size: usize,
}

impl Args {
    fn new(at: usize, request: u64, buf: usize, size: usize) -> Result<Self> {
        let pages = (buf + size).div_ceil(PAGE) + 1;
        let at = map_at(at, pages)?.wrapping_add(PAGE / 2);
        Ok(Args {
            at,
            buf,
            request,
            size,
        })
    }

    /// Searches, and gives the key as the kernel leaves it.
    fn search(&self, dir: &File, key: Key, size: usize) -> Result<Key> {
        // SAFETY: Key and size are inside the mapping, in which they need not be aligned.
        unsafe {
            self.at.cast::<Key>().write_unaligned(key);
            if self.buf == BUF {
                self.at.add(KEY).cast::<u64>().write_unaligned(size as u64);
            }
            check(libc::ioctl(dir.as_raw_fd(), self.request as _, self.at))?;
            Ok(self.at.cast::<Key>().read_unaligned())
        }
    }

    fn bytes(&self, at: usize, n: usize) -> Result<Vec<u8>> {
        if at + n > self.size {
            return Err(Error::other(format!("an item of {n} bytes at {at}")));
        }
        let mut bytes = vec![0; n];
        // SAFETY: Inside the buffer.
        unsafe {
            let from = self.at.add(self.buf + at);
            from.copy_to_nonoverlapping(bytes.as_mut_ptr(), n);
        }
        Ok(bytes)
    }

    fn word(&self, at: usize) -> Result<u64> {
        let bytes = self.bytes(at, 8)?;
        Ok(bytes
            .iter()
            .rev()
            .fold(0, |word, b| word << 8 | u64::from(*b)))
    }

    /// Calls until there are no more items, and says what all of them are.
    fn whole(&self, dir: &File, name: &str, mut key: Key) -> Result<()> {
        let (mut calls, mut items, mut bytes, mut largest) = (0, 0, 0, 0);
        let mut sum = 0xcbf2_9ce4_8422_2325u64;
        loop {
            let found = self.search(dir, key, self.size)?.items;
            calls += 1;
            if found == 0 {
                break;
            }
            let mut at = 0;
            for _ in 0..found {
                let object = self.word(at + 8)?;
                let offset = self.word(at + 16)?;
                let last = self.word(at + 24)?;
                let len = (last >> 32) as usize;
                for byte in self.bytes(at, HEADER + len)? {
                    sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
                at += HEADER + len;
                largest = largest.max(len);
                key.min_object = object;
                key.min_type = last as u32;
                key.min_offset = offset;
            }
            items += found;
            bytes += at;
            // The next key.
            key.min_offset = key.min_offset.wrapping_add(1);
            if key.min_offset == 0 {
                key.min_type += 1;
            }
        }
        println!(
            "{name}: {calls} calls, {items} items, {bytes} bytes, the largest {largest}, sum {sum:x}"
        );
        Ok(())
    }

    /// A call that fails, and the size that the kernel leaves.
    fn fails(&self, dir: &File, name: &str, key: Key, size: usize) -> Result<()> {
        let Err(e) = self.search(dir, key, size) else {
            return Err(Error::other(format!("{name} did not fail")));
        };
        // SAFETY: Where search() has written it.
        let size = unsafe { self.at.add(KEY).cast::<u64>().read_unaligned() };
        println!("{name}: {:?}, {size} bytes", e.raw_os_error());
        Ok(())
    }
}

/// Items of all sizes: names, attributes of up to a node's size, checksums of a large file.
fn make(dir: &str) -> Result<()> {
    let name = CString::new("user.x")?;
    for i in 0..400 {
        let path = format!("{dir}/{i:0100}");
        std::fs::write(&path, vec![i as u8; 1 + i * 5])?;
        let path = CString::new(path)?;
        let value = vec![i as u8; if i % 20 == 0 { 60_000 } else { i * 4 }];
        let (to, from, len) = (path.as_ptr(), value.as_ptr().cast(), value.len());
        // SAFETY: Strings with their ends, and a value with its length.
        check(unsafe { libc::setxattr(to, name.as_ptr(), from, len, 0) })?;
    }
    let mut file = File::create(format!("{dir}/large"))?;
    for i in 0..64 {
        file.write_all(&vec![i; 1 << 20])?;
    }
    Ok(())
}

fn search(dir: &str) -> Result<()> {
    let dir = File::open(dir)?;
    let v2 = BTRFS_IOC_TREE_SEARCH_V2;
    for (i, size) in [1 << 20, 100_000, 16 << 20].into_iter().enumerate() {
        let args = Args::new(BASE * (1 + i), v2, BUF, size)?;
        for (tree, what) in [(OWN, "own"), (CHECKSUMS, "checksums")] {
            args.whole(&dir, &format!("{what} {size}"), all(tree))?;
        }
    }
    let args = Args::new(BASE * 4, BTRFS_IOC_TREE_SEARCH, KEY, PAGE - KEY)?;
    let short = Key {
        max_object: 256 + 10,
        ..all(OWN)
    };
    args.whole(&dir, "first version", short)?;
    let args = Args::new(BASE * 5, v2, BUF, 1 << 20)?;
    for items in [1, 100] {
        let found = args.search(&dir, Key { items, ..short }, args.size)?.items;
        println!("at most {items}: {found}");
    }
    args.fails(&dir, "too small", all(CHECKSUMS), 100)?;
    // Its last bytes are not mapped, and would not be needed.
    args.fails(&dir, "not mapped", short, args.size + 2 * PAGE)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some("make"), Some(dir)) => make(&dir),
        (Some("in"), Some(dir)) => search(&dir),
        _ => Err(Error::other("make DIR or in DIR")),
    }
}
