//! The parts of a module's identity that a loader notification keeps. The thread that loads the
//! module reads them, so the identity is known even if the module is gone before the tables thread
//! looks at it. The reading is bounded and allocates nothing, which `object` and
//! [`stk_format::image`] cannot promise: the one wants the image in one piece, the other copies the
//! headers to the heap.

use super::image::Memory;
use stk_schema::bytes::u32_at;
use stk_schema::identity::{CodeView, Identity, PeIdentity};
use stk_schema::windows as pe;

/// Most bytes of a PDB's name that are kept.
pub(crate) const PDB_NAME: usize = 260;
/// Bytes at the start of an image that hold the headers of nearly every one.
const START: usize = 1024;
/// Signature, file header and the largest optional header.
pub(super) const NT: usize = 24 + 112 + 16 * 8;
/// The highest offset at which the NT headers are accepted.
const MAX_NT: u32 = 64 << 10;
/// Entries of the debug directory that are searched.
const ENTRIES: usize = 16;
/// Size of an IMAGE_DEBUG_DIRECTORY.
const ENTRY: usize = 28;
/// IMAGE_DEBUG_TYPE_CODEVIEW.
const CODEVIEW: u32 = 2;
/// Size of the fixed part of an `RSDS` record: signature, GUID, age.
const RSDS: usize = 24;

/// Identities of an image, in memory of fixed size.
#[derive(Clone, Debug)]
pub(crate) struct Fingerprint {
    pub pe: PeIdentity,
    code_view: Option<([u8; 16], u32)>,
    name: [u8; PDB_NAME],
    name_len: usize,
}

impl Fingerprint {
    /// Reads the fingerprint of the image at `base`; `None` if it has no readable PE headers. At
    /// most four reads.
    pub(crate) fn read(memory: &impl Memory, base: u64) -> Option<Fingerprint> {
        let mut headers = [0; NT];
        read_headers(memory, base, &mut headers)?;
        let field = |at: usize| u32_at(&headers, at);
        let magic = field(24)? & 0xffff;
        let (count, directories) = match magic {
            0x20b => (24 + 108, 24 + 112),
            0x10b => (24 + 92, 24 + 96),
            _ => return None,
        };
        let pe = PeIdentity {
            time_date_stamp: field(8)?,
            size_of_image: field(24 + 56)?,
            check_sum: field(24 + 64)?,
        };
        let mut print = Fingerprint { pe, code_view: None, name: [0; PDB_NAME], name_len: 0 };
        if field(count)? as usize > pe::DIRECTORY_DEBUG {
            let at = directories + pe::DIRECTORY_DEBUG * 8;
            print.read_code_view(memory, base, field(at)?, field(at + 4)?);
        }
        Some(print)
    }

    /// The identities as the trace stores them.
    pub(crate) fn identities(&self) -> impl Iterator<Item = Identity<'_>> {
        let code_view = self.code_view.map(|(guid, age)| {
            Identity::CodeView(CodeView {
                guid,
                age,
                pdb_name: self.name.get(..self.name_len).unwrap_or(&[]),
            })
        });
        core::iter::once(Identity::Pe(self.pe)).chain(code_view)
    }

    fn read_code_view(&mut self, memory: &impl Memory, base: u64, rva: u32, len: u32) {
        let mut directory = [0; ENTRIES * ENTRY];
        let len = (len as usize).min(directory.len());
        let Some(directory) = directory.get_mut(..len).filter(|_| rva != 0) else { return };
        if u64::from(rva) + len as u64 > u64::from(self.pe.size_of_image)
            || !memory.read(base + u64::from(rva), directory)
        {
            return;
        }
        let Some(entry) = directory.chunks_exact(ENTRY).find(|entry| u32_at(entry, 12) == Some(CODEVIEW))
        else {
            return;
        };
        let (Some(size), Some(rva)) = (u32_at(entry, 16), u32_at(entry, 20)) else { return };
        let mut record = [0; RSDS + PDB_NAME];
        let len = (size as usize).min(record.len());
        let Some(record) = record.get_mut(..len).filter(|_| len > RSDS && rva != 0) else { return };
        if u64::from(rva) + len as u64 > u64::from(self.pe.size_of_image)
            || !memory.read(base + u64::from(rva), record)
            || !record.starts_with(b"RSDS")
        {
            return;
        }
        let (head, name) = record.split_at(RSDS);
        let (Some(guid), Some(age)) =
            (head.get(4..20).and_then(|guid| guid.try_into().ok()), u32_at(head, 20))
        else {
            return;
        };
        self.name_len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        if let Some(own) = self.name.get_mut(..name.len()) {
            own.copy_from_slice(name);
        }
        self.code_view = Some((guid, age));
    }
}

/// Reads the NT headers: with the first bytes of the image, or separately if they lie farther back.
pub(super) fn read_headers(memory: &impl Memory, base: u64, into: &mut [u8; NT]) -> Option<u32> {
    let mut start = [0; START];
    if !memory.read(base, &mut start) || !start.starts_with(b"MZ") {
        return None;
    }
    let nt = u32_at(&start, 0x3c).filter(|&nt| nt <= MAX_NT)?;
    match start.get(nt as usize..nt as usize + NT) {
        Some(bytes) => into.copy_from_slice(bytes),
        None if memory.read(base + u64::from(nt), into) => {}
        None => return None,
    }
    into.starts_with(b"PE\0\0").then_some(nt)
}
