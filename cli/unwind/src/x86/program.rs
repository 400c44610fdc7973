//! FrameData programs: postfix expressions that compute a caller's registers.
//!
//! Source: the description of FrameData program strings in Breakpad's `postfix_evaluator` and the
//! DIA SDK's IDiaFrameData::get_program.

use std::fmt;

use super::registers::X86Registers;
use super::{EBP, ESP};

/// A parsed program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Number(u32),
    Variable(Variable),
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    /// Rounds down to a multiple.
    Align,
    Load,
    Assign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variable {
    /// $T0 to $T7.
    Temporary(u8),
    /// Encoded number; eip is 8.
    Register(u8),
    ReturnAddressSearch,
    Locals,
    Saved,
    Params,
}

const EIP: u8 = 8;
/// The most tokens of one program. Real ones have at most a hundred or so.
const MAX_TOKENS: usize = 512;
/// The most operands on the stack.
const MAX_STACK: usize = 16;

/// The inputs of a program.
pub(crate) struct Input<'a> {
    pub(crate) registers: &'a X86Registers,
    pub(crate) locals: u32,
    pub(crate) saved: u32,
    pub(crate) params: u32,
    /// `.raSearch`: the address at which the search found the return address.
    pub(crate) return_address: Option<u32>,
}

impl Token {
    /// An operator's result for two operands; `None` for a division by zero.
    #[inline]
    fn apply(self, left: u32, right: u32) -> Option<u32> {
        Some(match self {
            Token::Add => left.wrapping_add(right),
            Token::Subtract => left.wrapping_sub(right),
            Token::Multiply => left.wrapping_mul(right),
            Token::Divide => left.checked_div(right)?,
            Token::Remainder => left.checked_rem(right)?,
            _ => left - left.checked_rem(right)?,
        })
    }
}

impl Program {
    /// `None` if a token is not known.
    pub(crate) fn parse(text: &str) -> Option<Program> {
        let mut tokens = Vec::new();
        for word in text.split_ascii_whitespace() {
            tokens.push(token(word)?);
            if tokens.len() > MAX_TOKENS {
                return None;
            }
        }
        (!tokens.is_empty()).then_some(Program { tokens })
    }

    /// Whether the program uses `.raSearch`.
    pub(crate) fn searches(&self) -> bool {
        self.tokens.contains(&Token::Variable(Variable::ReturnAddressSearch))
    }

    /// Whether it begins with `$T0 $ebp =` or the like: the frame is found from ebp.
    pub(crate) fn begins_at_ebp(&self) -> bool {
        let ebp = Token::Variable(Variable::Register(EBP as u8));
        matches!(self.tokens.as_slice(), [Token::Variable(Variable::Temporary(_)), from, Token::Assign, ..] if *from == ebp)
    }

    /// Computes the caller's registers; `None` if a word cannot be read, a variable has no value,
    /// or the program does not give eip and esp.
    pub(crate) fn run(&self, input: &Input<'_>, load: impl Fn(u32) -> Option<u32>) -> Option<X86Registers> {
        let mut temporaries = [None; 8];
        let mut registers = numbered(input.registers);
        let (mut gave_ip, mut gave_sp) = (false, false);
        let mut stack = [Token::Number(0); MAX_STACK];
        let mut depth = 0;
        for &token in &self.tokens {
            let value = |token: Token| match token {
                Token::Number(number) => Some(number),
                Token::Variable(Variable::Temporary(n)) => temporaries[usize::from(n & 7)],
                Token::Variable(Variable::Register(n)) => registers[usize::from(n).min(8)],
                Token::Variable(Variable::ReturnAddressSearch) => input.return_address,
                Token::Variable(Variable::Locals) => Some(input.locals),
                Token::Variable(Variable::Saved) => Some(input.saved),
                Token::Variable(Variable::Params) => Some(input.params),
                _ => None,
            };
            let result = match token {
                Token::Number(_) | Token::Variable(_) => token,
                Token::Load => {
                    depth = usize::checked_sub(depth, 1)?;
                    Token::Number(load(value(stack[depth])?)?)
                }
                Token::Assign => {
                    depth = usize::checked_sub(depth, 2)?;
                    let assigned = value(stack[depth + 1])?;
                    match stack[depth] {
                        Token::Variable(Variable::Temporary(n)) => {
                            temporaries[usize::from(n & 7)] = Some(assigned)
                        }
                        Token::Variable(Variable::Register(n)) => {
                            gave_ip |= n == EIP;
                            gave_sp |= usize::from(n) == ESP;
                            registers[usize::from(n).min(8)] = Some(assigned);
                        }
                        _ => return None,
                    }
                    continue;
                }
                _ => {
                    depth = usize::checked_sub(depth, 2)?;
                    let (left, right) = (value(stack[depth])?, value(stack[depth + 1])?);
                    Token::Number(token.apply(left, right)?)
                }
            };
            *stack.get_mut(depth)? = result;
            depth += 1;
        }
        if !gave_ip || !gave_sp {
            return None;
        }
        let mut found = *input.registers;
        found.ip = registers[usize::from(EIP)]?;
        for (n, value) in found.gpr.iter_mut().enumerate() {
            *value = registers[n]?;
        }
        Some(found)
    }
}

