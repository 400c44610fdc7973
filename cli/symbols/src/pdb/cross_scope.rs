//! Ids that an object file borrows from another one (link-time code generation). Its C13 data
//! states the other file and that file's own number for the record. The other file's C13 data maps
//! that number to a record of the PDB.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::dbi::Dbi;
use super::file_names::FileNames;
use super::lines::subsections;
use super::msf::Msf;
use stk_base::model::bytes::u32_at;

const DEBUG_S_CROSSSCOPEIMPORTS: u32 = 0xf7;
const DEBUG_S_CROSSSCOPEEXPORTS: u32 = 0xf8;
/// Set in a borrowed id. Below this bit, eleven bits number the lender, and twenty bits the id
/// among those borrowed from it.
const BORROWED: u32 = 0x8000_0000;

/// Number in the PDB by number in the object file.
type ModuleExports = HashMap<u32, u32, foldhash::fast::FixedState>;

/// The ids that object files lend to each other. Each file's list is read when it is first needed.
pub(super) struct CrossScope<'a, 'm> {
    msf: &'a Msf<'m>,
    dbi: &'a Dbi,
    /// Number of the module by its name in lower case.
    by_name: OnceCell<HashMap<Vec<u8>, usize, foldhash::fast::FixedState>>,
    /// Number of the module by its name's offset.
    lenders: HashMap<u32, Option<usize>, foldhash::fast::FixedState>,
    exports: HashMap<usize, ModuleExports, foldhash::fast::FixedState>,
}

/// The ids that one object file borrows: for each lender, its name's offset and the borrowed ids, 4
/// bytes each.
pub(super) struct Imports<'d>(Vec<(u32, &'d [u8])>);

impl<'d> Imports<'d> {
    /// Reads a module's C13 bytes.
    pub(super) fn read(c13: &'d [u8]) -> Imports<'d> {
        let body =
            subsections(c13).find(|(kind, _)| *kind == DEBUG_S_CROSSSCOPEIMPORTS).map(|(_, body)| body);
        let mut lenders = Vec::new();
        let mut rest = body.unwrap_or_default();
        while let (Some(name), Some(count)) = (u32_at(rest, 0), u32_at(rest, 4)) {
            let ids = (count as usize).checked_mul(4).and_then(|len| rest.get(8..)?.split_at_checked(len));
            let Some((ids, after)) = ids else { break };
            lenders.push((name, ids));
            rest = after;
        }
        Imports(lenders)
    }
}

impl<'a, 'm> CrossScope<'a, 'm> {
    pub(super) fn new(msf: &'a Msf<'m>, dbi: &'a Dbi) -> CrossScope<'a, 'm> {
        CrossScope {
            msf,
            dbi,
            by_name: OnceCell::new(),
            lenders: HashMap::default(),
            exports: HashMap::default(),
        }
    }

    /// The number in the PDB of an id of the module that `imports` belongs to; `None` if it is
    /// invalid.
    pub(super) fn resolve(&mut self, id: u32, imports: &Imports<'_>, names: &FileNames<'_>) -> Option<u32> {
        if id & BORROWED == 0 {
            return Some(id);
        }
        let &(name, ids) = imports.0.get((id >> 20 & 0x7ff) as usize)?;
        let local = u32_at(ids, (id & 0xf_ffff) as usize * 4)?;
        let module = match self.lenders.get(&name) {
            Some(&known) => known?,
            None => {
                let found = self.find(name, names);
                self.lenders.insert(name, found);
                found?
            }
        };
        if !self.exports.contains_key(&module) {
            let exports = self.read_exports(module);
            self.exports.insert(module, exports);
        }
        self.exports.get(&module)?.get(&local).copied().filter(|id| id & BORROWED == 0)
    }

    /// The module with this name.
    fn find(&self, name: u32, names: &FileNames<'_>) -> Option<usize> {
        let by_name = self.by_name.get_or_init(|| {
            let names = self.dbi.modules.iter().map(|module| module.name.to_ascii_lowercase());
            // Of modules with equal names, the first counts.
            names.enumerate().map(|(number, name)| (name, number)).rev().collect()
        });
        by_name.get(&names.get(name)?.to_ascii_lowercase()).copied()
    }

    /// Reads a module's list. Without a list, or with a damaged one, the module lends nothing.
    fn read_exports(&self, module: usize) -> ModuleExports {
        let data = self.dbi.modules.get(module).and_then(|module| module.c13(self.msf));
        let body = data.as_deref().and_then(|c13| {
            subsections(c13).find(|(kind, _)| *kind == DEBUG_S_CROSSSCOPEEXPORTS).map(|(_, body)| body)
        });
        let pairs = body.unwrap_or_default().chunks_exact(8);
        pairs.filter_map(|pair| Some((u32_at(pair, 0)?, u32_at(pair, 4)?))).collect()
    }
}
