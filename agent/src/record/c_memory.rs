//! What compiled code, zstd's too, calls for copies, fills and comparisons of memory. agent.dll has
//! no C runtime that would bring these functions: `windows::system::no_crt` gives them their names.
//!
//! Stacks are copied by them, so they move 64 bytes a step. An empty `asm!` in each loop keeps the
//! compiler from seeing what the loop does: it would call the function that is being defined.

use core::arch::asm;

#[cfg(target_arch = "x86")]
use core::arch::x86::__m128i as Chunk;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::__m128i as Chunk;
/// What one instruction moves.
#[cfg(not(any(target_arch = "x86", target_arch = "x86_64")))]
type Chunk = u128;

const CHUNK: usize = size_of::<Chunk>();
/// Chunks a step.
const STEP: usize = 4 * CHUNK;

/// Hides a loop's work from the compiler.
macro_rules! opaque {
    () => {
        asm!("", options(nostack, preserves_flags))
    };
}

/// Copies a `T` between addresses of any alignment.
///
/// # Safety
/// Both are valid for a `T`.
#[inline(always)]
unsafe fn put<T: Copy>(to: *mut u8, from: *const u8) {
    // SAFETY: by the caller's promise; every pattern of bits is a value of the types used here.
    unsafe { to.cast::<T>().write_unaligned(from.cast::<T>().read_unaligned()) }
}

/// Copies up to a step, all of it read before any of it is written.
///
/// # Safety
/// As [`copy`], but the places may overlap; `len` is at most [`STEP`].
#[inline(always)]
unsafe fn copy_little(to: *mut u8, from: *const u8, len: usize) {
    /// The first and the last `T` of the places, which overlap each other where `len` is no sum.
    ///
    /// # Safety
    /// Both are valid for `len` bytes, which are at least a `T`.
    #[inline(always)]
    unsafe fn ends<T: Copy>(to: *mut u8, from: *const u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: by the caller's promise.
        unsafe {
            let (a, z) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(a);
            to.add(last).cast::<T>().write_unaligned(z);
        }
    }
    // SAFETY: by the caller's promise, and the lengths as compared.
    unsafe {
        match len {
            0 => {}
            1 => put::<u8>(to, from),
            2..=3 => ends::<u16>(to, from, len),
            4..=7 => ends::<u32>(to, from, len),
            8..=15 => ends::<u64>(to, from, len),
            16..=32 => ends::<Chunk>(to, from, len),
            _ => ends::<[Chunk; 2]>(to, from, len),
        }
    }
}

/// `memcpy`.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
pub(crate) unsafe extern "C" fn copy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: by the caller's promise.
    unsafe { if len <= STEP { copy_little(to, from, len) } else { copy_up(to, from, len) } }
    to
}

/// Copies from the first byte to the last.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, more than a step; if they overlap, `to`
/// lies lower.
#[inline(always)]
unsafe fn copy_up(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: each step is within the places; the last one ends where they end. It and the first
    // chunk are read before a byte is written. The steps between them write at multiples of a
    // chunk, so that none spans two lines of the cache more often than it must.
    unsafe {
        let last = len - STEP;
        let begin = from.cast::<Chunk>().read_unaligned();
        let end = from.add(last).cast::<[Chunk; 4]>().read_unaligned();
        let mut done = CHUNK - to as usize % CHUNK;
        while done < last {
            put::<[Chunk; 4]>(to.add(done), from.add(done));
            done += STEP;
            opaque!();
        }
        to.add(last).cast::<[Chunk; 4]>().write_unaligned(end);
        to.cast::<Chunk>().write_unaligned(begin);
    }
}

/// `memmove`.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes.
pub(crate) unsafe extern "C" fn copy_overlapping(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: by the caller's promise. A copy downward begins with the last step, and the first
    // bytes are read before any byte is written.
    unsafe {
        if len <= STEP {
            copy_little(to, from, len);
        } else if (to as usize).wrapping_sub(from as usize) >= len {
            copy_up(to, from, len);
        } else {
            let begin = from.cast::<[Chunk; 4]>().read_unaligned();
            let mut left = len;
            while left > STEP {
                left -= STEP;
                put::<[Chunk; 4]>(to.add(left), from.add(left));
                opaque!();
            }
            to.cast::<[Chunk; 4]>().write_unaligned(begin);
        }
    }
    to
}