/// The registers by their number in a program.
fn numbered(registers: &X86Registers) -> [Option<u32>; 9] {
    let mut numbered = [Some(registers.ip); 9];
    for (n, value) in registers.gpr.iter().enumerate() {
        numbered[n] = Some(*value);
    }
    numbered
}

/// The program in a PDB's spelling. Where PDBs spell something in several ways, one of them.
impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, token) in self.tokens.iter().enumerate() {
            if n > 0 {
                f.write_str(" ")?;
            }
            match token {
                // Sizes below the stack are written as negative numbers.
                Token::Number(number) => write!(f, "{}", *number as i32)?,
                Token::Variable(Variable::Temporary(n)) => write!(f, "$T{n}")?,
                Token::Variable(Variable::Register(n)) => f.write_str(REGISTERS[usize::from(*n).min(8)])?,
                Token::Variable(Variable::ReturnAddressSearch) => f.write_str(".raSearch")?,
                Token::Variable(Variable::Locals) => f.write_str(".cbLocals")?,
                Token::Variable(Variable::Saved) => f.write_str(".cbSavedRegs")?,
                Token::Variable(Variable::Params) => f.write_str(".cbParams")?,
                Token::Add => f.write_str("+")?,
                Token::Subtract => f.write_str("-")?,
                Token::Multiply => f.write_str("*")?,
                Token::Divide => f.write_str("/")?,
                Token::Remainder => f.write_str("%")?,
                Token::Align => f.write_str("@")?,
                Token::Load => f.write_str("^")?,
                Token::Assign => f.write_str("=")?,
            }
        }
        Ok(())
    }
}

/// The registers' names in programs, by number.
const REGISTERS: [&str; 9] = ["$eax", "$ecx", "$edx", "$ebx", "$esp", "$ebp", "$esi", "$edi", "$eip"];

