//! Machine code as text: x64 and x86 by iced-x86, arm64 by yaxpeax-arm.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use stk_base::panics::caught_of_input;
use stk_unwind::Arch;
use yaxpeax_arch::{Decoder as _, U8Reader};

/// Bytes of an arm64 instruction.
const WORD: usize = 4;

/// The lengths of the instructions in a piece of code that begins with one, up to the first that
/// ends behind it. What is no instruction has the length of the smallest one.
pub(super) fn lengths(arch: Arch, code: &[u8]) -> Vec<u8> {
    let bits = match arch {
        Arch::Arm64 => return vec![WORD as u8; code.len() / WORD],
        Arch::X64 => 64,
        Arch::X86 => 32,
        _ => return Vec::new(),
    };
    let mut decoder = Decoder::new(bits, code, DecoderOptions::NONE);
    let mut lengths = Vec::new();
    let mut at = 0;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            // iced has gone over an unknown number of bytes.
            at += 1;
            lengths.push(1);
            if decoder.set_position(at).is_err() {
                break;
            }
            continue;
        }
        at = decoder.position();
        lengths.push(instruction.len() as u8);
    }
    lengths
}

/// The text of the one instruction in `code`, at an address. Branches and references show the
/// address that they lead to. `None`: it is none that the decoder knows.
pub(super) fn text(arch: Arch, code: &[u8], address: u64) -> Option<String> {
    match arch {
        Arch::X64 => x86_text(64, code, address),
        Arch::X86 => x86_text(32, code, address),
        Arch::Arm64 => arm64_text(code, address),
        _ => None,
    }
}

fn x86_text(bits: u32, code: &[u8], address: u64) -> Option<String> {
    let instruction = Decoder::with_ip(bits, code, address, DecoderOptions::NONE).decode();
    if instruction.is_invalid() || instruction.len() != code.len() {
        return None;
    }
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    options.set_space_after_operand_separator(true);
    let mut text = String::new();
    formatter.format(&instruction, &mut text);
    Some(text)
}

fn arm64_text(code: &[u8], address: u64) -> Option<String> {
    let word: [u8; WORD] = code.try_into().ok()?;
    // The decoder holds some combinations of bits for impossible.
    let read = caught_of_input(|| {
        let decoder = yaxpeax_arm::armv8::a64::InstDecoder::default();
        decoder.decode(&mut U8Reader::new(&word)).ok().map(|instruction| instruction.to_string())
    });
    read.ok()?.map(|text| with_target(text, address))
}

/// `b.ne $-0x10` with the address that it leads to. ADRP counts from its page of 4 KiB.
fn with_target(text: String, address: u64) -> String {
    let address = if text.starts_with("adrp") { address & !0xfff } else { address };
    let target = text.rsplit_once('$').and_then(|(before, offset)| {
        let (sign, digits) = offset.split_at_checked(1)?;
        let distance = u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
        let target = match sign {
            "+" => address.wrapping_add(distance),
            "-" => address.wrapping_sub(distance),
            _ => return None,
        };
        Some(format!("{before}{target:#x}"))
    });
    target.unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_tests::synth::Random;

    fn texts(arch: Arch, code: &[u8], address: u64) -> Vec<String> {
        let mut at = 0;
        let text = |len: u8| {
            let piece = &code[at..at + usize::from(len)];
            let text = text(arch, piece, address + at as u64).unwrap_or_else(|| "?".to_owned());
            at += usize::from(len);
            text
        };
        lengths(arch, code).into_iter().map(text).collect()
    }

    #[test]
    fn x64_code_is_shown_as_intels_manual_writes_it() {
        // Intel SDM, volume 2: ADD, Jcc, LEA, RET; 06 is no instruction in 64-bit mode.
        let code = [0x48, 0x01, 0xd8, 0x75, 0xfb, 0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0x06, 0xc3];
        let expected = ["add rax, rbx", "jne 0x1000", "lea rax, [0x101c]", "?", "ret"];
        assert_eq!(texts(Arch::X64, &code, 0x1000), expected);
        assert_eq!(texts(Arch::X86, &[0x01, 0xd8, 0x06, 0xc3], 0), ["add eax, ebx", "push es", "ret"]);
    }

    #[test]
    fn arm64_code_is_shown_as_arms_manual_writes_it() {
        // Arm ARM C6.2: ADD (immediate), B.cond, RET, ADRP.
        let words: [u32; 4] = [0x9100_0420, 0x54ff_ffe1, 0xd65f_03c0, 0xb000_0000];
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(
            texts(Arch::Arm64, &code, 0x1000),
            ["add x0, x1, #0x1", "b.ne 0x1000", "ret", "adrp x0, 0x2000"]
        );
    }

    #[test]
    fn an_instruction_that_is_cut_off_has_no_text() {
        assert_eq!(text(Arch::X64, &[0x48, 0x8d, 0x05], 0), None);
        assert_eq!(text(Arch::Arm64, &[0xc0, 0x03, 0x5f], 0), None);
    }

    #[test]
    fn random_bytes_are_covered_by_instructions_in_order() {
        let mut random = Random::new(7);
        for arch in [Arch::X64, Arch::X86, Arch::Arm64] {
            for _ in 0..3_000 {
                let code: Vec<u8> = (0..64).map(|_| random.number() as u8).collect();
                let covered: usize = lengths(arch, &code).into_iter().map(usize::from).sum();
                assert!(
                    covered <= code.len() && covered > code.len() - 16,
                    "{arch:?}: {covered} of {code:x?}"
                );
                texts(arch, &code, random.number());
            }
        }
    }
}
