//! The common options of all commands that need symbols.

use super::note_once;
use std::path::{Path, PathBuf};

use stk_symbols::server::{ClientOptions, MICROSOFT};
use stk_symbols::{PathElement, Store, SymbolCache, SymbolPath, SymbolStore};

/// Where to look for symbols, and where to keep what was found.
#[derive(clap::Args, Clone, Default, Debug)]
#[command(next_help_heading = "Symbols")]
pub struct SymbolOptions {
    /// Folders, bundles (.tar.zst) and servers with PDBs and images, in the debuggers' syntax
    /// (dir;srv*cache*https://server;cache*dir); may be repeated. _NT_SYMBOL_PATH, the current
    /// folder and the trace's and the image's folder are searched too
    #[arg(short = 'y', long = "symbol-path", value_name = "PATH")]
    pub symbol_path: Vec<String>,
    /// Look only where -y and --ms-symbols say, and in the symbol cache: not in _NT_SYMBOL_PATH,
    /// nor in the current folder, the trace's, the image's or C:\symbols
    #[arg(long)]
    pub no_default_symbols: bool,
    /// Ask Microsoft's public symbol server too
    #[arg(long)]
    pub ms_symbols: bool,
    /// Contact no server, whatever the symbol path names
    #[arg(long)]
    pub offline: bool,
    /// Folder for symbol indexes and downloads [default: the user's cache folder]
    #[arg(long, value_name = "DIR")]
    pub symbol_cache: Option<PathBuf>,
    /// Largest symbol file to download, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub max_download: u64,
}

impl SymbolOptions {
    /// The store for the options and `_NT_SYMBOL_PATH`, with the usual folders of these traces.
    pub fn store<'t>(&self, traces: impl IntoIterator<Item = &'t Path>) -> SymbolStore {
        let mut path = SymbolPath::default();
        for text in &self.symbol_path {
            path.extend(SymbolPath::parse(text));
        }
        for element in &path.elements {
            if let PathElement::Folder(folder) = element
                && !folder.exists()
            {
                note_once(&format!("warning: -y {}: there is no such folder or file", folder.display()));
            }
        }
        let named = std::env::var_os("_NT_SYMBOL_PATH").filter(|_| !self.no_default_symbols);
        if let Some(text) = named {
            path.extend(SymbolPath::parse(&text.to_string_lossy()));
        }
        if self.ms_symbols {
            let url = Some(MICROSOFT.to_owned());
            path.elements.push(PathElement::Server { stores: vec![Store::Default], url });
        }
        let mut store = match self.no_default_symbols {
            true => SymbolStore::new(path),
            false => SymbolStore::with_defaults(path, traces),
        };
        if let Some(cache) = self.cache() {
            store.set_cache(cache);
        }
        if !self.offline {
            store.go_online(ClientOptions {
                max_size: self.max_download.saturating_mul(1 << 20),
                ..ClientOptions::default()
            });
        }
        store
    }

    /// The cache folder in the options, or the user's.
    pub fn cache(&self) -> Option<SymbolCache> {
        self.symbol_cache.clone().or_else(SymbolCache::default_folder).map(SymbolCache::new)
    }
}
