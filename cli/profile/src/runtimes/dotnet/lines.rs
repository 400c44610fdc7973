//! Finds the source line of an address in a method: native offset → IL offset (the runtime's map)
//! → sequence point (the module's portable PDB).

use crate::runtimes::{ManagedModule, MethodId, Methods};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use stk_base::model::{file_name, pdb_id};
use stk_symbols::portable_pdb::{self, DocumentHash, IlPlace, PortablePdb, PortablePdbError};
use stk_symbols::{Identity, SymbolStore};
use thiserror::Error;

/// IL offsets with a special meaning (dotnet/runtime, `ICorDebugInfo::MappingTypes`).
const NO_IL: i32 = -1;
const PROLOGUE: i32 = -2;
const EPILOGUE: i32 = -3;

/// Source lines of methods. Looks for a module's PDB when the first line in it is needed.
#[derive(Debug)]
pub struct Lines<'a> {
    methods: &'a Methods,
    store: &'a SymbolStore,
    /// By module.
    pdbs: Vec<OnceLock<Result<PortablePdb, Arc<ModulePdbError>>>>,
}

/// Why an address in a method has no line.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum LineError {
    /// No list of the runtime's names the method, only the recorder or the data access library.
    #[error("its name is from .NET's memory or the data access library, which have no lines")]
    NameOnly,
    /// No compiler made it from a source file.
    #[error("was made at run time: it has no source")]
    NoSource,
    /// No list of modules has its module.
    #[error("its module is unknown")]
    UnknownModule,
    /// Its module's PDB cannot be read.
    #[error(transparent)]
    Pdb(Arc<ModulePdbError>),
    /// The runtime did not state the IL of its code.
    #[error("the runtime gave no IL map of it")]
    NoIlMap,
    /// The address is in code that the runtime added.
    #[error("no IL belongs to the address")]
    NoIl,
    /// The map assigns the address to an epilogue, but it is a call's, so that is wrong.
    #[error("the runtime's IL map does not contain its call")]
    NoCall,
    /// The compiler wrote no line for the IL.
    #[error("its PDB has no line for it")]
    NoLine,
}

/// Why the text of a source file cannot be taken from a PDB.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// There is no PDB.
    #[error(transparent)]
    Pdb(LineError),
    /// The PDB is damaged there.
    #[error("the PDB {0}")]
    Damaged(PortablePdbError),
}

