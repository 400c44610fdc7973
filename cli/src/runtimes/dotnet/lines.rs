//! From an address in a method to a source line: native offset → IL offset (the runtime's map) →
//! sequence point (the module's portable PDB).

use crate::model::{file_name, pdb_id};
use crate::runtimes::{ManagedModule, MethodId, Methods};
use crate::symbols::SymbolStore;
use crate::symbols::portable_pdb::{self, IlPlace, PortablePdb};
use std::sync::{Arc, OnceLock};

/// IL offsets with a meaning of their own (dotnet/runtime, `ICorDebugInfo::MappingTypes`).
const NO_IL: i32 = -1;
const PROLOGUE: i32 = -2;
const EPILOGUE: i32 = -3;

/// Source lines of methods. A module's PDB is looked for when its first line is asked for.
#[derive(Debug)]
pub struct Lines<'a> {
    methods: &'a Methods,
    store: &'a SymbolStore,
    /// By module.
    pdbs: Vec<OnceLock<Result<PortablePdb, Arc<str>>>>,
}

/// A source line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Source file, as the compiler names it.
    pub file: String,
    /// From 1.
    pub line: u32,
}

impl<'a> Lines<'a> {
    /// Lines of `methods`, from PDBs and assemblies in `store`.
    pub fn new(methods: &'a Methods, store: &'a SymbolStore) -> Lines<'a> {
        Lines { methods, store, pdbs: methods.modules.iter().map(|_| OnceLock::new()).collect() }
    }

    /// The line of an address in a method: of the instruction itself, or of a caller (`is_call`),
    /// one below its return address. Where the compiler moved code behind an epilogue, the
    /// runtime's map may not tell it from that; but no epilogue calls.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn line(&self, id: MethodId, address: u64, is_call: bool) -> Result<Line, Arc<str>> {
        let method = self.methods.map.get(id);
        let Some(module) = method.module.filter(|_| method.token != 0) else {
            // What the runtime lists itself has its number.
            return Err(match method.id {
                0 => "its name is from the data access library, which tells no lines".into(),
                _ => "was made at run time: it has no source".into(),
            });
        };
        let pdb = self.pdb(module)?;
        let Some(lines) = &method.lines else { return Err("the runtime gave no IL map of it".into()) };
        let native = u32::try_from(address.saturating_sub(method.base)).unwrap_or(u32::MAX);
        let place = match lines.il_offset(native) {
            None | Some(NO_IL) => return Err("no IL belongs to the address".into()),
            Some(PROLOGUE) => IlPlace::Offset(0),
            Some(EPILOGUE) if is_call => return Err("the runtime's IL map does not tell of its call".into()),
            Some(EPILOGUE) => IlPlace::Epilogue,
            Some(offset) => match u32::try_from(offset) {
                Ok(offset) => IlPlace::Offset(offset),
                Err(_) => return Err("no IL belongs to the address".into()),
            },
        };
        let line = pdb.line(method.token, place);
        line.map(|(file, line)| Line { file, line }).ok_or_else(|| "its PDB has no line for it".into())
    }

    fn pdb(&self, module: u32) -> Result<&PortablePdb, Arc<str>> {
        let pdb = self.pdbs.get(module as usize).ok_or("its module is unknown")?;
        let known = pdb.get_or_init(|| find(self.store, &self.methods.modules[module as usize]));
        known.as_ref().map_err(Arc::clone)
    }
}

/// Finds and reads the PDB of a module: a file of its own, or inside the assembly.
fn find(store: &SymbolStore, module: &ManagedModule) -> Result<PortablePdb, Arc<str>> {
    let assembly = module.file_name();
    if module.pdb_guid == [0; 16] {
        return Err(format!("{assembly} names no PDB").into());
    }
    let name = if module.pdb_path.is_empty() {
        format!("{}.pdb", module.stem())
    } else {
        file_name(&module.pdb_path).to_owned()
    };
    let mut search = store.find_portable_pdb(&name, &module.pdb_guid, &module.path);
    if let Some(found) = search.found.take() {
        return PortablePdb::parse(found.file)
            .map_err(|error| format!("{}: {error}", found.path.display()).into());
    }
    if let Some(found) = store.find_assembly(&module.path, &module.pdb_guid) {
        let embedded = portable_pdb::assembly_debug(&found.file).and_then(|debug| debug.embedded);
        if let Some(packed) = embedded {
            let unpacked =
                portable_pdb::inflate(packed).ok_or("the PDB inside cannot be unpacked".to_owned());
            return unpacked
                .and_then(|data| PortablePdb::parse(data).map_err(|error| format!("the PDB inside {error}")))
                .map_err(|error| format!("{}: {error}", found.path.display()).into());
        }
    }
    if let Some((path, error)) = search.unreadable.first() {
        return Err(format!("{}: {error}", path.display()).into());
    }
    let id = pdb_id(&module.pdb_guid, u32::MAX);
    let other = search.mismatched.first().map(|(path, found)| format!("; {} is {found}", path.display()));
    Err(format!("{name} ({id}) was not found{}", other.unwrap_or_default()).into())
}
