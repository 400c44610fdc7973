//! The header of GCInfo, by which .NET's runtime unwinds its own x86 code (`InfoHdr` in CoreCLR's
//! gcinfotypes.h and gcdecoder.cpp): the frame of one method, the same at every place behind its
//! prologue and before its epilogues.
//!
//! The header is the method's size, a byte that names one of 128 common headers, bytes that change
//! it, and numbers that did not fit. The tables of pointers and pushed arguments behind it are not
//! read.

/// What the header says of a method. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GcHeader {
    pub(crate) size: u32,
    pub(crate) prologue: u32,
    /// Where the epilogues begin, from the method's start.
    pub(crate) epilogues: Vec<u32>,
    pub(crate) epilogue: u32,
    pub(crate) kind: FrameKind,
    /// Whether edi, esi and ebx are pushed, in the order in which they are.
    pub(crate) saved: [bool; 3],
    /// Whether ebp is pushed: first in a frame with ebp, last without.
    pub(crate) ebp_saved: bool,
    /// Locals and temporaries, below the saved registers.
    pub(crate) locals: u32,
    /// Arguments on the stack.
    pub(crate) arguments: u32,
    /// The caller removes the arguments.
    pub(crate) varargs: bool,
    /// Exception handlers run in the same frame, called by the method or the runtime.
    pub(crate) handlers: bool,
}

/// How the body finds its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    /// By esp, which is the same all over the body but where arguments are pushed.
    Esp,
    Ebp,
    /// By ebp, with saved registers and locals below an address that was aligned to 8 bytes.
    DoubleAligned,
}

/// The common headers, a hexadecimal digit a field: the prologue's size (two digits), an epilogue's
/// size, how many epilogues there are (8: the only one is at the end), registers saved (1 edi,
/// 2 esi, 4 ebx, 8 ebp), words of locals, words of arguments, and 1 for a frame with ebp, 2 for
/// handlers, 4 for a table of variables.
const COMMON: [u32; 128] = [
    0x00110000, 0x00190000, 0x00120000, 0x00130000, 0x00390010, 0x00390010, 0x00390020, 0x00390020,
    0x00390020, 0x00390030, 0x00390040, 0x00390040, 0x01000104, 0x01000114, 0x01210104, 0x01212000,
    0x01290100, 0x01294000, 0x01292000, 0x01222000, 0x01232000, 0x01492010, 0x01492010, 0x01492020,
    0x01492020, 0x01422010, 0x02312104, 0x02316000, 0x02313000, 0x02313000, 0x02392100, 0x02392104,
    0x02396000, 0x02393000, 0x02323000, 0x02333000, 0x02513010, 0x02513020, 0x02593010, 0x02593010,
    0x02593020, 0x02593020, 0x02593020, 0x0269f104, 0x0271f007, 0x0279f107, 0x03413100, 0x03417000,
    0x03493100, 0x03497000, 0x03423100, 0x03427000, 0x03617010, 0x03617020, 0x03697010, 0x03697010,
    0x03697020, 0x03697020, 0x03627010, 0x0381f904, 0x04517100, 0x0451f000, 0x04597100, 0x0459f000,
    0x0452f000, 0x0471f010, 0x0471f020, 0x0479f010, 0x0479f010, 0x0479f020, 0x05497000, 0x0561f100,
    0x05693200, 0x05693400, 0x0569f100, 0x0569f104, 0x0569f114, 0x0569f120, 0x0589f110, 0x0600f001,
    0x0600f001, 0x06418205, 0x06498205, 0x0661b101, 0x0669b101, 0x06797200, 0x07417000, 0x0751a305,
    0x0751a505, 0x0781f304, 0x0789f200, 0x0789f204, 0x0782f304, 0x07a1f624, 0x07a9f210, 0x07a9f214,
    0x07a9f220, 0x07a9f324, 0x08392100, 0x0869b201, 0x09493100, 0x0979f201, 0x0979f007, 0x0a592400,
    0x0a597100, 0x0b693400, 0x0c59a101, 0x0d81f904, 0x0d89f200, 0x0da1f624, 0x0e79f105, 0x1071f407,
    0x1079f007, 0x1079f107, 0x1079f303, 0x1079f403, 0x1079f407, 0x1079f507, 0x1079f607, 0x1072f407,
    0x1099f417, 0x1099f427, 0x1379f507, 0x1879f507, 0x2d99f011, 0x3371fd05, 0x3379f105, 0x3379fb01,
];

/// More changes than a header needs: each number takes at most eight, each flag one.
const MOST_CHANGES: usize = 64;
/// Set in a byte that another one follows.
const MORE: u8 = 0x80;

