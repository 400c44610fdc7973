//! Names, files and lines of code addresses.
//!
//! The caller provides: for each module its identity as recorded ([`ModuleKey`]) and the rvas of its distinct
//! frames; a [`SymbolStore`] that knows the places to look. What is solved here: the PDB of exactly that build is found, read
//! into a flat [`index::SymbolIndex`] (procedures, publics, thunks, inline sites, lines), and each address gets its chain
//! of frames, innermost first, or a [`Reason`] for having no better name than `module.dll+0x1234`.
//!
//! Nothing is invented: a PDB of another build is reported and never used, and where no line row covers an
//! address, none is given. Damaged and hostile files end in an error or in a part left out and counted.

mod bundle;
pub(crate) mod bytes;
pub mod cab;
mod cache;
mod dwarf;
mod identity;
mod image;
pub mod index;
mod names;
mod options;
mod path;
pub mod pdb;
mod places;
mod reason;
mod resolved;
pub mod server;
mod store;
mod symbolizer;

pub(crate) use bundle::is_bundle;
pub use bundle::{Bundle, BundleWriter};
pub(crate) use cache::write_atomically;
pub use cache::{CacheKey, CacheStats, SymbolCache};
pub use dwarf::image_index;
pub use identity::{Identity, Wanted, image_id, image_identity, pdb_id};
pub use image::ImageFile;
pub use names::{Demangle, demangle, undecorate_x86};
pub use options::SymbolOptions;
pub use path::{PathElement, Store, SymbolPath};
pub use places::{file_name, safe_file_name};
pub use reason::Reason;
pub use resolved::{Location, ModuleSymbols, Resolved, Source};
pub use store::{FoundFile, Search, SymbolStore};
pub use symbolizer::{ModuleKey, Symbolizer, pdb_index};