/// Why a module's PDB cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ModulePdbError {
    /// Its assembly names no PDB.
    #[error("{0} names no PDB")]
    Unnamed(String),
    /// A file is not a portable PDB, or is damaged.
    #[error("{path}: {error}")]
    Damaged {
        /// The PDB.
        path: PathBuf,
        /// What is wrong with it.
        error: PortablePdbError,
    },
    /// The PDB inside the assembly is damaged.
    #[error("{assembly}: the PDB inside {error}")]
    DamagedInside {
        assembly: PathBuf,
        /// What is wrong with its PDB.
        error: PortablePdbError,
    },
    /// The PDB inside the assembly is not packed correctly.
    #[error("{assembly}: the PDB inside cannot be unpacked")]
    Packed {
        /// Path of the assembly.
        assembly: PathBuf,
    },
    /// The only file of that name cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// It was not found anywhere.
    #[error("{name} ({id}) was not found")]
    NotFound {
        /// Its file name.
        name: String,
        /// GUID and age as symbol servers write them.
        id: String,
    },
    /// A file of that name is of another build.
    #[error("{name} ({id}) was not found; {path} is {found}")]
    OtherBuild {
        /// Its file name.
        name: String,
        /// GUID and age as symbol servers write them.
        id: String,
        path: PathBuf,
        /// The identity of that file.
        found: Identity,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// Source file, under the compiler's name for it.
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
    /// one below its return address. If the compiler moved code behind an epilogue, the runtime's
    /// map may take that code for the epilogue. But an epilogue makes no calls, so the map is wrong
    /// for a call.
    ///
    /// # Errors
    ///
    /// Why there is no line.
    pub fn line(&self, id: MethodId, address: u64, is_call: bool) -> Result<Line, LineError> {
        let method = self.methods.map.get(id);
        let Some(module) = method.module.filter(|_| method.token != 0) else {
            // A method in the runtime's own list has an id.
            return Err(match method.id {
                0 => LineError::NameOnly,
                _ => LineError::NoSource,
            });
        };
        let pdb = self.pdb(module)?;
        let Some(lines) = &method.lines else { return Err(LineError::NoIlMap) };
        let native = u32::try_from(address.saturating_sub(method.base)).unwrap_or(u32::MAX);
        let place = match lines.il_offset(native) {
            None | Some(NO_IL) => return Err(LineError::NoIl),
            Some(PROLOGUE) => IlPlace::Offset(0),
            Some(EPILOGUE) if is_call => return Err(LineError::NoCall),
            Some(EPILOGUE) => IlPlace::Epilogue,
            Some(offset) => match u32::try_from(offset) {
                Ok(offset) => IlPlace::Offset(offset),
                Err(_) => return Err(LineError::NoIl),
            },
        };
        let line = pdb.line(method.token, place);
        line.map(|(file, line)| Line { file, line }).ok_or(LineError::NoLine)
    }

    /// The text of a source file that is in the PDB of a module, and the module's file name.
    /// `module`: file name of the module; empty = the first one that has the text.
    ///
    /// # Errors
    ///
    /// Why the PDB of that module, or the text in it, cannot be read.
    pub fn source(&self, module: &str, document: &str) -> Result<Option<(&str, Vec<u8>)>, SourceError> {
        self.first(module, |pdb| pdb.source(document))
    }

    /// The map of SourceLink in the PDB of a module, if that PDB knows the source file, and the
    /// hash of the file's text. `module` as for [`source`](Self::source).
    ///
    /// # Errors
    ///
    /// Why the PDB of that module cannot be read.
    pub fn linked(
        &self,
        module: &str,
        document: &str,
    ) -> Result<Option<(Vec<u8>, DocumentHash)>, SourceError> {
        let found = self.first(module, |pdb| {
            Ok(pdb.source_link().and_then(|map| Some((map.to_vec(), pdb.hash(document)?))))
        });
        found.map(|found| found.map(|(_, linked)| linked))
    }

    /// What the first PDB of modules with this name has, and the module's file name.
    fn first<T>(
        &self,
        module: &str,
        has: impl Fn(&PortablePdb) -> Result<Option<T>, PortablePdbError>,
    ) -> Result<Option<(&str, T)>, SourceError> {
        let mut problem = None;
        for (number, known) in (0..).zip(&self.methods.modules) {
            let name = known.file_name();
            if !module.is_empty() && !name.eq_ignore_ascii_case(module) {
                continue;
            }
            let found = match self.pdb(number) {
                Ok(pdb) => has(pdb).map_err(SourceError::Damaged),
                Err(error) => Err(SourceError::Pdb(error)),
            };
            match found {
                Ok(Some(found)) => return Ok(Some((name, found))),
                Ok(None) => {}
                Err(error) => {
                    problem.get_or_insert(error);
                }
            }
        }
        // Of any module: most have nothing to do with the document.
        problem.filter(|_| !module.is_empty()).map_or(Ok(None), Err)
    }

    fn pdb(&self, module: u32) -> Result<&PortablePdb, LineError> {
        let pdb = self.pdbs.get(module as usize).ok_or(LineError::UnknownModule)?;
        let known =
            pdb.get_or_init(|| find(self.store, &self.methods.modules[module as usize]).map_err(Arc::new));
        known.as_ref().map_err(|error| LineError::Pdb(error.clone()))
    }
}

/// Finds and reads the PDB of a module, as a file or inside the assembly.
fn find(store: &SymbolStore, module: &ManagedModule) -> Result<PortablePdb, ModulePdbError> {
    if module.pdb_guid == [0; 16] {
        return Err(ModulePdbError::Unnamed(module.file_name().to_owned()));
    }
    let name = if module.pdb_path.is_empty() {
        format!("{}.pdb", module.stem())
    } else {
        file_name(&module.pdb_path).to_owned()
    };
    let mut search = store.find_portable_pdb(&name, &module.pdb_guid, &module.path);
    if let Some(found) = search.found.take() {
        return PortablePdb::parse(found.file)
            .map_err(|error| ModulePdbError::Damaged { path: found.path, error });
    }
    if let Some(found) = store.find_assembly(&module.path, &module.pdb_guid) {
        let embedded = portable_pdb::assembly_debug(&found.file).and_then(|debug| debug.embedded);
        if let Some(packed) = embedded {
            let assembly = found.path;
            return match portable_pdb::inflate(packed) {
                Some(data) => PortablePdb::parse(data)
                    .map_err(|error| ModulePdbError::DamagedInside { assembly, error }),
                None => Err(ModulePdbError::Packed { assembly }),
            };
        }
    }
    if let Some((path, error)) = search.unreadable.into_iter().next() {
        return Err(ModulePdbError::Unreadable { path, error });
    }
    let id = pdb_id(&module.pdb_guid, u32::MAX);
    Err(match search.mismatched.into_iter().next() {
        Some((path, found)) => ModulePdbError::OtherBuild { name, id, path, found },
        None => ModulePdbError::NotFound { name, id },
    })
}
