//! Managed code with GCInfo ([`GcHeader`]): the functions of a ready-to-run image, or one method
//! that was compiled at run time, and their frames.
//!
//! Such an image has a table of RUNTIME_FUNCTIONs as x64's have, with the place of a function's
//! GCInfo in place of UNWIND_INFO's. The data directory of the PE header does not name it: the CLR
//! header leads there (ECMA-335, II.25.3.3; CoreCLR's readytorun.h).

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, Register};

use super::gc_info::{FrameKind, GcHeader};
use super::layout::{RegisterSource, Return, X86Slot};
use super::registers::{EBP, ESP};
use crate::ImageTables;

/// Bytes of a RUNTIME_FUNCTION: the RVAs of code and GCInfo.
pub(crate) const FUNCTION_BYTES: usize = 8;

/// A method with GCInfo.
pub(crate) struct Method {
    pub(crate) range: Range<u32>,
    pub(crate) header: GcHeader,
}

/// Where the table of functions lies: RVA and length. `clr` is the RVA of the CLR header.
pub(crate) fn functions(image: &ImageTables, clr: u32) -> Option<(u32, u32)> {
    /// ManagedNativeHeader in the CLR header.
    const NATIVE_HEADER: u32 = 64;
    /// READYTORUN_SECTION_RUNTIME_FUNCTIONS.
    const FUNCTIONS: u32 = 102;
    /// Major versions whose GCInfo is known: .NET Core 2 and 3. Later ones count regions without
    /// collection too.
    const VERSIONS: Range<u16> = 2..4;
    const MOST_SECTIONS: u32 = 64;
    let word = |rva: u32| Some(u32::from_le_bytes(*image.bytes(rva)?.first_chunk()?));
    let header = word(clr.checked_add(NATIVE_HEADER)?)?;
    let [b'R', b'T', b'R', 0, low, high, ..] = image.bytes(header)? else { return None };
    if !VERSIONS.contains(&u16::from_le_bytes([*low, *high])) {
        return None;
    }
    let count = word(header.checked_add(12)?)?.min(MOST_SECTIONS);
    let section = |n: u32| header.checked_add(16 + 12 * n);
    let found = (0..count).filter_map(section).find(|&at| word(at) == Some(FUNCTIONS))?;
    Some((word(found.checked_add(4)?)?, word(found.checked_add(8)?)?))
}

/// The method that holds `rva`.
pub(crate) fn method(image: &ImageTables, rva: u32) -> Option<Method> {
    if let Some(header) = image.gc_info() {
        return (rva < header.size).then(|| Method { range: 0..header.size, header: header.clone() });
    }
    let table = image.exception_directory()?;
    let number = image.records_up_to(rva).ok()?.checked_sub(1)?;
    let at = |n: usize| table.get(n * FUNCTION_BYTES..)?.first_chunk::<FUNCTION_BYTES>();
    let [a, b, c, d, info @ ..] = *at(number)?;
    let start = u32::from_le_bytes([a, b, c, d]);
    let header = GcHeader::read(image.bytes(u32::from_le_bytes(info))?)?;
    let end = start.checked_add(header.size)?;
    let next = at(number + 1).map(|&[a, b, c, d, ..]| u32::from_le_bytes([a, b, c, d]));
    let fits = end <= next.unwrap_or(image.size());
    (fits && rva < end).then_some(Method { range: start..end, header })
}

impl Method {
    /// Where the caller's registers are at `rva`, if the header says it: behind the prologue, in no
    /// epilogue, and with no argument pushed.
    pub(crate) fn frame(&self, image: &ImageTables, rva: u32) -> Option<Return> {
        let header = &self.header;
        if !header.is_body(rva.checked_sub(self.range.start)?) {
            return None;
        }
        match header.kind {
            // A handler that the runtime called has the runtime's frames below this one.
            FrameKind::Ebp if !header.handlers => {
                let slot = |offset| X86Slot::new(EBP, offset);
                Some(Return {
                    return_address: slot(4),
                    sp: slot(8),
                    saved: self.saved(EBP, 0, RegisterSource::Word(slot(0))),
                })
            }
            FrameKind::Esp if !self.pushes(image) => {
                let size = i32::try_from(header.locals.checked_add(header.saved_bytes())?).ok()?;
                let slot = |offset| X86Slot::new(ESP, offset);
                let pushed_last = i32::try_from(header.locals).ok()?;
                let ebp = match header.ebp_saved {
                    true => RegisterSource::Word(slot(pushed_last)),
                    false => RegisterSource::Kept,
                };
                Some(Return {
                    return_address: slot(size),
                    sp: slot(size.checked_add(4)?),
                    saved: self.saved(ESP, size, ebp),
                })
            }
            FrameKind::Esp | FrameKind::Ebp | FrameKind::DoubleAligned => None,
        }
    }

