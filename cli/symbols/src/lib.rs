//! Names, files and lines of code addresses.
//!
//! The caller provides, for each module, its recorded identity ([`ModuleKey`]) and the rvas of its
//! distinct frames, and a [`SymbolStore`] with the places to search. This module finds the PDB of
//! exactly that build and reads it into a flat [`index::SymbolIndex`] (procedures, publics, thunks,
//! inline sites, lines). Each address then gets its chain of frames, innermost first, or a
//! [`Reason`] why it has no better name than `module.dll!fn_1200`.
//!
//! Nothing is guessed: a PDB of another build is reported and never used, and an address without a
//! line row gets no line. Damaged and hostile files end in an error, or in a part that is left out
//! and counted.
//!
//! ```text
//! path                 where to search, in the debuggers' syntax        SymbolPath
//! identity             the build of a file or a module                  Identity, ModuleKey
//! local                which paths are local
//! listing              the names in folders, for lookups that ignore case
//! trust                names, paths, folders and servers, and how far each is trusted
//! store                searches for the file of one build               Identity -> Search
//! server, cab, bundle  sources of files: HTTP servers, cabinets, a store in one file
//! cache                stored files: those from servers, and indexes
//! pdb_records          compares a PDB's records, read by another reader, with the index
//! pdb, dwarf, go, coff read symbol files and images                     bytes -> SymbolIndex
//! image                facts from an image file
//! portable_pdb         lines of managed code                            bytes -> PortablePdb
//! index                functions, inline chains and lines by address    SymbolIndex
//! names                function names in readable form
//! symbolizer           names for one module after the other             rvas -> ModuleSymbols
//! symbol_files         the symbol files of one module                  Image -> SymbolFiles
//! resolved, reason     the names of a module's addresses; why an address has no better name
//! ```
//!
//! ```
//! use stk_symbols::{Demangle, SymbolPath, SymbolStore, Symbolizer};
//!
//! let path = SymbolPath::parse(r"C:\pdbs;srv*C:\cache*https://symbols.example");
//! assert_eq!(path.elements.len(), 2);
//! // It contacts no server before `SymbolStore::go_online`.
//! let symbolizer = Symbolizer::new(SymbolStore::new(path), Demangle::Full);
//! assert!(symbolizer.store().redirects().is_empty());
//! ```
#![deny(unsafe_code)]
// cli/clippy.toml says what is meant. Tests, and the programs for Windows, open files as they like.
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod bundle;
pub mod cab;
mod cache;
mod coff;
mod dwarf;
mod go;
mod identity;
mod image;
pub mod index;
mod listing;
mod local;
mod names;
mod path;
pub mod pdb;
pub mod pdb_records;
pub mod portable_pdb;
mod reason;
mod resolved;
pub mod server;
mod server_error;
mod store;
mod symbol_files;
mod symbolizer;
mod trust;

pub use bundle::{Bundle, BundleWriter, is_bundle};
pub use cache::{CacheKey, CacheStats, SymbolCache};
pub use dwarf::{ImageIndexError, image_index};
pub use go::go_functions;
pub use identity::{Identity, ModuleKey, WantedFile, image_identity};
pub use image::{ImageFile, ImageFileError};
pub use names::{Demangle, NameTable, demangle, undecorate_x86};
pub use path::{PathElement, Store, SymbolPath};
pub use reason::{Reason, Remedy};
pub use resolved::{Location, ModuleSymbols, Resolution, Source};
pub use stk_base::model::{image_id, pdb_id};
pub use store::{FoundFile, Search, SymbolStore};
pub use symbol_files::{SymbolFiles, symbol_files};
pub use symbolizer::{Symbolizer, cached_index, pdb_index};
pub use trust::places::safe_file_name;
