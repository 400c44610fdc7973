//! Frame records of x86 code: FrameData ("New FPO") and the older FPO_DATA, from the debug streams
//! of the DBI.
//!
//! Layouts as in cvinfo.h (`tagFRAMEDATA`, 32 bytes) and winnt.h (`FPO_DATA`, 16 bytes). In images
//! whose code a post-link tool has moved (OMAP), the records have addresses as linked. Those
//! records are left out.

use stk_unwind::x86::{Fpo, FrameData};

use super::dbi::Dbi;
use super::error::PdbError;
use super::msf::{Msf, STREAM_DBI};
use stk_base::model::bytes::{c_str_within, u16_at, u32_at};

/// Numbers of the DBI's debug streams.
const FPO: usize = 0;
const NEW_FPO: usize = 9;
const FRAME_DATA_SIZE: usize = 32;
const FPO_DATA_SIZE: usize = 16;
/// `fHasSEH`, `fHasEH` and `fIsFunctionStart` of FRAMEDATA's flags.
const HAS_SEH: u32 = 1;
const HAS_EH: u32 = 2;
const IS_FUNCTION_START: u32 = 4;
/// `fHasSEH` of FPO_DATA: bit 11, after cbProlog (8 bits) and cbRegs (3 bits).
const FPO_HAS_SEH: u16 = 1 << 11;
/// `fUseBP` of FPO_DATA: bit 12, after cbProlog (8 bits), cbRegs (3 bits) and fHasSEH.
const USES_EBP: u16 = 1 << 12;
/// Limit for the records, against forged streams. No real image has more.
const MOST: usize = 1 << 22;
/// Limit for the length of a program. No real one is longer.
const MAX_PROGRAM: usize = 4 << 10;
/// Limit for all distinct programs together. They are few and short, but records may share one
/// text.
const MAX_TEXT: usize = 256 << 20;
/// Limit in relation to the stored bytes: a record has 32 bytes, a program about a hundred.
const TEXT_EXPANSION: usize = 16;

/// The frame records of one PDB.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FrameRecords {
    /// FrameData, in file order.
    pub frame_data: Vec<FrameData>,
    /// FPO_DATA, in file order.
    pub fpo: Vec<Fpo>,
}

/// Reads the records. `strings` is the text of the `/names` stream.
pub(super) fn read(msf: &Msf<'_>, strings: &[u8]) -> Result<FrameRecords, PdbError> {
    let stream = msf.stream(STREAM_DBI).ok_or(PdbError::MissingStream("debug information"))?;
    let dbi = Dbi::read(msf, stream)?;
    if !dbi.omap_to_source.is_empty() {
        return Ok(FrameRecords::default());
    }
    let bytes = |number: usize| match dbi.debug_stream(number).and_then(|number| msf.stream(number)) {
        Some(stream) => stream.read_all().map(|bytes| bytes.into_owned()),
        None => Ok(Vec::new()),
    };
    Ok(FrameRecords { frame_data: frame_data(&bytes(NEW_FPO)?, strings), fpo: fpo(&bytes(FPO)?) })
}

fn frame_data(stream: &[u8], strings: &[u8]) -> Vec<FrameData> {
    // The subsection of an object file begins with a relocation, which some linkers copy.
    let records = if stream.len() % FRAME_DATA_SIZE == 4 { &stream[4..] } else { stream };
    let max_text = MAX_TEXT.min((stream.len() + strings.len()).saturating_mul(TEXT_EXPANSION));
    let mut text = 0;
    let mut found = Vec::new();
    for record in records.chunks_exact(FRAME_DATA_SIZE).take(MOST) {
        let [rva, len, locals, params, _, program, _, flags] =
            std::array::from_fn(|n| u32_at(record, n * 4).unwrap_or(0));
        let program = c_str_within(strings, program as usize, MAX_PROGRAM + 1);
        let Some(program) = program.filter(|text| text.len() <= MAX_PROGRAM) else { continue };
        text += program.len();
        if text > max_text {
            break;
        }
        found.push(FrameData {
            rva,
            len,
            locals,
            params,
            prologue: u16_at(record, 24).unwrap_or(0).into(),
            saved: u16_at(record, 26).unwrap_or(0).into(),
            is_function_start: flags & IS_FUNCTION_START != 0,
            has_seh: flags & HAS_SEH != 0,
            has_eh: flags & HAS_EH != 0,
            program: String::from_utf8_lossy(program).into_owned(),
        });
    }
    found
}