    /// ebx, ebp, esi, edi: edi, esi and ebx are pushed in this order below `top`.
    fn saved(&self, register: usize, top: i32, ebp: RegisterSource) -> [RegisterSource; 4] {
        let mut next = top;
        let [edi, esi, ebx] = self.header.saved.map(|saved| {
            if !saved {
                return RegisterSource::Kept;
            }
            next -= 4;
            RegisterSource::Word(X86Slot::new(register, next))
        });
        [ebx, ebp, esi, edi]
    }

    /// Whether an instruction between prologue and epilogues moves esp. True if the code is not
    /// known, or longer than a method has it.
    fn pushes(&self, image: &ImageTables) -> bool {
        const MOST: usize = 1 << 16;
        if self.range.len() > MOST {
            return true;
        }
        let Some(code) = image.bytes(self.range.start).and_then(|code| code.get(..self.range.len())) else {
            return true;
        };
        let mut decoder = Decoder::with_ip(32, code, 0, DecoderOptions::NONE);
        if decoder.set_position(self.header.prologue as usize).is_err() {
            return true;
        }
        decoder.set_ip(self.header.prologue.into());
        let mut factory = InstructionInfoFactory::new();
        while decoder.can_decode() {
            let instruction = decoder.decode();
            let at = instruction.ip32();
            let is_call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
            let in_epilogue = |from: &u32| at >= *from && at - from < self.header.epilogue;
            if is_call || self.header.epilogues.iter().any(in_epilogue) {
                continue;
            }
            let moves = |used: &iced_x86::UsedRegister| {
                used.register().full_register32() == Register::ESP
                    && !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
            };
            if instruction.is_invalid() || factory.info(&instruction).used_registers().iter().any(moves) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86::X86Registers;
    use crate::{
        Arch, Frame, LoadedModule, ModuleId, Modules, Registers, Sample, Stop, Trust, WalkOptions, Walker,
        explain, facts,
    };

    const BASE: u32 = 0x40_0000;
    const STACK: u32 = 0x10_0000;
    /// An endless loop, which leads to no return.
    const LOOP: [u8; 2] = [0xeb, 0xfe];

    struct Space(ImageTables);

    impl Modules for Space {
        fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
            let inside = address.wrapping_sub(BASE.into()) < 0x8000;
            let base = BASE.into();
            inside.then_some(LoadedModule { module: ModuleId(0), base, image: &self.0, image_key: 0 })
        }
    }

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A ready-to-run image with a method at each multiple of 100h from 2000h on: its GCInfo, and
    /// its code.
    fn image(major: u32, methods: &[(&[u8], Vec<u8>)]) -> ImageTables {
        let header = [u32::from_le_bytes(*b"RTR\0"), major, 0, 1, 102, 0x1200, 8 * methods.len() as u32];
        let mut image = ImageTables::new(Arch::X86, 0x8000)
            .range(0x1000, [vec![0; 64], bytes(&[0x1100])].concat())
            .range(0x1100, bytes(&header))
            .clr_header(0x1000);
        let mut table = Vec::new();
        for (n, (info, code)) in (0..).zip(methods) {
            table.extend(bytes(&[0x2000 + 0x100 * n, 0x1300 + 0x20 * n]));
            image = image.range(0x1300 + 0x20 * n, *info).range(0x2000 + 0x100 * n, code.clone());
        }
        image.range(0x1200, table).build()
    }

    /// push edi; push esi; a loop of eleven bytes; pop esi; pop edi; ret. Its header is number 21h.
    fn without_ebp(body: &[u8]) -> (&'static [u8], Vec<u8>) {
        let mut code = [&[0x57, 0x56][..], body].concat();
        code.resize(13, 0x90);
        (&[0x10, 0x21], [&code[..], &[0x5e, 0x5f, 0xc3]].concat())
    }

    /// push ebp; mov ebp, esp; push edi; push esi; push eax; a call and a loop; six bytes of
    /// epilogue. Its header is number 54h, here with these changes.
    fn with_ebp(header: &'static [u8]) -> (&'static [u8], Vec<u8>) {
        let mut code = vec![0x55, 0x8b, 0xec, 0x57, 0x56, 0x50, 0xe8, 0, 0, 0, 0];
        code.extend(LOOP);
        code.resize(26, 0x90);
        code.extend([0x90, 0x59, 0x5e, 0x5f, 0x5d, 0xc3]);
        (header, code)
    }

    /// Frames as RVAs with trusts, the last frame's registers, and the stop.
    fn walk(
        image: ImageTables,
        ip: u32,
        gpr: [u32; 8],
        stack: &[u32],
    ) -> (Vec<(u32, Trust)>, [u32; 8], Stop) {
        let stack = bytes(stack);
        let registers = Registers::X86(X86Registers { ip: BASE + ip, gpr });
        let sample = Sample {
            registers: &registers,
            stack: &stack,
            stack_start: STACK.into(),
            stack_base: Some(u64::from(STACK) + stack.len() as u64),
            truncated: false,
            code_at_ip: None,
        };
        let (mut frames, mut last) = (Vec::new(), [0; 8]);
        let mut walker = Walker::new(WalkOptions::default());
        let stop = walker.walk_with_registers(&Space(image), &sample, |frame, registers| {
            frames.push((frame.rva, frame.trust));
            if let Registers::X86(registers) = registers {
                last = registers.gpr;
            }
        });
        (frames, last, stop)
    }

    #[test]
    fn frames_without_a_way_to_return_are_found_by_gc_info() {
        let methods = [without_ebp(&LOOP), with_ebp(&[0x20, 0x54]), with_ebp(&[0x20, 0xd4, 0x43])];
        let back = BASE + 0x210b;
        let innermost = [0x51, 0xd1, back];
        // The local, esi, edi, ebp and the return address of each method with ebp.
        let second = [0x99, 0x52, 0xd2, STACK + 0x2c, BASE + 0x220b];
        let third = [0x99, 0x53, 0xd3, STACK + 0x40, back];
        let last = [0x99, 0x54, 0xd4, 0, 0];
        let stack = [&innermost[..], &second, &third, &last].concat();
        let gpr = [0, 0, 0, 0xb0, STACK, STACK + 0x18, 1, 2];
        let (frames, registers, stop) = walk(image(2, &methods), 0x2002, gpr, &stack);
        // The runtime may have called a handler of the third, so its caller is not proved.
        assert_eq!(
            frames,
            [
                (0x2002, Trust::Context),
                (0x210b, Trust::UnwindInfo),
                (0x220b, Trust::UnwindInfo),
                (0x210b, Trust::FramePointer)
            ]
        );
        assert_eq!(stop, Stop::ZeroReturnAddress);
        // esi and edi are those that the second saved: the third's first instructions push them but
        // write nothing to them.
        assert_eq!(registers[3..], [0xb0, STACK + 0x34, STACK + 0x40, 0x52, 0xd2]);
    }

    #[test]
    fn a_body_that_pushes_arguments_is_not_walked_by_its_size() {
        // je to the next instruction; push eax; a loop
        let pushes = without_ebp(&[0x74, 0, 0x50, 0xeb, 0xfe]);
        let back = BASE + 0x210b;
        // The argument, esi and edi, which holds an address behind a call.
        let stack = [0x99, 0x51, back, back, 0x99];
        let gpr = [0, 0, 0, 0, STACK, 0, 1, 2];
        let (frames, ..) = walk(image(2, &[pushes, with_ebp(&[0x20, 0x54])]), 0x2005, gpr, &stack);
        assert_eq!(frames, [(0x2005, Trust::Context)]);
    }

    #[test]
    fn prologues_and_epilogues_are_walked_by_their_code() {
        let methods = || [without_ebp(&LOOP), with_ebp(&[0x20, 0x54])];
        for (rva, stack) in [
            (0x2000, &[BASE + 0x210b, 0x99][..]),
            (0x2001, &[0xd1, BASE + 0x210b, 0x99]),
            (0x200e, &[0xd1, BASE + 0x210b, 0x99]),
            (0x200f, &[BASE + 0x210b, 0x99]),
        ] {
            let gpr = [0, 0, 0, 0, STACK, STACK + 0x40, 1, 2];
            let (frames, ..) = walk(image(2, &methods()), rva, gpr, stack);
            assert_eq!(frames, [(rva, Trust::Context), (0x210b, Trust::Code)], "{rva:x}");
        }
    }

    #[test]
    fn methods_of_known_versions_have_bounds() {
        let methods = || [without_ebp(&LOOP), with_ebp(&[0x20, 0x54])];
        for (major, is_known) in [(1, false), (2, true), (3, true), (4, false), (9, false)] {
            let image = image(major, &methods());
            let range = is_known.then_some(0x2000..0x2010);
            assert_eq!(image.function_range(0x200f), range, "{major}");
            assert_eq!(image.function_range(0x2010), None, "{major}");
        }
        // Longer than the place up to the next method.
        let too_long = [(&[0x82, 1, 0x21][..], vec![0x90; 0x10]), with_ebp(&[0x20, 0x54])];
        assert_eq!(image(2, &too_long).function_range(0x2000), None);
    }

    /// A method that was compiled at run time, with a call and a loop in [`without_ebp`]'s code.
    fn compiled(arch: Arch, size: u32, gc_info: &[u8]) -> ImageTables {
        let code = without_ebp(&[&[0xe8, 0, 0, 0, 0], &LOOP[..]].concat()).1;
        ImageTables::new(arch, size).range(0, code).exception_directory(0, 0).method(gc_info).build()
    }

    #[test]
    fn a_method_compiled_at_run_time_is_walked_by_its_gc_info() {
        let info = without_ebp(&LOOP).0;
        let stack = [0x51, 0xd1, BASE + 7, 0x52, 0xd2, 0];
        let gpr = [0, 0, 0, 0xb0, STACK, 0xb5, 1, 2];
        let (frames, registers, stop) = walk(compiled(Arch::X86, 0x10, info), 7, gpr, &stack);
        assert_eq!(frames, [(7, Trust::Context), (7, Trust::UnwindInfo)]);
        assert_eq!(registers[3..], [0xb0, STACK + 0xc, 0xb5, 0x51, 0xd1]);
        assert_eq!(stop, Stop::ZeroReturnAddress);
        // Without it the loop leads to no return.
        let (frames, ..) = walk(compiled(Arch::X86, 0x10, &[]), 7, gpr, &stack);
        assert_eq!(frames, [(7, Trust::Context)]);
    }

    #[test]
    fn gc_info_that_does_not_fit_a_compiled_method_is_left_out() {
        let info = without_ebp(&LOOP).0;
        let bounds = |arch, size, info: &[u8]| compiled(arch, size, info).gc_info().map(|header| header.size);
        assert_eq!(bounds(Arch::X86, 0x10, info), Some(0x10));
        // Behind the header anything may follow.
        assert_eq!(bounds(Arch::X86, 0x10, &[info, &[0xff; 126]].concat()), Some(0x10));
        for (arch, size, info) in [
            (Arch::X64, 0x10, info),
            (Arch::X86, 0xf, info),
            (Arch::X86, 0x11, info),
            (Arch::X86, 0x10, &info[..1]),
            (Arch::X86, 0x10, &[0xff; 128]),
            (Arch::X86, 0, &[0, 0x21]),
        ] {
            assert_eq!(bounds(arch, size, info), None, "{size:#x} {info:x?}");
        }
    }

    #[test]
    fn gc_info_is_explained() {
        let space = Space(image(2, &[without_ebp(&LOOP), with_ebp(&[0x20, 0xd4, 0x43])]));
        let frame = |rva: u32, trust| {
            let address = u64::from(BASE + rva);
            Frame { address, sp: STACK.into(), module: Some(ModuleId(0)), rva, trust }
        };
        let registers = Registers::X86(X86Registers { ip: BASE + 0x2002, gpr: [0; 8] });
        let sample = Sample {
            registers: &registers,
            stack: &[],
            stack_start: STACK.into(),
            stack_base: None,
            truncated: false,
            code_at_ip: None,
        };
        let caller = frame(0x210b, Trust::UnwindInfo);
        let explained = explain(&space, &sample, &frame(0x2002, Trust::Context), Some(&caller));
        assert_eq!(
            explained.to_string(),
            "GCInfo 0x2000..0x2010, frame without ebp, locals 0x0, saved 0x8, parameters 0x0, prologue 0x2; \
             by GCInfo; return address at [esp+0x8], esi at [esp], edi at [esp+0x4]"
        );
        assert_eq!(
            explain(&space, &sample, &caller, None).record,
            "GCInfo 0x2100..0x2120, frame with ebp, locals 0x4, saved 0xc, parameters 0x0, prologue 0x6, handlers"
        );
        let described = facts(&space, &caller).expect("a method");
        assert_eq!((described.frame_type, described.function_start), ("gc-info", 0x2100));
        assert_eq!((described.locals, described.saved_registers, described.prologue), (4, 0xc, 6));
        assert_eq!((described.parameters, described.allocates_base_pointer), (Some(0), true));
    }
}