/// The bytes that are left.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// A number in groups of seven bits, the highest first.
    fn number(&mut self) -> Option<u32> {
        let mut value = 0u32;
        for _ in 0..5 {
            let byte = self.byte()?;
            value = value.checked_mul(0x80)?.checked_add(u32::from(byte & !MORE))?;
            if byte & MORE == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl GcHeader {
    /// Reads the header at the start of `bytes`. `None` if they end early or contradict themselves.
    pub(crate) fn read(bytes: &[u8]) -> Option<GcHeader> {
        let mut reader = Reader(bytes);
        let size = reader.number()?;
        let mut byte = reader.byte()?;
        let common = COMMON[usize::from(byte & !MORE)];
        let digit = |n: u32| common >> (4 * n) & 0xf;
        let has = |flag: u32| digit(0) & flag != 0;
        let [mut prologue, mut epilogue] = [common >> 24, digit(5)];
        let (mut count, mut at_end) = (digit(4) & 7, digit(4) & 8 != 0);
        let mut saved: [bool; 4] = std::array::from_fn(|n| digit(3) >> n & 1 != 0);
        let [mut locals, mut arguments] = [digit(2), digit(1)];
        let (mut ebp_frame, mut handlers, mut variables) = (has(1), has(2), has(4));
        let [mut double_align, mut varargs, mut untracked] = [false; 3];
        let [mut cookie, mut synchronized, mut reverse] = [false; 3];
        let mut changes = 0;
        while byte & MORE != 0 {
            changes += 1;
            if changes > MOST_CHANGES {
                return None;
            }
            byte = reader.byte()?;
            let change = byte & !MORE;
            let low = u32::from(change & 0xf);
            // The next bits of a number.
            let append = |number: u32, bits: u32, low: u32| number.checked_mul(1 << bits)?.checked_add(low);
            match change {
                0x00..=0x07 => locals = u32::from(change),
                0x08..=0x10 => arguments = u32::from(change - 0x08),
                0x11..=0x21 => prologue = u32::from(change - 0x11),
                0x22..=0x2c => epilogue = u32::from(change - 0x22),
                0x2d..=0x36 => (count, at_end) = (u32::from((change - 0x2d) / 2), (change - 0x2d) & 1 != 0),
                0x37..=0x3a => untracked = false,
                0x3b..=0x3e => saved[usize::from(change - 0x3b)] ^= true,
                0x3f => ebp_frame ^= true,
                0x41 => double_align ^= true,
                0x43 => handlers ^= true,
                0x46 => variables ^= true,
                0x47 => untracked = true,
                0x48 => varargs ^= true,
                0x4a => cookie ^= true,
                0x4b => synchronized ^= true,
                0x4e => reverse ^= true,
                // Whether it is interruptible, has a slot for security, allocates on the stack, can
                // be edited, calls a profiler, or has the context of a generic method.
                0x40 | 0x42 | 0x44 | 0x45 | 0x49 | 0x4c | 0x4d => {}
                // What it returns.
                0x4f => {
                    byte = reader.byte()?;
                    if byte & !MORE > 3 {
                        return None;
                    }
                }
                0x50..=0x5f => locals = append(locals, 4, low)?,
                0x60..=0x6f => arguments = append(arguments, 4, low)?,
                0x70..=0x77 => prologue = append(prologue, 3, low)?,
                0x78.. => epilogue = append(epilogue, 3, low & 7)?,
            }
        }
        // Sizes of tables, and offsets of things in the frame and the code.
        let follow = [untracked, variables, cookie, synchronized, synchronized, reverse];
        for _ in follow.iter().filter(|follows| **follows) {
            reader.number()?;
        }
        let mut epilogues = Vec::new();
        if at_end {
            epilogues.push(size.checked_sub(epilogue)?);
        } else {
            let mut at = 0u32;
            for _ in 0..count {
                at = at.checked_add(reader.number()?)?;
                epilogues.push(at);
            }
        }
        let kind = match (ebp_frame, double_align) {
            (false, false) => FrameKind::Esp,
            (true, false) => FrameKind::Ebp,
            (false, true) => FrameKind::DoubleAligned,
            (true, true) => return None,
        };
        let [edi, esi, ebx, ebp_saved] = saved;
        let fits = |at: &u32| at.checked_add(epilogue).is_some_and(|end| *at >= prologue && end <= size);
        let is_consistent = size != 0
            && prologue <= size
            && (!at_end || count == 1)
            && epilogues.iter().all(fits)
            && (ebp_saved || kind == FrameKind::Esp)
            && (!handlers || kind == FrameKind::Ebp);
        is_consistent.then_some(GcHeader {
            size,
            prologue,
            epilogues,
            epilogue,
            kind,
            saved: [edi, esi, ebx],
            ebp_saved,
            locals: locals.checked_mul(4)?,
            arguments: arguments.checked_mul(4)?,
            varargs,
            handlers,
        })
    }

    /// Whether the frame is whole at this offset from the method's start: behind the prologue, and
    /// no instruction of an epilogue has run.
    pub(crate) fn is_body(&self, offset: u32) -> bool {
        let in_epilogue = |at: &u32| offset > *at && offset - at < self.epilogue;
        offset >= self.prologue && !self.epilogues.iter().any(in_epilogue)
    }

    /// Bytes of arguments that the method's return removes.
    pub(crate) fn popped(&self) -> Option<u16> {
        u16::try_from(if self.varargs { 0 } else { self.arguments }).ok()
    }

    /// Bytes of saved registers.
    pub(crate) fn saved_bytes(&self) -> u32 {
        4 * (self.saved.iter().filter(|saved| **saved).count() as u32 + u32::from(self.ebp_saved))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Methods of System.Linq.dll of .NET Core 2.1.8 for x86: its GCInfo, and what the code does.
    const FRAMELESS: [u8; 5] = [0x33, 0xa1, 0x96, 0xcf, 1];
    const WITH_EBP: [u8; 9] = [0x64, 0xe0, 0xc6, 0xa0, 0xbf, 0xcc, 0xcd, 0xcf, 1];
    const WITH_HANDLERS: [u8; 13] = [0x64, 0xd1, 0x80, 0xd8, 0xb1, 0x93, 0xf4, 0xc3, 0xcf, 1, 3, 0x59, 7];

    #[test]
    fn headers_say_what_the_code_does() {
        // push edi; push esi; three bytes of nop; …; at 30h: pop esi; pop edi; ret
        let frameless = GcHeader {
            size: 0x33,
            prologue: 5,
            epilogues: vec![0x30],
            epilogue: 3,
            kind: FrameKind::Esp,
            saved: [true, true, false],
            ebp_saved: false,
            locals: 0,
            arguments: 0,
            varargs: false,
            handlers: false,
        };
        assert_eq!(GcHeader::read(&FRAMELESS), Some(frameless.clone()));
        // push ebp; mov ebp, esp; push edi; push esi; push ebx; sub esp, 8; mov eax, [ebp+8];
        // mov [ebp-10h], eax; …; at 5Ah: lea esp, [ebp-0Ch]; pop ebx; pop esi; pop edi; pop ebp;
        // ret 8
        let with_ebp = GcHeader {
            size: 0x64,
            prologue: 0xf,
            epilogues: vec![0x5a],
            epilogue: 10,
            kind: FrameKind::Ebp,
            saved: [true; 3],
            ebp_saved: true,
            locals: 8,
            arguments: 8,
            ..frameless.clone()
        };
        assert_eq!(GcHeader::read(&[&WITH_EBP[..], &[1]].concat()), Some(with_ebp.clone()));
        // push ebp; mov ebp, esp; sub esp, 20h; four words of it set to 0 up to 14h; …; at 59h and
        // 60h: mov esp, ebp; pop ebp; ret
        let with_handlers = GcHeader {
            prologue: 0x14,
            epilogues: vec![0x59, 0x60],
            epilogue: 4,
            saved: [false; 3],
            locals: 0x20,
            arguments: 0,
            handlers: true,
            ..with_ebp
        };
        assert_eq!(GcHeader::read(&WITH_HANDLERS), Some(with_handlers.clone()));
        let body =
            [0, 0x13, 0x14, 0x58, 0x59, 0x5a, 0x5c, 0x5d, 0x60, 0x63].map(|at| with_handlers.is_body(at));
        assert_eq!(body, [false, false, true, true, true, false, false, true, true, false]);
        assert_eq!((with_handlers.saved_bytes(), frameless.saved_bytes()), (4, 8));
    }

    #[test]
    fn headers_that_end_early_are_none() {
        // WITH_EBP has a table of variables, whose size follows.
        assert_eq!(GcHeader::read(&WITH_EBP), None);
        for header in [&FRAMELESS[..], &WITH_EBP[..], &WITH_HANDLERS[..]] {
            for end in 0..header.len() {
                assert_eq!(GcHeader::read(&header[..end]), None, "{header:x?} {end}");
            }
        }
    }

    #[test]
    fn headers_that_contradict_themselves_are_none() {
        let endless = [&[0x64][..], &[0xc0; 100]].concat();
        // No code; a prologue, and an epilogue, longer than the method; an epilogue in the
        // prologue; ebp as the frame but not saved; both kinds of frame; a number of six bytes;
        // changes without an end.
        for header in [
            &[0, 0x81, 0x22][..],
            &[2, 0x81, 0x11 + 3],
            &[2, 0x81, 0x22 + 3],
            &[9, 0x80, 0x11 + 4, 3],
            &[0x64, 0x81, 0x3f],
            &[0x64, 0x81, 0xbf, 0xc1, 0x3e],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 1, 1],
            &endless,
        ] {
            assert_eq!(GcHeader::read(header), None, "{header:x?}");
        }
    }

    #[test]
    fn random_bytes_give_consistent_headers_or_none() {
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 56) as u8
        };
        let mut found = 0;
        for _ in 0..200_000 {
            let bytes: Vec<u8> = (0..usize::from(byte() % 24)).map(|_| byte()).collect();
            let Some(header) = GcHeader::read(&bytes) else { continue };
            found += 1;
            assert!(header.prologue <= header.size, "{bytes:x?}");
            let inside = |at: &u32| *at >= header.prologue && at + header.epilogue <= header.size;
            assert!(header.epilogues.iter().all(inside), "{bytes:x?}");
            assert!(!header.is_body(0) || header.prologue == 0, "{bytes:x?}");
        }
        assert!(found > 1000, "{found}");
    }
}