fn token(word: &str) -> Option<Token> {
    let register = |n: usize| Some(Token::Variable(Variable::Register(n as u8)));
    if let Some(n) = REGISTERS.iter().position(|name| *name == word) {
        return register(n);
    }
    match word {
        "+" => Some(Token::Add),
        "-" => Some(Token::Subtract),
        "*" => Some(Token::Multiply),
        "/" => Some(Token::Divide),
        "%" => Some(Token::Remainder),
        "@" => Some(Token::Align),
        "^" => Some(Token::Load),
        "=" => Some(Token::Assign),
        ".raSearch" | ".raSearchStart" => Some(Token::Variable(Variable::ReturnAddressSearch)),
        ".cbLocals" => Some(Token::Variable(Variable::Locals)),
        ".cbSavedRegs" => Some(Token::Variable(Variable::Saved)),
        ".cbParams" => Some(Token::Variable(Variable::Params)),
        _ => {
            if let Some(number) = word.strip_prefix("$T") {
                let n: u8 = number.parse().ok().filter(|n| *n < 8)?;
                return Some(Token::Variable(Variable::Temporary(n)));
            }
            if let Some(number) = word.strip_prefix('$') {
                // CodeView's register numbers: eax is 17, and so on in the order of encoding.
                let n: u8 = number.parse().ok().filter(|n| (17..=24).contains(n))?;
                return register(usize::from(n - 17));
            }
            let number: i64 = word.parse().ok()?;
            let is_32_bit = (i64::from(i32::MIN)..=i64::from(u32::MAX)).contains(&number);
            is_32_bit.then_some(Token::Number(number as u32))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86::{EBP, EBX, EDI, ESI};

    fn registers() -> X86Registers {
        X86Registers { ip: 0x40_1234, gpr: [1, 2, 3, 4, 0x1000, 0x1010, 7, 8] }
    }

    fn run(text: &str, return_address: Option<u32>, words: &[(u32, u32)]) -> Option<X86Registers> {
        let input = Input { registers: &registers(), locals: 8, saved: 4, params: 0, return_address };
        let load = |at| words.iter().find(|(address, _)| *address == at).map(|(_, word)| *word);
        Program::parse(text)?.run(&input, load)
    }

    #[test]
    fn a_frame_by_ebp() {
        let found = run(
            "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =  $23 $T0 8 - ^ =",
            None,
            &[(0x1014, 0x40_5678), (0x1010, 0x2000), (0x1008, 0x77)],
        )
        .expect("registers");
        assert_eq!(
            (found.ip, found.gpr[ESP], found.gpr[EBP], found.gpr[ESI]),
            (0x40_5678, 0x1018, 0x2000, 0x77)
        );
        assert_eq!(found.gpr[EDI], 8, "what the program does not assign stays");
    }

    #[test]
    fn a_program_is_shown_in_its_original_spelling() {
        for text in [
            "$T0 $ebp = $eip $T0 4 + ^ = $ebp $T0 ^ = $esp $T0 8 + =",
            "$T1 .raSearch = $T0 $T1 4 - 8 @ = $esi .cbLocals .cbSavedRegs + .cbParams * -4 / 3 % =",
        ] {
            assert_eq!(Program::parse(text).expect("a program").to_string(), text);
        }
        assert_eq!(Program::parse("$17  $24").expect("a program").to_string(), "$eax $edi");
    }

    #[test]
    fn a_frame_by_return_address_search() {
        let text = "$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =  $20 $T0 4 - ^ =";
        let found = run(text, Some(0x100c), &[(0x100c, 0x40_5678), (0x1008, 0x66)]).expect("registers");
        assert_eq!((found.ip, found.gpr[ESP], found.gpr[EBX]), (0x40_5678, 0x1010, 0x66));
        assert_eq!(run(text, None, &[]), None);
    }

    #[test]
    fn an_aligned_frame() {
        // T0 is T1 - 4 rounded down to 8: 1014h - 4 is 1010h.
        let text =
            "$T1 .raSearch = $T0  $T1 4 - 8 @ = $ebp $T1 4 - ^ = $eip $T1 ^ = $esp $T1 4 + = $20 $T0 8 - ^ =";
        let words = [(0x1014, 0x40_5678), (0x1010, 0x2000), (0x1008, 0x55)];
        let found = run(text, Some(0x1014), &words).expect("registers");
        assert_eq!((found.ip, found.gpr[EBP], found.gpr[EBX]), (0x40_5678, 0x2000, 0x55));
    }

    #[test]
    fn arithmetic_and_its_faults() {
        let give = |expression: &str| {
            run(&format!("$eip 0 = $esp {expression} ="), None, &[]).map(|found| found.gpr[ESP])
        };
        assert_eq!(give("7 3 *"), Some(21));
        assert_eq!(give("7 3 /"), Some(2));
        assert_eq!(give("7 3 %"), Some(1));
        assert_eq!(give("7 4 @"), Some(4));
        assert_eq!(give(".cbLocals .cbSavedRegs + .cbParams +"), Some(12));
        for bad in ["7 0 /", "7 0 %", "7 0 @", "+", "^", "$T3", "5 ^"] {
            assert_eq!(give(bad), None, "{bad}");
        }
        assert_eq!(run("$eip 0 =", None, &[]), None, "no esp");
        assert_eq!(run("5 5 =", None, &[]), None);
        assert!(Program::parse("$eip ?").is_none());
        assert!(Program::parse("").is_none());
        assert!(Program::parse("$99 1 =").is_none());
        assert!(Program::parse("99999999999").is_none());
        let deep = "1 ".repeat(100);
        assert_eq!(run(&deep, None, &[]), None);
    }
}