/// `memset`.
///
/// # Safety
/// `to` is writable for `len` bytes.
pub(crate) unsafe extern "C" fn fill(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    let word = u64::from(byte as u8) * 0x0101_0101_0101_0101;
    // SAFETY: by the caller's promise; each piece lies within the place, the last one at its end.
    unsafe {
        if len < 8 {
            for at in 0..len {
                to.add(at).write(byte as u8);
                opaque!();
            }
            return to;
        }
        let mut done = 0;
        while len - done > 64 {
            to.add(done).cast::<[u64; 8]>().write_unaligned([word; 8]);
            done += 64;
            opaque!();
        }
        while len - done > 8 {
            to.add(done).cast::<u64>().write_unaligned(word);
            done += 8;
            opaque!();
        }
        to.add(len - 8).cast::<u64>().write_unaligned(word);
    }
    to
}

/// `memcmp`.
///
/// # Safety
/// Both are readable for `len` bytes.
pub(crate) unsafe extern "C" fn compare(one: *const u8, other: *const u8, len: usize) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let mut at = 0;
        while len - at >= 8 {
            let a = u64::from_be(one.add(at).cast::<u64>().read_unaligned());
            let b = u64::from_be(other.add(at).cast::<u64>().read_unaligned());
            if a != b {
                return if a < b { -1 } else { 1 };
            }
            at += 8;
            opaque!();
        }
        while at < len {
            let difference = i32::from(one.add(at).read()) - i32::from(other.add(at).read());
            if difference != 0 {
                return difference;
            }
            at += 1;
            opaque!();
        }
    }
    0
}

/// `strlen`.
///
/// # Safety
/// A zero ends the text.
pub(crate) unsafe extern "C" fn length(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: by the caller's promise.
    unsafe {
        while text.add(len).read() != 0 {
            len += 1;
            opaque!();
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Lengths around each of the sizes that are treated differently.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..=200).chain([255, 256, 257, 1000, 4095, 4096, 4097])
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn copies_of_all_lengths_and_distances_are_exact() {
        for len in lengths() {
            for (from, to) in
                [(0, 5000), (3, 5001), (5000, 0), (10, 10), (10, 11), (11, 10), (0, 16), (16, 0)]
                    .into_iter()
                    .chain([(0, 63), (63, 0), (0, 64), (65, 1), (1, 65), (0, 130), (130, 0)])
            {
                let mut memory = bytes(10_000);
                let mut expected = memory.clone();
                expected.copy_within(from..from + len, to);
                let base = memory.as_mut_ptr();
                // SAFETY: both places are within the memory; `copy` gets none that overlap.
                unsafe {
                    let (from, to) = (base.add(from).cast_const(), base.add(to));
                    assert_eq!(copy_overlapping(to, from, len), to);
                }
                assert!(memory == expected, "{len} bytes from {from} to {to}");
                if from.abs_diff(to) >= len {
                    let mut memory = bytes(10_000);
                    let base = memory.as_mut_ptr();
                    // SAFETY: as above.
                    unsafe { copy(base.add(to), base.add(from), len) };
                    assert!(memory == expected, "{len} bytes from {from} to {to}");
                }
            }
        }
    }

    #[test]
    fn fills_touch_nothing_else() {
        for len in lengths() {
            for start in [0, 1, 8, 13] {
                let mut memory = bytes(5000);
                let mut expected = memory.clone();
                expected[start..start + len].fill(0xa5);
                // SAFETY: the place is within the memory.
                unsafe { fill(memory.as_mut_ptr().add(start), 0x1a5, len) };
                assert!(memory == expected, "{len} bytes at {start}");
            }
        }
    }

    #[test]
    fn comparisons_order_by_the_first_byte_that_differs() {
        for len in lengths() {
            let one = bytes(len);
            // SAFETY: two slices of this length.
            let compared = |other: &[u8]| unsafe { compare(one.as_ptr(), other.as_ptr(), len) }.signum();
            assert_eq!(compared(&one.clone()), 0, "{len}");
            for at in [0, 1, 7, 8, 9, len / 2, len.saturating_sub(1)].into_iter().filter(|&at| at < len) {
                let mut other = one.clone();
                other[at] ^= 0x80;
                let expected = one.as_slice().cmp(&other) as i32;
                assert_eq!(compared(&other), expected, "{len}, at {at}");
            }
        }
    }

    #[test]
    fn the_length_of_a_text_ends_at_its_zero() {
        // SAFETY: texts with a zero.
        unsafe { assert_eq!((length(c"".as_ptr().cast()), length(c"abc".as_ptr().cast())), (0, 3)) };
    }
}