fn fpo(stream: &[u8]) -> Vec<Fpo> {
    let read = |record: &[u8]| {
        let attributes = u16_at(record, 14)?;
        Some(Fpo {
            rva: u32_at(record, 0)?,
            len: u32_at(record, 4)?,
            // Both count words of 4 bytes, like the registers.
            locals: u32_at(record, 8)?.saturating_mul(4),
            params: u32::from(u16_at(record, 12)?) * 4,
            saved: u32::from(attributes >> 8 & 7) * 4,
            uses_ebp: attributes & USES_EBP != 0,
            prologue: u32::from(attributes & 0xFF),
            has_seh: attributes & FPO_HAS_SEH != 0,
            frame_type: (attributes >> 14) as u8,
        })
    };
    stream.chunks_exact(FPO_DATA_SIZE).take(MOST).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: [u32; 8]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn frame_data_fields_have_the_layout_of_cvinfo() {
        let strings = b"\0$T0 $ebp 4 + =\0";
        let record = words([0x1000, 0x40, 0x10, 8, 0, 1, 0x000c_0003, 4]);
        let expected = FrameData {
            rva: 0x1000,
            len: 0x40,
            locals: 0x10,
            params: 8,
            prologue: 3,
            saved: 12,
            is_function_start: true,
            has_seh: false,
            has_eh: false,
            program: "$T0 $ebp 4 + =".into(),
        };
        let expected = std::slice::from_ref(&expected);
        assert_eq!(frame_data(&record, strings), expected);
        // The same behind a relocation.
        assert_eq!(frame_data(&[&[0; 4], &record[..]].concat(), strings), expected);
        // A program outside the text: the record is left out.
        assert_eq!(frame_data(&words([0x1000, 0x40, 0, 0, 0, 99, 0, 0]), strings), []);
        assert_eq!(frame_data(&record[..31], strings), []);
        let flagged = |flags| {
            let found = frame_data(&words([0x1000, 0x40, 0x10, 8, 0, 1, 0x000c_0003, flags]), strings);
            found.first().map(|record| (record.has_seh, record.has_eh, record.is_function_start))
        };
        assert_eq!(flagged(1), Some((true, false, false)));
        assert_eq!(flagged(2), Some((false, true, false)));
    }

    #[test]
    fn fpo_counts_words_and_its_flags_have_the_layout_of_winnt() {
        let mut record = Vec::new();
        for word in [0x2000u32, 0x30, 3] {
            record.extend(word.to_le_bytes());
        }
        record.extend(2u16.to_le_bytes()); // cdwParams
        // cbProlog 5, cbRegs 2, no SEH, uses ebp, cbFrame 1 (FRAME_TRAP)
        record.extend((5u16 | 2 << 8 | 1 << 12 | 1 << 14).to_le_bytes());
        let expected = Fpo {
            rva: 0x2000,
            len: 0x30,
            locals: 12,
            params: 8,
            saved: 8,
            uses_ebp: true,
            prologue: 5,
            has_seh: false,
            frame_type: 1,
        };
        assert_eq!(fpo(&record), [expected]);
        let last = record.len() - 1;
        record[last] = 2 | 1 << 3; // SEH instead of ebp
        assert_eq!(fpo(&record), [Fpo { uses_ebp: false, has_seh: true, frame_type: 0, ..expected }]);
    }
}
